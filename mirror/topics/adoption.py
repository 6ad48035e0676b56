"""One gate in front of every change to the target.

Nothing on the target is changed by name alone: no setting, partition, ACL or record. A topic there is the flow's to
change where the flow's journal names it by the ids of both topics and of the source's cluster, or where it never held a
record and nobody claims it.

    - A target topic with records that the journal does not name is foreign: it is refused, and nothing is written to
      it. `mirror adopt` compares it with its source and takes it over.
    - A target topic that another flow writes to, by that flow's journal, is refused by that flow's name.
    - Where the source topic is another one than the journal names, its copy is frozen: it keeps everything as it is.
      Its task says what became of the source.
    - Right before a change to a copy, the ends of its logs are compared with the source's, as a task does before it
      writes. What was found before does not count: either log may have been cut or written to since, and what a setting
      deletes may be held by nobody else. A copy that is not the source's keeps everything as it is.
    - The settings on which a change or a creation rests are read again right before it, on both sides and from no
      memory, and behind them the ids: a topic that has its id still is the one that had these settings. What was
      planned by others is not made, and is planned again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Final
from uuid import UUID

from mirror import clock
from mirror.config import Settings
from mirror.errors import AccessDenied, BrokerError, ClusterError, MalformedBatch, PartitionStop, WireError
from mirror.journal.entries import FirstSeen, same_id
from mirror.journal.journal import Entry, Journal, journal_topic, newest
from mirror.journal.offset_maps import Indexes
from mirror.journal.positions import standing_in
from mirror.kafka.admin import Admin, Span, TopicInfo
from mirror.kafka.cluster import Cluster, Endpoint, TopicPartition
from mirror.kafka.queries import LATEST, listed
from mirror.kafka.topic_configs import ConfigChange
from mirror.observability import logs
from mirror.policy.remedies import Fix
from mirror.policy.rules import NO_LIMIT, Finding, refused
from mirror.policy.selection import Rekeying, TopicPair
from mirror.replication.decide import Position
from mirror.replication.observe import Observer
from mirror.replication.offset_map import OffsetRangeIndex
from mirror.replication.offset_map_recovery import looking, resume_translated
from mirror.replication.position import located, resume
from mirror.replication.topic_identity import made_anew
from mirror.states import State
from mirror.topics.acls import Acl, AclPlan, plan_acls
from mirror.topics.configs import LOG_APPEND_TIME, TIMESTAMP_TYPE
from mirror.topics.history import Claim, History, copies_of_others
from mirror.topics.reconcile import TopicPlan, decide, observe

#: Partitions whose logs are compared at a time.
_AT_ONCE: Final = 16
#: A log that grows while it is read is read again, so often.
_TRIES: Final = 3
#: A copy whose tail was found not to be its source's is checked again after so many seconds.
_AGAIN_SECONDS: Final = 30.0
#: How often the journal is asked whether tasks acknowledged all that a copy holds, and seconds in between: they report
#: it once a second.
_ACKS, _ACKS_SECONDS = 3, 0.6
#: Plans until what is left of the last one may be changed; each new one leaves more topics alone.
_PLANS: Final = 3

_TIMED: Final = "message.timestamp.type follows the source's when the mirror is started the next time"

_log = logs.get("mirror.adoption")


class CopyStanding(Enum):
    """What a target topic is to a flow."""

    MISSING = auto()
    OURS = auto()
    #: It never held a record, and nobody claims it.
    EMPTY = auto()
    FOREIGN = auto()
    #: Another flow's journal names it.
    CLAIMED = auto()
    FROZEN = auto()


@dataclass(frozen=True, slots=True)
class CopyVerdict:
    """A standing, and why it is not one that passes; empty for `MISSING`, `OURS` and `EMPTY`."""

    standing: CopyStanding
    reason: str = ""

    @property
    def is_refused(self) -> bool:
        """No record may be written to the topic."""
        return self.standing in (CopyStanding.FOREIGN, CopyStanding.CLAIMED)


def standing_of(
    pair: TopicPair,
    source_topic: TopicInfo,
    target_topic: TopicInfo | None,
    seen: FirstSeen | None,
    claim: Claim | None,
    source_id: str,
    *,
    has_records: bool,
) -> CopyVerdict:
    """What the target topic of a pair is to the flow whose journal says `seen` of it, and that of another flow `claim`
    (pure). `source_topic` and `target_topic` are both topics as they are now; `has_records`: the latter holds or held
    some.
    """
    if target_topic is None:
        return CopyVerdict(CopyStanding.MISSING)
    if claim is not None and same_id(claim.topic_id, target_topic.topic_id):
        return CopyVerdict(CopyStanding.CLAIMED, f"flow {claim.flow} writes to it")
    if not (why := not_named(pair.source, target_topic.topic_id, seen, source_id)):
        if seen is not None and not same_id(seen.topic_id, source_topic.topic_id):
            return CopyVerdict(CopyStanding.FROZEN, made_anew(seen.topic_id, source_topic.topic_id))
        return CopyVerdict(CopyStanding.OURS)
    return CopyVerdict(CopyStanding.FOREIGN, why) if has_records else CopyVerdict(CopyStanding.EMPTY)


def not_named(source: str, topic_id: UUID | None, seen: FirstSeen | None, source_id: str | None) -> str:
    """Why the journal, which says `seen` of a target topic, does not name it as the copy of this source topic, whatever
    has become of that; empty where it does.
    """
    if seen is None:
        return "this flow's journal does not name it"
    if not same_id(seen.target_topic_id, topic_id):
        return f"it was recreated: its id was {seen.target_topic_id} and is {topic_id}"
    if seen.source_topic != source:
        return f"it is this flow's copy of {seen.source_topic}"
    if not same_id(seen.cluster_id, source_id or None):
        return f"it was mirrored from cluster {seen.cluster_id}, and the source is cluster {source_id}"
    return ""


@dataclass(slots=True, eq=False)
class Gate:
    """The gate of one process of a flow; it remembers for a while which copies it found not to be their sources'.

    `on_held` is called with a target topic and the reason when a change to it is held back. `foreign`: those target
    topics that the last plan found to be so. `unreadable`: the copies that could not be compared the last time, since
    a cluster lets the mirror not read them. `keeps`: no copy gets a setting by which it would keep less. `live`: tasks
    write by what the copies' settings were, so that whose times records get is not changed under them (W12): a copy is
    to stamp records when no task runs, and no more to stamp them once nothing is written to it: it is not in `stamped`,
    those that tasks leave that to (None: any may be). `untimed`: where the target refuses that; they stay as they are.
    """

    source: Admin
    target: Admin
    on_held: Callable[[str, str], None] = lambda _topic, _why: None
    keeps: bool = False
    live: bool = False
    stamped: frozenset[str] | None = None
    untimed: set[str] = field(default_factory=set)
    foreign: frozenset[str] = frozenset()
    unreadable: frozenset[str] = frozenset()
    _unsound: dict[str, tuple[float, str]] = field(default_factory=dict)

    def plan(self, settings: Settings, history: History) -> TopicPlan:
        """The plan of topics with no change in it that the gate does not let through; topics that no record may be
        written to are refused in it.

        Raises ClusterError.
        """
        observation, held = observe(self.source, self.target, settings, history, keeps=self.keeps), dict[str, str]()
        plan = decide(observation)
        verdicts = self.verdicts(plan)
        findings = tuple(self._refusals(plan, verdicts, settings))
        is_timed = self.live and settings.topics.append_time == "target"  # tasks that run write by these settings
        for _ in range(_PLANS):
            plan = decide(observation, held) if held else plan
            timed = [change for change in plan.changes if is_timed and change.name == TIMESTAMP_TYPE]
            late = [change for change in timed if self._is_written_by(change)]
            retimed = frozenset(change.topic for change in timed if change.after != LOG_APPEND_TIME) - self.untimed
            plan = replace(
                plan, changes=tuple(change for change in plan.changes if change not in late), retimed=retimed
            )
            changing = {change.topic for change in plan.changes} | {growth.topic for growth in plan.growths}
            changing -= {topic for topic, verdict in verdicts.items() if verdict.is_refused}
            more = self.held(changing, plan, settings, verdicts)
            held |= more
            if not more.keys() & changing:
                break
        for topic, why in sorted(
            ({change.topic: _TIMED for change in late if change.after == LOG_APPEND_TIME} | held).items()
        ):
            self.on_held(topic, why)
        self.foreign = frozenset(
            topic for topic, verdict in verdicts.items() if verdict.standing is CopyStanding.FOREIGN
        )
        return _without_growth(plan, held).leaving(held).refusing(findings)

    def _is_written_by(self, change: ConfigChange) -> bool:
        """Whether tasks would write on as if it were not made."""
        if change.after == LOG_APPEND_TIME or change.topic in self.untimed:
            return True
        return self.stamped is None or change.topic in self.stamped

    def verdicts(self, plan: TopicPlan) -> dict[str, CopyVerdict]:
        """Return what each target topic of a plan is to the flow. Raises ClusterError."""
        source_id = self.source.cluster_id()

        def verdict(pair: TopicPair, *, has_records: bool) -> CopyVerdict:
            source_topic, copy = plan.source_topics[pair.source], plan.target_topics.get(pair.target)
            seen, claim = plan.history.seen.get(pair.target), plan.history.claims.get(pair.target)
            return standing_of(pair, source_topic, copy, seen, claim, source_id, has_records=has_records)

        found = {pair.target: verdict(pair, has_records=True) for pair in plan.pairs}
        foreign = [pair for pair in plan.pairs if found[pair.target].standing is CopyStanding.FOREIGN]
        spans = self.target.spans(plan.target_topics[pair.target] for pair in foreign)
        empty = [pair for pair in foreign if is_empty(plan.target_topics[pair.target], spans)]
        return found | {pair.target: verdict(pair, has_records=False) for pair in empty}

    def _refusals(self, plan: TopicPlan, verdicts: Mapping[str, CopyVerdict], settings: Settings) -> Iterable[Finding]:
        for rule in plan.rekeyed:
            yield from claimed_of(rule, plan.history, self._is_claimed)
        wrong = [pair for pair in plan.pairs if verdicts[pair.target].is_refused]
        if not wrong:
            return
        ours = self.source.spans(plan.source_topics[pair.source] for pair in wrong)
        theirs = self.target.spans(plan.target_topics[pair.target] for pair in wrong)
        for pair in wrong:
            verdict = verdicts[pair.target]
            if verdict.standing is CopyStanding.CLAIMED:
                yield claimed(pair.source, pair.target, plan.history.claims[pair.target].flow)
                continue
            here, there = settings.source.alias, settings.target.alias
            yield refused(
                pair.target,
                f"holds records on cluster {there} ({_size(pair.target, theirs)}), and {verdict.reason}, so nothing is"
                f" written to it. {pair.source} on cluster {here} has {_size(pair.source, ours)}",
                Fix.ADOPT,
                source=pair.source,
            )

    def held(
        self,
        topics: Collection[str],
        plan: TopicPlan,
        settings: Settings,
        verdicts: Mapping[str, CopyVerdict] | None = None,
    ) -> dict[str, str]:
        """Of target topics of the plan that are to be changed, those that may not be, and why.

        Raises ClusterError.
        """
        pairs = [pair for pair in plan.pairs if pair.target in topics and pair.target in plan.target_topics]
        if not pairs:
            return {}
        verdicts = verdicts or self.verdicts(plan)
        now = self.source.describe({pair.source for pair in pairs}), self.target.describe({p.target for p in pairs})
        found: dict[str, str] = {}
        to_check: list[TopicPair] = []
        for pair in pairs:
            verdict = verdicts[pair.target]
            ours, theirs = now[0].get(pair.source), now[1].get(pair.target)
            if verdict.reason:
                found[pair.target] = verdict.reason
            elif ours is None or ours.topic_id != plan.source_topics[pair.source].topic_id:
                found[pair.target] = "the source topic was deleted or recreated a moment ago"
            elif theirs is None or theirs.topic_id != plan.target_topics[pair.target].topic_id:
                found[pair.target] = "the target topic was deleted or recreated a moment ago"
            elif verdict.standing is CopyStanding.OURS:
                if (known := self._unsound.get(pair.target)) and clock.monotonic() < known[0]:
                    found[pair.target] = known[1]
                else:
                    to_check.append(pair)
        if to_check:
            found |= self._compared(to_check, plan, settings)
        return found

    def acls(
        self,
        plan: TopicPlan,
        settings: Settings,
        groups: Collection[str],
        given: Collection[Acl],
        made: Collection[str] = (),
    ) -> tuple[AclPlan, dict[str, str]]:
        """Return which ACLs of copies and `groups` are to change, of those that may, and why others stay as they are.
        `given`: what the flow gave so far; `made`: copies that need no look. Raises as `plan_acls` and `held` do.
        """
        found = plan_acls(self.source, self.target, plan.pairs, groups, given, settings.sync.acl_principals)
        if found.revoked:
            source_id = self.source.cluster_id()
            others = copies_of_others(settings, plan.history.seen, source_id)
            found = found.giving_alone({*others.values()}, source_id)
        held = self.held(found.topics - {*made}, plan, settings)
        return found.leaving(held, self.unreadable), held

    def _is_claimed(self, topic: str, claim: Claim) -> bool:
        there = self.target.describe([topic]).get(topic)
        return there is not None and same_id(claim.topic_id, there.topic_id)

    def _compared(self, pairs: Collection[TopicPair], plan: TopicPlan, settings: Settings) -> dict[str, str]:
        wrong = asyncio.run(tails(settings, pairs, plan, plan.history.seen))
        again = clock.monotonic() + _AGAIN_SECONDS
        self.unreadable -= {pair.target for pair in pairs}
        self.unreadable |= {topic for topic, unlike in wrong.items() if unlike.is_denied}
        for pair in pairs:
            self._unsound.pop(pair.target, None)
            if pair.target in wrong and not wrong[pair.target].is_passing:
                self._unsound[pair.target] = again, wrong[pair.target].reason
        return {topic: unlike.reason for topic, unlike in wrong.items()}


@dataclass(frozen=True, slots=True)
class Unlike:
    """Why a copy was not found to be its source's; `advice`: what to do where the flow filled it. `is_passing`: a
    cluster could not be asked, as it may be later. `is_denied`: it does not let the mirror ask.
    """

    problem: str
    advice: str = ""
    is_passing: bool = False
    is_denied: bool = False

    @property
    def reason(self) -> str:
        """Both, of a copy that the flow filled."""
        return f"{self.problem}. {self.advice}" if self.advice else self.problem


async def begun(observer: Observer, index: OffsetRangeIndex | None) -> Position:
    """Begin a partition as its task would, by what its observer knows of the copy, and return its position. `index`:
    where its offsets moved to, if they do. Raises as `resume` does.
    """
    return await resume(observer) if index is None else (await resume_translated(observer, looking(index)))[0]


async def tails(
    settings: Settings, pairs: Collection[TopicPair], plan: TopicPlan, seen: Mapping[str, FirstSeen]
) -> dict[str, Unlike]:
    """Compare the end of each partition of these copies with its source, as a task does before it writes
    (`replication/decide.py`, `replication/offset_map_recovery.py`); by target topic, what is wrong with the first of
    its partitions that is not as it should be. What the source lost before it was mirrored is nothing wrong here: its
    task stops for it.

    Writes nothing. Raises ClusterError where a cluster cannot be reached at all.
    """
    at_once = asyncio.Semaphore(_AT_ONCE)
    async with Cluster(Endpoint.of(settings.source)) as source, Cluster(Endpoint.of(settings.target)) as target:
        await asyncio.gather(
            source.refresh({pair.source for pair in pairs}), target.refresh({pair.target for pair in pairs})
        )
        entries = await _journal(target, settings.flow)
        standing = standing_in(newest(entries))
        indexes = Indexes(entries) if settings.topics.offsets == "translate" else None

        async def of(pair: TopicPair, number: int) -> None:
            partition, copy = TopicPartition(pair.source, number), TopicPartition(pair.target, number)
            known = seen.get(pair.target)
            since = known.begins(number) if known else 0
            ids = source.topic_id(pair.source), target.topic_id(pair.target)
            if known and (stop := standing.stops.get(copy)) and stop.stands and stop.concerns(ids[1]):
                raise stop.raised(partition)
            last = standing.positions.get(copy)
            last = last if last is not None and last.is_of(*ids) else None
            index = indexes.get(copy, OffsetRangeIndex()) if indexes is not None else None
            sides = settings.flow, source, partition, target, copy
            observer = Observer(*sides, (0, NO_LIMIT), since, last, standing.lost_of(copy, *ids))
            for tried in range(1, _TRIES + 1):
                try:
                    async with at_once:
                        await begun(observer, index)
                        return
                except (ClusterError, WireError):
                    if tried == _TRIES:
                        raise

        async def of_all(pair: TopicPair) -> Unlike | None:
            topics = plan.source_topics[pair.source], plan.target_topics[pair.target]
            numbers = set[int].intersection(*({part.partition for part in topic.partitions} for topic in topics))
            for found in await asyncio.gather(*(of(pair, n) for n in sorted(numbers)), return_exceptions=True):
                if isinstance(found, PartitionStop):
                    stop = located(found, source, target, pair.target)
                    return Unlike(stop.problem, stop.advice)
                if isinstance(found, MalformedBatch):
                    return Unlike(str(found))
                if isinstance(found, ClusterError | WireError | BrokerError):
                    return Unlike(str(found), is_passing=True, is_denied=isinstance(found, AccessDenied))
                if found is not None:
                    raise found
            return None

        each = list(pairs)
        found = await asyncio.gather(*map(of_all, each))
    return {pair.target: unlike for pair, unlike in zip(each, found, strict=True) if unlike is not None}


async def unacknowledged(settings: Settings, copies: Mapping[str, tuple[UUID | None, UUID | None]]) -> dict[str, str]:
    """Of these copies, those that hold more than the flow's tasks acknowledged, by what the journal keeps, and where:
    somebody else may have written to them. `copies`: by target topic, the ids of its source and its own.

    A partition that cannot be asked counts as one of them. Raises ClusterError where the target cannot be reached.
    """
    async with Cluster(Endpoint.of(settings.target)) as target:
        await target.refresh(copies)
        known_topics = target.topics.keys() & copies.keys()
        there = [TopicPartition(name, number) for name in known_topics for number in target.topics[name].leaders]
        ends = await listed(target, there, LATEST)
        for tried in range(_ACKS):
            await asyncio.sleep(_ACKS_SECONDS if tried else 0)
            positions = standing_in(newest(await _journal(target, settings.flow))).positions
            more: dict[str, str] = {}
            for partition in there:
                last = positions.get(partition)
                known = last.target_end if last is not None and last.is_of(*copies[partition.topic]) else 0
                if ends.get(partition, NO_LIMIT) > known:
                    end = (
                        f"its log ends at {ends[partition]}"
                        if partition in ends
                        else "its leader does not say where its log ends"
                    )
                    more.setdefault(partition.topic, f"{partition}: {end}, and the flow copied up to {known}")
            if not more:
                break
    return more | {name: f"{name}: no broker knows it" for name in copies.keys() - known_topics}


async def source_lost(settings: Settings, pairs: Mapping[str, str], seen: Mapping[str, FirstSeen]) -> tuple[str, bool]:
    """What shows that the source lost records that its copies have: a stop that stands, or a log that ends before what
    was copied of it, by what the journal keeps; and whether that is certain: of one whose leader does not answer it is
    not. Empty where nothing does. `pairs`: by target topic, the source's.

    Raises ClusterError where a cluster cannot be reached.
    """
    async with Cluster(Endpoint.of(settings.source)) as source, Cluster(Endpoint.of(settings.target)) as target:
        standing = standing_in(newest(await _journal(target, settings.flow)))
        ids = {
            copy: (first_seen.topic_id, first_seen.target_topic_id)
            for copy, first_seen in seen.items()
            if copy in pairs
        }
        for topic_partition, stop in sorted(standing.stops.items()):
            if (
                topic_partition.topic in ids
                and stop.state is State.TRUNCATED
                and stop.concerns(ids[topic_partition.topic][1])
            ):
                return f"{pairs[topic_partition.topic]}-{topic_partition.partition} is TRUNCATED ({stop.detail})", True
        reached = {
            TopicPartition(pairs[partition.topic], partition.partition): last.source_next
            for partition, last in standing.positions.items()
            if partition.topic in ids and last.is_of(*ids[partition.topic])
        }
        await source.refresh({partition.topic for partition in reached})
        ends = await listed(source, [partition for partition in reached if partition.topic in source.topics], LATEST)
    for at, end in sorted(ends.items()):
        if end < reached[at]:
            return f"{at} ends at {end}, and was copied up to {reached[at]}", True
    silent = sorted(reached.keys() - ends.keys())
    return (f"no leader says where {silent[0]} ends", False) if silent else ("", False)


async def _journal(target: Cluster, flow: str) -> list[Entry]:
    journal = Journal(target, flow)
    await target.refresh([journal.partition.topic])
    return (await journal.read())[0] if journal.partition.topic in target.topics else []


def claimed(source: str, topic: str, flow: str) -> Finding:
    """The refusal of a target topic that another flow writes to, or is about to."""
    what = f"flow {flow} writes to it, and two flows into one topic would spoil it"
    return refused(topic, what, Fix.END_FLOW, journal=journal_topic(flow), source=source)


def claimed_of(rule: Rekeying, history: History, is_claimed: Callable[[str, Claim], bool]) -> Iterator[Finding]:
    """The refusals of what a rule writes records to and another flow as well; dead letters of several may go to one
    topic. `is_claimed`: whether a claim is on the topic that there is now by the name.
    """
    if (claim := history.claims.get(rule.target)) is not None and is_claimed(rule.target, claim):
        yield claimed(rule.source, rule.target, claim.flow)
    claim = history.claims.get(letters := rule.dead_letter)
    if claim is not None and not claim.is_letters and is_claimed(letters, claim):
        what = f"is the dead_letter topic of a rule, and flow {claim.flow} writes to it"
        yield refused(letters, what, Fix.OTHER_LETTERS)


def _without_growth(plan: TopicPlan, held: Mapping[str, str]) -> TopicPlan:
    """The plan whose pairs have the partitions of the copies that are `held`, with what these lack of their sources."""
    pairs, withheld = list(plan.pairs), dict[str, Finding]()
    for index, pair in enumerate(pairs):
        name, every = pair.target, len(plan.source_topics[pair.source].partitions)
        copy = plan.target_topics.get(name)
        if copy is None or name not in held or (many := len(copy.partitions)) >= every:
            continue
        pairs[index] = replace(pair, partitions=many)
        if plan.begun_as(pair) is None:  # else it is RECREATED as a whole
            what = f"has {many} of the {every} partitions of {pair.source}, and gets the others when it may be changed"
            withheld[name] = refused(name, f"{what}: {held[name]}", Fix.SELF_EXPLANATORY)
    return replace(plan, pairs=tuple(pairs), withheld=withheld)


def is_empty(topic: TopicInfo, spans: Mapping[tuple[str, int], Span]) -> bool:
    """Whether no partition ever held a record; of one without a leader that is not known."""
    found = [spans.get((topic.name, partition.partition)) for partition in topic.partitions]
    return all(span is not None and span.end == 0 for span in found)


def _size(topic: str, spans: Mapping[tuple[str, int], Span]) -> str:
    """How many offsets a topic holds, and which of its first partition that holds any."""
    of = {at[1]: span for at, span in sorted(spans.items()) if at[0] == topic}
    held = {number: span for number, span in of.items() if span.end > span.start}
    if not held:
        return "no record"
    number, span = next(iter(held.items()))
    partitions = f"{len(held)} of {len(of)} partition{'' if len(of) == 1 else 's'}"
    many = sum(span.end - span.start for span in held.values())
    return f"{many} offsets in {partitions}, {span.start} to {span.end - 1} in partition {number}"
