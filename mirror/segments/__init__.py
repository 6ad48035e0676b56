"""Logs as they are stored, read batch by batch.

segments   files of a broker's data folder
partition  a live partition, over the wire
"""
