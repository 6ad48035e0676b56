"""One side of a partition, read batch by batch for a comparison."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from mirror.batch.header import CODEC_MASK, CODECS, RawBatch, split
from mirror.errors import BrokerError, MalformedBatch

_OFFSET_OUT_OF_RANGE: Final = 1
#: Where magic 0 and 1 keep their attributes.
_OLD_ATTRIBUTES_AT: Final = 17
#: How often a broker may give nothing at an offset before the log's end, and the seconds in between: a leader just
#: elected gives nothing until it knows how far the log is committed.
EMPTY_ANSWERS: Final = 4
EMPTY_PAUSE: Final = 0.1

#: Reads a record set from an offset on. Raises BrokerError 1 where the offset is out of range.
Fetch = Callable[[int], Coroutine[Any, Any, memoryview]]


class Reader:
    """The batches from `begin` to before `end`, the next fetch under way while those of the last are compared.

    `head` is the batch at hand, None at the end. `start` is where the log began when that was last looked at. `damage`
    says why the log could not be read to its end.
    """

    def __init__(
        self,
        fetch: Fetch,
        begin: int,
        end: int,
        log_start: Callable[[], Awaitable[int]],
        on_read: Callable[[int], None] | None = None,
    ) -> None:
        self.head: RawBatch | None = None
        self.start = begin
        self.damage = ""
        self._fetch, self._log_start, self._on_read = fetch, log_start, on_read
        self._at, self._end = begin, end
        self._ready: deque[RawBatch] = deque()
        self._empty = 0
        self._fetching: asyncio.Task[memoryview] | None = None
        self._ask()

    async def advance(self) -> None:
        """Put the next batch at hand. Raises as a fetch does."""
        while not self._ready and self._fetching is not None:
            await self._receive(self._fetching)
        self.head = self._ready.popleft() if self._ready else None

    async def close(self) -> None:
        """Abandon the fetch under way."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait([self._fetching])

    def _ask(self) -> None:
        more = self._at < self._end and not self.damage
        self._fetching = asyncio.create_task(self._fetch(self._at)) if more else None

    async def _receive(self, fetching: asyncio.Task[memoryview]) -> None:
        before = self._at
        try:
            records = await fetching
        except BrokerError as problem:
            if problem.code != _OFFSET_OUT_OF_RANGE:
                raise
            self.start = self._at = max(self._at, await self._log_start())
            if self._at == before:  # not deleted but cut back: the rest is gone, which the comparison will tell
                self._at = self._end
        else:
            try:
                for raw in split(records):
                    if raw.header.base_offset < self._end and last_offset(raw) >= before:
                        self._ready.append(raw)
                    self._at = max(self._at, last_offset(raw) + 1)
            except MalformedBatch as problem:
                self.damage = str(problem)
            await self._judge_progress(before)
        if self._on_read:
            self._on_read(min(self._at, self._end) - before)
        self._ask()

    async def _judge_progress(self, before: int) -> None:
        if self._at > before or self.damage:
            self._empty = 0
            return
        self._empty += 1
        if self._empty < EMPTY_ANSWERS:
            await asyncio.sleep(EMPTY_PAUSE)
        else:
            self.damage = f"the broker returned nothing at offset {before} below the log's end {self._end}"


def last_offset(raw: RawBatch) -> int:
    """The batch's last offset, of any magic: before 2, the wrapper has its last record's."""
    return max(raw.header.base_offset, raw.header.last_offset)


def codec_name(raw: RawBatch) -> str:
    """The codec as Kafka's settings spell it."""
    codec = raw.header.codec if raw.header.magic == 2 else raw.data[_OLD_ATTRIBUTES_AT] & CODEC_MASK
    return CODECS[codec] if codec < len(CODECS) else f"codec {codec}"
