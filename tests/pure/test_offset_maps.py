"""The offset maps of a task: what a driver handed over, and what the journal says beyond it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror.errors import ClusterUnreachable
from mirror.journal.journal import Entry, Journal
from mirror.journal.offset_maps import CUTS, Indexes, OffsetMapStore, cut_entry
from mirror.kafka.cluster import Leader, TopicPartition
from mirror.replication import offset_map as module
from mirror.replication.offset_map import Cut, OffsetMap, OffsetRanges

TARGET = TopicPartition("orders", 2)


class Kept(Journal):
    """A journal in memory. `fails`: so many appends do."""

    def __init__(self, fails: int = 0) -> None:
        self.entries: list[Entry] = []
        self.cluster = Mock(leader=Mock(return_value=Leader(0, 7)))
        self.fails = fails

    async def append(self, entries: Sequence[tuple[bytes, bytes | None]], *, waits: bool = True) -> int:  # noqa: ARG002
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
    assert CUTS.read(Entry(0, *cut_entry(TARGET, left))) == (TARGET, left)
    assert CUTS.read(Entry(0, *cut_entry(TARGET, replace(cut, groups=frozenset())))) == (TARGET, None)
