"""Follows both clusters while a mirror runs: what is new there becomes its next plan.

- A copy goes where the flow made it (its journal says so, by the copy's id) and was not failed over since, and where
  its source is the same cluster as then and denies several times that a topic of that name exists: one with another id
  is a topic made anew, whose copy stays as it is (RECREATED).
- None goes where what is gone rather looks like a source that lost its data, or like a flow that is set up wrongly:
  what was lost in a day, or while no mirror ran, is counted against all topics that the flow mirrors, those included
  that were lost in that time. Nor does one, for as long as this process runs, whose source was found gone while the
  source showed that it lost records of topics that are there, as one does that was put back to what it was once: one of
  them is recreated, or its log was cut back (TRUNCATED) or ends before what was copied.
- None goes that no task of this process copied to, or compared with its source, that is paused, so that none looks at
  it, or whose log ends further than the flow's tasks acknowledged: somebody else wrote to it since, and nobody else has
  these records.
- The journal is read again right before: a copy is not for a mirror to delete that has lost the flow.

- A topic that preflight refuses is left out, and the others go on; what was begun goes on whatever the round says, as
  long as its copy is there. One that no plan sees at a start, hidden or gone, is reported as stopped all the same: its
  last report would say for good that it has caught up.
- A copy is deleted where `sync.deletions` asks for it and that is safe.
- Nothing is changed on the target for a flow that was failed over, or that somebody else has: the journal is read right
  before each kind of change. A round runs in a thread that nobody waits for, and may come back long after it began, as
  where the process was suspended; the source may have been emptied meanwhile.
- A topic begins by what other flows' journals say right before, not when its name was new: they may have named it
  since, as theirs or as one whose records came through the target. So does one that was refused for that.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol
from uuid import UUID

from mirror import clock
from mirror.background import in_background
from mirror.config import Settings
from mirror.config.reading import reloaded
from mirror.driver.flow import log_advice
from mirror.driver.reconciler import CarriedOut, Reconciler, Refusal, assignments_of, refused_by
from mirror.driver.scheduling import renewed
from mirror.errors import ClusterError, ConfigError, MalformedBatch, MirrorError, PreflightError, Throttled
from mirror.journal.entries import COPIES, FirstSeen, same_id
from mirror.journal.journal import OWNER, Journal
from mirror.journal.ownership import FailedOver, Owner, OwnershipCheck
from mirror.kafka.admin import Admin
from mirror.kafka.cluster import Cluster, Endpoint
from mirror.kafka.remembering_admin import RememberingAdmin
from mirror.names import OWN_PREFIX, first_of
from mirror.observability import logs
from mirror.observability.logs import Lasting
from mirror.observability.status import NOT_OURS
from mirror.policy.remedies import Fix
from mirror.policy.rules import Finding
from mirror.policy.selection import Rekeying, is_rekeyed, selects
from mirror.replication.assignment import Assignment
from mirror.replication.topic_identity import MISSING_TRIES
from mirror.suspension import Clearance, SuspensionDetector, never
from mirror.topics.acls import Acl, AclPlan, create_acls, delete_acls, given_in, record_given
from mirror.topics.adoption import Gate, source_lost, unacknowledged
from mirror.topics.apply import asking
from mirror.topics.history import History, gone_topics, read_others, read_own
from mirror.topics.plan import followed_groups
from mirror.topics.reconcile import TopicPlan

# --- Which copies a running mirror deletes, since their source topics were --------------------------------------------

_AGAIN_SECONDS: Final = 0.2
#: The time in which losses are counted together: a source that loses its data may do so topic by topic.
_WINDOW_MS: Final = 86_400_000

_UNCHECKED: Final = (
    "no task compared their ends with the source, or copied to them, since this mirror started; if they are to go"
)

_log = logs.get("mirror.sync")

#: One assignment for each topic, by the target's name: the partitions of a topic have the same fate.
Copies = Mapping[str, Assignment]


class Deletions:
    """Deletes copies of one flow whose source topics were deleted."""

    def __init__(self, source: Admin, target: Admin) -> None:
        """Nothing is asked before the first round."""
        self._source, self._target = source, target
        self._kept = Lasting[str]()
        self._refused = Lasting[tuple[str, str]]()  # copies that the target did not delete, and why
        self._held: dict[str, str] = {}  # copies whose sources went as the source lost data, and what showed that
        self._missed: frozenset[str] | None = None  # source topics that went before the first round; None before it
        self._missed_until = 0.0  # they are lost so long

    def due(
        self,
        settings: Settings,
        plan: TopicPlan,
        current: Sequence[Assignment],
        seen: Mapping[str, FirstSeen],
        sound: Collection[str] = (),
    ) -> Copies:
        """The copies to delete now, as far as that is known before the journal is asked (`delete`); why none is, is
        logged once while that lasts. `sound` are those that tasks of this process copied to, or found to be their
        sources'.

        Raises ClusterError, and MalformedBatch where the journal cannot be read.
        """
        if settings.sync.deletions == "keep":
            return {}
        copies = {
            assignment.target.topic: assignment
            for assignment in current
            if selects(assignment.source.topic, settings.topics)
        }
        if self._missed is None:  # when they went nobody knows: now they are noticed
            left = gone_topics(settings, self._source, self._target, seen, plan.source_topics).items()
            self._missed = frozenset(topic for copy, topic in left if copy not in copies)
            self._missed_until = clock.monotonic() + _WINDOW_MS / 1000
        gone = self._gone(plan, copies)
        if why := _doubt(plan, self._lost(plan, settings, copies, gone, seen)) if gone else "":
            self._log_kept(settings, gone, _as_lost(settings, why))
            return {}
        kept = self._held_back(settings, plan, copies, gone, seen)
        ours = self._made({topic: assignment for topic, assignment in gone.items() if topic not in kept}, seen)
        kept |= {topic: _UNCHECKED for topic in ours if topic not in sound}
        if checked := {topic: assignment for topic, assignment in ours.items() if topic in sound}:
            ids = {topic: (assignment.topic_id, seen[topic].target_topic_id) for topic, assignment in checked.items()}
            more = asyncio.run(unacknowledged(settings, ids))
            kept |= {topic: f"{why}: somebody else wrote to it; if it is to go" for topic, why in more.items()}
        whys = "; ".join(sorted(set(kept.values())))
        self._log_kept(settings, {topic: gone[topic] for topic in kept}, whys)
        return {topic: assignment for topic, assignment in ours.items() if topic not in kept}

    def _held_back(
        self, settings: Settings, plan: TopicPlan, copies: Copies, gone: Copies, seen: Mapping[str, FirstSeen]
    ) -> dict[str, str]:
        """Of the copies whose sources are gone, those whose source went as the cluster lost records of others."""
        self._held = {topic: why for topic, why in self._held.items() if topic in gone}
        if not (new := gone.keys() - self._held.keys()):
            return {**self._held}
        sign, is_certain = _lost_data(settings, plan, copies, seen)
        found = dict.fromkeys(new, _as_lost(settings, f"topics are gone while {sign}")) if sign else {}
        self._held |= found if is_certain else {}
        return self._held | found

    def _gone(self, plan: TopicPlan, copies: Copies) -> Copies:
        """Those whose source is there no more, each time that it is asked for; one that is hidden from us may be."""
        known, gone = plan.source_topics, dict(copies)
        for tried in range(1 + MISSING_TRIES):
            gone = {topic: assignment for topic, assignment in gone.items() if assignment.source.topic not in known}
            hidden = self._source.denied(
                {assignment.source.topic for assignment in gone.values()}
            )  # whether or not they are there
            gone = {topic: assignment for topic, assignment in gone.items() if assignment.source.topic not in hidden}
            if not gone or tried == MISSING_TRIES:
                break
            time.sleep(_AGAIN_SECONDS)
            known = self._source.describe({assignment.source.topic for assignment in gone.values()})
        return gone

    def _lost(
        self, plan: TopicPlan, settings: Settings, copies: Copies, gone: Copies, seen: Mapping[str, FirstSeen]
    ) -> tuple[int, int]:
        """Return how many source topics were lost in the time that counts, and of how many that there were then: a
        copy that the journal names by another name than now, or whose source was deleted earlier, is none of them.
        """
        since = clock.now_ms() - _WINDOW_MS
        deleted = {
            first_seen.source_topic
            for first_seen in seen.values()
            if first_seen.deleted_ms > since
            and first_seen.source_topic not in plan.source_topics
            and selects(first_seen.source_topic, settings.topics)
        }
        missed = (self._missed or frozenset()) if clock.monotonic() < self._missed_until else frozenset()
        lost = (
            deleted | (missed - plan.source_topics.keys()) | {assignment.source.topic for assignment in gone.values()}
        )
        return len(lost), len(lost | {copy.source.topic for copy in copies.values()})

    def delete(self, settings: Settings, copies: Copies) -> Collection[str]:
        """Delete those of the copies that are `due` which the journal of now lets go; the names of those that
        went, which the journal has then. The target takes no order behind a suspension since it was asked. One that the
        target refuses to delete stays, and is logged once while that lasts. Raises as `due`.
        """
        with self._target.beating() as detector:
            return asyncio.run(self._let_go(settings, copies, detector))

    async def _let_go(self, settings: Settings, copies: Copies, detector: SuspensionDetector) -> Collection[str]:
        self._target.may_go = detector.since()
        async with Cluster(Endpoint.of(settings.target)) as target:
            journal = Journal(target, settings.flow, Clearance(detector, never))
            newest = await journal.newest()
            if not _may_delete(newest):
                return ()
            seen, failures = COPIES.newest(newest), dict[str, MirrorError]()
            ours = sorted(await asyncio.to_thread(self._made, copies, seen))
            ids = {topic: topic_id for topic in ours if (topic_id := seen[topic].target_topic_id) is not None}
            gone = set[str]()
            for topic, topic_id in ids.items():  # each is on record before the next one goes
                try:
                    await asyncio.to_thread(self._target.delete_topics, {topic: topic_id}, failures)
                except Throttled as problem:  # the next round looks again at what is due
                    _log.info("throttled", cluster=self._target.settings.alias, reason=str(problem))
                    break
                if topic not in failures:
                    entry = replace(seen[topic], deleted_ms=clock.now_ms())
                    await journal.append_all([COPIES.entry(topic, entry)])
                    gone.add(topic)
        for topic, why in self._refused.new((topic, str(problem)) for topic, problem in failures.items()):
            advice = "grant DELETE on it, have delete.topic.enable=true on the brokers, or delete it by hand"
            _log.error("copies_not_deleted", flow=settings.flow, topics=topic, reason=f"{why}: {advice}")
        return gone

    def _made(self, copies: Copies, seen: Mapping[str, FirstSeen]) -> Copies:
        """Return those that the flow made, of topics of the cluster that the source is now."""
        made = {topic: known for topic in copies if (known := seen.get(topic)) is not None and known.made}
        if not made:
            return {}
        theirs, source_id = self._target.describe(made), self._source.cluster_id()
        return {
            topic: copies[topic]
            for topic, known in made.items()
            if topic in theirs
            and known.target_topic_id is not None  # by name alone nothing is deleted
            and known.target_topic_id == theirs[topic].topic_id
            and known.cluster_id == source_id
            and known.topic_id == copies[topic].topic_id
        }

    def _log_kept(self, settings: Settings, gone: Copies, why: str) -> None:
        topics, how = (
            first_of(sorted(copy.source.topic for copy in gone.values())),
            "by hand, and start the mirror again",
        )
        for reason in self._kept.new(filter(None, [why])):
            text = f"{reason}, delete their copies on cluster {settings.target.alias} {how}"
            _log.error("copies_not_deleted", flow=settings.flow, topics=topics, reason=text)


def _doubt(plan: TopicPlan, lost: tuple[int, int]) -> str:
    """Return why what is gone is no reason to delete copies; empty where it is. `lost`: how many source topics were
    lost in the time that counts, and of how many.
    """
    if not plan.pairs:
        return "no topic that the flow selects is left"
    if any(not finding.topic for finding in plan.refusals):
        return "topics are gone, and preflight refuses the whole flow,"
    many, of = lost
    if 2 * many > of:
        return f"{many} of the flow's {of} topics are gone"
    return ""


def _as_lost(settings: Settings, why: str) -> str:
    return (
        f"{why} on cluster {settings.source.alias}, as where a source lost its data. Bring it back, or fail over; if"
        " these topics were deleted on purpose"
    )


def _lost_data(settings: Settings, plan: TopicPlan, copies: Copies, seen: Mapping[str, FirstSeen]) -> tuple[str, bool]:
    """What shows that the source lost records of topics that are there, and whether that is certain; empty where
    nothing does.
    """
    left = {
        copy: assignment.source.topic
        for copy, assignment in copies.items()
        if assignment.source.topic in plan.source_topics
    }
    for copy, topic in sorted(left.items()):
        if copy in seen and not same_id(seen[copy].topic_id, plan.source_topics[topic].topic_id):
            return f"{topic} is another topic by that name (RECREATED)", True
    return asyncio.run(source_lost(settings, left, seen))


def _may_delete(journal: Mapping[bytes, bytes]) -> bool:
    """Return whether the newest records of the journal name this process as the flow's owner, and no failover."""
    try:
        owner = Owner.from_json(journal.get(OWNER, b""))
    except NOT_OURS:  # there is none, or somebody else's record, which `mirror status` names
        return False
    return owner.is_this_process and FailedOver.standing(journal) is None


# --- While a mirror runs, both clusters are checked again -------------------------------------------------------------

#: Rounds in the time within which a change is to be seen.
PLANS_IN_INTERVAL: Final = 2
#: The part of that time which a round may spend on each cluster to describe again what seems to be as it was.
_AGAIN: Final = 0.05
#: What another flow's journal forbids may be allowed since: it is read again after so many seconds.
_ASK_OTHERS_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class NewPlan:
    """What is to be mirrored from now on, the target topics that were made for it, and what is to be re-keyed.

    `anew`: target topics that begin anew, the ones `made` among them: the journal knows them by other ids, if at all.
    `refused`: what is left out. `origins`: as `Flow.origins`.
    """

    assignments: tuple[Assignment, ...]
    made: frozenset[str] = frozenset()
    rekeyed: tuple[Rekeying, ...] = ()
    anew: frozenset[str] = frozenset()
    refused: tuple[Refusal, ...] = ()
    origins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def only_adds(self, current: Sequence[Assignment]) -> bool:
        """Whether all that changes is that more is mirrored than `current`, which goes on as it is."""
        added = self.assignments[len(current) :]
        goes_on = self.assignments[: len(current)] == tuple(current)
        return goes_on and bool(added) and self.made | self.anew <= {assignment.target.topic for assignment in added}


def _left_out(refused: Iterable[Refusal], mirrored: Iterable[Assignment]) -> tuple[Refusal, ...]:
    """What is left out of these topics: the partitions that are mirrored, the first ones, had begun."""
    begun = Counter(assignment.source.topic for assignment in mirrored)
    return tuple(
        replace(refusal, first=begun[refusal.source])
        for refusal in refused
        if begun[refusal.source] < max(1, refusal.partitions)
    )


class Replanner:
    """The rounds of one flow, at both of its clusters."""

    def __init__(self, settings: Settings) -> None:
        """Nothing is asked before the first round. `settings` may be replaced between two rounds. `owner`: the claim
        for which it looks, once there is one.
        """
        self.settings = settings
        self.owner: Owner | None = None
        self._ownership = OwnershipCheck()
        self._source, self._target = RememberingAdmin(settings.source), RememberingAdmin(settings.target)
        self._gate = Gate(self._source, self._target, self._hold, live=True)
        self._reconciler = Reconciler(self._gate, self._refuse_lost)
        self._deletions = Deletions(self._source, self._target)
        self._names, self._history = frozenset[tuple[int, str]](), History()
        self._read_at = float("-inf")  # when these journals were read last
        self._held: dict[str, str] = {}
        self._plan: TopicPlan | None = None
        self._basis: tuple[Settings, History, frozenset[str] | None] | None = None
        self._rekeyed = set[str]()  # source topics that were in a plan
        self._refused = Lasting[str]()
        self._advised: set[Finding] | None = None  # none before the first round
        self._acls_held = Lasting[str]()
        self._given: set[Acl] | None = None  # what the flow gave, once its journal was read
        self._took = 0.0
        #: Plan, assignments and first sights of the last round, where it found nothing to do, and what it returned.
        self._settled: tuple[TopicPlan, tuple[Assignment, ...], Mapping[str, FirstSeen], NewPlan] | None = None

    @property
    def pause_seconds(self) -> float:
        """Seconds until the next round: as many at least as the last one took."""
        return max(self.settings.sync.interval_s / PLANS_IN_INTERVAL - self._took, self._took)

    def replan(
        self, current: Sequence[Assignment], seen: Mapping[str, FirstSeen], sound: Collection[str] = ()
    ) -> NewPlan:
        """Check once, and make on the target what is missing; `seen` are the flow's topics by the target's name, and
        `sound` are those copies whose every partition a task of this process copied to, or found to be its source's.

        Raises ClusterError, PreflightError and MalformedBatch: the next round may do.
        """
        began = clock.monotonic()
        try:
            return self._replan(current, seen, sound)
        finally:
            self._took = clock.monotonic() - began

    def _replan(self, current: Sequence[Assignment], seen: Mapping[str, FirstSeen], sound: Collection[str]) -> NewPlan:
        target = self._target
        self._gate.stamped = frozenset(
            assignment.target.topic for assignment in current if assignment.rules.target_append_time
        )
        whole = self._planned(seen, {assignment.target.topic for assignment in current})
        current = [assignment for assignment in current if assignment.target.topic not in self._gate.foreign]
        due = self._deletions.due(self.settings, whole, current, seen, sound)
        if due and (gone := self._deletions.delete(self.settings, due)):
            for topic in gone:
                _log.warning("topic_deleted", cluster=target.settings.alias, topic=topic, reason="its source was")
            left = tuple(assignment for assignment in current if assignment.target.topic not in gone)
            return NewPlan(
                left, refused=_left_out(refused_by(whole), left), origins=whole.history.chains(whole.sources)
            )
        if self._settled is not None and whole is self._settled[0] and (tuple(current), seen) == self._settled[1:3]:
            return self._settled[3]
        anew = self._begun_anew(whole, current)
        self._log_advice(whole.advice)
        self._reconciler.record_compaction(whole, self.settings)
        self._reconciler.made -= {assignment.target.topic for assignment in current}
        done = self._reconciler.carry_out(whole, self.settings)
        for text in self._refused.new(map(str, done.findings)):
            _log.error("not_mirrored", flow=self.settings.flow, reason=text)
        if done.failures or done.applied.unchanged:
            self._plan = None  # tried again at the next round
        if self.settings.sync.acls:
            try:
                self._sync_acls(done.plan, self._reconciler.made)
            except (ClusterError, MalformedBatch) as problem:  # what is to be mirrored is so all the same
                self._log_acls([str(problem)])
        found = self._new_plan(whole, done, current, anew)
        self._settled, before = None, tuple(current)
        if self._plan is whole and not found.anew and found.assignments == before and not self.settings.sync.acls:
            found = replace(found, assignments=before)  # compared by identity from now on
            self._settled = whole, before, seen, found
        return found

    def _new_plan(
        self, whole: TopicPlan, done: CarriedOut, current: Sequence[Assignment], anew: frozenset[str]
    ) -> NewPlan:
        """Return what is to be mirrored once a plan was carried out."""
        planned, topics = assignments_of(self._target, done.plan, self.settings), self.settings.topics
        self._rekeyed |= {rule.source for rule in done.plan.rekeyed}
        names = {assignment.target.topic for assignment in planned}
        source_topics, target_topics = self._source.topics(), self._target.topics()
        lost = {refusal.target for refusal in done.refused if refusal.target not in target_topics}
        lost.difference_update(topic for topic, why in done.failures.items() if isinstance(why, PreflightError))
        lost -= self._target.denied(lost)  # of these their tasks report
        left = [  # of what neither cluster has, or cannot be made anew, there is nothing left to report
            assignment
            for assignment in current
            if assignment.source.topic in source_topics or assignment.target.topic in target_topics
            if assignment.target.topic not in lost
        ]
        made = frozenset(self._reconciler.made & names)
        anew = anew & names | made
        mirrored = renewed(left, planned, lambda topic: selects(topic, topics), anew)
        return NewPlan(
            mirrored,
            made,
            tuple(rule for rule in whole.rekeyed if rule.source in self._rekeyed),  # a query goes by what holds now
            anew,
            _left_out(done.refused, mirrored),
            whole.history.chains(whole.sources),
        )

    def refusals_of(self, settings: Settings, seen: Mapping[str, FirstSeen]) -> list[str]:
        """What preflight refuses with these settings, and does not with those of now. Writes nothing. Raises as
        `replan` does.
        """
        for cluster in (self._source, self._target):  # there may have been no round before
            cluster.refresh(self.settings.sync.interval_s * _AGAIN)
        self._plan = None  # what is other since the last round is in the next plan
        history = replace(self._elsewhere(), seen=seen)

        def refused(asked: Settings) -> dict[tuple[str, Fix | None], str]:
            refusals = Gate(self._source, self._target).plan(asked, history).refusals
            return {(finding.topic, finding.fix): str(finding) for finding in refusals}

        fixed = self._fixed_by_queries(settings)
        if not (found := refused(settings)):
            return fixed
        before = refused(self.settings)  # whose words may be others by now, as of how much a topic holds
        return fixed + sorted(text for what, text in found.items() if what not in before)

    def _fixed_by_queries(self, settings: Settings) -> list[str]:
        """The topics that are re-keyed, and that would not be with these settings, or under another name: their queries
        go on as they began for as long as the mirror runs.
        """
        before, after = self.settings.topics, settings.topics
        return [
            f"{topic}: is re-keyed, and whether it is, and to which name, cannot change while the mirror runs: start it"
            " anew"
            for topic in sorted(self._source.topics())
            if selects(topic, before) and is_rekeyed(topic, before)
            if not selects(topic, after) or before.naming.target_of(topic) != after.naming.target_of(topic)
        ]

    def _planned(self, seen: Mapping[str, FirstSeen], begun: Collection[str]) -> TopicPlan:
        """The last plan, if there was nothing to do and nothing is known to be other than it was then; or a new one.
        What is in it that is not `begun`, by the target's names, is planned by what other flows' journals say now.
        """
        for cluster in (self._source, self._target):
            if cluster.refresh(self.settings.sync.interval_s * _AGAIN):
                self._plan = None
        before = self._read_at
        history = replace(self._elsewhere(), seen=seen)
        plan = self._plan_by(history)
        is_new = self._read_at > before or not self._is_to_ask(plan, begun)
        if is_new or (now := replace(self._read_elsewhere(), seen=seen)) == history:
            return plan
        return self._plan_by(now)

    def _is_to_ask(self, plan: TopicPlan, begun: Collection[str]) -> bool:
        """Whether something of a plan begins, or is not allowed to by what other flows' journals said long ago."""

        def begins(plan: TopicPlan) -> bool:
            new = {rekeying.source for rekeying in plan.rekeyed} - self._rekeyed
            return bool(new or {pair.target for pair in plan.pairs}.difference(begun))

        is_old = clock.monotonic() - self._read_at > _ASK_OTHERS_SECONDS
        return begins(plan.allowed()) or (is_old and begins(plan))

    def _plan_by(self, history: History) -> TopicPlan:
        basis = self.settings, history, self._gate.stamped
        if self._plan is not None and basis == self._basis:
            return self._plan
        before, self._held, self._plan = self._held, {}, None
        plan = self._gate.plan(self.settings, history)
        for topic in self._held.keys() - before.keys():
            _log.warning("topic_left_as_it_is", flow=self.settings.flow, topic=topic, reason=self._held[topic])
        self._plan, self._basis = plan if plan.is_empty and not plan.unread else None, basis
        return plan

    def _refuse_lost(self) -> None:
        self._ownership = OwnershipCheck.of(self.owner, self._ownership.place)
        asyncio.run(self._ownership.refuse_lost(self.settings))

    def _hold(self, topic: str, why: str) -> None:
        self._held[topic] = why

    def _begun_anew(self, plan: TopicPlan, current: Sequence[Assignment]) -> frozenset[str]:
        """Target topics that are there, and are to be filled, under another id than the journal knows, or that it names
        by other ids than they are mirrored by: somebody adopted them.
        """
        mirrored = {
            assignment.target.topic: (assignment.topic_id, assignment.target_topic_id) for assignment in current
        }

        def begins(topic: str, topic_id: UUID | None) -> bool:
            if (seen := plan.history.seen.get(topic)) is None:
                return False
            source_id, target_id = mirrored.get(topic, (None, None))
            named = same_id(seen.topic_id, source_id) and same_id(seen.target_topic_id, target_id)
            return not named or not same_id(seen.target_topic_id, topic_id)

        return frozenset(topic for topic, info in plan.target_topics.items() if begins(topic, info.topic_id))

    def _elsewhere(self) -> History:
        """What journals of other flows say, on both clusters; they are read again when a topic appears on the source,
        which may be a copy, or a journal on the target.
        """
        source, target = frozenset(self._source.topics()), frozenset(self._target.topics())
        own = {name for name in target if name.startswith(OWN_PREFIX)}
        names = frozenset((*((0, name) for name in source), *((1, name) for name in own)))
        if names - self._names:
            self._read_elsewhere()
        self._names = names
        return self._history

    def _read_elsewhere(self) -> History:
        self._history, self._read_at = read_others(self.settings, self._source, self._target), clock.monotonic()
        return self._history

    def _log_advice(self, advice: Iterable[Finding]) -> None:
        """What is advised since the last round; that of the first is what preflight says."""
        now = set(advice)
        if self._advised is not None:
            log_advice(self.settings.flow, sorted(now - self._advised, key=str))
        self._advised = now

    def _sync_acls(self, plan: TopicPlan, made: Collection[str]) -> None:
        settings = self.settings
        if self._given is None:
            self._given = given_in(asyncio.run(read_own(settings)).newest)
        groups, failures = followed_groups(settings, self._source), dict[str, MirrorError]()
        acls, held = self._gate.acls(plan, settings, groups, self._given, made)
        if acls.missing or acls.revoked:
            with asking(self._target, self._refuse_lost) as ask:
                ask()
                self._give(acls, failures)
        texts = (f"{topic}: its ACLs stay as they are: {why}" for topic, why in (held | failures).items())
        self._log_acls(filter(None, (*texts, acls.blocker)))

    def _give(self, acls: AclPlan, failures: dict[str, MirrorError]) -> None:
        assert self._given is not None
        settings, alias = self.settings, self._target.settings.alias
        if acls.missing:  # on record before it is given: who dies in between may take back what was never there
            self._given |= set(acls.missing)
            asyncio.run(record_given(settings, self._given, {acl.resource for acl in acls.missing}))
        create_acls(self._target, acls.missing, failures)
        for acl in acls.missing:
            if acl.name not in failures:
                _log.info("acl_created", cluster=alias, acl=str(acl))
        if acls.revoked:
            delete_acls(self._target, acls.revoked)
            self._given -= set(acls.revoked)
            asyncio.run(record_given(settings, self._given, {acl.resource for acl in acls.revoked}))
            for acl in acls.revoked:
                _log.info("acl_deleted", cluster=alias, acl=str(acl), reason="the source has it no more")

    def _log_acls(self, reasons: Iterable[str]) -> None:
        for reason in self._acls_held.new(reasons):
            _log.warning("acls_not_mirrored", flow=self.settings.flow, reason=reason)


# --- Beside the epochs ------------------------------------------------------------------------------------------------


class Mirroring(Protocol):
    """The mirror that is kept up to date."""

    @property
    def assignments(self) -> Sequence[Assignment] | None:
        """What is mirrored now; None while a plan that was found waits to be adopted."""

    @property
    def owner(self) -> Owner | None:
        """Its claim of the flow."""

    @property
    def seen(self) -> Mapping[str, FirstSeen]:
        """By target topic, as what its source was first seen."""

    @property
    def sound(self) -> Collection[str]:
        """The target topics whose every partition a task of this process found to be its source's, or copied to."""

    async def refuse(self, refused: Sequence[Refusal]) -> None:
        """These topics are left out for now."""

    async def found(self, new_plan: NewPlan) -> None:
        """There is something else to mirror."""

    def rekey(self, new_plan: NewPlan) -> None:
        """The plan's topics are to be re-keyed, those that are already as before."""

    def configured(self, settings: Settings) -> None:
        """Other settings hold from now on."""


class TopicWatcher:
    """One flow's; its mirror gets what it finds."""

    def __init__(self, replanner: Replanner, reload: Callable[[], Settings]) -> None:
        """`reload` reads the configuration again, and may raise ConfigError."""
        self._replanner, self._reload = replanner, reload
        self._asked = asyncio.Event()
        self._is_due = False  # the configuration is to be read again
        self._failing = Lasting[str]()
        self._log = logs.get("mirror.sync").bind(flow=replanner.settings.flow)

    def read_again(self) -> None:
        """Read the configuration again, and check at once."""
        self._asked.set()

    async def run(self, mirror: Mirroring) -> None:
        """Until cancelled. A round that fails is logged once, and the next one may do."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._replanner.pause_seconds):
                    await self._asked.wait()
            if self._asked.is_set():
                self._asked.clear()
                self._is_due = True
            if self._is_due:
                self._is_due = not await self._take_over(mirror)
            if (current := mirror.assignments) is None:
                continue  # compared with what ends, the same plan looks new again, and a deleted copy like one to keep
            self._replanner.owner = mirror.owner
            try:
                before = tuple(current)
                new_plan = await in_background(partial(self._replanner.replan, before, mirror.seen, mirror.sound))
            except (ClusterError, PreflightError, MalformedBatch) as problem:
                for reason in self._failing.new([str(problem)]):
                    self._log.warning("sync_failed", reason=reason)
                continue
            self._failing.new([])
            mirror.rekey(new_plan)
            await mirror.refuse(new_plan.refused)
            if new_plan.made or new_plan.anew or new_plan.assignments != before:
                await mirror.found(new_plan)

    async def _take_over(self, mirror: Mirroring) -> bool:
        """Take over what can change while running. A configuration with a mistake, or one that preflight refuses where
        it does not refuse the old one, is refused whole, and the old one stays: half of it may be what nobody wants,
        as an include with a typo that matches no topic. False while no cluster can be asked whether it is.
        """
        try:
            found = reloaded(self._replanner.settings, self._reload())
            if "flow" in found.in_vain:
                raise ConfigError(f"it is the configuration of another flow than {found.settings.flow}, by its name")
            if fixed := [name for name in found.in_vain if name.startswith("topics.")]:
                raise ConfigError(
                    f"{' and '.join(fixed)} cannot change while the mirror runs, and the rest of topics is meant to "
                    "go with it: start the mirror anew"
                )
            if found.changed:
                refusals = await in_background(partial(self._replanner.refusals_of, found.settings, mirror.seen))
                if refusals:
                    raise ConfigError("; ".join(refusals))
        except (ConfigError, PreflightError) as problem:
            self._log.error("configuration_refused", reason=str(problem))
            return True
        except (ClusterError, MalformedBatch) as problem:
            for reason in self._failing.new([str(problem)]):
                self._log.warning("configuration_waits", reason=reason)
            return False
        except Exception as problem:  # a fault in how a file is checked is no reason to end the mirror
            self._log.exception("configuration_refused", reason=repr(problem))
            return True
        self._replanner.settings = found.settings
        self._log.info("configuration_read", changed=list(found.changed), needs_restart=list(found.in_vain))
        if found.changed:
            mirror.configured(found.settings)
        return True
