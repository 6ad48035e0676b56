"""What resolves a refusal of preflight, and the commands that resolve it or a stop, ready to be pasted (pure).

The commands are Kafka's own, and `mirror`'s. A principal is named PRINCIPAL: the mirror does not know by which name a
broker knows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from mirror.errors import AccessDenied
from mirror.kafka.cluster import Endpoint, TopicPartition


class Fix(Enum):
    """What a person does about a refusal of preflight; the plan is clean then, and a running mirror
    begins with the topic by itself. Values in braces are the refusal's.
    """

    CREATE_TOPIC = "create it, or set that to true"
    ADD_PARTITIONS = "add partitions to it"
    DELETE_OR_RENAME = "add partitions to its source, delete it, or mirror to another name"
    #: With no limit but those that are set: a compacted topic may keep what the defaults would delete at once.
    DELETE_POLICY = (
        "set cleanup.policy=delete, and with it retention.ms=-1 and retention.bytes=-1 until you chose others"
    )
    #: The same of a target topic that a rule fills.
    FIT_COMPACTION = (
        "set cleanup.policy=delete, and with it retention.ms=-1 and retention.bytes=-1 until you chose others (what was"
        " removed comes back only where the copy starts over: delete it and {progress}); or set may_compact: true in"
        " the rule where the newest record of each key is all that you want"
    )
    REMOVE_FORMAT = "remove message.format.version"
    TAKE_OLD = "set it to {limit}"
    GRANT_MARKERS = "grant it; a flow without copies may set topics.offsets to translate, which fills nothing"
    NAME_SOURCE = "{hint}"
    GRANT_SOURCE = "where it is there, {grant}; where it was deleted, exclude it"
    SELECT_TOPICS = "change topics.include or topics.exclude"
    CHOOSE_NAME = "choose another name"
    OTHER_LETTERS = "name another one"
    NAME_COPY = "change topics.naming, or exclude it"
    KEEP_NAME = (
        "put topics.naming back as it was; to leave that copy as it is, and to begin another one, name that one for"
        " this topic in topics.naming.rename"
    )
    OTHER_CLUSTER = (
        "check bootstrap.servers of both; where these are two clusters, one made of a copy of the other's disks, name"
        " the source's alias in target.differs_from"
    )
    OTHER_ADDRESS = "check bootstrap.servers, and advertised.listeners of the brokers, of both"
    OTHER_SOURCE = (
        "check bootstrap.servers of the source; give this flow another name where two flows have this one; and where"
        " that cluster took the place of the other for good, end this flow with `mirror failover`, and let one of"
        " another name take its copies over by `mirror adopt`"
    )
    OTHER_REKEYED = (
        "check bootstrap.servers of the source; give this flow another name where two flows have this one; and where"
        " that cluster took the place of the other for good, end this flow with `mirror failover`, and let one of"
        " another name re-key these topics into others (topics.naming)"
    )
    END_LOOP = (
        "exclude it, or end that flow with `mirror failover`; where another cluster with the target's cluster id is"
        " meant, name its alias in target.differs_from"
    )
    ADOPT = (
        "where it is a copy of that, `mirror adopt CONFIG {source}` compares both and takes it over; else give the copy"
        " another name (topics.naming), or exclude its source"
    )
    END_FLOW = (
        "end that flow with `mirror failover`, or delete {journal} where that flow is no more, and then run"
        " `mirror adopt CONFIG {source}`; or give this copy another name (topics.naming), or exclude its source"
    )
    CHANGE_RULE = "recreate it, or change the rule"
    SHORTEN_FLOW = "shorten the flow's name"
    #: What is wrong says it: the error of a broker, or files that are to be restored.
    SELF_EXPLANATORY = ""

    def text(self, what: str, values: Mapping[str, object]) -> str:
        """What is wrong, and what to do."""
        text = str(self.value).format_map(values)
        return f"{what}; {text}" if text else what


def delete_topic(cluster: Endpoint, topic: str) -> str:
    """The command that deletes a topic."""
    return f"kafka-topics.sh --bootstrap-server {cluster.servers} --delete --topic {topic}"


def set_configs(cluster: Endpoint, topic: str, configs: Mapping[str, str]) -> str:
    """The command that gives a topic settings."""
    pairs = ",".join(f"{name}={_listed(value)}" for name, value in configs.items())
    return (
        f"kafka-configs.sh --bootstrap-server {cluster.servers} --alter --entity-type topics --entity-name {topic}"
        f" --add-config {pairs}"
    )


def _listed(value: str) -> str:
    """As kafka-configs.sh takes a value: one with commas stands in brackets."""
    return f"[{value}]" if "," in value else value


#: A denial wins over whatever is granted.
DENIAL_FIRST: Final = "what denies it, as sync.acls may have copied it, must go first"


def grant(cluster: Endpoint, topic: str, right: str = "READ") -> str:
    """How to give the mirror a right on a topic; DESCRIBE comes with READ, WRITE and DELETE."""
    return f"Grant {right} on topic {topic}; {DENIAL_FIRST}: {allow(cluster, right, topic=topic)}"


def grant_markers(cluster: Endpoint) -> str:
    """How to give the mirror the right to write control markers."""
    return f"Grant ALTER on the cluster (CLUSTER_ACTION before 3.8): {allow(cluster, 'ALTER')}"


def allow(cluster: Endpoint, *operations: str, topic: str = "") -> str:
    """The command that gives the mirror rights, by Kafka's names for operations, on a topic or on the cluster."""
    names = ("".join(word.capitalize() for word in operation.split("_")) for operation in operations)
    options = " ".join(f"--operation {name}" for name in names)
    resource = f"--topic {topic}" if topic else "--cluster"
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
    if str(problem).startswith(str(target)):
        return grant(target, target_partition.topic, problem.right or "WRITE")
    return grant(source, source_partition.topic)
