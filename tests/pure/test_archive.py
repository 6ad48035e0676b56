"""Replicas of a partition as broken brokers leave them: what is sound of each, and which one is believed."""

from __future__ import annotations

import asyncio
import errno
import mmap
import os
import resource
from collections.abc import Callable, Iterator
from itertools import permutations
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from old_messages import message, wrapper
from rawbatches import batch
from replicas import ABORT, COMMIT, TOPIC_ID, fail_at, flipped, marker, replica

from mirror.commands.inspect import inspect_files
from mirror.commands.inspect_view import InspectOptions
from mirror.errors import BrokerError, ConfigError, ExitCode
from mirror.kafka.cluster import TopicPartition
from mirror.kafka.fetch import fetch_below
from mirror.kafka.queries import EARLIEST, EARLIEST_LOCAL, LATEST, list_offset
from mirror.records.header import CONTROL, TRANSACTIONAL, split
from mirror.records.segment import Found, Walk
from mirror.replication.fetcher import Cursor, Fetcher
from mirror.segments.cluster_logs import batches_of
from mirror.segments.file_cluster import FileCluster
from mirror.segments.files import segments_of
from mirror.segments.replica import GRAIN, Turn, oldest_of, scan
from mirror.segments.replica_sets import PartitionLog, load, merged, mixed_in, partitions_in


def batches(first: int, last: int, epoch: int = 0, payload: bytes = b"x" * 50) -> bytes:
    """Batches of ten offsets each, up to before `last`."""
    return b"".join(batch(at, count=10, leader_epoch=epoch, payload=payload) for at in range(first, last, 10))


def history(folder: Path, *entries: tuple[int, int]) -> None:
    lines = ["0", str(len(entries)), *(f"{epoch} {offset}" for epoch, offset in entries)]
    (folder / "leader-epoch-checkpoint").write_text("\n".join(lines) + "\n")


def start_at(broker: Path, offset: int) -> None:
    (broker / "log-start-offset-checkpoint").write_text(f"0\n2\nother 0 5\norders 0 {offset}\n")


def transactional(at: int, producer_id: int) -> bytes:
    return batch(at, attributes=TRANSACTIONAL, producer_id=producer_id, producer_epoch=0, base_sequence=0)


def offsets(log: PartitionLog, most: int = 1) -> list[int]:
    """The base offsets of all batches, read as a fetcher does, `most` bytes at a time."""
    found: list[int] = []
    at = log.start
    while data := log.read(at, most, log.stable):
        some = list(split(data))
        found += [raw.header.base_offset for raw in some]
        at = some[-1].header.next_offset
    return found


def test_segments_one_after_another(tmp_path: Path) -> None:
    log = load([replica(tmp_path, (0, batches(0, 50)), (50, batches(50, 90)))])
    assert (log.start, log.stable, log.end, log.topic_id) == (0, 90, 90, TOPIC_ID)
    assert (log.notes, log.at_risk) == ((), False)
    for most in (1, 300, 1 << 20):
        assert offsets(log, most) == [*range(0, 90, 10)]


@pytest.mark.parametrize("tail", [batches(50, 60)[:30], batches(0, 10)[:30], bytes(range(30))])
def test_what_a_crash_left_at_the_end_is_cut(tmp_path: Path, tail: bytes) -> None:
    """Whatever is in the part of a batch: its own first bytes, or what the disk held before."""
    log = load([replica(tmp_path, (0, batches(0, 50) + tail))])
    assert (log.end, log.at_risk) == (50, False)
    assert "was not written whole behind offset 49" in log.notes[0]
    assert "30 bytes are left out" in log.notes[0]


@pytest.mark.parametrize("tail", [b"", batches(50, 60)])
def test_damage_inside_is_a_loss(tmp_path: Path, tail: bytes) -> None:
    """With sound batches behind it, in the same file or in another one."""
    data = bytearray(batches(0, 40))
    data[-5] ^= 1
    files = [(0, bytes(data) + tail)] if tail else [(0, bytes(data)), (40, batches(40, 60))]
    log = load([replica(tmp_path, *files)])
    assert (log.end, log.at_risk) == (30, True)
    assert "damaged behind offset 29" in log.notes[0]


def test_an_offset_that_leaps_and_falls_back_is_a_lie(tmp_path: Path) -> None:
    """No CRC covers it."""
    data = bytearray(batches(0, 40))
    size = len(data) // 4
    data[2 * size + 5] ^= 1  # offset 20 becomes 65,556
    log = load([replica(tmp_path, (0, bytes(data)))])
    assert (log.end, log.at_risk) == (20, True)
    assert offsets(log, 1) == [0, 10]
    assert "damaged behind offset 19" in log.notes[0]


def test_a_transaction_in_a_batch_that_leapt_is_forgotten(tmp_path: Path) -> None:
    data = bytearray(transactional(0, 1) + marker(1, 1, COMMIT) + transactional(2, 2) + marker(3, 2, ABORT))
    at = len(transactional(0, 1)) + len(marker(1, 1, COMMIT))
    data[at + 5] ^= 1  # offset 2 becomes 65,538
    found = scan(replica(tmp_path, (0, bytes(data))))
    assert [*found.turns] == [Turn(0, 1), Turn(1, 1, aborted=False), Turn(3, 2, aborted=True)]
    assert (merged([found]).stable, found.end) == (2, 4)


def test_what_a_lie_began_is_forgotten(tmp_path: Path) -> None:
    """A leader epoch that began in the batch that leapt makes a replica no longer than it is."""
    data = bytearray(batches(0, 20) + batches(20, 30, epoch=5) + batches(30, 40, epoch=5))
    data[len(data) // 2 + 5] ^= 1  # offset 20 becomes 65,556
    lying = replica(tmp_path / "a", (0, bytes(data)))
    whole = replica(tmp_path / "b", (0, batches(0, 30)))
    history(whole, (0, 0), (7, 40))
    log = load([lying, whole])
    assert (log.end, log.folders) == (30, (whole,))


def test_a_leader_epoch_that_falls_back_was_none(tmp_path: Path) -> None:
    lying = replica(tmp_path / "a", (0, batches(0, 20) + batches(20, 30, epoch=512) + batches(30, 40)))
    longer = replica(tmp_path / "b", (0, batches(0, 60)))
    assert load([lying, longer]).end == 60
    last = replica(tmp_path / "c", (0, batches(0, 20) + batches(20, 30, epoch=512)))
    history(last, (0, 0))
    assert (load([last, longer]).end, load([last, longer]).at_risk) == (60, False), "its broker knew of none"
    alone = replica(tmp_path / "d", (20, batches(20, 30, epoch=512)))
    history(alone, (0, 20))
    assert load([alone, longer]).end == 60
    history(last, (0, 0), (512, 20))
    assert load([last, longer]).end == 30


def test_a_hole_in_files_right_before_an_open_transaction_is_one(tmp_path: Path) -> None:
    """As the cleaner leaves it, and a crash that took the transaction's end: files are asked as a broker is."""
    data = batches(0, 40) + transactional(50, 7) + batches(51, 61)
    log = load([replica(tmp_path, (0, data))])
    assert (log.stable, log.end) == (50, 61)
    at = TopicPartition("orders", 0)

    async def read() -> Cursor:
        async with FileCluster("files", {at: log}) as cluster:
            assert [await list_offset(cluster, at, when) for when in (EARLIEST, EARLIEST_LOCAL, LATEST)] == [0, 0, 61]
            with pytest.raises(BrokerError):
                await list_offset(cluster, at, 1_700_000_000_000)
            assert not (await fetch_below(cluster, at, 40, 50)).records
            async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
                fetcher = Fetcher(cluster, lambda _: 1 << 20, tasks.create_task, 1 << 20)
                fetcher.start(cursor := Cursor(at, None, 40, until=50))
                async for arrival in fetcher:
                    assert not arrival.batches
                    if arrival.hole_until == 50:
                        fetcher.finish()
            return cursor

    assert asyncio.run(read()).is_done


def test_the_longest_replica_is_taken(tmp_path: Path) -> None:
    short, long = (replica(tmp_path / name, (0, batches(0, until))) for name, until in (("a", 30), ("b", 50)))
    log = load([short, long])
    assert (log.end, log.folders, log.notes) == (50, (long,), ())


def test_a_later_leader_cuts_an_older_ones_tail(tmp_path: Path) -> None:
    stale = replica(tmp_path / "a", (0, batches(0, 90, epoch=3)))
    newer = replica(tmp_path / "b", (0, batches(0, 40, epoch=3) + batches(40, 60, epoch=4)))
    log = load([stale, newer])
    assert (log.end, log.folders) == (60, (newer,))
    assert f"{stale}: offsets 40 to 89 are of an older leader epoch" in log.notes[0]


def test_a_history_names_an_epoch_whose_records_are_damaged(tmp_path: Path) -> None:
    stale = replica(tmp_path / "a", (0, batches(0, 90, epoch=3)))
    newer = replica(tmp_path / "b", (0, batches(0, 20, epoch=3)))
    history(newer, (3, 0), (4, 40))
    log = load([stale, newer])
    assert (log.end, log.folders, log.at_risk) == (40, (stale,), True)


@pytest.mark.parametrize("knows_committed", [True, False])
def test_a_leader_that_died_before_anybody_followed_it_cuts_nobody_off(
    tmp_path: Path, *, knows_committed: bool
) -> None:
    """Its entry in its own history stays, since it never came back: a newer leader's history says what counts."""
    tail = batches(0, 120, epoch=6) + batches(120, 500, epoch=8)
    dead = replica(tmp_path / "a", (0, batches(0, 100, epoch=6)))
    stale = replica(tmp_path / "d", (0, batches(0, 130, epoch=6)))
    led, followed = (replica(tmp_path / name, (0, tail)) for name in "bc")
    history(dead, (6, 0), (7, 100))
    for one in (led, followed):
        history(one, (6, 0), (8, 120))
    (tmp_path / "a" / "replication-offset-checkpoint").write_text("0\n1\norders 0 100\n")
    for broker in ("b", "c"):
        checkpoint = tmp_path / broker / "replication-offset-checkpoint"
        checkpoint.write_text("0\n1\norders 0 500\n") if knows_committed else checkpoint.unlink()
    for folders in ([dead, led, followed], [followed, dead], [led, stale, dead]):
        log = load(folders)
        assert (log.end, log.at_risk) == (500, False)
        assert any(f"{stale}: offsets 120 to 129 are of an older" in note for note in log.notes) == (stale in folders)
    history(dead, (6, 0), (9, 100))
    log = load([dead, led, followed])
    assert log.end == 100, "an unclean election: what was committed before it would have been cut back"
    assert f"{led}: offsets 100 to 499 are of an older leader epoch" in "".join(log.notes)
    if knows_committed:
        assert "offsets 100 to 499 were committed, a broker's checkpoint says, and are in no file of" in str(log.notes)


def test_lost_first_files_are_lent_by_another_replica(tmp_path: Path) -> None:
    longer = replica(tmp_path / "a", (40, batches(40, 90)))
    lender = replica(tmp_path / "b", (0, batches(0, 60)))
    log = load([longer, lender])
    assert (log.start, log.end, log.folders) == (0, 90, (lender, longer))
    assert offsets(log, 1 << 20) == [*range(0, 90, 10)]
    assert log.at_risk
    assert "offsets 0 to 39 are in older files alone" in log.notes[0], "no history says that they were not deleted"


def test_another_log_lends_nothing(tmp_path: Path) -> None:
    longer = replica(tmp_path / "a", (40, batches(40, 90)))
    other = replica(tmp_path / "b", (0, batches(0, 60, payload=b"y" * 50)))
    assert load([longer, other]).start == 40


def test_what_was_deleted_stays_deleted(tmp_path: Path) -> None:
    """Neither given out, nor lent."""
    longer = replica(tmp_path / "a", (0, batches(0, 90)))
    lender = replica(tmp_path / "b", (0, batches(0, 60)))
    start_at(tmp_path / "a", 40)
    log = load([longer, lender])
    assert (log.start, log.folders) == (40, (longer,))


def test_what_retention_deleted_stays_deleted(tmp_path: Path) -> None:
    """Though a broker that died before has it: as one that others went on without, and as one that nobody needed to."""
    dead = replica(tmp_path / "a", (0, batches(0, 40)), (40, batches(40, 60)))
    current = replica(tmp_path / "b", (40, batches(40, 60) + batches(60, 90, epoch=1)))
    history(dead, (0, 0))
    history(current, (0, 40), (1, 60))
    for folders in ([current, dead], [dead, current]):
        log = load(folders)
        assert (log.start, log.folders, log.notes, log.at_risk) == (40, (current,), (), False)
    idle = replica(tmp_path / "c", (0, batches(0, 90)))
    asked = replica(tmp_path / "d", (60, batches(60, 90)))
    history(idle, (0, 0))
    history(asked, (0, 60))
    for folders in ([idle, asked], [asked, idle]):
        log = load(folders, in_sync=[asked])
        assert (log.start, offsets(log), log.at_risk) == (60, [60, 70, 80], False)
        assert f"{idle}: offsets 0 to 59 were deleted, a broker's checkpoint says" in log.notes[0]


def test_what_one_replica_alone_deleted_is_restored_and_reported(tmp_path: Path) -> None:
    """Each broker runs retention by itself, and the leader served what a follower had deleted. Who was in sync has
    deleted what the leader had, so that the least of these is the leader's; else the disks do not tell.
    """
    led = replica(tmp_path / "a", (40, batches(40, 90)))
    ahead = replica(tmp_path / "b", (60, batches(60, 90)))
    dead = replica(tmp_path / "c", (0, batches(0, 70)))
    for folder, start in ((led, 40), (ahead, 60), (dead, 0)):
        history(folder, (0, start))
    for folders in permutations([led, ahead, dead]):
        log = load(folders, in_sync=[led, ahead])
        assert (log.start, log.end, log.folders, log.at_risk) == (40, 90, (led,), False)
        log = load(folders)
        assert (log.start, log.end, log.at_risk, log.lacks) == (0, 90, True, False)
        assert f"{ahead}: offsets 0 to 59 were deleted there, its leader-epoch-checkpoint says" in log.notes[0]
    log = load([ahead, dead], in_sync=[led])
    assert (log.start, log.at_risk) == (0, True), "nobody here is known to be in sync"
    for path in led.glob("*.log"):
        path.rename(path.with_name(f"{80:020}.log"))
        (path.with_name(f"{80:020}.log")).write_bytes(batches(80, 90))
    log = load([led, ahead], in_sync=[led, ahead])
    assert (log.start, log.at_risk) == (60, True)
    assert "offsets 40 to 59 were not deleted, a broker's checkpoint says, and are in no file" in "".join(log.notes)


def test_a_log_starts_where_histories_say_though_a_followers_files_begin_before(tmp_path: Path) -> None:
    """The other checkpoint of that follower comes up to a minute later."""
    led = replica(tmp_path / "a", (40, batches(40, 60) + batches(60, 90, epoch=1)))
    followed = replica(tmp_path / "b", (30, batches(30, 60) + batches(60, 90, epoch=1)))
    dead = replica(tmp_path / "c", (0, batches(0, 60)))
    history(dead, (0, 0))
    for one in (led, followed):
        history(one, (0, 40), (1, 60))
    for start in (0, 20, 40):
        start_at(tmp_path / "b", start)
        for folders in permutations([led, followed, dead]):
            assert (load(folders).start, load(folders).at_risk) == (40, False)
        log = load([dead, followed])
        assert (log.start, log.at_risk) == ((40, False) if start == 40 else (30, True)), "never what is on other disks"
        assert (start == 40) == ("offsets 30 to 39 were deleted there" not in "".join(log.notes))


def test_a_history_that_was_lost_and_began_anew_deletes_nothing(tmp_path: Path) -> None:
    """A broker that recovers without its own writes one from what it recovers on, and says nothing of what precedes."""
    anew = replica(tmp_path / "a", (0, batches(0, 90)))
    history(anew, (0, 70))
    log = load([anew])
    assert (log.start, log.at_risk) == (0, True)
    assert f"{anew}: offsets 0 to 69 were deleted there, its leader-epoch-checkpoint says" in log.notes[0]
    other = replica(tmp_path / "b", (0, batches(0, 90)))
    history(other, (0, 0))
    assert (load([anew, other]).start, load([anew, other], in_sync=[anew, other]).at_risk) == (0, False)
    history(other, (0, 70))
    assert (load([anew, other]).start, load([anew, other]).at_risk) == (70, False), "both: they were asked to"


def test_records_older_than_leader_epochs_were_not_deleted(tmp_path: Path) -> None:
    """Brokers began to keep histories long after the log began: that they begin later says nothing."""
    whole = replica(tmp_path / "a", (0, batches(0, 40, epoch=-1) + batches(40, 90, epoch=5)))
    short = replica(tmp_path / "b", (60, batches(60, 90, epoch=5)))
    for one in (whole, short):
        history(one, (5, 40))
    for folders in ([whole, short], [short, whole]):
        assert (load(folders).start, load(folders).at_risk) == (0, False)
    dead = replica(tmp_path / "c", (0, batches(0, 60, epoch=-1)))
    begun = replica(tmp_path / "d", (20, batches(20, 40, epoch=-1) + batches(40, 90, epoch=5)))
    history(begun, (5, 40))
    assert (load([begun]).start, load([begun]).at_risk) == (20, False)
    log = load([begun, dead])
    assert (log.start, log.at_risk) == (0, True)
    assert "offsets 0 to 19 are in older files alone" in log.notes[-1]


def test_files_that_do_not_join_are_reported(tmp_path: Path) -> None:
    log = load([replica(tmp_path, (0, batches(0, 20)), (40, batches(40, 60)))])
    assert (log.end, log.at_risk) == (60, True)
    assert "offsets 20 to 39 are in no file" in log.notes[0]
    assert offsets(log, 1) == [0, 10, 40, 50]


def test_a_file_that_begins_in_another_ends_the_log(tmp_path: Path) -> None:
    log = load([replica(tmp_path, (0, batches(0, 60)), (40, batches(40, 80)))])
    assert (log.end, log.at_risk) == (60, True)


def test_transactions(tmp_path: Path) -> None:
    data = [transactional(0, 1), transactional(1, 2), marker(2, 1, ABORT), marker(3, 2, COMMIT), transactional(4, 1)]
    log = load([replica(tmp_path, (0, b"".join(data) + batch(5)))])
    assert log.aborted == ((1, 0, 2),)
    assert (log.stable, log.end, log.at_risk) == (4, 6, True)
    assert "a transaction that begins at offset 4 has no end: 2 offsets are left out" in log.notes[0]
    assert offsets(log) == [0, 1, 2, 3]


def test_a_log_that_starts_inside_an_aborted_transaction(tmp_path: Path) -> None:
    """Its first records were deleted, and the others are aborted all the same."""
    data = transactional(0, 1) + transactional(1, 1) + marker(2, 1, ABORT) + transactional(3, 2) + batch(4)
    folder = replica(tmp_path, (0, data))
    start_at(tmp_path, 1)
    log = load([folder])
    assert (log.start, log.stable, log.aborted) == (1, 3, ((1, 0, 2),))
    start_at(tmp_path, 4)
    log = load([folder])
    assert (log.start, log.stable) == (4, 4), "an open transaction is open from the log's start on"


def test_a_marker_that_compaction_emptied_ends_its_transaction(tmp_path: Path) -> None:
    emptied = batch(1, count=0, delta=0, attributes=TRANSACTIONAL | CONTROL, producer_id=1, payload=b"")
    log = load([replica(tmp_path, (0, transactional(0, 1) + emptied + batch(2)))])
    assert (log.stable, log.aborted, log.at_risk) == (3, (), False)


def test_more_files_than_may_be_open(tmp_path: Path) -> None:
    """A mapped file holds a descriptor."""
    log = load([replica(tmp_path, *((at, batches(at, at + 10)) for at in range(0, 3_000, 10)))])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 200), hard))
    try:
        assert offsets(log) == [*range(0, 3_000, 10)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def swap(path: Path) -> None:
    path.rename(path.with_suffix(".old"))
    path.write_bytes(batches(20, 60))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(Path.unlink, id="deleted"),
        pytest.param(lambda path: path.write_bytes(b""), id="cut"),
        pytest.param(swap, id="replaced"),
    ],
)
def test_a_file_that_changes_while_it_is_read(tmp_path: Path, change: Callable[[Path], object]) -> None:
    """Its broker still runs: it deletes files, and compaction puts others in their places."""
    folder = replica(tmp_path, (0, batches(0, 20)), (20, batches(20, 40)))
    log = load([folder])
    assert log.read(0, 1, log.stable)
    change(folder / f"{20:020}.log")
    with pytest.raises(ConfigError, match=f"{20:020}.log"):
        log.read(20, 1, log.stable)


@pytest.mark.parametrize("at", [0, 5, 7, 8, 11, 16, 17, 22, 26, 60, 61, 100])
def test_one_flipped_bit_takes_one_batch(tmp_path: Path, at: int) -> None:
    """Wherever in a batch it is: in its offset, length, magic, CRC, another field or its records."""
    size = len(batches(0, 10))
    for number in range(4):
        files = (0, flipped(batches(0, 50), number * size + at)), (50, batches(50, 90))
        folder = replica(tmp_path / str(number), *files)
        first = 10 * number
        stops, goes_on = load([folder]), load([folder], skips_damage=True)
        assert (stops.end, stops.at_risk) == (first, True)
        assert f"--skip-damage leaves out offsets {first} to {first + 9} alone" in "".join(stops.notes)
        assert offsets(goes_on) == [at for at in range(0, 90, 10) if at != first]
        assert [(hole.first, hole.next_offset) for hole in goes_on.lost] == [(first, first + 10)]
        assert (goes_on.start, goes_on.end, goes_on.at_risk) == (0, 90, True)


def test_damage_in_front_of_a_compressed_set_of_an_old_magic_takes_nothing_of_it(tmp_path: Path) -> None:
    sets = [wrapper(first + 9, 1, [message(at, 1) for at in range(10)]) for first in (0, 10, 20)]
    log = load([replica(tmp_path, (0, sets[0] + flipped(sets[1], 40) + sets[2]))], skips_damage=True)
    assert [(hole.first, hole.next_offset) for hole in log.lost] == [(10, 20)]
    assert (offsets(log), log.end) == ([9, 29], 30)


def test_what_only_looks_like_a_large_batch_does_not_end_the_search() -> None:
    """In random bytes there are lengths of any size: only what is summed up counts, and the search goes on behind what
    is too large for it.
    """
    alike = batch(1 << 60, length=1500) + batch(3, length=1500, crc=5)
    data = flipped(batch(0, count=10, payload=alike) + batches(10, 500), 11)
    walk = Walk(memoryview(data))
    assert (list(walk), walk.announced is None or walk.announced < len(data) - 1500) == ([], True)
    assert walk.resume(1000) == Found(len(batch(0, count=10, payload=alike)), 10)


def test_what_a_disk_does_not_give_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sector of one replica: another replica has it, or that batch is lost, at a file's end as well."""
    data = batches(0, 300, payload=b"x" * 500)
    at, size = 2 * mmap.PAGESIZE, len(data) // 30
    bad, good = (replica(tmp_path / name, (0, data)) for name in "ab")
    fail_at(monkeypatch, bad / f"{0:020}.log", lambda: at)
    assert oldest_of(bad) == oldest_of(good)
    log = load([bad, good])
    assert (offsets(log), log.at_risk) == ([*range(0, 300, 10)], False)
    log = load([bad], skips_damage=True)
    lost = range(at // size * 10, -(-(at + mmap.PAGESIZE) // size) * 10, 10)
    assert (offsets(log), log.at_risk) == ([one for one in range(0, 300, 10) if one not in lost], True)
    assert f"{mmap.PAGESIZE:,} bytes cannot be read in this file" in "".join(log.notes)
    assert inspect_files(segments_of(bad), InspectOptions(as_json=True)) is ExitCode.DATA_AT_RISK
    at = len(data) - 10
    log = load([bad])
    assert log.at_risk, "no crash leaves that"
    assert "cannot be read" in "".join(log.notes)

    def is_full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", is_full)
    with pytest.raises(ConfigError, match=r"the temporary folder takes no copy: .*set TMPDIR"):
        load([bad])


def test_damage_that_goes_on_from_file_to_file(tmp_path: Path) -> None:
    folder = replica(tmp_path, (0, batches(0, 20) + b"?" * 90), (30, bytes(5000)), (50, b"!" * 500 + batches(60, 90)))
    log = load([folder], skips_damage=True)
    assert [(hole.first, hole.next_offset) for hole in log.lost] == [(20, 60)]
    assert offsets(log) == [0, 10, 60, 70, 80]
    end = replica(tmp_path / "end", (0, batches(0, 20) + b"?" * 90), (30, b"!" * 500))
    log = load([end], skips_damage=True)
    assert (log.end, log.lost, log.at_risk) == (20, (), True)


def test_what_a_record_holds_is_no_batch(tmp_path: Path) -> None:
    """A topic of record sets, as tools that copy segments write; its own batch's length still shows where it ends."""
    inner = batches(15, 25)
    data = batches(0, 10) + batch(10, count=10, payload=b"a" * 20 + inner + b"b" * 20) + batches(20, 40)
    at = len(batches(0, 10)) + 70
    log = load([replica(tmp_path, (0, flipped(data, at)))], skips_damage=True)
    assert offsets(log) == [0, 20, 30]
    start = len(batches(0, 10))
    lying = replica(tmp_path / "length", (0, flipped(data, start + 11)))
    assert offsets(load([lying], skips_damage=True)) == [0, 20, 30]


def test_what_is_damaged_in_one_replica_is_taken_from_another(tmp_path: Path) -> None:
    size = len(batches(0, 10))
    one = replica(tmp_path / "a", (0, flipped(flipped(batches(0, 90), size + 70), 5 * size + 70)))
    two = replica(tmp_path / "b", (0, flipped(batches(0, 80), 3 * size + 70)))
    log = load([one, two])
    assert (offsets(log), log.at_risk, log.lost) == ([*range(0, 90, 10)], False, ())
    assert set(log.folders) == {one, two}
    three = replica(tmp_path / "c", (0, flipped(batches(0, 80), size + 70)))
    assert load([one, three]).end == 10
    log = load([one, three], skips_damage=True)
    assert offsets(log) == [0, *range(20, 90, 10)]
    assert [(hole.first, hole.next_offset) for hole in log.lost] == [(10, 20)]


def test_another_log_fills_no_damage(tmp_path: Path) -> None:
    size = len(batches(0, 10))
    one = replica(tmp_path / "a", (0, flipped(batches(0, 50), size + 70)))
    other = replica(tmp_path / "b", (0, batches(0, 40, payload=b"y" * 50)))
    assert [hole.first for hole in load([one, other], skips_damage=True).lost] == [10]


def test_damage_among_transactions(tmp_path: Path) -> None:
    """A damaged marker may have committed or aborted what precedes it; damaged data has no such doubt."""
    parts = [transactional(0, 1), marker(1, 1, COMMIT), transactional(2, 1), marker(3, 1, ABORT), batches(4, 14)]
    starts = [sum(map(len, parts[:number])) for number in range(5)]
    data = b"".join(parts)
    cut = load([replica(tmp_path / "marker", (0, flipped(data, starts[1] + 70)))], skips_damage=True)
    assert (cut.stable, cut.end) == (0, 14)
    assert "may have its end among what is damaged" in "".join(cut.notes)
    large = [batch(0, attributes=TRANSACTIONAL, producer_id=1, producer_epoch=0, payload=b"x" * 90), *parts[1:]]
    log = load([replica(tmp_path / "data", (0, flipped(b"".join(large), 70)))], skips_damage=True)
    assert (log.stable, log.aborted) == (14, ((1, 2, 3),))


@pytest.mark.parametrize("last", [b"", marker(61, 1, ABORT)], ids=["open", "aborted"])
def test_a_marker_in_a_missing_file_ended_its_own_transaction(tmp_path: Path, last: bytes) -> None:
    """The next one of its producer, aborted or open behind that file, is none with the one before; where no replica has
    the file, how that one ended is not known.
    """
    head = batches(0, 20) + b"".join(map(batch, range(20, 29))) + transactional(29, 1)
    lost = (30, marker(30, 1, COMMIT) + b"".join(map(batch, range(31, 40))) + batches(40, 60))
    tail = (60, transactional(60, 1) + (last or batch(61)) + batch(62))
    holed, whole = replica(tmp_path / "a", (0, head), tail), replica(tmp_path / "b", (0, head), lost, tail)
    for folders in ([whole], [holed, whole], [whole, holed]):
        log = load(folders)
        assert (log.stable, log.aborted, log.at_risk) == ((63, ((1, 60, 61),), False) if last else (60, (), True))
    alone = load([holed])
    assert (alone.stable, alone.aborted, alone.at_risk) == (29, ((1, 60, 61),) if last else (), True)
    assert "a transaction that begins at offset 29 may have its end among what is" in "".join(alone.notes)


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
    lender = replica(tmp_path / "b", (0, batches(0, 60)))
    assert (load([folder, lender]).start, load([folder, lender]).at_risk) == (10, False)
    start_at(tmp_path / "a", 40)
    assert (load([folder]).notes, load([folder]).at_risk) == ((), False), "deleted, which the history was to show"


def test_damage_where_an_epoch_begins_is_no_older_epoch(tmp_path: Path) -> None:
    """Neither is a file that is lost there: what is behind is of the epoch that the history names."""
    spoiled = bytearray(batches(0, 20) + batches(20, 40, epoch=2))
    spoiled[2 * len(batches(0, 10)) + 70] ^= 1
    damaged = replica(tmp_path / "a", (0, bytes(spoiled)))
    history(damaged, (0, 0), (2, 20))
    log = load([damaged], skips_damage=True)
    assert (log.end, [(hole.first, hole.next_offset) for hole in log.lost]) == (40, [(20, 30)])
    holed = replica(tmp_path / "b", (0, batches(0, 20)), (30, batches(30, 40, epoch=2)))
    history(holed, (0, 0), (2, 20))
    log = load([holed])
    assert log.end == 40
    assert "offsets 20 to 29 are in no file" in log.notes[0]


@pytest.mark.parametrize("alone", [True, False])
def test_a_last_offset_that_leaps_is_a_lie_where_it_is_not_known_as_committed(tmp_path: Path, *, alone: bool) -> None:
    """No CRC covers it, and nothing behind it falls back."""
    lying = replica(tmp_path / "a", (0, batches(0, 30) + batches(1030, 1040)))
    honest = replica(tmp_path / "b", (0, batches(0, 40)))
    folders = [lying] if alone else [lying, honest]
    log = load([lying])
    assert (log.end, log.at_risk) == (1040, True)
    assert "offsets 30 to 1029 are in no file" in log.notes[0]
    for broker in ("a", "b"):
        (tmp_path / broker / "replication-offset-checkpoint").write_text("0\n1\norders 0 40\n")
    log = load(folders)
    assert (log.end, log.at_risk) == ((30, True) if alone else (40, False))
    (tmp_path / "a" / "replication-offset-checkpoint").write_text("0\n1\norders 0 1040\n")
    assert (load([lying]).end, load([lying]).at_risk) == (1040, False), "compaction, a long time ago"


def test_what_a_cleaner_cleaned_away_whole_is_gone(tmp_path: Path) -> None:
    folder = replica(tmp_path, (0, batches(0, 20)), (20, batches(20, 40)))
    (folder / f"{0:020}.log.swap").write_bytes(b"")
    assert [raw.header.base_offset for raw in batches_of(load([folder]))] == [20, 30]


def test_what_only_an_older_disk_has_is_reported(tmp_path: Path) -> None:
    """Without its history nobody knows whether retention deleted it since, or a file is missing."""
    newest = replica(tmp_path / "a", (40, batches(40, 90)))
    older = replica(tmp_path / "b", (0, batches(0, 30)))
    log = load([newest, older])
    assert (log.start, log.end, log.at_risk) == (40, 90, True)
    assert "offsets 0 to 39 are in older files alone" in log.notes[0]
    history(newest, (0, 40))
    assert (load([newest, older]).notes, load([newest, older]).at_risk) == ((), False), "retention"


@pytest.mark.parametrize("left", [0, 20, 40])
def test_what_a_cleaner_was_putting_in_place_is_read(tmp_path: Path, left: int) -> None:
    """Old segments are deleted up to an offset: what takes their place stands, as for a broker that recovers."""
    old = [(at, batches(at, at + 20)) for at in (0, 20) if at >= left]
    folder = replica(tmp_path, *old, (40, batches(40, 60)))
    (folder / f"{0:020}.log.swap").write_bytes(batches(0, 10) + batches(30, 40))
    (folder / f"{40:020}.log.cleaned").write_bytes(batches(40, 50)[:30])
    log = load([folder])
    assert [raw.header.base_offset for raw in batches_of(log)] == [0, 30, 40, 50]
    assert (log.start, log.end, log.notes, log.at_risk) == (0, 60, (), False)
    (folder / f"{0:020}.log.cleaned").write_bytes(b"")
    assert load([folder]).start == min((at for at, _ in old), default=40), "a broker drops it, and keeps the old ones"


@pytest.mark.parametrize("end", [90, 100])
def test_a_file_that_one_replica_lost_is_taken_from_another(tmp_path: Path, end: int) -> None:
    """Whichever is named first, and also where that which lost it is longer."""
    holed = replica(tmp_path / "a", (0, batches(0, 30)), (60, batches(60, end)))
    whole = replica(tmp_path / "b", (0, batches(0, 30)), (30, batches(30, 60)), (60, batches(60, 90)))
    for folders in ([holed, whole], [whole, holed]):
        log = load(folders)
        assert (log.start, log.end, log.notes, log.at_risk) == (0, end, (), False)
        assert [raw.header.base_offset for raw in batches_of(log)] == [*range(0, end, 10)]
    alone = load([holed])
    assert (alone.at_risk, "offsets 30 to 59" in alone.notes[0]) == (True, True)


def test_a_lender_that_lost_a_file_itself_keeps_no_other_from_lending(tmp_path: Path) -> None:
    """Whichever is named first; what no replica has is reported all the same."""
    holed = replica(tmp_path / "a", (0, batches(0, 30)), (60, batches(60, 90)))
    lender = replica(tmp_path / "b", (0, batches(0, 40)), (50, batches(50, 90)))
    whole = replica(tmp_path / "c", (0, batches(0, 90)))
    for folders in permutations([holed, lender, whole]):
        log = load(folders)
        assert (offsets(log), log.notes, log.at_risk) == ([*range(0, 90, 10)], (), False)
    for folders in permutations([holed, lender]):
        log = load(folders)
        assert (offsets(log), log.at_risk) == ([0, 10, 20, 30, 50, 60, 70, 80], True)
        assert "offsets 40 to 49 are in no file" in log.notes[0]


@pytest.mark.parametrize("end", [90, 100])
def test_a_file_that_a_cleaned_replica_lost_is_taken_from_one_that_is_not(tmp_path: Path, end: int) -> None:
    """Each replica is cleaned at its own time: around the gap their batches differ, in records and bytes. The whole one
    is taken where it reaches as far; what is lent may have been deleted since, and is named.
    """

    def cleaned(first: int, last: int) -> bytes:
        return b"".join(batch(at, count=7, delta=9, payload=b"z" * 30) for at in range(first, last, 10))

    holed = replica(tmp_path / "a", (0, cleaned(0, 30)), (60, cleaned(60, end)))
    whole = replica(tmp_path / "b", (0, batches(0, 30)), (30, batches(30, 60)), (60, batches(60, 90)))
    for folders in ([holed, whole], [whole, holed]):
        log = load(folders)
        assert (log.start, log.end, log.at_risk) == (0, end, end == 100), log.notes
        assert end == 90 or "offsets 30 to 59 are from there" in log.notes[0]
        assert log.folders == ((whole,) if end == 90 else (holed, whole))
        assert [raw.header.base_offset for raw in batches_of(log)] == [*range(0, end, 10)]


def test_of_equally_long_replicas_that_is_taken_which_lacks_least(tmp_path: Path) -> None:
    """Nothing shows that the batches around the gap are the same: another one does not lend them, and is whole."""
    holed = replica(tmp_path / "a", (0, batches(0, 30)), (60, batches(60, 90)))
    whole = replica(tmp_path / "b", (0, batches(0, 90, payload=b"y" * 50)))
    for folders in ([holed, whole], [whole, holed]):
        log = load(folders)
        assert (log.end, log.at_risk, log.folders) == (90, False, (whole,))


def test_gaps_of_what_was_lent_are_reported(tmp_path: Path) -> None:
    longer = replica(tmp_path / "a", (40, batches(40, 90)))
    lender = replica(tmp_path / "b", (0, batches(0, 10)), (20, batches(20, 60)))
    log = load([longer, lender])
    assert (log.start, log.end, log.at_risk) == (0, 90, True)
    assert "offsets 10 to 19 are in no file" in log.notes[0]


def test_partitions_of_different_topics_by_one_name(tmp_path: Path) -> None:
    one, other = uuid4(), uuid4()
    for number, topic_id in enumerate((one, one, other)):
        replica(tmp_path, (0, batches(0, 20)), name=f"orders-{number}", topic_id=topic_id)
    replica(tmp_path, (0, batches(0, 20)), name="clicks-0", topic_id=uuid4())
    reported = mixed_in(partitions_in([tmp_path]))
    assert list(reported) == ["orders"]
    assert f"orders-0 of id {one}" in reported["orders"]
    assert f"orders-2 of id {other}" in reported["orders"]


def test_a_partition_that_is_linked_to_another_disk(tmp_path: Path) -> None:
    """It goes by the link's name, and is one replica by both."""
    moved = replica(tmp_path / "bulk", (0, batches(0, 20)), name="volume")
    (tmp_path / "data").mkdir()
    link = tmp_path / "data" / "orders-0"
    link.symlink_to(moved)
    start_at(tmp_path / "data", 10)
    assert partitions_in([tmp_path / "data", link]) == {TopicPartition("orders", 0): (link,)}
    assert load([link]).start == 10


def test_a_folder_that_is_only_named_like_a_partition(tmp_path: Path) -> None:
    (tmp_path / "backup-20260101").mkdir()
    (tmp_path / "backup-20260101" / "server.log").write_text("started\n")
    folder = replica(tmp_path, (0, batches(0, 20)))
    assert partitions_in([tmp_path]) == {TopicPartition("orders", 0): (folder,)}


def test_a_folder_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its partitions would be missing without a word."""
    replica(tmp_path, (0, batches(0, 20)))
    locked = replica(tmp_path, (0, batches(0, 20)), name="orders-1")
    (tmp_path / "lost+found").mkdir()
    listed = Path.iterdir

    def refused(path: Path) -> Iterator[Path]:  # root, whom tests may run as, may read everything
        if path == locked or path.name == "lost+found":
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", refused)
    with pytest.raises(ConfigError, match=r"orders-1: cannot be read: .*Permission denied"):
        partitions_in([tmp_path])


def test_replicas_of_different_topics(tmp_path: Path) -> None:
    two = [replica(tmp_path / name, (0, batches(0, 20)), topic_id=uuid4()) for name in "ab"]
    with pytest.raises(ConfigError, match="replicas of different topics"):
        load(two)


def test_folders_of_one_broker_and_of_many(tmp_path: Path) -> None:
    first = replica(tmp_path / "one", (0, batches(0, 20)))
    second = replica(tmp_path / "two", (0, batches(0, 20)))
    third = replica(tmp_path / "two", (0, batches(0, 20)), name="more-orders-12")
    replica(tmp_path / "two", (0, b""), name="orders-1.0a1b2c-delete")
    wanted = {TopicPartition("more-orders", 12): (third,), TopicPartition("orders", 0): (first, second)}
    assert partitions_in([tmp_path]) == partitions_in([tmp_path / "one", tmp_path / "two"]) == wanted
    assert partitions_in([first]) == {TopicPartition("orders", 0): (first,)}


def test_a_folder_without_partitions(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no partition's folder"):
        partitions_in([tmp_path])
    with pytest.raises(ConfigError, match="no such folder"):
        partitions_in([tmp_path / "gone"])


def test_a_file_that_no_broker_named(tmp_path: Path) -> None:
    folder = replica(tmp_path, (0, batches(0, 20)))
    (folder / "zzz.log").write_bytes(batches(20, 30))
    with pytest.raises(ConfigError, match="not named as a broker names segments"):
        scan(folder)


def test_what_is_read_is_a_view_of_the_file(tmp_path: Path) -> None:
    """And there is an index entry for each so many bytes, however small batches are."""
    found = scan(replica(tmp_path, (0, batches(0, 20_000))))
    read = found.read(5_000, 1 << 20, found.end)
    assert isinstance(read.obj, mmap.mmap)
    (segment,) = found._segments
    assert segment.size / GRAIN / 2 < len(segment.positions) <= segment.size / GRAIN + 1


@given(st.lists(st.integers(1, 3 * GRAIN), min_size=1, max_size=12), st.integers(1, 40_000), st.data())
def test_every_offset_is_found(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], most: int, data: st.DataObject
) -> None:
    """Whatever the sizes of batches, and wherever a reader begins or must end."""
    raws = [batch(3 * number, count=2, delta=2, payload=bytes(size)) for number, size in enumerate(sizes)]
    cut = data.draw(st.integers(0, len(raws)))
    files = [(base, b"".join(part)) for base, part in ((0, raws[:cut]), (3 * cut, raws[cut:])) if part]
    log = merged([scan(replica(tmp_path_factory.mktemp("any"), *files))])
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
