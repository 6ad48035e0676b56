"""The comparison of two logs in `mirror verify`: what is equal, and each way of being different by its name."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from compared_logs import CLOCK, PAIR, THREE, answered, compared, end_after, end_of, kinds, log_of, remade, some, stored
from hypothesis import given
from hypothesis import strategies as st
from rawbatches import batch, crc32c, forged, legacy
from recordoracle import Record, encoded

from mirror.errors import BrokerError, MalformedBatch
from mirror.kafka.cluster import TopicPartition
from mirror.kafka.fetch import Fetched
from mirror.kafka.queries import EARLIEST
from mirror.records.header import APPEND_TIME, CONTROL, DELETE_HORIZON, TRANSACTIONAL, parse_header
from mirror.verify import flow
from mirror.verify.compare import LogBounds, compare
from mirror.verify.flow import Known, Planner
from mirror.verify.reader import Reader
from mirror.verify.report import KEPT, DifferenceKind, PartitionReport

OWN_CLOCK = "append time: the target's own timestamps, not compared"
#: Stamped by the target's broker.
STAMPED: dict[str, Any] = {"attributes": APPEND_TIME, "max_timestamp": CLOCK + 9}


def marker(offset: int, *, commit: bool = False, producer: int = 99) -> bytes:
    """A control marker; of the mirror's kind unless asked otherwise."""
    payload = encoded([Record(0, 0, bytes([0, 0, 0, commit]), bytes(6))])
    return batch(offset, attributes=CONTROL | TRANSACTIONAL, payload=payload, producer_id=producer)


def agree(report: PartitionReport) -> bool:
    return report.source_digest == report.target_digest


# --- batch by batch ---------------------------------------------------------------------------------------------------


def test_equal_logs() -> None:
    report = compared(THREE, THREE)
    assert (report.different, report.batches, report.identical, report.records) == (0, 3, 3, 16)
    assert report.bytes == sum(map(len, THREE))
    assert (report.codecs, report.offsets_equal, agree(report)) == (("none", "zstd"), True, True)


def test_what_the_mirror_may_change_is_no_difference() -> None:
    changed: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 3, "leader_epoch": 9}
    transactional = batch(0, count=10, attributes=TRANSACTIONAL | DELETE_HORIZON)
    report = compared([transactional], [batch(0, count=10, **changed)])
    assert (report.different, report.identical, report.notes, agree(report)) == (0, 1, (), True)


@pytest.mark.parametrize(
    "changed",
    [
        {"payload": b"A records section"},
        {"payload": b"a records section and more"},
        {"base_timestamp": 1},
        {"max_timestamp": 1},
        {"attributes": 2},
        {"count": 9},
        {"delta": 10},
    ],
    ids=str,
)
def test_a_batch_is_no_counterpart_where_anything_of_it_changed(changed: dict[str, Any]) -> None:
    """Its records are then compared, and those here cannot be read."""
    report = compared([batch(0, count=10), batch(11)], [batch(0, **{"count": 10, **changed}), batch(11)])
    assert (kinds(report), report.identical, report.batches) == ([(0, DifferenceKind.UNDECODABLE)], 1, 2)


def test_a_batch_made_to_have_the_same_checksum_differs() -> None:
    true, false = (encoded([Record(0, 0, None, amount, ((b"h", b"abcd"),))]) for amount in (b"100", b"999"))
    report = compared([batch(0, payload=true)], [batch(0, payload=forged(false, crc32c(true)))])
    assert (kinds(report), agree(report)) == ([(0, DifferenceKind.VALUE)], False)


def test_a_stored_crc_that_does_not_hold_is_a_difference_on_either_side() -> None:
    report = compared([batch(0)], [batch(0, crc=1)])
    assert (kinds(report), report.identical, agree(report)) == ([(0, DifferenceKind.STORED_CRC)], 1, False)
    assert kinds(compared([batch(0, crc=1)], [batch(0, crc=1)])) == [(0, DifferenceKind.STORED_CRC)] * 2


def test_missing_and_extra_batches() -> None:
    report = compared(THREE, [THREE[0], THREE[2], batch(16, count=3)])
    assert [str(one) for one in report.differences] == [
        "orders-0 at offset 10: missing: 1 batch with 5 records up to offset 14 on the source, nothing on the target",
        "orders-0 at offset 16: extra: nothing on the source, 1 batch with 3 records up to offset 18 on the target",
    ]
    assert (report.batches, report.identical, report.offsets_equal, agree(report)) == (3, 2, False, False)


def test_differences_are_counted_beyond_those_kept() -> None:
    report = compared([batch(offset) for offset in range(KEPT + 7)], [])
    assert (report.different, len(report.differences)) == (KEPT + 7, KEPT)


@pytest.mark.parametrize("magic", [0, 1])
def test_old_messages(magic: int) -> None:
    """Shorter than a header of magic 2, where the records section would be empty."""
    ours = [legacy(0, magic), legacy(1, magic, b"x" * 200), batch(2)]
    report = compared(ours, ours)
    assert (report.different, report.identical, report.records, agree(report)) == (0, 3, 3, True)
    report = compared(ours, [legacy(0, magic, b"walue"), *ours[1:]])
    assert (kinds(report), agree(report)) == ([(0, DifferenceKind.VALUE)], False)
    changed = bytearray(legacy(0, magic))
    changed[-1] ^= 1
    assert kinds(compared(ours, [bytes(changed), *ours[1:]])) == [
        (0, DifferenceKind.STORED_CRC),
        (0, DifferenceKind.UNDECODABLE),
    ]


# --- a target with a clock of its own ---------------------------------------------------------------------------------


def test_a_target_with_a_clock_of_its_own_is_reported() -> None:
    """Append time there, as `topics.append_time: target` asks for: readers of the target see other times."""
    ours = [batch(0), *(batch(offset, attributes=APPEND_TIME, max_timestamp=5) for offset in (1, 2))]
    theirs = [batch(offset, attributes=APPEND_TIME, max_timestamp=6) for offset in range(3)]
    report = compared([*ours, batch(3)], [*theirs, batch(3)], own_clock=True)
    assert (report.different, report.identical, report.own_timestamps, agree(report)) == (0, 1, 3, True)
    assert report.notes == (OWN_CLOCK,)
    report = compared([stored(some(0, 1))], [stored(some(0), **STAMPED), stored(some(0), 1, **STAMPED)], own_clock=True)
    assert kinds(report) == [(1, DifferenceKind.KEY)], "it excuses nothing else"
    parts = [stored(some(0, 1), **STAMPED), stored([replace(some(2)[0], offset=0, timestamp=77)], 2, **STAMPED)]
    report = compared([stored(some(0, 1, 2))], parts, own_clock=True)
    assert (report.different, report.own_timestamps, report.rewritten, agree(report)) == (0, 1, 0, True)


def test_a_target_that_stamps_records_and_was_not_asked_to_differs() -> None:
    """Somebody set message.timestamp.type on the copy. Where the source stamps its records, too, it may be older than
    the choice.
    """
    plain, stamped = [stored(some(0, 1))], [stored(some(0, 1), **STAMPED)]
    report = compared(plain, stamped)
    assert (kinds(report), report.own_timestamps, report.notes) == ([(0, DifferenceKind.TIMESTAMP)], 0, ())
    both = compared([stored(some(0, 1), attributes=APPEND_TIME)], stamped)
    assert (both.different, both.own_timestamps, both.notes) == (0, 1, (OWN_CLOCK,))
    lost = compared(stamped, [stored(some(0, 1), max_timestamp=CLOCK + 9)])
    assert kinds(lost) == [(0, DifferenceKind.TIMESTAMP)], "nobody wrote the append time into the records"


# --- what a consumer does not see -------------------------------------------------------------------------------------


def test_what_no_consumer_sees_is_no_record() -> None:
    """An aborted transaction, its marker, a commit, and a batch that compaction emptied; one marker each there."""
    transactional = {"attributes": TRANSACTIONAL, "producer_id": 5}
    source = [
        stored(some(0, 1), **transactional),
        marker(2, producer=5),
        stored(some(0, 1), 3, **transactional),
        marker(5, producer=5, commit=True),
        batch(6, count=0, delta=2, payload=b""),
        stored(some(0), 9),
    ]
    target = [*map(marker, range(3)), stored(some(0, 1), 3), *map(marker, range(5, 9)), stored(some(0), 9)]
    aborted = [(5, 0, 2)]
    report = compared(source, target, aborted=aborted)
    assert (report.differences, report.identical, report.offsets_equal, agree(report)) == ((), 2, True, True)
    assert (report.batches, report.records, report.hidden) == (2, 3, 4)
    assert kinds(compared(source, target)) == [(0, DifferenceKind.MISSING)], "committed, had it not been for the index"
    assert kinds(compared(source, [stored(some(0, 1)), *target[2:]], aborted=aborted)) == [(0, DifferenceKind.EXTRA)]
    lacking = [*target[:3], marker(3), marker(4), *target[4:]]
    assert kinds(compared(source, lacking, aborted=aborted)) == [(3, DifferenceKind.MISSING)]
    rotten = bytearray(marker(0))
    rotten[-1] ^= 1
    assert kinds(compared([bytes(rotten), batch(1)], [marker(0), batch(1)])) == [(0, DifferenceKind.STORED_CRC)]


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        (batch(1, attributes=CONTROL | TRANSACTIONAL, payload=b"", producer_id=5), "control batch"),
        (batch(1, magic=3), "a batch of magic 3"),
        (batch(1, length=3), "batch length 3"),
    ],
    ids=["marker", "magic", "length"],
)
def test_what_cannot_be_read_ends_the_comparison(odd: bytes, reason: str) -> None:
    """Whose transaction a marker ends decides what else is seen."""
    source = [batch(0, attributes=TRANSACTIONAL, producer_id=5), odd, batch(2)]
    (one,) = compared(source, [marker(0), marker(1), batch(2)], aborted=[(5, 0, 2)]).differences
    assert (one.kind, one.offset, reason in one.source) == (DifferenceKind.UNREADABLE, 1, True)


# --- record by record -------------------------------------------------------------------------------------------------


HOLES = stored(some(1, 2, 5, 9), delta=11)
WIDE = stored(some(*range(200)))
APPENDED = stored(some(0, 1, 2), attributes=APPEND_TIME)
REWRITTEN: dict[str, tuple[list[bytes], list[bytes]]] = {
    "holes": ([HOLES], [marker(0), *remade(HOLES), marker(10), marker(11)]),
    "another codec": ([WIDE], remade(WIDE, codec=4)),
    "split": ([WIDE], remade(WIDE, max_bytes=600)),
    "joined": (remade(WIDE, max_bytes=600), [WIDE]),
    "append time": ([APPENDED], remade(APPENDED)),
    "old messages": ([legacy(0, 0), legacy(1, 0)], remade(legacy(0, 0), legacy(1, 0))),
    "shifted boundaries": (remade(WIDE, max_bytes=600), remade(WIDE, max_bytes=900)),
}


@pytest.mark.parametrize("case", REWRITTEN)
@pytest.mark.parametrize("at_a_time", [1, 3])
def test_the_same_records_in_other_batches_are_equal(case: str, at_a_time: int) -> None:
    ours, theirs = REWRITTEN[case]
    report = compared(ours, theirs, at_a_time=at_a_time)
    assert (report.differences, report.identical, report.rewritten) == ((), 0, len(ours))
    assert (report.offsets_equal, agree(report)) == (True, True)


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        (Record(5, 1, None, b"value 5", ((b"h", b"5"),)), DifferenceKind.KEY),
        (Record(5, 1, b"key 5", b"", ((b"h", b"5"),)), DifferenceKind.VALUE),
        (Record(5, 1, b"key 5", b"value 5", ((b"h", None),)), DifferenceKind.HEADERS),
        (Record(5, 1, b"key 5", b"value 5", ((b"h", b"5"), (b"h", b"5"))), DifferenceKind.HEADERS),
        (Record(5, 2, b"key 5", b"value 5", ((b"h", b"5"),)), DifferenceKind.TIMESTAMP),
    ],
)
@pytest.mark.parametrize("split", [False, True])
def test_the_first_changed_field_is_named(changed: Record, kind: DifferenceKind, split: bool) -> None:
    theirs = stored([*some(0, 1, 2, 3, 4), changed, Record(6, value=b"other"), *some(7)])
    report = compared([stored(some(*range(8)))], remade(theirs, max_bytes=150) if split else [theirs])
    assert kinds(report)[0] == (5, kind)
    assert (report.rewritten, report.offsets_equal, agree(report)) == (0, True, False)


@pytest.mark.parametrize(
    ("source", "target", "offset", "kind"),
    [
        ([0, 1, 2, 3], [0, 1, 3], 2, DifferenceKind.MISSING),
        ([0, 1, 2, 3], [0, 1, 2], 3, DifferenceKind.MISSING),
        ([0, 3], [0, 2, 3], 2, DifferenceKind.EXTRA),
        ([1, 3], [0, 1, 3], 0, DifferenceKind.EXTRA),
        ([0, 2], [1, 3], 0, DifferenceKind.MISSING),
    ],
)
@pytest.mark.parametrize("split", [False, True])
def test_a_record_on_one_side_only(
    source: list[int], target: list[int], offset: int, kind: DifferenceKind, split: bool
) -> None:
    """In the middle of a stretch, whether the target keeps holes or fills them with markers."""
    ours, theirs = (stored(some(*offsets), delta=3) for offsets in (source, target))
    report = compared([ours, batch(4)], [*(remade(theirs) if split else [theirs]), batch(4)])
    assert kinds(report) == [(offset, kind)]
    assert (report.offsets_equal, report.identical, report.rewritten) == (False, 1, 0)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=20, unique=True).map(sorted), st.data())
def test_any_copy_verifies_and_any_other_does_not(offsets: list[int], data: st.DataObject) -> None:
    """Cut in any way on either side; then with one record changed or left out."""
    whole = stored(some(*offsets), delta=30)
    sizes = st.integers(170, 700)
    ours = data.draw(st.sampled_from([[whole], remade(whole, max_bytes=data.draw(sizes))]))
    report = compared(ours, remade(whole, max_bytes=data.draw(sizes), codec=data.draw(st.integers(0, 4))))
    assert (report.differences, agree(report)) == ((), True)
    assert report.identical + report.rewritten == report.batches == len(ours)

    victim = data.draw(st.sampled_from(offsets))
    others = [one for one in some(*offsets) if one.offset != victim]
    changed = sorted([*others, Record(victim, 1, b"other")], key=lambda one: one.offset)
    report = compared(ours, remade(stored(changed, delta=30), max_bytes=data.draw(sizes)))
    assert (kinds(report), agree(report)) == ([(victim, DifferenceKind.KEY)], False)
    if others:
        assert (victim, DifferenceKind.MISSING) in kinds(compared(ours, remade(stored(others, delta=30))))
        assert (victim, DifferenceKind.EXTRA) in kinds(compared(remade(stored(others, delta=30)), ours))


# --- where logs begin and end -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bounds", "lag", "found"),
    [
        (LogBounds(0, 16, 0, 16, 16), 0, []),
        (LogBounds(0, 100, 0, 16, 16), 84, []),
        (LogBounds(0, 16, 0, 0, 0), 16, []),
        (LogBounds(50, 90, 0, 0, 0), 40, []),  # nothing mirrored yet from a source that was trimmed
        (LogBounds(50, 90, 0, 40, 40), 40, [(40, DifferenceKind.DELETED)]),  # retention was faster than the mirror
        (LogBounds(0, 16, 10, 16, 16), 0, [(0, DifferenceKind.DELETED)]),
        (LogBounds(0, 16, 0, 16, 19), 0, [(16, DifferenceKind.OPEN_TRANSACTION)]),
        (LogBounds(16, 16, 17, 17, 17), 0, [(16, DifferenceKind.EXTRA)]),  # a foreign record that was deleted since
        (LogBounds(0, 16, 0, 17, 17), 0, [(16, DifferenceKind.EXTRA)]),  # a foreign marker
    ],
)
def test_what_the_ends_of_both_logs_mean(bounds: LogBounds, lag: int, found: list[tuple[int, DifferenceKind]]) -> None:
    inside = [one for one in THREE if bounds.begin <= parse_header(one).base_offset < bounds.end]
    report = compared(inside, inside, bounds=bounds)
    assert (report.lag, kinds(report), report.offsets_equal) == (lag, found, not found)


def test_logs_that_begin_or_end_inside_a_batch() -> None:
    parts = remade(WIDE, max_bytes=600)
    end = end_after(parts[:1])
    report = compared([WIDE], parts[:1], bounds=LogBounds(0, 200, 0, end, end))
    assert (report.differences, report.lag, report.rewritten) == ((), 200 - end, 1), (
        "the mirror died behind its first part"
    )
    (one,) = compared(parts[:1], [WIDE], bounds=LogBounds(0, end, 0, 200, 200)).differences
    assert (one.offset, one.kind, one.target) == (end, DifferenceKind.EXTRA, "a log that ends at 200")
    theirs = [one for one in parts if end_of(one) >= 100]
    report = compared([WIDE], theirs, bounds=LogBounds(100, 200, 0, 200, 200))
    assert (report.differences, report.rewritten, report.records) == ((), 1, 100)
    ours = stored([*some(*range(100)), Record(100), *some(*range(101, 200))])
    assert kinds(compared([ours], theirs, bounds=LogBounds(101, 200, 0, 200, 200))) == []
    assert kinds(compared([ours], theirs, bounds=LogBounds(100, 200, 0, 200, 200))) == [(100, DifferenceKind.KEY)]


def test_what_the_source_deletes_meanwhile_is_a_note() -> None:
    report = compared([THREE[2]], THREE, starts=15)
    assert (report.different, report.identical) == (0, 1)
    assert report.notes == ("the source deleted offsets 0 to 14 while they were compared",)
    ours = remade(WIDE, max_bytes=600)
    starts = end_of(ours[2]) + 1
    report = compared(ours[3:], [WIDE], starts=starts)
    assert (report.differences, report.rewritten) == ((), len(ours) - 3), "the target's batch reaches over that"


def test_a_source_that_was_truncated_is_different() -> None:
    async def out_of_range(offset: int) -> Fetched:
        raise BrokerError(1, "OFFSET_OUT_OF_RANGE", "fetch")

    async def run() -> PartitionReport:
        left = Reader(out_of_range, 0, 16, log_start)
        return await compare(PAIR, LogBounds(0, 16, 0, 16, 16), left, log_of(THREE, end=16))

    report = asyncio.run(run())
    assert (kinds(report), report.notes) == (
        [(0, DifferenceKind.EXTRA), (10, DifferenceKind.EXTRA), (15, DifferenceKind.EXTRA)],
        (),
    )


def test_the_targets_end_is_fixed_before_the_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = count(1)  # both logs grow by a record with every question

    async def growing(cluster: object, partition: TopicPartition, when: int, isolation: int = 0) -> int:
        await asyncio.sleep(0)
        return 0 if when == EARLIEST else next(ends)

    monkeypatch.setattr(flow, "list_offset", growing)
    nothing: Any = None
    pairs = [replace(PAIR, source=TopicPartition("orders", number)) for number in range(5)]
    bounds = asyncio.run(Planner(nothing, nothing, Known()).bounds_of(pairs)).values()
    assert len(bounds) == 5
    assert max(one.target_end for one in bounds) < min(one.source_end for one in bounds)


# --- the reader -------------------------------------------------------------------------------------------------------


async def log_start() -> int:
    return 0


@pytest.mark.parametrize("on_target", [False, True])
def test_a_log_that_gives_nothing_before_its_end_is_not_equal(on_target: bool) -> None:
    async def run() -> PartitionReport:
        sides = [log_of(THREE, end=16), log_of(THREE[:2], end=16)]
        return await compare(PAIR, LogBounds(0, 16, 0, 16, 16), *(sides if on_target else reversed(sides)))

    report = asyncio.run(run())
    (one,) = report.differences
    assert (one.kind, one.offset, report.identical, report.offsets_equal) == (DifferenceKind.UNREADABLE, 15, 2, False)
    assert "nothing at offset 15 below the log's end 16" in (one.target if on_target else one.source)


def test_a_log_of_which_a_fetch_gives_no_batch_is_unreadable_and_ends_no_proof() -> None:
    """As where a broker returns nothing but what precedes the offset that was asked for."""

    async def fetch(offset: int) -> Fetched:
        if offset < 15:
            return answered(b"".join(THREE[:2]))
        raise MalformedBatch("cluster us: nothing but what precedes offset 15", 0, 15)

    async def run() -> PartitionReport:
        return await compare(PAIR, LogBounds(0, 16, 0, 16, 16), log_of(THREE, end=16), Reader(fetch, 0, 16, log_start))

    (one,) = asyncio.run(run()).differences
    assert (one.kind, one.offset) == (DifferenceKind.UNREADABLE, 15)
    assert "nothing but what precedes offset 15" in one.target


def test_a_comparison_holds_an_answer_of_each_side_and_the_next_one() -> None:
    """However long the logs are: neither side is read ahead of what is compared."""
    asked: dict[str, int] = {}
    apart: list[int] = []

    def side(name: str, batches: Sequence[bytes]) -> Reader:
        async def fetch(offset: int) -> Fetched:
            asked[name] = offset
            if len(asked) == 2:
                apart.append(abs(asked["source"] - asked["target"]))
            await asyncio.sleep(0)
            return answered(b"".join([one for one in batches if end_of(one) >= offset][:4]))

        return Reader(fetch, 0, 400, log_start)

    async def run() -> PartitionReport:
        source = side("source", [stored(some(0), at) for at in range(400)])
        target = side("target", [stored(some(0, 1), at) for at in range(0, 400, 2)])
        return await compare(PAIR, LogBounds(0, 400, 0, 400, 400), source, target)

    assert asyncio.run(run()).batches == 400
    assert len(apart) > 50
    assert max(apart) <= 2 * 2 * 4, "two answers of four batches, of two records at most"
