"""One cluster's administration, with typed results and mirror's own errors.

confluent-kafka answers with futures, integers and one exception type; all of that ends here. Everything is asked in
bulk, one request for all topics, or for as many as a controller takes at once. Every call has a deadline, so that a
wrong address is an error and not a wait.
What librdkafka may end the process over is asked by the wire (`meeting.py`).
librdkafka's own complaints ("1/1 brokers are down") go to our debug log: the exception says the same, once and better.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeVar

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from mirror.admin.meeting import Wire, newest_version
from mirror.admin.portions import portions
from mirror.admin.values import ConfigChange, ConfigValue, Creation, Growth, Span, TopicInfo, configs, topic_info
from mirror.config import ClusterSettings
from mirror.errors import (
    AccessDenied,
    BrokerError,
    ClusterError,
    ClusterUnreachable,
    ConfigError,
    MirrorError,
    NotAuthenticated,
)
from mirror.observe import logs
from mirror.wire.cluster import Cluster
from mirror.wire.metadata import cluster_rights, described
from mirror.wire.protocol import INIT_PRODUCER_ID

DEADLINE_S = 8.0
"""How long one call may take, in seconds."""

#: So often a controller is asked for. The brokers of a KRaft cluster name any of themselves as the controller (Kafka
#: `KRaftMetadataCache`), and for their session's time even one that has just died; librdkafka waits for that one alone.
_ASKS: Final = 3
#: No broker tells its release. Its newest InitProducerId rose with that one: 3.7.2 has 4.
_INIT_PRODUCER_ID_OF_3_8: Final = 5

Asked = TypeVar("Asked", bound="Future[Any] | Mapping[Any, Future[Any]]")

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
    KafkaError._PARTIAL,  # metadata without a broker
}

#: What is done begins with -> the right that it needs.
_RIGHTS = {
    "create topic": "CREATE on the topic or on the cluster",
    "describe configs of topic": "DESCRIBE_CONFIGS on the topic",
    "describe broker configs": "DESCRIBE_CONFIGS on the cluster",
    "describe topic": "DESCRIBE on the topic",
}

log = logs.get(__name__)


class Admin:
    """Administration of one cluster; connects at the first call.

    Every method raises a `ClusterError` (unreachable, denied, broker error) that names cluster, address and operation.
    """

    def __init__(self, settings: ClusterSettings) -> None:
        """`ConfigError` when librdkafka refuses the settings."""
        self.settings = settings
        self._wire, self._has_met = Wire(settings), False
        sink = logging.Logger(f"librdkafka.{settings.alias}")  # outside the global tree: no other handler prints it
        sink.addHandler(_ToOurLog(settings.alias))
        try:
            self._client = AdminClient({"client.id": "mirror", **settings.client}, logger=sink)
        except (KafkaException, ValueError) as error:
            raise ConfigError(f"cluster {settings.alias}: client settings refused: {error}") from error

    def cluster_id(self) -> str:
        """The id the cluster was formed with."""

        async def known(cluster: Cluster) -> str:
            return cluster.cluster_id or ""

        return self._wire.ask("read the cluster's id", DEADLINE_S, known)

    def brokers(self) -> int:
        """How many brokers are alive."""
        return len(self._nodes("count the brokers"))

    def _nodes(self, what: str) -> tuple[int, ...]:
        async def known(cluster: Cluster) -> tuple[int, ...]:
            return cluster.nodes

        return self._wire.ask(what, DEADLINE_S, known)

    def rights(self) -> frozenset[str]:
        """What we may do to the cluster itself, by Kafka's names for operations."""
        return self._wire.ask("ask for the rights on the cluster", DEADLINE_S, cluster_rights)

    def may_write_markers(self) -> bool:
        """Whether the brokers take control markers from us (Kafka `KafkaApis.handleWriteTxnMarkersRequest`): before 3.8
        only from who may do what brokers do, since then from who may ALTER the cluster, too (KIP-1037).
        """
        rights = self.rights()
        if AclOperation.CLUSTER_ACTION.name in rights:
            return True
        return AclOperation.ALTER.name in rights and self._is_from_3_8_on()

    def _is_from_3_8_on(self) -> bool:
        asked = partial(newest_version, api=INIT_PRODUCER_ID)
        return self._wire.ask("ask for the brokers' versions", DEADLINE_S, asked) >= _INIT_PRODUCER_ID_OF_3_8

    def topic_names(self) -> list[str]:
        """Every topic we may see."""
        return sorted(self.partition_counts())

    def partition_counts(self) -> dict[str, int]:
        """How many partitions each topic has that we may see, by one request; 0 where it is just being made."""
        with self._doing("list topics"):
            found = self._client.list_topics(timeout=DEADLINE_S).topics
        return {name: len(topic.partitions) for name, topic in found.items()}

    def topics(self) -> dict[str, TopicInfo]:
        """The same, described, by name."""
        return self.describe(self.topic_names())

    def describe(self, names: Iterable[str], *, rights: bool = False) -> dict[str, TopicInfo]:
        """The topics of these names that exist, with what we may do to each where `rights` asks for that."""
        wanted = list(names)
        if not wanted:
            return {}
        asked = partial(described, topics=wanted, rights=rights)
        try:
            found = self._wire.ask("describe topics", DEADLINE_S, asked)
        except NotAuthenticated:
            raise
        except AccessDenied as denied:
            raise AccessDenied(f"{denied} Grant {_RIGHTS['describe topic']}, or check the credentials") from denied
        return {one.name: topic_info(one) for one in found}

    def topic_configs(self, names: Iterable[str]) -> dict[str, dict[str, ConfigValue]]:
        """The configs in effect for these topics, without sensitive ones; a topic that does not exist is left out."""
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        if not resources:
            return {}
        with self._doing("describe topic configs"):
            asked = self._asked(self._client.describe_configs, resources)
        by_name = {resource.name: future for resource, future in asked.items()}
        kind = ConfigSource.DYNAMIC_TOPIC_CONFIG
        return {name: configs(found, kind) for name, found in self._existing("describe configs of topic", by_name)}

    def broker_configs(self) -> dict[str, ConfigValue]:
        """The configs of one broker, which stands for all of them."""
        with self._doing("describe broker configs"):
            broker = min(self._nodes("describe broker configs"))
            resource = ConfigResource(ResourceType.BROKER, str(broker))
            (future,) = self._asked(self._client.describe_configs, [resource]).values()
            return configs(future.result(), ConfigSource.STATIC_BROKER_CONFIG)

    def create_topics(
        self, creations: Sequence[Creation], failures: dict[str, MirrorError] | None = None
    ) -> frozenset[str]:
        """Create topics; the names that were there already. One that fails does not stop the others, here and in what
        else is changed of topics: where `failures` is given, it learns why by topic, else the first of them is raised
        in the end. An unreachable cluster is raised.
        """
        existed: set[str] = set()
        with _each(failures) as failed:
            for some in portions(creations, lambda one: 1 + one.partitions + len(one.configs)):
                for name, future in self._creating(some).items():
                    try:
                        with self._doing(f"create topic {name}"):
                            future.result()
                    except BrokerError as error:
                        if error.code == _ALREADY_EXISTS:
                            existed.add(name)
                        else:
                            failed[name] = error
                    except AccessDenied as error:
                        failed[name] = error
        return frozenset(existed)

    def _creating(self, creations: Sequence[Creation]) -> Mapping[str, Future[Any]]:
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
            return self._told(self._client.create_topics, wanted, operation_timeout=DEADLINE_S)

    def create_partitions(self, growths: Iterable[Growth], failures: dict[str, MirrorError] | None = None) -> None:
        """Let topics have more partitions."""
        with _each(failures) as failed:
            for some in portions(growths, lambda one: one.partitions):
                wanted = [NewPartitions(one.topic, one.partitions) for one in some]
                with self._doing("create partitions"):
                    asked = self._told(self._client.create_partitions, wanted, operation_timeout=DEADLINE_S)
                for name, future in asked.items():
                    with _one(failed, name), self._doing(f"create partitions of topic {name}"):
                        future.result()

    def alter_configs(self, changes: Iterable[ConfigChange], failures: dict[str, MirrorError] | None = None) -> None:
        """Change settings of topics, each topic's together; those that are not named stay."""
        entries: dict[str, list[ConfigEntry]] = {}
        for one in changes:
            kind = AlterConfigOpType.DELETE if one.after is None else AlterConfigOpType.SET
            entry = ConfigEntry(one.name, one.after, incremental_operation=kind)
            entries.setdefault(one.topic, []).append(entry)
        with _each(failures) as failed:
            for some in portions(entries.items(), lambda one: len(one[1])):
                wanted = [
                    ConfigResource(ResourceType.TOPIC, topic, incremental_configs=changed) for topic, changed in some
                ]
                with self._doing("change topic configs"):
                    asked = self._told(self._client.incremental_alter_configs, wanted)
                for resource, future in asked.items():
                    with _one(failed, resource.name), self._doing(f"change configs of topic {resource.name}"):
                        future.result()

    def delete_topics(self, names: Sequence[str]) -> None:
        """Delete topics; one that is gone already is no error."""
        for some in portions(names, lambda _: 1):
            with self._doing("delete topics"):
                asked = self._told(self._client.delete_topics, some, operation_timeout=DEADLINE_S)
            for _ in self._existing("delete topic", asked):
                pass

    def spans(self, topics: Iterable[TopicInfo]) -> dict[tuple[str, int], Span]:
        """Where each partition begins and ends; one without a leader is left out."""
        partitions = [(topic.name, one.partition) for topic in topics for one in topic.partitions if one.leader >= 0]
        if not partitions:
            return {}
        ends: list[dict[tuple[str, int], int]] = []
        with self._doing("list offsets"):
            for spec in map(OffsetSpec, (OFFSET_BEGINNING, OFFSET_END)):
                asked = self._asked(self._client.list_offsets, {TopicPartition(*at): spec for at in partitions})
                ends.append({(at.topic, at.partition): future.result().offset for at, future in asked.items()})
        return {at: Span(start=ends[0][at], end=ends[1][at]) for at in partitions}

    def groups(self) -> frozenset[str]:
        """Every consumer group that we may see."""
        with self._doing("list consumer groups"):
            found = self._asked(self._client.list_consumer_groups).result()
        return frozenset(one.group_id for one in found.valid)

    def has_authorizer(self) -> bool:
        """Whether the cluster keeps ACLs at all. librdkafka does not tell: its answer is then an empty list."""
        try:
            authorizer = self.broker_configs().get("authorizer.class.name")
        except AccessDenied:  # who is denied that is denied it by an authorizer
            return True
        return authorizer is not None and bool(authorizer.value)

    def acls(self, wanted: AclBindingFilter) -> tuple[AclBinding, ...]:
        """The ACLs that a filter lets through."""
        with self._doing("describe ACLs"):
            return tuple(self._asked(self._client.describe_acls, wanted).result())

    def create_acls(self, bindings: Sequence[AclBinding], failures: dict[str, MirrorError] | None = None) -> None:
        """Create ACLs; those that are there already are no error. Failures are by the name of the resource."""
        with _each(failures) as failed:
            for some in portions(bindings, lambda _: 1):
                with self._doing("create ACLs"):
                    asked = self._told(self._client.create_acls, some)
                for binding, future in asked.items():
                    with _one(failed, binding.name), self._doing("create ACLs"):
                        future.result()

    def delete_acls(self, filters: Sequence[AclBindingFilter]) -> None:
        """Delete the ACLs that filters let through; that there are none is no error."""
        for some in portions(filters, lambda _: 1):
            with self._doing("delete ACLs"):
                for future in self._told(self._client.delete_acls, some).values():
                    future.result()

    def _asked(self, call: Callable[..., Asked], *args: Any, **options: Any) -> Asked:
        """What a question is answered with, in one future or several; asked again where the time ran out."""
        return self._again(_timed_out, call, *args, **options)

    def _told(self, call: Callable[..., Asked], *args: Any, **options: Any) -> Asked:
        """What an order is answered with; given again where it never reached a controller."""
        return self._again(_found_no_controller, call, *args, **options)

    def _again(
        self, is_to_repeat: Callable[[KafkaError], bool], call: Callable[..., Asked], *args: Any, **options: Any
    ) -> Asked:
        for _ in range(_ASKS - 1):
            asked = call(*args, request_timeout=DEADLINE_S, **options)
            errors = [one.exception() for one in (asked.values() if isinstance(asked, Mapping) else (asked,))]
            if not any(isinstance(one, KafkaException) and is_to_repeat(one.args[0]) for one in errors):
                return asked
            self._client.list_topics(timeout=DEADLINE_S)  # brings the controller that is named now
        return call(*args, request_timeout=DEADLINE_S, **options)

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
            self._nodes(what)
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
            right = next((right for start, right in _RIGHTS.items() if what.startswith(start)), "the right")
            return AccessDenied(f"{doing}: {error.str()} Grant {right}, or check the credentials")
        if code > 0:
            return BrokerError(code, f"{error.name()} ({error.str()})", doing)
        return ClusterError(f"{doing}: {error.name()} ({error.str()})")


@contextmanager
def _each(failures: dict[str, MirrorError] | None) -> Iterator[dict[str, MirrorError]]:
    """What fails of some topics by name, each on its own; raises the first of them where nobody takes the failures."""
    failed: dict[str, MirrorError] = {}
    yield failed
    if failures is not None:
        failures |= failed
    elif failed:
        raise next(iter(failed.values()))


@contextmanager
def _one(failed: dict[str, MirrorError], name: str) -> Iterator[None]:
    try:
        yield
    except (BrokerError, AccessDenied) as error:
        failed.setdefault(name, error)


def _timed_out(error: KafkaError) -> bool:
    return bool(error.code() == KafkaError._TIMED_OUT)


def _found_no_controller(error: KafkaError) -> bool:
    """Whether a request was never sent. The code alone does not tell: one that was, and may have been obeyed, times
    out by the same.
    """
    return _timed_out(error) and "waiting for controller" in error.str()


class _ToOurLog(logging.Handler):
    """librdkafka's lines as debug events of ours."""

    def __init__(self, alias: str) -> None:
        super().__init__()
        self._log = log.bind(cluster=alias)

    def emit(self, record: logging.LogRecord) -> None:
        self._log.debug("librdkafka", line=record.getMessage())
