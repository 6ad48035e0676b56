"""Keys of a compacted topic that are deleted, of which the cleaner forgets the tombstones."""

from __future__ import annotations

import time

from confluent_kafka import Producer
from samerecords import read
from waiting import DEADLINE_S, until

#: A cleaner takes whatever was rolled a moment ago.
CLEANED_SOON = {
    "cleanup.policy": "compact",
    "segment.ms": "300",
    "min.cleanable.dirty.ratio": "0.001",
    "max.compaction.lag.ms": "100",
}


def delete_keys(bootstrap: str, topic: str, *, forgets: bool) -> None:
    """Delete four of the ten keys 0 to 9, and wait for the cleaner to leave a hole there, of which it `forgets` the
    tombstones as well.
    """
    client = Producer({"bootstrap.servers": bootstrap})
    for number in range(4):
        client.produce(topic, None, key=b"%d" % number, partition=0)
    for _ in range(4):
        client.produce(topic, b"superseded", key=b"last", partition=0)
    assert not client.flush(DEADLINE_S)

    def is_clean() -> bool:
        client.produce(topic, b"%f" % time.time(), key=b"last", partition=0)  # rolls a segment
        client.flush(DEADLINE_S)
        found = [one[4] for one in read(bootstrap, topic, 0)]
        return b"superseded" not in found and not (forgets and None in found)

    until(is_clean, lambda: "the cleaner did not run")


def ten_keys(bootstrap: str, topic: str) -> None:
    """Ten keys, each with a value."""
    client = Producer({"bootstrap.servers": bootstrap})
    for number in range(10):
        client.produce(topic, b"value", key=b"%d" % number, partition=0)
    assert not client.flush(DEADLINE_S)
