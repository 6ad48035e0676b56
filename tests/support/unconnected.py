"""A pipeline whose clusters are in this process: plain Fetch answers come to it, and each batch is acknowledged."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from uuid import UUID

from rawbatches import batch

from mirror.kafka.cluster import Leader, Topic, TopicPartition
from mirror.kafka.fetch import FetchRequest
from mirror.kafka.produce import ProduceRequest
from mirror.kafka.protocol import NO_TAGS, PART, Api, encode, to_varint
from mirror.policy.rules import Rules
from mirror.records.header import FIRST_ID, ProducerState
from mirror.replication.assignment import Assignment, LastPosition
from mirror.replication.cursor import Cursor
from mirror.replication.decide import Position
from mirror.replication.partition_writer import PartitionWriter, Premises
from mirror.replication.pipeline import Pipeline

_HEADER = bytes(4) + NO_TAGS
_MEMORY_BYTES = 64 << 20


def topic_id(topic: str) -> UUID:
    """Return the id that a topic has on both clusters."""
    return UUID(bytes=topic.encode().rjust(16)[:16])


def _topics(partitions: Iterable[TopicPartition], part: Callable[[TopicPartition], bytes]) -> bytes:
    topics: dict[str, list[TopicPartition]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic, []).append(partition)
    frame = bytearray(to_varint(len(topics) + 1))
    for topic, members in topics.items():
        frame += topic_id(topic).bytes + to_varint(len(members) + 1)
        for partition in members:
            frame += part(partition)
        frame += NO_TAGS
    return bytes(frame)


def fetch_frame(offsets: dict[TopicPartition, int], section: bytes) -> bytes:
    """Return a Fetch answer with one batch of one record of each partition, at these offsets."""

    def part(partition: TopicPartition) -> bytes:
        offset = offsets[partition]
        records = batch(offset, count=1, payload=section)
        fields = PART.pack(partition.partition, 0, offset + 1, offset + 1, 0)
        return fields + b"\x01" + bytes(4) + to_varint(len(records) + 1) + records + NO_TAGS

    return _HEADER + struct.pack(">ihi", 0, 0, 1) + _topics(offsets, part) + NO_TAGS


class Link:
    """One connection to each of both clusters."""

    is_open, request_timeout, unsent, address = True, None, 0, ("unconnected", 9092)

    def __init__(self, frames: Iterable[bytes]) -> None:
        """`frames` are the answers to Fetch, in their order; the pipeline is ended behind the last batch."""
        self._frames: Iterator[bytes] = iter(frames)
        self._asked = self._acknowledged = 0
        self._ends: dict[TopicPartition, int] = {}
        self.is_over = asyncio.Event()

    def version(self, api: Api) -> int:
        """Return the newest one."""
        return api.newest

    def expect(self, *_: Any) -> None:
        """Wait for nothing: there always is an answer."""

    async def call(self, _: Api, request: FetchRequest, _timeout: float) -> Any:
        """Answer a Fetch once what was given before is acknowledged."""
        encode(request, 1, "unconnected")
        while self._acknowledged < self._asked:
            await asyncio.sleep(0)
        await asyncio.sleep(0)  # the acks are taken
        if (frame := next(self._frames, None)) is None:
            self.is_over.set()
            await asyncio.Event().wait()
        answer = request.read(memoryview(frame or b""))
        self._asked += len(answer.parts)
        return answer

    def send(self, _: Api, request: ProduceRequest, may_go: Callable[[], bool]) -> asyncio.Future[Any]:
        """Acknowledge every batch where its log ends."""
        assert may_go()
        encode(request, 1, "unconnected")

        def part(partition: TopicPartition) -> bytes:
            end = self._ends.get(partition, 0)
            self._ends[partition] = end + 1
            return PART.pack(partition.partition, 0, end, -1, 0) + b"\x01\x00\x00"

        answer = request.read(memoryview(_HEADER + _topics(request.batches, part) + bytes(4) + NO_TAGS))
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def acknowledge() -> None:
            self._acknowledged += len(request.batches)
            future.set_result(answer)

        asyncio.get_running_loop().call_soon(acknowledge)
        return future


class _Cluster:
    """Either cluster, of one broker."""

    learned, endpoint, bucket = 0, None, None

    def __init__(self, link: Link, partitions: Iterable[TopicPartition]) -> None:
        self._link = link
        leaders: dict[str, dict[int, Leader]] = {}
        for partition in partitions:
            leaders.setdefault(partition.topic, {})[partition.partition] = Leader(0, 0)
        self.topics = {name: Topic(name, topic_id(name), parts) for name, parts in leaders.items()}

    async def refresh(self, *_: Any) -> None:
        """Learn nothing new."""

    def leader(self, partition: TopicPartition) -> Leader:
        """Return the broker."""
        return self.topics[partition.topic].leaders[partition.partition]

    def topic_id(self, name: str) -> UUID | None:
        """Return the id of a topic."""
        return self.topics[name].topic_id

    async def connection(self, *_: Any) -> Link:
        """Return the only one."""
        return self._link

    def is_misled(self, *_: Any) -> bool:
        """Say that the connection leads where it should."""
        return False

    def address(self, _: int) -> tuple[str, int]:
        """Return an address for the broker."""
        return self._link.address


class _Begun(Pipeline):
    """Its partitions begin at offset 0 of both logs."""

    async def _begin(self, partition_task: Any) -> None:
        mine = partition_task.assignment
        position = Position(0, ProducerState(FIRST_ID), True, -1, last=LastPosition(source_next=0, target_end=0))
        partition_task.partition_writer = PartitionWriter(
            mine.source, mine.target, position, mine.rules, premises=Premises(topic_id(mine.target.topic))
        )
        partition_task.cursor = Cursor(mine.source, mine.topic_id, 0)
        partition_task.resumed(0, 0)
        self._writer.begin(partition_task.partition_writer)
        self._fetcher.start(partition_task.cursor)
        self._changed(partition_task.partition_writer)


async def relay(partitions: Iterable[TopicPartition], frames: Iterable[bytes]) -> int:
    """Relay what Fetch answers hold, and return how many batches were acknowledged."""
    partitions = tuple(partitions)
    link = Link(frames)
    source: Any = _Cluster(link, partitions)
    target: Any = _Cluster(link, partitions)
    assignments = [
        Assignment(source=partition, target=partition, topic_id=topic_id(partition.topic), rules=Rules())
        for partition in partitions
    ]
    pipeline = _Begun("unconnected", source, target, assignments, _MEMORY_BYTES)
    running = asyncio.create_task(pipeline.run(600))
    await link.is_over.wait()
    pipeline.finish()
    await running
    return sum(counters.batches for counters in pipeline.all_counters.values())
