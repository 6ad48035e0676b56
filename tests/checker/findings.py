"""What the checker may find, by name."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """The ways in which a target is not its source."""

    LOST = "lost"
    TAIL_LOST = "tail lost"
    EXTRA = "extra"
    REPEATED = "repeated"
    SWAPPED = "swapped"
    SHIFTED = "shifted"
    KEY = "key changed"
    VALUE = "value changed"
    HEADERS = "headers changed"
    TIMESTAMP = "timestamp changed"
    TIMESTAMP_TYPE = "timestamp type changed"
    VISIBLE_UNCOMMITTED = "uncommitted readers see another log"
    LOG_START = "log starts elsewhere"
    LOG_END = "log ends elsewhere"
    HANGING = "transaction hangs"
    GAP_UNTRUE = "declared gap holds records"
    NOT_DENSE = "offset without a record"
    RUNS_MISSING = "origin not recorded"
    RUNS_WRONG = "origin recorded wrongly"
    RUNS_UNREADABLE = "runs unreadable"
    TRANSLATION = "translated wrongly"
    UNREADABLE = "unreadable"
    PARTITIONS = "partitions differ"
    GROUP_AHEAD = "group is ahead"
    GROUP_BEHIND = "group is behind"
    GROUP_BEYOND = "group is beyond the log's end"
    GROUP_MISSING = "group has no position"


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference, at the target's offsets `first` to `last`, both included; -1 where no offset is concerned."""

    kind: Kind
    topic: str
    partition: int
    first: int
    last: int
    detail: str

    def __str__(self) -> str:
        where = f" {self.first}" + (f" to {self.last}" if self.last > self.first else "") if self.first >= 0 else ""
        return f"{self.topic}-{self.partition}{where}: {self.kind}: {self.detail}"
