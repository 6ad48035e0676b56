"""`mirror verify`: equal copies are found equal, and each way of being different is found and named."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest
from confluent_kafka import TopicPartition as Watermark
from confluent_kafka.admin import AdminClient
from helpers import make_topic, mirror_once, produce, settings_between
from rawbatches import batch, legacy
from rich.console import Console

from mirror.batch.header import APPEND_TIME, CONTROL, DELETE_HORIZON, TRANSACTIONAL, parse_header
from mirror.commands.verify import rendered, verify, verify_flow
from mirror.embedded import Cluster
from mirror.errors import BrokerError, ConfigError, ExitCode, PreflightError
from mirror.states import State
from mirror.verify import flow, reader
from mirror.verify.compare import KEPT, Bounds, compare
from mirror.verify.flow import bounds_of
from mirror.verify.reader import Reader
from mirror.verify.report import Kind, Pair, PartitionReport, VerifyReport
from mirror.wire.cluster import TopicPartition
from mirror.wire.queries import EARLIEST

PAIR = Pair(TopicPartition("orders", 0), TopicPartition("eu.orders", 0))
FAR = 1 << 40


# --- the walk, on batches made by hand ------------------------------------------------------------------------------


def end_of(data: bytes) -> int:
    """The last offset, of a batch whose length may lie."""
    base, magic = int.from_bytes(data[:8]), data[16]
    return base + (int.from_bytes(data[23:27]) if magic == 2 else 0)


def end_after(batches: Sequence[bytes]) -> int:
    return max((end_of(one) + 1 for one in batches), default=0)


def log_of(batches: Sequence[bytes], begin: int = 0, end: int = FAR, *, starts: int = 0, at_a_time: int = 2) -> Reader:
    """A reader of a log that gives out a few batches at a time, and begins at `starts` when asked."""

    async def fetch(offset: int) -> memoryview:
        if offset < starts:
            raise BrokerError(1, "OFFSET_OUT_OF_RANGE", "fetch")
        left = [one for one in batches if end_of(one) >= offset]
        return memoryview(b"".join(left[:at_a_time]))

    async def log_start() -> int:
        return starts

    return Reader(fetch, begin, end, log_start)


def compared(source: Sequence[bytes], target: Sequence[bytes], **more: Any) -> PartitionReport:
    async def run() -> PartitionReport:
        bounds = more.pop("bounds", Bounds(0, FAR, 0, FAR, FAR))
        left = log_of(source, end=min(bounds.end, end_after(source)), **more)
        right = log_of(target, end=min(bounds.target_end, end_after(target)))
        return await compare(PAIR, bounds, left, right)

    return asyncio.run(run())


def kinds(report: PartitionReport) -> list[tuple[int, Kind]]:
    return [(one.offset, one.kind) for one in report.differences]


def printed(report: PartitionReport, width: int = 200) -> str:
    out = io.StringIO()
    whole = VerifyReport(flow="eu-to-us", source="eu", target="us", partitions=(report,), misfits=(), seconds=1.25)
    Console(file=out, width=width).print(rendered(whole))
    return out.getvalue()


OWN_CLOCK = "append time: the target's own timestamps, not compared"
THREE = [batch(0, count=10), batch(10, count=5, payload=b"second", attributes=4), batch(15, count=1, payload=b"third")]


def test_equal_logs() -> None:
    report = compared(THREE, THREE)
    assert (report.different, report.batches, report.identical, report.records) == (0, 3, 3, 16)
    assert report.bytes == sum(map(len, THREE))
    assert report.codecs == ("none", "zstd")
    assert report.offsets_equal
    assert report.source_digest == report.target_digest


def test_what_the_mirror_may_change_is_no_difference() -> None:
    changed: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 3, "leader_epoch": 9}
    transactional = batch(0, count=10, attributes=TRANSACTIONAL | DELETE_HORIZON)
    report = compared([transactional], [batch(0, count=10, **changed)])
    assert (report.different, report.identical, report.notes) == (0, 1, ())
    assert report.source_digest == report.target_digest


@pytest.mark.parametrize(
    ("changed", "kind", "told"),
    [
        ({"payload": b"A records section"}, Kind.RECORDS, "17 bytes with CRC"),
        ({"payload": b"a records section and more"}, Kind.RECORDS, "26 bytes with CRC"),
        ({"base_timestamp": 1}, Kind.BASE_TIMESTAMP, "1 on the target"),
        ({"max_timestamp": 1}, Kind.MAX_TIMESTAMP, "1 on the target"),
        ({"attributes": 2}, Kind.CODEC, "none on the source, snappy on the target"),
        ({"attributes": APPEND_TIME}, Kind.ATTRIBUTES, "no flag on the source, append time on the target"),
        ({"attributes": CONTROL}, Kind.ATTRIBUTES, "no flag on the source, control on the target"),
        ({"attributes": TRANSACTIONAL}, Kind.ATTRIBUTES, "transactional on the target"),
        ({"attributes": DELETE_HORIZON}, Kind.ATTRIBUTES, "delete horizon on the target"),
        ({"count": 9, "delta": 9}, Kind.COUNT, "10 on the source, 9 on the target"),
        ({"crc": 1}, Kind.STORED_CRC, "does not hold on the target"),
    ],
)
def test_one_changed_field_is_named(changed: dict[str, Any], kind: Kind, told: str) -> None:
    good, following = batch(0, count=10), batch(10)
    report = compared([good, following], [batch(0, **{"count": 10, **changed}), following])
    assert kinds(report) == [(0, kind)]
    assert told in str(report.differences[0])
    assert str(report.differences[0]).startswith(f"orders-0 at offset 0: {kind}: ")
    assert (report.batches, report.identical) == (2, 2 if kind is Kind.STORED_CRC else 1)
    assert report.offsets_equal == (kind is not Kind.COUNT)


def test_append_time_on_one_side_only() -> None:
    """Readers see the max timestamp as that of each record, or not."""
    stamped = batch(0, attributes=APPEND_TIME, max_timestamp=5)
    report = compared([batch(0)], [stamped])
    assert kinds(report) == [(0, Kind.ATTRIBUTES)], "the target's own clock is one difference, not two"
    assert report.source_digest != report.target_digest
    assert kinds(compared([stamped], [batch(0)])) == [(0, Kind.ATTRIBUTES), (0, Kind.MAX_TIMESTAMP)]
    assert kinds(compared([stamped], [batch(0, max_timestamp=5)])) == [(0, Kind.ATTRIBUTES)]


@pytest.mark.parametrize("attributes", [CONTROL, CONTROL | TRANSACTIONAL])
def test_a_control_bit_that_went(attributes: int) -> None:
    (one,) = compared([batch(0, attributes=attributes)], [batch(0, attributes=attributes & ~CONTROL)]).differences
    assert one.kind is Kind.ATTRIBUTES
    assert "control" in one.source
    assert "control" not in one.target


def test_append_time_on_both_sides_is_told() -> None:
    ours = [batch(offset, attributes=APPEND_TIME, max_timestamp=5) for offset in range(3)]
    theirs = [batch(offset, attributes=APPEND_TIME, max_timestamp=6) for offset in range(3)]
    report = compared([*ours, batch(3)], [*theirs, batch(3)])
    assert (report.different, report.identical, report.own_timestamps) == (0, 1, 3)
    assert report.notes == (OWN_CLOCK,)
    assert printed(report).count(OWN_CLOCK) == 1
    assert "but times" in printed(report)
    assert "eu and us are equal, but for timestamps that the target set itself (4 batches" in printed(report)
    assert "all" not in printed(report).split()

    changed = compared(ours[:1], [batch(0, attributes=APPEND_TIME, max_timestamp=6, base_timestamp=1)])
    assert kinds(changed) == [(0, Kind.BASE_TIMESTAMP)]
    assert (changed.own_timestamps, changed.notes) == (0, (OWN_CLOCK,))


def test_a_bad_crc_on_both_sides_is_two_differences() -> None:
    report = compared([batch(0, crc=1)], [batch(0, crc=1)])
    assert [str(one) for one in report.differences] == [
        "orders-0 at offset 0: stored CRC: does not hold on the source",
        "orders-0 at offset 0: stored CRC: does not hold on the target",
    ]


def test_missing_and_extra_batches() -> None:
    report = compared(THREE, [THREE[0], THREE[2], batch(16, count=3)])
    assert [str(one) for one in report.differences] == [
        "orders-0 at offset 10: missing: 1 batch with 5 records up to offset 14 on the source, nothing on the target",
        "orders-0 at offset 16: extra: nothing on the source, 1 batch with 3 records up to offset 18 on the target",
    ]
    assert (report.batches, report.identical, report.offsets_equal) == (3, 2, False)
    assert report.source_digest != report.target_digest


def test_a_control_marker_that_was_not_mirrored() -> None:
    (one,) = compared([batch(0, attributes=CONTROL)], []).differences
    assert (one.kind, one.source, one.target) == (Kind.MISSING, "a control marker", "nothing")


def test_other_batching_is_one_difference_for_each_stretch() -> None:
    ours = [batch(0, count=10), batch(10, count=10), batch(20, count=10), batch(30, count=5)]
    theirs = [
        batch(0, count=4),
        batch(4, count=12),
        batch(16, count=4),
        batch(20, count=10),
        batch(30),
        batch(31, count=4),
    ]
    report = compared(ours, theirs)
    first, second = map(str, report.differences)
    assert first == (
        "orders-0 at offset 0: batching: 2 batches with 20 records up to offset 19 on the source,"
        " 3 batches with 20 records up to offset 19 on the target"
    )
    assert second == (
        "orders-0 at offset 30: batching: 1 batch with 5 records up to offset 34 on the source,"
        " 2 batches with 5 records up to offset 34 on the target"
    )
    assert (report.batches, report.identical, report.offsets_equal) == (4, 1, True)


def test_other_batching_with_records_lost() -> None:
    report = compared([batch(0, count=10)], [batch(0, count=4), batch(4, count=5)])
    assert kinds(report) == [(0, Kind.BATCHING)]
    assert not report.offsets_equal


@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats(magic: int) -> None:
    ours = [legacy(0, magic), legacy(1, magic, b"x" * 200), batch(2)]
    report = compared(ours, ours)
    assert (report.different, report.identical) == (0, 3)
    assert report.source_digest == report.target_digest
    assert kinds(compared(ours, [batch(0), batch(1), batch(2)])) == [(0, Kind.MAGIC), (1, Kind.MAGIC)]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("value", [b"walue", b"value and more", b""])
def test_an_old_message_with_another_value(magic: int, value: bytes) -> None:
    """Shorter than a header of magic 2, where the records section would be empty."""
    report = compared([legacy(0, magic)], [legacy(0, magic, value)])
    (one,) = report.differences
    assert (one.offset, one.kind, report.identical) == (0, Kind.RECORDS, 0)
    assert f"{len(legacy(0, magic)) - 12} bytes with CRC" in one.source
    assert one.source != one.target
    assert report.source_digest != report.target_digest


@pytest.mark.parametrize("position", [12, 15, *range(17, 39)])
def test_any_changed_byte_of_an_old_message(position: int) -> None:
    changed = bytearray(legacy(0, 1))
    changed[position] ^= 1
    found = kinds(compared([legacy(0, 1)], [bytes(changed)]))
    named = [(0, Kind.CODEC)] * (position == 17) + [(0, Kind.MAX_TIMESTAMP)] * (18 <= position < 26)
    assert found == [*named, (0, Kind.RECORDS)]


def test_the_codec_of_an_old_message() -> None:
    zipped = bytearray(legacy(0, 1))
    zipped[17] = 1
    assert compared([bytes(zipped)], [bytes(zipped)]).codecs == ("gzip",)


def test_a_log_that_cannot_be_read_on() -> None:
    broken = batch(10, length=3)
    report = compared([THREE[0], broken], THREE)
    assert kinds(report) == [(10, Kind.UNREADABLE)]
    assert "batch length 3" in report.differences[0].source
    assert (report.identical, report.offsets_equal) == (1, False)
    assert kinds(compared(THREE, [THREE[0], broken])) == [(10, Kind.UNREADABLE)]


@pytest.mark.parametrize("on_target", [False, True])
@pytest.mark.parametrize("whole", [0, 2])
def test_a_log_that_gives_nothing_before_its_end(whole: int, on_target: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "EMPTY_PAUSE", 0.0)

    async def run() -> PartitionReport:
        sides = [log_of(THREE, end=16), log_of(THREE[:whole], end=16)]
        return await compare(PAIR, Bounds(0, 16, 0, 16, 16), *(sides if on_target else reversed(sides)))

    report = asyncio.run(run())
    offset = (0, 10, 15)[whole]
    told = f"the broker returned nothing at offset {offset} below the log's end 16"
    side = "target" if on_target else "source"
    assert [str(one) for one in report.differences] == [
        f"orders-0 at offset {offset}: unreadable: {told} on the {side}"
    ]
    assert (report.identical, report.offsets_equal) == (whole, False)


def test_both_logs_give_nothing_before_their_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "EMPTY_PAUSE", 0.0)

    async def run() -> PartitionReport:
        return await compare(PAIR, Bounds(0, 16, 0, 16, 16), log_of(THREE[:1], end=16), log_of(THREE[:1], end=16))

    report = asyncio.run(run())
    assert kinds(report) == [(10, Kind.UNREADABLE)] * 2
    assert report.batches == report.identical == 1


def test_what_cannot_be_read_is_not_counted_as_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "EMPTY_PAUSE", 0.0)
    seen: list[int] = []

    async def fetch(offset: int) -> memoryview:
        return memoryview(b"" if offset else THREE[0])

    async def log_start() -> int:
        return 0

    async def run() -> str:
        one = Reader(fetch, 0, 16, log_start, seen.append)
        await one.advance()
        await one.advance()
        return one.damage

    assert asyncio.run(run())
    assert sum(seen) == 10


def test_a_leader_just_elected_gives_nothing_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "EMPTY_PAUSE", 0.0)
    asked: list[int] = []

    async def fetch(offset: int) -> memoryview:
        asked.append(offset)
        empty = asked.count(offset) < reader.EMPTY_ANSWERS
        return memoryview(b"" if empty else next(one for one in THREE if end_of(one) >= offset))

    async def log_start() -> int:
        return 0

    async def run() -> PartitionReport:
        return await compare(PAIR, Bounds(0, 16, 0, 16, 16), Reader(fetch, 0, 16, log_start), log_of(THREE, end=16))

    report = asyncio.run(run())
    assert (report.different, report.identical) == (0, 3)
    assert len(asked) == 3 * reader.EMPTY_ANSWERS


def test_differences_are_counted_beyond_those_kept() -> None:
    many = [batch(offset) for offset in range(KEPT + 7)]
    report = compared(many, [])
    assert (report.different, len(report.differences)) == (KEPT + 7, KEPT)


def test_what_the_source_deletes_meanwhile_is_a_note() -> None:
    report = compared([THREE[2]], THREE, starts=15)
    assert (report.different, report.identical) == (0, 1)
    assert report.notes == ("the source deleted 2 batches while they were compared",)


def test_a_source_that_was_cut_back_is_different() -> None:
    async def run() -> PartitionReport:
        async def out_of_range(offset: int) -> memoryview:
            raise BrokerError(1, "OFFSET_OUT_OF_RANGE", "fetch")

        async def log_start() -> int:
            return 0

        left = Reader(out_of_range, 0, 16, log_start)
        return await compare(PAIR, Bounds(0, 16, 0, 16, 16), left, log_of(THREE, end=16))

    assert kinds(asyncio.run(run())) == [(0, Kind.EXTRA), (10, Kind.EXTRA), (15, Kind.EXTRA)]


def test_another_error_of_a_broker_is_not_a_difference() -> None:
    async def run() -> PartitionReport:
        async def fails(offset: int) -> memoryview:
            raise BrokerError(56, "KAFKA_STORAGE_ERROR", "fetch")

        async def log_start() -> int:
            return 0

        return await compare(PAIR, Bounds(0, 16, 0, 16, 16), Reader(fails, 0, 16, log_start), log_of(THREE))

    with pytest.raises(BrokerError, match="KAFKA_STORAGE_ERROR"):
        asyncio.run(run())


@pytest.mark.parametrize(
    ("bounds", "lag", "found"),
    [
        (Bounds(0, 16, 0, 16, 16), 0, []),
        (Bounds(0, 100, 0, 16, 16), 84, []),
        (Bounds(0, 16, 0, 0, 0), 16, []),
        (Bounds(50, 90, 0, 0, 0), 40, []),  # nothing mirrored yet from a source that was trimmed
        (Bounds(50, 90, 0, 40, 40), 40, [(40, Kind.DELETED)]),  # retention was faster than the mirror
        (Bounds(0, 16, 10, 16, 16), 0, [(0, Kind.DELETED)]),
        (Bounds(0, 16, 0, 16, 19), 0, [(16, Kind.OPEN_TRANSACTION)]),
        (Bounds(16, 16, 17, 17, 17), 0, [(16, Kind.EXTRA)]),  # a foreign record that was deleted since
    ],
)
def test_bounds(bounds: Bounds, lag: int, found: list[tuple[int, Kind]]) -> None:
    inside = [one for one in THREE if bounds.begin <= parse_header(one).base_offset < bounds.end]
    report = compared(inside, inside, bounds=bounds)
    assert (report.lag, kinds(report)) == (lag, found)
    assert report.offsets_equal == (not found)


def test_the_targets_end_is_fixed_before_the_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = count(1)  # both logs grow by a record with every question

    async def growing(cluster: object, partition: TopicPartition, when: int, isolation: int = 0) -> int:
        await asyncio.sleep(0)
        return 0 if when == EARLIEST else next(clock)

    monkeypatch.setattr(flow, "list_offset", growing)
    bounds = asyncio.run(bounds_of(object(), object(), [PAIR] * 5))  # type: ignore[arg-type]
    assert max(one.target_end for one in bounds) < min(one.source_end for one in bounds)


# --- on brokers -----------------------------------------------------------------------------------------------------


class Between:
    """A source topic with records and its mirrored copy."""

    def __init__(
        self, source: Cluster, target: Cluster, topic: str, partitions: int = 1, **target_configs: str
    ) -> None:
        self.source, self.target, self.topic = source.bootstrap, target.bootstrap, topic
        make_topic(self.source, topic, partitions)
        if target_configs:
            make_topic(self.target, topic, partitions, {key.replace("_", "."): v for key, v in target_configs.items()})
        for partition in range(partitions):
            produce(self.source, topic, VALUES, partition=partition, codec="zstd")

    def mirror(self) -> None:
        for figures in mirror_once(self.source, self.target, [self.topic]).values():
            assert (figures.state, figures.detail, figures.lag_records) == (State.CAUGHT_UP, "", 0)

    def verify(self, **more: Any) -> VerifyReport:
        return verify_flow(settings_between(self.source, self.target, [self.topic], **more))


VALUES = [f"value {number:03} ".encode() * 20 for number in range(40)]


@pytest.mark.brokers
def test_a_mirrored_topic_is_equal(source_cluster: Cluster, target_cluster: Cluster, topic_name: str) -> None:
    between = Between(source_cluster, target_cluster, topic_name, partitions=3)
    produce(between.source, topic_name, VALUES, partition=1, batch=7, codec="gzip")
    between.mirror()
    report = between.verify()
    assert (report.equal, report.differences) == (True, ())
    (topic,) = report.topics
    assert (topic.partitions, topic.records, topic.batches, topic.identical, topic.lag) == (3, 160, 18, 18, 0)
    assert (topic.codecs, topic.offsets_equal) == (("zstd", "gzip"), True)
    assert [one.source_digest == one.target_digest for one in report.partitions] == [True] * 3
    assert len({one.source_digest for one in report.partitions}) == 2, "the same records in 0 and 2, more in 1"


@pytest.mark.brokers
def test_a_partition_of_many_fetches(source_cluster: Cluster, target_cluster: Cluster, topic_name: str) -> None:
    make_topic(source_cluster.bootstrap, topic_name)
    values = [bytes([number % 251]) * 90_000 for number in range(150)]
    produce(source_cluster.bootstrap, topic_name, values)
    assert mirror_once(source_cluster.bootstrap, target_cluster.bootstrap, [topic_name])
    seen: list[tuple[int, int]] = []
    settings = settings_between(source_cluster.bootstrap, target_cluster.bootstrap, [topic_name])
    report = verify_flow(settings, watch=lambda done, total: seen.append((done, total)))
    assert report.equal
    assert report.topics[0].bytes > 3 * flow.FETCH_BYTES
    assert len(seen) > 3, "read in one piece: the test proves nothing"
    assert sum(done for done, _ in seen) == 150
    assert {total for _, total in seen} == {150}


@pytest.mark.brokers
def test_a_foreign_record_on_the_target(source_cluster: Cluster, target_cluster: Cluster, topic_name: str) -> None:
    between = Between(source_cluster, target_cluster, topic_name, partitions=2)
    between.mirror()
    produce(between.target, topic_name, [b"foreign"], partition=1)
    report = between.verify()
    (one,) = report.differences
    assert (one.topic, one.partition, one.offset, one.kind) == (topic_name, 1, 40, Kind.EXTRA)
    assert str(one).endswith("nothing on the source, 1 batch with 1 record up to offset 40 on the target")
    assert (report.topics[0].identical, report.topics[0].batches) == (8, 8)
    assert not report.topics[0].offsets_equal
    produce(between.source, topic_name, [b"native"], partition=1)
    differing = {one.kind for one in between.verify().differences}
    assert Kind.RECORDS in differing, "another record now has the same offset"


@pytest.mark.brokers
def test_a_copy_by_a_native_producer(source_cluster: Cluster, target_cluster: Cluster, topic_name: str) -> None:
    between = Between(source_cluster, target_cluster, topic_name)
    make_topic(between.target, topic_name)
    produce(between.target, topic_name, VALUES, batch=8, codec="zstd")
    report = between.verify()
    assert {one.kind for one in report.differences} == {Kind.BATCHING}
    assert [one.offset for one in report.differences] == [0]
    assert str(report.differences[0]).endswith(
        "batching: 4 batches with 40 records up to offset 39 on the source,"
        " 5 batches with 40 records up to offset 39 on the target"
    )
    assert report.topics[0].offsets_equal, "other batches, but the same offsets"


@pytest.mark.brokers
def test_one_value_of_the_same_length(source_cluster: Cluster, target_cluster: Cluster, topic_name: str) -> None:
    make_topic(source_cluster.bootstrap, topic_name)
    make_topic(target_cluster.bootstrap, topic_name)
    produce(source_cluster.bootstrap, topic_name, VALUES)
    produce(target_cluster.bootstrap, topic_name, [*VALUES[:25], b"V" + VALUES[25][1:], *VALUES[26:]])
    report = verify_flow(settings_between(source_cluster.bootstrap, target_cluster.bootstrap, [topic_name]))
    assert [(one.offset, one.kind) for one in report.differences] == [(20, Kind.RECORDS)]
    assert report.topics[0].offsets_equal


@pytest.mark.brokers
def test_a_missing_tail_is_lag(source_cluster: Cluster, target_cluster: Cluster, topic_name: str) -> None:
    between = Between(source_cluster, target_cluster, topic_name)
    between.mirror()
    produce(between.source, topic_name, VALUES[:23])
    report = between.verify()
    assert (report.equal, report.topics[0].lag, report.topics[0].batches) == (True, 23, 4)
    assert report.topics[0].offsets_equal


@pytest.mark.brokers
def test_a_target_topic_that_is_not_there(source_cluster: Cluster, target_cluster: Cluster, topic_name: str) -> None:
    between = Between(source_cluster, target_cluster, topic_name)
    between.mirror()
    report = between.verify(naming={"prefix": "eu."})
    assert [str(one) for one in report.differences] == [
        f"{topic_name}: topic: 1 partition on the source, no topic eu.{topic_name} on the target"
    ]
    assert not report.topics[0].offsets_equal


@pytest.mark.brokers
def test_a_renamed_copy(source_cluster: Cluster, target_cluster: Cluster, topic_name: str) -> None:
    between = Between(source_cluster, target_cluster, topic_name)
    naming: dict[str, Any] = {"naming": {"prefix": "eu."}}
    assert mirror_once(between.source, between.target, [topic_name], **naming)
    report = between.verify(**naming)
    assert report.equal
    assert (report.topics[0].target, report.topics[0].batches) == (f"eu.{topic_name}", 4)


@pytest.mark.brokers
def test_another_number_of_partitions(source_cluster: Cluster, target_cluster: Cluster, topic_name: str) -> None:
    between = Between(source_cluster, target_cluster, topic_name, partitions=2)
    make_topic(between.target, topic_name, 1)
    report = between.verify()
    assert [str(one) for one in report.differences] == [
        f"{topic_name}: topic: 2 partitions on the source, 1 partition on the target"
    ]
    assert report.topics[0].lag == 40, "what both have is compared all the same"


@pytest.mark.brokers
def test_a_target_that_stamps_records_itself(source_cluster: Cluster, target_cluster: Cluster, topic_name: str) -> None:
    between = Between(source_cluster, target_cluster, topic_name, message_timestamp_type="LogAppendTime")
    between.mirror()
    report = between.verify()
    assert {one.kind for one in report.differences} == {Kind.ATTRIBUTES}, "readers see other times than at the source"
    assert str(report.differences[0]).endswith("no flag on the source, append time on the target")
    assert (report.different, report.topics[0].identical) == (4, 0)


@pytest.mark.brokers
def test_brokers_that_both_stamp_records(
    source_cluster: Cluster, target_cluster: Cluster, topic_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for cluster in (source_cluster, target_cluster):
        make_topic(cluster.bootstrap, topic_name, configs={"message.timestamp.type": "LogAppendTime"})
    produce(source_cluster.bootstrap, topic_name, VALUES, codec="zstd")
    mirror_once(source_cluster.bootstrap, target_cluster.bootstrap, [topic_name])
    settings = settings_between(source_cluster.bootstrap, target_cluster.bootstrap, [topic_name])
    report = verify_flow(settings)
    (topic,) = report.topics
    assert (report.equal, topic.batches, topic.identical, topic.own_timestamps) == (True, 4, 0, 4)
    assert report.partitions[0].notes == (OWN_CLOCK,)
    assert verify(settings, (), as_json=False) is ExitCode.DONE
    assert "eu and us are equal, but for timestamps that the target set itself" in capsys.readouterr().out


def delete_before(cluster: Cluster, topic: str, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    (deleted,) = admin.delete_records([Watermark(topic, 0, offset)]).values()
    assert deleted.result(20).low_watermark == offset


@pytest.mark.brokers
def test_a_source_that_was_trimmed(source_cluster: Cluster, target_cluster: Cluster, topic_name: str) -> None:
    between = Between(source_cluster, target_cluster, topic_name)
    between.mirror()
    delete_before(source_cluster, topic_name, 13)
    report = between.verify()
    assert report.equal
    (partition,) = report.partitions
    assert (partition.begin, partition.batches, partition.identical) == (13, 3, 3)
    assert partition.notes == ("the source deleted records that the target still has; compared from there on",)


@pytest.mark.brokers
def test_a_target_that_was_trimmed(source_cluster: Cluster, target_cluster: Cluster, topic_name: str) -> None:
    between = Between(source_cluster, target_cluster, topic_name)
    between.mirror()
    delete_before(target_cluster, topic_name, 20)
    report = between.verify()
    assert [str(one) for one in report.differences] == [
        f"{topic_name}-0 at offset 0: deleted: offsets 0 to 19 on the source, deleted on the target"
    ]
    assert report.topics[0].identical == 2


@pytest.mark.brokers
def test_one_topic_of_several(source_cluster: Cluster, target_cluster: Cluster, topic_name: str) -> None:
    names = [f"{topic_name}-a", f"{topic_name}-b"]
    for name in names:
        Between(source_cluster, target_cluster, name).mirror()
    settings = settings_between(source_cluster.bootstrap, target_cluster.bootstrap, names)
    assert [topic.topic for topic in verify_flow(settings).topics] == names
    assert [topic.topic for topic in verify_flow(settings, names[1:]).topics] == names[1:]
    with pytest.raises(ConfigError, match=f"--topic {topic_name}-c: .* did you mean {topic_name}-[ab]?"):
        verify_flow(settings, [f"{topic_name}-c"])


@pytest.mark.brokers
def test_a_topic_that_the_source_lacks(source_cluster: Cluster, target_cluster: Cluster, topic_name: str) -> None:
    with pytest.raises(PreflightError, match=f"{topic_name}: no such topic on cluster eu"):
        verify_flow(settings_between(source_cluster.bootstrap, target_cluster.bootstrap, [topic_name]))


# --- what is printed ------------------------------------------------------------------------------------------------


@pytest.mark.brokers
def test_what_is_printed(
    source_cluster: Cluster, target_cluster: Cluster, topic_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    between = Between(source_cluster, target_cluster, topic_name)
    between.mirror()
    settings = settings_between(between.source, between.target, [topic_name])
    assert verify(settings, (), as_json=False) is ExitCode.DONE
    out = capsys.readouterr().out
    assert "test: eu and us are equal (4 batches, " in out
    assert topic_name in out, "a file is wide enough for any name"

    produce(between.target, topic_name, [b"foreign"])
    produce(between.source, topic_name, [b"native", b"lag"], batch=1)
    assert verify(settings, (), as_json=True) is ExitCode.DIFFERENT
    found = json.loads(capsys.readouterr().out)
    assert (found["equal"], found["different"]) == (False, 1)
    assert found["differences"][0]["kind"] == "records"
    assert found["topics"][0]["lag"] == 1
    assert found["partitions"][0]["partition"] == 0
    assert found["partitions"][0]["source_digest"] != found["partitions"][0]["target_digest"]


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_the_terminal(width: int) -> None:
    sides = [batch(offset, count=1 + offset % 2, delta=1) for offset in range(0, 2 * KEPT + 20, 2)]
    report = compared(sides, [batch(offset, count=2) for offset in range(0, 2 * KEPT + 20, 2)])
    lines = [line.rstrip() for line in printed(report, width).splitlines()]
    assert max(map(len, lines)) <= width
    heads = ("topic", "parts", "codec", "records", "batches", "identical", "size", "offsets", "lag")
    assert lines[0].split() == list(heads), "a heading was broken or cut"
    text = " ".join(lines)
    assert "orders-0 at offset 0: count: 1 on the source, 2 on the target" in text
    assert f"and {report.different - 20} differences more: --json lists the first of each partition" in text
    assert f"eu-to-us: eu and us differ: {report.different} differences (110 batches" in text
