"""What the producers write: shapes of records, named as in the manifest, said once and carried out by each client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from vectors.corpus import Header

Mode = Literal["plain", "idempotent", "transactional"]
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
#: Formats before magic 2 know no zstd (KIP-110).
OLD_CODECS: Final = CODECS[:4]

BEGIN_MS: Final = 1_700_000_000_000
HOUR_MS: Final = 3_600_000
#: Later than any clock of a capture, so that a batch of this time begins a new segment wherever `segment.ms` is set.
FAR_MS: Final = 4_000_000_000_000


class Record(NamedTuple):
    """One record to send; the timestamp is in ms."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


@dataclass(frozen=True, slots=True)
class Batch:
    """Records that are flushed together, and how the transaction ends behind them, if it does."""

    records: tuple[Record, ...]
    end: Literal["", "commit", "abort"] = ""


@dataclass(frozen=True, slots=True)
class Script:
    """The life of one producer: its batches, and seconds of waiting after each."""

    batches: tuple[Batch, ...]
    mode: Mode = "plain"
    pause_s: float = 0.0


def batch(
    count: int = 5,
    *,
    begin: int = BEGIN_MS,
    prefix: str = "key",
    value: bytes = b"value of record",
    end: Literal["", "commit", "abort"] = "",
) -> Batch:
    """`count` records with different keys and values, 10 ms apart."""
    records = (Record(begin + 10 * i, f"{prefix}-{i}".encode(), b"%s %d" % (value, i)) for i in range(count))
    return Batch(tuple(records), end)


def _of(*records: Record) -> tuple[Script, ...]:
    return (Script((Batch(records),)),)


_T: Final = BEGIN_MS
_TAGS: Final[tuple[Header, ...]] = (
    *((b"trace", b"0123456789abcdef"), (b"tag", b"first"), (b"tag", b"second"), (b"tag", b"first")),
    *((b"", b"a header without a name"), (b"empty", b""), ("schlüssel-鍵".encode(), bytes(range(256)))),
)
_NULL_TAG: Final[Header] = (b"null", None)

#: Shapes of magic 2 that every client can write.
SHAPES: Final[Mapping[str, tuple[Script, ...]]] = {
    "plain": (Script((batch(),)),),
    "several": (Script((batch(3), batch(4, begin=_T + 1000), batch(2, begin=_T + 2000))),),
    "idempotent": (Script((batch(3), batch(3, begin=_T + 1000)), "idempotent"),),
    "transactional": (Script((batch(3), batch(2, begin=_T + 1000, end="commit")), "transactional"),),
    "aborted": (
        Script(
            (batch(2, end="commit"), batch(3, begin=_T + 1000, end="abort"), batch(2, begin=_T + 2000, end="commit")),
            "transactional",
        ),
    ),
    "headers": _of(
        Record(_T, b"k1", b"several", _TAGS),
        Record(_T + 1, b"k2", b"none"),
        Record(_T + 2, b"k3", b"one", _TAGS[:1]),
        Record(_T + 3, b"k4", b"many", tuple((b"h%d" % i, b"%d" % i) for i in range(70))),
    ),
    "null_key": _of(*(Record(_T + i, None, b"value %d" % i) for i in range(5))),
    "null_value": _of(*(Record(_T + i, b"key %d" % i, None) for i in range(5))),
    "empty": _of(Record(_T, b"", b"value"), Record(_T, b"key", b""), Record(_T, b"", b"")),
    "one": (Script((batch(1),)),),
    "thousand": (Script((batch(1000, prefix="k", value=b"v"),)),),
    "jumps": _of(
        *(
            Record(_T + jump, b"key", b"jump of %d ms" % jump)
            for jump in (0, -1, 1, 1 << 20, -(1 << 30), 40 * 365 * 24 * HOUR_MS, 7, -(_T - 1), 0)
        )
    ),
    "large": _of(*(Record(_T + i, b"k" * 300 * i, b"0123456789" * 400) for i in range(3))),
}
#: Shapes that kafka-python refuses to write.
NULL_SHAPES: Final[Mapping[str, tuple[Script, ...]]] = {
    "null_header": _of(
        Record(_T, b"k1", b"v1", (_NULL_TAG,)), Record(_T + 1, b"k2", b"v2", (*_TAGS[:2], _NULL_TAG, *_TAGS[2:]))
    ),
    "null_both": _of(*(Record(_T + i, None, None) for i in range(4))),
}

#: Shapes that would be too large to keep if they were not compressed: 200 KB are several blocks of snappy and lz4.
LONG_SHAPES: Final[Mapping[str, tuple[Script, ...]]] = {
    "blocks": _of(*(Record(_T + i, b"key %d" % i, (b"%09d " % i) * 1000) for i in range(20)))
}

_LAST: Final = batch(1, begin=FAR_MS, prefix="last")

#: Shapes of compacted topics: each batch begins a segment, and the last is in the one that is not cleaned.
COMPACTED: Final[Mapping[str, tuple[Script, ...]]] = {
    "holes": (
        Script(
            (
                batch(10),
                Batch(tuple(Record(_T + HOUR_MS + i, b"key-%d" % i, b"newer") for i in (0, 2, 3, 6, 9))),
                batch(1, begin=_T + 2 * HOUR_MS, prefix="other"),
                _LAST,
            )
        ),
    ),
    "tombstones": (
        Script(
            (
                batch(4),
                Batch(tuple(Record(_T + HOUR_MS + i, b"key-%d" % i, None) for i in range(3))),
                _LAST,
            )
        ),
    ),
    "emptied": (
        Script((batch(4),), "idempotent"),
        Script((batch(4, begin=_T + HOUR_MS), _LAST), "idempotent"),
    ),
    "swept": (
        Script(
            (batch(4, end="commit"), batch(3, begin=_T + HOUR_MS, prefix="gone", end="abort")),
            "transactional",
        ),
        Script((batch(2, begin=_T + 2 * HOUR_MS), _LAST)),
    ),
}

#: Shapes of magic 0 and 1, which know neither headers nor producers.
OLD_SHAPES: Final[Mapping[str, tuple[Script, ...]]] = {
    name: SHAPES[name] for name in ("plain", "several", "null_key", "null_value", "empty", "one")
} | {"hundred": (Script((batch(50, prefix="k", value=b"v"), batch(50, begin=_T + 1000, prefix="k", value=b"v"))),)}

#: The same for compacted topics: magic 0 has no timestamps, so segments are rolled by the clock.
OLD_COMPACTED: Final[Mapping[str, tuple[Script, ...]]] = {
    name: tuple(Script(script.batches, script.mode, pause_s=0.3) for script in COMPACTED[name])
    for name in ("holes", "tombstones")
}
