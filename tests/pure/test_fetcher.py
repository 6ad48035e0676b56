"""What the reading side asks for, when, and for how much."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cache
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from fakebroker import in_loop
from rawbatches import batch, raw
from waiting import MovableClock

from mirror import clock as clocks
from mirror.kafka.cluster import OFFSET_OUT_OF_RANGE, Leader, TopicPartition
from mirror.kafka.fetch import EMPTY_ANSWERS, Ask, FetchAnswer, Part
from mirror.kafka.queries import EpochEnd
from mirror.records.header import RawBatch
from mirror.replication import fetcher, observe
from mirror.replication.cursor import Arrival, Cursor
from mirror.replication.fetcher import UNHEARD_SECONDS, Fetcher, Request
from mirror.states import State

AT = TopicPartition("orders", 0)
BATCH = 1000
PARTITION_BYTES = 10 * BATCH
SOURCE: Any = SimpleNamespace(leader=lambda _: Leader(1, 0), learned=0)


def asks_of(request: Request) -> Sequence[Ask]:
    """Return what a request asks for, which is everything of a leader without sessions."""
    return request.session.request(12, max_wait_ms=0, max_bytes=request.most).asks


class Log(Fetcher):
    """A fetcher with a log without end in place of a source; `asked` is how many bytes it was asked for each time."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.asked = list[int]()

    async def _fetch(self, _node: int, request: Request) -> Any:
        (ask,) = asks_of(request)
        self.asked.append(ask.max_bytes)
        await asyncio.sleep(0)
        records = b"".join(at_offset(ask.offset + n, BATCH) for n in range(ask.max_bytes // BATCH))
        return answer_of(answered(AT, records))


class Epochless(Fetcher):
    """A fetcher with a log of one record at each offset below 3 in place of a leader that refuses any leader epoch."""

    async def _fetch(self, _node: int, request: Request) -> Any:
        (ask,) = asks_of(request)
        await asyncio.sleep(0)
        code = OFFSET_OUT_OF_RANGE if ask.last_epoch >= 0 else 0
        return answer_of(answered(AT, batch(ask.offset) if ask.offset < 3 else b"", code=code))


class Logs(Fetcher):
    """A fetcher with logs without end, each a batch of `sizes` after the other, in place of a leader: as a broker, it
    gives what fits into the bounds, and one batch whatever they are. What it gave is `written` until `acknowledge`.
    """

    sizes: dict[TopicPartition, int]
    written: dict[TopicPartition, int]
    given: dict[TopicPartition, int]
    most_held = 0

    async def _fetch(self, _node: int, request: Request) -> Any:
        await asyncio.sleep(0)
        left, parts, is_empty = request.most, dict[TopicPartition, bytes](), True
        for ask in asks_of(request):
            size = self.sizes[ask.partition]
            count = max(min(ask.max_bytes, left) // size, int(is_empty))
            parts[ask.partition] = b"".join(at_offset(ask.offset + number, size) for number in range(count))
            left, is_empty = max(0, left - size * count), is_empty and not count
        held = self._writers_hold() + sum(one.held for one in self._cursors.values()) + sum(map(len, parts.values()))
        self.most_held = max(self.most_held, held)
        return answer_of(*(answered(at, records) for at, records in parts.items()))

    def acknowledge(self, at: TopicPartition) -> None:
        self.written[at] = 0
        self.nudge()


@cache
def of_size(size: int) -> bytes:
    return batch(0, count=1, payload=bytes(size - 61))


def at_offset(offset: int, size: int) -> bytes:
    """A batch of one record; its offset is no part of what its CRC covers."""
    return offset.to_bytes(8, "big") + of_size(size)[8:]


def answered(
    at: TopicPartition,
    records: bytes,
    *,
    code: Any = 0,
    stable: int = 1 << 40,
    diverging: tuple[int, int] | None = None,
) -> Part:
    return at.topic, at.partition, code, 1 << 40, stable, 0, diverging, (), memoryview(records)


def answer_of(*parts: Part, throttled: float = 0) -> FetchAnswer:
    """A whole answer."""
    return FetchAnswer(timedelta(seconds=throttled), 0, 0, parts)


async def arrivals_of(
    kind: type[Fetcher], cursor: Cursor, is_enough: Callable[[list[Arrival]], object] = bool
) -> list[Arrival]:
    """What a fetcher reads from the cursor on, until that is enough."""
    found: list[Arrival] = []
    async with asyncio.TaskGroup() as tasks:
        reading = kind(SOURCE, lambda _: PARTITION_BYTES, tasks.create_task, PARTITION_BYTES)
        reading.start(cursor)
        async for arrival in reading:
            found.append(arrival)
            if is_enough(found):
                reading.finish()
    return found


def logs_of(spawn: Any, sizes: dict[TopicPartition, int], memory: int, share: int) -> Logs:
    written = dict.fromkeys(sizes, 0)
    made = Logs(
        SOURCE, lambda at: share - written[at], spawn, share, memory=memory, writers_hold=lambda: sum(written.values())
    )
    made.sizes, made.written, made.given = sizes, written, dict.fromkeys(sizes, 0)
    for at in sizes:
        made.start(Cursor(at, None, 0))
    return made


async def until_nothing_comes(logs: Logs, clock: MovableClock) -> None:
    """Write what comes, until nothing has come for a while: the target is silent."""

    async def write() -> None:
        async for arrival in logs:
            at = arrival.cursor.partition
            logs.written[at] += arrival.size
            logs.given[at] += arrival.size

    writing, quiet = asyncio.create_task(write()), 0
    while quiet < 30:
        before = sum(logs.given.values())
        clock.move(0.1)
        for _ in range(20):
            await asyncio.sleep(0)
        quiet = quiet + 1 if sum(logs.given.values()) == before else 0
    writing.cancel()


@pytest.mark.parametrize(("partitions", "size"), [(60, 30), (1000, 1), (3, 400)])
@in_loop
async def test_all_partitions_together_hold_no_more_than_the_budget_and_one_batch(
    partitions: int, size: int, clock: MovableClock
) -> None:
    """Each of them may always take one batch whole, however large it is; the target takes nothing."""
    memory = 200 * BATCH
    async with asyncio.TaskGroup() as tasks:
        places = [TopicPartition("orders", number) for number in range(partitions)]
        logs = logs_of(tasks.create_task, dict.fromkeys(places, size * BATCH), memory, 10 * BATCH)
        await until_nothing_comes(logs, clock)
        assert memory / 3 <= logs.most_held <= memory + size * BATCH
        logs.finish()


@in_loop
async def test_every_partition_gets_its_turn_where_memory_is_short() -> None:
    """Those with a large batch among many with small ones, and the other way round."""
    async with asyncio.TaskGroup() as tasks:
        large = {TopicPartition("large", number): 150 * BATCH for number in range(5)}
        small = {TopicPartition("small", number): BATCH for number in range(40)}
        logs = logs_of(tasks.create_task, {**small, **large}, 200 * BATCH, 10 * BATCH)
        async for arrival in logs:
            at = arrival.cursor.partition
            logs.written[at] += arrival.size
            logs.given[at] += arrival.size
            asyncio.get_running_loop().call_later(0.002, logs.acknowledge, at)
            if min(logs.given.values()) > 0:
                logs.finish()


class Trickle(Fetcher):
    """A fetcher with a leader that has one more record whenever it is asked; `offsets` are those asked for."""

    offsets: list[int]

    async def _fetch(self, _node: int, request: Request) -> Any:
        (ask,) = asks_of(request)
        self.offsets.append(ask.offset)
        await asyncio.sleep(0)
        return answer_of(answered(AT, at_offset(ask.offset, BATCH), stable=ask.offset + 1))


@in_loop
async def test_what_trickles_in_is_waited_for_behind_an_answer_that_left_nothing(clock: MovableClock) -> None:
    async def settle() -> list[int]:
        for _ in range(50):
            await asyncio.sleep(0)
        return reading.offsets

    async def read() -> None:
        async for _ in reading:
            pass

    async with asyncio.TaskGroup() as tasks:
        reading = Trickle(SOURCE, lambda _: PARTITION_BYTES, tasks.create_task, PARTITION_BYTES, max_delay_s=60.0)
        reading.offsets = []
        reading.start(Cursor(AT, None, 0))
        consuming = tasks.create_task(read())
        assert await settle() == [0], "the first comes at once"
        clock.move(30.0)
        assert await settle() == [0]
        clock.move(31.0)
        assert await settle() == [0, 1]
        reading.finish()
        consuming.cancel()


class Cut(Log):
    """The same, of which every answer ends inside a batch, as a broker cuts it; `offsets` are what it was asked for."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.offsets = list[int]()

    async def _fetch(self, node: int, request: Request) -> Any:
        answer = await super()._fetch(node, request)
        self.offsets.append(request.session.asked[AT].offset)
        (part,) = answer.parts
        return answer_of(answered(AT, part[-1][: -BATCH // 2]))


@in_loop
async def test_a_cursor_moves_past_what_was_handed_out_and_no_further() -> None:
    """A batch that came in part is asked for again; who starts again gets all from there on once more."""
    async with asyncio.TaskGroup() as tasks:
        log = Cut(SOURCE, lambda _: PARTITION_BYTES, tasks.create_task, PARTITION_BYTES)
        log.start(Cursor(AT, None, 0))
        due, is_again = 0, False
        async for arrival in log:
            for one in arrival.batches:
                assert one.header.base_offset == due, "nothing is missing, and nothing comes twice"
                due += 1
            assert arrival.cursor.next_offset >= due
            if due > 30 and not is_again:
                due, is_again = 5, True
                log.start(Cursor(AT, None, due))
            elif due > 60:
                log.finish()
        again = log.offsets.index(5, 1)
        for asked in (log.offsets[:again], log.offsets[again:]):
            assert all(later - earlier <= 9 for earlier, later in pairwise(asked)), asked


@in_loop
async def test_what_waits_to_be_relayed_leaves_no_room_for_more() -> None:
    """A task that rewrites is slower than its source: what waits for it must not grow."""
    async with asyncio.TaskGroup() as tasks:
        log = Log(SOURCE, lambda _: PARTITION_BYTES, tasks.create_task, PARTITION_BYTES)
        log.start(Cursor(AT, None, 0))
        taken = 0
        async for arrival in log:
            taken += arrival.size
            for _ in range(100):  # the reader could fetch a hundred times meanwhile
                await asyncio.sleep(0)
            assert sum(log.asked) - taken <= PARTITION_BYTES
            if taken >= 5 * PARTITION_BYTES:
                log.finish()


@pytest.mark.parametrize(
    ("kept", "is_astray"), [(EpochEnd(-1, -1), False), (EpochEnd(0, 2), True)], ids=["none", "another log"]
)
@in_loop
async def test_a_leader_that_keeps_no_leader_epochs_is_asked_without(
    kept: EpochEnd, is_astray: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that keeps them means the offset."""
    asked: list[int] = []

    async def epoch_end(_cluster: object, _partition: TopicPartition, epoch: int) -> EpochEnd:
        asked.append(epoch)
        return kept

    monkeypatch.setattr(fetcher, "epoch_end", epoch_end)
    arrivals = await arrivals_of(
        Epochless,
        Cursor(AT, None, 0, last_epoch=0),
        lambda found: found[-1].trouble or found[-1].cursor.next_offset == 3,
    )
    assert asked == [0], "once for each leader"
    assert [one.astray for one in arrivals] == ([True] if is_astray else [False] * 3)
    assert sum(len(one.batches) for one in arrivals) == (0 if is_astray else 3)


@pytest.mark.parametrize(("behind", "end"), [(5, 8), (2, 8), (5, 3)], ids=["hole", "another log", "cut back"])
@in_loop
async def test_a_leader_whose_compaction_took_all_of_an_epoch_is_asked_without_it(
    behind: int, end: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica made since knows its log's epochs by the batches that are left."""
    is_hole = (behind, end) == (5, 8)

    class Diverging(Fetcher):
        async def _fetch(self, _node: int, request: Request) -> Any:
            await asyncio.sleep(0)
            if asks_of(request)[0].last_epoch != 5:
                return answer_of(answered(AT, batch(8, leader_epoch=7)))
            return answer_of(answered(AT, b"", diverging=(4, end)))

    async def batch_at(*_: object, **__: object) -> RawBatch:
        return raw(batch(behind, count=9 - behind, leader_epoch=4))

    monkeypatch.setattr(observe, "batch_at", batch_at)
    (arrival,) = await arrivals_of(Diverging, Cursor(AT, None, 5, last_epoch=5))
    assert (arrival.stop is None, arrival.cursor.last_epoch) == (is_hole, 7 if is_hole else 5)
    if arrival.stop is not None:
        assert arrival.stop.state is State.TRUNCATED


@pytest.mark.parametrize(
    ("until", "records", "epoch_ends", "goes_on_at", "last_epoch"),
    [
        (None, b"", EpochEnd(3, 9), 9, 3),
        (None, b"", EpochEnd(3, 7), 9, -1),  # what follows is of a later one
        (7, b"", EpochEnd(3, 9), 7, 3),
        (None, b"there", EpochEnd(3, 9), 5, 3),
        (None, b"", EpochEnd(3, 4), 5, 3),  # cut back, as the next fetch shows
        (None, b"", EpochEnd(2, 9), 5, 3),
    ],
)
def test_a_hole_up_to_the_last_stable_offset_is_passed_over_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
    until: int | None,
    records: bytes,
    epoch_ends: EpochEnd,
    goes_on_at: int,
    last_epoch: int,
) -> None:
    """A broker gives bytes in the order of the asks: who comes behind one that got some may have been left short."""
    full, hollow, short = (TopicPartition("orders", number) for number in (1, 0, 2))
    asked: list[tuple[TopicPartition, int, int]] = []

    async def fetch_below(_: object, at: TopicPartition, offset: int, end: int) -> Any:
        asked.append((at, offset, end))
        return SimpleNamespace(records=records)

    async def epoch_end(*_: object) -> EpochEnd:
        return epoch_ends

    def fetched(at: TopicPartition, records: bytes = b"") -> Any:
        return SimpleNamespace(partition=at, error_code=0, records=records)

    async def read() -> tuple[Cursor, list[Arrival]]:
        async with asyncio.TaskGroup() as tasks:
            reading = Fetcher(SOURCE, lambda _: PARTITION_BYTES, tasks.create_task, PARTITION_BYTES)
            reading._cursors = {at: Cursor(at, None, 5, last_epoch=3, until=until) for at in (full, hollow, short)}
            for cursor in reading._cursors.values():
                cursor.log.sees(9, 20, 1)
            asks = [Ask(at, None, 0, 5, 3, PARTITION_BYTES) for at in (hollow, full, short)]
            for number in range(EMPTY_ANSWERS):
                assert not asked
                named = [] if number else [fetched(hollow), fetched(short)]  # a session names it no more
                reading._find_holes(asks, [*named, fetched(full, b"records")])
            reading._find_holes(asks, [fetched(hollow), fetched(full), fetched(short)])  # it is being looked at
        return reading._cursors[hollow], list(reading._arrivals)

    monkeypatch.setattr(fetcher, "fetch_below", fetch_below)
    monkeypatch.setattr(fetcher, "epoch_end", epoch_end)
    cursor, arrivals = asyncio.run(read())
    assert asked == [(hollow, 5, until or 9)]
    assert (cursor.next_offset, cursor.last_epoch, cursor.retries.not_before) == (goes_on_at, last_epoch, 0.0)
    assert [one.hole_until for one in arrivals] == ([goes_on_at] if goes_on_at > 5 else [])


@in_loop
async def test_where_a_source_ends_it_said_when_it_was_asked(clock: MovableClock) -> None:
    """A process that is suspended finds the answer waiting when it goes on, and what was deleted since is not in it."""

    class Asleep(Log):
        async def _fetch(self, node: int, request: Request) -> Any:
            clock.move(86_400.0)
            return await super()._fetch(node, request)

    (arrival,) = await arrivals_of(Asleep, Cursor(AT, None, 0))
    assert clocks.now_ms() - arrival.cursor.log.seen_ms >= 86_400_000


@in_loop
async def test_a_quota_that_lets_nothing_through_is_named(clock: MovableClock) -> None:
    """A muted answer names no partition: where the log ends is not known for as long, and a partition that seems to
    have all must not stay so. One that is answered now and then only waits.
    """
    answers = iter(["heard", 5, 5, 30, 5, "heard", 5, 5, "heard", "empty", "heard"])

    class Muted(Log):
        async def _fetch(self, _node: int, request: Request) -> Any:
            asks_of(request)
            await asyncio.sleep(0)
            given = next(answers, "heard")
            if given == "empty":
                clock.move(UNHEARD_SECONDS + 1)
            parts = (answered(AT, b"", stable=7),) if given == "heard" else ()
            return answer_of(*parts, throttled=given if isinstance(given, int) else 0)

    found = await arrivals_of(Muted, Cursor(AT, None, 7), lambda found: len(found) == 6)
    first, quota, second, third, unnamed, last = (one.trouble for one in found)
    assert (first, second, third, last) == ("", "", "", "")
    assert "orders-0 at offset 7: a quota" in quota
    assert "consumer_byte_rate" in quota
    assert "its answers do not name it" in unnamed
