"""Frames out of a stream however it is cut, and a buffer that a lying length cannot make grow."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror.errors import FrameTooLarge
from mirror.kafka.connection import FIRST_SIZE, FrameReader
from mirror.kafka.protocol import LENGTH_BYTES

BODIES = st.lists(st.one_of(st.binary(max_size=40), st.integers(0, 700).map(bytes)), max_size=12)


def framed(*bodies: bytes) -> bytes:
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


def feed(reader: FrameReader, data: bytes, most: int = 1 << 20) -> list[bytes]:
    """Hand over `data` in pieces of at most `most` bytes, as a socket would."""
    frames = []
    while data:
        room = reader.buffer()
        count = min(len(room), len(data), most)
        room[:count] = data[:count]
        data = data[count:]
        views = list(reader.received(count))
        frames += [bytes(view) for view in views]
    return frames


@given(BODIES, st.integers(1, 50), st.integers(8, 64))
def test_whatever_the_pieces(bodies: list[bytes], most: int, first_size: int) -> None:
    assert feed(FrameReader(1000, first_size), framed(*bodies), most) == bodies


@given(BODIES, st.lists(st.integers(1, 300), min_size=1))
def test_the_buffer_grows_only_when_full_and_at_most_doubles(bodies: list[bytes], pieces: list[int]) -> None:
    reader = FrameReader(1000, first_size=16)
    data = framed(*bodies)
    held = taken = 0
    piece = itertools.cycle(pieces)
    while taken < len(data):
        before = reader.capacity
        room = reader.buffer()
        assert len(room) > 0
        if reader.capacity > before:
            assert held == before, "full of bytes that wait"
            assert reader.capacity <= 2 * before
        count = min(next(piece), len(room), len(data) - taken)
        room[:count] = data[taken : taken + count]
        taken += count
        held += count
        held -= sum(LENGTH_BYTES + len(frame) for frame in reader.received(count))
    assert held == 0
    assert reader.capacity <= LENGTH_BYTES + max([12, *map(len, bodies)])


def test_a_buffer_that_grew_large_is_given_back_when_it_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("KEPT_SIZE", 64), ("FIRST_SIZE", 16)):
        monkeypatch.setattr(f"mirror.kafka.connection.{name}", size)
    reader = FrameReader(1000, first_size=16)
    assert feed(reader, framed(bytes(50))) == [bytes(50)]
    reader.buffer()
    kept = reader.capacity
    assert 16 < kept <= 64, "it is not larger than what is kept"
    assert feed(reader, framed(bytes(500))[:-1]) == []
    assert reader.capacity > 500
    assert feed(reader, b"\0") == [bytes(500)]
    reader.buffer()
    assert reader.capacity <= 64


def test_an_announced_length_sets_nothing_aside() -> None:
    reader = FrameReader(1 << 30, first_size=64)
    assert feed(reader, (1 << 30).to_bytes(4, "big") + bytes(40)) == []
    reader.buffer()
    assert reader.capacity == 64
    assert feed(reader, bytes(100)) == []
    assert reader.capacity <= 256


@pytest.mark.parametrize("length", [101, 2**31 - 1, -1, -(2**31)])
@pytest.mark.parametrize("first", [b"", b"a frame before"])
def test_a_length_beyond_the_limit_is_refused_from_its_four_bytes(length: int, first: bytes) -> None:
    reader = FrameReader(100)
    data = (framed(first) if first else b"") + length.to_bytes(4, "big", signed=True)
    reader.buffer()[: len(data)] = data
    frames = reader.received(len(data))
    if first:
        assert bytes(next(frames)) == first
    with pytest.raises(FrameTooLarge, match=f"a frame of {length} bytes; the limit is 100"):
        next(frames)
    assert reader.capacity == FIRST_SIZE
    assert feed(FrameReader(100, first_size=16), framed(bytes(100), b"next"), most=7) == [bytes(100), b"next"]


@given(BODIES, st.integers(1, 64))
def test_frames_stay_valid_until_the_next_buffer(bodies: list[bytes], first_size: int) -> None:
    reader = FrameReader(1000, first_size)
    data = framed(*bodies)
    found = []
    while data:
        room = reader.buffer()
        count = min(len(room), len(data))
        room[:count] = data[:count]
        data = data[count:]
        views = list(reader.received(count))  # all of them, and only then read
        assert all(view.readonly for view in views)
        found += [bytes(view) for view in views]
    assert found == bodies
