"""A record set cut into raw batches: whole ones as they are, a partial tail left out, and nothing else believed."""

from __future__ import annotations

import struct
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rawbatches import batch, legacy

from mirror.errors import MalformedBatch
from mirror.records.header import RawBatch, split

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
