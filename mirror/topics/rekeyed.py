"""The target's side of topics that are re-keyed: the copy with its own number of partitions, the topic that holds where
the query stands, and the one for records that could not be re-keyed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mirror import names
from mirror.config import ClusterSettings, Settings
from mirror.errors import MirrorError
from mirror.kafka.admin import Admin, Creation, TopicInfo
from mirror.kafka.cluster import Endpoint
from mirror.kafka.topic_configs import ConfigValue, plain_values
from mirror.policy.remedies import DENIAL_FIRST, Fix, allow
from mirror.policy.rules import (
    Finding,
    Rules,
    is_compacted,
    is_stamped,
    preflight_rekeyed,
    refused,
    tombstones_kept_ms,
)
from mirror.policy.selection import Rekeying, TopicPair
from mirror.topics.configs import OWN_COMPACTED, TIMESTAMP_TYPE, any_time, configs_for
from mirror.topics.fitting import own_replicas, replicas_of

_FEWEST_SLOTS: Final = 2
#: A topic for records that somebody is to look at, however long that takes.
_DEAD_LETTER: Final = {"compression.type": "producer", "retention.ms": "-1", TIMESTAMP_TYPE: "CreateTime"}


def progress_topic(flow: str, target: str) -> str:
    """The topic that holds where the re-key query into `target` stands (`spark/rekey/`)."""
    return f"mirror.{flow}.rekey.{target}"


def rekeyed_pairs(flow: str, pairs: Iterable[TopicPair]) -> Iterator[TopicPair]:
    """Those of the pairs that are re-keyed, with the topics that hold where the queries stand."""
    for pair in pairs:
        if (rekeying := pair.rekeying) is not None:
            yield replace(pair, rekeying=replace(rekeying, progress=progress_topic(flow, pair.target)))


@dataclass(frozen=True, slots=True)
class RekeyPlan:
    """What re-keyed topics need on the target, and the rules as they fit the topics there."""

    rekeyings: tuple[Rekeying, ...] = ()
    creations: tuple[Creation, ...] = ()
    findings: tuple[Finding, ...] = ()
    unread: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Clusters:
    """Holds what is known of both clusters."""

    #: All topics, by name.
    source_topics: Mapping[str, TopicInfo]
    target_topics: Mapping[str, TopicInfo]
    #: Of the topics that matter.
    source_configs: Mapping[str, Mapping[str, ConfigValue]]
    #: What a new topic gets on the target unless set otherwise, and how many of its brokers are alive.
    defaults: Mapping[str, str]
    brokers: int


def plan_rekeyed(target: Admin, settings: Settings, pairs: Sequence[TopicPair], known: Clusters) -> RekeyPlan:
    """Plan `pairs`, which are `rekeyed_pairs`. Writes nothing; raises ClusterError."""
    copies = [known.target_topics[pair.target] for pair in pairs if pair.target in known.target_topics]
    dead = {pair.rekeying.dead_letter for pair in pairs if pair.rekeying} & known.target_topics.keys()
    barred: dict[str, MirrorError] = {}
    target_configs = {
        topic: plain_values(found)
        for topic, found in target.topic_configs({*dead, *(copy.name for copy in copies)}, barred).items()
    }
    unread = frozenset({*dead, *(copy.name for copy in copies)} - target_configs.keys())
    filled = {topic for (topic, _), span in target.spans(copies).items() if span.end}
    creations = list[Creation]()
    findings: list[Finding] = [*unanswered(unread, settings.target, barred)]
    rekeyings, new_letters = list[Rekeying](), dict[str, int]()
    own = own_replicas(asked := settings.topics.replication_factor, known.defaults, known.brokers)
    may_create = settings.sync.topics  # what the flow keeps for itself is made all the same, as its journal is
    for pair in (one for one in pairs if not unread & {one.target, one.rekeying and one.rekeying.dead_letter}):
        assert pair.rekeying is not None
        of_source = plain_values(source_configs := known.source_configs[pair.source])
        rekeying = replace(pair.rekeying, tombstones_ms=tombstones_kept_ms(of_source))
        replicas = replicas_of(
            asked, known.source_topics[pair.source].replication_factor, known.defaults, known.brokers
        )
        copy, progress = known.target_topics.get(pair.target), rekeying.progress
        if copy is None and may_create:
            followed = configs_for(source_configs, known.defaults, settings.sync, settings.topics.append_time)
            configs: Mapping[str, str] = followed | _keeping(rekeying, {**known.defaults, **followed})
            creations.append(_creation(pair.target, rekeying.partitions, replicas, configs))
            configs = {**known.defaults, **configs}
        elif copy is None:
            configs = known.defaults
            findings.append(missing(pair.target))
        else:
            configs = target_configs[pair.target]
            findings += preflight_rekeyed(of_source, configs, copy.name, copy.replication_factor)
            if not _sets_partitions(settings, pair.source):
                rekeying = replace(rekeying, partitions=len(copy.partitions))  # its source may have grown since
        if progress not in known.target_topics:
            slots = min(rekeying.partitions, settings.spark.tasks or max(_FEWEST_SLOTS, os.cpu_count() or 1))
            configs_of_own = {**OWN_COMPACTED, **any_time(known.defaults)}
            creations.append(_creation(progress, 1 + slots, own, configs_of_own))
        compacted, max_bytes = is_compacted(configs), Rules.from_configs(configs).max_message_bytes
        if (letters := rekeying.dead_letter) in dead:
            max_bytes = min(max_bytes, Rules.from_configs(target_configs[letters]).max_message_bytes)
            findings += _dead_letter_findings(of_source, target_configs[letters], known.target_topics[letters])
        elif letters in new_letters:
            max_bytes = min(max_bytes, new_letters[letters])
        elif letters and not may_create:
            findings.append(missing(letters))
        elif letters:
            new_letters[letters] = max_bytes
            of_letters = {**_DEAD_LETTER, **any_time(known.defaults), "max.message.bytes": str(max_bytes)}
            creations.append(_creation(letters, 1, replicas, of_letters))
        is_foreign = pair.target in filled and progress not in known.target_topics
        findings += _refusals(rekeying, copy, is_compacted=compacted, is_foreign=is_foreign)
        rekeyings.append(
            replace(
                rekeying,
                compacted=compacted,
                max_bytes=max_bytes,
                continues_on_loss=settings.topics.on_data_loss == "continue",
                may_stamp=settings.topics.append_time == "target" or is_stamped(of_source),
            )
        )
    return RekeyPlan(tuple(rekeyings), tuple(creations), tuple(dict.fromkeys(findings)), unread)


def _keeping(rekeying: Rekeying, configs: Mapping[str, str]) -> dict[str, str]:
    """What keeps a target topic that is to be made with `configs` from being compacted by keys that supersede what the
    source keeps.
    """
    if rekeying.fits_compaction or not is_compacted(configs):
        return {}
    deletes = Rules.from_configs(configs).deletes
    return {"cleanup.policy": "delete"} | ({} if deletes else {"retention.ms": "-1", "retention.bytes": "-1"})


def unanswered(topics: Iterable[str], cluster: ClusterSettings, denied: Mapping[str, MirrorError]) -> Iterator[Finding]:
    """The refusals of topics whose settings no broker had an answer for, or may not tell: nothing follows from what is
    not known.
    """
    for topic in sorted(topics):
        if topic in denied:
            how = f"{DENIAL_FIRST}: {allow(Endpoint.of(cluster), 'DESCRIBE_CONFIGS', topic=topic)}"
            yield refused(topic, str(denied[topic]), Fix.NAME_SOURCE, hint=how)
            continue
        what = (
            f"cluster {cluster.alias} lists it and says nothing of its settings, as of one that was deleted a moment"
            " ago, or that a broker has not heard of yet: a running mirror asks again"
        )
        yield refused(topic, what, Fix.SELF_EXPLANATORY)


def missing(topic: str) -> Finding:
    """The refusal of a target topic that is not there, and that somebody does not want to be made."""
    return refused(topic, "does not exist and sync.topics is false", Fix.CREATE_TOPIC)


def _dead_letter_findings(
    source: Mapping[str, str], configs: Mapping[str, str], topic: TopicInfo
) -> tuple[Finding, ...]:
    findings = preflight_rekeyed(source, configs, topic.name, topic.replication_factor)
    if not is_compacted(configs):
        return findings
    what = "is compacted, and records without a key go to it, too"
    return (refused(topic.name, what, Fix.DELETE_POLICY), *findings)


def _sets_partitions(settings: Settings, source: str) -> bool:
    rule = next(one for one in settings.topics.rules if one.match.fullmatch(source))
    return rule.partitions is not None


def _refusals(rekeying: Rekeying, copy: TopicInfo | None, *, is_compacted: bool, is_foreign: bool) -> Iterator[Finding]:
    topic, progress = rekeying.target, rekeying.progress
    if copy is not None and is_compacted and not rekeying.fits_compaction:
        why = "its source is not" if rekeying.tombstones_ms is None else "its source is by other keys"
        what = f"is compacted and {why}: its cleaner removes records that the source keeps"
        yield refused(topic, what, Fix.FIT_COMPACTION, progress=progress)
    if copy is not None and len(copy.partitions) != rekeying.partitions:
        many = f"{len(copy.partitions)} partitions and its rule says {rekeying.partitions}"
        yield refused(topic, f"has {many}: keys would change their partition", Fix.CHANGE_RULE)
    if is_foreign:
        what = f"holds records that were not re-keyed by this flow, which has no {progress}"
        yield refused(topic, what, Fix.NAME_COPY)
    if not names.is_legal(progress):
        yield refused(topic, f"the flow's topic {progress} would have a name that is too long", Fix.SHORTEN_FLOW)
    if rekeying.dead_letter in (rekeying.target, rekeying.source):
        yield refused(topic, "is its own dead_letter topic", Fix.OTHER_LETTERS)


def _creation(topic: str, partitions: int, replicas: int, configs: Mapping[str, str]) -> Creation:
    return Creation(topic=topic, partitions=partitions, replication_factor=replicas, configs=configs)
