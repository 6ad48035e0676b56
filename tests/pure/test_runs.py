"""Where offsets moved to: runs, offset maps, their records, and the index over them, against a plain list."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror.journal import offset_maps
from mirror.journal.journal import Entry
from mirror.journal.offset_maps import Indexes
from mirror.kafka.cluster import TopicPartition
from mirror.records.rewrite import pieces
from mirror.replication import offset_map as module
from mirror.replication.offset_map import OffsetMap, OffsetRangeIndex, OffsetRanges

TARGET = TopicPartition("orders.eu", 3)

#: What a source has, in order: (offsets without a record, records behind them).
LOGS = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5)), max_size=30)


def offsets_of(log: list[tuple[int, int]]) -> list[int]:
    """The source offset of every record; its place is its target offset."""
    found: list[int] = []
    at = 0
    for skipped, count in log:
        at += skipped
        found += range(at, at + count)
        at += count
    return found


def offset_map_of(log: list[tuple[int, int]]) -> OffsetMap:
    offset_map = OffsetMap()
    at = 0
    for skipped, count in log:
        offset_map.add(at + skipped, offset_map.runs.next_target, count)
        at += skipped + count
    return offset_map


def index_of(offset_map: OffsetMap) -> OffsetRangeIndex:
    written = [Entry(0, key, value) for key, value in offset_maps.map_entries(TARGET, offset_map)]
    return Indexes(written).get(TARGET, OffsetRangeIndex())


@pytest.fixture(autouse=True)
def _small_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RUNS_IN_A_RECORD", 4)


@pytest.mark.parametrize(("source", "target", "count"), [(4, 5, 1), (5, 6, 1), (5, 4, 1), (5, 5, 0)])
def test_what_does_not_come_next_is_refused(source: int, target: int, count: int) -> None:
    runs = OffsetRanges()
    runs.add(0, 0, 5)
    with pytest.raises(ValueError, match="do not follow 5 there and 5 here"):
        runs.add(source, target, count)


@given(LOGS, st.integers(1, 12))
def test_batches_in_pieces_are_mapped_as_their_records_are(log: list[tuple[int, int]], size: int) -> None:
    by_batches, by_records, offsets = OffsetMap(), OffsetMap(), offsets_of(log)
    for first in range(0, len(offsets), size):
        batch = offsets[first : first + size]
        by_batches.extend(pieces(np.array(batch)), first, len(batch))
        for place, offset in enumerate(batch):
            by_records.add(offset, first + place, 1)
    (found, _), (expected, _) = by_batches.pending(), by_records.pending()
    assert [list(runs) for runs in found] == [list(runs) for runs in expected]
    assert by_batches.runs.next_source == by_records.runs.next_source


@given(LOGS)
def test_every_lookup_is_exact(log: list[tuple[int, int]]) -> None:
    records, offset_map = offsets_of(log), offset_map_of(log)
    index = index_of(offset_map)
    end = offset_map.runs.next_source
    for offset in range(end + 1):
        assert index.to_target(offset) == sum(record < offset for record in records)
    for target, source in enumerate(records):
        assert index.to_source(target) == source
    assert index.to_source(len(records)) == (end if records else None)
    assert [offset for run in index for offset in range(run.source, run.source + run.length)] == records
    assert index.last is None or index.last.next_target == len(records)


@given(LOGS, st.integers(0, 200))
def test_a_cut_forgets_what_the_target_lost(log: list[tuple[int, int]], target: int) -> None:
    runs = OffsetRanges()
    for source in (records := offsets_of(log)):
        runs.add(source, runs.next_target, 1)
    runs.cut(target)
    kept = records[:target]
    assert [offset for run in runs for offset in range(run.source, run.source + run.length)] == kept
    assert runs.next_target == len(kept)
    assert not kept or runs.next_source == kept[-1] + 1
    for source in records[target:]:  # and goes on as before
        runs.add(source, runs.next_target, 1)


def test_a_record_can_be_read() -> None:
    offset_map = offset_map_of([(10, 3), (2, 5)])
    offset_map.runs.pass_over(30)
    assert offset_maps.map_entries(TARGET, offset_map) == [
        (b"runs/orders.eu/3/0", b'{"source":10,"target":0,"runs":[3,2,5],"next":30}')
    ]


def test_a_record_that_is_missing_ends_what_holds_good() -> None:
    entries = [Entry(0, key, value) for key, value in offset_maps.map_entries(TARGET, offset_map_of([(1, 1)] * 12))]
    index = Indexes(entries[:1] + entries[2:])[TARGET]
    assert index.last is not None
    assert index.last.next_target == 4
    assert index.to_target(10**6) == 12, "what is beyond the hole is still mapped"


def test_first_records_that_are_missing_put_nobody_ahead() -> None:
    """Below what is mapped there may be any record, down to where the target begins."""
    entries = [Entry(0, key, value) for key, value in offset_maps.map_entries(TARGET, offset_map_of([(1, 1)] * 12))]
    index = Indexes(entries[1:])[TARGET]
    assert (index.begin, index.to_source(3)) == (4, None)
    assert [index.to_target(offset) for offset in (0, 7, 8, 9, 10)] == [0, 0, 0, 4, 5]
    index.log_start = 2
    assert [index.to_target(offset) for offset in (0, 7, 8, 9, 10)] == [2, 2, 2, 4, 5]
    index.log_start = 6  # the first piece names more than the target has
    assert [index.to_target(offset) for offset in (0, 7, 8, 9, 10)] == [4, 4, 4, 4, 5]


def test_an_older_form_of_a_record_hides_nothing() -> None:
    offset_map = offset_map_of([(1, 1)] * 2)
    older = offset_maps.map_entries(TARGET, offset_map)
    whole = offset_map_of([(1, 1)] * 6)
    indexes = Indexes(Entry(0, key, value) for key, value in offset_maps.map_entries(TARGET, whole))
    indexes.learn(Entry(0, key, value) for key, value in older)
    index = indexes[TARGET]
    assert index.last is not None
    assert index.last.next_target == 2, "what lies between is found again from both logs"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"runs/a/0/0", b"{"),
        (b"runs/a/0/x", b"{}"),
        (b"runs/a/0/0", b'{"source":0,"target":0,"runs":[],"next":0}'),
        (b"runs/a/0/0", b'{"source":0,"target":5,"runs":[1],"next":1}'),
        (b"runs/a/0/0", b'{"source":0,"target":0,"runs":[0],"next":1}'),
        (b"runs/a/0/0", b'{"source":-1,"target":0,"runs":[1],"next":1}'),
        (b"runs/a/0/0", b'{"source":0,"target":0,"runs":[9223372036854775807],"next":9223372036854775808}'),
        (b"runs/a/0/0", b'{"source":1e999,"target":0,"runs":[1],"next":1}'),
        (b"runs/a/0/0", b"[" * 100_000),
        (b"runs/\xff/0/0", b"{}"),
    ],
)
def test_somebody_elses_record_says_nothing(key: bytes, value: bytes) -> None:
    assert Indexes([Entry(0, key, value)]) == {}


#: Pieces of runs as two writers may write them, in any order: target offsets from and to, none for a deletion.
PIECES = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 12)), max_size=8)


@given(st.lists(st.integers(0, 3), min_size=12, max_size=12), PIECES)
def test_pieces_in_any_order_are_right(skips: list[int], expected: list[tuple[int, int]]) -> None:
    sources = offsets_of([(skip, 1) for skip in skips])
    index = OffsetRangeIndex()
    for begin, end in expected:
        piece = OffsetRanges(sources[begin], begin)
        for target in range(begin, end):
            piece.add(sources[target], target, 1)
        index.learn(begin, piece if end > begin else None)
        known = {target for piece in index.pieces for target in range(piece.begin, piece.next_target)}
        assert {target: index.to_source(target) for target in known} == {target: sources[target] for target in known}
        for offset in range(sources[-1] + 1):
            place = sum(source < offset for source in sources)
            if place in known and (not place or place - 1 in known):
                assert index.to_target(offset) == place
            assert index.to_target(offset) <= max(place, min(known, default=0)), "never too far"
        whole = index.pieces[:1]
        for piece in index.pieces[1:]:
            if piece.begin > whole[-1].next_target:
                break
            whole += (piece,)
        assert index.last is (whole[-1] if whole else None)
