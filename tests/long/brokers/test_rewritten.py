"""Topics whose batches cannot be appended as they are, mirrored between real brokers and read by a foreign client."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import helpers
import pytest
from confluent_kafka import Producer
from helpers import RECENT_MS, make_topic, mirror_once, produce, settings_between, stored_batches
from probe import probing_existing
from rawbatches import batch
from recordoracle import Record, encoded
from samerecords import assert_same_records, read
from syncing import delete_topics
from transactional import CLEANED

from mirror.commands.verify import verify_flow
from mirror.kafka.cluster import TopicPartition
from mirror.lab.embedded import Cluster as Brokers
from mirror.observability.status import PartitionStatus
from mirror.records.codecs import ZSTD, compress
from mirror.records.header import CODECS, RawBatch
from mirror.records.rewrite import rewrite
from mirror.replication import pipeline
from mirror.replication.classifier import TOO_LARGE, Verdict
from mirror.replication.partition_writer import PartitionWriter
from mirror.replication.writer import Writer
from mirror.states import Remedy, State

pytestmark = pytest.mark.brokers


@pytest.fixture
def pair(own_source: Brokers, own_target: Brokers) -> tuple[str, str]:
    return own_source.bootstrap, own_target.bootstrap


def values(count: int, size: int = 300) -> list[bytes]:
    random = Random(11)
    return [json.dumps({"id": n, "fill": random.randbytes(size // 2).hex()}).encode() for n in range(count)]


def copied(pair: tuple[str, str], topic: str, **more: Any) -> PartitionStatus:
    found = mirror_once(*pair, [topic], **more)[TopicPartition(topic, 0)]
    assert found.state is State.CAUGHT_UP, found
    return found


def test_append_times_become_the_records_own(pair: tuple[str, str], topic_name: str) -> None:
    """As a consumer of the source sees them, in a copy that the mirror makes."""
    make_topic(pair[0], topic_name, configs={"message.timestamp.type": "LogAppendTime"})
    produce(pair[0], topic_name, values(200), codec="zstd")
    found = copied(pair, topic_name)
    assert found.verdicts == {"REWRITE/append_time": 20}
    source, target = (list(read(at, topic_name, 0)) for at in pair)
    assert {one[2] for one in source} == {1}
    assert {one[2] for one in target} == {0}
    assert [(*one[:2], *one[3:]) for one in target] == [(*one[:2], *one[3:]) for one in source]
    assert min(one[1] for one in target) > RECENT_MS + 1_000_000
    produce(pair[0], topic_name, values(30))
    assert copied(pair, topic_name).verdicts == {"REWRITE/append_time": 3}, "it goes on where it ended"


def test_a_copy_goes_on_with_the_clock_that_it_began_with(pair: tuple[str, str], topic_name: str) -> None:
    """Unless it is asked otherwise; then both kinds of batches are known again."""
    make_topic(pair[0], topic_name, configs={"message.timestamp.type": "LogAppendTime"})
    verdicts = []
    for append_time in ("target", "source", "target"):
        produce(pair[0], topic_name, values(10))
        verdicts.append(dict(copied(pair, topic_name, append_time=append_time).verdicts))
    assert verdicts == [{"RESTAMP/append_time": 1}] * 3
    assert {one[2] for one in read(pair[1], topic_name, 0)} == {1}


@pytest.mark.parametrize("codec", CODECS)
def test_batches_that_are_too_large_are_split(pair: tuple[str, str], topic_name: str, codec: str) -> None:
    make_topic(pair[0], topic_name)
    make_topic(pair[1], topic_name, configs={"max.message.bytes": "9000"})
    produce(pair[0], topic_name, values(300), batch=100, codec=codec)
    found = copied(pair, topic_name)
    assert set(found.verdicts) == {"REWRITE/too_large"}
    assert_same_records(*pair, topic_name, 1)
    ours = stored_batches(pair[1], topic_name)
    assert {CODECS[one.header.codec] for one in ours} == {codec}
    assert max(one.header.size for one in ours) <= 9000
    assert len(ours) <= 3 * (-(-max(one.header.size for one in stored_batches(pair[0], topic_name)) // 9000) + 1)


def test_a_record_that_is_too_large_stops_its_partition_by_name(pair: tuple[str, str], topic_name: str) -> None:
    make_topic(pair[0], topic_name, 2)
    make_topic(pair[1], topic_name, 2, {"max.message.bytes": "5000"})
    produce(pair[0], topic_name, [*values(5), bytes(6000), *values(5)], batch=20)
    produce(pair[0], topic_name, values(50), partition=1)
    found = mirror_once(*pair, [topic_name])
    stop = found[TopicPartition(topic_name, 0)]
    assert stop.state is State.REFUSED
    assert "a record takes" in stop.detail
    assert "--add-config max.message.bytes=" in stop.detail
    assert found[TopicPartition(topic_name, 1)].state is State.CAUGHT_UP


@pytest.mark.parametrize(("recompress", "verdict"), [("mirror", "REWRITE/codec"), ("target", "RESTAMP/own_producer")])
def test_a_target_with_a_codec_of_its_own(
    pair: tuple[str, str], topic_name: str, recompress: str, verdict: str
) -> None:
    make_topic(pair[0], topic_name)
    make_topic(pair[1], topic_name, configs={"compression.type": "zstd"})
    produce(pair[0], topic_name, values(100), codec="lz4")
    assert copied(pair, topic_name, recompress=recompress).verdicts == {verdict: 10}
    produce(pair[0], topic_name, values(100), codec="zstd")
    copied(pair, topic_name, recompress=recompress)
    assert_same_records(*pair, topic_name, 1)
    assert {one.header.codec for one in stored_batches(pair[1], topic_name)} == {4}


def test_tiny_batches_become_one_where_that_is_wanted(pair: tuple[str, str], topic_name: str) -> None:
    make_topic(pair[0], topic_name)
    produce(pair[0], topic_name, values(600), batch=3, codec="lz4")
    produce(pair[0], topic_name, values(100), batch=100, codec="lz4")
    produce(pair[0], topic_name, values(60), batch=3, codec="zstd")
    found = copied(pair, topic_name, coalesce_bytes=16_000)
    assert found.verdicts["RESTAMP/own_producer"] == 1, "the large one"
    assert_same_records(*pair, topic_name, 1)
    sizes = [one.header.size for one in stored_batches(pair[1], topic_name)]
    assert len(stored_batches(pair[0], topic_name)) == 221
    assert len(sizes) < 30
    produce(pair[0], topic_name, values(60), batch=3)
    copied(pair, topic_name, coalesce_bytes=16_000)
    assert_same_records(*pair, topic_name, 1)


@pytest.mark.parametrize("records_runs", [True, False], ids=["recorded", "nothing recorded"])
@pytest.mark.parametrize("offsets", ["preserve", "translate"])
def test_all_that_was_joined_in_the_last_batch_is_compared(
    pair: tuple[str, str], topic_name: str, offsets: str, records_runs: bool
) -> None:
    """The source loses some of the tiny batches that became the target's last one, and goes on with others."""
    more: dict[str, Any] = {"flow": topic_name, "coalesce_bytes": 16_000, "offsets": offsets}
    make_topic(pair[0], topic_name)
    produce(pair[0], topic_name, values(60, 50), batch=3)
    at = TopicPartition(topic_name, 0)
    assert mirror_once(*pair, [topic_name], **more, records_runs=records_runs)[at].state is State.CAUGHT_UP
    assert len(stored_batches(pair[1], topic_name)) == 1
    again = mirror_once(*pair, [topic_name], **more, records_runs=records_runs)[at]
    assert again.state is State.CAUGHT_UP, again
    delete_topics(pair[0], topic_name)  # by its name alone, the new topic is the old one that was cut back
    make_topic(pair[0], topic_name)
    produce(pair[0], topic_name, values(60, 50)[:30], batch=3)
    produce(pair[0], topic_name, [b"another"] * 60, batch=3)
    found = mirror_once(*pair, [topic_name], **more, records_runs=records_runs)[at]
    assert found.state in (State.TRUNCATED, State.DIVERGED), found
    assert len(stored_batches(pair[1], topic_name)) == 1, "nothing is written"


@pytest.mark.parametrize(("codec", "batches"), [("producer", 6), ("uncompressed", 79)])
def test_a_batch_that_decompresses_to_more_than_memory_holds(
    pair: tuple[str, str], topic_name: str, codec: str, batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """80 records of 1 MB in some kilobytes of zstd, one of which compaction took away: a few batches, or 79 that take
    their own size each, and then each waits for those before it.
    """
    values = [bytes(1_000_000 - n) for n in range(80)]
    keys = [b"%d" % (n - (n == 41)) for n in range(80)]
    make_topic(pair[0], topic_name, configs=CLEANED)
    make_topic(pair[1], topic_name, configs={"compression.type": codec})
    produce_packed(pair[0], topic_name, keys, values, ZSTD)
    wait_for_a_hole(pair[0], topic_name)
    held: list[int] = []

    def watched(self: PartitionWriter, *given: Any) -> None:
        appended(self, *given)
        held.append(self.held)

    appended = PartitionWriter.append
    monkeypatch.setattr(PartitionWriter, "append", watched)
    monkeypatch.setattr(helpers, "MEMORY_BYTES", 16 << 20)
    found = copied(pair, topic_name)
    assert found.verdicts["REWRITE/holes"] == batches
    assert found.filled
    assert max(held) < 12 << 20
    assert_same_records(*pair, topic_name, 1)
    ours = [one for one in stored_batches(pair[1], topic_name) if not one.header.is_control]
    assert max(one.header.count for one in ours) <= 16
    append(pair[0], topic_name, b"after")
    copied(pair, topic_name)
    report = verify_flow(settings_between(*pair, [topic_name]))
    assert (report.equal, report.differences) == (True, ())


def produce_packed(bootstrap: str, topic: str, keys: list[bytes], values: list[bytes], codec: int) -> None:
    """One batch, however large its records are without compression."""
    records = [Record(at, 0, key, value, ()) for at, (key, value) in enumerate(zip(keys, values, strict=True))]
    data = batch(
        count=len(records),
        attributes=codec,
        payload=compress(codec, encoded(records)),
        max_timestamp=RECENT_MS,
        base_timestamp=RECENT_MS,
    )

    async def send() -> None:
        async with probing_existing(bootstrap, topic) as probe:
            assert await probe.send(data) == (0, 0)

    asyncio.run(send())


def wait_for_a_hole(bootstrap: str, topic: str) -> None:
    """Until the cleaner took a record out of the first batch."""
    deadline = time.monotonic() + 60
    while (first := stored_batches(bootstrap, topic)[0].header).is_dense:
        assert time.monotonic() < deadline, f"the cleaner did not run: {first}"
        append(bootstrap, topic, b"rolls a segment")
        time.sleep(0.2)


def append(bootstrap: str, topic: str, value: bytes) -> None:
    """A record with a key, as a compacted topic wants it."""
    client = Producer({"bootstrap.servers": bootstrap})
    client.produce(topic, value, key=b"last", partition=0)
    assert not client.flush(20)


def test_a_copy_that_begins_inside_a_batch(
    pair: tuple[str, str], topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mirror that died after the first part of a split batch; then the target takes the rest in one piece."""
    make_topic(pair[0], topic_name)
    make_topic(pair[1], topic_name)
    produce(pair[0], topic_name, values(300), batch=100, codec="snappy")

    def first_part(
        self: Writer, verdict: Verdict, raws: tuple[RawBatch, ...], partition_writer: PartitionWriter
    ) -> Iterator[None]:
        first, second, *_ = rewrite(raws, replace(partition_writer.recipe, max_bytes=9000))
        partition_writer.append(first, verdict)
        yield
        raise partition_writer.refuse(second.header.base_offset, "as if it died", Remedy.FIT_TARGET)

    with monkeypatch.context() as patched:
        patched.setattr(Writer, "_rewrite", first_part)
        patched.setattr(pipeline, "classify", lambda header, rules, **more: TOO_LARGE)
        died = mirror_once(*pair, [topic_name])[TopicPartition(topic_name, 0)]
    assert 0 < died.next_offset < 100
    found = copied(pair, topic_name)
    assert found.verdicts == {"REWRITE/starts_inside": 1, "RESTAMP/own_producer": 2}
    assert_same_records(*pair, topic_name, 1)
