"""While a mirror runs, both clusters are looked at again: what is new there becomes its next plan.

N1  a topic that preflight refuses is left out, and the others go on; what was begun goes on whatever the look says, as
    long as its copy is there
N2  a copy is deleted where `sync.deletions` asks for it and that is safe (`deletion.py`)
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from mirror.admin.acls import Acl, create_acls, delete_acls, given_in, plan_acls, record_given
from mirror.admin.adoption import Gate
from mirror.admin.history import History, Own, read_history, read_own
from mirror.admin.plan import followed_groups
from mirror.admin.remembering import RememberingAdmin
from mirror.admin.topics import TopicPlan, apply, plan_topics
from mirror.assignment import Assignment
from mirror.config import Settings
from mirror.errors import MirrorError, PreflightError
from mirror.observe import logs
from mirror.offsets.firstseen import FirstSeen, same_id
from mirror.policy.rekeying import Rekeying
from mirror.policy.selection import OWN_PREFIX, selects
from mirror.spark.deletion import Deletions
from mirror.spark.flow import Refusal
from mirror.spark.plan import renewed
from mirror.spark.prepare import assignments_of, refused_by

#: Looks in the time within which a change is to be seen.
LOOKS: Final = 2
#: A look that takes long is followed by a rest that is so many times as long.
_RESTS: Final = 1
#: The part of that time which a look may spend on each cluster to describe again what seems to be as it was.
_AGAIN: Final = 0.05

_log = logs.get("mirror.sync")


@dataclass(frozen=True, slots=True)
class Look:
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
        return goes_on and bool(added) and self.made | self.anew <= {one.target.topic for one in added}


class Renewal:
    """The looks of one flow, at both of its clusters."""

    def __init__(self, settings: Settings) -> None:
        """Nothing is asked before the first look. `settings` may be replaced between two looks."""
        self.settings = settings
        self._source, self._target = RememberingAdmin(settings.source), RememberingAdmin(settings.target)
        self._gate = Gate(self._source, self._target, self._hold)
        self._deletions = Deletions(self._source, self._target)
        self._names, self._history = frozenset[tuple[int, str]](), History()
        self._held: dict[str, str] = {}
        self._acls_held: set[str] = set()
        self._plan: TopicPlan | None = None
        self._basis: tuple[Settings, History] | None = None
        self._told: set[str] = set()
        self._acl_blocker = ""
        self._given: set[Acl] | None = None  # what the flow gave, once its journal was read
        self._took = 0.0

    @property
    def rest(self) -> float:
        """Seconds until the next look."""
        return max(self.settings.sync.interval_s / LOOKS - self._took, self._took * _RESTS)

    def look(self, current: Sequence[Assignment], seen: Mapping[str, FirstSeen], sound: Collection[str] = ()) -> Look:
        """Look once, and make on the target what is missing; `seen` are the flow's topics by the target's name, and
        `sound` are those copies whose every partition a task of this process copied to, or found to be its source's.

        Raises ClusterError, PreflightError and MalformedBatch: the next look may do.
        """
        began = time.monotonic()
        try:
            return self._look(current, seen, sound)
        finally:
            self._took = time.monotonic() - began

    def _look(self, current: Sequence[Assignment], seen: Mapping[str, FirstSeen], sound: Collection[str]) -> Look:
        target = self._target
        whole, history = self._planned(seen)
        current = [one for one in current if one.target.topic not in self._gate.foreign]
        if gone := self._deletions.due(self.settings, whole, current, seen, sound):
            target.delete_topics(gone)
            for topic in gone:
                _log.warning("topic_deleted", cluster=target.settings.alias, topic=topic, reason="its source was")
            left = tuple(one for one in current if one.target.topic not in gone)
            return Look(left, refused=refused_by(whole), origins=_origins(whole, history))
        anew = self._begun_anew(whole, history)
        failures: dict[str, MirrorError] = {}
        made = apply(target, whole.allowed(), failures)
        self._tell([*map(str, whole.refusals), *(f"{topic}: {why}" for topic, why in failures.items())])
        plan = whole.allowed().without(failures)
        if failures:
            self._plan = None  # tried again at the next look
        if self.settings.sync.acls:
            self._sync_acls(plan, history, made)
        planned, topics = assignments_of(target, plan, self.settings), self.settings.topics
        refused = refused_by(whole, failures)
        ours, theirs = self._source.topics(), target.topics()  # with neither there is nothing left to tell of
        current = [one for one in current if one.source.topic in ours or one.target.topic in theirs]
        lost = {one.target for one in refused if one.target not in theirs}  # nor can their copies be made anew
        lost.difference_update(topic for topic, why in failures.items() if isinstance(why, PreflightError))
        current = [one for one in current if one.target.topic not in lost]
        anew = anew.intersection(one.target.topic for one in planned)
        mirrored = renewed(current, planned, lambda topic: selects(topic, topics), anew | made)
        begun = {one.source.topic for one in mirrored}
        return Look(
            mirrored,
            made.difference(*(one.own_topics for one in plan.rekeyed)),
            plan.rekeyed,
            anew | made.difference(*(one.own_topics for one in plan.rekeyed)),
            tuple(one for one in refused if one.source not in begun),
            _origins(whole, history),
        )

    def refusals_of(self, settings: Settings, seen: Mapping[str, FirstSeen]) -> list[str]:
        """What preflight refuses with these settings, and does not with those of now. Writes nothing. Raises as `look`
        does.
        """
        for cluster in (self._source, self._target):  # there may have been no look before
            cluster.look(self.settings.sync.interval_s * _AGAIN)
        self._plan = None  # what is other since the last look is in the next plan
        history = replace(self._elsewhere(), seen=seen)

        def refused(asked: Settings) -> set[str]:
            return {str(finding) for finding in plan_topics(self._source, self._target, asked, history).refusals}

        if not (found := refused(settings)):
            return []
        return sorted(found - refused(self.settings))

    def _planned(self, seen: Mapping[str, FirstSeen]) -> tuple[TopicPlan, History]:
        """The last plan, if there was nothing to do and nothing is known to be other than it was then; or a new one."""
        seconds = self.settings.sync.interval_s * _AGAIN
        is_other = [cluster.look(seconds) for cluster in (self._source, self._target)]
        history = replace(self._elsewhere(), seen=seen)
        basis = self.settings, history
        if self._plan is None or any(is_other) or basis != self._basis:
            before, self._held, self._plan = self._held, {}, None
            plan = self._gate.plan(*basis)
            for topic in self._held.keys() - before.keys():
                _log.warning("topic_left_as_it_is", flow=self.settings.flow, topic=topic, reason=self._held[topic])
            self._plan, self._basis = plan if plan.is_empty else None, basis
            return plan, history
        return self._plan, history

    def _hold(self, topic: str, why: str) -> None:
        self._held[topic] = why

    def _begun_anew(self, plan: TopicPlan, history: History) -> frozenset[str]:
        """Target topics that are there, and are to be filled, under another id than the journal knows."""
        return frozenset(
            topic
            for topic, info in plan.target_topics.items()
            if (seen := history.seen.get(topic)) is not None and not same_id(seen.target_topic_id, info.topic_id)
        )

    def _elsewhere(self) -> History:
        """What journals of other flows tell, on both clusters; they are read again when a topic appears on the source,
        which may be a copy, or a journal on the target.
        """
        source, target = frozenset(self._source.topics()), frozenset(self._target.topics())
        own = {one for one in target if one.startswith(OWN_PREFIX)}
        names = frozenset((*((0, one) for one in source), *((1, one) for one in own)))
        if names - self._names:
            known = Own({}, self._target.cluster_id())
            self._history = asyncio.run(read_history(self.settings, known, source, target))
        self._names = names
        return self._history

    def _tell(self, refusals: Iterable[str]) -> None:
        """Each refusal once, while it lasts."""
        now = set(refusals)
        for text in sorted(now - self._told):
            _log.error("not_mirrored", flow=self.settings.flow, reason=text)
        self._told = now

    def _sync_acls(self, plan: TopicPlan, history: History, made: Collection[str]) -> None:
        settings, alias = self.settings, self._target.settings.alias
        if self._given is None:
            self._given = given_in(asyncio.run(read_own(settings)).newest)
        followed = followed_groups(settings, self._source)
        principals = settings.sync.acl_principals
        found = plan_acls(self._source, self._target, plan.pairs, followed, self._given, principals)
        held = self._gate.held(found.topics - frozenset(made), plan, history, settings)
        acls, failures = found.leaving(held), dict[str, MirrorError]()
        if acls.missing:  # on record before it is given: who dies in between may take back what was never there
            self._given |= set(acls.missing)
            asyncio.run(record_given(settings, self._given, {one.resource for one in acls.missing}))
        create_acls(self._target, acls.missing, failures)
        for acl in acls.missing:
            if acl.name not in failures:
                _log.info("acl_created", cluster=alias, acl=str(acl))
        if acls.revoked:
            delete_acls(self._target, acls.revoked)
            self._given -= set(acls.revoked)
            asyncio.run(record_given(settings, self._given, {one.resource for one in acls.revoked}))
            for acl in acls.revoked:
                _log.info("acl_deleted", cluster=alias, acl=str(acl), reason="the source has it no more")
        texts = {f"{topic}: its ACLs stay as they are: {why}" for topic, why in (held | failures).items()}
        for text in sorted(texts - self._acls_held):
            _log.warning("acls_not_mirrored", flow=settings.flow, reason=text)
        self._acls_held = texts
        if acls.blocker and acls.blocker != self._acl_blocker:
            _log.warning("acls_not_mirrored", flow=settings.flow, reason=acls.blocker)
        self._acl_blocker = acls.blocker


def _origins(plan: TopicPlan, history: History) -> dict[str, tuple[str, ...]]:
    return {pair.source: history.chain(pair.source) for pair in plan.pairs}
