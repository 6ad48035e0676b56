"""Records that the source lost before they were mirrored, as the journal tells of them.

loss/<target topic>/<partition>/<offset>   what was lost: kept for ever
accept/<target topic>/<partition>          what a person accepted, so that the flow goes on behind it; with the
                                           offsets that were looked at, since a later loss is a new one
"""

from __future__ import annotations

import json
import time
from typing import NamedTuple

from mirror.observe.jsonrecords import parsed
from mirror.offsets.journal import Entry
from mirror.pipeline import Loss
from mirror.wire.cluster import TopicPartition

_ACCEPT = "accept/"


class Accepted(NamedTuple):
    """One target partition and the offsets, from and to before, between which losses are accepted."""

    target: TopicPartition
    offsets: tuple[int, int]


def loss_entry(loss: Loss) -> tuple[bytes, bytes]:
    """The record that tells of a loss."""
    told = {"topic": loss.source.topic, "first": loss.first, "next": loss.next_offset, "at_ms": _now_ms()}
    return f"loss/{loss.target.topic}/{loss.target.partition}/{loss.first}".encode(), json.dumps(told).encode()


def accept_entry(loss: Loss) -> tuple[bytes, bytes]:
    """The record that accepts a loss."""
    told = {"first": loss.first, "upto": loss.next_offset, "at_ms": _now_ms()}
    return f"{_ACCEPT}{loss.target.topic}/{loss.target.partition}".encode(), json.dumps(told).encode()


def read_accepted(record: Entry) -> Accepted | None:
    """What a record accepts; None where it is about something else. Raises one of `NOT_OURS` where it is not one that
    `accept_entry` made.
    """
    if not record.key.startswith(_ACCEPT.encode()) or record.value is None:
        return None
    topic, _, partition = record.key.decode()[len(_ACCEPT) :].rpartition("/")
    told = parsed(record.value)
    return Accepted(TopicPartition(topic, int(partition)), (int(told["first"]), int(told["upto"])))


def _now_ms() -> int:
    return int(time.time() * 1000)
