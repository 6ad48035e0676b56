"""The sections topics, groups and sync: what MirrorMaker's connectors are set to, and what it does by default.

MirrorMaker never mirrors internal topics and its own, nor a topic that came from the target, whatever its patterns say
(`ReplicationPolicy`); the patterns of `exclude` say so here. Its lists are separated by commas, so none of its patterns
holds one.
"""

from __future__ import annotations

import contextlib
import re
from operator import itemgetter
from typing import Final

from mirror.config.yaml_tree import line_of
from mirror.mm2.properties import BadProperties, Draft, Property
from mirror.names import is_plain

#: Kafka's defaults (`DefaultTopicFilter`, `DefaultGroupFilter`).
_TOPICS_EXCLUDE: Final = r"mm2.*\.internal, .*\.replica, __.*"
_GROUPS_EXCLUDE: Final = "console-consumer-.*, connect-.*, __.*"
#: What is left out whatever the patterns say: internal topics, and those of mirrors.
_NEVER: Final = (r"__.*", r"\..*", r"mirror\..*")
_LEFT_OUT: Final = (
    "also what MirrorMaker never mirrors, its heartbeats, and names that begin with `mirror.`; `mirror plan` lists what"
    " this leaves out"
)
_TRANSLATE: Final = (
    "goes on where MirrorMaker's copy ends; with preserve, into new topics, records get the source's offsets"
)
_ONE_WAY: Final = "names do not say where a topic came from: mirror each in one direction only"
#: The topic that MirrorMaker sends its heartbeats to, and mirrors. What ends in that name may be an application's.
_HEARTBEATS: Final = "heartbeats"
#: Kafka's own filters, whose names begin with Default.
_FILTERS: Final = {"topic": "TopicFilter", "group": "GroupFilter", "config.property": "ConfigPropertyFilter"}
#: Flags at the beginning of a pattern.
_FLAGS: Final = re.compile(r"(?:\(\?[a-zA-Z]+\))*")
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
    if own := _own_filter(draft, "topic"):
        raise _refusal(own, "a filter of your own cannot be run: leave it out, and set topics to what it selects")
    include, exclude = scope.find("topics", "topics.whitelist"), scope.find("topics.exclude", "topics.blacklist")
    wanted = _patterns(include.value if include else ".*")
    draft.put(("topics", "include"), wanted, include)
    asked = _patterns(exclude.value if exclude else _TOPICS_EXCLUDE)
    left_out = list(dict.fromkeys([*asked, *_NEVER, *_naming(draft, wanted)]))
    draft.put(("topics", "exclude"), left_out, exclude, _LEFT_OUT)
    draft.put(("topics", "offsets"), "translate", remark=_TRANSLATE)
    reset = scope.client("source", "auto.offset.reset")
    if reset is not None and reset.value.strip().lower() == "latest":
        remark = "at the first start; what appears later is copied from its first record"
        draft.put(("topics", "start"), "latest", reset, remark)
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
    what = "copies of topics with LogAppendTime show the target's times; source keeps theirs"
    draft.put(("topics", "append_time"), "target", excluded, f"as {excluded.key} has it: {what}")


def _naming(draft: Draft, include: list[str]) -> list[str]:
    """Set the names of copies; return patterns for what MirrorMaker mirrors under no name, or another than these."""
    scope = draft.scope
    policy = scope.find("replication.policy.class") or Property(
        "replication.policy.class", "DefaultReplicationPolicy", 0
    )
    given = scope.find("replication.policy.separator")
    separator = given.value if given else "."  # as it stands: MirrorMaker keeps blanks at its end
    source, target = scope.alias("source"), scope.alias("target")
    is_own = scope.value("replication.policy.internal.topic.separator.enabled", default="true").lower() == "true"
    mark = re.escape(separator if is_own else ".")
    internal = [f"mm2.*{mark}internal", f".*{mark}checkpoints{mark}internal"]
    prefix, cycles = source + separator, _cycles(target, separator)
    match policy.value.strip().rpartition(".")[2]:
        case "DefaultReplicationPolicy":
            draft.put(("topics", "naming"), {"prefix": prefix} if prefix else "identity", given or policy)
            beats = [_HEARTBEATS, *(f"{alias}{separator}{_HEARTBEATS}" for alias in (*scope.clusters, source, target))]
            left_out = [re.escape(beat) for beat in beats if not {beat, re.escape(beat)} & set(include)]
        case "IdentityReplicationPolicy":
            if source == target:
                raise _refusal(policy, f"with equal aliases ({source!r}) it makes MirrorMaker mirror no topic")
            named = [one for one in include if is_plain(one) and one.endswith(_HEARTBEATS)]
            kept = [one for one in named if not any(re.fullmatch(pattern, one) for pattern in cycles)]
            renamed = {"rename": {one: prefix + one for one in kept}} if kept else "identity"
            draft.put(("topics", "naming"), renamed, policy)
            if not all(map(is_plain, include)):
                why = f"names that end in `{_HEARTBEATS}`, which it changes to {prefix}NAME, are left out unless listed"
                scope.explain(policy, why)
            left_out = ["".join((*(rf"(?!{re.escape(one)}\Z)" for one in kept), ".*", _HEARTBEATS))]
            cycles = []
        case _:
            raise _refusal(policy, "a class of your own cannot be run: set one of Kafka's that gives the same names")
    if draft.values["topics", "naming"] != {"prefix": prefix}:
        draft.remarks["topics", "naming"] = _ONE_WAY
    return [*internal, *left_out, *cycles]


def _refusal(found: Property, why: str) -> BadProperties:
    return BadProperties(found.line, f"{found.key}: cannot be taken over: {why}")


def _own_filter(draft: Draft, kind: str) -> Property | None:
    """The property that names a filter other than Kafka's, if any."""
    found = draft.scope.find(f"{kind}.filter.class")
    return found if found and not found.value.strip().endswith(".mirror.Default" + _FILTERS[kind]) else None


def _cycles(target: str, separator: str) -> list[str]:
    """The pattern of names that hold the target's alias before a separator (`MirrorSourceConnector.isCycle`).

    Java's split leaves out empty parts at the end. By an empty separator it gives single characters.
    """
    if not separator:
        return [f".*{re.escape(target)}.+"] if len(target) == 1 else []
    if (target + separator).find(separator) < len(target):
        return []  # a part is never the alias
    mark = re.escape(separator)
    before = f"(?:.*[^{mark[-1]}])?(?:{mark})+" if len(set(separator)) == 1 else f".*{mark}"
    return [rf"(?:{before})?{re.escape(target)}{mark}(?!(?:{mark})*\Z).*"]


def _groups(draft: Draft) -> None:
    scope = draft.scope
    include, exclude = scope.find("groups", "groups.whitelist"), scope.find("groups.exclude", "groups.blacklist")
    wanted = _patterns(include.value if include else ".*")
    refused = "|".join(_patterns(exclude.value if exclude else _GROUPS_EXCLUDE))
    patterns = [rf"(?!(?:{refused})\Z){f'(?:{one})' if '|' in one else one}" if refused else one for one in wanted]
    follow = scope.find("sync.group.offsets.enabled")
    seconds = scope.find("sync.group.offsets.interval.seconds")
    own = _own_filter(draft, "group")
    if follow is not None and follow.value.strip().lower() == "true" and own is None:
        draft.put(("groups", "include"), patterns, include or exclude)
        if seconds is not None and (value := _seconds(draft, seconds)) is not None:
            draft.put(("groups", "interval_s"), value, seconds)
        return
    why = f"{own.key} cannot be run" if own else "MirrorMaker set no group's offsets (sync.group.offsets.enabled)"
    draft.put(("groups", "include"), [], remark=f"{why}; to have them follow: {line_of(patterns)}")
    for property_ in (own, follow, seconds):
        if property_ is not None:
            scope.explain(property_, "no group follows: see groups.include")


def _sync(draft: Draft) -> None:
    scope = draft.scope
    for name, key in (("sync.topic.configs.enabled", "configs"), ("sync.topic.acls.enabled", "acls")):
        given = scope.find(name) or Property(name, "true", 0)  # Kafka's default
        draft.put(("sync", key), given.value.strip().lower() == "true", given)
    if (own := _own_filter(draft, "config.property")) and draft.values["sync", "configs"]:
        raise _refusal(own, "a filter of your own cannot be run: leave it out, and set config.properties.exclude")
    excluded = scope.find(*_EXCLUDED)
    if excluded is not None:
        draft.put(("sync", "configs_exclude"), _patterns(excluded.value), excluded)
    named = [found for name in _INTERVALS if (found := scope.find(name)) is not None]
    if asked := [(value, found) for found in named if (value := _seconds(draft, found)) is not None]:
        draft.put(("sync", "interval_s"), *min(asked, key=itemgetter(0)))


def _seconds(draft: Draft, found: Property) -> float | None:
    try:
        return float(found.value.strip())
    except ValueError:
        draft.scope.explain(found, "not a number of seconds")
        return None


def _patterns(text: str) -> list[str]:
    """A list of Java's patterns as Python's. MirrorMaker makes one of them all, so flags at the beginning of one, such
    as `(?i)`, hold for those behind it, too.
    """
    found, flags = dict[str, None](), ""
    for one in filter(None, map(str.strip, text.split(","))):
        found[_pattern(flags + one)] = None
        flags += _FLAGS.match(one)[0]  # type: ignore[index] # it matches the empty string
    return list(found)


def _pattern(text: str) -> str:
    r"""`\Q...\E` and named groups are written differently; the configuration names what Python does not know."""
    quoted = re.sub(r"\\Q(.*?)(?:\\E|\Z)", lambda found: re.escape(found[1]), text, flags=re.DOTALL)
    return re.sub(r"\(\?<(?=[A-Za-z])", "(?P<", quoted)
