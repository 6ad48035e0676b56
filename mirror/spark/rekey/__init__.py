"""Topics whose records get another key, another number of partitions, or both: Spark decodes, evaluates and shuffles.

    read        ranges of the source's partitions; records as Arrow rows              reading.py      one task a range
    evaluate    the rule's expressions, in Spark SQL                                  expressions.py
    pack        records that go to one target partition, together as a slice         packing.py
    shuffle     slices to the slot of their target partition, in the source's order   driver.py
    write       batches of each slot and where it stands, in one transaction          writing.py      one task a slot

A micro-batch is that query over bounded ranges; the driver plans one after another (`spark/rekey/driver.py`).

    K1  a micro-batch is planned before it is carried out: its number, its ranges and its rule are a record of the
        progress topic's partition 0, written by the one driver that its transactional id belongs to
    K2  what a slot writes for a micro-batch is a function of the source's log and the plan: expressions that are not
        deterministic are refused. It is committed together with the micro-batch's number, in partition 1 + slot
    K3  a slot carries a micro-batch out only while its plan is the last one on record, and where the last number that
        the slot committed is the one that the plan names before it. So a task may run twice, late, or beside its
        successor: one of them commits
    K4  a plan of which any slot has committed its part is carried out by all of them, with the same ranges and the same
        rule, before there is another. One of which no slot has, may be made anew with other ranges: when that is on
        record, every slot is fenced once more, for a late task of the old one may have begun before
    - The number of slots is that of the progress topic's partitions, less one, and never changes; plans name it.
    - Where a plan's ranges have a hole that may have held a tombstone (L4 in `replication/pipeline.py`), that is on
      record as a loss before the plan is carried out.

Decision: the driver runs its own loop of bounded queries and not a streaming query with `foreachBatch`. The position is
in the target (K1, K2), so Spark's checkpoint would be a second truth on some disk; and a partition that must stop is
cut out of the next plan, where a streaming query would fail as a whole.
"""
