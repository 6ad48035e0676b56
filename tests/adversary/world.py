"""Two clusters that many schedules share, and what is done to them without the mirror.

Restarts of brokers are for all at once: whoever wants one waits until every schedule that is being played waits or has
ended, so that none of them meets a broker that is away where it does not expect it.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, Final, Literal, Self, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from crashcut import crash_and_cut_all, damage, stored_ends
from waiting import DEADLINE_S

from mirror.lab.embedded import Cluster, Spec, start_many

from .logs import Record

Side = Literal["source", "target"]
SIDES: Final[tuple[Side, Side]] = ("source", "target")
#: Brokers that look after retention and their cleaner at once, so that what a setting destroys is gone within a second.
BROKERS: Final[Mapping[str, str | int | bool]] = {
    "log.retention.check.interval.ms": 400,
    "log.initial.task.delay.ms": 100,
    "log.flush.start.offset.checkpoint.interval.ms": 100,
    "log.cleaner.backoff.ms": 500,
    "producer.id.expiration.check.interval.ms": 1000,
    "file.delete.delay.ms": 1000,
    "group.min.session.timeout.ms": 1000,
}
#: What an old record's timestamp lies back; equal records have the time of the full hour.
OLD_MS: Final = 30 * 24 * 3_600_000
HOUR_MS: Final = 3_600_000
T = TypeVar("T")


class OneSide:
    """One cluster, as administrators and applications see it."""

    def __init__(self, name: Side, cluster: Cluster) -> None:
        self.name, self.cluster = name, cluster
        self.admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})

    @property
    def bootstrap(self) -> str:
        """`bootstrap.servers`."""
        return self.cluster.bootstrap

    def create(self, topic: str, partitions: int, configs: Mapping[str, str]) -> None:
        """A topic with leaders; one of that name that is still being deleted is waited for."""

        def made() -> None:
            self.admin.create_topics([NewTopic(topic, partitions, 1, config=dict(configs))])[topic].result(DEADLINE_S)

        self._again(made, KafkaError.TOPIC_ALREADY_EXISTS)
        self._until(lambda: self._leaders(topic) == partitions, f"{topic} has no leaders")

    def delete(self, topic: str) -> None:
        """Delete a topic, if it is there."""
        with suppress(KafkaException):
            self.admin.delete_topics([topic])[topic].result(DEADLINE_S)
        self._until(lambda: self._leaders(topic) < 0, f"{topic} is not deleted")

    def forget(self, topics: Sequence[str]) -> None:
        """Delete topics without waiting for it."""
        if topics:
            self.admin.delete_topics(list(topics))

    def grow(self, topic: str, partitions: int) -> None:
        """To so many partitions."""
        self.admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(DEADLINE_S)
        self._until(lambda: self._leaders(topic) == partitions, f"{topic} did not grow")

    def configure(self, topic: str, configs: Mapping[str, str]) -> None:
        """Set these of a topic's settings, and put all others back."""
        before = self.configs(topic)
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in configs.items()
        ] + [
            ConfigEntry(name, None, incremental_operation=AlterConfigOpType.DELETE)
            for name in before
            if name not in configs
        ]
        if entries:
            asked = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
            self.admin.incremental_alter_configs([asked])[asked].result(DEADLINE_S)

    def configs(self, topic: str) -> dict[str, str]:
        """The settings that a topic was given."""
        asked = ConfigResource(ResourceType.TOPIC, topic)
        found = self.admin.describe_configs([asked])[asked].result(DEADLINE_S)
        return {
            name: one.value
            for name, one in found.items()
            if one.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value and one.value is not None
        }

    def expire(self, topic: str, partition: int, before: int) -> None:
        """Delete the records before an offset, as retention does, unless a topic is compacted alone."""
        at = TopicPartition(topic, partition, before)
        try:
            self._again(lambda: self.admin.delete_records([at])[at].result(DEADLINE_S))
        except KafkaException as problem:
            if problem.args[0].code() != KafkaError.POLICY_VIOLATION:
                raise

    def produce(
        self, topic: str, partition: int, records: int, kind: str, chance: Random, name: str
    ) -> dict[int, Record]:
        """So many records in batches of a few, and what was delivered where, unless it was aborted. `kind`: as in
        `operations.KINDS`, or "alike", of which each batch is the same; values are distinguished by `name`.
        """
        delivered = dict[int, Record]()

        def note(error: KafkaError | None, one: Message) -> None:
            if error is None:
                delivered[one.offset() or 0] = Record(one.timestamp()[1], one.key(), one.value(), ())

        settings: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap,
            "compression.type": chance.choice(("none", "none", "lz4", "zstd", "gzip")),
            "linger.ms": 1000,
            "acks": "all",
            "log_level": 0,
        }
        is_transaction = kind in {"commit", "abort"}
        if is_transaction:
            settings |= {"transactional.id": f"{topic}-{uuid.uuid4().hex[:6]}", "transaction.timeout.ms": 5000}
        producer = Producer(settings)
        if is_transaction:
            self._again(lambda: producer.init_transactions(DEADLINE_S))
            producer.begin_transaction()
        now = int(time.time() * 1000) - (OLD_MS if kind == "old" else 0)
        for number in range(records):
            key = b"k%d" % chance.randrange(4) if kind == "keyed" else b"n%d" % number
            value = None if kind == "keyed" and chance.random() < 0.1 else f"{name}.{number}".encode()
            at = now + number
            if kind == "alike":
                key, value, at = b"beat", b"beat", now - now % HOUR_MS
            producer.produce(topic, value, key, partition=partition, timestamp=at, on_delivery=note)
            if number % 3 == 2 and (kind == "alike" or chance.random() < 0.7):
                assert not producer.flush(DEADLINE_S)
        assert not producer.flush(DEADLINE_S), f"{topic}: records were not delivered"
        if kind == "commit":
            producer.commit_transaction(DEADLINE_S)
        elif kind == "abort":
            producer.abort_transaction(DEADLINE_S)
        return {} if kind == "abort" else delivered

    def commit(self, group: str, positions: Mapping[tuple[str, int], int]) -> None:
        """Put a group without members where its reader has read up to."""
        at = [TopicPartition(topic, partition, offset) for (topic, partition), offset in positions.items()]
        self._as(group, lambda consumer: consumer.commit(offsets=at, asynchronous=False))

    def committed(self, group: str, places: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Where a group stands, of those of its partitions that it stands at anywhere."""
        if not places:
            return {}
        asked = [TopicPartition(*place) for place in places]
        found = self._as(group, lambda consumer: consumer.committed(asked, timeout=DEADLINE_S))
        return {(one.topic, one.partition): one.offset for one in found if one.offset >= 0 and not one.error}

    def _as(self, group: str, request: Callable[[Consumer], T]) -> T:
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group, "log_level": 0})
        try:
            return self._again(lambda: request(consumer))
        finally:
            consumer.close()

    def _leaders(self, topic: str) -> int:
        known = self.admin.list_topics(timeout=DEADLINE_S).topics.get(topic)
        if known is None or known.error is not None:
            return -1
        return sum(one.leader >= 0 for one in known.partitions.values())

    def _again(self, ask: Callable[[], T], *retriable: int) -> T:
        """Ask until there is an answer: brokers restart."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                return ask()
            except KafkaException as problem:
                error = problem.args[0]
                if time.monotonic() > deadline or not (error.retriable() or error.code() in (*_TRANSIENT, *retriable)):
                    raise
            time.sleep(0.05)

    def _until(self, holds: Callable[[], bool], text: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            with suppress(KafkaException):
                if holds():
                    return
            assert time.monotonic() < deadline, text
            time.sleep(0.02)


_TRANSIENT: Final = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._TIMED_OUT,
    KafkaError._WAIT_COORD,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._NOENT,
)


class World:
    """The clusters, and the restarts that schedules share. A context manager."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._gathering = threading.Condition()
        self._playing = self._waiting = self._round = 0
        self._cuts: dict[Side, dict[tuple[str, int], int | None]] = {}
        #: How often a side's broker crashed, and read its logs again up to what is damaged.
        self.crashes: dict[Side, int] = dict.fromkeys(SIDES, 0)

    def __enter__(self) -> Self:
        clusters = start_many([Spec(name=f"adversary-{side}", config=BROKERS) for side in SIDES])
        self.sides = {side: OneSide(side, cluster) for side, cluster in zip(SIDES, clusters, strict=True)}
        self.source, self.target = self.sides["source"], self.sides["target"]
        return self

    def __exit__(self, *_: object) -> None:
        for side in self.sides.values():
            side.cluster.stop()

    @contextmanager
    def playing(self) -> Iterator[None]:
        """While a schedule is played; none begins while others wait for all."""
        with self._gathering:
            self._gathering.wait_for(lambda: not self._waiting)
            self._playing += 1
        try:
            yield
        finally:
            with self._gathering:
                self._playing -= 1
                self._gathering.notify_all()

    def cut_below(self, side: Side, topic: str, partition: int, start: int, share: int) -> int:
        """Return where a log that begins at `start` may be cut: behind one of its batches, at a share of these in
        percent; the last one is always cut off.
        """
        ends = [end for end in stored_ends(self.sides[side].cluster, topic, partition) if end > start]
        return [start, *ends][len(ends) * min(share, 90) // 100]

    def damage(self, side: Side, topic: str, partition: int, above: int, share: int) -> tuple[int, int] | None:
        """Damage a batch on a broker's disk; its offsets, from and to before, if there is one."""
        return damage(self.sides[side].cluster, topic, partition, above, share)

    def crash(self, side: Side, topic: str, partition: int, below: int) -> None:
        """Kill the broker, cut a partition's log down to an offset, and start it again."""
        self._together(side, (topic, partition), below)

    def _together(self, side: Side, place: tuple[str, int], below: int) -> None:
        with self._gathering:
            self._cuts.setdefault(side, {})[place] = below
            self._waiting += 1
            turn = self._round
            self._gathering.wait_for(lambda: self._round > turn or self._waiting >= self._playing)
            if self._round == turn:
                cuts, self._cuts = self._cuts, {}
                for cut_side, cut in cuts.items():
                    crash_and_cut_all(self.sides[cut_side].cluster, cut, waits=False)
                    self.crashes[cut_side] += 1
                self._waiting, self._round = 0, self._round + 1
                self._gathering.notify_all()
