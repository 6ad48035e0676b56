"""Which lane copies which partitions.

A lane needs few connections when its partitions share a source leader, and an epoch is short when no lane has much more
to do than the others. So lanes are dealt to leaders by weight, and among a leader's lanes the heaviest partition goes
first, to the lightest lane (longest processing time, LPT). Where leaders are so uneven that the fullest lane would then
carry more than 4/3 of what LPT over everything gives, balance wins and leaders are mixed.

Pure and deterministic: the same partitions, in any order, give the same lanes.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

TOLERANCE = 4 / 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One partition to copy. `leader`: its source broker, -1 if unknown. `weight`: bytes per second, say."""

    topic: str
    partition: int
    leader: int
    weight: float


Lane = tuple[Load, ...]


def pack(items: Sequence[Load], lanes: int) -> tuple[Lane, ...]:
    """Spread partitions over at most `lanes` lanes, none of them empty; each partition is in exactly one.

    The fullest lane carries at most `TOLERANCE` times what LPT alone would give it. `ValueError` for fewer than one
    lane, or a weight that is negative or not finite.
    """
    if lanes < 1:
        raise ValueError(f"{lanes} lanes: at least one is needed")
    for item in items:
        if item.weight < 0 or not isfinite(item.weight):
            raise ValueError(f"{item.topic}-{item.partition} has weight {item.weight}")
    items = sorted(items, key=_name)
    grouped, mixed = _by_leader(items, lanes), _longest_first([(item,) for item in items], lanes)
    chosen = grouped if _fullest(grouped) <= TOLERANCE * _fullest(mixed) else mixed
    return tuple(sorted((tuple(sorted(lane, key=_name)) for lane in chosen), key=lambda lane: _name(lane[0])))


def _by_leader(items: Sequence[Load], lanes: int) -> list[Lane]:
    leaders: dict[int, list[Load]] = {}
    for item in items:
        leaders.setdefault(item.leader, []).append(item)
    if len(leaders) >= lanes:
        return _longest_first([tuple(group) for group in leaders.values()], lanes)
    share = dict.fromkeys(leaders, 1)
    for _ in range(lanes - len(leaders)):
        splittable = [leader for leader in leaders if share[leader] < len(leaders[leader])]
        if not splittable:
            break
        share[max(splittable, key=lambda leader: (_weight(leaders[leader]) / share[leader], -leader))] += 1
    return [lane for leader, group in leaders.items() for lane in _longest_first([(i,) for i in group], share[leader])]


def _longest_first(groups: Sequence[Lane], lanes: int) -> list[Lane]:
    """LPT over groups that stay whole; the number of groups breaks ties, so that weightless ones spread too."""
    heap: list[tuple[float, int, int]] = [(0.0, 0, index) for index in range(min(lanes, len(groups)))]
    filled: list[list[Load]] = [[] for _ in heap]
    for group in sorted(groups, key=lambda group: (-_weight(group), min(map(_name, group)))):
        load, count, index = heapq.heappop(heap)
        filled[index].extend(group)
        heapq.heappush(heap, (load + _weight(group), count + 1, index))
    return [tuple(lane) for lane in filled]


def _weight(lane: Sequence[Load]) -> float:
    return sum(item.weight for item in lane)


def _fullest(lanes: Sequence[Lane]) -> float:
    return max(map(_weight, lanes), default=0.0)


def _name(item: Load) -> tuple[str, int]:
    return item.topic, item.partition
