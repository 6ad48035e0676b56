"""Copies whose offsets moved."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient
from helpers import mirror_once, settings_between
from samerecords import read
from waiting import DEADLINE_S, until

from mirror.commands.verify import verify_flow
from mirror.journal.journal import Journal, journal_topic
from mirror.journal.offset_maps import Indexes
from mirror.kafka.cluster import Cluster as WireCluster
from mirror.kafka.cluster import Endpoint, TopicPartition
from mirror.lab.embedded import Cluster
from mirror.observability.status import PartitionStatus
from mirror.replication.offset_map import OffsetRangeIndex
from mirror.states import State
from mirror.verify.report import VerifyReport


@pytest.fixture
def pair(source_cluster: Cluster, target_cluster: Cluster) -> tuple[str, str]:
    return source_cluster.bootstrap, target_cluster.bootstrap


def copied(pair: tuple[str, str], topic: str, state: State = State.CAUGHT_UP, **more: Any) -> PartitionStatus:
    found = mirror_once(*pair, [topic], flow=topic, offsets="translate", **more)[TopicPartition(topic, 0)]
    assert found.state is state, found
    return found


def index_of(pair: tuple[str, str], topic: str) -> OffsetRangeIndex:
    """What the journal says of the topic's partition 0."""

    async def learned() -> Indexes:
        host, port = pair[1].split(":")
        async with WireCluster(Endpoint("any", ((host, int(port)),))) as cluster:
            await cluster.refresh([journal_topic(topic)])
            entries, _ = await Journal(cluster, topic).read()
            return Indexes(entries)

    return asyncio.run(learned()).get(TopicPartition(topic, 0), OffsetRangeIndex())


def verified(pair: tuple[str, str], topic: str, **more: Any) -> VerifyReport:
    return verify_flow(settings_between(*pair, [topic], flow=topic, offsets="translate", **more))


def assert_translated(pair: tuple[str, str], topic: str) -> int:
    """The same records in the same order, and each offset translated to where its record is; how many there are."""
    report = verified(pair, topic)
    assert report.equal, report.differences
    theirs, ours = list(read(pair[0], topic, 0)), list(read(pair[1], topic, 0))
    assert [one[1:] for one in ours] == [one[1:] for one in theirs]
    index = index_of(pair, topic)
    places = {one[0]: mine[0] for one, mine in zip(theirs, ours, strict=True)}
    assert {source: index.to_target(source) for source in places} == places
    assert {target: index.to_source(target) for target in places.values()} == {t: s for s, t in places.items()}
    following = None
    end = theirs[-1][0] + 1 if theirs else 0
    for source in reversed(range(end)):  # an offset without a record stands for the record behind it
        following = places.get(source, following)
        assert index.to_target(source) == following
    return len(theirs)


def assert_runs_tell_the_truth(pair: tuple[str, str], topic: str) -> None:
    """Expect the journal to have no loss on record, and each of its records about offsets to be right by itself,
    whichever counts.
    """
    sources = {mine[0]: one[0] for one, mine in zip(read(pair[0], topic, 0), read(pair[1], topic, 0), strict=True)}
    newest = {record[3].decode(): record[4] for record in read(pair[1], journal_topic(topic), 0)}
    stands = {key: value for key, value in newest.items() if value is not None}
    assert not [key for key in stands if key.startswith("loss/")]
    for key in (key for key in stands if key.startswith("runs/")):
        claim = json.loads(stands[key])
        assert key == f"runs/{topic}/0/{claim['target']}"
        target, source = claim["target"], claim["source"]
        for number, length in enumerate(claim["runs"]):  # records and what was passed over, in turn
            for offset in range(source, source + length) if number % 2 == 0 else ():
                assert sources.get(target, offset) == offset, key
                target += 1
            source += length
        assert sources.get(target, claim["next"]) >= claim["next"], key


def trim(bootstrap: str, topic: str, offset: int) -> None:
    client = AdminClient({"bootstrap.servers": bootstrap})
    for deleted in client.delete_records([Place(topic, 0, offset)]).values():
        deleted.result(DEADLINE_S)


def deleted(bootstrap: str, topic: str) -> None:
    """Delete a topic, and wait until it is gone."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(DEADLINE_S)
    until(lambda: topic not in admin.list_topics(timeout=DEADLINE_S).topics, lambda: "it was not deleted")
