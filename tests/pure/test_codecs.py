"""Payloads against other implementations of each codec, in both directions, and against payloads made to do harm."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Final

import aiokafka.codec
import cramjam
import kafka.codec
import lz4.frame
import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from mirror.errors import BadRecords, TooManyBytes
from mirror.records.codecs import (
    GZIP,
    LZ4,
    NONE,
    SNAPPY,
    ZSTD,
    chunks,
    compress,
    declared_size,
    decompress,
    uncompressed_size,
)
from mirror.records.header import CODECS

REAL: Final = (GZIP, SNAPPY, LZ4, ZSTD)
codecs = pytest.mark.parametrize("codec", REAL, ids=CODECS[1:])
TEXT: Final = b"".join(b'{"user": %d, "event": "click", "page": "/item/%d"}\n' % (n, n * n) for n in range(4000))
XERIAL: Final = b"\x82SNAPPY\0"
BIG_ENDIAN: Final = XERIAL + struct.pack(">ii", 1, 1)
LITTLE_ENDIAN: Final = XERIAL + struct.pack("<ii", 1, 1)


def raw_snappy(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def xerial(data: bytes, header: bytes = BIG_ENDIAN, block: int = 32 * 1024) -> bytes:
    packed = [raw_snappy(data[at : at + block]) for at in range(0, len(data), block)]
    return header + b"".join(struct.pack(">i", len(one)) + one for one in packed)


def halves(pack: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """Two streams, one after the other."""
    return lambda data: pack(data[: len(data) // 2]) + pack(data[len(data) // 2 :])


def named_gzip(data: bytes) -> bytes:
    """A member with every optional header field (RFC 1952)."""
    head = b"\x1f\x8b\x08\x1e" + bytes(4) + b"\x00\x03" + b"\x04\x00abcd" + b"name\0" + b"comment\0"
    head += struct.pack("<H", zlib.crc32(head) & 0xFFFF)
    deflate = zlib.compressobj(wbits=-15)
    return head + deflate.compress(data) + deflate.flush() + struct.pack("<II", zlib.crc32(data), len(data))


def zstd_stream(data: bytes) -> bytes:
    """As Java's clients write it: no content size, flushed now and then."""
    stream = zstandard.ZstdCompressor(level=3).compressobj()
    half = len(data) // 2
    first = stream.compress(data[:half]) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    return first + stream.compress(data[half:]) + stream.flush()


def zstd_skippable(data: bytes) -> bytes:
    return b"\x50\x2a\x4d\x18" + struct.pack("<I", 3) + b"abc" + zstandard.ZstdCompressor().compress(data)


def streamed(codec: int, data: bytes) -> bytes:
    return b"".join(chunks(codec, data))


def lz4_frame(**settings: object) -> Callable[[bytes], bytes]:
    def pack(data: bytes) -> bytes:
        packed: bytes = lz4.frame.compress(data, **settings)
        return packed

    return pack


FOREIGN: Final[dict[str, tuple[int, Callable[[bytes], bytes]]]] = {
    "gzip, stored": (GZIP, lambda data: gzip.compress(data, 0)),
    "gzip, small": (GZIP, lambda data: gzip.compress(data, 9)),
    "gzip, kafka-python": (GZIP, kafka.codec.gzip_encode),
    "gzip, all header fields": (GZIP, named_gzip),
    "gzip, two members": (GZIP, halves(gzip.compress)),
    "snappy, raw": (SNAPPY, raw_snappy),
    "snappy, xerial": (SNAPPY, xerial),
    "snappy, xerial with large blocks": (SNAPPY, lambda data: xerial(data, block=1 << 20)),
    "snappy, xerial, two streams": (SNAPPY, halves(xerial)),
    "snappy, xerial, little-endian header": (SNAPPY, lambda data: xerial(data, LITTLE_ENDIAN)),
    "snappy, kafka-python": (SNAPPY, kafka.codec.snappy_encode),
    "snappy, aiokafka": (SNAPPY, aiokafka.codec.snappy_encode),
    "lz4, linked blocks": (LZ4, lz4_frame(block_linked=True)),
    "lz4, all checksums": (LZ4, lz4_frame(content_checksum=True, block_checksum=True)),
    "lz4, blocks of 4 MB": (LZ4, lz4_frame(block_size=7, block_linked=False, store_size=False)),
    "lz4, two frames": (LZ4, halves(lz4_frame(block_linked=False, store_size=False))),
    "lz4, kafka-python": (LZ4, kafka.codec.lz4_encode),
    "lz4, aiokafka": (LZ4, aiokafka.codec.lz4_encode),
    "zstd, known size": (ZSTD, zstandard.ZstdCompressor().compress),
    "zstd, small": (ZSTD, zstandard.ZstdCompressor(level=19).compress),
    "zstd, stream": (ZSTD, zstd_stream),
    "zstd, checksum": (ZSTD, zstandard.ZstdCompressor(write_checksum=True, write_content_size=False).compress),
    "zstd, two frames": (ZSTD, halves(zstd_stream)),
    "zstd, skippable frame": (ZSTD, zstd_skippable),
    "zstd, kafka-python": (ZSTD, kafka.codec.zstd_encode),
}
READERS: Final[dict[str, tuple[int, Callable[[bytes], bytes]]]] = {
    "gzip": (GZIP, gzip.decompress),
    "snappy, kafka-python": (SNAPPY, kafka.codec.snappy_decode),
    "snappy, aiokafka": (SNAPPY, aiokafka.codec.snappy_decode),
    "lz4, kafka-python": (LZ4, kafka.codec.lz4_decode),
    "lz4, aiokafka": (LZ4, aiokafka.codec.lz4_decode),
    "zstd, kafka-python": (ZSTD, kafka.codec.zstd_decode),
    "zstd, aiokafka": (ZSTD, aiokafka.codec.zstd_decode),
}
writers = pytest.mark.parametrize(("codec", "pack"), FOREIGN.values(), ids=FOREIGN)


@codecs
@given(st.binary(max_size=2000), st.integers(1, 200))
@example(b"", 1)
def test_what_is_compressed_comes_back(codec: int, data: bytes, times: int) -> None:
    assert bytes(decompress(codec, compress(codec, data * times))) == data * times
    assert bytes(decompress(codec, memoryview(compress(codec, memoryview(data))))) == data


@writers
def test_what_others_write_is_read(codec: int, pack: Callable[[bytes], bytes]) -> None:
    for data in (b"x", TEXT[:500], TEXT, bytes(3_000_000)):
        assert bytes(decompress(codec, pack(data))) == data
        assert streamed(codec, pack(data)) == data
        assert uncompressed_size(codec, pack(data)) == len(data)


@pytest.mark.parametrize(("codec", "unpack"), READERS.values(), ids=READERS)
def test_what_is_written_others_read(codec: int, unpack: Callable[[bytes], bytes]) -> None:
    for data in (b"x", TEXT[:500], TEXT, bytes(3_000_000)):
        assert unpack(compress(codec, data)) == data


def test_lz4_is_written_as_kafka_reads_it() -> None:
    """Its reader refuses linked blocks, and computes a content checksum in a way of its own."""
    info = lz4.frame.get_frame_info(compress(LZ4, TEXT * 10))  # the bit is set for several blocks alone
    assert not info["block_linked"]
    assert not info["content_checksum"]


@pytest.mark.parametrize("work", [decompress, streamed, compress])
def test_a_codec_that_does_not_exist(work: Callable[[int, bytes], object]) -> None:
    for codec in (5, -1):
        with pytest.raises(BadRecords, match="no codec"):
            work(codec, TEXT)


@writers
@pytest.mark.parametrize("size", [1, 1000, 65_536, 200_000])
def test_the_cap_is_exact(codec: int, pack: Callable[[bytes], bytes], size: int) -> None:
    for data in (TEXT[:size], bytes(size)):
        packed = pack(data)
        assert bytes(decompress(codec, packed, size)) == data
        assert len(decompress(codec, packed, size + 1)) == size
        with pytest.raises(TooManyBytes, match=f"more than {size - 1} bytes"):
            decompress(codec, packed, size - 1)


def allocated(call: Callable[[], object]) -> int:
    """Bytes that Python and numpy held at most, above those of before."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@writers
def test_a_bomb_is_given_up_at_the_cap(codec: int, pack: Callable[[bytes], bytes]) -> None:
    bomb, cap = pack(bytes(64 << 20)), 1 << 20

    def light() -> None:
        with pytest.raises(TooManyBytes):
            decompress(codec, bomb, cap)

    assert allocated(light) < 3 * cap + len(bomb)


@writers
def test_a_bomb_comes_as_a_stream_of_small_chunks(codec: int, pack: Callable[[bytes], bytes]) -> None:
    """Whatever it decompresses to; a raw block of snappy is at most 22 times the input."""
    size = 64 << 20
    bomb = pack(bytes(size))
    bound = 22 * len(bomb) if codec == SNAPPY and bomb[:8] != XERIAL else 12 << 20
    assert allocated(lambda: uncompressed_size(codec, bomb)) < bound
    assert max(map(len, chunks(codec, bomb))) <= 8 << 20
    assert uncompressed_size(codec, bomb) == size


@pytest.mark.parametrize(
    ("codec", "payload"),
    [
        (SNAPPY, b"\xff\xff\xff\xff\x0f" + raw_snappy(TEXT)[3:]),
        (SNAPPY, BIG_ENDIAN + struct.pack(">i", 6) + b"\xff\xff\xff\xff\x0fa"),
        (SNAPPY, BIG_ENDIAN + b"\x7f\xff\xff\xff" + raw_snappy(TEXT)),
        (LZ4, b"\x04\x22\x4d\x18\x68\x40" + struct.pack("<Q", 2**62) + b"\0" + bytes(100)),
        (ZSTD, b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 2**62) + bytes(100)),
        (ZSTD, b"\x28\xb5\x2f\xfd\x00\xff" + bytes(100)),
        (GZIP, gzip.compress(TEXT)[:-4] + b"\xff\xff\xff\xff"),
    ],
)
@pytest.mark.parametrize("magic", [0, 2])
def test_a_declared_size_is_not_believed(codec: int, payload: bytes, magic: int) -> None:
    def light() -> None:
        with pytest.raises(BadRecords):
            decompress(codec, payload, 1 << 20, magic=magic)

    assert allocated(light) < 3 << 20


@pytest.mark.parametrize("codec", [NONE, GZIP, SNAPPY])
@given(data=st.binary(max_size=100_000))
def test_a_payload_declares_its_size(codec: int, data: bytes) -> None:
    packed = compress(codec, data)
    assert declared_size(codec, memoryview(packed)) in ({len(data)} if len(packed) >= 8 else {len(data), None})


@pytest.mark.parametrize("size", [0, 255, 256, 65_791, 65_792, 3_000_000])
def test_a_frame_declares_its_size_where_it_has_one(size: int) -> None:
    whole = zstandard.ZstdCompressor(level=1).compress(bytes(size))
    assert declared_size(ZSTD, memoryview(whole)) == size
    stream = zstandard.ZstdCompressor(level=1, write_content_size=False).compress(bytes(size))
    assert declared_size(ZSTD, memoryview(stream)) is None
    assert declared_size(LZ4, memoryview(compress(LZ4, bytes(size)))) is None
    assert declared_size(LZ4, memoryview(lz4.frame.compress(bytes(size), store_size=True))) == (size or None)


def test_a_payload_of_gzip_members_without_end_is_refused() -> None:
    for read in (decompress, streamed):
        with pytest.raises(BadRecords, match="members"):
            read(GZIP, gzip.compress(b"") * 50_000)


@writers
def test_truncated_at_every_byte(codec: int, pack: Callable[[bytes], bytes]) -> None:
    """All of it, or an error. A stream cut between two of its parts is whole by its format: then, the first part."""
    data = TEXT[:300]
    packed = pack(data)
    for read in (decompress, streamed):
        whole = 0
        for length in range(len(packed)):
            try:
                found = bytes(read(codec, packed[:length]))
            except BadRecords:
                continue
            assert found in (b"", data[:150])
            whole += 1
        assert whole <= 3


@writers
def test_bytes_behind_the_end_are_damage(codec: int, pack: Callable[[bytes], bytes]) -> None:
    for read in (decompress, streamed):
        for tail in (b"\0", b"garbage"):
            with pytest.raises(BadRecords, match=f"{CODECS[codec]} payload: "):
                read(codec, pack(TEXT[:1000]) + tail)
