"""A task in this process that notes when a fault could first be seen, and when its partition's stop was named."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self
from uuid import UUID

from helpers import endpoint
from waiting import DEADLINE_S

from mirror.errors import AccessDenied, PartitionStop
from mirror.kafka.cluster import Cluster, TopicPartition
from mirror.kafka.connection import CLIENT_ID
from mirror.kafka.fetch import Fetched
from mirror.kafka.produce import Ack
from mirror.observability.status import PartitionStatus
from mirror.policy.rules import Rules
from mirror.replication.assignment import Assignment
from mirror.replication.cursor import Cursor
from mirror.replication.partition_writer import PartitionWriter
from mirror.replication.pipeline import Pipeline

#: Seconds within which whatever a test waits for must come about.
TIMEOUT = DEADLINE_S


class _Watched(Pipeline):
    """`affected`: when the answers of brokers came that were not as they should be, by partition; `named`: when it
    stopped.
    """

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.affected: dict[TopicPartition, list[float]] = {}
        self.named: dict[TopicPartition, float] = {}
        take, acknowledged = self._fetcher._take, self._writer._acknowledged

        def watched_take(cursor: Cursor, fetched: Fetched, asked_ms: int) -> bool:
            began, is_sound = time.monotonic(), False
            try:
                stale = take(cursor, fetched, asked_ms)
                is_sound = not fetched.error_code and not cursor.retries.damaged
                return stale
            finally:
                if not is_sound:
                    self.affected.setdefault(cursor.partition, []).append(began)

        def watched_ack(partition_writer: Any, ack: Ack, sent_at: float, now_ms: int) -> None:
            if ack.error_code:
                self.affected.setdefault(partition_writer.source, []).append(time.monotonic())
            acknowledged(partition_writer, ack, sent_at, now_ms)

        self._fetcher._take = watched_take  # type: ignore[method-assign] # to watch
        self._writer._acknowledged = watched_ack  # type: ignore[method-assign] # the same

    def _stop(self, partition_task: Any, stop: PartitionStop) -> None:
        self.named.setdefault(partition_task.assignment.source, time.monotonic())
        super()._stop(partition_task, stop)


class WatchedTask:
    """Mirrors partitions from one cluster to the other in a thread, until it is left. A context manager.

    `first_seen` are the ids under which the flow first saw a topic, where they are not those of now. With
    `names_copies` the target's topics, which must be there, are named by their ids of now, as the journal does.
    """

    def __init__(
        self,
        source: str,
        target: str,
        partitions: Sequence[TopicPartition],
        *,
        first_seen: Mapping[str, UUID] | None = None,
        continues_on_loss: bool = False,
        rules: Rules | None = None,
        bytes_per_second: float | None = None,
        memory_bytes: int = 1 << 26,
        names_copies: bool = False,
        flow: str = "test",
        client_id: str = CLIENT_ID,
    ) -> None:
        self._names_copies, self._flow = names_copies, flow
        ends = endpoint(source, "eu"), endpoint(target, "us")
        self._ends = [replace(one, client_id=client_id) for one in ends]
        self._partitions, self._first_seen = partitions, first_seen or {}
        self._rules = rules or Rules(continues_on_loss=continues_on_loss)
        self._bytes_per_second, self._memory_bytes = bytes_per_second, memory_bytes
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._ready = threading.Event()
        self._pipeline: _Watched
        self._loop: asyncio.AbstractEventLoop
        self._began = 0.0
        self.topic_ids: dict[str, UUID] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(TIMEOUT)
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._pipeline.finish)
        self._thread.join()

    async def _run(self) -> None:
        async with Cluster(self._ends[0]) as source, Cluster(self._ends[1]) as target:
            with contextlib.suppress(AccessDenied):  # the ids are given then
                await source.refresh({at.topic for at in self._partitions})
            for at in self._partitions:
                known = self._first_seen.get(at.topic) or source.topic_id(at.topic)
                assert known
                self.topic_ids[at.topic] = known
            given = [Assignment(at, at, self.topic_ids[at.topic], self._rules) for at in self._partitions]
            if self._names_copies:
                await target.refresh([at.topic for at in self._partitions])
                given = [replace(one, target_topic_id=target.topic_id(one.target.topic)) for one in given]
            self._pipeline = _Watched(
                self._flow, source, target, given, self._memory_bytes, bytes_per_second=self._bytes_per_second
            )
            self._loop, self._began = asyncio.get_running_loop(), time.monotonic()
            self._ready.set()
            await self._pipeline.run(2 * TIMEOUT)

    def figures(self, at: TopicPartition) -> PartitionStatus:
        """Where a partition stands now."""
        return next(one for one in self._pipeline.figures("") if (one.topic, one.partition) == at)

    def until(self, at: TopicPartition, come_about: Callable[[PartitionStatus], bool]) -> PartitionStatus:
        """Wait for a partition's figures to be such."""
        deadline = time.monotonic() + TIMEOUT
        while not come_about(found := self.figures(at)):
            assert time.monotonic() < deadline, found
            time.sleep(0.005)
        return found

    def mirrored(self, at: TopicPartition, until: int) -> PartitionStatus:
        """Wait until the records below `until` are mirrored."""
        return self.until(at, lambda one: one.next_offset >= until)

    def stopped(self, at: TopicPartition) -> PartitionStatus:
        """Wait until the partition stops, and print how long after the first affected answer that was; after the task's
        begin where none was.
        """
        found = self.until(at, lambda one: one.state.is_stop)
        seen = self._pipeline.affected.get(at, [])
        since = self._pipeline.named[at] - (seen[0] if seen else self._began)
        what = f"the first of {len(seen)} affected answers" if seen else "the task began"
        print(f"{found.state} named {since:.3f} s after {what}: {found.detail}")
        return found

    def writer(self, at: TopicPartition) -> PartitionWriter | None:
        """What writes a partition from its position on: another one for each time that this is read."""
        return self._pipeline._partition_tasks[at].partition_writer

    def affected(self, at: TopicPartition) -> int:
        """How many answers about the partition were not as they should be."""
        return len(self._pipeline.affected.get(at, []))
