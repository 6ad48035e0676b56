"""Which batches are asked for: what a task need not read, and what it leaves out of what it reads."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mirror.batch.header import DELETE_HORIZON, LAST_OFFSET, BatchHeader
from mirror.policy.selection import INTERNAL_PREFIX


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Topics and partitions (None: all), offsets from `first` to `before`, times in ms from `since` to `until`.

    A batch belongs to a range where it may hold a record of it: by its last and base offset, by its max and base
    timestamp. A batch that compaction emptied has no record of any time, and need not be found by one.
    """

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    first: int = 0
    before: int = LAST_OFFSET
    since: int | None = None
    until: int | None = None

    def has_topic(self, topic: str | None) -> bool:
        """Whether a topic is asked for, the brokers' own (`__consumer_offsets`) by name alone; None is that of a file
        whose folder does not tell.
        """
        if self.topics is None:
            return topic is None or not topic.startswith(INTERNAL_PREFIX)
        return topic in self.topics

    def has_partition(self, partition: int | None) -> bool:
        """Whether a partition is asked for, likewise."""
        return self.partitions is None or partition in self.partitions

    def has(self, header: BatchHeader) -> bool:
        """Whether a batch may hold a record of both ranges."""
        if header.last_offset < self.first or header.base_offset >= self.before:
            return False
        if self.since is not None and header.max_timestamp < self.since:
            return False
        if self.until is None or header.attributes & DELETE_HORIZON:  # which stands where the base timestamp was
            return True
        base = header.base_timestamp if header.magic == 2 else header.max_timestamp
        return base < self.until

    def of_topics(self, names: frozenset[str]) -> Wanted:
        """With these topics alone, of those asked for."""
        return replace(self, topics=names if self.topics is None else self.topics & names)

    def of_partitions(self, numbers: frozenset[int]) -> Wanted:
        """With these partitions alone, likewise."""
        return replace(self, partitions=numbers if self.partitions is None else self.partitions & numbers)

    def of_offsets(self, first: int = 0, before: int = LAST_OFFSET) -> Wanted:
        """With no offsets beyond these."""
        return replace(self, first=max(self.first, first), before=min(self.before, before))

    def of_times(self, since: int | None = None, until: int | None = None) -> Wanted:
        """With no times beyond these, in ms."""
        starts = [one for one in (self.since, since) if one is not None]
        ends = [one for one in (self.until, until) if one is not None]
        return replace(self, since=max(starts, default=None), until=min(ends, default=None))
