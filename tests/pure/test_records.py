"""Records decoded and encoded by compiled kernels, against an oracle in plain Python and a foreign client."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rawbatches import batch, raw
from recordoracle import Record, decoded, encoded, varint

from mirror.errors import BadRecords, TooManyBytes
from mirror.records import columns
from mirror.records.codecs import compress
from mirror.records.columns import Records, column, decode, encode, headers, joined, key, value
from mirror.records.recipe import CAP
from mirror.spark.census import COUNTED, FORMAT, counted, framing, varint_sizes

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


@given(some_records(), st.data())
def test_damage_is_reported_or_harmless(given_: list[Record], data: st.DataObject) -> None:
    """A flipped byte or a cut: an error, or what the oracle reads from the same bytes."""
    section = bytearray(encoded(given_))
    at = data.draw(st.integers(0, len(section) - 1))
    if data.draw(st.booleans()):
        del section[at:]
    else:
        section[at] = data.draw(st.integers(0, 255))
    try:
        found = decode(bytes(section), len(given_), BASE, CLOCK)
    except BadRecords:
        return
    assert as_list(found) == decoded(bytes(section), len(given_))


@given(st.binary(max_size=200), st.integers(-5, 2**31 - 1))
def test_any_bytes_are_reported_or_read_as_the_oracle_does(section: bytes, count: int) -> None:
    try:
        found = decode(section, count, BASE, CLOCK)
    except BadRecords:
        return
    assert as_list(found) == decoded(section, count)


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


def test_an_offset_beyond_the_header_s_last_one() -> None:
    section = encoded([Record(0), Record(7)])
    assert len(decode(section, 2, BASE, CLOCK, largest_delta=7)) == 2
    with pytest.raises(BadRecords, match="out of order"):
        decode(section, 2, BASE, CLOCK, largest_delta=6)


def test_too_many_records_for_their_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    section = encoded([Record(index) for index in range(9)])
    monkeypatch.setattr(columns, "MOST_RECORDS", 8)
    with pytest.raises(BadRecords, match="9 records in a batch, more than 8"):
        decode(section, 9, BASE, CLOCK)
    half = decode(encoded([Record(index) for index in range(5)]), 5, BASE, CLOCK)
    with pytest.raises(BadRecords, match="more than 8"):
        joined([half, half])


@pytest.mark.parametrize("codec", range(5))
def test_a_batch_is_read_whatever_its_codec(codec: int) -> None:
    wanted = [Record(index, index * 3, b"k%d" % index, b"value " * index) for index in range(100)]
    payload = compress(codec, encoded(wanted))
    data = batch(BASE, count=100, attributes=codec, payload=payload, base_timestamp=CLOCK)
    assert as_list(columns.read(raw(data))) == wanted


def test_an_append_time_batch_has_one_timestamp() -> None:
    data = batch(count=2, attributes=8, payload=encoded([Record(0, 1), Record(1, 2)]), max_timestamp=99)
    assert columns.read(raw(data)).timestamps.tolist() == [99, 99]


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


def test_a_long_batch_of_odd_records() -> None:
    """Sizes around the limits of one, two and three bytes of length, in one batch."""
    random = Random(3)
    sizes = [0, 1, 15, 16, 17, 62, 63, 64, 65, 8190, 8191, 8192, 8193, 70_000]
    wanted = [
        Record(index, index - 7, random.randbytes(sizes[index % 14]), random.randbytes(sizes[-1 - index % 14]))
        for index in range(56)
    ]
    found = decode(encoded(wanted), 56, BASE, CLOCK)
    assert as_list(found) == wanted
    assert bytes(encode(found, CLOCK)) == encoded(wanted)
    assert found.offsets.dtype == np.int64


# --- what the format costs --------------------------------------------------------------------------------------------


@given(some_records())
def test_every_byte_of_a_record_is_counted_once(given_: list[Record]) -> None:
    section = encoded(given_)
    found = counted(decode(section, len(given_), BASE, CLOCK), BASE, CLOCK)
    parts = sum(found[name] for name in (*FORMAT, "keys", "values", "headers"))
    assert (found["measured"], parts) == (len(given_), len(section))
    assert len(given_) <= found["kip931"] <= 2 * len(given_)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_sizes_of_numbers(numbers: list[int]) -> None:
    assert varint_sizes(np.array(numbers, np.int64)).tolist() == [len(varint(number)) for number in numbers]


def test_what_holds_no_record_costs_none() -> None:
    assert set(framing(raw(batch(0, attributes=0x30, count=1))).values()) == {0}
    with pytest.raises(BadRecords, match="offset 7"):
        framing(raw(batch(7, count=3, payload=b"no records")))
    smallest = encoded([Record(0, 0, None, None, ())])
    found = framing(raw(batch(7, count=1, payload=smallest, base_timestamp=CLOCK)))
    assert list(found) == list(COUNTED)
    assert sum(found[name] for name in FORMAT) == len(smallest) == 7
