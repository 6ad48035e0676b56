"""Who owns a flow: claims, hand-over from one mirror to the next, failovers, and commands that hold it.

- Claims have numbers, each one more than the one before. Of two with one number the first in the log holds; a record
  with a number that is not greater is a repetition, or has lost a race: it changes nothing. So a record that the wire
  sends again, and that lands late, ends nobody.
- Records without a number are of a version before 0.2: one of an instance that was not seen before counts as a new
  claim.
- A process's number shows whether it lives only where it was given: on the same boot of a machine, in the same
  namespace of process ids. Two containers may have one host name, and each a process 1 that lives.

A running mirror that reads the record ends in good order, and none begins while it stands. Stock brokers know no topic
that is read-only or writable: the mirror being the sole writer is what makes a target topic a copy, and this record is
what ends that. It is taken back by deleting it.

A record that cannot be read counts as one that stands: whatever made it so, to write on where a failover may have been
is worse than to ask a person.

With it the flow lets go of the topics that it made (`journal/entries.py`), for good: whoever uses them owns them, so a
flow that runs again must not delete one because its source is gone, which a failback asks for.

A failover does more behind that record, and may be lost in the midst of it: as long as the journal keeps no account of
one (`commands/failover_view.py`), whoever calls it again finishes it.

- A mirror that finds another one at work stands by, until that one has said that it ended, its process is known to be
  gone, or nothing of it has arrived in the journal for `LIVENESS_SECONDS`, by the clock of the one that waits: clocks
  of two machines are never compared. Whoever runs a flow says so again every `RESTATE_SECONDS`.
- Of several that wait one gets the flow: claims have numbers.
- Whoever is asked to take the flow over claims it at once. The one before, when it reads that, ends its tasks and says
  so; who took over waits for that as in H1. Data that both send is harmless, since the broker knows it again by its
  number, but control markers have none, and two mirrors that fill one gap fill it twice.

The command's own work may block, so that the claim has a thread of its own. Whoever takes the flow over is seen by the
tasks themselves, each of which reads the journal (`spark/restore.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Final, Self

import psutil
from pydantic import Field

from mirror import clock
from mirror.config import Settings
from mirror.errors import ClusterError, ClusterUnreachable, FlowRuns, MalformedBatch, PreflightError, WireError
from mirror.journal.entries import COPIES
from mirror.journal.journal import ENDED, OWNER, Change, Entry, Journal, JournalMissing, JournalPlace, News, newest
from mirror.kafka.cluster import Cluster, Endpoint
from mirror.observability import logs
from mirror.observability.json_record import Int64, JsonRecord
from mirror.observability.status import NOT_OURS

# --- Which process runs a flow, as the journal says (`owner`, `ended`) ------------------------------------------------

#: More claims than any flow sees. The bound leaves room for the next one.
_CLAIMS: Final = 2**53
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE: Final = Path("/proc/self/ns/pid")


@cache
def place_of_numbers() -> str:
    """Return what this process shares with those whose numbers it can look up; empty where the system does not say."""
    try:
        return f"{_BOOT.read_text().strip()}/{_NAMESPACE.readlink()}"
    except OSError:
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner(JsonRecord):
    """Names the process that last took the flow."""

    instance: str
    host: str
    #: As large as on any machine: anybody may write to a topic.
    pid: Annotated[int, Field(ge=0, lt=2**31)]
    #: When, Unix ms.
    at_ms: Int64
    #: The number of its claim, None where the record has none.
    claim: Annotated[int, Field(ge=0, lt=_CLAIMS)] | None = None
    #: Where its process id means anything, empty where that is not known.
    place: str = ""

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}"

    @classmethod
    def here(cls, instance: str, claim: int | None = None) -> Owner:
        """This process, now."""
        now = clock.now_ms()
        host = socket.gethostname()
        return cls(instance=instance, host=host, pid=os.getpid(), at_ms=now, claim=claim, place=place_of_numbers())

    def supersedes(self, instance: str, claim: int) -> bool:
        """It claimed the flow behind another process, whose claim had that number."""
        return self.instance != instance and (self.claim or 0) > claim

    @property
    def is_here(self) -> bool:
        """It ran where this process does, so its own can be looked at."""
        here = place_of_numbers()
        return self.host == socket.gethostname() and (not self.place or not here or self.place == here)

    @property
    def is_this_process(self) -> bool:
        """It is the process that asks."""
        return self.is_here and self.pid == os.getpid()

    @property
    def lives(self) -> bool:
        """There is such a process here."""
        return self.is_here and psutil.pid_exists(self.pid)

    @property
    def is_gone(self) -> bool:
        """Its process is known to have ended; ours may have its number by now."""
        return self.is_here and (self.pid == os.getpid() or not self.lives)


@dataclass(slots=True, eq=False)
class Claims:
    """Which process has the flow, by its owner records in the journal's order."""

    owner: Owner | None = None
    highest: int = 0
    _seen: set[str] = field(default_factory=set)

    def learn(self, owner: Owner) -> bool:
        """One more record; whether it is a new claim."""
        number = owner.claim
        if number is None:
            number = 0 if owner.instance in self._seen else self.highest + 1
        self._seen.add(owner.instance)
        if number <= self.highest:
            return False
        self.owner, self.highest = owner, number
        return True

    def knows(self, instance: str) -> bool:
        """Whether a record of this instance was seen."""
        return instance in self._seen


@dataclass(frozen=True, slots=True)
class Reporter(JsonRecord):
    """Names the process that a record is from, whatever else it reports."""

    instance: str


def reporter(value: bytes | None) -> str | None:
    """Return the instance that a record names; None where it names none."""
    if value is not None and b'"instance"' in value:
        with contextlib.suppress(*NOT_OURS):
            return Reporter.from_json(value).instance
    return None


# --- That a flow was failed over, as its journal says under `failover` ------------------------------------------------

KEY: Final = b"failover"
#: What it reported.
ACCOUNT: Final = b"failover/account"
#: Milliseconds up to the year 9999, which is as far as a time can be shown.
_LAST_MS: Final = 253_402_300_800_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedOver(JsonRecord):
    """Says when and from where the flow was failed over."""

    #: Unix ms.
    at_ms: Annotated[int, Field(ge=0, lt=_LAST_MS)]
    host: str
    pid: Int64
    #: The mirrors of which nobody knew then that they had ended.
    silent: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"at {datetime.fromtimestamp(self.at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC from {self.host}"

    @classmethod
    def here(cls, silent: Iterable[str] = ()) -> Self:
        """From this process, now."""
        owner = Owner.here("")
        return cls(at_ms=clock.now_ms(), host=owner.host, pid=owner.pid, silent=tuple(silent))

    @classmethod
    def standing(cls, known: Mapping[bytes, bytes]) -> Self | Garbled | None:
        """What the newest records of a journal say; None where the flow may run."""
        return None if (value := known.get(KEY)) is None else cls.read_or_garbled(value)

    @classmethod
    def read_or_garbled(cls, value: bytes) -> Self | Garbled:
        """What the record says, whatever it holds."""
        try:
            return cls.from_json(value)
        except NOT_OURS as problem:
            return Garbled(repr(problem))


@dataclass(frozen=True, slots=True)
class Garbled:
    """A record of a failover that cannot be read, for the reason given; nothing is written while it stands."""

    reason: str

    def __str__(self) -> str:
        return f"as far as is known: the record `{KEY.decode()}` of its journal cannot be read ({self.reason})"


def ending(known: Mapping[bytes, bytes], silent: Iterable[str] = ()) -> list[Change]:
    """The records that end a flow, to be appended in order; `known` are the newest records of its journal, `silent` as
    in `FailedOver`. The failover comes last: a flow that goes on since that failed has let go of topics, which only
    stay when their sources are gone. The account of an earlier one is none of this one.
    """
    made = {topic: seen for topic, seen in COPIES.newest(known).items() if seen.made}
    released = [COPIES.entry(topic, replace(seen, made=False)) for topic, seen in made.items()]
    return [*released, (ACCOUNT, None), (KEY, FailedOver.here(silent).to_json())]


def is_finished(newest: Mapping[bytes, bytes]) -> bool:
    """Return True if the recorded failover has its account; the next call finishes one that was lost before it had."""
    return ACCOUNT in newest


def refuse_failed_over(flow: str, known: Mapping[bytes, bytes]) -> None:
    """Raise PreflightError where the newest records of a flow's journal say that it was failed over."""
    if done := FailedOver.standing(known):
        raise _failed_over(flow, done)


def _failed_over(flow: str, done: FailedOver | Garbled) -> PreflightError:
    return PreflightError(
        f"{flow}: failed over {done}: its target topics may be in use, so this flow writes there no more. "
        "Mirror back with a flow in the other direction (RUNBOOK: Failback), or, where nobody has written to the "
        "target, let this one go on: mirror failover CONFIG --undo"
    )


@dataclass(slots=True)
class OwnershipCheck:
    """Whether a flow still is its owner's, asked again and again.

    `instance`: the owner.
    `claim`: the number of its claim; 0 asks only whether the flow was failed over.
    `place`: up to where the journal was judged, so that each check reads only what is new; None reads all of it.
    """

    instance: str = ""
    claim: int = 0
    place: JournalPlace | None = None

    @classmethod
    def of(cls, owner: Owner | None, place: JournalPlace | None = None) -> Self:
        """For the process that has the flow; None for one that has none."""
        return cls(owner.instance, owner.claim or 0, place) if owner is not None else cls(place=place)

    async def lost(self, journal: Journal) -> FailedOver | Garbled | Owner | None:
        """What ended the ownership: a failover that stands, or whoever claimed the flow since. None where nothing did,
        and where there is no journal: whoever runs the flow makes it anew. Raises as `Journal.follow` does.
        """
        try:
            news = await journal.follow(self.place)
        except JournalMissing:
            return None
        if (done := FailedOver.standing(newest(news.entries))) is not None:
            return done
        # A journal that was made anew counts claims from one: whoever has claimed there is the next one.
        is_anew = self.place is not None and news.place.topic_id != self.place.topic_id
        for entry in news.entries:  # any of them: an earlier owner may have restated its claim behind a newer one
            if entry.key == OWNER and entry.value:
                with contextlib.suppress(*NOT_OURS):
                    owner = Owner.from_json(entry.value)
                    is_next = owner.supersedes(self.instance, self.claim) or (
                        is_anew and owner.instance != self.instance
                    )
                    if self.claim and is_next:
                        return owner
        self.place = news.place
        return None

    async def refuse_lost(self, settings: Settings) -> None:
        """Raise PreflightError where it was lost. ClusterError and MalformedBatch as `Journal.follow`."""
        async with Cluster(Endpoint.of(settings.target)) as target:
            lost = await self.lost(Journal(target, settings.flow))
        if isinstance(lost, Owner):
            raise PreflightError(f"{settings.flow}: another mirror ({lost}) took the flow over")
        if lost is not None:
            raise _failed_over(settings.flow, lost)


# --- From one mirror of a flow to the next, over the flow's journal ---------------------------------------------------

#: A mirror of which nothing arrives for so long is taken for dead. Its tasks end sooner without it
#: (`driver/control.py`).
LIVENESS_SECONDS: Final = 15.0
#: How often whoever has the flow says so.
RESTATE_SECONDS: Final = 3.0
_POLL_SECONDS: Final = 0.2

_log = logs.get("mirror.supervisor")


@dataclass(slots=True, eq=False)
class Watched:
    """A flow's journal as somebody sees it who does not run the flow. `newest`: the newest record of each key,
    deletions included. `place`: up to where it was read.
    """

    journal: Journal
    newest: dict[bytes, Entry] = field(default_factory=dict)
    claims: Claims = field(default_factory=Claims)
    place: JournalPlace | None = None
    _ended: set[str] = field(default_factory=set)
    _heard: dict[str, float] = field(default_factory=dict)
    _reporter: str = ""
    _since: float = 0.0
    _read: float = 0.0
    _problem: str = ""

    @property
    def values(self) -> dict[bytes, bytes]:
        """The newest value of every key that stands."""
        return {key: entry.value for key, entry in self.newest.items() if entry.value is not None}

    async def poll(self) -> News:
        """Learn what is new; that. Raises as `Journal.follow` does."""
        is_first = self.place is None
        news = await self.journal.follow(self.place)
        self._read = clock.monotonic()
        if is_first or self._problem:
            self._since, self._problem = self._read, ""
        if news.lost:
            _log.warning("journal_lost_records", flow=self.journal.flow, reason=news.lost.reason)
            self.newest.clear()
            self.claims, self._ended = Claims(), set()
        self.learn(news.entries, are_new=not (is_first or news.lost))
        self.place = news.place
        return news

    async def poll_if_possible(self) -> None:
        """The same where the target may be away for a while: what does not arrive then says nothing of anybody."""
        try:
            await self.poll()
        except (ClusterError, WireError, MalformedBatch) as problem:
            if not self._problem:
                _log.warning("journal_not_read", flow=self.journal.flow, reason=str(problem))
            self._problem = str(problem) or "silence"

    def learn(self, entries: Iterable[Entry], *, are_new: bool) -> None:
        """Records in the journal's order; whether they arrived just now."""
        now = clock.monotonic()
        for entry in entries:
            self.newest[entry.key] = entry
            with contextlib.suppress(*NOT_OURS):
                if entry.key == OWNER and entry.value:
                    self.claims.learn(Owner.from_json(entry.value))
                elif entry.key == ENDED and entry.value:
                    self._ended.add(Reporter.from_json(entry.value).instance)
                    continue
            if (who := reporter(entry.value)) is not None:
                self._reporter = who
                if are_new:
                    self._heard[who] = now

    def is_heard(self, owner: Owner) -> bool:
        """Something of it has arrived since we look."""
        return owner.instance in self._heard

    def has_said(self, owner: Owner) -> bool:
        """It said that it ended, which is behind the last of its tasks."""
        return owner.instance in self._ended

    def has_ended(self, owner: Owner) -> bool:
        """It said so, or its process is gone."""
        return owner.instance in self._ended or owner.is_gone

    def is_silent(self, owner: Owner) -> bool:
        """Nothing of it has arrived for long, by the last time that was read: who does not read hears nobody."""
        if self._problem:
            return False
        return self._read - max(self._since, self._heard.get(owner.instance, 0.0)) > LIVENESS_SECONDS

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
    gone: Collection[str] = (),
) -> Taken | None:
    """Claim the flow for `instance` once nobody runs it, or at once where it is to be taken over; None where `stopping`
    was set before.

    Raises PreflightError where the flow was failed over, FlowRuns where somebody is heard who runs it;
    ClusterError and MalformedBatch as reading the journal does.
    """
    seen = Watched(journal)
    while True:
        older = await stand_by(seen, stopping, take_over=take_over, waits=False, gone=gone)
        if stopping.is_set():
            return None
        before = seen.claims.owner
        owner = Owner.here(instance, seen.claims.highest + 1)
        await journal.append([(OWNER, owner.to_json())])
        await seen.poll()
        if seen.claims.highest < (owner.claim or 0):  # to claim again and again would never end
            raise ClusterUnreachable(
                f"{journal.cluster}: topic {journal.partition.topic} does not give back what was written to it: see its"
                " settings, and the warnings journal_batch_unread"
            )
        if seen.claims.owner is None or seen.claims.owner.instance != instance:
            continue  # somebody else was quicker
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
    """Wait until nobody runs the flow, or `stopping` is set; whoever runs it, where it is to be taken over.

    Raises as `take`.
    """
    await seen.poll()
    logged = ""
    while not stopping.is_set():
        flow = seen.journal.flow
        refuse_failed_over(flow, seen.values)
        if (owner := seen.current(gone)) is None or take_over:
            return owner
        if not waits and seen.is_heard(owner):
            raise FlowRuns(
                f"{flow}: a mirror runs already ({owner}). Let that one copy, end it, or take over: --take-over"
            )
        if logged != owner.instance:
            logged = owner.instance
            _log.info("standing_by", flow=flow, owner=str(owner), advice="--take-over takes the flow at once")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_POLL_SECONDS):
                await stopping.wait()
        await seen.poll_if_possible()
    return None


async def wait_for_turn(settings: Settings, *, waits: bool) -> int:
    """Stand by before anything is begun; the signal that ended that, or 0. Raises as `stand_by`, but for a journal that
    is not there: nobody runs the flow then.
    """
    stopping, loop, signals = asyncio.Event(), asyncio.get_running_loop(), list[int]()

    def on_signal(number: int) -> None:
        signals.append(number)
        stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    async with Cluster(Endpoint.of(settings.target)) as target:
        with contextlib.suppress(JournalMissing):
            await stand_by(Watched(Journal(target, settings.flow)), stopping, waits=waits)
    return next(iter(signals), 0)


async def _until_ended(seen: Watched, older: Owner, owner: Owner, stopping: asyncio.Event) -> None:
    """Wait for the end of the one that was taken over, or for somebody who takes over from us."""
    restated = logged = clock.monotonic()
    while not stopping.is_set() and seen.claims.owner is not None and seen.claims.owner.instance == owner.instance:
        if seen.has_ended(older):
            return
        if seen.is_silent(older):
            _log.warning("older_mirror_silent", flow=seen.journal.flow, older=str(older))
            return
        now = clock.monotonic()
        if now - logged > LIVENESS_SECONDS:
            logged = now
            _log.warning("older_mirror_reports", flow=seen.journal.flow, older=str(older), advice="end it")
        if now - restated > RESTATE_SECONDS:
            restated = now
            await restate(seen.journal, owner)
        await asyncio.sleep(_POLL_SECONDS)
        await seen.poll_if_possible()


async def restate(journal: Journal, owner: Owner) -> bool:
    """Say again who has the flow; whether the journal took it. Nobody is asked first: a claim goes by its number. It
    waits for no quota: whoever stands by would take a mirror that one mutes (`producer_byte_rate`) for dead.
    """
    with contextlib.suppress(ClusterError, WireError, TimeoutError):
        async with asyncio.timeout(RESTATE_SECONDS):
            await replace(journal, clearance=None).append([(OWNER, owner.to_json())], waits=False)
            return True
    return False


async def sign_off(journal: Journal, instance: str) -> None:
    """Say that this is an end and not a crash; a target that is away then just sees us go silent."""
    with contextlib.suppress(ClusterError, TimeoutError):
        async with asyncio.timeout(1.0):
            await journal.append([(ENDED, Reporter(instance).to_json())])


# --- A flow held by a command that is no mirror, for as long as it writes ---------------------------------------------


@contextlib.contextmanager
def held(settings: Settings, *, take_over: bool) -> Iterator[Owner]:
    """Claim the flow, whose journal is there, and hold it while the body runs. A body that fails leaves no word of its
    end: some of its tasks may still write, and whoever comes next waits as for a mirror that was killed.

    Raises PreflightError where a mirror runs the flow and it is not to be taken over, or where it was failed over;
    ClusterError as reading the journal does.
    """
    taken: Future[Owner] = Future()
    over, is_done = threading.Event(), threading.Event()

    def hold() -> None:
        try:
            asyncio.run(_hold(settings, take_over, taken, over, is_done))
        except BaseException as problem:
            if taken.done():
                raise
            taken.set_exception(problem)

    with ThreadPoolExecutor(1, "claim") as threads:
        holding = threads.submit(hold)
        try:
            yield taken.result()
            is_done.set()
        finally:
            over.set()
            holding.result()


async def _hold(
    settings: Settings, take_over: bool, taken: Future[Owner], over: threading.Event, is_done: threading.Event
) -> None:
    async with Cluster(Endpoint.of(settings.target)) as target:
        journal = Journal(target, settings.flow)
        await target.refresh([journal.partition.topic])
        found = await take(journal, uuid.uuid4().hex[:12], asyncio.Event(), take_over=take_over)
        assert found is not None, "nobody stops it"
        owner = found.owner
        taken.set_result(owner)
        while not await asyncio.to_thread(over.wait, RESTATE_SECONDS):
            if await successor(found.seen, owner) is None:
                await restate(journal, owner)
        if is_done.is_set():
            await sign_off(journal, owner.instance)


async def successor(seen: Watched, owner: Owner) -> Owner | None:
    """Whoever has taken the flow over from an owner, as far as the journal can be read."""
    await seen.poll_if_possible()
    now = seen.claims.owner
    return now if now is not None and now.supersedes(owner.instance, owner.claim or 0) else None


async def refuse_held(settings: Settings) -> None:
    """Raises PreflightError where a mirror runs the flow, or where it was failed over; ClusterError as `held`."""
    async with Cluster(Endpoint.of(settings.target)) as target:
        with contextlib.suppress(JournalMissing):
            await stand_by(Watched(Journal(target, settings.flow)), asyncio.Event(), waits=False)
