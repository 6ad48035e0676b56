"""Find the position of a partition: observe both logs, and decide, until the decision is final."""

from __future__ import annotations

from typing import Final

from mirror.errors import MalformedBatch, PartitionStop
from mirror.kafka.cluster import Cluster, TopicPartition
from mirror.replication.assignment import STANDING
from mirror.replication.decide import EQUAL_OFFSETS, Position, Row, decide
from mirror.replication.observe import Observation, Observer, Question
from mirror.states import Remedy, State

#: What resolves a batch that cannot be read of either log.
DAMAGED: Final = (Remedy.SOUND_LEADER, Remedy.BEGIN_ANEW, Remedy.INSPECT)


async def resume(observer: Observer) -> Position:
    """Return the position of a partition whose offsets are the source's.

    Raises PartitionStop (DIVERGED, TRUNCATED, TARGET_LOST, RETENTION_GAP, REFUSED), and as `Observer.observe` does.
    """
    return await settle(observer, await observer.observe(), EQUAL_OFFSETS)


async def settle(observer: Observer, facts: Observation, table: tuple[Row, ...]) -> Position:
    """Decide, and observe what the decision asks for, until it is to go on. Raises what it is otherwise."""
    while isinstance(decision := decide(facts, table), Question):
        facts = await observer.ask(facts, decision)
    if isinstance(decision, Position):
        return decision
    if isinstance(decision, PartitionStop) and decision.state in STANDING:
        await observer.check_stop(facts, decision)
    raise decision


def located(stop: PartitionStop, source: Cluster, target: Cluster, target_topic: str) -> PartitionStop:
    """Return the stop, with both clusters and the copy for its advice; unless it names one, the source is inspected."""
    if not stop.knows("side"):
        stop.knowing(**inspecting("source", stop.topic, stop.offset))
    return stop.knowing(source=source.endpoint.servers, target=target.endpoint.servers, target_topic=target_topic)


def corrupt(
    damage: MalformedBatch, target: Cluster, partition: TopicPartition, target_topic: str, offset: int = -1
) -> PartitionStop:
    """Return the stop of a source partition for what cannot be read of one of both logs while its position is asked
    for: the text of the damage begins with the cluster's name.
    """
    is_copy = str(damage).startswith(f"{target}:")
    where = inspecting(*("target", target_topic) if is_copy else ("source", partition.topic), damage.offset)
    return PartitionStop(State.CORRUPT, *partition, offset, str(damage), *DAMAGED).knowing(**where)


def inspecting(side: str, topic: str, offset: int) -> dict[str, object]:
    """Return where `Remedy.INSPECT` sends a person."""
    return {"side": side, "damaged": topic, "begin": f" --from {offset}" if offset >= 0 else ""}
