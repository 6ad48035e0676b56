"""Which task copies which partitions.

A task needs few connections when its partitions share a source leader, and an epoch is short when no task has much more
to do than the others. So tasks are dealt to leaders by weight, and among a leader's tasks the heaviest partition goes
first, to the lightest task (longest processing time, LPT). Where leaders are so uneven that the fullest task would then
carry more than 4/3 of what LPT over everything gives, balance wins and leaders are mixed.

Pure and deterministic: the same partitions, in any order, give the same tasks.
"""

from __future__ import annotations

import heapq
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Final, NamedTuple

from mirror.kafka.cluster import Leader, TopicPartition
from mirror.kafka.rate_limit import shares
from mirror.observability.status import PartitionStatus
from mirror.replication.assignment import Assignment
from mirror.replication.partition_writer import PartitionCounters

# --- Which task copies which partitions -------------------------------------------------------------------------------

TOLERANCE = 4 / 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One partition to copy. `leader`: its source broker, -1 if unknown. `weight`: bytes per second, say."""

    topic: str
    partition: int
    leader: int
    weight: float


Task = tuple[Load, ...]


def pack(items: Sequence[Load], tasks: int) -> tuple[Task, ...]:
    """Spread partitions over at most `tasks` tasks, none of them empty; each partition is in exactly one.

    The fullest task carries at most `TOLERANCE` times what LPT alone would give it. `ValueError` for fewer than one
    task, or a weight that is negative or not finite.
    """
    if tasks < 1:
        raise ValueError(f"{tasks} tasks: at least one is needed")
    for item in items:
        if item.weight < 0 or not isfinite(item.weight):
            raise ValueError(f"{item.topic}-{item.partition} has weight {item.weight}")
    items = sorted(items, key=_name)
    grouped, mixed = _by_leader(items, tasks), _longest_first([(item,) for item in items], tasks)
    chosen = grouped if _fullest(grouped) <= TOLERANCE * _fullest(mixed) else mixed
    return tuple(sorted((tuple(sorted(task, key=_name)) for task in chosen), key=lambda task: _name(task[0])))


def _by_leader(items: Sequence[Load], tasks: int) -> list[Task]:
    leaders: dict[int, list[Load]] = {}
    for item in items:
        leaders.setdefault(item.leader, []).append(item)
    if len(leaders) >= tasks:
        return _longest_first([tuple(group) for group in leaders.values()], tasks)
    share = dict.fromkeys(leaders, 1)
    for _ in range(tasks - len(leaders)):
        splittable = [leader for leader in leaders if share[leader] < len(leaders[leader])]
        if not splittable:
            break
        share[max(splittable, key=lambda leader: (_weight(leaders[leader]) / share[leader], -leader))] += 1
    return [task for leader, group in leaders.items() for task in _longest_first([(i,) for i in group], share[leader])]


def _longest_first(groups: Sequence[Task], tasks: int) -> list[Task]:
    """LPT over groups that stay whole; the number of groups breaks ties, so that weightless ones spread too."""
    heap: list[tuple[float, int, int]] = [(0.0, 0, index) for index in range(min(tasks, len(groups)))]
    filled: list[list[Load]] = [[] for _ in heap]
    for group in sorted(groups, key=lambda group: (-_weight(group), min(map(_name, group)))):
        load, count, index = heapq.heappop(heap)
        filled[index].extend(group)
        heapq.heappush(heap, (load + _weight(group), count + 1, index))
    return [tuple(task) for task in filled]


def _weight(task: Sequence[Load]) -> float:
    return sum(item.weight for item in task)


def _fullest(tasks: Sequence[Task]) -> float:
    return max(map(_weight, tasks), default=0.0)


def _name(item: Load) -> tuple[str, int]:
    return item.topic, item.partition


# --- Partitions to tasks ----------------------------------------------------------------------------------------------

#: A task copies hundreds of megabytes a second of large batches; the other core is for the kernel, which moves the
#: bytes, and for Spark's JVM. On two cores shared with both clusters one task is as fast as two or faster, and takes
#: two thirds of their CPU (`mirror bench`). Flows that rewrite may want more.
_CORES_A_TASK: Final = 2
#: More tasks than this only help on a Spark cluster.
_MOST_BY_DEFAULT: Final = 8
_SECONDS_A_PARTITION: Final = 0.1
#: More than any configuration has: the number of partitions sets no limit where it may grow.
MOST_TASKS: Final = 1 << 20


def task_count(wanted: int | None, partitions: int) -> int:
    """How many tasks: what the configuration says, else one for two cores; never more than partitions."""
    return _bounded(wanted, partitions, _CORES_A_TASK)


def computing_task_count(wanted: int | None, parts: int) -> int:
    """The same for tasks that read and compare, which keep a core busy: one for each core."""
    return _bounded(wanted, parts, 1)


def _bounded(wanted: int | None, parts: int, cores: int) -> int:
    return max(1, min(parts, wanted or min((os.cpu_count() or 1) // cores, _MOST_BY_DEFAULT)))


def epoch_length(wanted: float, partitions: int, tasks: int) -> float:
    """Seconds of an epoch: what the configuration says, or more where a task has thousands of partitions. It begins
    with their positions, some hundred in a second, and should spend its time on copying.
    """
    return max(wanted, _SECONDS_A_PARTITION * math.ceil(partitions / tasks))


def renewed(
    current: Sequence[Assignment],
    planned: Sequence[Assignment],
    is_wanted: Callable[[str], bool],
    anew: Collection[str] = (),
) -> tuple[Assignment, ...]:
    """What to mirror from now on: what is planned, and of what was mirrored all that `is_wanted` by its source topic.

    A topic that was begun keeps the id that it had then, so that one made anew is noticed; it gets no partitions that
    the new one has more. One that is gone, or that preflight refuses by now, goes on as it was: its task reports. Of
    target topics that begin `anew`, by other ids than before, what is planned holds.
    """
    kept = [
        assignment
        for assignment in current
        if is_wanted(assignment.source.topic) and assignment.target.topic not in anew
    ]
    ids = {assignment.source.topic: assignment.topic_id for assignment in kept}
    found = {assignment.place: assignment for assignment in kept}
    for wanted in planned:
        if wanted.place in found:
            found[wanted.place] = replace(found[wanted.place], rules=wanted.rules)
        elif ids.get(wanted.source.topic, wanted.topic_id) in (None, wanted.topic_id):
            found[wanted.place] = wanted
    replaced = {assignment.source: assignment.target for assignment in planned}
    return tuple(
        assignment
        for assignment in found.values()
        if replaced.get(assignment.source, assignment.target) == assignment.target
    )


def tasks_of(
    assignments: Sequence[Assignment],
    leaders: Mapping[TopicPartition, Leader],
    all_counters: Mapping[TopicPartition, PartitionCounters],
    tasks: int,
) -> list[tuple[Assignment, ...]]:
    """Assignments packed by source leader and by what each partition has moved so far; in a task those come first that
    nothing is known of, which are new, and then those that move most: a task begins them in this order.
    """
    by_source = {assignment.source: assignment for assignment in assignments}
    loads = [
        Load(
            topic=source.topic,
            partition=source.partition,
            leader=leaders.get(source, Leader(-1, -1)).node,
            weight=1 + all_counters.get(source, PartitionCounters()).bytes,
        )
        for source in by_source
    ]
    sources = (sorted(task, key=lambda load: -load.weight) for task in pack(loads, tasks))
    named = ([TopicPartition(load.topic, load.partition) for load in task] for task in sources)
    return [tuple(by_source[partition] for partition in sorted(task, key=all_counters.__contains__)) for task in named]


def are_even(tasks: Sequence[Collection[TopicPartition]], slots: int, weights: Mapping[TopicPartition, int]) -> bool:
    """Return True if tasks are as many as a plan for `slots` has, and none takes much from the fullest, by what
    partitions have moved so far (bytes): another plan is not worth the pause in which all positions are found anew.
    """
    if len(tasks) != min(slots, sum(map(len, tasks))):
        return False
    loads = [sum(1 + weights.get(partition, 0) for partition in task) for task in tasks]
    heaviest = 1 + max((weights.get(partition, 0) for task in tasks for partition in task), default=0)
    return max(loads, default=0) <= TOLERANCE * max(sum(loads) / max(1, len(loads)), heaviest)


class Limits(NamedTuple):
    """What a re-keyed topic may use now: bytes per second of its source, None without a bound, and bytes of memory."""

    rate: float | None
    memory_bytes: int


def split_rate(bound: float | None, copied: int, rekeyed: int) -> tuple[float | None, float | None]:
    """What of a flow's bound all tasks share, and what each re-keyed topic gets, by how many topics are `copied` and
    `rekeyed` now; None without one.
    """
    if bound is None:
        return None, None
    each = bound / max(1, copied + rekeyed)
    return bound - each * rekeyed, each


def rates_of(
    bound: float | None,
    tasks: Sequence[Sequence[Assignment]],
    figures: Mapping[TopicPartition, PartitionStatus],
    moved: Mapping[TopicPartition, int],
) -> list[float | None]:
    """What each task may fetch of a bound, in bytes per second; None without one. A task needs what its partitions lag
    behind, and what they have `moved` (bytes) since the last plan.
    """
    if bound is None:
        return [None] * len(tasks)
    lags = {source: figures[source].lag_bytes or 0 for task in tasks for source in _sources(task) if source in figures}
    return [
        *shares(
            bound,
            [sum(lags.get(partition, 0) + moved.get(partition, 0) for partition in _sources(task)) for task in tasks],
        )
    ]


def _sources(task: Sequence[Assignment]) -> list[TopicPartition]:
    return [assignment.source for assignment in task]
