"""The small files that a broker keeps beside its segments: what the log's bytes do not tell.

All are text of some lines. One that is missing, or not whole, tells nothing: the log itself does. A checkpoint says how
many entries it has, and ends each line, so that one cut short is known (Kafka `CheckpointFile`).
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Final
from uuid import UUID

from mirror.batch.header import LAST_OFFSET
from mirror.reading.opened import opened

#: A partition's folder: topic and number (Kafka `LocalLog.parseTopicPartitionName`). One that is being deleted, moved
#: in or was found astray has a suffix behind the number.
PARTITION_FOLDER: Final = re.compile(r"(?P<topic>[A-Za-z0-9._-]{1,249})-(?P<partition>[0-9]{1,9})")

#: A folder of no partition any more, or not yet, by its suffix; a long topic's name is cut for it (Kafka
#: `LocalLog.logDirNameWithSuffixCappedLength`).
LEFT_ASIDE: Final = re.compile(r".+\.[0-9a-f]{32}-(delete|future|stray)")

#: Sixteen bytes in Base64 for URLs, without padding (Kafka `Uuid.toString`).
_ID: Final = re.compile(rb"[A-Za-z0-9_-]{22}")
#: Any text by which an operator formats a cluster; Kafka's own are ids as above.
_CLUSTER_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,249}")
_NO_ID: Final = UUID(int=0)
_VERSION: Final = 0
_LAST_EPOCH: Final = 2**31 - 1
_COMMITTED: Final = "replication-offset-checkpoint"
#: Partitions that one topic may have here: beyond any cluster's.
MOST_PARTITIONS: Final = 1_000_000
#: Bytes of a file about one partition, and of one about all of a broker's, at most: many times what brokers write.
_OF_ONE, _OF_ALL = 4 << 20, 64 << 20


def topic_id_of(folder: Path) -> UUID | None:
    """The topic's id by `partition.metadata` (KIP-516); None where the broker had no ids."""
    try:
        for line in _lines(folder / "partition.metadata", _OF_ONE):
            name, _, value = line.partition(b":")
            if name == b"topic_id" and _ID.fullmatch(value := value.strip()):
                found = UUID(bytes=base64.urlsafe_b64decode(value + b"=="))
                return None if found == _NO_ID else found
    except (OSError, ValueError):
        return None
    return None


def cluster_id_of(folder: Path) -> str | None:
    """The id of the cluster that a data folder is of, by its `meta.properties`; None where that says nothing."""
    try:
        for line in _lines(folder / "meta.properties", _OF_ONE):
            name, _, value = line.partition(b"=")
            if name.strip() == b"cluster.id" and _CLUSTER_ID.fullmatch(value := value.strip()):
                return value.decode()
    except (OSError, ValueError):
        return None
    return None


def history_of(folder: Path) -> list[tuple[int, int]]:
    """(leader epoch, first offset) by `leader-epoch-checkpoint`, both rising (KIP-101); nothing where they do not."""
    try:
        entries = _entries(folder / "leader-epoch-checkpoint", _OF_ONE)
        found = [(_number(epoch, _LAST_EPOCH), _number(offset, LAST_OFFSET)) for epoch, offset in entries]
    except (OSError, ValueError):
        return []
    rising = all(one[0] < other[0] and one[1] <= other[1] for one, other in pairwise(found))
    return found if rising else []


def log_start_of(folder: Path) -> int:
    """The partition's first offset by `log-start-offset-checkpoint` of the data folder; 0 where that says nothing."""
    return _offset_in("log-start-offset-checkpoint", folder)


def high_watermark_of(folder: Path) -> int:
    """An offset below which all was on every replica in sync, by `replication-offset-checkpoint` of the data folder,
    which a broker writes every few seconds; 0 where that says nothing.
    """
    return _offset_in(_COMMITTED, folder)


def committed_in(folder: Path) -> dict[tuple[str, int], int]:
    """High watermarks of all partitions (topic, number) by `replication-offset-checkpoint` of a data folder, those of
    partitions whose folders are lost as well; none where that says nothing.
    """
    found: dict[tuple[str, int], int] = {}
    try:
        for topic, partition, offset in _entries(folder / _COMMITTED, _OF_ALL):
            found[topic.decode("ascii"), _number(partition, MOST_PARTITIONS - 1)] = _number(offset, LAST_OFFSET)
    except (OSError, ValueError):
        return {}
    return found


def _offset_in(checkpoint: str, folder: Path) -> int:
    """What a data folder's checkpoint says of a partition's folder in it."""
    named = PARTITION_FOLDER.fullmatch(folder.name)
    if named is None:
        return 0
    mine = [named["topic"].encode(), b"%d" % int(named["partition"])]
    found = 0
    try:
        for *partition, offset in _entries(folder.parent / checkpoint, _OF_ALL):
            if partition == mine:
                found = _number(offset, LAST_OFFSET)
    except (OSError, ValueError):
        return 0
    return found


def _entries(path: Path, most: int) -> Iterator[list[bytes]]:
    """The words of each entry of a checkpoint. Raises OSError, and ValueError where it is not whole: at its end, so
    that what was given till then is not to be believed.
    """
    lines = _lines(path, most)
    if _number(next(lines, b""), _VERSION):
        raise ValueError("another version")
    due = _number(next(lines, b""), most)
    for line in lines:
        if not line.endswith(b"\n"):
            raise ValueError("cut short")
        due -= 1
        yield line.split()
    if due:
        raise ValueError("not as many entries as it says")


def _lines(path: Path, most: int) -> Iterator[bytes]:
    """Raises OSError, and ValueError for a file of more than so many bytes."""
    with opened(path) as file:
        if os.fstat(file.fileno()).st_size > most:
            raise ValueError("no broker's")
        return iter(BytesIO(file.read()))


def _number(word: bytes, most: int) -> int:
    """Raises ValueError for what is no number, or beyond `most`."""
    digits = word.strip()
    if not digits.isdigit() or len(digits) > len(str(most)) or (number := int(digits)) > most:
        raise ValueError("not a number that can be here")
    return number
