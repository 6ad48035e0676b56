"""Records that the source lost before they were mirrored, as the journal tells of them.

loss/<target topic>/<partition>/<offset>   what was lost, of a source topic by its id: kept for ever, of no account for
                                           another topic by that name; of a re-keyed topic the partition is the source's
accept/<target topic>/<partition>          what a person accepted, so that the flow goes on behind it; with the
                                           offsets that were looked at, since a later loss is a new one, and the
                                           source topic's id, since another topic of that name loses other records
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from typing import Final, NamedTuple
from uuid import UUID

from mirror.assignment import Assignment, Loss
from mirror.observe.jsonrecords import NOT_OURS, parsed
from mirror.offsets.firstseen import same_id, seen_in
from mirror.offsets.journal import Entry
from mirror.wire.cluster import TopicPartition

_ACCEPT = "accept/"
_LOSS = "loss/"
#: Why records were lost, where a record does not say.
RETENTION: Final = "retention"


class Accepted(NamedTuple):
    """One target partition and the offsets, from and to before, between which losses are accepted, of the source topic
    with this id; None where its cluster has no ids.
    """

    target: TopicPartition
    offsets: tuple[int, int]
    topic_id: UUID | None

    def covers(self, loss: Loss, topic_id: UUID | None) -> bool:
        """Whether a loss of the topic with that id was accepted already, as a whole."""
        first, upto = self.offsets
        return topic_id == self.topic_id and first <= loss.first and loss.next_offset <= upto


class Lost(NamedTuple):
    """Source offsets, from and to before, whose records never came to a target partition, and why; of the source topic
    with this id, None where the record does not say.
    """

    first: int
    next_offset: int
    reason: str = RETENTION
    topic_id: UUID | None = None

    def concerns(self, topic_id: UUID | None) -> bool:
        """Whether it is a loss of the source topic with this id."""
        return same_id(self.topic_id, topic_id)


def loss_entry(loss: Loss) -> tuple[bytes, bytes]:
    """The record that tells of a loss."""
    told = {
        "topic": loss.source.topic,
        "first": loss.first,
        "next": loss.next_offset,
        "reason": loss.reason,
        "detail": loss.detail,
        "topic_id": str(loss.topic_id) if loss.topic_id else None,
        "at_ms": _now_ms(),
    }
    return f"{_LOSS}{loss.target.topic}/{loss.target.partition}/{loss.first}".encode(), json.dumps(told).encode()


def losses_in(known: Mapping[bytes, bytes]) -> dict[TopicPartition, tuple[Lost, ...]]:
    """By target partition and in offset order, what the newest records of a journal tell was lost of the source topics
    of now; records that are none of ours are passed over.
    """
    found: dict[TopicPartition, list[Lost]] = {}
    seen = seen_in(known)
    for key, value in known.items():
        with contextlib.suppress(*NOT_OURS):
            if (told := read_loss(Entry(0, key, value))) is not None:
                target, lost = told
                if target.topic not in seen or lost.concerns(seen[target.topic].topic_id):
                    found.setdefault(target, []).append(lost)
    return {target: tuple(sorted(lost, key=lambda one: one.first)) for target, lost in found.items()}


def read_loss(record: Entry) -> tuple[TopicPartition, Lost] | None:
    """The target partition and the loss that a record tells of; None where it is about something else. Raises one of
    `NOT_OURS` where it is not one that `loss_entry` made.
    """
    if not record.key.startswith(_LOSS.encode()) or record.value is None:
        return None
    topic, partition, _ = record.key.decode()[len(_LOSS) :].rsplit("/", 2)
    told = parsed(record.value)
    first, following = int(told["first"]), int(told["next"])
    topic_id = UUID(str(told["topic_id"])) if told.get("topic_id") else None  # version 0.1.0 told none
    lost = Lost(first, following, str(told.get("reason", RETENTION)), topic_id)
    if not 0 <= lost.first < lost.next_offset:
        raise ValueError("a loss must have offsets that follow each other")
    return TopicPartition(topic, int(partition)), lost


def accept_entry(loss: Loss, topic_id: UUID | None) -> tuple[bytes, bytes]:
    """The record that accepts a loss of the source topic with this id."""
    told = {
        "first": loss.first,
        "upto": loss.next_offset,
        "reason": loss.reason,
        "topic_id": str(topic_id) if topic_id else None,
        "at_ms": _now_ms(),
    }
    return f"{_ACCEPT}{loss.target.topic}/{loss.target.partition}".encode(), json.dumps(told).encode()


def read_accepted(record: Entry) -> Accepted | None:
    """What a record accepts; None where it is about something else. Raises one of `NOT_OURS` where it is not one that
    `accept_entry` made.
    """
    if not record.key.startswith(_ACCEPT.encode()) or record.value is None:
        return None
    topic, _, partition = record.key.decode()[len(_ACCEPT) :].rpartition("/")
    told = parsed(record.value)
    topic_id = UUID(str(told["topic_id"])) if told["topic_id"] else None
    return Accepted(TopicPartition(topic, int(partition)), (int(told["first"]), int(told["upto"])), topic_id)


def accepted_in(known: Mapping[bytes, bytes]) -> dict[TopicPartition, Accepted]:
    """By target partition, what the newest records of a journal tell; records that are none of ours are passed over."""
    found = {}
    for key, value in known.items():
        with contextlib.suppress(*NOT_OURS):
            if (accepted := read_accepted(Entry(0, key, value))) is not None:
                found[accepted.target] = accepted
    return found


def accepted_for(one: Assignment, told: Mapping[TopicPartition, Accepted]) -> tuple[int, int] | None:
    """What is accepted of a partition: nothing where the topic that it was accepted of was another one."""
    found = told.get(one.target)
    return found.offsets if found is not None and found.topic_id == one.topic_id else None


def _now_ms() -> int:
    return int(time.time() * 1000)
