"""Replicas of a partition as broken brokers leave them: what is sound of each, and which one is taken."""

from __future__ import annotations

import mmap
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inspecting import transactional
from rawbatches import batch
from replicas import ABORT, COMMIT, fail_at, flipped, marker, replica

from mirror.errors import ConfigError
from mirror.kafka.cluster import TopicPartition
from mirror.records.header import split
from mirror.records.segment import Walk
from mirror.segments.replica import GRAIN, Replica, scan
from mirror.segments.replica_sets import load, partitions_in


def batches(first: int, last: int, epoch: int = 0, payload: bytes = b"x" * 50) -> bytes:
    """Batches of ten offsets each, up to before `last`."""
    return b"".join(batch(at, count=10, leader_epoch=epoch, payload=payload) for at in range(first, last, 10))


def history(folder: Path, *entries: tuple[int, int]) -> None:
    lines = ["0", str(len(entries)), *(f"{epoch} {offset}" for epoch, offset in entries)]
    (folder / "leader-epoch-checkpoint").write_text("\n".join(lines) + "\n")


def start_at(broker: Path, offset: int) -> None:
    (broker / "log-start-offset-checkpoint").write_text(f"0\n2\nother 0 5\norders 0 {offset}\n")


def offsets(log: Replica, most: int = 1) -> list[int]:
    """The base offsets of all batches, read as a fetcher does, `most` bytes at a time."""
    found: list[int] = []
    at = log.start
    while data := log.read(at, most, log.stable):
        some = list(split(data))
        found += [raw.header.base_offset for raw in some]
        at = some[-1].header.next_offset
    return found


@pytest.mark.parametrize("tail", [batches(50, 60)[:30], batches(0, 10)[:30], bytes(range(30))])
def test_what_a_crash_left_at_the_end_is_cut(tmp_path: Path, tail: bytes) -> None:
    """Whatever is in the part of a batch: its own first bytes, or what the disk held before."""
    log = load([replica(tmp_path, (0, batches(0, 50) + tail))])
    assert (log.end, log.at_risk) == (50, False)
    assert "was not written whole behind offset 49" in log.notes[0]
    assert "30 bytes are left out" in log.notes[0]


def test_a_leader_epoch_that_falls_back_was_none(tmp_path: Path) -> None:
    lying = replica(tmp_path / "a", (0, batches(0, 20) + batches(20, 30, epoch=512) + batches(30, 40)))
    longer = replica(tmp_path / "b", (0, batches(0, 60)))
    assert load([lying, longer]).end == 60
    last = replica(tmp_path / "c", (0, batches(0, 20) + batches(20, 30, epoch=512)))
    history(last, (0, 0))
    assert (load([last, longer]).end, load([last, longer]).at_risk) == (60, False), "its broker knew of none"
    history(last, (0, 0), (512, 20))
    assert load([last, longer]).end == 30


def test_the_longest_replica_is_taken_and_of_several_that_which_lacks_least(tmp_path: Path) -> None:
    short, long = (replica(tmp_path / name, (0, batches(0, until))) for name, until in (("a", 30), ("b", 90)))
    other = replica(tmp_path / "c", (0, batches(0, 30)), (60, batches(60, 90, payload=b"y" * 50)))
    for folders in ([short, other, long], [long, other, short]):
        log = load(folders)
        assert (log.end, log.folder, log.at_risk) == (90, long, False)


def test_a_later_leader_cuts_an_older_ones_tail(tmp_path: Path) -> None:
    stale = replica(tmp_path / "a", (0, batches(0, 90, epoch=3)))
    newer = replica(tmp_path / "b", (0, batches(0, 40, epoch=3) + batches(40, 60, epoch=4)))
    log = load([stale, newer])
    assert (log.end, log.folder) == (60, newer)
    assert f"{stale}: offsets 60 to 89 are of an older leader epoch" in log.notes[0]


def test_a_history_names_an_epoch_whose_records_are_damaged(tmp_path: Path) -> None:
    stale = replica(tmp_path / "a", (0, batches(0, 90, epoch=3)))
    newer = replica(tmp_path / "b", (0, batches(0, 20, epoch=3)))
    history(newer, (3, 0), (4, 40))
    log = load([stale, newer])
    assert (log.end, log.folder, log.at_risk) == (20, newer, True)
    assert f"{newer}: offsets 20 to 39 were there, its leader-epoch-checkpoint says" in "".join(log.notes)


def test_a_leader_that_died_before_anybody_followed_it_cuts_nobody_off(tmp_path: Path) -> None:
    """Its entry in its own history stays, since it never came back: a newer leader's history says what counts."""
    dead = replica(tmp_path / "a", (0, batches(0, 100, epoch=6)))
    led = replica(tmp_path / "b", (0, batches(0, 120, epoch=6) + batches(120, 500, epoch=8)))
    history(dead, (6, 0), (7, 100))
    history(led, (6, 0), (8, 120))
    assert (load([led, dead]).end, load([led, dead]).at_risk) == (500, False)
    history(dead, (6, 0), (9, 100))
    log = load([dead, led])
    assert log.end == 100, "an unclean election: what was committed before it would have been cut back"
    assert f"{led}: offsets 100 to 499 are of an older leader epoch" in "".join(log.notes)


def test_a_leader_without_records_of_its_epoch_is_passed_over_where_it_is_damaged(tmp_path: Path) -> None:
    """Its followers learn of its epoch with the first record; until then they lack nothing."""
    led = replica(tmp_path / "a", (0, batches(0, 30, epoch=3) + bytes(100) + batches(40, 90, epoch=3)))
    follower = replica(tmp_path / "b", (0, batches(0, 90, epoch=3)))
    history(led, (3, 0), (4, 90))
    history(follower, (3, 0))
    assert (load([led, follower]).folder, load([led, follower]).end) == (follower, 90)


def test_a_leader_in_between_cuts_a_tail_too_and_what_a_later_one_had_is_reported(tmp_path: Path) -> None:
    dead = replica(tmp_path / "a", (0, batches(0, 120, epoch=3)))
    led = replica(tmp_path / "b", (0, batches(0, 100, epoch=3) + batches(100, 110, epoch=4) + bytes(100)))
    history(dead, (3, 0))
    history(led, (3, 0), (4, 100), (6, 150))
    assert (load([dead, led]).folder, load([dead, led]).end) == (led, 110)
    history(led, (3, 0), (6, 150))
    log = load([dead, led])
    assert (log.folder, log.end, log.at_risk) == (dead, 120, True)
    assert "offsets 120 to 149 were in the log of a later leader" in "".join(log.notes)


def test_what_retention_deleted_stays_deleted(tmp_path: Path) -> None:
    """Though a broker that died before has it. Of followers that reach as far, one may have deleted more."""
    dead = replica(tmp_path / "a", (0, batches(0, 40)), (40, batches(40, 60)))
    current = replica(tmp_path / "b", (40, batches(40, 60) + batches(60, 90, epoch=1)))
    ahead = replica(tmp_path / "c", (60, batches(60, 90, epoch=1)))
    for folder, entries in ((dead, [(0, 0)]), (current, [(0, 40), (1, 60)]), (ahead, [(1, 60)])):
        history(folder, *entries)
    for folders in permutations([current, dead, ahead]):
        log = load(folders)
        assert (log.start, log.folder, log.notes, log.at_risk) == (40, current, (), False)


def test_what_a_history_alone_says_was_deleted_is_restored_and_reported(tmp_path: Path) -> None:
    folder = replica(tmp_path / "a", (40, batches(40, 90)))
    history(folder, (0, 60))
    log = load([folder])
    assert (log.start, log.end, log.at_risk, log.lacks) == (40, 90, True, [])
    assert "offsets 40 to 59 were deleted, its leader-epoch-checkpoint alone says" in log.notes[0]
    start_at(tmp_path / "a", 60)
    assert (load([folder]).start, load([folder]).notes) == (60, ())


def test_transactions(tmp_path: Path) -> None:
    data = [transactional(0, 1), transactional(1, 2), marker(2, 1, ABORT), marker(3, 2, COMMIT), transactional(4, 1)]
    log = load([replica(tmp_path, (0, b"".join(data) + batch(5)))])
    assert log.aborted == [(1, 0, 2)]
    assert (log.stable, log.end, log.at_risk) == (4, 6, True)
    assert "a transaction that begins at offset 4 has no end: 2 offsets are left out" in log.notes[0]
    assert offsets(log) == [0, 1, 2, 3]


def test_a_transaction_whose_marker_may_be_missing_ends_the_copy(tmp_path: Path) -> None:
    """A damaged marker may have committed or aborted what precedes it, and so may one in a lost file."""
    parts = [transactional(0, 1), marker(1, 1, COMMIT), transactional(2, 1), marker(3, 1, ABORT), batches(4, 14)]
    damaged = flipped(b"".join(parts), len(parts[0]) + 70)
    assert (log := load([replica(tmp_path / "damaged", (0, damaged))])).stable == 0
    assert (log.end, log.at_risk) == (1, True)
    log = load([replica(tmp_path / "lost", (0, parts[0]), (2, b"".join(parts[2:])))])
    assert (log.stable, log.end) == (0, 14)
    assert "may have its end among what is missing" in "".join(log.lacks)


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    """Its broker still runs."""
    folder = replica(tmp_path, (0, batches(0, 20)), (20, batches(20, 40)))
    log = load([folder])
    changed = folder / f"{20:020}.log"
    changed.rename(changed.with_suffix(".deleted"))
    changed.write_bytes(batches(20, 60))
    with pytest.raises(ConfigError, match=changed.name):
        log.read(20, 1, log.stable)


@pytest.mark.parametrize("at", [0, 5, 7, 8, 11, 16, 17, 22, 26, 60, 61, 100])
def test_one_flipped_bit_ends_the_log_before_its_batch(tmp_path: Path, at: int) -> None:
    """Wherever in a batch it is: in its offset, length, magic, CRC, another field or its records."""
    size = len(batches(0, 10))
    for number in range(4):
        files = (0, flipped(batches(0, 50), number * size + at)), (50, batches(50, 90))
        folder = replica(tmp_path / str(number), *files)
        first = 10 * number
        log = load([folder])
        assert (log.end, log.at_risk, offsets(log)) == (first, True, [*range(0, first, 10)])
        assert f"damaged behind offset {first - 1}" in log.notes[0]
        assert f"`mirror inspect {folder}` shows what lies behind" in log.notes[0]


def test_what_a_disk_does_not_give_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sector of one replica: another replica is taken, or the log ends there, at a file's end as well."""
    data = batches(0, 300, payload=b"x" * 500)
    at, size = 2 * mmap.PAGESIZE, len(data) // 30
    bad, good = (replica(tmp_path / name, (0, data)) for name in "ab")
    fail_at(monkeypatch, bad / f"{0:020}.log", lambda: at)
    log = load([bad, good])
    assert (offsets(log), log.folder, log.at_risk) == ([*range(0, 300, 10)], good, False)
    log = load([bad])
    assert (offsets(log), log.at_risk) == ([*range(0, at // size * 10, 10)], True)
    assert f"{mmap.PAGESIZE:,} bytes cannot be read in this file" in "".join(log.notes)
    at = len(data) - 10
    assert load([bad]).at_risk, "no crash leaves that"


def test_what_is_cut_before_the_last_file_is_damage(tmp_path: Path) -> None:
    log = load([replica(tmp_path, (0, batches(0, 20) + b"?" * 90), (30, batches(30, 60)))])
    assert (log.end, log.at_risk) == (20, True)


def test_of_damaged_replicas_that_which_reaches_furthest_is_taken(tmp_path: Path) -> None:
    size = len(batches(0, 10))
    first = replica(tmp_path / "a", (0, flipped(batches(0, 90), size + 70)))
    second = replica(tmp_path / "b", (0, flipped(batches(0, 80), 3 * size + 70)))
    log = load([first, second])
    assert (offsets(log), log.folder, log.at_risk) == ([0, 10, 20], second, True)
    assert "damaged behind offset 29" in log.notes[0]


def test_what_was_committed_and_is_in_no_file_is_reported(tmp_path: Path) -> None:
    """A lost last file leaves nothing behind that says so, but for the broker's checkpoint."""
    folder = replica(tmp_path, (0, batches(0, 20)))
    checkpoint = tmp_path / "replication-offset-checkpoint"
    checkpoint.write_text("0\n1\norders 0 20\n")
    assert load([folder]).notes == ()
    checkpoint.write_text("0\n1\norders 0 50\n")
    log = load([folder])
    assert (log.end, log.at_risk) == (20, True)
    assert "offsets 20 to 49 were committed" in log.notes[0]


def test_a_first_file_that_is_missing_is_reported(tmp_path: Path) -> None:
    """It leaves nothing behind that says so, but for the broker's history of leader epochs, whose first entry goes up
    with the log's start.
    """
    folder = replica(tmp_path / "a", (40, batches(40, 90)))
    assert "nobody knows whether records before offset 40 were deleted" in load([folder]).notes[0]
    assert load([folder]).at_risk
    history(folder, (0, 40))
    assert (load([folder]).notes, load([folder]).at_risk) == ((), False), "retention"
    history(folder, (0, 10))
    log = load([folder])
    assert (log.start, log.end, log.at_risk) == (40, 90, True)
    assert "offsets 10 to 39 were not deleted" in log.notes[0]
    start_at(tmp_path / "a", 40)
    assert (load([folder]).notes, load([folder]).at_risk) == ((), False), "deleted, which the history was to show"


@pytest.mark.parametrize("alone", [True, False])
def test_a_last_offset_that_leaps_is_a_lie_where_it_is_not_known_as_committed(tmp_path: Path, *, alone: bool) -> None:
    """No CRC covers it, and nothing behind it falls back."""
    lying = replica(tmp_path / "a", (0, batches(0, 30) + batches(1030, 1040)))
    honest = replica(tmp_path / "b", (0, batches(0, 40)))
    folders = [lying] if alone else [lying, honest]
    log = load([lying])
    assert (log.end, log.at_risk) == (30, True)
    assert "the last batch says 1030 for its offset, which is not known to be committed" in log.notes[0]
    for broker in ("a", "b"):
        (tmp_path / broker / "replication-offset-checkpoint").write_text("0\n1\norders 0 40\n")
    log = load(folders)
    assert (log.end, log.at_risk) == ((30, True) if alone else (40, False))
    (tmp_path / "a" / "replication-offset-checkpoint").write_text("0\n1\norders 0 1040\n")
    assert (load([lying]).end, load([lying]).at_risk) == (1040, False), "compaction, a long time ago"


@pytest.mark.parametrize("left", [0, 20, 40])
def test_what_a_cleaner_was_putting_in_place_is_read(tmp_path: Path, left: int) -> None:
    """Old segments are deleted up to an offset: what takes their place stands, as for a broker that recovers."""
    old = [(at, batches(at, at + 20)) for at in (0, 20) if at >= left]
    folder = replica(tmp_path, *old, (40, batches(40, 60)))
    (folder / f"{0:020}.log.swap").write_bytes(batches(0, 10) + batches(30, 40))
    (folder / f"{40:020}.log.cleaned").write_bytes(batches(40, 50)[:30])
    log = load([folder])
    assert (offsets(log), log.notes, log.at_risk) == ([0, 30, 40, 50], (), False)
    (folder / f"{0:020}.log.cleaned").write_bytes(b"")
    assert load([folder]).start == min((at for at, _ in old), default=40), "a broker drops it, and keeps the old ones"


@pytest.mark.parametrize("end", [90, 100])
def test_a_replica_that_lost_a_file_is_taken_where_it_reaches_further_alone(tmp_path: Path, end: int) -> None:
    """Whichever is named first. What it lacks is named."""
    holed = replica(tmp_path / "a", (0, batches(0, 30)), (60, batches(60, end)))
    whole = replica(tmp_path / "b", (0, batches(0, 30)), (30, batches(30, 60)), (60, batches(60, 90)))
    for folders in ([holed, whole], [whole, holed]):
        log = load(folders)
        assert (log.folder, log.end, log.at_risk) == ((whole, 90, False) if end == 90 else (holed, 100, True))
    alone = load([holed])
    assert offsets(alone) == [0, 10, 20, *range(60, end, 10)]
    assert (alone.at_risk, "offsets 30 to 59" in alone.notes[0]) == (True, True)


def test_folders_of_one_broker_and_of_many(tmp_path: Path) -> None:
    first = replica(tmp_path / "one", (0, batches(0, 20)))
    second = replica(tmp_path / "two", (0, batches(0, 20)))
    third = replica(tmp_path / "two", (0, batches(0, 20)), name="more-orders-12")
    replica(tmp_path / "two", (0, b""), name="orders-1.0a1b2c-delete")
    wanted = {TopicPartition("more-orders", 12): (third,), TopicPartition("orders", 0): (first, second)}
    assert partitions_in([tmp_path]) == partitions_in([tmp_path / "one", tmp_path / "two"]) == wanted
    assert partitions_in([first]) == {TopicPartition("orders", 0): (first,)}


def test_what_is_read_is_a_view_of_the_file(tmp_path: Path) -> None:
    """And there is an index entry for each so many bytes, however small batches are."""
    found = scan(replica(tmp_path, (0, batches(0, 20_000))))
    read = found.read(5_000, 1 << 20, found.end)
    assert isinstance(read.obj, mmap.mmap)
    (segment,) = found._segments
    assert segment.size / GRAIN / 2 < len(segment.positions) <= segment.size / GRAIN + 1


@settings(max_examples=40)
@given(st.lists(st.integers(1, 3 * GRAIN), min_size=1, max_size=12), st.integers(1, 40_000), st.data())
def test_every_offset_is_found(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], most: int, data: st.DataObject
) -> None:
    """Whatever the sizes of batches, and wherever a reader begins or must end."""
    raws = [batch(3 * number, count=2, delta=2, payload=bytes(size)) for number, size in enumerate(sizes)]
    cut = data.draw(st.integers(0, len(raws)))
    files = [(base, b"".join(part)) for base, part in ((0, raws[:cut]), (3 * cut, raws[cut:])) if part]
    log = load([replica(tmp_path_factory.mktemp("any"), *files)])
    assert offsets(log, most) == [*range(0, 3 * len(raws), 3)]
    at, before = data.draw(st.integers(0, log.end - 1)), data.draw(st.integers(1, log.end))
    found = log.read(at, most, before)
    first = at - at % 3
    if first >= before:
        assert not found
    else:
        seen = list(Walk(found))
        assert seen[0].header.base_offset == first
        assert all(raw.header.base_offset < before for raw in seen)
