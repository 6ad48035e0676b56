"""Administration of one cluster, with typed results. The only module of the product that imports confluent-kafka.

A KRaft controller writes what one request changes as one batch of metadata records, of 10,000 at most, and answers a
request for more with POLICY_VIOLATION (Kafka `QuorumController.MAX_RECORDS_PER_USER_OP`). A topic costs a record, and
one for each partition and each config.

librdkafka tries a wrong password or an unknown certificate again and again until its deadline, and then says that no
broker answered. The wire says at once what is wrong, and it is what copies later: both must get in. What is asked every
few seconds is asked by the wire as well where librdkafka would end the process over an answer (`kafka/cluster.py`).

confluent-kafka answers with futures, integers and one exception type; all of that ends here. Everything is asked in
bulk, one request for all topics, or for as many as a controller takes at once. Every call has a deadline, so that a
wrong address is an error and not a wait.
librdkafka's own complaints ("1/1 brokers are down") go to our debug log: the exception says the same, once and better.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException
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
    ResourceType,
)

from mirror import clock
from mirror.config import ClusterSettings
from mirror.errors import (
    AccessDenied,
    BrokerError,
    ClusterError,
    ClusterUnreachable,
    ConfigError,
    MirrorError,
    NotAuthenticated,
    PreflightError,
    Suspended,
)
from mirror.kafka.cluster import Cluster, Described, TopicPartition, cluster_rights, denied, described, partition_counts
from mirror.kafka.protocol import INIT_PRODUCER_ID
from mirror.kafka.queries import EARLIEST, LATEST, every_listed, newest_version
from mirror.kafka.topic_configs import (
    ConfigChange,
    ConfigValue,
    agreed,
    by_topic,
    configs,
    read_configs,
    topic_configs,
    topic_configs_by_all,
)
from mirror.kafka.wire import DEADLINE_S, Wire, delete_topic
from mirror.observability import logs
from mirror.suspension import SuspensionDetector, beating

# --- What is asked of a cluster's controller, in portions that it takes -----------------------------------------------

T = TypeVar("T")

#: Metadata records that one request may cost: the half of what a controller takes, since it may need some of its own.
RECORDS_AT_ONCE: Final = 5_000


def portions(items: Iterable[T], records: Callable[[T], int], limit: int = RECORDS_AT_ONCE) -> Iterator[list[T]]:
    """The items in their order, as lists that cost at most `limit` records each; one that costs more stands alone."""
    portion: list[T] = []
    total = 0
    for item in items:
        cost = records(item)
        if portion and total + cost > limit:
            yield portion
            portion, total = [], 0
        portion.append(item)
        total += cost
    if portion:
        yield portion


# --- What administration reads and what it is to make, as values; and how answers become them -------------------------


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
class Creation:
    """A topic to be created; `replication_factor` -1: as many replicas as the cluster gives a topic by default."""

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
class Span:
    """The offsets that a partition holds: from `start` up to `end`, which is the high watermark."""

    start: int
    end: int


def topic_info(found: Described) -> TopicInfo:
    """From what a broker said of a topic."""
    return TopicInfo(
        name=found.name,
        topic_id=found.topic_id,
        partitions=tuple(
            PartitionInfo(partition=partition.partition, leader=partition.leader, replicas=partition.replicas)
            for partition in found.partitions
        ),
        rights=found.rights,
    )


# --- One cluster's administration, with typed results and mirror's own errors -----------------------------------------

#: Longer than a quota of requests mutes a connection (`quota.window.size.seconds`): that is waited for.
_WAITED_S: Final = 1.5
#: How long a broker has that is asked beside the others.
_EACH_S: Final = 5.0
#: Topics whose configs one request describes.
AT_ONCE: Final = 100

#: So often a controller is asked for. The brokers of a KRaft cluster name any of themselves as the controller (Kafka
#: `KRaftMetadataCache`), and for their session's time even one that has just died; librdkafka waits for that one alone.
_ASKS: Final = 3
#: No broker names its release. Its newest InitProducerId rose with that one: 3.7.2 has 4.
_INIT_PRODUCER_ID_OF_3_8: Final = 5

Asked = TypeVar("Asked", bound="Future[Any] | Mapping[Any, Future[Any]]")

_ALREADY_EXISTS = KafkaError.TOPIC_ALREADY_EXISTS

#: How a topic's partitions, replicas or settings are refused, also by a `create.topic.policy` and `alter.config.policy`
#: (Kafka `Errors`).
_REFUSED = (37, 38, 40, 42, 44)
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
    "describe broker configs": "DESCRIBE_CONFIGS on the cluster",
    "describe topic": "DESCRIBE on the topic",
}

log = logs.get(__name__)


class Admin:
    """Administration of one cluster; connects at the first call.

    Every method raises a `ClusterError` (unreachable, denied, broker error) that names cluster, address and operation.
    """

    def __init__(self, settings: ClusterSettings) -> None:
        """`ConfigError` when librdkafka refuses the settings; ClusterUnreachable when it cannot use TLS's files now."""
        self.settings = settings
        self._wire, self._has_met = Wire(settings), False
        self._begins_at, self._librdkafka = "", self._connecting_to("")
        #: Until when its connection is muted, and until when the brokers want nothing more to be created (monotonic).
        self._muted_until = self._full_until = 0.0
        #: Asked right before each order is sent; false once the process was suspended since it asked whether it may.
        self.may_go: Callable[[], bool] = lambda: True

    @contextmanager
    def beating(self) -> Iterator[SuspensionDetector]:
        """For whoever sets `may_go`: what it is then is so no longer than this, and to wait is no suspension."""
        before = self.may_go
        with beating() as detector:
            try:
                yield detector
            finally:
                self.may_go = before

    def _connecting_to(self, addresses: str) -> AdminClient:
        logger = logging.Logger(f"librdkafka.{self.settings.alias}")  # outside the global tree: no other handler prints
        logger.addHandler(_ToOurLog(self.settings.alias) if addresses else logging.NullHandler())
        try:
            client: dict[str, Any] = {"client.id": "mirror", **self.settings.client, "bootstrap.servers": addresses}
            return AdminClient(client | {"throttle_cb": self._throttled}, logger=logger)
        except (KafkaException, ValueError) as error:
            kind = ClusterUnreachable if self.settings.uses_tls and "SASL mechanism" not in str(error) else ConfigError
            raise kind(f"cluster {self.settings.alias}: client settings refused: {error}") from error

    @property
    def _client(self) -> AdminClient:
        """librdkafka's. It begins at the brokers that this cluster names: at the addresses of the configuration brokers
        of another cluster may listen, too, and it would give them our orders.
        """
        addresses = self.addresses()
        left = self._muted_until - clock.monotonic()
        if 0 < left <= _WAITED_S:
            time.sleep(left)
        if addresses != self._begins_at or left > _WAITED_S:  # it answers on another connection
            self._muted_until = 0.0
            self._begins_at, self._librdkafka = addresses, self._connecting_to(addresses)
        return self._librdkafka

    def addresses(self) -> str:
        """Each broker's host:port as the cluster advertises it, in order, joined by commas."""
        return self._seen("find the brokers", lambda cluster: cluster.addresses)

    def _throttled(self, event: Any) -> None:
        """A broker answered, and reads nothing more from the connection for a while (KIP-219, KIP-599)."""
        self._muted_until = self._full_until = clock.monotonic() + event.throttle_time

    def keep_to_quota(self) -> None:
        """Wait until the brokers' quotas let more be created: before it is looked at what there is."""
        if (left := self._full_until - clock.monotonic()) > 0:
            reason = "a quota of the brokers is used up, as controller_mutation_rate is by many partitions"
            log.info("throttled", cluster=self.settings.alias, seconds=round(left, 1), reason=reason)
            time.sleep(left)

    def cluster_id(self) -> str:
        """The id the cluster was formed with."""
        return self._seen("read the cluster's id", lambda cluster: cluster.cluster_id or "")

    def brokers(self) -> int:
        """How many brokers are alive."""
        return len(self._nodes("count the brokers"))

    def _nodes(self, what: str) -> tuple[int, ...]:
        return self._seen(what, lambda cluster: cluster.nodes)

    def _seen(self, what: str, part: Callable[[Cluster], T]) -> T:
        """A part of what the cluster's metadata says now."""

        async def seen(cluster: Cluster) -> T:
            return part(cluster)

        return self._wire.ask(what, DEADLINE_S, seen)

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
        return self._wire.ask("list topics", DEADLINE_S, partial(partition_counts, timeout=DEADLINE_S))

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
        return {described.name: topic_info(described) for described in found}

    def denied(self, names: Iterable[str]) -> frozenset[str]:
        """Those of these topics that we may not DESCRIBE: they look as if they were not there."""
        wanted = sorted(names)
        return self._wire.ask("describe topics", DEADLINE_S, partial(denied, topics=wanted)) if wanted else frozenset()

    def topic_configs(
        self, names: Iterable[str], denied: dict[str, MirrorError] | None = None
    ) -> dict[str, dict[str, ConfigValue]]:
        """The configs in effect for these topics, without sensitive ones; a topic that does not exist is left out, and
        so is one that may not be asked about where `denied` is given, which learns why; without it that is raised.
        """
        wanted = list(names)
        if not wanted:
            return {}
        asked = partial(topic_configs, topics=wanted, timeout=DEADLINE_S)
        found = self._wire.ask("describe topic configs", DEADLINE_S, asked)
        return read_configs(found, self._wire.endpoint, denied)

    def topic_configs_now(self, names: Iterable[str]) -> dict[str, dict[str, ConfigValue]]:
        """The same, from no memory, and as all brokers have it, for whoever is about to change a topic; what may not be
        asked about is left out.
        """
        known: dict[str, dict[str, ConfigValue]] = {}
        for some in portions(names, lambda _: 1, AT_ONCE):
            asked = partial(topic_configs_by_all, topics=some, timeout=_EACH_S)
            found = self._wire.ask("describe topic configs", DEADLINE_S, asked)
            answers = [read_configs(answer, self._wire.endpoint, {}) for answer in found]
            known |= {name: of for name in some if (of := agreed(answer[name] for answer in answers if name in answer))}
        return known

    def broker_configs(self) -> dict[str, ConfigValue]:
        """The configs of one broker, which stands for all of them."""
        with self._doing("describe broker configs"):
            broker = min(self._nodes("describe broker configs"))
            resource = ConfigResource(ResourceType.BROKER, str(broker))
            (future,) = self._asked(self._client.describe_configs, [resource]).values()
            return configs(future.result(), ConfigSource.STATIC_BROKER_CONFIG.value)

    def create_topics(
        self, creations: Sequence[Creation], failures: dict[str, MirrorError] | None = None
    ) -> frozenset[str]:
        """Create topics; the names that were there already. One that fails does not stop the others, here and in what
        else is changed of topics: where `failures` is given, it learns why by topic, else the first of them is raised
        in the end. An unreachable cluster is raised.
        """
        existed: set[str] = set()
        with _each(failures) as failed:
            self._create(creations, existed, failed)
        return frozenset(existed)

    def creations_refused(self, creations: Sequence[Creation]) -> dict[str, str]:
        """Return why the cluster would not create these topics as they are, by topic, in the words of its brokers.
        Makes nothing. Who may not create one learns nothing here.
        """
        failed: dict[str, MirrorError] = {}
        self._create(creations, set(), failed, validate_only=True)
        return _refusals(failed)

    def changes_refused(self, changes: Iterable[ConfigChange]) -> dict[str, str]:
        """Return why the cluster would not change settings of topics so, likewise."""
        failed: dict[str, MirrorError] = {}
        self._alter(by_topic(changes).items(), {}, failed, validate_only=True)
        return _refusals(failed)

    def _create(
        self,
        creations: Sequence[Creation],
        existed: set[str],
        failed: dict[str, MirrorError],
        *,
        validate_only: bool = False,
    ) -> None:
        for some in portions(creations, lambda creation: 1 + creation.partitions + len(creation.configs)):
            self.keep_to_quota()
            for name, future in self._creating(some, validate_only=validate_only).items():
                with _one(failed, name):
                    try:
                        with self._doing(f"create topic {name}"):
                            future.result()
                    except BrokerError as error:
                        if error.code != _ALREADY_EXISTS:
                            raise
                        existed.add(name)

    def _creating(self, creations: Sequence[Creation], *, validate_only: bool) -> Mapping[str, Future[Any]]:
        wanted = [
            NewTopic(
                creation.topic,
                num_partitions=creation.partitions,
                replication_factor=creation.replication_factor,
                config=dict(creation.configs),
            )
            for creation in creations
        ]
        with self._doing("create topics"):
            return self._requested(
                self._client.create_topics, wanted, operation_timeout=DEADLINE_S, validate_only=validate_only
            )

    def create_partitions(
        self,
        growths: Iterable[Growth],
        failures: dict[str, MirrorError] | None = None,
        ids: Mapping[str, uuid.UUID | None] = MappingProxyType({}),
    ) -> None:
        """Let topics have more partitions. `ids` as in `alter_configs`."""
        with _each(failures) as failed, beating() as detector:
            for some in portions(growths, lambda growth: growth.partitions):
                self.keep_to_quota()
                has_run = detector.since()
                others = self._others({growth.topic for growth in some}, ids, failed)
                wanted = [NewPartitions(grown.topic, grown.partitions) for grown in some if grown.topic not in others]
                if not wanted:
                    continue
                with self._doing("create partitions"):
                    asked = self._requested(
                        self._client.create_partitions, wanted, has_run=has_run, operation_timeout=DEADLINE_S
                    )
                for name, future in asked.items():
                    with _one(failed, name), self._doing(f"create partitions of topic {name}"):
                        future.result()

    def alter_configs(
        self,
        changes: Iterable[ConfigChange],
        failures: dict[str, MirrorError] | None = None,
        ids: Mapping[str, uuid.UUID | None] = MappingProxyType({}),
    ) -> None:
        """Change settings of topics, each topic's together; those that are not named stay. A topic that has another id
        than `ids` names fails with PreflightError, and is left as it is: brokers take this order by names alone.
        """
        with _each(failures) as failed:
            self._alter(by_topic(changes).items(), ids, failed)

    def _alter(
        self,
        changes: Iterable[tuple[str, Sequence[ConfigChange]]],
        ids: Mapping[str, uuid.UUID | None],
        failed: dict[str, MirrorError],
        *,
        validate_only: bool = False,
    ) -> None:
        with beating() as detector:
            for some in portions(changes, lambda changed_topic: len(changed_topic[1])):
                has_run = detector.since()
                others = self._others({topic for topic, _ in some}, ids, failed)
                wanted = [
                    ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[*map(_entry, changed)])
                    for topic, changed in some
                    if topic not in others
                ]
                if not wanted:
                    continue
                with self._doing("change topic configs"):
                    asked = self._requested(
                        self._client.incremental_alter_configs, wanted, has_run=has_run, validate_only=validate_only
                    )
                names = {topic: ", ".join(change.name for change in changed) for topic, changed in some}
                for resource, future in asked.items():
                    what = f"change configs of topic {resource.name}"
                    with _one(failed, resource.name), self._doing(f"{what} ({names[resource.name]})"):
                        future.result()

    def _others(
        self, names: Collection[str], ids: Mapping[str, uuid.UUID | None], failed: dict[str, MirrorError]
    ) -> frozenset[str]:
        """Those of these topics that have other ids than they should by now, which `failed` learns."""
        wanted = {name: topic_id for name in names if (topic_id := ids.get(name)) is not None}
        now = self.describe(wanted)
        others = frozenset(name for name, known in wanted.items() if name not in now or now[name].topic_id != known)
        for name in others:
            failed[name] = PreflightError(
                f"{self._wire.endpoint}: topic {name} was deleted{' and made anew' if name in now else ''} since it was"
                " looked at; nothing of it was changed"
            )
        return others

    def delete_topics(self, topics: Mapping[str, uuid.UUID], failures: dict[str, MirrorError] | None = None) -> None:
        """Delete topics, each by its id: another one of its name stays (KIP-516). One that is gone is no error."""

        async def deleted(cluster: Cluster) -> None:
            for name, topic_id in topics.items():
                with _one(failed, name):
                    await delete_topic(cluster, name, topic_id, self.may_go)

        with _each(failures) as failed:
            self._wire.ask("delete topics", DEADLINE_S, deleted)

    def spans(self, topics: Iterable[TopicInfo]) -> dict[tuple[str, int], Span]:
        """Where each partition begins and ends; one without a leader is left out.

        By the wire: librdkafka asks with the leader epochs that it read first, and where a leader was elected since, it
        is refused (FENCED_LEADER_EPOCH) for as long as it lives.
        """
        led = (
            (topic.name, partition.partition)
            for topic in topics
            for partition in topic.partitions
            if partition.leader >= 0
        )
        partitions = [TopicPartition(*at) for at in led]
        if not partitions:
            return {}

        async def listed(cluster: Cluster) -> tuple[dict[TopicPartition, int], ...]:
            names = {partition.topic for partition in partitions}
            try:
                async with asyncio.timeout(DEADLINE_S):
                    await cluster.learn(names)  # who leads now
                    return tuple([await every_listed(cluster, partitions, when) for when in (EARLIEST, LATEST)])
            except TimeoutError:
                raise ClusterUnreachable(f"{cluster}: no answer within {DEADLINE_S:g} s") from None
            finally:
                cluster.forget(names)

        starts, ends = self._wire.ask("list offsets", DEADLINE_S, listed)
        return {
            (partition.topic, partition.partition): Span(start=starts[partition], end=ends[partition])
            for partition in partitions
        }

    def groups(self) -> frozenset[str]:
        """Every consumer group that we may see."""
        with self._doing("list consumer groups"):
            found = self._asked(self._client.list_consumer_groups).result()
        return frozenset(group.group_id for group in found.valid)

    def has_authorizer(self) -> bool:
        """Whether the cluster keeps ACLs at all. librdkafka does not say: its answer is then an empty list."""
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
                    asked = self._requested(self._client.create_acls, some)
                for binding, future in asked.items():
                    with _one(failed, binding.name), self._doing("create ACLs"):
                        future.result()

    def delete_acls(self, filters: Sequence[AclBindingFilter]) -> None:
        """Delete the ACLs that filters let through; that there are none is no error."""
        for some in portions(filters, lambda _: 1):
            with self._doing("delete ACLs"):
                for future in self._requested(self._client.delete_acls, some).values():
                    future.result()

    def _asked(self, call: Callable[..., Asked], *args: Any, **options: Any) -> Asked:
        """What a question is answered with, in one future or several; asked again where the time ran out. librdkafka
        asks whoever listens at an address: behind the answer it must be this cluster still.
        """
        found = self._again(_timed_out, call, *args, **options)
        self.cluster_id()
        return found

    def _requested(
        self, call: Callable[..., Asked], *args: Any, has_run: Callable[[], bool] = lambda: True, **options: Any
    ) -> Asked:
        """Return what an order is answered with, which this cluster alone gets; given again where it never reached a
        controller, and not at all unless this process `has_run`, and may go, up to the last moment.
        """
        self.cluster_id()

        def given(*args: Any, **options: Any) -> Asked:
            if not (self.may_go() and has_run()):
                raise Suspended(f"{self._wire.endpoint}: this process was suspended, and no order was given")
            return call(*args, **options)

        return self._again(_found_no_controller, given, *args, **options)

    def _again(
        self, is_to_repeat: Callable[[KafkaError], bool], call: Callable[..., Asked], *args: Any, **options: Any
    ) -> Asked:
        for _ in range(_ASKS - 1):
            asked = call(*args, request_timeout=DEADLINE_S, **options)
            errors = [future.exception() for future in (asked.values() if isinstance(asked, Mapping) else (asked,))]
            if not any(isinstance(error, KafkaException) and is_to_repeat(error.args[0]) for error in errors):
                return asked
            self._client.list_topics(timeout=DEADLINE_S)  # brings the controller that is named now
        return call(*args, request_timeout=DEADLINE_S, **options)

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
            self._librdkafka.poll(0)  # it hands over its log lines here

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


def _refusals(failed: Mapping[str, MirrorError]) -> dict[str, str]:
    return {name: why.name for name, why in failed.items() if isinstance(why, BrokerError) and why.code in _REFUSED}


def _entry(change: ConfigChange) -> ConfigEntry:
    kind = AlterConfigOpType.DELETE if change.after is None else AlterConfigOpType.SET
    return ConfigEntry(change.name, change.after, incremental_operation=kind)


def _timed_out(error: KafkaError) -> bool:
    return bool(error.code() == KafkaError._TIMED_OUT)


def _found_no_controller(error: KafkaError) -> bool:
    """Whether a request was never sent. The code alone does not say: one that was, and may have been obeyed, times
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
