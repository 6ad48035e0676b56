"""Brokers of a re-keyed topic that crash and come back with less than they had acknowledged. Without Spark."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from cleaning import CLEANED_SOON, delete_keys, ten_keys
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from crashcut import crash_and_cut, crash_and_cut_all, stored_ends
from helpers import endpoint, make_topic, produce
from rekey_story import Story, rekeyed_file
from rekeychecker import read_committed
from topicadmin import delete_records, grow, recreate
from typer.testing import CliRunner
from waiting import DEADLINE_S, MovableClock, until

from mirror.cli import app
from mirror.errors import ClusterUnreachable, ExitCode
from mirror.journal.positions import standing_in
from mirror.kafka.cluster import Cluster as Wire
from mirror.kafka.cluster import TopicPartition
from mirror.kafka.queries import LATEST, epoch_end, listed
from mirror.kafka.transactions import Transaction, awaiting_markers
from mirror.lab.embedded import Cluster, Spec, start_many
from mirror.policy.selection import Rekeying
from mirror.spark.rekey.driver import Rekeyer
from mirror.spark.rekey.microbatch import Reached, RekeyStop, numbered, transactional_id, undecided_in
from mirror.states import State


def stood(driver: Rekeyer, story: Story, partition: int = 0) -> tuple[State, int]:
    """Return how a source partition stands, and where."""
    figures = driver.figures[TopicPartition(story.topic, partition)]
    return figures.state, figures.next_offset


def values(story: Story) -> list[int]:
    return sorted(int(one.value or b"") for one in read_committed(story.target, story.topic))


@pytest.mark.proves("TARGET_LOST", "exactly-once")
@pytest.mark.parametrize("moment", ["before its first batch", "behind its last ack"])
def test_a_target_that_loses_its_tail_in_the_midst_of_a_micro_batch(
    own_source: Cluster, topic_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The slot began with a whole log. It commits nothing, and whoever plans next finds the loss, too."""
    with Cluster.start(name="tail", folder=tmp_path / "tail") as target:
        story = Story(own_source, target, topic_name)
        for begin in (0, 50):
            story.fill(begin, begin + 50)
            story.copied()
        story.fill(100, 150)
        plan = story.planned()
        cut = next(number for number in range(4) if len(stored_ends(target, topic_name, number)) > 2)
        is_late = moment == "behind its last ack"
        crashed = list[int]()

        def crash() -> None:
            if not crashed:
                ends = stored_ends(target, topic_name, cut)
                below = ends[-1] - 1 if is_late else ends[1]  # a batch and its marker
                crashed.append(crash_and_cut(target, topic_name, cut, below=below))

        def behind_crash(slices: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            crash()
            yield from slices

        async def asked(*arguments: Any) -> Any:
            crash()
            return await epoch_end(*arguments)

        slices = story.read(plan, cut % 2)
        if is_late:
            monkeypatch.setattr("mirror.spark.rekey.writing.epoch_end", asked)
        with pytest.raises(RekeyStop, match=f"the target lost records: {topic_name}-{cut} was cut back") as stop:
            story.write(plan, cut % 2, slices if is_late else behind_crash(slices))
        assert stop.value.state is State.TARGET_LOST
        monkeypatch.undo()
        assert max(values(story)) < 100, "nothing of it was committed"
        if not is_late:  # else all that was committed is there
            with pytest.raises(RekeyStop, match="the target lost records"):
                story.planned()


@pytest.mark.proves("TRUNCATED", "never-silent")
def test_a_source_that_was_cut_back_stays_so_whatever_it_deletes_later(
    own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    """Over a restart, until the copy begins anew. Other partitions go on."""
    with Cluster.start(name="cut", folder=tmp_path / "cut") as source:
        story = Story(source, own_target, topic_name)
        for begin in (0, 50):
            story.fill(begin, begin + 50)
            story.copied()
        crash_and_cut(source, topic_name, 0, below=stored_ends(source, topic_name)[0])
        story.fill(100, 200)
        assert stood(story.copied(), story) == (State.TRUNCATED, 100)
        grow(story.source, topic_name, 2)
        produce(story.source, topic_name, [b"200"] * 10, partition=1)
        assert stood(story.copied(), story, 1) == (State.CAUGHT_UP, 10)
        delete_records(story.source, topic_name, 120)
        assert stood(story.copied(), story) == (State.TRUNCATED, 100)
        for topic, partitions in ((topic_name, 4), (story.progress, 3)):
            recreate(story.target, topic, partitions)
        assert stood(story.copied(), story)[0] is State.CAUGHT_UP
        assert standing_in(story.journal()).stops == {}, "it was of the former copy"


@pytest.mark.proves("TARGET_LOST")
def test_a_target_that_lost_a_commits_marker_alone(own_source: Cluster, topic_name: str, tmp_path: Path) -> None:
    """All records are there, and the slot's next transaction would decide about them: were it aborted, they would be,
    too. A task that was planned before sees it, and so does whoever plans next.
    """
    with Cluster.start(name="marker", folder=tmp_path / "marker") as target:
        story = Story(own_source, target, topic_name)
        story.fill(0, 50)
        story.copied()
        until(lambda: len(values(story)) == 50)
        story.fill(50, 100)
        plan = story.planned()
        cut = next(number for number in range(4) if stored_ends(target, topic_name, number))
        records = stored_ends(target, topic_name, cut)[-2]
        crash_and_cut_all(target, {(topic_name, cut): records}, waits=False)  # for readers of committed records: empty
        at = TopicPartition(topic_name, cut)

        async def end() -> int | None:
            async with Wire(story.flow.target) as wire:
                return (await listed(wire, [at], LATEST)).get(at)

        until(lambda: asyncio.run(end()) == records)
        lost = f"the target lost records: {topic_name}-{cut} has no marker for those from offset 0 on"
        with pytest.raises(RekeyStop, match=lost) as stop:
            story.write(plan, cut % 2)
        assert stop.value.state is State.TARGET_LOST
        with pytest.raises(RekeyStop, match=lost):
            story.planned()


@pytest.mark.proves("UNAVAILABLE")
def test_a_marker_that_is_late_is_not_lost(topic_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its coordinator has committed, and the leader has too few replicas to take the marker: nothing is lost."""
    monkeypatch.setattr("mirror.spark.rekey.microbatch._MARKER_SECONDS", 0.5)
    rule = Rekeying(source=topic_name, target=topic_name, partitions=1, progress=f"{topic_name}-progress")
    at, name = TopicPartition(topic_name, 0), transactional_id(rule, 0)

    async def commits(bootstrap: str, lose: Callable[[], None]) -> frozenset[TopicPartition]:
        async with Wire(endpoint(bootstrap)) as target:
            await target.refresh([at.topic])
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
        client.create_topics([placed])[topic_name].result(DEADLINE_S)

        def lose_a_replica() -> None:
            target.kill(1)
            until(lambda: len(client.list_topics(topic_name).topics[topic_name].partitions[0].isrs) == 1)
            more = ConfigResource(ConfigResource.Type.TOPIC, topic_name)
            needs_two = ConfigEntry("min.insync.replicas", "2", incremental_operation=AlterConfigOpType.SET)
            more.add_incremental_config(needs_two)
            client.incremental_alter_configs([more])[more].result(DEADLINE_S)

        assert asyncio.run(commits(target.bootstrap, lose_a_replica)) == {at}
        with pytest.raises(ClusterUnreachable, match=rf"{topic_name}-0: the coordinator of .* not written yet"):
            asyncio.run(undecided(target.bootstrap))
        target.restart(1)
        monkeypatch.setattr("mirror.spark.rekey.microbatch._MARKER_SECONDS", DEADLINE_S)
        assert asyncio.run(undecided(target.bootstrap)) == ""


@pytest.mark.proves("never-silent", "mirror accept")
def test_deletions_that_a_compacted_source_has_forgotten_are_on_record(
    own_target: Cluster, topic_name: str, tmp_path: Path, clock: MovableClock
) -> None:
    """Keys may live on in a copy that was behind for longer than the source keeps tombstones: until a person takes it
    as it is. One that was not behind lacks nothing, whatever the cleaner took.
    """
    (source,) = start_many([Spec(name="cleaning", config={"log.cleaner.backoff.ms": 300})])
    with source:
        make_topic(source.bootstrap, topic_name, configs=CLEANED_SOON | {"delete.retention.ms": "300"})
        story = Story(source, own_target, topic_name, is_there=True)
        story.rule = replace(story.rule, tombstones_ms=600_000)
        config = rekeyed_file(story, tmp_path)

        def rehearsed() -> int:
            story.says_that_it_ended()
            return CliRunner().invoke(app, ["failover", str(config), "--rehearse"]).exit_code

        ten_keys(source.bootstrap, topic_name)
        delete_keys(source.bootstrap, topic_name, forgets=True)
        story.copied()
        assert rehearsed() == ExitCode.DONE, "nothing was copied that could live on"
        ten_keys(source.bootstrap, topic_name)
        story.copied()
        delete_keys(source.bootstrap, topic_name, forgets=True)
        clock.move(601)
        for _ in range(2):
            story.copied()
            assert rehearsed() == ExitCode.NOT_WHOLE
        done = CliRunner().invoke(app, ["accept", str(config), topic_name])
        assert "accepted what may be missing (reason tombstones)" in done.output
        assert rehearsed() == ExitCode.DONE
