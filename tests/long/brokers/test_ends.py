"""How a mirror ends, and what must not end it: clocks that disagree, a configuration with a mistake, an empty plan."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, Producer
from confluent_kafka import TopicPartition as Confluent
from confluent_kafka.admin import AdminClient
from crashcut import crash_and_cut
from helpers import config_file, make_topic, produce, remove_topics, settings_between
from running import TIMEOUT
from samerecords import read
from sparkless import InThisProcess
from syncing import delete_topics
from typer.testing import CliRunner

from mirror import config
from mirror.cli import app
from mirror.config import Settings
from mirror.driver.flow import Outcome, prepare
from mirror.driver.journal_state import JournalState
from mirror.driver.topic_watcher import NewPlan, Replanner, TopicWatcher
from mirror.errors import EngineLost
from mirror.groups.follower import GroupFollower
from mirror.journal.entries import FirstSeen, pause_entry, resume_entry
from mirror.journal.heartbeats import Heart
from mirror.journal.journal import OWNER, Journal, journal_topic
from mirror.journal.ownership import Owner, take
from mirror.kafka.admin import Admin
from mirror.kafka.cluster import Cluster as Wire
from mirror.kafka.cluster import Endpoint
from mirror.kafka.topic_configs import ConfigChange
from mirror.lab.embedded import Cluster, Spec, start_many
from mirror.observability.metrics import Metrics
from mirror.observability.status import PartitionStatus
from mirror.spark import task
from mirror.spark.session import Engine
from mirror.spark.supervisor import Supervisor
from mirror.states import State
from mirror.topics.apply import ensure_flow_topic

pytestmark = pytest.mark.brokers


async def eventually(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.05)


def count(bootstrap: str, topic: str) -> int:
    return len(list(read(bootstrap, topic, 0)))


@pytest.fixture
def shown(capfd: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """What was logged so far."""
    so_far = [""]

    def log() -> str:
        so_far[0] += capfd.readouterr().err
        return so_far[0]

    return log


def test_an_executor_whose_clock_is_ahead_copies_all_the_same(
    own_source: Cluster, own_target: Cluster, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task's time is what it has left, and no time of day."""
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name)
    produce(source, topic_name, [b"x"] * 50)
    flow = replace(prepare(settings_between(source, target, [topic_name], topic_name), once=True), epoch_seconds=5.0)
    run_task, clock = task.run_task, time.time

    async def ahead(given: task.TaskAssignment) -> list[task.TaskResult]:
        monkeypatch.setattr(time, "time", lambda: clock() + 90)
        try:
            return await run_task(given)
        finally:
            monkeypatch.setattr(time, "time", clock)

    monkeypatch.setattr(task, "run_task", ahead)
    context: Any = InThisProcess()
    outcome = asyncio.run(Supervisor(context, flow, lambda _: None).run())
    assert (int(outcome.exit_code), outcome.incomplete) == (0, "")
    assert count(target, topic_name) == 50


class Live:
    """A live mirror in this process that reads its configuration from a file."""

    def __init__(self, file: Path) -> None:
        self.file = file
        settings = config.load(file)
        settings = settings.model_copy(update={"sync": settings.sync.model_copy(update={"interval_s": 0.5})})
        flow = replace(prepare(settings), epoch_seconds=2.0)
        context: Any = InThisProcess()
        self.watcher = TopicWatcher(Replanner(settings), self.load)
        self.supervisor = Supervisor(context, flow, lambda _: None, topic_watcher=self.watcher)

    def load(self) -> Settings:
        return config.load(self.file)

    def configure(self, **topics: Any) -> None:
        found = json.loads(self.file.read_text())
        self.file.write_text(json.dumps(found | {"topics": found["topics"] | topics}))
        self.watcher.read_again()

    def end(self) -> None:
        self.supervisor._interrupt(signal.SIGTERM)


def test_a_configuration_that_is_refused_in_part_is_refused_whole(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path, shown: Callable[[], str]
) -> None:
    """A typo in an include, and a pattern that matches nothing; with it another topic would have been added. The mirror
    goes on as it was; and where the configuration leaves nothing to mirror, it waits.
    """
    source, target = own_source.bootstrap, own_target.bootstrap
    orders, more = f"{topic_name}-orders", f"{topic_name}-more"
    for topic in (orders, more):
        make_topic(source, topic)
        produce(source, topic, [b"x"] * 10)
    live = Live(config_file(tmp_path, source, target, [orders], flow=topic_name))

    async def story() -> Outcome:
        running = asyncio.create_task(live.supervisor.run())
        try:
            await eventually(lambda: count(target, orders) == 10)
            live.configure(include=[f"{topic_name}-odrers", more])
            await eventually(lambda: "configuration_refused" in shown())
            assert "did you mean" in shown()
            live.configure(include=[f"{topic_name}-nothing-like-it.*"])
            await eventually(lambda: shown().count("configuration_refused") == 2)
            live.configure(include=[orders, more], offsets="translate")
            await eventually(lambda: shown().count("configuration_refused") == 3)
            assert "topics.offsets cannot change while the mirror runs" in shown()
            produce(source, orders, [b"y"] * 10)
            await eventually(lambda: count(target, orders) == 20)
            assert "plan_changed" not in shown()
            assert "configuration_read" not in shown()
            live.configure(include=[more], offsets="preserve")
            await eventually(lambda: count(target, more) == 10)
            assert not running.done()
            await live.supervisor.found(NewPlan(()))  # what deletions may leave
            await eventually(lambda: re.search("plan_changed .*partitions=0", shown()) or running.done())
            produce(source, more, [b"y"] * 10)
            await eventually(lambda: count(target, more) == 20 or running.done())
            assert not running.done(), "an empty plan is waited with"
        finally:
            live.end()
            outcome = await running
        return outcome

    outcome = asyncio.run(story())
    assert (int(outcome.exit_code), outcome.interrupted) == (0, signal.SIGTERM)


@pytest.mark.parametrize("who", [Heart, GroupFollower])
def test_what_fails_beside_the_copy_ends_the_mirror_and_is_reported(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path, who: Any
) -> None:
    """By a mistake of ours: heartbeats and groups would rest for as long as the mirror runs, and nobody would know."""
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name)
    produce(source, topic_name, [b"x"] * 10)
    live = Live(config_file(tmp_path, source, target, [topic_name], flow=topic_name))

    async def failing(_: Any) -> None:
        raise RuntimeError("a mistake of ours")

    async def story() -> None:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(who, "run", failing)
            running = asyncio.create_task(live.supervisor.run())
            try:
                await asyncio.wait([running], timeout=TIMEOUT)
                assert running.done(), "it goes on as if nothing had happened"
                with pytest.raises(RuntimeError, match="a mistake of ours"):
                    await running
            finally:
                live.end()
                await asyncio.wait([running])

    asyncio.run(story())


def test_an_engine_that_hangs_ends_the_mirror_while_no_epoch_runs(
    own_source: Cluster, own_target: Cluster, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is copied is paused, and a query of what is re-keyed waits for its job for good."""
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name)
    settings = settings_between(source, target, [topic_name], topic_name)
    flow = prepare(settings)

    async def hangs(_: Any) -> None:
        raise EngineLost("Spark's JVM hangs")

    async def story() -> None:
        async with Wire(Endpoint.of(settings.target)) as wire:
            await wire.refresh([journal_topic(settings.flow)])
            await Journal(wire, settings.flow).append([pause_entry(topic_name)])
        context: Any = InThisProcess()
        mirror = Supervisor(context, flow, lambda _: None)
        running = asyncio.create_task(mirror.run())
        done, _ = await asyncio.wait([running], timeout=TIMEOUT)
        if not done:
            mirror._interrupt(signal.SIGTERM)
        with pytest.raises(EngineLost):
            await running

    monkeypatch.setattr(Engine, "watch", hangs)
    asyncio.run(story())


def test_a_partition_that_is_not_of_the_flow_keeps_no_copy_from_ending(
    own_source: Cluster, own_target: Cluster, topic_name: str
) -> None:
    """One that it had and waited for, whose report is in the journal: what was mirrored before a plan changed."""
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name)
    produce(source, topic_name, [b"x"] * 10)
    settings = settings_between(source, target, [topic_name], topic_name)
    flow = replace(prepare(settings, until_caught_up=True), epoch_seconds=2.0)
    context: Any = InThisProcess()
    mirror = Supervisor(context, flow, lambda _: None)
    former = PartitionStatus(
        flow=settings.flow,
        instance=mirror._instance,
        topic=f"{topic_name}-former",
        partition=0,
        target_topic=f"{topic_name}-former",
        state=State.UNAVAILABLE,
        next_offset=3,
        log_end=5,
        lag_records=2,
        at_ms=int(time.time()) * 1000,
    )

    async def write() -> None:
        async with Wire(Endpoint.of(settings.target)) as wire:
            await wire.refresh([journal_topic(settings.flow)])
            await Journal(wire, settings.flow).append([(former.key(), former.to_json())])

    async def story() -> Outcome:
        await write()
        running = asyncio.create_task(mirror.run())
        done, _ = await asyncio.wait([running], timeout=TIMEOUT)
        if not done:  # it waits for what it does not copy
            mirror._interrupt(signal.SIGTERM)
        return await running

    outcome = asyncio.run(story())
    assert (int(outcome.exit_code), outcome.interrupted, outcome.incomplete) == (0, 0, "")
    assert count(target, topic_name) == 10


def test_a_copy_that_ends_caught_up_names_what_rests_and_what_a_transaction_holds_back(
    own_source: Cluster, own_target: Cluster, topic_name: str, shown: Callable[[], str]
) -> None:
    """Nothing is copied of a paused topic: that is no 0, as it is none of `--once`."""
    source, target = own_source.bootstrap, own_target.bootstrap
    held, rests = f"{topic_name}-held", f"{topic_name}-rests"
    for topic in (held, rests):
        make_topic(source, topic)
        produce(source, topic, [b"x"] * 10)
    settings = settings_between(source, target, [held, rests], topic_name)
    flow = replace(prepare(settings, until_caught_up=True), epoch_seconds=2.0)

    async def write(*, is_paused: bool) -> None:
        async with Wire(Endpoint.of(settings.target)) as wire:
            await wire.refresh([journal_topic(settings.flow)])
            await Journal(wire, settings.flow).append([pause_entry(rests) if is_paused else resume_entry(rests)])

    def run() -> Outcome:
        context: Any = InThisProcess()
        return asyncio.run(asyncio.wait_for(Supervisor(context, flow, lambda _: None).run(), TIMEOUT))

    asyncio.run(write(is_paused=True))
    opened = Producer({"bootstrap.servers": source, "transactional.id": topic_name})
    opened.init_transactions(TIMEOUT)
    opened.begin_transaction()
    opened.produce(held, b"open")
    opened.flush(TIMEOUT)
    produce(source, held, [b"behind"] * 10)
    outcome = run()
    assert (int(outcome.exit_code), outcome.incomplete.split(",")[0]) == (6, f"{rests}-0: PAUSED at offset -1")
    assert re.search(rf"open_transactions .*{held}-0 from offset 10", shown())
    opened.abort_transaction(TIMEOUT)
    asyncio.run(write(is_paused=False))
    outcome = run()
    assert (int(outcome.exit_code), outcome.incomplete) == (0, "")
    assert (count(target, held), count(target, rests)) == (20, 10)


@pytest.fixture
def crashing_cluster() -> Iterator[Cluster]:
    """A target whose broker may be killed."""
    with ExitStack() as stack:
        yield next(stack.enter_context(cluster) for cluster in start_many([Spec(name="short-journal")]))


@pytest.mark.parametrize("how", ["deleted", "made anew by somebody else", "cut", "expired"])
def test_a_journal_that_is_gone_is_made_anew_and_a_failover_still_ends_the_mirror(
    own_source: Cluster,
    request: pytest.FixtureRequest,
    topic_name: str,
    tmp_path: Path,
    shown: Callable[[], str],
    how: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The mirror claims the flow in it and writes again what only it knows; nothing arrives behind the failover."""
    monkeypatch.setattr(Owner, "is_gone", property(lambda _: False))  # both have this process's number
    own_target: Cluster = request.getfixturevalue("crashing_cluster" if how == "cut" else "own_target")
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name)
    produce(source, topic_name, [b"x"] * 10)
    file = config_file(tmp_path, source, target, [topic_name], flow=topic_name)
    settings = config.load(file)
    journal, theirs = journal_topic(settings.flow), Admin(settings.target)
    live = Live(file)

    def lose() -> None:
        if how == "cut":  # only the flow's first records are left: the claim, and where the topic came from
            crash_and_cut(own_target, journal, batches=2)
            return
        if how == "expired":
            theirs.alter_configs([ConfigChange(topic=journal, name="cleanup.policy", before=None, after="delete")])
            admin = AdminClient({"bootstrap.servers": target})
            for future in admin.delete_records([Confluent(journal, 0, OFFSET_END)]).values():
                future.result(TIMEOUT)
            return
        remove_topics(theirs, journal)
        if how != "deleted":
            deadline = time.monotonic() + TIMEOUT
            while theirs.describe([journal]) and time.monotonic() < deadline:
                time.sleep(0.05)
            make_topic(target, journal)

    async def story() -> Outcome:
        running = asyncio.create_task(live.supervisor.run())
        try:
            await eventually(lambda: count(target, topic_name) == 10)
            known = await newest(settings)
            pause = pause_entry("elsewhere")
            async with Wire(Endpoint.of(settings.target)) as wire:
                await wire.refresh([journal])
                await Journal(wire, settings.flow).append([pause])
            await eventually(lambda: "elsewhere" in live.supervisor._journal_state.paused)
            await asyncio.to_thread(lose)
            await eventually(lambda: "journal_rewritten" in shown())
            assert "journal_lost_records" in shown()
            await eventually(lambda: OWNER in asyncio.run(newest(settings)))  # which may come behind what is rewritten
            again = await newest(settings)
            assert {key: value for key, value in again.items() if key.startswith(b"topic/")} == {
                key: value for key, value in known.items() if key.startswith(b"topic/")
            }
            assert again[pause[0]] == pause[1]
            assert Owner.read(again[OWNER]).instance == Owner.read(known[OWNER]).instance
            kept = await asyncio.to_thread(theirs.topic_configs, [journal])
            assert kept[journal]["cleanup.policy"].value == "compact"
            await eventually(lambda: any(key.startswith(b"state/") for key in asyncio.run(newest(settings))))
            done = await asyncio.to_thread(CliRunner().invoke, app, ["failover", str(file), "--json"])
            assert done.exit_code == 0, done.output
            await asyncio.wait_for(running, TIMEOUT)
            produce(source, topic_name, [b"late"] * 10)
            assert count(target, topic_name) == 10
        finally:
            if not running.done():
                live.end()
            outcome = await running
        return outcome

    outcome = asyncio.run(story())
    assert (int(outcome.exit_code), outcome.interrupted) == (0, 0)


def test_what_was_written_since_stands_where_a_journal_is_written_again(own_target: Cluster, topic_name: str) -> None:
    """Where a target is made anew, copies are begun anew in the same moment: they are not what they were."""
    settings = settings_between("127.0.0.1:1", own_target.bootstrap, [topic_name], flow=topic_name)
    theirs, key = Admin(settings.target), FirstSeen.key("copy")
    lost, kept = pause_entry("elsewhere"), (key, b"as it was")

    async def story() -> dict[bytes, bytes]:
        ensure_flow_topic(theirs, settings.flow)
        async with Wire(Endpoint.of(settings.target)) as wire:
            journal = Journal(wire, settings.flow)
            await wire.refresh([journal.partition.topic])
            taken = await take(journal, "me", asyncio.Event())
            assert taken is not None
            journal_state = JournalState(settings.flow, "me", print, print, Metrics(settings.flow))
            journal_state.begin(taken)
            await journal.append([lost, kept])
            assert await journal_state.read(journal)
            await asyncio.to_thread(delete_topics, own_target.bootstrap, journal.partition.topic)
            ensure_flow_topic(theirs, settings.flow)
            await eventually(lambda: asyncio.run(is_read(journal_state, settings)))
            await journal.append([(key, b"as it is")])
            await journal_state.rewrite(journal)
            return await journal.newest()

    found = asyncio.run(story())
    assert (found[key], found[lost[0]]) == (b"as it is", lost[1])


async def is_read(journal_state: JournalState, settings: Settings) -> bool:
    async with Wire(Endpoint.of(settings.target)) as wire:
        return await journal_state.read(Journal(wire, settings.flow))


async def newest(settings: Settings) -> dict[bytes, bytes]:
    async with Wire(Endpoint.of(settings.target)) as wire:
        return await Journal(wire, settings.flow).newest()
