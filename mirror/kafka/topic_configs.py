"""What is in effect for a topic, as its cluster's brokers say one by one, and what several of them say as one value.

A default is a broker's own, and a broker that is cut off answers with what was so yesterday: who is about to change a
topic by what another one has asks them all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from mirror.errors import AccessDenied, ClusterUnreachable, ConnectionLost, MirrorError
from mirror.kafka.cluster import CALL_TIMEOUT, Cluster, asked_of, refusal, some_connection
from mirror.kafka.connection import Connection
from mirror.kafka.protocol import DESCRIBE_CONFIGS

RETENTION: Final = ("retention.ms", "retention.bytes")
#: How soon a topic may and must be compacted, and how long the marker of a deleted key stays.
COMPACTION: Final = frozenset({"min.compaction.lag.ms", "max.compaction.lag.ms", "delete.retention.ms"})
#: What bounds what is removed: the larger value keeps more, and a negative one, which is none, the most.
_BOUNDS: Final = COMPACTION.union(RETENTION)
#: What decides together which records there are: some of these without the others may remove what all of them keep.
KEEPING: Final = _BOUNDS | {"cleanup.policy"}
#: A broker's own limit, which is in effect for its topics: it closes a connection over which a larger request comes.
MAX_REQUEST: Final = "socket.request.max.bytes"
#: What DescribeConfigs calls a topic and a broker (Kafka `ConfigResource.Type`).
_TOPIC, _BROKER = 2, 4
#: Where a setting of a topic itself comes from (Kafka `ConfigSource`), and the error of a topic that is not there.
_OF_TOPIC, _UNKNOWN_TOPIC = 1, 3


# --- By the wire ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Config:
    """A configuration in effect; `source`: where it was set (Kafka `ConfigSource`); `value` is None where secret."""

    name: str
    value: str | None
    source: int


async def topic_configs(
    cluster: Cluster, topics: Iterable[str], timeout: float = CALL_TIMEOUT
) -> dict[str, tuple[Config, ...] | Any]:
    """Return what is in effect for each of these topics, or the code of the error that a broker answers about it; with
    `MAX_REQUEST`, where the broker shows that (DESCRIBE_CONFIGS on the cluster).
    """
    return await _topic_configs(cluster, await some_connection(cluster, timeout), topics, timeout)


async def topic_configs_by_all(
    cluster: Cluster, topics: Iterable[str], timeout: float = CALL_TIMEOUT
) -> list[dict[str, tuple[Config, ...] | Any]]:
    """The same, from each broker that answers in time, in the order of their ids: brokers have defaults of their own,
    and one that is cut off answers with what was so yesterday. Raises ClusterUnreachable where none answers.
    """
    await cluster.refresh(timeout=timeout)
    names = list(topics)

    async def asked(node: int) -> dict[str, tuple[Config, ...] | Any]:
        async with asyncio.timeout(timeout):
            return await _topic_configs(cluster, await cluster.connection(node), names, timeout)

    answers = await asyncio.gather(*map(asked, sorted(cluster.nodes)), return_exceptions=True)
    silent = ConnectionLost, ClusterUnreachable, TimeoutError
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, silent):
            raise answer
    if found := [answer for answer in answers if not isinstance(answer, BaseException)]:
        return found
    raise ClusterUnreachable(f"{cluster}: no broker says how its topics are configured: {answers}")


async def _topic_configs(
    cluster: Cluster, connection: Connection, topics: Iterable[str], timeout: float
) -> dict[str, tuple[Config, ...] | Any]:
    version = connection.version(DESCRIBE_CONFIGS)
    resource = DESCRIBE_CONFIGS.schema(version, "request").DescribeConfigsResource
    topic = partial(resource, resource_type=_TOPIC, configuration_keys=None)
    broker = partial(resource, resource_type=_BROKER, configuration_keys=(MAX_REQUEST,))
    request = DESCRIBE_CONFIGS.request(version)(
        resources=(
            *(topic(resource_name=name) for name in topics),
            *(broker(resource_name=str(node)) for node in cluster.nodes if cluster.address(node) == connection.address),
        )
    )
    answer = await asked_of(cluster, connection, DESCRIBE_CONFIGS, request, timeout)
    found = {
        (result.resource_type, result.resource_name): result.error_code
        or tuple(Config(config.name, config.value, int(config.config_source)) for config in result.configs)
        for result in answer.results
    }
    limits = [limit for (kind, _), of in found.items() if kind == _BROKER and isinstance(of, tuple) for limit in of]
    return {
        name: (*of, *limits) if isinstance(of, tuple) else of for (kind, name), of in found.items() if kind == _TOPIC
    }


# --- As values --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValue:
    """A value in effect; `is_default` unless it is set on the topic (or, for a broker, on the broker) itself.
    `is_disputed`: brokers that were asked one by one give different ones.
    """

    value: str
    is_default: bool
    is_disputed: bool = False


#: The settings of topics, by topic and name.
TopicConfigs = Mapping[str, Mapping[str, ConfigValue]]


def plain_values(configs: Mapping[str, ConfigValue]) -> dict[str, str]:
    """What is in effect, wherever it was set."""
    return {name: found.value for name, found in configs.items()}


def configs(found: Mapping[str, Any], own: int) -> dict[str, ConfigValue]:
    """From the client library's entries; `own`: the code of where one that is set on the resource itself comes from
    (Kafka `ConfigSource`).
    """
    return {
        name: ConfigValue(value=entry.value, is_default=entry.source != own)
        for name, entry in found.items()
        if entry.value is not None
    }


def agreed(answers: Iterable[Mapping[str, ConfigValue]]) -> dict[str, ConfigValue]:
    """What several brokers say of one topic, as one: where they differ, what the first says, or what keeps the most."""
    by_name: dict[str, list[ConfigValue]] = {}
    for answer in answers:
        for name, found in answer.items():
            by_name.setdefault(name, []).append(found)
    return {name: _agreed(name, found) for name, found in by_name.items()}


def _agreed(name: str, found: Sequence[ConfigValue]) -> ConfigValue:
    if all(config.value == found[0].value for config in found):
        return found[0]
    keeps_most = found[0] if name not in _BOUNDS else max(found, key=lambda config: _bound(config.value))
    return replace(keeps_most, is_disputed=True)


def _bound(value: str) -> float:
    return float("inf") if int(value) < 0 else int(value)


def keeps(name: str, value: str | None, wanted: str | None) -> bool:
    """Return whether a topic with this value of a setting keeps whatever one with the wanted value keeps."""
    if value == wanted:
        return True
    return name in _BOUNDS and value is not None and wanted is not None and _bound(value) >= _bound(wanted)


def read_configs(
    found: Mapping[str, Any], where: object, denied: dict[str, MirrorError] | None = None
) -> dict[str, dict[str, ConfigValue]]:
    """By topic, what a broker of the cluster `where` answered (`topic_configs`); a topic that does not exist is left
    out. Where `denied` is given, so is one that may not be asked about, and it learns why. Raises AccessDenied without
    it, and BrokerError.
    """
    known: dict[str, dict[str, ConfigValue]] = {}
    for name, listed in found.items():
        if isinstance(listed, tuple):
            known[name] = configs({config.name: config for config in listed}, _OF_TOPIC)
        elif listed != _UNKNOWN_TOPIC:  # deleted since it was listed, or never there: absence is the answer
            problem: MirrorError = refusal(listed, f"{where}: cannot describe configs of topic {name}")
            if isinstance(problem, AccessDenied):
                problem = AccessDenied(f"{problem}. Grant DESCRIBE_CONFIGS on the topic, or check the credentials")
                if denied is not None:
                    denied[name] = problem
                    continue
            raise problem
    return known


# --- As changes -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """A setting of a topic that is to change; `after` None: back to the cluster's default. `before` is in effect now,
    None where the cluster does not know the setting.
    """

    topic: str
    name: str
    before: str | None
    after: str | None

    @property
    def is_of_keeping(self) -> bool:
        """It decides together with others which records there are."""
        return self.name in KEEPING

    @property
    def keeps_more(self) -> bool:
        """The other value removes nothing that the one before keeps."""
        return self.after != self.before and keeps(self.name, self.after, self.before)


def by_topic(changes: Iterable[ConfigChange]) -> dict[str, list[ConfigChange]]:
    """The changes of each topic, in their order."""
    found: dict[str, list[ConfigChange]] = {}
    for change in changes:
        found.setdefault(change.topic, []).append(change)
    return found
