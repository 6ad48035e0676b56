"""What either side of a re-keyed topic loses, on real brokers and without Spark: in the midst of a micro-batch, and for
good.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition as Confluent
from confluent_kafka.admin import AdminClient, NewPartitions
from crashcut import crash_and_cut, stored_ends
from helpers import produce
from rekey_story import Story, rekeyed_file, story
from rekeychecker import read_committed
from running import TIMEOUT
from typer.testing import CliRunner

from mirror.cli import app
from mirror.driver.journal_state import JournalState
from mirror.driver.start import record_rekeyed
from mirror.errors import ExitCode
from mirror.journal.entries import Lost, forgotten_entry
from mirror.journal.positions import standing_in
from mirror.kafka.cluster import Cluster as Wire
from mirror.kafka.cluster import TopicPartition
from mirror.kafka.queries import epoch_end
from mirror.lab.embedded import Cluster
from mirror.observability.metrics import Metrics
from mirror.replication.assignment import TOMBSTONES
from mirror.spark.rekey.driver import Rekeyer
from mirror.spark.rekey.microbatch import Plan, Stopped, lost_of
from mirror.states import State

__all__ = ["story"]

pytestmark = pytest.mark.brokers


@pytest.mark.parametrize("moment", ["before its first batch", "and grows again before that", "behind its last ack"])
def test_a_target_that_loses_its_tail_in_the_midst_of_a_micro_batch(
    own_source: Cluster, topic_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The slot began with a whole log. It commits nothing, and whoever plans next finds the same."""
    with Cluster.start(name="tail", folder=tmp_path / "tail") as target:
        story = Story(own_source, target, topic_name)
        for begin in (0, 50):
            story.fill(begin, begin + 50)
            story.copied()
        story.fill(100, 150)
        plan = story.planned()
        cut = next(number for number in range(4) if len(stored_ends(target, topic_name, number)) > 2)
        slices, lost = story.read(plan, cut % 2), list[int]()

        def crash() -> None:
            if not lost:
                ends = stored_ends(target, topic_name, cut)
                below = ends[-1] - 1 if moment == "behind its last ack" else ends[1]  # a batch and its marker
                lost.append(crash_and_cut(target, topic_name, cut, below=below))
                for _ in range(100 if "grows" in moment else 0):
                    story.aborts_on_target()

        if moment == "behind its last ack":
            monkeypatch.setattr("mirror.spark.rekey.writing.epoch_end", crashing(crash))
        else:
            slices = behind(crash, slices)
        with pytest.raises(Stopped, match=f"the target lost records: {topic_name}-{cut} was cut back") as stop:
            story.write(plan, cut % 2, slices)
        assert stop.value.state is State.TARGET_LOST
        monkeypatch.undo()
        assert not {b"%d" % number for number in range(100, 150)} & set(values(story)), "nothing of it was committed"
        if moment != "behind its last ack":  # else all that was committed is there
            with pytest.raises(Stopped, match="the target lost records"):
                story.planned()
        assert asyncio.run(lost_under_own_epoch(story, cut)), "metadata need not name a crash yet"


def behind(crash: Callable[[], None], slices: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    crash()
    yield from slices


def crashing(crash: Callable[[], None]) -> Callable[..., Any]:
    async def asked(*arguments: Any) -> Any:
        crash()
        return await epoch_end(*arguments)

    return asked


def values(story: Story) -> list[bytes | None]:
    return [one.value for one in read_committed(story.target, story.topic)]


async def lost_under_own_epoch(story: Story, number: int) -> str:
    """What is said of a log that ends below what its leader of now had acknowledged."""
    at = TopicPartition(story.topic, number)
    async with Wire(story.flow.target) as target:
        await target.refresh([story.topic])
        now = await epoch_end(target, at)
        assert await lost_of(target, at, now.end, now.epoch) == ""
        return await lost_of(target, at, now.end + 1, now.epoch)


@pytest.mark.parametrize("continues", [False, True])
def test_a_source_that_was_cut_back_stays_so_whatever_it_deletes_later(
    own_target: Cluster, topic_name: str, tmp_path: Path, continues: bool
) -> None:
    """Over a restart, until the copy begins anew. Other partitions go on, also from the midst of a micro-batch."""
    with Cluster.start(name="cut", folder=tmp_path / "cut") as source:
        story = Story(source, own_target, topic_name)
        story.rule = replace(story.rule, continues_on_loss=continues)
        for begin in (0, 50):
            story.fill(begin, begin + 50)
            story.copied()
        crash_and_cut(source, topic_name, 0, below=stored_ends(source, topic_name)[0])
        story.fill(100, 200)
        cut_back = (State.TRUNCATED, 100)
        assert stopped(story.copied()) == cut_back

        admin = AdminClient({"bootstrap.servers": story.source})
        for made in admin.create_partitions([NewPartitions(topic_name, 2)]).values():
            made.result(TIMEOUT)
        produce(story.source, topic_name, [b"other"] * 10, partition=1)
        plan = story.planned()
        assert plan.ranges == ((1, 0, 10),)
        story.write(plan, 0)
        assert story.copied().figures[TopicPartition(topic_name, 1)].next_offset == 10

        for deleted in admin.delete_records([Confluent(topic_name, 0, 120)]).values():
            deleted.result(TIMEOUT)
        again = story.copied()
        assert stopped(again) == cut_back
        assert again.figures[TopicPartition(topic_name, 0)].lost == 0
        rule = story.rule
        assert len(story.re_keyed_beside()) == 30 + 10, "what the source has left"
        story.rule = rule
        for topic, partitions in ((topic_name, 4), (story.progress, 3)):
            story.made_anew(story.target, topic, partitions)
        assert stopped(story.copied())[0] is State.CAUGHT_UP
        assert standing_in(story.journal()).stops == {}, "it was of the former copy"


def stopped(driver: Rekeyer) -> tuple[State, int]:
    """How the first partition stands, and where."""
    (figures,) = [one for at, one in driver.figures.items() if at.partition == 0]
    return figures.state, figures.next_offset


@pytest.mark.parametrize("written", [1, 2])
def test_a_failover_fences_a_re_keyed_topic_that_has_not_reported(story: Story, tmp_path: Path, written: int) -> None:
    """The driver is lost in the first micro-batch, and its tasks live on: what came over is known from the plans."""
    story.fill(0, 50)

    async def begun() -> Plan:
        one = story.driver()
        async with one._source, one._target:
            assert await one._take_over() is None
            await record_rekeyed(one._source, one.journal, story.rule, ())
            plan = await one._planned()
            assert plan is not None
            return plan

    plan, file = asyncio.run(begun()), rekeyed_file(story, tmp_path)
    for slot in range(written):
        story.write(plan, slot)
    for options in (["--rehearse"], []):
        done = CliRunner().invoke(app, ["failover", str(file), "--json", *options])
        account = json.loads(done.stdout)
        (partition,) = account["partitions"]
        is_whole = written == 2
        assert (done.exit_code, partition["whole"]) == (ExitCode.DONE if is_whole else ExitCode.DATA_AT_RISK, is_whole)
        assert partition["rpo_records"] == (0 if is_whole else 50)
        assert "was never mirrored" not in str(account["warnings"])
    for slot in range(2):
        with pytest.raises(Stopped, match="planned anew"):
            story.write(plan, slot)


@pytest.mark.parametrize("is_followed", [False, True], ids=["alone", "in a flow"])
def test_what_a_copy_may_lack_goes_on_record_again_behind_what_a_person_took_as_it_is(
    story: Story, monkeypatch: pytest.MonkeyPatch, *, is_followed: bool
) -> None:
    """In the same process, too, for which the journal is what says that it is on record."""
    story.fill(0, 50)
    story.copied()
    story.fill(50, 80)
    story.rule = replace(story.rule, tombstones_ms=0)
    monkeypatch.setattr("mirror.spark.rekey.source.hole_in", lambda _, due: due)

    async def watched() -> None:
        one = story.driver()
        if is_followed:
            state = JournalState(story.topic, "here", lambda _: None, lambda _: None, Metrics(story.topic))
            one.may_lack = partial(state.may_lack, one.journal)
        async with one._source, one._target:
            assert await one._take_over() is None
            plan = await one._planned()
            assert plan is not None
            for accepts in (True, False):
                found = []
                for _ in range(2):
                    for begin in plan.ranges:
                        await one._side.miss_tombstones(*begin, one._is_on_record)
                    found.append([(loss.first, loss.reason) for loss in one._side.losses])
                    await one._record_losses()
                assert found == [[(50, TOMBSTONES)], []]
                if accepts:
                    copy = TopicPartition(story.topic, 0)
                    await one.journal.append([forgotten_entry(copy, Lost(50, 50, TOMBSTONES))])

    asyncio.run(watched())
