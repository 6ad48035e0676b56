"""Proof of equality: both logs of every partition, batch by batch, and record by record where batches were rewritten.

A batch is identical where offsets, count, timestamps, codec, timestamp type and the bytes of the records section are
the same on both sides; of magic 0 and 1, all after the length. That needs no decompression, so a gigabyte costs
seconds. What is not identical is decompressed, and every record's offset, timestamp, key, value and headers
compared. Every stored CRC must hold, too.

    V1  ends are fixed before the first batch is read, the target's before the source's: a running mirror does no harm
    V2  what the source holds beyond the target's end is lag; whatever else is on one side only is a difference, except
        what the source's retention deleted, which a note names
    V3  memory is bounded: for each partition under way, one fetch answer of each side and the next one on its way, and
        where records are compared, one decompressed batch of each side
    V4  what was not compared is never called equal: a log that gives nothing before its end is a difference, and
        timestamps that the target's broker set by its own clock (append time) are named in a note
    - Only what a consumer of committed records gets is compared: control markers, batches of aborted transactions and
      batches that compaction emptied are no records, on either side.
    - A proof is the same however it is cut: ranges end with a batch of the source; reports and digests add up.
"""
