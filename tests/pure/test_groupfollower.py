"""Round after round: each blocker logged once, figures in the journal when they change, an end within its time."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from fakebroker import in_loop
from kio.schema.errors import ErrorCode
from scraped import report
from waiting import MovableClock, until_true

from mirror.errors import AccessDenied, ClusterError, ClusterUnreachable, ConnectionLost
from mirror.groups import side as side_of
from mirror.groups.decide import GroupStanding
from mirror.groups.follower import LAST_SYNC_SECONDS, STOP_SECONDS, GroupFollower
from mirror.groups.side import Blocker, Side
from mirror.groups.sync import GroupSync, SyncResult
from mirror.groups.terms import Terms, is_verified
from mirror.journal.journal import Entry
from mirror.journal.offset_maps import CUTS, Indexes
from mirror.kafka.cluster import Cluster, Endpoint, Leader, Topic, TopicPartition
from mirror.kafka.groups import Committed, Coordinators, GroupRefusal, ListedGroup
from mirror.kafka.queries import EARLIEST
from mirror.observability import logs
from mirror.observability.status import PartitionStatus
from mirror.replication.offset_map import Cut, OffsetRangeIndex, OffsetRanges
from mirror.states import State
from mirror.suspension import SuspensionDetector, always

AT = TopicPartition("orders", 0)


class Results:
    """Stands in for `GroupSync`: each round as scripted, the last one again and again."""

    def __init__(self, *results: SyncResult | Exception | float) -> None:
        self.include: tuple[re.Pattern[str], ...] = (re.compile(".*"),)
        self.left = list(results)
        self.made = 0
        self.behind: list[str] = []
        self.renewed: list[bool] = []
        self.detector = SuspensionDetector()

    async def sync_once(self, *, renewing: bool = False, **_: object) -> SyncResult:
        self.made += 1
        self.renewed.append(renewing)
        found = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        if isinstance(found, Exception):
            raise found
        if isinstance(found, float):
            await asyncio.sleep(found)
            return SyncResult({}, 0, ())
        return found

    async def left_behind(self) -> list[str]:
        return self.behind


class Records:
    """Stands in for `Journal`."""

    flow = "test"

    def __init__(self) -> None:
        self.values: list[dict[str, Any]] = []
        self.cuts: dict[bytes, bytes | None] = {}
        self.problem: Exception | None = None

    async def append(self, entries: Sequence[tuple[bytes, bytes]]) -> int:
        if self.problem:
            raise self.problem
        self.values += [json.loads(value) for key, value in entries if key == b"groups"]
        return 0

    async def append_all(self, entries: Iterable[tuple[bytes, bytes | None]]) -> None:
        self.cuts |= entries


def follower(
    *results: SyncResult | Exception | float, on_sync: Callable[[bool], None] = lambda _: None
) -> tuple[Any, Results, Records]:
    sync, journal = Results(*results), Records()
    made: Any = GroupFollower(sync, journal, "me", 0.01, on_sync, always)  # type: ignore[arg-type] # stand-ins
    return made, sync, journal


def stopped() -> asyncio.Event:
    """A mirror that is to end."""
    event = asyncio.Event()
    event.set()
    return event


def result(*blockers: Blocker, **standings: int) -> SyncResult:
    return SyncResult({GroupStanding(name): many for name, many in standings.items()}, 0, blockers)


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    reported: list[dict[str, Any]] = []
    monkeypatch.setattr(
        logs.Log, "_emit", lambda self, level, event, fields: reported.append({"event": event, **fields})
    )
    return reported


@in_loop
async def test_groups_that_were_put_back_are_written() -> None:
    """Who read what the target lost is known to a mirror that starts later, and no longer than that matters (F5)."""
    cut = Cut(50, 100, -1, 3)
    rounds = (replace(result(active=1), cuts={AT: replace(cut, groups=frozenset(names))}) for names in ("g", ""))
    following, _, journal = follower(*rounds)
    await following._step()
    assert CUTS.read(Entry(0, *journal.cuts.popitem())) == (AT, replace(cut, groups=frozenset("g")))
    await following._step()
    assert journal.cuts == {b"cut/orders/0": None}


@in_loop
async def test_figures_are_written_when_they_change() -> None:
    following, _, journal = follower(result(synced=1), result(synced=1), result(synced=1, active=2))
    for _ in range(5):
        await following._step()
    assert [(value["groups"], value["synced"], value["active"]) for value in journal.values] == [(1, 1, 0), (3, 1, 2)]


@in_loop
async def test_each_cause_is_reported_once_and_one_that_passes_by_the_next_round_not_at_all(
    warnings: list[dict[str, Any]],
) -> None:
    denied = [Blocker("grant READ", f"group-{number}") for number in range(7)]
    away = Blocker("away", passing=True, detail="refused")
    both = result(*denied, away)
    results = [result(*denied), both, both, result(*denied), both, result(*denied), both, both, both, result()]
    following, _, _ = follower(*results)
    for _ in results:
        await following._step()
    assert [(one["cause"], one.get("groups"), one.get("reason")) for one in warnings] == [
        ("grant READ", "group-0, group-1, group-2, group-3, group-4 and 2 more", None),
        ("away", None, "refused"),
        ("away", None, "refused"),
    ]


@in_loop
async def test_a_mistake_and_a_journal_that_is_away_do_not_end_it(warnings: list[dict[str, Any]]) -> None:
    following, sync, journal = follower(ValueError("a"), ValueError("a"), result(synced=1))
    journal.problem = ConnectionLost("gone")
    running = asyncio.create_task(following.run())
    await until_true(lambda: sync.made > 5)
    journal.problem = None
    await until_true(lambda: journal.values)
    running.cancel()
    assert [one["event"] for one in warnings] == ["groups_not_followed", "groups_blocked"]


@in_loop
async def test_the_last_round_is_a_complete_one() -> None:
    away = result(Blocker("away", passing=True))
    following, sync, journal = follower(away, away, result(synced=1))
    assert await following.finish(asyncio.Event()) == ""
    assert (sync.made, len(journal.values)) == (4, 1)


@in_loop
async def test_a_bounded_copy_ends_with_all_offsets_committed_again() -> None:
    """The process of each night is gone before an hour is over, and brokers forget what nobody commits again."""
    following, sync, _ = follower(result(Blocker("away", passing=True)), result(synced=1))
    await following._step()
    await following.finish(asyncio.Event())
    assert "unknown which stay behind" in await following.finish(stopped())
    assert sync.renewed == [False, False, True, False], "a mirror that is to stop has a second for all"


@in_loop
async def test_groups_that_something_keeps_from_following_are_behind() -> None:
    """Since the start, where they never follow: an age that is not there, or begins anew, alerts nobody."""
    called, denied = list[tuple[int, bool]](), result(Blocker("grant READ", "g"))
    following, sync, _ = follower(
        denied, denied, result(synced=1), on_sync=lambda chosen: called.append((sync.made if called else 0, chosen))
    )
    for _ in range(3):
        await following._step()
    assert called == [(0, True), (3, True)]


@in_loop
async def test_what_keeps_groups_from_following_in_the_end_is_returned(clock: MovableClock) -> None:
    """A bounded copy is not complete without it; it was a line in the log."""
    denied = result(Blocker("grant READ", "g"))
    assert "do not follow: grant READ (groups.include" in await follower(denied)[0].finish(asyncio.Event())
    left, sync, _ = follower(result(active=1))
    sync.behind = ["group g stays behind (active)"]
    assert "do not follow: group g stays behind (active) (groups.include" in await left.finish(asyncio.Event())
    for stopping, seconds in ((asyncio.Event(), LAST_SYNC_SECONDS), (stopped(), STOP_SECONDS)):
        silent, sync, _ = follower(1000.0)
        finishing = asyncio.create_task(silent.finish(stopping))
        await until_true(lambda: sync.made)  # noqa: B023
        clock.move(seconds)
        assert "do not follow: no complete round in time" in await finishing


@in_loop
async def test_nothing_is_done_until_a_group_is_asked_for(clock: MovableClock) -> None:
    """By a configuration that is read again. Groups that nobody chooses any more are not behind."""
    called = list[bool]()
    following, sync, journal = follower(result(synced=1), on_sync=called.append)
    sync.include = ()
    called.clear()
    running = asyncio.create_task(following.run())
    for _ in range(5):
        clock.move(1)
        await asyncio.sleep(0.001)
    await following.finish(asyncio.Event())
    assert (sync.made, journal.values) == (0, [])
    for chosen in ((re.compile(".*"),), (), (re.compile(".*"),)):
        sync.include, before = chosen, len(called)
        await until_true(lambda: len(called) > before)  # noqa: B023
        assert called[before] is bool(chosen)
    running.cancel()


@pytest.mark.parametrize(
    ("code", "partition", "cause", "passing"),
    [
        (30, None, "grant READ on the group", False),
        (30, AT, "grant READ on the group", False),
        (29, AT, "grant READ on topic orders", False),
        (16, AT, "the broker answered 16 not_coordinator", True),
        (14, None, "the broker answered 14 coordinator_load_in_progress", True),
        (69, AT, "the broker answered 69 group_id_not_found", False),
    ],
)
def test_what_a_broker_refuses(code: int, partition: TopicPartition | None, cause: str, passing: bool) -> None:
    side = Side(Cluster(Endpoint("us", ())), "READ")
    side.refused([GroupRefusal("readers", ErrorCode(code), partition)])
    assert side.blockers == [Blocker(f"cluster us: {cause}", "readers", passing)]


@in_loop
async def test_a_broker_that_is_silent_does_not_keep_groups_from_their_coordinators(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Any broker knows them; all that cannot be asked are reported once."""
    answering = {2}

    async def coordinators(_: Cluster, node: int, groups: Iterable[str]) -> Coordinators:
        if node not in answering:
            raise ConnectionLost(f"broker {node} is silent")
        return Coordinators(dict.fromkeys(groups, node))

    monkeypatch.setattr(side_of, "coordinators", coordinators)
    monkeypatch.setattr(Cluster, "nodes", (1, 2, 3))
    side = Side(Cluster(Endpoint("us", ())), "READ")
    assert await side.coordinators({"readers"}) == {"readers": 2}
    assert (await side.denied(["readers"]), side.blockers) == (frozenset(), [])
    answering.clear()
    assert await side.coordinators({"readers"}) == {}
    assert [one.cause for one in side.blockers] == ["cluster us: a broker does not answer"]


@pytest.mark.parametrize(
    ("leaders", "causes"),
    [
        (
            {0: 1, 1: -1, 2: 3},
            ["cluster us: the groups in partition 1, 2 of __consumer_offsets are unknown, since no broker leads it"],
        ),
        ({0: 1, 1: 2}, []),
        (None, []),
        (AccessDenied("no DESCRIBE right"), []),
        (ClusterUnreachable("nobody"), ["cluster us: it cannot be asked"]),
    ],
)
@in_loop
async def test_groups_without_a_coordinator_are_listed_by_nobody(
    leaders: dict[int, int] | ClusterError | None, causes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the only replica of their offsets is on a broker that is away, or that lost its controllers (K4)."""

    async def describe(_: Cluster, name: str) -> Topic | None:
        if isinstance(leaders, ClusterError):
            raise leaders
        return leaders if leaders is None else Topic(name, None, {at: Leader(node, 0) for at, node in leaders.items()})

    monkeypatch.setattr(Cluster, "describe", describe)
    monkeypatch.setattr(Cluster, "nodes", (1, 2))
    side = Side(Cluster(Endpoint("us", ())), "READ")
    await side.miss_unlisted()
    assert [one.cause for one in side.blockers] == causes
    assert not any(one.passing for one in side.blockers if "unknown" in one.cause), "the others are followed"


@pytest.mark.parametrize(("known", "commits"), [(20, 20), (90, 50)])
@in_loop
async def test_no_group_goes_on_behind_what_is_known_of_moved_offsets(
    known: int, commits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target holds 90 records, of which the offset map may know fewer: an offset there is another record's."""
    group = ListedGroup("readers", "", "consumer", "Empty")

    async def listed(side: Side) -> dict[int, list[ListedGroup]]:
        return {1: [group] if side.right == "DESCRIBE" else []}

    async def fetched(side: Side, nodes: dict[str, int]) -> dict[str, dict[TopicPartition, Committed]]:
        return {name: {AT: Committed(50)} if side.right == "DESCRIBE" else {} for name in nodes}

    async def at_end(_: object, asked: Iterable[TopicPartition], when: int, __: int) -> dict[TopicPartition, int]:
        return dict.fromkeys(asked, 0 if when == EARLIEST else 90)

    async def coordinators(_: Side, groups: Iterable[str]) -> dict[str, int]:
        return dict.fromkeys(groups, 1)

    async def nothing(*_: object) -> Any:
        return {}

    for owner, name, stand_in in (
        *((Side, "listed", listed), (Side, "fetched", fetched), (Side, "coordinators", coordinators)),
        *((Side, "miss_unlisted", nothing), (Side, "denied", nothing), (GroupSync, "_others", nothing)),
        *((side_of, "listed", at_end), (Cluster, "refresh", nothing)),
    ):
        monkeypatch.setattr(owner, name, stand_in)
    monkeypatch.setattr(Cluster, "nodes", (1,))
    sides = Cluster(Endpoint("eu", ())), Cluster(Endpoint("us", ()))
    runs = OffsetRanges()
    runs.add(0, 0, known)
    indexes = Indexes()
    indexes[AT] = OffsetRangeIndex()
    indexes[AT].learn(0, runs)
    terms = Terms({AT: AT}, {"orders": ("orders", None)}, {}, indexes=indexes)
    sync = GroupSync(*sides, [re.compile(".*")], terms, lambda _: True)
    found = await sync.sync_once(rehearsing=True)
    assert found.planned["readers"][AT].offset == commits


@pytest.mark.parametrize(
    ("kind", "protocol", "commits"),
    [
        ("Classic", "consumer", True),
        ("Classic", "", True),
        ("Consumer", "consumer", True),
        ("", "consumer", True),
        ("Classic", "connect", False),
        ("Share", "share", False),
        ("Streams", "streams", False),
        ("Unknown", "consumer", False),
    ],
)
def test_which_groups_take_offsets(kind: str, protocol: str, commits: bool) -> None:
    assert ListedGroup("any", kind, protocol, "Empty").commits == commits


@pytest.mark.parametrize("state", ["Stable", "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling"])
def test_which_groups_have_members(state: str) -> None:
    assert ListedGroup("any", "", "consumer", state).has_members
    assert not any(ListedGroup("any", "", "consumer", quiet).has_members for quiet in ("Empty", "Dead"))


def test_the_newest_report_vouches() -> None:
    sound, other = report(state=State.CAUGHT_UP, at_ms=5), report(state=State.RECREATED, at_ms=6)
    assert is_verified(sound)
    assert is_verified(None, sound)
    assert not is_verified()
    assert not is_verified(None)
    assert not is_verified(sound, other)
    assert is_verified(report(at_ms=7), other)
    unsure = {state for state in State if not is_verified(report(state=state))}
    assert unsure >= {State.STARTING, State.PADDING, State.PAUSED, State.DIVERGED}


@pytest.mark.parametrize("state", [State.UNAVAILABLE, State.UNAUTHORIZED, State.CORRUPT, State.REFUSED])
def test_a_state_that_says_nothing_of_the_records_vouches_as_the_check_before_did(state: State) -> None:
    """A partition that was TRUNCATED only waits in the next epoch, where its source's leader went away."""
    newest = report(state=state, at_ms=7)
    assert not is_verified(report(state=State.TRUNCATED, at_ms=6), newest)
    assert is_verified(report(at_ms=6), replace(newest, verified=True))
    assert PartitionStatus.from_json(replace(newest, verified=True).to_json()).verified
