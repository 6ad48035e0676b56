"""One cluster's administration, with typed results and mirror's own errors.

confluent-kafka answers with futures, integers and one exception type; all of that ends here. Everything is asked in
bulk, one request for all topics. Every call has a deadline, so that a wrong address is an error and not a wait.
librdkafka's own complaints ("1/1 brokers are down") go to our debug log: the exception says the same, once and better.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient, ConfigResource, ConfigSource, NewTopic, ResourceType

from mirror.admin.meeting import meet
from mirror.config import ClusterSettings
from mirror.errors import AccessDenied, BrokerError, ClusterError, ClusterUnreachable, ConfigError
from mirror.observe import logs

DEADLINE_S = 8.0
"""How long one call may take, in seconds."""

_UNKNOWN_TOPIC = KafkaError.UNKNOWN_TOPIC_OR_PART
_ALREADY_EXISTS = KafkaError.TOPIC_ALREADY_EXISTS

_DENIED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._AUTHENTICATION,
}
_UNREACHABLE = {
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError._SSL,
}

log = logs.get(__name__)
Key = TypeVar("Key")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionInfo:
    """One partition; `leader` is -1 while there is none."""

    partition: int
    leader: int
    replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """One topic; `topic_id` is None on brokers older than 2.8. Partitions are in order."""

    name: str
    topic_id: uuid.UUID | None
    partitions: tuple[PartitionInfo, ...]

    @property
    def replication_factor(self) -> int:
        """The fewest replicas any partition has."""
        return min((len(partition.replicas) for partition in self.partitions), default=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValue:
    """A value in effect; `is_default` unless it is set on the topic (or, for a broker, on the broker) itself."""

    value: str
    is_default: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Creation:
    """A topic to be created."""

    topic: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str] = field(default_factory=dict)


class Admin:
    """Administration of one cluster; connects at the first call.

    Every method raises a `ClusterError` (unreachable, denied, broker error) that names cluster, address and operation.
    """

    def __init__(self, settings: ClusterSettings) -> None:
        """`ConfigError` when librdkafka refuses the settings."""
        self.settings = settings
        self._has_met = False
        sink = logging.Logger(f"librdkafka.{settings.alias}")  # outside the global tree: no other handler prints it
        sink.addHandler(_ToOurLog(settings.alias))
        try:
            self._client = AdminClient({"client.id": "mirror", **settings.client}, logger=sink)
        except (KafkaException, ValueError) as error:
            raise ConfigError(f"cluster {settings.alias}: client settings refused: {error}") from error

    def cluster_id(self) -> str:
        """The id the cluster was formed with."""
        with self._doing("read the cluster's id"):
            return str(self._client.describe_cluster(request_timeout=DEADLINE_S).result().cluster_id or "")

    def brokers(self) -> int:
        """How many brokers are alive."""
        with self._doing("count the brokers"):
            return len(self._client.describe_cluster(request_timeout=DEADLINE_S).result().nodes)

    def may_write_markers(self) -> bool:
        """Whether the brokers take control markers from us (Kafka `KafkaApis.handleWriteTxnMarkersRequest`)."""
        with self._doing("ask for the rights on the cluster"):
            asked = self._client.describe_cluster(include_authorized_operations=True, request_timeout=DEADLINE_S)
            rights = set(asked.result().authorized_operations or ())
            return bool(rights & {AclOperation.ALTER, AclOperation.CLUSTER_ACTION})

    def topics(self) -> dict[str, TopicInfo]:
        """Every topic we may see, by name."""
        with self._doing("list topics"):
            names = sorted(self._client.list_topics(timeout=DEADLINE_S).topics)
        return self.describe(names)

    def describe(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        """The topics of these names that exist."""
        wanted = list(names)
        if not wanted:
            return {}
        with self._doing("describe topics"):
            asked = self._client.describe_topics(TopicCollection(wanted), request_timeout=DEADLINE_S)
        return {name: _topic_info(found) for name, found in self._existing("describe topic", asked)}

    def topic_configs(self, names: Iterable[str]) -> dict[str, dict[str, ConfigValue]]:
        """The configs in effect for these topics, without sensitive ones; a topic that does not exist is left out."""
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        if not resources:
            return {}
        with self._doing("describe topic configs"):
            asked = self._client.describe_configs(resources, request_timeout=DEADLINE_S)
        by_name = {resource.name: future for resource, future in asked.items()}
        kind = ConfigSource.DYNAMIC_TOPIC_CONFIG
        return {name: _configs(found, kind) for name, found in self._existing("describe configs of topic", by_name)}

    def broker_configs(self) -> dict[str, ConfigValue]:
        """The configs of one broker, which stands for all of them."""
        with self._doing("describe broker configs"):
            broker = min(node.id for node in self._client.describe_cluster(request_timeout=DEADLINE_S).result().nodes)
            resource = ConfigResource(ResourceType.BROKER, str(broker))
            (future,) = self._client.describe_configs([resource], request_timeout=DEADLINE_S).values()
            return _configs(future.result(), ConfigSource.STATIC_BROKER_CONFIG)

    def create_topics(self, creations: Sequence[Creation]) -> frozenset[str]:
        """Create topics in one request; the names that were there already. One that fails does not stop the others."""
        if not creations:
            return frozenset()
        wanted = [
            NewTopic(
                one.topic,
                num_partitions=one.partitions,
                replication_factor=one.replication_factor,
                config=dict(one.configs),
            )
            for one in creations
        ]
        with self._doing("create topics"):
            asked = self._client.create_topics(wanted, request_timeout=DEADLINE_S, operation_timeout=DEADLINE_S)
        existed: set[str] = set()
        failures: list[BrokerError] = []
        for name, future in asked.items():
            try:
                with self._doing(f"create topic {name}"):
                    future.result()
            except BrokerError as error:
                if error.code == _ALREADY_EXISTS:
                    existed.add(name)
                else:
                    failures.append(error)
        if failures:
            raise failures[0]
        return frozenset(existed)

    def _existing(self, doing: str, asked: Mapping[str, Future[Any]]) -> Iterator[tuple[str, Any]]:
        for name, future in asked.items():
            try:
                with self._doing(f"{doing} {name}"):
                    found = future.result()
            except BrokerError as error:
                if error.code == _UNKNOWN_TOPIC:  # deleted since it was listed, or never there: absence is the answer
                    continue
                raise
            yield name, found

    @contextmanager
    def _doing(self, what: str) -> Iterator[None]:
        if not self._has_met:
            meet(self.settings, what, DEADLINE_S)
            self._has_met = True
        try:
            yield
        except KafkaException as error:
            raise self._translated(error.args[0], what) from error
        finally:
            self._client.poll(0)  # librdkafka hands over its log lines here

    def _translated(self, error: KafkaError, what: str) -> ClusterError:
        cluster = f"cluster {self.settings.alias} ({self.settings.bootstrap_servers})"
        doing = f"{cluster}: cannot {what}"
        code = error.code()
        if code in _UNREACHABLE:
            return ClusterUnreachable(
                f"{doing}: no broker answered within {DEADLINE_S:.0f} s ({error.str()});"
                " check bootstrap.servers and that the brokers are up"
            )
        if code in _DENIED:
            return AccessDenied(f"{doing}: {error.str()}; grant the right, or check the credentials")
        if code > 0:
            return BrokerError(code, f"{error.name()} ({error.str()})", doing)
        return ClusterError(f"{doing}: {error.name()} ({error.str()})")


class _ToOurLog(logging.Handler):
    """librdkafka's lines as debug events of ours."""

    def __init__(self, alias: str) -> None:
        super().__init__()
        self._log = log.bind(cluster=alias)

    def emit(self, record: logging.LogRecord) -> None:
        self._log.debug("librdkafka", line=record.getMessage())


def _topic_info(found: Any) -> TopicInfo:
    most, least = found.topic_id.get_most_significant_bits(), found.topic_id.get_least_significant_bits()
    number = (most % 2**64) << 64 | least % 2**64  # the bindings hand out signed halves
    partitions = (
        PartitionInfo(
            partition=partition.id,
            leader=-1 if partition.leader is None else partition.leader.id,
            replicas=tuple(node.id for node in partition.replicas),
        )
        for partition in found.partitions
    )
    return TopicInfo(
        name=found.name,
        topic_id=uuid.UUID(int=number) if number else None,
        partitions=tuple(sorted(partitions, key=lambda one: one.partition)),
    )


def _configs(found: Mapping[str, Any], own: ConfigSource) -> dict[str, ConfigValue]:
    return {
        name: ConfigValue(value=entry.value, is_default=ConfigSource(entry.source) is not own)
        for name, entry in found.items()
        if entry.value is not None
    }
