"""From one mirror of a flow to the next."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import settings_between
from hypothesis import given
from hypothesis import strategies as st

from mirror.config import Settings
from mirror.driver.journal_state import JournalState
from mirror.errors import FlowRuns, PreflightError
from mirror.journal import ownership
from mirror.journal.journal import ENDED, OWNER, Change, Entry, Journal, News, Place, journal_topic
from mirror.journal.ownership import Claims, FailedOver, Owner, Taken, Watched, reporter, take
from mirror.kafka.admin import Admin
from mirror.kafka.cluster import Cluster as Wire
from mirror.kafka.cluster import Endpoint
from mirror.lab.embedded import Cluster
from mirror.observability.metrics import Metrics
from mirror.observability.status import PartitionStatus
from mirror.states import State
from mirror.topics.apply import ensure_flow_topic

TIMEOUT = 60.0
OLDER = Owner(instance="older", host="elsewhere", pid=7, at_ms=0, claim=1)
REPORT = PartitionStatus(
    flow="any", instance="older", topic="orders", partition=0, target_topic="orders", state=State.MIRRORING,
    next_offset=1, log_end=1, lag_records=0, at_ms=0,
)  # fmt: skip
REPORTED = (REPORT.key(), REPORT.to_json())
OWNED = (OWNER, OLDER.to_json())


# --- claims, pure ---------------------------------------------------------------------------------------------------


def claim(instance: str, number: int | None) -> Owner:
    return replace(OLDER, instance=instance, claim=number)


def holder(*owners: Owner) -> str:
    claims = Claims()
    for owner in owners:
        claims.learn(owner)
    return claims.owner.instance if claims.owner else ""


def test_claims_have_an_order() -> None:
    a, b, late = claim("a", 1), claim("b", 2), claim("c", 2)
    assert holder(a, b) == "b"
    assert holder(a, b, a) == "b", "the wire may send it again, and it may land late"
    assert holder(a, b, late) == "b", "of two with one number the first holds"
    old, older = claim("old", None), claim("older", None)
    assert holder(older, old) == "old"
    assert holder(older, claim("a", 2), old, older, claim("b", 4)) == "b", "a record without a number counts once"
    assert holder(claim("a", 0)) == "", "no claim has this number"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 5))), st.lists(st.integers(0, 20)))
def test_repetitions_change_nothing(expected: list[tuple[str, int]], again: list[int]) -> None:
    """Whatever lands again behind all others, whoever had the flow has it."""
    owners = [claim(instance, number) for instance, number in expected]
    repeated = [owners[index % len(owners)] for index in again] if owners else []
    assert holder(*owners) == holder(*owners, *repeated)


@given(st.binary(max_size=60) | st.just(b'{"instance": 7}') | st.just(b'"instance"'))
def test_what_reports_nobody(value: bytes) -> None:
    assert reporter(value) is None or b"instance" in value


# --- the one to wait for, with a clock of our own -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "news", "instance"),
    [
        ([], [], ""),
        ([OWNED], [], "older"),
        ([OWNED, (ENDED, b'{"instance": "older"}')], [], ""),
        ([OWNED, (ENDED, b'{"instance": "another"}')], [], "older"),
        ([REPORTED], [], "older"),  # the journal lost who it was
        ([(OWNER, b"[" * 10_000), (OWNER, b"7"), (OWNER, None), (ENDED, b"7"), (b"state/x/0", b"no figures")], [], ""),
        ([OWNED], [(ENDED, b'{"instance": "older"}')], ""),
    ],
)
def test_the_one_to_wait_for(
    known: list[tuple[bytes, bytes | None]], news: list[tuple[bytes, bytes | None]], instance: str
) -> None:
    """One that did not say that it ended, however long ago its records say that they were written."""
    seen = watched(known)
    seen.learn([Entry(10 + number, *one) for number, one in enumerate(news)], are_new=True)
    found = seen.current()
    assert (found.instance if found else "") == instance
    assert seen.current(gone={instance}) is None


@pytest.mark.parametrize("ahead_ms", [-(2**40), 90_000, 2**61])
def test_only_what_arrives_shows_that_a_mirror_lives(ahead_ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clock may say what it likes, and so may ours."""
    now, at_ms = [1000.0], int(time.time() * 1000) + ahead_ms
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    seen = watched([(OWNER, replace(OLDER, at_ms=at_ms).to_json())])
    for _ in range(5):
        now[0] += ownership.LIVENESS_SECONDS - 1
        seen._read = now[0]
        assert seen.current() is not None
        seen.learn([Entry(1, REPORT.key(), replace(REPORT, at_ms=at_ms).to_json())], are_new=True)
    now[0] += ownership.LIVENESS_SECONDS + 1
    assert seen.current() is not None, "nobody has read since"
    seen._read = now[0]
    assert seen.current() is None


def watched(known: list[tuple[bytes, bytes | None]]) -> Watched:
    seen = Watched(None)  # type: ignore[arg-type] # nothing is read
    seen.learn([Entry(number, *one) for number, one in enumerate(known)], are_new=False)
    seen._since = seen._read = time.monotonic()
    return seen


def test_whoever_runs_a_flow_says_so_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Often enough that nobody who waits takes it for gone, and not where it is over."""
    now, said = [1000.0], list[bytes | None]()

    class Kept(Journal):
        async def append(self, entries: Sequence[Change]) -> int:
            said.extend(value for _, value in entries)
            return 0

        async def follow(self, place: Place | None) -> News:
            return News([], place or Place(0, None, 0))

    async def story() -> None:
        nowhere: Any = None
        journal = Kept(nowhere, "any")
        state = JournalState("any", "older", lambda _: None, lambda _: None, Metrics("any"), owner=OLDER)
        state._restated = now[0]
        for _ in range(10):
            now[0] += ownership.RESTATE_SECONDS / 2
            assert await state.read(journal)
        assert [Owner.read(value or b"").instance for value in said] == ["older"] * 5
        state._end(claim("next", 3))
        now[0] += ownership.LIVENESS_SECONDS
        await state.read(journal)
        assert len(said) == 5

    assert 2 * ownership.RESTATE_SECONDS < ownership.LIVENESS_SECONDS
    monkeypatch.setattr("mirror.driver.journal_state.time", SimpleNamespace(monotonic=lambda: now[0]))
    asyncio.run(story())


# --- on a broker ----------------------------------------------------------------------------------------------------


@pytest.fixture
def another() -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


@pytest.fixture
def settings(own_target: Cluster, topic_name: str) -> Settings:
    """Of a flow that has a journal."""
    flow = topic_name[-60:].strip("-")
    found = settings_between(own_target.bootstrap, own_target.bootstrap, ["any"], flow)
    ensure_flow_topic(Admin(found.target), flow)
    return found


@asynccontextmanager
async def journal_of(settings: Settings) -> AsyncIterator[Journal]:
    async with Wire(Endpoint.of(settings.target)) as cluster:
        await cluster.refresh([journal_topic(settings.flow)])
        yield Journal(cluster, settings.flow)


@pytest.mark.brokers
@pytest.mark.parametrize("how", ["ends", "is killed", "is frozen"])
@pytest.mark.parametrize("take_over", [False, True])
def test_the_younger_waits_for_the_older(
    settings: Settings,
    another: subprocess.Popen[bytes],
    how: str,
    take_over: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    older = replace(Owner.here("older", 1), pid=another.pid)
    monkeypatch.setattr(ownership, "LIVENESS_SECONDS", TIMEOUT if how != "is frozen" else 1.0)

    async def handed_over() -> None:
        async with journal_of(settings) as journal:
            await journal.append([(OWNER, older.to_json())])
            waiting = asyncio.create_task(take(journal, "younger", asyncio.Event(), take_over=take_over))
            done, _ = await asyncio.wait([waiting], timeout=0.6)
            assert not done
            owners = [Owner.read(one.value).instance for one in (await journal.read())[0] if one.value]
            assert owners == (["older", "younger"] if take_over else ["older"])
            if how == "ends":
                await journal.append([(ENDED, json.dumps({"instance": "older"}).encode())])
            elif how == "is killed":
                another.kill()
                another.wait()
            taken = await asyncio.wait_for(waiting, TIMEOUT)
            assert taken is not None
            assert (taken.owner.instance, taken.owner.claim) == ("younger", 2)
            assert (ENDED in taken.seen.values) == (how == "ends"), "read once more when it had ended"

    asyncio.run(handed_over())


@pytest.mark.brokers
def test_whoever_lost_the_flow_learns_of_it(settings: Settings) -> None:
    """Also where the owner before restated its claim behind a newer one, as one does that was frozen; and again at the
    next check, which reads only what is new.
    """

    async def asked() -> None:
        async with journal_of(settings) as journal:
            check = ownership.OwnershipCheck.of(OLDER)
            await journal.append([OWNED])
            assert await check.lost(journal) is None
            newer = claim("newer", 2)
            for owner in (newer, OLDER):
                await journal.append([(OWNER, owner.to_json())])
            assert await check.lost(journal) == await check.lost(journal) == newer
            assert await ownership.OwnershipCheck().lost(journal) is None, "which asks only for a failover"
            await journal.append([(ownership.KEY, b"{")])
            assert isinstance(await ownership.OwnershipCheck().lost(journal), ownership.Garbled)

    asyncio.run(asked())


def test_a_process_is_looked_up_where_its_number_was_given() -> None:
    """Two containers may have one host name, and each a process of this number; an older record does not say."""
    here = Owner.here("older", 1)
    assert Owner.read(here.to_json()) == here
    assert here.place, "Linux says"
    assert (here.is_here, here.lives, here.is_this_process, here.is_gone) == (True, True, True, True)
    there = replace(here, place="another boot/pid:[4026532001]")
    assert (there.is_here, there.lives, there.is_this_process, there.is_gone) == (False, False, False, False)
    assert replace(here, place="").is_gone
    assert not replace(here, place="", host="elsewhere").is_gone


@pytest.mark.brokers
def test_who_lives_in_another_container_is_waited_for(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has this host's name and this process's number, and reports."""
    monkeypatch.setattr(ownership, "LIVENESS_SECONDS", 2.0)
    older = replace(Owner.here("older", 1), place="another boot/pid:[4026532001]")

    async def story() -> None:
        async with journal_of(settings) as journal:
            await journal.append([(OWNER, older.to_json())])
            waiting = asyncio.create_task(ownership.stand_by(Watched(journal), asyncio.Event()))
            for _ in range(6):
                done, _ = await asyncio.wait([waiting], timeout=0.5)
                assert not done, "the older one has just reported"
                await journal.append([REPORTED])
            assert await asyncio.wait_for(waiting, TIMEOUT) is None

    asyncio.run(story())


@pytest.mark.brokers
def test_of_several_that_wait_one_gets_the_flow(settings: Settings) -> None:
    """They claim at the same moment, and the others are refused by the owner's name: they prepared the flow before."""

    async def story() -> None:
        async with journal_of(settings) as journal:
            await journal.append([OWNED])
            waiting = [asyncio.create_task(take(journal, f"one-{number}", asyncio.Event())) for number in range(3)]
            await asyncio.wait(waiting, timeout=0.5)
            await journal.append([(ENDED, b'{"instance": "older"}')])
            (taken,) = [one for one in await asyncio.gather(*waiting, return_exceptions=True) if isinstance(one, Taken)]
            assert taken.owner.instance.startswith("one-")
            late = asyncio.create_task(take(journal, "late", asyncio.Event()))
            await asyncio.wait([late], timeout=0.5)
            await ownership.restate(journal, taken.owner)
            for refused in (*waiting, late):
                if isinstance(problem := (await asyncio.gather(refused, return_exceptions=True))[0], Taken):
                    continue
                assert isinstance(problem, FlowRuns)
                assert f"a mirror runs already ({taken.owner})" in str(problem)

    # each instance has this process's number, so all of them would look gone to one another
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Owner, "is_gone", property(lambda _: False))
        asyncio.run(story())


@pytest.mark.brokers
def test_nobody_stands_by_for_a_flow_that_was_failed_over(settings: Settings) -> None:
    async def story() -> None:
        async with journal_of(settings) as journal:
            await journal.append([OWNED])
            waiting = asyncio.create_task(take(journal, "younger", asyncio.Event()))
            await asyncio.wait([waiting], timeout=0.4)
            await journal.append([(b"failover", FailedOver.here().to_json())])
            with pytest.raises(PreflightError, match="failed over"):
                await asyncio.wait_for(waiting, TIMEOUT)

    asyncio.run(story())


@pytest.mark.brokers
def test_an_owner_s_record_that_lands_twice_ends_nobody(settings: Settings) -> None:
    """The wire sends again what was not acknowledged; whoever has the flow then says so again, so that it stands last,
    where compaction keeps it. A greater claim ends it.
    """
    ended = list[Owner]()

    async def story() -> None:
        async with journal_of(settings) as journal:
            await journal.append([OWNED, (ENDED, b'{"instance": "older"}')])
            taken = await take(journal, "living", asyncio.Event())
            assert taken is not None
            journal_state = JournalState(settings.flow, "living", ended.append, lambda _: None, Metrics(settings.flow))
            journal_state.begin(taken)
            await journal.append([OWNED])
            assert await journal_state.read(journal)
            assert ended == []
            assert Owner.read((await journal.newest())[OWNER]).instance == "living"
            await journal.append([(OWNER, claim("next", 3).to_json())])
            assert await journal_state.read(journal)
            assert [one.instance for one in ended] == ["next"]

    asyncio.run(story())
