"""A flow of one topic between the shared clusters, and logs that lose their tails while their brokers run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka.admin import AdminClient
from helpers import RECENT_MS, config_file, endpoint, make_topic, mirror_once, produce, settings_between, stored_batches
from pair import AnyCluster
from samerecords import read
from sparkless import run_once
from syncing import admin_of, delete_topics, read_journal, write_journal
from topicadmin import delete_records
from typer.testing import CliRunner, Result
from waiting import DEADLINE_S

from mirror.cli import app
from mirror.config import Settings, SyncSettings
from mirror.driver.flow import RunOutcome
from mirror.errors import ExitCode
from mirror.journal.entries import losses_in
from mirror.journal.journal import Change
from mirror.kafka.cluster import Cluster as Wire
from mirror.kafka.cluster import Endpoint, TopicPartition
from mirror.kafka.produce import append
from mirror.observability.status import PartitionStatus
from mirror.records.header import ProducerState, RawBatch, restamp
from mirror.states import State


@dataclass(slots=True)
class Flow:
    """A flow and its one topic, which have one name; `topics` and `sync` are the sections of the settings."""

    source: AnyCluster
    target: AnyCluster
    name: str
    folder: Path
    topics: dict[str, Any] = field(default_factory=dict)
    sync: dict[str, Any] = field(default_factory=dict)
    include: list[str] = field(default_factory=list)

    @property
    def at(self) -> TopicPartition:
        """The topic's first partition."""
        return TopicPartition(self.name, 0)

    def make(self, *clusters: AnyCluster, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        """Create the topic, on the source unless clusters are given."""
        for cluster in clusters or (self.source,):
            make_topic(cluster.bootstrap, self.name, partitions, configs)

    def fill(self, first: int, count: int, prefix: str = "", **more: Any) -> None:
        """Add records to the source whose values, and times after `RECENT_MS`, count from `first`."""
        values = [f"{prefix}{number}".encode() for number in range(first, first + count)]
        produce(self.source.bootstrap, self.name, values, **{"begin_ms": RECENT_MS + first} | more)

    def begin(self, count: int = 100) -> None:
        """Make the topic, fill it and copy it."""
        self.make()
        self.fill(0, count)
        self.copied()

    def intrude(self, *values: bytes) -> None:
        """Write to the copy, as nobody should."""
        produce(self.target.bootstrap, self.name, values or [b"foreign"] * 10)

    def expire(self, cluster: AnyCluster, before: int) -> None:
        """Delete the first records of a log."""
        delete_records(cluster.bootstrap, self.name, before)

    def copy(self, **more: Any) -> PartitionStatus:
        """Copy up to the source's end of now, by a task alone."""
        ends = self.source.bootstrap, self.target.bootstrap
        return mirror_once(*ends, [self.name], self.name, **self.topics | more)[self.at]

    def copied(self, **more: Any) -> PartitionStatus:
        """Do that, and expect the copy to be whole."""
        found = self.copy(**more)
        assert found.state is State.CAUGHT_UP, found
        return found

    def settings(self) -> Settings:
        """Return the flow's settings."""
        topics = self.include or [self.name]
        found = settings_between(self.source.bootstrap, self.target.bootstrap, topics, self.name, **self.topics)
        return found.model_copy(update={"sync": SyncSettings.model_validate(self.sync)})

    def run(self) -> RunOutcome:
        """Do what `mirror run --once` does."""
        return run_once(self.settings())

    def command(self, *words: str, code: int | None = ExitCode.DONE) -> Result:
        """Run a command of the program; the word CONFIG stands for the flow's configuration file."""
        topics = self.include or [self.name]
        config = config_file(
            self.folder, self.source.bootstrap, self.target.bootstrap, topics, self.name, **self.topics
        )
        done = CliRunner().invoke(app, [str(config) if word == "CONFIG" else word for word in words])
        assert code is None or done.exit_code == code, (done.output, done.exception)
        return done

    def accept(self, *options: str, code: ExitCode = ExitCode.DONE) -> str:
        """Return what `mirror accept` says of the topic."""
        return self.command("accept", "CONFIG", self.name, *options, code=code).stdout

    def values(self) -> tuple[list[bytes], list[bytes]]:
        """Return the values that a reader of committed records gets of the source, and of the copy."""
        source, target = (
            [one[4] for one in read(cluster.bootstrap, self.name, 0)] for cluster in (self.source, self.target)
        )
        return source, target

    def assert_equal(self) -> int:
        """Expect the same records on both sides, and return how many; in `preserve` at the same offsets."""
        skip = 1 if self.topics.get("offsets") == "translate" else 0
        source, target = (
            [one[skip:] for one in read(cluster.bootstrap, self.name, 0)] for cluster in (self.source, self.target)
        )
        assert target == source
        return len(source)

    def journal(self) -> dict[bytes, bytes]:
        """Return the newest records of the flow's journal."""
        return read_journal(Endpoint.of(self.settings().target), self.name)

    def write(self, *records: Change) -> None:
        """Append to the flow's journal."""
        write_journal(self.settings(), *records)

    def lost(self) -> set[tuple[int, int, str]]:
        """Return what the journal has on record as lost: from which offset, to before which one, and why."""
        found = losses_in(self.journal())
        return {(one.first, one.next_offset, one.reason) for each in found.values() for one in each}

    def lose_tail(self, cluster: AnyCluster, below: int) -> None:
        """Let a log lose its records from offset `below` on, as if an election had been unclean."""
        kept = [raw for raw in stored_batches(cluster.bootstrap, self.name) if raw.header.next_offset <= below]
        self.restore(cluster, kept)

    def restore(self, cluster: AnyCluster, batches: Sequence[RawBatch]) -> None:
        """Let a log hold these batches, as they were stored."""
        self.renew(cluster, lambda: asyncio.run(_append(cluster.bootstrap, self.at, batches)))

    def renew(self, cluster: AnyCluster, fill: Callable[[], None]) -> None:
        """Make the topic anew, `fill` it, and let the journal take it for the former one."""
        before = str(self._topic_id(cluster)).encode()
        delete_topics(cluster.bootstrap, self.name)
        make_topic(cluster.bootstrap, self.name)
        fill()
        now = str(self._topic_id(cluster)).encode()
        self.write(*((key, value.replace(before, now)) for key, value in self.journal().items()))

    def _topic_id(self, cluster: AnyCluster) -> UUID | None:
        return admin_of(cluster.bootstrap).describe([self.name])[self.name].topic_id


async def _append(bootstrap: str, at: TopicPartition, batches: Sequence[RawBatch]) -> None:
    """Append batches as they are stored elsewhere."""
    async with Wire(endpoint(bootstrap)) as cluster:
        await cluster.refresh([at.topic])
        for raw in batches:
            head = raw.header
            assert not head.is_control, "no client writes markers"
            stamp = ProducerState(head.producer_id, head.producer_epoch, head.base_sequence)
            await append(cluster, at, (restamp(raw, stamp), raw.records), doing="append")


@pytest.fixture
def flow(source_cluster: AnyCluster, target_cluster: AnyCluster, topic_name: str, tmp_path: Path) -> Iterator[Flow]:
    """A flow that nobody else has. Its topics are deleted behind it: each start of a flow reads the journals of all."""
    yield Flow(source_cluster, target_cluster, topic_name, tmp_path)
    for cluster in (source_cluster, target_cluster):
        client = AdminClient({"bootstrap.servers": cluster.bootstrap})
        if mine := [name for name in client.list_topics(timeout=DEADLINE_S).topics if topic_name in name]:
            for deleted in client.delete_topics(mine).values():
                deleted.result(DEADLINE_S)
