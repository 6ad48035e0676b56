"""One micro-batch as a query of Spark: what its SQL tab shows."""

from __future__ import annotations

from pyspark.sql import DataFrame, Row, SparkSession

from mirror.spark.rekey.arrow import map_in_arrow
from mirror.spark.rekey.expressions import MADE, judged
from mirror.spark.rekey.microbatch import Work
from mirror.spark.rekey.packing import SLICE_DDL
from mirror.spark.rekey.reading import CARRIED, packed, repacked, row_schema, rows
from mirror.spark.rekey.writing import RECEIPT_DDL, written

#: Within a slot: one target partition after another, and in it each source partition in its order.
ORDER = ("target_partition", "source_partition", "first_offset")


def carried_out(session: SparkSession, work: Work, used: frozenset[str]) -> list[Row]:
    """Carry a plan out, and wait for it: receipts. `used`: what its expressions look at.

    Whatever Spark raises says nothing of what was committed: the slots' numbers do.
    """
    ordered = slices_of(session, work, used).repartitionById(work.slots, "slot").sortWithinPartitions(*ORDER)
    return map_in_arrow(ordered, written(work), RECEIPT_DDL).collect()


def slices_of(session: SparkSession, work: Work, used: frozenset[str]) -> DataFrame:
    """What the rule makes of the plan's ranges, as `packing` has slices; nothing is done before somebody asks."""
    ranges = session.range(0, len(work.plan.ranges), 1, len(work.plan.ranges))
    if work.plan.rule.keeps_records:
        return map_in_arrow(ranges, packed(work), SLICE_DDL)
    records = map_in_arrow(ranges, rows(work, used), row_schema(used))
    made = records.select(*CARRIED, judged(records, work.plan.rule).alias(MADE))
    return map_in_arrow(made, repacked(work), SLICE_DDL)
