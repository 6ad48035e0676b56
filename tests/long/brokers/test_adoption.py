"""Nothing on the target is changed by name alone: what a flow may do to a topic there, by both ids and by its end."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from acls import every_acl
from compared_logs import delete_before
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from crashcut import crash_and_cut
from helpers import config_file, make_topic, produce, settings_between
from rekey_story import begun
from sparkless import InThisProcess, run_once
from syncing import admin_of, awaited, delete_topics, ends, made_by, policy
from typer.testing import CliRunner
from watchedtask import WatchedTask

from mirror import config
from mirror.cli import app
from mirror.commands import adopt as command
from mirror.config import Settings
from mirror.driver import topic_watcher
from mirror.driver.flow import prepare
from mirror.driver.reports import reports_in
from mirror.driver.start import recorded
from mirror.driver.topic_watcher import Replanner, TopicWatcher
from mirror.errors import ClusterUnreachable, ExitCode, MirrorError, PreflightError, SettingRefused
from mirror.journal.entries import FirstSeen, seen_in
from mirror.journal.journal import OWNER, Change, Journal, journal_topic
from mirror.journal.ownership import KEY as FAILOVER
from mirror.journal.ownership import FailedOver, Owner
from mirror.kafka.admin import Admin, Creation, Growth, TopicInfo
from mirror.kafka.cluster import Cluster as Wire
from mirror.kafka.cluster import Endpoint, TopicPartition
from mirror.kafka.queries import delete_records
from mirror.kafka.topic_configs import ConfigChange
from mirror.lab.embedded import Cluster, Spec, start_many
from mirror.observability.status import PartitionStatus
from mirror.policy.rules import Rules
from mirror.policy.selection import TopicPair
from mirror.replication.assignment import Assignment
from mirror.segments.restore import Found, plan_restoration
from mirror.spark.supervisor import Supervisor
from mirror.states import State
from mirror.suspension import SuspensionDetector
from mirror.topics import adoption
from mirror.topics.adoption import Gate, Standing, Verdict, standing_of
from mirror.topics.apply import apply, ensure_flow_topic, plan_topics
from mirror.topics.history import Claim, read_own
from mirror.topics.plan import plan_flow

DAYS_AGO_MS = 1_600_000_000_000
KEPT = {"retention.ms": "-1"}
FLEETING = {"retention.ms": "1000"}


# --- what a target topic is to a flow (pure) --------------------------------------------------------------------------

OURS, THEIRS = (TopicInfo(name=name, topic_id=uuid4(), partitions=()) for name in ("orders", "eu.orders"))
PAIR = TopicPair(source="orders", target="eu.orders", partitions=1)
SEEN = FirstSeen(source_topic="orders", topic_id=OURS.topic_id, target_topic_id=THEIRS.topic_id, cluster_id="source")


@pytest.mark.parametrize(
    ("seen", "claim", "with_records", "empty"),
    [
        (SEEN, None, Standing.OURS, Standing.OURS),
        (replace(SEEN, topic_id=None), None, Standing.OURS, Standing.OURS),
        (replace(SEEN, target_topic_id=None), None, Standing.OURS, Standing.OURS),
        (None, None, Standing.FOREIGN, Standing.EMPTY),
        (replace(SEEN, target_topic_id=uuid4()), None, Standing.FOREIGN, Standing.EMPTY),
        (replace(SEEN, source_topic="other"), None, Standing.FOREIGN, Standing.EMPTY),
        (replace(SEEN, cluster_id="other"), None, Standing.FOREIGN, Standing.EMPTY),
        (replace(SEEN, topic_id=uuid4()), None, Standing.FROZEN, Standing.FROZEN),
        (SEEN, Claim("beside", THEIRS.topic_id), Standing.CLAIMED, Standing.CLAIMED),
        (None, Claim("beside", None), Standing.CLAIMED, Standing.CLAIMED),
        (SEEN, Claim("beside", uuid4()), Standing.OURS, Standing.OURS),
    ],
)
def test_what_a_target_topic_is_to_a_flow(
    seen: FirstSeen | None, claim: Claim | None, with_records: Standing, empty: Standing
) -> None:
    for has_records, expected in ((True, with_records), (False, empty)):
        found = standing_of(PAIR, OURS, THEIRS, seen, claim, "source", has_records=has_records)
        assert found.standing is expected, found
        passes = expected in (Standing.OURS, Standing.EMPTY)
        assert bool(found.reason) is not passes
    assert standing_of(PAIR, OURS, None, seen, None, "source", has_records=False).standing is Standing.MISSING


@pytest.mark.parametrize(
    ("anew", "why"),
    [
        ("orders", "the source topic was deleted or recreated a moment ago"),
        ("eu.orders", "the target topic was deleted or recreated a moment ago"),
        ("", ""),
    ],
)
def test_a_topic_made_anew_since_its_settings_were_read_is_not_changed(
    anew: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = {one.name: replace(one, topic_id=uuid4()) if one.name == anew else one for one in (OURS, THEIRS)}
    asked: Any = SimpleNamespace(describe=lambda names: {name: now[name] for name in names})
    plan: Any = SimpleNamespace(pairs=(PAIR,), source_topics={"orders": OURS}, target_topics={"eu.orders": THEIRS})
    nothing: Any = SimpleNamespace(seen={})

    async def none_differs(*_: Any) -> dict[str, Any]:
        return {}

    monkeypatch.setattr(adoption, "tails", none_differs)
    gate = Gate(asked, asked)
    held_back = gate.held(["eu.orders"], plan, nothing, nothing, {"eu.orders": Verdict(Standing.OURS)})
    assert held_back == ({"eu.orders": why} if why else {})


# --- on brokers -------------------------------------------------------------------------------------------------------


@pytest.fixture
def settings(own_source: Cluster, own_target: Cluster, topic_name: str) -> Settings:
    """A flow of one topic, which its source keeps for ever, with a hundred old records."""
    found = settings_between(own_source.bootstrap, own_target.bootstrap, [topic_name], topic_name)
    make_topic(own_source.bootstrap, topic_name, configs=KEPT)
    produce(own_source.bootstrap, topic_name, values(100), begin_ms=DAYS_AGO_MS)
    return found


def values(many: int, word: str = "record") -> list[bytes]:
    return [f"{word} {number}".encode() for number in range(many)]


def configs_of(bootstrap: str, topic: str) -> dict[str, str]:
    return {name: found.value for name, found in admin_of(bootstrap).topic_configs([topic])[topic].items()}


def held(bootstrap: str, topic: str) -> tuple[int, int]:
    """Where the first partition begins and ends."""
    admin = admin_of(bootstrap)
    span = admin.spans(admin.describe([topic]).values())[topic, 0]
    return span.start, span.end


def keep_for(bootstrap: str, topic: str, retention_ms: str) -> None:
    configure(bootstrap, topic, "retention.ms", retention_ms)


def configure(bootstrap: str, topic: str, name: str, value: str) -> None:
    admin_of(bootstrap).alter_configs([ConfigChange(topic=topic, name=name, before=None, after=value)])
    awaited(lambda: configs_of(bootstrap, topic)[name] == value)


def taking_target_times(settings: Settings) -> Settings:
    return settings.model_copy(update={"topics": settings.topics.model_copy(update={"append_time": "target"})})


def recreate(bootstrap: str, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
    delete_topics(bootstrap, topic)
    make_topic(bootstrap, topic, partitions, configs)


def journal(settings: Settings) -> dict[str, FirstSeen]:
    """What the flow's journal says of its topics."""

    async def read() -> dict[str, FirstSeen]:
        async with Wire(Endpoint.of(settings.target)) as target:
            return seen_in(await Journal(target, settings.flow).newest())

    return asyncio.run(read())


def owner_of(settings: Settings) -> Owner:
    """Who had the flow last, by its journal."""

    async def read() -> Owner:
        async with Wire(Endpoint.of(settings.target)) as target:
            return Owner.read((await Journal(target, settings.flow).newest())[OWNER])

    return asyncio.run(read())


def write_journal(settings: Settings, changes: Sequence[Change]) -> None:
    """Append records to the flow's journal."""

    async def write() -> None:
        async with Wire(Endpoint.of(settings.target)) as target:
            found = Journal(target, settings.flow)
            await target.refresh([found.partition.topic])
            await found.append(changes)

    asyncio.run(write())


def addresses(settings: Settings) -> tuple[str, str]:
    return settings.source.bootstrap_servers, settings.target.bootstrap_servers


@pytest.mark.brokers
def test_a_recreated_source_changes_nothing_on_the_target(settings: Settings, topic_name: str) -> None:
    """Neither a bounded copy nor a living mirror lets the broker delete what the new source is without."""
    source, target = addresses(settings)
    first = run_once(settings)
    assert first.exit_code == ExitCode.DONE
    seen = journal(settings)
    assert seen[topic_name].made
    living = Replanner(settings)
    current = living.replan((), seen).assignments
    before = configs_of(target, topic_name)
    assert before["retention.ms"] == "-1"
    recreate(source, topic_name, 2, FLEETING)
    again = run_once(settings)
    assert again.exit_code == ExitCode.DATA_AT_RISK
    assert {one.state for one in again.figures.values()} == {State.RECREATED}
    for replanner in (living, Replanner(settings)):
        for _ in range(2):
            assert replanner.replan(current, seen).assignments == current
    assert configs_of(target, topic_name) == before
    assert held(target, topic_name) == (0, 100)
    assert len(admin_of(target).describe([topic_name])[topic_name].partitions) == 1


@pytest.mark.brokers
def test_a_copy_that_is_not_its_sources_keeps_its_settings(
    settings: Settings, topic_name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    source, target = addresses(settings)
    assert run_once(settings).exit_code == ExitCode.DONE
    seen = journal(settings)
    produce(target, topic_name, values(5, "somebody else's"))
    keep_for(source, topic_name, "1000")
    admin_of(source).create_partitions([Growth(topic=topic_name, before=1, partitions=2)])
    awaited(lambda: len(admin_of(source).describe([topic_name])[topic_name].partitions) == 2)
    for _ in range(2):
        Replanner(settings).replan((), seen)
    assert configs_of(target, topic_name)["retention.ms"] == "-1"
    assert held(target, topic_name) == (0, 105)
    assert len(admin_of(target).describe([topic_name])[topic_name].partitions) == 1
    output = capfd.readouterr().err
    assert "topic_left_as_it_is" in output
    assert "DIVERGED" in output


@pytest.mark.brokers
def test_partitions_that_a_copy_does_not_get_for_now_are_refused_by_name(
    settings: Settings, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a broker was away, what the source had gained was mirrored nowhere, shown nowhere, and the exit code 0."""
    source, target = addresses(settings)
    assert run_once(settings).exit_code == ExitCode.DONE
    admin_of(source).create_partitions([Growth(topic=topic_name, before=1, partitions=3)])
    awaited(lambda: len(admin_of(source).describe([topic_name])[topic_name].partitions) == 3)
    produce(source, topic_name, values(5), partition=2)
    seen, living = journal(settings), Replanner(settings)

    async def away(*_: Any) -> dict[str, adoption.Unlike]:
        return {topic_name: adoption.Unlike("cluster us: broker 1 is away", is_passing=True)}

    with monkeypatch.context() as patched:
        patched.setattr(adoption, "tails", away)
        current = living.replan((), seen).assignments
        assert [one.source.partition for one in current] == [0]
        for refused in (living.replan(current, seen).refused, prepare(settings, once=True).refused):
            assert [[at.partition for at in one.places] for one in refused] == [[1, 2]]
        (refusal,) = plan_flow(settings).refusals
        assert refusal.startswith(f"{topic_name}: has 1 of the 3 partitions of {topic_name}")
        assert refusal.endswith("cluster us: broker 1 is away")
        ended = run_once(settings)
        assert ended.exit_code == ExitCode.PREFLIGHT
        assert [one.state for one in ended.figures.values()] == [State.CAUGHT_UP]
        reports = {one.partition: one.state for one in reports_in(asyncio.run(read_own(settings)).newest)}
        assert reports == {0: State.CAUGHT_UP, 1: State.REFUSED, 2: State.REFUSED}
    assert run_once(settings).exit_code == ExitCode.DONE
    assert ends(target, topic_name) == {0: 100, 1: 0, 2: 5}


@pytest.mark.brokers
def test_a_copy_that_somebody_wrote_to_since_it_was_compared_keeps_its_settings(
    settings: Settings, topic_name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A source that is purged by its retention must not take records away that the copy alone has."""
    source, target = addresses(settings)
    assert run_once(settings).exit_code == ExitCode.DONE
    seen, living = journal(settings), Replanner(settings)
    current = living.replan((), seen).assignments
    keep_for(source, topic_name, "99999999999")
    living.replan(current, seen, [topic_name])
    assert configs_of(target, topic_name)["retention.ms"] == "99999999999", "tasks acknowledged all that it holds"
    produce(target, topic_name, values(5, "somebody else's"))
    keep_for(source, topic_name, "1000")
    for _ in range(2):
        living.replan(current, seen, [topic_name])
    assert configs_of(target, topic_name)["retention.ms"] == "99999999999"
    assert held(target, topic_name) == (0, 105)
    output = capfd.readouterr().err
    assert "topic_left_as_it_is" in output
    assert "DIVERGED" in output


@pytest.mark.brokers
def test_a_copy_of_what_its_source_lost_since_it_was_compared_keeps_its_settings(
    own_target: Cluster, topic_name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whether a task has said so or not, as where the topic is paused: a purge would delete what the copy alone has."""
    target = own_target.bootstrap
    with Cluster.start(name="cut", folder=tmp_path / "cut") as source:
        settings = settings_between(source.bootstrap, target, [topic_name], topic_name)
        make_topic(source.bootstrap, topic_name, configs=KEPT)
        for first in (0, 50):
            produce(source.bootstrap, topic_name, values(50, f"{first}"), begin_ms=DAYS_AGO_MS)
        assert run_once(settings).exit_code == ExitCode.DONE
        seen, living = journal(settings), Replanner(settings)
        current = living.replan((), seen, [topic_name]).assignments
        crash_and_cut(source, topic_name, 0, below=50)
        produce(source.bootstrap, topic_name, values(100, "other"), begin_ms=DAYS_AGO_MS)
        keep_for(source.bootstrap, topic_name, "1000")
        living.replan(current, seen, [topic_name])
    assert configs_of(target, topic_name)["retention.ms"] == "-1"
    assert held(target, topic_name) == (0, 100)
    output = capfd.readouterr().err
    assert "topic_left_as_it_is" in output
    assert "TRUNCATED" in output


@pytest.mark.brokers
def test_a_sound_copy_follows_its_source(
    settings: Settings, topic_name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """One of version 0.1.0, too, whose journal does not say that the flow adopted it."""
    source, target = addresses(settings)
    assert run_once(settings).exit_code == ExitCode.DONE
    keep_for(source, topic_name, "99999999999")
    old = {topic_name: replace(journal(settings)[topic_name], made=False, adopted=False, origins=())}
    Replanner(settings).replan((), old)
    assert configs_of(target, topic_name)["retention.ms"] == "99999999999"
    assert "topic_config_changed" in capfd.readouterr().err


@pytest.mark.brokers
def test_a_copy_is_not_set_to_stamp_records_under_running_tasks(
    settings: Settings, topic_name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The batches on their way would get other times than the source's, which is DIVERGED, by the mirror's own act."""
    source, target = addresses(settings)
    settings = taking_target_times(settings)

    before, after = "CreateTime", "LogAppendTime"
    assert run_once(settings).exit_code == ExitCode.DONE
    seen, living = journal(settings), Replanner(settings)
    current = living.replan((), seen).assignments
    configure(source, topic_name, "message.timestamp.type", after)
    keep_for(source, topic_name, "99999999999")
    for _ in range(2):
        living.replan(current, seen)
    assert configs_of(target, topic_name)["retention.ms"] == "99999999999", "its other settings follow"
    assert configs_of(target, topic_name)["message.timestamp.type"] == before
    assert "message.timestamp.type follows the source's when the mirror is started" in capfd.readouterr().err
    assert run_once(settings).exit_code == ExitCode.DONE
    assert configs_of(target, topic_name)["message.timestamp.type"] == after


@pytest.mark.brokers
def test_a_copy_that_the_target_lets_nobody_set_to_other_times_is_mirrored_as_it_is(
    settings: Settings, topic_name: str
) -> None:
    """Nothing is written to it while that is tried, and no longer."""

    def refuses(_: Admin, __: Any, failures: dict[str, MirrorError], *___: Any) -> frozenset[str]:
        failures[topic_name] = SettingRefused(44, "POLICY_VIOLATION", "AlterConfigs")
        return frozenset()

    source, target = addresses(settings)
    settings = taking_target_times(settings)

    configure(source, topic_name, "message.timestamp.type", "LogAppendTime")
    assert run_once(settings).exit_code == ExitCode.DONE
    seen, living = journal(settings), Replanner(settings)
    first = living.replan((), seen).assignments
    assert [(one.rules.target_append_time, one.rules.mistimes) for one in first] == [(True, False)]
    configure(source, topic_name, "message.timestamp.type", "CreateTime")
    awaited(lambda: living.replan(first, seen).assignments != first)
    waiting = living.replan(first, seen).assignments
    assert [(one.rules.target_append_time, one.rules.mistimes) for one in waiting] == [(False, True)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topic_watcher, "apply", refuses)
        living.replan(waiting, seen)
    for current in (waiting, first):
        assert living.replan(current, seen).assignments == first
    assert configs_of(target, topic_name)["message.timestamp.type"] == "LogAppendTime"


@pytest.mark.brokers
def test_a_copy_gets_no_setting_that_its_source_had_once(
    settings: Settings, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source of many topics is described in turns: what is remembered of one may be a retention of long ago."""
    source, target = addresses(settings)
    assert run_once(settings).exit_code == ExitCode.DONE
    keep_for(source, topic_name, "8888888888888")
    seen, living = journal(settings), Replanner(settings)
    current = living.replan((), seen).assignments
    assert configs_of(target, topic_name)["retention.ms"] == "8888888888888"
    for bootstrap in (source, target):  # as where a person has it last longer
        keep_for(bootstrap, topic_name, "9999999999999")
    monkeypatch.setattr(living._source, "refresh", lambda _: False)  # it is not the topic's turn
    for _ in range(2):
        assert living.replan(current, seen).assignments == current
        assert configs_of(target, topic_name)["retention.ms"] == "9999999999999"
    known = living._source.topic_configs([topic_name])[topic_name]["retention.ms"].value
    assert known == "9999999999999", "from then on what was asked for is remembered"


@pytest.mark.brokers
@pytest.mark.parametrize("is_there", [True, False], ids=["changed", "created"])
def test_a_start_sets_what_the_source_has_by_then(
    settings: Settings, topic_name: str, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    """A plan of many topics takes a while, and what a shorter retention deletes of a copy nobody brings back."""
    source, target = addresses(settings)
    if is_there:
        assert run_once(settings).exit_code == ExitCode.DONE
    keep_for(source, topic_name, "1000000000000")

    def meanwhile(*_: object) -> None:
        monkeypatch.undo()
        keep_for(source, topic_name, "99999999999999")

    monkeypatch.setattr("mirror.driver.flow.record_making", meanwhile)
    given = list[Any]()
    alter, create = Admin.alter_configs, Admin.create_topics

    def altered(admin: Admin, changes: Any, *more: Any) -> None:
        asked = list(changes)
        given.extend(one.after for one in asked if (one.topic, admin.settings.alias) == (topic_name, alias))
        alter(admin, asked, *more)

    def created(admin: Admin, creations: Any, *more: Any) -> frozenset[str]:
        given.extend(one.configs["retention.ms"] for one in creations if one.topic == topic_name)
        return create(admin, creations, *more)

    alias = settings.target.alias
    with pytest.MonkeyPatch.context() as watched:
        watched.setattr(Admin, "alter_configs", altered)
        watched.setattr(Admin, "create_topics", created)
        assert run_once(settings).exit_code == ExitCode.DONE
    assert given == ["99999999999999"]
    assert configs_of(target, topic_name)["retention.ms"] == "99999999999999"


@pytest.mark.brokers
def test_a_setting_that_the_target_refuses_keeps_nothing_else_back(
    settings: Settings, topic_name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A retention that was raised with it followed as little, and the copy went on deleting what its source keeps. But
    what decides together which records there are: compacted without its lag, a copy lost what its source keeps.
    """
    source, target = addresses(settings)
    sync = settings.sync.model_copy(update={"configs_exclude": (re.compile("max[.]compaction.*"),)})
    settings = settings.model_copy(update={"sync": sync})
    keep_for(source, topic_name, "500000000000")
    assert run_once(settings).exit_code == ExitCode.DONE
    copy, topic = admin_of(target), admin_of(source)
    copy.alter_configs([ConfigChange(topic=topic_name, name="max.compaction.lag.ms", before=None, after="30000")])
    values = {"retention.ms": "99999999999999", "min.compaction.lag.ms": "60000", "max.message.bytes": "2000000"}
    values |= {"cleanup.policy": "compact"}
    topic.alter_configs([ConfigChange(topic=topic_name, name=name, before=None, after=v) for name, v in values.items()])
    living, seen = Replanner(settings), journal(settings)
    current = living.replan((), seen)
    assert (len(current.assignments), current.refused) == (1, ())
    awaited(lambda: configs_of(target, topic_name)["retention.ms"] == "99999999999999")
    assert configs_of(target, topic_name)["max.message.bytes"] == "2000000"
    assert configs_of(target, topic_name)["cleanup.policy"] == "delete"
    for _ in range(2):
        living.replan(current.assignments, seen)
    said = [line for line in capfd.readouterr().err.splitlines() if "setting_not_followed" in line]
    assert [f"topic={topic_name}" in line for line in said] == [True, True]
    assert "(cleanup.policy, min.compaction.lag.ms, retention.ms)" in said[0]
    assert "(cleanup.policy, min.compaction.lag.ms)" in said[1]
    topic.alter_configs([ConfigChange(topic=topic_name, name="cleanup.policy", before=None, after="delete")])
    produce(source, topic_name, [b"later"] * 5)
    assert run_once(settings).exit_code == ExitCode.DONE
    assert held(target, topic_name) == (0, 105)


@pytest.mark.brokers
@pytest.mark.parametrize("lost", ["failover", "owner"])
def test_a_round_changes_nothing_for_a_flow_that_is_lost(settings: Settings, topic_name: str, lost: str) -> None:
    """A mirror was frozen in the midst of a round: the flow was failed over meanwhile, or taken over, and its source is
    emptied, since it is done with.
    """
    source, target = addresses(settings)
    assert run_once(settings).exit_code == ExitCode.DONE
    living, seen = Replanner(settings), journal(settings)
    newest = owner_of(settings)
    living.owner = newest
    later = replace(newest, instance="later", claim=(newest.claim or 0) + 1)
    change = (OWNER, later.to_json()) if lost == "owner" else (FAILOVER, FailedOver.here().to_json())
    write_journal(settings, [change])
    for name, value in FLEETING.items():
        admin_of(source).alter_configs([ConfigChange(topic=topic_name, name=name, before=None, after=value)])
    admin_of(source).create_partitions([Growth(topic=topic_name, before=1, partitions=2)])
    with pytest.raises(PreflightError, match="failed over" if lost == "failover" else "took the flow over"):
        living.replan((), seen)
    assert configs_of(target, topic_name)["retention.ms"] == "-1"
    assert len(admin_of(target).describe([topic_name])[topic_name].partitions) == 1
    assert held(target, topic_name) == (0, 100)


@pytest.mark.brokers
def test_a_start_changes_nothing_for_a_flow_that_is_failed_over_meanwhile(
    settings: Settings, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While both clusters are compared."""
    source, target = addresses(settings)
    assert run_once(settings).exit_code == ExitCode.DONE
    keep_for(source, topic_name, "99999999999")
    plan = Gate.plan

    def planned(*given: Any) -> Any:
        found = plan(*given)
        write_journal(settings, [(FAILOVER, FailedOver.here().to_json())])
        return found

    monkeypatch.setattr(Gate, "plan", planned)
    with pytest.raises(PreflightError, match="failed over"):
        prepare(settings)
    assert configs_of(target, topic_name)["retention.ms"] == "-1"


@pytest.mark.brokers
def test_a_strangers_topic_is_refused_and_left_as_it_is(settings: Settings, topic_name: str, tmp_path: Path) -> None:
    """The source has a topic of the same name, which keeps its records for a second; the others are mirrored."""
    source, target = addresses(settings)
    stranger = f"{topic_name}-payroll"
    make_topic(target, stranger, 1, KEPT)
    produce(target, stranger, values(50, "payroll"), begin_ms=DAYS_AGO_MS + 10**11)
    before = configs_of(target, stranger)
    file = config_file(tmp_path, source, target, [f"{topic_name}.*"], topic_name)
    both = settings_between(source, target, [f"{topic_name}.*"], topic_name)
    living = Replanner(both)
    current = living.replan((), {}).assignments
    assert [one.source.topic for one in current] == [topic_name]
    make_topic(source, stranger, 2, FLEETING)
    produce(source, stranger, values(7))
    new_plan = living.replan(current, {})
    assert new_plan.assignments == current
    (refusal,) = new_plan.refused
    assert (refusal.source, refusal.partitions) == (stranger, 2)
    result = CliRunner().invoke(app, ["plan", str(file), "--json"])
    assert result.exit_code == ExitCode.PREFLIGHT
    (text,) = json.loads(result.stdout)["refused"]
    assert "50 offsets in 1 of 1 partition, 0 to 49 in partition 0" in text
    assert "has 7 offsets in 1 of 2 partitions" in text
    assert f"mirror adopt CONFIG {stranger}" in text
    done = run_once(both)
    assert done.exit_code == ExitCode.PREFLIGHT, "what is left out is not done"
    assert held(target, topic_name) == (0, 100), "the others go on"
    with pytest.raises(PreflightError, match="holds records"):
        run_once(settings_between(source, target, [stranger], f"{topic_name}-alone"))
    assert configs_of(target, stranger) == before
    assert held(target, stranger) == (0, 50)
    assert len(admin_of(target).describe([stranger])[stranger].partitions) == 1
    shown = json.loads(CliRunner().invoke(app, ["status", str(file), "--json"]).stdout)
    states = {(one["topic"], one["partition"]): one["state"] for one in shown["partitions"]}
    assert (states[topic_name, 0], states[stranger, 0], states[stranger, 1]) == ("CAUGHT_UP", "REFUSED", "REFUSED")


@pytest.mark.brokers
@pytest.mark.parametrize("is_recreated", [False, True], ids=["foreign", "recreated"])
def test_nothing_of_a_strangers_topic_is_accepted(
    settings: Settings, own_source: Cluster, topic_name: str, tmp_path: Path, is_recreated: bool
) -> None:
    """What nobody compared would count as confirmed, `adopt` would take it over, and the next run would have its
    records deleted by the source's retention; or the advice would be to delete the topic.
    """
    source, target = addresses(settings)
    stranger = f"{topic_name}-payroll"
    make_topic(source, stranger)
    produce(source, stranger, values(20))
    delete_before(own_source, stranger, 15)
    file = config_file(tmp_path, source, target, [stranger], topic_name)
    if is_recreated:
        assert run_once(settings_between(source, target, [stranger], topic_name)).exit_code == ExitCode.DONE
        delete_topics(target, stranger)
    make_topic(target, stranger, 1, KEPT)
    produce(target, stranger, values(10, "payroll"), begin_ms=DAYS_AGO_MS + 10**11)
    for more in ([], ["--unconfirmed"]):
        said = CliRunner().invoke(app, ["accept", str(file), stranger, *more])
        assert isinstance(said.exception, PreflightError), said.output
        assert "nothing of it is accepted" in str(said.exception)
    taken = CliRunner().invoke(app, ["adopt", str(file), stranger, "--ends-only"])
    assert taken.exit_code == ExitCode.DIFFERENT, taken.output
    assert held(target, stranger) == (0, 10)


def test_a_strangers_topic_gets_no_acl(topic_name: str) -> None:
    """A stranger could read it else, or its owners could write no more; nor is the mirror shut out of its own copy."""
    config = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        "super.users": "User:ANONYMOUS",
    }
    literal, kinds = ResourcePatternType.LITERAL, (AclPermissionType.ALLOW, AclPermissionType.DENY)
    with ExitStack() as stack:
        specs = [Spec(name=name, config=config) for name in ("strange-source", "strange-target")]
        source, target = (stack.enter_context(cluster).bootstrap for cluster in start_many(specs))
        stranger = f"{topic_name}-payroll"
        for side, topic in ((source, topic_name), (source, stranger), (target, stranger)):
            make_topic(side, topic)
        produce(target, stranger, values(10))
        admin = AdminClient({"bootstrap.servers": source})  # kept until the answers are there
        given = [
            AclBinding(ResourceType.TOPIC, topic, literal, *rule)
            for topic in (topic_name, stranger)
            for rule in (("User:a", "*", AclOperation.READ, kinds[0]), ("User:*", "*", AclOperation.WRITE, kinds[1]))
        ]
        for done in admin.create_acls(given).values():
            done.result(20)
        settings = policy(settings_between(source, target, [f"{topic_name}.*"], topic_name), acls=True)
        ensure_flow_topic(admin_of(target), topic_name)
        renewal = Replanner(settings)
        for _ in range(2):
            renewal.replan((), {})
        found = admin_of(target).acls(every_acl(ResourceType.TOPIC, topic_name))
        held_there = {rule.name: rule.operation for rule in found}
        assert held_there == {topic_name: AclOperation.READ}
        assert not admin_of(target).acls(every_acl(ResourceType.TOPIC, stranger))


@pytest.mark.brokers
def test_two_flows_into_one_topic_are_refused_by_name(settings: Settings, topic_name: str) -> None:
    assert run_once(settings).exit_code == ExitCode.DONE
    second = settings.model_copy(update={"flow": f"{topic_name}-second"})
    with pytest.raises(PreflightError, match=f"flow {topic_name} writes to it"):
        run_once(second)
    assert not journal(second)
    assert run_once(settings).exit_code == ExitCode.DONE, "the first one goes on"


@pytest.mark.brokers
def test_a_dead_letter_topic_is_no_copy_of_another_flow(
    own_source: Cluster, own_target: Cluster, topic_name: str
) -> None:
    """Nor does one become such a copy while it is empty; but two flows may share one."""
    source, target, letters = own_source.bootstrap, own_target.bootstrap, f"{topic_name}-letters"
    for name in (topic_name, letters):
        make_topic(source, name)

    def rekeyed(flow: str, to: str, dead_letter: str) -> Settings:
        rule = {"match": topic_name, "partitions": 3, "on_bad_record": "dead-letter", "dead_letter": dead_letter}
        more = {"rules": [rule], "naming": {"rename": {topic_name: to}}}
        return settings_between(source, target, [topic_name], f"{topic_name}-{flow}", **more)

    begun(rekeyed("first", f"{topic_name}-1", letters))
    begun(rekeyed("second", f"{topic_name}-2", letters))
    with pytest.raises(PreflightError, match=f"{letters}: flow {topic_name}-(first|second) writes to it"):
        prepare(settings_between(source, target, [letters], f"{topic_name}-copy"))
    copy = settings_between(source, target, [topic_name], f"{topic_name}-copy")
    assert run_once(copy).exit_code == ExitCode.DONE
    said = f"{topic_name}: is the dead_letter topic of a rule, and flow {copy.flow} writes to it; name another one"
    with pytest.raises(PreflightError, match=said):
        prepare(rekeyed("third", f"{topic_name}-3", topic_name))
    begun(rekeyed("third", f"{topic_name}-3", letters))


@pytest.mark.brokers
def test_what_comes_from_the_target_is_not_taken_over(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    """A failback that is prepared too early would stop the flow that still runs, at its next start."""
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name)
    produce(source, topic_name, values(10))
    forth = settings_between(source, target, [topic_name], f"{topic_name}-forth")
    assert run_once(forth).exit_code == ExitCode.DONE
    back = config_file(tmp_path, target, source, [topic_name], f"{topic_name}-back")
    early = CliRunner().invoke(app, ["adopt", str(back), "--all"])
    assert early.exit_code == ExitCode.PREFLIGHT, early.stdout
    assert f"flow {topic_name}-forth mirrors it" in early.stdout
    produce(source, topic_name, values(5))
    assert run_once(forth).exit_code == ExitCode.DONE
    assert held(target, topic_name) == (0, 15)
    ended = CliRunner().invoke(app, ["failover", str(config_file(tmp_path, source, target, [topic_name], forth.flow))])
    assert ended.exit_code == ExitCode.DONE, ended.stdout
    assert CliRunner().invoke(app, ["adopt", str(back), "--all"]).exit_code == ExitCode.DONE


@pytest.mark.brokers
@pytest.mark.parametrize("is_ours", [False, True], ids=["foreign", "recreated"])
def test_adopt_names_what_the_copy_would_delete_before_it_is_taken_over(
    settings: Settings, topic_name: str, tmp_path: Path, is_ours: bool
) -> None:
    """It keeps what its source has no more, and would follow that, at once where a mirror runs."""
    source, target = addresses(settings)
    if is_ours:
        keep_for(source, topic_name, "-1")
        assert run_once(settings).exit_code == ExitCode.DONE
        recreate(source, topic_name, configs={"retention.ms": "99999999999"})
        produce(source, topic_name, values(100), begin_ms=DAYS_AGO_MS)
    else:
        make_topic(target, topic_name, configs=KEPT)
        produce(target, topic_name, values(100), begin_ms=DAYS_AGO_MS)
        keep_for(source, topic_name, "99999999999")
    file = config_file(tmp_path, source, target, [topic_name], settings.flow)
    expected = "gets retention.ms=99999999999 as its source has, and deletes what that does not keep"
    before = journal(settings).get(topic_name)
    done = CliRunner().invoke(app, ["adopt", str(file), topic_name])
    assert (done.exit_code, expected in done.stdout) == (ExitCode.PREFLIGHT, True), done.stdout
    assert journal(settings).get(topic_name) == before, "nothing is on record"
    if not is_ours:
        planned = " ".join(CliRunner().invoke(app, ["plan", str(file)]).stdout.split())
        assert expected in planned
        assert "have retention.ms in sync.configs_exclude" in planned
    keep_for(target, topic_name, "99999999999")
    done = CliRunner().invoke(app, ["adopt", str(file), topic_name])
    assert done.exit_code == ExitCode.DONE, done.stdout
    assert run_once(settings).exit_code == ExitCode.DONE
    assert "sync.configs_exclude" not in CliRunner().invoke(app, ["plan", str(file)]).stdout


@pytest.mark.brokers
def test_a_loop_over_three_clusters_is_refused(own_source: Cluster, own_target: Cluster, topic_name: str) -> None:
    """With a prefix on each way, so that no name comes back."""
    with ExitStack() as stack:
        (third,) = (stack.enter_context(cluster).bootstrap for cluster in start_many([Spec(name="third")]))
        first, second = own_source.bootstrap, own_target.bootstrap
        make_topic(first, topic_name)
        produce(first, topic_name, values(10))
        ways = [(first, second, "a."), (second, third, "b."), (third, first, "c.")]
        flows = [
            settings_between(one, other, [f".*{topic_name}"], f"{topic_name}-{number}", naming={"prefix": prefix})
            for number, (one, other, prefix) in enumerate(ways)
        ]
        for flow in flows[:2]:
            assert run_once(flow).exit_code == ExitCode.DONE
        ids = own_source.cluster_id, own_target.cluster_id
        assert journal(flows[1])[f"b.a.{topic_name}"].origins == ids[::-1]
        with pytest.raises(PreflightError, match="to mirror it back would be a loop"):
            run_once(flows[2])
        assert admin_of(first).describe([f"c.b.a.{topic_name}"]) == {}


@pytest.mark.brokers
@pytest.mark.parametrize("is_rekeyed", [False, True], ids=["mirrored", "re-keyed"])
@pytest.mark.parametrize("prefixes", [("", ""), ("a.", "b.")], ids=["same names", "other names"])
def test_what_is_re_keyed_is_not_mirrored_back(
    own_source: Cluster, own_target: Cluster, topic_name: str, prefixes: tuple[str, str], is_rekeyed: bool
) -> None:
    """By a flow that begins while there is no record yet: from the first one on each would go round for ever."""
    here, there = own_source.bootstrap, own_target.bootstrap
    make_topic(here, topic_name)
    rules = [{"match": f".*{topic_name}", "partitions": 3}]
    one = {"naming": {"prefix": prefixes[0]}, "rules": rules}
    begun(settings_between(here, there, [topic_name], topic_name, **one))
    other = {"naming": {"prefix": prefixes[1]}, "rules": rules if is_rekeyed else []}
    back = settings_between(there, here, [f".*{topic_name}"], f"{topic_name}-back", **other)
    with pytest.raises(PreflightError, match=f"flow {topic_name} mirrors it, and to mirror it back would be a loop"):
        prepare(back)
    assert list(admin_of(here).describe([topic_name, f"b.a.{topic_name}"])) == [topic_name]
    assert len(admin_of(here).describe([topic_name])[topic_name].partitions) == 1


@pytest.mark.brokers
def test_a_loop_by_way_of_a_re_keyed_topic_is_refused(
    own_source: Cluster, own_target: Cluster, topic_name: str
) -> None:
    """The re-keyed topic is one of a copy, and the way back is from a third cluster."""
    with ExitStack() as stack:
        (third,) = (stack.enter_context(cluster).bootstrap for cluster in start_many([Spec(name="third-rekeyed")]))
        first, second = own_source.bootstrap, own_target.bootstrap
        make_topic(first, topic_name)
        rules = [{"match": topic_name, "partitions": 3}]
        assert run_once(settings_between(first, second, [topic_name], f"{topic_name}-0")).exit_code == ExitCode.DONE
        begun(settings_between(second, third, [topic_name], f"{topic_name}-1", rules=rules))
        with pytest.raises(PreflightError, match="to mirror it back would be a loop"):
            prepare(settings_between(third, first, [topic_name], f"{topic_name}-2"))


@pytest.mark.brokers
def test_one_topics_failure_is_its_own(settings: Settings, topic_name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Kafka takes `new.x` and `new_x` for one name; a policy of a broker may refuse another one."""
    source, target = addresses(settings)
    both = settings_between(source, target, [f"{topic_name}.*"], topic_name)
    make_topic(target, f"{topic_name}_x")
    living = Replanner(both)
    current = living.replan((), {}).assignments
    admin_of(source).create_partitions([Growth(topic=topic_name, before=1, partitions=2)])
    awaited(lambda: len(admin_of(source).describe([topic_name])[topic_name].partitions) == 2)
    for more in (".x", "-fine"):
        make_topic(source, f"{topic_name}{more}")
    seen = made_by(both, [topic_name])
    new_plan = living.replan(current, seen)
    assert {(one.source.topic, one.source.partition) for one in new_plan.assignments} == {
        (topic_name, 0),
        (topic_name, 1),
        (f"{topic_name}-fine", 0),
    }
    assert [one.source for one in new_plan.refused] == [f"{topic_name}.x"]
    assert f"would collide with topic {topic_name}_x" in capfd.readouterr().err
    assert run_once(both).exit_code == ExitCode.PREFLIGHT
    failures: dict[str, MirrorError] = {}
    bad, good = (Creation(topic=f"{topic_name}{more}", partitions=1, replication_factor=1) for more in (".x", "-good"))
    plan = replace(plan_topics(living._source, living._target, both), creations=(bad, good), growths=(), findings=())
    assert apply(living._target, replace(plan, changes=()), failures) == {good.topic}
    assert failures.keys() == {bad.topic}


@pytest.mark.brokers
def test_every_name_of_a_flow_is_one_topics(settings: Settings, topic_name: str) -> None:
    source, target = addresses(settings)
    other = f"{topic_name}-other"
    make_topic(source, other)
    rule = {"match": other, "rekey": "key", "on_bad_record": "dead-letter"}
    for letters, why in (
        (topic_name, "the dead_letter topic of a rule and the copy of a topic as well"),
        (f"mirror.{topic_name}.offsets", "begins with `mirror.`"),
        (f"__{topic_name}", "begins with `__`"),
    ):
        rules = [{**rule, "dead_letter": letters}]
        asked = settings_between(source, target, [topic_name, other], topic_name, rules=rules)
        plan = plan_topics(Admin(asked.source), Admin(asked.target), asked)
        assert any(why in str(finding) for finding in plan.refusals), plan.refusals


@pytest.mark.brokers
def test_what_a_re_keyed_topic_needs_is_made_only_where_that_is_wanted(
    own_source: Cluster, own_target: Cluster, topic_name: str
) -> None:
    """But for what the flow keeps for itself, which takes records of any time, as where it makes all."""
    source, target, letters = own_source.bootstrap, own_target.bootstrap, f"{topic_name}-letters"
    make_topic(source, topic_name)
    rule = {"match": topic_name, "rekey": "key", "on_bad_record": "dead-letter", "dead_letter": letters}
    asked = policy(settings_between(source, target, [topic_name], topic_name, rules=[rule]), topics=False)
    for missing in (topic_name, letters):
        with pytest.raises(PreflightError, match=f"{missing}: does not exist and sync.topics is false; create it"):
            prepare(asked)
        assert not admin_of(target).describe([missing])
        make_topic(target, missing)
    (rekeying,) = prepare(asked).rekeyed
    limits = admin_of(target).topic_configs([rekeying.progress])[rekeying.progress]
    assert limits["message.timestamp.after.max.ms"].value == str(2**63 - 1)


@pytest.mark.brokers
@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state", "__cluster_metadata"])
def test_no_copy_has_the_name_of_a_topic_of_kafkas_own(settings: Settings, topic_name: str, name: str) -> None:
    """Where there is none yet it was made, for the data alone, and consumer groups had no coordinator from then on."""
    source, target = addresses(settings)
    asked = settings_between(source, target, [topic_name], topic_name, naming={"rename": {topic_name: name}})
    plan = plan_topics(Admin(asked.source), Admin(asked.target), asked)
    assert [str(one) for one in plan.refusals if "begins with `__`" in str(one)]
    plan = plan.allowed()
    assert (plan.pairs, plan.creations, plan.changes) == ((), (), ())
    files = plan_restoration(Admin(asked.target), {topic_name: Found(partitions=1)}, asked)
    assert [str(one) for one in files.refusals if "begins with `__`" in str(one)]


@pytest.mark.brokers
def test_a_copy_of_a_recreated_topic_is_never_deleted(settings: Settings, topic_name: str) -> None:
    """Nor is one of a flow's only topic, or one whose ids nobody knows."""
    source, target = addresses(settings)
    asked = policy(settings, deletions="delete")
    assert run_once(asked).exit_code == ExitCode.DONE
    seen, living = journal(asked), Replanner(asked)
    current = living.replan((), seen).assignments
    recreate(source, topic_name)
    for known in (current, tuple(replace(one, topic_id=None) for one in current)):
        for _ in range(2):
            assert living.replan(known, seen, [topic_name]).assignments == known
    delete_topics(source, topic_name)
    for _ in range(2):
        assert living.replan(current, seen, [topic_name]).assignments == current
    assert held(target, topic_name) == (0, 100)


@pytest.mark.brokers
def test_of_two_flows_that_begin_at_once_one_writes_nothing(settings: Settings, topic_name: str) -> None:
    """Both found the target without the topic, or with an empty one, before either had named it in its journal."""
    other = settings_between(*addresses(settings), [topic_name], f"{topic_name}-beside")
    flow, beside = prepare(settings, once=True), prepare(other, once=True)
    engine: Any = InThisProcess()
    assert asyncio.run(Supervisor(engine, flow, lambda _: None).run()).exit_code == ExitCode.DONE
    with pytest.raises(PreflightError, match=f"{topic_name}: flow {settings.flow} writes to it"):
        asyncio.run(Supervisor(engine, beside, lambda _: None).run())
    assert journal(other) == {}
    assert held(addresses(settings)[1], topic_name) == (0, 100)
    assert run_once(settings).exit_code == ExitCode.DONE


@pytest.mark.brokers
@pytest.mark.parametrize("is_loop", [False, True], ids=["same target", "way back"])
def test_what_another_flow_named_since_its_journal_was_read_is_not_begun(
    settings: Settings, topic_name: str, is_loop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No topic's name is new then. It is begun once the other flow has let go of it."""
    source, target = addresses(settings)
    second, ends = f"{topic_name}-2", (target, source) if is_loop else (source, target)
    other = settings_between(*ends, [second], f"{topic_name}-other")
    for bootstrap in (source, target):
        make_topic(bootstrap, second)
    ensure_flow_topic(Admin(other.target), other.flow)
    living = Replanner(settings)
    begun = living.replan((), {}).assignments
    assert [found.source.topic for found in begun] == [topic_name]
    topic_id, cluster_id = Admin(other.target).describe([second])[second].topic_id, Admin(other.source).cluster_id()
    named = FirstSeen(source_topic=second, topic_id=None, target_topic_id=topic_id, cluster_id=cluster_id)
    write_journal(other, [(FirstSeen.key(second), named.to_json())])
    living.settings = settings_between(source, target, [topic_name, second], settings.flow)
    for asked_again in (30.0, 0.0):
        monkeypatch.setattr("mirror.driver.topic_watcher._ASK_OTHERS_SECONDS", asked_again)
        found = living.replan(begun, {})
        assert found.assignments == begun
        (refused,) = found.refused
        assert f"flow {other.flow} {'mirrors it' if is_loop else 'writes to it'}" in refused.reason
    write_journal(other, [(FirstSeen.key(second), None)])
    assert [one.source.topic for one in living.replan(begun, {}).assignments] == [topic_name, second]


@pytest.mark.brokers
@pytest.mark.parametrize("rules", [[], [{"match": ".*", "partitions": 3}]], ids=["copied", "re-keyed"])
def test_what_a_flow_towards_the_source_creates_is_no_source_topic(
    settings: Settings, topic_name: str, rules: list[dict[str, Any]]
) -> None:
    """From its first moment on, which is long before that flow begins."""
    source, target = addresses(settings)
    other = f"other.{topic_name}"
    make_topic(target, other)
    ensure_flow_topic(Admin(settings.target), settings.flow)
    living = Replanner(settings_between(source, target, [f".*{topic_name}"], settings.flow))
    begun = living.replan((), {}).assignments
    prepare(settings_between(target, source, [other], f"{topic_name}-back", naming={"prefix": "b."}, rules=rules))
    assert admin_of(source).describe([f"b.{other}"])
    found = living.replan(begun, {})
    assert [one.source.topic for one in found.assignments] == [topic_name]
    assert [one.source for one in found.refused] == [f"b.{other}"]
    assert "to mirror it back would be a loop" in found.refused[0].reason
    assert not admin_of(target).describe([f"b.{other}"])


@pytest.mark.brokers
def test_what_another_flow_makes_while_a_start_makes_it_is_its_own(
    settings: Settings, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was not there when the plan was made."""
    source, target = addresses(settings)
    other = settings_between(source, target, [topic_name], f"{topic_name}-other")

    def made(*given: Any) -> frozenset[str]:
        monkeypatch.setattr("mirror.driver.flow.apply", apply)
        assert run_once(other).exit_code == ExitCode.DONE
        return apply(*given)

    monkeypatch.setattr("mirror.driver.flow.apply", made)
    flow = prepare(settings)
    assert (flow.assignments, [one.source for one in flow.refused]) == ((), [topic_name])
    assert f"flow {other.flow} writes to it" in flow.refused[0].reason


@pytest.mark.brokers
def test_a_topic_that_no_broker_knows_for_a_moment_keeps_its_record(settings: Settings, topic_name: str) -> None:
    assert run_once(settings).exit_code == ExitCode.DONE

    async def begin() -> None:
        async with Wire(Endpoint.of(settings.source)) as source, Wire(Endpoint.of(settings.target)) as target:
            own = Journal(target, settings.flow)
            known = await own.newest()
            await source.refresh([topic_name])
            at = TopicPartition(topic_name, 0)
            target.refresh = source.refresh  # type: ignore[method-assign]  # it hears of no topic
            assert topic_name not in target.topics
            found = await recorded(source, own, [Assignment(at, at, None, Rules())], known)
            assert found[0].topic_id == source.topic_id(topic_name)

    before = journal(settings)
    asyncio.run(begin())
    assert journal(settings) == before
    assert before[topic_name].target_topic_id is not None


Until = Callable[[Callable[[], bool]], Coroutine[Any, Any, None]]
States = dict[TopicPartition, PartitionStatus]


def beside_a_running_mirror(settings: Settings, story: Callable[[States, Until], Coroutine[Any, Any, None]]) -> None:
    """What happens while a mirror runs, which fills the states; it ends with the story."""
    asked = policy(settings, interval_s=0.5)
    context: Any = InThisProcess()
    states: States = {}

    async def until(condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(0.05)

    async def played() -> None:
        flow = replace(await asyncio.to_thread(prepare, asked), epoch_seconds=2.0)
        live = Supervisor(context, flow, states.update, topic_watcher=TopicWatcher(Replanner(asked), lambda: asked))
        run = asyncio.create_task(live.run())
        try:
            async with asyncio.timeout(120):
                await story(states, until)
        finally:
            live._stop()
            await run

    asyncio.run(played())


def is_in(states: States, topic: str, state: State, records: int) -> bool:
    at = TopicPartition(topic, 0)
    return at in states and states[at].state is state and states[at].next_offset == records


@pytest.mark.brokers
def test_a_running_mirror_begins_anew_when_the_copy_is_deleted(settings: Settings, topic_name: str) -> None:
    """As the message of RECREATED advises."""
    source, target = addresses(settings)
    assert run_once(settings).exit_code == ExitCode.DONE

    async def story(states: States, until: Until) -> None:
        await until(lambda: is_in(states, topic_name, State.CAUGHT_UP, 100))
        await asyncio.to_thread(recreate, source, topic_name)
        at = TopicPartition(topic_name, 0)
        await until(lambda: states[at].state in (State.RECREATED, State.TRUNCATED))
        await asyncio.to_thread(produce, source, topic_name, values(30, "new"))
        await asyncio.to_thread(delete_topics, target, topic_name)
        await until(lambda: is_in(states, topic_name, State.CAUGHT_UP, 30))

    beside_a_running_mirror(settings, story)
    assert held(target, topic_name) == (0, 30)
    found = journal(settings)[topic_name]
    assert (found.topic_id, found.target_topic_id) == (
        admin_of(source).describe([topic_name])[topic_name].topic_id,
        admin_of(target).describe([topic_name])[topic_name].topic_id,
    )
    assert run_once(settings).exit_code == ExitCode.DONE


@pytest.mark.brokers
def test_a_running_mirror_goes_on_with_a_copy_that_is_adopted_for_a_topic_made_anew(
    settings: Settings, topic_name: str, tmp_path: Path
) -> None:
    """Where the topic was filled again with what the copy has, as behind a way back."""
    source, target = addresses(settings)
    assert run_once(settings).exit_code == ExitCode.DONE
    file = config_file(tmp_path, source, target, [topic_name], settings.flow)

    async def story(states: States, until: Until) -> None:
        await until(lambda: is_in(states, topic_name, State.CAUGHT_UP, 100))
        await asyncio.to_thread(recreate, source, topic_name, configs=KEPT)
        at = TopicPartition(topic_name, 0)
        await until(lambda: states[at].state in (State.RECREATED, State.TRUNCATED))
        await asyncio.to_thread(produce, source, topic_name, values(100), begin_ms=DAYS_AGO_MS)
        done = await asyncio.to_thread(CliRunner().invoke, app, ["adopt", str(file), topic_name])
        assert done.exit_code == ExitCode.DONE, done.output
        await asyncio.to_thread(produce, source, topic_name, values(30, "new"))
        await until(lambda: is_in(states, topic_name, State.CAUGHT_UP, 130))

    beside_a_running_mirror(settings, story)
    assert held(target, topic_name) == (0, 130)
    assert CliRunner().invoke(app, ["failover", str(file)]).exit_code == ExitCode.DONE


@pytest.mark.brokers
def test_what_is_not_taken_over_is_not_to_be_deleted(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    """As an old source's topic, which has the only records of what did not get over; what is advised keeps both."""
    source, target = own_source.bootstrap, own_target.bootstrap
    for side, many in ((source, 40), (target, 60)):
        make_topic(side, topic_name)
        produce(side, topic_name, values(many))
    file = config_file(tmp_path, source, target, [topic_name], topic_name)
    done = CliRunner().invoke(app, ["adopt", str(file), topic_name])
    assert done.exit_code == ExitCode.DIFFERENT, done.output
    assert "--delete" not in done.stdout
    assert f"To keep it, name another copy of {topic_name} in topics.naming.rename" in done.stdout
    naming = {"rename": {topic_name: f"{topic_name}-now"}}
    assert (
        run_once(settings_between(source, target, [topic_name], topic_name, naming=naming)).exit_code == ExitCode.DONE
    )
    assert [ends(target, one) for one in (topic_name, f"{topic_name}-now")] == [{0: 60}, {0: 40}]


@pytest.mark.brokers
def test_a_source_that_was_made_anew_is_compared_from_its_own_first_record(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    """The copy began later, as the flow did: what the former topic had before was not to be mirrored."""
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name)
    produce(source, topic_name, values(20))
    settings = settings_between(source, target, [topic_name], topic_name, start="latest")
    assert run_once(settings).exit_code == ExitCode.DONE
    produce(source, topic_name, values(10))
    assert run_once(settings).exit_code == ExitCode.DONE
    delete_topics(source, topic_name)
    make_topic(source, topic_name)
    produce(source, topic_name, [b"another"] * 20)
    produce(source, topic_name, values(10))
    file = config_file(tmp_path, source, target, [topic_name], topic_name, start="latest")
    done = CliRunner().invoke(app, ["adopt", str(file), topic_name])
    assert done.exit_code == ExitCode.DIFFERENT, done.output
    assert "offsets 0 to 19 on the source, deleted on the target" in done.stdout


@pytest.mark.brokers
@pytest.mark.parametrize("offsets", ["preserve", "translate"])
def test_a_copy_is_taken_over_after_it_was_compared(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path, offsets: str
) -> None:
    source, target = own_source.bootstrap, own_target.bootstrap
    equal, other = f"{topic_name}-equal", f"{topic_name}-other"
    for topic in (equal, other):
        for side in (source, target):
            make_topic(side, topic)
        produce(source, topic, values(60))
    produce(target, equal, values(40))
    produce(target, other, [*values(20), b"not the source's", *values(40)[21:]])
    file = config_file(tmp_path, source, target, [f"{topic_name}.*"], topic_name, offsets=offsets)
    settings = settings_between(source, target, [f"{topic_name}.*"], topic_name, offsets=offsets)

    def adopted(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["adopt", str(file), *arguments])
        return done.exit_code, done.stdout

    code, reported = adopted(other)
    assert code == ExitCode.DIFFERENT, reported
    assert "is not taken over" in reported
    code, reported = adopted(equal)
    assert (code, "compared were 40 records of 1 partition" in reported) == (ExitCode.DONE, True), reported
    assert adopted(equal) == (ExitCode.DONE, f"{equal}: {equal} is this flow's already\n")
    assert adopted("--all")[0] == ExitCode.DIFFERENT
    done = run_once(settings)
    assert (done.exit_code, [one.source for one in done.refused]) == (ExitCode.PREFLIGHT, [other])
    assert (held(target, equal), held(target, other)) == ((0, 60), (0, 40))
    assert not journal(settings)[equal].made


@pytest.mark.brokers
def test_a_copy_that_another_flow_takes_while_it_is_compared_is_not_taken_over(
    own_source: Cluster, own_target: Cluster, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two flows would write to it."""
    sides = own_source.bootstrap, own_target.bootstrap
    for side in sides:
        make_topic(side, topic_name)
        produce(side, topic_name, values(20))
    one, other = (settings_between(*sides, [topic_name], f"{topic_name}-{name}") for name in ("one", "other"))
    compared = command._compared

    def slow(*given: Any, **options: Any) -> Any:
        monkeypatch.undo()
        assert command.adopt(other, [topic_name], every=False, ends_only=False, as_json=True) == ExitCode.DONE
        return compared(*given, **options)

    monkeypatch.setattr(command, "_compared", slow)
    assert command.adopt(one, [topic_name], every=False, ends_only=False, as_json=True) == ExitCode.PREFLIGHT
    assert topic_name not in journal(one)
    assert run_once(other).exit_code == ExitCode.DONE


@pytest.mark.brokers
@pytest.mark.parametrize("since", ["before", "meanwhile"])
def test_nothing_is_taken_over_while_a_flows_journal_does_not_say_what_it_writes_to(
    own_source: Cluster, own_target: Cluster, topic_name: str, monkeypatch: pytest.MonkeyPatch, since: str
) -> None:
    """Its disk was gone, the copy's was not: the copy of a mirror at work was taken over, which was refused then."""
    sides = own_source.bootstrap, own_target.bootstrap
    make_topic(sides[0], topic_name)
    produce(sides[0], topic_name, values(20))
    one, other = (settings_between(*sides, [topic_name], f"{topic_name}-{name}") for name in ("one", "other"))
    assert run_once(one).exit_code == ExitCode.DONE
    read, reads = Journal.read, list[str]()

    async def fails(asked: Journal, *more: Any) -> Any:
        if asked.partition.topic == journal_topic(one.flow):
            reads.append(one.flow)
            if since == "before" or len(reads) > 1:
                raise ClusterUnreachable("no leader")
            return [], 0
        return await read(asked, *more)

    monkeypatch.setattr(Journal, "read", fails)
    with pytest.raises(ClusterUnreachable, match=r"cannot be read, so it is not known which topics that flow writes"):
        command.adopt(other, [topic_name], every=False, ends_only=False, as_json=True)
    monkeypatch.undo()
    assert topic_name not in journal(other)
    assert command.adopt(other, [topic_name], every=False, ends_only=False, as_json=True) == ExitCode.PREFLIGHT


@pytest.mark.brokers
@pytest.mark.parametrize("change", ["configs", "partitions"])
def test_a_start_changes_nothing_of_a_copy_that_was_made_anew_under_it(
    settings: Settings, topic_name: str, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Brokers take settings and partitions by a topic's name: who starts may be suspended behind its question."""
    source, target = addresses(settings)
    assert run_once(settings).exit_code == ExitCode.DONE
    if change == "configs":
        changed = ConfigChange(topic=topic_name, name="segment.ms", before="", after="7200000")
        admin_of(source).alter_configs([changed])
    else:
        admin_of(source).create_partitions([Growth(topic=topic_name, before=1, partitions=3)])

    def suspended(*_: object) -> None:
        monkeypatch.undo()
        delete_topics(target, topic_name)
        make_topic(target, topic_name)
        produce(target, topic_name, values(7, "a stranger's "))

    monkeypatch.setattr("mirror.driver.flow.record_making", suspended)
    done = run_once(settings)
    assert (done.exit_code, "it was recreated" in done.refused[0].reason) == (ExitCode.PREFLIGHT, True)
    there = admin_of(target)
    assert there.topic_configs([topic_name])[topic_name]["segment.ms"].value != "7200000"
    assert len(there.describe([topic_name])[topic_name].partitions) == 1
    assert held(target, topic_name) == (0, 7)


@pytest.mark.brokers
def test_a_start_changes_nothing_of_a_copy_whose_source_was_made_anew_under_it(
    settings: Settings, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its former source had set is no setting of that copy any more: it is frozen."""
    source, target = addresses(settings)
    assert run_once(settings).exit_code == ExitCode.DONE
    changed = ConfigChange(topic=topic_name, name="segment.ms", before="", after="7200000")
    admin_of(source).alter_configs([changed])

    def suspended(*_: object) -> None:
        monkeypatch.undo()
        recreate(source, topic_name)

    monkeypatch.setattr("mirror.driver.flow.record_making", suspended)
    run_once(settings)
    assert admin_of(target).topic_configs([topic_name])[topic_name]["segment.ms"].value != "7200000"
    assert held(target, topic_name) == (0, 100)


@pytest.mark.brokers
def test_no_order_is_given_behind_a_suspension_since_the_topic_was_looked_at(
    settings: Settings, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another topic may have its name by then."""
    _, target = addresses(settings)
    make_topic(target, topic_name)
    admin = admin_of(target)
    ids = {topic_name: admin.describe([topic_name])[topic_name].topic_id}
    described, day = admin.describe, [0.0]
    monkeypatch.setattr(SuspensionDetector.__init__, "__defaults__", (lambda: (day[0], 0.0),))

    def slow(names: Any) -> Any:
        found = described(names)
        day[0] += 60
        return found

    monkeypatch.setattr(admin, "describe", slow)
    changed = [ConfigChange(topic=topic_name, name="cleanup.policy", before="", after="compact")]
    with pytest.raises(ClusterUnreachable, match="suspended"):
        admin.alter_configs(changed, ids=ids)
    assert admin.topic_configs([topic_name])[topic_name]["cleanup.policy"].value == "delete"


@pytest.mark.brokers
def test_a_task_writes_nothing_to_a_copy_that_was_made_anew_under_it(
    own_source: Cluster, own_target: Cluster, topic_name: str
) -> None:
    """It may be a stranger's by now; and if it is the flow's own, the journal must name it before it holds a record."""
    source, target = own_source.bootstrap, own_target.bootstrap
    for side in (source, target):
        make_topic(side, topic_name)
    produce(source, topic_name, values(10))
    at = TopicPartition(topic_name, 0)
    with WatchedTask(source, target, [at], names_copies=True) as task:
        task.mirrored(at, 10)
        delete_topics(target, topic_name)
        make_topic(target, topic_name)
        produce(source, topic_name, values(10))
        task.until(at, lambda one: "deleted and created again" in one.detail)
        admin = admin_of(target)
        assert [span.end for span in admin.spans(admin.describe([topic_name]).values()).values()] == [0]


@pytest.mark.brokers
def test_a_copy_that_begins_later_names_how_to_take_it_over(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    """As the old source does at a failback, whose retention went by other segments than its copy's."""
    source, target = own_source.bootstrap, own_target.bootstrap
    for bootstrap in (source, target):
        make_topic(bootstrap, topic_name)
        produce(bootstrap, topic_name, values(20))
    at = TopicPartition(topic_name, 0)

    async def expire() -> None:
        async with Wire(Endpoint.of(settings_between(source, target, [topic_name]).target)) as cluster:
            await cluster.refresh([topic_name])
            await delete_records(cluster, at, 10)

    asyncio.run(expire())
    file = config_file(tmp_path, source, target, [topic_name], flow=topic_name)
    done = CliRunner().invoke(app, ["adopt", str(file), topic_name])
    assert done.exit_code == ExitCode.DIFFERENT
    assert f"`mirror adopt CONFIG {topic_name} --ends-only`" in done.stdout
    assert CliRunner().invoke(app, ["adopt", str(file), topic_name, "--ends-only"]).exit_code == ExitCode.DONE


@pytest.mark.brokers
def test_a_copy_that_lacks_what_is_on_record_as_lost_is_not_taken_for_whole(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    """Nobody would know of the loss any more, which is of the topic that was there before."""
    source, target = own_source.bootstrap, own_target.bootstrap
    file = config_file(tmp_path, source, target, [topic_name], flow=topic_name, on_too_large="skip")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"sync": {"configs": False}}))
    make_topic(target, topic_name, configs={"max.message.bytes": "2000"})
    make_topic(source, topic_name)
    produce(source, topic_name, [b"a", b"z" * 9000, b"c"], batch=1)
    assert run_once(config.load(file)).exit_code == ExitCode.DONE
    delete_topics(source, topic_name)
    make_topic(source, topic_name)
    produce(source, topic_name, [b"a", b"z" * 9000, b"c"], batch=1)
    done = CliRunner().invoke(app, ["adopt", str(file), topic_name])
    assert done.exit_code == ExitCode.DIFFERENT, done.stdout
    assert "which are on record as lost: offsets 1 to 1 of partition 0" in done.stdout
    assert f"`mirror adopt CONFIG {topic_name} --ends-only`" in done.stdout
    assert CliRunner().invoke(app, ["adopt", str(file), topic_name, "--ends-only"]).exit_code == ExitCode.DONE
    assert run_once(config.load(file)).exit_code == ExitCode.DONE
