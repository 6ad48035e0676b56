"""The position, where it is hardest: somebody else's batches arrive while it is read."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer as Client
from crashcut import crash_and_cut_all
from helpers import RECENT_MS, config_file, make_topic, mirror_once, produce, remove_topics, settings_between
from probe import probing
from rawbatches import batch
from samerecords import assert_same_records, read
from typer.testing import CliRunner
from watchedtask import WatchedTask

from mirror.cli import app
from mirror.errors import ExitCode, MalformedBatch
from mirror.journal.journal import journal_topic
from mirror.kafka import log_reader, queries
from mirror.kafka.admin import Admin
from mirror.kafka.cluster import Cluster, Endpoint, TopicPartition
from mirror.kafka.fetch import Fetched, fetch_at
from mirror.kafka.produce import append
from mirror.kafka.queries import Producer
from mirror.kafka.topic_configs import ConfigChange
from mirror.lab.embedded import Cluster as Brokers
from mirror.observability.status import PartitionStatus
from mirror.records.header import CONTROL, ERAS, TRANSACTIONAL, ProducerState, restamp, split
from mirror.replication import both_logs, offset_map_recovery, position
from mirror.states import State

pytestmark = pytest.mark.brokers


def values(count: int) -> list[bytes]:
    return [b"%06d" % number + b"." * 200 for number in range(count)]


def endpoint(bootstrap: str) -> Endpoint:
    host, port = bootstrap.split(":")
    return Endpoint("any", ((host, int(port)),))


async def append_as_a_zombie(flow: str, source: str, target: str, topic: str, offset: int) -> int:
    """The batch at `offset`, stamped as an earlier task of the flow would have; where it landed."""
    at = TopicPartition(topic, 0)
    async with Cluster(endpoint(source)) as one, Cluster(endpoint(target)) as other:
        await one.refresh([topic])
        await other.refresh([topic])
        raw = next(split((await fetch_at(one, at, offset)).records))
        head = restamp(raw, ProducerState(both_logs.producer_id(flow, at), 0, raw.header.base_offset))
        return await append(other, at, (head, raw.records), doing="zombie")


def test_a_zombie_that_appends_while_the_position_is_read(
    own_source: Brokers, own_target: Brokers, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its batch lands after the log's end was read; ours has the same number, so the leader keeps one."""
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name)
    produce(source, topic_name, values(100))
    assert mirror_once(source, target, [topic_name])[TopicPartition(topic_name, 0)].state is State.CAUGHT_UP
    produce(source, topic_name, values(100))
    real, landed = queries.producers, list[int]()

    async def producers(cluster: Cluster, partition: TopicPartition) -> tuple[Producer, ...]:
        if not landed:
            landed.append(await append_as_a_zombie("test", source, target, topic_name, 100))
        return await real(cluster, partition)

    monkeypatch.setattr(position, "producers", producers)
    figures = mirror_once(source, target, [topic_name])[TopicPartition(topic_name, 0)]
    assert landed == [100]
    assert figures.state is State.CAUGHT_UP, figures
    assert assert_same_records(source, target, topic_name, 1) == 200


def test_a_batch_of_ours_that_landed_behind_somebody_elses_shows_no_cut(
    own_source: Brokers, own_target: Brokers, topic_name: str
) -> None:
    """It was on its way as they wrote to the copy. That this is longer than the source is not the source's doing."""
    source, target = own_source.bootstrap, own_target.bootstrap
    for bootstrap in (source, target):
        make_topic(bootstrap, topic_name)
    produce(source, topic_name, values(3))
    produce(target, topic_name, values(8))
    assert asyncio.run(append_as_a_zombie("test", source, target, topic_name, 0)) == 8
    figures = mirror_once(source, target, [topic_name])[TopicPartition(topic_name, 0)]
    assert figures.state is State.DIVERGED, figures
    assert "the target's log ends at 11, the source's at 3; somebody else wrote" in figures.detail


def test_what_a_stranger_wrote_to_a_copy_whose_offsets_move_is_no_cut(own_target: Brokers, topic_name: str) -> None:
    """Nor do elections of the source, of which each start of a broker is one."""
    target, at = own_target.bootstrap, TopicPartition(topic_name, 0)
    with Brokers.start(name="elected") as broker:
        source = broker.bootstrap
        make_topic(source, topic_name)
        assert mirror_once(source, target, [topic_name], offsets="translate")[at].state is State.CAUGHT_UP
        broker.kill(0)
        broker.restart(0)
        broker.await_ready()
        produce(target, topic_name, values(6))
        produce(source, topic_name, values(9)[6:])
        assert asyncio.run(append_as_a_zombie("test", source, target, topic_name, 0)) == 6
        figures = mirror_once(source, target, [topic_name], offsets="translate")[at]
    assert figures.state is State.DIVERGED, figures
    assert "somebody else wrote" in figures.detail


def test_a_request_for_markers_that_outlives_its_sender(
    own_source: Brokers, own_target: Brokers, topic_name: str
) -> None:
    """A broker takes a while for a thousand markers; a successor that begins meanwhile adds none of them again."""
    source, target = own_source.bootstrap, own_target.bootstrap
    own = both_logs.producer_id("test", TopicPartition(topic_name, 0))

    async def begin_meanwhile() -> PartitionStatus:
        async with probing(source, topic_name) as one, probing(target, topic_name) as other:
            for first in (0, 1000, 2000):
                await one.mark(*((own, epoch) for epoch in range(first, first + 1000)))
            dying = asyncio.create_task(other.mark(*((own, epoch) for epoch in range(1, 1001))))
            async with Cluster(endpoint(target)) as watching:
                await watching.refresh([topic_name])
                while not await queries.log_end(watching, TopicPartition(topic_name, 0)):
                    pass
            found = await asyncio.to_thread(mirror_once, source, target, [topic_name])
            await dying
            assert (await other.ends())[0] == 3000, found
            return found[TopicPartition(topic_name, 0)]

    figures = asyncio.run(begin_meanwhile())
    assert (figures.state, figures.next_offset) == (State.CAUGHT_UP, 3000), figures


def test_an_open_transaction_of_somebody_else_hides_nothing(
    own_source: Brokers, own_target: Brokers, topic_name: str
) -> None:
    """Its records lie below the log's end, where a committed reader sees nothing: the check of the last batch does."""
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name)
    produce(source, topic_name, values(100))
    mirror_once(source, target, [topic_name])
    produce(source, topic_name, values(100))
    foreign = Client({"bootstrap.servers": target, "transactional.id": topic_name, "log_level": 0})
    foreign.init_transactions(120)
    foreign.begin_transaction()
    for number in range(20):
        foreign.produce(topic_name, b"foreign %d" % number, partition=0)
    foreign.flush()
    try:
        figures = mirror_once(source, target, [topic_name])[TopicPartition(topic_name, 0)]
        assert figures.state is State.DIVERGED
        assert len(list(read(target, topic_name, 0))) == 100, "not one batch more"
    finally:
        foreign.abort_transaction(20)


@pytest.mark.parametrize("offsets", ["preserve", "translate"])
def test_a_copy_that_is_made_to_stamp_records_while_it_is_written(
    own_source: Brokers,
    own_target: Brokers,
    topic_name: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    offsets: str,
) -> None:
    """Nothing more is sent than what was on its way, and it stands until a person takes these times for good."""
    source, target, at = own_source.bootstrap, own_target.bootstrap, TopicPartition(topic_name, 0)
    make_topic(source, topic_name)
    make_topic(target, topic_name, configs={"message.timestamp.type": "LogAppendTime"})
    produce(source, topic_name, values(10))
    with monkeypatch.context() as older:
        older.setattr("mirror.policy.rules.is_stamped", lambda _: False)
        found = mirror_once(source, target, [topic_name], topic_name, offsets=offsets)[at]
    assert found.state is State.DIVERGED, found
    assert "the target gave the batch at offset" in found.detail
    assert "a time of its own" in found.detail
    timed = ConfigChange(topic=topic_name, name="message.timestamp.type", before="LogAppendTime", after="CreateTime")
    Admin(settings_between(source, target, [topic_name]).target).alter_configs([timed])
    config = config_file(tmp_path, source, target, [topic_name], topic_name, offsets=offsets)

    def accepted(*options: str) -> ExitCode:
        return ExitCode(CliRunner().invoke(app, ["accept", str(config), topic_name, *options]).exit_code)

    assert accepted() is ExitCode.DATA_AT_RISK, "both logs hold the records, but for their times"
    assert mirror_once(source, target, [topic_name], topic_name, offsets=offsets)[at].state is State.DIVERGED
    assert accepted("--unconfirmed") is ExitCode.DONE
    assert mirror_once(source, target, [topic_name], topic_name, offsets=offsets)[at].state is State.CAUGHT_UP


@pytest.mark.parametrize("offsets", ["preserve", "translate"])
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_copy_that_is_made_to_keep_create_times_while_it_is_written(
    own_source: Brokers,
    own_target: Brokers,
    topic_name: str,
    monkeypatch: pytest.MonkeyPatch,
    offsets: str,
    is_killed: bool,
) -> None:
    """Its batches go as they are stored, for a broker to give them its time. It stands, and no log was cut back."""
    ends, at = (own_source.bootstrap, own_target.bootstrap), TopicPartition(topic_name, 0)
    make_topic(ends[0], topic_name, configs={"message.timestamp.type": "LogAppendTime"})
    make_topic(ends[1], topic_name)
    produce(ends[0], topic_name, values(10))
    with monkeypatch.context() as older:
        older.setattr("mirror.policy.rules.is_stamped", lambda _: True)
        if is_killed:  # nothing hears of the ack
            older.setattr("mirror.replication.writer.APPEND_TIME", 0)
        found = mirror_once(*ends, [topic_name], topic_name, offsets=offsets)[at]
    for _ in range(2):
        if not is_killed:
            assert found.state is State.DIVERGED, found
            assert "kept the producers' create times of the batch at offset 0" in found.detail
        found = mirror_once(*ends, [topic_name], topic_name, offsets=offsets)[at]
        is_killed = False


def test_a_copy_that_was_made_to_stamp_records_as_its_task_was_killed(
    own_source: Brokers, own_target: Brokers, topic_name: str
) -> None:
    """It had not heard of its batch, nobody has reported what the target did, and the setting is as it was before."""
    source, target, at = own_source.bootstrap, own_target.bootstrap, TopicPartition(topic_name, 0)
    make_topic(source, topic_name)
    produce(source, topic_name, values(10))
    assert mirror_once(source, target, [topic_name], topic_name)[at].state is State.CAUGHT_UP
    produce(source, topic_name, values(10))
    admin = Admin(settings_between(source, target, [topic_name]).target)
    change = ConfigChange(topic=topic_name, name="message.timestamp.type", before=None, after="LogAppendTime")
    admin.alter_configs([change])
    assert asyncio.run(append_as_a_zombie(topic_name, source, target, topic_name, 10)) == 10
    admin.alter_configs([replace(change, after=None)])
    found = mirror_once(source, target, [topic_name], topic_name)[at]
    assert (found.state, "a time of its own" in found.detail) == (State.DIVERGED, True), found


@pytest.mark.parametrize("offsets", ["preserve", "translate"])
def test_records_that_the_source_deletes_while_both_logs_are_compared(
    own_source: Brokers, own_target: Brokers, topic_name: str, monkeypatch: pytest.MonkeyPatch, offsets: str
) -> None:
    """What is missing by then is no sign of another log: that stop would stand."""
    source, target, at = own_source.bootstrap, own_target.bootstrap, TopicPartition(topic_name, 0)
    make_topic(source, topic_name)
    produce(source, topic_name, values(10))
    assert mirror_once(source, target, [topic_name], topic_name, offsets=offsets)[at].state is State.CAUGHT_UP
    produce(source, topic_name, values(10))
    real, deleted = both_logs.read_logs, list[int]()

    async def overtaken(flow: str, cluster: Cluster, *more: Any) -> both_logs.Logs:
        found = await real(flow, cluster, *more)
        if not deleted:
            deleted.append(await queries.delete_records(cluster, at, 10))
        return found

    for module in (position, offset_map_recovery):
        monkeypatch.setattr(module, "read_logs", overtaken)
    found = mirror_once(source, target, [topic_name], topic_name, offsets=offsets)[at]
    assert (found.state, found.next_offset) == (State.CAUGHT_UP, 20), found
    assert deleted


def test_a_source_that_was_cut_into_a_transaction_that_had_ended(
    own_target: Brokers, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no journal names the copy. What is behind is hidden for ever, though the log has grown beyond the copy."""
    target, at = own_target.bootstrap, TopicPartition(topic_name, 0)
    with Brokers.start(name="cut") as broker:
        source = broker.bootstrap
        make_topic(source, topic_name)
        client = Client({"bootstrap.servers": source, "transactional.id": topic_name, "log_level": 0})
        client.init_transactions(20)
        for end in (client.commit_transaction, client.abort_transaction):
            client.begin_transaction()
            client.produce(topic_name, b"x", partition=0)
            client.flush(20)  # one that is aborted would not be sent
            end(20)
        assert mirror_once(source, target, [topic_name], topic_name)[at].state is State.CAUGHT_UP
        crash_and_cut_all(broker, {at: 3}, waits=False)
        produce(source, topic_name, values(9))
        remove_topics(Admin(settings_between(source, target, [topic_name]).target), journal_topic(topic_name))
        monkeypatch.setattr("mirror.kafka.fetch.EMPTY_SECONDS", 1.0)
        found = mirror_once(source, target, [topic_name], topic_name)[at]
        assert found.state is State.TRUNCATED, found
        assert "the source's last stable offset is 2: a transaction is open there that had ended" in found.detail


def test_a_marker_that_cannot_be_read_concerns_its_partition_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another error than these ends the task, and with it every partition."""
    damaged = batch(5, attributes=TRANSACTIONAL | CONTROL, producer_id=7, payload=b"")
    answer = Fetched(TopicPartition("orders", 3), 0, 6, 6, 0, None, ((7, 0),), memoryview(damaged))

    async def fetched(*_: Any, **__: Any) -> Fetched:
        return answer

    async def compared() -> list[Any]:
        return [each async for each in log_reader.batches(source, answer.partition, 5, 6, queries.READ_COMMITTED)]

    monkeypatch.setattr(log_reader, "fetch_below", fetched)
    source: Any = "source"
    with pytest.raises(MalformedBatch, match="source: a control batch that ends inside its record"):
        asyncio.run(compared())


def test_the_producer_id_is_a_function_of_flow_and_partition() -> None:
    at = TopicPartition("orders", 3)
    own = both_logs.producer_id("eu-to-us", at)
    assert own == both_logs.producer_id("eu-to-us", at)
    assert 1 << 52 <= own < 1 << 53
    assert own % ERAS == 0
    others = {
        both_logs.producer_id("eu-to-us", TopicPartition("orders", 4)),
        both_logs.producer_id("eu-to-us", TopicPartition("order", 33)),
        both_logs.producer_id("eu-to-asia", at),
    }
    assert own not in others
    assert len(others) == 3


@pytest.mark.parametrize("offsets", ["preserve", "translate"])
def test_what_lies_behind_the_acknowledged_position_is_compared_where_batches_are_alike(
    own_source: Brokers, own_target: Brokers, topic_name: str, offsets: str
) -> None:
    """Ours landed behind records of a stranger: the last batch of the copy is the source's at that offset, all the
    same, since all are.
    """
    source, target, at = own_source.bootstrap, own_target.bootstrap, TopicPartition(topic_name, 0)
    make_topic(source, topic_name)

    def beat(bootstrap: str, count: int, value: bytes = b"beat") -> None:
        producer = Client({"bootstrap.servers": bootstrap, "linger.ms": 60_000, "batch.num.messages": 3})
        for _ in range(3 * count):
            producer.produce(topic_name, value, partition=0, timestamp=RECENT_MS)
        assert producer.flush(30) == 0

    beat(source, 4)
    assert mirror_once(source, target, [topic_name], offsets=offsets)[at].state is State.CAUGHT_UP
    if offsets == "preserve":
        with WatchedTask(source, target, [at]) as task:
            task.until(at, lambda one: one.state is State.CAUGHT_UP)
            beat(target, 1, b"foreign")
            beat(source, 6)
            assert task.stopped(at).state is State.FENCED
    else:
        beat(target, 1, b"foreign")
        beat(source, 6)
    found = mirror_once(source, target, [topic_name], offsets=offsets)[at]
    assert found.state is State.DIVERGED, found
