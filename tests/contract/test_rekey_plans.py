"""Micro-batches of a re-keyed topic: planned, carried out once, and where the first one begins. Without Spark."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from helpers import produce
from rekey_story import Story, story
from rekeychecker import read_committed
from topicadmin import grow, recreate
from waiting import DEADLINE_S

from mirror.errors import ExitCode
from mirror.journal.entries import STARTS
from mirror.kafka.cluster import TopicPartition
from mirror.kafka.fetch import fetch_at
from mirror.kafka.queries import LATEST, listed
from mirror.spark.rekey.microbatch import RekeyStop
from mirror.states import State

__all__ = ["story"]


def numbers(story: Story) -> list[int]:
    """Return the values of the target's records, sorted."""
    return sorted(int(one.value or b"") for one in read_committed(story.target, story.topic))


@pytest.mark.proves("exactly-once")
def test_a_late_task_of_an_abandoned_plan_writes_nothing(story: Story) -> None:
    story.fill(0, 50)
    old = story.planned()
    late = story.read(old, 1)
    story.fill(50, 100)
    new = story.planned()
    assert (new.number, new.after, new.until) == (old.number + 1, old.after, {0: 100})
    story.write(new, 0)
    with pytest.raises(RekeyStop, match="was planned anew"):
        story.write(old, 1, late)
    story.write(new, 1)
    story.write(new, 1)  # a task that is tried again changes nothing
    assert numbers(story) == [*range(100)]


@pytest.mark.proves("exactly-once")
@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_plan_that_a_slot_has_committed_is_finished_as_it_is(story: Story, is_replaced: bool) -> None:
    """Also where a driver recorded another plan, and died before it had fenced the slots."""
    story.fill(0, 50)
    begun = story.planned()
    story.write(begun, 0)
    story.fill(50, 100)

    async def replaced() -> None:
        driver = story.driver()
        async with driver._source, driver._target:
            await driver._plans.take_over()
            await driver._plans.record(replace(begun, number=begun.number + 1, until={0: 100}, abandoned=begun))

    if is_replaced:
        asyncio.run(replaced())
    again = story.planned()
    assert (again.number, again.until) == (begun.number, {0: 50})
    for slot in range(2):
        story.write(again, slot)
    assert story.planned().begin == {0: 50}
    assert numbers(story) == [*range(50)]


def test_a_source_that_is_made_anew_while_its_ends_are_asked_for_is_none_that_was_re_keyed(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first 50 records were taken for those of the former topic: the metadata was renewed in the midst of it."""
    story.fill(0, 50)
    former = story.planned()
    for slot in range(2):
        story.write(former, slot)

    async def made_anew_meanwhile(cluster: Any, *more: Any) -> Any:
        monkeypatch.undo()
        await asyncio.to_thread(recreate, story.source, story.topic)
        await asyncio.to_thread(story.fill, 0, 80)
        await cluster.refresh([story.topic])
        return await listed(cluster, *more)

    async def planned_twice() -> None:
        driver = story.driver()
        async with driver._source, driver._target:
            assert await driver._take_over() is None
            monkeypatch.setattr("mirror.spark.rekey.source.listed", made_anew_meanwhile)
            for _ in range(2):
                plan = await driver._planned()
                assert plan is None or plan.source_id == former.source_id

    with pytest.raises(RekeyStop, match=r"the source topic .* was deleted and made anew"):
        asyncio.run(planned_twice())


@pytest.mark.parametrize("start", [LATEST, 10**15], ids=["latest", "a later time"])
def test_a_later_start_is_settled_before_the_first_record(story: Story, start: int) -> None:
    """Behind an open transaction it is where that began: nobody sees what lies behind."""
    story.fill(0, 50)
    opened = story.open_transaction()
    story.flow = replace(story.flow, start=start)
    figures = story.stopped()
    assert (figures.state, figures.next_offset, figures.detail) == (State.CAUGHT_UP, 50, "")
    opened.abort_transaction(DEADLINE_S)
    story.fill(50, 80)
    plan = story.planned()
    assert plan.begin == {0: 50}
    for slot in range(2):
        story.write(plan, slot)
    assert set(numbers(story)) <= {*range(50, 80)}


def test_a_first_start_stands_until_there_is_a_plan(story: Story) -> None:
    """Whatever the configuration says by then; a partition that came since begins with its first record."""
    story.fill(0, 50)
    story.pauses(is_paused=True)
    outcome = story.ended(story.settings(start="latest"))
    assert [one.state for one in outcome.figures.values()] == [State.PAUSED]
    assert STARTS.newest(story.journal())[story.topic].since == (50,)
    story.pauses(is_paused=False)
    story.fill(50, 70)
    grow(story.source, story.topic, 2)
    produce(story.source, story.topic, [b"70", b"71"], partition=1)
    outcome = story.ended(story.settings(start="earliest"))
    assert (outcome.exit_code, outcome.incomplete) == (ExitCode.DONE, "")
    assert numbers(story) == [*range(50, 72)]
    assert not STARTS.newest(story.journal()), "the plans say it"


@pytest.mark.proves("CORRUPT")
def test_a_damaged_batch_stops_its_partition_behind_the_last_sound_one(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fetch that reads the last sound batch brings the damaged one along."""
    produce(story.source, story.topic, [b"%d" % number for number in range(10)], batch=5)

    async def damaged(cluster: Any, at: TopicPartition, *more: Any, **options: Any) -> Any:
        fetched = await fetch_at(cluster, at, *more, **options)
        if cluster.endpoint != story.flow.source or not len(fetched.records):
            return fetched
        records = bytearray(fetched.records)
        records[-1] ^= 1
        return fetched._replace(records=memoryview(bytes(records)))

    monkeypatch.setattr("mirror.kafka.fetch.fetch_at", damaged)
    figures = story.copied().figures[TopicPartition(story.topic, 0)]
    assert (figures.state, figures.next_offset) == (State.CORRUPT, 5)
    assert numbers(story) == [*range(5)]
