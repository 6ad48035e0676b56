"""Every named state that the pipeline can reach so far, on real brokers: the right name, nothing wrong written, and
the other partition goes on. Failures of the source that could pass in silence are in test_silent.py.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as Confluent
from confluent_kafka.admin import AdminClient
from helpers import make_topic, mirror_once, produce, settings_between
from proxy import Proxy
from samerecords import assert_same_records, read

from mirror.driver.control import ControlServer
from mirror.journal.journal import Journal, journal_topic, newest
from mirror.journal.positions import standing_in
from mirror.kafka.admin import Admin
from mirror.kafka.cluster import Cluster as Wire
from mirror.kafka.cluster import Endpoint, TopicPartition
from mirror.kafka.queries import delete_records
from mirror.lab.embedded import Cluster
from mirror.observability.status import PartitionStatus
from mirror.policy.rules import Rules
from mirror.replication.assignment import Assignment
from mirror.replication.pipeline import Pipeline
from mirror.spark.task import TaskAssignment, TaskResult, run_task
from mirror.states import State
from mirror.topics.apply import ensure_flow_topic

pytestmark = pytest.mark.brokers


@pytest.fixture
def pair(own_source: Cluster, own_target: Cluster) -> tuple[str, str]:
    return own_source.bootstrap, own_target.bootstrap


def values(count: int, size: int = 200) -> Iterator[bytes]:
    return (b"%06d" % number + b"." * size for number in range(count))


def filled(bootstrap: str, topic: str, count: int = 200) -> None:
    """A topic of two partitions with as many records each."""
    make_topic(bootstrap, topic, 2)
    for partition in (0, 1):
        produce(bootstrap, topic, values(count), partition=partition, codec="lz4")


def state(figures: dict[TopicPartition, PartitionStatus], topic: str, partition: int = 0) -> State:
    return figures[TopicPartition(topic, partition)].state


def trimmed(bootstrap: str, topic: str, partition: int, before: int) -> None:
    async def trim() -> None:
        host, port = bootstrap.split(":")
        async with Wire(Endpoint("any", ((host, int(port)),))) as cluster:
            assert await delete_records(cluster, TopicPartition(topic, partition), before) == before

    asyncio.run(trim())


def test_a_flipped_byte_stops_its_partition_only(pair: tuple[str, str], topic_name: str) -> None:
    source, target = pair
    filled(source, topic_name)
    fetches: list[int] = []

    def flip(answer: Any, frame: bytearray) -> None:
        for topic in answer.responses:
            for part in topic.partitions:
                if part.partition_index == 0 and part.records:
                    fetches.append(part.partition_index)
                    frame[bytes(frame).index(bytes(part.records)) + 100] ^= 1

    with Proxy(source, flip) as proxy:
        figures = mirror_once(proxy.bootstrap, target, [topic_name])
    assert state(figures, topic_name) is State.CORRUPT
    assert "CRC mismatch" in figures[TopicPartition(topic_name, 0)].detail
    assert len(fetches) == 3, "once, and again twice"
    assert state(figures, topic_name, 1) is State.CAUGHT_UP
    assert list(read(target, topic_name, 0)) == []
    with Proxy(source) as proxy:  # sound again: the partition goes on by itself
        figures = mirror_once(proxy.bootstrap, target, [topic_name])
    assert state(figures, topic_name) is State.CAUGHT_UP
    assert assert_same_records(source, target, topic_name, 2) == 400


def test_foreign_records_in_the_target(pair: tuple[str, str], topic_name: str) -> None:
    source, target = pair
    filled(source, topic_name)
    make_topic(target, topic_name, 2)
    produce(target, topic_name, values(5), partition=0)
    figures = mirror_once(source, target, [topic_name])
    assert state(figures, topic_name) is State.DIVERGED
    assert state(figures, topic_name, 1) is State.CAUGHT_UP
    assert len(list(read(target, topic_name, 0))) == 5, "not one batch more"


def test_more_foreign_records_than_the_source_has(pair: tuple[str, str], topic_name: str) -> None:
    source, target = pair
    filled(source, topic_name, 10)
    make_topic(target, topic_name, 2)
    produce(target, topic_name, values(50), partition=0)
    assert state(mirror_once(source, target, [topic_name]), topic_name) is State.DIVERGED


def test_a_producer_that_writes_into_the_target_meanwhile(pair: tuple[str, str], topic_name: str) -> None:
    source, target = pair
    make_topic(source, topic_name, 2)
    make_topic(target, topic_name, 2)
    for partition in (0, 1):
        produce(source, topic_name, values(4000, 1000), partition=partition, batch=20)
    stop = threading.Event()
    producer = Producer({"bootstrap.servers": target, "linger.ms": 0})

    def intrude() -> None:
        while not stop.is_set():
            producer.produce(topic_name, b"intruder", partition=0)
            producer.flush()

    thread = threading.Thread(target=intrude)
    thread.start()
    try:
        figures = mirror_once(source, target, [topic_name])
    finally:
        stop.set()
        thread.join()
    assert state(figures, topic_name) in {State.FENCED, State.DIVERGED}
    assert state(figures, topic_name, 1) is State.CAUGHT_UP


def test_a_source_that_lost_records(pair: tuple[str, str], topic_name: str) -> None:
    source, target = pair
    filled(source, topic_name, 100)
    assert state(mirror_once(source, target, [topic_name]), topic_name) is State.CAUGHT_UP
    recreated(source, topic_name, 30)
    figures = mirror_once(source, target, [topic_name])
    assert state(figures, topic_name) is State.TRUNCATED
    assert "ends at 100, the source's at 30" in figures[TopicPartition(topic_name, 0)].detail


def recreated(bootstrap: str, topic: str, count: int) -> None:
    deleted(bootstrap, topic)
    filled(bootstrap, topic, count)


def deleted(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result()
    deadline = time.monotonic() + 20
    while topic in admin.list_topics(timeout=5).topics:
        assert time.monotonic() < deadline


def test_another_topic_by_the_same_name(pair: tuple[str, str], topic_name: str) -> None:
    source, target = pair
    filled(source, topic_name, 100)
    mirror_once(source, target, [topic_name])
    deleted(source, topic_name)
    make_topic(source, topic_name, 2)
    for partition in (0, 1):
        produce(source, topic_name, (b"other" for _ in range(300)), partition=partition)
    assert state(mirror_once(source, target, [topic_name]), topic_name) is State.DIVERGED


def test_a_flow_may_go_on_behind_what_retention_took(pair: tuple[str, str], topic_name: str) -> None:
    source, target = pair
    filled(source, topic_name, 100)
    mirror_once(source, target, [topic_name])
    for partition in (0, 1):
        produce(source, topic_name, values(100), partition=partition)
    trimmed(source, topic_name, 0, 150)
    figures = mirror_once(source, target, [topic_name], on_data_loss="continue")
    assert [state(figures, topic_name, partition) for partition in (0, 1)] == [State.CAUGHT_UP] * 2
    assert [figures[TopicPartition(topic_name, partition)].lost for partition in (0, 1)] == [50, 0]
    found = [record[0] for record in read(target, topic_name, 0)]
    assert found == [*range(100), *range(150, 200)], "what is gone is skipped, and every offset is the source's"


def test_a_loss_is_in_the_journal_before_the_mirror_goes_on(pair: tuple[str, str], topic_name: str) -> None:
    source, target = pair
    filled(source, topic_name, 100)
    flow = topic_name.replace("_", "-")[-60:]
    mirror_once(source, target, [topic_name], flow)
    produce(source, topic_name, values(100))
    trimmed(source, topic_name, 0, 150)
    settings = settings_between(source, target, [topic_name], flow)
    ensure_flow_topic(Admin(settings.target), flow)
    at = TopicPartition(topic_name, 0)

    async def task() -> tuple[list[TaskResult], dict[bytes, bytes]]:
        ends = Endpoint.of(settings.source), Endpoint.of(settings.target)
        async with Wire(ends[0]) as cluster:
            await cluster.refresh([topic_name])
            assignment = Assignment(at, at, cluster.topic_id(topic_name), Rules(continues_on_loss=True), until=200)
        async with Wire(ends[1]) as cluster:
            standing = standing_in(await Journal(cluster, flow).newest())
        mark = await ControlServer.open("127.0.0.1")
        try:
            results = await run_task(
                TaskAssignment(
                    flow=flow,
                    instance="any",
                    number=0,
                    source=ends[0],
                    target=ends[1],
                    assignments=(standing.handed(assignment),),
                    seconds=30,
                    memory_bytes=1 << 26,
                    stop_mark=mark.address,
                    so_far={},
                )
            )
        finally:
            await mark.close()
        async with Wire(ends[1]) as cluster:
            await cluster.refresh([journal_topic(flow)])
            return results, newest((await Journal(cluster, flow).read())[0])

    (result,), journal = asyncio.run(task())
    assert (result.figures.next_offset, result.counters.lost) == (200, 50)
    output = json.loads(journal[f"loss/{topic_name}/0/100".encode()])
    assert (output["topic"], output["first"], output["next"]) == (topic_name, 100, 150)


def test_a_deleted_source_topic(pair: tuple[str, str], topic_name: str) -> None:
    """The broker reports it while the mirror runs: fetches carry the topic's id."""
    source, target = pair
    filled(source, topic_name, 20)
    mirror_once(source, target, [topic_name])

    async def follow() -> State:
        ends = [
            Endpoint(alias, ((at.split(":")[0], int(at.split(":")[1])),))
            for alias, at in (("a", source), ("b", target))
        ]
        async with Wire(ends[0]) as one, Wire(ends[1]) as other:
            await one.refresh([topic_name])
            at = TopicPartition(topic_name, 0)
            pipeline = Pipeline("test", one, other, [Assignment(at, at, one.topic_id(topic_name), Rules())], 1 << 26)
            running = asyncio.create_task(pipeline.run(30))
            while pipeline.figures("")[0].state is not State.CAUGHT_UP:
                await asyncio.sleep(0.02)
            await asyncio.to_thread(deleted, source, topic_name)
            await running  # ends by itself: its only partition stopped
            return pipeline.figures("")[0].state

    assert asyncio.run(follow()) is State.RECREATED


def test_a_target_leader_that_dies_and_returns(own_source: Cluster, topic_name: str) -> None:
    """RF 3 on the target; the leaders die one after another while the copy runs, and nothing is lost or repeated."""
    source, topic = own_source, topic_name
    with Cluster.start(nodes=3, name="three") as target:
        make_topic(source.bootstrap, topic, 3)
        for partition in range(3):
            produce(source.bootstrap, topic, values(3000, 4000), partition=partition, batch=25)
        done = threading.Event()

        def strike() -> None:
            for node in (0, 1):
                wait_for_growth(target.bootstrap, topic)
                if done.is_set():
                    return
                target.kill(node)
                target.restart(node)

        thread = threading.Thread(target=strike)
        thread.start()
        try:
            figures = mirror_once(source.bootstrap, target.bootstrap, [topic])
        finally:
            done.set()
            thread.join()
        assert {one.state for one in figures.values()} == {State.CAUGHT_UP}, figures
        assert assert_same_records(source.bootstrap, target.bootstrap, topic, 3) == 9000


def wait_for_growth(bootstrap: str, topic: str) -> None:
    """Until the topic has grown a little, or 10 s."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none"})
    first = None
    deadline = time.monotonic() + 10
    try:
        while time.monotonic() < deadline:
            try:
                end = sum(consumer.get_watermark_offsets(Confluent(topic, p), timeout=2)[1] for p in range(3))
            except KafkaException:
                continue
            first = end if first is None else first
            if end > first + 300:
                return
    finally:
        consumer.close()
