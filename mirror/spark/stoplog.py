"""One log event for each stop, when it is first known, and one when the partition goes on."""

from __future__ import annotations

from collections.abc import Iterable

from mirror.observe import logs
from mirror.observe.figures import Figures
from mirror.states import State
from mirror.wire.cluster import TopicPartition

_log = logs.get("mirror.supervisor")


class StopLog:
    """Give it figures as they come, by whatever way; older ones than those known are passed over. A stop that every
    epoch meets again is told once, and again where it is another state or another offset.
    """

    def __init__(self) -> None:
        self._told: dict[TopicPartition, tuple[State, int]] = {}
        self._seen: dict[TopicPartition, int] = {}

    def tell(self, figures: Iterable[Figures]) -> None:
        """Log what is new in them."""
        for one in figures:
            at, now = TopicPartition(one.topic, one.partition), (one.state, one.next_offset)
            if one.at_ms < self._seen.get(at, 0):
                continue
            self._seen[at] = one.at_ms
            before = self._told.get(at)
            if one.state.is_stop and now != before:
                self._told[at] = now
                _log.error(
                    "partition_stopped",
                    state=str(one.state),
                    topic=one.topic,
                    partition=one.partition,
                    offset=one.next_offset,
                    detail=one.detail,
                )
            elif before and (one.state is State.CAUGHT_UP or (not one.state.is_stop and one.next_offset > before[1])):
                del self._told[at]
                _log.info("partition_goes_on", topic=one.topic, partition=one.partition, offset=one.next_offset)
