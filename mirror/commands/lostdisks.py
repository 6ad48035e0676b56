"""The disks of a lost cluster as `mirror restore` finds them: which folders are of which topic, and what the cluster's
own logs on them tell.

D1  a folder whose topic id the metadata log says was removed is of a deleted topic, and is left out; so are folders of
    another id than a topic has there, where there are some with that id
D2  folders of two clusters are refused: neither topics nor groups of one name are the same in both
D3  a topic that the metadata log does not know is restored all the same: the log may end before it was made
D4  which topics and partitions there were, folders do not tell, since those of a disk that is lost are not there: the
    metadata log does, and brokers' checkpoints do, which may be newer; but of a topic that the log knows as deleted
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from mirror.admin.restoration import Found
from mirror.errors import ConfigError
from mirror.names import first_of
from mirror.policy.selection import INTERNAL_PREFIX
from mirror.reading.archive import mixed_in, partitions_in, told_of
from mirror.reading.groupoffsets import OFFSETS_TOPIC, GroupOffsets, offsets_in
from mirror.reading.metadatalog import METADATA, ClusterTopics, topics_in
from mirror.reading.replica import bytes_of, oldest_of
from mirror.reading.sidecars import cluster_id_of, topic_id_of
from mirror.wire.cluster import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Disks:
    """What the folders hold.

    partitions: the folders of each partition.
    topics: what a glance at the folders, and the metadata log, tell of each topic.
    cluster_id: the lost cluster's; None where no folder tells.
    knows_settings: the metadata log was found and read.
    offsets: what groups had committed; None where that was not asked for, or is not there.
    notes: what was left out, and what could not be read.
    lacking: topics of which no folder is here, with how many partitions they had (D4).
    """

    partitions: Mapping[TopicPartition, Sequence[Path]]
    topics: Mapping[str, Found]
    cluster_id: str | None
    knows_settings: bool
    offsets: GroupOffsets | None
    notes: Sequence[str]
    lacking: Mapping[str, int]


def look_over(folders: Sequence[Path], *, groups: bool) -> Disks:
    """Look at all folders, without the records of topics. Raises ConfigError as `partitions_in` does, and for
    folders of two clusters (D2).
    """
    found: dict[TopicPartition, Sequence[Path]] = {**partitions_in(folders)}
    cluster_id = _cluster_id(path for paths in found.values() for path in paths)
    notes: list[str] = []
    known = topics_in(paths) if (paths := found.pop(METADATA, None)) is not None else None
    if known is not None:
        notes += known.notes
    else:
        what = "could not be read" if paths else "is not in these folders"
        notes.append(
            f"the lost cluster's metadata log ({METADATA}) {what}: its topics' settings are not known. It lies in the"
            " metadata.log.dir of each broker and controller, or in the first of its log.dirs"
        )
    counts: dict[str, int] = {}
    committed = {at.partition: paths for at, paths in found.items() if at.topic == OFFSETS_TOPIC}
    found = {at: paths for at, paths in found.items() if not at.topic.startswith(INTERNAL_PREFIX)}
    offsets = offsets_in(committed) if groups and committed else None
    if groups:
        notes += _absent(committed, known)
    if known is not None:
        ids = {path: topic_id_of(path) for paths in found.values() for path in paths}
        found, left = _of_now(found, ids, known)
        notes += left
        counts = {name: topic.partitions for name, topic in known.topics.items()}
    for name, count in told_of(folders).items():
        if known is None or name not in known.gone:
            counts[name] = max(counts.get(name, 0), count)
    there = {at.topic for at in found}
    return Disks(
        partitions=found,
        topics=_topics(found, known, counts),
        cluster_id=cluster_id,
        knows_settings=known is not None,
        offsets=offsets,
        notes=notes,
        lacking={
            name: count
            for name, count in sorted(counts.items())
            if name not in there and not name.startswith(INTERNAL_PREFIX)
        },
    )


def _cluster_id(folders: Iterable[Path]) -> str | None:
    """Raises ConfigError for folders of two clusters (D2)."""
    ids: dict[str, Path] = {}
    for data in dict.fromkeys(folder.parent for folder in folders):
        if (cluster_id := cluster_id_of(data)) is not None:
            ids.setdefault(cluster_id, data)
    if len(ids) > 1:
        told = ", ".join(f"{folder} of cluster {cluster_id}" for cluster_id, folder in ids.items())
        raise ConfigError(f"folders of different clusters: {told}. Name the folders of one of them")
    return next(iter(ids), None)


def _absent(committed: Mapping[int, Sequence[Path]], known: ClusterTopics | None) -> Iterator[str]:
    """What is to be said of groups' offsets that are not there."""
    if not committed:
        yield f"no folder of {OFFSETS_TOPIC} is in these folders: what consumer groups had committed is not known"
    elif known is not None and (topic := known.topics.get(OFFSETS_TOPIC)) is not None:
        gone = [f"{OFFSETS_TOPIC}-{number}" for number in range(topic.partitions) if number not in committed]
        if gone:
            yield f"no replica in these folders of {first_of(gone)}: what its groups had committed is not known"


def _of_now(
    found: Mapping[TopicPartition, Sequence[Path]], ids: Mapping[Path, UUID | None], known: ClusterTopics
) -> tuple[dict[TopicPartition, Sequence[Path]], list[str]]:
    """The folders of topics as they were in the end, and what is to be said of the others (D1, D3)."""
    current = {
        at.topic
        for at, paths in found.items()
        if (topic := known.topics.get(at.topic)) and any(ids[path] == topic.topic_id for path in paths)
    }
    kept: dict[TopicPartition, Sequence[Path]] = {}
    notes: list[str] = []
    for at, paths in found.items():
        mine = []
        for path in paths:
            topic_id = ids[path]
            if topic_id in known.removed:
                notes.append(
                    f"{path} is left out: its topic (id {topic_id}) was deleted. --from {path} alone restores it"
                )
            elif topic_id is not None and at.topic in current and topic_id != known.topics[at.topic].topic_id:
                now = known.topics[at.topic].topic_id
                notes.append(f"{path} is left out: it is of a former topic by this name (id {topic_id}, and now {now})")
            else:
                mine.append(path)
        if mine:
            kept[at] = mine
    notes += (
        f"{name}: the metadata log does not know it. It was deleted before the log's oldest record, or made after its"
        f" last one (offset {known.end - 1}); exclude it where it should not come back"
        for name in sorted({at.topic for at in kept} - known.topics.keys())
    )
    return kept, notes


def _topics(
    found: Mapping[TopicPartition, Sequence[Path]], known: ClusterTopics | None, counts: Mapping[str, int]
) -> dict[str, Found]:
    """What the folders tell of each topic, as far as a glance at its segments goes, with as many partitions as there
    were by `counts`, where those are of this very topic.
    """
    mixed = mixed_in(found)
    topics: dict[str, Found] = {}
    for at, paths in found.items():
        before = topics.get(at.topic, Found(partitions=0))
        times = [before.oldest_ms, *map(oldest_of, paths)]
        told = known.topics.get(at.topic) if known is not None else None
        topic_id = before.topic_id or next(filter(None, map(topic_id_of, paths)), None)
        is_it = told is not None and topic_id in (None, told.topic_id)
        count = counts.get(at.topic, 0) if is_it or told is None else 0
        topics[at.topic] = Found(
            partitions=max(before.partitions, at.partition + 1, count),
            oldest_ms=min((time for time in times if time is not None), default=None),
            bytes=max(before.bytes, *map(bytes_of, paths)),
            mixed=mixed.get(at.topic, ""),
            topic_id=topic_id,
            known=told if is_it else None,
        )
    return topics
