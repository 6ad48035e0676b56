"""What tasks and the driver of a re-keyed topic make of batches, write down and decide without a broker: slices, plans,
stops, how much, when again, and what is reported meanwhile.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import count, pairwise
from operator import itemgetter
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from old_messages import message, wrapper
from rawbatches import batch, raw
from recordoracle import Record, encoded
from rekeychecker import java_partition
from sparkless import idle_flow
from waiting import DEADLINE_S, MovableClock

from mirror import clock as product_clock
from mirror.errors import ConfigError, NotAuthenticated
from mirror.kafka.cluster import Cluster, Endpoint, Leader, Topic, TopicPartition
from mirror.observability.status import PartitionStatus
from mirror.policy.selection import Rekeying
from mirror.records import columns
from mirror.records.codecs import compress
from mirror.records.columns import decode, read
from mirror.records.header import APPEND_TIME, RawBatch
from mirror.spark.rekey import driver as rekey_driver
from mirror.spark.rekey import verify as proof
from mirror.spark.rekey.driver import ORDER, OVERDUE_SECONDS, Rekeyer
from mirror.spark.rekey.expressions import IT
from mirror.spark.rekey.microbatch import NOTHING, MicroBatchPlan, Reached, RekeyStop, Work, numbered, reached_in
from mirror.spark.rekey.packing import FAILED, NO_KEY, SLICE, Packer, SliceKind
from mirror.spark.rekey.source import PartStanding
from mirror.states import REKEYED_BY, Remedy, State
from mirror.verify.report import Lack

RULE = Rekeying(source="orders", target="orders-by-user", partitions=5, progress="mirror.a.rekey.orders-by-user")
NOWHERE = Endpoint("any", (("localhost", 1),))
#: Partitions 0 to 4, offsets 5 to 8 of each.
PLAN = MicroBatchPlan(
    number=1,
    after=0,
    begin=dict.fromkeys(range(5), 5),
    until=dict.fromkeys(range(5), 9),
    epochs=dict.fromkeys(range(5), 0),
    slots=3,
    rule=RULE,
    source_id=None,
    target_id=None,
)


def work(rule: Rekeying, begin: int, until: int) -> Work:
    plan = replace(PLAN, begin={2: begin}, until={2: until}, epochs={2: 0}, rule=rule, source_id=uuid.uuid4())
    return Work(flow="a", plan=plan, source=NOWHERE, target=NOWHERE, slots=plan.slots)


def stored(every: Sequence[Record], **fields: Any) -> RawBatch:
    """The batch of records at their own offsets and times."""
    first = every[0].offset
    payload = encoded([replace(one, offset=one.offset - first) for one in every])
    newest = max(one.timestamp for one in every)
    return raw(batch(first, payload=payload, count=len(every), base_timestamp=0, max_timestamp=newest, **fields))


# --- slices ---------------------------------------------------------------------------------------------------------

KEYS = st.none() | st.sampled_from([b"a", b"b", b"c"]) | st.binary(max_size=9)
HEADERS = st.lists(st.tuples(st.text(max_size=3).map(str.encode), st.none() | st.binary(max_size=4)), max_size=3)


def take(packer: Packer, one: RawBatch, made: pa.StructArray | None = None) -> None:
    """A batch, portion by portion, where nothing or one portion is judged."""
    for wanted in packer.wanted(one):
        packer.take(one, wanted, made)


def unpacked(packer: Packer) -> list[tuple[int, int, list[tuple[int, bytes | None, bytes | None, Any]]]]:
    """Slot, target partition and records of each slice, in the order in which they are written."""
    found = []
    for one in packer.drain(all_of_it=True):
        assert one.schema == SLICE
        for row in sorted(one.to_pylist(), key=itemgetter(*ORDER)):
            if row["kind"] == SliceKind.BATCH:
                held = read(raw(row["data"]))
            else:
                held = decode(row["data"], row["records"], row["first_offset"], row["base_timestamp"])
            every = [
                (int(held.timestamps[at]), columns.key(held, at), columns.value(held, at), columns.headers(held, at))
                for at in range(len(held))
            ]
            found.append((row["slot"], row["target_partition"], every))
    return found


@given(st.lists(st.tuples(KEYS, HEADERS), min_size=1, max_size=40), st.data())
def test_slices_hold_every_record_of_the_range_in_order(
    made: list[tuple[bytes | None, list[tuple[bytes, bytes | None]]]], data: st.DataObject
) -> None:
    every = [Record(100 + n, n, key, str(n).encode(), tuple(with_)) for n, (key, with_) in enumerate(made)]
    cuts = sorted({0, len(every), *data.draw(st.lists(st.integers(0, len(every)), max_size=3))})
    raws = [stored(every[a:b]) for a, b in pairwise(cuts)]
    begin = data.draw(st.integers(100, 100 + len(every)))
    until = data.draw(st.integers(begin + 1, 101 + len(every)))
    # with another codec than the source's no batch stays whole
    packer = Packer(work(replace(RULE, codec=data.draw(st.sampled_from([None, 4]))), begin, until), 2)
    for one_batch in raws:
        take(packer, one_batch)
    wanted = {one.value: one for one in every if begin <= one.offset < until}
    order: dict[tuple[int, bytes | None], int] = {}
    seen = []
    for slot, partition, held in unpacked(packer):
        assert slot == partition % 3
        for timestamp, key, value, with_ in held:
            one = wanted[value]
            assert (timestamp, key, tuple(with_)) == (one.timestamp, one.key, one.headers)
            if key is not None:
                assert partition == java_partition(key, 5)
                assert order.get((partition, key), -1) < one.offset
                order[partition, key] = one.offset
            seen.append(value)
    assert Counter(seen) == Counter(list(wanted))


def test_a_batch_that_stays_together_keeps_its_bytes() -> None:
    together = stored([Record(n, n, b"one key", b"v", ()) for n in range(4)])
    apart = stored([Record(n, n, str(n).encode(), b"v", ()) for n in range(4, 20)])
    packer = Packer(work(RULE, 0, 20), 2)
    for one in (together, apart):
        take(packer, one)
    (made,) = packer.drain(all_of_it=True)
    kinds = [(SliceKind(row["kind"]), row["records"]) for row in made.to_pylist()]
    assert kinds[0] == (SliceKind.BATCH, 4)
    assert {kind for kind, _ in kinds[1:]} == {SliceKind.RECORDS}
    assert made.to_pylist()[0]["data"] == bytes(together.data)


def test_a_batch_with_its_broker_s_times_does_not_stay_whole() -> None:
    """Its records' own times are others; each record gets the batch's, as a reader of the source sees it."""
    held = stored([Record(n, n, b"one key", b"v", ()) for n in range(4)], attributes=APPEND_TIME)
    packer = Packer(work(RULE, 0, 4), 2)
    take(packer, held)
    (made,) = packer.drain(all_of_it=True)
    assert [SliceKind(row["kind"]) for row in made.to_pylist()] == [SliceKind.RECORDS]
    assert {row["base_timestamp"] for row in made.to_pylist()} == {3}


def test_a_batch_of_which_a_part_is_wanted_does_not_stay_whole() -> None:
    whole = stored([Record(n, n, b"one key", b"v", ()) for n in range(4)])
    packer = Packer(work(RULE, 1, 4), 2)
    take(packer, whole)
    (made,) = packer.drain(all_of_it=True)
    assert [(SliceKind(row["kind"]), row["records"], row["first_offset"]) for row in made.to_pylist()] == [
        (SliceKind.RECORDS, 3, 1)
    ]


def judgement(*rows: tuple[bool, bytes | None] | None) -> pa.StructArray:
    made = [None if row is None else {IT: {"keep": row[0], "key": row[1]}} for row in rows]
    kind = pa.struct([(IT, pa.struct([("keep", pa.bool_()), ("key", pa.binary())]))])
    return pa.array(made, kind)


@pytest.mark.parametrize(("policy", "left"), [("drop", "bad-record"), ("dead-letter", None)])
def test_what_is_bad_is_left_out_and_counted(policy: Any, left: str | None) -> None:
    rule = replace(RULE, rekey="x", on_bad_record=policy, dead_letter="dead" if policy == "dead-letter" else "")
    held = stored([Record(n, n, b"k", str(n).encode(), ((b"h", None),)) for n in range(5)])
    packer = Packer(work(rule, 0, 5), 2)
    take(packer, held, judgement((True, b"a"), None, (False, None), (True, None), (True, b"b")))
    (made,) = packer.drain(all_of_it=True)
    rows = made.to_pylist()
    assert sum(row["records"] for row in rows if row["kind"] == SliceKind.RECORDS) == 2
    all_counters = {row["reason"]: row["records"] for row in rows if row["kind"] == SliceKind.COUNTERS}
    assert all_counters == {"filtered": 1} | ({left: 2} if left else {})
    dead = [row for row in rows if row["kind"] == SliceKind.DEAD]
    found = [decode(row["data"], row["records"], row["first_offset"], row["base_timestamp"]) for row in dead]
    every = [(columns.value(one, at), dict(columns.headers(one, at))) for one in found for at in range(len(one))]
    assert [(value, item[b"mirror.offset"], item[b"h"]) for value, item in every] == (
        [] if left else [(b"1", b"1", None), (b"3", b"3", None)]
    )
    assert {item[b"mirror.reason"] for _, item in every} <= {NO_KEY.encode(), FAILED.encode()}


def test_the_first_bad_record_stops_where_the_rule_says_so() -> None:
    held = stored([Record(n, n, b"k", b"v", ()) for n in range(10, 15)])
    made = judgement((True, b"a"), (True, b"b"), None, (True, None), (True, b"b"))
    packer = Packer(work(replace(RULE, rekey="x"), 10, 15), 2)
    with pytest.raises(RekeyStop) as stop:
        take(packer, held, made)
    assert (stop.value.state, stop.value.partition, stop.value.offset) == (State.REFUSED, 2, 12)


def test_no_record_without_a_key_goes_to_a_compacted_topic() -> None:
    held = stored([Record(0, 0, b"k", b"v", ()), Record(1, 0, None, b"v", ())])
    packer = Packer(work(replace(RULE, compacted=True), 0, 2), 2)
    with pytest.raises(RekeyStop, match="no key") as stop:
        take(packer, held)
    assert stop.value.offset == 1


def test_a_payload_that_cannot_be_decoded_stops() -> None:
    broken = raw(batch(7, payload=b"nothing of the kind", count=3))
    with pytest.raises(RekeyStop) as stop:
        list(Packer(work(RULE, 7, 10), 2).wanted(broken))
    assert (stop.value.state, stop.value.offset) == (State.CORRUPT, 7)


def test_a_batch_of_any_size_is_opened_in_portions() -> None:
    """As the copy of a topic that keeps its partitions is; a record that takes more than a task has stops before it."""
    every = [Record(n, n, b"k%d" % (n % 2), bytes(30 << 20), ()) for n in range(10, 13)]
    payload = compress(4, encoded([replace(one, offset=one.offset - 10) for one in every]))
    large = raw(batch(10, payload=payload, count=3, attributes=4, base_timestamp=0, max_timestamp=12))
    assert large.header.size < 100_000
    packer = Packer(replace(work(replace(RULE, codec=None, max_bytes=1 << 30), 11, 13), opens=40 << 20), 2)
    take(packer, large)
    found = [(one[1], len(one[2] or b"")) for _, _, records_ in unpacked(packer) for one in records_]
    assert sorted(found, key=str) == [(b"k0", 30 << 20), (b"k1", 30 << 20)], "of the range alone"
    packer = Packer(replace(work(RULE, 11, 13), opens=20 << 20), 2)
    with pytest.raises(RekeyStop, match=r"limits\.memory_mb|a record of") as stop:
        take(packer, large)
    assert (stop.value.state, stop.value.remedies) == (State.REFUSED, (Remedy.RAISE_MEMORY_ANEW,))


def test_a_compressed_set_that_cannot_be_decoded_stops_before_its_first_record() -> None:
    """It is stored by its last offset, 11: a range up to there would hold it again."""
    broken = raw(wrapper(11, 1, [wrapper(0, 1, [message(0, 1)])]))
    packer = Packer(work(RULE, 4, 20), 2)
    next(packer.wanted(stored([Record(n, n, b"k", b"v", ()) for n in range(4, 7)])))
    with pytest.raises(RekeyStop) as stop:
        list(packer.wanted(broken))
    assert (stop.value.state, stop.value.offset) == (State.CORRUPT, 7)


@pytest.mark.parametrize(("codec", "is_stopped"), [(None, True), (4, False)])
def test_a_record_that_fits_into_no_batch_stops_at_its_offset(codec: int | None, is_stopped: bool) -> None:
    every = [Record(n, n, b"k", b"v" * (3000 if n == 12 else 9), ()) for n in range(10, 15)]
    packer = Packer(work(replace(RULE, codec=codec, max_bytes=1000), 10, 15), 2)
    held = stored(every)
    if not is_stopped:  # compressed, it does
        take(packer, held)
        assert sum(len(records_) for _, _, records_ in unpacked(packer)) == 5
        return
    with pytest.raises(RekeyStop, match=r"takes 3\d+ bytes alone, .* a batch of orders-by-user") as stop:
        take(packer, held)
    assert (stop.value.state, stop.value.offset) == (State.REFUSED, 12)


# --- headers, plans, stops ------------------------------------------------------------------------------------------


@given(st.lists(HEADERS, min_size=1, max_size=5), st.integers(0, 9))
def test_headers_are_read_as_they_were_written(every: list[list[tuple[bytes, bytes | None]]], at: int) -> None:
    held, begin, end, count = columns.encode_headers(every, at)
    data = pa.array(list(bytes(at) + held), pa.uint8()).to_numpy()
    empty = columns.Records.empty(b"", len(every))
    whole = replace(empty, data=data, headers_at=begin, headers_end=end, header_count=count)
    assert [columns.headers(whole, number) for number in range(len(every))] == every


OFFSETS = st.dictionaries(st.integers(0, 9), st.integers(0, 2**62), max_size=4)


@given(st.integers(0, 2**40), OFFSETS, st.uuids(), st.none() | st.text(max_size=5))
def test_plans_travel(number: int, offsets: dict[int, int], topic_id: uuid.UUID, where: str | None) -> None:
    until = {partition: offset + partition for partition, offset in offsets.items()}
    plan = replace(PLAN, begin=offsets, until=until, epochs=dict.fromkeys(offsets, 7))
    plan = replace(plan, number=number, after=number - 2, rule=replace(RULE, where=where), source_id=topic_id)
    assert MicroBatchPlan.from_json(plan.to_json()) == plan
    another = replace(plan, number=number + 1, abandoned=plan)
    assert MicroBatchPlan.from_json(another.to_json()) == another
    assert [partition for partition, _, _ in plan.ranges] == sorted(offsets.keys() - {0})


def test_numbers_travel() -> None:
    for reached in (Reached(12), Reached(12, has_all_ends=False), Reached(3, {0: (7, 100), 11: (0, 2**62)})):
        assert reached_in(numbered(reached)) == reached
    assert reached_in(None) == Reached(NOTHING)
    assert reached_in(stored([Record(0, 0, b"number", b"5", ())])) == Reached(5, has_all_ends=False), "as 0.1.0"
    with pytest.raises(ConfigError, match="not the mirror's"):
        reached_in(stored([Record(0, 0, b"other", b"1", ())]))


@given(st.text(max_size=30), st.integers(-1, 9), st.integers(-1, 2**62))
def test_a_stop_is_found_in_what_spark_says(detail: str, partition: int, offset: int) -> None:
    stop = RekeyStop(State.CORRUPT, partition, offset, detail)
    output = RekeyStop.found_in(
        RuntimeError(f"Traceback (most recent call last):\n  ...\nStopped: {stop}\n\n\tat java")
    )
    assert output is not None
    assert (output.state, output.partition, output.offset, output.detail) == (State.CORRUPT, partition, offset, detail)
    assert output.remedies == stop.remedies == REKEYED_BY[State.CORRUPT]
    chosen = RekeyStop.found_in(RuntimeError(str(RekeyStop(State.REFUSED, 0, 7, detail, Remedy.RAISE_REKEYED))))
    assert chosen is not None
    assert chosen.text({"written_to": "x"}) == f"{detail}. Raise max.message.bytes of x, and start the mirror again"
    assert RekeyStop.found_in(RuntimeError("something else")) is None


# --- the driver -------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clusters that are entered and left, and not asked."""

    async def nothing(*_: Any) -> None: ...

    for name in ("__aenter__", "__aexit__"):
        monkeypatch.setattr(Cluster, name, nothing)


def driver_of(*parts: Any) -> Any:
    """Return a driver that has planned, with these partitions and nothing new in them."""
    nowhere: Any = None  # Spark is not asked
    made: Any = Rekeyer(nowhere, idle_flow(memory_bytes=1 << 20), RULE, frozenset())

    async def nothing(*_: Any) -> None: ...

    made._refresh = made._last_word = nothing
    made._newest = 1
    made._target_seen = product_clock.monotonic() + 1000  # the target is not looked at
    made._plans = SimpleNamespace(slots=3)
    made._side.until = lambda number, _: made._parts[number].at
    made._parts.update(enumerate(parts))
    return made


@pytest.mark.parametrize(("partitions", "offsets"), [(1, 20_000), (3, 20_000), (50, 1_200), (5_000, 100)])
def test_a_first_micro_batch_is_no_larger_than_its_slots_can_have_done(partitions: int, offsets: int) -> None:
    driver = driver_of(*[PartStanding(5) for _ in range(partitions)])
    asked = list[int]()

    def until(_: int, most: int) -> int:
        asked.append(most)
        return 5

    driver._side.until = until
    assert asyncio.run(driver._planned()) is None
    assert asked == [offsets] * partitions


def test_a_stop_is_checked_again_after_a_while_unless_the_log_hides_its_cause(clock: MovableClock) -> None:
    states = (State.REFUSED, State.CORRUPT, State.TRUNCATED)
    parts = [PartStanding(5, stop=RekeyStop(state, number, 5, "why")) for number, state in enumerate(states)]
    driver = driver_of(*parts)

    def stops() -> list[bool]:
        assert asyncio.run(driver._planned()) is None
        return [part.stop is not None for part in parts]

    assert stops() == [True, True, True]
    clock.move(61)
    assert stops() == [False, False, True]


def test_a_record_that_exhausts_the_engine_is_searched_for_and_stops_its_partition_alone() -> None:
    """First each partition alone, then quarters of its range, until one record has failed twice."""
    driver = driver_of(PartStanding(5), PartStanding(5))

    def narrowed(ranges: dict[int, tuple[int, int]]) -> None:
        begin, until = ({number: side[at] for number, side in ranges.items()} for at in (0, 1))
        driver._trial = replace(PLAN, begin=begin, until=until)
        driver._failures += 1
        driver._narrow("OutOfMemoryError")

    narrowed({0: (5, 105), 1: (5, 9)})
    assert driver._suspects == {0: 105, 1: 9}
    narrowed({0: (5, 105)})
    assert driver._offsets == 25
    for _ in range(2):
        narrowed({0: (7, 8)})
    stop = driver._parts[0].stop
    assert (stop.state, stop.offset, stop.remedies) == (State.REFUSED, 7, (Remedy.CHANGE_RULE,))
    assert driver._parts[1].stop is None


def test_a_micro_batch_that_takes_very_long_is_named_while_it_does(
    monkeypatch: pytest.MonkeyPatch, clock: MovableClock
) -> None:
    monkeypatch.setattr(rekey_driver, "STILL_SECONDS", 0.01)
    driver = driver_of(*[PartStanding(5, end=9, has_end=True) for _ in range(5)])
    ended, reported = threading.Event(), list[PartitionStatus]()

    def hangs(_: Work) -> list[Any]:
        clock.move(OVERDUE_SECONDS + 1)
        assert ended.wait(DEADLINE_S)
        return []

    async def last_word() -> None:
        reported.extend(driver.figures.values())
        ended.set()

    driver._in_spark, driver._last_word = hangs, last_word
    assert asyncio.run(driver._carry_out(PLAN, asyncio.Event())) == []
    assert {one.state for one in reported} == {State.UNAVAILABLE}
    assert "5 to 8 of partition 0, 5 to 8 of partition 1, 5 to 8 of partition 2 and 2 more" in reported[0].detail
    assert {one.state for one in driver.figures.values()} == {State.MIRRORING}


@pytest.mark.usefixtures("no_cluster")
def test_a_job_that_the_end_cuts_short_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, stopping = driver_of(PartStanding(5, end=9, has_end=True)), asyncio.Event()

    async def lives(_: Any) -> bool:
        return True

    async def go_on(*_: Any) -> None:
        stopping.set()
        raise OSError("job group was cancelled")

    monkeypatch.setattr(rekey_driver, "may_live", lives)
    driver._session, driver._go_on = SimpleNamespace(sparkContext=None), go_on
    asyncio.run(driver.run("here", stopping, tuple))
    assert [one.state for one in driver.figures.values()] == [State.MIRRORING]


@pytest.mark.usefixtures("no_cluster")
def test_a_topic_whose_login_fails_stops_by_name_and_is_tried_again() -> None:
    driver, tried = driver_of(), list[State]()
    driver._flow = replace(driver._flow, epoch_seconds=0.0)

    async def go_on(*_: Any) -> None:
        tried.extend(one.state for one in driver.figures.values())
        if not tried:
            driver._source.topics[RULE.source] = Topic(RULE.source, None, {0: Leader(1, 1), 1: Leader(1, 1)})
            raise NotAuthenticated("cluster any: SASL: who are you")

    driver._go_on = go_on
    asyncio.run(driver.run("here", asyncio.Event(), tuple))
    assert tried == [State.UNAUTHORIZED] * 2
    details = {one.detail for one in driver.figures.values()}
    assert details == {f"cluster any: SASL: who are you. {Remedy.MEND_LOGIN.text()}"}


# --- the extent of a proof --------------------------------------------------------------------------------------------

SUBJECT = proof.RekeySubject(flow="a", rule=RULE, source=NOWHERE, target=NOWHERE)


def test_a_proof_fixes_the_targets_ends_before_the_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both logs grow by a record with every question: what is on the target is on the source as well."""
    ends = count(1)

    async def refresh(cluster: Cluster, topics: Any) -> None:
        cluster.topics = {topic: Topic(topic, None, {}) for topic in topics}

    async def spans(_: Any, topic: str) -> tuple[dict[int, int], dict[int, int]]:
        return ({0: 0}, {0: next(ends)}) if topic else ({}, {})

    async def done(*_: Any) -> dict[int, int]:
        return {0: 1000}

    async def doubt(*_: Any) -> str:
        return ""

    monkeypatch.setattr(Cluster, "refresh", refresh)
    for name, stand_in in (("_spans", spans), ("_done", done), ("_doubt", doubt)):
        monkeypatch.setattr(proof, name, stand_in)
    extent = asyncio.run(proof.extent_of(SUBJECT, 0.0))
    assert extent is not None
    assert extent.target_end[0] < extent.end[0]


@pytest.mark.parametrize(
    ("losses", "lacking"),
    [({}, [(0, 2, 7)]), ({0: ((2, 5),)}, [(0, 5, 7)]), ({0: ((0, 7),)}, [])],
    ids=["none", "some", "all"],
)
def test_what_the_source_deleted_before_it_was_re_keyed_is_not_verified_unless_on_record_as_lost(
    losses: Any, lacking: list[tuple[int, int, int]]
) -> None:
    nine = {0: 9, 1: 9}
    extent = proof.ComparedExtent(
        begin={0: 7, 1: 0},
        done=nine,
        end=nine,
        written=nine,
        target_end=nine,
        reached={0: 2, 1: 9},
        target_begin={0: 0, 1: 0},
        dead_begin={},
        dead_end={},
        source_id=None,
        target_id=None,
    )
    found = list(proof._behind(replace(SUBJECT, losses=losses), extent))
    assert [(one.partition, one.first, one.next_offset) for one in found] == lacking
    assert all(one.kind is Lack.NOT_VERIFIED for one in found)


def test_a_transaction_that_stays_open_is_named_by_its_report() -> None:
    standing = PartStanding(50, end=50, written=80, held_since=float("-inf"), has_end=True)
    figures = standing.figures(TopicPartition("orders", 0), "by-user", "f", "here")
    assert figures.detail.startswith("a transaction is open on the source from offset 50 on")
    assert (figures.lag_records, figures.log_end) == (30, 80)
    assert replace(standing, held_since=None).figures(TopicPartition("orders", 0), "by-user", "f", "here").detail == ""
