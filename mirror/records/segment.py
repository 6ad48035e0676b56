"""A segment file's bytes, walked batch by batch up to where they stop being sound.

A segment holds what a fetch answer holds: batches end to end, as the broker stored them (Kafka `FileRecords`). It may
end in zeros, which a broker reserved (`log.preallocate`) or a crash left. Anything else that is no batch is damage.
What follows damage is not part of the log for a broker either: `LogSegment.recover` cuts the file there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from struct import Struct
from typing import Final

from mirror.records.header import (
    HEADER_BYTES,
    LAST_OFFSET,
    LENGTH_PREFIX,
    MAGIC_AT,
    SMALLEST_LENGTH,
    SMALLEST_LENGTH_V1,
    RawBatch,
    crc_holds,
    parse_header,
)

#: Offsets that one segment can hold, from its name's on: its indexes have 31 bits for them (Kafka
#: `LogSegment.canConvertToRelativeOffset`).
SPAN: Final = 2**31
#: Bytes behind damage that are searched for a sound batch, and that may be summed up while searching.
RESYNC_BYTES: Final = 64 * 1024 * 1024

_PREFIX: Final = Struct(">qiib")
#: Smallest length of each magic.
_SMALLEST: Final = (SMALLEST_LENGTH, SMALLEST_LENGTH_V1, HEADER_BYTES - LENGTH_PREFIX)
#: Magic 2, any CRC, no attribute beyond bit 6 and a last offset delta that is not negative.
_LIKELY: Final = re.compile(rb"\x02(?=[\s\S]{4}\x00[\x00-\x7f][\x00-\x7f])")
_BLOCK: Final = 1 << 20
_ZEROS: Final = bytes(_BLOCK)


class DamageKind(StrEnum):
    """How bytes fail to be a batch."""

    PARTIAL = "partial batch"
    LENGTH = "impossible length"
    MAGIC = "unknown magic"
    HEADER = "impossible header"
    ORDER = "offset out of order"
    CRC = "CRC mismatch"


@dataclass(frozen=True, slots=True)
class Damage:
    """The first bytes that are no sound batch, `position` bytes into the data. `batch` is there where it is whole, and
    only its CRC fails.
    """

    kind: DamageKind
    position: int
    detail: str
    batch: RawBatch | None = None

    def __str__(self) -> str:
        return f"{self.kind} at byte {self.position:,}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Found:
    """A sound batch behind damage: where it begins, and its base offset."""

    position: int
    base_offset: int


class Walk:
    """Iterate once over the sound batches: whole, of rising offsets, each with a CRC that holds.

    While iterating, `position` is where the batch at hand ends and `next_offset` the offset behind it. Afterwards they
    say how far the data is sound. `damage` is what follows there, None where nothing but `zeros` bytes of zeros do.
    Nothing is copied: batches are views of `data`, and a view keeps the data's owner alive.
    """

    def __init__(
        self, data: memoryview, least_offset: int = 0, highest_offset: int = LAST_OFFSET, position: int = 0
    ) -> None:
        """Base offsets below `least_offset` or above `highest_offset` are out of order; see `SPAN`. The first batch is
        at `position`.
        """
        self._data, self._highest = data, highest_offset
        self.position = position
        self.next_offset = least_offset
        self.damage: Damage | None = None
        self.zeros = 0

    @property
    def rest(self) -> int:
        """Bytes that follow the last sound batch."""
        return len(self._data) - self.position

    def __iter__(self) -> Iterator[RawBatch]:
        data, end = self._data, len(self._data)
        position, least, highest = self.position, self.next_offset, self._highest
        while end - position > MAGIC_AT:
            base_offset, length, _, magic = _PREFIX.unpack_from(data, position)
            if not 0 <= magic <= 2 or length < _SMALLEST[magic] or not least <= base_offset <= highest:
                break
            following = position + LENGTH_PREFIX + length
            if following > end:
                break
            raw = RawBatch(parse_header(data, position), data[position:following])
            next_offset = raw.header.next_offset
            if not base_offset < next_offset <= LAST_OFFSET:
                break
            if not crc_holds(raw):
                detail = f"the batch at base offset {base_offset} is not what CRC {raw.header.crc:#010x} was made from"
                self.damage = Damage(DamageKind.CRC, position, detail, raw)
                return
            self.position = position = following
            self.next_offset = least = next_offset
            yield raw
        self._judge_rest()

    def resume(self, most: int = RESYNC_BYTES) -> Found | None:
        """The next sound batch behind the damage, of an offset that is in order: where the damaged one says that it
        ends, or else the first of magic 2 that is found. What a record holds may look like a batch: inside of what the
        damaged batch says it takes, one counts only where another follows, or nothing does.

        Looks at `most` bytes, and computes CRCs over no more than about as many: what else looks like a batch, in
        random bytes one in a megabyte does, has any length.
        """
        data, begin, left = self._data, self.position + 1, most
        announced = self.announced
        if announced is not None and (found := self._sound_at(announced)):
            return Found(announced, found.header.base_offset)
        for likely in _LIKELY.finditer(data, begin + MAGIC_AT, min(len(data), begin + most)):
            position = likely.start() - MAGIC_AT
            if (raw := self._batch_at(position)) is None or raw.header.size > left:
                continue
            left -= raw.header.size
            if not crc_holds(raw):
                continue
            if announced is None or position >= announced or self._goes_on(position + raw.header.size):
                return Found(position, raw.header.base_offset)
        return None

    @property
    def announced(self) -> int | None:
        """Where the batch behind the sound ones ends, if its length is to be believed; None where it cannot be."""
        if self.rest <= MAGIC_AT:
            return None
        length = _PREFIX.unpack_from(self._data, self.position)[1]
        return (
            self.position + LENGTH_PREFIX + length if SMALLEST_LENGTH <= length <= self.rest - LENGTH_PREFIX else None
        )

    def _sound_at(self, position: int) -> RawBatch | None:
        """The batch at a position, where it is a sound one that may follow what was walked."""
        raw = self._batch_at(position)
        return raw if raw is not None and crc_holds(raw) else None

    def _batch_at(self, position: int) -> RawBatch | None:
        """The same whatever its CRC."""
        data = self._data
        if len(data) - position <= MAGIC_AT:
            return None
        base_offset, length, _, magic = _PREFIX.unpack_from(data, position)
        following = position + LENGTH_PREFIX + length
        if not 0 <= magic <= 2 or length < _SMALLEST[magic] or following > len(data):
            return None
        if not self.next_offset <= base_offset <= self._highest:
            return None
        raw = RawBatch(parse_header(data, position), data[position:following])
        return raw if base_offset < raw.header.next_offset <= LAST_OFFSET else None

    def _goes_on(self, position: int) -> bool:
        """Whether nothing but zeros, or a sound batch, is at a position."""
        return self._sound_at(position) is not None or is_zero(self._data[position:])

    def _judge_rest(self) -> None:
        """Say what stands where the next batch should: nothing, zeros, or which kind of damage."""
        if not self.rest:
            return
        if is_zero(self._data[self.position :]):
            self.zeros = self.rest
            return
        self.damage = Damage(*self._complaint())

    def _complaint(self) -> tuple[DamageKind, int, str]:
        at, rest = self.position, self.rest
        if rest <= MAGIC_AT:
            return DamageKind.PARTIAL, at, f"{rest} bytes are less than a header"
        base_offset, length, _, magic = _PREFIX.unpack_from(self._data, at)
        if not 0 <= magic <= 2:
            return DamageKind.MAGIC, at, f"magic {magic}, and there is none but 0, 1 and 2"
        if length < _SMALLEST[magic]:
            least = _SMALLEST[magic]
            return DamageKind.LENGTH, at, f"batch length {length} is less than {least}, the least of magic {magic}"
        if base_offset < self.next_offset:
            return DamageKind.ORDER, at, f"base offset {base_offset} where {self.next_offset} or more is due"
        if base_offset > self._highest:
            return DamageKind.ORDER, at, f"base offset {base_offset}, and {self._highest} is the last that can be here"
        if LENGTH_PREFIX + length > rest:
            return DamageKind.PARTIAL, at, f"{LENGTH_PREFIX + length:,} bytes announced and {rest:,} left"
        delta = parse_header(self._data, at).last_offset_delta
        return DamageKind.HEADER, at, f"last offset delta {delta} behind base offset {base_offset}"


def is_zero(data: memoryview) -> bool:
    """Whether there is nothing but zeros."""
    return all(bytes(block := data[at : at + _BLOCK]) == _ZEROS[: len(block)] for at in range(0, len(data), _BLOCK))
