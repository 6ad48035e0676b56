"""What stops a re-keyed topic, under which name, and that it goes on once somebody does as advised. Without Spark."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import topicadmin
from confluent_kafka import Producer
from helpers import config_file, make_topic, produce
from rekey_story import COMPACTED, Story, rekeyed_file, story
from rekeychecker import read_committed
from syncing import delete_topics
from topicadmin import configure, grow, recreate
from typer.testing import CliRunner
from waiting import DEADLINE_S, MovableClock, until

from mirror.cli import app
from mirror.config import load
from mirror.errors import ClusterUnreachable, ExitCode
from mirror.journal.entries import REKEYED, losses_in
from mirror.kafka.cluster import Cluster as Wire
from mirror.kafka.cluster import TopicPartition
from mirror.kafka.produce import append
from mirror.kafka.queries import delete_records
from mirror.kafka.transactions import Transaction
from mirror.observability.status import PREFIX, PartitionStatus
from mirror.policy.selection import progress_topic
from mirror.records.header import ProducerState, restamp
from mirror.records.rewrite import padding
from mirror.replication.observe import producer_id
from mirror.spark.rekey.driver import Rekeyer
from mirror.spark.rekey.microbatch import Reached, RekeyStop, last_plan, number_at, numbered, transactional_id
from mirror.states import Remedy, State
from mirror.topics.history import Claim, History

__all__ = ["story"]


def figures_of(driver: Rekeyer, story: Story) -> PartitionStatus:
    """Return how the source's first partition stands."""
    return driver.figures[TopicPartition(story.topic, 0)]


def plan_of(config: Path) -> tuple[int, str]:
    """Return the exit code and the output of `mirror plan`, on one line."""
    done = CliRunner().invoke(app, ["plan", str(config)])
    return done.exit_code, " ".join(done.output.split())


def lose_committed_records(story: Story) -> None:
    """Let a slot claim three records more than the target's first partition has."""

    async def claim() -> None:
        async with Wire(story.flow.target) as target:
            await target.refresh([story.topic, story.progress])
            plan = await last_plan(target, story.rule)
            assert plan is not None
            end = len(read_committed(story.target, story.topic)) + 3
            slot = await Transaction.begin(target, transactional_id(story.rule, 0))
            at = number_at(story.rule, 0)
            await slot.join([at])
            epoch = target.leader(TopicPartition(story.topic, 0)).epoch
            await slot.append({at: numbered(Reached(plan.number, {0: (epoch, end), 2: (epoch, 0)}))})
            await slot.commit()

    asyncio.run(claim())


def replace_source(story: Story) -> None:
    recreate(story.source, story.topic)
    story.fill(0, 60)


#: What happens to a copy of 50 records, the stop, and what it says.
STOPS: dict[str, tuple[Callable[[Story], None], State, str]] = {
    "source topic made anew": (replace_source, State.RECREATED, "the source topic .* was deleted and made anew"),
    "target topic made anew": (
        lambda story: recreate(story.target, story.topic, 4),
        State.RECREATED,
        "the target topic .* was deleted and made anew",
    ),
    "foreign record": (
        lambda story: produce(story.target, story.topic, [b"foreign"], partition=3),
        State.DIVERGED,
        "is not the mirror's",
    ),
    "records lost": (lose_committed_records, State.TARGET_LOST, "the target lost records: .*-0 was cut back to offset"),
    "target has more partitions": (
        lambda story: grow(story.target, story.topic, 5),
        State.FENCED,
        "has 5 partitions, and had 4: keys would change",
    ),
    "progress topic has more partitions": (
        lambda story: grow(story.target, story.progress, 4),
        State.FENCED,
        "has 4 partitions, and had 3; its slots never change",
    ),
    "progress topic made anew": (
        lambda story: recreate(story.target, story.progress, 3, cleanup_policy="compact"),
        State.FENCED,
        "holds records and .* has no plan",
    ),
}


@pytest.mark.proves("never-silent", "RECREATED", "DIVERGED", "TARGET_LOST", "FENCED")
@pytest.mark.parametrize("what", STOPS)
def test_a_copy_that_cannot_be_continued_stops_by_name(story: Story, what: str) -> None:
    happens, state, detail = STOPS[what]
    story.fill(0, 50)
    assert figures_of(story.copied(), story).state is State.CAUGHT_UP
    happens(story)
    before = read_committed(story.target, story.topic)
    story.fill(60, 70)
    figures = figures_of(story.copied(), story)
    assert (figures.state, bool(re.search(detail, figures.detail))) == (state, True), figures
    assert read_committed(story.target, story.topic) == before


@pytest.mark.proves("RECREATED", "mirror plan")
@pytest.mark.parametrize("is_kept", [False, True], ids=["anew", "beside"])
def test_a_copy_of_a_source_topic_that_was_made_anew_is_begun_anew_or_kept_beside_a_new_one(
    story: Story, tmp_path: Path, clock: MovableClock, is_kept: bool
) -> None:
    """With all that the source has now; in the driver that stopped, by the rule as it is now."""
    story.fill(0, 50)
    story.copied()
    config = rekeyed_file(story, tmp_path)
    if is_kept:
        replace_source(story)
        code, output = plan_of(config)
        assert (code, f"refused: {story.topic}: RECREATED: " in output) == (ExitCode.PREFLIGHT, True), output
        other = f"{story.topic}-now"
        progress = progress_topic(story.topic, other)
        make_topic(story.target, other, 4)
        make_topic(story.target, progress, 3, COMPACTED)
        story.rule = replace(story.rule, target=other, progress=progress)
        story.copied()
        found = [len(read_committed(story.target, topic)) for topic in (story.topic, other)]
        assert found == [50, 60]
        return

    async def watched() -> None:
        driver = story.driver()
        async with driver._source, driver._target:
            assert await driver._take_over() is None
            await asyncio.to_thread(replace_source, story)
            clock.move(10)
            with pytest.raises(RekeyStop, match=r"the source topic .* was deleted and made anew"):
                await driver._planned()
            for topic, partitions in ((story.topic, 6), (story.progress, 3)):
                await asyncio.to_thread(recreate, story.target, topic, partitions)
            with pytest.raises(RekeyStop, match="has 6 partitions, and its rule says 4"):
                await driver._take_over()
            driver.learns(replace(story.rule, partitions=6))
            assert await driver._take_over() is None
            plan = await driver._planned()
            assert plan is not None
            assert (plan.rule.partitions, plan.begin, plan.until) == (6, {0: 0}, {0: 60})

    asyncio.run(watched())


@pytest.mark.proves("RECREATED", "mirror plan", "mirror verify")
def test_a_source_topic_that_was_deleted_stops_until_it_is_excluded(story: Story, tmp_path: Path) -> None:
    beside = f"{story.topic}-beside"
    make_topic(story.source, beside)
    rules: dict[str, Any] = {"rules": [{"match": story.topic, "rekey": "key", "partitions": 4}]}

    def config(**more: Any) -> Path:
        return config_file(tmp_path, story.source, story.target, [f"{story.topic}.*"], story.topic, **rules, **more)

    def states() -> dict[str, str]:
        reports = [PartitionStatus.from_json(value) for key, value in story.journal().items() if key.startswith(PREFIX)]
        return {one.topic: f"{one.state}: {one.detail}" for one in reports}

    story.fill(0, 50)
    story.copied()
    story.says_that_it_ended()
    delete_topics(story.source, story.topic)
    assert f"{story.topic}: the source topic was deleted, and its copy {story.topic}" in plan_of(config())[1]
    verified = CliRunner().invoke(app, ["verify", str(config()), "--json", "--no-spark"])
    assert json.loads(verified.stdout)["gone"] == [{"topic": story.topic, "target": story.topic}]
    story.copied()
    story.says_that_it_ended()
    advice = Remedy.EXCLUDE_REKEYED.text({"topic": story.topic})
    assert states()[story.topic] == f"RECREATED: the source topic was deleted. {advice}"
    assert story.ended(load(config(exclude=[story.topic]))).exit_code == ExitCode.DONE
    assert states().keys() == {beside}
    assert len(read_committed(story.target, story.topic)) == 50


@pytest.mark.proves("exactly-once", "DIVERGED", "REFUSED")
@pytest.mark.parametrize("what", ["foreign record", "append time", "append time of dead letters"])
def test_what_happens_between_a_plan_and_its_commit_aborts_it(story: Story, what: str) -> None:
    """Records of others, and a topic that gives records times of its own."""
    topic = story.topic
    if what == "append time of dead letters":
        topic = f"{story.topic}-dead"
        make_topic(story.target, topic)
        story.rule = replace(story.rule, compacted=True, on_bad_record="dead-letter", dead_letter=topic)
    produce(story.source, story.topic, [b"without a key"] * 30)
    plan = story.planned()
    if what == "foreign record":
        for partition in range(4):
            produce(story.target, topic, [b"foreign"], partition=partition)
        state, detail = State.DIVERGED, rf"the record at offset 0 of {topic}-\d is not the mirror's"
    else:
        configure(story.target, topic, message_timestamp_type="LogAppendTime")
        state, detail = State.REFUSED, rf"{topic}-\d gave the batch at offset 0 a time of its own"
    with pytest.raises(RekeyStop, match=detail) as stop:
        _ = [story.write(plan, slot) for slot in range(2)]
    assert stop.value.state is state
    assert {one.value for one in read_committed(story.target, topic)} <= {b"foreign"}


def test_aborted_and_open_transactions_in_the_copy_are_nobodys(story: Story) -> None:
    """Of others, and of slots that were killed."""
    story.fill(0, 3)
    story.carry_out()
    story.fill(3, 50)

    async def begin(slot: int) -> None:
        async with Wire(story.flow.target) as target:
            await target.refresh([story.topic])
            killed = await Transaction.begin(target, transactional_id(story.rule, slot))
            places = [TopicPartition(story.topic, number) for number in range(slot, 4, 2)]
            await killed.join(places)
            for place in places:
                await killed.append({place: numbered(Reached(0))})

    for slot in (0, 1):
        asyncio.run(begin(slot))
    other = Producer({"bootstrap.servers": story.target, "transactional.id": f"{story.topic}-other"})
    other.init_transactions(DEADLINE_S)
    other.begin_transaction()
    for partition in range(4):
        other.produce(story.topic, b"aborted", partition=partition)
    other.flush(DEADLINE_S)
    other.abort_transaction(DEADLINE_S)
    story.carry_out()
    asyncio.run(begin(1))
    story.fill(50, 100)
    assert figures_of(story.copied(), story).state is State.CAUGHT_UP
    assert len(read_committed(story.target, story.topic)) == 100


@pytest.mark.proves("REFUSED")
@pytest.mark.parametrize(
    ("name", "refused", "good", "reason"),
    [
        ("message.timestamp.type", "LogAppendTime", "CreateTime", "and topics.append_time is source"),
        ("cleanup.policy", "compact", "delete", "is compacted, and its cleaner removes records that the source keeps"),
    ],
)
def test_a_target_that_would_change_or_remove_records_is_refused_until_it_is_set_right(
    story: Story, name: str, refused: str, good: str, reason: str
) -> None:
    story.fill(0, 20)
    configure(story.target, story.topic, **{name: refused})
    story.flow = replace(story.flow, epoch_seconds=0.5)
    at = TopicPartition(story.topic, 0)
    with story.running() as driver:
        until(lambda: at in driver.figures and driver.figures[at].state is State.REFUSED)
        detail = driver.figures[at].detail
        assert reason in detail
        assert f"--entity-name {story.topic} --add-config {name}={good}" in detail
        assert read_committed(story.target, story.topic) == []
        configure(story.target, story.topic, **{name: good})
        until(lambda: driver.figures[at].state is State.CAUGHT_UP, lambda: driver.figures[at].detail)
    times = {one.timestamp for one in read_committed(story.source, story.topic)}
    assert {one.timestamp for one in read_committed(story.target, story.topic)} == times


@pytest.mark.proves("RETENTION_GAP", "never-silent")
@pytest.mark.parametrize("continues", [False, True])
def test_records_that_the_source_deletes_under_a_plan_stop_it_or_go_on_record(story: Story, continues: bool) -> None:
    story.fill(0, 50)
    story.write(story.planned(), 0)
    topicadmin.delete_records(story.source, story.topic, 20)
    story.rule = replace(story.rule, continues_on_loss=continues)
    driver = story.copied()
    figures = figures_of(driver, story)
    if not continues:
        assert figures.state is State.RETENTION_GAP
        (reported,) = driver.unfinished
        assert "RETENTION_GAP at offset 0, the source deleted offsets 0 to 19" in reported
        assert "Set topics.on_data_loss: continue, and start the mirror again" in reported
        assert "--delete" not in reported, "the copy may have the only records"
        return
    assert (figures.state, figures.next_offset, figures.lost) == (State.CAUGHT_UP, 50, 20)
    values = [int(one.value or b"") for one in read_committed(story.target, story.topic)]
    assert len(values) == len(set(values))
    assert {*range(20, 50)} <= {*values}
    ((at, (lost,)),) = losses_in(story.journal()).items()
    assert (at, lost.first, lost.next_offset) == (TopicPartition(story.topic, 0), 0, 20)


@pytest.mark.proves("UNAVAILABLE")
def test_a_source_that_another_mirror_pads_is_waited_for(story: Story) -> None:
    """What that mirror deletes then is no loss."""
    at = TopicPartition(story.topic, 0)

    async def pad(until: int) -> None:
        async with Wire(story.flow.source) as cluster:
            await cluster.refresh([story.topic])
            raw = padding(0, until, codec=None, max_bytes=1 << 20)
            stamp = ProducerState(producer_id("the one before", at))
            await append(cluster, at, (restamp(raw, stamp), raw.records), timeout=DEADLINE_S, once=True)

    async def watched() -> None:
        driver, bounded = story.driver(), story.driver(flow=replace(story.flow, once=True))
        async with driver._source, driver._target, bounded._source, bounded._target:
            assert await driver._take_over() is None
            assert await driver._planned() is None
            await pad(80)
            assert await driver._planned() is None
            figures = figures_of(driver, story)
            assert (figures.state, figures.next_offset) == (State.UNAVAILABLE, 0)
            assert "offset 0 of the source is padding of another mirror" in figures.detail
            with pytest.raises(ClusterUnreachable, match="is padding of another mirror"):
                await bounded._go_on(asyncio.Event(), tuple)
            assert await driver._take_over() is None
            await delete_records(driver._source, at, 80)
            await asyncio.to_thread(story.fill, 0, 5)
            plan = await driver._planned()
            assert plan is not None
            assert plan.ranges == ((0, 80, 85),)
            assert figures_of(driver, story).lost == 0

    asyncio.run(watched())


@pytest.mark.proves("REFUSED", "nothing-by-name-alone")
def test_a_topic_that_another_flow_writes_to_is_not_re_keyed_into(story: Story) -> None:
    story.fill(0, 50)
    claims, at = {story.topic: Claim("another", None)}, TopicPartition(story.topic, 0)
    story.flow = replace(story.flow, epoch_seconds=0.5, elsewhere=lambda: History(claims=dict(claims)))
    with story.running() as driver:
        until(lambda: at in driver.figures and driver.figures[at].state is State.REFUSED)
        assert "flow another" in driver.figures[at].detail
        assert read_committed(story.target, story.topic) == []
        assert REKEYED.key(story.topic) not in story.journal()
        claims.clear()
        until(lambda: driver.figures[at].state is State.CAUGHT_UP, lambda: driver.figures[at].detail)
    assert len(read_committed(story.target, story.topic)) == 50
