"""`mirror verify`: equal copies are found equal, and each way of being different is found and named."""

from __future__ import annotations

import asyncio
import io
import json
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Sequence
from itertools import count
from random import Random
from typing import Any

import pytest
from compared_logs import (
    CLOCK,
    PAIR,
    THREE,
    VALUES,
    Between,
    compared,
    delete_before,
    end_after,
    end_of,
    kinds,
    log_of,
    remade,
    some,
    stored,
)
from confluent_kafka import Producer
from helpers import (
    RECENT_MS,
    make_topic,
    mirror_once,
    produce,
    settings_between,
    stored_batches,
    wait_for_markers,
)
from hypothesis import given
from hypothesis import strategies as st
from rawbatches import batch, crc32c, forged, legacy
from recordoracle import Record, encoded
from rich.console import Console
from sparkless import run_once
from syncing import delete_topics

from mirror.commands.verify import verify, verify_flow
from mirror.commands.verify_view import rendered
from mirror.errors import BrokerError, ConfigError, ExitCode, PreflightError
from mirror.kafka.cluster import TopicPartition
from mirror.kafka.queries import EARLIEST
from mirror.lab.embedded import Cluster
from mirror.records.codecs import compress
from mirror.records.header import APPEND_TIME, CONTROL, DELETE_HORIZON, TRANSACTIONAL, parse_header
from mirror.states import State
from mirror.verify import flow, reader
from mirror.verify.compare import Bounds, compare
from mirror.verify.flow import bounds_of
from mirror.verify.reader import Answer, Reader
from mirror.verify.report import KEPT, Kind, PartitionReport, TopicReport, VerifyReport

# --- the walk, on batches made by hand ------------------------------------------------------------------------------


@pytest.mark.parametrize("same", [True, False])
def test_a_comparison_holds_an_answer_of_each_side_and_the_next_one(*, same: bool) -> None:
    """However long the logs are: neither side is read ahead of what is compared."""
    source = [stored(some(0), at) for at in range(400)]
    target = source if same else [stored(some(0, 1), at) for at in range(0, 400, 2)]
    asked: dict[str, int] = {}
    apart: list[int] = []

    def side(name: str, batches: Sequence[bytes]) -> Reader:
        async def fetch(offset: int) -> Answer:
            asked[name] = offset
            if len(asked) == 2:
                apart.append(abs(asked["source"] - asked["target"]))
            await asyncio.sleep(0)
            return Answer(memoryview(b"".join([one for one in batches if end_of(one) >= offset][:4])))

        async def log_start() -> int:
            return 0

        return Reader(fetch, 0, 400, log_start)

    async def run() -> PartitionReport:
        return await compare(PAIR, Bounds(0, 400, 0, 400, 400), side("source", source), side("target", target))

    assert asyncio.run(run()).batches == 400
    assert len(apart) > 50
    assert max(apart) <= 2 * 2 * 4, "two answers of four batches, of two records at most"


def marker(offset: int, *, commit: bool = False, producer: int = 99) -> bytes:
    """A control marker; of the mirror's kind unless asked otherwise."""
    key, value = bytes([0, 0, 0, commit]), bytes(6)
    payload = encoded([Record(0, 0, key, value)])
    return batch(offset, attributes=CONTROL | TRANSACTIONAL, payload=payload, producer_id=producer)


def shown(field: bytes) -> str:
    return f"{len(field)} bytes with CRC {crc32c(field):08x}"


def printed(report: PartitionReport, width: int = 200) -> str:
    out = io.StringIO()
    whole = VerifyReport(flow="eu-to-us", source="eu", target="us", partitions=(report,), misfits=(), seconds=1.25)
    Console(file=out, width=width).print(rendered(whole))
    return out.getvalue()


OWN_CLOCK = "append time: the target's own timestamps, not compared"


def test_equal_logs() -> None:
    report = compared(THREE, THREE)
    assert (report.different, report.batches, report.identical, report.records) == (0, 3, 3, 16)
    assert report.bytes == sum(map(len, THREE))
    assert report.codecs == ("none", "zstd")
    assert report.offsets_equal
    assert report.source_digest == report.target_digest


def test_what_the_mirror_may_change_is_no_difference() -> None:
    changed: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 3, "leader_epoch": 9}
    transactional = batch(0, count=10, attributes=TRANSACTIONAL | DELETE_HORIZON)
    report = compared([transactional], [batch(0, count=10, **changed)])
    assert (report.different, report.identical, report.notes) == (0, 1, ())
    assert report.source_digest == report.target_digest


def test_a_batch_is_no_counterpart_where_anything_of_it_changed() -> None:
    """Its records are then compared, and those here cannot be read."""
    good = batch(0, count=10)
    changes: list[dict[str, Any]] = [
        {"payload": b"A records section"},
        {"payload": b"a records section and more"},
        {"base_timestamp": 1},
        {"max_timestamp": 1},
        {"attributes": 2},
        {"count": 9},
        {"delta": 10},
    ]
    for changed in changes:
        report = compared([good, batch(11)], [batch(0, **{"count": 10, **changed}), batch(11)])
        assert kinds(report) == [(0, Kind.UNDECODABLE)], changed
        assert (report.identical, report.batches) == (1, 2)


def test_a_batch_made_to_have_the_same_checksum() -> None:
    true, false = (encoded([Record(0, 0, None, amount, ((b"h", b"abcd"),))]) for amount in (b"100", b"999"))
    report = compared([batch(0, payload=true)], [batch(0, payload=forged(false, crc32c(true)))])
    assert kinds(report) == [(0, Kind.VALUE)]
    assert report.source_digest != report.target_digest


def test_a_stored_crc_that_does_not_hold() -> None:
    report = compared([batch(0)], [batch(0, crc=1)])
    assert [str(one) for one in report.differences] == ["orders-0 at offset 0: stored CRC: does not hold on the target"]
    assert (report.identical, report.offsets_equal) == (1, True)
    assert report.source_digest != report.target_digest


def test_a_target_with_a_clock_of_its_own_is_reported() -> None:
    """Append time there, as `topics.append_time: target` asks for: readers of the target see other times."""
    ours = [batch(0), *(batch(offset, attributes=APPEND_TIME, max_timestamp=5) for offset in (1, 2))]
    theirs = [batch(offset, attributes=APPEND_TIME, max_timestamp=6) for offset in range(3)]
    report = compared([*ours, batch(3)], [*theirs, batch(3)], own_clock=True)
    assert (report.different, report.identical, report.own_timestamps) == (0, 1, 3)
    assert report.source_digest == report.target_digest
    assert report.notes == (OWN_CLOCK,)
    assert printed(report).count(OWN_CLOCK) == 1
    assert "but times" in printed(report)
    assert "eu and us are equal, but for timestamps that the target set itself (4 batches" in printed(report)
    assert "all" not in printed(report).split()


def test_a_clock_of_its_own_excuses_nothing_else() -> None:
    times = {"attributes": APPEND_TIME, "max_timestamp": 6}
    ours, theirs = stored(some(0, 1, 2)), stored([*some(0, 1), Record(2, 1, b"other")], **times)
    report = compared([ours, stored(some(0), 3)], [theirs, *remade(stored(some(0), 3), codec=4)], own_clock=True)
    assert kinds(report) == [(2, Kind.KEY)]
    assert (report.own_timestamps, report.rewritten, report.notes) == (0, 1, (OWN_CLOCK,))


def test_other_headers_under_a_clock_of_the_targets_own() -> None:
    times = {"attributes": APPEND_TIME, "max_timestamp": 6}
    report = compared(
        [stored(some(0, 1))], [stored([*some(0), Record(1, 9, b"key 1", b"value 1")], **times)], own_clock=True
    )
    assert kinds(report) == [(1, Kind.HEADERS)]


def test_rewritten_batches_under_a_clock_of_the_targets_own() -> None:
    parts = [
        stored(some(0, 1), attributes=APPEND_TIME, max_timestamp=6),
        stored([Record(0, 77, *_fields(2))], 2, attributes=APPEND_TIME, max_timestamp=7),
    ]
    report = compared([stored(some(0, 1, 2))], parts, own_clock=True)
    assert (report.different, report.own_timestamps, report.rewritten) == (0, 1, 0)
    assert report.source_digest == report.target_digest


def test_a_target_that_stamps_records_and_was_not_asked_to_differs() -> None:
    """Somebody set message.timestamp.type on the copy. Where the source stamps its records, too, it may be older than
    the choice.
    """
    ours, theirs = some(0, 1), {"attributes": APPEND_TIME, "max_timestamp": CLOCK + 9}
    report = compared([stored(ours)], [stored(ours, **theirs)])
    assert [(one.offset, one.kind) for one in report.differences] == [(0, Kind.TIMESTAMP)]
    assert (report.own_timestamps, report.notes) == (0, ())
    both = compared([stored(ours, attributes=APPEND_TIME, max_timestamp=CLOCK + 5)], [stored(ours, **theirs)])
    assert (both.different, both.own_timestamps, both.notes) == (0, 1, (OWN_CLOCK,))


# --- what a consumer does not see -----------------------------------------------------------------------------------


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
    report = compared(source, target, aborted=[(5, 0, 2)])
    assert (report.differences, report.identical, report.offsets_equal) == ((), 2, True)
    assert (report.batches, report.records, report.hidden) == (2, 3, 4)
    assert report.source_digest == report.target_digest
    assert "2 batches, 4 without records for a reader left out, " in printed(report)

    seen = compared(source, target)
    assert kinds(seen) == [(0, Kind.MISSING)], "committed, had it not been for the index"
    assert kinds(compared(source, [stored(some(0, 1)), *target[2:]], aborted=[(5, 0, 2)])) == [(0, Kind.EXTRA)]
    assert kinds(compared(source, [*target[:3], marker(3), marker(4), *target[4:]], aborted=[(5, 0, 2)])) == [
        (3, Kind.MISSING)
    ]


def test_what_no_consumer_sees_must_be_whole_all_the_same() -> None:
    rotten = bytearray(marker(0))
    rotten[-1] ^= 1
    assert kinds(compared([bytes(rotten), batch(1)], [marker(0), batch(1)])) == [(0, Kind.STORED_CRC)]


def test_a_marker_that_cannot_be_read_ends_the_comparison() -> None:
    """Whose transaction it ends decides what else is seen."""
    odd = batch(1, count=1, attributes=CONTROL | TRANSACTIONAL, payload=b"", producer_id=5)
    source = [batch(0, attributes=TRANSACTIONAL, producer_id=5), odd, batch(2)]
    (one,) = compared(source, [marker(0), marker(1), batch(2)], aborted=[(5, 0, 2)]).differences
    assert (one.kind, one.offset) == (Kind.UNREADABLE, 1)
    assert "control batch" in one.source


def test_a_batch_of_an_unknown_magic_ends_the_comparison() -> None:
    (one,) = compared([batch(0), batch(1, magic=3)], [batch(0), batch(1)]).differences
    assert (one.kind, one.offset) == (Kind.UNREADABLE, 1)
    assert one.source == "a batch of magic 3 (base offset 1)"


# --- record by record -----------------------------------------------------------------------------------------------


def _fields(offset: int) -> tuple[bytes | None, bytes | None, tuple[tuple[bytes, bytes | None], ...]]:
    one = some(offset)[0]
    return one.key, one.value, one.headers


HOLES = stored(some(1, 2, 5, 9), delta=11)
WIDE = stored(some(*range(200)))
REWRITTEN: list[tuple[str, list[bytes], list[bytes]]] = [
    ("holes", [HOLES], [marker(0), *remade(HOLES), marker(10), marker(11)]),
    ("another codec", [WIDE], remade(WIDE, codec=4)),
    ("split", [WIDE], remade(WIDE, max_bytes=600)),
    ("joined", remade(WIDE, max_bytes=600), [WIDE]),
    (
        "append time",
        [stored(some(0, 1, 2), attributes=APPEND_TIME)],
        remade(stored(some(0, 1, 2), attributes=APPEND_TIME)),
    ),
    ("old messages", [legacy(0, 0), legacy(1, 0)], remade(legacy(0, 0), legacy(1, 0))),
    ("shifted boundaries", remade(WIDE, max_bytes=600), remade(WIDE, max_bytes=900)),
]


@pytest.mark.parametrize(("ours", "theirs"), [case[1:] for case in REWRITTEN], ids=[case[0] for case in REWRITTEN])
@pytest.mark.parametrize("at_a_time", [1, 3])
def test_the_same_records_in_other_batches(ours: list[bytes], theirs: list[bytes], at_a_time: int) -> None:
    report = compared(ours, theirs, at_a_time=at_a_time)
    assert (report.differences, report.identical, report.rewritten) == ((), 0, len(ours))
    assert report.offsets_equal
    assert report.source_digest == report.target_digest
    assert f"eu and us are equal ({len(ours)} batch" in printed(report)
    assert f"{len(ours)} of them rewritten" in printed(report)


def test_identical_and_rewritten_batches_in_turn() -> None:
    plain = stored(some(0, 1), 12, codec=4)
    report = compared([HOLES, plain], [marker(0), *remade(HOLES), plain])
    assert (report.differences, report.identical, report.rewritten, report.batches) == ((), 1, 1, 2)
    assert "all but" in printed(report)
    assert "2 batches, 1 of them rewritten, " in printed(report)


@pytest.mark.parametrize(
    ("changed", "kind", "source", "target"),
    [
        (Record(5, 1, None, b"value 5", ((b"h", b"5"),)), Kind.KEY, "5 bytes with CRC", "null"),
        (Record(5, 1, b"key 5", b"", ((b"h", b"5"),)), Kind.VALUE, "7 bytes with CRC", "0 bytes with CRC 00000000"),
        (Record(5, 1, b"key 5", b"value 5", ((b"h", None),)), Kind.HEADERS, "1 in 4 bytes", "1 in 3 bytes"),
        (Record(5, 1, b"key 5", b"value 5"), Kind.HEADERS, "1 in 4 bytes", "0 in 0 bytes"),
        (Record(5, 2, b"key 5", b"value 5", ((b"h", b"5"),)), Kind.TIMESTAMP, str(CLOCK + 1), str(CLOCK + 2)),
    ],
)
@pytest.mark.parametrize("split", [False, True])
def test_one_changed_field_is_named(changed: Record, kind: Kind, source: str, target: str, split: bool) -> None:
    theirs = stored([*some(0, 1, 2, 3, 4), changed, *some(6, 7)])
    report = compared([stored(some(*range(8)))], remade(theirs, max_bytes=150) if split else [theirs])
    (one,) = report.differences
    assert (one.offset, one.kind) == (5, kind)
    assert one.source.startswith(source)
    assert one.target.startswith(target)
    assert (report.rewritten, report.offsets_equal) == (0, True)
    assert report.source_digest != report.target_digest


def test_headers_in_another_order() -> None:
    ours, theirs = (Record(0, headers=order) for order in (((b"a", b""), (b"b", b"")), ((b"b", b""), (b"a", b""))))
    assert kinds(compared([stored([ours])], [stored([theirs])])) == [(0, Kind.HEADERS)]


def test_the_first_of_several_changed_records_is_named() -> None:
    theirs = stored([*some(*range(40)), *(Record(offset, value=b"other") for offset in range(40, 60))])
    for batches in ([theirs], remade(theirs, max_bytes=300)):
        assert kinds(compared([stored(some(*range(60)))], batches)) == [(40, Kind.KEY)]


@pytest.mark.parametrize(
    ("source", "target", "offset", "kind"),
    [
        ([0, 1, 2, 3], [0, 1, 3], 2, Kind.MISSING),
        ([0, 1, 2, 3], [0, 1, 2], 3, Kind.MISSING),
        ([0, 3], [0, 2, 3], 2, Kind.EXTRA),
        ([1, 3], [0, 1, 3], 0, Kind.EXTRA),
        ([0, 2], [1, 3], 0, Kind.MISSING),
    ],
)
@pytest.mark.parametrize("split", [False, True])
def test_a_record_on_one_side_only(source: list[int], target: list[int], offset: int, kind: Kind, split: bool) -> None:
    """In the middle of a stretch, whether the target keeps holes or fills them with markers."""
    ours, theirs = (stored(some(*offsets), delta=3) for offsets in (source, target))
    report = compared([ours, batch(4)], [*(remade(theirs) if split else [theirs]), batch(4)])
    assert kinds(report) == [(offset, kind)]
    assert "a record on the" in str(report.differences[0])
    assert (report.offsets_equal, report.identical, report.rewritten) == (False, 1, 0)


def test_a_batch_with_holes_on_one_side_only() -> None:
    assert kinds(compared([HOLES, batch(12)], [batch(12)])) == [(1, Kind.MISSING)]
    assert kinds(compared([batch(12)], [HOLES, batch(12)])) == [(1, Kind.EXTRA)]


def test_an_append_time_that_got_lost() -> None:
    """The bit went, and nobody wrote the time into the records."""
    ours = stored(some(0, 1), attributes=APPEND_TIME, max_timestamp=CLOCK + 50)
    (one,) = compared([ours], [stored(some(0, 1), max_timestamp=CLOCK + 50)]).differences
    assert (one.offset, one.kind, one.source, one.target) == (0, Kind.TIMESTAMP, str(CLOCK + 50), str(CLOCK))


@pytest.mark.parametrize("on_target", [False, True])
def test_a_payload_that_cannot_be_decoded(on_target: bool) -> None:
    bad, good = batch(0, count=2, attributes=4, payload=b"no zstd"), stored(some(0, 1))
    report = compared([good, batch(2)], [bad, batch(2)]) if on_target else compared([bad, batch(2)], [good, batch(2)])
    (one,) = report.differences
    assert (one.offset, one.kind) == (0, Kind.UNDECODABLE)
    assert (one.target if on_target else one.source).startswith("zstd payload: ")
    assert (report.identical, report.offsets_equal) == (1, False)


def test_a_copy_that_ends_inside_a_batch() -> None:
    """The mirror died after the first part of it: the rest is lag."""
    first, *rest = remade(WIDE, max_bytes=600)
    end = end_after([first])
    report = compared([WIDE], [first], bounds=Bounds(0, 200, 0, end, end))
    assert (report.differences, report.lag, report.rewritten) == ((), 200 - end, 1)
    assert rest


def test_both_logs_begin_inside_a_batch() -> None:
    theirs = [one for one in remade(WIDE, max_bytes=600) if end_of(one) >= 100]
    report = compared([WIDE], theirs, bounds=Bounds(100, 200, 0, 200, 200))
    assert (report.differences, report.rewritten, report.records) == ((), 1, 100)
    ours = stored([*some(*range(100)), Record(100), *some(*range(101, 200))])
    assert kinds(compared([ours], theirs, bounds=Bounds(101, 200, 0, 200, 200))) == []
    assert kinds(compared([ours], theirs, bounds=Bounds(100, 200, 0, 200, 200))) == [(100, Kind.KEY)]


def test_what_is_missing_where_the_comparison_begins_inside_a_batch() -> None:
    bounds = Bounds(4, 12, 0, 12, 12)
    assert kinds(compared([stored(some(*range(10))), batch(10, count=2)], [batch(10, count=2)], bounds=bounds)) == [
        (4, Kind.MISSING)
    ]


def test_a_batch_that_reaches_beyond_the_end_of_the_source() -> None:
    ours, *_ = remade(WIDE, max_bytes=600)
    end = end_after([ours])
    (one,) = compared([ours], [WIDE], bounds=Bounds(0, end, 0, 200, 200)).differences
    assert (one.offset, one.kind) == (end, Kind.EXTRA)
    assert (one.source, one.target) == (f"a log that ends at {end}", "a log that ends at 200")


def test_a_batch_that_lacks_its_last_records() -> None:
    """Its header counts more, so what begins behind its last record still belongs to the stretch."""
    ours = [stored(some(*range(10))), stored(some(*range(10)), 10)]
    theirs = stored(some(*range(6)), delta=19)
    assert kinds(compared(ours, [theirs])) == [(6, Kind.MISSING)]
    broken = batch(20, length=3)
    assert kinds(compared([stored(some(*range(20)))], [theirs, broken])) == [(6, Kind.MISSING), (20, Kind.UNREADABLE)]


def test_a_source_that_deletes_the_rest_of_what_is_being_compared() -> None:
    """After its first batch was matched, and with it the beginning of the target's only one."""
    first, following = remade(WIDE, max_bytes=600)[0], batch(200)

    async def fetch(offset: int) -> Answer:
        if 0 < offset < 200:
            raise BrokerError(1, "OFFSET_OUT_OF_RANGE", "fetch")
        return Answer(memoryview(following if offset else first))

    async def log_start() -> int:
        return 200

    async def run() -> PartitionReport:
        ours, theirs = Reader(fetch, 0, 201, log_start), log_of([WIDE, following], end=201)
        return await compare(PAIR, Bounds(0, 201, 0, 201, 201), ours, theirs)

    report = asyncio.run(run())
    assert (report.differences, report.identical, report.rewritten) == ((), 1, 1)
    assert report.notes == ("the source deleted offsets 0 to 199 while they were compared",)


def test_a_source_that_deletes_what_is_being_compared() -> None:
    """The target's batch reaches over where the source now begins."""
    ours = remade(WIDE, max_bytes=600)
    starts = end_of(ours[2]) + 1
    report = compared(ours[3:], [WIDE], starts=starts)
    assert (report.differences, report.rewritten) == ((), len(ours) - 3)
    assert report.notes == (f"the source deleted offsets 0 to {starts - 1} while they were compared",)


def test_a_log_that_breaks_off_inside_a_stretch() -> None:
    """What was read before is compared, what was not is not reported as missing."""
    ours = remade(WIDE, max_bytes=600)
    broken = batch(end_of(ours[0]) + 1, length=3)
    report = compared([WIDE], [ours[0], broken])
    assert kinds(report) == [(end_of(ours[0]) + 1, Kind.UNREADABLE)]
    theirs = [*remade(stored([Record(0), *some(*range(1, 200))]), max_bytes=600)[:1], broken]
    assert kinds(compared([WIDE], theirs)) == [(0, Kind.KEY), (end_of(theirs[0]) + 1, Kind.UNREADABLE)]


def test_an_old_compressed_set_says_its_first_offset_only_inside() -> None:
    """The wrapper has the last one."""
    random = Random(3)
    wrapper = wrapped(14, b"".join(legacy(offset, 1, random.randbytes(40)) for offset in range(5)))
    report = compared([batch(9), wrapper, batch(15)], [batch(9), *remade(wrapper, max_bytes=200), batch(15)])
    assert len(remade(wrapper, max_bytes=200)) > 1
    assert (report.differences, report.identical, report.rewritten, report.records) == ((), 2, 1, 7)


def wrapped(offset: int, inner: bytes) -> bytes:
    """A gzip set of magic 1."""
    value = compress(1, inner)
    summed = struct.pack(">bbqii", 1, 1, 1_400_000_000_000, -1, len(value)) + value
    return struct.pack(">qiI", offset, 4 + len(summed), zlib.crc32(summed)) + summed


@given(st.lists(st.integers(0, 30), min_size=1, max_size=20, unique=True).map(sorted), st.data())
def test_any_copy_verifies_and_any_other_does_not(offsets: list[int], data: st.DataObject) -> None:
    """Cut in any way on either side; then with one record changed or left out."""
    whole = stored(some(*offsets), delta=30)
    sizes = st.integers(170, 700)
    ours = data.draw(st.sampled_from([[whole], remade(whole, max_bytes=data.draw(sizes))]))
    report = compared(ours, remade(whole, max_bytes=data.draw(sizes), codec=data.draw(st.integers(0, 4))))
    assert report.differences == ()
    assert report.identical + report.rewritten == report.batches == len(ours)
    assert report.source_digest == report.target_digest

    victim = data.draw(st.sampled_from(offsets))
    others = [one for one in some(*offsets) if one.offset != victim]
    changed = sorted([*others, Record(victim, 1, b"other")], key=lambda one: one.offset)
    report = compared(ours, remade(stored(changed, delta=30), max_bytes=data.draw(sizes)))
    assert kinds(report) == [(victim, Kind.KEY)]
    assert report.source_digest != report.target_digest
    if others:
        assert (victim, Kind.MISSING) in kinds(compared(ours, remade(stored(others, delta=30))))
        assert (victim, Kind.EXTRA) in kinds(compared(remade(stored(others, delta=30)), ours))


def test_looking_at_batches_alone_does_not_load_the_compiler() -> None:
    code = "import sys, mirror.commands.verify, mirror.verify.flow; sys.exit('numba' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# --- odd logs -------------------------------------------------------------------------------------------------------


def test_a_bad_crc_on_both_sides_is_two_differences() -> None:
    report = compared([batch(0, crc=1)], [batch(0, crc=1)])
    assert [str(one) for one in report.differences] == [
        "orders-0 at offset 0: stored CRC: does not hold on the source",
        "orders-0 at offset 0: stored CRC: does not hold on the target",
    ]


def test_missing_and_extra_batches() -> None:
    report = compared(THREE, [THREE[0], THREE[2], batch(16, count=3)])
    assert [str(one) for one in report.differences] == [
        "orders-0 at offset 10: missing: 1 batch with 5 records up to offset 14 on the source, nothing on the target",
        "orders-0 at offset 16: extra: nothing on the source, 1 batch with 3 records up to offset 18 on the target",
    ]
    assert (report.batches, report.identical, report.offsets_equal) == (3, 2, False)
    assert report.source_digest != report.target_digest


@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats(magic: int) -> None:
    ours = [legacy(0, magic), legacy(1, magic, b"x" * 200), batch(2)]
    report = compared(ours, ours)
    assert (report.different, report.identical) == (0, 3)
    assert report.source_digest == report.target_digest
    assert report.records == 3


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("value", [b"walue", b"value and more", b""])
def test_an_old_message_with_another_value(magic: int, value: bytes) -> None:
    """Shorter than a header of magic 2, where the records section would be empty."""
    report = compared([legacy(0, magic)], [legacy(0, magic, value)])
    assert [str(one) for one in report.differences] == [
        f"orders-0 at offset 0: value: {shown(b'value')} on the source, {shown(value)} on the target"
    ]
    assert report.identical == 0
    assert report.source_digest != report.target_digest


@pytest.mark.parametrize("position", [12, 15, *range(17, 39)])
def test_any_changed_byte_of_an_old_message(position: int) -> None:
    changed = bytearray(legacy(0, 1))
    changed[position] ^= 1
    assert kinds(compared([legacy(0, 1)], [bytes(changed)])) == [(0, Kind.STORED_CRC), (0, Kind.UNDECODABLE)]


def test_the_codec_of_an_old_message() -> None:
    zipped = bytearray(legacy(0, 1))
    zipped[17] = 1
    assert compared([bytes(zipped)], [bytes(zipped)]).codecs == ("gzip",)


def test_a_log_that_cannot_be_read_on() -> None:
    broken = batch(10, length=3)
    report = compared([THREE[0], broken], THREE)
    assert kinds(report) == [(10, Kind.UNREADABLE)]
    assert "batch length 3" in report.differences[0].source
    assert (report.identical, report.offsets_equal) == (1, False)
    assert kinds(compared(THREE, [THREE[0], broken])) == [(10, Kind.UNREADABLE)]


@pytest.mark.parametrize("on_target", [False, True])
@pytest.mark.parametrize("whole", [0, 2])
def test_a_log_that_gives_nothing_before_its_end(whole: int, on_target: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "EMPTY_PAUSE", 0.0)

    async def run() -> PartitionReport:
        sides = [log_of(THREE, end=16), log_of(THREE[:whole], end=16)]
        return await compare(PAIR, Bounds(0, 16, 0, 16, 16), *(sides if on_target else reversed(sides)))

    report = asyncio.run(run())
    offset = (0, 10, 15)[whole]
    output = f"the broker returned nothing at offset {offset} below the log's end 16"
    side = "target" if on_target else "source"
    assert [str(one) for one in report.differences] == [
        f"orders-0 at offset {offset}: unreadable: {output} on the {side}"
    ]
    assert (report.identical, report.offsets_equal) == (whole, False)


def test_both_logs_give_nothing_before_their_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "EMPTY_PAUSE", 0.0)

    async def run() -> PartitionReport:
        return await compare(PAIR, Bounds(0, 16, 0, 16, 16), log_of(THREE[:1], end=16), log_of(THREE[:1], end=16))

    report = asyncio.run(run())
    assert kinds(report) == [(10, Kind.UNREADABLE)] * 2
    assert report.batches == report.identical == 1


def test_what_cannot_be_read_is_not_counted_as_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "EMPTY_PAUSE", 0.0)
    seen: list[int] = []

    async def fetch(offset: int) -> Answer:
        return Answer(memoryview(b"" if offset else THREE[0]))

    async def log_start() -> int:
        return 0

    async def run() -> str:
        one = Reader(fetch, 0, 16, log_start, seen.append)
        await one.advance()
        await one.advance()
        return one.damage

    assert asyncio.run(run())
    assert sum(seen) == 10


def test_a_leader_just_elected_gives_nothing_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "EMPTY_PAUSE", 0.0)
    asked: list[int] = []

    async def fetch(offset: int) -> Answer:
        asked.append(offset)
        empty = asked.count(offset) < reader.EMPTY_ANSWERS
        return Answer(memoryview(b"" if empty else next(one for one in THREE if end_of(one) >= offset)))

    async def log_start() -> int:
        return 0

    async def run() -> PartitionReport:
        return await compare(PAIR, Bounds(0, 16, 0, 16, 16), Reader(fetch, 0, 16, log_start), log_of(THREE, end=16))

    report = asyncio.run(run())
    assert (report.different, report.identical) == (0, 3)
    assert len(asked) == 3 * reader.EMPTY_ANSWERS


def test_differences_are_counted_beyond_those_kept() -> None:
    many = [batch(offset) for offset in range(KEPT + 7)]
    report = compared(many, [])
    assert (report.different, len(report.differences)) == (KEPT + 7, KEPT)


def test_what_the_source_deletes_meanwhile_is_a_note() -> None:
    report = compared([THREE[2]], THREE, starts=15)
    assert (report.different, report.identical) == (0, 1)
    assert report.notes == ("the source deleted offsets 0 to 14 while they were compared",)


def test_a_source_that_was_cut_back_is_different() -> None:
    async def run() -> PartitionReport:
        async def out_of_range(offset: int) -> Answer:
            raise BrokerError(1, "OFFSET_OUT_OF_RANGE", "fetch")

        async def log_start() -> int:
            return 0

        left = Reader(out_of_range, 0, 16, log_start)
        return await compare(PAIR, Bounds(0, 16, 0, 16, 16), left, log_of(THREE, end=16))

    report = asyncio.run(run())
    assert (kinds(report), report.notes) == ([(0, Kind.EXTRA), (10, Kind.EXTRA), (15, Kind.EXTRA)], ())


def test_another_error_of_a_broker_is_not_a_difference() -> None:
    async def run() -> PartitionReport:
        async def fails(offset: int) -> Answer:
            raise BrokerError(56, "KAFKA_STORAGE_ERROR", "fetch")

        async def log_start() -> int:
            return 0

        return await compare(PAIR, Bounds(0, 16, 0, 16, 16), Reader(fails, 0, 16, log_start), log_of(THREE))

    with pytest.raises(BrokerError, match="KAFKA_STORAGE_ERROR"):
        asyncio.run(run())


@pytest.mark.parametrize(
    ("bounds", "lag", "found"),
    [
        (Bounds(0, 16, 0, 16, 16), 0, []),
        (Bounds(0, 100, 0, 16, 16), 84, []),
        (Bounds(0, 16, 0, 0, 0), 16, []),
        (Bounds(50, 90, 0, 0, 0), 40, []),  # nothing mirrored yet from a source that was trimmed
        (Bounds(50, 90, 0, 40, 40), 40, [(40, Kind.DELETED)]),  # retention was faster than the mirror
        (Bounds(0, 16, 10, 16, 16), 0, [(0, Kind.DELETED)]),
        (Bounds(0, 16, 0, 16, 19), 0, [(16, Kind.OPEN_TRANSACTION)]),
        (Bounds(16, 16, 17, 17, 17), 0, [(16, Kind.EXTRA)]),  # a foreign record that was deleted since
        (Bounds(0, 16, 0, 17, 17), 0, [(16, Kind.EXTRA)]),  # a foreign marker
    ],
)
def test_bounds(bounds: Bounds, lag: int, found: list[tuple[int, Kind]]) -> None:
    inside = [one for one in THREE if bounds.begin <= parse_header(one).base_offset < bounds.end]
    report = compared(inside, inside, bounds=bounds)
    assert (report.lag, kinds(report)) == (lag, found)
    assert report.offsets_equal == (not found)


def test_the_targets_end_is_fixed_before_the_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = count(1)  # both logs grow by a record with every question

    async def growing(cluster: object, partition: TopicPartition, when: int, isolation: int = 0) -> int:
        await asyncio.sleep(0)
        return 0 if when == EARLIEST else next(clock)

    monkeypatch.setattr(flow, "list_offset", growing)
    nothing: Any = None
    bounds = [one for one in asyncio.run(bounds_of(nothing, nothing, [PAIR] * 5)) if isinstance(one, Bounds)]
    assert len(bounds) == 5
    assert max(one.target_end for one in bounds) < min(one.source_end for one in bounds)


# --- on brokers -----------------------------------------------------------------------------------------------------


@pytest.mark.brokers
def test_a_mirrored_topic_is_equal(own_source: Cluster, own_target: Cluster, topic_name: str) -> None:
    between = Between(own_source, own_target, topic_name, partitions=3)
    produce(between.source, topic_name, VALUES, partition=1, batch=7, codec="gzip")
    between.mirror()
    report = between.verify()
    assert (report.equal, report.differences) == (True, ())
    (topic,) = report.topics
    assert (topic.partitions, topic.records, topic.batches, topic.identical, topic.lag) == (3, 160, 18, 18, 0)
    assert (topic.codecs, topic.offsets_equal) == (("zstd", "gzip"), True)
    assert [one.source_digest == one.target_digest for one in report.partitions] == [True] * 3
    # a codec may give other bytes for the same records: as many digests as there are different logs
    logs = {
        tuple(bytes(raw.records) for raw in stored_batches(between.source, topic_name, partition))
        for partition in range(3)
    }
    assert len({one.source_digest for one in report.partitions}) == len(logs) >= 2


@pytest.mark.brokers
def test_a_partition_of_many_fetches(own_source: Cluster, own_target: Cluster, topic_name: str) -> None:
    make_topic(own_source.bootstrap, topic_name)
    values = [bytes([number % 251]) * 90_000 for number in range(150)]
    produce(own_source.bootstrap, topic_name, values)
    assert mirror_once(own_source.bootstrap, own_target.bootstrap, [topic_name])
    seen: list[tuple[int, int]] = []
    settings = settings_between(own_source.bootstrap, own_target.bootstrap, [topic_name])
    report = verify_flow(settings, watch=lambda done, total: seen.append((done, total)))
    assert report.equal
    assert report.topics[0].bytes > 3 * flow.FETCH_BYTES
    assert len(seen) > 3, "read in one piece: the test proves nothing"
    assert sum(done for done, _ in seen) == 150
    assert {total for _, total in seen} == {150}


@pytest.mark.brokers
def test_a_foreign_record_on_the_target(own_source: Cluster, own_target: Cluster, topic_name: str) -> None:
    between = Between(own_source, own_target, topic_name, partitions=2)
    between.mirror()
    produce(between.target, topic_name, [b"foreign"], partition=1)
    report = between.verify()
    (one,) = report.differences
    assert (one.topic, one.partition, one.offset, one.kind) == (topic_name, 1, 40, Kind.EXTRA)
    assert str(one).endswith("nothing on the source, 1 batch with 1 record up to offset 40 on the target")
    assert (report.topics[0].identical, report.topics[0].batches) == (8, 8)
    assert not report.topics[0].offsets_equal
    produce(between.source, topic_name, [b"native"], partition=1)
    (one,) = between.verify().differences
    assert (one.offset, one.kind) == (40, Kind.VALUE), "another record now has the same offset"


@pytest.mark.brokers
def test_a_copy_by_a_native_producer(own_source: Cluster, own_target: Cluster, topic_name: str) -> None:
    """Other batches with the same records."""
    between = Between(own_source, own_target, topic_name)
    make_topic(between.target, topic_name)
    produce(between.target, topic_name, VALUES, batch=8, codec="gzip")
    (topic,) = between.verify().topics
    assert (topic.equal, topic.batches, topic.identical, topic.rewritten) == (True, 4, 0, 4)
    assert topic.offsets_equal


@pytest.mark.brokers
def test_one_value_of_the_same_length(own_source: Cluster, own_target: Cluster, topic_name: str) -> None:
    make_topic(own_source.bootstrap, topic_name)
    make_topic(own_target.bootstrap, topic_name)
    produce(own_source.bootstrap, topic_name, VALUES)
    produce(own_target.bootstrap, topic_name, [*VALUES[:25], b"V" + VALUES[25][1:], *VALUES[26:]])
    report = verify_flow(settings_between(own_source.bootstrap, own_target.bootstrap, [topic_name]))
    assert [(one.offset, one.kind) for one in report.differences] == [(25, Kind.VALUE)]
    assert report.topics[0].offsets_equal


@pytest.mark.brokers
def test_a_missing_tail_is_lag(own_source: Cluster, own_target: Cluster, topic_name: str) -> None:
    between = Between(own_source, own_target, topic_name)
    between.mirror()
    produce(between.source, topic_name, VALUES[:23])
    report = between.verify()
    assert (report.equal, report.is_whole, report.topics[0].lag, report.topics[0].batches) == (True, False, 23, 4)
    assert [str(one) for one in report.shortfalls] == [
        f"{topic_name}-0: not there yet, offsets 40 to 62 (23): the mirror: never ran"
    ]
    assert report.topics[0].offsets_equal


@pytest.mark.brokers
def test_a_target_topic_that_is_not_there(own_source: Cluster, own_target: Cluster, topic_name: str) -> None:
    between = Between(own_source, own_target, topic_name)
    between.mirror()
    report = between.verify(naming={"prefix": "eu."})
    assert (report.equal, report.is_whole, report.partitions) == (True, False, ())
    assert [str(one) for one in report.shortfalls] == [
        f"{topic_name}: missing on the target, 40 offsets: no topic eu.{topic_name} on the target"
    ]


@pytest.mark.brokers
def test_a_renamed_copy(own_source: Cluster, own_target: Cluster, topic_name: str) -> None:
    between = Between(own_source, own_target, topic_name)
    naming: dict[str, Any] = {"naming": {"prefix": "eu."}}
    assert mirror_once(between.source, between.target, [topic_name], **naming)
    report = between.verify(**naming)
    assert report.equal
    assert (report.topics[0].target, report.topics[0].batches) == (f"eu.{topic_name}", 4)


@pytest.mark.brokers
def test_another_number_of_partitions(own_source: Cluster, own_target: Cluster, topic_name: str) -> None:
    between = Between(own_source, own_target, topic_name, partitions=2)
    make_topic(between.target, topic_name, 1)
    report = between.verify()
    assert (report.equal, report.topics[0].lag) == (True, 40), "what both have is compared all the same"
    assert [str(one).split(": ", 1)[1] for one in report.shortfalls] == [
        "not there yet, offsets 0 to 39 (40): the mirror: never ran",
        f"missing on the target, 40 offsets: {topic_name} has 1 partition on the target",
    ]

    make_topic(between.source, f"{topic_name}-few")
    make_topic(between.target, f"{topic_name}-few", 2)
    report = verify_flow(settings_between(between.source, between.target, [f"{topic_name}-few"]))
    assert [str(one) for one in report.differences] == [
        f"{topic_name}-few: topic: 1 partition on the source, 2 partitions on the target"
    ]


@pytest.mark.brokers
def test_a_target_that_stamps_records_itself(own_source: Cluster, own_target: Cluster, topic_name: str) -> None:
    between = Between(own_source, own_target, topic_name, message_timestamp_type="LogAppendTime")
    between.mirror()
    ends, names = (between.source, between.target), [topic_name]
    report = verify_flow(settings_between(*ends, names, append_time="target"))
    (topic,) = report.topics
    assert (report.equal, topic.batches, topic.identical, topic.own_timestamps) == (True, 4, 0, 4)
    assert report.partitions[0].notes == (OWN_CLOCK,), "readers see other times than at the source"
    report = verify_flow(settings_between(*ends, names))
    assert {one.kind for one in report.differences} == {Kind.TIMESTAMP}, "nobody asked for that"


@pytest.mark.brokers
def test_brokers_that_both_stamp_records(
    own_source: Cluster, own_target: Cluster, topic_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for cluster in (own_source, own_target):
        make_topic(cluster.bootstrap, topic_name, configs={"message.timestamp.type": "LogAppendTime"})
    produce(own_source.bootstrap, topic_name, VALUES, codec="zstd")
    mirror_once(own_source.bootstrap, own_target.bootstrap, [topic_name])
    settings = settings_between(own_source.bootstrap, own_target.bootstrap, [topic_name])
    report = verify_flow(settings)
    (topic,) = report.topics
    assert (report.equal, topic.batches, topic.identical, topic.own_timestamps) == (True, 4, 0, 4)
    assert report.partitions[0].notes == (OWN_CLOCK,)
    assert verify(settings, (), as_json=False) is ExitCode.DONE
    assert "eu and us are equal, but for timestamps that the target set itself" in capsys.readouterr().out


def transactions(bootstrap: str, topic: str, outcomes: Sequence[bool]) -> None:
    """One transaction of ten records for each outcome, committed or not."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(120)
    for number, committed in enumerate(outcomes):
        producer.begin_transaction()
        for index in range(10):
            producer.produce(topic, b"%d %d" % (number, index), b"%d" % index, partition=0, timestamp=RECENT_MS)
        producer.flush(20)
        if committed:
            producer.commit_transaction(20)
        else:
            producer.abort_transaction(20)
    wait_for_markers(bootstrap, topic)


def copied(source: Cluster, target: Cluster, topic: str, **more: Any) -> tuple[TopicReport, PartitionReport]:
    """Mirror and verify; nothing may differ."""
    figures = mirror_once(source.bootstrap, target.bootstrap, [topic], **more)[TopicPartition(topic, 0)]
    assert (figures.state, figures.lag_records) == (State.CAUGHT_UP, 0)
    report = verify_flow(settings_between(source.bootstrap, target.bootstrap, [topic], **more))
    assert (report.equal, report.differences) == (True, ())
    (found,), (partition,) = report.topics, report.partitions
    assert partition.source_digest == partition.target_digest
    assert found.identical + found.rewritten + found.own_timestamps == found.batches > 0
    assert (found.offsets_equal, found.lag) == (True, 0)
    return found, partition


@pytest.mark.brokers
def test_a_transactional_topic(own_source: Cluster, own_target: Cluster, topic_name: str) -> None:
    outcomes = [True, False, False, True, False, True, False]
    make_topic(own_source.bootstrap, topic_name)
    transactions(own_source.bootstrap, topic_name, outcomes)
    found, partition = copied(own_source, own_target, topic_name)
    assert (found.batches, found.identical, found.hidden, found.records) == (3, 3, 4 + len(outcomes), 30)
    assert partition.end == 11 * len(outcomes)

    transactions(own_target.bootstrap, topic_name, [False])
    settings = settings_between(own_source.bootstrap, own_target.bootstrap, [topic_name])
    (one,) = verify_flow(settings).differences
    assert (one.kind, one.offset) == (Kind.EXTRA, partition.end), "nothing to read, and yet the log is longer"
    assert one.target == f"a log that ends at {partition.end + 11}"

    transactions(own_source.bootstrap, topic_name, [True])
    (one,) = verify_flow(settings).differences
    assert (one.kind, one.offset) == (Kind.MISSING, partition.end), "the target has what was aborted there"


@pytest.mark.brokers
def test_a_compacted_topic_with_holes(own_source: Cluster, own_target: Cluster, topic_name: str) -> None:
    names = ("segment.ms", "max.compaction.lag.ms", "delete.retention.ms")
    configs = {**dict.fromkeys(names, "100"), "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.001"}
    make_topic(own_source.bootstrap, topic_name, configs=configs)
    make_topic(own_target.bootstrap, topic_name)
    client = Producer({"bootstrap.servers": own_source.bootstrap, "linger.ms": 1000, "compression.type": "lz4"})
    for number in range(1000):
        client.produce(topic_name, b"%d" % number, key=b"%d" % (number * number % 97), partition=0)
        if number % 100 == 99:
            client.flush(20)
    deadline = time.monotonic() + 60
    while sum(raw.header.count for raw in stored_batches(own_source.bootstrap, topic_name)) > 500:
        assert time.monotonic() < deadline, "the cleaner did not run"
        client.produce(topic_name, b"again", key=b"last", partition=0)  # rolls a segment
        client.flush(20)
        time.sleep(0.2)
    found, partition = copied(own_source, own_target, topic_name)
    assert found.rewritten > 0
    assert partition.end >= 1000 > found.records


@pytest.mark.brokers
def test_append_times_that_became_the_records_own(own_source: Cluster, own_target: Cluster, topic_name: str) -> None:
    make_topic(own_source.bootstrap, topic_name, configs={"message.timestamp.type": "LogAppendTime"})
    make_topic(own_target.bootstrap, topic_name)
    produce(own_source.bootstrap, topic_name, VALUES, codec="zstd")
    found, partition = copied(own_source, own_target, topic_name)
    assert (found.batches, found.rewritten, found.own_timestamps, partition.notes) == (4, 4, 0, ())


@pytest.mark.brokers
@pytest.mark.parametrize("recompress", ["mirror", "target"])
def test_another_codec_on_the_target(
    own_source: Cluster, own_target: Cluster, topic_name: str, recompress: str
) -> None:
    make_topic(own_source.bootstrap, topic_name)
    make_topic(own_target.bootstrap, topic_name, configs={"compression.type": "zstd"})
    produce(own_source.bootstrap, topic_name, VALUES, codec="lz4")
    produce(own_source.bootstrap, topic_name, VALUES, codec="zstd")
    found, _ = copied(own_source, own_target, topic_name, recompress=recompress)
    assert (found.batches, found.rewritten, found.identical) == (8, 4, 4)


@pytest.mark.brokers
def test_batches_too_large_for_the_target(own_source: Cluster, own_target: Cluster, topic_name: str) -> None:
    make_topic(own_source.bootstrap, topic_name)
    make_topic(own_target.bootstrap, topic_name, configs={"max.message.bytes": "3000"})
    produce(own_source.bootstrap, topic_name, VALUES, batch=30)
    found, _ = copied(own_source, own_target, topic_name)
    assert (found.batches, found.rewritten, found.identical) == (2, 1, 1)


@pytest.mark.brokers
def test_many_tiny_batches_that_were_joined(
    own_source: Cluster, own_target: Cluster, topic_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make_topic(own_source.bootstrap, topic_name)
    produce(own_source.bootstrap, topic_name, VALUES * 5, batch=1, codec="lz4")
    produce(own_source.bootstrap, topic_name, VALUES, batch=40)
    found, _ = copied(own_source, own_target, topic_name, coalesce_bytes=30_000)
    assert (found.batches, found.rewritten, found.identical) == (201, 200, 1)
    settings = settings_between(own_source.bootstrap, own_target.bootstrap, [topic_name])
    assert verify(settings, (), as_json=False) is ExitCode.DONE
    assert "eu and us are equal (201 batches, 200 of them rewritten, " in capsys.readouterr().out
    assert verify(settings, (), as_json=True) is ExitCode.DONE
    assert json.loads(capsys.readouterr().out)["topics"][0]["rewritten"] == 200

    equal_topic = f"{topic_name}-equal_topic"
    make_topic(own_source.bootstrap, equal_topic)
    values = VALUES * 5
    values[123] = b"another value"
    produce(own_source.bootstrap, equal_topic, values, batch=7)
    produce(own_source.bootstrap, equal_topic, VALUES, batch=40)
    naming: dict[str, Any] = {"naming": {"rename": {equal_topic: topic_name}}}
    report = verify_flow(settings_between(own_source.bootstrap, own_target.bootstrap, [equal_topic], **naming))
    assert [(one.offset, one.kind) for one in report.differences] == [(123, Kind.VALUE)]


@pytest.mark.brokers
def test_a_source_that_was_trimmed(own_source: Cluster, own_target: Cluster, topic_name: str) -> None:
    between = Between(own_source, own_target, topic_name)
    between.mirror()
    delete_before(own_source, topic_name, 13)
    report = between.verify()
    assert report.equal
    (partition,) = report.partitions
    assert (partition.begin, partition.batches, partition.identical) == (13, 3, 3)
    assert partition.notes == ("the source deleted records that the target still has; compared from there on",)


@pytest.mark.brokers
def test_a_target_that_was_trimmed(own_source: Cluster, own_target: Cluster, topic_name: str) -> None:
    between = Between(own_source, own_target, topic_name)
    between.mirror()
    delete_before(own_target, topic_name, 20)
    report = between.verify()
    assert [str(one) for one in report.differences] == [
        f"{topic_name}-0 at offset 0: deleted: offsets 0 to 19 on the source, deleted on the target"
    ]
    assert report.topics[0].identical == 2


@pytest.mark.brokers
def test_one_topic_of_several(own_source: Cluster, own_target: Cluster, topic_name: str) -> None:
    names = [f"{topic_name}-a", f"{topic_name}-b"]
    for name in names:
        Between(own_source, own_target, name).mirror()
    settings = settings_between(own_source.bootstrap, own_target.bootstrap, names)
    assert [topic.topic for topic in verify_flow(settings).topics] == names
    assert [topic.topic for topic in verify_flow(settings, names[1:]).topics] == names[1:]
    with pytest.raises(ConfigError, match=f"--topic {topic_name}-c: .* did you mean {topic_name}-[ab]?"):
        verify_flow(settings, [f"{topic_name}-c"])


@pytest.mark.brokers
def test_a_topic_that_the_source_lacks(own_source: Cluster, own_target: Cluster, topic_name: str) -> None:
    with pytest.raises(PreflightError, match=f"{topic_name}: no such topic on cluster eu"):
        verify_flow(settings_between(own_source.bootstrap, own_target.bootstrap, [topic_name]))


# --- what is printed ------------------------------------------------------------------------------------------------


@pytest.mark.brokers
def test_what_is_printed(
    own_source: Cluster, own_target: Cluster, topic_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    between = Between(own_source, own_target, topic_name)
    between.mirror()
    settings = settings_between(between.source, between.target, [topic_name])
    assert verify(settings, (), as_json=False) is ExitCode.DONE
    out = capsys.readouterr().out
    assert "test: eu and us are equal (4 batches, " in out
    assert topic_name in out, "a file is wide enough for any name"

    produce(between.target, topic_name, [b"foreign"])
    produce(between.source, topic_name, [b"native", b"lag"], batch=1)
    assert verify(settings, (), as_json=True) is ExitCode.DIFFERENT
    found = json.loads(capsys.readouterr().out)
    assert (found["equal"], found["different"]) == (False, 1)
    assert found["differences"][0]["kind"] == "value"
    assert found["topics"][0]["lag"] == 1
    assert found["partitions"][0]["partition"] == 0
    assert found["partitions"][0]["source_digest"] != found["partitions"][0]["target_digest"]


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_the_terminal(width: int) -> None:
    bases = range(0, 2 * KEPT + 20, 2)
    other = [Record(0, value=b"other"), *some(1)]
    report = compared([stored(some(0, 1), base) for base in bases], [stored(other, base) for base in bases])
    lines = [line.rstrip() for line in printed(report, width).splitlines()]
    assert max(map(len, lines)) <= width
    assert lines[0] == "eu-to-us: DIFFERENT: us is not equal to eu"
    heads = ("topic", "parts", "codec", "records", "batches", "identical", "size", "offsets", "lag")
    assert lines[2].split() == list(heads), "a heading was broken or cut"
    text = " ".join(lines)
    assert "orders-0 at offset 0: key: 5 bytes with CRC" in text
    assert f"and {report.different - 20} differences more: --json lists the first of each partition" in text
    assert f"eu-to-us: eu and us differ: {report.different} differences (110 batches" in text


@pytest.mark.brokers
def test_a_copy_is_not_proved_against_itself(own_source: Cluster, own_target: Cluster, topic_name: str) -> None:
    """As where the source's name leads to the target since a failover, for which no mirror runs."""
    settings = settings_between(own_source.bootstrap, own_target.bootstrap, [topic_name], topic_name)
    make_topic(own_source.bootstrap, topic_name)
    produce(own_source.bootstrap, topic_name, [b"%d" % number for number in range(20)])
    run_once(settings)
    produce(own_source.bootstrap, topic_name, [b"later"])
    assert verify(settings, [], as_json=False, wait=0) is ExitCode.NOT_WHOLE
    itself = settings_between(own_target.bootstrap, own_target.bootstrap, [topic_name], topic_name)
    with pytest.raises(PreflightError, match="same cluster"):
        verify(itself, [], as_json=False, wait=0)


@pytest.mark.brokers
def test_a_copy_of_a_topic_that_is_no_more_is_no_proof(
    own_source: Cluster, own_target: Cluster, topic_name: str
) -> None:
    """The topic was made anew with the same records, and nobody has run the flow since."""
    settings = settings_between(own_source.bootstrap, own_target.bootstrap, [topic_name], topic_name)
    stored = [b"%d" % number for number in range(20)]
    make_topic(own_source.bootstrap, topic_name)
    produce(own_source.bootstrap, topic_name, stored)
    run_once(settings)
    assert verify(settings, [], as_json=False, wait=0) is ExitCode.DONE
    delete_topics(own_source.bootstrap, topic_name)
    make_topic(own_source.bootstrap, topic_name)
    produce(own_source.bootstrap, topic_name, stored)
    report = verify_flow(settings)
    (lack,) = [one for one in report.shortfalls if "recreated" in one.reason]
    assert (lack.topic, report.is_whole) == (topic_name, False)


def test_a_transaction_that_is_open_since_before_the_log_starts(
    own_source: Cluster, own_target: Cluster, topic_name: str
) -> None:
    """Its first offset, behind which nothing is committed yet, is below where the source begins by now."""
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name)
    producer = Producer({"bootstrap.servers": source, "transactional.id": topic_name})
    producer.init_transactions(20)
    producer.begin_transaction()
    for number in range(10):
        producer.produce(topic_name, b"%d" % number, partition=0)
    producer.flush(20)
    delete_before(own_source, topic_name, 7)
    assert mirror_once(source, target, [topic_name], topic_name)
    report = verify_flow(settings_between(source, target, [topic_name], topic_name))
    assert (report.differences, report.equal) == ((), True)
    producer.abort_transaction(20)
