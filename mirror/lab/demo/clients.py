"""An application on both sides of a mirror, as containers run it.

    python -m mirror.lab.demo.clients create     make the topic, where it is not there yet
    python -m mirror.lab.demo.clients write      RATE records a second, until SIGTERM
    python -m mirror.lab.demo.clients read       as a member of a consumer group, until SIGTERM
    python -m mirror.lab.demo.clients stands HOST:PORT     where that group stands there

Each follows an address in a file, as applications follow a service's name: while there is no such file, the address is
that of the variable BOOTSTRAP; whoever writes another one into it moves the application to another cluster.

A record's value has its number in the partition, which is its offset: the writer numbers on from the log's end. So the
reader knows, of each record, whether any was lost, repeated or moved. It goes on where its group stands, never at
a place of its own choosing, and ends with exit code 5 at the first record that is not the one it expects.

What both write to stdout is JSON, a line at a time.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaException, Message, Producer, TopicPartition

from mirror.config import ClusterSettings
from mirror.errors import ClusterError, ExitCode, MirrorError
from mirror.kafka.admin import Admin, Creation
from mirror.lab.demo.producers import pool
from mirror.policy.rules import NO_LIMIT

PARTITIONS: Final = 3
#: How often a client looks whether it is to move, says how far it is, and the reader commits.
ROUND_S: Final = 1.0
#: What a cluster that is being left has to take what is under way.
LEAVING_S: Final = 3.0
DEADLINE_S: Final = 10.0
_TICK_S: Final = 0.02


class LostRecord(MirrorError):
    """The reader got another record than the next one."""

    exit_code = ExitCode.DIFFERENT


@dataclass(frozen=True, slots=True)
class ClientPlace:
    """Where a client works, and where it says that it lives."""

    topic: str
    group: str
    bootstrap: str
    address: Path
    alive: Path

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> ClientPlace:
        """From the variables TOPIC, GROUP, BOOTSTRAP, ADDRESS_FILE and ALIVE_FILE. Raises KeyError."""
        return cls(
            topic=environment["TOPIC"],
            group=environment["GROUP"],
            bootstrap=environment["BOOTSTRAP"],
            address=Path(environment["ADDRESS_FILE"]),
            alive=Path(environment["ALIVE_FILE"]),
        )

    def cluster(self) -> str:
        """The bootstrap address of now."""
        try:
            return self.address.read_text(encoding="utf-8").strip() or self.bootstrap
        except FileNotFoundError:
            return self.bootstrap


def say(event: str, **values: object) -> None:
    """A line of the log."""
    print(json.dumps({"event": event, **values}), flush=True)


def create(place: ClientPlace) -> None:
    """The topic, where it is not there yet. Raises ClusterError."""
    settings = ClusterSettings.model_validate({"alias": "first", "bootstrap.servers": place.cluster()})
    # A flow in the other direction would advise this, so that nobody's clock holds it up: copies are made with it.
    configs = {"message.timestamp.after.max.ms": str(NO_LIMIT)}
    topic = Creation(topic=place.topic, partitions=PARTITIONS, replication_factor=1, configs=configs)
    Admin(settings).create_topics([topic])
    say("topic_is_there", cluster=place.cluster(), topic=place.topic)


def ends_of(bootstrap: str, topic: str) -> dict[int, int]:
    """The log ends of a topic by partition. Raises KafkaException."""
    consumer = Consumer({**client(bootstrap), "group.id": "none"})
    try:
        partitions = consumer.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions
        return {
            partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=DEADLINE_S)[1]
            for partition in partitions
        }
    finally:
        consumer.close()


def stands(place: ClientPlace, bootstrap: str) -> dict[int, int]:
    """The offsets that the group has committed there, by partition, where it has. Raises KafkaException."""
    consumer = Consumer({**client(bootstrap), "group.id": place.group})
    try:
        partitions = consumer.list_topics(place.topic, timeout=DEADLINE_S).topics[place.topic].partitions
        return _committed(consumer, [TopicPartition(place.topic, partition) for partition in partitions])
    finally:
        consumer.close()


def _committed(consumer: Consumer, partitions: list[TopicPartition]) -> dict[int, int]:
    found = consumer.committed(partitions, timeout=DEADLINE_S)
    return {partition.partition: partition.offset for partition in found if partition.offset != OFFSET_INVALID}


def client(bootstrap: str) -> dict[str, Any]:
    """What both kinds of clients are set to; librdkafka's own complaints would drown the few lines that matter."""
    return {
        "bootstrap.servers": bootstrap,
        "client.id": "mirror-shop",
        "log_level": 0,
        "topic.metadata.refresh.interval.ms": 1000,
    }


class RecordWriter:
    """Writes `rate` records a second, in turn to each partition, to the cluster of now."""

    def __init__(self, place: ClientPlace, rate: int, stopping: threading.Event) -> None:
        self._place, self._rate, self._stopping = place, rate, stopping
        self._pool = pool(count=1000)

    def run(self) -> None:
        """Until it is asked to stop, then until everything is acknowledged. Raises ClusterError."""
        while not self._stopping.is_set():
            bootstrap = self._place.cluster()
            try:
                ends = ends_of(bootstrap, self._place.topic)
            except KafkaException as problem:
                say("cluster_away", cluster=bootstrap, reason=str(problem.args[0]))
                self._place.alive.touch()
                self._stopping.wait(ROUND_S)
                continue
            say("writing", cluster=bootstrap, next=ends)
            self._write_to(bootstrap, ends)

    def _write_to(self, bootstrap: str, ends: dict[int, int]) -> None:
        failed = threading.Event()

        def acknowledged(error: object, _: Message) -> None:
            if error is not None:
                failed.set()

        # One in flight and numbers from the log's end: a record that is not acknowledged leaves no hole in the numbers.
        producer = Producer(
            {
                **client(bootstrap),
                "compression.type": "zstd",
                "linger.ms": 25,
                "enable.idempotence": True,
                "delivery.timeout.ms": 30_000,
                "on_delivery": acknowledged,
            }
        )
        began, sent, reported = time.monotonic(), 0, time.monotonic()
        while not self._stopping.wait(_TICK_S) and not failed.is_set():
            while sent < (time.monotonic() - began) * self._rate:
                partition = sent % len(ends)
                text = self._pool[sent % len(self._pool)]
                value = json.dumps({"number": ends[partition], "record": text.value.decode()})
                producer.produce(self._place.topic, value, text.key, partition=partition)
                ends[partition] += 1
                sent += 1
            producer.poll(0)
            if time.monotonic() - reported >= ROUND_S:
                reported = time.monotonic()
                self._place.alive.touch()
                if self._place.cluster() != bootstrap:
                    break
        leaving = self._place.cluster() != bootstrap
        left = producer.flush(LEAVING_S if leaving else DEADLINE_S)
        say("stopped_writing", cluster=bootstrap, next=ends, written=sent, unacknowledged=left)
        if left:
            producer.purge()
            producer.flush(0)


@dataclass(slots=True)
class Progress:
    """The next offset to read in each partition, as far as it is known, and what was read."""

    next: dict[int, int] = field(default_factory=dict)
    read: int = 0
    repeated: int = 0

    def take(self, partition: int, offset: int, number: int) -> None:
        """Account for a record. Raises LostRecord."""
        expected = self.next.get(partition, offset)
        if number != offset:
            raise LostRecord(f"partition {partition}: the record at offset {offset} has number {number}")
        if offset > expected:
            raise LostRecord(f"partition {partition}: offset {offset} came where {expected} was expected")
        if offset < expected:
            self.repeated += 1
            return
        self.next[partition] = offset + 1
        self.read += 1


class GroupReader:
    """Reads as a member of the group, on the cluster of now, and commits once a second."""

    def __init__(self, place: ClientPlace, stopping: threading.Event) -> None:
        self._place, self._stopping = place, stopping
        self._committed: dict[int, int] = {}
        self._failing = False
        self.progress = Progress()

    def run(self) -> None:
        """Until it is asked to stop. Raises LostRecord, ClusterError."""
        first = True
        while not self._stopping.is_set():
            self._read_from(self._place.cluster(), begins_anew=first)
            first = False

    def _read_from(self, bootstrap: str, *, begins_anew: bool) -> None:
        self._committed = {}
        # Behind a failover a group without an offset is an error: it would read everything again, or skip some of it.
        consumer = Consumer(
            {
                **client(bootstrap),
                "group.id": self._place.group,
                "enable.auto.commit": False,
                "on_commit": self._was_committed,
                "auto.offset.reset": "earliest" if begins_anew else "error",
                "session.timeout.ms": 6000,
            }
        )
        consumer.subscribe([self._place.topic], on_assign=self._assigned(bootstrap))
        reported = time.monotonic()
        try:
            while not self._stopping.is_set():
                for message in consumer.consume(500, timeout=0.1):
                    self._take(message)
                if time.monotonic() - reported < ROUND_S:
                    continue
                reported = time.monotonic()
                self._place.alive.touch()
                if self._place.cluster() != bootstrap:
                    say("leaving", cluster=bootstrap)
                    return
                self._commit(consumer, bootstrap, waits=False)
            self._commit(consumer, bootstrap, waits=True)
        finally:
            consumer.close()

    def _assigned(self, bootstrap: str) -> Callable[[Consumer, list[TopicPartition]], None]:
        def on_assign(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            group = _committed(consumer, partitions)
            say("assigned", cluster=bootstrap, group_stands_at=group, expected=self.progress.next)

        return on_assign

    def _take(self, message: Message) -> None:
        if problem := message.error():
            if not problem.retriable():
                raise ClusterError(str(problem))
            return
        partition, offset, value = message.partition(), message.offset(), message.value()
        assert partition is not None
        assert offset is not None
        assert value is not None
        self.progress.take(partition, offset, int(json.loads(value)["number"]))

    def _commit(self, consumer: Consumer, bootstrap: str, *, waits: bool) -> None:
        """Where nobody waits for the answer, a cluster that is away holds nothing up."""
        known = self.progress
        say("read", cluster=bootstrap, next=known.next, committed=self._committed, repeated=known.repeated)
        if known.next == self._committed:
            return
        reached = [TopicPartition(self._place.topic, one, at) for one, at in known.next.items()]
        if waits:
            consumer.commit(offsets=reached, asynchronous=False)
        else:
            consumer.commit(offsets=reached, asynchronous=True)

    def _was_committed(self, problem: object, partitions: list[TopicPartition]) -> None:
        if problem is not None:
            if not self._failing:  # once a second it would be until the group's cluster is back
                say("not_committed", reason=str(problem))
            self._failing = True
            return
        self._failing = False
        self._committed |= {partition.partition: partition.offset for partition in partitions}


def main(arguments: list[str], environment: Mapping[str, str] = MappingProxyType(os.environ)) -> int:
    """Do what is asked for; the exit code."""
    place, stopping = ClientPlace.of(environment), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    try:
        match arguments:
            case ["create"]:
                create(place)
            case ["write"]:
                RecordWriter(place, int(environment["RATE"]), stopping).run()
            case ["read"]:
                GroupReader(place, stopping).run()
            case ["stands", bootstrap]:
                say("group", cluster=bootstrap, stands_at=stands(place, bootstrap))
            case _:
                print(__doc__, file=sys.stderr)
                return ExitCode.USAGE
    except MirrorError as problem:
        say("ended", reason=str(problem))
        return problem.exit_code
    except KafkaException as problem:
        say("ended", reason=str(problem.args[0]))
        return ExitCode.CLUSTER
    return ExitCode.DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
