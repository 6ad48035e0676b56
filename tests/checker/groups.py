"""Positions of consumer groups on both sides, by kafka-python's admin client."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition

from .findings import Finding, Kind

#: A source topic, partition and position -> the first and the last position on the target that stand for the same.
Moved = Callable[[str, int, int], tuple[int, int]]


def compare_groups(
    source: str,
    target: str,
    group: str,
    topics: Mapping[str, str],
    *,
    allowed_lag: int = 0,
    moved: Moved = lambda _topic, _partition, position: (position, position),
) -> list[Finding]:
    """How a group's positions on the target differ from what they must be; where offsets are equal on both sides, the
    source's.

    `topics` maps source names to target names; `allowed_lag` is in records. A position before the target's log start or
    behind its end is wrong whatever the source says.
    """
    theirs, mine = _positions(source, group), _positions(target, group)
    found: list[Finding] = []
    ends = _ends(target, [TopicPartition(topics[at.topic], at.partition) for at in theirs if at.topic in topics])
    for at, wanted in theirs.items():
        if at.topic not in topics:
            continue
        there = TopicPartition(topics[at.topic], at.partition)
        got = mine.get(there)
        lowest, highest = moved(at.topic, at.partition, wanted)

        def finding(kind: Kind, position: int, detail: str, there: TopicPartition = there) -> Finding:
            return Finding(kind, there.topic, there.partition, position, position, f"{group}: {detail}")

        if got is None:
            found.append(finding(Kind.GROUP_MISSING, -1, f"is at {wanted} on the source"))
        elif got > ends[there]:
            found.append(finding(Kind.GROUP_BEYOND, got, f"the log ends at {ends[there]}"))
        elif got > highest:
            found.append(finding(Kind.GROUP_AHEAD, got, f"is at {wanted} on the source"))
        elif got < min(lowest, ends[there]) - allowed_lag:
            found.append(finding(Kind.GROUP_BEHIND, got, f"is at {wanted} on the source"))
    return found


def _positions(bootstrap: str, group: str) -> dict[TopicPartition, int]:
    admin = KafkaAdminClient(bootstrap_servers=bootstrap.split(","))
    try:
        reported = admin.list_group_offsets({group: None})[group]
        return {at: int(position.offset) for at, position in reported.items() if position.offset >= 0}
    finally:
        admin.close()


def _ends(bootstrap: str, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
    consumer = KafkaConsumer(bootstrap_servers=bootstrap.split(","))
    try:
        return {at: int(end) for at, end in consumer.end_offsets(partitions).items()}
    finally:
        consumer.close()
