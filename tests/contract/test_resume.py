"""Where a copy goes on: read from both logs, whatever else arrives, expires or is unclear meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from flows import Flow, flow
from helpers import produce, stored_batches
from probe import probing_existing
from topicadmin import configure
from waiting import until

from mirror.errors import ExitCode
from mirror.kafka import queries
from mirror.kafka.cluster import Cluster, TopicPartition
from mirror.kafka.queries import Producer
from mirror.records.header import APPEND_TIME, SEQUENCES, ProducerState, RawBatch, restamp
from mirror.replication import observe
from mirror.replication.observe import Observation, Observer, producer_id
from mirror.replication.offset_map_recovery import resume_translated
from mirror.states import State

__all__ = ["flow"]

MODES = pytest.mark.parametrize("offsets", ["preserve", "translate"])


def source_batch(flow: Flow, offset: int) -> RawBatch:
    """Return the source's batch at an offset."""
    return next(one for one in stored_batches(flow.source.bootstrap, flow.name) if one.header.base_offset == offset)


async def send(flow: Flow, raw: RawBatch, sequence: int) -> int:
    """Send a batch as a task of the flow does, and return where it landed."""
    stamp = ProducerState(producer_id(flow.name, flow.at), 0, sequence)
    async with probing_existing(flow.target.bootstrap, flow.name) as probe:
        code, landed = await probe.send(restamp(raw, stamp) + bytes(raw.records))
        assert code == 0
        return landed


@pytest.mark.proves("exactly-once")
def test_a_zombies_batch_that_lands_while_the_position_is_read_is_kept_once(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow.begin(100)
    flow.fill(100, 100)
    late, real, landed = source_batch(flow, 100), queries.producers, list[int]()

    async def producers(cluster: Cluster, partition: TopicPartition) -> tuple[Producer, ...]:
        if not landed:
            landed.append(await send(flow, late, 100))
        return await real(cluster, partition)

    monkeypatch.setattr(observe, "producers", producers)
    flow.copied()
    assert landed == [100]
    assert flow.assert_equal() == 200


@pytest.mark.proves("exactly-once")
@pytest.mark.parametrize("before_the_end", [10, 15], ids=["between batches", "inside a batch"])
def test_sequences_go_on_behind_their_largest_number(flow: Flow, before_the_end: int) -> None:
    flow.make()
    flow.make(flow.target)
    flow.fill(0, 10)
    first = SEQUENCES - before_the_end
    assert asyncio.run(send(flow, source_batch(flow, 0), first)) == 0, "a leader takes any first sequence"
    for count in (10, 20):
        flow.fill(count, 10)
        flow.copied()
    flow.fill(30, 30)
    flow.copied()
    stored = [one.header for one in stored_batches(flow.target.bootstrap, flow.name)]
    assert [one.base_sequence for one in stored] == [(first + offset) % SEQUENCES for offset in range(0, 60, 10)]
    assert {one.producer_epoch for one in stored} == {0}
    assert flow.assert_equal() == 60


@pytest.mark.proves("never-silent")
@MODES
def test_records_that_the_source_deletes_while_both_logs_are_compared_show_no_other_log(
    flow: Flow, monkeypatch: pytest.MonkeyPatch, offsets: str
) -> None:
    flow.topics["offsets"] = offsets
    flow.begin(10)
    flow.fill(10, 10)
    real, deleted = Observer.observe, list[int]()

    async def overtaken(self: Observer) -> Observation:
        found = await real(self)
        if not deleted:
            deleted.append(await queries.delete_records(self.source, self.source_partition, 10))
        return found

    monkeypatch.setattr(Observer, "observe", overtaken)
    assert flow.copied().next_offset == 20
    assert deleted == [10]


@pytest.mark.proves("exactly-once")
@MODES
def test_a_copy_of_which_all_expired_goes_on_where_the_journal_knows_its_end(flow: Flow, offsets: str) -> None:
    flow.topics["offsets"] = offsets
    flow.begin(100)
    for cluster in (flow.source, flow.target):
        flow.expire(cluster, 100)
    flow.fill(100, 20)
    assert flow.copied().records == 20
    flow.expire(flow.target, 120)
    assert flow.copied().records == 0


@pytest.mark.proves("DIVERGED", "mirror accept", "never-silent")
def test_a_copy_of_which_all_expired_and_no_journal_knows_is_believed_by_name_alone(flow: Flow) -> None:
    flow.make()
    flow.fill(0, 100)
    flow.copied(records_runs=False)
    flow.expire(flow.target, 100)
    flow.fill(100, 20)
    for _ in range(2):
        found = flow.copy()
        assert (found.state, "nothing confirms the copy" in found.detail) == (State.DIVERGED, True), found
        assert "nothing is accepted" in flow.accept(code=ExitCode.DATA_AT_RISK)
    assert "accepted the copy as it stands, up to offset 100" in flow.accept("--unconfirmed")
    assert flow.copied().records == 20


@pytest.mark.proves("DIVERGED", "never-silent")
def test_a_number_by_which_the_leader_knows_another_batch_does_not_count_as_copied(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead mirror's batch arrives behind the read of the log's end, and the source has deleted it meanwhile: the
    leader takes the next one for its repetition.
    """
    flow.topics["offsets"] = "translate"
    flow.make()
    flow.make(flow.target)
    flow.fill(0, 6, batch=3)
    late = source_batch(flow, 0)
    flow.expire(flow.source, 3)
    arrived = list[int]()

    async def resumed(*given: Any) -> Any:
        found = await resume_translated(*given)
        if not arrived:
            arrived.append(await send(flow, late, 0))
        return found

    monkeypatch.setattr("mirror.replication.start.resume_translated", resumed)
    found = flow.copy()
    assert (found.state, found.records) == (State.DIVERGED, 0), found
    assert "at offset 0 of the target, the record is not the source's at offset 3" in found.detail
    assert not [key for key in flow.journal() if key.startswith(b"runs/")]


@pytest.mark.proves("DIVERGED", "mirror accept", "same-bytes")
@MODES
def test_a_copy_that_stamps_records_while_it_is_written_stops_until_its_times_are_accepted(
    flow: Flow, monkeypatch: pytest.MonkeyPatch, offsets: str
) -> None:
    flow.topics["offsets"] = offsets
    flow.make()
    flow.make(flow.target, configs={"message.timestamp.type": "LogAppendTime"})
    flow.fill(0, 10)
    with monkeypatch.context() as before_the_change:
        before_the_change.setattr("mirror.policy.rules.is_stamped", lambda _: False)
        found = flow.copy()
    assert found.state is State.DIVERGED, found
    assert "a time of its own" in found.detail
    configure(flow.target.bootstrap, flow.name, message_timestamp_type="CreateTime")
    flow.accept(code=ExitCode.DATA_AT_RISK)
    assert flow.copy().state is State.DIVERGED
    flow.accept("--unconfirmed")
    flow.copied()


@pytest.mark.proves("DIVERGED", "same-bytes")
def test_a_batch_that_the_copy_stamped_is_found_though_its_writer_was_killed(flow: Flow) -> None:
    flow.make(partitions=2)
    flow.fill(0, 10)
    flow.copied()
    flow.fill(10, 10)

    def stamps() -> bool:
        produce(flow.target.bootstrap, flow.name, [b"when?"], partition=1)
        return stored_batches(flow.target.bootstrap, flow.name, 1)[-1].header.attributes & APPEND_TIME != 0

    configure(flow.target.bootstrap, flow.name, message_timestamp_type="LogAppendTime")
    until(stamps)
    assert asyncio.run(send(flow, source_batch(flow, 10), 10)) == 10
    configure(flow.target.bootstrap, flow.name, message_timestamp_type=None)
    found = flow.copy()
    assert (found.state, "a time of its own" in found.detail) == (State.DIVERGED, True), found
