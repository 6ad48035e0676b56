"""Where reading stands in one source partition, and what one answer brings for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from mirror.errors import PartitionStop
from mirror.kafka.cluster import TopicPartition
from mirror.kafka.fetch_session import FetchSession
from mirror.kafka.retry import Backoff
from mirror.records.header import RawBatch
from mirror.replication.damage import Damaged
from mirror.replication.open_transactions import held_since


@dataclass(slots=True)
class Cursor:
    """Progress in one source partition. `until` is where a bounded copy ends; `last_epoch` the leader epoch of the last
    batch; `held` the bytes that were fetched and wait to be relayed. `unrelayed` are the arrivals that wait, and the
    one that is being relayed. `largest` is the size of the largest batch of the last answer with batches. Between the
    offsets `skips` a damaged batch may be left out. The source ends at `written_until`; while a transaction is open
    there, a reader of committed records gets what is below `readable_until`, which has not moved `held_since`
    (monotonic), None where none is open; it was asked for that at `named_ms` (Unix ms), 0 where it never was, and again
    by each request of the `session` that asks for the partition. `is_past_padding`: it came to a batch that is none
    (R5). `epochless`: the
    leader of this epoch keeps no leader epochs (R6). `unheard_at`: since when answers leave it out (monotonic, R7).
    `hollow`: how many answers in a row held nothing though it ends further on (R8). `log_start`: where the source's log
    began by its last answer.
    """

    partition: TopicPartition
    topic_id: UUID | None
    next_offset: int
    last_epoch: int = -1
    until: int | None = None
    readable_until: int = -1
    written_until: int = -1
    named_ms: int = 0
    session: FetchSession | None = None
    held_since: float | None = None
    damaged: int = 0
    missing: int = 0
    held: int = 0
    unrelayed: int = 0
    largest: int = 0
    skips: tuple[int, int] | None = None
    is_past_padding: bool = False
    epochless: int | None = None
    unheard_at: float | None = None
    hollow: int = 0
    log_start: int = 0
    backoff: Backoff = field(default_factory=Backoff)
    not_before: float = 0.0

    @property
    def is_done(self) -> bool:
        """A bounded copy has read everything it was asked for."""
        return self.until is not None and self.next_offset >= self.until

    def sees(self, stable: int, written: int, asked_ms: int) -> None:
        """The source ends here, for a reader of committed records and for everybody, as it answers to what it was asked
        at Unix time `asked_ms`: its answer may have waited through a suspension of this process.
        """
        is_held = stable < written
        self.held_since = held_since(self.held_since, self.readable_until, stable, written) if is_held else None
        self.readable_until, self.written_until, self.named_ms = stable, written, asked_ms

    @property
    def seen_ms(self) -> int:
        """Tell when the source was asked last where it ends (Unix ms)."""
        return max(self.named_ms, self.session.heard_ms if self.session is not None else 0)

    def leave(self) -> None:
        """It is asked for no more for now."""
        self.named_ms, self.session = self.seen_ms, None

    @property
    def has_all(self) -> bool:
        """Nothing more can be read now."""
        return self.is_done or self.next_offset >= self.readable_until


class Arrival(NamedTuple):
    """What one fetch answer holds for one partition."""

    cursor: Cursor
    batches: tuple[RawBatch, ...] = ()
    size: int = 0  # bytes of the record set that the batches were cut from
    aborted: tuple[tuple[int, int], ...] = ()  # producer id and first offset of each aborted transaction
    stop: PartitionStop | None = None  # comes after the batches that precede it
    lost: Damaged | None = None
    trouble: str = ""  # passes by itself
    astray: bool = False
    hole_until: int = -1  # the source has nothing more below this offset, -1 where that is not known
