"""Which topics a flow mirrors, to which names, and which of them are re-keyed.

Such a topic belongs to the re-key query for good (`spark/rekey/`). Everything that decides where a record goes, and
what it is there, is part of the value below, since a micro-batch that was begun is finished by what held when it began.

Pure: the source's topics and the patterns in, a `Selection` out. What went wrong is part of the value (names that match
nothing, two sources with one target name), because the planner reports everything together.

Internal topics (`__consumer_offsets`, `__transaction_state`, ...) are never selected, whatever the patterns say:
brokers refuse raw writes to them, and their contents mean nothing on another cluster. Nor are the topics that mirrors
keep for themselves (`mirror.<flow>.offsets`, ...): the copy of a journal would be taken for one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from mirror import names
from mirror.config import TopicRule, TopicSettings
from mirror.records.header import CODECS

# --- What becomes of a topic that is not copied batch by batch --------------------------------------------------------

OnBadRecord = Literal["stop", "drop", "dead-letter"]

#: The parts of a rule that are expressions of Spark SQL.
EXPRESSIONS: Final = ("rekey", "where", "value", "headers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rekeying:
    """How the records of `source` come to the `partitions` of `target`.

    `rekey`, `value` and `headers` are expressions for what a record gets anew, `where` for which records are wanted;
    None keeps what there is. `codec`: the id that batches are compressed to, None for that of the source's batches. A
    record for which an expression fails, or gives no key, goes by `on_bad_record`; `dead_letter` is the target topic
    for such. `progress`: the flow's own topic that holds how far all this has come. `compacted`: the target is, and
    takes no record without a key. `max_bytes`: the largest batch that it takes, and `dead_letter`. `tombstones_ms`: how
    long the source keeps tombstones; None where it is not compacted. `may_stamp`: the target may give records times of
    its own, as the source does, or somebody has asked for it. `may_compact`: somebody has asked for no more than the
    newest record of each key of the target.
    """

    source: str
    target: str
    partitions: int
    rekey: str | None = None
    where: str | None = None
    value: str | None = None
    headers: str | None = None
    codec: int | None = None
    on_bad_record: OnBadRecord = "stop"
    dead_letter: str = ""
    progress: str = ""
    compacted: bool = False
    max_bytes: int = 1_048_588
    continues_on_loss: bool = False
    tombstones_ms: int | None = None
    may_stamp: bool = False
    may_compact: bool = False

    @property
    def fits_compaction(self) -> bool:
        """The cleaner of a compacted target removes no more than the source's may, or than somebody has asked for.

        By a key of the rule, a record would be superseded, or deleted, by one that has another key on the source.
        """
        return self.may_compact or (self.rekey is None and self.tombstones_ms is not None)

    @property
    def expressions(self) -> dict[str, str]:
        """The expressions that are set, by their names in a rule."""
        return {name: text for name in EXPRESSIONS if (text := getattr(self, name)) is not None}

    @property
    def own_topics(self) -> set[str]:
        """The topics of the target that are written."""
        return {self.target, self.progress, self.dead_letter} - {""}

    @property
    def record_topics(self) -> list[str]:
        """The topics of the target that get records."""
        return [topic for topic in (self.target, self.dead_letter) if topic]

    @property
    def writes_records_to(self) -> str:
        """The topics of the target that get records, for people."""
        return " and ".join(self.record_topics)

    @property
    def keeps_records(self) -> bool:
        """No record is changed or left out: only its partition is another one."""
        return not self.expressions


# --- Which topics a flow mirrors, and to which names ------------------------------------------------------------------

_NEVER = (names.INTERNAL_PREFIX, names.OWN_PREFIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPair:
    """One mirrored topic; `partitions` is the number on the source. Where a rule matches it, `rekeying` says what
    becomes of its records, and how many partitions the target has.
    """

    source: str
    target: str
    partitions: int
    rekeying: Rekeying | None = None

    @property
    def own_topics(self) -> set[str]:
        """The topics of the target that are written."""
        return {self.target} if self.rekeying is None else self.rekeying.own_topics


@dataclass(frozen=True, slots=True, kw_only=True)
class Clash:
    """Several source topics that would become one target topic."""

    target: str
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """`pairs` are safe to plan only when `missing`, `clashes` and `illegal` are empty; all are sorted by name.

    `missing`: include patterns without special characters, so meant as a name, that no topic has and nothing excludes.
    `illegal`: source topics whose target name no broker would accept.
    `internal`: topics that the patterns ask for and that are left out all the same. `excluded`: by topic, the pattern
    of `exclude` that leaves out what `include` matches.
    """

    pairs: tuple[TopicPair, ...]
    missing: tuple[str, ...]
    clashes: tuple[Clash, ...]
    illegal: tuple[TopicPair, ...]
    internal: tuple[str, ...]
    excluded: Mapping[str, str] = field(default_factory=dict)

    @property
    def left_out(self) -> dict[str, list[str]]:
        """The topics that `include` matches and that are not mirrored, by the reason."""
        reasons = {topic: f'topics.exclude has "{pattern}"' for topic, pattern in self.excluded.items()}
        for topic in self.internal:
            is_own = topic.startswith(names.OWN_PREFIX)
            owner, itself = ("mirrors keep", "themselves") if is_own else ("Kafka keeps", "itself")
            reasons[topic] = f"{owner} topics with such names for {itself}"
        found: dict[str, list[str]] = {}
        for topic, reason in sorted(reasons.items()):
            found.setdefault(reason, []).append(topic)
        return found


def selects(topic: str, patterns: TopicSettings) -> bool:
    """True when the patterns ask for this topic, internal or not. Exclude wins."""
    return any(p.fullmatch(topic) for p in patterns.include) and not any(p.fullmatch(topic) for p in patterns.exclude)


def is_rekeyed(topic: str, patterns: TopicSettings) -> bool:
    """True where a rule matches the topic: its records are not where they are on the source."""
    return any(rule.match.fullmatch(topic) for rule in patterns.rules)


def select(topics: Mapping[str, int], patterns: TopicSettings) -> Selection:
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
        missing=tuple(sorted({p.pattern for p in patterns.include if _names_nothing(p, topics, patterns.exclude)})),
        clashes=tuple(Clash(target=t, sources=tuple(s)) for t, s in sorted(by_target.items()) if len(s) > 1),
        illegal=tuple(pair for pair in pairs if not names.is_legal(pair.target)),
        internal=tuple(topic for topic in wanted if topic.startswith(_NEVER)),
        excluded={
            topic: next(pattern.pattern for pattern in patterns.exclude if pattern.fullmatch(topic))
            for topic in sorted(topics)
            if topic not in wanted and any(pattern.fullmatch(topic) for pattern in patterns.include)
        },
    )


def _pair(source: str, target: str, partitions: int, rules: Sequence[TopicRule]) -> TopicPair:
    rule = next((one for one in rules if one.match.fullmatch(source)), None)
    if rule is None:
        return TopicPair(source=source, target=target, partitions=partitions)
    rekeying = rekeyed_by(rule, source, target, rule.partitions or partitions)
    return TopicPair(source=source, target=target, partitions=partitions, rekeying=rekeying)


def rekeyed_by(rule: TopicRule, source: str, target: str, partitions: int) -> Rekeying:
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
        may_compact=rule.may_compact,
    )


def _names_nothing(pattern: re.Pattern[str], topics: Mapping[str, int], exclude: Sequence[re.Pattern[str]]) -> bool:
    """Whether an include pattern is a name that no topic has; one that is excluded as well need not exist."""
    name = pattern.pattern
    if not names.is_plain(name) or any(one.fullmatch(name) for one in exclude):
        return False
    return not any(pattern.fullmatch(topic) for topic in topics)


def progress_topic(flow: str, target: str) -> str:
    """Return the name of the topic that holds where the re-key query into `target` stands (`spark/rekey/`)."""
    return f"mirror.{flow}.rekey.{target}"


def rekeyed_pairs(flow: str, pairs: Iterable[TopicPair]) -> Iterator[TopicPair]:
    """Yield those of the pairs that are re-keyed, with the topics that hold where the queries stand."""
    for pair in pairs:
        if (rekeying := pair.rekeying) is not None:
            yield replace(pair, rekeying=replace(rekeying, progress=progress_topic(flow, pair.target)))
