"""The offset maps of a task: what a driver handed over, and what the journal says beyond it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror.errors import ClusterUnreachable
from mirror.journal.journal import Entry, Journal
from mirror.journal.offset_maps import Indexes, OffsetMapStore, cut_entry, forget_expired, read_cut
from mirror.kafka.cluster import Leader, TopicPartition
from mirror.replication import offset_map as module
from mirror.replication.offset_map import Cut, OffsetMap, OffsetRange, OffsetRanges

TARGET = TopicPartition("orders", 2)


class Kept(Journal):
    """A journal in memory. `fails`: so many appends do."""

    def __init__(self, fails: int = 0) -> None:
        self.entries: list[Entry] = []
        self.cluster = Mock(leader=Mock(return_value=Leader(0, 7)))
        self.fails = fails

    async def append(self, entries: Sequence[tuple[bytes, bytes | None]]) -> int:
        if self.fails:
            self.fails -= 1
            raise ClusterUnreachable("away")
        begin = self.end
        self.entries += [Entry(begin + index, *entry) for index, entry in enumerate(entries)]
        return begin

    async def read(self, offset: int | None = None) -> tuple[list[Entry], int]:
        return [entry for entry in self.entries if entry.offset >= (offset or 0)], self.end

    @property
    def end(self) -> int:
        return self.entries[-1].offset + 1 if self.entries else 0

    def clean(self) -> None:
        """As the cleaner leaves it: the last of each key."""
        last = {entry.key: entry.offset for entry in self.entries}
        self.entries = [entry for entry in self.entries if last[entry.key] == entry.offset]


@pytest.fixture(autouse=True)
def _small_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RUNS_IN_A_RECORD", 3)


def recalled(offset_maps: OffsetMapStore, end: int) -> OffsetMap:
    return asyncio.run(offset_maps.recall(TARGET, end))


def written(journal: Journal, sources: Sequence[int], last: OffsetRanges | None = None) -> None:
    """One record after the other, each at once recorded."""
    offset_maps = OffsetMapStore(journal, {TARGET: last} if last else {}, 0)
    offset_map = recalled(offset_maps, 10**6)
    for source in sources:
        offset_map.add(source, offset_map.runs.next_target, 1)
        asyncio.run(offset_maps.record())


@given(st.lists(st.integers(0, 2), max_size=20), st.floats(0, 1), st.sampled_from(["whole", "cleaned"]))
def test_an_older_driver_and_the_journal_say_all_together(skips: list[int], share: float, form: str) -> None:
    journal = Kept()
    sources = [sum(skips[: index + 1]) + index for index in range(len(skips))]
    written(journal, sources)
    whole = Indexes(journal.entries).last().get(TARGET, OffsetRanges())
    known = int(len(journal.entries) * share)
    older = Indexes(journal.entries[:known]).last()
    if form == "cleaned":
        journal.clean()
    offset_map = recalled(OffsetMapStore(journal, older, known), len(sources))
    assert list(offset_map.runs) == list(whole)
    assert (offset_map.runs.next_source, offset_map.runs.next_target) == (whole.next_source, whole.next_target)
    assert offset_map.pending() == ([], []), "it is all recorded"


def test_runs_that_were_recorded_anew_and_shorter_count() -> None:
    """The target lost its end, and the source what was there: other records came."""
    journal = Kept()
    written(journal, [0, 1, 2, 3, 4])
    since = journal.end
    offset_maps = OffsetMapStore(journal, Indexes(journal.entries).last(), since)
    offset_map = recalled(offset_maps, 2)
    offset_map.cut(2)
    offset_map.add(50, 2, 2)
    asyncio.run(offset_maps.record())
    offset_map = recalled(OffsetMapStore(journal, Indexes(journal.entries[:since]).last(), since), 4)
    assert list(offset_map.runs) == [OffsetRange(0, 0, 2), OffsetRange(50, 2, 2)]


def test_what_the_target_lost_goes_back_through_the_journal() -> None:
    journal = Kept()
    written(journal, range(0, 40, 2))
    offset_maps = OffsetMapStore(journal, Indexes(journal.entries).last(), journal.end)
    offset_map = recalled(offset_maps, 7)
    assert (offset_map.runs.begin, offset_map.runs.next_target) == (6, 7)
    index = Indexes(journal.entries)[TARGET]
    assert [run.source for run in index] == list(range(0, 14, 2))
    assert index.last is not None
    assert index.last.next_target == 7


def test_what_could_not_be_recorded_is_recorded_the_next_time() -> None:
    journal = Kept(fails=1)
    offset_maps = OffsetMapStore(journal, {}, None)
    offset_map = recalled(offset_maps, 0)
    for source in range(0, 20, 2):
        offset_map.add(source, offset_map.runs.next_target, 1)
    with pytest.raises(ClusterUnreachable):
        asyncio.run(offset_maps.record())
    asyncio.run(offset_maps.record())
    assert [run.source for run in Indexes(journal.entries)[TARGET]] == list(range(0, 20, 2))
    count = len(journal.entries)
    asyncio.run(offset_maps.record())
    assert len(journal.entries) == count


def recorded(journal: Kept) -> list[OffsetRange]:
    """What a mirror that starts now believes."""
    index = Indexes(journal.entries).get(TARGET)
    return list(index.last) if index is not None and index.last is not None else []


@pytest.mark.parametrize("end", [0, 2, 6, 7, 8])
def test_what_the_target_lost_is_taken_back_before_anything_else_lands_there(end: int) -> None:
    """Whoever dies before it recorded what came instead leaves no runs that name what was there before."""
    journal = Kept()
    written(journal, range(0, 18, 2))
    recalled(OffsetMapStore(journal, Indexes(journal.entries).last(), journal.end), end)
    assert all(run.target + run.length <= end for run in Indexes(journal.entries).get(TARGET, ()))


@pytest.mark.parametrize(
    ("sources", "source_end"),
    [((6, 8, 10, 12), None), ((6, 8, 10), 13), ((6, 9, 11, 13, 15), -1), ((11, 12, 13, 14, 15), -1)],
)
def test_who_read_what_the_target_lost_is_known_until_it_is_copied_again(
    sources: Sequence[int], source_end: int | None
) -> None:
    """To the same offsets, and then nothing of it matters."""
    journal = Kept()
    written(journal, range(0, 14, 2))
    offset_maps = OffsetMapStore(journal, Indexes(journal.entries).last(), journal.end)
    offset_map = recalled(offset_maps, 3)
    assert Indexes(journal.entries).cut_of(TARGET) == Cut(3, 7, 13, 7)
    for source in sources:
        offset_map.add(source, offset_map.runs.next_target, 1)
    asyncio.run(offset_maps.record())
    journal.clean()
    cut = Indexes(journal.entries).cut_of(TARGET)
    assert (cut and cut.source_end) == source_end


def test_a_second_loss_forgets_nobody_who_read_what_was_lost_before() -> None:
    journal = Kept()
    written(journal, range(0, 14, 2))
    recalled(OffsetMapStore(journal, Indexes(journal.entries).last(), journal.end), 3)
    written(journal, [20, 21, 22, 23, 24], Indexes(journal.entries).last()[TARGET])
    recalled(OffsetMapStore(journal, Indexes(journal.entries).last(), journal.end), 5)
    assert Indexes(journal.entries).cut_of(TARGET) == Cut(3, 8, -1, 7)


def test_groups_that_were_put_back_are_named_no_more() -> None:
    cut = Cut(3, 7, -1, 5)
    assert [cut.concerns("g", *at) for at in ((3, -1), (4, -1), (7, -1), (8, -1), (9, 4), (4, 5))] == [
        *(False, True, True, False, True, False)
    ]
    left = replace(cut, groups=frozenset({"g"}))
    assert (left.concerns("g", 4, -1), left.concerns("h", 4, -1)) == (True, False)
    assert read_cut(Entry(0, *cut_entry(TARGET, left))) == (TARGET, left)
    assert read_cut(Entry(0, *cut_entry(TARGET, replace(cut, groups=frozenset())))) == (TARGET, None)


def test_a_task_does_not_get_what_its_predecessor_took_back() -> None:
    """The driver handed both the same runs; the first died before it recorded what came instead of the last of them."""
    journal = Kept()
    written(journal, range(0, 18, 2))
    last, since = Indexes(journal.entries).last(), journal.end
    recalled(OffsetMapStore(journal, last, since), 6)
    offset_map = recalled(OffsetMapStore(journal, last, since), 8)
    assert (list(offset_map.runs), offset_map.runs.next_target) == (
        [OffsetRange(6, 3, 1), OffsetRange(8, 4, 1), OffsetRange(10, 5, 1)],
        6,
    )


def test_two_who_record_at_once_lose_nothing() -> None:
    """What one of them could not write is not taken for written since the other one could."""
    journal = Slow()
    offset_maps = OffsetMapStore(journal, {}, None)

    async def both() -> None:
        offset_map = await offset_maps.recall(TARGET, 0)
        offset_map.add(0, 0, 1)
        first = asyncio.create_task(offset_maps.record())
        await asyncio.sleep(0)
        offset_map.add(5, 1, 1)
        journal.fails = 1
        second = asyncio.create_task(offset_maps.record())
        await asyncio.sleep(0)
        journal.goes_on.set()
        await asyncio.gather(first, second, return_exceptions=True)
        await offset_maps.record()

    asyncio.run(both())
    assert recorded(journal) == [OffsetRange(0, 0, 1), OffsetRange(5, 1, 1)]


class Slow(Kept):
    """Takes the first append when asked to go on, and fails the next as often as `fails` says."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = asyncio.Event()

    async def append(self, entries: Sequence[tuple[bytes, bytes | None]]) -> int:
        if not self.entries and not self.fails:
            await self.goes_on.wait()
            begin = self.end
            self.entries += [Entry(begin + index, *entry) for index, entry in enumerate(entries)]
            return begin
        return await super().append(entries)


def test_what_expired_is_forgotten_whatever_else_the_journal_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that is gone from the target would be asked for in vain until a timeout, between all epochs."""
    journal = Kept()
    written(journal, range(0, 18, 2))
    gone = [entry._replace(key=entry.key.replace(b"orders", b"gone")) for entry in journal.entries]
    indexes = Indexes([*gone, *journal.entries])
    journal.cluster = Mock(leader=lambda at: Leader(0 if at == TARGET else -1, 0))
    asked = []

    async def log_start(_cluster: Any, at: TopicPartition, _when: int) -> int:
        asked.append(at)
        return 7

    monkeypatch.setattr("mirror.journal.offset_maps.list_offset", log_start)
    asyncio.run(forget_expired(journal, indexes))
    assert asked == [TARGET]
    assert [run.target for run in Indexes(journal.entries)[TARGET]] == [6, 7, 8]
