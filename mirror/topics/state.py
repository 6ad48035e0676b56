"""The topics of a flow as they are to be (`DesiredTopics`) and as they are (`ObservedTopics`): values.

`reconcile.py` asks for both, and decides what to do about the difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from mirror.config import Settings
from mirror.errors import MirrorError
from mirror.journal.entries import FirstSeen, same_id
from mirror.kafka.admin import TopicInfo
from mirror.kafka.topic_configs import TopicConfigs
from mirror.policy.rules import Finding
from mirror.policy.selection import Selection, TopicPair, rekeyed_pairs
from mirror.topics.history import History


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredTopics:
    """Says what the source has of what the settings of a flow choose."""

    settings: Settings
    cluster_id: str
    #: All topics of the source.
    topics: Mapping[str, TopicInfo]
    selection: Selection
    #: Of the selected topics, those whose settings some broker had an answer for.
    configs: TopicConfigs = field(default_factory=dict)
    #: Why settings of topics may not be read.
    denied: Mapping[str, MirrorError] = field(default_factory=dict)

    @property
    def copied(self) -> list[TopicPair]:
        """Return the selected topics that keep their partitions."""
        return [pair for pair in self.selection.pairs if pair.rekeying is None]

    @property
    def rekeyed(self) -> list[TopicPair]:
        """Return the selected topics that a rule re-keys."""
        return list(rekeyed_pairs(self.settings.flow, self.selection.pairs))

    @property
    def pairs(self) -> list[TopicPair]:
        """Return all selected topics."""
        return [*self.copied, *self.rekeyed]

    @property
    def unread(self) -> set[str]:
        """Return the selected topics whose settings are unknown."""
        return {pair.source for pair in self.pairs} - self.configs.keys()


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedTopics:
    """Says what is on the target, and what journals say of it."""

    history: History
    #: All topics of the target.
    topics: Mapping[str, TopicInfo]
    #: Of the topics that the flow writes to, those whose settings some broker had an answer for.
    configs: TopicConfigs = field(default_factory=dict)
    #: Why settings of topics may not be read.
    denied: Mapping[str, MirrorError] = field(default_factory=dict)
    #: Topics that the flow writes to, and that the target may have and hide.
    hidden: frozenset[str] = frozenset()
    #: Topics of the source that the flow mirrored, and that the source hides now.
    hidden_sources: tuple[str, ...] = ()
    #: Copies of topics that are re-keyed, and that hold or held records.
    filled: frozenset[str] = frozenset()
    #: Topics whose settings are unknown, and that exist.
    unread: frozenset[str] = frozenset()
    #: What a new topic gets on the target unless set otherwise; empty where none is to be created.
    defaults: Mapping[str, str] = field(default_factory=dict)
    #: How many of the target's brokers are alive.
    brokers: int = 0
    #: The flow may fill the offsets of control markers, or has none to fill.
    may_fill: bool = True
    #: What is wrong, or of note, with both clusters as a whole.
    findings: tuple[Finding, ...] = ()

    def readable(self, pairs: Iterable[TopicPair], desired: DesiredTopics) -> list[TopicPair]:
        """Return those of these pairs of which nothing is hidden or unknown on either side."""
        unknown = self.hidden | self.unread
        return [pair for pair in pairs if pair.source in desired.configs and not pair.own_topics & unknown]


def begun_as(
    pair: TopicPair, source_topics: Mapping[str, TopicInfo], target_topics: Mapping[str, TopicInfo], history: History
) -> FirstSeen | None:
    """Return as what the source topic was first seen, if it was recreated since and its copy is still that of the
    first; else None.
    """
    seen, copy = history.seen.get(pair.target), target_topics.get(pair.target)
    if seen is None or copy is None or seen.source_topic != pair.source:
        return None
    is_its_copy = same_id(seen.target_topic_id, copy.topic_id)
    return seen if is_its_copy and not same_id(seen.topic_id, source_topics[pair.source].topic_id) else None


def left_alone(pair: TopicPair, target_topics: Mapping[str, TopicInfo]) -> TopicPair:
    """Return the pair with the partitions of its copy, which is not to be changed."""
    copy = target_topics.get(pair.target)
    return pair if copy is None else replace(pair, partitions=len(copy.partitions))
