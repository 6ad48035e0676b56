"""What is to be mirrored of a flow, partition by partition, and what was lost of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from mirror.observe import logs
from mirror.policy.rules import Rules
from mirror.policy.selection import TopicPair
from mirror.wire.cluster import TopicPartition


@dataclass(frozen=True, slots=True)
class Assignment:
    """One partition to mirror. `until` bounds a copy; None follows the source for ever. Between the offsets
    `accepted`, somebody accepted that the source lost records before they were mirrored. Below offset `since` of the
    source nothing is mirrored: the flow began there, and the target was empty then.
    """

    source: TopicPartition
    target: TopicPartition
    topic_id: UUID | None
    rules: Rules
    until: int | None = None
    accepted: tuple[int, int] | None = None
    since: int = 0

    @property
    def place(self) -> tuple[TopicPartition, TopicPartition]:
        """From where to where: what tells one partition to mirror from another, whatever else of it changes."""
        return self.source, self.target


@dataclass(frozen=True, slots=True)
class Loss:
    """Records that the source lost before they were mirrored: offsets from `first` up to `next_offset`."""

    source: TopicPartition
    target: TopicPartition
    first: int
    next_offset: int


#: Told of a loss.
OnLoss = Callable[[Loss], Awaitable[None]]


async def log_loss(loss: Loss) -> None:
    """One event, at the moment when it is known."""
    logs.get(__name__).error(
        "records_lost",
        topic=loss.source.topic,
        partition=loss.source.partition,
        first_offset=loss.first,
        last_offset=loss.next_offset - 1,
        reason="the source deleted them before they were mirrored",
    )


def assign(
    pairs: Iterable[TopicPair], topic_ids: Mapping[str, UUID | None], rules: Mapping[str, Rules]
) -> tuple[Assignment, ...]:
    """Every partition of the selected topics; `topic_ids` by source name, `rules` by target name."""
    return tuple(
        Assignment(
            source=TopicPartition(pair.source, index),
            target=TopicPartition(pair.target, index),
            topic_id=topic_ids.get(pair.source),
            rules=rules[pair.target],
        )
        for pair in pairs
        for index in range(pair.partitions)
    )
