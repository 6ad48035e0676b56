"""Magic 0 and 1 against messages that Kafka, kafka-python and aiokafka made, and against messages made to do harm."""

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
from mirror.records.header import APPEND_TIME, CODECS, split
from mirror.records.rewrite import read_legacy

#: Offset, timestamp, key, value.
Row = tuple[int, int, bytes | None, bytes | None]

magics = pytest.mark.parametrize("magic", [0, 1])
OLD_CODECS: Final = (NONE, GZIP, SNAPPY, LZ4)
codecs = pytest.mark.parametrize("codec", OLD_CODECS, ids=CODECS[:4])

GOLDEN_FIELDS: Final = ((b"k1", b"first value, first value, first value"), (None, b"second"), (b"", None))
GOLDEN_OFFSETS: Final = (100, 101, 104)
GOLDEN_TIMES: Final = (1_500_000_000_000, 1_500_000_000_005, 1_500_000_000_003)
GOLDEN_APPEND_TIME: Final = 1_500_000_000_999
#: By magic, codec and append time: the records above, by the `MemoryRecordsBuilder` of Kafka's Java client 4.3.
GOLDEN: Final = {
    (0, NONE, False): """
        000000000000006400000035295f6c8c0000000000026b310000002566697273742076616c75652c2066697273742076616c75652c206669
        7273742076616c7565000000000000006500000014a6f2489d0000ffffffff000000067365636f6e6400000000000000680000000e3d3148
        95000000000000ffffffff
    """,
    (0, GZIP, False): """
        0000000000000068000000689851b5ac0001ffffffff0000005a1f8b08000000000000ff63600083142036d58ccfe901f398b20d81a46a5a
        665171894259624e69aa8e022e0e443f03881659f6c9632e03c37f2000f2d88a5393f3f352a0f21940cc676be83115c205a90100b6be3c3a
        7b000000
    """,
    (0, SNAPPY, False): """
        00000000000000680000007f3a240e900002ffffffff0000007182534e415050590000000001000000010000005d7b000009012064000000
        35295f6c8c050f4c026b310000002566697273742076616c75652c205e0d00053104000001084c14a6f2489d0000ffffffff000000067365
        636f6e0159010148680000000e3d314895000000000000ffffffff
    """,
    (0, LZ4, False): """
        00000000000000680000007f7bdc42080003ffffffff0000007104224d1860401a6200000012000100916400000035295f6c8c0f00ff0502
        6b310000002566697273742076616c75652c200d0005013100f00b00006500000014a6f2489d0000ffffffff000000067365636f6e590000
        0200f004680000000e3d314895000000000000ffffffff00000000
    """,
    (1, NONE, False): """
        00000000000000640000003dcb9eb80801000000015d3ef79800000000026b310000002566697273742076616c75652c2066697273742076
        616c75652c2066697273742076616c756500000000000000650000001c0a87ad4b01000000015d3ef79805ffffffff000000067365636f6e
        64000000000000006800000016334a8c1b01000000015d3ef7980300000000ffffffff
    """,
    (1, NONE, True): """
        00000000000000640000003db3c5508f01080000015d3ef79be7000000026b310000002566697273742076616c75652c2066697273742076
        616c75652c2066697273742076616c756500000000000000650000001c87c95e5601080000015d3ef79be7ffffffff000000067365636f6e
        6400000000000000680000001659b7a86101080000015d3ef79be700000000ffffffff
    """,
    (1, GZIP, False): """
        00000000000000680000007963fc75ca01010000015d3ef79805ffffffff000000631f8b08000000000000ff63608003dbd3f37670300219
        8cb176df67804498b20d81a46a5a665171894259624e69aa8e022e0ed410907e19aef6b5de708358ff030190c3569c9a9c9f970255c702c4
        62c65e3dd27075cc2061905a005a0ba6a593000000
    """,
    (1, GZIP, True): """
        00000000000000680000007acbd56b5d01090000015d3ef79be7ffffffff000000641f8b08000000000000ff63608003dbcd4703fa193918
        181863edbecf7e0e1461ca360492aa699945c5250a658939a5a93a0ab8385043188158a6fd645c18c2a0ff400014652b4e4dcecf4b81aa63
        0162b1c8ed2b12512c6400a90500447f739193000000
    """,
    (1, SNAPPY, False): """
        000000000000006800000096db52a94a01020000015d3ef79805ffffffff0000008082534e415050590000000001000000010000006c9301
        00001901343dcb9eb80801000000015d3ef79801184c026b310000002566697273742076616c75652c205e0d000130080000000140101c0a
        87ad4b010905493805ffffffff000000067365636f6e6401252c0000000400000016334a8c1b1528200300000000ffffffff
    """,
    (1, SNAPPY, True): """
        00000000000000680000008fd78bde66010a0000015d3ef79be7ffffffff0000007982534e41505059000000000100000001000000659301
        00001901983db3c5508f01080000015d3ef79be7000000026b310000002566697273742076616c75652c20665a0d000d4820010000001c87
        c95e56194938ffffffff000000067365636f6e6400090124040000001659b7a861012e71001000ffffffff
    """,
    (1, LZ4, False): """
        00000000000000680000008f67ec2d4501030000015d3ef79805ffffffff0000007904224d186040826a00000016000100e03dcb9eb80801
        000000015d3ef7981800ff05026b310000002566697273742076616c75652c200d0005003000003c00850000001c0a87ad4b4900f10005ff
        ffffff000000067365636f6e642600b500000400000016334a8c1b2800900300000000ffffffff00000000
    """,
    (1, LZ4, True): """
        0000000000000068000000898d1452ac010b0000015d3ef79be7ffffffff0000007304224d186040826400000016000100ff173db3c5508f
        01080000015d3ef79be7000000026b310000002566697273742076616c75652c200d000503480096010000001c87c95e564900e3ffffffff
        000000067365636f6e64280096040000001659b7a86128008000000000ffffffff00000000
    """,
}


def rows(records: Records) -> list[Row]:
    assert not any(headers(records, index) for index in range(len(records)))
    columns = zip(records.offsets.tolist(), records.timestamps.tolist(), strict=True)
    return [(*pair, key(records, index), value(records, index)) for index, pair in enumerate(columns)]


def read_set(data: bytes) -> list[Row]:
    return [row for one in split(memoryview(data)) for row in rows(read_legacy(one))]


# what others made


@pytest.mark.parametrize("kind", GOLDEN, ids=lambda kind: f"{kind[0]}-{CODECS[kind[1]]}-{kind[2]}")
def test_what_kafka_wrote(kind: tuple[int, int, bool]) -> None:
    magic, codec, append_time = kind
    data = bytes.fromhex(GOLDEN[kind])
    if not magic:
        times: Sequence[int] = (-1, -1, -1)
    else:
        times = (GOLDEN_APPEND_TIME,) * 3 if append_time else GOLDEN_TIMES
    batches = list(split(memoryview(data)))
    assert [one.header.codec for one in batches] == [codec] * (1 if codec else 3)
    assert batches[-1].header.last_offset == 104
    wanted = [(*place, *pair) for *place, pair in zip(GOLDEN_OFFSETS, times, GOLDEN_FIELDS, strict=True)]
    assert read_set(data) == wanted


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


# offsets and timestamps


@codecs
@magics
def test_a_single_message(magic: int, codec: int) -> None:
    one = message(7, magic, b"v", b"k", timestamp=5)
    data = wrapper(7, magic, [one], codec) if codec else one
    assert read_set(data) == [(7, 5 if magic else -1, b"k", b"v")]


@codecs
def test_the_offsets_of_a_set_of_magic_0_are_absolute(codec: int) -> None:
    inner = [message(offset, 0) for offset in (90, 91, 95)]
    assert [row[0] for row in read_set(wrapper(95, 0, inner, codec) if codec else b"".join(inner))] == [90, 91, 95]


def test_a_set_of_magic_0_may_end_before_its_own_offset() -> None:
    assert [row[0] for row in read_set(wrapper(95, 0, [message(90, 0), message(91, 0)]))] == [90, 91]


@pytest.mark.parametrize("inner", [(0, 1, 5), (90, 91, 95), (3, 4, 8)], ids=["relative", "absolute", "compacted"])
def test_the_offsets_of_a_set_of_magic_1_end_with_its_own(inner: Sequence[int]) -> None:
    data = wrapper(95, 1, [message(offset, 1) for offset in inner])
    assert [row[0] for row in read_set(data)] == [90, 91, 95]


@magics
def test_a_set_that_no_broker_gave_an_offset_counts_from_0(magic: int) -> None:
    assert [row[0] for row in read_set(wrapper(0, magic, [message(offset, magic) for offset in (0, 1, 2)]))] == [
        0,
        1,
        2,
    ]


@magics
@pytest.mark.parametrize("inner", [(0, 0), (1, 0), (0, 2, 1), (-1, 0), (5, 11)])
def test_offsets_that_cannot_be(magic: int, inner: Sequence[int]) -> None:
    with pytest.raises(BadRecords, match="offset"):
        read_legacy(raw(wrapper(10, magic, [message(offset, magic) for offset in inner])))


def test_an_append_time_set_has_one_timestamp() -> None:
    inner = [message(offset, 1, timestamp=offset) for offset in (0, 1)]
    assert [row[1] for row in read_set(wrapper(1, 1, inner, attributes=APPEND_TIME, timestamp=77))] == [77, 77]
    assert [row[1] for row in read_set(wrapper(1, 1, inner, timestamp=77))] == [0, 1]


def test_the_append_time_bit_counts_on_the_wrapper_alone() -> None:
    inner = [message(0, 1, timestamp=5, attributes=APPEND_TIME)]
    assert read_set(wrapper(0, 1, inner, timestamp=77))[0][1] == 5
    assert read_set(message(3, 1, timestamp=5, attributes=APPEND_TIME))[0][1] == 5


def test_magic_0_has_no_timestamp_whatever_its_bits_say() -> None:
    assert read_set(wrapper(0, 0, [message(0, 0)], attributes=APPEND_TIME))[0][1] == -1


@magics
def test_any_negative_length_is_a_null(magic: int) -> None:
    body = struct.pack(">bb", magic, 0) + bytes(8 * magic) + struct.pack(">ii", -7, -(2**31))
    found = read_legacy(raw(summed(3, body)))
    assert rows(found) == [(3, 0 if magic else -1, None, None)]
    assert (found.key_size[0], found.value_size[0]) == (-1, -1)


# what is refused


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
def test_the_crc_of_each_message_in_a_set_counts(magic: int) -> None:
    good = message(0, magic) + message(1, magic)
    for position in (12, len(good) // 2 + 12, len(good) - 1):
        damaged = bytearray(good)
        damaged[position] ^= 1
        with pytest.raises(BadRecords, match="CRC"):
            read_legacy(raw(wrapper(1, magic, [bytes(damaged)])))


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
    "magic 2 inside": (lambda m: wrapper(9, m, [message(0, 2)]), "magic 2 inside"),
    "compressed twice": (lambda m: wrapper(9, m, [wrapper(0, m, [message(0, m)])]), "compressed itself"),
    "zstd": (lambda m: wrapper(9, m, [message(0, m)], ZSTD), "zstd in magic"),
    "codec 5": (lambda m: recoded(message(9, m), 5), "no codec"),
    "not compressed": (lambda m: recoded(message(9, m), GZIP), "gzip payload"),
    "bytes after the value": (lambda m: message(9, m, tail=b"x"), "a value of 5 bytes"),
    "bytes after the value inside": (lambda m: wrapper(9, m, [message(0, m, tail=b"x")]), "a value of 5"),
    "a key too long": (with_long_key, "a key of 2147483647 bytes"),
    "a value too long": (lambda m: summed(9, message(9, m)[16:-1]), "a value of 5 bytes"),
    "a length too long": (lambda m: with_inner_length(m, 99), "has length 99"),
    "a length too short": (lambda m: with_inner_length(m, 13), "has length 13"),
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
@codecs
def test_the_cap_is_that_of_the_set(magic: int, codec: int) -> None:
    inner = message(0, magic, bytes(100_000))
    if not codec:
        assert len(read_legacy(raw(inner), 10)) == 1  # nothing is decompressed
        return
    data = raw(wrapper(9, magic, [inner], codec))
    assert len(read_legacy(data, len(inner))) == 1
    with pytest.raises(TooManyBytes) as caught:
        read_legacy(data, len(inner) - 1)
    assert caught.value.offset == 9


@magics
@given(st.binary(max_size=120), st.sampled_from([GZIP, SNAPPY, LZ4]))
def test_garbage_inside_is_reported(magic: int, data: bytes, codec: int) -> None:
    with pytest.raises(BadRecords):
        read_legacy(raw(wrapper(9, magic, [data], codec)))


@magics
@given(st.data())
def test_a_damaged_set_is_reported_or_harmless(magic: int, draws: st.DataObject) -> None:
    """With the wrapper's CRC made right again, so that what is inside gets read."""
    data = bytearray(b"".join(message(offset, magic, b"v" * offset, b"k") for offset in range(4)))
    for _ in range(draws.draw(st.integers(1, 3))):
        data[draws.draw(st.integers(0, len(data) - 1))] = draws.draw(st.integers(0, 255))
    try:
        found = rows(read_legacy(raw(wrapper(9, magic, [bytes(data)]))))
    except BadRecords:
        return
    assert [row[2:] for row in found] == [(b"k", b"v" * offset) for offset in range(4)]  # offsets are in no CRC
