"""What administration reads and what it is to make, as values; and how answers become them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka.admin import ConfigSource

from mirror.wire.metadata import Described


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionInfo:
    """One partition; `leader` is -1 while there is none."""

    partition: int
    leader: int
    replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """One topic; `topic_id` is None on brokers older than 2.8. Partitions are in order. `rights`: what we may do to it,
    by Kafka's names for operations; None where that was not asked for.
    """

    name: str
    topic_id: uuid.UUID | None
    partitions: tuple[PartitionInfo, ...]
    rights: frozenset[str] | None = None

    @property
    def replication_factor(self) -> int:
        """The fewest replicas any partition has."""
        return min((len(partition.replicas) for partition in self.partitions), default=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValue:
    """A value in effect; `is_default` unless it is set on the topic (or, for a broker, on the broker) itself."""

    value: str
    is_default: bool


def plain_values(configs: Mapping[str, ConfigValue]) -> dict[str, str]:
    """What is in effect, wherever it was set."""
    return {name: found.value for name, found in configs.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Creation:
    """A topic to be created."""

    topic: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A topic that is to have more partitions."""

    topic: str
    before: int
    partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """A setting of a topic that is to change; `after` None: back to the cluster's default. `before` is in effect now,
    None where the cluster does not know the setting.
    """

    topic: str
    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The offsets that a partition holds: from `start` up to `end`, which is the high watermark."""

    start: int
    end: int


def topic_info(found: Described) -> TopicInfo:
    """From what a broker told of a topic."""
    return TopicInfo(
        name=found.name,
        topic_id=found.topic_id,
        partitions=tuple(
            PartitionInfo(partition=one.partition, leader=one.leader, replicas=one.replicas) for one in found.partitions
        ),
        rights=found.rights,
    )


def configs(found: Mapping[str, Any], own: ConfigSource) -> dict[str, ConfigValue]:
    """From the client library's entries; `own`: where one that is set on the resource itself comes from."""
    return {
        name: ConfigValue(value=entry.value, is_default=entry.source != own.value)
        for name, entry in found.items()
        if entry.value is not None
    }
