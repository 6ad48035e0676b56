"""What a mirror reports of re-keyed topics, and how one that is to end ends: on real brokers, without Spark."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from helpers import config_file, make_topic, produce
from rekey_story import Story, story
from rekeychecker import read_committed
from syncing import delete_topics
from typer.testing import CliRunner

from mirror.cli import app
from mirror.config import load
from mirror.errors import ExitCode
from mirror.observability.status import PREFIX, PartitionStatus
from mirror.spark.rekey.microbatch import Stopped
from mirror.states import Remedy, State

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
    assert story.ended(load(config)).exit_code == ExitCode.DONE
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
