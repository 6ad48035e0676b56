"""Topics whose batches cannot be appended as they are, mirrored between real brokers and read by a foreign client."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from helpers import RECENT_MS, make_topic, mirror_once, produce, stored_batches
from samerecords import assert_same_records, read

from mirror import pipeline
from mirror.batch.header import CODECS, RawBatch
from mirror.batch.rewrite import rewrite
from mirror.classifier import TOO_LARGE, Verdict
from mirror.embedded import Cluster as Brokers
from mirror.observe.figures import Figures
from mirror.sink import Sink
from mirror.states import State
from mirror.wire.cluster import TopicPartition
from mirror.writer import Writer

pytestmark = pytest.mark.brokers


@pytest.fixture
def pair(source_cluster: Brokers, target_cluster: Brokers) -> tuple[str, str]:
    return source_cluster.bootstrap, target_cluster.bootstrap


def values(count: int, size: int = 300) -> list[bytes]:
    random = Random(11)
    return [json.dumps({"id": n, "fill": random.randbytes(size // 2).hex()}).encode() for n in range(count)]


def copied(pair: tuple[str, str], topic: str, **more: Any) -> Figures:
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
    """Unless it is told otherwise; then both kinds of batches are known again."""
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
    assert "Raise max.message.bytes" in stop.detail
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


def test_a_copy_that_begins_inside_a_batch(
    pair: tuple[str, str], topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mirror that died after the first part of a split batch; then the target takes the rest in one piece."""
    make_topic(pair[0], topic_name)
    make_topic(pair[1], topic_name)
    produce(pair[0], topic_name, values(300), batch=100, codec="snappy")

    def first_part(self: Writer, verdict: Verdict, raws: tuple[RawBatch, ...], sink: Sink) -> None:
        first, second, *_ = rewrite(raws, replace(sink.recipe, max_bytes=9000))
        sink.append(first, verdict)
        raise sink.refuse(second.header.base_offset, "as if it died", "")

    with monkeypatch.context() as patched:
        patched.setattr(Writer, "_rewrite", first_part)
        patched.setattr(pipeline, "classify", lambda header, rules, **more: TOO_LARGE)
        died = mirror_once(*pair, [topic_name])[TopicPartition(topic_name, 0)]
    assert 0 < died.next_offset < 100
    found = copied(pair, topic_name)
    assert found.verdicts == {"REWRITE/starts_inside": 1, "RESTAMP/own_producer": 2}
    assert_same_records(*pair, topic_name, 1)
