"""Headers, field by field at the positions that Kafka's `DefaultRecordBatch` and `LegacyRecord` give them, and record
sets cut into raw batches: whole ones as they are, a partial tail left out, and nothing else believed.
"""

from __future__ import annotations

import struct
import zlib
from itertools import islice
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rawbatches import INT32, INT64, batch, legacy, raw

from mirror.errors import MalformedBatch
from mirror.records.header import (
    CONTROL,
    HEADER_BYTES,
    LAYOUT,
    TRANSACTIONAL,
    BatchHeader,
    RawBatch,
    crc_holds,
    parse_header,
    plain,
    records_crc,
    split,
)

#: Name, position and struct format of every field, as the protocol guide lists them.
FIELDS: Final = (
    ("base_offset", 0, ">q"),
    ("batch_length", 8, ">i"),
    ("partition_leader_epoch", 12, ">i"),
    ("magic", 16, ">b"),
    ("crc", 17, ">I"),
    ("attributes", 21, ">h"),
    ("last_offset_delta", 23, ">i"),
    ("base_timestamp", 27, ">q"),
    ("max_timestamp", 35, ">q"),
    ("producer_id", 43, ">q"),
    ("producer_epoch", 51, ">h"),
    ("base_sequence", 53, ">i"),
    ("count", 57, ">i"),
)


header_bytes = st.builds(
    lambda a, length, b, c: a + struct.pack(">i", length) + b + b"\2" + c,
    st.binary(min_size=8, max_size=8),
    st.integers(HEADER_BYTES - 12, 2**31 - 1),
    st.binary(min_size=4, max_size=4),
    st.binary(min_size=44, max_size=44),
)


@given(header_bytes, st.integers(0, 30))
def test_every_field_is_read_from_its_place(data: bytes, position: int) -> None:
    header = parse_header(bytes(position) + data, position)
    for name, at, form in FIELDS:
        assert getattr(header, name) == struct.unpack_from(form, data, at)[0], name
    assert LAYOUT.pack(*(getattr(header, name) for name, _, _ in FIELDS)) == data
    assert (header.size, header.codec) == (header.batch_length + 12, header.attributes % 8)
    assert header.last_offset == header.base_offset + header.last_offset_delta == header.next_offset - 1
    assert header.is_dense is (header.count == header.last_offset_delta + 1)


@given(
    st.sampled_from([0, 1]), INT64, st.integers(22, 2**31 - 1), st.integers(0, 2**32 - 1), INT64, st.integers(0, 255)
)
def test_an_old_message_has_its_fields_and_no_others(
    magic: int, offset: int, length: int, crc: int, timestamp: int, attributes: int
) -> None:
    data = struct.pack(">qiIbBq", offset, length, crc, magic, attributes, timestamp) + b"\xff" * 30
    header = parse_header(b"xyz" + data, 3)
    assert header == BatchHeader(
        *(offset, length, -1, magic, crc, attributes),
        last_offset_delta=0,
        max_timestamp=timestamp if magic else -1,
    )
    assert (header.last_offset, header.next_offset, header.count) == (offset, offset + 1, -1)


@given(st.binary(max_size=40), st.integers(0, 2**40), INT32)
def test_the_crc_leaves_out_offset_and_leader_epoch(payload: bytes, offset: int, epoch: int) -> None:
    one, other = (
        next(split(memoryview(batch(o, payload=payload, leader_epoch=e)))) for o, e in ((0, 0), (offset, epoch))
    )
    assert crc_holds(one)
    assert crc_holds(other)
    assert one.header.crc == other.header.crc
    assert records_crc(one) == records_crc(other)


@pytest.mark.parametrize("position", range(21, len(batch())))
def test_a_flipped_bit_breaks_the_crc(position: int) -> None:
    damaged = bytearray(batch(count=2**20, delta=2**21))
    damaged[position] ^= 1
    (found,) = split(memoryview(damaged))
    assert not crc_holds(found)


@pytest.mark.parametrize("magic", [0, 1])
def test_an_old_message_is_summed_from_its_magic_on(magic: int) -> None:
    body = bytes([magic, 0]) + bytes(8 * magic) + struct.pack(">ii", -1, 5) + b"value"
    message = struct.pack(">qiI", 7, len(body) + 4, zlib.crc32(body)) + body
    assert crc_holds(raw(message))
    for position in range(len(message)):
        damaged = bytearray(message)
        damaged[position] ^= 0x80
        if position >= 18 or 12 <= position < 16:
            assert not crc_holds(raw(bytes(damaged))), position
        elif position < 8:  # the offset is the leader's, as in magic 2
            assert crc_holds(RawBatch(parse_header(damaged), memoryview(damaged)))


def test_the_crc_of_the_records_section_leaves_out_the_header() -> None:
    plain, stamped = (
        next(split(memoryview(batch(attributes=a, producer_id=p, payload=b"123456789")))) for a, p in ((0, -1), (4, 9))
    )
    assert records_crc(plain) == records_crc(stamped) == 0xE3069283  # the check value of CRC-32C (RFC 3720)
    assert bytes(plain.records) == b"123456789"


@pytest.mark.parametrize(
    ("data", "meant"), [(legacy(7, 0), False), (legacy(7, 1), False), (batch(7), True)], ids=["0", "1", "2"]
)
def test_a_marker_and_a_transaction_are_known_by_their_bits_in_magic_2_alone(data: bytes, meant: bool) -> None:
    for bit, name in ((CONTROL, "is_control"), (TRANSACTIONAL, "is_transactional")):
        header = parse_header(data)._replace(attributes=bit)
        assert getattr(header, name) is meant
        assert getattr(header._replace(attributes=0xFF & ~bit), name) is False


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.sampled_from((0, CONTROL))), max_size=4),
    st.integers(0, 12),
    st.binary(max_size=30),
    st.none() | st.tuples(st.integers(0, 300), st.integers(1, 255)),
)
def test_plain_batches_are_those_that_nothing_is_wrong_with(
    shapes: list[tuple[int, int, int]], end: int, tail: bytes, flip: tuple[int, int] | None
) -> None:
    """They are what `split` cuts, from the offset that is due on, dense and sound; else there are none."""
    data, offset = bytearray(), 5
    for skipped, count, attributes in shapes:
        data += batch(offset + skipped, count=count, attributes=attributes)
        offset += skipped + count
    data += tail
    if flip is not None and flip[0] < len(data):
        data[flip[0]] ^= flip[1]
    found = plain(memoryview(bytes(data)), 5, 5 + end)
    if found:
        due = 5
        for raw in found:
            header = raw.header
            assert (header.magic, header.base_offset, header.is_control) == (2, due, False)
            assert header.count == header.last_offset_delta + 1 > 0
            assert crc_holds(raw)
            due = header.next_offset
        assert due <= 5 + end
        rest = bytes(data)[sum(len(raw.data) for raw in found) :]
        assert len(rest) < HEADER_BYTES or int.from_bytes(rest[8:12], "big", signed=True) + 12 > len(rest)
    elif flip is None and not tail and shapes:
        is_plain = all(not skipped and count and not attributes for skipped, count, attributes in shapes)
        assert not is_plain or sum(count for _, count, _ in shapes) > end


# --- record sets ------------------------------------------------------------------------------------------------------


SHAPES = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 1000), st.binary(max_size=30)), min_size=1, max_size=6)


def record_set(shapes: list[tuple[int, int, bytes]]) -> list[bytes]:
    """Batches in offset order from (hole before it, last offset delta, payload)."""
    batches: list[bytes] = []
    offset = 0
    for hole, delta, payload in shapes:
        batches.append(batch(offset + hole, count=delta + 1, payload=payload))
        offset += hole + delta + 1
    return batches


def cut(data: bytes) -> list[RawBatch]:
    return list(split(memoryview(data)))


@given(SHAPES)
def test_whole_batches_come_as_they_are_stored(shapes: list[tuple[int, int, bytes]]) -> None:
    batches = record_set(shapes)
    data = memoryview(b"".join(batches))
    found = list(split(data))
    assert [bytes(raw.data) for raw in found] == batches
    assert [raw.header.last_offset_delta for raw in found] == [delta for _, delta, _ in shapes]
    assert all(raw.data.obj is data.obj for raw in found), "views of the answer, not copies"


def test_truncated_at_every_byte() -> None:
    first, second = batch(10, count=3), batch(13, count=2, payload=b"second")
    data = first + second
    for length in range(len(data)):
        if 0 < length < len(first):
            with pytest.raises(MalformedBatch, match="first batch is not whole"):
                cut(data[:length])
        else:
            assert [bytes(raw.data) for raw in cut(data[:length])] == ([first] if length else [])


@pytest.mark.parametrize("tail", [b"\0", b"\xff" * 16, struct.pack(">qiib", 5, 2**31 - 1, 0, 2), batch(5)[:-1]])
def test_a_partial_tail_is_left_out(tail: bytes) -> None:
    assert [raw.header.base_offset for raw in cut(batch(0) + tail)] == [0]


@pytest.mark.parametrize("magic", [0, 1])
def test_old_messages_are_cut_too(magic: int) -> None:
    messages = [legacy(3, magic), legacy(4, magic, b""), batch(5)]
    found = cut(b"".join(messages))
    assert [bytes(raw.data) for raw in found] == messages
    assert [(raw.header.base_offset, raw.header.magic) for raw in found] == [(3, magic), (4, magic), (5, 2)]


def test_a_magic_of_the_future_is_cut_by_its_length() -> None:
    assert [raw.header.magic for raw in cut(batch(0, magic=3) + batch(1, magic=-1))] == [3, -1]


LAST = 2**63 - 1


MALFORMED = [
    # A negative length would walk the set backwards, or stand still, for ever.
    *((batch(7, length=length), 7, f"batch length {length}") for length in (-(2**31), -13, -12, -1, 0, 13)),
    *((legacy(7, magic)[:8] + bytes(4) + legacy(7, magic)[12:], 7, "batch length 0") for magic in (0, 1)),
    (batch(7, length=14), 7, "shorter than a header"),
    (batch(7, length=48), 7, "shorter than a header"),
    (legacy(7, 1)[:8] + (21).to_bytes(4) + legacy(7, 1)[12:], 7, "shorter than a message of magic 1"),
    (batch(1), 1, "base offset after offset"),
    (batch(4), 4, "base offset after offset"),
    (legacy(4, 1), 4, "base offset after offset"),
    (batch(-1), -1, "base offset -1"),
    (batch(5, delta=-1), 5, "last offset delta -1"),
    # The base offset is in no CRC; a cursor behind the last int64 could not be asked for.
    (batch(LAST), LAST, "no offset"),
    (batch(LAST - 2**31 + 1, delta=2**31 - 1), LAST - 2**31 + 1, "no offset"),
    (legacy(LAST, 1), LAST, "no offset"),
]


@pytest.mark.parametrize(("data", "offset", "text"), MALFORMED, ids=range(len(MALFORMED)))
def test_a_batch_that_cannot_be_is_malformed_and_what_precedes_it_is_given_out(
    data: bytes, offset: int, text: str
) -> None:
    good = batch(2, count=3)
    found: list[RawBatch] = []
    with pytest.raises(MalformedBatch, match=text) as caught:
        found.extend(islice(split(memoryview(good + data)), 3))
    assert (caught.value.position, caught.value.offset) == (len(good), offset)
    assert not found or [bytes(raw.data) for raw in found] == [good]


def test_the_last_offset_that_something_follows_is_read() -> None:
    assert len(cut(batch(LAST - 1))) == len(cut(legacy(LAST - 1, 1))) == 1
