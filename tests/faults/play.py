"""Runs a schedule against two clusters, and lets the checker judge its end."""

from __future__ import annotations

import contextlib
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from math import inf
from pathlib import Path
from random import Random
from typing import Final, Self, TypeVar

from checker import Dump, Expected, Finding, check, dump
from confluent_kafka import Consumer, KafkaException, TopicPartition
from helpers import settings_between
from waiting import DEADLINE_S, until

from mirror.driver.flow import Flow, prepare
from mirror.kafka.cluster import Endpoint
from mirror.kafka.cluster import TopicPartition as WirePartition
from mirror.lab.embedded import Cluster
from mirror.states import State

from .mirroring import Mirror, Standing
from .moving import Moves
from .network import Network, Rule
from .outcome import Played
from .points import REQUESTS, Strike
from .schedule import Chunk, Crash, Die, Disturb, Double, Fall, Fault, Hang, Round, Schedule, Sleep
from .workload import Topic, admin, create

T = TypeVar("T")

#: Seconds after which a topic is taken without holes, where the cleaner finds nothing to do.
_CLEANING_SECONDS: Final = 4.0
#: What a broker may need for what a dead client sent, or to put cleaned segments in place.
_SETTLING_SECONDS: Final = 0.3
_ROLLING: Final = Chunk(partition=0, batches=1, records=1, value_bytes=10, codec="none", age_ms=0)
#: Topics keep everything, however old; and the brokers' own cleaning comes soon.
KEPT: Final = {"retention.ms": "-1"}
COMPACTED: Final = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.001",
    "max.compaction.lag.ms": "100",
    "delete.retention.ms": "100",
}
#: A broker that is killed must remember where logs begin: it keeps that once a minute, otherwise.
BROKERS: Final = {
    "log.cleaner.backoff.ms": 200,
    "producer.id.expiration.check.interval.ms": 1000,
    "log.flush.start.offset.checkpoint.interval.ms": 100,
    "log.initial.task.delay.ms": 100,
}
#: Besides, for clusters of three: every topic is on all, and two must have what is acknowledged.
REPLICATED: Final = BROKERS | {"default.replication.factor": 3, "min.insync.replicas": 2}


class Player:
    """Two clusters behind proxies; a context manager. Clusters that crash in schedules must be nobody else's."""

    def __init__(self, source: Cluster, target: Cluster, folder: Path) -> None:
        self._clusters = {"source": source, "target": target}
        self._networks = {"source": Network(source.bootstrap), "target": Network(target.bootstrap)}
        self._folder = folder
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for network in self._networks.values():
            self._stack.enter_context(network)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def play(self, schedule: Schedule) -> Played:
        """Run it, and judge."""
        return _Play(self._clusters, self._networks, self._folder, schedule).run()


class _Play:
    """One schedule under way."""

    def __init__(
        self, clusters: dict[str, Cluster], networks: dict[str, Network], folder: Path, schedule: Schedule
    ) -> None:
        self._clusters, self._networks, self._schedule = clusters, networks, schedule
        name = f"s{schedule.seed}-{uuid.uuid4().hex[:6]}"
        self._folder = folder / name
        self._folder.mkdir()
        self._played = Played(schedule, name)
        self._chance = Random(schedule.seed)
        self._flow: Flow | None = None
        self._mirrors: list[Mirror] = []
        self._before: dict[int, Dump] = {}
        source, target = (self._clusters[side].bootstrap for side in ("source", "target"))
        self._moves = Moves(source, target, name, schedule.partitions) if schedule.moves else None
        self._journal_share: float | None = None
        self._forgotten = False

    def run(self) -> Played:
        began = time.monotonic()
        schedule, name = self._schedule, self._played.topic
        topic = Topic(
            self._clusters["source"].bootstrap,
            name,
            schedule.partitions,
            COMPACTED if schedule.compacted else KEPT,
            schedule.seed,
        )
        try:
            for number, one in enumerate(schedule.rounds):
                topic.write(one.chunks)
                if schedule.compacted and number == 0:
                    self._compact(topic)
                    create(admin(self._clusters["target"].bootstrap), topic.name, schedule.partitions, KEPT)
                if self._moves and (one.compacts or one.trims):
                    self._moves.remember(_settled(self._mirrored))
                if one.compacts:
                    topic.configure(COMPACTED)
                    self._compact(topic)
                self._trim(topic, one)
                if self._moves and one.loses_journal and self._flow:
                    self._moves.lose_journal()
                    self._forgotten = True
                    self._log("the journal is lost")
                self._journal_share = one.journal_share
                self._log(f"round {number}: {one.fault}")
                self._suffer(one.fault)
            for network in self._networks.values():
                network.disturb()
            last = self._start()
            self._finish(last, "the last mirror")
            self._judge(last.report)
        finally:
            for mirror in self._mirrors:
                mirror.end()
        self._played.seconds = time.monotonic() - began
        return self._played

    def _log(self, text: str) -> None:
        self._played.lines.append(text)

    def _fail(self, text: str) -> None:
        self._played.failures.append(text)

    # --- the flow

    def _prepared(self) -> Flow:
        """The flow, made at first use: topics on the target are made when the mirror first starts."""
        if self._flow is None:
            source, target = (self._clusters[side].bootstrap for side in ("source", "target"))
            name, size = self._played.topic, self._schedule.coalesce_bytes
            more: dict[str, object] = {"coalesce_bytes": size} if size else {}
            if self._schedule.moves:
                more |= {"offsets": "translate", "on_data_loss": "continue"}
            flow = prepare(settings_between(source, target, [name], name, **more), once=True)
            behind = {
                side: Endpoint(side, tuple(_addresses(network.bootstrap))) for side, network in self._networks.items()
            }
            self._flow = replace(flow, source=behind["source"], target=behind["target"])
        return self._flow

    def _start(self, strike: Strike | None = None) -> Mirror:
        mirror = Mirror(self._prepared(), self._folder, strike, journal_share=self._journal_share)
        self._mirrors.append(mirror)
        return mirror

    def _finish(self, mirror: Mirror, who: str) -> int | None:
        """Wait for its end; anything but a good end or a SIGKILL is a failure."""
        code = mirror.wait(DEADLINE_S)
        self._forgotten |= code != 0
        if code not in (0, -signal.SIGKILL):
            self._fail(f"{who} ended with {code}: {mirror.log[-2000:]}")
            mirror.end()
        return code

    def _compact(self, topic: Topic) -> None:
        """Wait until the cleaner made holes, then let it rest: what is mirrored must not vanish from the source."""
        written = self._held()
        rolling = [replace(_ROLLING, partition=partition) for partition in range(self._schedule.partitions)]
        deadline = time.monotonic() + _CLEANING_SECONDS
        while (held := self._held()) >= written and time.monotonic() < deadline:
            # who appends after `segment.ms` closes a segment, and only closed ones are cleaned
            topic.write(rolling)
            written += len(rolling)
            time.sleep(0.2)
        topic.configure({"cleanup.policy": "delete", "retention.ms": "-1"})
        _settled(self._held)
        self._log(f"compacted from {written} records to {held}")

    def _held(self) -> int:
        held = dump(self._clusters["source"].bootstrap, self._played.topic, uncommitted=False)
        return sum(len(one.committed) for one in held.values())

    # --- faults

    def _trim(self, topic: Topic, one: Round) -> None:
        for trim in one.trims:
            dumped = dump(self._clusters["source"].bootstrap, topic.name, uncommitted=False)
            reached = dumped[trim.partition].end
            if trim.mirrored_only:
                reached = self._moves.reached(trim.partition) if self._moves else self._mirrored()[trim.partition]
            start = dumped[trim.partition].start
            before = start + int((reached - start) * trim.share)
            if before <= start:
                continue
            known = self._before
            self._before = {at: item.over(known[at]) if known else item for at, item in dumped.items()}
            topic.trim(trim.partition, before)
            if self._moves:
                self._moves.deleted(trim.partition, dumped[trim.partition].committed, before)
            self._log(f"partition {trim.partition} begins at {before}, was {start}")

    def _suffer(self, fault: Fault) -> None:
        match fault:
            case Die():
                mirror = self._start(Strike(fault.point, fault.count))
                code = self._finish(mirror, "a mirror that was to die")
                self._log(f"  exit {code}, mirrored {self._mirrored()}")
            case Fall():
                self._fall(fault)
            case Sleep():
                self._sleep(fault)
            case Double():
                one = self._start()
                time.sleep(fault.seconds)
                other = self._start()
                self._finish(one, "the first mirror")
                self._finish(other, "the second mirror")
                self._log(f"  {_outcome(one)} / {_outcome(other)}")
            case Disturb():
                rule = Rule(fault.what, REQUESTS[fault.request], fault.count, fault.seconds, self._chance)
                self._networks[fault.side].disturb(rule)
                mirror = self._start()
                self._finish(mirror, "a disturbed mirror")
                self._networks[fault.side].disturb()
                self._log(f"  {'fired' if rule.fired else 'not reached'}; {_outcome(mirror)}")
            case Hang():
                self._hang(fault)
            case Crash():
                self._crash(fault)

    def _fall(self, fault: Fall) -> None:
        ends, begun = self._ends("source") if not self._moves else self._moves.totals(), self._mirrored()
        goal = sum(begun) + fault.share * (sum(ends) - sum(begun))
        mirror = self._start()
        while mirror.is_alive and sum(self._mirrored()) < goal:
            pass
        time.sleep(fault.delay)
        mirror.end()
        self._forgotten = True
        self._log(f"  killed at {self._mirrored()} of {ends}")

    def _sleep(self, fault: Sleep) -> None:
        sleeper = self._start(Strike(fault.point, fault.count, signal.SIGSTOP))
        until(lambda: sleeper.is_suspended or not sleeper.is_alive)
        successor = self._start()
        frozen = sleeper.is_suspended
        time.sleep(fault.seconds)
        sleeper.send(signal.SIGCONT)
        self._finish(successor, "a successor")
        self._finish(sleeper, "a mirror that slept")
        self._log(f"  {'slept' if frozen else 'not reached'}: {_outcome(sleeper)}; successor: {_outcome(successor)}")

    def _hang(self, fault: Hang) -> None:
        cluster = self._clusters[fault.side]
        node = self._chance.randrange(len(cluster.nodes))
        mirror = self._under_way()
        cluster.suspend(node)
        try:
            time.sleep(fault.seconds)
        finally:
            cluster.resume(node)
        self._finish(mirror, "a mirror whose broker hung")
        self._log(f"  broker {node}: {_outcome(mirror)}")

    def _crash(self, fault: Crash) -> None:
        cluster = self._clusters[fault.side]
        node = self._chance.randrange(len(cluster.nodes))
        mirror = self._under_way()
        cluster.kill(node)
        cluster.restart(node)
        self._finish(mirror, "a mirror whose broker died")
        self._log(f"  broker {node}: {_outcome(mirror)}")

    def _under_way(self) -> Mirror:
        """A mirror that has begun to copy, or is done already."""
        begun = sum(self._mirrored())
        mirror = self._start()
        until(lambda: sum(self._mirrored()) > begun or not mirror.is_alive)
        return mirror

    # --- the end

    def _judge(self, report: Mapping[WirePartition, Standing]) -> None:
        """Every partition must be equal, or stopped for a cause that docs/states.md names, and equal up to there."""
        for at, one in report.items():
            if one.state.is_stop:
                self._played.stops.append(f"{at}: {one.state} at {one.next_offset}: {one.detail}")
                if not self._may_stop(one.state):
                    self._fail(f"{at} stopped as {one.state}, which nothing in this schedule explains")
            elif not one.is_copied:
                self._fail(f"{at} did not get on: {one.state} at {one.next_offset} of {one.until}: {one.detail}")
        if not report:
            self._fail("the last mirror reported nothing")
        stopped = {at.partition for at, one in report.items() if one.state.is_stop}
        for found in self._moves.findings(forgotten=self._forgotten) if self._moves else self._differences():
            reported = found.partition in stopped and found.first >= self._contended(found.partition)
            (self._played.excused if reported else self._played.findings).append(found)

    def _differences(self) -> list[Finding]:
        source, target = (self._clusters[side].bootstrap for side in ("source", "target"))
        expected = Expected(same_start=not self._before)
        return check(source, target, self._played.topic, expected=expected, before=self._before or None)

    def _contended(self, partition: int) -> float:
        """The target offset where two mirrors first learned of each other; from there on nothing is promised."""
        if not self._schedule.may_repeat:
            return inf
        standings = (one for mirror in self._mirrors for at, one in mirror.report.items() if at.partition == partition)
        first = min((one.next_offset for one in standings if one.state.is_stop), default=-1)
        if first < 0:
            return inf
        return self._moves.place(partition, first) if self._moves else first

    def _may_stop(self, state: State) -> bool:
        """docs/guarantees.md: markers have no number, and batches none that a broker remembers when they are old."""
        return state in (State.FENCED, State.DIVERGED, State.TRUNCATED) and self._schedule.may_repeat

    def _mirrored(self) -> list[int]:
        """The target's log ends, 0 for a partition that is not there yet."""
        return self._ends("target")

    def _ends(self, side: str) -> list[int]:
        consumer = Consumer({"bootstrap.servers": self._clusters[side].bootstrap, "group.id": "none", "log_level": 0})
        try:
            return [_end(consumer, self._played.topic, at) for at in range(self._schedule.partitions)]
        finally:
            consumer.close()


def _end(consumer: Consumer, topic: str, partition: int) -> int:
    with contextlib.suppress(KafkaException):
        reported = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=2)
        return int(reported[1])
    return 0


def _outcome(mirror: Mirror) -> str:
    report = mirror.report
    return ", ".join(f"{one.state} {one.next_offset}/{one.until}" for one in report.values()) or "no report"


def _settled(read: Callable[[], T]) -> T:
    """What it comes to, once it stays: a broker goes on with the requests of a process that is gone."""
    seen = read()
    while True:
        time.sleep(_SETTLING_SECONDS)
        before, seen = seen, read()
        if before == seen:
            return seen


def _addresses(bootstrap: str) -> Iterator[tuple[str, int]]:
    for one in bootstrap.split(","):
        host, port = one.split(":")
        yield host, int(port)
