"""`mirror verify`: is the copy equal? A line for each topic, each difference by name, and an exit code.

Decision: what takes less than `SPARK_BYTES` to read is compared in this process, by the very code that tasks of Spark
run (`verify.flow.prove`): to start Spark takes seconds, in which one core compares gigabytes. Under
`spark-submit`, where it is there already, and with `--spark`, the size does not matter.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from mirror import clock
from mirror.commands.verify_view import as_dict, page, rendered
from mirror.config import Settings
from mirror.errors import ClusterError, ConfigError, ExitCode
from mirror.journal.entries import COPIES, REKEYED, FirstSeen, Lost, losses_in, paused_in, same_id, starts_in
from mirror.journal.journal import Journal, newest
from mirror.journal.offset_maps import Indexes
from mirror.journal.positions import stops_in
from mirror.journal.snapshot import Pulse, Status, status_of
from mirror.kafka.admin import Admin, TopicInfo
from mirror.kafka.cluster import Cluster, Endpoint, TopicPartition
from mirror.kafka.queries import EARLIEST, LATEST, READ_COMMITTED, listed
from mirror.names import did_you_mean
from mirror.observability.status import PartitionStatus
from mirror.policy.selection import Rekeying, TopicPair, select
from mirror.rendering import console, count, print_json
from mirror.replication.assignment import KnownStop
from mirror.replication.open_transactions import held_from
from mirror.replication.topic_identity import made_anew
from mirror.topics.history import GRANT_READ, GRANT_WRITE, gone_topics, hidden_topics
from mirror.topics.reconcile import plan_topics
from mirror.topics.same_cluster import refuse_same
from mirror.verify.compare import LogBounds
from mirror.verify.flow import SHARES_AT_ONCE, Known, Moves, Proof, Proved, Waiting, Watch, plan_proof, prove, run_proof
from mirror.verify.ranges import SavedProof
from mirror.verify.report import (
    Difference,
    DifferenceKind,
    Gone,
    Lack,
    Pair,
    PartitionReport,
    RekeyedReport,
    Shortfall,
    Unread,
    VerifyReport,
)

#: Bytes to read of the source from which on Spark is worth its start.
SPARK_BYTES: Final = 4 << 30
#: How long a mirror that runs may take to copy what the source holds when the proof begins.
WAIT_SECONDS: Final = 10.0


class TopicOrPartition(NamedTuple):
    """A source topic and its name on the target, or one partition of both."""

    topic: str
    target: str
    partition: int = -1

    def lacks(self, kind: Lack, reason: str, first: int = -1, next_offset: int = -1) -> Shortfall:
        """Return what the target lacks of it: all of it, or source offsets from `first` to before `next_offset`."""
        offsets = next_offset - first if first >= 0 else 0
        place = self._asdict()
        return Shortfall(kind=kind, first=first, next_offset=next_offset, offsets=offsets, reason=reason, **place)


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """How to prove. `spark`: with it or without, by size where None; `file` keeps the ranges that are finished, for a
    proof that is interrupted: whoever has the report safe removes it. `wait`: seconds for which a mirror that runs may
    take to copy what the source holds when the proof begins.
    """

    spark: bool | None = None
    file: Path | None = None
    wait: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    """Holds the topics to compare, as both clusters list them."""

    #: All source topics that the flow mirrors.
    mirrored: Collection[str]
    #: Those to compare.
    pairs: Sequence[TopicPair]
    #: What cannot be compared.
    refused: Sequence[Shortfall]
    #: The sources of `pairs`, by name.
    source_topics: Mapping[str, TopicInfo]
    #: The target topics of `copied`, by name.
    target_topics: Mapping[str, TopicInfo]

    @property
    def copied(self) -> list[TopicPair]:
        """Return the topics that no rule re-keys."""
        return [pair for pair in self.pairs if pair.rekeying is None]

    @property
    def source_ids(self) -> dict[str, UUID | None]:
        """Return the sources' topic ids by target topic; None where the source has no such topic any more."""
        topics = {pair.target: self.source_topics.get(pair.source) for pair in self.pairs}
        return {target: topic.topic_id if topic else None for target, topic in topics.items()}

    def partitions(self, *, own_clock: bool) -> Iterator[Pair]:
        """Yield the partitions that both sides have."""
        for pair in self.copied:
            copy = self.target_topics.get(pair.target)
            for number in range(min(pair.partitions, len(copy.partitions) if copy else 0)):
                yield Pair(TopicPartition(pair.source, number), TopicPartition(pair.target, number), own_clock)


def verify_flow(
    settings: Settings, topics: Sequence[str] | None = None, watch: Watch | None = None, means: Means = Means()
) -> VerifyReport:
    """Compare the flow's topics, or those of them with the given source names, as they are now. Writes to no cluster.

    Raises ConfigError for a name that the flow does not mirror, or a file that is of another proof, PreflightError
    where `mirror run` would find no topics, or where both addresses lead to one cluster, and ClusterError.
    """
    began = clock.monotonic()
    source, target = Admin(settings.source), Admin(settings.target)
    refuse_same(source, target)  # a copy is equal to itself, which proves nothing
    chosen = _chosen(settings, source, target, topics)
    recorded = asyncio.run(_recorded(settings, chosen.source_ids))
    rate, is_running = settings.limits.bytes_per_second, recorded.status.pulse is Pulse.RUNNING
    endpoints = Endpoint.of(settings.source).bounded(rate), Endpoint.of(settings.target).bounded(rate)
    partitions = list(chosen.partitions(own_clock=settings.topics.append_time == "target"))
    waiting = Waiting(means.wait, recorded.copied_now)
    proof, kept = asyncio.run(plan_proof(*endpoints, partitions, settings.flow, recorded.known, means.file, waiting))
    is_large = "PYSPARK_GATEWAY_PORT" in os.environ or proof.size >= SPARK_BYTES
    with closing(kept) if kept else nullcontext():
        rules = [] if means.spark is False else _rules(settings, source, target, chosen.pairs)
        rekeyed = _rekeyed(settings, rules, means.wait if is_running else 0.0, recorded.known.losses)
        if spark := is_large if means.spark is None else means.spark:
            reports, unread = _on_spark(settings, proof, kept, watch)
        else:
            reports, unread = asyncio.run(run_proof(proof, prove, SHARES_AT_ONCE, kept, watch))
    subject = proof.plan.subject
    shortfalls = [
        *chosen.refused,
        *([] if topics else _hidden(settings, source, target, chosen.mirrored, recorded)),
        *asyncio.run(_not_compared(settings, chosen, rules)),
        *asyncio.run(_by_others(settings, chosen.pairs)),
        *(shortfall for _, lacking in rekeyed for shortfall in lacking),
        *_lost_by_rules(rules, recorded),
        *_stopped_by_rules(rules, recorded),
        *_of_another(chosen, recorded, subject.source_id),
        *_shortfalls(proof, reports, unread, recorded),
    ]
    gone = {} if topics else gone_topics(settings, source, target, recorded.rekeyed | recorded.seen, chosen.mirrored)
    return VerifyReport(
        flow=settings.flow,
        source=settings.source.alias,
        target=settings.target.alias,
        partitions=tuple(reports),
        misfits=tuple(_misfits(chosen)),
        seconds=clock.monotonic() - began,
        moved=recorded.known.moves is not None,
        source_id=subject.source_id,
        target_id=subject.target_id,
        begun_ms=proof.plan.begun_ms,
        spark=spark or bool(rules),
        rekeyed=tuple(report for report, _ in rekeyed if report is not None),
        resumed=kept.resumed if kept else 0,
        unread=unread,
        gone=tuple(Gone(topic, copy) for copy, topic in gone.items()),
        shortfalls=tuple(sorted(shortfalls, key=lambda lack: (lack.topic, lack.partition, lack.first))),
    )


def _on_spark(settings: Settings, proof: Proof, kept: SavedProof | None, watch: Watch | None) -> Proved:
    from mirror.spark.verify import ProofOnSpark  # noqa: PLC0415 -- who needs no Spark does not wait for its import

    with ProofOnSpark(settings.spark, settings.flow, max(1, len(proof.plan.ranges))) as engine:
        return asyncio.run(run_proof(proof, engine.prove, engine.slots, kept, watch))


def _rules(settings: Settings, source: Admin, target: Admin, pairs: Iterable[TopicPair]) -> Sequence[Rekeying]:
    """Return the rules by which topics of these are re-keyed, without those whose topic is refused."""
    topics = {pair.source for pair in pairs if pair.rekeying is not None}
    planned = plan_topics(source, target, settings).rekeyed if topics else ()
    return [rule for rule in planned if rule.source in topics]


def _rekeyed(
    settings: Settings,
    rules: Sequence[Rekeying],
    wait: float,
    losses: Mapping[TopicPartition, Sequence[tuple[int, int]]],
) -> Sequence[tuple[RekeyedReport | None, list[Shortfall]]]:
    """Prove re-keyed topics, on Spark. `wait` is in seconds, see `Means`; `losses` are on record, by target topic and
    source partition.
    """
    if not rules:
        return ()
    from mirror.spark.rekey.verify import proofs  # noqa: PLC0415 -- who needs no Spark does not wait for its import

    return proofs(settings, rules, wait, losses)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recorded:
    """Holds what the journal says of the flow."""

    #: What a proof needs of it.
    known: Known
    #: As what topics were first seen, by target topic: copies, and those that are re-keyed.
    seen: dict[str, FirstSeen]
    rekeyed: dict[str, FirstSeen]
    #: By target partition.
    losses: Mapping[TopicPartition, Sequence[Lost]]
    #: Source topics.
    paused: Collection[str]
    #: By target partition.
    stops: Mapping[TopicPartition, KnownStop]
    status: Status
    #: The newest report of each source partition.
    figures: Mapping[TopicPartition, PartitionStatus]

    @property
    def copied_now(self) -> Collection[TopicPartition]:
        """The target partitions that a mirror may be about to write to."""
        if self.status.pulse is not Pulse.RUNNING:
            return ()
        return {
            status.target
            for status in self.status.figures
            if not status.state.is_stop and status.topic not in self.paused
        }


async def _recorded(settings: Settings, topics: Mapping[str, UUID | None]) -> _Recorded:
    """Where the flow began for target `topics`, unless for another source topic than that of now, which has the id that
    is given; and all else that the journal says of any.
    """
    async with Cluster(Endpoint.of(settings.target)) as target:
        journal = Journal(target, settings.flow)
        await target.refresh([journal.partition.topic, *topics])
        entries = (await journal.read())[0] if journal.partition.topic in target.topics else []
        values = newest(entries)
        seen, losses = COPIES.newest(values), losses_in(values)
        since = {
            partition: offset
            for partition, offset in starts_in(values, target).items()
            if same_id(seen[partition.topic].topic_id, topics.get(partition.topic))
        }
        accepted = {copy: tuple((loss.first, loss.next_offset) for loss in lost) for copy, lost in losses.items()}
        moves = Moves(settings.flow, Indexes(entries)) if settings.topics.offsets == "translate" else None
        flow = status_of(settings.flow, settings.target.alias, values, clock.now_ms())
        return _Recorded(
            known=Known(moves=moves, since=since, losses=accepted),
            seen=seen,
            rekeyed=REKEYED.newest(values),
            losses=losses,
            paused=paused_in(values),
            stops=stops_in(values, {name: target.topic_id(name) for name in topics}),
            status=flow,
            figures={status.source: status for status in flow.figures},
        )


def _hidden(
    settings: Settings, source: Admin, target: Admin, mirrored: Collection[str], recorded: _Recorded
) -> Iterator[Shortfall]:
    hidden = hidden_topics(settings, source, recorded.seen, mirrored, target.topic_names())
    for copy, topic in hidden.items():
        yield TopicOrPartition(topic, copy).lacks(Lack.NOT_VERIFIED, f"the source hides it: {GRANT_READ}")


def _shortfalls(
    proof: Proof, reports: Iterable[PartitionReport], unread: Iterable[Unread], recorded: _Recorded
) -> Iterator[Shortfall]:
    """What the target lacks of the partitions that were compared, as far as both logs and the journal say."""
    passed = {partition.pair for partition in unread}
    lost = {report.pair: report.lost for report in reports}
    by_pair: dict[Pair, list[LogBounds]] = {}
    for part in proof.plan.ranges:
        by_pair.setdefault(part.pair, []).append(part.bounds)
    for pair, bounds in by_pair.items():
        if pair in passed:
            continue
        place = TopicOrPartition(pair.source.topic, pair.target.topic, pair.source.partition)
        yield from _behind(place, bounds[-1], recorded)
        if (first := bounds[0].left_out_from) >= 0:
            yield place.lacks(Lack.LEFT_OUT, "the flow began behind them", first, bounds[0].source_start)
        kept_from = bounds[0].target_start  # what the target has deleted since is nobody's loss any more
        for loss in recorded.losses.get(pair.target, ()):
            first, until = max(loss.first, kept_from), loss.next_offset
            if first < until and ((loss.first, until) in lost.get(pair, ()) or first < bounds[0].begin):
                yield place.lacks(Lack.LOST, f"reason {loss.reason}, as the journal says", first, until)


def _of_another(chosen: _Chosen, recorded: _Recorded, source_id: str) -> Iterator[Shortfall]:
    """Copies of another cluster's topic, or of one that was made anew since, by the journal: they may be equal where
    both logs were read, and are no proof that the target has what that one held.
    """
    for pair in chosen.copied:
        seen = recorded.seen.get(pair.target)
        topic, copy = chosen.source_topics.get(pair.source), chosen.target_topics.get(pair.target)
        if seen is None or copy is None or topic is None or not same_id(seen.target_topic_id, copy.topic_id):
            continue
        place = TopicOrPartition(pair.source, pair.target)
        if reason := seen.from_another(source_id):
            yield place.lacks(Lack.NOT_VERIFIED, reason)
        elif not same_id(seen.topic_id, topic.topic_id):
            yield place.lacks(Lack.NOT_VERIFIED, made_anew(seen.topic_id, topic.topic_id))


def _lost_by_rules(rules: Iterable[Rekeying], recorded: _Recorded) -> Iterator[Shortfall]:
    """What the source lost of re-keyed topics: where it would lie on the target, nobody knows."""
    for rule in rules:
        for partition, lost in recorded.losses.items():
            place = TopicOrPartition(rule.source, rule.target, partition.partition)
            for loss in lost if partition.topic == rule.target else ():
                yield place.lacks(Lack.LOST, f"reason {loss.reason}, as the journal says", loss.first, loss.next_offset)


def _stopped_by_rules(rules: Iterable[Rekeying], recorded: _Recorded) -> Iterator[Shortfall]:
    """The source partitions of re-keyed topics at which the mirror stopped: how much that holds back, their proof says,
    as far as the source has it still.
    """
    for rule in rules:
        numbers = {partition.partition for partition in recorded.figures if partition.topic == rule.source}
        numbers |= {partition.partition for partition in recorded.stops if partition.topic == rule.target}
        for number in sorted(numbers):
            place = TopicOrPartition(rule.source, rule.target, number)
            if reason := _stop_of(place, recorded):
                yield place.lacks(Lack.STOPPED, reason)


def _stop_of(place: TopicOrPartition, recorded: _Recorded) -> str:
    """Why a partition stopped, as the journal says; empty where it did not."""
    if (stop := recorded.stops.get(TopicPartition(place.target, place.partition))) is not None:
        return f"{stop.state} at source offset {stop.offset}: {stop.detail}. {stop.advice}"
    figures = recorded.figures.get(TopicPartition(place.topic, place.partition))
    if figures is not None and figures.state.is_stop:
        return f"{figures.state} at source offset {figures.next_offset}: {figures.detail}"
    return ""


def _behind(place: TopicOrPartition, bounds: LogBounds, recorded: _Recorded) -> Iterator[Shortfall]:
    """What is not there yet of one partition, and why, or that it stopped."""
    first = bounds.until - bounds.lag
    if reason := _stop_of(place, recorded):
        yield place.lacks(Lack.STOPPED, reason, *((first, bounds.until) if bounds.lag else ()))
    elif bounds.lag:
        if bounds.open_from is not None:
            reason = held_from(bounds.open_from)
        elif place.topic in recorded.paused:
            reason = f"paused; `mirror resume CONFIG {place.topic}` resumes it"
        elif recorded.status.pulse is Pulse.RUNNING:
            figures = recorded.figures.get(TopicPartition(place.topic, place.partition))
            reason = f"the mirror had not copied it yet ({figures.state if figures else 'no report of it'})"
        else:
            reason = f"the mirror: {recorded.status.pulse}"
        yield place.lacks(Lack.BEHIND, reason, first, bounds.until)


async def _not_compared(settings: Settings, chosen: _Chosen, rules: Iterable[Rekeying]) -> Sequence[Shortfall]:
    """Return the topics and partitions that have no copy to compare, without those that were proved by `rules`, and
    what the source holds of them. Raises ClusterError.
    """
    lacking: list[tuple[Shortfall, list[TopicPartition]]] = []
    proved = {rule.source for rule in rules}
    for pair in chosen.pairs:
        if pair.source in proved:
            continue
        every = [TopicPartition(pair.source, index) for index in range(pair.partitions)]
        place, found = TopicOrPartition(pair.source, pair.target), chosen.target_topics.get(pair.target)
        if pair.rekeying is not None:
            reason = "a rule re-keys its records, and they are computed on Spark (--spark)"
            lacking.append((place.lacks(Lack.NOT_VERIFIED, reason), every))
        elif found is None:
            lacking.append((place.lacks(Lack.ABSENT, f"no topic {pair.target} on the target"), every))
        else:
            reason = f"{pair.target} has {count(len(found.partitions), 'partition')} on the target"
            for partition in every[len(found.partitions) :]:
                absent = place._replace(partition=partition.partition)
                lacking.append((absent.lacks(Lack.ABSENT, reason), [partition]))
    if not lacking:
        return ()
    asked = {partition for _, every in lacking for partition in every}
    async with Cluster(Endpoint.of(settings.source)) as source:
        await source.refresh({partition.topic for partition in asked})
        starts = await listed(source, asked, EARLIEST)
        ends = await listed(source, asked, LATEST, READ_COMMITTED)

    def offsets(every: Collection[TopicPartition]) -> int | None:
        is_known = {*every} <= starts.keys() & ends
        return sum(max(0, ends[partition] - starts[partition]) for partition in every) if is_known else None

    return [replace(shortfall, offsets=offsets(every)) for shortfall, every in lacking]


async def _by_others(settings: Settings, pairs: Iterable[TopicPair]) -> Sequence[Shortfall]:
    """Topics of which a broker may hold more that is silent: it may lead, unknown to those that were asked."""
    problem = ""
    for where in (settings.source, settings.target):
        try:
            async with Cluster(Endpoint.of(where)) as cluster:
                await cluster.refresh()
                await cluster.require_all()
        except ClusterError as silence:
            problem = str(silence)
    return [TopicOrPartition(pair.source, pair.target).lacks(Lack.NOT_VERIFIED, problem) for pair in pairs if problem]


def verify(
    settings: Settings,
    topics: Sequence[str],
    *,
    as_json: bool,
    report_file: Path | None = None,
    resume: Path | None = None,
    spark: bool | None = None,
    wait: float = WAIT_SECONDS,
) -> ExitCode:
    """Verify and print; the exit code. `report_file` gets the report as a page; beside it, or in `resume`, finished
    ranges are kept for as long as the proof is not complete. `wait` is in seconds, see `Means`.

    Raises MirrorError.
    """
    if report_file is not None:
        check_writable(report_file)
        resume = resume or report_file.with_name(f"{report_file.name}.unfinished")
    with Progress(
        TextColumn("[bold]verifying"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=as_json or not sys.stderr.isatty(),
    ) as bar:
        task = bar.add_task("", total=None)
        report = verify_flow(
            settings,
            topics,
            lambda done, total: bar.update(task, advance=done, total=total),
            Means(spark=spark, file=resume, wait=wait),
        )
    if report_file is not None:
        report_file.write_text(page(report), encoding="utf-8")
    if as_json:
        print_json(as_dict(report))
    else:
        console().print(rendered(report))
    if resume is not None:
        resume.unlink(missing_ok=True)  # the proof is complete, and shown
    if not report.equal:
        return ExitCode.DIFFERENT
    if report.unread:
        return ExitCode.CLUSTER
    return ExitCode.DONE if report.is_whole else ExitCode.NOT_WHOLE


def check_writable(file: Path) -> None:
    """Before hours of reading, and without leaving an empty page. Raises ConfigError."""
    is_new = not file.exists()
    try:
        with file.open("a", encoding="utf-8"):
            pass
        if is_new:
            file.unlink()
    except OSError as problem:
        raise ConfigError(f"--report {file}: {problem.strerror}") from problem


def _chosen(settings: Settings, source: Admin, target: Admin, topics: Sequence[str] | None) -> _Chosen:
    """Ask both clusters which topics there are to compare. Raises as `verify_flow` does."""
    mirrored, refused = _pairs(source, target, settings)
    asked = _selected(mirrored, topics)
    hidden = target.denied(pair.target for pair in asked)
    pairs = [pair for pair in asked if pair.target not in hidden]
    reason = f"the target hides it: {GRANT_WRITE}"
    places = (TopicOrPartition(pair.source, pair.target) for pair in asked if pair.target in hidden)
    return _Chosen(
        mirrored={pair.source for pair in mirrored},
        pairs=pairs,
        refused=[*([] if topics else refused), *(place.lacks(Lack.NOT_VERIFIED, reason) for place in places)],
        target_topics=target.describe(pair.target for pair in pairs if pair.rekeying is None),
        source_topics=source.describe(pair.source for pair in pairs),
    )


def _pairs(source: Admin, target: Admin, settings: Settings) -> tuple[Sequence[TopicPair], Sequence[Shortfall]]:
    """The topics that the flow mirrors, and those that it would if nothing refused them."""
    selection = select({name: len(info.partitions) for name, info in source.topics().items()}, settings.topics)
    clashing = [(topic, clash.target) for clash in selection.clashes for topic in clash.sources]
    illegal = {pair.source for pair in selection.illegal} | {topic for topic, _ in clashing}
    pairs = [pair for pair in selection.pairs if pair.source not in illegal]
    if not pairs:
        plan_topics(source, target, settings).raise_refusals()  # in the words in which `mirror run` refuses it
    refused = [
        *((pair.source, pair.target, f"no legal name on the target: {pair.target}") for pair in selection.illegal),
        *((topic, copy, "several topics would have one copy") for topic, copy in clashing),
        *((name, "", "no such topic on the source") for name in selection.missing),
    ]
    shortfalls = [TopicOrPartition(topic, copy).lacks(Lack.NOT_VERIFIED, why) for topic, copy, why in refused]
    return pairs, shortfalls


def _selected(pairs: Sequence[TopicPair], topics: Sequence[str] | None) -> Sequence[TopicPair]:
    if not topics:
        return pairs
    names = [pair.source for pair in pairs]
    for topic in topics:
        if topic not in names:
            hint = did_you_mean(topic, names, most=1) or f"; it mirrors {', '.join(names[:10])}"
            raise ConfigError(f"--topic {topic}: the flow mirrors no source topic of that name{hint}")
    return [pair for pair in pairs if pair.source in topics]


def _misfits(chosen: _Chosen) -> Iterator[Difference]:
    """More partitions on the target than on the source: those that it lacks are no difference, but not there yet."""
    for pair in chosen.copied:
        if (copy := chosen.target_topics.get(pair.target)) is not None and len(copy.partitions) > pair.partitions:
            sides = (count(partitions, "partition") for partitions in (pair.partitions, len(copy.partitions)))
            yield Difference(pair.source, -1, -1, DifferenceKind.TOPIC, *sides)
