"""Partitions in the data folders of brokers that are gone: found, and of several replicas the one to take.

- One replica of a partition is taken, and nothing of another one: of those whose end no later leader cut off (KIP-101),
  that which reaches furthest before its first damage; of several, that which lacks least.
- What a replica lacks is reported: what a broker's checkpoint says was committed, and what it knows to precede its
  newest epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final
from uuid import UUID

from mirror.errors import ConfigError
from mirror.kafka.cluster import TopicPartition
from mirror.segments.files import PARTITION_FOLDER, SUFFIX, committed_in, offset_of, topic_id_of
from mirror.segments.replica import Replica, scan

#: A folder at the top of a file system, for root alone.
_OF_THE_DISK: Final = "lost+found"
#: What a partition's folder ends with while it is being deleted.
_DELETED: Final = "-delete"


def partitions_in(folders: Iterable[Path]) -> dict[TopicPartition, tuple[Path, ...]]:
    """Where the replicas of each partition lie. A folder is a partition's, a broker's with many of these, or one with
    brokers' folders in it.

    Raises ConfigError for one that holds none, and for one that may not be read.
    """
    found: dict[TopicPartition, dict[Path, Path]] = {}
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"{folder}: no such folder")
        some = False
        inside = list(_folders_in(folder))
        for path in (folder, *inside, *(path for log_dir in inside for path in _folders_in(log_dir))):
            # by the name it goes by, since one that was moved to another disk is linked to; `.` has none
            for place in (path.absolute(), path.resolve()):
                if (named := PARTITION_FOLDER.fullmatch(place.name)) and _has_segments(place):
                    some = True
                    topic_partition = TopicPartition(named["topic"], int(named["partition"]))
                    found.setdefault(topic_partition, {}).setdefault(path.resolve(), place)
                    break
        if not some:
            raise ConfigError(f"{folder}: no partition's folder (TOPIC-NUMBER, with segments *{SUFFIX}) in it")
    return {partition: tuple(places.values()) for partition, places in sorted(found.items())}


def partition_counts(folders: Iterable[Path]) -> dict[str, int]:
    """Topics of which data folders' checkpoints know committed records, with their highest partition's number + 1. A
    folder is a broker's, or one with brokers' folders in it: beside a partition's that is named alone none is looked
    for. What was being deleted is passed over. Raises ConfigError as `partitions_in` does.
    """
    counts: dict[str, int] = {}
    for data in dict.fromkeys(path for folder in folders for path in (folder, *_folders_in(folder))):
        if not (committed := committed_in(data)):
            continue
        deleted = {path.name.rpartition(".")[0] for path in _folders_in(data) if path.name.endswith(_DELETED)}
        for (topic, number), offset in committed.items():
            if offset and f"{topic}-{number}" not in deleted:
                counts[topic] = max(counts.get(topic, 0), number + 1)
    return counts


def _folders_in(folder: Path) -> list[Path]:
    return [path for path in _inside(folder) if path.is_dir() and path.name != _OF_THE_DISK]


def _has_segments(folder: Path) -> bool:
    """Return True if a folder is a partition's, and not another one named alike."""
    return any(path.suffix == SUFFIX and offset_of(path) is not None for path in _inside(folder))


def _inside(folder: Path) -> list[Path]:
    """Raises ConfigError for one that may not be read: what it holds would be missing, and nobody would say so."""
    try:
        return sorted(folder.iterdir())
    except OSError as problem:
        raise ConfigError(f"{folder}: cannot be read: {problem}") from problem


def mixed_in(found: Mapping[TopicPartition, Sequence[Path]]) -> dict[str, str]:
    """Topics of which folders have different ids, for one was deleted and made anew: which folder has which."""
    ids: dict[str, dict[UUID, Path]] = {}
    for partition, paths in found.items():
        for path in paths:
            if topic_id := topic_id_of(path):
                ids.setdefault(partition.topic, {}).setdefault(topic_id, path)
    return {
        topic: ", ".join(f"{path} of id {topic_id}" for topic_id, path in by_id.items())
        for topic, by_id in ids.items()
        if len(by_id) > 1
    }


def load(folders: Iterable[Path]) -> Replica:
    """Read all replicas of a partition, and return the one to take. Raises ConfigError as `scan` does."""
    return taken([scan(folder) for folder in folders])


def taken(replicas: Sequence[Replica]) -> Replica:
    """Return the replica to take, with notes on what it lacks."""
    candidates = [replica for replica in replicas if not any(map(replica.is_cut_off_by, replicas))]
    found = max(candidates, key=lambda replica: (replica.end, -replica.start - replica.gaps))
    known = [replica.committed for replica in replicas if replica.committed is not None]
    if not known:
        found.lacks.append(
            f"{found.folder}: no replication-offset-checkpoint can be read beside it, so nobody knows whether records"
            f" behind offset {found.end} are missing. Name the brokers' data folders whole"
        )
    elif (committed := max(known)) > found.end:
        text = f"offsets {found.end} to {committed - 1} were committed, a broker's checkpoint says"
        found.lacks.append(f"{found.folder}: {text}, and cannot be read there")
    for replica in replicas:
        if replica.newest_epoch > found.newest_epoch and (begin := replica.history[-1][1]) > found.end:
            text = f"offsets {found.end} to {begin - 1} were in the log of a later leader, its history says"
            found.lacks.append(f"{replica.folder}: {text}, and cannot be read there")
        if replica.end > found.end:
            text = f"offsets {found.end} to {replica.end - 1} are of an older leader epoch, and are left out"
            found.remarks.append(f"{replica.folder}: {text}")
    return found
