"""What a mirror reports of re-keyed topics, and how one that is to end ends: on real brokers, without Spark."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import config_file, make_topic, produce, wait_for_markers
from rekey_story import Story, endpoint, rekeyed_file, story
from rekeychecker import read_committed
from running import TIMEOUT
from syncing import delete_topics
from typer.testing import CliRunner

from mirror.cli import app
from mirror.commands.verify import _recorded, _stopped_by_rules
from mirror.config import load
from mirror.errors import ClusterUnreachable, ExitCode
from mirror.kafka.cluster import Cluster as Wire
from mirror.kafka.cluster import TopicPartition
from mirror.kafka.produce import append
from mirror.kafka.queries import LATEST, READ_COMMITTED, delete_records, every_listed
from mirror.observability.status import PREFIX, PartitionStatus
from mirror.records.header import ProducerState, restamp
from mirror.records.rewrite import padding
from mirror.replication.both_logs import producer_id
from mirror.spark.rekey.driver import Rekeyer
from mirror.spark.rekey.microbatch import Plan, Stopped, Work, transactional_id
from mirror.spark.rekey.source import Standing
from mirror.spark.rekey.verify import Subject, _behind, extent_of, prove
from mirror.states import Remedy, State
from mirror.verify.report import Lack, Shortfall

__all__ = ["story"]

pytestmark = pytest.mark.brokers


@pytest.mark.parametrize("once", [True, False], ids=["once", "until caught up"])
def test_a_bounded_copy_ends_where_its_topic_is_paused(story: Story, *, once: bool) -> None:
    """And names what it lacks, before the topic has begun and behind that; where it lacks nothing, it is done."""
    settings = story.settings()
    story.fill(0, 50)
    story.pauses(is_paused=True)
    outcome = story.ended(settings, once=once)
    assert (outcome.exit_code, outcome.incomplete) == (
        ExitCode.CLUSTER,
        f"{story.topic}-0: PAUSED at offset -1, paused; `mirror resume CONFIG {story.topic}` lets it go on",
    )
    assert [one.state for one in outcome.figures.values()] == [State.PAUSED]
    assert read_committed(story.target, story.topic) == []
    story.pauses(is_paused=False)
    outcome = story.ended(settings, once=once)
    assert (outcome.exit_code, outcome.incomplete) == (ExitCode.DONE, "")
    story.pauses(is_paused=True)
    outcome = story.ended(settings, once=once)
    assert (outcome.exit_code, outcome.incomplete) == (ExitCode.DONE, "")
    story.fill(50, 90)
    outcome = story.ended(settings, once=once)
    assert outcome.exit_code == ExitCode.CLUSTER
    assert outcome.incomplete.startswith(f"{story.topic}-0: PAUSED at offset 50, paused")
    assert [one.lag_records for one in outcome.figures.values()] == [40]
    assert len(read_committed(story.target, story.topic)) == 50


def test_a_copy_that_ends_caught_up_ends_with_a_stop_of_the_whole_topic(story: Story) -> None:
    settings = story.settings()
    story.fill(0, 50)
    assert story.ended(settings).exit_code == ExitCode.DONE
    produce(story.target, story.topic, [b"of nobody"])
    story.fill(50, 60)
    outcome = story.ended(settings)
    assert (outcome.exit_code, [one.state for one in outcome.stops]) == (ExitCode.DATA_AT_RISK, [State.DIVERGED])
    assert [(one.next_offset, one.lag_records) for one in outcome.stops] == [(50, 10)]


def test_what_an_open_transaction_holds_back_is_lag_and_is_named(
    story: Story, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing of it is re-keyed, and nobody says that all is there."""
    settings = story.settings()
    story.fill(0, 50)
    opened = story.open_transaction()
    story.fill(60, 80)
    subject = Subject(flow=story.topic, rule=story.rule, source=story.flow.source, target=story.flow.target)

    def figures(*, once: bool = False) -> PartitionStatus:
        outcome = story.ended(settings, once=once)
        assert (outcome.exit_code, outcome.incomplete) == (ExitCode.DONE, "")
        (one,) = outcome.figures.values()
        return one

    def behind() -> list[Shortfall]:
        extent = asyncio.run(extent_of(subject, 0.0))
        assert extent is not None
        return list(_behind(subject, extent))

    for once in (True, False):
        one = figures(once=once)
        assert (one.state, one.next_offset, one.log_end) == (State.CAUGHT_UP, 50, 80)
        assert (one.lag_records, one.lag_ms) == (30, None)
        assert re.search(rf"open_transactions .*{story.topic}-0 from offset 50", capfd.readouterr().err)
    (lack,) = behind()
    assert (lack.kind, lack.first, lack.next_offset) == (Lack.BEHIND, 50, 80)
    assert lack.reason.startswith("a transaction is open on the source from offset 50 on")
    opened.commit_transaction(TIMEOUT)
    wait_for_markers(story.source, story.topic)
    one = figures()
    assert (one.next_offset, one.lag_records, one.lag_ms, behind()) == (81, 0, 0, [])


def test_a_proof_begins_once_markers_are_there(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot's number is seen before what it has committed elsewhere: that was missing, then."""
    story.fill(0, 50)
    story.carry_out()
    letters = f"{story.topic}-dead"
    make_topic(story.target, letters)
    rule = replace(story.rule, on_bad_record="dead-letter", dead_letter=letters)
    late, asked = [0, 0, 0], list[str]()

    async def stale(cluster: Wire, every: Collection[TopicPartition], *how: int) -> dict[TopicPartition, int]:
        found = await every_listed(cluster, every, *how)
        is_late = cluster.endpoint == story.flow.target and how == (LATEST, READ_COMMITTED) and late
        return dict.fromkeys(found, late.pop()) if is_late else found

    async def waiting(_: Wire, name: str) -> frozenset[TopicPartition]:
        asked.append(name)
        return frozenset({TopicPartition(letters, 0)} if len(asked) < 3 else ())

    monkeypatch.setattr("mirror.spark.rekey.microbatch.every_listed", stale)
    monkeypatch.setattr("mirror.spark.rekey.verify.every_listed", stale)
    monkeypatch.setattr("mirror.spark.rekey.microbatch.awaiting_markers", waiting)
    subject = Subject(flow=story.topic, rule=rule, source=story.flow.source, target=story.flow.target)
    extent = asyncio.run(extent_of(subject, 0.0))
    assert extent is not None
    assert (extent.done, sum(extent.target_end.values()) >= 50, extent.doubt) == ({0: 50}, True, "")
    names = [transactional_id(rule, slot) for slot in range(2)]
    assert asked == [names[0], names[0], *names]


def test_what_cannot_be_proved_is_named_and_ends_nothing(story: Story) -> None:
    """Others of the flow are compared then."""
    story.fill(0, 50)
    story.carry_out()
    subject = Subject(flow=story.topic, rule=story.rule, source=story.flow.source, target=story.flow.target)
    nowhere: Any = None  # Spark is not asked

    def reason(subject: Subject) -> str:
        report, (lack,) = prove(nowhere, subject, 0.0)
        assert (report, lack.kind, lack.topic) == (None, Lack.NOT_VERIFIED, story.topic)
        return lack.reason

    rule = replace(story.rule, on_bad_record="dead-letter", dead_letter=f"{story.topic}-dead")
    assert f"the topic {story.topic}-dead is not there" in reason(replace(subject, rule=rule))
    assert "no broker answered" in reason(replace(subject, source=endpoint("127.0.0.1:1")))
    delete_topics(story.source, story.topic)
    assert f"the topic {story.topic} is not there" in reason(subject)


@pytest.mark.parametrize("was_empty", [True, False], ids=["empty before", "padded before"])
def test_a_source_that_another_mirror_pads_is_waited_for(story: Story, was_empty: bool) -> None:
    """It is a copy: what is deleted when it begins where it should is no loss, also of a partition of which a plan
    knows that it was empty.
    """
    at = TopicPartition(story.topic, 0)

    async def pad(first: int, until: int) -> None:
        async with Wire(story.flow.source) as cluster:
            await cluster.refresh([story.topic])
            raw = padding(first, until, codec=None, max_bytes=1 << 20)
            stamp = ProducerState(producer_id("the one before", at))
            await append(cluster, at, (restamp(raw, stamp), raw.records), timeout=20, once=True)

    async def watched() -> None:
        one = story.driver()
        async with one._source, one._target:
            assert await one._take_over() is None
            if was_empty:
                assert await one._planned() is None
            await pad(0, 80)
            for _ in range(2):
                assert await one._planned() is None
                figures = one.figures[at]
                assert (figures.state, figures.next_offset) == (State.UNAVAILABLE, 0 if was_empty else -1)
                assert "offset 0 of the source is padding of another mirror" in figures.detail
            nowhere: Any = None  # Spark is not asked
            bounded = Rekeyer(nowhere, replace(story.flow, once=True), story.rule, frozenset())
            async with bounded._source, bounded._target:
                with pytest.raises(ClusterUnreachable, match="is padding of another mirror"):  # which `run` counts
                    await bounded._go_on(asyncio.Event(), tuple)
            await one._take_over()
            await delete_records(one._source, at, 80)
            await asyncio.to_thread(story.fill, 0, 5)
            plan = await one._planned()
            assert plan is not None
            assert plan.ranges == ((0, 80, 85),)
            figures = one.figures[at]
            assert (figures.state, figures.next_offset, figures.lost) == (State.MIRRORING, 80, 0)

    asyncio.run(asyncio.wait_for(watched(), TIMEOUT))


def test_a_transaction_that_stays_open_is_named_by_its_report() -> None:
    standing = Standing(50, end=50, written=80, held_since=float("-inf"), has_end=True)
    figures = standing.figures(TopicPartition("orders", 0), "by-user", "f", "here")
    assert figures.detail.startswith("a transaction is open on the source from offset 50 on")
    assert replace(standing, held_since=None).figures(TopicPartition("orders", 0), "by-user", "f", "here").detail == ""


def test_nothing_has_caught_up_with_an_end_of_before_the_micro_batch(story: Story) -> None:
    """What is written while it is carried out is not there."""
    story.fill(0, 50)
    driver, at = story.here(story.flow), TopicPartition(story.topic, 0)
    in_spark, learn, reported = driver._in_spark, driver._learn, list[PartitionStatus]()

    def slow(work: Work) -> Any:
        if work.plan.until == {0: 50}:
            story.fill(50, 60)
        return in_spark(work)

    def learned(plan: Plan, results: list[Any]) -> None:
        learn(plan, results)
        reported.append(driver.figures[at])

    async def followed() -> None:
        stopping = asyncio.Event()
        running = asyncio.create_task(driver.run("here", stopping, tuple))
        while not reported or reported[-1].state is not State.CAUGHT_UP:
            await asyncio.sleep(0.01)
            if at in driver.figures:
                reported.append(driver.figures[at])
        stopping.set()
        await running

    driver._in_spark, driver._learn = slow, learned  # type: ignore[method-assign]
    asyncio.run(asyncio.wait_for(followed(), TIMEOUT))
    (first,) = [one for one in reported if one.state is State.CAUGHT_UP]
    assert (first.next_offset, first.log_end, first.lag_records) == (60, 60, 0)
    old = next(one for one in reported if one.next_offset == 50)
    assert (old.state, old.lag_records) == (State.MIRRORING, None)


def test_the_lag_of_a_topic_that_was_made_anew_is_not_known(story: Story, tmp_path: Path) -> None:
    """What the other topic by that name holds is none of the copy's."""
    settings, config = story.settings(), rekeyed_file(story, tmp_path)

    def lag() -> int | None:
        done = CliRunner().invoke(app, ["status", str(config), "--json"])
        (partition,) = json.loads(done.stdout)["partitions"]
        assert partition["state"] == State.PAUSED
        found: int | None = partition["lag_records"]
        return found

    story.fill(0, 50)
    assert story.ended(settings).exit_code == ExitCode.DONE
    story.pauses(is_paused=True)
    assert story.ended(settings).exit_code == ExitCode.DONE
    story.fill(50, 60)
    assert lag() == 10
    story.made_anew(story.source, story.topic, 1)
    story.fill(0, 90)
    assert lag() is None


def test_a_proof_names_what_a_query_stopped_at(story: Story, tmp_path: Path) -> None:
    """As a proof does of any other topic; how much that holds back its comparison says."""
    settings = story.settings()
    story.fill(0, 50)
    assert story.ended(settings).exit_code == ExitCode.DONE
    assert list(_stopped_by_rules([story.rule], asyncio.run(_recorded(settings, {story.topic: None})))) == []
    produce(story.target, story.topic, [b"of nobody"])
    assert story.ended(settings).exit_code == ExitCode.DATA_AT_RISK
    (lack,) = _stopped_by_rules([story.rule], asyncio.run(_recorded(settings, {story.topic: None})))
    assert (lack.kind, lack.topic, lack.partition) == (Lack.STOPPED, story.topic, 0)
    assert lack.reason.startswith("DIVERGED at source offset 50: ")


def reports(story: Story) -> dict[str, tuple[State, str]]:
    """The newest ones in the journal, by source topic."""
    every = (PartitionStatus.from_json(value) for key, value in story.journal().items() if key.startswith(PREFIX))
    return {one.topic: (one.state, one.detail) for one in every}


def test_a_source_topic_that_was_deleted(story: Story, tmp_path: Path) -> None:
    """A query that runs says so, and so do a start, `plan` and `verify`; what is advised ends it."""
    beside = f"{story.topic}-beside"
    make_topic(story.source, beside)
    settings = story.settings(beside)
    story.fill(0, 50)
    assert story.ended(settings).exit_code == ExitCode.DONE
    query = story.driver()

    async def watched() -> None:
        async with query._source, query._target:
            assert await query._take_over() is None
            assert await query._planned() is None
            await asyncio.to_thread(delete_topics, story.source, story.topic)
            query._side._refreshed = float("-inf")
            with pytest.raises(Stopped) as stop:
                await query._planned()
            assert (stop.value.state, stop.value.detail) == (State.RECREATED, "the source topic was deleted")
            assert stop.value.remedies == (Remedy.EXCLUDE_REKEYED,)

    asyncio.run(watched())
    advice = Remedy.EXCLUDE_REKEYED.text({"topic": story.topic})
    included: dict[str, Any] = {"rules": [{"match": story.topic, "rekey": "key", "partitions": 4}]}
    config = config_file(tmp_path, story.source, story.target, [f"{story.topic}.*"], story.topic, **included)
    planned = CliRunner().invoke(app, ["plan", str(config)])
    assert f"{story.topic}: the source topic was deleted, and its copy {story.topic} on cluster us" in planned.output
    verified = CliRunner().invoke(app, ["verify", str(config), "--json", "--no-spark"])
    assert json.loads(verified.stdout)["gone"] == [{"topic": story.topic, "target": story.topic}]
    assert story.ended(load(config)).exit_code == ExitCode.DATA_AT_RISK
    assert reports(story)[story.topic] == (State.RECREATED, f"the source topic was deleted. {advice}")
    included["exclude"] = [story.topic]
    config = config_file(tmp_path, story.source, story.target, [f"{story.topic}.*"], story.topic, **included)
    assert story.ended(load(config)).exit_code == ExitCode.DONE
    assert reports(story).keys() == {beside}


def test_a_topic_that_preflight_refuses_is_reported_as_it_was_left(story: Story) -> None:
    settings = story.settings()
    story.fill(0, 50)
    assert story.ended(settings).exit_code == ExitCode.DONE
    rule = settings.topics.rules[0].model_copy(update={"partitions": 5})
    beside = f"{story.topic}-beside"
    make_topic(story.source, beside)
    topics = story.settings(beside).topics.model_copy(update={"rules": (rule,)})
    outcome = story.ended(settings.model_copy(update={"topics": topics}))
    assert outcome.exit_code == ExitCode.PREFLIGHT
    assert [(one.source, one.partitions) for one in outcome.refused] == [(story.topic, 1)]
    state, detail = reports(story)[story.topic]
    assert (state, "has 4 partitions and its rule says 5" in detail) == (State.REFUSED, True)
    (kept,) = (
        one
        for key, value in story.journal().items()
        if key.startswith(PREFIX) and (one := PartitionStatus.from_json(value)).topic == story.topic
    )
    assert (kept.next_offset, kept.caught_up_ms > 0) == (50, True)
    assert story.ended(story.settings(beside)).exit_code == ExitCode.DONE
    assert reports(story)[story.topic][0] is State.CAUGHT_UP


def test_what_is_not_known_yet_is_reported_as_it_was(story: Story) -> None:
    """A query that cannot begin loses nothing of what the one before reported."""
    settings = story.settings()
    story.fill(0, 50)
    assert story.ended(settings).exit_code == ExitCode.DONE
    before = story.journal()
    query = story.driver()
    query.recall(before)

    async def refreshed() -> None:
        async with query._source:
            await query._source.refresh([story.topic])

    assert not query.figures, "nobody knows how many partitions there are"
    asyncio.run(refreshed())
    (now,) = query.figures.values()
    was = PartitionStatus.from_json(before[now.key()])
    assert (now.state, now.next_offset, now.lag_records) == (State.STARTING, 50, None)
    assert (now.caught_up_ms, now.tombstones_ms) == (was.caught_up_ms, was.tombstones_ms)


@pytest.mark.parametrize("what", ["recreated", "emptied", "diverged"])
def test_a_plan_says_how_a_query_would_stop(story: Story, tmp_path: Path, what: str) -> None:
    rules = [{"match": story.topic, "rekey": "key", "partitions": 4}]
    config = config_file(tmp_path, story.source, story.target, [story.topic], story.topic, rules=rules)
    story.fill(0, 50)
    assert story.ended(load(config)).exit_code == ExitCode.DONE
    done = CliRunner().invoke(app, ["plan", str(config)])
    assert (done.exit_code, "nothing to do" in done.output) == (ExitCode.DONE, True), done.output
    story.pauses(is_paused=True)
    assert f"{story.topic}: paused" in CliRunner().invoke(app, ["plan", str(config)]).output
    if what == "recreated":
        story.made_anew(story.source, story.topic, 1)
    elif what == "emptied":
        delete_topics(story.target, story.topic)
    else:
        produce(story.target, story.topic, [b"of nobody"])
    state = State.DIVERGED if what == "diverged" else State.RECREATED
    done = CliRunner().invoke(app, ["plan", str(config)])
    output = " ".join(done.output.split())
    assert (done.exit_code, f"refused: {story.topic}: {state}: " in output) == (ExitCode.PREFLIGHT, True), output
