"""The lanes of an epoch, as Spark takes them to its workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mirror.assignment import Assignment
from mirror.sink import Tally
from mirror.spark.epoch import LanesFor
from mirror.spark.flow import Flow
from mirror.spark.relay import Lane
from mirror.spark.stopmark import MarkAddress
from mirror.spark.tidings import Tidings
from mirror.wire.cluster import TopicPartition


def lanes_for(
    flow: Flow,
    number: int,
    packed: Sequence[tuple[Assignment, ...]],
    rates: Sequence[float | None],
    tallies: Mapping[TopicPartition, Tally],
    tidings: Tidings,
) -> LanesFor:
    """Those of epoch `number`: `packed` are the assignments of each, `rates` what each may fetch. What the journal told
    up to now is as of now, whenever the epoch begins.
    """
    last, until = tidings.runs.last(), tidings.until

    def lanes(seconds: float, mark: MarkAddress) -> list[Lane]:
        return [
            Lane(
                flow=flow.name,
                instance=tidings.instance,
                claim=tidings.owner.claim or 0 if tidings.owner else 0,
                number=index,
                source=flow.source,
                target=flow.target,
                assignments=lane,
                seconds=seconds,
                memory_bytes=flow.memory_bytes // len(packed),
                stop_mark=mark,
                so_far={one.source: tallies[one.source] for one in lane if one.source in tallies},
                runs={one.target: last[one.target] for one in lane if one.target in last},
                journal_offset=until,
                epoch=number,
                bytes_per_second=rates[index],
            )
            for index, lane in enumerate(packed)
        ]

    return lanes
