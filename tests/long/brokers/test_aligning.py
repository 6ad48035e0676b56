"""A source that begins above offset 0, and a target that must begin there too."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Literal

import pytest
from helpers import make_topic, mirror_once, produce, settings_between
from hypothesis import given
from hypothesis import strategies as st
from padded import read_all, trimmed
from rawbatches import batch
from rawbatches import raw as stored
from translated_copies import deleted
from watchedtask import WatchedTask

from mirror.commands.verify import verify_flow
from mirror.kafka.cluster import Cluster as Wire
from mirror.kafka.cluster import Endpoint, TopicPartition
from mirror.kafka.produce import append
from mirror.lab.embedded import Cluster
from mirror.observability.status import PartitionStatus
from mirror.policy.rules import Rules
from mirror.records.header import ProducerState, restamp
from mirror.records.rewrite import MOST, is_padding, padding, read
from mirror.replication import log_start
from mirror.replication.both_logs import producer_id
from mirror.replication.log_start import Alignment, align
from mirror.replication.position import resume
from mirror.states import State

DEFAULT_SIZE = 1_048_588


@given(
    first=st.integers(0, 2**40),
    count=st.integers(1, 3000),
    codec=st.sampled_from([None, 0, 1, 2, 3, 4]),
    max_bytes=st.integers(200, 5000),
)
def test_padding_takes_every_offset_once_and_fits(first: int, count: int, codec: int | None, max_bytes: int) -> None:
    at = first
    while at < first + count:
        raw = padding(at, first + count, codec=codec, max_bytes=max_bytes)
        assert (raw.header.base_offset, raw.header.max_timestamp) == (at, -1)
        assert raw.header.size <= max_bytes
        assert list(read(raw).offsets) == list(range(at, raw.header.next_offset))
        assert is_padding(raw)
        at = raw.header.next_offset
    assert at == first + count


def test_a_million_offsets_fit_into_a_batch_of_the_default_size() -> None:
    raw = padding(5, 5 + 10 * MOST, codec=None, max_bytes=DEFAULT_SIZE)
    assert raw.header.count == MOST


def copied(source: Cluster, target: Cluster, topic: str, **more: Any) -> PartitionStatus:
    return mirror_once(source.bootstrap, target.bootstrap, [topic], **more)[TopicPartition(topic, 0)]


def equal(source: Cluster, target: Cluster, topic: str, **more: Any) -> bool:
    report = verify_flow(settings_between(source.bootstrap, target.bootstrap, [topic], **more))
    return report.equal and report.topics[0].offsets_equal


def filled(cluster: Cluster, topic: str, count: int, first: int = 0) -> None:
    produce(cluster.bootstrap, topic, [b"value %d" % number for number in range(first, first + count)])


@pytest.mark.brokers
@pytest.mark.parametrize(
    "configs",
    [
        {},
        {"compression.type": "gzip"},
        {"compression.type": "uncompressed", "max.message.bytes": "2000"},
        {"message.timestamp.type": "LogAppendTime"},
        {"message.timestamp.before.max.ms": "1000000000", "message.timestamp.after.max.ms": "1000"},
        {"cleanup.policy": "compact,delete"},
    ],
    ids=str,
)
def test_a_target_begins_where_its_source_does(
    own_source: Cluster, own_target: Cluster, topic_name: str, configs: Mapping[str, str]
) -> None:
    compacted = {"cleanup.policy": configs["cleanup.policy"]} if "cleanup.policy" in configs else {}
    make_topic(own_source.bootstrap, topic_name, configs=compacted)
    make_topic(own_target.bootstrap, topic_name, configs=configs)
    filled_with_keys(own_source, topic_name, 5000)
    trimmed(own_source, topic_name, 4321)
    figures = copied(own_source, own_target, topic_name)
    assert (figures.state, figures.next_offset, figures.records) == (State.CAUGHT_UP, 5000, 679), figures.detail
    own_clock = "target" if "message.timestamp.type" in configs else "source"
    assert equal(own_source, own_target, topic_name, append_time=own_clock)
    assert read_all(own_target, topic_name) == read_all(own_source, topic_name)


def filled_with_keys(cluster: Cluster, topic: str, count: int) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 50})
    for number in range(count):
        producer.produce(topic, b"value %d" % number, b"%d" % number, partition=0)
    assert not producer.flush(30)


@pytest.mark.brokers
def test_a_source_that_holds_nothing_any_more(own_source: Cluster, own_target: Cluster, topic_name: str) -> None:
    make_topic(own_source.bootstrap, topic_name)
    filled(own_source, topic_name, 100)
    trimmed(own_source, topic_name, 100)
    assert copied(own_source, own_target, topic_name).state is State.CAUGHT_UP
    filled(own_source, topic_name, 20, first=100)
    figures = copied(own_source, own_target, topic_name)
    assert (figures.state, figures.next_offset) == (State.CAUGHT_UP, 120)
    assert read_all(own_target, topic_name)[0] == (100, b"value 100")


@pytest.mark.brokers
def test_a_compacted_target_cannot_begin_later(own_source: Cluster, own_target: Cluster, topic_name: str) -> None:
    make_topic(own_source.bootstrap, topic_name, configs={"cleanup.policy": "compact,delete"})
    make_topic(own_target.bootstrap, topic_name, configs={"cleanup.policy": "compact"})
    filled_with_keys(own_source, topic_name, 100)
    trimmed(own_source, topic_name, 10)
    figures = copied(own_source, own_target, topic_name)
    assert figures.state is State.REFUSED
    assert "the copy begins at offset 10" in figures.detail
    assert "cleanup.policy=[compact,delete]" in figures.detail


def begun_late(source: Cluster, target: Cluster, topic: str, count: int, first: int) -> None:
    """A topic of `count` records of which the source has kept those from `first` on, and an empty one."""
    for cluster in (source, target):
        make_topic(cluster.bootstrap, topic)
    filled(source, topic, count)
    trimmed(source, topic, first)


class Interrupted(Exception):
    """Here the mirror is killed."""


async def interrupted(source: Cluster, target: Cluster, topic: str, batches: int, too_far: int = 0) -> None:
    """Align, and break off after some batches of at most 300 bytes, or before the padding is deleted."""
    at = TopicPartition(topic, 0)
    one, other = (Endpoint.of(side) for side in _sides(source, target, topic))
    async with Wire(one) as ours, Wire(other) as theirs:
        await asyncio.gather(ours.refresh([topic]), theirs.refresh([topic]))
        position = await resume("test", ours, at, theirs, at)
        assert position.is_empty, "padding is no record, of which a copy could lack the deletion"
        left = batches

        def moved(_: int) -> None:
            nonlocal left
            left -= 1
            if not left:
                raise Interrupted

        what = Alignment(at, at, Rules(max_message_bytes=300), position.begin + too_far)
        with pytest.raises(Interrupted):
            await align(theirs, what, position, moved)


def _sides(source: Cluster, target: Cluster, topic: str) -> tuple[Any, Any]:
    settings = settings_between(source.bootstrap, target.bootstrap, [topic])
    return settings.source, settings.target


@pytest.mark.brokers
@pytest.mark.parametrize("moved_on", [0, 100])
def test_an_alignment_goes_on_where_it_was_broken_off(
    own_source: Cluster, own_target: Cluster, topic_name: str, moved_on: int
) -> None:
    begun_late(own_source, own_target, topic_name, 3000, 2500)
    for batches in (1, 2):
        asyncio.run(interrupted(own_source, own_target, topic_name, batches))
    trimmed(own_source, topic_name, 2500 + moved_on)
    assert copied(own_source, own_target, topic_name).state is State.CAUGHT_UP
    assert equal(own_source, own_target, topic_name)
    assert read_all(own_target, topic_name)[0] == (2500 + moved_on, b"value %d" % (2500 + moved_on))


@pytest.mark.brokers
def test_nothing_is_deleted_of_a_topic_that_was_made_anew_behind_the_padding(
    own_source: Cluster, own_target: Cluster, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DeleteRecords knows a topic by its name."""
    source, target, at = own_source.bootstrap, own_target.bootstrap, TopicPartition(topic_name, 0)
    begun_late(own_source, own_target, topic_name, 60, 50)

    def made_anew() -> None:
        deleted(target, topic_name)
        make_topic(target, topic_name)
        filled(own_target, topic_name, 60)

    async def appended(*given: Any, **more: Any) -> int:
        landed = await append(*given, **more)
        await asyncio.to_thread(made_anew)
        return landed

    monkeypatch.setattr(log_start, "append", appended)
    with WatchedTask(source, target, [at]) as task:
        task.until(at, lambda one: one.state.is_stop or one.state is State.CAUGHT_UP)
    assert [offset for offset, _ in read_all(own_target, topic_name)] == list(range(60))


@pytest.mark.brokers
def test_padding_that_was_not_deleted_is_deleted(own_source: Cluster, own_target: Cluster, topic_name: str) -> None:
    begun_late(own_source, own_target, topic_name, 60, 50)
    asyncio.run(interrupted(own_source, own_target, topic_name, batches=1))
    assert read_all(own_target, topic_name)[-1] == (49, None)
    assert copied(own_source, own_target, topic_name).state is State.CAUGHT_UP
    assert read_all(own_target, topic_name) == read_all(own_source, topic_name)


@pytest.mark.brokers
@pytest.mark.parametrize(("begins", "mirrored"), [(30, 0), (45, 0), (30, 20)])
def test_padding_over_records_stops_the_partition(
    own_source: Cluster, own_target: Cluster, topic_name: str, begins: int, mirrored: int
) -> None:
    """As two mirrors at a time may leave it: it hides records, wherever the source begins by now, and whatever somebody
    wrote behind it. To delete it would hide that they are missing.
    """
    begun_late(own_source, own_target, topic_name, 90, 30)
    asyncio.run(interrupted(own_source, own_target, topic_name, batches=1, too_far=30))
    trimmed(own_source, topic_name, begins)
    if mirrored:
        produce(own_target.bootstrap, topic_name, [b"value %d" % number for number in range(60, 60 + mirrored)])
    figures = copied(own_source, own_target, topic_name)
    assert figures.state is State.DIVERGED
    assert "padding up to offset 60" in figures.detail or mirrored
    assert read_all(own_target, topic_name)[0] == (0, None), "nothing was deleted"


@pytest.mark.brokers
def test_records_of_somebody_else_are_not_padding(own_source: Cluster, own_target: Cluster, topic_name: str) -> None:
    begun_late(own_source, own_target, topic_name, 60, 50)
    filled(own_target, topic_name, 10)
    assert copied(own_source, own_target, topic_name).state is State.RETENTION_GAP
    assert len(read_all(own_target, topic_name)) == 10, "nothing was deleted"


@pytest.mark.brokers
@pytest.mark.parametrize("offsets", ["preserve", "translate"])
def test_the_padding_of_another_mirror_is_no_record(
    own_source: Cluster, own_target: Cluster, topic_name: str, offsets: Literal["preserve", "translate"]
) -> None:
    """The source is a copy, too, and is being brought to where its own source begins: it is waited for. A mirror that
    looks at such a moment copied as many records of nobody as that has offsets.
    """
    ends, at = (own_source.bootstrap, own_target.bootstrap), TopicPartition(topic_name, 0)
    for servers in ends:
        make_topic(servers, topic_name)

    async def pad(until: int) -> None:
        host, port = ends[0].split(":")
        async with Wire(Endpoint("any", ((host, int(port)),))) as cluster:
            await cluster.refresh([topic_name])
            first, stamp = 0, ProducerState(producer_id("the one before", at))
            while first < until:
                raw = padding(first, first + 40, codec=None, max_bytes=DEFAULT_SIZE)
                await append(cluster, at, (restamp(raw, stamp), raw.records), timeout=20, once=True)
                first, stamp = raw.header.next_offset, stamp.after(raw.header.last_offset_delta)

    asyncio.run(pad(80))
    with WatchedTask(*ends, [at], rules=Rules(offsets=offsets)) as task:
        waits = task.until(at, lambda one: one.state is State.UNAVAILABLE)
        assert "offset 0 of the source is padding of another mirror" in waits.detail
        trimmed(own_source, topic_name, 80)
        filled(own_source, topic_name, 5)
        task.mirrored(at, 85)
    begin = 80 if offsets == "preserve" else 0
    assert read_all(own_target, topic_name) == [(begin + n, b"value %d" % n) for n in range(5)]


@pytest.mark.brokers
def test_records_of_another_mirror_without_a_time_are_records(
    own_source: Cluster, own_target: Cluster, topic_name: str
) -> None:
    """As those of its padding are, by their headers."""
    ends, at = (own_source.bootstrap, own_target.bootstrap), TopicPartition(topic_name, 0)
    for servers in ends:
        make_topic(servers, topic_name)

    async def write() -> None:
        host, port = ends[0].split(":")
        async with Wire(Endpoint("any", ((host, int(port)),))) as cluster:
            await cluster.refresh([topic_name])
            payload = b"".join(bytes((14, 0, 0, 2 * number, 1, 2)) + b"x" + bytes(1) for number in range(3))
            untimed = {"base_timestamp": -1, "max_timestamp": -1}
            raw = stored(batch(0, count=3, payload=payload, **untimed))
            parts = restamp(raw, ProducerState(producer_id("the one before", at))), raw.records
            await append(cluster, at, parts, timeout=20, once=True)

    asyncio.run(write())
    found = copied(own_source, own_target, topic_name)
    assert (found.state, found.next_offset) == (State.CAUGHT_UP, 3), found
    assert read_all(own_target, topic_name) == [(n, b"x") for n in range(3)]
