"""Whether a copy holds what its source holds: both are read record by record by Kafka's C client, which shares no code
with the mirror.

Of each partition every committed record is hashed in order: key, value, headers, and by itself its timestamp. So one
lost, doubled, moved or changed record makes the sums differ.

    python -m mirror.lab.bench.content BOOTSTRAP TOPIC PARTITIONS FIRST STEP
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, TopicPartition

from mirror.errors import BenchError

_AT_ONCE: Final = 10_000
_IDLE_S: Final = 60.0
_TWO_LENGTHS: Final = struct.Struct(">ii")


@dataclass(slots=True)
class Partition:
    """One partition: its records, the bytes of their keys and values, and the sums over them."""

    records: int = 0
    bytes: int = 0
    content: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=16))
    timestamps: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=16))


@dataclass(frozen=True, slots=True)
class Content:
    """A topic, partition by partition: (records, sum of keys, values and headers, sum of timestamps)."""

    partitions: tuple[tuple[int, str, str], ...]
    bytes: int

    @property
    def records(self) -> int:
        """Of all partitions."""
        return sum(records for records, _, _ in self.partitions)

    def checked(self, copy: Content, *, timestamps: bool) -> tuple[bool, str]:
        """Whether `copy` holds the same, and one sentence on what was compared, or where the first difference is."""
        for number, (mine, its) in enumerate(zip(self.partitions, copy.partitions, strict=True)):
            if mine[0] != its[0]:
                return False, f"Partition {number} holds {its[0]:,} records, its source {mine[0]:,}."
            if mine[1] != its[1]:
                return False, f"Partition {number}: keys, values, headers or their order differ from its source."
            if timestamps and mine[2] != its[2]:
                return False, f"Partition {number}: timestamps differ from its source."
        what = "key, value, headers and timestamp" if timestamps else "key, value and headers, without timestamps,"
        parts = f"{len(self.partitions):,} partition{'s' if len(self.partitions) > 1 else ''}"
        return True, f"All {self.records:,} records of {parts}: {what} of each, in order."


def content(bootstrap: str, topic: str, partitions: int) -> Content:
    """What a topic holds for readers of committed records, up to its end of now. Raises BenchError."""
    found: dict[int, tuple[int, str, str]] = {}
    size = 0
    for part in shared_out("mirror.lab.bench.content", bootstrap, topic, partitions):
        size += part["bytes"]
        found |= {int(number): tuple(sums) for number, sums in part["partitions"].items()}
    return Content(tuple(found[number] for number in range(partitions)), size)


def shared_out(module: str, bootstrap: str, topic: str, partitions: int, *more: str) -> list[Any]:
    """What a module like this one reports of a topic, run by as many processes as there are cores, each with a share of
    the partitions. Raises BenchError.
    """
    readers = min(os.cpu_count() or 1, partitions)
    with ExitStack() as stack:
        running = []
        for first in range(readers):
            share = [bootstrap, topic, str(partitions), str(first), str(readers), *more]
            process = subprocess.Popen(
                [sys.executable, "-m", module, *share], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            running.append(stack.enter_context(process))
            stack.callback(process.kill)
        outputs = [process.communicate() for process in running]
    for process, (_, err) in zip(running, outputs, strict=True):
        if process.returncode:
            raise BenchError(f"{topic}: could not be read: {err.strip()[-500:]}")
    return [json.loads(out) for out, _ in outputs]


def main() -> None:
    """Read every so many-th partition, and print what they hold as JSON."""
    bootstrap, topic, *numbers = sys.argv[1:]
    found = {number: Partition() for number in range(*map(int, (numbers[1], numbers[0], numbers[2])))}
    read(bootstrap, topic, found, lambda message: _add(found[message.partition()], message))
    sums = {number: (one.records, one.content.hexdigest(), one.timestamps.hexdigest()) for number, one in found.items()}
    print(json.dumps({"partitions": sums, "bytes": sum(one.bytes for one in found.values())}))


def read(bootstrap: str, topic: str, partitions: Iterable[int], add: Callable[[Any], None]) -> None:
    """Every committed record of some partitions, in order, up to their ends of now. Raises SystemExit."""
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
    places = [TopicPartition(topic, number, 0) for number in partitions]
    consumer.assign(places)
    open_, moved = {place.partition for place in places}, time.monotonic()
    while open_:
        messages = consumer.consume(_AT_ONCE, 0.2)
        if messages:
            moved = time.monotonic()
        elif time.monotonic() - moved > _IDLE_S:
            raise SystemExit(f"partitions {sorted(open_)} could not be read to their ends")
        message: Any
        for message in messages:
            if (problem := message.error()) is not None:
                if problem.code() != KafkaError._PARTITION_EOF:
                    raise SystemExit(problem.str())
                open_.discard(message.partition())
                continue
            add(message)
    consumer.close()


def _add(one: Partition, message: Any) -> None:
    key, value, headers = message.key(), message.value(), message.headers()
    sizes = _TWO_LENGTHS.pack(-1 if key is None else len(key), -1 if value is None else len(value))
    one.content.update(b"".join((sizes, key or b"", value or b"", repr(headers).encode() if headers else b"")))
    one.timestamps.update(b"%d %d " % message.timestamp())
    one.records += 1
    one.bytes += len(key or b"") + len(value or b"")


if __name__ == "__main__":
    main()
