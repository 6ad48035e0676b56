"""As which topic a flow first saw a source topic, in its journal under `topic/<target topic>`.

The position is the target's log end, and says nothing about a source topic that was deleted and created again; its id
does (KIP-516). A target topic that was created anew begins anew, whatever the source was.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self
from uuid import UUID

from mirror.observe.jsonrecords import NOT_OURS, parsed

#: What the keys of all of them begin with.
PREFIX: Final = b"topic/"
_LARGEST: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstSeen:
    """The source topic and both topics' ids when mirroring began; None for an id that a cluster does not have.

    `made`: the flow created the target topic. `since`: by partition, the source offset below which nothing is mirrored;
    those that are not told of are mirrored from their first record (`starts.py`). `adopted`: the flow did not create
    the target topic: it was empty when the flow began it, or `mirror adopt` took it over, which is `compared` and says
    nothing of where the flow began. `origins`: the ids of the
    clusters that the data came through, the source's own first; see `chain`. `deleted_ms`: when the flow deleted the
    copy, since its source was gone (Unix ms); 0 where it did not.
    """

    source_topic: str
    topic_id: UUID | None
    target_topic_id: UUID | None
    cluster_id: str | None
    made: bool = False
    since: tuple[int, ...] = ()
    adopted: bool = False
    compared: bool = False
    origins: tuple[str, ...] = ()
    deleted_ms: int = 0

    @staticmethod
    def key(target_topic: str) -> bytes:
        """The record's key."""
        return PREFIX + target_topic.encode()

    @classmethod
    def read(cls, value: bytes) -> Self:
        """From the journal. Raises one of `NOT_OURS` where it is not one of ours."""
        told = parsed(value)
        if not isinstance(told, dict):
            raise ValueError("a topic as it was first seen must be a JSON object")
        return cls(
            source_topic=str(told["source_topic"]),
            topic_id=UUID(str(told["topic_id"])) if told["topic_id"] else None,
            target_topic_id=UUID(str(told["target_topic_id"])) if told["target_topic_id"] else None,
            cluster_id=told["cluster_id"],
            made=told.get("made") is True,
            since=_offsets(told.get("since", [])),
            adopted=told.get("adopted") is True,
            compared=told.get("compared") is True,
            origins=_clusters(told.get("origins", [])),
            deleted_ms=_time(told.get("deleted_ms", 0)),
        )

    def to_json(self) -> bytes:
        """For the journal."""
        return json.dumps(
            {
                "source_topic": self.source_topic,
                "topic_id": str(self.topic_id or ""),
                "target_topic_id": str(self.target_topic_id or ""),
                "cluster_id": self.cluster_id,
                "made": self.made,
                "since": self.since,
                "adopted": self.adopted,
                **({"compared": True} if self.compared else {}),
                "origins": self.origins,
                **({"deleted_ms": self.deleted_ms} if self.deleted_ms else {}),
            }
        ).encode()

    @property
    def chain(self) -> tuple[str, ...]:
        """The ids of the clusters that the data came through; a record of version 0.1.0 knows of the source alone."""
        return self.origins or ((self.cluster_id,) if self.cluster_id else ())

    def is_about(self, other: Self) -> bool:
        """Whether both are of one source topic's name and one target topic."""
        is_one_copy = same_id(self.target_topic_id, other.target_topic_id)
        return self.source_topic == other.source_topic and is_one_copy

    def begins(self, partition: int) -> int:
        """The source offset below which nothing is mirrored of a partition."""
        return self.since[partition] if partition < len(self.since) else 0


def same_id(one: UUID | str | None, other: UUID | str | None) -> bool:
    """Whether two ids of topics or clusters may be those of the same one: None is an id that is not known, and never
    another one.
    """
    return one is None or other is None or one == other


def seen_in(journal: Mapping[bytes, bytes]) -> dict[str, FirstSeen]:
    """By target topic, as what its source was first seen, as the newest records of a journal tell."""
    found: dict[str, FirstSeen] = {}
    for key, value in journal.items():
        if key.startswith(PREFIX):
            with contextlib.suppress(*NOT_OURS):  # anybody may write there: the supervisor tells
                found[key[len(PREFIX) :].decode()] = FirstSeen.read(value)
    return found


def _offsets(told: object) -> tuple[int, ...]:
    """Raises ValueError for what are none."""
    if not isinstance(told, list) or not all(type(one) is int and 0 <= one <= _LARGEST for one in told):
        raise ValueError("since must be a list of offsets")
    return tuple(told)


def _clusters(told: object) -> tuple[str, ...]:
    """Raises ValueError for what are none."""
    if not isinstance(told, list) or not all(type(one) is str for one in told):
        raise ValueError("origins must be a list of cluster ids")
    return tuple(told)


def _time(told: object) -> int:
    """Raises ValueError for what is none."""
    if type(told) is not int or not 0 <= told <= _LARGEST:
        raise ValueError("deleted_ms must be a time in ms")
    return told
