"""Runs in the journal, and the index over them that answers where an offset moved to.

    key    runs/<target topic>/<partition>/<target offset of the first run>
    value  {"source": of the first run, "target": the same, "runs": [length, skip, length, ...], "next": ...}

A `skip` is what the source has between two runs, `next` is the source offset below which all is accounted for. A record
grows under its key until it holds `RUNS_IN_A_RECORD`, so compaction keeps one of each.

    I1  runs are recorded after their data is acknowledged. What a dead mirror had not recorded is found again from both
        logs (`retracing.py`)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from mirror.observe.jsonrecords import NOT_OURS, parsed
from mirror.observe.logs import get
from mirror.offsets.journal import Change, Entry
from mirror.policy.runs import Ledger, RunIndex, Runs
from mirror.wire.cluster import TopicPartition

PREFIX = b"runs/"
_LARGEST = 2**63 - 1
_log = get(__name__)


class Recorded(NamedTuple):
    """One record: the runs of a target partition that begin at offset `begin`; None where they are gone."""

    target: TopicPartition
    begin: int
    runs: Runs | None


def entries(target: TopicPartition, ledger: Ledger) -> list[Change]:
    """What is to be recorded of a partition, deletions first."""
    pending, obsolete = ledger.pending()
    return [
        *((_key(target, begin), None) for begin in obsolete),
        *((_key(target, runs.begin), _value(runs)) for runs in pending),
    ]


def read(record: Entry) -> Recorded | None:
    """What a record tells of runs; None where it is about something else. Raises one of `NOT_OURS` where it
    is not one that `entries` made.
    """
    if not record.key.startswith(PREFIX):
        return None
    where, _, begin = record.key.decode()[len(PREFIX) :].rpartition("/")
    topic, _, partition = where.rpartition("/")
    target, first = TopicPartition(topic, int(partition)), int(begin)
    if record.value is None:
        return Recorded(target, first, None)
    told = parsed(record.value)
    source, at, numbers = int(told["source"]), int(told["target"]), [int(number) for number in told["runs"]]
    if at != first or min(source, at, *numbers[1::2]) < 0 or not len(numbers) % 2:
        raise ValueError("not the runs of a partition")
    runs = Runs(source, at)
    for skip, length in zip((0, *numbers[1::2]), numbers[::2], strict=True):
        runs.add(runs.next_source + skip, runs.next_target, length)
    runs.pass_over(int(told["next"]))
    if runs.next_source > _LARGEST:
        raise ValueError("offsets beyond 64 bits")
    return Recorded(target, first, runs)


def recorded(records: Iterable[Entry]) -> Iterator[Recorded]:
    """What records tell of runs; one under such a key that is none is skipped with a warning."""
    for record in records:
        try:
            told = read(record)
        except NOT_OURS as problem:
            key = record.key.decode(errors="replace")
            _log.warning("journal_record_unread", key=key, reason=repr(problem))
        else:
            if told is not None:
                yield told


class Indexes(dict[TopicPartition, RunIndex]):
    """By target partition."""

    def __init__(self, records: Iterable[Entry] = ()) -> None:
        """What `records` tell, in the order of the journal."""
        super().__init__()
        self.learn(records)

    def learn(self, records: Iterable[Entry]) -> None:
        """More records."""
        for told in recorded(records):
            self.setdefault(told.target, RunIndex()).learn(told.begin, told.runs)

    def last(self) -> dict[TopicPartition, Runs]:
        """The newest runs of each partition."""
        found = ((target, index.last) for target, index in self.items())
        return {target: runs for target, runs in found if runs is not None}

    def entries(self) -> list[Change]:
        """All of it, to be recorded again."""
        return [(_key(target, piece.begin), _value(piece)) for target, index in self.items() for piece in index.pieces]

    def told_until(self, target: TopicPartition) -> int:
        """The offset of a target partition up to which it is told where its records are from."""
        return self[target].end if target in self else 0

    def expired(self, log_starts: Mapping[TopicPartition, int]) -> list[Change]:
        """The deletion of what tells of nothing from the targets' first offsets on."""
        return [
            (_key(target, begin), None)
            for target, log_start in log_starts.items()
            if target in self
            for begin in self[target].expired(log_start)
        ]


def _key(target: TopicPartition, begin: int) -> bytes:
    return PREFIX + f"{target.topic}/{target.partition}/{begin}".encode()


def _value(runs: Runs) -> bytes:
    numbers: list[int] = []
    end = None
    for run in runs:
        numbers += [run.length] if end is None else [run.source - end, run.length]
        end = run.source + run.length
    told = {"source": runs.source_begin, "target": runs.begin, "runs": numbers, "next": runs.next_source}
    return json.dumps(told, separators=(",", ":")).encode()
