"""By which beats a process notices that it was suspended, and what it sends then: nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from mirror import suspension
from mirror.errors import Suspended
from mirror.journal.ownership import LIVENESS_SECONDS, RESTATE_SECONDS
from mirror.kafka.cluster import Leader, TopicPartition
from mirror.policy.rules import Rules
from mirror.records import rewrite
from mirror.records.header import ProducerState
from mirror.replication import log_start
from mirror.replication.assignment import Assignment
from mirror.replication.decide import Position
from mirror.replication.log_start import align
from mirror.replication.partition_writer import PartitionWriter
from mirror.replication.writer import Writer
from mirror.suspension import SuspensionDetector

#: Partitions whose copies begin late; a fifth of a second each is longer than a suspension.
MANY = 60


@pytest.mark.parametrize("clock", [0, 1])
def test_missed_beats_reveal_a_suspension(clock: int) -> None:
    """By whichever clock goes on meanwhile; one that is set back says nothing. A lease outlasts a busy machine."""
    now = [1000.0, 1000.0]
    detector = SuspensionDetector(lambda: (now[0], now[1]))
    rows = (
        (1.0, False, 0),
        (4.9, False, 0),
        (5.1, True, 0),
        (0.0, False, 0),
        (-100.0, False, 0),
        (9.9, True, 0),
        (10.1, True, 3),
        (6.0, True, 3),
    )
    for seconds, is_late, lapsed in rows:
        now[clock] += seconds
        assert (detector.beat(), detector.lapsed) == (is_late, lapsed)
    assert detector.suspensions == 4


def test_nobody_takes_a_mirror_for_dead_within_its_lease() -> None:
    assert suspension.LEASE_SECONDS < LIVENESS_SECONDS - RESTATE_SECONDS


@pytest.mark.parametrize(("suspensions", "looks"), [(0, 1), (3, 4), (4, 5), (9, None)])
def test_a_command_on_a_busy_machine_looks_again(suspensions: int, looks: int | None) -> None:
    looked = 0

    def work() -> int:
        nonlocal looked
        looked += 1
        if looked <= suspensions:
            raise Suspended("this process was suspended")
        return looked

    if looks is None:
        with pytest.raises(Suspended):
            suspension.look_again(work)
    else:
        assert suspension.look_again(work) == looks


@pytest.mark.parametrize(("seconds", "sends"), [(4.0, True), (8.0, False), (60.0, False)])
def test_nothing_is_sent_behind_a_suspension_before_the_flow_is_known_to_be_ours(seconds: float, sends: bool) -> None:
    """And a position that is older than the lease is read again, whatever the journal says."""
    nothing: Any = SimpleNamespace(leader=lambda _: Leader(1, 0), topic_id=lambda _: None)
    now, writer = [0.0], Writer(nothing, nothing, nothing, 1 << 20)
    writer.detector = SuspensionDetector(lambda: (now[0], now[0]))
    clearance = suspension.Clearance(writer.detector, suspension.always)
    writer.may_go = lambda: not clearance.is_due
    at = TopicPartition("orders", 0)
    partition_writer = PartitionWriter(at, at, Position(0, ProducerState(1 << 52), False, -1), Rules())
    writer.begin(partition_writer)
    now[0] += seconds
    writer.detector.beat()
    assert writer.may_go() is sends
    asyncio.run(clearance.given())
    assert writer.may_go()
    moved = writer._moved(partition_writer, Leader(1, -1))
    assert ("suspended" in moved) is (seconds > suspension.LEASE_SECONDS)


def test_nothing_of_a_round_is_sent_behind_a_suspension_in_its_midst() -> None:
    """Its batches were chosen before; the next round checks each partition again."""
    nothing: Any = None
    now, writer = [0.0], Writer(nothing, nothing, nothing, 1 << 20)
    writer.detector = SuspensionDetector(lambda: (now[0], now[0]))

    async def rounds() -> None:
        writer._flush()
        assert writer._is_awake()
        now[0] += 10.0
        assert [writer._is_awake() for _ in range(3)] == [False, False, False]
        writer._flush()
        assert writer._is_awake()

    asyncio.run(rounds())


def test_many_that_make_padding_in_a_row_are_no_suspension(monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait for the same metadata, and go on together: each would begin anew, with the others, for ever."""
    now, made, sent = [0.0], rewrite.padding, set[TopicPartition]()
    target: Any = SimpleNamespace(leader=lambda _: Leader(1, 0), topic_id=lambda _: None)

    def padding(first: int, until: int, **more: Any) -> Any:
        now[0] += 0.2
        return made(first, until, **more)

    async def append(_cluster: Any, at: TopicPartition, _parts: Any, *, check: Callable[[], None], **_more: Any) -> int:
        check()
        sent.add(at)
        return 0

    async def deleted(_cluster: Any, _at: TopicPartition, before: int, check: Callable[[], None]) -> int:
        check()
        return before

    async def aligned() -> None:
        nothing: Any = None
        writer, together = Writer(target, nothing, nothing, 1 << 20), asyncio.Barrier(MANY)
        writer.detector = SuspensionDetector(lambda: (now[0], now[0]))

        async def refresh(_topics: Any) -> None:
            await together.wait()

        target.refresh = refresh
        position = Position(0, ProducerState(1 << 52), False, -1, begin=5)
        async with asyncio.TaskGroup() as tasks:
            for number in range(MANY):
                at = TopicPartition("orders", number)
                check = partial(writer.check, PartitionWriter(at, at, position, Rules()))
                tasks.create_task(align(target, Assignment(at, at, None, Rules()), position, lambda _: None, check))

    for name, stub in (("padding", padding), ("append", append), ("delete_records", deleted)):
        monkeypatch.setattr(log_start, name, stub)
    asyncio.run(aligned())
    assert (len(sent), now[0] > suspension.SUSPENDED_SECONDS) == (MANY, True)
