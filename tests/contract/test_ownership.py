"""From one mirror of a flow to the next: who runs it is waited for, and of several that wait one gets it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from helpers import settings_between
from pair import Shared
from scraped import report
from waiting import DEADLINE_S, MovableClock, until_true

from mirror.config import Settings
from mirror.errors import FlowRuns, PreflightError
from mirror.journal.journal import ENDED, OWNER, Journal, JournalPlace, News, journal_topic
from mirror.journal.ownership import KEY, FailedOver, Owner, Taken, Watched, stand_by, take
from mirror.kafka.admin import Admin
from mirror.kafka.cluster import Cluster, Endpoint
from mirror.topics.apply import ensure_flow_topic

pytestmark = [pytest.mark.proves("exactly-once", "mirror run")]

OLDER = Owner(instance="older", host="elsewhere", pid=7, at_ms=0, claim=1)
REPORT = report(flow="any", instance="older", at_ms=0)


#: More than the seconds after which a mirror is silent, in these tests, and more than any machine needs to read.
SILENT_S = 1001.0


@pytest.fixture
def settings(target_cluster: Shared, topic_name: str, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Of a flow that has a journal."""
    monkeypatch.setattr("mirror.journal.ownership.LIVENESS_SECONDS", SILENT_S - 1)
    found = settings_between(target_cluster.bootstrap, target_cluster.bootstrap, ["any"], topic_name)
    ensure_flow_topic(Admin(found.target), topic_name)
    return found


@pytest.fixture
def another() -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives until its input ends."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as found:
        yield found


class Followed(Journal):
    """A journal that counts how often it was read."""

    reads = 0

    async def follow(self, place: JournalPlace | None) -> News:
        news = await super().follow(place)
        Followed.reads += 1
        return news


async def still_waits(waiting: asyncio.Task[object]) -> None:
    """Have it look at the journal a few more times."""
    until = Followed.reads + 3
    await until_true(lambda: waiting.done() or Followed.reads >= until)
    assert not waiting.done(), waiting


@asynccontextmanager
async def journal_of(settings: Settings) -> AsyncIterator[Journal]:
    async with asyncio.timeout(DEADLINE_S), Cluster(Endpoint.of(settings.target)) as cluster:
        await cluster.refresh([journal_topic(settings.flow)])
        yield Followed(cluster, settings.flow)


@pytest.mark.parametrize("take_over", [False, True])
@pytest.mark.parametrize("how", ["it says that it ended", "its process ends", "it falls silent"])
def test_a_mirror_waits_for_the_one_before(
    settings: Settings, another: subprocess.Popen[bytes], clock: MovableClock, how: str, *, take_over: bool
) -> None:
    """Also where it is to take over: it claims the flow at once, and begins when the one before has ended."""
    older = replace(Owner.here("older", 1), pid=another.pid) if how == "its process ends" else OLDER

    async def story() -> None:
        async with journal_of(settings) as journal:
            await journal.append([(OWNER, older.to_json())])
            waiting = asyncio.create_task(take(journal, "younger", asyncio.Event(), take_over=take_over))
            await still_waits(waiting)
            owners = [Owner.from_json(one.value).instance for one in (await journal.read())[0] if one.value]
            assert owners == (["older", "younger"] if take_over else ["older"])
            if how == "it says that it ended":
                await journal.append([(ENDED, b'{"instance": "older"}')])
            elif how == "its process ends":
                await asyncio.to_thread(another.communicate)
            else:
                clock.move(SILENT_S)
            taken = await waiting
            assert taken is not None
            assert (taken.owner.instance, taken.owner.claim) == ("younger", 2)

    asyncio.run(story())


@pytest.mark.parametrize("how", ["it falls silent", "failed over"])
def test_a_mirror_that_reports_is_waited_for_wherever_it_runs(
    settings: Settings, clock: MovableClock, how: str
) -> None:
    """As in another container, where it has this host's name and the number of this process."""
    older = replace(Owner.here("older", 1), place="another boot/pid:[4026532001]")

    async def story() -> None:
        async with journal_of(settings) as journal:
            await journal.append([(OWNER, older.to_json())])
            waiting = asyncio.create_task(stand_by(Watched(journal), asyncio.Event()))
            for _ in range(3):
                await still_waits(waiting)
                clock.move(SILENT_S * 0.6)
                await journal.append([(REPORT.key(), REPORT.to_json())])
            await still_waits(waiting)
            if how == "it falls silent":
                clock.move(SILENT_S)
                assert await waiting is None
                return
            await journal.append([(KEY, FailedOver.here().to_json())])
            with pytest.raises(PreflightError, match="failed over"):
                await waiting

    asyncio.run(story())


def test_of_several_that_wait_one_gets_the_flow(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """They claim at the same moment, and the others are refused by the owner's name: they prepared the flow before."""
    monkeypatch.setattr(Owner, "is_gone", property(lambda _: False))  # all of them are this process

    async def story() -> None:
        async with journal_of(settings) as journal:
            await journal.append([(OWNER, OLDER.to_json())])
            waiting = [asyncio.create_task(take(journal, f"one-{number}", asyncio.Event())) for number in range(3)]
            for one in waiting:
                await still_waits(one)
            await journal.append([(ENDED, b'{"instance": "older"}')])
            restating = asyncio.create_task(restated(journal))
            found = await asyncio.gather(*waiting, return_exceptions=True)
            restating.cancel()
            (taken,) = [one for one in found if isinstance(one, Taken)]
            refused = [one for one in found if isinstance(one, FlowRuns)]
            assert len(refused) == 2
            assert all(f"a mirror runs already ({taken.owner})" in str(one) for one in refused)

    async def restated(journal: Journal) -> None:
        """Whoever has the flow says so again and again."""
        while True:
            values = await journal.newest()
            if (owner := Owner.from_json(values[OWNER])).instance != "older":
                await journal.append([(OWNER, owner.to_json())])
            await asyncio.sleep(0.1)

    asyncio.run(story())
