"""From one mirror of a flow to the next, over the flow's journal.

H1  a mirror that finds another one at work stands by, until that one has said that it ended, its process is known
    to be gone, or nothing of it has arrived in the journal for `LIVENESS_SECONDS`, by the clock of the one that
    waits: clocks of two machines are never compared. Whoever runs a flow says so again every `RESTATE_SECONDS`
H2  of several that wait one gets the flow: claims have numbers (`owner.py`, U1)
H3  whoever is told to take the flow over claims it at once. The one before, when it reads that, ends its lanes and
    says so; who took over waits for that as in H1. Data that both send is harmless, since the broker knows it again
    by its number, but control markers have none, and two mirrors that fill one gap fill it twice
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from mirror.config import Settings
from mirror.errors import ClusterError, MalformedBatch, PreflightError, WireError
from mirror.observe import logs
from mirror.observe.jsonrecords import NOT_OURS
from mirror.offsets.failover import refuse_failed_over
from mirror.offsets.journal import ENDED, OWNER, Entry, Journal, JournalMissing, News, Place
from mirror.offsets.owner import Claims, Owner, ended_instance, reporter
from mirror.wire.cluster import Cluster, Endpoint

#: A mirror of which nothing arrives for so long is taken for dead. Its lanes end sooner without it (`stopmark.py`).
LIVENESS_SECONDS: Final = 15.0
#: How often whoever has the flow says so.
RESTATE_SECONDS: Final = 3.0
_LOOK_SECONDS: Final = 0.2

_log = logs.get("mirror.supervisor")


@dataclass(slots=True, eq=False)
class Watched:
    """A flow's journal as somebody sees it who does not run the flow. `newest`: the newest record of each key,
    deletions included. `place`: up to where it was read.
    """

    journal: Journal
    newest: dict[bytes, Entry] = field(default_factory=dict)
    claims: Claims = field(default_factory=Claims)
    place: Place | None = None
    _ended: set[str] = field(default_factory=set)
    _heard: dict[str, float] = field(default_factory=dict)
    _reporter: str = ""
    _since: float = 0.0
    _problem: str = ""

    @property
    def values(self) -> dict[bytes, bytes]:
        """The newest value of every key that stands."""
        return {key: entry.value for key, entry in self.newest.items() if entry.value is not None}

    async def look(self) -> News:
        """Learn what is new; that. Raises as `Journal.follow` does."""
        is_first = self.place is None
        news = await self.journal.follow(self.place)
        if is_first or self._problem:
            self._since, self._problem = time.monotonic(), ""
        if news.lost:
            _log.warning("journal_lost_records", flow=self.journal.flow, reason=news.lost.reason)
            self.newest.clear()
            self.claims, self._ended = Claims(), set()
        self.learn(news.entries, are_new=not (is_first or news.lost))
        self.place = news.place
        return news

    async def look_if_possible(self) -> None:
        """The same where the target may be away for a while: what does not arrive then says nothing of anybody."""
        try:
            await self.look()
        except (ClusterError, WireError, MalformedBatch) as problem:
            if not self._problem:
                _log.warning("journal_not_read", flow=self.journal.flow, reason=str(problem))
            self._problem = str(problem) or "silence"

    def learn(self, entries: Iterable[Entry], *, are_new: bool) -> None:
        """Records in the journal's order; whether they arrived just now."""
        now = time.monotonic()
        for entry in entries:
            self.newest[entry.key] = entry
            with contextlib.suppress(*NOT_OURS):
                if entry.key == OWNER and entry.value:
                    self.claims.learn(Owner.read(entry.value))
                elif entry.key == ENDED and entry.value:
                    self._ended.add(ended_instance(entry.value))
                    continue
            if (who := reporter(entry.value)) is not None:
                self._reporter = who
                if are_new:
                    self._heard[who] = now

    def is_heard(self, owner: Owner) -> bool:
        """Something of it has arrived since we look."""
        return owner.instance in self._heard

    def has_said(self, owner: Owner) -> bool:
        """It said that it ended, which is behind the last of its lanes."""
        return owner.instance in self._ended

    def has_ended(self, owner: Owner) -> bool:
        """It said so, or its process is gone."""
        return owner.instance in self._ended or owner.is_gone

    def is_silent(self, owner: Owner) -> bool:
        """Nothing of it has arrived for long."""
        if self._problem:
            return False
        return time.monotonic() - max(self._since, self._heard.get(owner.instance, 0.0)) > LIVENESS_SECONDS

    @property
    def last(self) -> Owner | None:
        """Whoever ran the flow last, or reported where the journal does not say who that was."""
        if self.claims.owner is None and self._reporter:
            return Owner(instance=self._reporter, host="a host that is not known", pid=0, at_ms=0)
        return self.claims.owner

    def current(self, gone: Collection[str] = ()) -> Owner | None:
        """Whoever runs the flow, as far as can be known; `gone` are instances that are known not to. A journal without
        an owner's record, which lost it, may have reports of one all the same.
        """
        owner = self.last
        if owner is None or owner.instance in gone or self.has_ended(owner) or self.is_silent(owner):
            return None
        return owner


@dataclass(frozen=True, slots=True)
class Taken:
    """A flow that was taken: by this owner, with the journal as it was then."""

    owner: Owner
    seen: Watched


async def take(
    journal: Journal,
    instance: str,
    stopping: asyncio.Event,
    *,
    take_over: bool = False,
    waits: bool = True,
    gone: Collection[str] = (),
) -> Taken | None:
    """Claim the flow for `instance`, behind whoever runs it, or at once where it is to be taken over; None where
    `stopping` was set before.

    Raises PreflightError where the flow was failed over, or where it is run by somebody and this one does not wait;
    ClusterError and MalformedBatch as reading the journal does.
    """
    seen = Watched(journal)
    while True:
        older = await stand_by(seen, stopping, take_over=take_over, waits=waits, gone=gone)
        if stopping.is_set():
            return None
        before = seen.claims.owner
        owner = Owner.here(instance, seen.claims.highest + 1)
        await journal.append([(OWNER, owner.to_json())])
        await seen.look()
        if seen.claims.owner is None or seen.claims.owner.instance != instance:
            continue  # somebody else was quicker (H2)
        if older is not None:
            await _until_ended(seen, older, owner, stopping)
        elif before is not None and before.instance not in gone and not seen.has_ended(before):
            _log.warning("older_mirror_silent", flow=journal.flow, older=str(before))
        return Taken(owner, seen)


async def stand_by(
    seen: Watched,
    stopping: asyncio.Event,
    *,
    take_over: bool = False,
    waits: bool = True,
    gone: Collection[str] = (),
) -> Owner | None:
    """Wait until nobody runs the flow (H1), or `stopping` is set; whoever runs it, where it is to be taken over.

    Raises as `take`.
    """
    await seen.look()
    told = ""
    while not stopping.is_set():
        flow = seen.journal.flow
        refuse_failed_over(flow, seen.values)
        if (owner := seen.current(gone)) is None or take_over:
            return owner
        if not waits and seen.is_heard(owner):
            raise PreflightError(
                f"{flow}: a mirror runs already ({owner}). Let that one copy, end it, or take over: --take-over"
            )
        if told != owner.instance:
            told = owner.instance
            _log.info("standing_by", flow=flow, owner=str(owner), advice="--take-over takes the flow at once")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_SECONDS):
                await stopping.wait()
        await seen.look_if_possible()
    return None


async def wait_for_turn(settings: Settings, *, waits: bool) -> bool:
    """Stand by before anything is begun; whether a signal ended that. Raises as `stand_by`, but for a journal that is
    not there: nobody runs the flow then.
    """
    stopping, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    async with Cluster(Endpoint.of(settings.target)) as target:
        with contextlib.suppress(JournalMissing):
            await stand_by(Watched(Journal(target, settings.flow)), stopping, waits=waits)
    return stopping.is_set()


async def _until_ended(seen: Watched, older: Owner, owner: Owner, stopping: asyncio.Event) -> None:
    """Wait for the end of the one that was taken over (H3), or for somebody who takes over from us."""
    restated = told = time.monotonic()
    while not stopping.is_set() and seen.claims.owner is not None and seen.claims.owner.instance == owner.instance:
        if seen.has_ended(older):
            return
        if seen.is_silent(older):
            _log.warning("older_mirror_silent", flow=seen.journal.flow, older=str(older))
            return
        now = time.monotonic()
        if now - told > LIVENESS_SECONDS:
            told = now
            _log.warning("older_mirror_reports", flow=seen.journal.flow, older=str(older), advice="end it")
        if now - restated > RESTATE_SECONDS:
            restated = now
            await restate(seen.journal, owner)
        await asyncio.sleep(_LOOK_SECONDS)
        await seen.look_if_possible()


async def restate(journal: Journal, owner: Owner) -> bool:
    """Say again who has the flow; whether the journal took it."""
    with contextlib.suppress(ClusterError, WireError, TimeoutError):
        async with asyncio.timeout(RESTATE_SECONDS):
            await journal.append([(OWNER, owner.to_json())])
            return True
    return False


async def sign_off(journal: Journal, instance: str) -> None:
    """Say that this is an end and not a crash; a target that is away then just sees us go silent."""
    with contextlib.suppress(ClusterError, TimeoutError):
        async with asyncio.timeout(1.0):
            await journal.append([(ENDED, json.dumps({"instance": instance}).encode())])
