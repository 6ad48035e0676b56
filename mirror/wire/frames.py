"""Bytes from a socket into frames: a four-byte length, then that many bytes (sans-io).

One buffer serves a connection for life and grows only as bytes arrive, so a length that lies costs nothing:

    F1  a frame longer than `limit`, or of negative length, is refused from its four length bytes alone
    F2  the buffer grows only when it is full of received bytes, and then at most doubles; one that grew beyond
        `KEPT_SIZE` is given back when it is empty
    F3  a frame is a view of the buffer: it is valid until the next call of `buffer()`
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mirror.errors import FrameTooLarge

LENGTH_BYTES: Final = 4
FIRST_SIZE: Final = 256 * 1024
#: Twice what a fetch answer usually holds.
KEPT_SIZE: Final = 32 * 1024 * 1024


class FrameReader:
    """Feed it by writing into `buffer()` and saying how much with `received(n)`, which yields the frames now whole."""

    __slots__ = ("_buffer", "_end", "_limit", "_start")

    def __init__(self, limit: int, first_size: int = FIRST_SIZE) -> None:
        self._limit = limit
        self._buffer = bytearray(max(first_size, 2 * LENGTH_BYTES))
        self._start = 0  # first byte not yet given out
        self._end = 0  # first byte not yet received

    @property
    def capacity(self) -> int:
        """Bytes held for the buffer."""
        return len(self._buffer)

    def buffer(self) -> memoryview:
        """Room for at least one more byte."""
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) > KEPT_SIZE:
                self._buffer = bytearray(FIRST_SIZE)
        wanted = self._pending_size()
        if (self._start and self._start + wanted > len(self._buffer)) or self._end == len(self._buffer):
            held = self._buffer[self._start : self._end]
            if len(held) == len(self._buffer):
                self._buffer = bytearray(min(wanted, 2 * len(held)))  # F2: a new one, frames may still be viewed
            self._buffer[: len(held)] = held
            self._start, self._end = 0, len(held)
        return memoryview(self._buffer)[self._end :]

    def received(self, count: int) -> Iterator[memoryview]:
        """The frames that `count` more bytes complete, without their lengths. Raises FrameTooLarge (F1)."""
        self._end += count
        while (size := self._pending_size()) and self._end - self._start >= size:
            body = memoryview(self._buffer)[self._start + LENGTH_BYTES : self._start + size].toreadonly()
            self._start += size
            yield body

    def _pending_size(self) -> int:
        """Bytes of the frame under way with its length, or 0 while the length itself is not whole."""
        if self._end - self._start < LENGTH_BYTES:
            return 0
        length = int.from_bytes(self._buffer[self._start : self._start + LENGTH_BYTES], "big", signed=True)
        if not 0 <= length <= self._limit:
            raise FrameTooLarge(length, self._limit)
        return LENGTH_BYTES + length
