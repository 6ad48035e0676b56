"""What several tests need: settings for a flow between two clusters, records in topics, and a copy without Spark."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any

from confluent_kafka import Producer
from waiting import DEADLINE_S, until

from mirror.config import ClusterSettings, Settings, parse_address
from mirror.driver.start import recorded
from mirror.errors import BrokerError
from mirror.journal.entries import loss_entry
from mirror.journal.journal import Journal
from mirror.journal.offset_maps import OffsetMapStore
from mirror.journal.positions import StandingLog, standing_in
from mirror.kafka.admin import Admin, Creation
from mirror.kafka.cluster import Cluster, Endpoint, TopicPartition
from mirror.kafka.fetch import fetch_at
from mirror.kafka.queries import LATEST, READ_COMMITTED, READ_UNCOMMITTED, list_offset
from mirror.observability.status import PartitionStatus
from mirror.records.header import RawBatch, split
from mirror.replication.assignment import Assignment, Loss, assign
from mirror.replication.pipeline import Pipeline
from mirror.topics.apply import apply, ensure_flow_topic, rules_of
from mirror.topics.reconcile import plan_topics

MEMORY_BYTES = 64 * 1024 * 1024
#: An hour ago: one clock for all records of a session, and young enough for any retention.
RECENT_MS = int(time.time()) * 1000 - 3_600_000


def settings_between(source: str, target: str, topics: Sequence[str], flow: str = "test", **more: Any) -> Settings:
    """Settings of a flow from `source` to `target` (bootstrap addresses); `more` goes into the section `topics`."""
    return Settings.model_validate(_content(source, target, topics, flow, more) | {"metrics": {"listen": None}})


def config_file(
    folder: Path,
    source: str,
    target: str,
    topics: Sequence[str],
    flow: str = "test",
    *,
    sections: Mapping[str, Any] = MappingProxyType({}),
    **more: Any,
) -> Path:
    """Write the same as a file; `sections` are others of it, or instead of those."""
    path = folder / f"{flow}.yaml"
    content = _content(source, target, topics, flow, more) | {**sections}
    path.write_text(json.dumps(content, indent=2), encoding="utf-8")  # JSON is YAML
    return path


def _content(
    source: str, target: str, topics: Sequence[str], flow: str, more: Mapping[str, Any]
) -> dict[str, str | dict[str, Any]]:
    return {
        "name": flow,
        "source": {"alias": "eu", "bootstrap.servers": source},
        "target": {"alias": "us", "bootstrap.servers": target},
        "topics": {"include": list(topics), **more},
    }


def make_topic(bootstrap: str, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
    """Create a topic and wait until its partitions have leaders."""
    admin = Admin(ClusterSettings.model_validate({"alias": "any", "bootstrap.servers": bootstrap}))
    creation = Creation(topic=name, partitions=partitions, replication_factor=1, configs=configs or {})

    def is_created() -> bool:
        try:
            assert not admin.create_topics([creation])
        except BrokerError as error:  # a broker whose beat came late under load is fenced for a moment
            if error.name != "INVALID_REPLICATION_FACTOR":
                raise
            return False
        return True

    def has_leaders() -> bool:
        found = admin.describe([name])
        return bool(found) and all(one.leader >= 0 for one in found[name].partitions)

    until(is_created)
    until(has_leaders, lambda: f"{name} has no leaders")


def produce(
    bootstrap: str,
    topic: str,
    values: Iterable[bytes],
    *,
    partition: int = 0,
    batch: int = 10,
    codec: str = "none",
    begin_ms: int = RECENT_MS,
) -> None:
    """Records into one partition, in batches of exactly `batch`, with timestamps that count from `begin_ms`."""
    records = list(zip(values, count(begin_ms)))
    last = len(records) % batch
    for size, part in ((batch, records[: len(records) - last]), (last, records[len(records) - last :])):
        if part:
            _produce_full(bootstrap, topic, part, partition, size, codec)


def _produce_full(
    bootstrap: str, topic: str, records: Sequence[tuple[bytes, int]], partition: int, batch: int, codec: str
) -> None:
    """Full batches only: they are sent for being full, where a flush sends what the client has got to by then.

    One at a time: behind a batch that a leader refused for being new, librdkafka sends the next one that it has encoded
    already, even with a single request in flight.
    """
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 60_000,
            "batch.num.messages": batch,
            "compression.type": codec,
            "acks": "all",
        }
    )
    failures: list[Any] = []

    def delivered(error: Any, _: Any) -> None:
        if error:
            failures.append(error)

    for begin in range(0, len(records), batch):
        for value, timestamp in records[begin : begin + batch]:
            producer.produce(topic, value, partition=partition, timestamp=timestamp, on_delivery=delivered)
        full = time.monotonic() + 5
        while len(producer) and time.monotonic() < full:
            producer.poll(0.1)
        # One that its leader refused waits for `linger.ms` anew, however full: it is whole by now, so that a flush may.
        assert not producer.flush(DEADLINE_S)
    assert not failures


def endpoint(bootstrap: str, alias: str = "any") -> Endpoint:
    """Return a cluster's addresses."""
    return Endpoint(alias, tuple(map(parse_address, bootstrap.split(","))))


def stored_batches(bootstrap: str, topic: str, partition: int = 0) -> list[RawBatch]:
    """Every batch of a partition as its broker stores it."""

    async def fetched() -> list[RawBatch]:
        found = list[RawBatch]()
        async with Cluster(endpoint(bootstrap)) as cluster:
            await cluster.refresh([topic])
            offset = 0
            while part := list(split((await fetch_at(cluster, TopicPartition(topic, partition), offset)).records)):
                found += part
                offset = part[-1].header.next_offset
        return found

    return asyncio.run(fetched())


def wait_for_markers(bootstrap: str, topic: str) -> None:
    """Until partition 0 has no open transaction: a client learns that one has ended before its marker is written."""

    async def written() -> None:
        partition = TopicPartition(topic, 0)
        async with asyncio.timeout(DEADLINE_S), Cluster(endpoint(bootstrap)) as cluster:
            await cluster.refresh([topic])
            end = await list_offset(cluster, partition, LATEST, READ_UNCOMMITTED)
            while await list_offset(cluster, partition, LATEST, READ_COMMITTED) < end:
                await asyncio.sleep(0.01)
                end = await list_offset(cluster, partition, LATEST, READ_UNCOMMITTED)

    asyncio.run(written())


def mirror_once(
    source_bootstrap: str,
    target_bootstrap: str,
    topics: Sequence[str],
    flow: str = "test",
    *,
    records_runs: bool = True,
    names_copies: bool = True,
    **more: Any,
) -> dict[TopicPartition, PartitionStatus]:
    """Copy topics up to the source's ends of now as `mirror run --once` does, in this process and without Spark.

    Creates missing target topics, and leaves the settings of others as the test made them; `more` goes into the section
    `topics` of the settings. Returns the figures by source partition: a partition that was not copied whole has a
    state, a detail and a lag that say why. `records_runs` false is a mirror that dies before it wrote anything into its
    journal: how far its copies are and, where offsets are translated, where they moved to. `names_copies` false: it
    does not name its copies there.
    """
    settings = settings_between(source_bootstrap, target_bootstrap, topics, flow, **more)
    source, target = Admin(settings.source), Admin(settings.target)
    plan = replace(plan_topics(source, target, settings), changes=())
    apply(target, plan).raise_failures()
    rules = rules_of(target, plan.pairs, settings.topics)
    topic_ids = {name: info.topic_id for name, info in plan.source_topics.items()}
    assignments = assign(plan.pairs, topic_ids, rules)
    ensure_flow_topic(target, flow)
    return asyncio.run(_copied(settings, assignments, records_runs=records_runs, names_copies=names_copies))


async def _copied(
    settings: Settings, assignments: Sequence[Assignment], *, records_runs: bool, names_copies: bool
) -> dict[TopicPartition, PartitionStatus]:
    one = Endpoint(settings.source.alias, settings.source.bootstrap)
    other = Endpoint(settings.target.alias, settings.target.bootstrap)
    async with Cluster(one) as source, Cluster(other) as target:
        await source.refresh({assignment.source.topic for assignment in assignments})
        ends = await asyncio.gather(*(list_offset(source, a.source, LATEST, READ_COMMITTED) for a in assignments))
        bounded = [replace(assignment, until=end) for assignment, end in zip(assignments, ends, strict=True)]
        journal = Journal(target, settings.flow)
        standing = standing_in(await journal.newest())
        offset_maps = OffsetMapStore(journal, {}, None)
        handed = [standing.handed(assignment) for assignment in bounded]
        if names_copies:
            await target.refresh({assignment.target.topic for assignment in assignments})
            await recorded(source, journal, assignments, await journal.newest(), {})

        async def on_loss(loss: Loss) -> None:
            await journal.append([loss_entry(loss)])

        pipeline = Pipeline(
            settings.flow, source, target, handed, MEMORY_BYTES, on_loss=on_loss, recall=offset_maps.recall
        )
        await pipeline.run(DEADLINE_S)
        if records_runs:
            await offset_maps.record()
            await journal.append_all(StandingLog().changes(pipeline.positions(pipeline.partitions), pipeline.stops()))
        return {TopicPartition(f.topic, f.partition): f for f in pipeline.figures("test")}


def remove_topics(admin: Admin, *names: str) -> None:
    """Delete topics, as a mirror does."""
    admin.delete_topics({name: one.topic_id for name, one in admin.describe(names).items() if one.topic_id is not None})
