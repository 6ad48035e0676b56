"""Copies of one partition, by a flow that has the name of its topic."""

from __future__ import annotations

from typing import Any

from helpers import mirror_once

from mirror.kafka.cluster import TopicPartition
from mirror.observability.status import PartitionStatus
from mirror.states import State


class Killed(Exception):
    """The process is gone."""


#: The bootstrap addresses of a source and a target.
Pair = tuple[str, str]


def copied(pair: Pair, topic: str, state: State = State.CAUGHT_UP, **more: Any) -> PartitionStatus:
    """Copy partition 0 up to the source's end of now; it must end in `state`."""
    found = mirror_once(*pair, [topic], flow=topic, **more)[TopicPartition(topic, 0)]
    assert found.state is state, found
    return found
