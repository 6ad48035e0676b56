"""Which settings of a topic follow the source's, also those of a lost cluster, and what that changes.

    followed in effect   what decides which records exist and what they look like: clusters' defaults may differ, so the
                         value that holds on the source is set on the target. Of a compacted topic also how soon it is
                         compacted, and how long the marker of a deleted key stays
    followed where set   the rest of what describes a topic: where the source's topic has a value of its own, so has the
                         target's; where it has none, the target's goes back to its cluster's default
    never                what a cluster's operators set for its own safety, throttling and tiers, whatever is asked for
    disputed             brokers may differ: their defaults change one by one, and one that is cut off says what was so
                         yesterday. While the source's do, no copy changes; one that is made keeps what any of them
                         does. What decides together which records there are goes together: where one of it is disputed
                         or refused, of the others only what keeps more is set
    when created         batches must keep the codec they come with, and be accepted however old or early: a topic that
                         the mirror creates is made so; one that exists is advised about, and stays as it is

Times are data: the copy of a topic with LogAppendTime is made with CreateTime, and shows the source's append times,
unless `topics.append_time: target` asks for those of the target, which cost nothing. A copy that exists keeps its type,
whichever that is, since its readers know it.

`sync.configs_include` follows more settings where they are set, `sync.configs_exclude` leaves some alone.

- Only what the lost cluster set on the topic itself is known. What its brokers' own files said is in no log.
- What would delete, stamp or refuse records that are still to be restored is not set: retention and times. The command
  that sets it is shown.
- What a person has set on the copy meanwhile stays: a value changes where it is a default, or what the restore made.
- What names the lost cluster's brokers, or its tier of remote storage, means nothing on another cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from mirror.config import Settings, SyncSettings
from mirror.journal.entries import Unfollowed
from mirror.kafka.topic_configs import (
    COMPACTION,
    KEEPING,
    MAX_REQUEST,
    RETENTION,
    ConfigChange,
    ConfigValue,
    TopicConfigs,
)
from mirror.policy.rules import AFTER_MAX, BEFORE_MAX, MAX_BYTES, NO_LIMIT, Finding, advised
from mirror.policy.selection import TopicPair

# --- Which settings of a topic follow the source's, and what that changes on the target -------------------------------

TIMESTAMP_TYPE, LOG_APPEND_TIME = "message.timestamp.type", "LogAppendTime"
#: Whose append times a copy shows: those at which the source took its records, or at which the target did.
AppendTime = Literal["source", "target"]
IN_EFFECT: Final = frozenset({"cleanup.policy", "retention.ms", "retention.bytes", TIMESTAMP_TYPE, MAX_BYTES})
WHERE_SET: Final = frozenset(
    {
        "delete.retention.ms",
        "file.delete.delay.ms",
        "flush.messages",
        "flush.ms",
        "index.interval.bytes",
        "max.compaction.lag.ms",
        "min.cleanable.dirty.ratio",
        "min.compaction.lag.ms",
        "preallocate",
        "segment.bytes",
        "segment.index.bytes",
        "segment.jitter.ms",
        "segment.ms",
    }
)
#: A topic of the flow's own in which the newest record of each key counts.
OWN_COMPACTED: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact",
    "segment.bytes": "8388608",
    "segment.ms": "3600000",
    "min.cleanable.dirty.ratio": "0.1",
    "compression.type": "producer",
}
NEVER: Final = frozenset(
    {
        "compression.type",
        AFTER_MAX,
        BEFORE_MAX,
        "message.timestamp.difference.max.ms",
        "message.format.version",
        "min.insync.replicas",
        "unclean.leader.election.enable",
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
        "remote.storage.enable",
        "local.retention.ms",
        "local.retention.bytes",
        MAX_REQUEST,
    }
)


def follows(name: str, sync: SyncSettings) -> bool:
    """Whether a setting follows the source's."""
    if not sync.configs or name in NEVER or any(pattern.fullmatch(name) for pattern in sync.configs_exclude):
        return False
    return name in IN_EFFECT | WHERE_SET or any(pattern.fullmatch(name) for pattern in sync.configs_include)


def _is_wanted(name: str, source: Mapping[str, ConfigValue], sync: SyncSettings) -> bool:
    """Whether a setting follows the source's, by where that was set."""
    policy = source.get("cleanup.policy")
    is_compacting = name in COMPACTION and policy is not None and "compact" in policy.value
    return follows(name, sync) and (name in IN_EFFECT or is_compacting or not source[name].is_default)


def configs_for(
    source: Mapping[str, ConfigValue],
    defaults: Mapping[str, str],
    sync: SyncSettings,
    append_time: AppendTime = "source",
) -> dict[str, str]:
    """What a topic is created with, from the configs of its source and the target's defaults for a new topic."""
    configs = {
        name: found.value
        for name, found in sorted(source.items())
        if _is_wanted(name, source, sync)
        and not (name in COMPACTION and found.is_default and defaults.get(name, found.value) == found.value)
    }
    if append_time == "source" and TIMESTAMP_TYPE in configs:
        configs[TIMESTAMP_TYPE] = "CreateTime"
    configs["compression.type"] = "producer"
    return configs | any_time(defaults)


def any_time(defaults: Mapping[str, str]) -> dict[str, str]:
    """What makes a new topic take records however old or early they are."""
    return {name: str(NO_LIMIT) for name in (AFTER_MAX, BEFORE_MAX) if name in defaults}  # unknown before Kafka 3.6


def changes_to(
    topic: str,
    copy: Mapping[str, ConfigValue],
    source: Mapping[str, ConfigValue],
    sync: SyncSettings,
    append_time: AppendTime = "source",
    *,
    keeps: bool = False,
) -> Iterator[ConfigChange]:
    """What makes the configs of an existing target topic follow those of its source; nothing where they do. `keeps`: of
    what decides which records there are, only what keeps more.
    """
    is_disputed = keeps or any(
        source[name].is_disputed and _is_wanted(name, source, sync) for name in KEEPING & source.keys()
    )
    for change in _changes(topic, copy, source, sync, append_time):
        if not (is_disputed and change.is_of_keeping) or change.keeps_more:
            yield change


def _changes(
    topic: str,
    copy: Mapping[str, ConfigValue],
    source: Mapping[str, ConfigValue],
    sync: SyncSettings,
    append_time: AppendTime,
) -> Iterator[ConfigChange]:
    for name in sorted(source.keys() | copy.keys()):
        wanted, held = source.get(name), copy.get(name)
        if not follows(name, sync) or held is None:  # a setting that the target's brokers do not know
            continue
        if wanted is not None and wanted.is_disputed:
            continue
        if (
            name == TIMESTAMP_TYPE
            and append_time == "source"
            and wanted is not None
            and wanted.value == LOG_APPEND_TIME
        ):
            continue  # what it began with
        if wanted is not None and _is_wanted(name, source, sync):
            if wanted.value != held.value or held.is_disputed:
                yield ConfigChange(topic=topic, name=name, before=held.value, after=wanted.value)
        elif not held.is_default:
            yield ConfigChange(topic=topic, name=name, before=held.value, after=None)


def unknown(
    topic: str, copy: Mapping[str, ConfigValue], source: Mapping[str, ConfigValue], sync: SyncSettings
) -> Iterator[Unfollowed]:
    """Settings of the source of a copy that the copy's brokers do not know."""
    for name in sorted(source.keys() - copy.keys()):
        if _is_wanted(name, source, sync) and not source[name].is_default:
            yield Unfollowed(topic, name, source[name].value, "", "its brokers do not know it")


def disputes(pairs: Iterable[TopicPair], configs: TopicConfigs, settings: Settings) -> Iterator[Finding]:
    """Advise about settings of these source topics that their brokers do not agree on."""
    for pair in pairs:
        values = configs[pair.source].items()
        if names := [name for name, value in values if value.is_disputed and follows(name, settings.sync)]:
            problem = (
                f"brokers of cluster {settings.source.alias} do not agree on {', '.join(names)} of topic {pair.source}:"
                " not followed until they do; set it on the topic, or let all brokers have one default"
            )
            yield advised(pair.target, problem)


# --- Settings that topics had on a lost cluster -----------------------------------------------------------------------

#: Left for a person to set: it would delete, stamp or refuse what is still to be restored.
HELD: Final = frozenset({*RETENTION, TIMESTAMP_TYPE, BEFORE_MAX, AFTER_MAX})
#: Means nothing on another cluster: it names the lost brokers, or their remote storage.
_OF_THE_CLUSTER: Final = frozenset(
    {
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
        "remote.storage.enable",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
        "local.retention.ms",
        "local.retention.bytes",
    }
)
_MIN_ISR: Final = "min.insync.replicas"


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsPlan:
    """What becomes of the settings of one topic.

    topic: the topic on the target.
    found: what was set on the lost topic.
    changes: what is to be set on its copy.
    held: what a person is to set when nothing more is to be restored.
    by_default: what the restore gave the copy, and the lost topic had by its brokers' default, which is in no log.
    left: by name, why another setting is not set.
    """

    topic: str
    found: Mapping[str, str]
    changes: tuple[ConfigChange, ...] = ()
    held: Mapping[str, str] = field(default_factory=dict)
    by_default: tuple[str, ...] = ()
    left: Mapping[str, str] = field(default_factory=dict)


def plan_settings(
    topic: str,
    found: Mapping[str, str],
    now: Mapping[str, ConfigValue],
    made: Mapping[str, str],
    *,
    replicas: int,
    is_own: bool,
) -> SettingsPlan:
    """The plan for a copy with the settings `now`, of which the restore made some. `is_own`: the flow made the copy;
    of another topic nothing is changed, and all that differs is held.
    """
    changes: list[ConfigChange] = []
    held: dict[str, str] = {}
    left: dict[str, str] = {}
    for name, value in sorted(found.items()):
        there = now.get(name)
        if name in _OF_THE_CLUSTER:
            left[name] = "it is about the lost cluster's brokers or storage"
        elif there is None:
            left[name] = "the target's brokers do not know it"
        elif there.value == value and not there.is_default:
            continue
        elif name == _MIN_ISR and int(value) > replicas:
            left[name] = f"the copy has {replicas} replicas, and {value} would have to be in sync"
        elif name in HELD or not is_own:
            held[name] = value
        elif there.is_default or there.value == made.get(name):
            changes.append(ConfigChange(topic=topic, name=name, before=there.value, after=value))
        else:
            left[name] = f"it is {there.value} on the target by now"
    return SettingsPlan(
        topic=topic,
        found=found,
        changes=tuple(changes),
        held=held,
        by_default=tuple(
            name for name in RETENTION if is_own and name not in found and name in now and not now[name].is_default
        ),
        left=left,
    )
