"""What the reading side asks for, when, and for how much."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from rawbatches import batch

from mirror.fetcher import Cursor, Fetcher
from mirror.wire.cluster import Leader, TopicPartition
from mirror.wire.fetch import Ask

AT = TopicPartition("orders", 0)
BATCH = 1000
PARTITION_BYTES = 10 * BATCH


class Log(Fetcher):
    """A fetcher with a log without end in place of a source; `asked` is how many bytes it was asked for each time."""

    asked: list[int]

    async def _fetch(self, _node: int, asks: list[Ask], _max_wait_ms: int) -> Any:
        (ask,) = asks
        self.asked.append(ask.max_bytes)
        await asyncio.sleep(0)
        first = ask.offset
        records = b"".join(
            batch(offset, count=1, payload=bytes(BATCH - 61)) for offset in range(first, first + ask.max_bytes // BATCH)
        )
        part = SimpleNamespace(
            partition_index=0,
            error_code=0,
            diverging_epoch=SimpleNamespace(epoch=-1, end_offset=-1),
            high_watermark=1 << 40,
            last_stable_offset=1 << 40,
            log_start_offset=0,
            aborted_transactions=(),
            records=records,
        )
        topic = SimpleNamespace(topic=AT.topic, partitions=(part,))
        return SimpleNamespace(__version__=12, error_code=0, responses=(topic,))


def log_of(spawn: Any) -> Log:
    source: Any = SimpleNamespace(leader=lambda _: Leader(1, 0))
    made = Log(source, lambda _: PARTITION_BYTES, spawn, PARTITION_BYTES)
    made.asked = []
    made.start(Cursor(AT, None, 0))
    return made


def test_what_waits_to_be_relayed_leaves_no_room_for_more() -> None:
    """A lane that rewrites is slower than its source: what waits for it must not grow."""

    async def relay() -> None:
        async with asyncio.TaskGroup() as tasks:
            log = log_of(tasks.create_task)
            taken = 0
            async for arrival in log:
                taken += sum(len(raw.data) for raw in arrival.batches)
                for _ in range(100):  # the reader could fetch a hundred times meanwhile
                    await asyncio.sleep(0)
                assert sum(log.asked) - taken <= PARTITION_BYTES
                if taken >= 5 * PARTITION_BYTES:
                    log.finish()

    asyncio.run(relay())
