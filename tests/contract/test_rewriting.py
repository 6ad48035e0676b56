"""Topics whose batches cannot be appended as they are: rewritten, and read by a foreign client on both sides."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from copies import Pair, copied
from helpers import RECENT_MS, make_topic, produce, stored_batches
from old_messages import message, wrapper
from pair import Shared
from planted import plant
from rawbatches import batch
from recordoracle import Record, encoded
from samerecords import assert_same_records, read
from syncing import delete_topics

from mirror.records.codecs import GZIP, ZSTD
from mirror.records.header import CODECS, RawBatch
from mirror.records.rewrite import rewrite
from mirror.replication import pipeline
from mirror.replication.classifier import TOO_LARGE, Verdict
from mirror.replication.partition_writer import PartitionWriter
from mirror.replication.writer import Writer
from mirror.states import Remedy, State


def values(count: int, size: int = 300) -> list[bytes]:
    random = Random(11)
    return [json.dumps({"id": n, "fill": random.randbytes(size // 2).hex()}).encode() for n in range(count)]


@pytest.mark.proves("REWRITE", "RESTAMP", "same-offsets")
@pytest.mark.parametrize(("clock", "verdict"), [("source", "REWRITE/append_time"), ("target", "RESTAMP/append_time")])
def test_append_times_are_the_sources_unless_the_target_is_to_stamp(
    pair: Pair, topic_name: str, clock: str, verdict: str
) -> None:
    """A copy goes on with the clock that it began with."""
    make_topic(pair[0], topic_name, configs={"message.timestamp.type": "LogAppendTime"})
    for append_time in (clock, "source"):
        produce(pair[0], topic_name, values(50), codec="zstd")
        assert copied(pair, topic_name, append_time=append_time).verdicts == {verdict: 5}
    source, target = (list(read(bootstrap, topic_name, 0)) for bootstrap in pair)
    assert {one[2] for one in target} == {int(clock == "target")}, "who stamped them"
    if clock == "target":
        source, target = ([(one[0], None, *one[2:]) for one in records] for records in (source, target))
    assert [(*one[:2], *one[3:]) for one in target] == [(*one[:2], *one[3:]) for one in source]


@pytest.mark.proves("REWRITE", "same-offsets")
@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_batches_that_are_too_large_are_split(pair: Pair, topic_name: str, codec: str) -> None:
    make_topic(pair[0], topic_name)
    make_topic(pair[1], topic_name, configs={"max.message.bytes": "9000"})
    produce(pair[0], topic_name, values(300), batch=100, codec=codec)
    assert set(copied(pair, topic_name).verdicts) == {"REWRITE/too_large"}
    assert_same_records(*pair, topic_name, 1)
    parts = [raw.header for raw in stored_batches(pair[1], topic_name)]
    assert {CODECS[part.codec] for part in parts} == {codec}
    assert max(part.size for part in parts) <= 9000
    largest = max(raw.header.size for raw in stored_batches(pair[0], topic_name))
    assert len(parts) <= 3 * (-(-largest // 9000) + 1)


@pytest.mark.proves("REWRITE", "RESTAMP")
@pytest.mark.parametrize(("recompress", "verdict"), [("mirror", "REWRITE/codec"), ("target", "RESTAMP/own_producer")])
def test_a_target_with_a_codec_of_its_own(pair: Pair, topic_name: str, recompress: str, verdict: str) -> None:
    make_topic(pair[0], topic_name)
    make_topic(pair[1], topic_name, configs={"compression.type": "zstd"})
    produce(pair[0], topic_name, values(100), codec="lz4")
    assert copied(pair, topic_name, recompress=recompress).verdicts == {verdict: 10}
    produce(pair[0], topic_name, values(100), codec="zstd")
    assert copied(pair, topic_name, recompress=recompress).verdicts == {"RESTAMP/own_producer": 10}
    assert_same_records(*pair, topic_name, 1)
    assert {raw.header.codec for raw in stored_batches(pair[1], topic_name)} == {ZSTD}


@pytest.mark.proves("REWRITE", "same-offsets")
def test_tiny_batches_become_one_where_that_is_wanted(pair: Pair, topic_name: str) -> None:
    make_topic(pair[0], topic_name)
    produce(pair[0], topic_name, values(150), batch=3, codec="lz4")
    produce(pair[0], topic_name, values(100), batch=100, codec="lz4")
    produce(pair[0], topic_name, values(30), batch=3, codec="zstd")
    found = copied(pair, topic_name, coalesce_bytes=16_000)
    assert found.verdicts["RESTAMP/own_producer"] == 1, "the large one"
    assert len(stored_batches(pair[1], topic_name)) < 15
    produce(pair[0], topic_name, values(30), batch=3)
    copied(pair, topic_name, coalesce_bytes=16_000)
    assert assert_same_records(*pair, topic_name, 1) == 310


@pytest.mark.proves("never-silent", "DIVERGED")
@pytest.mark.parametrize(("offsets", "records_runs"), [("preserve", False), ("translate", True)])
def test_all_that_was_joined_in_the_last_batch_is_compared(
    pair: Pair, topic_name: str, offsets: str, records_runs: bool
) -> None:
    """The source loses some of the tiny batches that became the target's last one, and goes on with others."""
    more: dict[str, Any] = {"coalesce_bytes": 16_000, "offsets": offsets, "records_runs": records_runs}
    make_topic(pair[0], topic_name)
    produce(pair[0], topic_name, values(30, 50), batch=3)
    copied(pair, topic_name, **more)
    copied(pair, topic_name, **more)
    delete_topics(pair[0], topic_name)  # a mirror that goes by its name alone takes it for the old one, cut back
    make_topic(pair[0], topic_name)
    produce(pair[0], topic_name, values(30, 50)[:15], batch=3)
    produce(pair[0], topic_name, [b"another"] * 30, batch=3)
    copied(pair, topic_name, State.DIVERGED, **more)
    assert len(stored_batches(pair[1], topic_name)) == 1, "nothing is written"


@pytest.mark.proves("REWRITE", "exactly-once")
def test_a_copy_that_begins_inside_a_batch(pair: Pair, topic_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mirror died after the first part of a split batch; then the target takes the rest in one piece."""
    for bootstrap in pair:
        make_topic(bootstrap, topic_name)
    produce(pair[0], topic_name, values(300), batch=100, codec="snappy")

    def first_part(
        self: Writer, verdict: Verdict, raws: tuple[RawBatch, ...], partition_writer: PartitionWriter
    ) -> Iterator[None]:
        first, second, *_ = rewrite(raws, replace(self._recipe(partition_writer), max_bytes=9000))
        partition_writer.append(first, verdict)
        yield
        raise partition_writer.refuse(second.header.base_offset, "as if it died", Remedy.FIT_TARGET)

    with monkeypatch.context() as patched:
        patched.setattr(Writer, "_rewrite", first_part)
        patched.setattr(pipeline, "classify", lambda header, rules, **more: TOO_LARGE)
        died = copied(pair, topic_name, State.REFUSED, records_runs=False)
    assert 0 < died.next_offset < 100
    assert copied(pair, topic_name).verdicts == {"REWRITE/starts_inside": 1, "RESTAMP/own_producer": 2}
    assert_same_records(*pair, topic_name, 1)


def with_holes(first: int, offsets: list[int], delta: int) -> bytes:
    """A batch as compaction leaves it."""
    records = encoded([Record(at, at, b"key", b"value %d" % at) for at in offsets])
    header = {"delta": delta, "base_timestamp": RECENT_MS, "max_timestamp": RECENT_MS + offsets[-1]}
    return batch(first, count=len(offsets), payload=records, **header)


@pytest.mark.proves("REWRITE", "same-offsets")
def test_holes_and_messages_of_old_formats_are_rewritten(pair: Pair, source_cluster: Shared, topic_name: str) -> None:
    """Holes between records, behind them in the midst of the log, and behind the log's last record."""
    noise = Random(5)
    make_topic(pair[0], topic_name)
    plant(source_cluster, topic_name, with_holes(0, [0, 2, 5], 5), 6)
    plant(source_cluster, topic_name, with_holes(6, [0, 1, 2], 4), 5)
    for magic in (0, 1):
        first = 11 + 4 * magic
        plant(source_cluster, topic_name, message(first, magic, bytes(99), timestamp=RECENT_MS), 1)
        inside = [
            message(at if magic else first + 1 + at, magic, noise.randbytes(60), timestamp=RECENT_MS) for at in range(3)
        ]
        plant(source_cluster, topic_name, wrapper(first + 3, magic, inside, codec=GZIP), 3)
    produce(pair[0], topic_name, [b"plain"] * 10)
    plant(source_cluster, topic_name, with_holes(29, [0, 1, 2, 3, 4], 9), 10)
    found = copied(pair, topic_name)
    assert (found.next_offset, found.lost) == (39, 0)
    assert found.verdicts["REWRITE/holes"] > 0
    assert found.verdicts["REWRITE/legacy_magic"] > 0
    source, target = (list(read(bootstrap, topic_name, 0)) for bootstrap in pair)
    timed = [(one[0], -1 if one[1] is None else one[1], *one[3:]) for one in source]  # None: of magic 0
    assert [(*one[:2], *one[3:]) for one in target] == timed
    assert len(timed) == 3 + 3 + 8 + 10 + 5
