"""Settings that topics had on a lost cluster: which are set on their copies, and which are left to a person (pure).

L1  only what the lost cluster set on the topic itself is known. What its brokers' own files said is in no log
L2  what would delete, stamp or refuse records that are still to be restored is not set: retention and times. The
    command that sets it is told
L3  what a person has set on the copy meanwhile stays: a value changes where it is a default, or what the restore made
L4  what names the lost cluster's brokers, or its tier of remote storage, means nothing on another cluster
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from mirror.admin.configs import AFTER_MAX, BEFORE_MAX, TIMESTAMP_TYPE
from mirror.admin.values import ConfigChange, ConfigValue

RETENTION: Final = ("retention.ms", "retention.bytes")
#: L2
HELD: Final = frozenset({*RETENTION, TIMESTAMP_TYPE, BEFORE_MAX, AFTER_MAX})
#: L4
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
    held: what a person is to set when nothing more is to be restored (L2).
    dropped: what the restore gave the copy, and the lost topic had by its brokers' default.
    left: by name, why another setting is not set.
    """

    topic: str
    found: Mapping[str, str]
    changes: tuple[ConfigChange, ...] = ()
    held: Mapping[str, str] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
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
        dropped=_dropped(found, now) if is_own else (),
        left=left,
    )


def _dropped(found: Mapping[str, str], now: Mapping[str, ConfigValue]) -> tuple[str, ...]:
    return tuple(name for name in RETENTION if name not in found and name in now and not now[name].is_default)
