"""Where reading stands in one source partition, and what one answer brings for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from mirror.errors import PartitionStop
from mirror.kafka.cluster import TopicPartition
from mirror.kafka.fetch import FetchSession
from mirror.kafka.retry import Backoff
from mirror.records.header import RawBatch
from mirror.replication.damage import Damaged
from mirror.replication.open_transactions import held_since


@dataclass(slots=True)
class SourceLog:
    """Keeps what the source's log holds, by the last answer that named it."""

    start: int = 0  # where it begins
    readable_until: int = -1  # where it ends for a reader of committed records
    written_until: int = -1  # where it ends for everybody
    named_ms: int = 0  # when it was asked for that (Unix ms), 0 where it never was
    session: FetchSession | None = None  # each request of it asks again
    held_since: float | None = None  # since when an open transaction has held `readable_until` (monotonic)

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


@dataclass(slots=True)
class Retries:
    """Keeps what went wrong with the answers of late, and when to ask again."""

    damaged: int = 0  # how often the batch at hand came damaged
    missing: int = 0  # how often metadata did not name the topic
    hollow: int = 0  # answers in a row that held nothing though the log ends further on (R8)
    epochless: int | None = None  # the leader of this epoch keeps no leader epochs (R6)
    unheard_at: float | None = None  # since when answers leave the partition out (monotonic, R7)
    backoff: Backoff = field(default_factory=Backoff)
    not_before: float = 0.0  # it is not asked for earlier (monotonic)


@dataclass(slots=True)
class Cursor:
    """Keeps where reading stands in one source partition."""

    partition: TopicPartition  # the source's
    topic_id: UUID | None  # of its topic, None where the cluster has none
    next_offset: int  # what is read next
    last_epoch: int = -1  # the leader epoch of the last batch
    until: int | None = None  # where a bounded copy ends
    skips: tuple[int, int] | None = None  # offsets between which a damaged batch may be left out
    is_past_padding: bool = False  # it came to a batch that is none of another mirror's padding (R5)
    largest: int = 0  # bytes of the largest batch of the last answer with batches
    held: int = 0  # bytes that were fetched and wait to be relayed
    unrelayed: int = 0  # arrivals that wait, and the one that is being relayed
    log: SourceLog = field(default_factory=SourceLog)  # where the source begins and ends
    retries: Retries = field(default_factory=Retries)  # what went wrong of late

    @property
    def is_done(self) -> bool:
        """A bounded copy has read everything it was asked for."""
        return self.until is not None and self.next_offset >= self.until

    @property
    def has_all(self) -> bool:
        """Nothing more can be read now."""
        return self.is_done or self.next_offset >= self.log.readable_until


class Arrival(NamedTuple):
    """Holds what one fetch answer has for one partition."""

    cursor: Cursor
    batches: tuple[RawBatch, ...] = ()
    size: int = 0  # bytes of the record set that the batches were cut from
    aborted: tuple[tuple[int, int], ...] = ()  # producer id and first offset of each aborted transaction
    stop: PartitionStop | None = None  # comes after the batches that precede it
    lost: Damaged | None = None
    trouble: str = ""  # passes by itself
    astray: bool = False
    hole_until: int = -1  # the source has nothing more below this offset, -1 where that is not known
