"""Whether a copy holds what its source holds: both are read record by record by Kafka's C client, which shares no code
with the mirror.

Of each partition every committed record is hashed in order: key, value, headers, and by itself its timestamp. So one
lost, doubled, moved or changed record makes the sums differ. Re-keyed records come in another order and lie in other
partitions, so of these the sum of their hashes is compared, and the keys of a sample.

    python -m mirror.lab.bench.content BOOTSTRAP PARTITIONS FIRST STEP order|sum|FIELD TOPIC...
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, TopicPartition

from mirror.errors import BenchError

_BATCH: Final = 10_000
_IDLE_S: Final = 60.0
_TWO_LENGTHS: Final = struct.Struct(">ii")
_SUMS: Final = 1 << 64
#: Of so many records the key of one is checked.
_SAMPLE: Final = 20


@dataclass(frozen=True, slots=True)
class Topics:
    """Topics of one cluster."""

    bootstrap: str
    names: Sequence[str]
    partitions: int  # of each

    @property
    def every(self) -> int:
        """Return the number of partitions of all topics."""
        return self.partitions * len(self.names)


@dataclass(frozen=True, slots=True)
class Content:
    """Counts what topics hold."""

    partitions: tuple[tuple[int, str, str], ...]  # records, sum of keys, values and headers, sum of timestamps
    bytes: int  # of keys and values

    @property
    def records(self) -> int:
        """Of all partitions."""
        return sum(records for records, _, _ in self.partitions)

    def checked(self, copy: Content, *, timestamps: bool) -> tuple[bool, str]:
        """Return whether `copy` holds the same, and a sentence: what was compared, or where the first difference is."""
        for number, (source, target) in enumerate(zip(self.partitions, copy.partitions, strict=True)):
            if source[0] != target[0]:
                return False, f"Partition {number} holds {target[0]:,} records, its source {source[0]:,}."
            if source[1] != target[1]:
                return False, f"Partition {number}: keys, values, headers or their order differ from its source."
            if timestamps and source[2] != target[2]:
                return False, f"Partition {number}: timestamps differ from its source."
        what = "key, value, headers and timestamp" if timestamps else "key, value and headers, without timestamps,"
        parts = f"{len(self.partitions):,} partition{'s' if len(self.partitions) > 1 else ''}"
        return True, f"All {self.records:,} records of {parts}: {what} of each, in order."


def content(topics: Topics) -> Content:
    """Read what topics hold for readers of committed records, up to their current ends. Raises BenchError."""
    found: dict[int, tuple[int, str, str]] = {}
    parts = read_in_parts(topics, "order")
    for part in parts:
        found |= {int(number): tuple(sums) for number, sums in part["partitions"].items()}
    return Content(tuple(found[number] for number in sorted(found)), sum(part["bytes"] for part in parts))


def compare_rekeyed(source: Topics, copy: Topics, name: str) -> tuple[bool, str]:
    """Return whether `copy` is the source re-keyed by the field `name` of the JSON values, and a sentence as `checked`
    does. Raises BenchError.
    """
    sides = read_in_parts(source, "sum"), read_in_parts(copy, name)
    before, after = (sum(part["records"] for part in side) for side in sides)
    if before != after:
        return False, f"It holds {after:,} records, its source {before:,}."
    if len({sum(part["sum"] for part in side) % _SUMS for side in sides}) > 1:
        return False, "Values, headers or timestamps differ from its source."
    if wrong := sum(part["wrong"] for part in sides[1]):
        return False, f"{wrong:,} records have a wrong key."
    checked = sum(part["checked"] for part in sides[1])
    if before and not checked:
        return False, "The key of none of its records was checked."
    places = Counter(key for part in sides[1] for keys in part["keys"] for key in keys)
    if scattered := sum(many > 1 for many in places.values()):
        return False, f"The records of {scattered:,} keys lie in more than one partition."
    return True, (
        f"All {before:,} records, each once: value, headers and timestamp; of {checked:,} of them the key itself, and "
        "that all of a key lie in one partition."
    )


def read_in_parts(topics: Topics, mode: str) -> list[Any]:
    """Return what processes of this module print, as many as there are cores, each with a share of the partitions.

    Raises BenchError.
    """
    readers = min(os.cpu_count() or 1, topics.every)
    with ExitStack() as stack:
        running = []
        for first in range(readers):
            share = [topics.bootstrap, str(topics.partitions), str(first), str(readers), mode, *topics.names]
            process = subprocess.Popen(
                [sys.executable, "-m", "mirror.lab.bench.content", *share],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            running.append(stack.enter_context(process))
            stack.callback(process.kill)
        outputs = [process.communicate() for process in running]
    for process, (_, problem) in zip(running, outputs, strict=True):
        if process.returncode:
            raise BenchError(f"{', '.join(topics.names)}: could not be read: {problem.strip()[-500:]}")
    return [json.loads(output) for output, _ in outputs]


@dataclass(slots=True)
class _Ordered:
    """Sums over records in their order."""

    records: int = 0
    content: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=16))
    timestamps: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=16))


def main() -> None:
    """Read every so many-th partition, and print what they come to as JSON."""
    bootstrap, partitions, first, step, mode, *topics = sys.argv[1:]
    every = [(topic, number) for topic in topics for number in range(int(partitions))]
    share = {place: index for index, place in enumerate(every) if index % int(step) == int(first)}
    read_share = _in_order if mode == "order" else _in_any_order
    print(json.dumps(read_share(bootstrap, share, mode)))


def _in_order(bootstrap: str, share: dict[tuple[str, int], int], _: str) -> dict[str, Any]:
    found, size = {place: _Ordered() for place in share}, 0

    def add(message: Any) -> None:
        nonlocal size
        partition = found[message.topic(), message.partition()]
        key, value, headers = message.key(), message.value(), message.headers()
        sizes = _TWO_LENGTHS.pack(-1 if key is None else len(key), -1 if value is None else len(value))
        partition.content.update(
            b"".join((sizes, key or b"", value or b"", repr(headers).encode() if headers else b""))
        )
        partition.timestamps.update(b"%d %d " % message.timestamp())
        partition.records += 1
        size += len(key or b"") + len(value or b"")

    _read(bootstrap, list(share), add)
    sums = {
        share[place]: (part.records, part.content.hexdigest(), part.timestamps.hexdigest())
        for place, part in found.items()
    }
    return {"partitions": sums, "bytes": size}


def _in_any_order(bootstrap: str, share: dict[tuple[str, int], int], name: str) -> dict[str, Any]:
    found: dict[str, Any] = {"records": 0, "sum": 0, "checked": 0, "wrong": 0}
    keys: dict[int, set[str]] = {}

    def add(message: Any) -> None:
        key, value = message.key(), message.value()
        content = b"%d %r " % (message.timestamp()[1], message.headers()) + value
        found["records"] += 1
        found["sum"] += int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big")
        if name != "sum" and zlib.crc32(value) % _SAMPLE == 0:  # by the value, since the key may be a wrong one
            found["checked"] += 1
            found["wrong"] += key != str(json.loads(value)[name]).encode()
            keys.setdefault(message.partition(), set()).add((key or b"").hex())

    _read(bootstrap, list(share), add)
    return {**found, "keys": [sorted(partition) for partition in keys.values()]}


def _read(bootstrap: str, partitions: Sequence[tuple[str, int]], add: Callable[[Any], None]) -> None:
    """Read every committed record in order, up to the current ends. Raises SystemExit."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "mirror-bench",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "queued.max.messages.kbytes": 128 << 10,
            "fetch.wait.max.ms": 50,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for topic, number in partitions])
    open_, moved = set(partitions), time.monotonic()
    while open_:
        messages = consumer.consume(_BATCH, 0.2)
        if messages:
            moved = time.monotonic()
        elif time.monotonic() - moved > _IDLE_S:
            raise SystemExit(f"partitions {sorted(open_)} could not be read to their ends")
        message: Any
        for message in messages:
            if (problem := message.error()) is not None:
                if problem.code() != KafkaError._PARTITION_EOF:
                    raise SystemExit(problem.str())
                open_.discard((message.topic(), message.partition()))
                continue
            add(message)
    consumer.close()


if __name__ == "__main__":
    main()
