"""The independent judge of copies (`tests/checker`) finds the faults that are planted on brokers, and no others."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from checker import Kind, check, check_translated
from compared_logs import delete_before
from confluent_kafka import Consumer, Producer, TopicPartition
from groupoffsets import commit
from helpers import RECENT_MS, make_topic
from pair import Shared
from waiting import until


@dataclass(frozen=True, slots=True)
class Written:
    """A record to write. One that is aborted or open has a transaction of its own; a marker takes one more offset."""

    value: bytes
    timestamp: int = RECENT_MS
    headers: tuple[tuple[str, bytes], ...] = (("a", b"1"), ("b", b"2"))
    is_aborted: bool = False
    is_open: bool = False


ABORTED = Written(b"aborted", is_aborted=True)
HEALTHY = [Written(b"value %d" % number, RECENT_MS + number) for number in range(30)]


def end_of(bootstrap: str, topic: str, partition: int) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none"})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=180)[1])
    finally:
        consumer.close()


def abort(producer: Producer, bootstrap: str, topic: str, partition: int) -> None:
    """Abort a transaction, and wait for its marker."""
    assert not producer.flush(180)
    end = end_of(bootstrap, topic, partition)
    producer.abort_transaction(180)
    until(lambda: end_of(bootstrap, topic, partition) > end)


def write(bootstrap: str, topic: str, records: Iterable[Written], partition: int) -> list[Producer]:
    """Write them in this order; return the producers of transactions that are left open."""
    plain = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    kept: list[Producer] = []
    for number, record in enumerate(records):
        producer = plain
        if record.is_aborted or record.is_open:
            assert not plain.flush(180)
            name = f"{topic}-{partition}-{number}"
            producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
            producer.init_transactions(180)
            producer.begin_transaction()
        producer.produce(
            topic, record.value, partition=partition, timestamp=record.timestamp, headers=list(record.headers)
        )
        if record.is_aborted:
            abort(producer, bootstrap, topic, partition)
        if record.is_open:
            assert not producer.flush(180)
            kept.append(producer)
    assert not plain.flush(180)
    return kept


#: What is written to each partition of the target, and what is found there at least.
PLANTED: Sequence[tuple[list[Written], list[tuple[Kind, int]]]] = (
    (HEALTHY, []),
    (HEALTHY[:-3], [(Kind.TAIL_LOST, 27)]),
    ([*HEALTHY, HEALTHY[-1]], [(Kind.REPEATED, 30)]),
    ([*HEALTHY[:10], HEALTHY[11], HEALTHY[10], *HEALTHY[12:]], [(Kind.SWAPPED, 10)]),
    ([*HEALTHY[:7], Written(b"value 7", RECENT_MS), *HEALTHY[8:]], [(Kind.TIMESTAMP, 7)]),
    ([*HEALTHY[:8], Written(b"value 8", RECENT_MS + 8, (("b", b"2"), ("a", b"1"))), *HEALTHY[9:]], [(Kind.HEADERS, 8)]),
    ([*HEALTHY[:20], ABORTED, *HEALTHY[22:]], [(Kind.LOST, 20), (Kind.VISIBLE_UNCOMMITTED, 20)]),
    ([*HEALTHY, Written(b"open", is_open=True)], [(Kind.HANGING, 30)]),
)


def test_planted_faults_are_found_and_nothing_where_nothing_is_wrong(
    source_cluster: Shared, target_cluster: Shared, topic_name: str
) -> None:
    """Partition 0 of the target begins later than the source's in the end; one partition is missing there."""
    source, target = source_cluster.bootstrap, target_cluster.bootstrap
    make_topic(source, topic_name, len(PLANTED) + 1)
    make_topic(target, topic_name, len(PLANTED))
    kept = list[Producer]()
    for partition, (records, _) in enumerate(PLANTED):
        write(source, topic_name, HEALTHY, partition)
        kept += write(target, topic_name, records, partition)
    found = check(source, target, topic_name)
    for producer in kept:
        producer.abort_transaction(180)
    assert [one.kind for one in found if one.partition < 0] == [Kind.PARTITIONS]
    for partition, (_, planted) in enumerate(PLANTED):
        here = [(one.kind, one.first) for one in found if one.partition == partition]
        assert {*planted} <= {*here}, here
        assert planted or not here
    delete_before(target_cluster, topic_name, 5)
    later = [one for one in check(source, target, topic_name) if one.partition == 0]
    assert [(one.kind, one.first, one.last) for one in later] == [(Kind.LOG_START, 5, 5), (Kind.LOST, 0, 4)]


#: Of the source's offsets: an aborted transaction at 10, of one record and its marker.
MARKED = [*HEALTHY[:10], ABORTED, *HEALTHY[10:]]
#: Source and target offset of the first record, lengths and skips in turn, and the source offset behind it all.
RUNS = (0, 0, [10, 2, 20], 32)
#: What is written to each partition of the target, what its run is said to be, where the group is on either side, and
#: what is found. Offset 10 of the source is in the transaction that was aborted: the next record is at 12.
MOVED: Sequence[
    tuple[list[Written], tuple[int, int, list[int], int], tuple[int | None, int | None], list[tuple[Kind, int]]]
] = (
    (HEALTHY, RUNS, (10, 10), []),
    ([*HEALTHY[:25], *HEALTHY[26:]], RUNS, (None, None), [(Kind.LOST, 25)]),
    (MARKED, RUNS, (None, None), [(Kind.NOT_DENSE, 10), (Kind.VISIBLE_UNCOMMITTED, 11)]),
    (HEALTHY, (0, 0, [10, 1, 20], 31), (None, None), [(Kind.RUNS_WRONG, 10)]),
    (HEALTHY, RUNS, (10, 11), [(Kind.GROUP_AHEAD, 11)]),
    (HEALTHY, RUNS, (10, 9), [(Kind.GROUP_BEHIND, 9)]),
    (HEALTHY, RUNS, (10, 31), [(Kind.GROUP_BEYOND, 31)]),
    (HEALTHY, RUNS, (10, None), [(Kind.GROUP_MISSING, -1)]),
)


def test_planted_faults_are_found_where_offsets_move(
    source_cluster: Shared, target_cluster: Shared, topic_name: str
) -> None:
    source, target, journal = source_cluster.bootstrap, target_cluster.bootstrap, f"{topic_name}-journal"
    for bootstrap in (source, target):
        make_topic(bootstrap, topic_name, len(MOVED))
    make_topic(target, journal, configs={"cleanup.policy": "compact"})
    producer = Producer({"bootstrap.servers": target})
    for partition, (records, (first, begin, lengths, following), positions, _) in enumerate(MOVED):
        write(source, topic_name, MARKED, partition)
        write(target, topic_name, records, partition)
        fields = {"source": first, "target": begin, "runs": lengths, "next": following}
        producer.produce(journal, json.dumps(fields), f"runs/{topic_name}/{partition}/{begin}")
        for bootstrap, position in zip((source, target), positions, strict=True):
            if position is not None:
                commit(bootstrap, topic_name, topic_name, position, partition)
    assert not producer.flush(180)
    found = check_translated(source, target, topic_name, journal, groups=[topic_name])
    for partition, (_, _, _, planted) in enumerate(MOVED):
        here = [(one.kind, one.first) for one in found if one.partition == partition]
        assert {*planted} <= {*here}, (partition, here)
        assert planted or not here
