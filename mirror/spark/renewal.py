"""While a mirror runs, both clusters are looked at again: what is new there becomes its next plan.

N1  a topic that preflight refuses is left out, and the others go on; what was begun goes on whatever the look says
N2  a copy is deleted where `sync.deletions` asks for it and that is safe (`deletion.py`)
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mirror.admin.acls import create_acls, plan_acls
from mirror.admin.history import History, Own, read_history
from mirror.admin.remembering import RememberingAdmin
from mirror.admin.topics import TopicPlan, apply, plan_topics
from mirror.assignment import Assignment
from mirror.config import Settings
from mirror.observe import logs
from mirror.offsets.firstseen import FirstSeen
from mirror.policy.rekeying import Rekeying
from mirror.policy.selection import selects
from mirror.spark.deletion import Deletions
from mirror.spark.plan import renewed
from mirror.spark.prepare import assignments_of

#: Looks in the time within which a change is to be seen.
LOOKS: Final = 2
#: A look that takes long is followed by a rest that is so many times as long.
_RESTS: Final = 1
#: The part of that time which a look may spend on each cluster to describe again what seems to be as it was.
_AGAIN: Final = 0.05

_log = logs.get("mirror.sync")


@dataclass(frozen=True, slots=True)
class Look:
    """What is to be mirrored from now on, the target topics that were made for it, and what is to be re-keyed."""

    assignments: tuple[Assignment, ...]
    made: frozenset[str] = frozenset()
    rekeyed: tuple[Rekeying, ...] = ()

    def only_adds(self, current: Sequence[Assignment]) -> bool:
        """Whether all that changes is that more is mirrored than `current`, which goes on as it is."""
        added = self.assignments[len(current) :]
        goes_on = self.assignments[: len(current)] == tuple(current)
        return goes_on and bool(added) and self.made <= {one.target.topic for one in added}


class Renewal:
    """The looks of one flow, at both of its clusters."""

    def __init__(self, settings: Settings) -> None:
        """Nothing is asked before the first look. `settings` may be replaced between two looks."""
        self.settings = settings
        self._source, self._target = RememberingAdmin(settings.source), RememberingAdmin(settings.target)
        self._deletions = Deletions(self._source, self._target)
        self._names, self._history = frozenset[str](), History()
        self._plan: TopicPlan | None = None
        self._basis: tuple[Settings, History] | None = None
        self._told: set[str] = set()
        self._hindrance = ""
        self._took = 0.0

    @property
    def rest(self) -> float:
        """Seconds until the next look."""
        return max(self.settings.sync.interval_s / LOOKS - self._took, self._took * _RESTS)

    def look(self, current: Sequence[Assignment], seen: Mapping[str, FirstSeen]) -> Look:
        """Look once, and make on the target what is missing; `seen` are the flow's topics by the target's name.

        Raises ClusterError, PreflightError and MalformedBatch: the next look may do.
        """
        began = time.monotonic()
        try:
            return self._look(current, seen)
        finally:
            self._took = time.monotonic() - began

    def _look(self, current: Sequence[Assignment], seen: Mapping[str, FirstSeen]) -> Look:
        target, plan = self._target, self._planned(seen)
        self._tell(str(finding) for finding in plan.refusals)
        if gone := self._deletions.due(self.settings, plan, current, seen):
            target.delete_topics(gone)
            for topic in gone:
                _log.warning("topic_deleted", cluster=target.settings.alias, topic=topic, reason="its source was")
            return Look(tuple(one for one in current if one.target.topic not in gone))
        plan = plan.allowed()
        made = apply(target, plan)
        if self.settings.sync.acls:
            self._sync_acls(plan)
        planned, topics = assignments_of(target, plan, self.settings), self.settings.topics
        mirrored = renewed(current, planned, lambda topic: selects(topic, topics))
        return Look(mirrored, made.difference(*(one.own_topics for one in plan.rekeyed)), plan.rekeyed)

    def _planned(self, seen: Mapping[str, FirstSeen]) -> TopicPlan:
        """The last plan, if there was nothing to do and nothing is known to be other than it was then; or a new one."""
        seconds = self.settings.sync.interval_s * _AGAIN
        is_other = [cluster.look(seconds) for cluster in (self._source, self._target)]
        basis = self.settings, replace(self._elsewhere(), seen=seen)
        if self._plan is None or any(is_other) or basis != self._basis:
            self._plan = None
            plan = plan_topics(self._source, self._target, *basis)
            self._plan, self._basis = plan if plan.is_empty else None, basis
            return plan
        return self._plan

    def _elsewhere(self) -> History:
        """What journals on the source tell; they are read again when a topic appears there, which may be a copy."""
        names = frozenset(self._source.topics())
        if names - self._names:
            own = Own({}, self._target.cluster_id())
            self._history = asyncio.run(read_history(self.settings, own, names))
        self._names = names
        return self._history

    def _tell(self, refusals: Iterable[str]) -> None:
        """Each refusal once, while it lasts."""
        now = set(refusals)
        for text in sorted(now - self._told):
            _log.error("not_mirrored", flow=self.settings.flow, reason=text)
        self._told = now

    def _sync_acls(self, plan: TopicPlan) -> None:
        acls = plan_acls(self._source, self._target, plan.pairs)
        create_acls(self._target, acls.missing)
        for acl in acls.missing:
            _log.info("acl_created", cluster=self._target.settings.alias, acl=str(acl))
        if acls.hindrance and acls.hindrance != self._hindrance:
            _log.warning("acls_not_mirrored", flow=self.settings.flow, reason=acls.hindrance)
        self._hindrance = acls.hindrance
