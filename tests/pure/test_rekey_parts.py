"""What tasks of a re-key query make of batches, and what they and their driver write down: slices, plans, stops."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from old_messages import message, wrapper
from rawbatches import batch, raw
from recordoracle import Record, encoded
from rekeychecker import java_partition

from mirror.errors import ConfigError
from mirror.kafka.cluster import Endpoint
from mirror.policy.selection import Rekeying
from mirror.records import columns
from mirror.records.codecs import compress
from mirror.records.columns import decode, read
from mirror.records.header import APPEND_TIME, RawBatch
from mirror.spark.rekey.driver import ORDER
from mirror.spark.rekey.expressions import IT
from mirror.spark.rekey.microbatch import NOTHING, MicroBatchPlan, Reached, RekeyStop, Work, numbered, reached_in
from mirror.spark.rekey.packing import FAILED, NO_KEY, SLICE, Packer, SliceKind
from mirror.states import REKEYED_BY, Remedy, State

RULE = Rekeying(source="orders", target="orders-by-user", partitions=5, progress="mirror.a.rekey.orders-by-user")
NOWHERE = Endpoint("any", (("localhost", 1),))


def work(rule: Rekeying, begin: int, until: int, slots: int = 3) -> Work:
    plan = MicroBatchPlan(
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
    plan = MicroBatchPlan(
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
