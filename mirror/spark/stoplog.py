"""One log event for each change of a partition's state that somebody may want to know of, when it is first known.

MIRRORING and CAUGHT_UP change places with every record, and a partition is STARTING in every epoch: of those three
only what ends another state is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from mirror.observe import logs
from mirror.observe.figures import Figures
from mirror.states import State
from mirror.wire.cluster import TopicPartition

_log = logs.get("mirror.supervisor")
_WELL: Final = frozenset({State.MIRRORING, State.CAUGHT_UP})
_PASSING: Final = frozenset({State.ALIGNING, State.PAUSED, State.WAITING})


class StopLog:
    """Give it figures as they come, by whatever way; older ones than those known are passed over. A stop that every
    epoch meets again is told once, and again where it is another state or another offset; so is a wait. The offset of
    RECREATED is the copy's end, which says nothing of the source: it is 0 once somebody deletes the copy, as advised.
    An offset of -1 is not known: an epoch met the stop before it knew where the copy stands.
    """

    def __init__(self) -> None:
        self._told: dict[TopicPartition, tuple[State, int]] = {}
        self._passing: dict[TopicPartition, State] = {}
        self._seen: dict[TopicPartition, int] = {}

    def tell(self, figures: Iterable[Figures]) -> None:
        """Log what is new in them."""
        for one in figures:
            at, now = TopicPartition(one.topic, one.partition), (one.state, one.next_offset)
            if one.at_ms < self._seen.get(at, 0):
                continue
            self._seen[at] = one.at_ms
            before = self._told.get(at)
            self._tell_passing(at, one)
            says_offset = one.next_offset >= 0 and one.state is not State.RECREATED
            is_known = before is not None and one.state is before[0] and (now == before or not says_offset)
            if one.state.is_stop and not is_known:
                self._told[at] = now
                _tell_state(_log.error, "partition_stopped", one)
            elif before and (one.state is State.CAUGHT_UP or (not one.state.is_stop and one.next_offset > before[1])):
                del self._told[at]
                _tell_end(one, after=before[0])

    def _tell_passing(self, at: TopicPartition, one: Figures) -> None:
        before = self._passing.get(at)
        if one.state in _PASSING and one.state is not before:
            self._passing[at] = one.state
            _tell_state(_log.warning if one.state is State.WAITING else _log.info, "partition_state", one)
        elif before and (one.state in _WELL or one.state.is_stop):
            del self._passing[at]
            if one.state in _WELL:
                _tell_end(one, after=before)


def _tell_state(tell: Callable[..., None], event: str, one: Figures) -> None:
    tell(
        event,
        state=str(one.state),
        topic=one.topic,
        partition=one.partition,
        offset=one.next_offset,
        detail=one.detail,
    )


def _tell_end(one: Figures, after: State) -> None:
    """The end of a state that was told."""
    _log.info(
        "partition_goes_on",
        topic=one.topic,
        partition=one.partition,
        offset=one.next_offset,
        after=str(after),
    )
