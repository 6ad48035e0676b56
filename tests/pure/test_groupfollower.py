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

from mirror.errors import AccessDenied, ClusterError, ClusterUnreachable, ConnectionLost
from mirror.groups import follower as groupfollower
from mirror.groups import side as side_of
from mirror.groups.decide import Standing
from mirror.groups.follower import GroupFollower
from mirror.groups.side import Blocker, Side
from mirror.groups.sync import GroupSync, SyncResult
from mirror.groups.terms import is_verified, preserved
from mirror.journal.journal import Entry
from mirror.journal.offset_maps import read_cut
from mirror.kafka.cluster import Cluster, Endpoint, Leader, Topic, TopicPartition
from mirror.kafka.groups import Coordinators, ListedGroup, Refusal
from mirror.observability import logs
from mirror.observability.status import PartitionStatus
from mirror.replication.offset_map import Cut
from mirror.states import State
from mirror.suspension import SuspensionDetector

AT = TopicPartition("orders", 0)


def a_report(state: State, at_ms: int) -> PartitionStatus:
    return PartitionStatus(
        flow="test",
        instance="me",
        topic="orders",
        partition=0,
        target_topic="orders",
        state=state,
        next_offset=0,
        log_end=0,
        lag_records=0,
        at_ms=at_ms,
    )


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


def follower(*results: SyncResult | Exception | float, interval: float = 0.01) -> tuple[Any, Results, Records]:
    sync, journal = Results(*results), Records()
    made: Any = GroupFollower(sync, journal, "me", interval)  # type: ignore[arg-type] # stand-ins
    return made, sync, journal


def result(*blockers: Blocker, **standings: int) -> SyncResult:
    return SyncResult({Standing(name): many for name, many in standings.items()}, 0, blockers)


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


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
    assert read_cut(Entry(0, *journal.cuts.popitem())) == (AT, replace(cut, groups=frozenset("g")))
    await following._step()
    assert journal.cuts == {b"cut/orders/0": None}


@in_loop
async def test_figures_are_written_when_they_change() -> None:
    following, sync, journal = follower(result(synced=1), result(synced=1), result(synced=1, active=2))
    task = asyncio.create_task(following.run())
    await until(lambda: sync.made > 10)
    task.cancel()
    assert [(value["groups"], value["synced"], value["active"]) for value in journal.values] == [(1, 1, 0), (3, 1, 2)]


def test_each_cause_is_reported_once_and_one_that_passes_by_the_next_round_not_at_all(
    warnings: list[dict[str, Any]],
) -> None:
    denied = [Blocker("grant READ", f"group-{number}") for number in range(7)]
    away = Blocker("away", passing=True, detail="refused")
    both = result(*denied, away)
    results = [result(*denied), both, both, result(*denied), both, result(*denied), both, both, both, result()]

    async def run() -> None:
        following, sync, _ = follower(*results)
        task = asyncio.create_task(following.run())
        await until(lambda: sync.made > len(results))
        task.cancel()

    asyncio.run(run())
    assert [(one["cause"], one.get("groups"), one.get("reason")) for one in warnings] == [
        ("grant READ", "group-0, group-1, group-2, group-3, group-4 and 2 more", None),
        ("away", None, "refused"),
        ("away", None, "refused"),
    ]


def test_a_mistake_and_a_journal_that_is_away_do_not_end_it(warnings: list[dict[str, Any]]) -> None:
    async def run() -> None:
        following, sync, journal = follower(ValueError("a"), ValueError("a"), result(synced=1))
        journal.problem = ConnectionLost("gone")
        task = asyncio.create_task(following.run())
        await until(lambda: sync.made > 5)
        journal.problem = None
        await until(lambda: journal.values)
        task.cancel()

    asyncio.run(run())
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
    stopping = asyncio.Event()
    stopping.set()
    await following.finish(stopping)
    assert sync.renewed == [False, False, True, False], "a mirror that is to stop has a second for all"


@in_loop
async def test_groups_that_something_keeps_from_following_are_behind() -> None:
    """Since the start, where they never follow: an age that is not there, or begins anew, alerts nobody."""
    called = list[tuple[int, bool]]()
    denied = result(Blocker("grant READ", "g"))
    sync: Any = Results(denied, denied, result(synced=1))
    following = GroupFollower(sync, Records(), "me", 0.01, lambda chosen: called.append((sync.made, chosen)))  # type: ignore[arg-type] # a stand-in
    for _ in range(3):
        await following._step()
    assert called == [(0, True), (3, True)]


@in_loop
async def test_groups_that_nobody_chooses_any_more_are_not_behind() -> None:
    """By a configuration that is read again; they are, where it chooses some again."""
    called = list[bool]()
    sync: Any = Results(result(synced=1))
    sync.include = ()
    following = GroupFollower(sync, Records(), "me", 0.01, called.append)  # type: ignore[arg-type] # a stand-in
    running = asyncio.create_task(following.run())
    for chosen in ((".*",), (), (".*",)):
        sync.include, before = chosen, len(called)
        await until(lambda: len(called) > before)  # noqa: B023
        assert called[before] is bool(chosen)
    running.cancel()


@in_loop
async def test_what_keeps_groups_from_following_in_the_end_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bounded copy is not complete without it; it was a line in the log."""
    denied = result(Blocker("grant READ", "g"))
    assert "do not follow: grant READ (groups.include" in await follower(denied)[0].finish(asyncio.Event())
    monkeypatch.setattr(groupfollower, "LAST_SYNC_SECONDS", 0.1)
    left, sync, _ = follower(result(active=1))
    sync.behind = ["group g stays behind (active)"]
    assert "do not follow: group g stays behind (active) (groups.include" in await left.finish(asyncio.Event())
    silent = follower(1000.0)[0]
    assert "do not follow: no complete round in time" in await silent.finish(asyncio.Event())


@in_loop
async def test_a_stop_waits_a_moment_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, this takes longer than any test here may."""
    monkeypatch.setattr(groupfollower, "STOP_SECONDS", 0.2)
    monkeypatch.setattr(groupfollower, "LAST_SYNC_SECONDS", 1000.0)
    following, _, _ = follower(1000.0)
    running = asyncio.create_task(following.run())
    await asyncio.sleep(0)
    stopping = asyncio.Event()
    stopping.set()
    await following.finish(stopping)
    running.cancel()


@in_loop
async def test_groups_that_a_stop_left_unasked_are_unknown_and_not_done() -> None:
    stopping = asyncio.Event()
    stopping.set()
    assert "unknown which stay behind" in await follower(result(active=1))[0].finish(stopping)


@in_loop
async def test_nothing_is_done_until_a_group_is_asked_for() -> None:
    following, sync, journal = follower(result())
    asked_for, sync.include = sync.include, ()
    running = asyncio.create_task(following.run())
    await asyncio.sleep(0.05)
    await following.finish(asyncio.Event())
    assert (sync.made, journal.values) == (0, [])
    sync.include = asked_for
    while not sync.made:
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.wait([running])


@in_loop
async def test_a_cluster_that_is_away_is_reported_and_not_raised(
    free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = Endpoint("us", (("127.0.0.1", free_port),))

    async def away(self: Cluster, *_: object) -> None:
        raise ClusterUnreachable(f"{self}: no broker answered")

    monkeypatch.setattr(Cluster, "refresh", away)
    async with Cluster(where) as source, Cluster(where) as target:
        sync = GroupSync(source, target, [re.compile(".*")], preserved({}), {}, lambda _: True)
        found = await sync.sync_once()
    assert not found.is_complete
    assert [one.cause for one in found.blockers] == ["cluster us: it cannot be asked"] * 2


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
    side.refused([Refusal("readers", ErrorCode(code), partition)])
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


@pytest.mark.parametrize(("include", "asked"), [([".*"], True), (["readers", "r.*"], True), (["readers"], False)])
@in_loop
async def test_each_round_asks_whether_groups_have_no_coordinator(
    include: list[str], asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that ends asks in its last round, whatever that looks at; who names all misses no others."""

    async def nothing(*_: object) -> dict[int, Any]:
        return {}

    async def unknown(side: Side) -> None:
        side.blocked("unknown", "")

    for name in ("listed", "coordinators", "fetched"):
        monkeypatch.setattr(Side, name, nothing)
    monkeypatch.setattr(Side, "miss_unlisted", unknown)
    where = Cluster(Endpoint("us", ()))
    sync = GroupSync(where, where, [re.compile(one) for one in include], preserved({}), {}, lambda _: True)
    for whole in (True, False):
        sync._source.blockers.clear()
        await sync._followed(whole=whole)
        assert bool(sync._source.blockers) is asked


def test_what_concerns_a_whole_cluster() -> None:
    side = Side(Cluster(Endpoint("us", ())), "READ")
    for problem in (AccessDenied("SASL"), ConnectionLost("reset"), ClusterUnreachable("nobody")):
        side.lost(problem)
    assert [(one.cause, one.detail, one.passing) for one in side.blockers] == [
        ("cluster us: a right is missing", "SASL", True),
        ("cluster us: a broker does not answer", "reset", True),
        ("cluster us: it cannot be asked", "nobody", True),
    ]


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
    sound, other = a_report(State.CAUGHT_UP, 5), a_report(State.RECREATED, 6)
    assert is_verified(sound)
    assert is_verified(None, sound)
    assert not is_verified()
    assert not is_verified(None)
    assert not is_verified(sound, other)
    assert is_verified(a_report(State.MIRRORING, 7), other)
    unsure = {state for state in State if not is_verified(a_report(state, 1))}
    assert unsure >= {State.STARTING, State.PADDING, State.PAUSED, State.DIVERGED}


@pytest.mark.parametrize("state", [State.UNAVAILABLE, State.UNAUTHORIZED, State.CORRUPT, State.REFUSED])
def test_a_state_that_says_nothing_of_the_records_vouches_as_the_check_before_did(state: State) -> None:
    """A partition that was TRUNCATED only waits in the next epoch, where its source's leader went away."""
    report = a_report(state, 7)
    assert not is_verified(a_report(State.TRUNCATED, 6), report)
    assert is_verified(a_report(State.MIRRORING, 6), replace(report, verified=True))
    assert PartitionStatus.from_json(replace(report, verified=True).to_json()).verified
