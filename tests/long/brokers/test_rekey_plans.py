"""What is on record of a re-keyed topic, on real brokers and without Spark: drivers and tasks that come late, topics
that are made anew, sources that grow.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import TopicPartition as Confluent
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)
from crashcut import crash_and_cut, crash_and_cut_all, stored_ends
from groupoffsets import commit
from helpers import config_file, make_topic, produce, settings_between
from rekey_story import COMPACTED, Story, endpoint, rekeyed_file, story
from rekeychecker import java_partition, read_committed
from running import TIMEOUT, wait_for
from syncing import awaited, delete_topics
from typer.testing import CliRunner

from mirror.cli import app
from mirror.commands.verify import _lost_by_rules
from mirror.driver.start import record_rekeyed
from mirror.errors import ClusterUnreachable, ExitCode, Fenced, FlowLost
from mirror.journal.entries import FirstSeen, losses_in, pending_starts
from mirror.journal.journal import Journal, journal_topic
from mirror.kafka.admin import Admin
from mirror.kafka.cluster import Cluster as Wire
from mirror.kafka.cluster import Leader, TopicPartition
from mirror.kafka.fetch import fetch_at
from mirror.kafka.queries import EARLIEST, LATEST, listed
from mirror.kafka.topic_configs import ConfigChange
from mirror.kafka.transactions import Transaction, awaiting_markers
from mirror.lab.embedded import Cluster
from mirror.observability.status import PREFIX as STATE
from mirror.observability.status import PartitionStatus
from mirror.policy.selection import Rekeying
from mirror.spark.rekey.microbatch import (
    Plan,
    Reached,
    Stopped,
    last_plan,
    number_at,
    numbered,
    transactional_id,
    undecided_in,
)
from mirror.spark.rekey.plan_log import PlanLog
from mirror.spark.rekey.reading import sound_batches
from mirror.spark.rekey.verify import Subject, extent_of
from mirror.states import REKEYED_BY, Remedy, State
from mirror.topics.history import Claim, History

__all__ = ["story"]

pytestmark = pytest.mark.brokers


def test_a_late_task_of_a_plan_that_was_abandoned(story: Story) -> None:
    story.fill(0, 50)
    old = story.planned()
    late = story.read(old, 1)
    story.fill(50, 100)
    new = story.planned()
    assert (new.number, new.after, new.until) == (old.number + 1, old.after, {0: 100})
    story.write(new, 0)
    with pytest.raises(Stopped, match="was planned anew"):
        story.write(old, 1, late)
    story.write(new, 1)
    story.write(new, 1)  # and a task that is tried again changes nothing
    values = [one.value for one in read_committed(story.target, story.topic)]
    assert sorted(values, key=lambda value: int(value or b"")) == [str(number).encode() for number in range(100)]


def test_a_plan_that_a_slot_has_is_finished_as_it_is(story: Story) -> None:
    story.fill(0, 50)
    begun = story.planned()
    story.write(begun, 0)
    story.fill(50, 100)
    again = story.planned()
    assert (again.number, again.until) == (begun.number, {0: 50})
    story.write(again, 0)
    story.write(again, 1)
    assert story.planned().begin == {0: 50}
    assert len(read_committed(story.target, story.topic)) == 50


def test_a_source_that_was_made_anew(story: Story) -> None:
    story.fill(0, 50)
    story.carry_out()
    story.made_anew(story.source, story.topic, 1)
    story.fill(0, 80)
    with pytest.raises(Stopped, match=r"the source topic .* was deleted and made anew") as stop:
        story.planned()
    assert stop.value.state is State.RECREATED


def test_a_source_that_is_made_anew_while_its_ends_are_asked(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker did not answer, so that metadata was asked for in the midst of the round: what was found went by the
    other topic's id from then on, and its first 50 records were taken for those that had been re-keyed.
    """
    story.fill(0, 50)
    former = story.planned()
    story.write(former, 0)
    story.write(former, 1)

    async def anew(cluster: Any, *more: Any) -> Any:
        monkeypatch.undo()
        await asyncio.to_thread(story.made_anew, story.source, story.topic, 1)
        await asyncio.to_thread(story.fill, 0, 80)
        await cluster.refresh([story.topic])
        return await listed(cluster, *more)

    async def rounds() -> None:
        one = story.driver()
        async with one._source, one._target:
            assert await one._take_over() is None
            monkeypatch.setattr("mirror.spark.rekey.source.listed", anew)
            for _ in range(2):
                plan = await one._planned()
                assert plan is None or plan.source_id == former.source_id

    with pytest.raises(Stopped, match=r"the source topic .* was deleted and made anew"):
        asyncio.run(rounds())


def test_a_target_that_was_made_anew(story: Story) -> None:
    story.fill(0, 50)
    story.planned()
    story.made_anew(story.target, story.topic, 4)
    with pytest.raises(Stopped, match=r"the target topic .* was deleted and made anew") as stop:
        story.planned()
    assert stop.value.state is State.RECREATED


@pytest.mark.parametrize("start", [EARLIEST, LATEST])
def test_a_source_that_was_made_anew_begins_anew_with_all_it_has(story: Story, start: int) -> None:
    """In the mirror that said so, by the one command that it advises; and wherever the flow once began. A partition
    that the source no longer has is reported no longer.
    """
    story.flow = replace(story.flow, start=start)
    story.fill(0, 50)
    grow(story.source, story.topic, 2)

    async def watched() -> None:
        one = story.driver()
        async with one._source, one._target:
            assert await one._take_over() is None
            while (plan := await one._planned()) is None and not one._parts:
                pass
            await one._append()
            await asyncio.to_thread(story.made_anew, story.source, story.topic, 1)
            await asyncio.to_thread(story.fill, 0, 30)
            one._side._refreshed = float("-inf")
            with pytest.raises(Stopped, match=r"the source topic .* was deleted and made anew"):
                await one._take_over()
            for topic, partitions in ((story.topic, 4), (story.progress, 3)):
                await asyncio.to_thread(story.made_anew, story.target, topic, partitions)
            assert await one._take_over() is None
            plan = await one._planned()
            assert plan is not None
            assert (plan.begin, plan.until) == ({0: 0}, {0: 30})
            reports = {key for key in await one.journal.newest() if key.startswith(STATE)}
            assert reports == {PartitionStatus.key_of(story.topic, 0)}

    asyncio.run(watched())


def test_a_target_that_is_made_anew_while_nothing_is_to_be_re_keyed(story: Story) -> None:
    """A driver sees it, and so does whoever asks for the first time, as a failover does; and another source topic."""
    story.fill(0, 50)
    story.carry_out()
    subject = Subject(flow=story.topic, rule=story.rule, source=story.flow.source, target=story.flow.target)

    async def doubt() -> str:
        extent = await extent_of(subject, 0.0)
        assert extent is not None
        return extent.doubt

    async def watched() -> None:
        one = story.driver()
        async with one._source, one._target:
            assert await one._take_over() is None
            assert await one._planned() is None
            fresh = PlanLog(one._target, story.rule)
            assert (await fresh.lost(), await fresh.unlike(one._source)) == ("", None)
            assert await doubt() == ""
            for end in (story.source, story.target):
                await asyncio.to_thread(story.made_anew, end, story.topic, 4 if end == story.target else 1)
                assert f"topic {story.topic} was deleted" in await doubt(), "a proof says that it is none"
            one._target_seen = float("-inf")
            with pytest.raises(Stopped, match=r"topic .* was deleted and made anew"):
                await one._planned()
            fresh = PlanLog(one._target, story.rule)
            assert "was deleted, with what had been re-keyed into it" in await fresh.lost()
            stop = await fresh.unlike(one._source)
            assert stop is not None
            assert (stop.state, stop.detail) == (
                State.RECREATED,
                f"the source topic {story.topic} was deleted and made anew",
            )

    asyncio.run(asyncio.wait_for(watched(), TIMEOUT))


def test_a_target_that_lost_what_was_committed(
    own_source: Cluster, topic_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever plans next sees it, and so do a task that was planned before, and a failover; also once the log has grown
    beyond that place.
    """
    with Cluster.start(name="lost", folder=tmp_path / "lost") as target:
        story = Story(own_source, target, topic_name)
        for begin in (0, 50):
            story.fill(begin, begin + 50)
            story.copied()
        story.fill(100, 150)
        plan = story.planned()
        cut = next(number for number in range(4) if len(stored_ends(target, topic_name, number)) > 2)
        crash_and_cut(target, topic_name, cut, below=stored_ends(target, topic_name, cut)[1])
        produce(story.target, topic_name, [b"%d" % number for number in range(100)], partition=cut)
        lost = f"the target lost records: {topic_name}-{cut} was cut back to offset"
        with pytest.raises(Stopped, match=lost) as stop:
            story.write(plan, cut % 2)
        assert stop.value.state is State.TARGET_LOST
        with pytest.raises(Stopped, match=lost):
            story.planned()
        rules = [{"match": topic_name, "rekey": "string(key)", "partitions": 4}]
        config = config_file(tmp_path, story.source, story.target, [topic_name], topic_name, rules=rules)
        monkeypatch.setattr("mirror.commands.failover.IDLE_SECONDS", 0.1)
        result = CliRunner().invoke(app, ["failover", str(config), "--rehearse"])
        assert result.exit_code == ExitCode.DATA_AT_RISK
        assert "how many records are missing, since the target lost records that had got over" in " ".join(
            result.output.split()
        )
        assert len(story.re_keyed_beside()) == 150


def test_records_of_somebody_else_stop_the_topic(story: Story) -> None:
    """Those that come between a plan and its commit, and those that a driver finds when it starts; in partitions with
    records of the mirror and in one without. Transactions that were aborted are nobody's.
    """
    story.fill(0, 3)
    story.carry_out()
    story.fill(3, 50)
    asyncio.run(story.begin_and_abort())
    story.aborts_on_target()
    story.carry_out()
    story.fill(50, 100)
    plan = story.planned()
    before = len(read_committed(story.target, story.topic))
    for partition in range(4):
        produce(story.target, story.topic, [b"foreign"], partition=partition)
        with pytest.raises(Stopped, match=rf"the record at offset \d+ of {story.topic}-{partition} is not") as stop:
            story.write(plan, partition % 2)
        assert (stop.value.state, stop.value.remedies) == (State.DIVERGED, REKEYED_BY[State.DIVERGED])
        assert len(read_committed(story.target, story.topic)) == before + 1, "nothing was committed behind it"
        with pytest.raises(Stopped, match="is not the mirror's") as stop:
            story.planned()
        assert stop.value.state is State.DIVERGED
        story.deletes_all_on_target()
        plan, before = story.planned(), 0  # what stands before the log start is not looked for


def test_a_target_that_lost_a_marker_alone(own_source: Cluster, topic_name: str, tmp_path: Path) -> None:
    """All records are there, and the slot's next transaction would decide about them: were it aborted, they would be,
    too. A task that was planned before sees it, and so does whoever plans next.
    """
    with Cluster.start(name="marker", folder=tmp_path / "marker") as target:
        story = Story(own_source, target, topic_name)
        story.fill(0, 50)
        story.copied()
        wait_for(lambda: len(read_committed(story.target, topic_name)) == 50, TIMEOUT, lambda: "open transactions")
        story.fill(50, 100)
        plan = story.planned()
        cut = next(number for number in range(4) if stored_ends(target, topic_name, number))
        records = stored_ends(target, topic_name, cut)[-2]
        crash_and_cut_all(target, {(topic_name, cut): records}, waits=False)  # for readers of committed records: empty
        at = TopicPartition(topic_name, cut)
        awaited(lambda: asyncio.run(raw_end(story, at)) == records)
        lost = f"the target lost records: {topic_name}-{cut} has no marker for those from offset 0 on"
        with pytest.raises(Stopped, match=lost) as stop:
            story.write(plan, cut % 2)
        assert stop.value.state is State.TARGET_LOST
        with pytest.raises(Stopped, match=lost):
            story.planned()
        assert asyncio.run(undecided_though_moved(story, at, records)).startswith(lost)


def test_a_marker_that_is_late_is_not_lost(topic_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its coordinator has committed, and the leader has too few replicas to take the marker: nothing is lost."""
    monkeypatch.setattr("mirror.spark.rekey.microbatch._MARKER_SECONDS", 0.5)
    rule = Rekeying(source=topic_name, target=topic_name, partitions=1, progress=f"{topic_name}-progress")
    at, name = TopicPartition(topic_name, 0), transactional_id(rule, 0)

    async def commits(bootstrap: str, lose: Callable[[], None]) -> frozenset[TopicPartition]:
        async with Wire(endpoint(bootstrap)) as target:
            await target.refresh([at.topic])
            assert not await awaiting_markers(target, name), "nobody has begun"
            slot = await Transaction.begin(target, name)
            await slot.join([at])
            await slot.append({at: numbered(Reached(0))})
            assert not await awaiting_markers(target, name)
            await asyncio.to_thread(lose)
            await slot.commit()
            return await awaiting_markers(target, name)

    async def undecided(bootstrap: str) -> str:
        async with Wire(endpoint(bootstrap)) as target:
            await target.refresh([at.topic])
            return await undecided_in(target, {at: (target.leader(at).epoch, 1)}, {at: name})

    with Cluster.start(nodes=3, name="late-marker") as target:
        client = AdminClient({"bootstrap.servers": target.bootstrap})
        placed = NewTopic(topic_name, 1, replica_assignment=[[target.nodes[0].id, target.nodes[1].id]])
        client.create_topics([placed])[topic_name].result(TIMEOUT)

        def lose() -> None:
            target.kill(1)
            awaited(lambda: len(client.list_topics(topic_name).topics[topic_name].partitions[0].isrs) == 1)
            more = ConfigResource(ConfigResource.Type.TOPIC, topic_name)
            more.add_incremental_config(
                ConfigEntry("min.insync.replicas", "2", incremental_operation=AlterConfigOpType.SET)
            )
            client.incremental_alter_configs([more])[more].result(TIMEOUT)

        assert asyncio.run(commits(target.bootstrap, lose)) == {at}
        with pytest.raises(ClusterUnreachable, match=rf"{topic_name}-0: the coordinator of .* not written yet"):
            asyncio.run(undecided(target.bootstrap))
        target.restart(1)
        monkeypatch.setattr("mirror.spark.rekey.microbatch._MARKER_SECONDS", TIMEOUT)
        assert asyncio.run(undecided(target.bootstrap)) == ""


async def undecided_though_moved(story: Story, at: TopicPartition, end: int) -> str:
    """What is found where the partition's leader, by what is known of it, does not answer."""
    async with Wire(story.flow.target) as target:
        await target.refresh([at.topic])
        epoch, topic = target.leader(at).epoch, target.topics[at.topic]
        leaders = {**topic.leaders, at.partition: Leader(-1, epoch)}
        target.topics[at.topic] = replace(topic, leaders=leaders)
        return await undecided_in(target, {at: (epoch, end)}, {at: transactional_id(story.rule, at.partition % 2)})


async def raw_end(story: Story, at: TopicPartition) -> int | None:
    async with Wire(story.flow.target) as target:
        return (await listed(target, [at], LATEST)).get(at)


def test_an_open_transaction_is_nobodys_yet(story: Story) -> None:
    """That of a slot that is at work or was killed makes no plan say DIVERGED, nor does it hide what follows."""
    story.fill(0, 50)
    story.carry_out()

    async def foreign(*, commits: bool) -> str:
        async with Wire(story.flow.target) as target, Wire(story.flow.source) as source:
            await target.refresh([story.topic, story.progress])
            log, at = PlanLog(target, story.rule), TopicPartition(story.topic, 1)
            slot = await Transaction.begin(target, transactional_id(story.rule, 1))
            await slot.join([at])
            await slot.append({at: numbered(Reached(0))})
            if commits:
                await slot.commit()
                while not (found := await log.foreign()):  # until the marker is there
                    await asyncio.sleep(0.02)
                return found
            await log.check_all(source)
            return await log.foreign()

    assert asyncio.run(foreign(commits=False)) == ""
    assert "is not the mirror's" in asyncio.run(asyncio.wait_for(foreign(commits=True), TIMEOUT))


def test_records_of_somebody_else_stop_a_topic_that_has_nothing_to_re_key(story: Story) -> None:
    """Its own are there just now, as a driver that carried them out knows."""
    story.fill(0, 50)

    async def watched() -> None:
        one = story.driver()
        async with one._source, one._target:
            plan = await one._take_over() or await one._planned()
            assert plan is not None
            for slot in range(2):
                await asyncio.to_thread(story.write, plan, slot)
            one._committed = plan.number
            one._side.stand_at(plan.until, plan.epochs)
            for _ in range(2):
                one._target_seen = float("-inf")
                assert await one._planned() is None
            await asyncio.to_thread(produce, story.target, story.topic, [b"foreign"], partition=3)
            one._target_seen = float("-inf")
            with pytest.raises(Stopped, match=rf"of {story.topic}-3 is not the mirror's") as stop:
                await one._planned()
            assert stop.value.state is State.DIVERGED

    asyncio.run(watched())


def test_what_another_flow_writes_to_is_not_re_keyed_into(story: Story) -> None:
    """Both looked before either had named it. It goes on once the other flow has ended, as advised."""
    story.fill(0, 50)
    claims, at = {story.topic: Claim("another", None)}, TopicPartition(story.topic, 0)
    story.flow = replace(story.flow, epoch_seconds=0.5, elsewhere=lambda: History(claims=dict(claims)))
    with story.running() as driver:

        def is_in(state: State) -> bool:
            figures = driver.figures.get(at)
            return figures is not None and figures.state is state and ("flow another" in figures.detail) is bool(claims)

        wait_for(lambda: is_in(State.REFUSED), TIMEOUT, lambda: "not yet")
        assert read_committed(story.target, story.topic) == []
        assert FirstSeen.rekeyed_key(story.topic) not in story.journal()
        claims.clear()
        wait_for(lambda: is_in(State.CAUGHT_UP), TIMEOUT, lambda: str(driver.figures))
    assert len(read_committed(story.target, story.topic)) == 50


def test_what_nobody_could_ask_other_flows_about_is_not_named(story: Story) -> None:
    """Both flows would refuse it for the other one's name."""

    def unreachable() -> History:
        raise ClusterUnreachable("other flows' journals")

    async def named() -> None:
        async with Wire(story.flow.source) as source, Wire(story.flow.target) as target:
            await target.refresh([journal_topic(story.flow.name)])
            await record_rekeyed(source, Journal(target, story.flow.name), story.rule, [], unreachable)

    with pytest.raises(ClusterUnreachable, match="other flows' journals"):
        asyncio.run(named())
    assert FirstSeen.rekeyed_key(story.topic) not in story.journal()


@pytest.mark.parametrize("letters", [False, True], ids=["copy", "dead letters"])
def test_a_target_that_stamps_records(story: Story, letters: bool) -> None:
    """It was healthy when the micro-batch began: what was written is aborted. A driver that runs refuses to go on, and
    goes on once somebody did what it says; records have their own times.
    """
    stamping = f"{story.topic}-dead" if letters else story.topic
    remedy = Remedy.KEEP_LETTER_TIMES if letters else Remedy.KEEP_TIMES
    if letters:
        make_topic(story.target, stamping, 1)
        story.rule = replace(story.rule, compacted=True, on_bad_record="dead-letter", dead_letter=stamping)
    produce(story.source, story.topic, [b"without a key"] * 30)
    plan, admin = story.planned(), Admin(settings_between(story.source, story.target, ["x"]).target)
    set_type(admin, stamping, "LogAppendTime")
    with pytest.raises(Stopped, match=rf"{stamping}-\d gave the batch at offset 0 a time of its own") as stop:
        _ = [story.write(plan, slot) for slot in range(2)]
    assert (stop.value.state, stop.value.remedies) == (State.REFUSED, (remedy,))
    assert read_committed(story.target, stamping) == []

    story.flow = replace(story.flow, epoch_seconds=0.5)
    with story.running() as driver:
        at = TopicPartition(story.topic, 0)
        wait_for(lambda: at in driver.figures and driver.figures[at].state is State.REFUSED, TIMEOUT, lambda: "not yet")
        detail = driver.figures[at].detail
        assert detail.startswith(
            f"{stamping} has message.timestamp.type=LogAppendTime, and topics.append_time is source"
        )
        assert f"--entity-name {stamping} --add-config message.timestamp.type=CreateTime" in detail
        set_type(admin, stamping, "CreateTime")
        wait_for(lambda: driver.figures[at].state is State.CAUGHT_UP, TIMEOUT, lambda: driver.figures[at].detail)
    found = {one.timestamp for one in read_committed(story.target, stamping)}
    assert found == {one.timestamp for one in read_committed(story.source, story.topic)}


def test_a_target_that_somebody_compacts(story: Story) -> None:
    """The query that runs stops, whatever the next start would say, and goes on once it is done as it says."""
    admin, at = Admin(settings_between(story.source, story.target, ["x"]).target), TopicPartition(story.topic, 0)

    def clean_by(policy: str) -> None:
        admin.alter_configs([ConfigChange(topic=story.topic, name="cleanup.policy", before="", after=policy)])

    story.fill(0, 20)
    clean_by("compact")
    with story.running() as driver:
        wait_for(lambda: at in driver.figures and driver.figures[at].state is State.REFUSED, TIMEOUT, lambda: "not yet")
        detail = driver.figures[at].detail
        assert detail.startswith(f"{story.topic} is compacted, and its cleaner removes records that the source keeps")
        assert f"--entity-name {story.topic} --add-config cleanup.policy=delete,retention.ms=-1" in detail
        assert read_committed(story.target, story.topic) == []
        clean_by("delete")
        wait_for(lambda: driver.figures[at].state is State.CAUGHT_UP, TIMEOUT, lambda: driver.figures[at].detail)
    assert len(read_committed(story.target, story.topic)) == 20


def test_a_target_that_may_stamp_records(story: Story) -> None:
    set_type(Admin(settings_between(story.source, story.target, ["x"]).target), story.topic, "LogAppendTime")
    story.fill(0, 20)
    assert story.copied().figures[TopicPartition(story.topic, 0)].state is State.REFUSED
    story.rule = replace(story.rule, may_stamp=True)
    assert story.copied().figures[TopicPartition(story.topic, 0)].state is State.CAUGHT_UP
    assert len(read_committed(story.target, story.topic)) == 20


def set_type(admin: Admin, topic: str, kind: str) -> None:
    admin.alter_configs([ConfigChange(topic=topic, name="message.timestamp.type", before="", after=kind)])


@pytest.mark.parametrize("cut", ["a slot", "all"])
def test_progress_that_was_cut_back(own_source: Cluster, topic_name: str, tmp_path: Path, cut: str) -> None:
    """The broker crashed, and has the last records of the copy, and not what names them: whoever plans next sees it,
    and so does a task that is tried again.
    """
    with Cluster.start(name="forgot", folder=tmp_path / "forgot") as target:
        story = Story(own_source, target, topic_name)
        story.fill(0, 50)
        story.copied()
        ends = {(story.progress, number): stored_ends(target, story.progress, number)[-1] for number in range(3)}
        story.fill(50, 100)
        plan = story.planned()
        for slot in range(2):
            story.write(plan, slot)
        many = 100  # of which the coordinator has written all markers
        wait_for(lambda: len(read_committed(story.target, topic_name)) == many, TIMEOUT, lambda: "open transactions")
        if cut == "a slot":
            ends = {(story.progress, 1): ends[story.progress, 1]}
        crash_and_cut_all(target, ends)
        unknown = r"is not the mirror's, by what its progress topic says"
        if cut == "a slot":
            with pytest.raises(Stopped, match=unknown) as late:
                story.write(plan, 0)
            assert late.value.state is State.DIVERGED
        with pytest.raises(Stopped, match=unknown) as stop:
            story.planned()
        assert stop.value.state is State.DIVERGED
        assert story.copied().figures[TopicPartition(topic_name, 0)].state is State.DIVERGED
        values = [one.value for one in read_committed(story.target, topic_name)]
        assert sorted(values, key=lambda value: int(value or b"")) == [str(number).encode() for number in range(100)]


def test_progress_that_was_made_anew(story: Story) -> None:
    story.fill(0, 50)
    story.carry_out()
    story.made_anew(story.target, story.progress, 3, configs=COMPACTED)
    with pytest.raises(Stopped, match=r"holds records and .* no plan") as stop:
        story.planned()
    assert stop.value.state is State.FENCED
    assert len(story.re_keyed_beside()) == 50


def test_progress_that_is_made_anew_learns_nothing_of_the_former_copy(story: Story) -> None:
    """Whoever begins anew deletes both topics, and a driver that has not noticed yet has a plan for the former ones."""
    story.fill(0, 50)

    async def watched() -> None:
        one = story.driver()
        async with one._source, one._target:
            assert await one._take_over() is None
            await asyncio.to_thread(story.made_anew, story.target, story.progress, 3, configs=COMPACTED)
            with pytest.raises(ClusterUnreachable, match="was deleted; it is taken over anew"):
                await one._planned()
            assert await last_plan(one._target, story.rule) is None
            assert await one._take_over() is None
            assert await one._planned() is not None

    asyncio.run(asyncio.wait_for(watched(), TIMEOUT))


def grow(bootstrap: str, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_partitions([NewPartitions(topic, partitions)]).values():
        future.result(TIMEOUT)
    topics = partial(admin.list_topics, topic, timeout=TIMEOUT)
    wait_for(lambda: len(topics().topics[topic].partitions) == partitions, TIMEOUT, lambda: f"{topic} did not grow")


def test_another_number_of_slots(story: Story) -> None:
    story.fill(0, 50)
    story.carry_out()
    grow(story.target, story.progress, 4)
    with pytest.raises(Stopped) as stop:
        story.planned()
    assert stop.value.state is State.FENCED


def test_a_source_that_grows(story: Story) -> None:
    story.fill(0, 50)

    async def grown() -> None:
        one = story.driver()
        async with one._source, one._target:
            assert await one._take_over() is None
            plan = await one._planned()
            assert plan is not None
            one._learn(plan, [])
            grow(story.source, story.topic, 2)
            await asyncio.to_thread(produce, story.source, story.topic, [b"x"] * 10, partition=1)
            async with asyncio.timeout(TIMEOUT):
                while (plan := await one._planned()) is None:
                    await asyncio.sleep(0.05)
            assert plan.until[1] == 10

    asyncio.run(grown())


def test_a_target_that_grows_by_hand(story: Story) -> None:
    story.fill(0, 50)
    story.carry_out()

    async def watched() -> None:
        """By a query that runs, before it plans anything more, whatever its rule says by now."""
        one = story.driver()
        async with one._source, one._target:
            assert await one._take_over() is None
            await asyncio.to_thread(grow, story.target, story.topic, 5)
            one.learns(replace(story.rule, partitions=5))
            await asyncio.to_thread(story.fill, 50, 60)
            await one._target.refresh([story.topic])
            with pytest.raises(Stopped, match="has 5 partitions, and had 4: keys would change") as stop:
                await one._planned()
            assert stop.value.state is State.FENCED

    asyncio.run(watched())
    with pytest.raises(Stopped, match="has 5 partitions, and had 4: keys would change") as stop:
        story.planned()
    assert stop.value.state is State.FENCED


def test_a_copy_that_begins_anew_takes_what_its_rule_says_by_then(story: Story) -> None:
    """Its source grew since the start, and the mirror that replans made it with as many partitions."""
    story.fill(0, 50)
    story.carry_out()

    async def watched() -> None:
        one = story.driver()
        async with one._source, one._target:
            assert await one._take_over() is None
            for topic, partitions in ((story.topic, 6), (story.progress, 3)):
                await asyncio.to_thread(story.made_anew, story.target, topic, partitions)
            with pytest.raises(Stopped, match="has 6 partitions, and its rule says 4: keys would change") as stop:
                await one._take_over()
            assert stop.value.state is State.FENCED
            one.learns(replace(story.rule, partitions=6, compacted=True))
            assert await one._take_over() is None
            plan = await one._planned()
            assert plan is not None
            assert (plan.rule.partitions, plan.rule.compacted, plan.until) == (6, True, {0: 50})
            for slot in range(2):
                await asyncio.to_thread(story.write, plan, slot)

    asyncio.run(watched())
    written = read_committed(story.target, story.topic)
    assert [one.partition for one in written] == [java_partition(one.key or b"", 6) for one in written]
    assert len(written) == 50


def test_a_plan_that_must_be_finished_fits_a_target_that_is_compacted_by_now(story: Story) -> None:
    """Brokers refused its records without a key for ever, and nothing said which."""
    story.fill(0, 50)
    begun = story.planned()
    story.write(begun, 0)
    story.rule = replace(story.rule, compacted=True)

    async def taken_over() -> Plan | None:
        one = story.driver()
        async with one._source, one._target:
            return await one._take_over()

    again = asyncio.run(taken_over())
    assert again is not None
    assert (again.number, again.rule.compacted, begun.rule.compacted) == (begun.number, True, False)


def test_a_plan_says_what_a_target_that_grew_by_hand_stops(story: Story, tmp_path: Path) -> None:
    story.fill(0, 50)
    story.carry_out()
    rules = [{"match": story.topic, "rekey": "key"}]
    config = config_file(tmp_path, story.source, story.target, [story.topic], story.topic, rules=rules)
    assert "FENCED" not in CliRunner().invoke(app, ["plan", str(config)]).output
    grow(story.target, story.topic, 5)
    awaited(lambda: CliRunner().invoke(app, ["plan", str(config)]).exit_code == ExitCode.PREFLIGHT)
    output = " ".join(CliRunner().invoke(app, ["plan", str(config)]).output.split())
    assert f"{story.topic}: FENCED: {story.topic} has 5 partitions, and had 4: keys would change theirs" in output


def test_a_later_start_is_settled_before_the_first_record(story: Story) -> None:
    story.fill(0, 50)
    story.flow = replace(story.flow, start=LATEST)
    assert story.stopped().next_offset == 50
    story.fill(50, 80)
    plan = story.planned()
    assert (plan.begin, plan.until) == ({0: 50}, {0: 80})
    for slot in range(2):
        story.write(plan, slot)
    assert sorted(int(one.value or b"") for one in read_committed(story.target, story.topic)) == [*range(50, 80)]


@pytest.mark.parametrize("continues", [False, True])
def test_records_of_a_plan_that_was_begun_are_deleted(story: Story, continues: bool) -> None:
    story.fill(0, 50)
    story.write(story.planned(), 0)
    admin = AdminClient({"bootstrap.servers": story.source})
    for future in admin.delete_records([Confluent(story.topic, 0, 20)]).values():
        future.result(TIMEOUT)
    story.rule = replace(story.rule, continues_on_loss=continues)
    driver = story.copied()
    figures = driver.figures[TopicPartition(story.topic, 0)]
    if not continues:
        assert figures.state is State.RETENTION_GAP
        (reported,) = driver.unfinished
        assert "RETENTION_GAP at offset 0, the source deleted offsets 0 to 19" in reported
        assert "Set topics.on_data_loss: continue, and start the mirror again" in reported
        assert "--delete" not in reported, "the copy may have the only records"
        return
    assert (figures.state, figures.next_offset, figures.lost) == (State.CAUGHT_UP, 50, 20)
    held = [int(one.value or b"") for one in read_committed(story.target, story.topic)]
    assert len(held) == len(set(held))
    assert {*range(20, 50)} <= {*held}
    ((at, (lost,)),) = losses_in(story.journal()).items()
    assert (at, lost.first, lost.next_offset) == (TopicPartition(story.topic, 0), 0, 20)
    recorded: Any = SimpleNamespace(losses={at: (lost,)})
    (lack,) = _lost_by_rules([story.rule], recorded)
    assert str(lack).startswith(f"{story.topic}-0: accepted loss, offsets 0 to 19 (20)"), lack


def test_nothing_is_re_keyed_behind_a_failover(story: Story, tmp_path: Path) -> None:
    """By tasks that began before it, and by those that begin behind it; and all goes on once it is taken back."""
    story.fill(0, 50)
    story.copied()
    story.fill(50, 60)
    plan = story.planned()

    async def failed_over() -> int:
        async with Wire(story.flow.target) as target:
            one = await Transaction.begin(target, transactional_id(story.rule, 1))
            for command in (["failover", str(file), "--rehearse"], ["failover", str(file)]):
                output = await asyncio.to_thread(CliRunner().invoke, app, command)
                assert f"{story.topic} is re-keyed, which only a mirror that runs does" in " ".join(
                    output.output.split()
                )
            code = output.exit_code
            with pytest.raises(Fenced):
                await one.join([number_at(story.rule, 1)])
        return code

    file = rekeyed_file(story, tmp_path)
    assert asyncio.run(failed_over()) == ExitCode.DATA_AT_RISK, "ten records are on the source alone"
    for slot in range(2):
        with pytest.raises(Stopped, match="planned anew"):
            story.write(plan, slot)
    story.copied()
    assert sorted(int(one.value or b"") for one in read_committed(story.target, story.topic)) == [*range(60)]


def test_nobody_plans_who_has_lost_the_flow(story: Story) -> None:
    """A driver that was cut off comes back before it has heard of a failover, which has fenced it."""
    story.fill(0, 50)
    fenced = story.planned()

    async def lost() -> bool:
        return False

    async def watched() -> None:
        one = story.driver()
        one.has_flow = lost
        async with one._source, one._target:
            with pytest.raises(FlowLost):
                await one._take_over()

    asyncio.run(watched())
    for slot in range(2):
        story.write(fenced, slot)  # of whoever had it, nothing was fenced


def test_a_failover_names_groups_that_stand_on_a_re_keyed_topic(story: Story, tmp_path: Path) -> None:
    """Nobody puts them anywhere on the target, and what they go on with there is by their `auto.offset.reset`."""
    story.fill(0, 50)
    story.copied()
    group = f"{story.topic}-readers"
    commit(story.source, group, story.topic, 12)
    story.says_that_it_ended()
    file = config_file(tmp_path, story.source, story.target, [story.topic], flow=story.topic)
    output = json.loads(file.read_text())
    output["topics"]["rules"] = [{"match": story.topic, "partitions": 4}]
    output["groups"] = {"include": [group]}
    file.write_text(json.dumps(output))

    def failed_over(*options: str) -> tuple[int, Any]:
        done = CliRunner().invoke(app, ["failover", str(file), "--json", *options])
        return done.exit_code, json.loads(done.stdout)

    for options in (["--rehearse"], []):
        code, account = failed_over(*options)
        (gap,) = account["group_offsets_not_reached"]
        assert (code, account["whole"], account["warnings"]) == (ExitCode.DATA_AT_RISK, False, [])
        assert (gap["group"], gap["source_offset"], gap["target_offset"]) == (group, 12, None)
        assert (gap["reads_again"], gap["misses"]) == (12, 38)
        assert "the topic is re-keyed" in gap["cause"]
    assert CliRunner().invoke(app, ["failover", str(file), "--undo"]).exit_code == ExitCode.DONE
    commit(story.target, group, story.topic, 3)
    code, account = failed_over()
    assert (code, account["group_offsets_not_reached"]) == (ExitCode.DONE, []), "somebody has put it there"


@pytest.mark.parametrize("made_anew", [False, True])
def test_a_failover_believes_no_report_of_a_copy_that_is_gone(story: Story, tmp_path: Path, made_anew: bool) -> None:
    """Its target and its progress topic were deleted, as is advised where it is to begin anew, and no mirror ran."""
    story.fill(0, 50)
    story.copied()
    story.says_that_it_ended()
    file = rekeyed_file(story, tmp_path)
    delete_topics(story.target, story.topic, story.progress)
    if made_anew:
        make_topic(story.target, story.topic, 4)
        make_topic(story.target, story.progress, 3)
    for options in (["--rehearse"], []):
        done = CliRunner().invoke(app, ["failover", str(file), "--json", *options])
        (partition,) = json.loads(done.stdout)["partitions"]
        assert (done.exit_code, partition["whole"]) == (ExitCode.DATA_AT_RISK, False), done.stdout
        assert partition["doubt"] == "the target lost records that had got over", done.output


def test_a_failover_names_what_somebody_else_has_written_to_a_re_keyed_topic(story: Story, tmp_path: Path) -> None:
    """No micro-batch came that would have seen it."""
    story.fill(0, 50)
    story.copied()
    story.says_that_it_ended()
    file = rekeyed_file(story, tmp_path)
    assert CliRunner().invoke(app, ["failover", str(file), "--rehearse"]).exit_code == ExitCode.DONE
    produce(story.target, story.topic, [b"foreign"])
    for options in (["--rehearse"], []):
        done = CliRunner().invoke(app, ["failover", str(file), "--json", *options])
        (partition,) = json.loads(done.stdout)["partitions"]
        assert (done.exit_code, partition["whole"]) == (ExitCode.DATA_AT_RISK, False), done.stdout


def test_a_failover_names_a_re_keyed_topic_that_was_emptied(story: Story, tmp_path: Path) -> None:
    story.fill(0, 50)
    story.copied()
    story.says_that_it_ended()
    story.deletes_all_on_target()
    for options in (["--rehearse"], []):
        done = CliRunner().invoke(app, ["failover", str(rekeyed_file(story, tmp_path)), "--json", *options])
        account = json.loads(done.stdout)
        assert (done.exit_code, account["whole"]) == (ExitCode.DATA_AT_RISK, False), done.stdout
        assert f"{story.topic}: the target deleted all that was re-keyed" in str(account["warnings"])


@pytest.mark.parametrize("start", [LATEST, 10**15])
def test_a_later_start_behind_an_open_transaction(story: Story, start: int) -> None:
    """Committed readers see nothing behind its first record, so that is where the partition begins."""
    story.fill(0, 50)
    open_ = story.open_transaction()
    story.flow = replace(story.flow, start=start)
    figures = story.stopped()
    assert (figures.state, figures.next_offset, figures.detail) == (State.CAUGHT_UP, 50, "")
    open_.abort_transaction(TIMEOUT)


def test_a_later_start_is_not_settled_by_half(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    story.fill(0, 50)
    grow(story.source, story.topic, 3)
    story.flow = replace(story.flow, start=LATEST)
    hidden = {TopicPartition(story.topic, 1)}

    async def some(cluster: Any, every: Any, *more: Any) -> dict[TopicPartition, int]:
        found = await listed(cluster, every, *more)
        return {at: offset for at, offset in found.items() if at not in hidden}

    async def watched() -> None:
        one = story.driver()
        async with one._source, one._target:
            assert await one._take_over() is None
            async with asyncio.timeout(TIMEOUT):
                while len(one._source.topics[story.topic].leaders) < 3:
                    await one._source.refresh([story.topic])
            with pytest.raises(ClusterUnreachable, match="not every partition"):
                await one._planned()
            assert not one._parts
            hidden.clear()
            await one._planned()
            assert {number: part.at for number, part in one._parts.items()} == {0: 50, 1: 0, 2: 0}
            refreshed = [one.has_refreshed]
            hidden.add(TopicPartition(story.topic, 0))
            await one._planned()
            refreshed.append(one.has_refreshed)
            assert refreshed == [True, False]
            assert one.figures[TopicPartition(story.topic, 0)].state is State.UNAVAILABLE

    monkeypatch.setattr("mirror.spark.rekey.source.listed", some)
    asyncio.run(watched())


def test_a_first_start_stands_until_there_is_a_plan(story: Story) -> None:
    """Whatever was reported before that, and whatever the configuration says by then."""
    story.fill(0, 50)
    story.pauses(is_paused=True)
    outcome = story.ended(story.settings(start="latest"))
    assert [one.state for one in outcome.figures.values()] == [State.PAUSED]
    assert pending_starts(story.journal())[story.topic].since == (50,)
    story.pauses(is_paused=False)
    story.fill(50, 70)
    grow(story.source, story.topic, 2)
    outcome = story.ended(story.settings(start="earliest"))
    assert (outcome.exit_code, outcome.incomplete) == (ExitCode.DONE, "")
    assert sorted(int(one.value or b"") for one in read_committed(story.target, story.topic)) == [*range(50, 70)]
    assert not pending_starts(story.journal()), "the plans say it"


def test_a_topic_that_came_while_no_mirror_ran_begins_with_its_first_record(story: Story) -> None:
    story.flow = replace(story.flow, start=LATEST)
    assert story.stopped(is_first=False).next_offset == 0
    story.fill(0, 20)
    assert story.planned().ranges == ((0, 0, 20),)


def test_a_topic_that_was_empty_at_first_misses_nothing(story: Story) -> None:
    """It was known when the flow first started: all that came since is re-keyed, whoever looks next."""
    assert story.stopped().next_offset == 0
    story.fill(0, 20)
    story.flow = replace(story.flow, start=LATEST)
    assert story.planned().ranges == ((0, 0, 20),)


def test_a_late_task_that_is_quicker_than_the_fence_behind_a_new_plan(story: Story) -> None:
    story.fill(0, 50)
    old = story.planned()
    story.write(old, 0)  # by a task that began before what follows
    story.fill(50, 100)
    new = replace(old, number=old.number + 1, until={0: 100}, abandoned=old)

    async def recorded() -> None:
        one = story.driver()
        async with one._source, one._target:
            await one._plans.take_over()
            await one._plans.record(new)

    asyncio.run(recorded())  # and the driver dies before it has fenced the slots
    again = story.planned()
    assert (again.number, again.until) == (old.number, {0: 50})
    story.write(again, 1)
    assert story.planned().begin == {0: 50}


def test_damage_behind_the_end_of_a_range_does_not_matter(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that was made anew up to a damaged batch is carried out: the fetch that reads its last sound one brings
    the damaged one along.
    """
    produce(story.source, story.topic, [b"sound"] * 10, partition=0, batch=5)
    plan = replace(story.planned(), until={0: 5})

    async def damaged(*arguments: Any, **more: Any) -> Any:
        fetched = await fetch_at(*arguments, **more)
        data = bytearray(fetched.records)
        data[-1] ^= 1
        return replace(fetched, records=memoryview(bytes(data)))

    monkeypatch.setattr("mirror.kafka.fetch.fetch_at", damaged)
    assert [raw.header.next_offset for raw in sound_batches(story.work(plan), 0, 0, 5)] == [5]
    with pytest.raises(Stopped) as stop:
        list(sound_batches(story.work(replace(plan, until={0: 10})), 0, 0, 10))
    assert (stop.value.state, stop.value.offset) == (State.CORRUPT, 5)


def test_a_bounded_copy_of_a_topic_that_is_not_there_is_not_done(story: Story) -> None:
    story.rule = replace(story.rule, source=f"{story.topic}-gone")
    one = story.driver()
    one._side._flow = replace(story.flow, once=True)

    async def watched() -> None:
        async with one._source:
            with pytest.raises(ClusterUnreachable):
                await one._side.refresh()

    asyncio.run(watched())
