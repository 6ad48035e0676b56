"""A record set cut into raw batches: whole ones as they are, a partial tail left out, and nothing else believed."""

from __future__ import annotations

import struct
from itertools import islice

import pytest
from hypothesis import example, given
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


def test_an_empty_record_set_has_no_batches() -> None:
    assert cut(b"") == []


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


@pytest.mark.parametrize("magic", [0, 1, 2, 3])
@pytest.mark.parametrize("length", [-(2**31), -13, -12, -1, 0, 13])
def test_a_length_that_no_batch_has(length: int, magic: int) -> None:
    """A negative one too: it would walk the set backwards, or stand still, for ever."""
    good = batch(0)
    with pytest.raises(MalformedBatch, match=f"batch length {length}") as caught:
        list(islice(split(memoryview(good + batch(7, length=length, magic=magic))), 3))
    assert (caught.value.position, caught.value.offset) == (len(good), 7)


@pytest.mark.parametrize("length", [14, 30, 48])
def test_a_length_long_enough_for_old_messages_only(length: int) -> None:
    with pytest.raises(MalformedBatch, match="shorter than a header"):
        cut(batch(7, length=length))


@pytest.mark.parametrize("length", [2**31 - 1, 2**20, 67])
def test_a_length_beyond_the_set_is_a_partial_batch(length: int) -> None:
    whole = batch(0)
    assert len(cut(whole + batch(1, length=length))) == 1
    with pytest.raises(MalformedBatch, match="not whole"):
        cut(batch(1, length=length))


@pytest.mark.parametrize(("first", "second"), [(10, 9), (10, 10), (10, 12), (10, 0), (0, -1)])
def test_offsets_that_run_backwards_or_overlap(first: int, second: int) -> None:
    found: list[RawBatch] = []
    with pytest.raises(MalformedBatch, match="base offset after offset") as caught:
        found.extend(split(memoryview(batch(first, count=3) + batch(second))))
    assert caught.value.offset == second


def test_what_precedes_the_damage_is_given_out() -> None:
    batches = split(memoryview(batch(0) + batch(1) + batch(0)))
    assert [next(batches).header.base_offset, next(batches).header.base_offset] == [0, 1]
    with pytest.raises(MalformedBatch):
        next(batches)


def test_a_negative_base_offset_is_malformed() -> None:
    with pytest.raises(MalformedBatch) as caught:
        cut(batch(-1))
    assert caught.value.offset == -1


@pytest.mark.parametrize("delta", [-1, -(2**31)])
def test_a_negative_last_offset_delta_is_malformed(delta: int) -> None:
    with pytest.raises(MalformedBatch, match=f"last offset delta {delta}"):
        cut(batch(5, delta=delta))


@pytest.mark.parametrize(("base", "delta"), [(2**63 - 1, 0), (2**63 - 2**31, 2**31 - 1)])
def test_a_batch_after_which_there_is_no_offset_is_malformed(base: int, delta: int) -> None:
    """The base offset is outside the CRC; a cursor moved past the last int64 could not be asked for."""
    with pytest.raises(MalformedBatch, match="no offset"):
        cut(batch(base, delta=delta))
    assert len(cut(batch(base - 1, delta=delta))) == 1


@pytest.mark.parametrize("magic", [0, 1])
def test_old_messages_are_cut_too(magic: int) -> None:
    messages = [legacy(3, magic), legacy(4, magic, b""), batch(5)]
    found = cut(b"".join(messages))
    assert [bytes(raw.data) for raw in found] == messages
    assert [(raw.header.base_offset, raw.header.magic) for raw in found] == [(3, magic), (4, magic), (5, 2)]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("second", [3, 2, -1])
def test_offsets_of_old_messages_that_run_backwards(magic: int, second: int) -> None:
    for follower in (legacy(second, magic), batch(second)):
        with pytest.raises(MalformedBatch, match="base offset after offset 3") as caught:
            cut(legacy(3, magic) + follower)
        assert caught.value.offset == second


@pytest.mark.parametrize("magic", [0, 1])
def test_an_old_message_after_which_there_is_no_offset_is_malformed(magic: int) -> None:
    assert len(cut(legacy(2**63 - 2, magic))) == 1
    with pytest.raises(MalformedBatch, match="no offset follows"):
        cut(legacy(2**63 - 1, magic))


def test_a_message_too_short_for_its_timestamp() -> None:
    short = bytearray(legacy(7, 1, b""))
    short[8:12] = (14).to_bytes(4, "big")
    with pytest.raises(MalformedBatch, match="shorter than a message of magic 1"):
        cut(bytes(short))


def test_a_magic_of_the_future_is_cut_by_its_length() -> None:
    assert [raw.header.magic for raw in cut(batch(0, magic=3) + batch(1, magic=-1))] == [3, -1]


def assert_within(data: bytes) -> None:
    """Every batch is the bytes where it was found, and damage is reported as such with its place."""
    seen, damage = 0, -1
    try:
        for raw in split(memoryview(data)):
            assert bytes(raw.data) == data[seen : seen + raw.header.size]
            seen += raw.header.size
    except MalformedBatch as problem:
        damage = problem.position
    assert damage in (-1, seen)
    assert seen <= len(data)


@given(st.binary(max_size=300))
@example(batch(0)[:60] + b"\xff" * 40)
def test_garbage_is_malformed_or_cut_within_the_input(data: bytes) -> None:
    assert_within(data)


@given(SHAPES, st.data())
def test_a_damaged_record_set_is_malformed_or_cut_within_the_input(
    shapes: list[tuple[int, int, bytes]], draws: st.DataObject
) -> None:
    data = bytearray(b"".join(record_set(shapes)))
    for _ in range(draws.draw(st.integers(1, 4))):
        data[draws.draw(st.integers(0, len(data) - 1))] = draws.draw(st.integers(0, 255))
    assert_within(bytes(data))
