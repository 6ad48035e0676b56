"""The checker finds every planted fault, on real brokers and in dumps, and nothing where nothing is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from checker import (
    Dump,
    Expected,
    Kind,
    Record,
    Recorded,
    check,
    check_translated,
    compare,
    compare_translated,
    read_recorded,
)
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from groupoffsets import commit
from helpers import RECENT_MS, make_topic
from hypothesis import given
from hypothesis import strategies as st

from mirror.lab.embedded import Cluster

COUNT = 60


@dataclass(frozen=True, slots=True)
class Written:
    """One record to write; `aborted` ones take two offsets, their own and their transaction's marker."""

    value: bytes
    key: bytes = b"k"
    timestamp: int = RECENT_MS
    headers: tuple[tuple[str, str | bytes | None], ...] = (("h", b"1"),)
    aborted: bool = False
    open: bool = False


def write(bootstrap: str, topic: str, records: Iterable[Written], partitions: Sequence[int] = (0,)) -> list[Producer]:
    """All of them in order, into each of the partitions; returns the producers of transactions that were left open."""
    plain = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    kept: list[Producer] = []
    for number, record in enumerate(records):
        producer = plain
        if record.aborted or record.open:
            plain.flush(20)
            name = f"{topic}-{partitions[0]}-{number}"
            producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
            producer.init_transactions(120)
            producer.begin_transaction()
        for partition in partitions:
            producer.produce(
                topic,
                record.value,
                record.key,
                partition=partition,
                timestamp=record.timestamp,
                headers=list(record.headers),
            )
        if record.aborted or record.open:
            producer.flush(20)
        if record.aborted:
            ends = _ends(bootstrap, topic, partitions)
            producer.abort_transaction(20)
            while any(map(int.__eq__, ends, _ends(bootstrap, topic, partitions))):  # markers come after the answer
                pass
        if record.open:
            kept.append(producer)
    assert not plain.flush(20)
    return kept


def _ends(bootstrap: str, topic: str, partitions: Sequence[int]) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none"})
    try:
        return [int(consumer.get_watermark_offsets(TopicPartition(topic, at), timeout=20)[1]) for at in partitions]
    finally:
        consumer.close()


def healthy() -> list[Written]:
    return [Written(b"value %d" % number, timestamp=RECENT_MS + number) for number in range(COUNT)]


def edited(at: int, **changes: Any) -> Callable[[list[Written]], list[Written]]:
    return lambda records: [*records[:at], replace(records[at], **changes), *records[at + 1 :]]


#: What is planted -> how the target is written then, and what must be found, at least.
PLANTED: dict[str, tuple[Callable[[list[Written]], list[Written]], Kind, int]] = {
    "loss": (lambda r: [*r[:20], Written(b"gone", aborted=True), *r[22:]], Kind.LOST, 20),
    "missing tail": (lambda r: r[:-3], Kind.TAIL_LOST, 57),
    "repeat": (lambda r: [*r[:30], r[29], *r[31:]], Kind.REPEATED, 30),
    "repeat at the end": (lambda r: [*r, r[-1]], Kind.REPEATED, 60),
    "swap": (lambda r: [*r[:10], r[11], r[10], *r[12:]], Kind.SWAPPED, 10),
    "bit": (edited(40, value=b"value 4\xb0"), Kind.VALUE, 40),
    "no value": (edited(40, value=None), Kind.VALUE, 40),
    "key": (edited(5, key=b"j"), Kind.KEY, 5),
    "off by one": (lambda r: [*r[:25], Written(b"one more"), *r[25:]], Kind.SHIFTED, 26),
    "off by two from the start": (lambda r: [Written(b"gone", aborted=True), *r], Kind.SHIFTED, 2),
    "extra": (lambda r: [*r, Written(b"one more")], Kind.EXTRA, 60),
    "timestamp": (edited(7, timestamp=RECENT_MS - 1), Kind.TIMESTAMP, 7),
    "header": (edited(8, headers=(("h", b"2"),)), Kind.HEADERS, 8),
    "order of headers": (edited(9, headers=(("a", b"1"), ("h", b"1"))), Kind.HEADERS, 9),
    "hanging": (lambda r: [*r, Written(b"open", open=True)], Kind.HANGING, 60),
    "aborted data": (lambda r: [*r[:20], Written(b"gone", aborted=True), *r[22:]], Kind.VISIBLE_UNCOMMITTED, 20),
}


@pytest.mark.brokers
def test_planted_faults_are_found_and_nothing_where_nothing_is_wrong(
    own_source: Cluster, own_target: Cluster, topic_name: str
) -> None:
    """Each in a partition of its own; in partition 0 nothing is wrong."""
    plants = [as_is, *(plant for plant, _, _ in PLANTED.values())]
    every = range(len(plants))
    for cluster in (own_source, own_target):
        make_topic(cluster.bootstrap, topic_name, partitions=len(plants))
    write(own_source.bootstrap, topic_name, healthy(), every)
    kept = [
        producer
        for partition, plant in enumerate(plants)
        for producer in write(own_target.bootstrap, topic_name, plant(healthy()), [partition])
    ]
    found = check(own_source.bootstrap, own_target.bootstrap, topic_name)
    for producer in kept:
        producer.abort_transaction(20)
    reported = [[one for one in found if one.partition == partition] for partition in every]
    assert reported[0] == []
    for (fault, (_, kind, offset)), findings in zip(PLANTED.items(), reported[1:], strict=True):
        assert (kind, offset) in [(one.kind, one.first) for one in findings], "\n".join([fault, *map(str, findings)])
    assert sum(map(len, reported)) == len(found)


@pytest.mark.brokers
def test_a_log_that_starts_later_is_found(own_source: Cluster, own_target: Cluster, topic_name: str) -> None:
    for cluster in (own_source, own_target):
        make_topic(cluster.bootstrap, topic_name)
        write(cluster.bootstrap, topic_name, healthy())
    admin = AdminClient({"bootstrap.servers": own_target.bootstrap})
    (deleted,) = admin.delete_records([TopicPartition(topic_name, 0, 5)]).values()
    deleted.result(20)
    found = check(own_source.bootstrap, own_target.bootstrap, topic_name)
    assert [(one.kind, one.first, one.last) for one in found] == [(Kind.LOG_START, 5, 5), (Kind.LOST, 0, 4)]


@pytest.mark.brokers
def test_broker_times_and_missing_partitions(own_source: Cluster, own_target: Cluster, topic_name: str) -> None:
    make_topic(own_source.bootstrap, topic_name, partitions=2)
    make_topic(own_target.bootstrap, topic_name, configs={"message.timestamp.type": "LogAppendTime"})
    for cluster in (own_source, own_target):
        write(cluster.bootstrap, topic_name, healthy())
    both = (own_source.bootstrap, own_target.bootstrap, topic_name)
    assert {one.kind for one in check(*both)} == {Kind.PARTITIONS, Kind.TIMESTAMP}
    assert {one.kind for one in check(*both, expected=Expected(own_times=True))} == {Kind.PARTITIONS}


#: Where the group is on the target, by partition, and what is found; it is at 30 on the source.
POSITIONS: Sequence[tuple[int | None, Sequence[Kind]]] = (
    (30, []),
    (31, [Kind.GROUP_AHEAD]),
    (29, [Kind.GROUP_BEHIND]),
    (COUNT + 1, [Kind.GROUP_BEYOND]),
    (None, [Kind.GROUP_MISSING]),
)


@pytest.mark.brokers
def test_positions_of_groups(own_source: Cluster, own_target: Cluster, topic_name: str) -> None:
    every = range(len(POSITIONS))
    for cluster in (own_source, own_target):
        make_topic(cluster.bootstrap, topic_name, partitions=len(POSITIONS))
        write(cluster.bootstrap, topic_name, healthy(), every)
    for partition, (position, _) in enumerate(POSITIONS):
        commit(own_source.bootstrap, topic_name, topic_name, 30, partition)
        if position is not None:
            commit(own_target.bootstrap, topic_name, topic_name, position, partition)
    found = check(own_source.bootstrap, own_target.bootstrap, topic_name, groups=[topic_name])
    wanted = [(partition, kind) for partition, (_, kinds) in enumerate(POSITIONS) for kind in kinds]
    assert sorted((one.partition, one.kind) for one in found) == wanted


def dumped(records: Sequence[Record], start: int = 0, end: int | None = None) -> Dump:
    last = records[-1].offset + 1 if records else start
    return Dump(start, end or last, end or last, tuple(records), tuple(records))


def found_in(source: Dump, target: Dump, **expected: Any) -> list[tuple[Kind, int, int]]:
    return [(one.kind, one.first, one.last) for one in compare(source, target, "t", 0, Expected(**expected))]


@st.composite
def logs(draw: st.DrawFn) -> list[Record]:
    """Records at rising offsets, with holes, and contents that may repeat."""
    offsets = sorted(draw(st.sets(st.integers(0, 40), min_size=2, max_size=20)))
    few = st.sampled_from([b"a", b"b", None])
    return [Record(offset, draw(st.integers(0, 3)), 0, draw(few), draw(few), ()) for offset in offsets]


@given(logs())
def test_equal_dumps_differ_in_nothing(records: list[Record]) -> None:
    assert found_in(dumped(records), dumped(records)) == []


@given(logs(), st.data())
def test_any_change_of_a_record_is_found(records: list[Record], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(records) - 1))
    field = data.draw(st.sampled_from(["timestamp", "timestamp_type", "key", "value", "headers"]))
    other: Any = {"timestamp": 9, "timestamp_type": 1, "key": b"z", "value": b"z", "headers": (("z", None),)}[field]
    changed = [*records[:at], records[at]._replace(**{field: other}), *records[at + 1 :]]
    assert [one[1:] for one in found_in(dumped(records), dumped(changed))] == [(records[at].offset,) * 2]


@given(logs(), st.data())
def test_any_record_that_is_missing_moved_or_too_much_is_found(records: list[Record], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(records) - 1))
    end = records[-1].offset + 10
    without = [*records[:at], *records[at + 1 :]]
    free = data.draw(st.sampled_from(sorted(set(range(end)) - {record.offset for record in records})))
    moved = sorted([*without, records[at]._replace(offset=free)])
    more = sorted([*records, records[at]._replace(offset=free)])
    for target in (without, moved, more):
        assert found_in(dumped(records, end=end), dumped(target, end=end))


@given(logs())
def test_declared_gaps_are_the_real_ones(records: list[Record]) -> None:
    gap = (records[0].offset, records[1].offset)
    rest = records[1:]
    assert found_in(dumped(records), dumped(rest), gaps=(gap,)) == []
    assert found_in(dumped(records), dumped(rest)) == [(Kind.LOST, gap[0], gap[0])]
    assert found_in(dumped(records), dumped(records), gaps=(gap,)) == [(Kind.GAP_UNTRUE, gap[0], gap[0])]


def test_what_was_deleted_on_the_source_is_compared_with_an_older_dump() -> None:
    records = [Record(offset, 0, 0, None, b"%d" % offset, ()) for offset in range(10)]
    now = dumped(records[4:], start=4)
    assert found_in(now.over(dumped(records)), dumped(records), same_start=False) == []
    wrong = [records[0]._replace(value=b"?"), *records[1:]]
    assert found_in(now.over(dumped(records)), dumped(wrong), same_start=False) == [(Kind.VALUE, 0, 0)]
    assert (Kind.LOG_START, 0, 0) in found_in(now, dumped(records))


def test_what_cannot_be_read_is_reported() -> None:
    records = [Record(0, 0, 0, None, b"", ())]
    assert (Kind.UNREADABLE, -1, -1) in found_in(dumped(records), replace(dumped(records), error="a bad CRC"))


# --- where offsets move

#: Of the source's offsets: an aborted transaction at 20, of one record and its marker, and two at 40.
GONE = Written(b"gone", aborted=True)
MARKED = [*healthy()[:20], GONE, *healthy()[20:38], GONE, GONE, *healthy()[38:]]
Moves = list[tuple[int, int, list[int], int]]
#: Source and target offset of the first record, lengths and skips in turn, and the source offset behind it all.
RUNS: Moves = [(0, 0, [20, 2, 18], 44), (44, 38, [22], 66)]


def journal_of(bootstrap: str, topic: str, runs: Sequence[Moves], losses: Iterable[tuple[int, int]] = ()) -> str:
    """A journal with the runs of each partition, and losses of partition 0; its name."""
    journal = f"mirror.{topic}.offsets"
    make_topic(bootstrap, journal, configs={"cleanup.policy": "compact"})
    producer = Producer({"bootstrap.servers": bootstrap})
    for partition, of_one in enumerate(runs):
        for source, target, lengths, following in of_one:
            fields = {"source": source, "target": target, "runs": lengths, "next": following}
            producer.produce(journal, json.dumps(fields), f"runs/{topic}/{partition}/{target}")
    for first, following in losses:
        producer.produce(journal, json.dumps({"first": first, "next": following}), f"loss/{topic}/0/{first}")
    producer.produce(journal, b"{}", b"owner")
    assert not producer.flush(20)
    return journal


def moved(runs: Moves, at: int, **changes: Any) -> Moves:
    names = {"source": 0, "target": 1, "lengths": 2, "following": 3}
    one: list[Any] = list(runs[at])
    for name, value in changes.items():
        one[names[name]] = value
    return [*runs[:at], tuple(one), *runs[at + 1 :]]


def as_is(anything: Any) -> Any:
    return anything


#: What is planted -> how the target and the runs are written then, where the group is, and what is found, and where.
MOVED: dict[
    str, tuple[Callable[[list[Written]], list[Written]], Callable[[Moves], Moves], int, list[tuple[Kind, int]]]
] = {
    "nothing": (as_is, as_is, 38, []),
    "loss": (lambda r: [*r[:25], *r[26:]], as_is, 38, [(Kind.LOST, 25)]),
    "missing tail": (lambda r: r[:-2], as_is, 38, [(Kind.TAIL_LOST, 58)]),
    "repeat": (lambda r: [*r[:30], r[29], *r[30:]], as_is, 38, [(Kind.REPEATED, 30)]),
    "repeat at the end": (lambda r: [*r, r[-1]], as_is, 38, [(Kind.REPEATED, 60)]),
    "swap": (lambda r: [*r[:10], r[11], r[10], *r[12:]], as_is, 38, [(Kind.SWAPPED, 10)]),
    "bit": (edited(40, value=b"value 4\xb0"), as_is, 38, [(Kind.VALUE, 40)]),
    "timestamp": (edited(7, timestamp=RECENT_MS - 1), as_is, 38, [(Kind.TIMESTAMP, 7)]),
    "extra": (lambda r: [*r[:5], Written(b"one more"), *r[5:]], as_is, 38, [(Kind.EXTRA, 5)]),
    "aborted data": (
        lambda r: [*r[:20], Written(b"gone", aborted=True), *r[20:]],
        as_is,
        38,
        [(Kind.NOT_DENSE, 20), (Kind.VISIBLE_UNCOMMITTED, 21)],
    ),
    "run off by one": (as_is, lambda r: moved(r, 1, source=43), 38, [(Kind.RUNS_WRONG, 38)]),
    "skip off by one": (as_is, lambda r: moved(r, 0, lengths=[20, 1, 18]), 38, [(Kind.RUNS_WRONG, 20)]),
    "run missing": (as_is, lambda r: r[:1], 38, [(Kind.RUNS_MISSING, 38)]),
    "first run missing": (as_is, lambda r: r[1:], 38, [(Kind.RUNS_MISSING, 0)]),
    "run too short": (as_is, lambda r: moved(r, 1, lengths=[21]), 38, [(Kind.RUNS_MISSING, 59)]),
    "run too long": (as_is, lambda r: moved(r, 1, lengths=[23]), 38, [(Kind.RUNS_WRONG, 60)]),
    "next too far": (as_is, lambda r: moved(r, 0, following=45), 38, [(Kind.RUNS_WRONG, 38)]),
    "lengths that end with a skip": (as_is, lambda r: moved(r, 0, lengths=[20, 2]), 38, [(Kind.RUNS_UNREADABLE, -1)]),
    "older record that lies": (as_is, lambda r: [(10, 9, [3], 13), *r], 38, [(Kind.RUNS_WRONG, 9)]),
    "group one too far": (as_is, as_is, 39, [(Kind.GROUP_AHEAD, 39)]),
    "group one behind": (as_is, as_is, 37, [(Kind.GROUP_BEHIND, 37)]),
}


@pytest.mark.brokers
def test_planted_faults_are_found_where_offsets_move(own_source: Cluster, own_target: Cluster, topic_name: str) -> None:
    """Each in a partition of its own. The group is at source offset 42, in a transaction that was aborted: the next
    record is at 44.
    """
    source, target = own_source.bootstrap, own_target.bootstrap
    for cluster in (source, target):
        make_topic(cluster, topic_name, partitions=len(MOVED))
    journal = journal_of(target, topic_name, [misrecord(RUNS) for _, misrecord, _, _ in MOVED.values()])
    write(source, topic_name, MARKED, range(len(MOVED)))
    for partition, (plant, _, position, _) in enumerate(MOVED.values()):
        write(target, topic_name, plant(healthy()), [partition])
        commit(source, topic_name, topic_name, 42, partition)
        commit(target, topic_name, topic_name, position, partition)
    found = check_translated(source, target, topic_name, journal, groups=[topic_name])
    for partition, (fault, (_, _, _, kinds)) in enumerate(MOVED.items()):
        findings = [one for one in found if one.partition == partition]
        reported = [(one.kind, one.first) for one in findings]
        if fault == "nothing" or fault.startswith("group"):
            assert reported == kinds, fault
        assert set(kinds) <= set(reported), "\n".join([fault, *map(str, findings)])
    assert {one.partition for one in found} <= {*range(len(MOVED))}


@pytest.mark.brokers
def test_a_declared_loss_is_the_real_one(own_source: Cluster, own_target: Cluster, topic_name: str) -> None:
    runs: Moves = [(0, 0, [10, 5, 45], 60)]
    both = own_source.bootstrap, own_target.bootstrap, topic_name
    journal = journal_of(own_target.bootstrap, topic_name, [runs], [(10, 15)])
    for cluster, records in ((own_source, healthy()), (own_target, [*healthy()[:10], *healthy()[15:]])):
        make_topic(cluster.bootstrap, topic_name)
        write(cluster.bootstrap, topic_name, records)
    assert check_translated(*both, journal) == []
    other = journal_of(own_target.bootstrap, f"{topic_name}.other", [])
    assert Kind.LOST in {one.kind for one in check_translated(*both, other)}


def in_runs(records: Sequence[Record], size: int) -> Recorded:
    """What a right journal says, `size` records in one of its own."""
    written = []
    for begin in range(0, len(records), size):
        part = [record.offset for record in records[begin : begin + size]]
        lengths, behind = [1], part[0] + 1
        for offset in part[1:]:
            if offset == behind:
                lengths[-1] += 1
            else:
                lengths += [offset - behind, 1]
            behind = offset + 1
        value = json.dumps({"source": part[0], "target": begin, "runs": lengths, "next": behind}).encode()
        written.append(Record(0, 0, 0, b"runs/a/b/1/%d" % begin, value, ()))
    return read_recorded(written, "a/b", 1)


def moves_found(
    source: Dump, target: Dump, expected: Recorded, history: Sequence[Record] = ()
) -> list[tuple[Kind, int]]:
    _, found = compare_translated(source, target, expected, Expected(), history)
    return [(kind, at) for kind, at, _ in found]


def closed_up(records: Sequence[Record]) -> Dump:
    return dumped([record._replace(offset=index) for index, record in enumerate(records)])


@given(logs(), st.integers(1, 5), st.data())
def test_moves_are_judged(records: list[Record], size: int, data: st.DataObject) -> None:
    reported, target = in_runs(records, size), closed_up(records)
    assert moves_found(dumped(records), target, reported) == []
    at = data.draw(st.integers(0, len(records) - 1))
    assert moves_found(dumped([*records[:at], *records[at + 1 :]], end=50), target, reported) != []
    assert moves_found(dumped(records), closed_up([*records[:at], *records[at + 1 :]]), reported) != []
    assert moves_found(dumped(records), closed_up([*records[: at + 1], *records[at:]]), reported) != []
    number = data.draw(st.integers(0, len(reported.claims) - 1))
    claim = reported.claims[number]
    without = [*reported.claims[:number], *reported.claims[number + 1 :]]
    assert moves_found(dumped(records), target, replace(reported, claims=tuple(without))) != []
    for by in (-1, 1):
        shifted = claim._replace(sources=tuple(source + by for source in claim.sources))
        assert moves_found(dumped(records), target, replace(reported, claims=(*without, shifted))) != []


@given(logs(), st.data())
def test_a_record_that_the_source_deleted_since_may_be_mapped_anywhere_between_its_neighbours(
    records: list[Record], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(records) - 1))
    before = records[at - 1].offset if at else -1
    behind = records[at + 1].offset if at + 1 < len(records) else records[-1].offset + 1
    left = dumped([*records[:at], *records[at + 1 :]], end=records[-1].offset + 1)
    for offset in range(max(0, before), behind + 1):
        reported = in_runs(records, 100)
        sources = [*reported.claims[0].sources]
        sources[at] = offset
        reported = replace(reported, claims=(reported.claims[0]._replace(sources=tuple(sources)),))
        found = moves_found(left, closed_up(records), reported, records)
        assert (found == []) is (before < offset < behind or (offset == behind and at + 1 == len(records)))


def test_later_records_of_a_journal_count() -> None:
    value = b'{"source":%d,"target":0,"runs":[2],"next":9}'
    written = [
        Record(number, 0, 0, key, item, ())
        for number, (key, item) in enumerate(
            [
                (b"runs/a/0/0", value % 3),
                (b"runs/a/0/0", value % 4),
                (b"runs/a/1/0", value % 5),
                (b"runs/a/0/1", b"[]"),
                (b"runs/a/0/2", value % 6),
                (b"runs/a/0/2", None),
                (b"loss/a/0/7", b'{"first":7,"next":9,"topic":"a"}'),
                (None, b"?"),
            ]
        )
    ]
    item = read_recorded(written, "a", 0)
    assert (item.places, item.losses, item.unreadable) == ({0: 4, 1: 5}, ((7, 9),), ("runs/a/0/1",))


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_loss_that_is_declared_though_it_is_there(*, forgotten: bool) -> None:
    records = [Record(offset, 0, 0, None, b"%d" % offset, ()) for offset in range(10)]
    reported = replace(in_runs(records, 100), losses=((3, 6),))
    left = dumped([*records[:4], *records[5:]])
    _, found = compare_translated(left, closed_up(records), reported, Expected(forgotten=forgotten), records)
    wrong = [3, 5] if forgotten else [3, 4, 5]
    assert [(kind, at) for kind, at, _ in found] == [(Kind.GAP_UNTRUE, at) for at in wrong]
