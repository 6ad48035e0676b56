"""A source that begins above offset 0, and a target that must begin there too: padding that is deleted again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer
from copies import Killed, Pair, copied
from helpers import make_topic, produce, settings_between
from samerecords import assert_same_records, read
from syncing import delete_topics
from topicadmin import delete_records
from watchedtask import WatchedTask

from mirror.commands.verify import verify_flow
from mirror.kafka.cluster import Cluster, Endpoint, TopicPartition
from mirror.kafka.produce import append
from mirror.policy.rules import Rules
from mirror.records.header import ProducerState, restamp
from mirror.records.rewrite import padding
from mirror.replication import log_start
from mirror.replication.assignment import Assignment
from mirror.replication.log_start import align
from mirror.replication.observe import Observer, producer_id
from mirror.replication.position import resume
from mirror.states import State


def values(first: int, until: int) -> list[bytes]:
    return [b"value %d" % number for number in range(first, until)]


def contents(bootstrap: str, topic: str) -> list[tuple[int, bytes | None]]:
    """What a consumer gets that begins at the earliest offset."""
    return [(one[0], one[4]) for one in read(bootstrap, topic, 0)]


def begun_late(pair: Pair, topic: str, count: int, first: int) -> None:
    """Make a topic of `count` records of which the source has kept those from `first` on, and an empty target."""
    for bootstrap in pair:
        make_topic(bootstrap, topic)
    produce(pair[0], topic, values(0, count))
    delete_records(pair[0], topic, first)


def killed_while_padding(pair: Pair, topic: str, batches: int, *, too_far: int = 0) -> None:
    """Pad as a mirror does, and break off after some batches of at most 300 bytes."""
    at, settings = TopicPartition(topic, 0), settings_between(*pair, [topic])

    async def run() -> None:
        async with Cluster(Endpoint.of(settings.source)) as source, Cluster(Endpoint.of(settings.target)) as target:
            await asyncio.gather(source.refresh([topic]), target.refresh([topic]))
            position = await resume(Observer(topic, source, at, target, at))
            left = batches

            def moved(_: int) -> None:
                nonlocal left
                left -= 1
                if not left:
                    raise Killed

            position = replace(position, begin=position.begin + too_far)
            assignment = Assignment(at, at, None, Rules(max_message_bytes=300))
            with pytest.raises(Killed):
                await align(target, assignment, position, moved)

    asyncio.run(run())


@pytest.mark.proves("same-offsets")
@pytest.mark.parametrize(
    ("configs", "kept"),
    [
        ({}, 0),
        ({"compression.type": "uncompressed", "max.message.bytes": "2000"}, 100),
        ({"cleanup.policy": "compact,delete"}, 100),
    ],
    ids=str,
)
def test_a_target_begins_where_its_source_does(
    pair: Pair, topic_name: str, configs: Mapping[str, str], kept: int
) -> None:
    """Also where the source holds nothing any more."""
    make_topic(pair[0], topic_name, configs={name: configs[name] for name in configs if name == "cleanup.policy"})
    make_topic(pair[1], topic_name, configs=configs)
    client = Producer({"bootstrap.servers": pair[0], "linger.ms": 50})

    def write(first: int, until: int) -> None:
        for number in range(first, until):
            client.produce(topic_name, b"value", b"%d" % number, partition=0)
        assert not client.flush(30)

    write(0, 3000)
    delete_records(pair[0], topic_name, 3000 - kept)
    assert copied(pair, topic_name).records == kept
    write(3000, 3010)
    assert copied(pair, topic_name).records == 10
    assert assert_same_records(*pair, topic_name, 1) == kept + 10
    assert contents(pair[1], topic_name)[0] == (3000 - kept, b"value")


@pytest.mark.proves("REFUSED")
def test_a_compacted_target_cannot_begin_later(pair: Pair, topic_name: str) -> None:
    begun_late(pair, topic_name, 20, 10)
    delete_topics(pair[1], topic_name)
    make_topic(pair[1], topic_name, configs={"cleanup.policy": "compact"})
    found = copied(pair, topic_name, State.REFUSED)
    assert "the copy begins at offset 10" in found.detail
    assert "cleanup.policy=[compact,delete]" in found.detail


@pytest.mark.proves("exactly-once", "same-offsets")
@pytest.mark.parametrize(
    ("first", "batches", "moved_on"), [(2500, (1, 2), 10), (50, (1,), 0)], ids=["in its midst", "not deleted yet"]
)
def test_a_mirror_that_was_killed_while_padding_goes_on(
    pair: Pair,
    topic_name: str,
    monkeypatch: pytest.MonkeyPatch,
    first: int,
    batches: tuple[int, ...],
    moved_on: int,
) -> None:
    """Also where the source has moved on meanwhile, and where only the deletion is left."""
    begun_late(pair, topic_name, first + 50, first)
    monkeypatch.setattr(log_start, "DELETE_BYTES", 1)
    for so_many in batches:
        killed_while_padding(pair, topic_name, so_many)
    (begin, _), *_, (_, value) = contents(pair[1], topic_name)
    assert (begin > 0, value) == (sum(batches) > 1, None), "all but the newest batch is deleted as it goes"
    delete_records(pair[0], topic_name, first + moved_on)
    copied(pair, topic_name)
    assert_same_records(*pair, topic_name, 1)
    report = verify_flow(settings_between(*pair, [topic_name], topic_name))
    assert report.equal
    assert report.topics[0].offsets_equal


@pytest.mark.proves("nothing-by-name-alone", "PADDING")
def test_nothing_is_deleted_of_a_topic_that_was_made_anew_behind_the_padding(
    pair: Pair, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DeleteRecords knows a topic by its name."""
    begun_late(pair, topic_name, 60, 50)

    def made_anew() -> None:
        delete_topics(pair[1], topic_name)
        make_topic(pair[1], topic_name)
        produce(pair[1], topic_name, values(0, 60))

    async def appended(*given: Any, **more: Any) -> int:
        landed = await append(*given, **more)
        assert task.figures(at).state is State.PADDING
        await asyncio.to_thread(made_anew)
        return landed

    monkeypatch.setattr(log_start, "append", appended)
    at = TopicPartition(topic_name, 0)
    with WatchedTask(*pair, [at]) as task:
        task.until(at, lambda one: one.state.is_stop or one.state is State.CAUGHT_UP)
    assert [offset for offset, _ in contents(pair[1], topic_name)] == [*range(60)]


@pytest.mark.proves("PADDING", "same-offsets")
@pytest.mark.parametrize("kept", [10, 0])
def test_what_the_source_deletes_while_its_target_is_padded_is_no_loss(
    pair: Pair, topic_name: str, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    """As a Streams application does of its repartition topics, twice a second; and lag counts what is left."""
    begun_late(pair, topic_name, 100, 50)
    at, starts = TopicPartition(topic_name, 0), iter([70, 90, 100 - kept])

    async def appended(*given: Any, **more: Any) -> int:
        landed = await append(*given, **more)
        padding = task.figures(at)
        assert (padding.state, padding.with_end(100).lag_records) == (State.PADDING, 100 - padding.next_offset)
        if start := next(starts, None):
            await asyncio.to_thread(delete_records, pair[0], topic_name, start)
        return landed

    monkeypatch.setattr(log_start, "append", appended)
    with WatchedTask(*pair, [at]) as task:
        found = task.until(at, lambda one: one.state.is_stop or one.state is State.CAUGHT_UP)
    assert (found.state, found.records, found.lost) == (State.CAUGHT_UP, kept, 0)
    assert contents(pair[1], topic_name) == [(number, b"value %d" % number) for number in range(100 - kept, 100)]


@pytest.mark.proves("never-silent", "DIVERGED")
@pytest.mark.parametrize("behind_it", [0, 20])
def test_padding_over_records_stops_the_partition(pair: Pair, topic_name: str, behind_it: int) -> None:
    """Two mirrors at a time may leave it. It hides records, whatever somebody wrote behind it, and stays."""
    begun_late(pair, topic_name, 90, 30)
    killed_while_padding(pair, topic_name, 1, too_far=30)
    produce(pair[1], topic_name, values(60, 60 + behind_it))
    found = copied(pair, topic_name, State.DIVERGED)
    assert "padding up to offset 60" in found.detail or behind_it
    assert contents(pair[1], topic_name)[0] == (0, None)


@pytest.mark.proves("never-silent", "RETENTION_GAP")
def test_records_of_somebody_else_are_not_padding(pair: Pair, topic_name: str) -> None:
    begun_late(pair, topic_name, 60, 50)
    produce(pair[1], topic_name, values(0, 10))
    copied(pair, topic_name, State.RETENTION_GAP)
    assert len(contents(pair[1], topic_name)) == 10


@pytest.mark.proves("UNAVAILABLE")
@pytest.mark.parametrize(("offsets", "begin"), [("preserve", 80), ("translate", 0)])
def test_the_padding_of_another_mirror_is_no_record(pair: Pair, topic_name: str, offsets: Any, begin: int) -> None:
    """The source is a copy, too, and is being brought to where its own source begins: that is waited for."""
    at = TopicPartition(topic_name, 0)
    for bootstrap in pair:
        make_topic(bootstrap, topic_name)

    async def pad() -> None:
        async with Cluster(Endpoint.of(settings_between(*pair, [topic_name]).source)) as cluster:
            await cluster.refresh([topic_name])
            raw = padding(0, 80, codec=None, max_bytes=1_000_000)
            parts = restamp(raw, ProducerState(producer_id("the flow before", at))), raw.records
            await append(cluster, at, parts, timeout=20, once=True)

    asyncio.run(pad())
    with WatchedTask(*pair, [at], rules=Rules(offsets=offsets)) as task:
        waits = task.until(at, lambda one: one.state is State.UNAVAILABLE)
        assert "offset 0 of the source is padding of another mirror" in waits.detail
        delete_records(pair[0], topic_name, 80)
        produce(pair[0], topic_name, values(0, 5))
        task.mirrored(at, 85)
    assert contents(pair[1], topic_name) == [(begin + number, b"value %d" % number) for number in range(5)]
