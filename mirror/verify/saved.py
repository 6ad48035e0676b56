"""What a proof has done so far, in a file: an interrupted one goes on there, with the ends that it fixed at its start.

The first line is the proof's plan, each further line a range that is finished, with its report and so its digests. A
line that was cut short, because the process died while it was written, counts as not written. Whatever the file is
about must be what is to be proved: another flow, clusters or topics are refused, and so is a topic made anew.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from pydantic import TypeAdapter, ValidationError

from mirror.errors import ConfigError
from mirror.verify.ranges import Range
from mirror.verify.report import PartitionReport, Unread


@dataclass(frozen=True, slots=True)
class Subject:
    """What a proof is about: the flow, both clusters' ids, and of every topic pair the names, ids and partitions."""

    flow: str
    source_id: str
    target_id: str
    topics: tuple[tuple[str, str, str, str, int], ...]


@dataclass(frozen=True, slots=True)
class ProofPlan:
    """A proof as it was begun, at `begun_ms` (Unix time): its ends are fixed, but for partitions that were `unread`."""

    subject: Subject
    begun_ms: int
    ranges: tuple[Range, ...]
    unread: tuple[Unread, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """A range by its number, and what was found."""

    number: int
    report: PartitionReport


_PLAN: Final = TypeAdapter(ProofPlan)
_FINISHED: Final = TypeAdapter(Finished)


@dataclass(slots=True)
class SavedProof:
    """A proof's file, open for what is finished next. `finished` is what it held: `resumed` ranges."""

    path: Path
    plan: ProofPlan
    finished: dict[int, PartitionReport] = field(default_factory=dict)
    _file: IO[bytes] | None = None

    @property
    def resumed(self) -> int:
        """How many ranges were finished by the run that was interrupted."""
        return len(self.finished)

    def add(self, number: int, report: PartitionReport) -> None:
        """One more range is finished. Raises ConfigError where that cannot be written."""
        self._write(_FINISHED.dump_json(Finished(number, report)))

    def close(self) -> None:
        """Close the file, which stays: whoever has the report safe removes it."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, line: bytes) -> None:
        try:
            if self._file is None:
                self._file = self.path.open("ab")
            self._file.write(line + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as problem:
            with contextlib.suppress(OSError):  # it would flush what could not be written, and fail of it again
                self.close()
            raise ConfigError(f"{self.path}: {problem.strerror}: the proof cannot be kept there") from problem


def begin(path: Path, plan: ProofPlan) -> SavedProof:
    """A new file for a new proof. Raises ConfigError where it cannot be written."""
    saved = SavedProof(path, plan)
    saved._write(_PLAN.dump_json(plan))
    return saved


def resume(path: Path, subject: Subject) -> SavedProof | None:
    """The proof that was interrupted, or None where there is no such file, or not even the plan in it.

    Raises ConfigError for a file that is none of these, or about something else.
    """
    try:
        *lines, torn = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise ConfigError(f"{path}: {problem.strerror}") from problem
    if not lines and (not torn or torn.startswith(b'{"subject":')):
        path.unlink()
        return None
    try:
        plan = _PLAN.validate_json(lines[0] if lines else torn)
        every = [_FINISHED.validate_json(line) for line in lines[1:]]
    except ValidationError as problem:
        raise ConfigError(f"{path} is no unfinished proof of this version: name another file") from problem
    if plan.subject != subject:
        raise ConfigError(
            f"{path} is the unfinished proof of {_difference(plan.subject, subject)}: name another file, or remove it"
        )
    if torn:
        os.truncate(path, path.stat().st_size - len(torn))
    return SavedProof(path, plan, {one.number: one.report for one in every})


def _difference(told: Subject, wanted: Subject) -> str:
    if told.flow != wanted.flow:
        return f"flow {told.flow}, not {wanted.flow}"
    if (told.source_id, told.target_id) != (wanted.source_id, wanted.target_id):
        return "other clusters"
    others = sorted({one[0] for one in set(told.topics) ^ set(wanted.topics)})
    return f"other topics, or others by their ids ({', '.join(others[:3])})"
