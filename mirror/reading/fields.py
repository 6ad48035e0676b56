"""What brokers keep in logs of their own: the records of a log in files, and the fields of one record's message.

kio has the messages of the wire, and not those that brokers write to `__cluster_metadata` and `__consumer_offsets`.
Their fields are encoded in the same ways (Kafka `ByteBufferAccessor`, KIP-482): big-endian numbers, strings behind an
int16 length (-1: null), and in flexible versions behind an unsigned varint of length + 1 (0: null).
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

from mirror.batch import legacy, records
from mirror.batch.header import RawBatch
from mirror.batch.segment import Walk
from mirror.errors import BadRecords
from mirror.reading.archive import PartitionLog

#: Bytes of a log that are looked at together.
_CHUNK: Final = 4 << 20
_INT8, _INT16, _INT32, _INT64 = Struct(">b"), Struct(">h"), Struct(">i"), Struct(">q")
#: Bytes of an unsigned varint of 32 bits.
_VARINT_BYTES: Final = 5
_UUID_BYTES: Final = 16


class Pair(NamedTuple):
    """One record: its offset, its key and its value."""

    offset: int
    key: bytes | None
    value: bytes | None


def batches_of(log: PartitionLog, begin: int = 0) -> Iterator[RawBatch]:
    """The sound batches of a log that reach beyond an offset, control batches and those of open and aborted
    transactions included. Raises ConfigError where a file changes meanwhile.
    """
    at = max(begin, log.start)
    while data := log.read(at, _CHUNK, log.end):
        walk = Walk(data)
        for raw in walk:
            if raw.header.next_offset > at:
                yield raw
        if walk.next_offset <= at:
            return
        at = walk.next_offset


def pairs_of(raw: RawBatch) -> Iterator[Pair]:
    """The records of a batch of data, of any magic. Raises BadRecords where it is not what its header says."""
    found = (records if raw.header.magic == 2 else legacy).read(raw)
    data = found.data.tobytes()
    columns = (found.offsets, found.key_at, found.key_size, found.value_at, found.value_size)
    for offset, key_at, key_size, value_at, value_size in zip(*(one.tolist() for one in columns), strict=True):
        key = None if key_size < 0 else data[key_at : key_at + key_size]
        yield Pair(offset, key, None if value_size < 0 else data[value_at : value_at + value_size])


class Fields:
    """The fields of a message, taken one after another. Each of these raises BadRecords where the bytes end before the
    field does, or are none of its kind.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def int8(self) -> int:
        """A byte with a sign."""
        return self._number(_INT8)

    def int16(self) -> int:
        """Two bytes with a sign."""
        return self._number(_INT16)

    def int32(self) -> int:
        """Four bytes with a sign."""
        return self._number(_INT32)

    def int64(self) -> int:
        """Eight bytes with a sign."""
        return self._number(_INT64)

    def uuid(self) -> UUID:
        """An id of 16 bytes."""
        return UUID(bytes=self._taken(_UUID_BYTES))

    def varint(self) -> int:
        """An unsigned varint below 2^32."""
        found = 0
        for number in range(_VARINT_BYTES):
            byte = self._taken(1)[0]
            found |= (byte & 0x7F) << (7 * number)
            if byte < 0x80:
                if found >= 1 << 32:
                    break
                return found
        raise BadRecords(f"a varint beyond 32 bits at byte {self._at}")

    def string(self, *, flexible: bool) -> str:
        """Text that is there."""
        found = self.nullable_string(flexible=flexible)
        if found is None:
            raise BadRecords(f"null where a string is due at byte {self._at}")
        return found

    def nullable_string(self, *, flexible: bool) -> str | None:
        """Text, or null."""
        size = self.varint() - 1 if flexible else self.int16()
        if size < 0:
            if size < -1:
                raise BadRecords(f"a string of {size} bytes at byte {self._at}")
            return None
        try:
            return self._taken(size).decode()
        except UnicodeDecodeError as problem:
            raise BadRecords(f"a string that is no UTF-8 before byte {self._at}") from problem

    def tags(self) -> dict[int, bytes]:
        """The tagged fields at the end of a flexible message, by their tags."""
        found: dict[int, bytes] = {}
        for _ in range(self.varint()):
            tag, size = self.varint(), self.varint()
            found[tag] = self._taken(size)
        return found

    def end(self) -> None:
        """Raises BadRecords where bytes are left."""
        if left := len(self._data) - self._at:
            raise BadRecords(f"{left} bytes behind the end of a message")

    def _number(self, of: Struct) -> int:
        (found,) = of.unpack(self._taken(of.size))
        return int(found)

    def _taken(self, size: int) -> bytes:
        begin, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise BadRecords(f"a message of {len(self._data)} bytes ends inside a field of {size} at byte {begin}")
        return self._data[begin : self._at]
