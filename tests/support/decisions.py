"""What a broker of Kafka 4.3 does with every kind of batch that a mirror meets: the decision table, row by row.

`decision-table.md` says of each row what comes of its batch: the classifier's verdict, what the broker says to the
batch forwarded as it is (base offset 0, nothing else changed) and what becomes of it, and the same for what the mirror
sends instead. Here is the batch of each row. `test_decision_table.py` tries every row on a real broker.

How things are written there: `T` is an hour ago, in ms. A record reads `offset value time`, the time being `append`
where the broker stamped it. An answer is an error's code and name, or the offset that the broker gave.
"""

from __future__ import annotations

import gzip
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Any, Final

import snappy
from crc32c import crc32c
from helpers import RECENT_MS
from kafka import codec as foreign
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from rawbatches import batch
from recordoracle import Record, encoded

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


@dataclass(frozen=True, slots=True)
class Sample:
    """The batch of a row. `requests`: what is forwarded, the batch alone unless something else is said. `next_offset`
    and `aborted` are the classifier's. `topic` names an internal topic to send to; otherwise the row gets one.
    """

    batch: bytes
    requests: tuple[Request, ...] = ()
    transactional_id: str | None = None
    next_offset: int = AT
    aborted: bool = False
    topic: str | None = None

    def sent(self) -> tuple[Request, ...]:
        """The requests that forward the batch."""
        return self.requests or (one(self.batch),)


@dataclass(frozen=True, slots=True)
class Row:
    """What comes of a batch that is sent to a topic with these configs."""

    number: str
    configs: Mapping[str, str]
    verdict: str
    forwarded: Seen
    mirrored: Seen
    sample: Sample


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
    records = encoded(
        [Record(delta, when - base, key, value) for value, delta, when in zip(values, deltas, times, strict=True)]
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


CLEAN: Final = made()
HOLES: Final = made((b"a", b"c"), deltas=(0, 2))
ZSTD_HOLES: Final = made((b"a", b"c"), codec="zstd", deltas=(0, 2))
#: The same behind headers that look dense.
HIDDEN_HOLES: Final = one(made((b"a", b"c"), deltas=(0, 2), delta=1))
HIDDEN_ZSTD_HOLES: Final = one(made((b"a", b"c"), codec="zstd", deltas=(0, 2), delta=1))
APPENDED: Final = made(flags=APPEND_TIME, max_timestamp=T + 500)
AHEAD: Final = made(times=(T, T, T + DAY_MS))
ANCIENT: Final = made(times=(T - 1000 * DAY_MS, T, T))
OPEN: Final = theirs(flags=TRANSACTIONAL)

SAMPLES: Final[Mapping[str, Sample]] = {
    "0": Sample(CLEAN, requests=(((0, CLEAN),),)),
    "1a": Sample(CLEAN, requests=(((0, zeroed(CLEAN) + CLEAN[:-1]),),)),
    "1b": Sample(CLEAN[:-1]),
    "2": Sample(CLEAN, next_offset=AT + 3),
    "3": Sample(CLEAN, next_offset=AT + 1),
    "4a": Sample(old(0, "none", b"a")),
    "4b": Sample(old(1, "none", b"a")),
    "4c": Sample(old(0, "gzip", b"a", b"b")),
    "4d": Sample(old(1, "gzip", b"a", b"b")),
    "4e": Sample(made(magic=3)),
    "5": Sample(made(crc=1)),
    **{f"6-{codec}": Sample(made(flags=codec)) for codec in (5, 6, 7)},
    "7a": Sample(theirs((b"",), key=bytes(4), flags=CONTROL)),
    "7b": Sample(theirs((b"",), key=bytes(4), flags=CONTROL | TRANSACTIONAL, base_sequence=-1)),
    "8": Sample(OPEN, aborted=True, requests=(one(theirs()),)),
    "9a": Sample(OPEN),
    "9b": Sample(OPEN, transactional_id=TRANSACTIONAL_ID),
    "10": Sample(made(flags=TRANSACTIONAL)),
    "11": Sample(batch(AT, count=0, delta=2, payload=b"", producer_id=4711, producer_epoch=2, base_sequence=40)),
    **{f"12-{codec}": Sample(made((b"a", b"c"), codec=codec, deltas=(0, 2))) for codec in CODECS},
    "13a": Sample(HOLES, requests=(HIDDEN_HOLES, one(made((b"d",))))),
    "13b": Sample(ZSTD_HOLES, requests=(HIDDEN_ZSTD_HOLES,)),
    "13c": Sample(ZSTD_HOLES, requests=(HIDDEN_ZSTD_HOLES,)),
    **{f"14-{codec}": Sample(made(codec=codec)) for codec in CODECS},
    "14-raw": Sample(made(codec="raw snappy")),
    "15a": Sample(theirs()),
    "15b": Sample(theirs(), requests=(one(theirs()), one(theirs(base_sequence=50)))),
    "15c": Sample(theirs(), requests=(one(theirs((b"n",), producer_epoch=3, base_sequence=0)), one(theirs()))),
    "15d": Sample(theirs(), requests=(one(theirs()), one(theirs()))),
    "16a": Sample(theirs(base_sequence=-1)),
    "16b": Sample(theirs(producer_id=-1)),
    "16c": Sample(
        theirs(base_sequence=2**31 - 2),
        requests=(one(theirs(base_sequence=2**31 - 2)), one(theirs((b"d",), base_sequence=1))),
    ),
    "17": Sample(made((None, None), key=b"k", flags=DELETE_HORIZON, base_timestamp=T + DAY_MS)),
    "18a": Sample(APPENDED),
    "18b": Sample(made(codec="zstd", flags=APPEND_TIME, max_timestamp=T + 500)),
    "19": Sample(APPENDED),
    "20a": Sample(CLEAN),
    "20b": Sample(made(codec="zstd")),
    **dict.fromkeys(("21a", "21b", "21c"), Sample(AHEAD)),
    **dict.fromkeys(("22a", "22b"), Sample(ANCIENT)),
    "23a": Sample(made(times=(-1, -1, -1), base_timestamp=-1)),
    "23b": Sample(made(max_timestamp=T + 500)),
    "24a": Sample(made(codec="zstd")),
    "24b": Sample(CLEAN),
    "24c": Sample(made([letter * 2000 for letter in (b"a", b"b", b"c")], codec="zstd")),
    "25": Sample(made(codec="gzip")),
    "26a": Sample(made([noise(letter, 10_000) for letter in "abc"])),
    "26b": Sample(made([noise("a", 10_000)])),
    "26c": Sample(exactly(20_000)),
    "27a": Sample(sealed(made([noise(letter, 700_000) for letter in "ab"], crc=0))),
    "27b": Sample(exactly(1_048_576)),
    "28a": Sample(CLEAN),
    "28b": Sample(made(key=b"")),
    "29a": Sample(lying_count("none", 4)),
    "29b": Sample(lying_count("none", 2)),
    "29c": Sample(lying_count("zstd", 4)),
    "29d": Sample(lying_count("zstd", 2)),
    "29e": Sample(garbage("gzip")),
    "29f": Sample(garbage("snappy")),
    "29g": Sample(garbage("lz4")),
    "29h": Sample(garbage("zstd")),
    "29i": Sample(garbage("none")),
    "29j": Sample(garbage("zstd", delta=2)),
    "30": Sample(CLEAN, requests=(((0, zeroed(CLEAN) + with_header(made((b"d",)), 0, ">q", 3)),),)),
    "31": Sample(CLEAN, requests=(((0, zeroed(CLEAN)), (0, zeroed(made((b"d",))))),)),
    "32": Sample(
        OPEN,
        requests=(((0, zeroed(OPEN)), (1, zeroed(theirs(flags=TRANSACTIONAL, producer_id=4712)))),),
        transactional_id=TRANSACTIONAL_ID,
    ),
    "33a": Sample(CLEAN, topic="__consumer_offsets"),
    "33b": Sample(CLEAN, topic="__transaction_state"),
    "34a": Sample(made(flags=0x4080)),
    "34b": Sample(made(flags=0x4080)),
    "35a": Sample(made(delta=-1)),
    "35b": Sample(made(count=-3)),
    "35c": Sample(made(delta=1)),
}


def _rows() -> Iterator[Row]:
    """The rows of the page. What stands in brackets behind a condition are the topic's configs."""
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if not cells or not cells[0][0].isdigit():
            continue
        number, condition, verdict, *seen = cells
        found = re.search(r"\(([a-z.]+=[^()]+)\)$", condition)
        configs = dict(pair.split("=") for pair in found[1].split(", ")) if found else {}
        yield Row(number, configs, verdict, Seen(*seen[:3]), Seen(*seen[3:]), SAMPLES[number])


ROWS: Final = tuple(_rows())
