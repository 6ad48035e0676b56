"""What is said of a copy at its end: whether a partition is done, and what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from mirror.assignment import Assignment
from mirror.observe.figures import Figures
from mirror.states import State
from mirror.wire.cluster import TopicPartition


class Headway:
    """How far each partition has ever come."""

    def __init__(self) -> None:
        """Nowhere yet."""
        self._reached: dict[TopicPartition, int] = {}

    def made(self, told: Mapping[TopicPartition, Figures]) -> bool:
        """Whether any partition got further than ever before."""
        looked = {at: one for at, one in told.items() if not one.presumed}
        further = {at: one.next_offset for at, one in looked.items() if one.next_offset > self._reached.get(at, 0)}
        self._reached |= further
        return bool(further)


def is_over(figures: Figures, until: int) -> bool:
    """Nothing is left to do for a partition of a bounded copy, but for a person."""
    if figures.presumed:
        return False
    return figures.next_offset >= until or (figures.is_stopped and figures.state is not State.CONTENDED)


def left_of(assignments: Iterable[Assignment], told: Mapping[TopicPartition, Figures]) -> list[Assignment]:
    """Those of a bounded copy of which something is left to do."""
    return [one for one in assignments if one.source not in told or not is_over(told[one.source], one.until or 0)]


def has_caught_up(figures: Figures) -> bool:
    """Nothing is to be copied now, or not by the mirror's own doing."""
    return figures.state in (State.CAUGHT_UP, State.PAUSED) or figures.is_stopped


def is_under_way(figures: Figures) -> bool:
    """There is something to copy, as far as is known, and nothing that is told hinders it."""
    if figures.state is State.STARTING:
        return True
    return figures.state is State.MIRRORING and figures.next_offset < figures.log_end


def unfinished_of(left: Iterable[Assignment], told: Mapping[TopicPartition, Figures]) -> Iterator[str]:
    """What was not copied of each partition that is left."""
    for assignment in left:
        figures = told.get(assignment.source)
        why = f"{figures.state} at offset {figures.next_offset}" if figures else "not begun"
        detail = f", {figures.detail}" if figures and figures.detail else ""
        yield f"{assignment.source} up to offset {assignment.until}: {why}{detail}"
