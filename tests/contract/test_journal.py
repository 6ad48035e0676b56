"""A flow's journal, to which anybody may write, and which may be lost: nothing hides what it says."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, tzinfo
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient
from failovers import Flow, end_of, values
from helpers import make_topic, produce, settings_between, wait_for_markers
from pair import Shared
from sparkless import InThisProcess, run_beside
from syncing import admin_of, delete_topics
from waiting import DEADLINE_S, MovableClock, until

from mirror.commands.failover import _FailoverRun
from mirror.driver.flow import prepare
from mirror.errors import ClusterUnreachable, ExitCode
from mirror.journal import journal
from mirror.journal.entries import pause_entry
from mirror.journal.journal import OWNER, Entry, Journal, journal_topic
from mirror.journal.ownership import KEY, Owner, take
from mirror.kafka.cluster import Cluster, Endpoint
from mirror.kafka.topic_configs import ConfigChange
from mirror.spark.supervisor import Supervisor
from mirror.topics.apply import ensure_flow_topic


def test_what_others_write_hides_nothing_and_keeps_nobody_from_the_flow(
    target_cluster: Shared, topic_name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Compressed, in transactions, or by the broker itself, where somebody set that on the topic."""
    bootstrap, topic = target_cluster.bootstrap, journal_topic(topic_name)
    make_topic(bootstrap, topic, configs={"cleanup.policy": "compact", "compression.type": "gzip"})

    def foreign(value: bytes, **settings: str) -> None:
        producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "lz4", **settings})
        if settings:
            producer.init_transactions(DEADLINE_S)
            producer.begin_transaction()
        producer.produce(topic, value, key=b"foreign")
        assert not producer.flush(DEADLINE_S)
        if settings:
            producer.abort_transaction(DEADLINE_S)
            wait_for_markers(bootstrap, topic)

    async def story() -> None:
        async with Cluster(Endpoint.of(settings_between(bootstrap, bootstrap, ["any"]).target)) as target:
            await target.refresh([topic])
            one = Journal(target, topic_name)
            await one.append([(b"topic/t", b"known" * 100), (b"gone", None)])
            await asyncio.to_thread(foreign, b"x" * 2000)
            await asyncio.to_thread(foreign, b"y" * 2000, **{"transactional.id": topic_name})
            await one.append([(b"topic/u", b"known")])
            known = {b"topic/t": b"known" * 100, b"foreign": b"y" * 2000, b"topic/u": b"known"}
            assert await one.newest() == known
            taken = await take(one, "me", asyncio.Event())
            assert taken is not None
            assert (taken.owner.claim, taken.seen.values[b"topic/t"]) == (1, b"known" * 100)

    asyncio.run(story())
    assert "not a batch of the journal: a transaction's marker" in capfd.readouterr().err


def test_a_clock_that_is_hours_ahead_keeps_nobody_from_writing(
    target_cluster: Shared, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers refuse what is an hour later than their own clock, unless the topic takes any time: one that the flow
    makes, and one of an older version from the next start on. Till then it learns what to do.
    """

    class Ahead(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return datetime.now(tz) + timedelta(hours=2)

    monkeypatch.setattr(journal, "datetime", Ahead)
    bootstrap = target_cluster.bootstrap
    settings = settings_between(bootstrap, bootstrap, ["any"])
    older = f"{topic_name}-older"
    make_topic(bootstrap, journal_topic(older), 1, {"cleanup.policy": "compact"})

    async def written(flow: str) -> list[Entry]:
        async with Cluster(Endpoint.of(settings.target)) as cluster:
            await cluster.refresh([journal_topic(flow)])
            one = Journal(cluster, flow)
            await one.append([(b"key", b"value")])
            return (await one.read())[0]

    with pytest.raises(ClusterUnreachable, match=r"takes no record of this machine's time, .*after\.max\.ms=9"):
        asyncio.run(written(older))
    for flow in (topic_name, older):
        ensure_flow_topic(admin_of(bootstrap), flow)
        assert [one.key for one in asyncio.run(written(flow))] == [b"key"]


@pytest.fixture
def flow(source_cluster: Shared, target_cluster: Shared, topic_name: str) -> Flow:
    """Ten records, mirrored."""
    return Flow(source_cluster.bootstrap, target_cluster.bootstrap, topic_name).mirrored(10)


def delete(flow: Flow) -> None:
    delete_topics(flow.target, journal_topic(flow.topic))


def make_anew(flow: Flow) -> None:
    delete(flow)
    make_topic(flow.target, journal_topic(flow.topic))


def expire(flow: Flow) -> None:
    """By a policy that somebody set."""
    topic = journal_topic(flow.topic)
    admin_of(flow.target).alter_configs([ConfigChange(topic=topic, name="cleanup.policy", before=None, after="delete")])
    client = AdminClient({"bootstrap.servers": flow.target})
    (deleted,) = client.delete_records([Place(topic, 0, -1)]).values()
    deleted.result(DEADLINE_S)


@pytest.mark.proves("mirror run", "mirror failover", "never-silent")
@pytest.mark.parametrize("lose", [delete, make_anew, expire])
def test_a_running_mirror_writes_a_lost_journal_again_and_a_failover_still_ends_it(
    flow: Flow, lose: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It claims the flow in it, and writes what only it knows: which topic is the flow's, and what is paused."""
    monkeypatch.setattr(Owner, "is_gone", property(lambda _: False))  # it runs in the process of the command
    context: Any = InThisProcess()
    mirror = Supervisor(context, prepare(flow.settings), lambda _: None)
    pause = pause_entry("elsewhere")

    def owner() -> str:
        return Owner.from_json(flow.journal().get(OWNER, b'{"instance": ""}')).instance

    def story() -> None:
        until(lambda: mirror._journal_state.owner)
        flow.append(pause)
        until(lambda: "elsewhere" in mirror._journal_state.paused)
        known = flow.journal()
        lose(flow)
        until(lambda: {pause[0], OWNER} <= flow.journal().keys())
        again = flow.journal()
        for key in (OWNER, *(key for key in known if key.startswith(b"topic/"))):
            assert key in again
        assert Owner.from_json(again[OWNER]).instance == Owner.from_json(known[OWNER]).instance
        settings = admin_of(flow.target).topic_configs([journal_topic(flow.topic)])
        assert settings[journal_topic(flow.topic)]["cleanup.policy"].value == "compact"
        produce(flow.source, flow.topic, values(5))
        until(lambda: any(key.startswith(b"state/") for key in flow.journal()))
        assert flow.fail_over()["warnings"] == [], "it said that it ended"

    assert run_beside(mirror, story).exit_code == ExitCode.DONE
    assert "journal_lost_records" in capfd.readouterr().err
    produce(flow.source, flow.topic, values(5))
    assert end_of(flow.target, flow.topic) == 15, "nothing arrives behind the failover"


@pytest.mark.proves("mirror failover", "never-silent")
def test_a_failover_that_the_journal_lost_is_recorded_again_and_named(
    flow: Flow, monkeypatch: pytest.MonkeyPatch, clock: MovableClock
) -> None:
    """A mirror may have started meanwhile, and nobody knows any more that the one before ended."""
    follow = _FailoverRun.follow

    async def loses(*args: Any, **more: Any) -> None:
        await asyncio.to_thread(delete, flow)
        ensure_flow_topic(admin_of(flow.target), flow.topic)
        clock.move(DEADLINE_S + 1)
        await follow(*args, **more)

    monkeypatch.setattr(_FailoverRun, "follow", loses)
    monkeypatch.setattr("mirror.commands.failover.QUIET_SECONDS", 0.5)
    lost, silent, *_ = flow.fail_over(ExitCode.DATA_AT_RISK)["warnings"]
    assert lost.startswith("the journal lost the record of this failover, which was written again")
    assert "is silent, and did not say that it ended" in silent
    assert KEY in flow.journal()
