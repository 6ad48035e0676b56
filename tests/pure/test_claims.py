"""Who owns a flow, by what stands in its journal: claims, hand-over, and what ends an owner."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scraped import report
from waiting import MovableClock

from mirror.driver.journal_state import JournalState
from mirror.errors import ClusterUnreachable
from mirror.journal import ownership
from mirror.journal.journal import ENDED, OWNER, Change, Entry, Journal, JournalPlace, News
from mirror.journal.ownership import KEY, Claims, FailedOver, Garbled, Owner, OwnershipCheck, Taken, Watched, reporter
from mirror.kafka.cluster import Cluster, Endpoint, Topic
from mirror.observability.metrics import Metrics
from mirror.topics.history import _standing

OLDER = Owner(instance="older", host="elsewhere", pid=7, at_ms=0, claim=1)
OWNED = (OWNER, OLDER.to_json())
REPORT = report(flow="any", instance="older", at_ms=0)
REPORTED = (REPORT.key(), REPORT.to_json())


@dataclass(slots=True)
class Kept(Journal):
    """A journal without a broker."""

    entries: list[Entry] = field(default_factory=list)

    def keep(self, *changes: Change) -> None:
        self.entries += [Entry(len(self.entries) + number, *one) for number, one in enumerate(changes)]

    async def append(self, entries: Sequence[Change], *, waits: bool = True) -> int:  # noqa: ARG002
        self.keep(*entries)
        return len(self.entries)

    async def follow(self, place: JournalPlace | None) -> News:
        return News(self.entries[place.offset if place else 0 :], JournalPlace(len(self.entries), None, 0))


def kept(*changes: Change) -> Kept:
    nowhere: Any = None
    journal = Kept(nowhere, "any")
    journal.keep(*changes)
    return journal


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


def watched(known: Sequence[Change]) -> Watched:
    seen = Watched(kept(*known))
    asyncio.run(seen.poll())
    return seen


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
def test_the_one_to_wait_for(known: Sequence[Change], news: Sequence[Change], instance: str) -> None:
    """One that did not say that it ended, however long ago its records say that they were written."""
    seen = watched(known)
    cast(Kept, seen.journal).keep(*news)
    asyncio.run(seen.poll())
    found = seen.current()
    assert (found.instance if found else "") == instance
    assert seen.current(gone={instance}) is None


@pytest.mark.parametrize("ahead_ms", [-(2**40), 90_000, 2**61])
def test_only_what_arrives_shows_that_a_mirror_lives(ahead_ms: int, clock: MovableClock) -> None:
    """Its clock may say what it likes, and so may ours."""
    at_ms = 1_700_000_000_000 + ahead_ms
    seen = watched([(OWNER, replace(OLDER, at_ms=at_ms).to_json())])
    for _ in range(5):
        clock.move(ownership.LIVENESS_SECONDS * 0.7)
        cast(Kept, seen.journal).keep((REPORT.key(), replace(REPORT, at_ms=at_ms).to_json()))
        asyncio.run(seen.poll())
        assert seen.current() is not None
    clock.move(ownership.LIVENESS_SECONDS + 1)
    assert seen.current() is not None, "nobody has read since"
    asyncio.run(seen.poll())
    assert seen.current() is None


def test_a_process_is_looked_up_where_its_number_was_given() -> None:
    """Two containers may have one host name, and each a process of this number; an older record does not say."""
    here = Owner.here("older", 1)
    assert Owner.from_json(here.to_json()) == here
    assert here.place, "Linux says"
    assert (here.is_here, here.lives, here.is_this_process, here.is_gone) == (True, True, True, True)
    there = replace(here, place="another boot/pid:[4026532001]")
    assert (there.is_here, there.lives, there.is_this_process, there.is_gone) == (False, False, False, False)
    assert replace(here, place="").is_gone
    assert not replace(here, place="", host="elsewhere").is_gone


def test_whoever_lost_the_flow_learns_of_it() -> None:
    """Also where the owner before restated its claim behind a newer one, as one does that was frozen; and again at the
    next check, which reads only what is new.
    """

    async def story() -> None:
        journal, check = kept(OWNED), OwnershipCheck.of(OLDER)
        assert await check.lost(journal) is None
        newer = claim("newer", 2)
        journal.keep((OWNER, newer.to_json()), OWNED)
        assert await check.lost(journal) == await check.lost(journal) == newer
        assert await OwnershipCheck().lost(journal) is None, "which asks only for a failover"
        journal.keep((KEY, FailedOver.here().to_json()))
        assert isinstance(await OwnershipCheck().lost(journal), FailedOver)
        journal.keep((KEY, b"{"))
        assert isinstance(await OwnershipCheck().lost(journal), Garbled)

    asyncio.run(story())


def test_whoever_runs_a_flow_says_so_again(clock: MovableClock) -> None:
    """Often enough that nobody who waits takes it for gone, and not where another one has it."""
    ended = list[Owner]()

    async def story() -> None:
        journal = kept((OWNER, claim("living", 2).to_json()))
        state = JournalState("any", "living", ended.append, lambda _: None, Metrics("any"))
        seen = Watched(journal)
        await seen.poll()
        state.begin(Taken(claim("living", 2), seen))
        for _ in range(10):
            clock.move(ownership.RESTATE_SECONDS * 0.6)
            assert await state.read(journal)
        assert len(journal.entries) == 1 + 5
        journal.keep(OWNED)
        clock.move(ownership.RESTATE_SECONDS)
        assert await state.read(journal)
        assert ended == [], "a record of the one before landed twice"
        assert Owner.from_json(journal.entries[-1].value or b"").instance == "living", "where compaction keeps it"
        journal.keep((OWNER, claim("next", 3).to_json()))
        clock.move(ownership.LIVENESS_SECONDS)
        assert await state.read(journal)
        assert [one.instance for one in ended] == ["next"]
        assert Owner.from_json(journal.entries[-1].value or b"").instance == "next"

    assert 2 * ownership.RESTATE_SECONDS < ownership.LIVENESS_SECONDS
    asyncio.run(story())


@pytest.mark.parametrize("is_there", [False, True])
def test_a_journal_that_is_deleted_while_it_is_read_hides_nothing(
    is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is there, and cannot be read, may be of a flow that writes to the same topics."""
    topic = Topic("mirror.other.offsets", None, {})

    async def learn(cluster: Cluster, *_: object) -> None:
        cluster.topics[topic.name] = topic

    async def describe(*_: object) -> Topic | None:
        return topic if is_there else None

    async def read(*_: object) -> None:
        raise ClusterUnreachable("no leader")

    for name, fake in (("learn", learn), ("describe", describe)):
        monkeypatch.setattr(Cluster, name, fake)
    monkeypatch.setattr(Journal, "read", read)
    found, _, _ = asyncio.run(_standing(Endpoint("us", (("127.0.0.1", 1),)), ["other"]))
    assert found == {"other": None if is_there else {}}


# --- a mirror that runs -----------------------------------------------------------------------------------------------


OURS = Owner(instance="ours", host="there", pid=1, at_ms=1, claim=4)


@pytest.mark.parametrize(
    "lost",
    [(KEY, FailedOver.here().to_json()), (OWNER, replace(OURS, instance="younger", claim=5).to_json())],
    ids=["failed over", "taken over"],
)
def test_a_mirror_that_reads_that_it_lost_the_flow_does_not_have_it(lost: Change) -> None:
    """At once, without a suspension in between: whoever asks is about to fence others."""
    over = list[object]()
    news = iter([[Entry(0, OWNER, OURS.to_json())], [Entry(1, *lost)]])
    state = JournalState("f", "ours", over.append, over.append, Metrics("f"))

    async def follow(_: JournalPlace | None) -> News:
        return News(next(news), JournalPlace(1, None, 0))

    journal: Any = SimpleNamespace(follow=follow)
    assert asyncio.run(state.has_flow(journal))
    assert not over
    assert not asyncio.run(state.has_flow(journal))
    assert over
