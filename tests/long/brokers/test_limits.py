"""What bounds a copy: the flow's own limit, quotas of brokers, and a target that does not answer."""

from __future__ import annotations

import asyncio
import os
import random
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Self

import psutil
import pytest
from helpers import make_topic, mirror_once, produce, settings_between
from running import wait_for
from sparkless import InThisProcess

from mirror.commands.verify import verify_flow
from mirror.config.models import LimitSettings, TopicRule
from mirror.driver.flow import Flow
from mirror.driver.scheduling import Limits, rates_of
from mirror.driver.topic_watcher import NewPlan
from mirror.kafka.cluster import Cluster, Endpoint, TopicPartition
from mirror.kafka.connection import CLIENT_ID, Connection
from mirror.kafka.fetch import fetch_at
from mirror.kafka.protocol import Api
from mirror.lab.embedded import Cluster as Brokers
from mirror.lab.embedded import Spec, start_many
from mirror.observability.status import PartitionStatus, TaskStatus
from mirror.policy.rules import Rules
from mirror.policy.selection import Rekeying, rekeyed_by
from mirror.records.header import split
from mirror.replication import writer
from mirror.replication.assignment import Assignment
from mirror.replication.pipeline import Pipeline
from mirror.spark.rekey.driver import Rekeyer
from mirror.spark.rekey.queries import Queries
from mirror.spark.supervisor import Supervisor
from mirror.states import State

ALTER_QUOTAS: Final = Api(49, "alter_client_quotas", 1, 1)
MEGABYTE: Final = 1 << 20
#: Partitions of which one batch of 900 kB each does not go into memory together.
MANY: Final = 80
TIMEOUT: Final = 120.0


def payload(count: int, size: int) -> list[bytes]:
    """Records that do not compress."""
    noise = random.Random(7)
    return [noise.randbytes(size) for _ in range(count)]


def endpoint(alias: str, bootstrap: str) -> Endpoint:
    host, port = bootstrap.split(":")
    return Endpoint(alias, ((host, int(port)),))


@dataclass(eq=False)
class Copy:
    """A bounded copy of a topic in a thread of its own; a context manager. It reports on the first partition."""

    source: str
    target: str
    topic: str
    until: int
    memory: int = 16 * MEGABYTE
    partitions: int = 1
    bytes_per_second: float | None = None
    took: float = 0.0
    pipeline: Pipeline = field(init=False)

    def __enter__(self) -> Self:
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        assert self._ready.wait(TIMEOUT)
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self.pipeline.finish)
        self._thread.join()

    async def _run(self) -> None:
        async with Cluster(endpoint("eu", self.source)) as source, Cluster(endpoint("us", self.target)) as target:
            places = [TopicPartition(self.topic, number) for number in range(self.partitions)]
            await source.refresh({self.topic})
            topic_id = source.topic_id(self.topic)
            work = [Assignment(at, at, topic_id, Rules(), until=self.until) for at in places]
            self.pipeline = Pipeline("test", source, target, work, self.memory, bytes_per_second=self.bytes_per_second)
            self._loop, began = asyncio.get_running_loop(), time.monotonic()
            self._ready.set()
            await self.pipeline.run(3600)
            self.took = time.monotonic() - began

    @property
    def figures(self) -> PartitionStatus:
        return self.pipeline.figures("")[0]

    @property
    def task(self) -> TaskStatus:
        return self.pipeline.task_figures("", 0, 0, 0)

    def done(self, seconds: float = TIMEOUT) -> None:
        self._thread.join(seconds)
        assert not self._thread.is_alive(), self.figures
        assert (self.figures.state, self.figures.next_offset) == (State.CAUGHT_UP, self.until)


def prepared(source: Brokers, target: Brokers, topic: str, values: list[bytes], batch: int) -> Copy:
    for side in (source, target):
        make_topic(side.bootstrap, topic)
    produce(source.bootstrap, topic, values, batch=batch)
    return Copy(source.bootstrap, target.bootstrap, topic, len(values))


@pytest.mark.brokers
@pytest.mark.parametrize(("size", "batch"), [(2_000, 10), (100_000, 5)], ids=["small batches", "large ones"])
def test_a_copy_keeps_to_its_bound(
    own_source: Brokers, own_target: Brokers, topic_name: str, size: int, batch: int
) -> None:
    """In its own time, however long that was: no more than the bound allows, and the better part of that. The one
    batch more is the last, for which nobody waits.
    """
    copy = prepared(own_source, own_target, topic_name, payload(4_000_000 // size, size), batch)
    copy.bytes_per_second = 1_000_000.0
    with copy:
        copy.done()
    allowed = copy.bytes_per_second * copy.took
    copied = copy.figures.bytes
    print(f"{copied} bytes in {copy.took:.1f} s: {copied / allowed:.2f} of what the bound allows")
    assert copied <= allowed + size * batch * 1.1
    assert copied >= 0.5 * allowed


@pytest.mark.brokers
def test_a_debt_hides_nothing_of_the_source(own_source: Brokers, own_target: Brokers, topic_name: str) -> None:
    """A batch that is worth hundreds of seconds keeps the task from fetching: it must not look as if all were there."""
    copy = prepared(own_source, own_target, topic_name, payload(1, 500_000), 1)
    copy.bytes_per_second, copy.until = 1_000.0, 1_000
    with copy:
        wait_for(lambda: copy.figures.next_offset == 1, TIMEOUT, lambda: str(copy.figures))
        produce(own_source.bootstrap, topic_name, [b"small"] * 5)
        wait_for(lambda: copy.figures.log_end == 6, TIMEOUT, lambda: str(copy.figures))
        assert (copy.figures.state, copy.figures.next_offset, copy.figures.lag_records) == (State.MIRRORING, 1, 5)


@pytest.mark.brokers
def test_a_proof_keeps_to_the_bound_of_the_flow(own_source: Brokers, own_target: Brokers, topic_name: str) -> None:
    make_topic(own_source.bootstrap, topic_name, 2)
    for partition in range(2):
        produce(own_source.bootstrap, topic_name, payload(100, 10_000), partition=partition, batch=5)
    ends = own_source.bootstrap, own_target.bootstrap
    mirror_once(*ends, [topic_name], topic_name)
    settings = settings_between(*ends, [topic_name], topic_name)
    bounded = settings.model_copy(update={"limits": LimitSettings(bytes_per_second=MEGABYTE)})
    began = time.monotonic()
    report = verify_flow(bounded)
    took = time.monotonic() - began
    print(f"2 MB of each side in {took:.1f} s")
    assert sum(one.records for one in report.partitions) == 200
    assert took > 1.0, "two megabytes, at one in a second, and half of it at once"


@pytest.mark.brokers
def test_readers_share_a_bound(own_source: Brokers, topic_name: str) -> None:
    make_topic(own_source.bootstrap, topic_name)
    produce(own_source.bootstrap, topic_name, payload(100, 10_000), batch=5)
    at = TopicPartition(topic_name, 0)

    async def read(one: Endpoint) -> float:
        async with Cluster(one) as cluster:
            await cluster.refresh([topic_name])
            began, offset = time.monotonic(), 0
            while offset < 100:
                found = list(split((await fetch_at(cluster, at, offset, max_bytes=100_000)).records))
                offset = found[-1].header.next_offset
            return time.monotonic() - began

    async def both(rate: float) -> float:
        shared = endpoint("any", own_source.bootstrap).bounded(rate, readers=2)
        return max(await asyncio.gather(read(shared), read(shared)))

    took = asyncio.run(both(1_000_000))
    print(f"2 MB by two readers in {took:.1f} s")
    assert took > 1.2
    assert endpoint("any", own_source.bootstrap).bounded(None, 2).bytes_per_second is None


def test_re_keying_gets_its_part_of_a_bound() -> None:
    """Of the bound of now, by how many topics there are now: whatever both were at the start."""

    def of(topic: str) -> Assignment:
        at = TopicPartition(topic, 0)
        return Assignment(at, at, None, Rules())

    def named(topic: str) -> Rekeying:
        return rekeyed_by(TopicRule(match=re.compile(topic), partitions=3), topic, topic, 3)

    flow = Flow(
        name="f",
        source=endpoint("a", "a:1"),
        target=endpoint("b", "b:1"),
        assignments=(of("a"), of("b")),
        tasks=1,
        epoch_seconds=1,
        memory_bytes=1,
    )
    limits = LimitSettings(bytes_per_second=900, memory_mb=64)
    bound = settings_between("a:1", "b:1", ["a"]).model_copy(update={"limits": limits})

    async def story() -> None:
        engine: Any = InThisProcess()
        queries = Queries(lambda rule: Rekeyer(engine, flow, rule, frozenset()))
        mirror = Supervisor(engine, flow, lambda _: None, queries=queries)
        stopped = asyncio.Event()
        stopped.set()
        queries.start(stopped, stopped.set, mirror._journal_state, limits=mirror._rekey_limits)
        mirror.configured(bound)
        assert mirror._rates[0] == 900
        for topic, rates in (("c", (600, 300)), ("d", (450, 225))):
            mirror.rekey(NewPlan((), rekeyed=(named(topic),)))
            assert mirror._rates == pytest.approx(rates)
            assert {one.limits() for one in queries._rekeyers.values()} == {Limits(rates[1], 64 << 20)}
        await queries.cancel()

    asyncio.run(story())


def test_tasks_share_a_bound_by_what_they_have_to_move() -> None:
    def of(topic: str) -> Assignment:
        at = TopicPartition(topic, 0)
        return Assignment(at, at, None, Rules())

    def lagging(topic: str, records: int) -> PartitionStatus:
        return PartitionStatus(
            flow="f", instance="i", topic=topic, partition=0, target_topic=topic, state=State.MIRRORING,
            next_offset=0, log_end=records, lag_records=records, records=10, bytes=1000, at_ms=0,
        )  # fmt: skip

    tasks = [(of("behind"), of("quiet")), (of("busy"),), (of("unknown"),)]
    figures = {TopicPartition(name, 0): lagging(name, lag) for name, lag in (("behind", 30), ("quiet", 0))}
    behind, busy, unknown = rates_of(1000, tasks, figures, {TopicPartition("busy", 0): 1000})
    assert behind is not None
    assert (behind, busy, unknown) == pytest.approx((200 / 3 + 600, 200 / 3 + 200, 200 / 3))
    assert rates_of(None, tasks, figures, {}) == [None] * 3


@pytest.mark.brokers
def test_a_quota_is_kept_to_and_no_hang(
    own_source: Brokers, own_target: Brokers, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target mutes us for seconds, much longer than an answer may take: no connection is given up for that."""
    lost: list[str] = []
    broken = Connection._break

    def noted(self: Connection, why: Any) -> None:
        if "no answer" in str(why):
            lost.append(str(why))
        broken(self, why)

    monkeypatch.setattr(Connection, "_break", noted)
    monkeypatch.setattr(writer, "ANSWER_TIMEOUT", 1.0)
    copy = prepared(own_source, own_target, topic_name, payload(400, 20_000), 10)
    with quota(own_target.bootstrap, "producer_byte_rate", 600_000.0), copy:
        copy.done()
    print(f"muted for {copy.task.target_throttled_ms} ms of {copy.took:.1f} s")
    assert copy.task.target_throttled_ms > 1000, "the quota never held us back: nothing was tried"
    assert lost == []
    assert copy.figures.records == 400


@pytest.mark.brokers
def test_a_quota_is_no_silence(own_source: Brokers, own_target: Brokers, topic_name: str) -> None:
    """The source answers at once, and with nothing in it, until its quota is kept to; then all that is asked for comes,
    of a proof and of a task that looks where its copies end.
    """
    ends, partitions = (own_source.bootstrap, own_target.bootstrap), 4
    make_topic(own_source.bootstrap, topic_name, partitions)
    for partition in range(partitions):
        produce(own_source.bootstrap, topic_name, payload(60, 10_000), partition=partition, batch=20)
    mirror_once(*ends, [topic_name], topic_name)
    with quota(own_source.bootstrap, "consumer_byte_rate", 100_000.0):
        began = time.monotonic()
        report = verify_flow(settings_between(*ends, [topic_name], topic_name))
        took = time.monotonic() - began
        produce(own_source.bootstrap, topic_name, payload(20, 10_000), batch=20)
        figures = mirror_once(*ends, [topic_name], topic_name)
    print(f"2.4 MB of the source in {took:.1f} s")
    assert not report.unread
    assert sum(one.records for one in report.partitions) == partitions * 60
    assert took > 10, "the quota never held us back: nothing was tried"
    assert {one.state for one in figures.values()} == {State.CAUGHT_UP}


@pytest.mark.brokers
def test_a_quota_that_lets_nothing_through_is_named(own_source: Brokers, own_target: Brokers, topic_name: str) -> None:
    """A batch is larger than the quota ever allows: a partition that had all before does not stay caught up."""
    copy = prepared(own_source, own_target, topic_name, payload(1, 100), 1)
    copy.until = 1 << 40
    with copy:
        wait_for(lambda: copy.figures.state is State.CAUGHT_UP, TIMEOUT, lambda: str(copy.figures))
        with quota(own_source.bootstrap, "consumer_byte_rate", 10_000.0):
            produce(own_source.bootstrap, topic_name, payload(1, 500_000))
            wait_for(lambda: copy.figures.state is State.UNAVAILABLE, TIMEOUT, lambda: str(copy.figures))
            figures = copy.figures
    assert "consumer_byte_rate" in figures.detail
    assert (figures.next_offset, figures.lag_records) == (1, None)


@contextmanager
def quota(bootstrap: str, name: str, value: float) -> Iterator[None]:
    """A quota for the mirror's client id while this is open."""

    async def alter(*, remove: bool) -> None:
        schema = ALTER_QUOTAS.schema(1, "request")
        entity = schema.EntityData(entity_type="client-id", entity_name=CLIENT_ID)
        entry = schema.EntryData(entity=(entity,), ops=(schema.OpData(key=name, value=value, remove=remove),))
        async with Cluster(endpoint("any", bootstrap)) as cluster:
            await cluster.refresh()
            node = cluster.nodes[0]
            answer = await cluster.call(node, ALTER_QUOTAS, entries=(entry,), validate_only=False)
            assert [one.error_code for one in answer.entries] == [0]

    asyncio.run(alter(remove=False))
    try:
        yield
    finally:
        asyncio.run(alter(remove=True))


@pytest.mark.brokers
@pytest.mark.parametrize("seconds", [8.0, pytest.param(600.0, marks=[pytest.mark.soak, pytest.mark.timeout(900)])])
def test_memory_is_held_while_the_target_is_frozen(topic_name: str, seconds: float) -> None:
    """The source has six times what may be held; what this process holds does not grow with the time, and the copy
    goes on by itself.
    """
    us = psutil.Process(os.getpid())
    source, target = start_many([Spec(name="source"), Spec(name="target")])
    with source, target:
        copy = prepared(source, target, topic_name, payload(1000, 100_000), 5)
        with copy:
            deadline = time.monotonic() + TIMEOUT
            while not copy.figures.records:
                assert time.monotonic() < deadline, copy.figures
                time.sleep(0.001)
            target.suspend(0)
            try:
                assert copy.figures.records < 1000, "the copy was too quick to be frozen"
                time.sleep(2)
                early = us.memory_info().rss
                time.sleep(seconds)
                late, before_thaw = us.memory_info().rss, copy.figures
            finally:
                target.resume(0)
            copy.done()
    print(f"resident: {early >> 20} MB after 2 s, {late >> 20} MB after {seconds + 2:.0f} s, {before_thaw.state}")
    assert late - early < copy.memory
    assert copy.figures.records == 1000


@pytest.mark.brokers
def test_memory_is_shared_by_all_partitions(topic_name: str) -> None:
    """Each may take a whole batch, if only of what is left: together these would be more than four times what may be
    held.
    """
    us = psutil.Process(os.getpid())
    source, target = start_many([Spec(name="source"), Spec(name="target")])
    with source, target:
        for side in (source, target):
            make_topic(side.bootstrap, topic_name, MANY)
        for number in range(MANY):
            produce(source.bootstrap, topic_name, [b"first"], partition=number)
        copy = Copy(source.bootstrap, target.bootstrap, topic_name, 10, partitions=MANY)
        with copy:
            wait_for(lambda: all(one.records for one in copy.pipeline.figures("")), TIMEOUT, lambda: str(copy.figures))
            target.suspend(0)
            try:
                before = us.memory_info().rss
                for number in range(MANY):
                    produce(source.bootstrap, topic_name, payload(9, 100_000), partition=number, batch=9)
                time.sleep(5)  # for a task that goes on to fetch
                held = us.memory_info().rss - before
            finally:
                target.resume(0)
            copy.done()
    print(f"{held >> 20} MB more, of {MANY * 900_000 >> 20} MB")
    assert held < 3 * copy.memory
