"""What a schedule does and judges only where offsets move: what was mirrored is remembered, since the source deletes
it, and nothing but the order of records shows where it is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from checker import Expected, Finding, Record, check_translated, dump, read_recorded

from mirror.config import ClusterSettings
from mirror.journal.journal import Entry, journal_topic
from mirror.journal.offset_maps import Indexes
from mirror.kafka.admin import Admin
from mirror.kafka.cluster import TopicPartition
from mirror.replication.offset_map import OffsetRangeIndex
from mirror.topics.apply import ensure_flow_topic

from .workload import admin, remove


@dataclass(slots=True)
class _History:
    """Of one partition: records that are mirrored, records that were lost before, and which of them a journal that is
    gone reported.
    """

    mirrored: list[Record] = field(default_factory=list)
    lost: list[Record] = field(default_factory=list)
    declared: list[tuple[int, int]] = field(default_factory=list)

    @property
    def known(self) -> list[Record]:
        return sorted([*self.mirrored, *self.lost])

    def new(self, committed: Sequence[Record]) -> list[Record]:
        """What comes behind what is known."""
        behind = max((records[-1].offset for records in (self.mirrored, self.lost) if records), default=-1)
        return [record for record in committed if record.offset > behind]


class Moves:
    """One schedule's topic, which is also its flow. To be changed while no mirror runs."""

    def __init__(self, source: str, target: str, topic: str, partitions: int) -> None:
        """`source` and `target` are bootstrap.servers."""
        self._source, self._target, self._topic = source, target, topic
        self._histories = [_History() for _ in range(partitions)]

    def remember(self, mirrored: Sequence[int]) -> None:
        """So many records of each partition are mirrored: those that the source has now."""
        dumped = dump(self._source, self._topic, uncommitted=False)
        for at, history in enumerate(self._histories):
            new = history.new(dumped[at].committed)
            history.mirrored += new[: mirrored[at] - len(history.mirrored)]

    def reached(self, partition: int) -> int:
        """The source offset below which all is mirrored or lost, as was remembered last."""
        known = self._histories[partition].known
        return known[-1].offset + 1 if known else 0

    def deleted(self, partition: int, committed: Sequence[Record], before: int) -> None:
        """The source deletes what is before an offset. What it deletes before anything is mirrored is not missed."""
        history = self._histories[partition]
        if history.mirrored:
            history.lost += [record for record in history.new(committed) if record.offset < before]

    def lose_journal(self) -> None:
        """Delete it, and make an empty one. What it recorded of losses is kept here."""
        journal = journal_topic(self._topic)
        records = self._journal()
        for at, history in enumerate(self._histories):
            history.declared += read_recorded(records, self._topic, at).losses
        remove(admin(self._target), journal)
        ensure_flow_topic(
            Admin(ClusterSettings.model_validate({"alias": "us", "bootstrap.servers": self._target})), self._topic
        )

    def findings(self, *, forgotten: bool = False) -> list[Finding]:
        """Everything that is wrong at the end, in what the journal says and in what the mirror makes of it.
        `forgotten`: a mirror did not get to record what it had mirrored, or its record was lost.
        """
        indexes = Indexes(Entry(one.offset, one.key or b"", one.value) for one in self._journal())
        translations = {at: indexes.get(TopicPartition(self._topic, at), OffsetRangeIndex()) for at in self._partitions}
        return check_translated(
            self._source,
            self._target,
            self._topic,
            journal_topic(self._topic),
            expected=Expected(forgotten=forgotten),
            history={at: self._histories[at].known for at in self._partitions},
            declared={at: self._histories[at].declared for at in self._partitions},
            translations=translations,
        )

    def totals(self) -> list[int]:
        """How many records each partition's target is to have."""
        return [len(self._mirrorable(at)) for at in self._partitions]

    def place(self, partition: int, offset: int) -> int:
        """Where a source offset is on the target, if all is well."""
        return bisect_left([record.offset for record in self._mirrorable(partition)], offset)

    def _mirrorable(self, partition: int) -> list[Record]:
        dumped = dump(self._source, self._topic, uncommitted=False)[partition]
        history = self._histories[partition]
        return [*history.mirrored, *history.new(dumped.committed)]

    @property
    def _partitions(self) -> range:
        return range(len(self._histories))

    def _journal(self) -> list[Record]:
        return [record for one in dump(self._target, journal_topic(self._topic)).values() for record in one.uncommitted]
