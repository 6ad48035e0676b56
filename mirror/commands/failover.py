"""`mirror failover`: get over what can be got over, end the flow, put groups where they go on, and say what is lost.

    drain    up to the source's ends of now, through the mirror that runs, or by a task of our own (`failover/drain.py`)
    end      the journal says that the flow was failed over (`journal/ownership.py`): the mirror that runs ends, and
             none starts
    fence    whoever re-keys is refused by the target from then on (`spark/rekey/plan_log.py`), also where it has not
             reported yet
    check    copies on which no task has reported since are compared with their sources
    groups   a last round, when nothing is mirrored any more
    account  what the target holds is compared with what the source holds then: the RPO; the RTO is what it all took.
             Every group is named that does not go on where it stood, with what it reads again or misses

One that was lost on its way, behind the end of the flow, is finished by the next call, which prints the one account.
A source that is away costs its timeout, and then the RPO is what the journal knew last. Nothing is changed on brokers:
the mirror takes no rights away from topics while it runs, so it has none to give back.

A rehearsal does the same, but ends nothing and commits nothing. It waits for the mirror that runs to get over what the
source holds now, which it does anyway; where none runs it only shows what would be copied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mirror import clock
from mirror.commands import failover_view as kept
from mirror.commands.failover_view import FailoverReport, as_dict, rendered
from mirror.config import Settings
from mirror.errors import (
    ClusterError,
    ClusterUnreachable,
    ConfigError,
    ExitCode,
    MalformedBatch,
    OtherCluster,
    PreflightError,
    WireError,
)
from mirror.failover.account import (
    Doubt,
    Doubts,
    deleted_there,
    doubts_in,
    doubts_of,
    ends_of,
    exposures_of,
    group_sync,
    may_hold_more,
    never_mirrored,
    with_doubts,
)
from mirror.failover.rpo import POLL_SECONDS, JournalSnapshot, PartitionRpo, naming_of
from mirror.groups.gap import GROUPS_STAY, OffsetGap, with_stranded
from mirror.groups.side import Blocker
from mirror.groups.sync import GroupSync, SyncResult
from mirror.journal import ownership as record
from mirror.journal.entries import COPIES, mirrored_cluster, paused_in
from mirror.journal.journal import Entry, Journal, newest
from mirror.journal.ownership import LIVENESS_SECONDS, FailedOver, Garbled, Owner
from mirror.kafka.cluster import Cluster, Endpoint, TopicPartition
from mirror.kafka.queries import LATEST, READ_COMMITTED, READ_UNCOMMITTED, list_offset
from mirror.names import first_of
from mirror.observability import logs
from mirror.policy.rules import NO_LIMIT, Finding
from mirror.policy.selection import Rekeying, is_rekeyed, progress_topic
from mirror.rendering import console, print_json
from mirror.states import State
from mirror.suspension import Clearance, SuspensionDetector, always, beating
from mirror.topics.history import check_flows_back

if TYPE_CHECKING:
    from mirror.spark.rekey.plan_log import PlanLog

#: A source that does not answer for so long is away.
SOURCE_SECONDS: Final = 5.0
#: How long a mirror that runs may report no headway, where it reports at least every ten seconds.
IDLE_SECONDS: Final = 15.0
#: What a mirror that is asked to end may take: its tasks, its last sync of groups, its last word.
END_SECONDS: Final = 20.0
#: For how long no partition may grow when the mirror is gone: its tasks wait for acknowledgments for so long.
QUIET_SECONDS: Final = 4.0
GROUPS_SECONDS: Final = 10.0
#: How often a mirror that stands by may take the flow before what is missing was copied here.
DRAIN_TRIES: Final = 3
#: What to do where a flow back lost records, or nobody knows whether it did.
_BEGIN_ANEW: Final = (
    "The copies may hold other records than their sources. Compare them with `mirror verify CONFIG`. Then give the flow"
    " another `name`, and take over the copies that are equal: `mirror adopt CONFIG --all`. Or delete the copies that"
    " differ from the target, so that they are copied anew, and run this again: save first what they alone hold"
)
#: How often groups are compared that do not go on where they should: their source may still move.
GAP_TRIES: Final = 4

T = TypeVar("T")

_log = logs.get("mirror.failover")


def failover(settings: Settings, *, rehearse: bool, undo: bool, as_json: bool) -> ExitCode:
    """Fail the flow over, rehearse that, or take it back; print what came of it.

    Raises ConfigError where the flow never ran, PreflightError where it was failed over before, behind the account of
    that (one that was lost before it had an account is finished), and ClusterError where the target cannot be used.
    """
    if undo:
        asyncio.run(_undo(settings))
        print(
            f"{settings.flow}: may run again; a partition or re-keyed topic that somebody wrote to on the target will"
            " stop as DIVERGED"
        )
        return ExitCode.DONE
    with beating() as detector:  # behind a suspension the flow may have been failed over, and have come back (Z1)
        found = asyncio.run(_failover(settings, detector, rehearse=rehearse))
    account = found.account if isinstance(found, _Before) else found
    if account is not None:
        if as_json:
            print_json(as_dict(account))
        else:
            console().print(rendered(account))
    if isinstance(found, _Before):
        raise PreflightError(
            f"{settings.flow}: was failed over {found.done}. `mirror failover CONFIG --undo` lets it run again"
        )
    if found.is_whole:
        return ExitCode.DONE
    return ExitCode.NOT_WHOLE if found.lacks_losses_alone else ExitCode.DATA_AT_RISK


@dataclass(frozen=True, slots=True)
class _Before:
    """The flow was failed over before; the account of that, where the journal has it."""

    done: FailedOver | Garbled
    account: FailoverReport | None


async def _undo(settings: Settings) -> None:
    """Let the flow run again. Raises PreflightError where a flow back may have lost records."""
    async with Cluster(Endpoint.of(settings.target)) as target:
        known = JournalSnapshot(Journal(target, settings.flow), naming_of(settings))
        await known.read()
        done = known.newest.get(record.KEY)
        if done is None:
            raise ConfigError(f"{settings.flow}: was not failed over: there is nothing to take back")

        async def stands() -> bool:
            await known.read()
            if known.newest.get(record.KEY) != done:
                raise PreflightError(f"{settings.flow}: was taken back, or failed over again, while this ran")
            return True

        known.journal.clearance = Clearance(SuspensionDetector(), stands, at_first=True)
        # another cluster that its address leads to by now knows of no flow back
        settings = settings.keeping_to(mirrored_cluster(known.newest), target.cluster_id)
        async with Cluster(Endpoint.of(settings.source)) as source:
            problems = await check_flows_back(source, target, COPIES.newest(known.newest), SOURCE_SECONDS)
        if problems:
            raise PreflightError(f"{settings.flow}: {'; '.join(problems)}. {_BEGIN_ANEW}")
        await known.journal.append([(record.KEY, None), (record.ACCOUNT, None)])


async def _failover(settings: Settings, detector: SuspensionDetector, *, rehearse: bool) -> FailoverReport | _Before:
    async with Cluster(Endpoint.of(settings.target)) as target:
        known = JournalSnapshot(
            Journal(target, settings.flow),
            naming_of(settings),
            lambda topic: not is_rekeyed(topic, settings.topics),
        )
        await known.read()
        done = FailedOver.standing(known.newest)
        if done is not None and (rehearse or isinstance(done, Garbled) or record.is_finished(known.newest)):
            return _Before(done, kept.account_in(known.newest))
        if not known.figures and not known.rekeyed and not known.status(settings).figures:
            raise ConfigError(f"{settings.flow}: never ran, so its target holds nothing to fail over to")
        # a source's address that leads to another cluster since, to the target itself say, is that of no source
        settings = settings.keeping_to(mirrored_cluster(known.newest), target.cluster_id)
        async with Cluster(Endpoint.of(settings.source)) as source:
            course = _FailoverRun(settings, rehearse)
            course.begin(known, detector)
            return await _fail_over(course, source, known, done)


async def _fail_over(
    course: _FailoverRun, source: Cluster, known: JournalSnapshot, done: FailedOver | None
) -> FailoverReport:
    """Step by step; `done` is the record of a failover that was lost before it had an account."""
    settings, rehearse, target = course.settings, course.rehearse, known.journal.cluster
    course.warn_of_others(known)
    await course.learn_reached(known)
    with course.step("reach the source"):
        reached = await course.reach(source, {partition.topic for partition in known.figures})

    async def exposures() -> list[PartitionRpo]:
        return await course.asking(
            source, reached, lambda there: exposures_of(settings, source if there else None, known)
        )

    if rehearse:
        course.exposed = await exposures()
    if done is None:
        with course.step("drain"):
            await course.drain(source if reached else None, known)
    if not rehearse:
        with course.step("end the mirror"):
            await (course.end(known) if done is None else course.go_on(done, known))
        with course.step("fence re-keyed topics"):
            await course.fence(known)
    with course.step("check the copies"):
        await course.asking(source, reached, lambda there: course.check(source, target, known, reached=there))
    with course.step("follow the groups"):
        await course.asking(source, reached, lambda there: course.follow(source, target, known, reached=there))
    with course.step("read the journal"):
        await known.read()
        if not rehearse:
            await course.check_stands(known)
    with course.step("account"):
        found = course.with_doubts(await exposures())
        course.exposed = course.with_doubts(course.exposed)
        course.name_paused(known, found)
        missed = await course.asking(
            source, reached, lambda there: course.compare(source, target, known, found, reached=there)
        )
        found += missed
        course.exposed += missed if rehearse else []
        if reached and await course.warn_of_silent(source):
            found, course.exposed = may_hold_more(found), may_hold_more(course.exposed)
    is_kept = False
    if not rehearse:
        with course.step("check that the failover stands"):
            await course.check_stands(known)  # an account of what was taken back would be that of the next failover
            is_kept = True
    account = course.account(found)
    if is_kept:
        await _keep(known.journal, account)
    return account


async def _keep(journal: Journal, account: FailoverReport) -> None:
    """For whoever asks again; without that, what this call prints is all there is."""
    try:
        await journal.append([kept.account_entry(account)])
    except (ClusterError, WireError) as problem:
        _log.warning("account_not_kept", flow=account.flow, reason=str(problem))


@dataclass(slots=True, eq=False)
class _FailoverRun:
    """One failover under way."""

    settings: Settings
    rehearse: bool
    exposed: list[PartitionRpo] = field(default_factory=list)
    _began: float = field(default_factory=clock.monotonic)
    _steps: dict[str, float] = field(default_factory=dict)
    _source_problem: str = ""
    _is_elsewhere: bool = False
    _ended: bool = False
    _known_as: Entry | None = None
    _holder: str = ""  # the instance that had the flow then
    _own: bytes = b""  # the record that this failover writes
    _former: list[Owner] = field(default_factory=list)
    _silent: list[str] = field(default_factory=list)
    _doubts: Doubts = field(default_factory=dict)  # of nothing before all was checked
    _synced: SyncResult | None = None
    _gaps: tuple[OffsetGap, ...] = ()
    _warnings: list[str] = field(default_factory=list)

    def begin(self, known: JournalSnapshot, detector: SuspensionDetector) -> None:
        """By what the journal says now; nothing is written to it behind a suspension before it was asked again."""
        self._known_as = known.watched.newest.get(record.KEY)
        self._holder = holder.instance if (holder := known.watched.last) else ""

        async def may_go_on() -> bool:
            if self._ended:
                await self._standing(known)
                return True
            await known.read()
            self._refuse_overtaken(known)
            owner = known.watched.last
            if owner is not None and not owner.is_this_process and owner.instance != self._holder:
                raise self._overtaken(f"another mirror ({owner}) took the flow while this process was suspended,")
            return True

        known.journal.clearance = Clearance(detector, may_go_on)

    def _refuse_overtaken(self, known: JournalSnapshot) -> None:
        """Raise PreflightError if somebody else failed the flow over, or took that back, since this began."""
        found = known.watched.newest.get(record.KEY)
        if found is not None and found != self._known_as and found.value != self._own:
            raise self._overtaken("somebody else failed the flow over, or took that back,")

    def _overtaken(self, why: str) -> PreflightError:
        return PreflightError(
            f"{self.settings.flow}: {why} before the failover was recorded, so that the flow may run for others by now:"
            " nothing was recorded. Run it again if it is meant"
        )

    async def _standing(self, known: JournalSnapshot) -> tuple[list[Entry], bool]:
        """All entries of the journal, and whether it has the failover, which it may have lost. Raises PreflightError
        where somebody took that back.
        """
        entries = await known.journal.all_entries()
        stands = {entry.key: entry.value is not None for entry in entries}.get(record.KEY)
        if stands is False:
            raise PreflightError(
                f"{self.settings.flow}: this failover was taken back (`mirror failover CONFIG --undo`) while it ran:"
                " nothing more is done. Run it again if it is meant"
            )
        return entries, stands is not None

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time one step. When the flow was ended, a cluster that fails costs that step, and the account names it."""
        began = clock.monotonic()
        try:
            yield
        except (ClusterError, WireError, MalformedBatch) as problem:
            if not self._ended:
                raise
            self._warn(f"could not {name}: {problem}")
        self._steps[name] = clock.monotonic() - began

    async def reach(self, source: Cluster, topics: set[str]) -> bool:
        """Whether the source answers, and not another cluster at its address, of which nothing is asked."""
        try:
            await source.learn(topics, SOURCE_SECONDS)
        except ClusterError as problem:
            self._source_problem = str(problem)
            self._is_elsewhere = isinstance(problem.__cause__, OtherCluster)
        return not self._source_problem

    def warn_of_others(self, known: JournalSnapshot) -> None:
        """Of what the flow's mirror copies and this configuration does not, nothing is copied, compared or reported."""
        if others := known.others():
            pairs = [topic if topic == copy else f"{topic} (to {copy})" for copy, topic in sorted(others.items())]
            self._warn(
                f"the flow's last mirror read another configuration than this one, by which it copied"
                f" {first_of(pairs)}, too: nothing of that is shown here. Fail over with its configuration, or have a"
                " mirror read this one first (SIGHUP, or a new start)"
            )

    async def warn_of_silent(self, source: Cluster) -> bool:
        """Whether a broker of the source is silent: the others may have reported partitions that it leads by now."""
        try:
            await source.require_all()
        except ClusterError as problem:
            self._warn(f"the source may hold more than is shown here: {problem}")
            return True
        return False

    async def asking(self, source: Cluster, reached: bool, work: Callable[[bool], Coroutine[Any, Any, T]]) -> T:
        """Do something with the source, or without it where it is away, or goes away in its midst: each of its many
        questions would cost a timeout, and they follow on each other.
        """
        if reached and not self._source_problem:
            task = asyncio.create_task(work(True))
            try:
                while not (await asyncio.wait({task}, timeout=SOURCE_SECONDS))[0]:
                    if not await self.reach(source, set()):
                        break
                else:
                    return await task
            except ClusterError:
                if await self.reach(source, set()):
                    raise
            finally:
                task.cancel()
                await asyncio.wait({task})
        return await work(False)

    async def compare(
        self,
        source: Cluster,
        target: Cluster,
        known: JournalSnapshot,
        exposures: Sequence[PartitionRpo],
        *,
        reached: bool,
    ) -> list[PartitionRpo]:
        """Where groups go on otherwise; and what only the source shows: what was deleted of the copies, and what was
        never mirrored, which is returned.
        """
        if reached:
            await self.compare_groups(source, target, known, exposures)
        elif self._synced is not None:  # it went away after the groups were put where they stood
            self._warn("what groups read again or miss was not compared to the end, since the source went away")
        await self.name_stranded(source, target, known)
        if not reached:
            if any(exposure.end is not None for exposure in exposures):  # else nothing passes for whole
                self._warn(
                    "what the target deleted and what was never mirrored was not looked for, since the source went away"
                )
            return []
        await self.warn_of_deleted(source, known)
        return await self.miss(source, known)

    async def drain(self, source: Cluster | None, known: JournalSnapshot) -> None:
        """Get over what the source holds now, as far as there is headway."""
        if source is None:
            if self._is_elsewhere:
                await self._drain_unseen(known)
            return
        problem = ""
        for _ in range(DRAIN_TRIES):
            if known.is_mirrored:
                # a rehearsal waits for transactions to end: the failover would find those that hang
                isolation = READ_UNCOMMITTED if self.rehearse else READ_COMMITTED
                ends = await ends_of(source, list(known.figures), isolation)
                if not (behind := await known.reaching(ends, IDLE_SECONDS)):
                    return
                if known.is_mirrored:  # no other may write beside it
                    self._warn(f"the mirror got no further, with {len(behind)} partitions behind the source's ends")
                    return
            if self.rehearse:
                if not all(rpo.is_over for rpo in self.exposed):
                    self._warn("no mirror runs: what is missing would be copied first, which was not rehearsed")
                await self._warn_of_rekeyed(source, known)
                return
            if (owner := known.watched.last) is not None:
                self._former.append(owner)
            problem = await self._drain_here(known)
            await known.read()
            if not problem or not known.is_mirrored:  # one that stood by has it now
                break
        if problem:
            self._warn(f"what was missing could not be copied: {problem}")
        await self._warn_of_rekeyed(source, known)

    async def _drain_unseen(self, known: JournalSnapshot) -> None:
        """Let a mirror that runs get over what it sees of the source, whose right address it may have, unlike us."""
        deadline = clock.monotonic() + IDLE_SECONDS
        while (owner := known.watched.current()) is not None:
            if (
                all(status.instance == owner.instance for status in known.figures.values())
                or clock.monotonic() > deadline
            ):
                ends = {
                    partition: status.log_end
                    for partition, status in known.figures.items()
                    if status.instance == owner.instance
                }
                if behind := await known.reaching(ends, IDLE_SECONDS):
                    self._warn(f"the mirror got no further, with {len(behind)} partitions behind the source's ends")
                return
            await asyncio.sleep(POLL_SECONDS)
            await known.read()

    async def _drain_here(self, known: JournalSnapshot) -> str:
        """Copy what is missing; why that could not be done, else empty."""
        from mirror.driver.flow import prepare  # noqa: PLC0415 -- the same
        from mirror.failover.drain import drain  # noqa: PLC0415 -- loads Spark's Python side, which most failovers spare

        def refused(finding: Finding) -> None:
            self._warn(f"what was missing could not be copied: {finding}")

        try:
            flow = await asyncio.to_thread(prepare, self.settings, once=True, keeps=True, refused=refused)
            before = known.watched.last
            for note in await drain(flow, {before.instance} if before else ()):
                self._warn(note)
        except (ClusterError, WireError, MalformedBatch, PreflightError) as problem:
            return str(problem)
        return ""

    async def _warn_of_rekeyed(self, source: Cluster, known: JournalSnapshot) -> None:
        asked = [partition for partition in known.figures if is_rekeyed(partition.topic, self.settings.topics)]
        ends = await ends_of(source, asked)
        for topic in sorted(
            {
                partition.topic
                for partition in asked
                if known.figures[partition].next_offset < ends.get(partition, NO_LIMIT)
            }
        ):
            self._warn(f"{topic} is re-keyed, which only a mirror that runs does: start it to copy the rest")

    async def end(self, known: JournalSnapshot) -> None:
        """Record the failover, and wait until the mirror that runs has signed off."""
        await known.read()  # the mirror that runs may have made a topic meanwhile
        self._refuse_overtaken(known)
        self._silent = [str(owner) for owner in self._former if not known.watched.has_ended(owner)]
        changes = record.ending(known.newest, self._silent)
        self._own = dict(changes)[record.KEY] or b""
        try:
            await known.journal.append_all(changes)
        except ClusterUnreachable as problem:  # the request may lie in a broker that is about to go on
            raise ClusterUnreachable(
                f"{problem}. Nobody knows whether the flow is failed over now, so that its mirror ends: run the same"
                " command again, which finishes that; `--undo` takes it back"
            ) from problem
        self._ended = True
        _log.info("failover_recorded", flow=self.settings.flow)
        await self._prove_ended(known)

    async def go_on(self, done: FailedOver, known: JournalSnapshot) -> None:
        """The same behind a record of one that was lost before it had an account."""
        self._ended, self._silent = True, [*done.silent]
        _log.warning("failover_resumed", flow=self.settings.flow, begun=str(done))
        for former in self._silent:
            self._warn_of_silent(former)
        await self._prove_ended(known)

    async def _prove_ended(self, known: JournalSnapshot) -> None:
        """Every task of the mirror ended: it says so behind its last one; or it is gone or silent for longer than a
        task goes on without it (`driver/control.py`), and then no partition may grow.
        """
        seen, deadline = known.watched, clock.monotonic() + END_SECONDS + LIVENESS_SECONDS
        places = [TopicPartition(status.target_topic, status.partition) for status in known.figures.values()]
        await known.journal.cluster.learn({partition.topic for partition in places})
        ends, moved, still_since = dict[TopicPartition, int](), list[TopicPartition](), clock.monotonic()
        while (owner := seen.last) is not None and not seen.has_said(owner):
            now = await _log_ends(known.journal.cluster, places)
            if grown := sorted(partition for partition, end in now.items() if ends.get(partition, end) != end):
                moved, still_since = grown, clock.monotonic()
            ends |= now
            if (owner.is_gone or seen.is_silent(owner)) and clock.monotonic() - still_since > QUIET_SECONDS:
                self._former.append(owner)
                break
            if clock.monotonic() > deadline:
                grew = f"; {first_of([*map(str, moved)])} grew meanwhile" if moved else ""
                self._warn(f"the mirror ({owner}) did not say that it ended{grew}: see to it before anybody writes")
                return
            await asyncio.sleep(POLL_SECONDS)
            await known.read()
        for former in dict.fromkeys(one for one in self._former if not seen.has_ended(one)):
            self._warn_of_silent(str(former))

    def _warn_of_silent(self, mirror: str) -> None:
        self._warn(
            f"the mirror ({mirror}) is silent, and did not say that it ended: one that is frozen writes when it"
            " wakes. See to it that it is gone before anybody writes"
        )

    async def fence(self, known: JournalSnapshot) -> None:
        """Have nothing more committed to re-keyed topics: their tasks write under transactional ids of their own, and
        go on for as long as these are theirs.
        """
        for topic, log in self._plan_logs(known).items():
            try:
                await log.close()
            except (ClusterError, WireError, ConfigError) as problem:
                self._warn(f"{topic} is re-keyed, and its tasks could not be fenced: {problem}")
        await self.learn_reached(known)

    async def learn_reached(self, known: JournalSnapshot) -> None:
        """How far re-keyed topics are, of which the first micro-batch may be on the target before the first report."""
        for topic, log in self._plan_logs(known).items():
            try:
                known.reached[topic] = await log.reached()
            except (ClusterError, WireError, ConfigError, MalformedBatch) as problem:
                self._warn(f"{topic} is re-keyed, and nobody knows how far: {problem}")

    def _plan_logs(self, known: JournalSnapshot) -> dict[str, PlanLog]:
        """What is on record of each re-keyed topic."""
        if not known.rekeyed:
            return {}
        from mirror.spark.rekey.plan_log import PlanLog  # noqa: PLC0415 -- loads PySpark, which most failovers spare

        return {
            topic: PlanLog(
                known.journal.cluster,
                Rekeying(source=topic, target=there, partitions=1, progress=progress_topic(self.settings.flow, there)),
            )
            for topic, there in sorted(known.rekeyed.items())
        }

    async def _rekeyed_doubts(
        self, known: JournalSnapshot, source: Cluster | None
    ) -> dict[TopicPartition, Doubt | None]:
        """The same of re-keyed topics: the target has lost what was committed, or they are of another source."""
        doubts = dict[TopicPartition, Doubt | None]()
        for topic, log in self._plan_logs(known).items():
            try:
                lost = await log.lost() or await _less_than_reported(log, topic, known)
                unlike = await log.unlike(source) if source is not None and not lost else None
                foreign = "" if lost or unlike else await _foreign_in(log)
            except (ClusterError, WireError, ConfigError, MalformedBatch) as problem:
                what = f"{topic} is re-keyed, and nobody knows whether the target has all that came over"
                self._warn(f"{what}: {problem}")
                doubt: Doubt | None = Doubt(f"{what}: {problem}")
            else:
                doubt = Doubt(unlike.detail, unlike.state) if unlike else None
                if reason := lost or foreign:
                    doubt = Doubt(reason, State.TARGET_LOST if lost else State.DIVERGED)
            doubts |= {partition: doubt for partition in known.figures if partition.topic == topic}
        return doubts

    def with_doubts(self, exposures: Iterable[PartitionRpo]) -> list[PartitionRpo]:
        """The same, with what comparing both logs found."""
        return with_doubts(exposures, self._doubts)

    async def check(self, source: Cluster, target: Cluster, known: JournalSnapshot, *, reached: bool) -> None:
        """Compare every copy with its source; without one, by the topics alone."""
        await target.learn({status.target_topic for status in known.figures.values()})
        if reached:
            await source.learn({status.topic for status in known.figures.values()}, SOURCE_SECONDS)
        doubts = await doubts_of(self.settings, source if reached else None, known)
        self._doubts = doubts | await self._rekeyed_doubts(known, source if reached else None)

    async def check_stands(self, known: JournalSnapshot) -> None:
        """The journal still has the failover: what was lost of it may have let a mirror start. Raises PreflightError
        where somebody took it back.
        """
        entries, stands = await self._standing(known)
        if not stands:
            await known.journal.append_all(record.ending(newest(entries), self._silent))
            self._warn(
                "the journal lost the record of this failover, which was written again: a mirror may have gone on"
            )
            await known.read()
            await self._prove_ended(known)

    async def follow(self, source: Cluster, target: Cluster, known: JournalSnapshot, *, reached: bool) -> None:
        """A last complete sync of the groups; rehearsed, it commits nothing."""
        if not reached:
            self._warn(GROUPS_STAY)
        elif self.settings.groups.include:
            await self._sync_groups(group_sync(self.settings, source, target, known, self._doubts), known)

    async def _sync_groups(self, sync: GroupSync, known: JournalSnapshot) -> None:
        async def stands() -> bool:
            await self.check_stands(known)  # it may have been taken back meanwhile
            return True

        clearance = Clearance(sync.detector, always if self.rehearse else stands, at_first=True)
        deadline, self._synced = clock.monotonic() + GROUPS_SECONDS, None
        while True:
            may_go = sync.detector.since()
            await clearance.given()
            self._synced = await sync.sync_once(rehearsing=self.rehearse, renewing=self._synced is None, may_go=may_go)
            if self._synced.is_complete or clock.monotonic() > deadline:
                break
            await asyncio.sleep(POLL_SECONDS)
        self._warn_of_blockers(self._synced.blockers)

    async def compare_groups(
        self, source: Cluster, target: Cluster, known: JournalSnapshot, exposures: Sequence[PartitionRpo]
    ) -> None:
        """Name every group that does not go on where it stands on the source. A source that lives goes on meanwhile:
        its groups are followed once more, a few times.
        """
        if not self.settings.groups.include or self._synced is None:
            return
        holds = {
            TopicPartition(exposure.topic, exposure.partition): exposure.position
            for exposure in exposures
            if exposure.position is not None and not exposure.doubt
        }
        doubts = {partition: doubt.reason for partition, doubt in doubts_in(self._doubts, known.figures).items()}
        topics = {status.topic: status.target_topic for status in known.figures.values()}
        rekeyed = {topic: there for topic, there in topics.items() if is_rekeyed(topic, self.settings.topics)}
        deadline = clock.monotonic() + GROUPS_SECONDS  # one round takes longer where a broker answers nothing
        for tries in range(GAP_TRIES):
            sync = group_sync(self.settings, source, target, known, self._doubts)
            if tries:
                await asyncio.sleep(POLL_SECONDS)
                await self._sync_groups(sync, known)
            gaps, blockers = await sync.gaps(self._synced.stood, holds, doubts, rekeyed)
            self._gaps = tuple(gaps)
            is_settled = not gaps and not any(blocker.passing for blocker in blockers)
            if is_settled or clock.monotonic() > deadline:
                break
        self._warn_of_blockers(blockers)

    async def name_stranded(self, source: Cluster, target: Cluster, known: JournalSnapshot) -> None:
        """Name every group that stands behind the end of a copy, which the target alone shows."""
        if not self.settings.groups.include:
            return
        sync = group_sync(self.settings, source, target, known, self._doubts)
        stranded, blockers = await sync.stranded(self._synced.planned if self._synced else {})
        self._gaps = with_stranded(self._gaps, stranded)
        self._warn_of_blockers(blockers)

    def _warn_of_blockers(self, blockers: Iterable[Blocker]) -> None:
        for blocker in blockers:
            self._warn(f"group {blocker.group or 'sync'}: {blocker.cause} {blocker.detail}".rstrip())

    def name_paused(self, known: JournalSnapshot, exposures: list[PartitionRpo]) -> None:
        """Name the topics of which something is missing because they are paused."""
        lacking = {exposure.topic for exposure in exposures if not exposure.is_over}
        for topic in sorted(lacking & paused_in(known.newest)):
            undo = "" if self.rehearse else "`mirror failover CONFIG --undo`, and then "
            self._warn(
                f"{topic} is paused, so that it was not copied any further; {undo}`mirror resume CONFIG {topic}` lets"
                " it go on"
            )

    async def warn_of_deleted(self, source: Cluster, known: JournalSnapshot) -> None:
        """Name what somebody deleted of the copies, though their ends say that all got over."""
        for text in await deleted_there(self.settings, source, known):
            self._warn(text)

    async def miss(self, source: Cluster, known: JournalSnapshot) -> list[PartitionRpo]:
        """Name the partitions of the source that the flow ought to mirror and never did."""
        missing = await never_mirrored(self.settings, source, known)
        for partition in missing:
            self._warn(f"{partition.topic}-{partition.partition} was never mirrored: nothing of it is on the target")
        return missing

    def account(self, exposures: list[PartitionRpo]) -> FailoverReport:
        """What came of it."""
        return FailoverReport(
            flow=self.settings.flow,
            source=self.settings.source.alias,
            target=self.settings.target.alias,
            rehearsal=self.rehearse,
            exposures=tuple(exposures),
            exposed=tuple(self.exposed),
            source_problem=self._source_problem,
            groups=self._synced.standings if self._synced else {},
            gaps=self._gaps,
            warnings=tuple(self._warnings),
            steps=self._steps,
            seconds=clock.monotonic() - self._began,
        )

    def _warn(self, text: str) -> None:
        if text not in self._warnings:
            self._warnings.append(text)


async def _less_than_reported(log: PlanLog, topic: str, known: JournalSnapshot) -> str:
    """Which partition of a re-keyed topic was reported to be further than its progress topic says, in words; empty
    where none was. Raises as `PlanLog.reached` does.
    """
    reported = {
        partition.partition: status.next_offset
        for partition, status in known.figures.items()
        if partition.topic == topic
    }
    deadline = clock.monotonic() + GROUPS_SECONDS
    while True:
        reached = await log.reached()
        less = {number: at for number, at in sorted(reported.items()) if reached.get(number, 0) < at}
        if not less:
            return ""
        if not reached or clock.monotonic() > deadline:
            number, at = next(iter(less.items()))
            return (
                f"what was re-keyed of partition {number} up to offset {at} is not on record any more: the target's"
                f" progress topic has {f'offset {reached.get(number, 0)}' if reached else 'no plan'}"
            )
        await asyncio.sleep(POLL_SECONDS)


async def _foreign_in(log: PlanLog) -> str:
    """What somebody else has written to a re-keyed topic, in words; empty where that is nothing. Raises as `PlanLog`
    does.
    """
    deadline = clock.monotonic() + GROUPS_SECONDS
    while True:
        found = await log.foreign()
        if not found or clock.monotonic() > deadline:
            return found
        await asyncio.sleep(POLL_SECONDS)  # a living mirror may just have committed it


async def _log_ends(target: Cluster, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    asked = (list_offset(target, partition, LATEST) for partition in places if target.leader(partition).node >= 0)
    there = [partition for partition in places if target.leader(partition).node >= 0]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    return {partition: answer for partition, answer in zip(there, answers, strict=True) if isinstance(answer, int)}
