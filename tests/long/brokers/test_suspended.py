"""A process that was suspended goes on, where another mirror has the flow by then, or it was failed over (Z1, W13)."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from adversary.driving import Command
from group_pairs import Pair
from groupoffsets import commit, committed
from helpers import RECENT_MS, config_file, make_topic, mirror_once, produce, settings_between, stored_batches
from padded import read_all, trimmed
from samerecords import assert_same_records
from sequenced import await_forgotten, forgetful
from watchedtask import TIMEOUT, WatchedTask

from mirror import suspension
from mirror.errors import ClusterError, FlowLost
from mirror.journal.journal import Journal, journal_topic
from mirror.journal.positions import standing_in
from mirror.kafka.admin import Admin
from mirror.kafka.cluster import Cluster as Wire
from mirror.kafka.cluster import Endpoint, Leader, TopicPartition
from mirror.lab.embedded import Cluster
from mirror.policy.rules import Rules
from mirror.records import rewrite
from mirror.records.header import ProducerState
from mirror.replication import log_start
from mirror.replication.log_start import Alignment, align
from mirror.replication.partition_writer import PartitionWriter
from mirror.replication.position import Position
from mirror.replication.writer import Writer
from mirror.states import State
from mirror.suspension import Clearance, SuspensionDetector

__all__ = ["forgetful"]
SUSPENDED = 0.5
#: Partitions whose copies begin late; a fifth of a second each is longer than a suspension.
MANY = 60


@pytest.mark.parametrize("clock", [0, 1])
def test_missed_beats_reveal_a_suspension(clock: int) -> None:
    """By whichever clock goes on meanwhile; one that is set back says nothing."""
    now = [1000.0, 1000.0]
    detector = SuspensionDetector(lambda: (now[0], now[1]))
    for seconds, is_late in ((1.0, False), (4.9, False), (5.1, True), (0.0, False), (-100.0, False), (6.0, True)):
        now[clock] += seconds
        assert detector.beat() is is_late
    assert detector.suspensions == 2


def test_nothing_of_a_round_is_sent_behind_a_suspension_in_its_midst() -> None:
    """Its batches were chosen before; the next round checks each partition again."""
    nothing: Any = None
    now, writer = [0.0], Writer(nothing, nothing, nothing, 1 << 20)
    writer.detector = SuspensionDetector(lambda: (now[0], now[0]))

    async def rounds() -> None:
        writer._flush()
        assert writer._is_awake()
        now[0] += 10.0
        assert [writer._is_awake() for _ in range(3)] == [False, False, False]
        writer._flush()
        assert writer._is_awake()

    asyncio.run(rounds())


def values(count: int) -> Iterator[bytes]:
    return (b"%06d" % number + b"." * 300 for number in range(count))


@pytest.mark.brokers
def test_nothing_is_appended_to_a_journal_before_the_flow_is_known_to_be_ours(
    own_target: Cluster, topic_name: str
) -> None:
    """By a new task, and behind a suspension, also one between the question and the request (J2)."""
    target = own_target.bootstrap
    make_topic(target, journal_topic(topic_name))
    now, asked, answers = [0.0], list[float](), [True]
    sleeps = [0.0]  # of the next question

    async def may_go_on() -> bool:
        asked.append(now[0])
        now[0] += sleeps.pop() if sleeps else 0.0
        return answers[0]

    async def appended() -> None:
        async with Wire(Endpoint.of(settings_between(target, target, [topic_name]).target)) as wire:
            detector = SuspensionDetector(lambda: (now[0], now[0]))
            journal = Journal(wire, topic_name, Clearance(detector, may_go_on, at_first=True))
            assert await journal.append([(b"a", b"1")]) == 0
            assert asked == [0.0]
            await journal.append([(b"b", b"1")])
            assert asked == [0.0], "nobody slept"
            now[0], sleeps[:] = 10.0, [10.0]
            await journal.append([(b"c", b"1")])
            assert asked == [0.0, 10.0, 20.0], "one that sleeps behind its answer asks again"
            now[0], answers[:] = 30.0, [False]
            for _ in range(2):
                with pytest.raises(FlowLost):
                    await journal.append([(b"d", b"1")])
            assert set(await journal.newest()) == {b"a", b"b", b"c"}

    asyncio.run(appended())


@pytest.mark.brokers
def test_a_topic_is_deleted_by_its_id_and_not_behind_a_suspension(own_target: Cluster, topic_name: str) -> None:
    """Somebody may have made another one of that name meanwhile, or the flow was failed over."""
    target = own_target.bootstrap
    make_topic(target, topic_name)
    admin = Admin(settings_between(target, target, [topic_name]).target)
    topic_id = admin.describe([topic_name])[topic_name].topic_id
    assert topic_id is not None
    admin.delete_topics({topic_name: uuid4()})
    assert topic_name in admin.describe([topic_name]), "the one with that id is gone, or never was"
    admin.may_go = lambda: False
    with pytest.raises(ClusterError, match="this process was suspended"):
        admin.delete_topics({topic_name: topic_id})
    assert topic_name in admin.describe([topic_name])
    admin.may_go = lambda: True
    admin.delete_topics({topic_name: topic_id})
    _until(lambda: topic_name not in admin.describe([topic_name]))


@asynccontextmanager
async def followed(source: Cluster, target: Cluster, topic: str, group: str) -> AsyncIterator[Pair]:
    """A group that stands at 60 of 100 records, whose copy has them all."""
    for cluster in (source, target):
        make_topic(cluster.bootstrap, topic)
        produce(cluster.bootstrap, topic, values(100))
    commit(source.bootstrap, group, topic, 60)
    settings = settings_between(source.bootstrap, target.bootstrap, [topic])
    async with Wire(Endpoint.of(settings.source)) as ours, Wire(Endpoint.of(settings.target)) as theirs:
        for one in (ours, theirs):
            await one.refresh([topic])
        yield Pair(ours, theirs, {topic: topic}, group)


@pytest.mark.brokers
def test_a_round_of_groups_commits_nothing_behind_a_suspension(
    own_source: Cluster, own_target: Cluster, topic_name: str
) -> None:
    """What it decided before it was suspended, is not what stands there by now (Z1)."""
    group = f"{topic_name}-readers"

    async def rounds() -> None:
        async with followed(own_source, own_target, topic_name, group) as pair:
            while True:
                result = await pair.sync.sync_once(may_go=lambda: False)
                assert not result.committed
                if any("suspended" in one.detail for one in result.blockers):
                    break
                await asyncio.sleep(0.05)  # a coordinator begins
            await pair.sync_once()

    asyncio.run(rounds())
    assert committed(own_target.bootstrap, group, topic_name) == 60


@pytest.mark.brokers
def test_a_round_of_groups_that_takes_long_is_no_suspension(
    own_source: Cluster, own_target: Cluster, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else no group would be followed between clusters that are slow."""
    monkeypatch.setattr(suspension, "SUSPENDED_SECONDS", SUSPENDED)
    group = f"{topic_name}-readers"

    async def rounds() -> None:
        async with followed(own_source, own_target, topic_name, group) as pair:
            decide = pair.sync._decide

            async def slowly(*args: Any, **options: Any) -> None:
                await asyncio.sleep(3 * SUSPENDED)
                await decide(*args, **options)

            monkeypatch.setattr(pair.sync, "_decide", slowly)
            await pair.sync_once()

    asyncio.run(rounds())
    assert committed(own_target.bootstrap, group, topic_name) == 60


@pytest.mark.brokers
def test_what_was_queued_before_a_suspension_is_not_sent_behind_it(
    own_source: Cluster, forgetful: Cluster, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of old data, that another mirror has copied meanwhile: the leader would take it a second time."""
    monkeypatch.setattr(suspension, "SUSPENDED_SECONDS", SUSPENDED)
    source, target, count = own_source.bootstrap, forgetful.bootstrap, 20_000
    at = TopicPartition(topic_name, 0)
    make_topic(source, topic_name)
    make_topic(target, topic_name)
    produce(source, topic_name, values(count), batch=2)
    awake = threading.Event()
    with WatchedTask(source, target, [at]) as task:
        task.mirrored(at, 500)
        task._loop.call_soon_threadsafe(awake.wait, TIMEOUT)
        time.sleep(2 * SUSPENDED)
        assert task.figures(at).next_offset < count, "it was done before it could be suspended"
        found = mirror_once(source, target, [topic_name])[at]
        assert (found.state, found.next_offset) == (State.CAUGHT_UP, count)
        await_forgotten(forgetful, topic_name)
        awake.set()
        task.until(at, lambda one: one.state is not State.MIRRORING)
        monkeypatch.setattr(suspension, "SUSPENDED_SECONDS", TIMEOUT)  # by a machine with too much to do it is no more
        found = task.until(at, lambda one: one.state.is_stop or one.state is State.CAUGHT_UP)
        assert found.state is State.FENCED, found
    assert stored_batches(target, topic_name)[-1].header.next_offset == count
    assert assert_same_records(source, target, topic_name, 1) == count


def test_many_that_make_padding_in_a_row_are_no_suspension(monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait for the same metadata, and go on together: each would begin anew, with the others, for ever."""
    now, made, sent = [0.0], rewrite.padding, set[TopicPartition]()
    target: Any = SimpleNamespace(leader=lambda _: Leader(1, 0), topic_id=lambda _: None)

    def padding(first: int, until: int, **more: Any) -> Any:
        now[0] += 0.2
        return made(first, until, **more)

    async def append(_cluster: Any, at: TopicPartition, _parts: Any, *, check: Callable[[], None], **_more: Any) -> int:
        check()
        sent.add(at)
        return 0

    async def deleted(_cluster: Any, _at: TopicPartition, before: int, check: Callable[[], None]) -> int:
        check()
        return before

    async def aligned() -> None:
        nothing: Any = None
        writer, together = Writer(target, nothing, nothing, 1 << 20), asyncio.Barrier(MANY)
        writer.detector = SuspensionDetector(lambda: (now[0], now[0]))

        async def refresh(_topics: Any) -> None:
            await together.wait()

        target.refresh = refresh
        position = Position(0, ProducerState(1 << 52), False, -1, begin=5)
        async with asyncio.TaskGroup() as tasks:
            for number in range(MANY):
                at = TopicPartition("orders", number)
                check = partial(writer.check, PartitionWriter(at, at, position, Rules()))
                tasks.create_task(align(target, Alignment(at, at, Rules(), 5), position, lambda _: None, check))

    for name, stub in (("padding", padding), ("append", append), ("delete_records", deleted)):
        monkeypatch.setattr(log_start, name, stub)
    asyncio.run(aligned())
    assert (len(sent), now[0] > suspension.SUSPENDED_SECONDS) == (MANY, True)


@pytest.mark.brokers
def test_no_padding_is_sent_behind_a_suspension(
    own_source: Cluster, forgetful: Cluster, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another mirror has padded and filled the copy meanwhile: readers would find the padding behind its records."""
    monkeypatch.setattr(suspension, "SUSPENDED_SECONDS", SUSPENDED)
    source, target = own_source.bootstrap, forgetful.bootstrap
    at = TopicPartition(topic_name, 0)
    make_topic(source, topic_name)
    make_topic(target, topic_name)
    produce(source, topic_name, values(60))
    trimmed(own_source, topic_name, 50)
    asleep, awake, made, calls = threading.Event(), threading.Event(), rewrite.padding, [0]

    def padding(first: int, until: int, **more: Any) -> Any:
        calls[0] += 1
        if calls[0] == 3:
            asleep.set()
            awake.wait(TIMEOUT)
        return made(first, min(until, first + 10), **more)

    monkeypatch.setattr(log_start, "padding", padding)
    with WatchedTask(source, target, [at]) as task:
        assert asleep.wait(TIMEOUT)
        time.sleep(2 * SUSPENDED)
        found = mirror_once(source, target, [topic_name])[at]
        assert (found.state, found.next_offset) == (State.CAUGHT_UP, 60), found
        awake.set()
        task.until(at, lambda one: one.state is State.CAUGHT_UP or one.state.is_stop)
    assert [offset for offset, _ in read_all(forgetful, topic_name)] == list(range(50, 60))


@pytest.fixture
def frozen(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> Iterator[tuple[Command, Path, str]]:
    """A live mirror that is frozen with its work done: itself, its configuration, and a group that it follows."""
    source, target, group = own_source.bootstrap, own_target.bootstrap, f"{topic_name}-readers"
    make_topic(source, topic_name)
    produce(source, topic_name, values(100), begin_ms=RECENT_MS)
    commit(source, group, topic_name, 60)
    path = config_file(tmp_path, source, target, [topic_name], topic_name)
    content = json.loads(path.read_text()) | {"groups": {"include": [group]}, "metrics": {"listen": None}}
    path.write_text(json.dumps(content | {"spark": {"tasks": 1}}))
    mirror = Command(tmp_path, "run", str(path), "--json")
    _until(lambda: committed(target, group, topic_name) == 60)
    _until(lambda: _status(tmp_path, path)["next_offset"] == 100)
    mirror.send(signal.SIGSTOP)
    yield mirror, path, group
    mirror.end()


@pytest.mark.brokers
def test_groups_of_a_flow_that_was_failed_over_stay_where_they_are(
    frozen: tuple[Command, Path, str],
    own_source: Cluster,
    own_target: Cluster,
    topic_name: str,
    tmp_path: Path,
) -> None:
    """Somebody puts one back on the target, and on the source it reads on."""
    mirror, path, group = frozen
    assert Command(tmp_path, "failover", str(path)).wait(TIMEOUT) == 4, "a mirror that is silent is named"
    commit(own_target.bootstrap, group, topic_name, 10)
    commit(own_source.bootstrap, group, topic_name, 80)
    mirror.send(signal.SIGCONT)
    assert mirror.wait(TIMEOUT) == 0
    assert committed(own_target.bootstrap, group, topic_name) == 10


@pytest.mark.brokers
def test_the_journal_keeps_what_the_next_mirror_wrote(
    frozen: tuple[Command, Path, str],
    own_source: Cluster,
    own_target: Cluster,
    topic_name: str,
    tmp_path: Path,
) -> None:
    """Where the copy is, its state, and who ended."""
    mirror, path, _ = frozen
    produce(own_source.bootstrap, topic_name, values(50))
    second = Command(tmp_path, "run", str(path), "--once", "--json")
    assert second.wait(TIMEOUT) == 0
    before = _journal(own_source, own_target, topic_name)
    mirror.send(signal.SIGCONT)
    assert mirror.wait(TIMEOUT) == 4, "the flow was taken over"
    after = _journal(own_source, own_target, topic_name)
    assert after[b"ended"] == before[b"ended"]
    at = TopicPartition(topic_name, 0)
    assert standing_in(after).positions[at].target_end == standing_in(before).positions[at].target_end == 150
    assert _status(tmp_path, path)["next_offset"] == 150


def _journal(source: Cluster, target: Cluster, flow: str) -> dict[bytes, bytes]:
    settings = settings_between(source.bootstrap, target.bootstrap, [flow], flow)

    async def read() -> dict[bytes, bytes]:
        async with Wire(Endpoint.of(settings.target)) as there:
            return await Journal(there, flow).newest()

    return asyncio.run(read())


def _status(folder: Path, config: Path) -> dict[str, Any]:
    asked = Command(folder, "status", str(config), "--json", "--log-level", "error")
    assert asked.wait(TIMEOUT) == 0, asked.logged
    found: dict[str, Any] = next(iter(json.loads(asked.printed)["partitions"]), {"next_offset": -1})
    return found


def _until(come_about: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not come_about():
        assert time.monotonic() < deadline
        time.sleep(0.2)
