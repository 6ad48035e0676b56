"""What changes on the clusters and in the configuration while a mirror runs."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
from acls import every_acl
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Committed
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from helpers import RECENT_MS, config_file, make_topic, mirror_once, produce, remove_topics, settings_between
from running import forked, wait_for
from samerecords import assert_same_records, read
from sparkless import InThisProcess, run_beside, run_once
from syncing import TIMEOUT, admin_of, awaited, delete_topics, ends, made_by, policy, write_journal
from typer.testing import CliRunner

from mirror.cli import app
from mirror.config import Settings, load
from mirror.config.reading import reloaded
from mirror.driver.flow import Refusal, prepare
from mirror.driver.journal_state import JournalState
from mirror.driver.reports import left_out, reports_in
from mirror.driver.scheduling import renewed
from mirror.driver.topic_watcher import Deletions, NewPlan, Replanner, TopicWatcher
from mirror.errors import BrokerError, ClusterUnreachable, ConfigError, ExitCode
from mirror.journal.entries import FirstSeen, seen_in
from mirror.journal.journal import OWNER, Change, Entry
from mirror.journal.ownership import KEY as FAILOVER
from mirror.journal.ownership import FailedOver, Owner
from mirror.journal.positions import position_entry, stop_entry
from mirror.kafka.admin import Admin, Growth
from mirror.kafka.cluster import TopicPartition
from mirror.kafka.topic_configs import ConfigChange
from mirror.lab.embedded import Cluster, Spec, start_many
from mirror.observability import logs
from mirror.observability.metrics import Metrics
from mirror.observability.status import PartitionStatus
from mirror.policy.remedies import Fix
from mirror.policy.rules import Rules, refused
from mirror.replication.assignment import Assignment, KnownStop, LastPosition
from mirror.spark.jobs import UnderWay
from mirror.spark.supervisor import Supervisor
from mirror.states import State
from mirror.topics.acls import Acl, AclPlan
from mirror.topics.adoption import Gate
from mirror.topics.apply import ensure_flow_topic, plan_topics
from mirror.topics.history import Own, read_own

# --- which partitions go on (pure) ------------------------------------------------------------------------------------


def one(topic: str, partition: int = 0, topic_id: UUID | None = None, target: str = "", **rules: Any) -> Assignment:
    source, copy = TopicPartition(topic, partition), TopicPartition(target or topic, partition)
    return Assignment(source, copy, topic_id, Rules(**rules))


def everything(_: str) -> bool:
    return True


def test_new_topics_and_partitions_are_added_behind_those_that_were_there() -> None:
    now = renewed([one("b")], [one("a"), one("b"), one("b", 1)], everything)
    assert now == (one("b"), one("a"), one("b", 1))
    assert renewed(now, [one("a"), one("b"), one("b", 1)], everything) == now, "the same plan changes nothing"


def test_rules_follow_the_targets_settings() -> None:
    assert renewed([one("a")], [one("a", compacted=True)], everything) == (one("a", compacted=True),)


def test_a_topic_made_anew_keeps_the_id_it_was_begun_with_and_gets_no_partitions() -> None:
    before, after = uuid4(), uuid4()
    now = renewed([one("a", 0, before)], [one("a", 0, after), one("a", 1, after)], everything)
    assert now == (one("a", 0, before),)


def test_a_topic_that_is_gone_goes_on_and_one_that_is_not_wanted_ends() -> None:
    assert renewed([one("a"), one("b")], [], lambda topic: topic == "a") == (one("a"),)


def test_another_name_on_the_target_begins_anew() -> None:
    assert renewed([one("a")], [one("a", target="eu.a")], everything) == (one("a", target="eu.a"),)


def test_the_last_word_of_a_task_does_not_bring_back_a_partition_that_is_mirrored_no_longer() -> None:
    figures = PartitionStatus(
        flow="f",
        instance="i",
        topic="orders",
        partition=0,
        target_topic="eu.orders",
        state=State.RECREATED,
        next_offset=5,
        log_end=5,
        lag_records=0,
        at_ms=1,
    )
    other = replace(figures, partition=1, state=State.CAUGHT_UP)
    journal_state = JournalState("f", "i", lambda _: None, lambda _: None, Metrics("f"))
    reported = [(one.key(), one.to_json()) for one in (figures, other)]
    journal_state.learn([Entry(offset, *record) for offset, record in enumerate([*reported, (figures.key(), None)])])
    assert journal_state.live == {TopicPartition("orders", 1): other}


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


def test_what_only_adds_leaves_everything_else_as_it_is() -> None:
    now, more = (one("a"), one("b")), one("b", 1)
    assert NewPlan((*now, more)).only_adds(now)
    assert NewPlan((*now, more), frozenset({"b"})).only_adds(now)
    for other in ((*now,), now[:1], (now[0], more), (one("a", compacted=True), now[1], more), (more, *now)):
        assert not NewPlan(other).only_adds(now)
    assert not NewPlan((*now, more), frozenset({"a"})).only_adds(now), "a copy that was there is made anew"


class Mark:
    """The lines to tasks that take what they are handed, but for one."""

    def __init__(self, silent: int = -1) -> None:
        self.silent, self.handed = silent, list[tuple[int, tuple[Assignment, ...]]]()

    async def hand(self, task: int, more: tuple[Assignment, ...]) -> bool:
        self.handed.append((task, more))
        return task != self.silent


def under_way(mark: Mark, *tasks: int) -> UnderWay:
    held = [{TopicPartition(f"old-{task}", n) for n in range(many)} for task, many in enumerate(tasks)]
    return UnderWay(cast(Any, mark), held, room=3)


def test_what_joins_goes_to_the_tasks_with_fewest_and_to_one_each() -> None:
    mark = Mark()
    epoch, more = under_way(mark, 3, 1, 2), [one("new", n) for n in range(3)]
    assert asyncio.run(epoch.join([one("old-0", 1), *more]))
    assert mark.handed == [(1, (more[0], more[1])), (2, (more[2],))]
    assert asyncio.run(epoch.join(more))
    assert len(mark.handed) == 2, "they are there"
    assert not asyncio.run(epoch.join([one("newer")])), "no room is left"
    assert len(mark.handed) == 2


def test_a_task_that_does_not_take_what_joins_is_reported() -> None:
    assert not asyncio.run(under_way(Mark(silent=1), 1, 1).join([one("new"), one("newer")]))


class Adopting:
    """A mirror that takes its time to adopt a plan."""

    def __init__(self) -> None:
        self.assignments: tuple[Assignment, ...] | None = (one("a"),)
        self.owner = None
        self.seen: Mapping[str, FirstSeen] = {}
        self.found_at: list[NewPlan] = []

    @property
    def sound(self) -> Sequence[str]:
        return ()

    async def refuse(self, refused: Sequence[Refusal]) -> None:
        assert not refused

    async def found(self, new_plan: NewPlan) -> None:
        self.found_at.append(new_plan)
        self.assignments = None

    def rekey(self, new_plan: NewPlan) -> None:
        assert not new_plan.rekeyed

    def configured(self, settings: Settings) -> None:
        raise AssertionError(settings)


class Growing(Replanner):
    """Rounds that cost nothing and find one partition more each."""

    replans = 0
    rest = 0.0

    def replan(
        self, current: Sequence[Assignment], seen: Mapping[str, FirstSeen], sound: Collection[str] = ()
    ) -> NewPlan:
        assert not seen
        assert not sound
        self.replans += 1
        return NewPlan((*current, one("a", len(current))))


def test_nothing_is_replanned_while_a_plan_waits_to_be_adopted() -> None:
    async def story() -> None:
        settings, mirror = settings_between("a:1", "b:2", ["a"]), Adopting()
        renewal = Growing(settings)
        task = asyncio.create_task(TopicWatcher(renewal, lambda: settings).run(mirror))
        async with asyncio.timeout(TIMEOUT):
            for many in (1, 2):
                while len(mirror.found_at) < many:
                    await asyncio.sleep(0)
                for _ in range(100):
                    await asyncio.sleep(0)
                assert renewal.replans == many
                mirror.assignments = mirror.found_at[-1].assignments
        task.cancel()
        assert mirror.found_at[1].assignments == (one("a"), one("a", 1), one("a", 2))

    asyncio.run(story())


@pytest.mark.parametrize("at_reading", [True, False])
@pytest.mark.parametrize("failure", [ConfigError("a"), TypeError("unhashable type: 'dict'")])
def test_a_configuration_that_is_read_again_never_ends_the_mirror(
    failure: Exception, at_reading: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    settings, mirror = settings_between("a:1", "b:2", ["a"]), Adopting()

    def fails(*_: Any) -> Any:
        raise failure

    monkeypatch.setattr(Growing, "refusals_of", fails)

    async def story() -> None:
        reload: Any = fails if at_reading else lambda: settings_between("a:1", "b:2", ["b"])
        watcher = TopicWatcher(Growing(settings), reload)
        watcher.read_again()
        task = asyncio.create_task(watcher.run(mirror))
        async with asyncio.timeout(TIMEOUT):
            while not (mirror.found_at or task.done()):
                await asyncio.sleep(0)
        assert not task.done()
        task.cancel()

    asyncio.run(story())
    (line,) = (line for line in capfd.readouterr().err.splitlines() if "configuration_refused" in line)
    assert str(failure) in line


@pytest.mark.parametrize("fails_at", ["recorded", "created", ""])
def test_what_the_flow_gives_is_on_record_before_it_is_given(fails_at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what it takes back until it is taken back: who dies in between leaves nothing that nobody knows of."""
    done = list[str]()
    more, less = (Acl("topic", "a", f"User:{name}", "*", "READ", True) for name in ("more", "less"))

    def does(what: str) -> None:
        if what == fails_at:
            raise ClusterUnreachable("away")
        done.append(what)

    async def still_ours(_: Any, __: Any) -> None:
        done.append("asked")

    async def recorded(_: Settings, given: Collection[Acl], __: Any) -> None:
        does("recorded")
        done.extend(sorted(one.principal for one in given))

    for name, stand_in in (
        ("followed_groups", lambda *_: ()),
        ("plan_acls", lambda *_: AclPlan(missing=(more,), revoked=(less,))),
        ("copies_of_others", lambda *_: {}),
        ("OwnershipCheck.refuse_lost", still_ours),
        ("record_given", recorded),
        ("create_acls", lambda *_: does("created")),
        ("delete_acls", lambda *_: does("deleted")),
    ):
        monkeypatch.setattr(f"mirror.driver.topic_watcher.{name}", stand_in)
    monkeypatch.setattr(Admin, "cluster_id", lambda _: "eu")
    replanner = Replanner(settings_between("a:1", "b:2", ["a"]))
    replanner._given = {less}
    monkeypatch.setattr(Gate, "held", lambda *_: {})
    plan: Any = SimpleNamespace(pairs=())
    history: Any = SimpleNamespace(seen={})
    if fails_at:
        with pytest.raises(ClusterUnreachable):
            replanner._sync_acls(plan, history, ())
    else:
        replanner._sync_acls(plan, history, ())
    answer = ["asked", "recorded", "User:less", "User:more", "created", "deleted", "recorded", "User:more"]
    assert done == {"recorded": answer[:1], "created": answer[:4], "": answer}[fails_at]


# --- rounds (real brokers, no Spark) ----------------------------------------------------------------------------------


@pytest.mark.brokers
def test_a_copy_is_deleted_only_where_that_is_safe(
    own_source: Cluster,
    own_target: Cluster,
    topic_name: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, target = own_source.bootstrap, own_target.bootstrap
    other = f"{topic_name}-other"
    for name in (topic_name, other):
        make_topic(source, name)
    settings = policy(settings_between(source, target, [f"{topic_name}.*"], topic_name), deletions="delete")
    new_plan = Replanner(settings).replan((), {})
    assert [found.source.topic for found in new_plan.assignments] == [topic_name, other]
    assert new_plan.made == {topic_name, other}
    awaited(lambda: len(admin_of(target).describe([topic_name, other])) == 2)
    seen = made_by(settings, [topic_name])[topic_name]
    mine = OWNER, Owner.here("this").to_json()
    write_journal(settings, mine, (FirstSeen.key(topic_name), seen.to_json()))
    assert Replanner(settings).replan(new_plan.assignments, {topic_name: seen}).assignments == new_plan.assignments
    delete_topics(source, topic_name)

    unchecked = Replanner(settings).replan(new_plan.assignments, {topic_name: seen})
    assert unchecked.assignments == new_plan.assignments, "no task of this mirror compared its end with the source's"
    kept: Mapping[str, tuple[Settings, FirstSeen | None]] = {
        "by policy": (policy(settings, deletions="keep"), seen),
        "unknown": (settings, None),
        "not made by the flow": (settings, replace(seen, made=False)),
        "another topic by now": (settings, replace(seen, target_topic_id=uuid4())),
        "another source cluster": (settings, replace(seen, cluster_id="elsewhere")),
        "by name alone": (settings, replace(seen, target_topic_id=None)),
        "another source topic then": (settings, replace(seen, topic_id=uuid4())),
    }
    for why, (asked, known) in kept.items():
        found = Replanner(asked).replan(new_plan.assignments, {topic_name: known} if known else {}, [topic_name])
        assert found.assignments == new_plan.assignments, why
        assert admin_of(target).describe([topic_name]), why
    let_go = FirstSeen.key(topic_name), replace(seen, made=False).to_json()
    changes: Mapping[str, tuple[Change, Change]] = {
        "another mirror has the flow": ((OWNER, replace(Owner.here("x"), host="elsewhere").to_json()), mine),
        "failed over": ((FAILOVER, FailedOver.here().to_json()), (FAILOVER, None)),
        "perhaps failed over": ((FAILOVER, b"torn"), (FAILOVER, None)),
        "let go of": (let_go, (let_go[0], seen.to_json())),
    }
    for why, (change, back) in changes.items():  # which only the journal says, not what the mirror read before
        write_journal(settings, change)
        found = Replanner(settings).replan(new_plan.assignments, {topic_name: seen}, [topic_name])
        assert found.assignments == new_plan.assignments, why
        write_journal(settings, back)
    produce(target, topic_name, [b"nobody else has it"])
    found = Replanner(settings).replan(new_plan.assignments, {topic_name: seen}, [topic_name])
    assert found.assignments == new_plan.assignments
    output = capfd.readouterr().err
    assert f"{topic_name}-0: its log ends at 1, and the flow copied up to 0: somebody else wrote to it" in output
    assert admin_of(target).describe([topic_name])
    ours = LastPosition(
        source_next=1, target_end=1, source_topic_id=seen.topic_id, target_topic_id=seen.target_topic_id
    )
    write_journal(settings, position_entry(TopicPartition(topic_name, 0), ours))

    async def disabled(*_: object) -> None:
        raise BrokerError(73, "TOPIC_DELETION_DISABLED", f"delete topic {topic_name}")

    make_topic(source, new := f"{topic_name}-new")
    with monkeypatch.context() as refusing:
        refusing.setattr("mirror.kafka.admin._delete_topic", disabled)
        replanner = Replanner(settings)
        for _ in range(2):
            found = replanner.replan(new_plan.assignments, {topic_name: seen}, [topic_name])
            assert [left.source.topic for left in found.assignments] == [topic_name, other, new], "the round goes on"
    output = capfd.readouterr().err
    assert output.count("copies_not_deleted") == 1
    assert f"delete topic {topic_name}: the broker answered 73 TOPIC_DELETION_DISABLED: grant DELETE on it" in output
    assert seen_in(asyncio.run(read_own(settings)).newest)[topic_name].deleted_ms == 0, "it is still there"
    found = Replanner(settings).replan(new_plan.assignments, {topic_name: seen}, [topic_name])
    assert [left.source.topic for left in found.assignments] == [other]
    assert seen_in(asyncio.run(read_own(settings)).newest)[topic_name].deleted_ms > 0
    awaited(lambda: not admin_of(target).describe([topic_name]))


def four_copies(
    source: str, target: str, topic: str
) -> tuple[list[str], Settings, tuple[Assignment, ...], dict[str, FirstSeen]]:
    """Made by a flow that deletes copies: their names, its settings, what it mirrors, and as what it saw them."""
    names = [f"{topic}-{number}" for number in range(4)]
    for name in names:
        make_topic(source, name)
    settings = policy(settings_between(source, target, [f"{topic}-.*"], topic), deletions="delete")
    before = Replanner(settings).replan((), {}).assignments
    awaited(lambda: len(admin_of(target).describe(names)) == 4)
    return names, settings, before, made_by(settings, names)


@pytest.mark.brokers
def test_a_source_that_lost_its_data_deletes_nothing(
    own_source: Cluster, own_target: Cluster, topic_name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    source, target = own_source.bootstrap, own_target.bootstrap
    names, settings, before, seen = four_copies(source, target, topic_name)
    write_journal(
        settings,
        (OWNER, Owner.here("this").to_json()),
        *((FirstSeen.key(name), one.to_json()) for name, one in seen.items()),
    )
    renewal = Replanner(settings)
    delete_topics(source, *names[:3])
    for _ in range(2):
        assert renewal.replan(before, seen, names).assignments == before
    output = capfd.readouterr().err
    assert output.count("copies_not_deleted") == 1, "it is logged once"
    assert "3 of the flow's 4 topics are gone on cluster eu" in output
    delete_topics(source, names[3])
    assert renewal.replan(before, seen, names).assignments == before
    assert "no topic that the flow selects is left on cluster eu" in capfd.readouterr().err
    assert len(admin_of(target).describe(names)) == 4


@pytest.mark.brokers
def test_while_a_source_shows_that_it_lost_records_no_copy_of_what_went_is_deleted(
    own_source: Cluster, own_target: Cluster, topic_name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """As one does that was put back to what it was an hour ago: topics that were new then are gone."""
    source, target = own_source.bootstrap, own_target.bootstrap
    names, settings, before, seen = four_copies(source, target, topic_name)
    entries = [(FirstSeen.key(name), one.to_json()) for name, one in seen.items()]
    write_journal(settings, (OWNER, Owner.here("this").to_json()), *entries)
    produce(source, names[1], [b"x"] * 5)
    ids: Any = {"source_topic_id": seen[names[1]].topic_id, "target_topic_id": seen[names[1]].target_topic_id}
    at = TopicPartition(names[1], 0)
    longer, as_long = (position_entry(at, LastPosition(source_next=n, target_end=n, **ids)) for n in (7, 5))
    cut = stop_entry(at, KnownStop(state=State.TRUNCATED, offset=5, detail="it was cut back", **ids))
    anew = replace(seen[names[1]], topic_id=uuid4())
    delete_topics(source, names[0])
    for change, known, reason in (
        (
            longer,
            seen,
            f"{names[1]}-0 ends at 5, and was copied up to 7 on cluster eu, as where a source lost its data",
        ),
        (cut, seen, f"{names[1]}-0 is TRUNCATED (it was cut back) on cluster eu"),
        (as_long, seen | {names[1]: anew}, f"{names[1]} is another topic by that name (RECREATED) on cluster eu"),
    ):
        write_journal(settings, change)
        holding = Replanner(settings)
        left = holding.replan(before, known, names).assignments
        assert sorted(found.target.topic for found in left) == names
        assert f"topics are gone while {reason}" in capfd.readouterr().err
        write_journal(settings, as_long, (cut[0], None))
    assert holding.replan(before, seen, names).assignments == before, "what went then is held for as long as it runs"
    delete_topics(source, names[2])
    assert holding.replan(before, seen, names).assignments == (before[0], before[1], before[3])
    assert sorted(admin_of(target).describe(names)) == [names[0], names[1], names[3]]


@pytest.mark.brokers
def test_a_topic_that_went_while_no_mirror_ran_has_not_caught_up(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its last report said so, and nobody mirrors it any more who could say otherwise. One that the configuration names
    is refused as well.
    """
    source, target = own_source.bootstrap, own_target.bootstrap
    *gone, _ = names = [f"{topic_name}-{number}" for number in range(3)]
    for name in names:
        make_topic(source, name)
        produce(source, name, [b"x"] * 20)
    config = config_file(tmp_path, source, target, [gone[0], f"{topic_name}-[12]"], flow=topic_name)
    run_once(load(config))
    assert [states(config, name) for name in gone] == [{"CAUGHT_UP"}] * 2
    delete_topics(source, *gone)
    for times in (2, 0):  # each is logged once, and stays so
        capfd.readouterr()
        outcome = run_once(load(config))
        assert capfd.readouterr().err.count("partition_stopped") == times
        assert [states(config, name) for name in names] == [{"RECREATED"}, {"RECREATED"}, {"CAUGHT_UP"}]
        assert (outcome.exit_code, sorted(one.topic for one in outcome.stops)) == (ExitCode.DATA_AT_RISK, gone)
    delete_topics(target, *gone)
    outcome = run_once(load(config))
    assert (outcome.exit_code, [one.source for one in outcome.refused]) == (ExitCode.PREFLIGHT, gone[:1])
    assert [states(config, name) for name in names] == [set(), set(), {"CAUGHT_UP"}]


@pytest.mark.brokers
def test_what_went_from_both_clusters_while_no_mirror_ran_is_reported_no_more(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    """Nobody has it, so no failover may ask for it. Where only the source has fewer partitions, the copy's stop."""
    source, target = own_source.bootstrap, own_target.bootstrap
    gone, anew, fewer = names = [f"{topic_name}-{number}" for number in range(3)]
    for name, partitions in zip(names, (1, 3, 3), strict=True):
        make_topic(source, name, partitions)
        produce(source, name, [b"x"] * 20)
    config = config_file(tmp_path, source, target, [f"{topic_name}-.*"], flow=topic_name)
    run_once(load(config))

    def reported(topic: str) -> dict[int, str]:
        known = asyncio.run(read_own(load(config))).newest
        return {one.partition: str(one.state) for one in reports_in(known) if one.topic == topic}

    assert [len(reported(name)) for name in names] == [1, 3, 3]
    delete_topics(source, *names)
    delete_topics(target, gone, anew)
    for name in (anew, fewer):
        make_topic(source, name)
        produce(source, name, [b"y"] * 20)
    for _ in range(2):
        run_once(load(config))
        assert [reported(name) for name in names] == [{}, {0: "CAUGHT_UP"}, dict.fromkeys(range(3), "RECREATED")]


@pytest.mark.brokers
def test_copies_of_the_past_do_not_hide_that_a_source_lost_its_data(
    own_source: Cluster, own_target: Cluster, topic_name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The journal names every copy that ever was: under a former prefix, and of topics that went long ago."""
    source, target = own_source.bootstrap, own_target.bootstrap
    names, settings, before, seen = four_copies(source, target, topic_name)
    past = {f"former.{name}": replace(one, target_topic_id=uuid4()) for name, one in seen.items()}
    for number in range(8):
        topic = f"{topic_name}-gone-{number}"
        past[topic] = replace(seen[names[0]], source_topic=topic, topic_id=uuid4(), target_topic_id=uuid4())
    entries = [(FirstSeen.key(name), one.to_json()) for name, one in (past | seen).items()]
    write_journal(settings, (OWNER, Owner.here("this").to_json()), *entries)
    renewal = Replanner(settings)
    delete_topics(source, *names[:3])
    assert renewal.replan(before, past | seen, names).assignments == before
    assert "3 of the flow's 4 topics are gone on cluster eu" in capfd.readouterr().err
    assert len(admin_of(target).describe(names)) == 4


@pytest.mark.brokers
def test_topics_that_went_while_no_mirror_ran_are_lost_too(
    own_source: Cluster, own_target: Cluster, topic_name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A source that loses its data does not wait for a mirror; copies that are gone by hand are none any more."""
    source, target = own_source.bootstrap, own_target.bootstrap
    names, settings, _, seen = four_copies(source, target, topic_name)
    entries = [(FirstSeen.key(name), one.to_json()) for name, one in seen.items()]
    write_journal(settings, (OWNER, Owner.here("this").to_json()), *entries)
    delete_topics(source, *names[:2])
    started = Replanner(settings)
    left = started.replan((), seen, names).assignments
    assert {one.source.topic for one in left} == set(names[2:])
    delete_topics(source, names[2])
    assert started.replan(left, seen, names).assignments == left
    assert "3 of the flow's 4 topics are gone on cluster eu" in capfd.readouterr().err
    assert len(admin_of(target).describe(names)) == 4
    delete_topics(target, *names[:2])  # as the message advises
    make_topic(source, names[2])
    again = Replanner(settings)
    again.replan(left, seen, names)
    delete_topics(source, names[2])
    awaited(lambda: again.replan(left, seen, names).assignments == left[1:])
    assert [*admin_of(target).describe(names)] == names[3:]


@pytest.mark.brokers
def test_a_flow_that_is_refused_as_a_whole_deletes_no_copy(
    own_source: Cluster, own_target: Cluster, topic_name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """It may be one that is set up wrongly, and then what seems to be gone may never have been there."""
    names = [f"{topic_name}-{number}" for number in range(3)]
    for name in names:
        make_topic(own_source.bootstrap, name)
    between = settings_between(own_source.bootstrap, own_target.bootstrap, [f"{topic_name}-.*"], topic_name)
    settings = policy(between, deletions="delete")
    before = Replanner(settings).replan((), {}).assignments
    awaited(lambda: len(admin_of(own_target.bootstrap).describe(names)) == 3)
    seen = made_by(settings, names)
    reported = [(FirstSeen.key(name), one.to_json()) for name, one in seen.items()]
    write_journal(settings, (OWNER, Owner.here("this").to_json()), *reported)
    delete_topics(own_source.bootstrap, names[0])
    source, target = Admin(settings.source), Admin(settings.target)
    plan, deletions = plan_topics(source, target, settings), Deletions(source, target)
    refusal = refused("", "source and target are the same cluster", Fix.OTHER_CLUSTER)
    whole = replace(plan, findings=(*plan.findings, refusal))
    assert [*deletions.due(settings, whole, before, seen, names)] == []
    assert "topics are gone, and preflight refuses the whole flow, on cluster eu" in capfd.readouterr().err
    of_one = replace(plan, findings=(*plan.findings, replace(refusal, topic=names[1])))
    assert [*deletions.due(settings, of_one, before, seen, names)] == names[:1]
    deleted = {names[0]: replace(seen[names[0]], deleted_ms=int(time.time() * 1000))}
    delete_topics(own_source.bootstrap, names[1])
    now = plan_topics(source, target, settings)
    assert [*deletions.due(settings, now, before[1:], seen | deleted, names)] == []
    assert "2 of the flow's 3 topics are gone" in capfd.readouterr().err, "one after another is as bad as all at once"
    long_ago = {names[0]: replace(seen[names[0]], deleted_ms=1)}
    assert [*deletions.due(settings, now, before[1:], seen | long_ago, names)] == names[1:2]


@pytest.mark.brokers
def test_a_refused_topic_is_left_out_and_the_others_go_on(
    own_source: Cluster, own_target: Cluster, topic_name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    good, bad = f"{topic_name}-good", f"{topic_name}-bad"
    make_topic(own_source.bootstrap, good)
    make_topic(own_source.bootstrap, bad)
    make_topic(own_target.bootstrap, bad, 3)
    pattern = [f"{topic_name}-.*"]
    renewal = Replanner(settings_between(own_source.bootstrap, own_target.bootstrap, pattern, topic_name))
    for _ in range(2):
        assert [found.source.topic for found in renewal.replan((), {}).assignments] == [good]
    assert capfd.readouterr().err.count("not_mirrored") == 1, "a refusal is logged once"


@pytest.mark.brokers
def test_a_topic_whose_copy_is_gone_and_cannot_be_made_anew_is_refused_until_it_can(
    own_source: Cluster, own_target: Cluster, topic_name: str
) -> None:
    topic, other = f"{topic_name}.a", f"{topic_name}_a"
    make_topic(own_source.bootstrap, topic)
    settings = settings_between(own_source.bootstrap, own_target.bootstrap, [topic], topic_name)
    renewal = Replanner(settings)
    begun = renewal.replan((), {}).assignments
    seen = made_by(settings, [topic])
    delete_topics(own_target.bootstrap, topic)
    make_topic(own_target.bootstrap, other)
    new_plan = renewal.replan(begun, seen)
    assert new_plan.assignments == ()
    assert [(one.source, one.partitions) for one in new_plan.refused] == [(topic, 1)]
    assert f"would collide with topic {other}" in new_plan.refused[0].reason
    delete_topics(own_target.bootstrap, other)
    again = renewal.replan((), seen)
    assert ([one.place for one in again.assignments], again.refused) == ([one.place for one in begun], ())
    assert again.anew == {topic}


@pytest.mark.brokers
def test_partitions_that_are_refused_of_a_topic_that_goes_on_are_reported(
    own_source: Cluster, own_target: Cluster, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else had given the copy more of them: the source's new one was mirrored nowhere, and shown nowhere. They
    alone, also in a round that deletes a copy.
    """
    make_topic(own_source.bootstrap, topic_name)
    settings = settings_between(own_source.bootstrap, own_target.bootstrap, [topic_name], topic_name)
    renewal = Replanner(settings)
    begun, seen = renewal.replan((), {}).assignments, made_by(settings, [topic_name])
    for cluster, partitions in ((own_target, 3), (own_source, 2)):
        growth = Growth(topic=topic_name, before=1, partitions=partitions)
        admin_of(cluster.bootstrap).create_partitions([growth])
    awaited(lambda: len(ends(own_target.bootstrap, topic_name)) == 3)
    awaited(lambda: len(ends(own_source.bootstrap, topic_name)) == 2)
    produce(own_target.bootstrap, topic_name, [b"stranger"] * 5, partition=1)
    new_plan = renewal.replan(begun, seen)
    assert [one.source for one in new_plan.assignments] == [(topic_name, 0)]
    (refused,) = new_plan.refused
    (report,) = left_out(refused, {}, settings.flow, "an instance")
    assert (report.state, report.partition, report.target_topic) == (State.REFUSED, 1, topic_name)
    gone = {"gone": one("gone")}
    monkeypatch.setattr(Deletions, "due", lambda *_: gone)
    monkeypatch.setattr(Deletions, "delete", lambda *_: gone.keys())
    assert renewal.replan([*begun, *gone.values()], seen) == NewPlan(
        begun, refused=(refused,), origins=new_plan.origins
    )


@pytest.mark.brokers
def test_a_name_that_is_somebody_elses_is_refused_before_it_is_taken_over(
    own_source: Cluster, own_target: Cluster, topic_name: str
) -> None:
    """Half of it would hold: the old copy would go on, and commands would know the new name alone."""
    source, target, other = own_source.bootstrap, own_target.bootstrap, f"{topic_name}-other"
    for bootstrap, name in ((source, topic_name), (source, f"{topic_name}-b"), (target, other)):
        make_topic(bootstrap, name)
        produce(bootstrap, name, [b"x"])
    settings = settings_between(source, target, [topic_name], topic_name)
    run_once(settings)
    seen = seen_in(asyncio.run(read_own(settings)).newest)
    names = {"rename": {topic_name: other}}
    renamed = settings_between(source, target, [topic_name], topic_name, naming=names)
    (refusal,) = Replanner(settings).refusals_of(renamed, seen)
    assert refusal.startswith(f"{other}: holds records on cluster us")
    produce(target, other, [b"y"])
    assert Replanner(renamed).refusals_of(renamed, seen) == [], "it is refused by what holds now as well"
    more = settings_between(source, target, [f"{topic_name}(-b)?"], topic_name)
    assert Replanner(settings).refusals_of(more, seen) == []


@pytest.mark.brokers
def test_what_fails_beside_a_plan_is_reported_and_the_plan_stands(
    own_source: Cluster,
    own_target: Cluster,
    topic_name: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Also that the flow made a copy, until that is adopted."""
    make_topic(own_source.bootstrap, topic_name)
    settings = settings_between(own_source.bootstrap, own_target.bootstrap, [topic_name], topic_name)
    renewal = Replanner(policy(settings, acls=True))

    def away(*_: Any) -> Any:
        raise ClusterUnreachable("the ACLs are away")

    monkeypatch.setattr("mirror.driver.topic_watcher.plan_acls", away)
    monkeypatch.setattr("mirror.driver.topic_watcher.read_own", nothing_known)
    first = renewal.replan((), {})
    assert [found.source.topic for found in first.assignments] == [topic_name]
    assert first.made == {topic_name}
    assert renewal.replan((), {}) == first, "it was not adopted"
    assert not renewal.replan(first.assignments, made_by(settings, [topic_name])).made
    said = [line for line in capfd.readouterr().err.splitlines() if "acls_not_mirrored" in line]
    assert ["the ACLs are away" in line for line in said] == [True]


async def nothing_known(_: Settings) -> Own:
    return Own({}, None)


@pytest.mark.brokers
def test_a_copy_that_appears_on_the_source_is_not_mirrored_back(
    own_source: Cluster, own_target: Cluster, topic_name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Another flow, from our target to our source, makes it while this mirror runs."""
    here, there, pattern = own_source.bootstrap, own_target.bootstrap, [f".*{topic_name}-.*"]
    first, second, copy = f"{topic_name}-1", f"{topic_name}-2", f"us.{topic_name}-3"
    other = settings_between(there, here, pattern, f"{topic_name}-other", naming={"prefix": "us."})
    make_topic(here, first)
    renewal = Replanner(settings_between(here, there, pattern, topic_name, exclude=["mirror[.].*"]))
    new_plan = renewal.replan((), {})
    assert [found.source.topic for found in new_plan.assignments] == [first]
    seen = FirstSeen(
        source_topic=f"{topic_name}-3", topic_id=uuid4(), target_topic_id=uuid4(), cluster_id=own_target.cluster_id
    )
    write_journal(other, (FirstSeen.key(copy), seen.to_json()))
    for name in (second, copy):
        make_topic(here, name)
    assert [found.source.topic for found in renewal.replan(new_plan.assignments, {}).assignments] == [first, second]
    output = capfd.readouterr().err
    assert "not_mirrored" in output
    assert f"flow {other.flow} mirrors it, and to mirror it back would be a loop" in output
    assert not admin_of(there).describe([copy])


# --- ACLs -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded() -> Iterator[tuple[Cluster, Cluster]]:
    config = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        "super.users": "User:ANONYMOUS",
    }
    with ExitStack() as stack:
        specs = [Spec(name=name, config=config) for name in ("guarded-source", "guarded-target")]
        one, other = (stack.enter_context(cluster) for cluster in start_many(specs))
        yield one, other


def rules_on(
    bootstrap: str, name: str, kind: ResourceType = ResourceType.TOPIC
) -> set[tuple[str, AclOperation, AclPermissionType]]:
    admin = AdminClient({"bootstrap.servers": bootstrap})  # kept until the answer is there
    found = admin.describe_acls(every_acl(kind, name)).result(20)
    return {(rule.principal, rule.operation, rule.permission_type) for rule in found}


@pytest.mark.brokers
def test_acls_follow_and_nobody_may_write(guarded: tuple[Cluster, Cluster], topic_name: str) -> None:
    source, target = (cluster.bootstrap for cluster in guarded)
    make_topic(source, topic_name)
    kinds, literal = (AclPermissionType.ALLOW, AclPermissionType.DENY), ResourcePatternType.LITERAL
    given = [
        AclBinding(ResourceType.TOPIC, topic_name, literal, "User:all", "*", AclOperation.ALL, kinds[0]),
        AclBinding(ResourceType.TOPIC, topic_name, literal, "User:writer", "*", AclOperation.WRITE, kinds[0]),
        AclBinding(ResourceType.TOPIC, topic_name, literal, "User:nobody", "*", AclOperation.READ, kinds[1]),
        AclBinding(
            ResourceType.TOPIC,
            topic_name[:-3],
            ResourcePatternType.PREFIXED,
            "User:prefixed",
            "*",
            AclOperation.READ,
            kinds[0],
        ),
    ]
    admin = AdminClient({"bootstrap.servers": source})  # kept until the answers are there
    for done in admin.create_acls(given).values():
        done.result(20)
    naming = {"prefix": "eu."}
    settings = policy(settings_between(source, target, [topic_name], topic_name, naming=naming), acls=True)
    ensure_flow_topic(admin_of(target), settings.flow)
    renewal, copy = Replanner(settings), f"eu.{topic_name}"
    awaited(lambda: len(rules_on(source, topic_name)) == 3)
    renewal.replan((), {})
    expected = {
        ("User:all", AclOperation.READ, AclPermissionType.ALLOW),
        ("User:nobody", AclOperation.READ, AclPermissionType.DENY),
        ("User:prefixed", AclOperation.READ, AclPermissionType.ALLOW),
    }
    awaited(lambda: rules_on(target, copy) == expected)
    assert rules_on(target, topic_name) == set()


@pytest.mark.brokers
def test_what_the_flow_gave_is_taken_back_when_the_source_revokes_it(
    guarded: tuple[Cluster, Cluster], topic_name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Topics and followed groups; by another process than the one that gave it; what others gave stays."""
    source, target = (cluster.bootstrap for cluster in guarded)
    make_topic(source, topic_name)
    group, literal, allow = f"{topic_name}-app", ResourcePatternType.LITERAL, AclPermissionType.ALLOW
    deny = AclPermissionType.DENY
    given = [
        AclBinding(ResourceType.TOPIC, topic_name, literal, "User:app", "*", AclOperation.READ, allow),
        AclBinding(ResourceType.TOPIC, topic_name, literal, "User:*", "*", AclOperation.WRITE, deny),
        AclBinding(ResourceType.GROUP, group, literal, "User:app", "*", AclOperation.READ, allow),
    ]
    ours, theirs = (AdminClient({"bootstrap.servers": one}) for one in (source, target))  # kept for the answers
    for done in ours.create_acls(given).values():
        done.result(20)
    commit(source, group, topic_name)
    settings = policy(settings_between(source, target, [topic_name], topic_name), acls=True)
    ensure_flow_topic(admin_of(target), settings.flow)

    def rules(bootstrap: str) -> set[tuple[str, AclOperation, AclPermissionType]]:
        return rules_on(bootstrap, topic_name) | rules_on(bootstrap, group, ResourceType.GROUP)

    awaited(lambda: len(rules(source)) == 2)
    Replanner(settings).replan((), {})
    expected = {("User:app", AclOperation.READ, allow)}
    awaited(lambda: rules_on(target, topic_name) == expected)
    awaited(lambda: rules_on(target, group, ResourceType.GROUP) == expected)
    own = AclBinding(ResourceType.TOPIC, topic_name, literal, "User:own", "*", AclOperation.READ, allow)
    for done in theirs.create_acls([own]).values():
        done.result(20)
    awaited(lambda: len(rules_on(target, topic_name)) == 2)

    for kind, name in ((ResourceType.TOPIC, topic_name), (ResourceType.GROUP, group)):
        for removed in ours.delete_acls([every_acl(kind, name)]).values():
            removed.result(20)
    awaited(lambda: not rules(source))
    other = FirstSeen(source_topic=topic_name, topic_id=None, target_topic_id=None, cluster_id="another")
    Replanner(settings).replan((), {topic_name: other})
    assert "acl_deleted" not in capfd.readouterr().err, "where the address leads to another cluster it says nothing"
    assert rules_on(target, group, ResourceType.GROUP) == expected
    Replanner(settings).replan((), {})
    awaited(lambda: rules_on(target, topic_name) == {("User:own", AclOperation.READ, allow)})
    awaited(lambda: not rules_on(target, group, ResourceType.GROUP))


def commit(bootstrap: str, group: str, topic: str) -> None:
    """A group that is there, since it has an offset."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    consumer.commit(offsets=[Committed(topic, 0, 0)], asynchronous=False)
    consumer.close()


@pytest.mark.brokers
def test_a_cluster_without_an_authorizer_is_reported_once(
    own_source: Cluster, own_target: Cluster, topic_name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    make_topic(own_source.bootstrap, topic_name)
    settings = settings_between(own_source.bootstrap, own_target.bootstrap, [topic_name], topic_name)
    renewal = Replanner(policy(settings, acls=True))
    renewal.replan((), {})
    renewal.replan((), {})
    output = capfd.readouterr().err
    assert output.count("acls_not_mirrored") == 1
    assert "cluster eu has no authorizer" in output


# --- a running mirror -------------------------------------------------------------------------------------------------


def command(*arguments: str) -> tuple[int, str]:
    shown = CliRunner().invoke(app, list(arguments))
    assert shown.exception is None or isinstance(shown.exception, SystemExit), shown.exception
    return shown.exit_code, shown.stdout


def states(config: Path, topic: str) -> set[str]:
    fields = json.loads(command("status", str(config), "--json")[1])
    return {found["state"] for found in fields["partitions"] if found["topic"] == topic}


@pytest.mark.brokers
def test_a_running_mirror_follows_what_changes(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    """One story of a live mirror; epochs are long, so each change ends one early."""
    source, target = own_source.bootstrap, own_target.bootstrap
    first, second, third = (f"{topic_name}-{name}" for name in ("first", "second", "third"))
    make_topic(source, first)
    produce(source, first, [b"x"] * 20)
    config = config_file(
        tmp_path, source, target, [f"{topic_name}-(first|second)"], topic_name, naming={"prefix": "eu."}
    )
    file = json.loads(config.read_text()) | {
        "sync": {"interval_s": 2, "deletions": "delete"},
        "spark": {"epoch_s": 600},
    }
    config.write_text(json.dumps(file))
    ours, theirs = admin_of(source), admin_of(target)

    with forked(config, tmp_path / "mirror.log") as mirror:

        def until(condition: Callable[[], Any]) -> None:
            wait_for(condition, TIMEOUT, lambda: mirror.log)

        mirror.until("spark_started")
        # New partitions and topics, from their first record.
        ours.create_partitions([Growth(topic=first, before=1, partitions=2)])
        awaited(lambda: len(ends(source, first)) == 2)
        produce(source, first, [b"y"] * 20, partition=1)
        make_topic(source, second, configs={"segment.ms": "3600000"})
        produce(source, second, [b"z"] * 20)
        until(lambda: (ends(target, f"eu.{first}"), ends(target, f"eu.{second}")) == ({0: 20, 1: 20}, {0: 20}))
        assert assert_same_records(source, target, first, 2, target_topic=f"eu.{first}") == 40
        assert assert_same_records(source, target, second, 1, target_topic=f"eu.{second}") == 20

        # Settings, and a setting that goes.
        def setting(name: str) -> tuple[str, bool]:
            found = theirs.topic_configs([f"eu.{second}"])[f"eu.{second}"][name]
            return found.value, found.is_default

        assert setting("segment.ms") == ("3600000", False)
        changes = {"segment.ms": None, "retention.ms": "7200000", "max.message.bytes": "2000000"}
        ours.alter_configs(
            ConfigChange(topic=second, name=name, before=None, after=after) for name, after in changes.items()
        )
        until(lambda: setting("segment.ms")[1] and setting("retention.ms") == ("7200000", False))

        # A topic rests, and goes on.
        assert command("pause", str(config), first) == (ExitCode.DONE, f"{first}: paused\n")
        until(lambda: states(config, first) == {"PAUSED"})
        produce(source, first, [b"later"] * 20)
        produce(source, second, [b"later"] * 20)
        until(lambda: ends(target, f"eu.{second}") == {0: 40})
        assert ends(target, f"eu.{first}") == {0: 20, 1: 20}
        code, reported = command("pause", "--json", str(config), first)
        rests = {"flow": topic_name, "topics": [{"topic": first, "paused": True, "changed": False}]}
        assert (code, json.loads(reported)) == (ExitCode.DONE, rests)
        assert command("resume", str(config), first) == (ExitCode.DONE, f"{first}: goes on\n")
        until(lambda: ends(target, f"eu.{first}") == {0: 40, 1: 20})

        # A source topic goes, and its copy, which the mirror made.
        remove_topics(ours, second)
        until(lambda: not theirs.describe([f"eu.{second}"]))
        until(lambda: states(config, second) == set())

        # The configuration, with a mistake and without.
        make_topic(source, third)
        produce(source, third, [b"x"] * 20)
        config.write_text(json.dumps(file | {"topics": {"inclde": []}}))
        mirror.process.send_signal(signal.SIGHUP)
        mirror.until("configuration_refused")
        topics = file["topics"] | {"include": [f"{topic_name}-.*"]}
        config.write_text(json.dumps(file | {"topics": topics, "spark": {"epoch_s": 5}}))
        mirror.process.send_signal(signal.SIGHUP)
        until(lambda: ends(target, f"eu.{third}") == {0: 20})
        assert "needs_restart=['spark']" in mirror.log

        command("pause", str(config), third)
        until(lambda: states(config, third) == {"PAUSED"})
        mirror.process.send_signal(signal.SIGTERM)
        assert mirror.ended() == 0, mirror.log
    assert command("plan", str(config))[0] == ExitCode.DONE
    produce(source, third, [b"x"] * 20)
    with forked(config, tmp_path / "once.log", "--once") as once:
        assert once.ended() == ExitCode.CLUSTER, once.log
    assert f"{third}-0 up to offset 40: PAUSED" in once.log
    assert ends(target, f"eu.{third}") == {0: 20}


@pytest.mark.brokers
@pytest.mark.parametrize("offsets", ["preserve", "translate"])
def test_what_is_added_joins_the_epoch_under_way(
    own_source: Cluster,
    own_target: Cluster,
    topic_name: str,
    capfd: pytest.CaptureFixture[str],
    offsets: str,
) -> None:
    """A new topic, and partitions of one that is there; the others are not begun anew, which costs seconds where there
    are thousands.
    """
    logs.configure()  # a command that another test ran may have left them silent
    source, target = own_source.bootstrap, own_target.bootstrap
    first, second = f"{topic_name}-first", f"{topic_name}-second"
    make_topic(source, first, 16)
    produce(source, first, [b"x"] * 20)
    settings = settings_between(source, target, [f"{topic_name}-.*"], topic_name, offsets=offsets)
    settings = policy(settings, interval_s=0.5)
    flow = replace(prepare(settings), epoch_seconds=600.0, tasks=1)
    context: Any = InThisProcess()
    mirror = Supervisor(
        context, flow, lambda _: None, topic_watcher=TopicWatcher(Replanner(settings), lambda: settings)
    )
    ours, reported = admin_of(source), ""

    def story() -> None:
        nonlocal reported
        awaited(lambda: ends(target, first)[0] == 20)
        make_topic(source, second)
        produce(source, second, [b"y"] * 20)
        awaited(lambda: theirs_end(second) == 20)
        ours.create_partitions([Growth(topic=first, before=16, partitions=17)])
        awaited(lambda: len(ends(source, first)) == 17)
        produce(source, first, [b"z"] * 20, partition=16)
        awaited(lambda: ends(target, first).get(16) == 20)
        produce(source, first, [b"later"] * 20)
        awaited(lambda: ends(target, first)[0] == 40)
        reported = capfd.readouterr().err

    def theirs_end(topic: str) -> int:
        return ends(target, topic).get(0, 0)

    figures = run_beside(mirror, story).figures
    assert reported.count("plan_changed") == 2
    assert "epoch_ended" not in reported
    assert figures[TopicPartition(second, 0)].records == figures[TopicPartition(first, 16)].records == 20
    assert assert_same_records(source, target, first, 17) == 60
    assert assert_same_records(source, target, second, 1) == 20


@pytest.mark.brokers
@pytest.mark.parametrize("offsets", ["preserve", "translate"])
def test_a_copy_stamps_records_no_more_once_its_source_does_not(
    own_source: Cluster, own_target: Cluster, topic_name: str, offsets: str
) -> None:
    """Between two epochs: under a task, what it leaves to the target to stamp would get its producers' times. Left as
    it was, all that follows would get the target's.
    """
    source, target, at = own_source.bootstrap, own_target.bootstrap, TopicPartition(topic_name, 0)
    ours, kind = admin_of(source), "message.timestamp.type"
    make_topic(source, topic_name, configs={kind: "LogAppendTime"})
    produce(source, topic_name, [b"stamped"] * 20)
    settings = policy(settings_between(source, target, [topic_name], topic_name, offsets=offsets), interval_s=0.5)
    settings = settings.model_copy(update={"topics": settings.topics.model_copy(update={"append_time": "target"})})
    flow = replace(prepare(settings), epoch_seconds=600.0, tasks=1)
    context: Any = InThisProcess()
    mirror = Supervisor(
        context, flow, lambda _: None, topic_watcher=TopicWatcher(Replanner(settings), lambda: settings)
    )

    def kind_there() -> str:
        return admin_of(target).topic_configs([topic_name])[topic_name][kind].value

    def story() -> None:
        awaited(lambda: ends(target, topic_name)[0] == 20)
        assert kind_there() == "LogAppendTime"
        produce(source, topic_name, [b"on its way"] * 20)
        ours.alter_configs([ConfigChange(topic=topic_name, name=kind, before=None, after="CreateTime")])
        awaited(lambda: kind_there() == "CreateTime")
        produce(source, topic_name, [b"as its producer says"] * 20, begin_ms=RECENT_MS)
        awaited(lambda: ends(target, topic_name)[0] == 60)

    outcome = run_beside(mirror, story)
    assert outcome.figures[at].state is State.CAUGHT_UP, outcome.figures[at].detail
    theirs, copies = (list(read(side, topic_name, 0)) for side in (source, target))
    assert [one[3:] for one in copies] == [one[3:] for one in theirs]
    assert [one[1:3] for one in copies[40:]] == [one[1:3] for one in theirs[40:]], "times and their type"


@pytest.mark.brokers
def test_a_topic_is_paused_while_its_source_is_away(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    """The journal knows what the flow mirrors."""
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name)
    assert mirror_once(source, target, [topic_name], topic_name)
    config = config_file(tmp_path, "127.0.0.1:1", target, [topic_name], topic_name)
    assert command("pause", str(config), topic_name) == (ExitCode.DONE, f"{topic_name}: paused\n")
    assert command("resume", str(config), topic_name) == (ExitCode.DONE, f"{topic_name}: goes on\n")


@pytest.mark.brokers
@pytest.mark.parametrize("what", ["pause", "resume"])
def test_a_topic_that_is_not_mirrored_cannot_be_paused(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path, what: str
) -> None:
    make_topic(own_source.bootstrap, topic_name)
    config = config_file(tmp_path, own_source.bootstrap, own_target.bootstrap, [topic_name], topic_name)
    refused = CliRunner().invoke(app, [what, str(config), f"{topic_name}x"])
    assert f"{topic_name}x: no such topic is mirrored by {topic_name}; did you mean {topic_name}?" in str(
        refused.exception
    )
    assert command(what, str(config), topic_name)[0] == ExitCode.DONE
