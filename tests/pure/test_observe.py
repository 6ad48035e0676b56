"""Both logs compared batch by batch, without brokers, and what is decided from that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from rawbatches import batch, raw

from mirror.errors import PartitionStop
from mirror.kafka.cluster import TopicPartition
from mirror.records.header import CONTROL, TRANSACTIONAL, ProducerState, RawBatch
from mirror.replication import observe
from mirror.replication.assignment import LastBatch, LastPosition
from mirror.replication.decide import EQUAL_OFFSETS, Decision, Position, decide
from mirror.replication.observe import Observation, Observer, Question, producer_id
from mirror.states import State

AT = TopicPartition("orders", 3)
OWN = producer_id("flow", AT)
Log = tuple[RawBatch, ...]
Spans = tuple[tuple[int, int], ...]


def data(offset: int, *, producer: int = -1, payload: bytes = b"some records") -> RawBatch:
    """Return a batch of one record."""
    return raw(batch(offset, producer_id=producer, payload=payload, base_sequence=offset))


def marker(offset: int, *, producer: int = OWN) -> RawBatch:
    """Return a control batch."""
    return raw(batch(offset, attributes=CONTROL | TRANSACTIONAL, producer_id=producer, producer_epoch=offset))


def copied(source: Log) -> Log:
    """Return what the flow makes of a source."""
    return tuple(
        raw(batch(one.header.base_offset, producer_id=OWN, producer_epoch=0, payload=bytes(one.records)))
        for one in source
    )


class _Logs:
    """A source and a target that answer from batches."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, source: Log, target: Log) -> None:
        """Take the place of what asks brokers."""
        self.source, self.target = source, target
        self.requests = 0
        monkeypatch.setattr(observe, "batches", self._batches)
        monkeypatch.setattr(observe, "batch_at", self._batch_at)
        monkeypatch.setattr(observe, "last_batch", self._last_batch)

    async def _batches(self, log: Log, _: Any, begin: int, end: int, __: int) -> AsyncIterator[tuple[RawBatch, bool]]:
        self.requests += begin < end
        for one in log:
            if one.header.last_offset >= begin and one.header.base_offset < end:
                yield one, False

    async def _batch_at(self, log: Log, _: Any, offset: int, *__: Any, **___: Any) -> RawBatch | None:
        self.requests += 1
        return next((one for one in log if one.header.last_offset >= offset), None)

    async def _last_batch(self, log: Log, _: Any, oldest: int, end: int, *__: Any) -> RawBatch | None:
        self.requests += 1
        held = [one for one in log if oldest <= one.header.base_offset < end and not one.header.is_control]
        return held[-1] if held else None

    def decided(self, question: Question, *, losses: Spans = (), **facts: Any) -> Decision:
        """Return the decision once the question is answered, all others being as if nothing was found."""
        end, others = self.target[-1].header.next_offset, frozenset(set(Question) - {question})
        known: dict[str, Any] = {
            "start": 0,
            "readable": end,
            "target_start": 0,
            "end": end,
            "tail": self.target[-1],
            "asked": others,
            "losses": losses,
        }
        seen = Observation(source=AT, target=AT, own=ProducerState(OWN), **(known | facts))
        sides: Any = self.source, self.target
        observer = Observer("flow", sides[0], AT, sides[1], AT, losses=losses)
        assert decide(seen, EQUAL_OFFSETS) is question
        return decide(asyncio.run(observer.ask(seen, question)), EQUAL_OFFSETS)


TEN = tuple(data(offset) for offset in range(10))
CHANGED = data(9, payload=b"other records")
LAST = LastPosition(source_next=10, target_end=10, source_epoch=4, epoch_until=10)


@pytest.mark.parametrize(
    ("source", "target", "facts", "found"),
    [
        (TEN, copied(TEN), {}, 10),
        (TEN, copied((*TEN[:-1], CHANGED)), {}, "with records, at offset 9, is not the source's"),
        ((*TEN[:8], marker(8), marker(9)), (*copied(TEN[:8]), marker(8), marker(9)), {}, 10),
        (TEN, (*copied(TEN[:8]), marker(8), marker(9)), {}, "has no record from offset 8 to 9"),
        (TEN, (*copied(TEN[:8]), marker(8), marker(9)), {"losses": ((8, 10),)}, 10),
        ((*TEN[:9], data(12)), copied(TEN), {}, 10),  # the source's cleaner took the last one
        (TEN, (*copied((*TEN[:7], data(7, payload=b"others"))), *copied(TEN[8:])), {}, 10),  # acknowledged
        (
            TEN,
            (*copied((*TEN[:7], data(7, payload=b"others"))), *copied(TEN[8:])),
            {"last": LastPosition(source_next=5, target_end=5)},
            "at offset 7, behind what was acknowledged, is not the source's",
        ),
    ],
    ids=[
        "the same",
        "another last batch",
        "markers",
        "a record is missing",
        "its loss is on record",
        "a hole of the source",
        "another batch below",
        "another batch behind the acknowledged position",
    ],
)
def test_the_ends_of_both_logs_are_compared(
    monkeypatch: pytest.MonkeyPatch, source: Log, target: Log, facts: dict[str, Any], found: int | str
) -> None:
    decision = _Logs(monkeypatch, source, target).decided(Question.COMPARISON, **facts)
    if isinstance(found, int):
        assert isinstance(decision, Position), decision
        assert decision.next_offset == found
    else:
        assert isinstance(decision, PartitionStop)
        assert found in decision.detail


def test_a_copy_that_has_all_is_compared_by_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = _Logs(monkeypatch, TEN, copied(TEN))
    decision = logs.decided(Question.COMPARISON, last=LAST)
    assert isinstance(decision, Position)
    assert decision.last is not None
    assert decision.last.batch == LastBatch.of(copied(TEN)[-1], 9, TEN[-1].header.crc)
    assert logs.requests == 1


@pytest.mark.parametrize(
    ("source", "is_restored"),
    [
        (TEN, True),
        ((*TEN[:-1], CHANGED), False),
        (TEN[:-1], False),
        ((*TEN[:8], data(9)), False),
        ((*TEN[:6], raw(batch(6, count=2)), *TEN[8:]), False),
    ],
    ids=["the same", "another batch", "less", "a hole", "another cut of batches"],
)
@pytest.mark.parametrize("kept_until", [7, -1])
def test_a_source_that_was_cut_back_may_have_the_same_again(
    monkeypatch: pytest.MonkeyPatch, source: Log, is_restored: bool, kept_until: int
) -> None:
    logs = _Logs(monkeypatch, source, copied(TEN))
    decision = logs.decided(Question.RESTORED, last=LAST, kept_until=kept_until)
    if is_restored:
        assert isinstance(decision, Position)
        assert decision.last_epoch == -1, "by that epoch the next fetch would be refused"
    else:
        assert isinstance(decision, PartitionStop)
        assert decision.state is State.TRUNCATED
