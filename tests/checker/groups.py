"""Positions of consumer groups on both sides, by kafka-python's admin client."""

from __future__ import annotations

from collections.abc import Callable

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition

from .findings import Finding, Kind


def compare_groups(
    source: str, target: str, group: str, topic: str, moved: Callable[[int, int], tuple[int, int]]
) -> list[Finding]:
    """How a group's positions on the target differ from what they must be. `moved`: partition and position on the
    source to the first and the last position on the target that stand for the same.

    A position behind the target's end is wrong whatever the source says.
    """
    theirs, mine = _positions(source, group), _positions(target, group)
    found: list[Finding] = []
    ends = _ends(target, [at for at in theirs if at.topic == topic])
    for at in ends:
        wanted, got = theirs[at], mine.get(at)
        lowest, highest = moved(at.partition, wanted)

        def finding(kind: Kind, position: int, detail: str, at: TopicPartition = at) -> Finding:
            return Finding(kind, at.topic, at.partition, position, position, f"{group}: {detail}")

        if got is None:
            found.append(finding(Kind.GROUP_MISSING, -1, f"is at {wanted} on the source"))
        elif got > ends[at]:
            found.append(finding(Kind.GROUP_BEYOND, got, f"the log ends at {ends[at]}"))
        elif got > highest:
            found.append(finding(Kind.GROUP_AHEAD, got, f"is at {wanted} on the source"))
        elif got < min(lowest, ends[at]):
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
