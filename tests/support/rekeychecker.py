"""An independent judge of a re-keyed topic: reads both sides with kafka-python, and knows nothing of mirror.

Every record of the source that is wanted is on the target once, in the partition that Kafka's Java client would choose
for its new key, and the records of one source partition and key are in their order. Records say where they come from:
their values hold the source's partition and a running number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from samerecords import log_ends, read


@dataclass(frozen=True, slots=True)
class Seen:
    """A record as a consumer of committed records sees it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...]


def java_partition(key: bytes, partitions: int) -> int:
    """Kafka's `Utils.toPositive(Utils.murmur2(key)) % partitions`, written down once more."""
    mask, multiplier = 0xFFFFFFFF, 0x5BD1E995
    mixed = 0x9747B28C ^ len(key)
    whole = len(key) // 4 * 4
    for at in range(0, whole, 4):
        word = int.from_bytes(key[at : at + 4], "little") * multiplier & mask
        word = (word ^ word >> 24) * multiplier & mask
        mixed = (mixed * multiplier & mask) ^ word
    if rest := key[whole:]:
        mixed = (mixed ^ int.from_bytes(rest, "little")) * multiplier & mask
    mixed = (mixed ^ mixed >> 13) * multiplier & mask
    return ((mixed ^ mixed >> 15) & 0x7FFFFFFF) % partitions


def read_committed(bootstrap: str, topic: str) -> list[Seen]:
    """Every committed record of a topic up to its end of now, partition by partition in the order of offsets."""
    return [
        Seen(partition, offset, key, value, timestamp, headers)
        for partition in log_ends(bootstrap, topic)
        for offset, timestamp, _, key, value, headers in read(bootstrap, topic, partition)
    ]


def complaints(
    source: list[Seen], target: list[Seen], partitions: int, new_key: Callable[[Seen], bytes | None]
) -> list[str]:
    """What is wrong with a re-keyed copy; `new_key` gives the key that a source record is to have, None for one that is
    not wanted. Values must be unique.
    """
    wanted = {one.value: (one, key) for one in source if (key := new_key(one)) is not None}
    reported: list[str] = []
    times: dict[bytes | None, int] = defaultdict(int)
    order: dict[tuple[int, bytes], int] = {}
    for one in target:
        times[one.value] += 1
        if one.value not in wanted:
            reported.append(f"{one} is of no source record that is wanted")
            continue
        origin, key = wanted[one.value]
        if one.key != key:
            reported.append(f"{one} has not the key {key!r}")
        if one.partition != java_partition(key, partitions):
            reported.append(f"{one} is not in partition {java_partition(key, partitions)}")
        if (one.timestamp, one.headers) != (origin.timestamp, origin.headers):
            reported.append(f"{one} has another timestamp or other headers than {origin}")
        if order.get((origin.partition, key), -1) >= origin.offset:
            reported.append(f"{one} comes behind offset {order[origin.partition, key]} of its source partition and key")
        order[origin.partition, key] = origin.offset
    reported += [f"{one} is missing" for value, (one, _) in wanted.items() if not times[value]]
    reported += [f"{value!r} is there {count} times" for value, count in times.items() if count > 1]
    return reported
