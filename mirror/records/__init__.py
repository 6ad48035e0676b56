"""The record batch format: bytes in, values out. No socket, no clock, no log.

header    the 61-byte header of magic 2, the message of magic 0 and 1, and how a record set is cut into raw batches
checksum  CRC-32C over a batch and over its records section
restamp   a new header for the same records section
segment   a log file, up to where it is damaged and beyond
control   which end of a transaction a marker marks

Where a batch must be opened:

codecs    compressed payloads, under a cap
records   records of magic 2 as columns (kernels: the compiled loops)
legacy    records of magic 0 and 1 as the same columns
rewrite   dense batches of the same records (recipe: what they must be like)
likeness  whether two batches hold the same records
"""
