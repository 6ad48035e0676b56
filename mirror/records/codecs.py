"""Compressed payloads: decompressed under a cap, compressed for speed, and the sizes that they declare.

    id  codec   read                                                  written
     1  gzip    several members                                       one member, level 1
     2  snappy  one raw block, or xerial's framing of many            xerial's framing of 32 KB blocks
     3  lz4     frames, linked blocks too; magic 0: any header check  a frame of independent 256 KB blocks
     4  zstd    several frames, content size or not                   one frame, level 1

Every reader in use takes what is written. Kafka's lz4 reader refuses linked blocks (`Lz4BlockInputStream`), and its
content checksum is not the format's, so there is none. A raw snappy block, which librdkafka and the Go clients write,
would be 2 % smaller than the framing of Kafka's own producer, but it costs brokers and Java consumers 40 % more to
read (xerial `SnappyInputStream`: 1.37 against 0.97 ms for 1.6 MB).

`decompress` gives a payload whole: the cap bounds what a hostile one can make us allocate. `chunks` gives one of any
size piece by piece. No declared size is believed: output goes into a buffer that grows with what has come out. Input
that ends early, and bytes behind its end, are errors, so that no record is left out in silence.

Decision: levels by measurement, on 1.6 MB of JSON records of 400 bytes, in MB/s of input. zstd 1: 418 at 0.25 of the
size; zstd 3: 146 at 0.27. igzip 1: 356 at 0.29, level 0: 405 at 0.42, level 3: 160 at 0.29; zlib 6: 46 at 0.28.
lz4 with blocks of 256 KB: 830 at 0.47, of 64 KB: 546. Snappy, raw or framed: 520 at 0.48.

Decision: gzip is written by libdeflate, which is half as fast as igzip in large batches and as fast in small ones.
igzip runs other code on each family of processors and does not promise that all of it gives the same bytes; what is
written must be a function of the source log, whichever host a task runs on.

Where a payload declares its size without compression:

    gzip    the trailer, modulo 2^32 (RFC 1952); of several members, the last one's alone
    snappy  the preamble of a raw block, or of each block in xerial's framing
    lz4     the frame's content size, where its flag is set: Kafka's producers and librdkafka do not set it
    zstd    the frame's content size, where it has one: a stream, as Kafka's producers write, has none

It is a statement, and nothing may be allocated by it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import cramjam
import deflate
import lz4.frame
import numpy as np
from isal import igzip_lib
from zstandard import ZstdCompressor, ZstdDecompressor, ZstdError

from mirror.errors import BadRecords, TooManyBytes
from mirror.records.header import CODEC_MASK, CODECS, HEADER_BYTES, LAYOUT, LENGTH_PREFIX, RawBatch, sealed
from mirror.records.recipe import CAP

# --- Compressed payloads ----------------------------------------------------------------------------------------------

Buffer = bytes | bytearray | memoryview

NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4

#: What the output's first buffer holds: records seldom shrink to less than a sixteenth.
_LEAST_ROOM: Final = 64 * 1024
_GUESSED_RATIO: Final = 16
_GROWTH: Final = 8
#: The text of Rust's `WriteZero`, by which cramjam says that the output did not fit.
_FULL: Final = "failed to write whole buffer"

#: Members in a gzip payload. Each costs a copy of what follows it, so a payload of nothing else would take minutes.
_MOST_MEMBERS: Final = 100
_TRAILER_SIZE: Final = 4

#: Begins xerial's framing; version and least compatible version follow, in either byte order (some producers write
#: them little-endian), and say nothing. Then blocks, each behind its length, which is big-endian.
_XERIAL: Final = b"\x82SNAPPY\0"
_XERIAL_HEADER: Final = _XERIAL + b"\0\0\0\1\0\0\0\1"
_XERIAL_BLOCK: Final = 32 * 1024
_BLOCK_LENGTH: Final = 4

_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_LZ4_SIZE_FLAG: Final = 0x08
#: Magic number, flags, block descriptor and header check.
_LZ4_SMALLEST_HEADER: Final = 7

#: By codec, bytes of input that are decompressed at a time as a stream. A block of zstd gives up to 128 KiB for 4,
#: and its reader has no bound for what it gives at a time.
_FED: Final = {GZIP: 64 * 1024, LZ4: 64 * 1024, ZSTD: 128}
#: Bytes of a chunk at most, but of zstd.
_CHUNK: Final = 1 << 20
#: A block of snappy gives at most 64 bytes for 3.
_SNAPPY_RATIO: Final = 22

#: Idle compressors. One holds a megabyte of tables that take longer to set up than a small batch to compress, and
#: may not be used by two threads at a time, so each use takes one out (both ends of a deque are atomic).
_idle: Final[deque[ZstdCompressor]] = deque()


def decompress(codec: int, data: Buffer, cap: int = CAP, *, magic: int = 2) -> Buffer:
    """The payload of a batch of `magic` as it was before compression; for codec 0 it is `data` itself.

    Raises TooManyBytes where it is more than `cap` bytes, and BadRecords for a codec that does not exist, and for
    input that is damaged, empty, cut short or followed by something else.
    """
    if codec == NONE:
        return _within(data, cap)
    if codec == GZIP:
        return _gunzip(data, cap)
    if codec == SNAPPY:
        return _unsnap(data, cap)
    if codec == LZ4:
        return _grown(LZ4, cramjam.lz4.decompress_into, data if magic else _with_header_check(data), cap)
    if codec == ZSTD:
        return _grown(ZSTD, cramjam.zstd.decompress_into, data, cap)
    raise _unknown(codec)


def uncompressed(raw: RawBatch) -> bytes:
    """A batch of magic 2 as it was before compression, with the CRC of that. Raises as `decompress`."""
    header, section = raw.header, bytes(decompress(raw.header.codec, raw.records))
    length = HEADER_BYTES - LENGTH_PREFIX + len(section)
    plain = header._replace(attributes=header.attributes & ~CODEC_MASK, batch_length=length)
    return sealed(LAYOUT.pack(*plain), section) + section


def chunks(codec: int, data: Buffer) -> Iterator[Buffer]:
    """The payload of a batch of magic 2 as `decompress` gives it, in pieces of a few MiB at most, whatever its size. A
    raw block of snappy is decompressed at once: it is at most `_SNAPPY_RATIO` times the input.

    Raises BadRecords as `decompress` does, as soon as it comes to the damage.
    """
    if codec == NONE:
        yield from _sliced(memoryview(data))
    elif codec == SNAPPY:
        for block in _blocks(memoryview(data)) if data[: len(_XERIAL)] == _XERIAL else (data,):
            yield from _sliced(_snappy_block(block))
    elif codec in _FED:
        yield from _streamed(codec, memoryview(data))
    else:
        raise _unknown(codec)


def uncompressed_size(codec: int, data: Buffer) -> int:
    """Bytes of a payload of magic 2 without compression, whatever their number. Raises BadRecords."""
    return sum(map(len, chunks(codec, data)))


def compress(codec: int, data: Buffer) -> bytes:
    """A payload for a batch of magic 2. The same library gives the same bytes for the same data.

    Raises BadRecords for a codec that does not exist.
    """
    if codec == NONE:
        return bytes(data)
    if codec == GZIP:
        return bytes(deflate.gzip_compress(data, 1))
    if codec == SNAPPY:
        return _snap(memoryview(data))
    if codec == LZ4:
        block_size = lz4.frame.BLOCKSIZE_MAX256KB
        framed: bytes = lz4.frame.compress(data, block_size=block_size, block_linked=False, store_size=False)
        return framed
    if codec == ZSTD:
        return _zstd(data)
    raise _unknown(codec)


def _snap(data: memoryview) -> bytes:
    pieces = [_XERIAL_HEADER]
    for at in range(0, len(data), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(data[at : at + _XERIAL_BLOCK]))
        pieces += len(block).to_bytes(_BLOCK_LENGTH, "big"), block
    return b"".join(pieces)


def _zstd(data: Buffer) -> bytes:
    try:
        compressor = _idle.pop()
    except IndexError:
        compressor = ZstdCompressor(level=1)
    packed = compressor.compress(data)
    _idle.append(compressor)
    return packed


def _grown(codec: int, decompress_into: Callable[[Buffer, memoryview], int], data: Buffer, cap: int) -> memoryview:
    """Decompress into a buffer, and into a larger one for as long as it does not fit."""
    room = min(max(_GUESSED_RATIO * len(data), _LEAST_ROOM), cap)
    while True:
        out = np.empty(room, np.uint8).data
        try:
            return out[: decompress_into(data, out)]
        except cramjam.DecompressionError as problem:
            if _FULL not in str(problem):
                raise _bad(codec, problem) from None
            if room == cap:
                raise _too_many(codec, cap) from None
        room = min(room * _GROWTH, cap)


def _sliced(data: memoryview) -> Iterator[memoryview]:
    return (data[at : at + _CHUNK] for at in range(0, len(data), _CHUNK))


def _snappy_block(block: Buffer) -> memoryview:
    try:
        size = cramjam.snappy.decompress_raw_len(block)
        if size > _SNAPPY_RATIO * len(block):
            raise _bad(SNAPPY, f"a block of {len(block)} bytes states {size}")
        out = np.empty(size, np.uint8).data
        return out[: cramjam.snappy.decompress_raw_into(block, out)]
    except cramjam.DecompressionError as problem:
        raise _bad(SNAPPY, problem) from None


def _streamed(codec: int, data: memoryview) -> Iterator[bytes]:
    """Members or frames one after the other, little of the input at a time: what comes out of that is bounded."""
    member: Any = None
    members = 0
    for at in range(0, len(data), _FED[codec]):
        rest = bytes(data[at : at + _FED[codec]])
        while rest:
            if member is None or member.eof:
                member, members = _STREAMS[codec](), members + 1
                if codec == GZIP and members > _MOST_MEMBERS:
                    raise _bad(GZIP, f"more than {_MOST_MEMBERS} members")
            piece = _fed(codec, member, rest)
            while piece:
                yield piece
                piece = b"" if member.eof or codec == ZSTD else _fed(codec, member, b"")
            rest = (member.unused_data or b"") if member.eof else b""
    if member is None or not member.eof:
        raise _bad(codec, "the input ends early")


def _fed(codec: int, member: Any, data: bytes) -> bytes:
    try:
        piece: bytes = member.decompress(data) if codec == ZSTD else member.decompress(data, _CHUNK)
    except (igzip_lib.IsalError, RuntimeError, ZstdError) as problem:  # type: ignore[misc] # as in `_gunzip`
        raise _bad(codec, problem) from None
    return piece


_STREAMS: Final[dict[int, Callable[[], Any]]] = {
    GZIP: partial(igzip_lib.IgzipDecompressor, flag=igzip_lib.DECOMP_GZIP),
    LZ4: lz4.frame.LZ4FrameDecompressor,
    ZSTD: lambda: ZstdDecompressor().decompressobj(),
}


def _gunzip(data: Buffer, cap: int) -> bytes:
    # the trailer gives the size: only a hint, of the right size in an honest payload
    step = max(min(int.from_bytes(data[-_TRAILER_SIZE:], "little"), cap) + 1, _LEAST_ROOM)
    pieces: list[bytes] = []
    room = cap
    rest: Buffer = data
    for _ in range(_MOST_MEMBERS):
        member = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
        while not member.eof:
            try:
                piece = member.decompress(rest, step)
            except igzip_lib.IsalError as problem:  # type: ignore[misc] # its stub calls the class an instance
                raise _bad(GZIP, problem) from None
            if not piece and not member.eof:
                raise _bad(GZIP, "the input ends early")
            room -= len(piece)
            if room < 0:
                raise _too_many(GZIP, cap)
            pieces.append(piece)
            rest = b""
        rest = member.unused_data
        if not rest:
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
    raise _bad(GZIP, f"more than {_MOST_MEMBERS} members")


def _unsnap(data: Buffer, cap: int) -> memoryview:
    whole = memoryview(data)
    framed = data[: len(_XERIAL)] == _XERIAL
    try:
        # looked at twice: a list of blocks that hold nothing would take fifty times the input
        total = sum(cramjam.snappy.decompress_raw_len(block) for block in (_blocks(whole) if framed else (whole,)))
        if total > cap:
            raise _too_many(SNAPPY, cap)
        out = np.empty(total, np.uint8).data
        at = 0
        for block in _blocks(whole) if framed else (whole,):
            at += cramjam.snappy.decompress_raw_into(block, out[at:])
    except cramjam.DecompressionError as problem:
        raise _bad(SNAPPY, problem) from None
    return out


def _blocks(data: memoryview) -> Iterator[memoryview]:
    """The blocks in xerial's framing; streams may follow each other, each with its header, as its own reader has it."""
    at = 0
    while at < len(data):
        if bytes(data[at : at + len(_XERIAL)]) == _XERIAL:
            at += len(_XERIAL_HEADER)
            if at > len(data):
                raise _bad(SNAPPY, "a header is cut short")
            continue
        start = at + _BLOCK_LENGTH
        following = start + int.from_bytes(data[at:start], "big")
        if not start < following <= len(data):
            raise _bad(SNAPPY, f"the block at byte {at} reaches beyond the input, or is empty")
        yield data[start:following]
        at = following


def _with_header_check(data: Buffer) -> Buffer:
    """An lz4 frame of magic 0 with the right header check: such clients summed the magic number, too, so Kafka's
    reader ignores the check in magic 0, and only there (KAFKA-3160).
    """
    if len(data) < _LZ4_SMALLEST_HEADER or data[:4] != _LZ4_MAGIC:
        return data
    check_at = 14 if data[4] & _LZ4_SIZE_FLAG else 6
    mended = bytearray(data)
    mended[check_at : check_at + 1] = bytes([_short_xxh32(mended[4:check_at]) >> 8 & 0xFF])
    return mended


def _short_xxh32(data: bytes | bytearray) -> int:
    """XXH32 with seed 0 of fewer than 16 bytes, which is all that a frame descriptor can have."""
    total = 0x165667B1 + len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        total = total + int.from_bytes(data[at : at + 4], "little") * 0xC2B2AE3D & 0xFFFFFFFF
        total = (total << 17 | total >> 15) * 0x27D4EB2F & 0xFFFFFFFF
    for byte in data[whole:]:
        total = total + byte * 0x165667B1 & 0xFFFFFFFF
        total = (total << 11 | total >> 21) * 0x9E3779B1 & 0xFFFFFFFF
    total = (total ^ total >> 15) * 0x85EBCA77 & 0xFFFFFFFF
    total = (total ^ total >> 13) * 0xC2B2AE3D & 0xFFFFFFFF
    return total ^ total >> 16


def _within(data: Buffer, cap: int) -> Buffer:
    if len(data) > cap:
        raise _too_many(NONE, cap)
    return data


def _bad(codec: int, problem: object) -> BadRecords:
    return BadRecords(f"{CODECS[codec]} payload: {problem}")


def _too_many(codec: int, cap: int) -> TooManyBytes:
    return TooManyBytes(f"{CODECS[codec]} payload of more than {cap} bytes")


def _unknown(codec: int) -> BadRecords:
    return BadRecords(f"no codec has the id {codec}")


# --- How large a compressed payload says it is without compression ----------------------------------------------------

_XERIAL_HEADER_BYTES: Final = 16
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
#: By the two low bits of a frame descriptor's first byte: bytes of a dictionary id.
_ZSTD_DICTIONARY: Final = (0, 1, 2, 4)
#: By its two high bits: bytes of the content size, which for the first is there in a single segment alone.
_ZSTD_SIZE: Final = (1, 2, 4, 8)
_ZSTD_SINGLE: Final = 0x20
#: What a content size of two bytes is less than it says.
_ZSTD_SHIFT: Final = 256
_LEAST: Final = 8


def declared_size(codec: int, data: memoryview) -> int | None:
    """Bytes of a records section without compression as its framing states them, None where it does not."""
    if codec == NONE:
        return len(data)
    if len(data) < _LEAST:
        return None
    if codec == GZIP:
        return int.from_bytes(data[-4:], "little")
    if codec == SNAPPY:
        return _framed(data) if bytes(data[: len(_XERIAL)]) == _XERIAL else _preamble(data)
    if codec == LZ4 and bytes(data[:4]) == _LZ4_MAGIC and data[4] & _LZ4_SIZE_FLAG:
        return int.from_bytes(data[6:14], "little")
    if codec == ZSTD and bytes(data[:4]) == _ZSTD_MAGIC:
        return _zstd_size(data)
    return None


def _framed(data: memoryview) -> int | None:
    at, total = _XERIAL_HEADER_BYTES, 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        block = data[at + 4 : at + 4 + size]
        stated = _preamble(block)
        if not size or len(block) < size or stated is None:
            return None
        total += stated
        at += 4 + size
    return total


def _preamble(block: memoryview) -> int | None:
    """A raw block begins with its size as a variable-length number of at most 32 bits."""
    size = 0
    for index in range(min(5, len(block))):
        size |= (block[index] & 0x7F) << 7 * index
        if not block[index] & 0x80:
            return size
    return None


def _zstd_size(data: memoryview) -> int | None:
    descriptor = data[4]
    single = bool(descriptor & _ZSTD_SINGLE)
    kind = descriptor >> 6
    if not kind and not single:
        return None
    at = 5 + (not single) + _ZSTD_DICTIONARY[descriptor & 3]
    width = _ZSTD_SIZE[kind]
    field = data[at : at + width]
    if len(field) < width:
        return None
    return int.from_bytes(field, "little") + (_ZSTD_SHIFT if width == 2 else 0)
