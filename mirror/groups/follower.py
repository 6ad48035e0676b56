"""Follows the groups while the mirror runs, and reports what comes of it: in the log and the journal.

Whatever happens here, the copy goes on: groups are checked again the next time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from mirror import clock
from mirror.errors import ClusterError, WireError
from mirror.groups.decide import GroupStanding
from mirror.groups.side import Blocker
from mirror.groups.sync import GroupSync, Skip, SyncResult
from mirror.journal.journal import Journal
from mirror.journal.offset_maps import cut_entry
from mirror.names import first_of
from mirror.observability import logs
from mirror.observability.status import KEY, GroupFigures
from mirror.suspension import always

#: A round that took longer than the interval is followed by as long a pause, up to this: it spares brokers that labour.
LONGEST_REST: Final = 5.0
#: Figures that stay as they are go to the journal as often as those of an idle partition.
REPORT_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 0.1
#: What the last round may take: when a bounded copy is done, and when the mirror is asked to stop.
LAST_SYNC_SECONDS: Final = 10.0
STOP_SECONDS: Final = 1.0
_NOT_RENEWED: Final = "offsets that did not move were not committed again in time: brokers forget them some days after"
_NOT_ASKED: Final = "unknown which stay behind, since the mirror was to end before it asked"


def _nobody(_: bool) -> None:
    """Nobody wants to know."""


@dataclass(slots=True, eq=False)
class GroupFollower:
    """One flow's groups. `instance` is the process that reports, `interval` the seconds from one round to the next;
    `on_sync` is called with True when groups begin to be chosen and with each round that nothing stood in the way of,
    and with False when none are any more. `may_go_on` is asked before each round.
    """

    sync: GroupSync
    journal: Journal
    instance: str
    interval: float
    on_sync: Callable[[bool], None] = _nobody
    may_go_on: Callable[[], Awaitable[bool]] = always
    _met: dict[str, set[str]] = field(default_factory=dict)
    _warned: dict[str, set[str]] = field(default_factory=dict)
    _reported: GroupFigures | None = None
    _blockers: tuple[Blocker, ...] = ()
    _mistake: str = ""
    _are_chosen: bool = False
    _syncing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _log: logs.Log = field(default_factory=lambda: logs.get("mirror.groups"))

    def __post_init__(self) -> None:
        self._say_whether_chosen()  # groups that never follow are behind since then

    async def run(self) -> None:
        """Until cancelled. Raises nothing. Groups may be asked for later, by a configuration that is read again."""
        while True:
            began = clock.monotonic()
            self._say_whether_chosen()
            if self.sync.include:
                await self._step()
            took = clock.monotonic() - began
            await asyncio.sleep(max(self.interval - took, min(took, LONGEST_REST)))

    async def finish(self, stopping: asyncio.Event) -> str:
        """One more complete round, when nothing is mirrored any more: `run` may be under way, or cancelled. What keeps
        groups from following, and which ones stay behind; empty where nothing does. Once `stopping` is set, the latter
        is not asked, and so not known; else a round follows that commits again what did not move.

        Takes at most `LAST_SYNC_SECONDS` for each round, and at most `STOP_SECONDS` more once `stopping` is set.
        """
        last = asyncio.create_task(self._last_sync(stopping))
        stopped = asyncio.create_task(stopping.wait())
        await asyncio.wait([last, stopped], timeout=LAST_SYNC_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if stopping.is_set():
            await asyncio.wait([last], timeout=STOP_SECONDS)
        causes = sorted({blocker.cause for blocker in self._blockers})
        if last.done():
            causes += last.result()
        else:
            causes = ["no complete round in time"]
            self._log.warning("groups_not_finished", flow=self.journal.flow, reason=causes[0])
        tasks: list[asyncio.Task[Any]] = [last, stopped]
        if last.done() and not stopping.is_set():
            tasks.append(renewal := asyncio.create_task(self._renew()))
            await asyncio.wait([renewal, stopped], timeout=LAST_SYNC_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not renewal.done():
                self._log.warning("groups_not_finished", flow=self.journal.flow, reason=_NOT_RENEWED)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        if not (causes and self.sync.include):
            return ""
        return f"consumer groups do not follow: {first_of(causes)} (groups.include chooses them, [] for none)"

    def _say_whether_chosen(self) -> None:
        if self._are_chosen != bool(self.sync.include):
            self._are_chosen = not self._are_chosen
            self.on_sync(self._are_chosen)

    async def _last_sync(self, stopping: asyncio.Event) -> list[str]:
        """The groups that stay behind; a mirror that is to stop does not ask."""
        while self.sync.include:
            if await self._step():
                return [_NOT_ASKED] if stopping.is_set() else await self.sync.left_behind()
            await asyncio.sleep(RETRY_SECONDS)
        return []

    async def _renew(self) -> None:
        while self.sync.include:
            if await self._step(renewing=True):
                return
            await asyncio.sleep(RETRY_SECONDS)

    async def _step(self, *, renewing: bool = False) -> bool:
        """One round, logged; whether it was complete."""
        async with self._syncing:
            try:
                may_go = self.sync.detector.since()
                if not await self.may_go_on():
                    return False
                result = await self.sync.sync_once(renewing=renewing, may_go=may_go)
                self._log_skips(result)
                self._blockers = result.blockers
                blockers = list(result.blockers)
                if not blockers:
                    self.on_sync(True)
                if result.is_complete:
                    blockers += await self._report(result)
                self._warn(blockers)
            except Exception as mistake:  # one of ours, which must not end the copy
                if repr(mistake) != self._mistake:
                    self._mistake = repr(mistake)
                    self._log.exception("groups_not_followed", flow=self.journal.flow)
                return False
            return result.is_complete

    async def _report(self, result: SyncResult) -> list[Blocker]:
        try:
            if result.cuts:
                await self.journal.append_all(cut_entry(partition, cut) for partition, cut in result.cuts.items())
        except (ClusterError, WireError) as problem:
            return [Blocker("the journal was not written", detail=str(problem))]
        now = clock.now_ms()
        figures = GroupFigures(
            instance=self.instance,
            at_ms=now,
            groups=sum(result.standings.values()),
            synced=result.standings.get(GroupStanding.SYNCED, 0),
            held_back=result.standings.get(GroupStanding.HELD_BACK, 0),
            expired=result.standings.get(GroupStanding.EXPIRED, 0),
            ahead=result.standings.get(GroupStanding.AHEAD, 0),
            active=result.standings.get(GroupStanding.ACTIVE, 0),
            blocked=result.standings.get(GroupStanding.BLOCKED, 0),
        )
        before = self._reported
        if before and before.counts == figures.counts and now - before.at_ms < REPORT_SECONDS * 1000:
            return []
        try:
            await self.journal.append([(KEY, figures.to_json())])
        except (ClusterError, WireError) as problem:
            return [Blocker("the journal was not written", detail=str(problem))]
        self._reported = figures
        return []

    def _log_skips(self, result: SyncResult) -> None:
        """One event for each group that passes over records which the target has deleted, and the source has not."""
        by_group: dict[str, list[Skip]] = {}
        for skip in result.skips:
            if skip.kept != 0:
                by_group.setdefault(skip.group, []).append(skip)
        for group, skips in by_group.items():
            kept = [skip.kept for skip in skips]
            self._log.warning(
                "group_skips_records",
                flow=self.journal.flow,
                group=group,
                partitions=first_of([str(skip.at) for skip in skips]),
                records=sum(skip.records for skip in skips),
                source_still_has="unknown" if None in kept else sum(filter(None, kept)),
                reason="the target deleted them: the group goes on at its log start",
            )

    def _warn(self, blockers: Iterable[Blocker]) -> None:
        """Each cause once, and again for groups that it did not concern before; a cause that went may come anew. What
        is expected to heal by itself, as a coordinator that is just being made, is logged where the next round meets
        it.
        """
        met: dict[str, set[str]] = {}
        now: dict[str, set[str]] = {}
        details: dict[str, str] = {}
        for blocker in blockers:
            cause, group = blocker.cause, blocker.group
            met.setdefault(cause, set()).add(group)
            if not blocker.passing or group in self._met.get(cause, ()):
                now.setdefault(cause, set()).add(group)
            details.setdefault(cause, blocker.detail)
        for cause, groups in now.items():
            if fresh := groups - self._warned.get(cause, set()):
                named = {"groups": first_of(sorted(fresh))} if any(fresh) else {}
                more = {"reason": details[cause]} if details[cause] else {}
                self._log.warning("groups_blocked", flow=self.journal.flow, cause=cause, **named, **more)
        self._met, self._warned = met, now
