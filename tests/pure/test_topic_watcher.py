"""What becomes of a plan when topics or the configuration change: what goes on, what joins, which copies go."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
from helpers import settings_between
from scraped import report
from waiting import MovableClock, until_true

from mirror import clock as clocks
from mirror.config import Settings
from mirror.config.reading import reloaded
from mirror.driver.journal_state import JournalState
from mirror.driver.reconciler import Refusal
from mirror.driver.scheduling import renewed
from mirror.driver.topic_watcher import Deletions, NewPlan, Replanner, TopicWatcher
from mirror.errors import ConfigError
from mirror.journal.entries import FirstSeen
from mirror.journal.journal import Entry
from mirror.kafka.admin import TopicInfo
from mirror.kafka.cluster import TopicPartition
from mirror.observability.metrics import Metrics
from mirror.policy.remedies import Fix
from mirror.policy.rules import Rules, refused
from mirror.replication.assignment import Assignment
from mirror.spark.jobs import UnderWay
from mirror.states import State

DAY_S = 86_400.0


def one(topic: str, partition: int = 0, topic_id: UUID | None = None, target: str = "", **rules: Any) -> Assignment:
    source, copy = TopicPartition(topic, partition), TopicPartition(target or topic, partition)
    return Assignment(source, copy, topic_id, Rules(**rules))


# --- which partitions go on -------------------------------------------------------------------------------------------

BEFORE, AFTER = uuid4(), uuid4()


@pytest.mark.parametrize(
    ("current", "planned", "expected"),
    [
        ([one("b")], [one("a"), one("b"), one("b", 1)], [one("b"), one("a"), one("b", 1)]),
        ([one("a")], [one("a", compacted=True)], [one("a", compacted=True)]),
        ([one("a", 0, BEFORE)], [one("a", 0, AFTER), one("a", 1, AFTER)], [one("a", 0, BEFORE)]),
        ([one("a"), one("unwanted")], [], [one("a")]),
        ([one("a")], [one("a", target="eu.a")], [one("a", target="eu.a")]),
    ],
    ids=["added behind", "rules follow", "recreated", "gone or unwanted", "another copy"],
)
def test_what_is_mirrored_after_a_new_plan(
    current: list[Assignment], planned: list[Assignment], expected: list[Assignment]
) -> None:
    now = renewed(current, planned, lambda topic: topic != "unwanted")
    assert now == tuple(expected)
    assert renewed(now, planned, lambda topic: topic != "unwanted") == now, "the same plan changes nothing"


def test_what_only_adds_leaves_everything_else_as_it_is() -> None:
    now, more = (one("a"), one("b")), one("b", 1)
    assert NewPlan((*now, more)).only_adds(now)
    assert NewPlan((*now, more), frozenset({"b"})).only_adds(now)
    for other in ((*now,), now[:1], (now[0], more), (one("a", compacted=True), now[1], more), (more, *now)):
        assert not NewPlan(other).only_adds(now)
    assert not NewPlan((*now, more), frozenset({"a"})).only_adds(now), "a copy that was there is made anew"


class Channel:
    """The lines to tasks that take what they are handed, but for one."""

    def __init__(self, silent: int = -1) -> None:
        self.silent, self.handed = silent, list[tuple[int, tuple[Assignment, ...]]]()

    async def hand(self, task: int, more: tuple[Assignment, ...]) -> bool:
        self.handed.append((task, more))
        return task != self.silent


def under_way(channel: Channel, *tasks: int) -> UnderWay:
    held = [{TopicPartition(f"old-{task}", n) for n in range(many)} for task, many in enumerate(tasks)]
    return UnderWay(cast(Any, channel), held, room=3)


def test_what_joins_goes_to_the_tasks_with_fewest_and_to_one_each() -> None:
    channel = Channel()
    epoch, more = under_way(channel, 3, 1, 2), [one("new", n) for n in range(3)]
    assert asyncio.run(epoch.join([one("old-0", 1), *more]))
    assert channel.handed == [(1, (more[0], more[1])), (2, (more[2],))]
    assert asyncio.run(epoch.join(more))
    assert len(channel.handed) == 2, "they are there"
    assert not asyncio.run(epoch.join([one("newer")])), "no room is left"
    assert not asyncio.run(under_way(Channel(silent=1), 1, 1).join([one("new"), one("newer")]))


def test_the_last_report_of_a_task_does_not_bring_back_a_partition_that_is_not_mirrored_any_more() -> None:
    figures = report(state=State.RECREATED, target_topic="eu.orders")
    other = replace(figures, partition=1, state=State.CAUGHT_UP)
    journal_state = JournalState("eu-to-us", "one", lambda _: None, lambda _: None, Metrics("eu-to-us"))
    reported = [(one.key(), one.to_json()) for one in (figures, other)]
    journal_state.learn([Entry(offset, *record) for offset, record in enumerate([*reported, (figures.key(), None)])])
    assert journal_state.live == {TopicPartition("orders", 1): other}


# --- the configuration ------------------------------------------------------------------------------------------------


def test_what_a_configuration_changes_while_running() -> None:
    old = settings_between("a:1", "b:2", ["orders"])
    new = old.model_copy(
        update={
            "topics": old.topics.model_copy(update={"offsets": "translate", "on_data_loss": "continue"}),
            "limits": old.limits.model_copy(update={"memory_mb": 99}),
            "spark": old.spark.model_copy(update={"tasks": 3}),
        }
    )
    found = reloaded(old, new)
    assert (found.changed, found.in_vain) == (("topics", "limits"), ("spark", "topics.offsets"))
    assert (found.settings.topics.offsets, found.settings.topics.on_data_loss) == ("preserve", "continue")
    assert (found.settings.limits.memory_mb, found.settings.spark) == (99, old.spark)


def test_a_topic_that_is_re_keyed_is_not_excluded_or_renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its query goes on under the name that it began with."""
    rules = [{"match": "orders", "partitions": 3}]
    replanner = Replanner(settings_between("a:1", "b:2", [".*"], rules=rules))
    monkeypatch.setattr(replanner._source, "topics", lambda: {"orders": None, "other": None})
    for more in ({"exclude": ["orders"]}, {"naming": {"prefix": "z."}}):
        (reason,) = replanner._fixed_by_queries(settings_between("a:1", "b:2", [".*"], rules=rules, **more))
        assert reason.startswith("orders: is re-keyed")


class Adopting:
    """A mirror that takes its time to adopt a plan."""

    def __init__(self) -> None:
        self.assignments: tuple[Assignment, ...] | None = (one("a"),)
        self.owner = None
        self.seen: Mapping[str, FirstSeen] = {}
        self.sound: Sequence[str] = ()
        self.plans: list[NewPlan] = []

    async def refuse(self, refused: Sequence[Refusal]) -> None:
        assert not refused

    async def found(self, new_plan: NewPlan) -> None:
        self.plans.append(new_plan)
        self.assignments = None

    def rekey(self, new_plan: NewPlan) -> None:
        assert not new_plan.rekeyed

    def configured(self, settings: Settings) -> None:
        raise AssertionError(settings)


class Growing(Replanner):
    """Rounds that cost nothing and find one partition more each."""

    replans = 0
    pause_seconds = 0.0

    def replan(self, current: Sequence[Assignment], *_: object) -> NewPlan:
        self.replans += 1
        return NewPlan((*current, one("a", len(current))))


def test_nothing_is_replanned_while_a_plan_waits_to_be_adopted() -> None:
    async def story() -> None:
        settings, mirror = settings_between("a:1", "b:2", ["a"]), Adopting()
        rounds = Growing(settings)
        task = asyncio.create_task(TopicWatcher(rounds, lambda: settings).run(mirror))
        for many in (1, 2):
            await until_true(lambda: mirror.plans[many - 1 :])  # noqa: B023 -- it is awaited at once
            for _ in range(100):
                await asyncio.sleep(0)
            assert rounds.replans == many
            mirror.assignments = mirror.plans[-1].assignments
        task.cancel()
        assert mirror.plans[1].assignments == (one("a"), one("a", 1), one("a", 2))

    asyncio.run(story())


@pytest.mark.parametrize("at_reading", [True, False])
@pytest.mark.parametrize("failure", [ConfigError("a"), TypeError("unhashable type: 'dict'")])
def test_a_configuration_that_is_read_again_never_ends_the_mirror(
    failure: Exception, at_reading: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: Any) -> Any:
        raise failure

    monkeypatch.setattr(Growing, "refusals_of", fails)

    async def story() -> None:
        mirror, reload = Adopting(), fails if at_reading else lambda: settings_between("a:1", "b:2", ["b"])
        watcher = TopicWatcher(Growing(settings_between("a:1", "b:2", ["a"])), reload)
        watcher.read_again()
        task = asyncio.create_task(watcher.run(mirror))
        await until_true(lambda: mirror.plans or task.done())
        assert not task.done()
        task.cancel()

    asyncio.run(story())
    (line,) = (line for line in capfd.readouterr().err.splitlines() if "configuration_refused" in line)
    assert str(failure) in line


# --- which copies are deleted -----------------------------------------------------------------------------------------

TOPICS = {name: TopicInfo(name=name, topic_id=uuid4(), partitions=()) for name in "abcd"}
COPIES = {name: replace(info, topic_id=uuid4()) for name, info in TOPICS.items()}
SEEN = {
    name: FirstSeen(
        source_topic=name,
        topic_id=TOPICS[name].topic_id,
        target_topic_id=COPIES[name].topic_id,
        cluster_id="source",
        made=True,
    )
    for name in TOPICS
}
GONE = SEEN["a"]


class Rounds:
    """Deletions between clusters that hold `TOPICS` but for those that are gone, and `COPIES`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gone, self.missed, self.hidden = {"a"}, dict[str, str](), set[str]()
        self.deletions = "delete"
        self.findings: tuple[Any, ...] = ()

        async def of_none(*_: object) -> dict[str, str]:
            return {}

        async def nothing(*_: object) -> tuple[str, bool]:
            return "", False

        for name, stand_in in (("unacknowledged", of_none), ("source_lost", nothing), ("_AGAIN_SECONDS", 0.0)):
            monkeypatch.setattr(f"mirror.driver.topic_watcher.{name}", stand_in)
        monkeypatch.setattr("mirror.driver.topic_watcher.gone_topics", lambda *_: self.missed)
        self._deletions = Deletions(self._side(self._left), self._side(lambda: COPIES))

    def _left(self) -> dict[str, TopicInfo]:
        return {name: info for name, info in TOPICS.items() if name not in self.gone}

    def _side(self, topics: Any) -> Any:
        return SimpleNamespace(
            describe=lambda names: {name: topics()[name] for name in names if name in topics()},
            denied=lambda names: {*names} & self.hidden,
            cluster_id=lambda: "source",
        )

    def due(self, seen: Mapping[str, FirstSeen] = SEEN, sound: Collection[str] = tuple(TOPICS)) -> list[str]:
        settings = settings_between("a:1", "b:2", [".*"])
        settings = settings.model_copy(update={"sync": settings.sync.model_copy(update={"deletions": self.deletions})})
        plan: Any = SimpleNamespace(source_topics=self._left(), pairs=(1,), refusals=self.findings)
        left = [name for name in TOPICS if name not in self.missed and not seen.get(name, GONE).deleted_ms]
        mirrored = [one(name, topic_id=TOPICS[name].topic_id) for name in left]
        return [*self._deletions.due(settings, plan, mirrored, seen, sound)]


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Rounds:
    return Rounds(monkeypatch)


def test_a_copy_that_the_flow_made_goes_with_its_source(rounds: Rounds) -> None:
    assert rounds.due() == ["a"]
    assert rounds.due(sound=["b"]) == [], "no task found it to be its source's"
    rounds.hidden = {"a"}
    assert rounds.due() == [], "the source may hide it"
    rounds.hidden, rounds.deletions = set(), "keep"
    assert rounds.due() == []


@pytest.mark.parametrize(
    "seen",
    [
        None,
        replace(GONE, made=False),
        replace(GONE, target_topic_id=uuid4()),
        replace(GONE, target_topic_id=None),
        replace(GONE, cluster_id="elsewhere"),
        replace(GONE, topic_id=uuid4()),
    ],
    ids=["unknown", "not made", "another copy", "by name alone", "another source cluster", "another source topic"],
)
def test_a_copy_stays_that_the_journal_does_not_name_by_all_its_ids(rounds: Rounds, seen: FirstSeen | None) -> None:
    assert rounds.due({name: known for name, known in (SEEN | {"a": seen}).items() if known}) == []


def test_no_copy_goes_where_the_whole_flow_is_refused(rounds: Rounds) -> None:
    """It may be set up wrongly, and then what seems to be gone may never have been there."""
    refusal = refused("", "source and target are the same cluster", Fix.OTHER_CLUSTER)
    rounds.findings = (refusal,)
    assert rounds.due() == []
    rounds.findings = (replace(refusal, topic="b"),)
    assert rounds.due() == ["a"]


@pytest.mark.parametrize("how", ["at once", "one after another", "while no mirror ran"])
def test_no_copy_goes_where_most_topics_went_within_a_day(rounds: Rounds, clock: MovableClock, how: str) -> None:
    """Copies of long ago, and under former names, do not hide that."""
    past = {f"former.{name}": replace(known, target_topic_id=uuid4()) for name, known in SEEN.items()}
    past |= {f"gone-{n}": replace(GONE, source_topic=f"gone-{n}", topic_id=uuid4()) for n in range(8)}
    seen = SEEN | past
    rounds.gone = {"a", "b", "c"}
    if how == "one after another":
        seen |= {name: replace(SEEN[name], deleted_ms=clocks.now_ms()) for name in "bc"}
    elif how == "while no mirror ran":
        rounds.missed = {"b": "b", "c": "c"}
    assert rounds.due(seen) == []
    clock.move(DAY_S + 1)
    assert rounds.due(seen) == ([] if how == "at once" else ["a"])
