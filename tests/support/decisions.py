"""What a broker of Kafka 4.3 does with every kind of batch that a mirror meets: the decision table, row by row.

A row holds a batch as a source has it, and what comes of it: the classifier's verdict, what the broker says to the
batch forwarded as it is (base offset 0, nothing else changed) and what becomes of it, and the same for what the mirror
sends instead. `test_decision_table.py` tries every row on a real broker. `python tests/support/decisions.py` writes the
rows to `decision-table.md`.

How things are written here: `T` is an hour ago, in ms. A record reads `offset value time`, the time being `append`
where the broker stamped it. An answer is an error's code and name, or the offset that the broker gave.
"""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from typing import Any, Final

import snappy
from crc32c import crc32c
from helpers import RECENT_MS
from kafka import codec as foreign
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from rawbatches import batch

from mirror.records.header import APPEND_TIME, CODECS, CONTROL, DELETE_HORIZON, TRANSACTIONAL

T: Final = RECENT_MS
DAY_MS: Final = 86_400_000
#: Where the source has the batch; forwarded, the base offset is 0.
AT: Final = 100
#: One that the target's coordinator knows, by a producer id that no row has.
TRANSACTIONAL_ID: Final = "somebody"
TABLE: Final = Path(__file__).with_name("decision-table.md")

#: One produce request: (partition, bytes) entries in order.
Request = tuple[tuple[int, bytes], ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """What came of what was sent: the broker's answers, how the stored batches differ from those sent, and what foreign
    consumers read.
    """

    answer: str
    stored: str = ""
    read: str = ""


NOTHING: Final = Seen("nothing is sent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A condition, the batch that shows it, and what comes of it.

    `requests`: what is forwarded, the batch alone unless something else is said. `next_offset` and `aborted` are the
    classifier's. `topic` names an internal topic to send to; otherwise the row gets one with these `configs`.
    """

    number: str
    condition: str
    batch: bytes
    verdict: str
    forwarded: Seen
    mirrored: Seen
    configs: Mapping[str, str] = field(default_factory=dict)
    requests: tuple[Request, ...] = ()
    transactional_id: str | None = None
    next_offset: int = AT
    aborted: bool = False
    topic: str | None = None

    def sent(self) -> tuple[Request, ...]:
        """The requests that forward the batch."""
        return self.requests or (((0, zeroed(self.batch)),),)


def varint(number: int) -> bytes:
    """Zigzag, then seven bits to a byte (KIP-98)."""
    number = number << 1 ^ number >> 63
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))


def record(value: bytes | None, *, key: bytes | None = None, delta: int = 0, time_delta: int = 0) -> bytes:
    """One v2 record without headers."""
    body = b"\0" + varint(time_delta) + varint(delta)
    for part in (key, value):
        body += varint(-1) if part is None else varint(len(part)) + part
    body += varint(0)
    return varint(len(body)) + body


ENCODERS: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    "none": bytes,
    "gzip": gzip.compress,
    "snappy": foreign.snappy_encode,
    "raw snappy": snappy.compress,
    "lz4": foreign.lz4_encode,
    "zstd": foreign.zstd_encode,
}
#: Every codec again by name, and the framing that librdkafka and the Go clients use.
CODEC_IDS: Final[Mapping[str, int]] = {name: number for number, name in enumerate(CODECS)} | {"raw snappy": 2}


def made(
    values: Sequence[bytes | None] = (b"a", b"b", b"c"),
    *,
    codec: str = "none",
    key: bytes | None = None,
    deltas: Sequence[int] | None = None,
    times: Sequence[int] | None = None,
    flags: int = 0,
    **header: Any,
) -> bytes:
    """A batch at offset `AT`, its records a millisecond apart from `T` on. `header` goes to `rawbatches.batch` and may
    contradict the records.
    """
    deltas = range(len(values)) if deltas is None else deltas
    times = [T + delta for delta in deltas] if times is None else times
    base = header.setdefault("base_timestamp", T)
    records = b"".join(
        record(value, key=key, delta=delta, time_delta=when - base)
        for value, delta, when in zip(values, deltas, times, strict=True)
    )
    given = {
        "payload": ENCODERS[codec](records),
        "count": len(values),
        "delta": deltas[-1],
        "max_timestamp": max(times),
        "leader_epoch": 5,
        **header,
    }
    return batch(AT, attributes=CODEC_IDS[codec] | flags, **given)


def theirs(values: Sequence[bytes | None] = (b"a", b"b", b"c"), **more: Any) -> bytes:
    """The same by an idempotent producer in the middle of its sequence."""
    return made(values, **{"producer_id": 4711, "producer_epoch": 2, "base_sequence": 40, **more})


def sealed(data: bytes) -> bytes:
    """The same with the CRC that fits it; by the fast library, for large batches."""
    return data[:17] + crc32c(data[21:]).to_bytes(4, "big") + data[21:]


def zeroed(data: bytes) -> bytes:
    """The same with base offset 0."""
    return bytes(8) + data[8:]


def with_header(data: bytes, position: int, layout: str, value: int) -> bytes:
    """The same with one header field overwritten and the CRC made to fit."""
    packed = Struct(layout).pack(value)
    return sealed(data[:position] + packed + data[position + len(packed) :])


def old(magic: int, codec: str, *values: bytes) -> bytes:
    """A message of magic 0 or 1, or a compressed wrapper of several, made by kafka-python.

    A wrapper has its last message's offset. In magic 1 the messages inside count from 0, in magic 0 they do not
    (KIP-31).
    """
    builder = LegacyRecordBatchBuilder(magic, CODEC_IDS[codec], 1 << 16)
    for number, value in enumerate(values):
        builder.append(number if magic else AT + number, T + number, None, value)
    return (AT + len(values) - 1).to_bytes(8, "big") + bytes(builder.build())[8:]


def noise(letter: str, size: int) -> bytes:
    """A value that does not compress, to be known by its first byte."""
    return letter.encode() + random.Random(letter).randbytes(size - 1)


def exactly(size: int) -> bytes:
    """A batch of so many bytes, header included, that is one record."""
    near = size - 100
    around = len(made([noise("a", near)], crc=0)) - near
    fitting = sealed(made([noise("a", size - around)], crc=0))
    assert len(fitting) == size, "the record's lengths take as many bytes in both"
    return fitting


def one(entry: bytes) -> Request:
    """A request with one batch, at base offset 0, for partition 0."""
    return ((0, zeroed(entry)),)


def lying_count(codec: str, count: int) -> bytes:
    """Three records behind a header that says `count`, and is dense by it."""
    return made(codec=codec, count=count, delta=count - 1)


def garbage(codec: str, **header: Any) -> bytes:
    """A header of one record before bytes that are none."""
    return made((b"a",), flags=CODEC_IDS[codec], payload=b"\xf7 these are no records of any codec", **header)


THREE: Final = "0 a T+0, 1 b T+1, 2 c T+2"
APPENDED: Final = "0 a append, 1 b append, 2 c append"
ACCEPTED: Final = Seen("0", "as sent", THREE)
ONE_LARGE: Final = Seen("0", "as sent", "0 a.. T+0")
COMMITTED: Final = Seen("0", "attributes 0x10 -> 0x0", THREE)
APPEND_TOPIC: Final = {"message.timestamp.type": "LogAppendTime"}
COMPACTED: Final = {"cleanup.policy": "compact"}
HOLES: Final = made((b"a", b"c"), deltas=(0, 2))


def _rows() -> tuple[Row, ...]:
    clean = made()
    own = "RESTAMP/own_producer"
    return (
        Row(
            number="0",
            condition="base offset other than 0, as the source has it",
            batch=clean,
            requests=(((0, clean),),),
            verdict=own,
            forwarded=Seen("87 INVALID_RECORD"),
            mirrored=ACCEPTED,
        ),
        Row(
            number="1a",
            condition="a partial batch behind a whole one",
            batch=clean,
            requests=(((0, zeroed(clean) + clean[:-1]),),),
            verdict=own,
            forwarded=ACCEPTED,
            mirrored=ACCEPTED,
        ),
        Row(
            number="1b",
            condition="a partial batch alone",
            batch=clean[:-1],
            verdict="MalformedBatch",
            forwarded=Seen("87 INVALID_RECORD"),
            mirrored=NOTHING,
        ),
        Row(
            number="2",
            condition="all of it below the position",
            batch=clean,
            next_offset=AT + 3,
            verdict="DROP/already_mirrored",
            forwarded=ACCEPTED,
            mirrored=NOTHING,
        ),
        Row(
            number="3",
            condition="begins below the position",
            batch=clean,
            next_offset=AT + 1,
            verdict="REWRITE/starts_inside",
            forwarded=ACCEPTED,
            mirrored=Seen("0", "as made", "0 b T+1, 1 c T+2"),
        ),
        *(
            Row(
                number=f"4{letter}",
                condition=f"magic {magic}, {kind}",
                batch=message,
                verdict="REWRITE/legacy_magic",
                forwarded=Seen("87 INVALID_RECORD"),
                mirrored=mirrored,
            )
            for letter, magic, kind, message, mirrored in (
                ("a", 0, "a message", old(0, "none", b"a"), Seen("0", "as made", "0 a none")),
                ("b", 1, "a message", old(1, "none", b"a"), Seen("0", "as made", "0 a T+0")),
                ("c", 0, "a wrapper", old(0, "gzip", b"a", b"b"), Seen("0", "as made", "0 a none, 1 b none")),
                ("d", 1, "a wrapper", old(1, "gzip", b"a", b"b"), Seen("0", "as made", "0 a T+0, 1 b T+1")),
            )
        ),
        Row(
            number="4e",
            condition="magic 3",
            batch=made(magic=3),
            verdict="REFUSE/unknown_magic",
            forwarded=Seen("2 CORRUPT_MESSAGE"),
            mirrored=NOTHING,
        ),
        Row(
            number="5",
            condition="the CRC does not fit",
            batch=made(crc=1),
            verdict="REFUSE/bad_crc",
            forwarded=Seen("2 CORRUPT_MESSAGE"),
            mirrored=NOTHING,
        ),
        *(
            Row(
                number=f"6-{codec}",
                condition=f"codec id {codec}",
                batch=made(flags=codec),
                verdict="REFUSE/unknown_codec",
                forwarded=Seen("-1 UNKNOWN_SERVER_ERROR"),
                mirrored=NOTHING,
            )
            for codec in (5, 6, 7)
        ),
        Row(
            number="7a",
            condition="control bit alone",
            batch=theirs((b"",), key=bytes(4), flags=CONTROL),
            verdict="DROP/control",
            forwarded=Seen("87 INVALID_RECORD"),
            mirrored=NOTHING,
        ),
        Row(
            number="7b",
            condition="a marker as it is stored: control and transactional bit",
            batch=theirs((b"",), key=bytes(4), flags=CONTROL | TRANSACTIONAL, base_sequence=-1),
            verdict="DROP/control",
            forwarded=Seen("53 TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
            mirrored=NOTHING,
        ),
        Row(
            number="8",
            condition="of an aborted transaction, its bit cleared",
            batch=theirs(flags=TRANSACTIONAL),
            aborted=True,
            requests=(one(theirs()),),
            verdict="DROP/aborted",
            forwarded=ACCEPTED,
            mirrored=NOTHING,
        ),
        Row(
            number="9a",
            condition="of a committed transaction",
            batch=theirs(flags=TRANSACTIONAL),
            verdict="RESTAMP/transactional",
            forwarded=Seen("53 TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
            mirrored=COMMITTED,
        ),
        Row(
            number="9b",
            condition="the same in a request with a transactional id",
            batch=theirs(flags=TRANSACTIONAL),
            transactional_id=TRANSACTIONAL_ID,
            verdict="RESTAMP/transactional",
            forwarded=Seen("49 INVALID_PRODUCER_ID_MAPPING"),
            mirrored=COMMITTED,
        ),
        Row(
            number="10",
            condition="transactional bit without a producer id",
            batch=made(flags=TRANSACTIONAL),
            verdict="RESTAMP/transactional",
            forwarded=Seen("53 TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
            mirrored=COMMITTED,
        ),
        Row(
            number="11",
            condition="no records left by compaction",
            batch=batch(AT, count=0, delta=2, payload=b"", producer_id=4711, producer_epoch=2, base_sequence=40),
            verdict="DROP/empty",
            forwarded=Seen("87 INVALID_RECORD"),
            mirrored=NOTHING,
        ),
        *(
            Row(
                number=f"12-{codec}",
                condition=f"holes left by compaction, {codec}",
                batch=made((b"a", b"c"), codec=codec, deltas=(0, 2)),
                verdict="REWRITE/holes",
                forwarded=Seen("87 INVALID_RECORD"),
                mirrored=Seen("0, 1", "as made; as made", "0 a T+0, 1 c T+2"),
            )
            for codec in CODECS
        ),
        Row(
            number="13a",
            condition="holes, the header made to look dense; another batch behind",
            batch=HOLES,
            requests=(one(made((b"a", b"c"), deltas=(0, 2), delta=1)), one(made((b"d",)))),
            verdict="REWRITE/holes",
            forwarded=Seen("0, 2", "as sent; as sent", "0 a T+0, 2 c T+2, 2 d T+0"),
            mirrored=Seen("0, 1", "as made; as made", "0 a T+0, 1 c T+2"),
        ),
        Row(
            number="13b",
            condition="the same, zstd",
            batch=made((b"a", b"c"), codec="zstd", deltas=(0, 2)),
            requests=(one(made((b"a", b"c"), codec="zstd", deltas=(0, 2), delta=1)),),
            verdict="REWRITE/holes",
            forwarded=Seen("-1 UNKNOWN_SERVER_ERROR"),
            mirrored=Seen("0, 1", "as made; as made", "0 a T+0, 1 c T+2"),
        ),
        Row(
            number="13c",
            condition="the same, zstd into a gzip topic",
            batch=made((b"a", b"c"), codec="zstd", deltas=(0, 2)),
            configs={"compression.type": "gzip"},
            requests=(one(made((b"a", b"c"), codec="zstd", deltas=(0, 2), delta=1)),),
            verdict="REWRITE/holes",
            forwarded=Seen("0", "attributes 0x4 -> 0x1, records anew", "0 a T+0, 1 c T+2"),
            mirrored=Seen("0, 1", "as made; as made", "0 a T+0, 1 c T+2"),
        ),
        *(
            Row(
                number=f"14-{codec}",
                condition=f"clean, dense, no producer, {codec}",
                batch=made(codec=codec),
                verdict=own,
                forwarded=ACCEPTED,
                mirrored=ACCEPTED,
            )
            for codec in CODECS
        ),
        Row(
            number="14-raw",
            condition="clean, one block of snappy without framing",
            batch=made(codec="raw snappy"),
            verdict=own,
            forwarded=ACCEPTED,
            mirrored=ACCEPTED,
        ),
        Row(
            number="15a",
            condition="a foreign producer's, first sequence 40",
            batch=theirs(),
            verdict=own,
            forwarded=ACCEPTED,
            mirrored=ACCEPTED,
        ),
        Row(
            number="15b",
            condition="the same, then its next after a gap",
            batch=theirs(),
            requests=(one(theirs()), one(theirs(base_sequence=50))),
            verdict=own,
            forwarded=Seen("0, 45 OUT_OF_ORDER_SEQUENCE_NUMBER", "as sent", THREE),
            mirrored=ACCEPTED,
        ),
        Row(
            number="15c",
            condition="a producer id that the target has given to one of its own, in a later epoch",
            batch=theirs(),
            requests=(
                one(made((b"n",), producer_id=4711, producer_epoch=3, base_sequence=0)),
                one(theirs()),
            ),
            verdict=own,
            forwarded=Seen("0, 47 INVALID_PRODUCER_EPOCH", "as sent", "0 n T+0"),
            mirrored=ACCEPTED,
        ),
        Row(
            number="15d",
            condition="the same batch twice",
            batch=theirs(),
            requests=(one(theirs()), one(theirs())),
            verdict=own,
            forwarded=Seen("0, 0", "as sent", THREE),
            mirrored=ACCEPTED,
        ),
        Row(
            number="16a",
            condition="a producer id without a sequence",
            batch=theirs(base_sequence=-1),
            verdict=own,
            forwarded=Seen("87 INVALID_RECORD"),
            mirrored=ACCEPTED,
        ),
        Row(
            number="16b",
            condition="no producer id, but an epoch and a sequence",
            batch=theirs(producer_id=-1),
            verdict=own,
            forwarded=ACCEPTED,
            mirrored=ACCEPTED,
        ),
        Row(
            number="16c",
            condition="sequence 2147483646 with three records, then sequence 1",
            batch=theirs(base_sequence=2**31 - 2),
            requests=(
                one(theirs(base_sequence=2**31 - 2)),
                one(theirs((b"d",), base_sequence=1)),
            ),
            verdict=own,
            forwarded=Seen("0, 3", "as sent; as sent", f"{THREE}, 3 d T+0"),
            mirrored=ACCEPTED,
        ),
        Row(
            number="17",
            condition="delete horizon, into a compacted topic",
            batch=made((None, None), key=b"k", flags=DELETE_HORIZON, base_timestamp=T + DAY_MS),
            configs=COMPACTED,
            verdict="RESTAMP/delete_horizon",
            forwarded=Seen("0", "as sent", "0 null T+0, 1 null T+1"),
            mirrored=Seen("0", "attributes 0x40 -> 0x0", "0 null T+0, 1 null T+1"),
        ),
        Row(
            number="18a",
            condition="append times, into a topic with create times",
            batch=made(flags=APPEND_TIME, max_timestamp=T + 500),
            verdict="REWRITE/append_time",
            forwarded=Seen("0", "attributes 0x8 -> 0x0", THREE),
            mirrored=Seen("0", "as made", "0 a T+500, 1 b T+500, 2 c T+500"),
        ),
        Row(
            number="18b",
            condition="the same, zstd",
            batch=made(codec="zstd", flags=APPEND_TIME, max_timestamp=T + 500),
            verdict="REWRITE/append_time",
            forwarded=Seen("0", "attributes 0xc -> 0x4", THREE),
            mirrored=Seen("0", "as made", "0 a T+500, 1 b T+500, 2 c T+500"),
        ),
        Row(
            number="19",
            condition="append times, into a topic with append times",
            batch=made(flags=APPEND_TIME, max_timestamp=T + 500),
            configs=APPEND_TOPIC,
            verdict="RESTAMP/append_time",
            forwarded=Seen("32 INVALID_TIMESTAMP"),
            mirrored=Seen("0", "max_timestamp T+500 -> append", APPENDED),
        ),
        Row(
            number="20a",
            condition="create times, into a topic with append times",
            batch=clean,
            configs=APPEND_TOPIC,
            verdict=own,
            forwarded=Seen("0", "attributes 0x0 -> 0x8, max_timestamp T+2 -> append", APPENDED),
            mirrored=Seen("0", "attributes 0x0 -> 0x8, max_timestamp T+2 -> append", APPENDED),
        ),
        Row(
            number="20b",
            condition="the same, zstd",
            batch=made(codec="zstd"),
            configs=APPEND_TOPIC,
            verdict=own,
            forwarded=Seen("0", "attributes 0x4 -> 0xc, max_timestamp T+2 -> append", APPENDED),
            mirrored=Seen("0", "attributes 0x4 -> 0xc, max_timestamp T+2 -> append", APPENDED),
        ),
        Row(
            number="21a",
            condition="a record a day ahead",
            batch=made(times=(T, T, T + DAY_MS)),
            verdict=own,
            forwarded=Seen("32 INVALID_TIMESTAMP"),
            mirrored=Seen("32 INVALID_TIMESTAMP"),
        ),
        Row(
            number="21b",
            condition="the same, the limit as the mirror sets it",
            batch=made(times=(T, T, T + DAY_MS)),
            configs={"message.timestamp.after.max.ms": str(2**63 - 1)},
            verdict=own,
            forwarded=Seen("0", "as sent", "0 a T+0, 1 b T+0, 2 c T+1d"),
            mirrored=Seen("0", "as sent", "0 a T+0, 1 b T+0, 2 c T+1d"),
        ),
        Row(
            number="21c",
            condition="the same, into a topic with append times",
            batch=made(times=(T, T, T + DAY_MS)),
            configs=APPEND_TOPIC,
            verdict=own,
            forwarded=Seen("0", "attributes 0x0 -> 0x8, max_timestamp T+1d -> append", APPENDED),
            mirrored=Seen("0", "attributes 0x0 -> 0x8, max_timestamp T+1d -> append", APPENDED),
        ),
        Row(
            number="22a",
            condition="a record a thousand days old",
            batch=made(times=(T - 1000 * DAY_MS, T, T)),
            verdict=own,
            forwarded=Seen("0", "as sent", "0 a T-1000d, 1 b T+0, 2 c T+0"),
            mirrored=Seen("0", "as sent", "0 a T-1000d, 1 b T+0, 2 c T+0"),
        ),
        Row(
            number="22b",
            condition="the same, with a limit of a day",
            batch=made(times=(T - 1000 * DAY_MS, T, T)),
            configs={"message.timestamp.before.max.ms": str(DAY_MS)},
            verdict=own,
            forwarded=Seen("32 INVALID_TIMESTAMP"),
            mirrored=Seen("32 INVALID_TIMESTAMP"),
        ),
        Row(
            number="23a",
            condition="no timestamps",
            batch=made(times=(-1, -1, -1), base_timestamp=-1),
            verdict=own,
            forwarded=Seen("0", "as sent", "0 a none, 1 b none, 2 c none"),
            mirrored=Seen("0", "as sent", "0 a none, 1 b none, 2 c none"),
        ),
        Row(
            number="23b",
            condition="a max timestamp that is not the records'",
            batch=made(max_timestamp=T + 500),
            verdict=own,
            forwarded=Seen("0", "max_timestamp T+500 -> T+2", THREE),
            mirrored=Seen("0", "max_timestamp T+500 -> T+2", THREE),
        ),
        Row(
            number="24a",
            condition="zstd, into a gzip topic",
            batch=made(codec="zstd"),
            configs={"compression.type": "gzip"},
            verdict="REWRITE/codec",
            forwarded=Seen("0", "attributes 0x4 -> 0x1, records anew", THREE),
            mirrored=Seen("0", "as made", THREE),
        ),
        Row(
            number="24b",
            condition="uncompressed, into a zstd topic",
            batch=clean,
            configs={"compression.type": "zstd"},
            verdict="REWRITE/codec",
            forwarded=Seen("0", "attributes 0x0 -> 0x4, records anew", THREE),
            mirrored=Seen("0", "as made", THREE),
        ),
        Row(
            number="24c",
            condition="zstd, larger than max.message.bytes once it is not compressed any more",
            batch=made([letter * 2000 for letter in (b"a", b"b", b"c")], codec="zstd"),
            configs={"compression.type": "uncompressed", "max.message.bytes": "5000"},
            verdict="REWRITE/codec",
            forwarded=Seen("10 MESSAGE_TOO_LARGE"),
            mirrored=Seen("0, 2", "as made; as made", "0 a.. T+0, 1 b.. T+1, 2 c.. T+2"),
        ),
        Row(
            number="25",
            condition="gzip of another level than the topic's",
            batch=made(codec="gzip"),
            configs={"compression.type": "gzip", "compression.gzip.level": "1"},
            verdict=own,
            forwarded=ACCEPTED,
            mirrored=ACCEPTED,
        ),
        Row(
            number="26a",
            condition="larger than max.message.bytes",
            batch=made([noise(letter, 10_000) for letter in "abc"]),
            configs={"max.message.bytes": "25000"},
            verdict="REWRITE/too_large",
            forwarded=Seen("10 MESSAGE_TOO_LARGE"),
            mirrored=Seen("0, 2", "as made; as made", "0 a.. T+0, 1 b.. T+1, 2 c.. T+2"),
        ),
        Row(
            number="26b",
            condition="one record, larger than max.message.bytes",
            batch=made([noise("a", 10_000)]),
            configs={"max.message.bytes": "5000"},
            verdict="REWRITE/too_large",
            forwarded=Seen("10 MESSAGE_TOO_LARGE"),
            mirrored=Seen("RecordTooLarge"),
        ),
        Row(
            number="26c",
            condition="exactly max.message.bytes",
            batch=exactly(20_000),
            configs={"max.message.bytes": "20000"},
            verdict=own,
            forwarded=ONE_LARGE,
            mirrored=ONE_LARGE,
        ),
        Row(
            number="27a",
            condition="larger than segment.bytes",
            batch=sealed(made([noise(letter, 700_000) for letter in "ab"], crc=0)),
            configs={"max.message.bytes": "4000000", "segment.bytes": "1048576"},
            verdict="REWRITE/too_large",
            forwarded=Seen("18 RECORD_LIST_TOO_LARGE"),
            mirrored=Seen("0, 1", "as made; as made", "0 a.. T+0, 1 b.. T+1"),
        ),
        Row(
            number="27b",
            condition="exactly segment.bytes",
            batch=exactly(1_048_576),
            configs={"max.message.bytes": "4000000", "segment.bytes": "1048576"},
            verdict=own,
            forwarded=ONE_LARGE,
            mirrored=ONE_LARGE,
        ),
        Row(
            number="28a",
            condition="records without a key, into a compacted topic",
            batch=clean,
            configs=COMPACTED,
            verdict=own,
            forwarded=Seen("87 INVALID_RECORD"),
            mirrored=Seen("87 INVALID_RECORD"),
        ),
        Row(
            number="28b",
            condition="records with an empty key, into a compacted topic",
            batch=made(key=b""),
            configs=COMPACTED,
            verdict=own,
            forwarded=ACCEPTED,
            mirrored=ACCEPTED,
        ),
        *(
            Row(
                number=f"29{letter}",
                condition=f"{codec}, {condition}",
                batch=lying,
                verdict=own,
                forwarded=seen,
                mirrored=seen,
            )
            for letter, codec, condition, lying, seen in (
                ("a", "none", "a record fewer than counted", lying_count("none", 4), Seen("87 INVALID_RECORD")),
                ("b", "none", "a record more than counted", lying_count("none", 2), Seen("87 INVALID_RECORD")),
                ("c", "zstd", "a record fewer than counted", lying_count("zstd", 4), Seen("87 INVALID_RECORD")),
                ("d", "zstd", "a record more than counted", lying_count("zstd", 2), Seen("87 INVALID_RECORD")),
                ("e", "gzip", "what does not decompress", garbage("gzip"), Seen("-1 UNKNOWN_SERVER_ERROR")),
                ("f", "snappy", "what does not decompress", garbage("snappy"), Seen("-1 UNKNOWN_SERVER_ERROR")),
                ("g", "lz4", "what does not decompress", garbage("lz4"), Seen("-1 UNKNOWN_SERVER_ERROR")),
                ("h", "zstd", "what does not decompress", garbage("zstd"), Seen("-1 UNKNOWN_SERVER_ERROR")),
                ("i", "none", "what are no records", garbage("none"), Seen("87 INVALID_RECORD")),
            )
        ),
        Row(
            number="29j",
            condition="holes, and what does not decompress",
            batch=garbage("zstd", delta=2),
            verdict="REWRITE/holes",
            forwarded=Seen("87 INVALID_RECORD"),
            mirrored=Seen("BadRecords"),
        ),
        Row(
            number="30",
            condition="two batches in one partition entry",
            batch=clean,
            requests=(((0, zeroed(clean) + with_header(made((b"d",)), 0, ">q", 3)),),),
            verdict=own,
            forwarded=Seen("87 INVALID_RECORD"),
            mirrored=ACCEPTED,
        ),
        Row(
            number="31",
            condition="the same partition twice in a request",
            batch=clean,
            requests=(((0, zeroed(clean)), (0, zeroed(made((b"d",))))),),
            verdict=own,
            forwarded=Seen("0", "as sent", "0 d T+0"),
            mirrored=ACCEPTED,
        ),
        Row(
            number="32",
            condition="two producer ids among the transactional batches of a request",
            batch=theirs(flags=TRANSACTIONAL),
            requests=(
                (
                    (0, zeroed(theirs(flags=TRANSACTIONAL))),
                    (1, zeroed(theirs(flags=TRANSACTIONAL, producer_id=4712))),
                ),
            ),
            transactional_id=TRANSACTIONAL_ID,
            verdict="RESTAMP/transactional",
            forwarded=Seen("49 INVALID_PRODUCER_ID_MAPPING and 49 INVALID_PRODUCER_ID_MAPPING"),
            mirrored=COMMITTED,
        ),
        *(
            Row(
                number=f"33{letter}",
                condition=f"the internal topic {topic}, which is never selected",
                batch=clean,
                topic=topic,
                verdict=own,
                forwarded=Seen("17 INVALID_TOPIC_EXCEPTION"),
                mirrored=NOTHING,
            )
            for letter, topic in (("a", "__consumer_offsets"), ("b", "__transaction_state"))
        ),
        Row(
            number="34a",
            condition="attribute bits that mean nothing yet, 7 and 14",
            batch=made(flags=0x4080),
            verdict=own,
            forwarded=ACCEPTED,
            mirrored=ACCEPTED,
        ),
        Row(
            number="34b",
            condition="the same, into a topic with append times",
            batch=made(flags=0x4080),
            configs=APPEND_TOPIC,
            verdict=own,
            forwarded=Seen("0", "attributes 0x4080 -> 0x8, max_timestamp T+2 -> append", APPENDED),
            mirrored=Seen("0", "attributes 0x4080 -> 0x8, max_timestamp T+2 -> append", APPENDED),
        ),
        Row(
            number="35a",
            condition="a last offset delta below 0",
            batch=made(delta=-1),
            verdict="MalformedBatch",
            forwarded=Seen("87 INVALID_RECORD"),
            mirrored=NOTHING,
        ),
        Row(
            number="35b",
            condition="a count below 0",
            batch=made(count=-3),
            verdict="REFUSE/impossible_header",
            forwarded=Seen("87 INVALID_RECORD"),
            mirrored=NOTHING,
        ),
        Row(
            number="35c",
            condition="more records counted than offsets",
            batch=made(delta=1),
            verdict="REFUSE/impossible_header",
            forwarded=Seen("87 INVALID_RECORD"),
            mirrored=NOTHING,
        ),
    )


ROWS: Final = _rows()

_HEAD: Final = """# The decision table, tried

What a broker of Kafka 4.3 does with each kind of batch, and what the mirror does instead.
`python tests/support/decisions.py` writes this page from its rows;
`test_decision_table.py` tries every row on a real broker.

- *forwarded*: the batch as a source has it, base offset 0; *mirrored*: what the mirror sends for it. Each shows the
  broker's answers (an offset, or an error), how the batches that it stored differ from those sent (always in base
  offset and leader epoch), and what foreign consumers read, alike at read_committed and read_uncommitted.
- A restamped batch is held against the source's; that it has the mirror's producer, epoch and sequence is left out.
- `T` is an hour before, in ms; a record reads `offset value time`; `append`: the broker's own clock.

| # | batch | verdict | forwarded: answer | stored | read | mirrored: answer | stored | read |
|---|---|---|---|---|---|---|---|---|
"""


def page() -> str:
    """The table as Markdown."""
    lines = []
    for row in ROWS:
        configs = ", ".join(f"{name}={value}" for name, value in row.configs.items())
        condition = f"{row.condition} ({configs})" if configs else row.condition
        seen = [part for one in (row.forwarded, row.mirrored) for part in (one.answer, one.stored, one.read)]
        lines.append(f"| {' | '.join((row.number, condition, row.verdict, *seen))} |\n")
    return _HEAD + "".join(lines)


if __name__ == "__main__":
    TABLE.write_text(page(), encoding="utf-8")
