"""Proof of equality: both logs of every partition, batch by batch, as the brokers stored them.

Offsets, counts, timestamps, codec and the records section (length and CRC-32C) must be the same on both sides, and
every stored CRC must hold. Nothing is decompressed, so a gigabyte costs seconds.

    V1  ends are fixed before the first batch is read, the target's before the source's: a running mirror does no harm
    V2  what the source holds beyond the target's end is lag; whatever else is on one side only is a difference, except
        what the source's retention deleted, which is told in a note
    V3  memory is bounded: for each partition under way, one fetch answer of each side and the next one on its way

reader  one side of a partition    compare  the walk over both    flow  all partitions    report  what was found
"""
