"""A re-keyed topic, micro-batch after micro-batch."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from helpers import config_file, endpoint, make_topic, settings_between
from pair import AnyCluster
from sparkless import InThisProcess, idle_flow
from syncing import read_journal, write_journal
from waiting import DEADLINE_S

from mirror.config import Settings
from mirror.driver.flow import Flow, RunOutcome, prepare
from mirror.journal.entries import PAUSES, PendingStart, pause_entry
from mirror.journal.journal import Journal, journal_topic
from mirror.journal.ownership import sign_off
from mirror.kafka.cluster import Cluster as Wire
from mirror.kafka.cluster import TopicPartition
from mirror.kafka.queries import EARLIEST
from mirror.observability.status import PREFIX as STATE
from mirror.observability.status import PartitionStatus
from mirror.policy.selection import Rekeying
from mirror.spark.rekey.driver import ORDER, Rekeyer
from mirror.spark.rekey.microbatch import MicroBatchPlan, Work
from mirror.spark.rekey.packing import SLICE, Packer
from mirror.spark.rekey.queries import Queries
from mirror.spark.rekey.reading import sound_batches
from mirror.spark.rekey.writing import _write
from mirror.spark.supervisor import Supervisor

COMPACTED = {"cleanup.policy": "compact"}


class Story:
    """One topic of one partition, two slots, and whoever works on it."""

    def __init__(self, source: AnyCluster, target: AnyCluster, topic: str, *, is_there: bool = False) -> None:
        """`is_there`: the source has the topic already."""
        self.source, self.target, self.topic = source.bootstrap, target.bootstrap, topic
        self.progress = f"mirror.{topic}.rekey.{topic}"
        if not is_there:
            make_topic(self.source, topic)
        make_topic(self.target, topic, 4)
        make_topic(self.target, self.progress, 3, COMPACTED)
        make_topic(self.target, journal_topic(topic), 1, COMPACTED)
        self.rule = Rekeying(source=topic, target=topic, partitions=4, progress=self.progress)
        ends = {"source": endpoint(self.source), "target": endpoint(self.target)}
        self.flow = idle_flow(name=topic, memory_bytes=1 << 20, **ends)

    def says_that_it_ended(self) -> None:
        """Of whoever reported, so that nobody is taken for silent."""
        expected = (value for key, value in self.journal().items() if key.startswith(STATE))
        (instance,) = {PartitionStatus.from_json(value).instance for value in expected}

        async def signed_off() -> None:
            async with Wire(self.flow.target) as target:
                await target.refresh([journal_topic(self.topic)])
                await sign_off(Journal(target, self.topic), instance)

        asyncio.run(signed_off())

    def fill(self, begin: int, end: int) -> None:
        producer = Producer({"bootstrap.servers": self.source})
        for number in range(begin, end):
            producer.produce(self.topic, str(number), key=f"k{number}")
        assert producer.flush(DEADLINE_S) == 0

    def driver(self, flow: Flow | None = None) -> Rekeyer:
        nowhere: Any = None  # Spark is not asked
        made = Rekeyer(nowhere, flow or self.flow, self.rule, frozenset())
        if self.flow.start != EARLIEST:
            made._side.start = PendingStart(self.topic, None, self.flow.start, ())
        return made

    def stopped(self) -> PartitionStatus:
        """How the partition stands for a driver that starts now and has nothing to carry out."""

        async def watched() -> PartitionStatus:
            one = self.driver()
            async with one._source, one._target:
                assert await one._take_over() is None
                assert await one._planned() is None
            return one.figures[TopicPartition(self.topic, 0)]

        return asyncio.run(watched())

    def open_transaction(self) -> Producer:
        """One that has written ten records, and is not ended."""
        producer = Producer({"bootstrap.servers": self.source, "transactional.id": self.topic})
        producer.init_transactions(DEADLINE_S)
        producer.begin_transaction()
        for number in range(10):
            producer.produce(self.topic, f"open {number}", key="k")
        producer.flush(DEADLINE_S)
        return producer

    def copied(self) -> Rekeyer:
        """A bounded copy that has ended, whose tasks ran here, one after another."""

        driver = self.here(replace(self.flow, once=True))
        asyncio.run(driver.run("here", asyncio.Event(), tuple))
        return driver

    @contextmanager
    def running(self) -> Iterator[Rekeyer]:
        """The same without an end, meanwhile."""
        driver, stopping, loop = self.here(self.flow), asyncio.Event(), asyncio.new_event_loop()
        thread = Thread(target=loop.run_until_complete, args=(driver.run("here", stopping, tuple),))
        thread.start()
        try:
            yield driver
        finally:
            loop.call_soon_threadsafe(stopping.set)
            thread.join(DEADLINE_S)
            loop.close()

    def settings(self, *beside: str, **topics: Any) -> Settings:
        """Those of the same flow, by a rule, with other topics beside; `topics` are more of that section's."""
        rules = [{"match": self.topic, "rekey": "key", "partitions": 4}]
        return settings_between(self.source, self.target, [self.topic, *beside], self.topic, rules=rules, **topics)

    def ended(self, settings: Settings, *, once: bool = False) -> RunOutcome:
        """How a mirror ends that copies all there is, whose tasks ran here."""
        flow = replace(prepare(settings, once=once, until_caught_up=not once), epoch_seconds=2.0)
        context: Any = InThisProcess()
        mirror = Supervisor(context, flow, lambda _: None, queries=Queries(lambda _: self.here(flow), flow.rekeyed))
        return asyncio.run(asyncio.wait_for(mirror.run(), DEADLINE_S))

    def pauses(self, *, is_paused: bool) -> None:
        """As `mirror pause` and `mirror resume`."""
        write_journal(self.settings(), pause_entry(self.topic) if is_paused else PAUSES.tombstone(self.topic))

    def here(self, flow: Flow) -> Rekeyer:
        """A driver whose tasks run here, one after another."""
        story = self

        class Here(Rekeyer):
            def _in_spark(self, work: Work) -> list[Any]:
                results = [story.write(work.plan, slot) for slot in range(2)]
                return [SimpleNamespace(**row) for each in results for row in each.to_pylist()]

        nowhere: Any = None  # Spark is not asked
        return Here(nowhere, flow, self.rule, frozenset())

    def planned(self) -> MicroBatchPlan:
        """What a driver that starts now carries out first."""

        async def planned() -> MicroBatchPlan | None:
            one = self.driver()
            async with one._source, one._target:
                return await one._take_over() or await one._planned()

        plan = asyncio.run(planned())
        assert plan is not None
        return plan

    def work(self, plan: MicroBatchPlan) -> Work:
        return Work(flow=self.topic, plan=plan, source=self.flow.source, target=self.flow.target, slots=2)

    def read(self, plan: MicroBatchPlan, slot: int) -> Iterator[pa.RecordBatch]:
        """A slot's slices, as Spark hands them on."""
        work, rows = self.work(plan), list[dict[str, Any]]()
        for partition, begin, end in plan.ranges:
            packer = Packer(work, partition)
            for raw in sound_batches(work, partition, begin, end):
                for wanted in packer.wanted(raw):
                    packer.take(raw, wanted)
            rows += [row for made in packer.drain(all_of_it=True) for row in made.to_pylist() if row["slot"] == slot]
        rows.sort(key=lambda row: [row[name] for name in ORDER])
        return iter([pa.RecordBatch.from_pylist(rows, SLICE)])

    def write(self, plan: MicroBatchPlan, slot: int, slices: Iterator[pa.RecordBatch] | None = None) -> pa.RecordBatch:
        return asyncio.run(_write(self.work(plan), slot, slices or self.read(plan, slot)))

    def journal(self) -> dict[bytes, bytes]:
        """The newest records of the flow's."""
        return read_journal(self.flow.target, self.topic)

    def carry_out(self) -> None:
        """All that is there now, by both slots."""
        plan = self.planned()
        for slot in range(2):
            self.write(plan, slot)


def rekeyed_file(story: Story, folder: Path, **sections: Any) -> Path:
    """The flow's configuration."""
    ends, rules = (story.source, story.target), [{"match": story.topic, "partitions": 4}]
    return config_file(folder, *ends, [story.topic], flow=story.topic, rules=rules, sections=sections)


@pytest.fixture
def story(source_cluster: AnyCluster, target_cluster: AnyCluster, topic_name: str) -> Story:
    return Story(source_cluster, target_cluster, topic_name)
