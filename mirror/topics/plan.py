"""The whole plan of a flow, for people to look at before anything is touched. Writes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import groupby
from typing import Final, Self

from mirror.config import Settings
from mirror.errors import AccessDenied
from mirror.journal.entries import Copy, Unfollowed, moment, paused_in, start_offsets
from mirror.journal.heartbeats import heartbeat_topic
from mirror.journal.ownership import FailedOver
from mirror.journal.positions import standing_in
from mirror.journal.snapshot import status_of
from mirror.kafka.admin import Admin, Creation, Span, TopicInfo
from mirror.kafka.cluster import Cluster, Endpoint, TopicPartition
from mirror.kafka.queries import EARLIEST
from mirror.kafka.topic_configs import plain_values
from mirror.names import is_legal
from mirror.policy.remedies import allow
from mirror.policy.rules import codec_of, grows
from mirror.policy.selection import TopicPair, select
from mirror.replication.assignment import STANDING, LastPosition
from mirror.replication.topic_identity import DELETED, made_anew, remedies_for
from mirror.states import Remedy, State
from mirror.topics.acls import AclPlan, given_in
from mirror.topics.adoption import Gate
from mirror.topics.apply import own_creations
from mirror.topics.history import History, gone_topics, read_history, read_own
from mirror.topics.reconcile import NO_TOPICS, TopicPlan

# --- Where a start of the flow would begin in its source (`topics.start`), for the plan -------------------------------


@dataclass(frozen=True, slots=True)
class Beginning:
    """A source topic of which some first records would not be mirrored: where its partitions begin, in their order."""

    topic: str
    offsets: tuple[int, ...]


async def planned_starts(settings: Settings, plan: TopicPlan, history: History) -> dict[TopicPartition, int]:
    """By source partition, the offset below which nothing is mirrored: as the first start decided it, or as one of now
    would. Raises as `start_offsets` does; a partition without a leader is left out.
    """
    if history.has_begun:
        return {
            TopicPartition(pair.source, number): offset
            for pair in plan.pairs
            for number, offset in enumerate(_recorded(pair, plan))
        }
    if (when := moment(settings.topics.start)) == EARLIEST:
        return {}
    copies = list(_copies(plan))
    async with Cluster(Endpoint.of(settings.source)) as source, Cluster(Endpoint.of(settings.target)) as target:
        await source.refresh({partition.topic for partition, _ in copies})
        await target.refresh(plan.target_topics)
        return await start_offsets(source, target, copies, when)


def beginnings(starts: Mapping[TopicPartition, int]) -> Iterator[Beginning]:
    """By topic, where not all partitions begin with their first record."""
    for topic, places in groupby(sorted(starts), key=lambda start: start.topic):
        offsets = tuple(starts[partition] for partition in places)
        if any(offsets):
            yield Beginning(topic, offsets)


def _recorded(pair: TopicPair, plan: TopicPlan) -> tuple[int, ...]:
    seen, copy = plan.history.seen.get(pair.target), plan.target_topics.get(pair.target)
    if seen is None or copy is None or (seen.source_topic, seen.target_topic_id) != (pair.source, copy.topic_id):
        return ()
    return seen.since


def _copies(plan: TopicPlan) -> Iterator[Copy]:
    for pair in plan.pairs:
        info = plan.target_topics.get(pair.target)
        existing = len(info.partitions) if info else 0
        for partition in plan.source_topics[pair.source].partitions[: pair.partitions]:
            if partition.leader >= 0:
                copy = TopicPartition(pair.target, partition.partition)
                yield TopicPartition(pair.source, partition.partition), copy if partition.partition < existing else None


# --- The whole plan of a flow, for people to look at before anything is touched ---------------------------------------

#: By topic and partition, where logs begin and end.
Spans = Mapping[tuple[str, int], Span]
#: Measured with one broker (docs/benchmarks.md): padding, and control markers one after another.
PADDING_PER_SECOND: Final = 2_500_000
MARKERS_PER_SECOND: Final = 10_000
#: Of each offset of padding: bytes by the codec that the target topic asks for (None: any), and seconds of a broker's
#: CPU, which looks through each (`python -m tests.bench.offsets --padding`).
_PADDING_BYTES: Final[Mapping[int | None, float]] = {None: 0.82, 0: 9.0, 1: 1.42, 2: 4.0, 3: 4.0, 4: 0.82}
_PADDING_CPU_S: Final = 0.2e-6
#: Offsets of padding of a flow from which on another way is named: some minutes.
_MUCH_PADDING: Final = 100_000_000


@dataclass(frozen=True, slots=True)
class Filling:
    """Offsets of a target partition that are to be taken without a record, at most, and what that takes.

    `bytes`: of padding, on the disk of each replica until its segments are full, and deleted. `cpu_s`: seconds of a
    broker's CPU for padding, for each replica less than this.
    """

    topic: str
    partition: int
    offsets: int
    seconds: float
    bytes: int = 0
    cpu_s: float = 0.0

    @classmethod
    def padding(cls, topic: str, partition: int, offsets: int, codec: int | None) -> Self:
        """Return what padding takes, which the target compresses with a codec of its own, or None."""
        size, cpu_s = round(offsets * _PADDING_BYTES[codec]), offsets * _PADDING_CPU_S
        return cls(topic, partition, offsets, offsets / PADDING_PER_SECOND, size, cpu_s)


@dataclass(frozen=True, slots=True)
class MissingRight:
    """A right that the mirror lacks, on a topic or (empty) on the cluster itself, and the command that gives it."""

    cluster: str
    operation: str
    topic: str
    command: str

    def __str__(self) -> str:
        where = f"topic {self.topic} of cluster {self.cluster}" if self.topic else f"cluster {self.cluster}"
        return f"no {self.operation} right on {where}; grant it: {self.command}"


@dataclass(frozen=True, slots=True)
class Extent:
    """Offsets that a topic's partitions and those of its copy hold, from log start to log end; and how many the copy
    has still to get, None where offsets move.
    """

    source: str
    target: str
    source_offsets: int
    target_offsets: int
    behind: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowPlan:
    """Says what a start of the flow would make, change and follow, and why it would be refused."""

    #: The flow's name.
    flow: str
    source_id: str
    target_id: str
    #: Empty where rights are missing to plan them.
    topics: TopicPlan = NO_TOPICS
    #: Topics that the flow keeps for itself, as they are to be created.
    own_topics: tuple[Creation, ...] = ()
    #: Consumer groups that the flow follows.
    groups: tuple[str, ...] = ()
    acls: AclPlan = field(default_factory=AclPlan)
    #: What equal offsets cost before the first record, and where compaction left holes.
    padding: tuple[Filling, ...] = ()
    gaps: tuple[Filling, ...] = ()
    #: Of topics that a first start would not begin with their first records.
    beginnings: tuple[Beginning, ...] = ()
    rights: tuple[MissingRight, ...] = ()
    #: Source topics of which nothing is mirrored before they are resumed.
    paused: tuple[str, ...] = ()
    #: Both sides of each copy that exists.
    extents: tuple[Extent, ...] = ()
    #: By reason, the topics that `topics.include` matches and that are not mirrored.
    left_out: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: Settings that the target does not take, or not with the value that was asked for.
    unfollowed: tuple[Unfollowed, ...] = ()
    #: Why the flow would not start, or would stop at once.
    refusals: tuple[str, ...] = ()
    #: What works, and costs something.
    advice: tuple[str, ...] = ()

    @property
    def has_changes(self) -> bool:
        """Something would be created or changed on the target."""
        return bool(
            not self.topics.is_empty or self.own_topics or self.acls.missing or self.acls.revoked or self.padding
        )


def plan_flow(settings: Settings) -> FlowPlan:
    """Read both clusters. Raises ClusterError where one cannot be asked at all."""
    source, target, preserves = Admin(settings.source), Admin(settings.target), settings.topics.offsets == "preserve"
    names, source_id = source.topic_names(), source.cluster_id()
    own = asyncio.run(read_own(settings))
    history = asyncio.run(read_history(settings, own, names, target.topic_names()))
    held: dict[str, str] = {}
    gate = Gate(source, target, held.__setitem__)
    rights, topics, acls = list(_source_rights(settings, source, names)), NO_TOPICS, AclPlan()
    try:
        topics = gate.plan(settings, history)
    except AccessDenied:
        if not rights:
            raise
    spans = source.spans(topics.source_topics.values()), target.spans(topics.target_topics.values())
    starts = asyncio.run(planned_starts(settings, topics, history))
    lost, stopped = _reported(topics, settings, own.newest, spans[0])
    padding, gaps = _fillings(*spans, topics, starts, standing_in(own.newest).positions) if preserves else ((), ())
    groups = followed_groups(settings, source)
    if settings.sync.acls and topics is not NO_TOPICS:
        acls, withheld = gate.acls(topics.allowed(), settings, groups, given_in(own.newest))
        held = withheld | held
    rights += _target_rights(settings, target, topics, acls, padding)
    is_denied = bool(target.denied([heartbeat_topic(settings.flow)]))  # the mirror does without
    own_fit = own_creations(target, settings.flow, settings.topics.replication_factor, heartbeats=not is_denied)
    plan = FlowPlan(
        flow=settings.flow,
        source_id=source_id,
        target_id=target.cluster_id(),
        topics=topics,
        own_topics=own_fit.made,
        groups=groups,
        left_out=select(dict.fromkeys(names, 0), settings.topics).left_out,
        acls=acls,
        padding=padding,
        gaps=gaps,
        beginnings=() if history.has_begun else tuple(beginnings(starts)),
        rights=tuple(rights),
        paused=tuple(sorted(paused_in(own.newest).intersection(topics.sources))),
        extents=tuple(_extents(*spans, topics, is_equal=preserves)),
        unfollowed=(*topics.unfollowed, *own_fit.unfollowed),
        refusals=(
            *_failed_over(own.newest),
            *map(str, (*topics.refusals, *topics.withheld.values(), *own_fit.findings)),
            *_recreated(Endpoint.of(settings.target), topics),
            *_stops(topics, settings, own.newest),
            *lost,
            *map(str, rights),
        ),
    )
    advice = (
        *_advice(plan, settings, spans[0]),
        *_gone(settings, source, target, history, names),
        *(f"{topic}: its settings, partitions and ACLs stay as they are: {why}" for topic, why in held.items()),
        *stopped,
    )
    return replace(plan, advice=advice)


def _advice(plan: FlowPlan, settings: Settings, source_spans: Spans) -> Iterator[str]:
    if len(plan.extents) < len(plan.topics.pairs):
        yield from _ahead(settings)
    for topic in plan.paused:
        yield f"{topic}: paused; nothing of it is mirrored before mirror resume CONFIG {topic}"
    yield from _much_padding(plan.padding)
    yield from map(str, (*plan.unfollowed, *plan.topics.advice))
    if settings.sync.log_start == "keep":
        yield from _growing(plan.topics, source_spans)
    if plan.acls.blocker:
        yield plan.acls.blocker


def _failed_over(journal: Mapping[bytes, bytes]) -> Iterator[str]:
    if done := FailedOver.standing(journal):
        yield f"the flow was failed over {done}; mirror failover CONFIG --undo takes that back"


def _ahead(settings: Settings) -> Iterator[str]:
    start = settings.topics.start
    if isinstance(start, datetime) and start > datetime.now(UTC):
        yield f"topics.start, {start.isoformat()}, is in the future: of what is there now nothing is mirrored"


def _much_padding(padding: Sequence[Filling]) -> Iterator[str]:
    if sum(filling.offsets for filling in padding) >= _MUCH_PADDING:
        yield (
            f"{len(padding)} partitions begin at high offsets, and padding up to there costs what is said above; a"
            " flow of its own with topics.offsets: translate copies such topics without any"
        )


def _gone(settings: Settings, source: Admin, target: Admin, history: History, names: Collection[str]) -> Iterator[str]:
    gone = gone_topics(settings, source, target, {**history.rekeyed, **history.seen}, names)
    for copy, topic in gone.items():
        yield f"{topic}: {DELETED}, and its copy {copy} on cluster {settings.target.alias} is left as it is"


def _recreated(target: Endpoint, plan: TopicPlan) -> Iterator[str]:
    refused = {finding.topic for finding in plan.refusals}  # of another cluster's topic the copy is not to be deleted
    for pair in plan.pairs:
        if pair.target in refused:
            continue
        if seen := plan.begun_as(pair):
            what = made_anew(seen.topic_id, plan.source_topics[pair.source].topic_id)
            values = {"topic": pair.source, "target_topic": pair.target, "target": target.servers}
            advice = ". ".join(remedy.text(values) for remedy in remedies_for(what))
            yield f"{pair.source}: {State.RECREATED}: {what}. {advice}"


def _stops(plan: TopicPlan, settings: Settings, journal: Mapping[bytes, bytes]) -> Iterator[str]:
    """Stops that stand in the journal, and copies that were begun with offsets that move (P9 in `position.py`): both as
    their tasks would find them before they read a log.
    """
    standing, goes_on = standing_in(journal), settings.topics.on_data_loss == "continue"
    for pair in plan.pairs:
        if (copy := plan.target_topics.get(pair.target)) is None:
            continue
        for number in range(pair.partitions):
            stop = standing.stops.get(TopicPartition(pair.target, number))
            if stop is not None and stop.bars(copy.topic_id, continues_on_loss=goes_on):
                yield str(stop.raised(TopicPartition(pair.source, number)))
        ids = plan.source_topics[pair.source].topic_id, copy.topic_id
        known = (standing.positions.get(TopicPartition(pair.target, number)) for number in range(pair.partitions))
        is_moved = any(last is not None and last.is_of(*ids) and last.is_moved for last in known)
        if is_moved and settings.topics.offsets == "preserve":
            what = "the copy was begun with topics.offsets: translate"
            advice = Remedy.AS_BEGUN.text({"offsets": "translate"})
            yield f"{pair.source}: {State.REFUSED}: {what}. {advice}"


def _reported(
    plan: TopicPlan, settings: Settings, journal: Mapping[bytes, bytes], source_spans: Spans
) -> tuple[list[str], list[str]]:
    """Partitions that stopped since the source deleted what was to be mirrored next, and still would; and those that
    stopped when a mirror ran last for what a start may find resolved.
    """
    lost, others, accepted = list[str](), list[str](), standing_in(journal).accepted
    names = {(pair.source, pair.target) for pair in plan.allowed().pairs}
    for status in status_of("", "", journal, 0).figures:
        known_otherwise = status.state in STANDING or status.state is State.RECREATED
        if not status.state.is_stop or known_otherwise or (status.topic, status.target_topic) not in names:
            continue
        text = f"{status.topic}-{status.partition}: {status.state}: {status.detail}"
        if status.state is not State.RETENTION_GAP:
            others.append(f"{text} (when a mirror ran last; one that starts looks again)")
            continue
        span = source_spans.get((status.topic, status.partition))
        known = accepted.get(status.target)
        first, until = known.offsets if known else (0, 0)
        is_taken = span is not None and first <= status.next_offset and span.start <= until
        if (
            settings.topics.on_data_loss == "stop"
            and not is_taken
            and (span is None or status.next_offset < span.start)
        ):
            lost.append(text)
    return lost, others


def followed_groups(settings: Settings, source: Admin) -> tuple[str, ...]:
    """The source's groups that the flow follows. Raises ClusterError."""
    include = settings.groups.include
    found = source.groups() if include else ()
    return tuple(sorted(group for group in found if any(pattern.fullmatch(group) for pattern in include)))


def _extents(source_spans: Spans, copy_spans: Spans, plan: TopicPlan, *, is_equal: bool) -> Iterator[Extent]:
    """Both sides of each copy that is there; `is_equal`: by equal offsets."""
    nothing = Span(start=0, end=0)
    for pair in plan.pairs:
        if pair.target not in plan.target_topics:
            continue
        sides = [
            (source_spans.get((pair.source, number), nothing), copy_spans.get((pair.target, number), nothing))
            for number in range(pair.partitions)
        ]
        yield Extent(
            pair.source,
            pair.target,
            sum(span.end - span.start for span, _ in sides),
            sum(other.end - other.start for _, other in sides),
            sum(max(0, span.end - max(span.start, other.end)) for span, other in sides) if is_equal else None,
        )


def _growing(plan: TopicPlan, source_spans: Spans) -> Iterator[str]:
    for pair in plan.pairs:
        starts = [span.start for number in range(pair.partitions) if (span := source_spans.get((pair.source, number)))]
        configs = plain_values(plan.source_configs.get(pair.source, {}))
        if why := grows(configs, pair.source, max(starts, default=0)):
            yield f"{pair.target}: {why}"


def _fillings(
    source_spans: Spans,
    copy_spans: Spans,
    plan: TopicPlan,
    starts: Mapping[TopicPartition, int],
    positions: Mapping[TopicPartition, LastPosition],
) -> tuple[tuple[Filling, ...], tuple[Filling, ...]]:
    padding: list[Filling] = []
    gaps: list[Filling] = []
    known = {creation.topic: creation.configs for creation in plan.creations}
    known |= {topic: plain_values(configs) for topic, configs in plan.target_configs.items()}
    codecs, compacted = {topic: codec_of(configs) for topic, configs in known.items()}, plan.compacted
    for pair in plan.pairs:
        for number in range(pair.partitions):
            span = source_spans.get((pair.source, number), Span(start=0, end=0))
            reached = copy_spans.get((pair.target, number), Span(start=0, end=0)).end
            since = starts.get(TopicPartition(pair.source, number), 0)
            begin, last = max(since, span.start), positions.get(TopicPartition(pair.target, number))
            # a copy that ends elsewhere before its source begins has lost records: its task reports it
            holds_none = reached < since or (last is not None and last.held_none(reached))
            if (offsets := begin - reached) > 0 and (not reached or holds_none):
                padding.append(Filling.padding(pair.target, number, offsets, codecs.get(pair.target)))
            left = span.end - max(reached, begin)
            if left > 0 and pair.source in compacted:
                gaps.append(Filling(pair.target, number, left, left / MARKERS_PER_SECOND))
    return tuple(padding), tuple(gaps)


def _source_rights(settings: Settings, source: Admin, names: Collection[str]) -> Iterator[MissingRight]:
    selected = select(dict.fromkeys(names, 1), settings.topics)
    needed = {"READ", "DESCRIBE_CONFIGS"}
    endpoint = Endpoint.of(settings.source)
    for topic, info in source.describe((pair.source for pair in selected.pairs), rights=True).items():
        yield from _lacking(endpoint, needed, info, topic)


def _target_rights(
    settings: Settings, target: Admin, plan: TopicPlan, acls: AclPlan, padding: Iterable[Filling]
) -> Iterator[MissingRight]:
    endpoint = Endpoint.of(settings.target)
    grown, changed = {growth.topic for growth in plan.growths}, {change.topic for change in plan.changes}
    padded = {filling.topic for filling in padding}
    written = set(plan.target_topics).union(*(rekeying.own_topics for rekeying in plan.rekeyed))
    for topic, info in target.describe(filter(is_legal, written), rights=True).items():
        needed = {"READ", "WRITE", "DESCRIBE_CONFIGS"}
        needed |= {"ALTER"} if topic in grown else set()
        needed |= {"ALTER_CONFIGS"} if topic in changed else set()
        follows = settings.sync.deletions == "delete" or settings.sync.log_start == "follow"
        needed |= {"DELETE"} if topic in padded or follows else set()
        yield from _lacking(endpoint, needed, info, topic)
    if (acls.missing or acls.revoked) and "ALTER" not in target.rights():
        yield MissingRight(endpoint.alias, "ALTER", "", allow(endpoint, "ALTER"))


def _lacking(cluster: Endpoint, needed: Collection[str], info: TopicInfo, topic: str) -> Iterator[MissingRight]:
    held = needed if info.rights is None else info.rights  # brokers before 2.3 do not say
    for operation in sorted(set(needed) - set(held)):
        yield MissingRight(cluster.alias, operation, topic, allow(cluster, operation, topic=topic))
