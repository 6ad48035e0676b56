"""Losses that a person accepted: the source deleted records before they were mirrored, and the flow goes on behind.

In the journal under `accept/<target topic>/<partition>`, with the offsets that were looked at: a later loss is a new
one.
"""

from __future__ import annotations

import json
import time
from typing import NamedTuple

from mirror.observe.jsonrecords import parsed
from mirror.offsets.journal import Entry
from mirror.wire.cluster import TopicPartition

_PREFIX = "accept/"


class Accepted(NamedTuple):
    """One target partition and the offsets, from and to before, between which losses are accepted."""

    target: TopicPartition
    offsets: tuple[int, int]


def entry(target: TopicPartition, first: int, upto: int) -> tuple[bytes, bytes]:
    """The record that accepts the loss of the offsets from `first` up to `upto`."""
    value = {"first": first, "upto": upto, "at_ms": int(time.time() * 1000)}
    return f"{_PREFIX}{target.topic}/{target.partition}".encode(), json.dumps(value).encode()


def read(record: Entry) -> Accepted | None:
    """What a record accepts; None where it is about something else. Raises ValueError, KeyError or TypeError where it
    is not one that `entry` made.
    """
    if not record.key.startswith(_PREFIX.encode()) or record.value is None:
        return None
    topic, _, partition = record.key.decode()[len(_PREFIX) :].rpartition("/")
    told = parsed(record.value)
    return Accepted(TopicPartition(topic, int(partition)), (int(told["first"]), int(told["upto"])))
