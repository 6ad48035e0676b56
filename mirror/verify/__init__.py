"""Proof of equality: both logs of every partition, batch by batch, as the brokers stored them.

Offsets, counts, timestamps, codec, attributes and the records section (length and CRC-32C) must be the same on both
sides, and every stored CRC of magic 2 must hold; of magic 0 and 1, all after the length must be. The transactional and
the delete-horizon bit may be gone on the target. Nothing is decompressed, so a gigabyte costs seconds.

    V1  ends are fixed before the first batch is read, the target's before the source's: a running mirror does no harm
    V2  what the source holds beyond the target's end is lag; whatever else is on one side only is a difference, except
        what the source's retention deleted, which is told in a note
    V4  what was not compared is never called equal: a log that gives nothing before its end is a difference, and max
        timestamps that the target's broker set by its own clock (append time on both sides) are told in a note
    V3  memory is bounded: for each partition under way, one fetch answer of each side and the next one on its way

reader  one side of a partition    compare  the walk over both    flow  all partitions    report  what was found
"""
