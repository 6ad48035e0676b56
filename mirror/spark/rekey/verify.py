"""The proof of a re-keyed topic: what the rule makes of the source's records, computed once more, against the target.

    - Each record that the query has committed is on the target once, in the partition of its new key, with the key,
      value, headers and timestamp that the rule gives it; nothing else is there.
    - Records of one source partition and one new key are in the source's order.
    - The target may be ahead of the plan that was read: records of the source from there on are computed, too, and may
      be there. So the target's ends are fixed before the source's. What is written behind a transaction that is open on
      the source is not there yet.
    - What cannot be known is said, and is no difference: what the source has deleted since, or before it was re-keyed,
      cannot be computed, and what the target has deleted since cannot be found. Nor is a log that was cut back, or a
      topic that was made anew, proof of what was re-keyed.
    - Times are compared, but of records that the target's broker has stamped, by the bit of their batch, and only where
      topics.append_time is target, or the source's broker has stamped them, too.
    - Where source and target are compacted by the same keys, or the rule's may_compact asks for it, a record may be
      missing whose key has its newest one there, or was deleted at last and has none; what else a target compacts is
      missing. What a target that is not compacted has beyond a source that is, that one's cleaner may have removed:
      nobody knows.

A record is known by its time and a digest of 128 bits, and travels as that through Spark's shuffle. The rule of now
decides: records that an earlier rule made are differences.
"""

from __future__ import annotations

import asyncio
import hashlib
import struct
import uuid
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession, functions

from mirror import clock
from mirror.config import Settings
from mirror.driver.scheduling import computing_task_count
from mirror.errors import BadRecords, ClusterError, ConfigError, MalformedBatch, MirrorError, WireError
from mirror.kafka.cluster import Cluster, Endpoint, TopicPartition
from mirror.kafka.log_reader import ReadLog, driven, last_committed
from mirror.kafka.queries import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED, every_listed
from mirror.policy.selection import Rekeying
from mirror.records.header import APPEND_TIME, RawBatch, parse_header
from mirror.records.recipe import LARGEST_RECORD
from mirror.replication.assignment import outside
from mirror.replication.open_transactions import held_from
from mirror.spark.compat import map_in_arrow
from mirror.spark.datasource.rows import record_batch, schema_of
from mirror.spark.rekey.driver import slices_of
from mirror.spark.rekey.expressions import used_by
from mirror.spark.rekey.microbatch import (
    MicroBatchPlan,
    RekeyStop,
    Work,
    committed_ends,
    last_plan,
    number_at,
    reached_in,
    settle_letters,
    undecided_in,
)
from mirror.spark.rekey.plan_log import PlanLog
from mirror.spark.rekey.queries import session_of
from mirror.spark.session import Engine, close_context, failure_text, open_context
from mirror.verify.report import KEPT, Difference, DifferenceKind, Lack, RekeyedReport, Shortfall

if TYPE_CHECKING:
    from mirror.records.columns import Records

#: A record of either side. `place`: its target partition, `BURIED` for one of the dead-letter topic; `origin`: its
#: source partition, -1 on the target; `at` and `number` order the records of one origin, or of one place. `is_stamped`:
#: a broker gave it its time; of a record of the source also where the target's may.
_DDL: Final = (
    "place int, origin int, at bigint, number int, key binary, is_tombstone boolean, digest binary, is_required boolean"
    ", timestamp bigint, is_stamped boolean"
)
_SCHEMA: Final = schema_of(_DDL)
#: No batch is too large for a computation.
_ANY_SIZE: Final = 2**31 - 1
#: Seconds between two polls of how far the query has come.
_POLL_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedExtent:
    """What is compared: offsets by partition number. The query has committed the source's records from `begin` to
    before `done`; it holds them up to before `end`, and up to before `written` while a transaction is open there. The
    target's are from `target_begin` to before `target_end`, those of the dead-letter topic likewise. `doubt`: why these
    are not the logs that were re-keyed; empty where they are. `reached` is where the query is, also where the source
    has deleted what follows: then that was not re-keyed.
    """

    begin: Mapping[int, int]
    reached: Mapping[int, int]
    done: Mapping[int, int]
    end: Mapping[int, int]
    written: Mapping[int, int]
    target_begin: Mapping[int, int]
    target_end: Mapping[int, int]
    dead_begin: Mapping[int, int]
    dead_end: Mapping[int, int]
    source_id: uuid.UUID | None
    target_id: uuid.UUID | None
    doubt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RekeySubject:
    """A re-keyed topic of a flow. `starts_late`: it did not begin with its source's first records. `own_clock`: the
    copy may show when its records were mirrored (`topics.append_time: target`), and not their own times. `losses`: by
    source partition, the offsets, from and to before, that are on record as lost.
    """

    flow: str
    rule: Rekeying
    source: Endpoint
    target: Endpoint
    starts_late: bool = False
    own_clock: bool = False
    losses: Mapping[int, Sequence[tuple[int, int]]] = field(default_factory=dict)

    def lacks(self, kind: Lack, reason: str, **more: Any) -> Shortfall:
        """Some of it, or all."""
        return Shortfall(kind=kind, topic=self.rule.source, target=self.rule.target, reason=reason, **more)


def proofs(
    settings: Settings,
    rules: Sequence[Rekeying],
    seconds: float,
    losses: Mapping[TopicPartition, Sequence[tuple[int, int]]] = {},
) -> list[tuple[RekeyedReport | None, list[Shortfall]]]:
    """Prove topics of a flow one after another, in a Spark context of their own; `seconds` as `extent_of` takes them,
    `losses` by target topic and source partition. Raises ConfigError, EngineLost.
    """
    rate = settings.limits.bytes_per_second
    tasks = computing_task_count(settings.spark.tasks, max(rule.partitions for rule in rules))
    context = open_context(settings.spark, settings.flow, tasks, evaluates=True)
    try:
        session = session_of(context)
        readers = context.defaultParallelism
        with Engine(context).watched():
            return [
                prove(
                    session,
                    RekeySubject(
                        flow=settings.flow,
                        rule=rule,
                        source=Endpoint.of(settings.source).bounded(rate, readers),
                        target=Endpoint.of(settings.target).bounded(rate, readers),
                        starts_late=settings.topics.start != "earliest",
                        own_clock=settings.topics.append_time == "target",
                        losses={
                            partition.partition: lost
                            for partition, lost in losses.items()
                            if partition.topic == rule.target
                        },
                    ),
                    seconds,
                )
                for rule in rules
            ]
    finally:
        close_context(context)


async def extent_of(subject: RekeySubject, seconds: float) -> ComparedExtent | None:
    """What there is to compare now, after waiting for up to so many seconds for a query that runs; None where it has
    begun with nothing. Raises ClusterError, also where a topic is not there, WireError, ConfigError, MalformedBatch.
    """
    rule = subject.rule
    deadline = clock.monotonic() + seconds
    wanted: dict[int, int] | None = None
    async with Cluster(subject.source) as source, Cluster(subject.target) as target:
        await source.refresh([rule.source])
        await target.refresh(rule.own_topics)
        if rule.target not in target.topics or rule.progress not in target.topics:
            return None
        while True:
            done = await _done(target, rule)
            theirs = [await _spans(target, topic) for topic in (rule.target, rule.dead_letter)]
            written = await _ends(source, rule.source)  # first: what grows meanwhile is no transaction
            begin, end = await _spans(source, rule.source)
            written = {number: max(until, written.get(number, until)) for number, until in end.items()}
            wanted = wanted or written
            is_there = done is not None and all(done.get(number, 0) >= until for number, until in wanted.items())
            if is_there or clock.monotonic() > deadline:
                break
            await asyncio.sleep(_POLL_SECONDS)
        if done is None:
            return None
        reached = {number: done.get(number, first) for number, first in begin.items()}
        return ComparedExtent(
            begin=begin,
            reached=reached,
            done={number: min(max(reached[number], begin[number]), until) for number, until in end.items()},
            end=end,
            written=written,
            target_begin=theirs[0][0],
            target_end=theirs[0][1],
            dead_begin=theirs[1][0],
            dead_end=theirs[1][1],
            source_id=source.topic_id(rule.source),
            target_id=target.topic_id(rule.target),
            doubt=await _doubt(source, target, rule),
        )


async def _doubt(source: Cluster, target: Cluster, rule: Rekeying) -> str:
    """Why the logs are not those that plans are about, by topic ids and leader epochs; empty where they are."""
    plans = PlanLog(target, rule)
    if lost := await plans.lost():
        return lost
    unlike = await plans.unlike(source)
    return unlike.detail if unlike is not None else ""


async def _done(target: Cluster, rule: Rekeying) -> Mapping[int, int] | None:
    """Before which offset of each partition every slot has committed all, once readers see it: the markers of one
    commit come to the target's partitions in no order. None before the first plan.
    """
    plan = await last_plan(target, rule)
    if plan is None:
        return None
    slots = range(len(target.topics[rule.progress].leaders) - 1)
    numbers = await asyncio.gather(*(last_committed(target, number_at(rule, slot)) for slot in slots))
    reached = [reached_in(number) for number in numbers]
    every = [TopicPartition(rule.target, number) for number in target.topics[rule.target].leaders]
    await undecided_in(target, *committed_ends(rule, every, reached))  # `_doubt` says what was lost
    await settle_letters(target, rule, len(slots))
    return plan.until if {one.number for one in reached} == {plan.number} else plan.begin


async def _spans(cluster: Cluster, topic: str) -> tuple[dict[int, int], dict[int, int]]:
    if not topic:
        return {}, {}
    return await _ends(cluster, topic, EARLIEST), await _ends(cluster, topic, LATEST, READ_COMMITTED)


async def _ends(cluster: Cluster, topic: str, when: int = LATEST, isolation: int = READ_UNCOMMITTED) -> dict[int, int]:
    """As `every_listed`, of a topic's partitions by number. Raises ClusterError where it is not there."""
    if (known := cluster.topics.get(topic)) is None:
        why = "may not be described by the mirror's principal" if cluster.is_denied(topic) else "is not there"
        raise ClusterError(f"{cluster}: the topic {topic} {why}")
    every = [TopicPartition(topic, number) for number in known.leaders]
    return {
        partition.partition: end for partition, end in (await every_listed(cluster, every, when, isolation)).items()
    }


def prove(session: SparkSession, subject: RekeySubject, seconds: float) -> tuple[RekeyedReport | None, list[Shortfall]]:
    """Compare a topic as it is now; `seconds` as `extent_of` takes them. What could not be compared is a shortfall:
    that of one topic keeps no other from being compared.
    """
    rule = subject.rule
    if subject.starts_late:
        reason = "topics.start: where re-keying began is not on record, so nobody knows what should be there"
        return None, [subject.lacks(Lack.NOT_VERIFIED, reason)]
    try:
        extent = asyncio.run(extent_of(subject, seconds))
    except (ClusterError, WireError, ConfigError, MalformedBatch, BadRecords) as problem:
        return None, [subject.lacks(Lack.NOT_VERIFIED, str(problem))]
    if extent is None:
        return None, [subject.lacks(Lack.BEHIND, "nothing was re-keyed yet")]
    try:
        report, unknown = _compared(session, subject, extent)
    except Exception as failure:  # whatever Spark raises
        if isinstance(failure, MirrorError):
            raise
        stop = RekeyStop.found_in(failure)
        reason = f"{stop.state} at {rule.source}-{stop.partition} offset {stop.offset}: {stop.detail}" if stop else ""
        return None, [subject.lacks(Lack.NOT_VERIFIED, reason or failure_text(failure))]
    if extent.doubt:
        unknown.append(subject.lacks(Lack.NOT_VERIFIED, extent.doubt))
    return report, [*_behind(subject, extent), *unknown]


def _behind(subject: RekeySubject, extent: ComparedExtent) -> Iterator[Shortfall]:
    for number, end in sorted(extent.written.items()):
        done, stable = extent.done[number], extent.end[number]
        if done < end:
            why = held_from(stable) if stable < end else "not re-keyed yet"
            yield subject.lacks(Lack.BEHIND, why, partition=number, first=done, next_offset=end, offsets=end - done)
    for number, begin in sorted(extent.begin.items()):
        for first, end in outside(subject.losses.get(number, ()), extent.reached[number], begin):
            why = "the source deleted them before they were re-keyed, as far as the plans say"
            yield subject.lacks(
                Lack.NOT_VERIFIED, why, partition=number, first=first, next_offset=end, offsets=end - first
            )


def _compared(
    session: SparkSession, subject: RekeySubject, extent: ComparedExtent
) -> tuple[RekeyedReport, list[Shortfall]]:
    rule, used = subject.rule, used_by(session, subject.rule)
    session.conf.set("spark.sql.shuffle.partitions", str(2 * session.sparkContext.defaultParallelism))
    work = Work(
        flow=subject.flow,
        plan=_plan(rule, extent, extent.begin, extent.done),
        source=subject.source,
        target=subject.target,
        slots=1,
        opens=LARGEST_RECORD,
    )
    # what is ahead of the plan may be there, whatever the rule says of bad records
    lenient = replace(rule, on_bad_record="dead-letter" if rule.dead_letter else "drop")
    ahead = replace(work, plan=_plan(lenient, extent, extent.done, extent.end))
    parts = [
        map_in_arrow(slices_of(session, one, used), _described(subject, is_required=one is work), _DDL)
        for one in (work, ahead)
        if one.plan.ranges
    ]
    found = _stored(session, subject, extent)
    wanted = parts[0].unionAll(parts[1]) if len(parts) > 1 else parts[0] if parts else found.limit(0)
    wanted, found = wanted.persist(), found.persist()
    try:
        return _judged(subject, extent, wanted, found)
    finally:
        wanted.unpersist()
        found.unpersist()


def _plan(rule: Rekeying, extent: ComparedExtent, begin: Mapping[int, int], until: Mapping[int, int]) -> MicroBatchPlan:
    return MicroBatchPlan(
        number=0,
        after=-1,
        begin=begin,
        until=until,
        epochs=dict.fromkeys(until, -1),
        slots=1,
        rule=replace(rule, max_bytes=_ANY_SIZE),
        source_id=extent.source_id,
        target_id=extent.target_id,
    )


def _judged(
    subject: RekeySubject, extent: ComparedExtent, wanted: DataFrame, found: DataFrame
) -> tuple[RekeyedReport, list[Shortfall]]:
    from mirror.spark.rekey.packing import BURIED  # noqa: PLC0415 -- loads the compiler

    rule = subject.rule
    stamped = found.where("is_stamped").select("place", "digest").distinct()
    is_stamped = not stamped.isEmpty()
    both = _matched(rule, wanted, found, is_stamped=is_stamped)
    ((own_timestamps,),) = both.agg(functions.sum("paired")).collect() if is_stamped else ((0,),)
    odd = both.where("missing > 0 OR extra > 0").persist()
    try:
        sums = {
            row.place: (row.missing, row.extra)
            for row in odd.groupBy("place").sum("missing", "extra").toDF("place", "missing", "extra").collect()
        }
        examples = odd.orderBy("place", "first.origin", "first.at", "held").limit(KEPT).collect()
    finally:
        odd.unpersist()
    if is_stamped:
        late = _out_of_order(_untimed(wanted, stamped), _untimed(found, stamped)).collect()
    else:
        late = _out_of_order(wanted, found).collect()
    is_cleaned = rule.tombstones_ms is not None and not rule.compacted  # the source, and not its copy
    source_deleted = any(extent.begin.values()) or is_cleaned
    expired = {place for place, begin in extent.target_begin.items() if begin}
    if any(extent.dead_begin.values()):
        expired.add(BURIED)
    unknown: list[Shortfall] = []
    if lost := sum(missing for place, (missing, _) in sums.items() if place in expired):
        reason = "the target has deleted its first records, and these may have been among them"
        unknown.append(subject.lacks(Lack.NOT_VERIFIED, reason, offsets=lost))
    if source_deleted and (old := sum(extra for _, extra in sums.values())):
        how = "it has deleted its first ones" if any(extent.begin.values()) else "its cleaner may have removed them"
        reason = f"the target holds more records than the source has still: {how}"
        unknown.append(subject.lacks(Lack.NOT_VERIFIED, reason, offsets=old))
    missing = sum(many for place, (many, _) in sums.items() if place not in expired)
    extra = 0 if source_deleted else sum(many for _, many in sums.values())
    differences = [
        *_misplaced(rule, examples, expired, source_deleted=source_deleted),
        *(_reordered(rule, row) for row in late[:KEPT]),
    ]
    report = RekeyedReport(
        topic=rule.source,
        target=rule.target,
        partitions=len(extent.target_end),
        records=wanted.where("is_required").count(),
        target_records=found.where(f"place <> {BURIED}").count(),
        buried=wanted.where(f"is_required AND place = {BURIED}").count(),
        different=missing + extra + len(late),
        differences=tuple(differences[:KEPT]),
        own_timestamps=own_timestamps or 0,
    )
    return report, unknown


def _misplaced(
    rule: Rekeying, examples: Iterable[Row], expired: Collection[int], *, source_deleted: bool
) -> Iterator[Difference]:
    """Yield the differences of records that are missing or extra, where deletions do not explain them."""
    from mirror.spark.rekey.packing import BURIED  # noqa: PLC0415 -- loads the compiler

    for row in examples:
        where = rule.dead_letter if row.place == BURIED else f"{rule.target}-{row.place}"
        if row.missing and row.place not in expired:
            what = f"{row.missing} record{'s' if row.missing > 1 else ''}"
            kind, origin = DifferenceKind.MISSING, row.first
            yield Difference(rule.source, origin.origin, origin.at, kind, what, f"none in {where}")
        if row.extra and not source_deleted:
            what = f"{row.extra} in {where} at offset {row.held} that the rule does not put there"
            yield Difference(rule.source, -1, -1, DifferenceKind.EXTRA, "no record", what)


def _reordered(rule: Rekeying, row: Row) -> Difference:
    """Return the difference of a record that stands before an earlier record of its key."""
    what = f"a record of the same key that comes before it is behind it in {rule.target}-{row.place}, at {row.before}"
    return Difference(rule.source, row.origin, row.at, DifferenceKind.ORDER, "", what)


def _matched(rule: Rekeying, wanted: DataFrame, found: DataFrame, *, is_stamped: bool) -> DataFrame:
    """How many records are `missing` and how many `extra`, of those that are alike. `is_stamped`: some of the target's
    have times of its own.
    """
    from mirror.spark.rekey.packing import BURIED  # noqa: PLC0415 -- loads the compiler

    alike = ["place", "digest", "timestamp"]
    is_newest = functions.expr(_IS_NEWEST if _may_compact(rule) else "false")
    due = (
        wanted.withColumn("is_newest", is_newest)
        .groupBy(alike)
        .agg(
            functions.count("*").alias("due"),
            functions.expr("count_if(is_required)").alias("required"),
            functions.expr("count_if(is_stamped)").alias("may_differ"),
            functions.expr("min(struct(origin, at, number))").alias("first"),
            functions.expr("first(key)").alias("wanted_key"),
            functions.expr("bool_or(is_newest)").alias("is_newest"),
            functions.expr("bool_or(is_newest AND is_tombstone)").alias("is_deleted"),
        )
    )
    there = found.groupBy(alike).agg(
        functions.count("*").alias("there"),
        functions.expr("count_if(is_stamped)").alias("stamped"),
        functions.min("at").alias("held"),
        functions.expr("first(key)").alias("found_key"),
    )
    both = due.join(there, alike, "full_outer").na.fill(0, ["due", "required", "may_differ", "there", "stamped"])
    both = _paired(both) if is_stamped else both.selectExpr("*", "0L AS paired", "0L AS paired_there")
    lacks = "greatest(required - there - paired, 0)"
    if _may_compact(rule):
        both = both.withColumn("key", functions.expr("coalesce(wanted_key, found_key)"))
        lacks = f"IF({_IS_SUPERSEDED}, 0, {lacks})"
    # a dead-letter topic may be of several rules
    return both.selectExpr(
        *("place", "first", "held", "paired", f"{lacks} AS missing"),
        f"IF(place = {BURIED}, 0, greatest(there - due - paired_there, 0)) AS extra",
    )


def _may_compact(rule: Rekeying) -> bool:
    """The target may lack what its cleaner took: the source's may take it, too, or somebody has asked for that."""
    return rule.compacted and rule.fits_compaction


#: Of its key and place, in its source partition, no record that must be there comes after it. There is no order between
#: source partitions: the newest of any may be the last one on the target.
_IS_NEWEST: Final = (
    "coalesce(struct(at, number) >= max(IF(is_required, struct(at, number), NULL))"
    " OVER (PARTITION BY place, key, origin), true)"
)
_OF_KEY: Final = "OVER (PARTITION BY place, key)"
#: A newest record of its key is there, or none of the key, which was deleted at last.
_IS_SUPERSEDED: Final = (
    "key IS NOT NULL AND place >= 0 AND ("
    f"coalesce(bool_or(is_newest AND there + paired > 0) {_OF_KEY}, false)"
    f" OR (sum(there) {_OF_KEY} = 0 AND coalesce(bool_or(is_deleted) {_OF_KEY}, false)))"
)


def _paired(both: DataFrame) -> DataFrame:
    """With how many records of the source are `paired` with ones of the target that are alike but for a time by which
    they may differ: of those that have none of their own time, as many as there are on both sides.
    """
    own = "OVER (PARTITION BY place, digest)"
    so_far = "OVER (PARTITION BY place, digest ORDER BY required = 0, timestamp)"
    return (
        both.withColumn("spare", functions.expr("least(may_differ, greatest(due - there, 0))"))
        .withColumn("spare_there", functions.expr("least(stamped, greatest(there - due, 0))"))
        .withColumn("pairs", functions.expr(f"least(sum(spare) {own}, sum(spare_there) {own})"))
        .withColumn("paired", functions.expr(f"least(spare, greatest(pairs - sum(spare) {so_far} + spare, 0))"))
        .withColumn(
            "paired_there",
            functions.expr(f"least(spare_there, greatest(pairs - sum(spare_there) {so_far} + spare_there, 0))"),
        )
    )


def _untimed(records: DataFrame, stamped: DataFrame) -> DataFrame:
    """The same without times where the target's broker has `stamped` ones that are alike: their order is left."""
    marked = records.join(stamped.withColumn("is_untimed", functions.lit(True)), ["place", "digest"], "left")
    return marked.withColumn("timestamp", functions.expr("IF(is_untimed, 0L, timestamp)")).drop("is_untimed")


def _out_of_order(wanted: DataFrame, found: DataFrame) -> DataFrame:
    """Records of one origin and key that are on the target before one that comes before them. Those that are alike
    are distinguished by their order, and those that are of several origins not at all.
    """
    window, alike = functions.expr, "PARTITION BY place, digest, timestamp"
    ours = wanted.where("place >= 0 AND key IS NOT NULL").selectExpr(
        "*",
        f"row_number() OVER ({alike} ORDER BY origin, at, number) AS turn",
        f"min(origin) OVER ({alike}) = max(origin) OVER ({alike}) AS is_sole",
    )
    theirs = found.where("place >= 0").selectExpr(
        *("place", "digest", "timestamp", "at AS held", f"row_number() OVER ({alike} ORDER BY at) AS turn")
    )
    joined = ours.where("is_sole").join(theirs, ["place", "digest", "timestamp", "turn"])
    behind = window("lag(held) OVER (PARTITION BY place, origin, key ORDER BY at, number)")
    return joined.withColumn("before", behind).where("before > held").select("place", "origin", "at", "before")


def _described(
    subject: RekeySubject, *, is_required: bool
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For `map_in_arrow` over slices: a row for each record that they hold."""
    own_clock = subject.own_clock

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from mirror.records.columns import decode  # noqa: PLC0415 -- loads the compiler
        from mirror.records.rewrite import read  # noqa: PLC0415 -- likewise
        from mirror.spark.rekey.packing import SliceKind as Slice  # noqa: PLC0415 -- likewise

        for batch in batches:
            for one in batch.to_pylist():
                kind, data = Slice(one["kind"]), memoryview(one["data"])
                if kind is Slice.COUNTERS:
                    continue
                if kind is Slice.BATCH:
                    records = read(RawBatch(parse_header(data), data))
                else:
                    records = decode(data, one["records"], one["first_offset"], one["base_timestamp"])
                at, is_stamped = [one["first_offset"]] * len(records), own_clock or one["is_stamped"]
                yield _rows(records, one["target_partition"], one["source_partition"], at, is_stamped, is_required)

    return step


def _stored(session: SparkSession, subject: RekeySubject, extent: ComparedExtent) -> DataFrame:
    """A row for each record that the target holds, and the dead-letter topic."""
    from mirror.spark.rekey.packing import BURIED  # noqa: PLC0415 -- loads the compiler

    rule = subject.rule
    ranges = [
        (topic, number, begins[number], end)
        for topic, begins, ends in (
            (rule.target, extent.target_begin, extent.target_end),
            (rule.dead_letter, extent.dead_begin, extent.dead_end),
        )
        for number, end in sorted(ends.items())
    ]
    target = subject.target

    def step(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from mirror.records.rewrite import portions  # noqa: PLC0415 -- loads the compiler

        for batch in numbers:
            for each in batch.column(0).to_pylist():
                topic, number, begin, end = ranges[each]
                place = BURIED if topic != rule.target else number
                for raw in driven(_batches(target, TopicPartition(topic, number), begin, end)):
                    is_stamped = bool(raw.header.attributes & APPEND_TIME)
                    for records in portions(raw):
                        yield _rows(records, place, -1, records.offsets.tolist(), is_stamped, False)

    return map_in_arrow(session.range(0, len(ranges), 1, len(ranges)), step, _DDL)


async def _batches(
    endpoint: Endpoint, partition: TopicPartition, begin: int, end: int
) -> AsyncGenerator[RawBatch, None]:
    """The batches of a partition that a consumer of committed records sees.

    Raises ClusterError, also where one is damaged.
    """
    async with Cluster(endpoint) as cluster:
        await cluster.refresh([partition.topic])
        log = ReadLog(cluster, partition, end, end)
        async for raw in log.committed(begin):
            yield raw
        if log.damage:
            raise ClusterError(f"{cluster}: {partition}: {log.damage}")


def _rows(
    records: Records, place: int, origin: int, at: list[int], is_stamped: bool, is_required: bool
) -> pa.RecordBatch:
    count = len(records)
    keys, digests, tombstones = [], [], []
    data = records.data.tobytes()
    columns = (records.key_at, records.key_size, records.value_at, records.value_size)
    spans = (records.headers_at, records.headers_end, records.header_count)
    for key_at, key_size, value_at, value_size, first, last, headers in zip(
        *(column.tolist() for column in (*columns, *spans)), strict=True
    ):
        key = data[key_at : key_at + key_size] if key_size >= 0 else None
        digest = hashlib.blake2b(digest_size=16)
        digest.update(struct.pack(">qqq", key_size, value_size, headers))
        digest.update(key or b"")
        digest.update(data[value_at : value_at + max(value_size, 0)])
        digest.update(data[first:last])
        digests.append(digest.digest())
        keys.append(None if key is None else hashlib.blake2b(key, digest_size=16).digest())
        tombstones.append(value_size < 0)
    places, origins, numbers = [place] * count, [origin] * count, range(count)
    required, stamped = [is_required] * count, [is_stamped] * count
    columns_made = (places, origins, at, numbers, keys, tombstones, digests, required, records.timestamps, stamped)
    return record_batch(_SCHEMA, columns_made)
