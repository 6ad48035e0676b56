"""Which batches an answer's index calls aborted: Kafka's consumer rule, checked on hand-made batches and at random."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest
from rawbatches import batch, raw
from recordoracle import Record, encoded

from mirror.errors import BadRecords, MalformedBatch
from mirror.kafka import log_reader, queries
from mirror.kafka.cluster import TopicPartition
from mirror.kafka.fetch import Fetched
from mirror.records.header import ABORT, COMMIT, CONTROL, TRANSACTIONAL, RawBatch, marker_type
from mirror.records.transactions import Aborted


def data(offset: int, producer: int, count: int = 5, attributes: int = TRANSACTIONAL) -> RawBatch:
    return raw(batch(offset, count=count, attributes=attributes, producer_id=producer))


def marker(offset: int, producer: int, kind: int, value: bytes = b"\0\0\0\0\0\0") -> RawBatch:
    """As a coordinator writes it: version 0 and the type in the key."""
    payload = encoded([Record(0, 0, b"\0\0" + kind.to_bytes(2, "big"), value)])
    return raw(batch(offset, attributes=TRANSACTIONAL | CONTROL, producer_id=producer, payload=payload))


#: A marker of which compaction left the header alone.
EMPTIED = raw(batch(5, count=0, delta=0, attributes=TRANSACTIONAL | CONTROL, producer_id=7, payload=b""))


def covered(index: list[tuple[int, int]], *batches: RawBatch) -> list[bool]:
    aborted = Aborted(index)
    return [aborted.covers(one) for one in batches]


@pytest.mark.parametrize(
    ("index", "log", "aborted"),
    [
        ([(7, 6)], [data(0, 7), marker(5, 7, COMMIT), data(6, 7), marker(11, 7, ABORT)], [2]),
        ([(7, 0)], [data(0, 7), data(5, 8), data(10, 7), marker(15, 7, ABORT), data(16, 8)], [0, 2]),
        ([(7, 0)], [data(0, 7, attributes=0), data(5, 7)], [1]),
        (
            [(9, 26), (7, 3), (9, 26), (8, 4), (7, 900)],
            [data(20, 7), marker(25, 7, ABORT), data(26, 9), marker(31, 9, ABORT), data(32, 9)],
            [0, 2],
        ),
        ([(7, 0)], [data(0, 7), marker(5, 7, 0x7FFF), data(6, 7), marker(11, 7, ABORT), data(12, 7)], [0, 2]),
        ([(7, 0)], [data(0, 7), EMPTIED, data(6, 7)], [0, 2]),
    ],
    ids=[
        *("before the first offset", "another producer", "no transaction", "an index in any order"),
        *("a marker of unknown type", "a marker that compaction emptied"),
    ],
)
def test_an_aborted_transaction_ends_with_its_marker(
    index: list[tuple[int, int]], log: list[RawBatch], aborted: list[int]
) -> None:
    assert [number for number, is_aborted in enumerate(covered(index, *log)) if is_aborted] == aborted


def test_marker_types() -> None:
    assert marker_type(marker(0, 7, 5)) == 5
    assert marker_type(marker(0, 7, ABORT, bytes(100))) == ABORT, "a later version with a long value"


@pytest.mark.parametrize(
    "broken",
    [
        {"payload": b""},
        {"payload": encoded([Record(0, 0, b"\0\0\0", b"")])[:8]},
        {"payload": b"\xff" * 30},
        {"count": 0, "delta": 0, "payload": b""},
        {"attributes": TRANSACTIONAL | CONTROL | 4},
    ],
)
def test_a_control_batch_that_cannot_be_read(broken: dict[str, int | bytes]) -> None:
    fields: dict[str, int | bytes] = {"attributes": TRANSACTIONAL | CONTROL, "producer_id": 7, **broken}
    with pytest.raises(BadRecords, match="base offset 3"):
        marker_type(raw(batch(3, **fields)))  # type: ignore[arg-type] # one dictionary for fields of two types


@pytest.mark.parametrize("seed", range(20))
def test_interleaved_transactions_at_random(seed: int) -> None:
    """What each transaction's end makes of its batches, whatever lies in between."""
    random = Random(seed)
    offset, log, wanted, index = 0, list[RawBatch](), list[bool](), list[tuple[int, int]]()
    running: dict[int, tuple[bool, int]] = {}
    for _ in range(200):
        producer = random.randrange(5)
        if producer in running and random.random() < 0.3:
            aborts, first = running.pop(producer)
            log.append(marker(offset, producer, ABORT if aborts else COMMIT))
            wanted.append(False)
            index += [(producer, first)] * aborts
            offset += 1
        else:
            aborts, _ = running.setdefault(producer, (random.random() < 0.5, offset))
            log.append(data(offset, producer, count := random.randrange(1, 9)))
            wanted.append(aborts)
            offset += count
    index += [(producer, first) for producer, (aborts, first) in running.items() if aborts]
    random.shuffle(index)
    assert covered(index, *log) == wanted


def test_a_marker_that_cannot_be_read_concerns_its_partition_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another error than these ends the task, and with it every partition."""
    damaged = batch(5, attributes=TRANSACTIONAL | CONTROL, producer_id=7, payload=b"")
    answer = Fetched(TopicPartition("orders", 3), 0, 6, 6, 0, None, ((7, 0),), memoryview(damaged))

    async def fetched(*_: Any, **__: Any) -> Fetched:
        return answer

    async def compared() -> list[Any]:
        return [each async for each in log_reader.batches(source, answer.partition, 5, 6, queries.READ_COMMITTED)]

    monkeypatch.setattr(log_reader, "fetch_below", fetched)
    source: Any = "source"
    with pytest.raises(MalformedBatch, match="source: a control batch that ends inside its record"):
        asyncio.run(compared())
