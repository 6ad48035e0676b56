"""What stops a partition, by one cause each: nothing more is written, and what lets it go on."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from flows import Flow, flow
from helpers import make_topic, produce
from planted import turn_a_bit
from samerecords import read
from sparkless import InThisProcess
from syncing import delete_topics
from transactional import transactions
from waiting import DEADLINE_S
from watchedtask import WatchedTask

from mirror.driver.flow import prepare
from mirror.errors import ExitCode
from mirror.journal.entries import PAUSES, pause_entry
from mirror.kafka.cluster import TopicPartition
from mirror.observability.status import PartitionStatus
from mirror.spark.supervisor import Supervisor
from mirror.states import State

__all__ = ["flow"]

MODES = pytest.mark.parametrize("offsets", ["preserve", "translate"])


def assert_stands(flow: Flow, state: State) -> PartitionStatus:
    """Expect the copy to stop, at the next start as well, and to get not one record more."""
    before = flow.values()[1]
    first, second = flow.copy(), flow.copy()
    assert (first.state, second.state) == (state, state), first
    assert flow.values()[1] == before
    return first


@pytest.mark.proves("TRUNCATED", "mirror accept", "never-silent")
@pytest.mark.parametrize(("offsets", "grown"), [("preserve", 0), ("preserve", 100), ("translate", 0)])
def test_a_source_that_lost_its_tail_stays_truncated_whatever_grows_or_expires(
    flow: Flow, offsets: str, grown: int
) -> None:
    flow.topics["offsets"] = offsets
    flow.begin(100)
    flow.lose_tail(flow.source, 60)
    flow.fill(60, grown, "new ")
    assert_stands(flow, State.TRUNCATED)
    flow.fill(60 + grown, 200 - grown, "new ")
    assert_stands(flow, State.TRUNCATED)
    for cluster, before in ((flow.source, 220), (flow.target, 100)):  # nothing is left to compare
        flow.expire(cluster, before)
    said = flow.accept(code=ExitCode.DATA_AT_RISK)
    assert f"{flow.name}-0: nothing is accepted; it stays stopped: TRUNCATED at offset 100: nothing confirms" in said
    assert f"run `mirror accept CONFIG {flow.name} --partition 0 --unconfirmed`" in said
    assert_stands(flow, State.TRUNCATED)
    assert f"{flow.name}-0: TRUNCATED does not stand any more" in flow.accept("--unconfirmed")
    assert flow.copied().lost == 120


@pytest.mark.proves("TRUNCATED", "DIVERGED", "never-silent")
@MODES
def test_records_in_place_of_an_aborted_transaction_are_not_passed_over(flow: Flow, offsets: str) -> None:
    flow.topics["offsets"] = offsets
    flow.make()
    transactions(flow.source.bootstrap, flow.name, [True, True, False], size=4)
    flow.copied()
    flow.renew(flow.source, lambda: transactions(flow.source.bootstrap, flow.name, [True] * 4, size=4))
    found = assert_stands(flow, State.TRUNCATED)
    assert "the source has a record where the target has a marker" in found.detail


@pytest.mark.proves("RETENTION_GAP", "mirror accept", "never-silent")
@MODES
def test_what_the_source_deleted_before_it_was_copied_is_accepted_by_name(flow: Flow, offsets: str) -> None:
    flow.topics["offsets"] = offsets
    flow.begin(100)
    flow.fill(100, 100)
    flow.expire(flow.source, 150)
    found = assert_stands(flow, State.RETENTION_GAP)
    assert "deleted offsets 100 to 149" in found.detail
    assert f"{flow.name}-0: accepted the loss of 50 offsets, 100 to 149\n" in flow.accept()
    assert f"{flow.name}-0: the loss of 50 offsets, 100 to 149, was accepted before\n" in flow.accept()
    found = flow.copied()
    assert (found.lost, found.records) == (50, 50)
    assert flow.lost() == {(100, 150, "retention")}
    flow.fill(200, 20)
    flow.expire(flow.source, 210)
    assert flow.copy().state is State.RETENTION_GAP, "another loss"
    assert flow.copied(on_data_loss="continue").lost == 10
    source, target = flow.values()
    assert target == [*(b"%d" % number for number in [*range(100), *range(150, 200)]), *source]


@pytest.mark.proves("DIVERGED", "never-silent")
@MODES
def test_what_somebody_else_wrote_to_the_copy_stops_it_as_diverged(flow: Flow, offsets: str) -> None:
    flow.topics["offsets"] = offsets
    flow.begin(100)
    flow.fill(100, 20)
    flow.intrude()
    assert_stands(flow, State.DIVERGED)
    said = flow.accept(code=ExitCode.DATA_AT_RISK)
    assert f"{flow.name}-0: nothing is accepted; it stays stopped: DIVERGED at offset" in said
    assert f"--bootstrap-server {flow.target.bootstrap} --delete --topic {flow.name}" in said, "ready to be pasted"
    flow.expire(flow.target, 110)
    assert_stands(flow, State.DIVERGED)
    delete_topics(flow.target.bootstrap, flow.name)
    assert flow.copied().records == 120


@pytest.mark.proves("FENCED", "never-silent")
def test_a_running_task_stops_as_fenced_at_the_first_record_of_somebody_else(flow: Flow) -> None:
    """The batches are alike in everything: only their places show it, and the next start compares all of them."""

    def beat(bootstrap: str, count: int, value: bytes) -> None:
        for _ in range(count):
            produce(bootstrap, flow.name, [value] * 3)

    flow.make()
    beat(flow.source.bootstrap, 4, b"beat")
    flow.copied()
    with WatchedTask(flow.source.bootstrap, flow.target.bootstrap, [flow.at], flow=flow.name) as task:
        task.mirrored(flow.at, 12)
        beat(flow.target.bootstrap, 1, b"foreign")
        beat(flow.source.bootstrap, 6, b"beat")
        assert task.stopped(flow.at).state is State.FENCED
    assert_stands(flow, State.DIVERGED)


@pytest.mark.proves("CORRUPT", "never-silent")
def test_a_damaged_batch_stops_its_partition_alone_as_corrupt(flow: Flow) -> None:
    other = TopicPartition(flow.name, 1)
    flow.make(flow.source, flow.target, partitions=2)
    for partition in (0, 1):
        flow.fill(0, 20, partition=partition)
    turn_a_bit(flow.source, flow.name, 100, 0)
    with WatchedTask(flow.source.bootstrap, flow.target.bootstrap, [flow.at, other], flow=flow.name) as task:
        found = task.stopped(flow.at)
        task.mirrored(other, 20)
        assert task.affected(flow.at) == 3, "it is fetched once, and again twice"
    assert (found.state, "CRC mismatch" in found.detail) == (State.CORRUPT, True), found
    assert list(read(flow.target.bootstrap, flow.name, 0)) == []
    turn_a_bit(flow.source, flow.name, 100, 0)
    flow.copied()
    assert flow.assert_equal() == 20


@pytest.mark.proves("REFUSED", "never-silent")
@pytest.mark.parametrize(
    ("begun", "continued", "said"),
    [
        ("preserve", "translate", "a control marker of this flow"),
        ("translate", "preserve", "offset 10 of the target goes with offset 18 of the source"),
    ],
    ids=["to translate", "to preserve"],
)
def test_a_copy_goes_on_with_the_kind_of_offsets_with_which_it_began(
    flow: Flow, begun: str, continued: str, said: str
) -> None:
    flow.make()
    transactions(flow.source.bootstrap, flow.name, [False, True, True])
    flow.copied(offsets=begun)
    found = flow.copy(offsets=continued)
    assert (found.state, found.records) == (State.REFUSED, 0), found
    assert said in found.detail
    assert f"Set topics.offsets to {begun}, as the copy was begun" in found.detail
    transactions(flow.source.bootstrap, flow.name, [True])
    assert flow.copied(offsets=begun).records == 5


@pytest.mark.proves("TARGET_LOST", "never-silent")
@pytest.mark.parametrize(("offsets", "below"), [("preserve", 60), ("translate", 60), ("translate", 0)])
def test_what_the_target_lost_is_copied_again(flow: Flow, offsets: str, below: int) -> None:
    flow.topics["offsets"] = offsets
    flow.begin(100)
    flow.lose_tail(flow.target, below)
    flow.fill(100, 10)
    found = flow.copied()
    assert (found.records, found.target_lost) == (110 - below, 100 - below)
    assert f"lost acknowledged records (source offsets {below} to 99)" in found.detail
    assert flow.assert_equal() == 110
    assert flow.copied().target_lost == 0, "reported once"


@pytest.mark.proves("TARGET_LOST", "mirror accept", "never-silent")
@pytest.mark.parametrize(("offsets", "below"), [("preserve", 0), ("translate", 60)])
def test_what_the_target_lost_and_the_source_deleted_is_accepted_by_name(flow: Flow, offsets: str, below: int) -> None:
    flow.topics["offsets"] = offsets
    flow.begin(100)
    flow.lose_tail(flow.target, below)
    flow.expire(flow.source, 80)
    found = assert_stands(flow, State.TARGET_LOST)
    assert "the target lost its tail" in found.detail
    assert f"mirror accept CONFIG {flow.name}" in found.detail
    assert f"{flow.name}-0: accepted the loss of {80 - below} offsets, {below} to 79" in flow.accept()
    found = flow.copied()
    assert (found.lost, found.records) == (80 - below, 20)
    assert flow.lost() == {(below, 80, "target")}


@pytest.mark.proves("never-silent", "PAUSED", "mirror run")
def test_a_copy_that_ends_once_it_has_caught_up_names_what_is_paused(flow: Flow) -> None:
    rests = f"{flow.name}-rests"
    flow.include = [flow.name, rests]
    flow.make()
    make_topic(flow.source.bootstrap, rests)
    for topic in flow.include:
        produce(flow.source.bootstrap, topic, [b"x"] * 10)
    flow.write(pause_entry(rests))
    prepared = replace(prepare(flow.settings(), until_caught_up=True), epoch_seconds=2.0)
    context: Any = InThisProcess()
    mirror = Supervisor(context, prepared, lambda _: None)
    outcome = asyncio.run(asyncio.wait_for(mirror.run(), DEADLINE_S))
    assert (outcome.exit_code, outcome.incomplete.split(",")[0]) == (6, f"{rests}-0: PAUSED at offset -1")
    flow.write(PAUSES.tombstone(rests))
    assert flow.run().exit_code == ExitCode.DONE
    assert len(list(read(flow.target.bootstrap, rests, 0))) == 10
