"""The sections topics, groups and sync: what MirrorMaker's connectors are set to, and what it does by default.

MirrorMaker never mirrors internal topics and its own, nor a topic that came from the target, whatever its patterns say
(`ReplicationPolicy`); the patterns of `exclude` say so here. Its lists are separated by commas, so none of its patterns
holds one.
"""

from __future__ import annotations

import contextlib
import re
from typing import Final

from mirror.config.yaml_tree import line_of
from mirror.mm2.properties import Draft, Property

#: Kafka's defaults (`DefaultTopicFilter`, `DefaultGroupFilter`).
_TOPICS_EXCLUDE: Final = r".*[\-\.]internal, .*\.replica, __.*"
_GROUPS_EXCLUDE: Final = "console-consumer-.*, connect-.*, __.*"
#: What is left out whatever the patterns say: internal topics, and our own.
_NEVER: Final = (r"__.*", r".*[\-\.]internal", r"mirror\..*")
#: The topic that MirrorMaker sends its heartbeats to, and mirrors. What ends in that name may be an application's.
_HEARTBEATS: Final = "heartbeats"
#: What names the settings of topics that do not follow; by default these are, among others, those of timestamps.
_EXCLUDED: Final = ("config.properties.exclude", "config.properties.blacklist")
#: How often is looked for changes: the shortest of them holds for all here.
_INTERVALS: Final = (
    "sync.topic.configs.interval.seconds",
    "sync.topic.acls.interval.seconds",
    "refresh.topics.interval.seconds",
)


def add_flow(draft: Draft) -> None:
    """Set all that is known of what the flow mirrors."""
    _topics(draft)
    _groups(draft)
    _sync(draft)


def _topics(draft: Draft) -> None:
    scope = draft.scope
    include, exclude = scope.find("topics", "topics.whitelist"), scope.find("topics.exclude", "topics.blacklist")
    wanted = _patterns(include.value if include else ".*")
    draft.put(("topics", "include"), wanted, include)
    draft.put(("topics", "exclude"), [], exclude)
    asked = _patterns(exclude.value if exclude else _TOPICS_EXCLUDE)
    prefix = _naming(draft)
    cycles = [rf"(?:.*{re.escape(prefix[1])})?{re.escape(prefix[0])}.*"] if prefix else []
    separator = scope.value("replication.policy.separator", default=".")
    beats = [_HEARTBEATS, *(f"{alias}{separator}{_HEARTBEATS}" for alias in scope.clusters)]
    left_out = [re.escape(one) for one in beats if one not in wanted]
    draft.put(("topics", "exclude"), list(dict.fromkeys([*asked, *_NEVER, *left_out, *cycles])))
    draft.remark(
        ("topics", "exclude"),
        "also what MirrorMaker never mirrors, and what it does: its heartbeats, and names that begin with `mirror.`",
    )
    draft.put(("topics", "offsets"), "translate")
    draft.remark(
        ("topics", "offsets"),
        "goes on where MirrorMaker's copy ends; with preserve, into new topics, records get the source's offsets",
    )
    reset = scope.client("source", "auto.offset.reset")
    if reset is not None and reset.value.strip().lower() == "latest":
        draft.put(("topics", "start"), "latest", reset)
        draft.remark(("topics", "start"), "at the first start; what appears later is copied from its first record")
    _times(draft)


def _times(draft: Draft) -> None:
    """MirrorMaker's producer sends the times at which the source took records, which a copy of type LogAppendTime takes
    for its own; it gives that type to copies where its filter is set to.
    """
    excluded = draft.scope.find(*_EXCLUDED)
    if excluded is None or draft.scope.value("sync.topic.configs.enabled", default="true").lower() != "true":
        return
    for pattern in _patterns(excluded.value):
        with contextlib.suppress(re.error):  # the configuration names it
            if re.fullmatch(pattern, "message.timestamp.type"):
                return
    draft.put(("topics", "append_time"), "target", excluded)
    draft.remark(
        ("topics", "append_time"),
        f"as {excluded.key} has it: copies of topics with LogAppendTime show the target's times; source keeps theirs",
    )


def _naming(draft: Draft) -> tuple[str, str] | None:
    """Set the target's names; where names say so, what those begin with that came from the target, the separator."""
    scope = draft.scope
    policy = scope.find("replication.policy.class")
    separator = scope.value("replication.policy.separator", default=".")
    name = policy.value.strip().rpartition(".")[2] if policy else "DefaultReplicationPolicy"
    if name == "IdentityReplicationPolicy":
        draft.put(("topics", "naming"), "identity", policy)
        draft.remark(
            ("topics", "naming"), "names do not say where a topic came from: mirror each in one direction only"
        )
        return None
    draft.put(("topics", "naming"), {"prefix": f"{scope.source}{separator}"}, policy)
    if policy is not None and name != "DefaultReplicationPolicy":
        why = "a class of your own cannot be run; names were made as DefaultReplicationPolicy does: check topics.naming"
        scope.explain(policy, why)
    return f"{scope.target}{separator}", separator


def _groups(draft: Draft) -> None:
    scope = draft.scope
    include, exclude = scope.find("groups", "groups.whitelist"), scope.find("groups.exclude", "groups.blacklist")
    wanted = _patterns(include.value if include else ".*")
    refused = "|".join(_patterns(exclude.value if exclude else _GROUPS_EXCLUDE))
    patterns = [f"(?!(?:{refused})$){f'(?:{one})' if '|' in one else one}" if refused else one for one in wanted]
    follow = scope.find("sync.group.offsets.enabled")
    seconds = scope.find("sync.group.offsets.interval.seconds")
    if follow is not None and follow.value.strip().lower() == "true":
        draft.put(("groups", "include"), patterns, include or exclude)
        if seconds is not None:
            _put_seconds(draft, ("groups", "interval_s"), seconds)
        return
    draft.put(("groups", "include"), [])
    remark = (
        f"MirrorMaker set no group's offsets (sync.group.offsets.enabled); to have them follow: {line_of(patterns)}"
    )
    draft.remark(("groups", "include"), remark)
    for one in (follow, seconds):
        if one is not None:
            scope.explain(one, "no group follows: see groups.include")


def _sync(draft: Draft) -> None:
    scope = draft.scope
    for name, key in (("sync.topic.configs.enabled", "configs"), ("sync.topic.acls.enabled", "acls")):
        given = scope.find(name) or Property(name, "true", 0)  # Kafka's default
        draft.put(("sync", key), given.value.strip().lower() == "true", given)
    excluded = scope.find(*_EXCLUDED)
    if excluded is not None:
        draft.put(("sync", "configs_exclude"), _patterns(excluded.value), excluded)
    shortest: tuple[float, Property] | None = None
    for name in _INTERVALS:
        found = scope.find(name)
        seconds = _seconds(found) if found is not None else None
        if found is not None and seconds is None:
            scope.explain(found, "not a number of seconds")
        elif found is not None and seconds is not None and (shortest is None or seconds < shortest[0]):
            shortest = seconds, found
    if shortest is not None:
        draft.put(("sync", "interval_s"), shortest[0], shortest[1])


def _seconds(found: Property) -> float | None:
    try:
        return float(found.value.strip())
    except ValueError:
        return None


def _put_seconds(draft: Draft, where: tuple[str, str], found: Property) -> None:
    seconds = _seconds(found)
    if seconds is None:
        draft.scope.explain(found, "not a number of seconds")
    else:
        draft.put(where, seconds, found)


def _patterns(text: str) -> list[str]:
    """A list of Java's patterns as Python's."""
    return list(dict.fromkeys(_pattern(one.strip()) for one in text.split(",") if one.strip()))


def _pattern(text: str) -> str:
    r"""`\Q...\E` and named groups are written differently; the configuration names what Python does not know."""
    quoted = re.sub(r"\\Q(.*?)(?:\\E|\Z)", lambda found: re.escape(found[1]), text, flags=re.DOTALL)
    return re.sub(r"\(\?<(?=[A-Za-z])", "(?P<", quoted)
