"""What preflight says of the topics that a flow selects, and of the names that their copies would get."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from mirror.config import Settings
from mirror.journal.entries import same_id
from mirror.kafka.admin import TopicInfo
from mirror.kafka.cluster import Endpoint
from mirror.names import INTERNAL_PREFIX, OWN_PREFIX, did_you_mean
from mirror.policy.remedies import DENIAL_FIRST, Fix, allow
from mirror.policy.rules import Finding, advised, refused
from mirror.policy.selection import Selection
from mirror.topics.history import GRANT_WRITE
from mirror.topics.state import DesiredTopics, ObservedTopics


def selection_findings(
    selection: Selection, source_topics: Mapping[str, TopicInfo], settings: Settings
) -> Iterator[Finding]:
    """Say what is wrong, or of note, with what `topics` selects."""
    where = f"on cluster {settings.source.alias}"
    for name in selection.missing:
        what, hint = f"no such topic {where}", did_you_mean(name, source_topics).removeprefix("; ")
        if not hint:
            what, hint = f"{what}, or no right to READ it", "name another one in topics.include, or grant READ on it"
        yield refused(name, what, Fix.NAME_SOURCE, hint=hint)
    yield from naming_findings(selection)
    for name in selection.internal:
        if not name.startswith(OWN_PREFIX):
            yield advised(name, "is internal to Kafka and is never mirrored; exclude it")
    for name in sorted(settings.topics.naming.rename.keys() - {pair.source for pair in selection.pairs}):
        yield advised(name, "is in topics.naming.rename and is not among the mirrored topics")
    if not selection.pairs and not selection.missing:
        what = (
            f"no topic {where} matches topics.include and escapes topics.exclude: to mirror nothing any more, end the"
            " mirror"
        )
        yield refused("", what, Fix.SELECT_TOPICS)


def hidden_findings(desired: DesiredTopics, observed: ObservedTopics) -> Iterator[Finding]:
    """Refuse topics that were mirrored and that the source hides now, and topics that the flow writes to and the target
    hides: these look as if they were to be made.
    """
    settings = desired.settings
    for topic in observed.hidden_sources:
        if topic not in desired.selection.missing:
            what = f"was mirrored, and cluster {settings.source.alias} hides it now: no right to READ or DESCRIBE it"
            grant = allow(Endpoint.of(settings.source), "READ", "DESCRIBE_CONFIGS", topic=topic)
            yield refused(topic, what, Fix.GRANT_SOURCE, grant=grant)
    for name in sorted(observed.hidden):
        what = f"may be there, and cluster {settings.target.alias} hides it: no right to DESCRIBE it"
        yield refused(name, what, Fix.NAME_SOURCE, hint=f"{GRANT_WRITE}; {DENIAL_FIRST}")


def moved_findings(desired: DesiredTopics, observed: ObservedTopics) -> Iterator[Finding]:
    """Refuse topics that would be copied again, by names that nobody gave to each of them: one word in `topics.naming`,
    and a running mirror would leave all its copies.
    """
    copies, history = dict[str, list[str]](), observed.history
    for name, seen in sorted({**history.rekeyed, **history.seen}.items()):
        copy = observed.topics.get(name)
        is_there = copy is not None and same_id(seen.target_topic_id, copy.topic_id)
        if is_there and not seen.is_letters and same_id(seen.cluster_id or None, desired.cluster_id or None):
            copies.setdefault(seen.source_topic, []).append(name)
    for pair in desired.selection.pairs:
        names = copies.get(pair.source, [pair.target])
        if pair.target not in names and pair.source not in desired.settings.topics.naming.rename:
            what = f"this flow mirrors it into {' and '.join(names)}, and topics.naming says {pair.target} now"
            yield refused(pair.source, what, Fix.KEEP_NAME)


def name_findings(selection: Selection, existing: Collection[str]) -> Iterator[Finding]:
    """The refusals of names that the flow would give to topics of the target: each is that of one topic alone, and none
    collides with another one, as Kafka counts these (`Topic.hasCollision`): '.' and '_' are the same in its metrics.
    """
    copies = {pair.target for pair in selection.pairs}
    letters = {pair.rekeying.dead_letter for pair in selection.pairs if pair.rekeying and pair.rekeying.dead_letter}
    yield from reserved_findings(copies | letters)
    for name in sorted(copies & letters):
        what = "is the dead_letter topic of a rule and the copy of a topic as well"
        yield refused(name, what, Fix.OTHER_LETTERS)
    by_folded: dict[str, list[str]] = {}
    for name in sorted(copies | letters | {*existing}):
        by_folded.setdefault(name.replace(".", "_"), []).append(name)
    for alike in by_folded.values():
        for name in alike:
            if len(alike) > 1 and name in copies | letters and name not in existing:
                other = min((topic for topic in alike if topic != name), key=lambda topic: topic not in existing)
                what = f"would collide with topic {other} on the target: Kafka takes '.' and '_' in names for the same"
                yield refused(name, what, Fix.NAME_COPY)


def reserved_findings(targets: Iterable[str]) -> Iterator[Finding]:
    """The refusals of names that are not for a flow to give: brokers take what they find by some of those that begin
    with `__` for their own, and who makes `__consumer_offsets` with other settings has no consumer group any more.
    """
    for name in sorted(targets):
        if name.startswith(OWN_PREFIX):
            what = "begins with `mirror.`, as topics do that mirrors keep for themselves"
        elif name.startswith(INTERNAL_PREFIX):
            what = "begins with `__`, as topics do that Kafka keeps for itself"
        else:
            continue
        yield refused(name, what, Fix.CHOOSE_NAME)


def naming_findings(selection: Selection) -> Iterator[Finding]:
    """The refusals of topics that can have no copy by the name that they would get."""
    for clash in selection.clashes:
        yield refused(clash.target, f"would be the copy of {' and '.join(clash.sources)}", Fix.NAME_COPY)
    for pair in selection.illegal:
        yield refused(pair.source, f"its name on the target, {pair.target}, is not legal", Fix.NAME_COPY)
