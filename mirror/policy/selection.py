"""Which topics a flow mirrors, and to which names.

Pure: the source's topics and the patterns in, a `Selection` out. What went wrong is part of the value (names that match
nothing, two sources with one target name), because the planner reports everything together.

Internal topics (`__consumer_offsets`, `__transaction_state`, ...) are never selected, whatever the patterns say:
brokers refuse raw writes to them, and their contents mean nothing on another cluster. Nor are the topics that mirrors
keep for themselves (`mirror.<flow>.offsets`, ...): the copy of a journal would be taken for one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from mirror import names
from mirror.batch.header import CODECS
from mirror.policy.rekeying import OnBadRecord, Rekeying

INTERNAL_PREFIX = "__"
#: What the names of the topics begin with that mirrors keep for themselves.
OWN_PREFIX = "mirror."
_NEVER = (INTERNAL_PREFIX, OWN_PREFIX)


class Naming(Protocol):
    """The target's name for a source topic."""

    def target_of(self, topic: str) -> str: ...


class Rule(Protocol):
    """What is done differently for the topics that match."""

    @property
    def match(self) -> re.Pattern[str]: ...
    @property
    def rekey(self) -> str | None: ...
    @property
    def partitions(self) -> int | None: ...
    @property
    def where(self) -> str | None: ...
    @property
    def value(self) -> str | None: ...
    @property
    def headers(self) -> str | None: ...
    @property
    def codec(self) -> str | None: ...
    @property
    def on_bad_record(self) -> OnBadRecord: ...
    @property
    def dead_letter(self) -> str | None: ...


class Patterns(Protocol):
    """What selection reads of the topic settings."""

    @property
    def include(self) -> Sequence[re.Pattern[str]]: ...

    @property
    def exclude(self) -> Sequence[re.Pattern[str]]: ...

    @property
    def naming(self) -> Naming: ...

    @property
    def rules(self) -> Sequence[Rule]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPair:
    """One mirrored topic; `partitions` is the number on the source. Where a rule matches it, `rekeying` says what
    becomes of its records, and how many partitions the target has.
    """

    source: str
    target: str
    partitions: int
    rekeying: Rekeying | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Clash:
    """Several source topics that would become one target topic."""

    target: str
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """`pairs` are safe to plan only when `missing`, `clashes` and `illegal` are empty; all are sorted by name.

    `missing`: include patterns without special characters, so meant as a name, that no topic has.
    `illegal`: source topics whose target name no broker would accept.
    `internal`: topics that the patterns ask for and that are left out all the same.
    """

    pairs: tuple[TopicPair, ...]
    missing: tuple[str, ...]
    clashes: tuple[Clash, ...]
    illegal: tuple[TopicPair, ...]
    internal: tuple[str, ...]


def selects(topic: str, patterns: Patterns) -> bool:
    """True when the patterns ask for this topic, internal or not. Exclude wins."""
    return any(p.fullmatch(topic) for p in patterns.include) and not any(p.fullmatch(topic) for p in patterns.exclude)


def is_rekeyed(topic: str, patterns: Patterns) -> bool:
    """True where a rule matches the topic: its records are not where they are on the source."""
    return any(rule.match.fullmatch(topic) for rule in patterns.rules)


def select(topics: Mapping[str, int], patterns: Patterns) -> Selection:
    """Choose among `topics` (name to number of partitions)."""
    wanted = sorted(topic for topic in topics if selects(topic, patterns))
    pairs = [
        _pair(topic, patterns.naming.target_of(topic), topics[topic], patterns.rules)
        for topic in wanted
        if not topic.startswith(_NEVER)
    ]
    by_target: dict[str, list[str]] = {}
    for pair in pairs:
        by_target.setdefault(pair.target, []).append(pair.source)
    return Selection(
        pairs=tuple(pairs),
        missing=tuple(sorted({p.pattern for p in patterns.include if _names_nothing(p, topics)})),
        clashes=tuple(Clash(target=t, sources=tuple(s)) for t, s in sorted(by_target.items()) if len(s) > 1),
        illegal=tuple(pair for pair in pairs if not names.is_legal(pair.target)),
        internal=tuple(topic for topic in wanted if topic.startswith(_NEVER)),
    )


def _pair(source: str, target: str, partitions: int, rules: Sequence[Rule]) -> TopicPair:
    rule = next((one for one in rules if one.match.fullmatch(source)), None)
    if rule is None:
        return TopicPair(source=source, target=target, partitions=partitions)
    rekeying = rekeyed_by(rule, source, target, rule.partitions or partitions)
    return TopicPair(source=source, target=target, partitions=partitions, rekeying=rekeying)


def rekeyed_by(rule: Rule, source: str, target: str, partitions: int) -> Rekeying:
    """What a rule means for one topic."""
    return Rekeying(
        source=source,
        target=target,
        partitions=partitions,
        rekey=rule.rekey,
        where=rule.where,
        value=rule.value,
        headers=rule.headers,
        codec=None if rule.codec is None else CODECS.index(rule.codec),
        on_bad_record=rule.on_bad_record,
        dead_letter=rule.dead_letter or "",
    )


def _names_nothing(pattern: re.Pattern[str], topics: Mapping[str, int]) -> bool:
    return names.is_plain(pattern.pattern) and not any(pattern.fullmatch(topic) for topic in topics)
