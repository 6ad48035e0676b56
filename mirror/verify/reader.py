"""One side of a partition, read batch by batch for a comparison."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, NamedTuple

from mirror.errors import BadRecords, BrokerError, MalformedBatch
from mirror.kafka.cluster import OFFSET_OUT_OF_RANGE
from mirror.kafka.fetch import Fetched
from mirror.records.header import RawBatch, split
from mirror.records.transactions import Aborted
from mirror.verify.report import Mark, covering

#: Reads a record set from an offset on, empty where the broker gives none there, however often it is asked. Raises
#: BrokerError 1 where the offset is out of range.
Fetch = Callable[[int], Coroutine[Any, Any, Fetched]]


class Stored(NamedTuple):
    """A batch as a log holds it."""

    raw: RawBatch
    first: int  # none of its records lies below it
    is_visible: bool  # a consumer of committed records gets some out of it


class Reader:
    """The batches from `begin` to before `end`, the next fetch under way while those of the last are compared.

    `head` is the batch at hand, None at the end. `start` is where the log began when that was last looked at. `damage`
    says why the log could not be read to its end. `mark` is the last batch that was read, as stored, and `lost` are the
    accepted losses that could not be read and were passed over.
    """

    def __init__(
        self,
        fetch: Fetch,
        begin: int,
        end: int,
        log_start: Callable[[], Awaitable[int]],
        on_read: Callable[[int], None] | None = None,
        moved: Callable[[RawBatch], Sequence[RawBatch]] | None = None,
        losses: Sequence[tuple[int, int]] = (),
    ) -> None:
        """`moved` gives a batch at other offsets than its own, as several if need be; it may raise BadRecords. What
        lies at offsets `losses`, from and to before, need not be readable.
        """
        self.head: Stored | None = None
        self.start = begin
        self.damage = ""
        self.mark: Mark | None = None
        self.lost: list[tuple[int, int]] = []
        self._losses = losses
        self._fetch, self._log_start, self._on_read = fetch, log_start, on_read
        self._at, self._end, self._moved = begin, end, moved
        self._ready: deque[Stored] = deque()
        self._fetching: asyncio.Task[Fetched] | None = None
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

    async def _receive(self, fetching: asyncio.Task[Fetched]) -> None:
        before = self._at
        try:
            self._sort(await fetching)
        except BrokerError as problem:
            if problem.code != OFFSET_OUT_OF_RANGE:
                if not self._pass_lost():
                    raise
            elif (log_start := await self._log_start()) > before:
                self.start = self._at = log_start
            else:  # not deleted but cut back: the rest is gone, which the comparison will show it
                self._at = self._end
        except (MalformedBatch, BadRecords) as problem:
            if not self._pass_lost():
                self.damage = str(problem)
        if self._at == before and not (self.damage or self._pass_lost()):
            self.damage = f"the broker returned nothing at offset {before} below the log's end {self._end}"
        if self._on_read:
            self._on_read(min(self._at, self._end) - before)
        self._ask()

    def _sort(self, answer: Fetched) -> None:
        """Make the answer's batches ready. Raises MalformedBatch, and BadRecords for what cannot be read."""
        asked, aborted = self._at, Aborted(answer.aborted)
        for raw in split(answer.records):
            header = raw.header
            if not 0 <= header.magic <= 2:
                raise BadRecords(f"a batch of magic {header.magic}", header.base_offset)
            is_aborted = aborted.covers(raw)  # asked about each, since it follows the transactions
            hidden = is_aborted or header.is_control or (header.magic == 2 and not header.count)
            # before magic 2, a compressed set has its last offset alone
            first = min(self._at, header.base_offset) if header.magic < 2 and header.codec else header.base_offset
            if first < self._end and header.last_offset >= asked:
                self.mark = Mark(header.base_offset, header.crc, header.partition_leader_epoch)
                if self._moved is None:
                    self._ready.append(Stored(raw, first, not hidden))
                else:
                    self._ready += (Stored(batch, batch.header.base_offset, not hidden) for batch in self._moved(raw))
            self._at = max(self._at, header.next_offset)

    def _pass_lost(self) -> bool:
        """Go on behind the accepted loss that the next offset belongs to, if it belongs to one."""
        lost = covering(self._losses, self._at, self._at)
        if lost is None:
            return False
        self.lost.append(lost)
        self._at = lost[1]
        return True
