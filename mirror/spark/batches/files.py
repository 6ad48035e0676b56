"""Segment files on this machine, or wherever Arrow reads (s3://, gs://, abfs://, hdfs://): found, and mapped.

A remote segment is copied into a file that has no name and is gone with the task, then mapped like a local one: the
disk holds it, not memory.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pyarrow import ArrowException
from pyarrow.fs import FileSelector, FileSystem, FileType, LocalFileSystem

from mirror.errors import ConfigError
from mirror.reading.segments import SUFFIX, Mapped, offset_of
from mirror.reading.sidecars import LEFT_ASIDE, PARTITION_FOLDER
from mirror.reading.timeindex import largest_timestamp


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """A file, with the partition that its folder names, if it does, and the base offset that it is named by."""

    topic: str | None
    partition: int | None
    base_offset: int
    address: str


def found_at(address: str) -> list[list[Segment]]:
    """The segments at an address, those of each partition together and in order. A folder that a broker is deleting,
    moving in or took for astray is passed over unless it is the address; one that goes meanwhile is not missed.

    Raises ConfigError where there are none.
    """
    try:
        files, path = FileSystem.from_uri(address)
        info = files.get_file_info(path)
        inside = FileSelector(path, allow_not_found=True, recursive=True)
        listed = [info] if info.is_file else files.get_file_info(inside)
    except (ArrowException, OSError) as problem:
        raise ConfigError(f"{address}: cannot be read: {problem}") from problem
    prefix = address.partition("://")[0] + "://" if "://" in address else ""
    logs: dict[str, list[Segment]] = {}
    for one in listed:
        name = PurePosixPath(one.path)
        if one.type is not FileType.File or not (info.is_file or name.suffix == SUFFIX):
            continue
        if not info.is_file and name.parent != PurePosixPath(path) and LEFT_ASIDE.fullmatch(name.parent.name):
            continue
        folder = PARTITION_FOLDER.fullmatch(name.parent.name)
        logs.setdefault(str(name.parent), []).append(
            Segment(
                folder[1] if folder else None,
                int(folder[2]) if folder else None,
                offset_of(Path(name)) or 0,
                prefix + one.path,
            )
        )
    if not logs:
        raise ConfigError(f"{address}: no segments (*{SUFFIX}) there; name a broker's data folder, or one in it")
    return [sorted(segments, key=lambda one: one.base_offset) for _, segments in sorted(logs.items())]


def following(address: str, base_offset: int) -> list[str]:
    """The segments behind one in its folder, in order. Raises ConfigError where the folder cannot be read."""
    folder = address.rpartition("/")[0]
    found = (one for segments in found_at(folder) for one in segments)
    return [one.address for one in found if one.address.rpartition("/")[0] == folder and one.base_offset > base_offset]


def opened(address: str) -> Mapped:
    """A segment as memory. Raises ConfigError where it cannot be read."""
    files, path = FileSystem.from_uri(address)
    if isinstance(files, LocalFileSystem):
        return Mapped.of(Path(path))
    try:
        with files.open_input_stream(path) as remote, tempfile.TemporaryFile() as spool:
            shutil.copyfileobj(remote, spool, 8 << 20)
            spool.flush()
            return Mapped.of_file(spool.fileno())
    except (ArrowException, OSError) as problem:
        raise ConfigError(f"{address}: cannot be read: {problem}") from problem


def is_older(segments: Sequence[Segment], index: int, since: int) -> bool:
    """Whether a segment's index says that all its records are older than `since`, in ms. Never of the last segment,
    which a broker may be writing, nor of a remote one.
    """
    if index == len(segments) - 1 or "://" in segments[index].address:
        return False
    largest = largest_timestamp(Path(segments[index].address))
    return largest is not None and largest < since
