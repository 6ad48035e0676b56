"""Records decoded and encoded by compiled kernels, against an oracle in plain Python and a foreign client."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keyed import keyed
from rawbatches import batch, raw
from recordoracle import Record, decoded, encoded, varint

from mirror.errors import BadRecords, TooManyBytes
from mirror.records import columns
from mirror.records.codecs import compress
from mirror.records.columns import Records, column, decode, encode, headers, joined, key, partitions_of, value
from mirror.records.recipe import CAP
from mirror.spark.census import FORMAT, counted

BASE, CLOCK = 5_000_000_000, 1_700_000_000_000
blobs = st.none() | st.binary(max_size=40)


@st.composite
def some_records(draw: st.DrawFn) -> list[Record]:
    steps = draw(st.lists(st.integers(1, 200), min_size=1, max_size=12))
    offsets = [sum(steps[: i + 1]) - steps[0] for i in range(len(steps))]
    pairs = st.lists(st.tuples(st.binary(max_size=9), blobs), max_size=3).map(tuple)
    clock = st.integers(-(2**40), 2**40)
    return [Record(offset, draw(clock), draw(blobs), draw(blobs), draw(pairs)) for offset in offsets]


def as_list(found: Records) -> list[Record]:
    return [
        Record(
            int(found.offsets[i]) - BASE,
            int(found.timestamps[i]) - CLOCK,
            key(found, i),
            value(found, i),
            tuple(headers(found, i)),
        )
        for i in range(len(found))
    ]


@given(some_records())
def test_decoding_finds_what_the_oracle_encoded(wanted: list[Record]) -> None:
    section = encoded(wanted)
    assert decoded(section, len(wanted)) == wanted
    assert as_list(decode(section, len(wanted), BASE, CLOCK)) == wanted


@given(some_records())
def test_encoding_numbers_records_from_zero_and_changes_nothing_else(given_: list[Record]) -> None:
    found = decode(encoded(given_), len(given_), BASE, CLOCK)
    again = decoded(bytes(encode(found, CLOCK)), len(given_))
    dense = [
        Record(index, record.timestamp, record.key, record.value, record.headers) for index, record in enumerate(given_)
    ]
    assert again == dense


def record(body: bytes) -> bytes:
    return varint(len(body)) + body


@pytest.mark.parametrize(
    ("section", "count", "expected"),
    [
        (b"", 1, "1 records do not fit into 0 bytes"),
        (bytes(20), -1, "-1 records do not fit"),
        (bytes(20), 2**31 - 1, "do not fit"),
        (record(b"\0\0\0\1\1\0") + bytes(7), 1, "record 0 of 1: bytes follow the last record"),
        (record(b"\0\0\0\1\1\0") + record(b"\0\0\0\1\1\0"), 2, "record 1 of 2: an offset delta is out of order"),
        (record(b"\0\0\1\1\1\0"), 1, "out of order"),
        (record(b"\0\0\0\1\1\0\0"), 1, "a record's length is not that of its fields"),
        (record(b"\0\0\0\1\1\1\0"), 1, "a header count is negative"),
        (record(b"\0\0\0\1\1\2\1\1"), 1, "a header has no key"),
        (record(b"\0\0\0\x7e\1\0"), 1, "a length reaches beyond its record"),
        (record(b"\0" + b"\xff" * 10 + b"\1\0\1\1\0"), 1, "a number has too many bytes"),
        (record(b"\0\0" + b"\xff" * 5 + b"\1\1\1\0"), 1, "a number has too many bytes"),
        (record(b"\0\0\0\1\1\0")[:-1] + b"\x80", 1, "a number runs beyond the records section"),
        (b"\x7e" + bytes(9), 1, "a record begins beyond the records section"),
    ],
)
def test_what_is_wrong_is_named(section: bytes, count: int, expected: str) -> None:
    with pytest.raises(BadRecords, match=expected):
        decode(section, count, BASE, CLOCK)


def test_a_bad_payload_names_its_batch() -> None:
    with pytest.raises(BadRecords, match=r"base offset 77") as item:
        columns.read(raw(batch(77, payload=b"no record at all")))
    assert item.value.offset == 77
    bomb = batch(78, attributes=4, payload=compress(4, bytes(CAP + 1)))
    with pytest.raises(TooManyBytes, match="base offset 78"):
        columns.read(raw(bomb))


@given(some_records(), some_records())
def test_joined_records_are_those_of_both(one: list[Record], other: list[Record]) -> None:
    both = joined([decode(encoded(part), len(part), BASE, CLOCK) for part in (one, other)])
    assert as_list(both) == one + other


@given(some_records(), st.sampled_from(["key", "value"]))
def test_a_column_in_arrow_s_layout(given_: list[Record], which: str) -> None:
    found = decode(encoded(given_), len(given_), BASE, CLOCK)
    offsets, data, valid = column(found, "key" if which == "key" else "value")
    texts = [data[offsets[i] : offsets[i + 1]].tobytes() if valid[i] else None for i in range(len(found))]
    assert texts == [getattr(one, which) for one in given_]


# --- what the format costs --------------------------------------------------------------------------------------------


@given(some_records())
def test_every_byte_of_a_record_is_counted_once(given_: list[Record]) -> None:
    section = encoded(given_)
    found = counted(decode(section, len(given_), BASE, CLOCK), BASE, CLOCK)
    parts = sum(found[name] for name in (*FORMAT, "keys", "values", "headers"))
    assert (found["measured"], parts) == (len(given_), len(section))
    assert len(given_) <= found["kip931"] <= 2 * len(given_)


# --- partitions of keys -----------------------------------------------------------------------------------------------


#: Key -> hash, from Kafka's `UtilsTest.testMurmur2`.
KAFKA_S = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
MOST = 2**31 - 1


def murmur2(key: bytes) -> int:
    """`Utils.murmur2`, 32 bits with a sign."""
    state = 0x9747B28C ^ len(key)
    whole = len(key) // 4 * 4
    for at in range(0, whole, 4):
        word = int.from_bytes(key[at : at + 4], "little") * 0x5BD1E995 % 2**32
        word = (word ^ word >> 24) * 0x5BD1E995 % 2**32
        state = state * 0x5BD1E995 % 2**32 ^ word
    if rest := key[whole:]:
        state = (state ^ int.from_bytes(rest, "little")) * 0x5BD1E995 % 2**32
    state = (state ^ state >> 13) * 0x5BD1E995 % 2**32
    state ^= state >> 15
    return state - 2**32 if state >= 2**31 else state


def expected(key: bytes | None, count: int) -> int:
    return -1 if key is None else (murmur2(key) & 0x7FFFFFFF) % count


@pytest.mark.parametrize(("key", "hashed"), KAFKA_S.items())
def test_kafka_s_own_vectors(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed
    assert partitions_of(keyed([key]), MOST).tolist() == [(hashed & 0x7FFFFFFF) % MOST]


@given(st.lists(st.none() | st.binary(max_size=70), max_size=50), st.integers(1, MOST))
def test_any_keys(keys: list[bytes | None], count: int) -> None:
    found = partitions_of(keyed(keys), count)
    assert found.dtype == np.int32
    assert found.tolist() == [expected(key, count) for key in keys]
