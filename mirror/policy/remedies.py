"""What a person runs to resolve a stop, ready to be pasted (pure).

The commands are Kafka's own, and `mirror`'s. A principal is named PRINCIPAL: the mirror does not know by which name a
broker knows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mirror.errors import AccessDenied, NotAuthenticated, PartitionStop
from mirror.states import State
from mirror.wire.cluster import Endpoint, TopicPartition

#: Where the cluster does not take us for who we say we are: what to check is in the problem itself.
MEND_LOGIN = "It is tried again at every epoch"


def remedy(stop: PartitionStop, source: Endpoint, target: Endpoint, target_topic: str) -> str:
    """What to add to a stop's advice; empty where that says it all."""
    match stop.state:
        case State.TRUNCATED | State.RECREATED | State.DIVERGED:
            return begin_anew(target, target_topic)
        case State.CORRUPT:
            begin = f" --from {stop.offset}" if stop.offset >= 0 else ""
            return f". To look at it: mirror inspect {stop.topic}:{stop.partition} --bootstrap {source.servers}{begin}"
        case _:
            return ""


def begin_anew(target: Endpoint, topic: str) -> str:
    """How to have a copy made once more from the first record."""
    return f". To begin anew: kafka-topics.sh --bootstrap-server {target.servers} --delete --topic {topic}"


def set_configs(cluster: Endpoint, topic: str, configs: Mapping[str, str], dropped: Sequence[str] = ()) -> str:
    """The command that gives a topic settings, and takes `dropped` ones back to the cluster's default."""
    told = ",".join(f"{name}={_listed(value)}" for name, value in configs.items())
    return (
        f"kafka-configs.sh --bootstrap-server {cluster.servers} --alter --entity-type topics --entity-name {topic}"
        + (f" --add-config {told}" if told else "")
        + (f" --delete-config {','.join(dropped)}" if dropped else "")
    )


def _listed(value: str) -> str:
    """As kafka-configs.sh takes a value: one with commas stands in brackets."""
    return f"[{value}]" if "," in value else value


def grant(cluster: Endpoint, topic: str, right: str = "READ") -> str:
    """How to give the mirror a right on a topic; DESCRIBE comes with READ, WRITE and DELETE."""
    return f"Grant {right} on topic {topic}: {allow(cluster, right, topic=topic)}"


def allow(cluster: Endpoint, *operations: str, topic: str = "", transactional_id: str = "") -> str:
    """The command that gives the mirror rights, by Kafka's names for operations, on a topic, on a transactional id or
    on the cluster.
    """
    names = ("".join(word.capitalize() for word in operation.split("_")) for operation in operations)
    options = " ".join(f"--operation {name}" for name in names)
    named = f"--transactional-id {transactional_id}" if transactional_id else "--cluster"
    resource = f"--topic {topic}" if topic else named
    return (
        f"kafka-acls.sh --bootstrap-server {cluster.servers} --add --allow-principal User:PRINCIPAL"
        f" {options} {resource}"
    )


def grant_named(
    problem: AccessDenied,
    source: Endpoint,
    target: Endpoint,
    source_partition: TopicPartition,
    target_partition: TopicPartition,
) -> str:
    """The same for a request that a broker refused; `problem` begins with the cluster's name."""
    if isinstance(problem, NotAuthenticated):
        return MEND_LOGIN
    if str(problem).startswith(str(target)):
        return grant(target, target_partition.topic, problem.right or "WRITE")
    return grant(source, source_partition.topic)
