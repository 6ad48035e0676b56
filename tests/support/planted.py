"""Batches that no broker takes from a producer, put into its log behind its back, while it runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

from helpers import RECENT_MS, stored_batches
from pair import AnyCluster, data_of
from probe import probing_existing
from rawbatches import batch
from recordoracle import Record, encoded

from mirror.records.header import HEADER_BYTES


def plant(cluster: AnyCluster, topic: str, data: bytes, offsets: int) -> None:
    """Append a batch of any contents to partition 0, where its first offset comes next; `offsets`: how many it takes.

    A sound batch of the same size takes its place in the log first.
    """
    sound, first = _filler(len(data), offsets), int.from_bytes(data[:8], "big")
    if data[16] < 2:  # a set of messages begins with its last offset
        first -= offsets - 1

    async def send() -> None:
        async with probing_existing(cluster.bootstrap, topic) as probe:
            landed = await probe.send(sound)
            assert landed == (0, first), landed

    asyncio.run(send())
    replace(cluster, topic, bytes(stored_batches(cluster.bootstrap, topic)[-1].data), data)


def replace(cluster: AnyCluster, topic: str, old: bytes, new: bytes) -> None:
    """Overwrite a batch of partition 0 with another one of the same size."""
    assert len(old) == len(new)
    overwrite(*place_of(cluster, topic, old), new)


def turn_a_bit(cluster: AnyCluster, topic: str, at: int, *offsets: int) -> None:
    """Damage the batches at these base offsets, each in its byte `at`."""
    stored = {raw.header.base_offset: bytes(raw.data) for raw in stored_batches(cluster.bootstrap, topic)}
    places = [(*place_of(cluster, topic, stored[offset]), stored[offset][at]) for offset in offsets]
    for segment, position, byte in places:
        overwrite(segment, position + at, bytes([byte ^ 1]))


def place_of(cluster: AnyCluster, topic: str, stored: bytes) -> tuple[Path, int]:
    """Return the segment of partition 0 that holds these bytes, and where."""
    for segment in (data_of(cluster) / f"{topic}-0").glob("*.log"):
        if (position := segment.read_bytes().find(stored)) >= 0:
            return segment, position
    raise AssertionError(f"{topic} does not hold {len(stored)} bytes")


def overwrite(segment: Path, position: int, data: bytes) -> None:
    """Write into a segment under a broker that runs."""
    with segment.open("r+b") as file:
        file.seek(position)
        file.write(data)


def _filler(size: int, count: int) -> bytes:
    """A batch of `size` bytes with `count` records, of which the last one has what is left."""
    times = {"base_timestamp": RECENT_MS, "max_timestamp": RECENT_MS}
    rest = [Record(at, 0, None, b"") for at in range(count - 1)]
    for key in (None, b"."):  # a length that takes one byte more leaves sizes out
        for value in range(size):
            payload = encoded([*rest, Record(count - 1, 0, key, bytes(value))])
            if len(payload) + HEADER_BYTES == size:
                return batch(count=count, payload=payload, **times)
    raise AssertionError(f"{count} records do not fit into {size} bytes")
