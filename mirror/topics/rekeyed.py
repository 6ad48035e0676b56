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
from mirror.kafka.admin import Creation, TopicInfo
from mirror.kafka.cluster import Endpoint
from mirror.kafka.topic_configs import plain_values
from mirror.policy.remedies import DENIAL_FIRST, Fix, allow
from mirror.policy.rules import Finding, Rules, is_compacted, is_stamped, preflight_rekeyed, refused, tombstones_kept_ms
from mirror.policy.selection import Rekeying, TopicPair
from mirror.topics.configs import OWN_COMPACTED, TIMESTAMP_TYPE, any_time, configs_for
from mirror.topics.fitting import own_replicas, replicas_of
from mirror.topics.state import DesiredTopics, ObservedTopics

_FEWEST_SLOTS: Final = 2
#: A topic for records that somebody is to look at, however long that takes.
_DEAD_LETTER: Final = {"compression.type": "producer", "retention.ms": "-1", TIMESTAMP_TYPE: "CreateTime"}


@dataclass(frozen=True, slots=True)
class RekeyPlan:
    """What re-keyed topics need on the target, and the rules as they fit the topics there."""

    rekeyings: tuple[Rekeying, ...] = ()
    creations: tuple[Creation, ...] = ()
    findings: tuple[Finding, ...] = ()


def plan_rekeyed(desired: DesiredTopics, observed: ObservedTopics, pairs: Sequence[TopicPair]) -> RekeyPlan:
    """Plan those of `desired.rekeyed` of which all is known."""
    creations, findings = list[Creation](), list[Finding]()
    rekeyings, new_letters = list[Rekeying](), dict[str, int]()
    for pair in pairs:
        assert pair.rekeying is not None
        of_source = plain_values(desired.configs[pair.source])
        rekeying = replace(pair.rekeying, tombstones_ms=tombstones_kept_ms(of_source))
        rekeying, configs = _copy_of(rekeying, desired, observed, creations, findings)
        if rekeying.progress not in observed.topics:
            creations.append(_progress_of(rekeying, desired.settings, observed))
        compacted, max_bytes = is_compacted(configs), Rules.from_configs(configs).max_message_bytes
        if letters := rekeying.dead_letter:
            if (existing := observed.topics.get(letters)) is not None:
                of_letters = plain_values(observed.configs[letters])
                max_bytes = min(max_bytes, Rules.from_configs(of_letters).max_message_bytes)
                findings += _dead_letter_findings(of_source, of_letters, existing)
            elif letters in new_letters:
                max_bytes = min(max_bytes, new_letters[letters])
            elif not desired.settings.sync.topics:
                findings.append(missing(letters))
            else:
                new_letters[letters] = max_bytes
                of_letters = {**_DEAD_LETTER, **any_time(observed.defaults), "max.message.bytes": str(max_bytes)}
                creations.append(_creation(letters, 1, _replicas(pair.source, desired, observed), of_letters))
        findings += _refusals(rekeying, observed, is_compacted=compacted)
        rekeyings.append(
            replace(
                rekeying,
                compacted=compacted,
                max_bytes=max_bytes,
                continues_on_loss=desired.settings.topics.on_data_loss == "continue",
                may_stamp=desired.settings.topics.append_time == "target" or is_stamped(of_source),
            )
        )
    return RekeyPlan(tuple(rekeyings), tuple(creations), tuple(dict.fromkeys(findings)))


def _copy_of(
    rekeying: Rekeying,
    desired: DesiredTopics,
    observed: ObservedTopics,
    creations: list[Creation],
    findings: list[Finding],
) -> tuple[Rekeying, Mapping[str, str]]:
    """Return the rule as it fits its copy, and the copy's settings, as they are or are to be."""
    settings, source_configs = desired.settings, desired.configs[rekeying.source]
    if (copy := observed.topics.get(rekeying.target)) is not None:
        configs = plain_values(observed.configs[copy.name])
        findings += preflight_rekeyed(plain_values(source_configs), configs, copy.name, copy.replication_factor)
        if not _sets_partitions(settings, rekeying.source):
            rekeying = replace(rekeying, partitions=len(copy.partitions))  # its source may have grown since
        return rekeying, configs
    if not settings.sync.topics:  # what the flow keeps for itself is made all the same, as its journal is
        findings.append(missing(rekeying.target))
        return rekeying, observed.defaults
    followed = configs_for(source_configs, observed.defaults, settings.sync, settings.topics.append_time)
    made = followed | _keeping(rekeying, {**observed.defaults, **followed})
    replicas = _replicas(rekeying.source, desired, observed)
    creations.append(_creation(rekeying.target, rekeying.partitions, replicas, made))
    return rekeying, {**observed.defaults, **made}


def _progress_of(rekeying: Rekeying, settings: Settings, observed: ObservedTopics) -> Creation:
    slots = min(rekeying.partitions, settings.spark.tasks or max(_FEWEST_SLOTS, os.cpu_count() or 1))
    replicas = own_replicas(settings.topics.replication_factor, observed.defaults, observed.brokers)
    return _creation(rekeying.progress, 1 + slots, replicas, {**OWN_COMPACTED, **any_time(observed.defaults)})


def _replicas(source: str, desired: DesiredTopics, observed: ObservedTopics) -> int:
    asked, of_source = desired.settings.topics.replication_factor, desired.topics[source].replication_factor
    return replicas_of(asked, of_source, observed.defaults, observed.brokers)


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
    rule = next(rule for rule in settings.topics.rules if rule.match.fullmatch(source))
    return rule.partitions is not None


def _refusals(rekeying: Rekeying, observed: ObservedTopics, *, is_compacted: bool) -> Iterator[Finding]:
    topic, progress, copy = rekeying.target, rekeying.progress, observed.topics.get(rekeying.target)
    if copy is not None and is_compacted and not rekeying.fits_compaction:
        why = "its source is not" if rekeying.tombstones_ms is None else "its source is by other keys"
        what = f"is compacted and {why}: its cleaner removes records that the source keeps"
        yield refused(topic, what, Fix.FIT_COMPACTION, progress=progress)
    if copy is not None and len(copy.partitions) != rekeying.partitions:
        many = f"{len(copy.partitions)} partitions and its rule says {rekeying.partitions}"
        yield refused(topic, f"has {many}: keys would change their partition", Fix.CHANGE_RULE)
    if topic in observed.filled and progress not in observed.topics:
        what = f"holds records that were not re-keyed by this flow, which has no {progress}"
        yield refused(topic, what, Fix.NAME_COPY)
    if not names.is_legal(progress):
        yield refused(topic, f"the flow's topic {progress} would have a name that is too long", Fix.SHORTEN_FLOW)
    if rekeying.dead_letter in (rekeying.target, rekeying.source):
        yield refused(topic, "is its own dead_letter topic", Fix.OTHER_LETTERS)


def _creation(topic: str, partitions: int, replicas: int, configs: Mapping[str, str]) -> Creation:
    return Creation(topic=topic, partitions=partitions, replication_factor=replicas, configs=configs)
