"""The record batch format: bytes in, values out. No socket, no clock, no log.

header    the 61-byte header of magic 2 and how a record set is cut into raw batches
checksum  CRC-32C over a batch and over its records section
restamp   a new header for the same records section
"""
