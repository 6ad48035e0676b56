"""Which task copies which partitions.

A lane needs few connections when its partitions share a source leader, and an epoch is short when no lane has much more
to do than the others. So lanes are dealt to leaders by weight, and among a leader's lanes the heaviest partition goes
first, to the lightest lane (longest processing time, LPT). Where leaders are so uneven that the fullest lane would then
carry more than 4/3 of what LPT over everything gives, balance wins and leaders are mixed.

Pure and deterministic: the same partitions, in any order, give the same lanes.
"""

from __future__ import annotations

import heapq
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Final

from mirror.kafka.cluster import Leader, TopicPartition
from mirror.kafka.rate_limit import shares
from mirror.observability.status import PartitionStatus
from mirror.replication.assignment import Assignment
from mirror.replication.partition_writer import PartitionCounters

# --- Which lane copies which partitions -------------------------------------------------------------------------------

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
        raise ValueError(f"{lanes} tasks: at least one is needed")
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


# --- Partitions to lanes ----------------------------------------------------------------------------------------------

#: A lane copies hundreds of megabytes a second of large batches; the other core is for the kernel, which moves the
#: bytes, and for Spark's JVM. On two cores shared with both clusters one lane is as fast as two or faster, and takes
#: two thirds of their CPU (`mirror bench`). Flows that rewrite may want more.
_CORES_A_LANE: Final = 2
#: More tasks than this only help on a Spark cluster.
_MOST_BY_DEFAULT: Final = 8
_SECONDS_A_PARTITION: Final = 0.1
#: More than any configuration has: the number of partitions sets no limit where it may grow.
MOST_LANES: Final = 1 << 20


def lane_count(wanted: int | None, partitions: int) -> int:
    """How many lanes: what the configuration says, else one for two cores; never more than partitions."""
    return _bounded(wanted, partitions, _CORES_A_LANE)


def task_count(wanted: int | None, parts: int) -> int:
    """The same for tasks that read and compare, which keep a core busy: one for each core."""
    return _bounded(wanted, parts, 1)


def _bounded(wanted: int | None, parts: int, cores: int) -> int:
    return max(1, min(parts, wanted or min((os.cpu_count() or 1) // cores, _MOST_BY_DEFAULT)))


def epoch_length(wanted: float, partitions: int, lanes: int) -> float:
    """Seconds of an epoch: what the configuration says, or more where a lane has thousands of partitions. It begins
    with their positions, some hundred in a second, and should spend its time on copying.
    """
    return max(wanted, _SECONDS_A_PARTITION * math.ceil(partitions / lanes))


def renewed(
    current: Sequence[Assignment],
    planned: Sequence[Assignment],
    is_wanted: Callable[[str], bool],
    anew: Collection[str] = (),
) -> tuple[Assignment, ...]:
    """What to mirror from now on: what is planned, and of what was mirrored all that `is_wanted` by its source topic.

    A topic that was begun keeps the id that it had then, so that one made anew is noticed; it gets no partitions that
    the new one has more. One that is gone, or that preflight refuses by now, goes on as it was: its lane tells. Of
    target topics that begin `anew`, by other ids than before, what is planned holds.
    """
    kept = [one for one in current if is_wanted(one.source.topic) and one.target.topic not in anew]
    ids = {one.source.topic: one.topic_id for one in kept}
    found = {one.place: one for one in kept}
    for one in planned:
        if one.place in found:
            found[one.place] = replace(found[one.place], rules=one.rules)
        elif ids.get(one.source.topic, one.topic_id) in (None, one.topic_id):
            found[one.place] = one
    replaced = {one.source: one.target for one in planned}
    return tuple(one for one in found.values() if replaced.get(one.source, one.target) == one.target)


def lanes_of(
    assignments: Sequence[Assignment],
    leaders: Mapping[TopicPartition, Leader],
    tallies: Mapping[TopicPartition, PartitionCounters],
    lanes: int,
) -> list[tuple[Assignment, ...]]:
    """Assignments packed by source leader and by what each partition has moved so far; in a lane those come first that
    nothing is known of, which are new, and then those that move most: a lane begins them in this order.
    """
    by_source = {assignment.source: assignment for assignment in assignments}
    loads = [
        Load(
            topic=source.topic,
            partition=source.partition,
            leader=leaders.get(source, Leader(-1, -1)).node,
            weight=1 + tallies.get(source, PartitionCounters()).bytes,
        )
        for source in by_source
    ]
    sources = (sorted(lane, key=lambda load: -load.weight) for lane in pack(loads, lanes))
    named = ([TopicPartition(load.topic, load.partition) for load in lane] for lane in sources)
    return [tuple(by_source[at] for at in sorted(lane, key=tallies.__contains__)) for lane in named]


def rates_of(
    bound: float | None,
    lanes: Sequence[Sequence[Assignment]],
    figures: Mapping[TopicPartition, PartitionStatus],
    moved: Mapping[TopicPartition, int],
) -> list[float | None]:
    """What each lane may fetch of a bound, in bytes per second; None without one. A lane needs what its partitions lag
    behind, and what they have `moved` (bytes) since the last plan.
    """
    if bound is None:
        return [None] * len(lanes)
    lags = {source: figures[source].lag_bytes or 0 for lane in lanes for source in _sources(lane) if source in figures}
    return [*shares(bound, [sum(lags.get(at, 0) + moved.get(at, 0) for at in _sources(lane)) for lane in lanes])]


def _sources(lane: Sequence[Assignment]) -> list[TopicPartition]:
    return [assignment.source for assignment in lane]
