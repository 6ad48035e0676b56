"""The parts of the re-key query without a broker: expressions, slices, headers, plans, stops."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count, pairwise
from operator import itemgetter
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from old_messages import message, wrapper
from pyspark.sql import SparkSession
from rawbatches import batch, raw
from recordoracle import Record, encoded
from rekeychecker import java_partition

from mirror.driver.flow import Flow
from mirror.errors import AccessDenied, ConfigError, NotAuthenticated
from mirror.kafka.cluster import Cluster, Endpoint, Leader, Topic
from mirror.observability.status import PartitionStatus
from mirror.policy.selection import Rekeying
from mirror.records import columns
from mirror.records.codecs import compress
from mirror.records.columns import decode, read
from mirror.records.header import APPEND_TIME, RawBatch
from mirror.spark.rekey import driver as rekey_driver
from mirror.spark.rekey import verify as proof
from mirror.spark.rekey.driver import ORDER, Rekeyer
from mirror.spark.rekey.expressions import IT, MADE, RECORD, judged, used_by
from mirror.spark.rekey.microbatch import NOTHING, Plan, Reached, Stopped, Work, naming_denials, numbered, reached_in
from mirror.spark.rekey.packing import FAILED, NO_KEY, SLICE, Kind, Packer
from mirror.spark.rekey.source import Standing
from mirror.spark.session import failure_text
from mirror.states import REKEYED_BY, Remedy, State

RULE = Rekeying(source="orders", target="orders-by-user", partitions=5, progress="mirror.a.rekey.orders-by-user")
NOWHERE = Endpoint("any", (("localhost", 1),))
ALIKE = "must give the same whenever it is asked"


def work(rule: Rekeying, begin: int, until: int, slots: int = 3) -> Work:
    plan = Plan(
        number=1,
        after=0,
        begin={2: begin},
        until={2: until},
        epochs={2: 0},
        slots=slots,
        rule=rule,
        source_id=uuid.uuid4(),
        target_id=None,
    )
    return Work(flow="a", plan=plan, source=NOWHERE, target=NOWHERE, slots=slots)


def stored(every: Sequence[Record], **fields: Any) -> RawBatch:
    """The batch of records at their own offsets and times."""
    first = every[0].offset
    payload = encoded([replace(one, offset=one.offset - first) for one in every])
    newest = max(one.timestamp for one in every)
    return raw(batch(first, payload=payload, count=len(every), base_timestamp=0, max_timestamp=newest, **fields))


# --- expressions ----------------------------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.parametrize(
    ("name", "expression", "complaint"),
    [
        ("rekey", "nosuch + 1", "nosuch"),
        ("rekey", "get_json_object(string(value), ", "PARSE_SYNTAX_ERROR"),
        ("rekey", "uuid()", ALIKE),
        ("rekey", "string(current_timestamp())", ALIKE),
        ("rekey", "string(unix_timestamp())", ALIKE),
        ("rekey", "(select 'a')", ALIKE),
        ("rekey", "current_user()", ALIKE),
        ("rekey", "aes_encrypt(key, key)", ALIKE),
        ("value", "aes_encrypt(value, key, 'CBC')", ALIKE),
        ("where", "timestamp > timestamp'now'", ALIKE),
        ("where", "timestamp > 'Yesterday'", ALIKE),
        ("where", "timestamp > to_date('today')", ALIKE),
        ("where", "timestamp > cast(' now ' as timestamp)", ALIKE),
        ("rekey", "string(count(1))", "must be about one record"),
        ("rekey", "string(row_number() over (order by offset))", "must be about one record"),
        ("rekey", "explode(array('a'))", "generator"),
        ("rekey", "offset", "must give text or bytes"),
        ("value", "headers", "must give text or bytes"),
        ("where", "string(key)", "must say true or false"),
        ("headers", "string(key)", "must give a map"),
    ],
)
def test_an_expression_that_cannot_be(spark: SparkSession, name: str, expression: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        used_by(spark, Rekeying.from_dict(RULE.to_dict() | {name: expression}))
    assert complaint in str(refused.value)
    assert str(refused.value).startswith(f"topics.rules: orders: {name}: {expression}: ")


@pytest.mark.spark
def test_what_expressions_look_at(spark: SparkSession) -> None:
    rule = replace(RULE, rekey="concat(string(key), topic)", where="offset > 3", headers="map('a', 'b')")
    assert used_by(spark, rule) == {"key", "topic", "offset"}
    assert used_by(spark, RULE) == frozenset()
    alike = "aes_encrypt(key, '0123456789abcdef', 'ECB')"  # others have an initialization vector of their own
    given = "aes_encrypt(value, '0123456789abcdef', 'CBC', 'DEFAULT', unhex(md5(key)))"
    today = "string(value) = 'today' and timestamp > date'2026-01-01'"
    assert used_by(spark, replace(RULE, rekey=alike, value=given, where=today)) == {"key", "value", "timestamp"}


@pytest.mark.spark
def test_one_failure_leaves_the_other_records_alone(spark: SparkSession) -> None:
    rule = replace(RULE, rekey="string(value)", where="cast(string(value) as int) > 1", headers="map('v', value)")
    frame = spark.createDataFrame([(b"1",), (b"many",), (b"3",), (None,)], "value binary")
    found = [row[MADE] for row in frame.select(judged(frame, rule).alias(MADE)).collect()]
    assert found[1] is None
    assert [one[IT].keep for one in found if one is not None] == [False, True, False]
    assert bytes(found[2][IT].key) == b"3"
    assert [(bytes(one.key), bytes(one.value)) for one in found[2][IT].headers] == [(b"v", b"3")]


def test_the_columns_are_those_of_records() -> None:
    assert list(RECORD) == ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]


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
            if row["kind"] == Kind.BATCH:
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
    kinds = [(Kind(row["kind"]), row["records"]) for row in made.to_pylist()]
    assert kinds[0] == (Kind.BATCH, 4)
    assert {kind for kind, _ in kinds[1:]} == {Kind.RECORDS}
    assert made.to_pylist()[0]["data"] == bytes(together.data)


def test_a_batch_with_its_broker_s_times_does_not_stay_whole() -> None:
    """Its records' own times are others; each record gets the batch's, as a reader of the source sees it."""
    held = stored([Record(n, n, b"one key", b"v", ()) for n in range(4)], attributes=APPEND_TIME)
    packer = Packer(work(RULE, 0, 4), 2)
    take(packer, held)
    (made,) = packer.drain(all_of_it=True)
    assert [Kind(row["kind"]) for row in made.to_pylist()] == [Kind.RECORDS]
    assert {row["base_timestamp"] for row in made.to_pylist()} == {3}


def test_a_batch_of_which_a_part_is_wanted_does_not_stay_whole() -> None:
    whole = stored([Record(n, n, b"one key", b"v", ()) for n in range(4)])
    packer = Packer(work(RULE, 1, 4), 2)
    take(packer, whole)
    (made,) = packer.drain(all_of_it=True)
    assert [(Kind(row["kind"]), row["records"], row["first_offset"]) for row in made.to_pylist()] == [
        (Kind.RECORDS, 3, 1)
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
    assert sum(row["records"] for row in rows if row["kind"] == Kind.RECORDS) == 2
    all_counters = {row["reason"]: row["records"] for row in rows if row["kind"] == Kind.COUNTERS}
    assert all_counters == {"filtered": 1} | ({left: 2} if left else {})
    dead = [row for row in rows if row["kind"] == Kind.DEAD]
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
    with pytest.raises(Stopped) as stop:
        take(packer, held, made)
    assert (stop.value.state, stop.value.partition, stop.value.offset) == (State.REFUSED, 2, 12)


def test_no_record_without_a_key_goes_to_a_compacted_topic() -> None:
    held = stored([Record(0, 0, b"k", b"v", ()), Record(1, 0, None, b"v", ())])
    packer = Packer(work(replace(RULE, compacted=True), 0, 2), 2)
    with pytest.raises(Stopped, match="no key") as stop:
        take(packer, held)
    assert stop.value.offset == 1


def test_a_payload_that_cannot_be_decoded_stops() -> None:
    broken = raw(batch(7, payload=b"nothing of the kind", count=3))
    with pytest.raises(Stopped) as stop:
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
    with pytest.raises(Stopped, match=r"limits\.memory_mb|a record of") as stop:
        take(packer, large)
    assert (stop.value.state, stop.value.remedies) == (State.REFUSED, (Remedy.RAISE_MEMORY_ANEW,))


def test_a_compressed_set_that_cannot_be_decoded_stops_before_its_first_record() -> None:
    """It is stored by its last offset, 11: a range up to there would hold it again."""
    broken = raw(wrapper(11, 1, [wrapper(0, 1, [message(0, 1)])]))
    packer = Packer(work(RULE, 4, 20), 2)
    next(packer.wanted(stored([Record(n, n, b"k", b"v", ()) for n in range(4, 7)])))
    with pytest.raises(Stopped) as stop:
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
    with pytest.raises(Stopped, match=r"takes 3\d+ bytes alone, .* a batch of orders-by-user") as stop:
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
    plan = Plan(
        number=number,
        after=number - 2,
        begin=offsets,
        until={partition: offset + partition for partition, offset in offsets.items()},
        epochs=dict.fromkeys(offsets, 7),
        slots=3,
        rule=replace(RULE, where=where),
        source_id=topic_id,
        target_id=None,
    )
    assert Plan.from_json(plan.to_json()) == plan
    another = replace(plan, number=number + 1, abandoned=plan)
    assert Plan.from_json(another.to_json()) == another
    assert [partition for partition, _, _ in plan.ranges] == sorted(offsets.keys() - {0})


@given(st.binary(max_size=40) | st.recursive(st.none() | st.integers(), st.lists).map(lambda x: json.dumps(x).encode()))
def test_what_is_no_plan_is_named(data: bytes) -> None:
    with pytest.raises(ConfigError, match="a plan of the re-key query cannot be read"):
        Plan.from_json(data)


def test_numbers_travel() -> None:
    for reached in (Reached(12), Reached(12, has_all_ends=False), Reached(3, {0: (7, 100), 11: (0, 2**62)})):
        assert reached_in(numbered(reached)) == reached
    assert reached_in(None) == Reached(NOTHING)
    assert reached_in(stored([Record(0, 0, b"number", b"5", ())])) == Reached(5, has_all_ends=False), "as 0.1.0"
    with pytest.raises(ConfigError, match="not the mirror's"):
        reached_in(stored([Record(0, 0, b"other", b"1", ())]))


@given(st.recursive(st.none() | st.floats() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)))
def test_what_is_no_number_is_named(expected: Any) -> None:
    value = json.dumps(expected).encode()
    for each in (value, b'{"number": 1, "ends": %b}' % value):
        if expected == {} and each != value:
            continue
        with pytest.raises(ConfigError, match="has no number"):
            reached_in(stored([Record(0, 0, b"number", each, ())]))


@given(st.text(max_size=30), st.integers(-1, 9), st.integers(-1, 2**62))
def test_a_stop_is_found_in_what_spark_says(detail: str, partition: int, offset: int) -> None:
    stop = Stopped(State.CORRUPT, partition, offset, detail)
    output = Stopped.found_in(RuntimeError(f"Traceback (most recent call last):\n  ...\nStopped: {stop}\n\n\tat java"))
    assert output is not None
    assert (output.state, output.partition, output.offset, output.detail) == (State.CORRUPT, partition, offset, detail)
    assert output.remedies == stop.remedies == REKEYED_BY[State.CORRUPT]
    chosen = Stopped.found_in(RuntimeError(str(Stopped(State.REFUSED, 0, 7, detail, Remedy.RAISE_REKEYED))))
    assert chosen is not None
    assert chosen.text({"written_to": "x"}) == f"{detail}. Raise max.message.bytes of x, and start the mirror again"
    assert Stopped.found_in(RuntimeError("something else")) is None


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (
            "Aborted: Traceback (most recent call last):\n  x\nmirror.errors.ClusterUnreachable: no leader\n\n\tat x.Y",
            "ClusterUnreachable: no leader",
        ),
        (
            (
                "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n"
                ": org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 failed 4 times,"
                " most recent failure: Lost task 0.3 in stage 0.0 (TID 3) (host executor driver):"
                " org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
                '  File "relay.py", line 7, in relay\n    raise\nAssertionError\n\n\tat org.apache.Any'
            ),
            "AssertionError",
        ),
        (
            "An error occurred while calling o7.collect.\n: org.apache.spark.SparkException: Job 7 cancelled\n\tat a.B",
            "org.apache.spark.SparkException: Job 7 cancelled",
        ),
        ("Job 7 cancelled\n\tat org.apache.spark.Any", "Job 7 cancelled"),
        ("", "RuntimeError"),
    ],
)
def test_what_a_failure_says_is_reported_without_its_stacks(failure: str, expected: str) -> None:
    assert failure_text(RuntimeError(failure)) == expected


def test_a_proof_fixes_the_targets_ends_before_the_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both logs grow by a record with every question: what is on the target is on the source as well."""
    clock = count(1)

    async def refresh(cluster: Cluster, topics: Iterable[str]) -> None:
        cluster.topics = {topic: Topic(topic, None, {}) for topic in topics}

    async def spans(_: Any, topic: str) -> tuple[dict[int, int], dict[int, int]]:
        return ({0: 0}, {0: next(clock)}) if topic else ({}, {})

    async def done(*_: Any) -> dict[int, int]:
        return {0: 1000}

    monkeypatch.setattr(Cluster, "refresh", refresh)
    monkeypatch.setattr(proof, "_spans", spans)

    async def doubt(*_: Any) -> str:
        return ""

    monkeypatch.setattr(proof, "_done", done)
    monkeypatch.setattr(proof, "_doubt", doubt)
    subject = proof.Subject(flow="a", rule=RULE, source=NOWHERE, target=NOWHERE)
    extent = asyncio.run(proof.extent_of(subject, 0.0))
    assert extent is not None
    assert extent.target_end[0] < extent.end[0]


def idle_driver(**parts: Any) -> Rekeyer:
    """One that has planned, and to which nothing is new; with these parts, by number."""
    nowhere: Any = None  # Spark is not asked
    flow = Flow(
        name="a", source=NOWHERE, target=NOWHERE, assignments=(), tasks=1, epoch_seconds=60.0, memory_bytes=1 << 20
    )
    made: Any = Rekeyer(nowhere, flow, RULE, frozenset())

    async def refreshed() -> None:
        """There is nothing new."""

    made._refresh, made._newest, made._target_seen = refreshed, 1, time.monotonic()
    made._plans = SimpleNamespace(slots=3)
    made._side.until = lambda number, _: made._parts[number].at
    made._parts.update({int(number.removeprefix("p")): part for number, part in parts.items()})
    driver: Rekeyer = made
    return driver


@pytest.mark.parametrize(("partitions", "offsets"), [(1, 20_000), (3, 20_000), (50, 1_200), (5_000, 100)])
def test_a_first_micro_batch_is_no_larger_than_its_slots_can_have_done(partitions: int, offsets: int) -> None:
    driver: Any = idle_driver(**{f"p{number}": Standing(5) for number in range(partitions)})
    asked = list[int]()

    def until(number: int, most: int) -> int:
        asked.append(most)
        return int(driver._parts[number].at)

    driver._side.until = until
    assert asyncio.run(driver._planned()) is None
    assert asked == [offsets] * partitions


def test_a_stop_is_checked_again_after_a_while() -> None:
    """But a source that was cut back: that hides as the log grows."""
    parts = {
        f"p{number}": SimpleNamespace(at=5, epoch=0, stop=Stopped(state, number, 5, "why"))
        for number, state in enumerate((State.REFUSED, State.CORRUPT, State.TRUNCATED))
    }
    driver = idle_driver(**parts)

    async def stops() -> list[bool]:
        assert await driver._planned() is None
        return [part.stop is not None for part in parts.values()]

    assert asyncio.run(stops()) == [True, True, True]
    driver._stops_since -= 61.0
    assert asyncio.run(stops()) == [False, False, True]


def test_a_micro_batch_that_takes_very_long_is_named_while_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not as a failure where the mirror ends."""
    monkeypatch.setattr(rekey_driver, "OVERDUE_SECONDS", 0.02)
    monkeypatch.setattr(rekey_driver, "STILL_SECONDS", 0.01)
    parts = {f"p{number}": Standing(5, end=9, has_end=True) for number in range(5)}
    driver: Any = idle_driver(**parts)
    plan = replace(work(RULE, 5, 9).plan, begin=dict.fromkeys(range(5), 5), until=dict.fromkeys(range(5), 9))
    ended, said = threading.Event(), list[PartitionStatus]()

    def hangs(_: Work) -> list[Any]:
        assert ended.wait(20)
        return []

    async def last_word() -> None:
        said.extend(driver.figures.values())
        ended.set()

    driver._in_spark, driver._last_word = hangs, last_word
    assert asyncio.run(driver._carry_out(plan, asyncio.Event())) == []
    assert {one.state for one in said} == {State.UNAVAILABLE}
    assert "5 to 8 of partition 0, 5 to 8 of partition 1, 5 to 8 of partition 2 and 2 more" in said[0].detail
    assert {one.state for one in driver.figures.values()} == {State.MIRRORING}


def test_a_job_that_the_end_cuts_short_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, stopping = idle_driver(p0=Standing(5, end=9, has_end=True)), asyncio.Event()

    async def nothing(*_: Any) -> None:
        """Nobody is asked."""

    async def lives(_: Any) -> bool:
        return True

    async def go_on(*_: Any) -> None:
        stopping.set()
        raise OSError("job group was cancelled")

    for name in ("__aenter__", "__aexit__"):
        monkeypatch.setattr(Cluster, name, nothing)
    monkeypatch.setattr(rekey_driver, "may_live", lives)
    monkeypatch.setattr(driver, "_session", SimpleNamespace(sparkContext=None))
    monkeypatch.setattr(driver, "_go_on", go_on)
    monkeypatch.setattr(driver, "_last_word", nothing)
    asyncio.run(driver.run("here", stopping, tuple))
    assert [one.state for one in driver.figures.values()] == [State.MIRRORING]


def test_a_login_that_was_mended_lets_a_query_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic stops by name, each of its partitions, and is tried again as it is after a while."""
    nowhere, tried, stopping = cast(Any, None), list[State](), asyncio.Event()
    flow = Flow(name="a", source=NOWHERE, target=NOWHERE, assignments=(), tasks=1, epoch_seconds=0.0, memory_bytes=1)
    driver = Rekeyer(nowhere, flow, RULE, frozenset())

    async def nothing(*_: Any) -> None:
        """Nobody is asked."""

    async def go_on(*_: Any) -> None:
        tried.extend(one.state for one in driver.figures.values())
        if not tried:
            driver._source.topics[RULE.source] = Topic(RULE.source, None, {0: Leader(1, 1), 1: Leader(1, 1)})
            raise NotAuthenticated("cluster any: SASL: who are you")

    for name in ("__aenter__", "__aexit__"):
        monkeypatch.setattr(Cluster, name, nothing)
    monkeypatch.setattr(driver, "_go_on", go_on)
    monkeypatch.setattr(driver, "_last_word", nothing)
    asyncio.run(driver.run("here", stopping, tuple))
    assert tried == [State.UNAUTHORIZED] * 2
    details = {one.detail for one in driver.figures.values()}
    assert details == {f"cluster any: SASL: who are you. {Remedy.MEND_LOGIN.text()}"}


def test_a_right_that_a_task_lacks_is_a_stop() -> None:
    def step(given: Iterator[int]) -> Iterator[int]:
        yield next(given)
        raise AccessDenied("cluster any: needs WRITE on topic a", "WRITE")

    steps = naming_denials(step)(iter([7]))
    assert next(steps) == 7
    with pytest.raises(Stopped) as stop:
        next(steps)
    assert (stop.value.state, stop.value.remedies) == (State.UNAUTHORIZED, (Remedy.GRANT_REKEYED,))


def test_a_driver_that_was_fenced_waits_longer_than_it_takes_to_learn_why() -> None:
    """Else two of them would take the slots from each other again and again."""
    assert min(rekey_driver._retry_backoff().next() for _ in range(100)) > rekey_driver.WATCH_SECONDS
