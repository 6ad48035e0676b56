"""What a restore needs on the target: topics for the partitions that were found in files, and their rules.

A source topic's settings are not in its partitions' folders. A topic that is missing is made with the target's defaults
and whatever takes its batches as they are; who wants other settings makes it first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mirror.admin.client import Admin
from mirror.admin.configs import configs_for
from mirror.admin.topics import TopicPlan, broker_defaults, naming_findings, refused
from mirror.admin.values import Creation
from mirror.config import Settings
from mirror.policy.rules import Finding
from mirror.policy.selection import TopicPair, select

#: Of a topic that is made here, where the target has as many brokers.
_REPLICAS: Final = 3


def plan_restoration(
    target: Admin, topics: Mapping[str, int], mixed: Mapping[str, str], settings: Settings
) -> TopicPlan:
    """The plan for topics (name to number of partitions) of which there are files; `mixed` are those of which folders
    belong to different topics, with the words that name them. Writes nothing; raises ClusterError when the target
    cannot be read.
    """
    selection = select(topics, settings.topics)
    wanted = {pair.target for pair in selection.pairs}
    existing = target.describe(wanted)
    defaults = broker_defaults(target)
    replicas = min(_REPLICAS, target.brokers())
    findings = [
        *(refused(name, "there are no files of it in these folders") for name in selection.missing),
        *naming_findings(selection),
        *(
            refused(pair.target, f"different topics by one name: {mixed[pair.source]}; name the folders of one of them")
            for pair in selection.pairs
            if pair.source in mixed
        ),
        *(
            _too_few(pair, len(found.partitions))
            for pair in selection.pairs
            if (found := existing.get(pair.target)) and len(found.partitions) < pair.partitions
        ),
    ]
    findings += [
        refused(
            pair.target, "is re-keyed by its rule, and files are copied as they are; leave the rule out, or the topic"
        )
        for pair in selection.pairs
        if pair.rekeying is not None
    ]
    if not selection.pairs and not selection.missing:
        findings.append(refused("", "no topic in these folders matches topics.include and escapes topics.exclude"))
    creations = tuple(
        Creation(
            topic=pair.target,
            partitions=pair.partitions,
            replication_factor=replicas,
            configs=configs_for({}, defaults, settings.sync),
        )
        for pair in selection.pairs
        if pair.target not in existing
    )
    return TopicPlan(
        pairs=tuple(selection.pairs),
        creations=creations,
        growths=(),
        changes=(),
        findings=tuple(findings),
        source_topics={},
        target_topics=existing,
        target_configs=target.topic_configs(existing),
        compacted=frozenset(),
    )


def _too_few(pair: TopicPair, partitions: int) -> Finding:
    text = f"{partitions:,} of the {pair.partitions:,} partitions in the files are on the target: add the others there"
    return refused(pair.target, text)
