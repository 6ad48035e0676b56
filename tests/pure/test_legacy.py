"""Magic 0 and 1 against messages that kafka-python and aiokafka made, and against messages made to do harm. What Kafka
itself wrote is in `test_vectors.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

import aiokafka.record.legacy_records as aio
import kafka.record.legacy_records as python
import pytest
from hypothesis import given
from hypothesis import strategies as st
from old_messages import message, summed, wrapper
from rawbatches import raw

from mirror.errors import BadRecords, TooManyBytes
from mirror.records.codecs import GZIP, LZ4, NONE, SNAPPY, ZSTD
from mirror.records.columns import Records, headers, key, value
from mirror.records.header import CODECS, split
from mirror.records.rewrite import read_legacy

#: Offset, timestamp, key, value.
Row = tuple[int, int, bytes | None, bytes | None]

magics = pytest.mark.parametrize("magic", [0, 1])
OLD_CODECS: Final = (NONE, GZIP, SNAPPY, LZ4)
codecs = pytest.mark.parametrize("codec", OLD_CODECS, ids=CODECS[:4])


def rows(records: Records) -> list[Row]:
    assert not any(headers(records, index) for index in range(len(records)))
    columns = zip(records.offsets.tolist(), records.timestamps.tolist(), strict=True)
    return [(*pair, key(records, index), value(records, index)) for index, pair in enumerate(columns)]


def read_set(data: bytes) -> list[Row]:
    return [row for one in split(memoryview(data)) for row in rows(read_legacy(one))]


OFFSETS: Final = st.lists(st.integers(0, 50), min_size=1, max_size=20, unique=True).map(sorted)
FIELD: Final = st.none() | st.binary(max_size=60)


@st.composite
def sets(draw: st.DrawFn) -> list[Row]:
    """Records with holes between them."""
    offsets = draw(OFFSETS)
    times = st.integers(0, 2**42)
    return [(offset, draw(times), draw(FIELD), draw(FIELD)) for offset in offsets]


def built(library: Any, magic: int, codec: int, records: list[Row]) -> bytes:
    builder = library.LegacyRecordBatchBuilder(magic, codec, 1 << 20)
    for offset, timestamp, its_key, its_value in records:
        builder.append(offset, timestamp=timestamp, key=its_key, value=its_value)
    return bytes(builder.build())


def rows_read(library: Any, magic: int, data: bytes) -> list[Row]:
    """What a library reads."""
    return [
        (record.offset, record.timestamp if magic else -1, record.key, record.value)
        for one in split(memoryview(data))
        for record in library.LegacyRecordBatch(bytearray(one.data), magic)
    ]


@pytest.mark.parametrize(
    ("library", "magic", "codec"),
    [
        (library, magic, codec)
        for library in (python, aio)
        for magic in (0, 1)
        for codec in OLD_CODECS
        if (magic, codec) != (0, LZ4)  # kafka-python asks for another library, aiokafka writes the right header check
    ],
)
@given(sets(), st.integers(51, 2**62))
def test_what_python_clients_wrote_and_read(
    library: Any, magic: int, codec: int, records: list[Row], last: int
) -> None:
    data = built(library, magic, codec, records)
    moved = 0
    if codec:  # a broker sets the wrapper's offset, which no CRC covers
        last = last if magic else records[-1][0]
        moved = last - records[-1][0]
        data = struct.pack(">q", last) + data[8:]
    found = read_set(data)
    assert found == [(offset + moved, time if magic else -1, *pair) for offset, time, *pair in records]
    assert found == rows_read(python, magic, data) == rows_read(aio, magic, data)


def test_the_offsets_of_a_set_of_magic_0_are_absolute() -> None:
    for inner in ((90, 91, 95), (90, 91)):
        assert [row[0] for row in read_set(wrapper(95, 0, [message(offset, 0) for offset in inner]))] == [*inner]


@pytest.mark.parametrize("inner", [(0, 1, 5), (90, 91, 95), (3, 4, 8)], ids=["relative", "absolute", "compacted"])
def test_the_offsets_of_a_set_of_magic_1_end_with_its_own(inner: Sequence[int]) -> None:
    data = wrapper(95, 1, [message(offset, 1) for offset in inner])
    assert [row[0] for row in read_set(data)] == [90, 91, 95]


@magics
@pytest.mark.parametrize("inner", [(0, 0), (1, 0), (0, 2, 1), (-1, 0), (5, 11)])
def test_offsets_that_cannot_be(magic: int, inner: Sequence[int]) -> None:
    with pytest.raises(BadRecords, match="offset"):
        read_legacy(raw(wrapper(10, magic, [message(offset, magic) for offset in inner])))


@codecs
@magics
def test_each_flipped_byte_is_found(magic: int, codec: int) -> None:
    inner = [message(offset, magic, b"value", b"key") for offset in (0, 1)]
    good = wrapper(9, magic, inner, codec) if codec else message(9, magic, b"value", b"key")
    for position in {*range(12, len(good))} - {16}:  # another magic is another format
        damaged = bytearray(good)
        damaged[position] ^= 0x41
        with pytest.raises(BadRecords):
            read_legacy(raw(bytes(damaged)))


@magics
@codecs
def test_a_set_truncated_at_every_byte(magic: int, codec: int) -> None:
    """Kafka's reader leaves a cut message out, and says nothing."""
    first, second = message(0, magic), message(1, magic)
    data = first + second
    for length in range(1, len(data)):
        packed = wrapper(9, magic, [data[:length]], codec or GZIP)
        if length == len(first):
            assert len(read_legacy(raw(packed))) == 1
            continue
        with pytest.raises(BadRecords):
            read_legacy(raw(packed))


def recoded(data: bytes, codec: int) -> bytes:
    """The same message with another codec in its attributes, and the CRC for it."""
    return summed(9, data[16:17] + bytes([codec]) + data[18:])


def with_inner_length(magic: int, length: int) -> bytes:
    """A set whose message has another length."""
    return wrapper(9, magic, [message(0, magic)[:8] + struct.pack(">i", length) + bytes(40)])


def with_long_key(magic: int) -> bytes:
    return summed(9, message(9, magic)[16:-13] + struct.pack(">i", 2**31 - 1) + b"x" * 9)


REFUSED: Final[dict[str, tuple[Callable[[int], bytes], str]]] = {
    "no value": (lambda m: message(9, m, None, attributes=GZIP), "without a value"),
    "no message": (lambda m: wrapper(9, m, []), "without messages"),
    "another magic inside": (lambda m: wrapper(9, m, [message(0, 1 - m, b"long enough")]), "inside magic"),
    "compressed twice": (lambda m: wrapper(9, m, [wrapper(0, m, [message(0, m)])]), "compressed itself"),
    "zstd": (lambda m: wrapper(9, m, [message(0, m)], ZSTD), "zstd in magic"),
    "codec 5": (lambda m: recoded(message(9, m), 5), "no codec"),
    "not compressed": (lambda m: recoded(message(9, m), GZIP), "gzip payload"),
    "bytes after the value": (lambda m: message(9, m, tail=b"x"), "a value of 5 bytes"),
    "a key too long": (with_long_key, "a key of 2147483647 bytes"),
    "a value too long": (lambda m: summed(9, message(9, m)[16:-1]), "a value of 5 bytes"),
    "a length too long": (lambda m: with_inner_length(m, 99), "has length 99"),
    "a negative length": (lambda m: with_inner_length(m, -12), "has length -12"),
}


@magics
@pytest.mark.parametrize(("make", "text"), REFUSED.values(), ids=REFUSED)
def test_what_no_broker_stores_is_refused(make: Callable[[int], bytes], text: str, magic: int) -> None:
    data = make(magic)
    with pytest.raises(BadRecords, match=text) as caught:
        read_legacy(raw(data))
    assert caught.value.offset == raw(data).header.base_offset


@magics
def test_the_cap_is_that_of_the_set(magic: int) -> None:
    inner = message(0, magic, bytes(100_000))
    assert len(read_legacy(raw(inner), 10)) == 1, "nothing is decompressed"
    data = raw(wrapper(9, magic, [inner]))
    assert len(read_legacy(data, len(inner))) == 1
    with pytest.raises(TooManyBytes) as caught:
        read_legacy(data, len(inner) - 1)
    assert caught.value.offset == 9
