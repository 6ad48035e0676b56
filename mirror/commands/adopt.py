"""`mirror adopt`: take over a target topic that this flow did not fill, where it is a copy of its source.

What another tool copied, what a flow of another name did, what the journal that was lost knew, and the old source of a
failback: by name alone none of it is the flow's to write to or to change. Here both sides are compared, and what is
found equal is named in the flow's journal, by both ids. Nothing is written to the topics themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Final

from mirror import clock
from mirror.commands.verify import verify_flow
from mirror.config import Settings
from mirror.errors import ClusterUnreachable, ConfigError, ExitCode, PreflightError
from mirror.journal.entries import COPIES, FirstSeen, same_id
from mirror.journal.journal import Journal, journal_topic
from mirror.journal.ownership import refuse_failed_over
from mirror.journal.positions import STOPS, standing_in, stops_in
from mirror.kafka.admin import Admin
from mirror.kafka.cluster import Cluster, Endpoint, TopicPartition
from mirror.names import did_you_mean, first_of
from mirror.policy.selection import TopicPair
from mirror.rendering import count, print_json
from mirror.replication.assignment import KnownStop
from mirror.suspension import Clearance, beating, look_again, never
from mirror.topics.adoption import CopyStanding, Gate, tails
from mirror.topics.apply import ensure_flow_topic
from mirror.topics.history import History, Own, history_of, read_others, read_own
from mirror.topics.reconcile import TopicPlan, plan_topics
from mirror.topics.same_cluster import loop_finding
from mirror.verify.report import DifferenceKind, VerifyReport

#: What of a topic may be taken over: a source topic that was made anew may hold what the one before held.
_ADOPTABLE = (CopyStanding.FOREIGN, CopyStanding.FROZEN)
_NOTHING_TO_DO = {
    CopyStanding.MISSING: "is not there; `mirror run` makes it",
    CopyStanding.EMPTY: "never held a record; `mirror run` begins it as it is",
}
#: Why a copy that is equal is not taken over.
_KEEPS_LESS: Final = (
    "is not taken over: once it is, it {}. One that runs reads that at SIGHUP. Where it may go, set the same on the"
    " copy first"
)
_CLAIMED: Final = "is not taken over: flow {} has it since"
_RECREATED: Final = "was recreated while it was compared, or its source was; try again"
_WORST_FIRST = (ExitCode.DIFFERENT, ExitCode.DATA_AT_RISK, ExitCode.PREFLIGHT, ExitCode.CLUSTER)


@dataclass(frozen=True, slots=True)
class Adopted:
    """What became of a topic: whether it was taken over, and of what was compared or why it was not."""

    topic: str
    target: str
    adopted: bool
    detail: str
    code: ExitCode = ExitCode.DONE


@dataclass(frozen=True, slots=True)
class _PlannedFlow:
    """Holds a flow as it is before anything is compared."""

    settings: Settings
    source: Admin
    target: Admin
    plan: TopicPlan
    history: History

    def left_alone(self, pairs: Sequence[TopicPair], own: Own) -> dict[str, Adopted]:
        """Return, by source topic, what becomes of those that there is no use in comparing."""
        verdicts = Gate(self.source, self.target).verdicts(self.plan)
        stops = stops_in(own.newest, {topic: info.topic_id for topic, info in self.plan.target_topics.items()})
        left: dict[str, Adopted] = {}
        for pair in pairs:
            verdict = verdicts[pair.target]
            if verdict.standing is CopyStanding.OURS:
                left[pair.source] = _already_own(pair, stops)
                continue
            code = ExitCode.PREFLIGHT
            if verdict.standing in _ADOPTABLE:
                loop = loop_finding(pair.source, self.settings.target.alias, self.history)
                if loop is None:
                    continue
                detail = f"is not taken over: {loop}"  # to name it here would stop the flow that fills it
            elif verdict.standing is CopyStanding.CLAIMED:
                flow = self.history.claims[pair.target].flow
                end = f"end that flow first: `mirror failover`, or delete {journal_topic(flow)} where it is no more"
                detail = f"{verdict.reason}; {end}"
            else:
                detail, code = _NOTHING_TO_DO[verdict.standing], ExitCode.DONE
            left[pair.source] = Adopted(pair.source, pair.target, False, detail, code)
        return left

    def take_over(
        self, pairs: Sequence[TopicPair], compared: Mapping[str, Adopted], compared_ms: int
    ) -> dict[str, Adopted]:
        """Have the journal name these copies, which were found equal. Others may have acted while that was compared:
        return, by source topic, what becomes of copies that are therefore not taken over.
        """
        with beating() as detector:
            clearance = Clearance(detector, never)
            refuse_failed_over(self.settings.flow, asyncio.run(read_own(self.settings)).newest)
            left = self._shortened(pairs) | dict.fromkeys(self._recreated(pairs), _RECREATED) | self._claimed(pairs)
            self._record([pair for pair in pairs if pair.source not in left], compared_ms, clearance)
        return {
            topic: replace(
                compared[topic],
                adopted=False,
                detail=detail,
                code=ExitCode.CLUSTER if detail == _RECREATED else ExitCode.PREFLIGHT,
            )
            for topic, detail in left.items()
        }

    def _shortened(self, pairs: Sequence[TopicPair]) -> dict[str, str]:
        """Return, by source topic, why a copy is not taken over that would get settings by which it keeps less: a
        running mirror sets them within seconds.
        """
        copies = {pair.target for pair in pairs}
        others = {copy: seen for copy, seen in self.history.seen.items() if copy not in copies}
        history = replace(self.history, seen=others)  # as of these none is another's
        plan = plan_topics(self.source, self.target, self.settings, history)
        return {pair.source: _KEEPS_LESS.format(warning) for pair in pairs if (warning := plan.shortened(pair.target))}

    def _claimed(self, pairs: Sequence[TopicPair]) -> dict[str, str]:
        """Return, by source topic, that another flow writes to its copy by now."""
        history = read_others(self.settings, self.source, self.target)
        _require_all(history)
        return {
            pair.source: _CLAIMED.format(claim.flow)
            for pair in pairs
            if (claim := history.claims.get(pair.target)) is not None
            and same_id(claim.topic_id, self.plan.target_topics[pair.target].topic_id)
        }

    def _recreated(self, pairs: Sequence[TopicPair]) -> list[str]:
        """Return the source topics that have another id than when they were compared, or none, or whose copies do."""
        topics = self.source.describe({pair.source for pair in pairs})
        copies = self.target.describe({pair.target for pair in pairs})
        return [
            pair.source
            for pair in pairs
            if pair.source not in topics
            or pair.target not in copies
            or topics[pair.source].topic_id != self.plan.source_topics[pair.source].topic_id
            or copies[pair.target].topic_id != self.plan.target_topics[pair.target].topic_id
        ]

    def _record(self, pairs: Sequence[TopicPair], compared_ms: int, clearance: Clearance) -> None:
        settings, source_id = self.settings, self.source.cluster_id()
        ensure_flow_topic(self.target, settings.flow, settings.topics.replication_factor)
        records = [
            COPIES.entry(
                pair.target,
                FirstSeen(
                    source_topic=pair.source,
                    topic_id=self.plan.source_topics[pair.source].topic_id,
                    target_topic_id=self.plan.target_topics[pair.target].topic_id,
                    cluster_id=source_id,
                    adopted=True,
                    compared=True,
                    compared_ms=compared_ms,
                    origins=tuple(dict.fromkeys((source_id, *self.history.chain(pair.source)))),
                ),
            )
            for pair in pairs
        ]

        async def append() -> None:
            async with Cluster(Endpoint.of(settings.target)) as target:
                journal = Journal(target, settings.flow, clearance)
                stops = standing_in(await journal.newest()).stops  # what was compared whole is in order
                copies = {pair.target for pair in pairs}
                lifted = [STOPS.tombstone(partition) for partition in stops if partition.topic in copies]
                await journal.append_all([*records, *lifted])

        asyncio.run(append())


def adopt(settings: Settings, topics: Sequence[str], *, every: bool, ends_only: bool, as_json: bool) -> ExitCode:
    """Take over the copies of these source topics, or of `every` one that the flow selects; the exit code: 5 where one
    is not its source's, 4 where a partition of one that is this flow's already is stopped, 3 where one is another
    flow's, comes from this target, or would keep less by the settings that it gets then. `ends_only`: compare the ends
    of the logs and nothing else.

    Raises ConfigError for a topic that the flow does not mirror, PreflightError for a flow that was failed over, and
    ClusterError, also where the journal of another flow does not say what that one writes to; nothing is taken over
    then.
    """
    source, target = Admin(settings.source), Admin(settings.target)
    own = asyncio.run(read_own(settings))
    refuse_failed_over(settings.flow, own.newest)
    history = history_of(settings, own, source, target)
    plan = plan_topics(source, target, settings, history)
    if whole := [finding for finding in plan.refusals if not finding.topic]:
        raise PreflightError("\n".join(map(str, whole)))
    flow = _PlannedFlow(settings, source, target, plan, history)
    pairs = _chosen(settings, plan, topics, every=every)
    done = flow.left_alone(pairs, own)
    to_compare = [pair for pair in pairs if pair.source not in done]
    if to_compare:
        _require_all(history)
    began_ms = 0 if ends_only else clock.now_ms()
    compared = {adopted.topic: adopted for adopted in _compared(settings, plan, to_compare, ends_only=ends_only)}
    equal = [pair for pair in to_compare if compared[pair.source].adopted]
    if equal:
        compared |= look_again(partial(flow.take_over, equal, compared, began_ms))
    adoptions = [adopted for _, adopted in sorted((done | compared).items())]
    if as_json:
        print_json({"flow": settings.flow, "topics": [asdict(adopted) for adopted in adoptions]})
    else:
        for adopted in adoptions:
            print(f"{adopted.topic}: {adopted.target} {adopted.detail}")
    codes = {adopted.code for adopted in adoptions}
    return next((code for code in _WORST_FIRST if code in codes), ExitCode.DONE)


def _chosen(settings: Settings, plan: TopicPlan, topics: Sequence[str], *, every: bool) -> list[TopicPair]:
    known = {pair.source: pair for pair in plan.pairs}
    if every:
        return list(known.values())
    for topic in topics:
        if topic in {rekeying.source for rekeying in plan.rekeyed}:
            raise ConfigError(
                f"{topic}: a rule re-keys it, so its copy cannot be compared; name another copy (topics.naming)"
            )
        if topic not in known:
            raise ConfigError(f"{topic}: no such topic is mirrored by {settings.flow}{did_you_mean(topic, known)}")
    return [known[topic] for topic in dict.fromkeys(topics)]


def _already_own(pair: TopicPair, stops: Mapping[TopicPartition, KnownStop]) -> Adopted:
    """There is nothing to take over; what is stopped, is not mended by it either."""
    problems = [
        f"partition {partition.partition} is {stop.state} at source offset {stop.offset}: {stop.detail}. {stop.advice}"
        for partition, stop in sorted(stops.items())
        if partition.topic == pair.target
    ]
    code = ExitCode.DATA_AT_RISK if problems else ExitCode.DONE
    return Adopted(pair.source, pair.target, False, "; ".join(("is this flow's already", *problems)), code)


def _compared(settings: Settings, plan: TopicPlan, pairs: Sequence[TopicPair], *, ends_only: bool) -> Iterator[Adopted]:
    """Compare the ends first, which is cheap, and then the contents. Raises ClusterError."""
    if not pairs:
        return
    wrong = asyncio.run(tails(settings, pairs, plan, {}))
    for pair in pairs:
        partitions = len(plan.target_topics[pair.target].partitions)
        if partitions > (fewer := len(plan.source_topics[pair.source].partitions)):
            text = f"has {count(partitions, 'partition')} and its source has {fewer}: it is no copy of that"
            yield Adopted(pair.source, pair.target, False, text, ExitCode.DIFFERENT)
        elif (unlike := wrong.get(pair.target)) is not None:
            code = ExitCode.CLUSTER if unlike.is_passing else ExitCode.DIFFERENT
            # what a stop advises is for copies that the flow filled: this topic may have the only records
            way = "" if unlike.is_passing else _BESIDE.format(topic=pair.source)
            yield Adopted(pair.source, pair.target, False, f"is not taken over: {unlike.problem}{way}", code)
        elif ends_only:
            many = count(partitions, "partition")
            text = f"is adopted; compared was the last batch of each of {many}, and nothing else"
            yield Adopted(pair.source, pair.target, True, text)
        else:
            report = verify_flow(settings, [pair.source])
            yield _whole(pair, report, is_compacted=pair.source in plan.compacted)


#: What leaves a topic as it is that is no copy.
_BESIDE: Final = ". To keep it, name another copy of {topic} in topics.naming.rename, or exclude {topic}"
#: What takes over a copy of which only the first records are missing, or which has only more than its source.
_BY_ITS_ENDS: Final = (
    ". All else is the same: where its retention deleted them, `mirror adopt CONFIG {topic} --ends-only` takes it over"
)
_BY_ITS_ENDS_COMPACTED: Final = (
    ". All else is the same: where the source wrote to these keys since and compaction removed them there, `mirror"
    " adopt CONFIG {topic} --ends-only` takes it over; where the source may have forgotten deletions since, that goes"
    " on record as a loss"
)

#: The same where what is missing is on record as lost.
_LACKS_LOSSES: Final = (
    "is not taken over: it lacks records that its source has, which are on record as lost: {spans}. All else is the"
    " same: where it is to go on without them, `mirror adopt CONFIG {topic} --ends-only` takes it over"
)


def _whole(pair: TopicPair, report: VerifyReport, *, is_compacted: bool) -> Adopted:
    differences = [
        difference for difference in report.differences if difference.partition >= 0
    ]  # partitions that are missing are added
    for wrong, code in ((differences, ExitCode.DIFFERENT), (report.unread, ExitCode.CLUSTER)):
        if wrong:
            way = ""
            if _has_only(report, DifferenceKind.DELETED):
                way = _BY_ITS_ENDS
            elif is_compacted and _has_only(report, DifferenceKind.DELETED, DifferenceKind.EXTRA):
                way = _BY_ITS_ENDS_COMPACTED
            text = f"is not taken over: {wrong[0]}{way.format(topic=pair.source)}"
            return Adopted(pair.source, pair.target, False, text, code)
    lost = [
        f"offsets {first} to {following - 1} of partition {partition.pair.source.partition}"
        for partition in report.partitions
        if partition.lost_records
        for first, following in partition.lost
    ]
    if lost:
        text = _LACKS_LOSSES.format(spans=first_of(lost), topic=pair.source)
        return Adopted(pair.source, pair.target, False, text, ExitCode.DIFFERENT)
    records = sum(partition.records for partition in report.partitions)
    lag = sum(partition.lag for partition in report.partitions)
    text = f"is adopted; compared were {count(records, 'record')} of {count(len(report.partitions), 'partition')}, each"
    text += " with its source's"
    if lag:
        text += f"; {count(lag, 'offset')} of the source are to be copied"
    notes = dict.fromkeys(note for partition in report.partitions for note in partition.notes)
    return Adopted(pair.source, pair.target, True, "; ".join((text, *notes)))


def _has_only(report: VerifyReport, *kinds: DifferenceKind) -> bool:
    """All that both sides hold is the same. The target deleted records at its start that the source has: each side's
    retention goes by segments of its own, so that of a copy and its source either may begin later. Or it has records
    more: a compacted source may have newer ones of their keys behind the copy's end.
    """
    met = [difference for difference in report.differences if difference.kind in kinds]
    return not report.unread and bool(met) and report.different == len(met)


def _require_all(history: History) -> None:
    if history.silent:
        advice = "try again when it can, or delete it where that flow is no more"
        raise ClusterUnreachable(f"{history.silent[0]}: {advice}")
