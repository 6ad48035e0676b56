"""The journal's records: what is appended is read back, by us and by another client, and damage is told as such."""

from __future__ import annotations

import struct
import time
import warnings
from datetime import timedelta
from typing import Any

import pytest
from fakebroker import Call, FakeBroker, FakeCluster, FakeTopic, in_loop, scripted
from hypothesis import given
from hypothesis import strategies as st
from rawbatches import batch, crc32c, raw

from mirror.errors import MalformedBatch, MirrorError
from mirror.offsets.journal import OWNER, Entry, Journal, decode, encode, journal_topic
from mirror.wire.cluster import Cluster, Endpoint
from mirror.wire.protocol import PRODUCE

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of kafka-python's own start-up
    from kafka.record.default_records import DefaultRecordBatch

ENTRIES = st.lists(st.tuples(st.binary(max_size=200), st.binary(max_size=200)), min_size=1, max_size=20)


def stored(data: bytes, base_offset: int) -> bytes:
    """As the leader stores it."""
    return struct.pack(">q", base_offset) + data[8:]


@given(ENTRIES, st.integers(0, 2**40))
def test_what_is_appended_is_read_back_at_its_offset(entries: list[tuple[bytes, bytes]], base: int) -> None:
    found, following = decode(memoryview(stored(encode(entries), base)))
    assert found == [Entry(base + index, key, value) for index, (key, value) in enumerate(entries)]
    assert following == base + len(entries)


@given(ENTRIES)
def test_a_broker_takes_it(entries: list[tuple[bytes, bytes]]) -> None:
    data = encode(entries)
    header = raw(data).header
    assert header.size == len(data)
    assert (header.base_offset, header.magic, header.attributes) == (0, 2, 0)
    assert header.is_dense
    assert header.count == len(entries)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert header.crc == crc32c(data[21:])


def test_another_client_reads_it() -> None:
    before = int(time.time()) * 1000
    found = DefaultRecordBatch(encode([(OWNER, b"me"), ("schlüssel".encode(), b""), (b"", b"\0" * 300)]))
    assert found.validate_crc()
    records = list(found)
    assert [(record.key, record.value) for record in records] == [
        (b"owner", b"me"),
        ("schlüssel".encode(), b""),
        (b"", b"\0" * 300),
    ]
    assert all(before <= record.timestamp <= int(time.time()) * 1000 for record in records)


def test_several_batches_and_a_partial_one() -> None:
    first, second, third = (stored(encode([(b"k%d" % n, b"v")] * 2), offset) for n, offset in enumerate((10, 20, 30)))
    for length in range(len(third)):
        entries, following = decode(memoryview(first + second + third[:length]))
        assert [entry.offset for entry in entries] == [10, 11, 20, 21]
        assert following == 22


def test_nothing_there() -> None:
    assert decode(memoryview(b"")) == ([], 0)


def test_a_record_without_key_and_one_without_value() -> None:
    """A tombstone of the cleaner's, and a record that is not ours."""
    data = bytes([16, 0, 0, 0, 1, 4]) + b"vv" + bytes([0])  # length 8: no key (-1), value "vv"
    data += bytes([16, 0, 0, 2, 4]) + b"kk" + bytes([1, 0])  # key "kk", no value (-1)
    entries, following = decode(memoryview(batch(5, count=2, payload=data)))
    assert entries == [Entry(5, b"", b"vv"), Entry(6, b"kk", None)]
    assert following == 7


def test_holes_after_cleaning_keep_the_offsets() -> None:
    data = bytes([16, 0, 0, 18, 4]) + b"kk" + bytes([1, 0])  # offset delta 9
    entries, following = decode(memoryview(batch(100, count=1, delta=20, payload=data)))
    assert entries == [Entry(109, b"kk", None)]
    assert following == 121, "the batch's last offset counts, not the record's"


@pytest.mark.parametrize("position", range(16, 90))
def test_a_flipped_byte_is_malformed(position: int) -> None:
    data = bytearray(encode([(b"a key of some length", b"a value")]))
    data[position] ^= 0xFF
    with pytest.raises(MalformedBatch):
        decode(memoryview(bytes(data)))


@given(st.binary(max_size=80), st.integers(-1, 5), st.integers(0, 127))
def test_garbage_under_a_right_crc_is_malformed_or_read(payload: bytes, count: int, attributes: int) -> None:
    """What a broker vouches for need not be a batch of ours."""
    data = batch(0, count=count, delta=max(count, 1) - 1, payload=payload, attributes=attributes)
    try:
        entries, following = decode(memoryview(data))
    except MalformedBatch:
        return
    assert len(entries) == max(count, 0)
    assert following >= 1


@pytest.mark.parametrize("timestamp", [2**62, -(2**62), 2**50])
def test_a_time_beyond_the_calendar_is_malformed(timestamp: int) -> None:
    data = bytes([16, 0, 0, 0, 4]) + b"kk" + bytes([1, 0])
    with pytest.raises(MalformedBatch):
        decode(memoryview(batch(0, payload=data, base_timestamp=timestamp, max_timestamp=2**63 - 1)))


def test_the_topic_bears_the_flow_s_name() -> None:
    assert journal_topic("eu-to-us") == "mirror.eu-to-us.offsets"


@in_loop
async def test_an_append_that_is_answered_with_nothing() -> None:
    """A broker's fault, to be told as such."""
    topic = journal_topic("flow")

    def script(call: Call) -> Any:
        return call.schema().ProduceResponse(responses=(), throttle_time=timedelta(0))

    async with FakeBroker({PRODUCE.key: script}) as broker:
        scripted(broker, FakeCluster({1: broker.address}, {topic: FakeTopic()}))
        async with Cluster(Endpoint("test", (broker.address,))) as cluster:
            await cluster.refresh([topic])
            with pytest.raises(MirrorError):
                await Journal(cluster, "flow").append([(OWNER, b"me")])
