"""`topics.start`: a flow begins where its first start decided, and leaves out nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from flows import Flow, flow
from groupoffsets import commit, committed
from helpers import RECENT_MS, make_topic, produce
from samerecords import read
from sparkless import InThisProcess, run_beside, run_once
from syncing import admin_of
from topicadmin import grow
from waiting import DEADLINE_S, until

from mirror.commands.verify import verify_flow
from mirror.config import Settings
from mirror.driver.flow import prepare
from mirror.driver.topic_watcher import Replanner, TopicWatcher
from mirror.errors import ExitCode
from mirror.journal.entries import COPIES
from mirror.kafka.cluster import TopicPartition
from mirror.observability.status import KEY, GroupFigures
from mirror.spark.supervisor import Supervisor
from mirror.states import State

__all__ = ["flow"]

MODES = pytest.mark.parametrize("offsets", ["preserve", "translate"])


def run(flow: Flow, partition: int = 0) -> int:
    """Do what `mirror run --once` does, and return how many records of a partition it copied; all must be."""
    found = flow.run()
    assert (found.exit_code, found.incomplete) == (ExitCode.DONE, ""), (found.stops, found.incomplete)
    return found.figures[TopicPartition(flow.name, partition)].records


def assert_copied(flow: Flow, first: int, count: int, partition: int = 0) -> None:
    """Expect the copy to hold so many of the source's records, from offset `first` on, and `verify` to agree."""
    source = [one for one in read(flow.source.bootstrap, flow.name, partition) if one[0] >= first]
    copy = list(read(flow.target.bootstrap, flow.name, partition))
    assert [one[1:] for one in copy] == [one[1:] for one in source]
    begins = 0 if flow.topics.get("offsets") == "translate" else first
    assert [one[0] for one in copy] == list(range(begins, begins + count))
    report = verify_flow(flow.settings())
    assert report.equal, report.differences


class Died(Exception):
    """Here the mirror is killed."""


def start_and_die(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start for the first time, which decides where the flow begins, and die before any task runs."""

    async def die(*_: Any) -> None:
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(Supervisor, "_epochs", die)
        with pytest.raises(Died):
            flow.run()


@pytest.mark.proves("same-offsets", "mirror plan")
@MODES
def test_latest_copies_what_comes_after_the_first_start(flow: Flow, offsets: str) -> None:
    flow.topics |= {"offsets": offsets, "start": "latest"}
    flow.make(partitions=2)
    flow.fill(0, 30)
    planned = json.loads(flow.command("plan", "CONFIG", "--json", code=ExitCode.CHANGES).stdout)
    assert planned["beginnings"] == [{"topic": flow.name, "offsets": [30, 0]}]
    assert run(flow) == 0
    report = verify_flow(flow.settings())
    found = [(str(one.kind), one.first, one.next_offset) for one in report.shortfalls]
    assert found == [("before topics.start", 0, 30)]
    flow.expire(flow.source, 20)
    flow.fill(30, 10, codec="zstd")
    flow.fill(0, 5, partition=1)
    assert run(flow) == 10
    assert_copied(flow, 30, 10)
    assert_copied(flow, 0, 5, partition=1)
    planned = json.loads(flow.command("plan", "CONFIG", "--json").stdout)
    assert (planned["changes"], planned["beginnings"]) == (False, [])


@pytest.mark.proves("same-offsets", "REWRITE")
@pytest.mark.parametrize(
    ("offsets", "after_ms", "first"),
    [("preserve", 34, 34), ("translate", 34, 34), ("preserve", 40, 40), ("preserve", -5, 0), ("translate", 10**6, 60)],
    ids=["inside a batch", "inside a batch, translated", "between batches", "before all", "behind all"],
)
def test_a_time_begins_with_its_first_record(flow: Flow, offsets: str, after_ms: int, first: int) -> None:
    begin = datetime.fromtimestamp(RECENT_MS / 1000, UTC) + timedelta(milliseconds=after_ms)
    flow.topics |= {"offsets": offsets, "start": begin.isoformat()}
    flow.make()
    flow.fill(0, 60, codec="gzip")
    figures = flow.run().figures[flow.at]
    assert (figures.state, figures.records) == (State.CAUGHT_UP, 60 - first)
    assert figures.verdicts.get("REWRITE/starts_inside", 0) == (1 if first % 10 else 0)
    flow.fill(60, 7)
    assert run(flow) == 7
    assert_copied(flow, first, 67 - first)


@pytest.mark.proves("exactly-once", "never-silent")
@MODES
def test_a_start_is_decided_once_though_its_mirror_died(
    flow: Flow, monkeypatch: pytest.MonkeyPatch, offsets: str
) -> None:
    """What the source deletes behind it, before a record was copied, goes on record, and the copy begins behind it,
    whatever the configuration says by then.
    """
    flow.topics |= {"offsets": offsets, "start": "latest"}
    flow.make()
    flow.fill(0, 25)
    start_and_die(flow, monkeypatch)
    flow.fill(25, 20)
    start_and_die(flow, monkeypatch)
    flow.topics["start"] = "earliest"
    flow.expire(flow.source, 30)
    found = flow.run().figures[flow.at]
    assert (found.state, found.records, found.lost) == (State.CAUGHT_UP, 15, 5)
    assert flow.lost() == {(25, 30, "retention")}
    assert flow.assert_equal() == 15


@pytest.mark.proves("never-silent", "PADDING")
@pytest.mark.parametrize(
    ("offsets", "start"), [("preserve", "earliest"), ("translate", "earliest"), ("preserve", "latest")]
)
def test_a_copy_without_a_record_begins_where_its_source_begins_now(flow: Flow, offsets: str, start: str) -> None:
    """As often as all of the source is deleted before it is copied, by whatever run of the mirror."""
    flow.topics |= {"offsets": offsets, "start": start}
    flow.make()
    for number in range(0, 60, 20):
        flow.fill(number, 20)
        flow.expire(flow.source, number + 20)
        found = flow.run().figures[flow.at]
        assert (found.state, found.records, found.lag_records) == (State.CAUGHT_UP, 0, 0), found
        planned = json.loads(flow.command("plan", "CONFIG", "--json", code=None).stdout)
        assert (planned["padding"], planned["refused"]) == ([], [])
    flow.fill(60, 20)
    flow.expire(flow.source, 65)
    planned = json.loads(flow.command("plan", "CONFIG", "--json", code=None).stdout)
    assert [one["offsets"] for one in planned["padding"]] == ([] if offsets == "translate" else [5])
    assert run(flow) == 15
    assert flow.assert_equal() == 15
    flow.fill(80, 10)
    flow.expire(flow.source, 85)
    assert flow.run().figures[flow.at].state is State.RETENTION_GAP, "it holds records now"


@pytest.mark.proves("nothing-by-name-alone", "same-offsets")
@MODES
def test_a_copy_keeps_what_its_source_deletes_unless_it_follows_that(flow: Flow, offsets: str) -> None:
    """Never beyond what was copied, by a bounded run or a task that goes on, and also where nothing is left."""
    flow.topics |= {"offsets": offsets}
    flow.make()

    def begins() -> int:
        span = admin_of(flow.target.bootstrap).spans(admin_of(flow.target.bootstrap).describe([flow.name]).values())
        return span[flow.at].start

    flow.fill(0, 40)
    assert run(flow) == 40
    flow.expire(flow.source, 15)
    assert (run(flow), begins()) == (0, 0)
    flow.sync["log_start"] = "follow"
    assert (run(flow), begins()) == (0, 15)
    mirror = Supervisor(InThisProcess(), prepare(flow.settings()), lambda _: None)  # type: ignore[arg-type]

    def story() -> None:
        flow.fill(40, 20)
        until(lambda: len(flow.values()[1]) == 45)
        flow.expire(flow.source, 50)
        until(lambda: begins() == 50)
        flow.expire(flow.source, 60)
        until(lambda: begins() == 60)

    run_beside(mirror, story)
    flow.fill(60, 10)
    assert run(flow) == 10
    assert flow.assert_equal() == 10
    flow.fill(70, 20)
    flow.expire(flow.source, 80)
    assert flow.run().figures[flow.at].state is State.RETENTION_GAP
    assert begins() == 60, "not beyond what was copied"


@pytest.mark.proves("never-silent")
def test_topics_and_partitions_that_are_seen_later_begin_with_their_first_record(flow: Flow) -> None:
    """Whether they appear while the flow runs or while it does not."""
    flow.topics["start"] = "latest"
    flow.include = [f"{flow.name}.*"]
    flow.make()
    flow.fill(0, 25)
    running, later = f"{flow.name}-running", f"{flow.name}-later"

    def count(topic: str, partition: int = 0) -> int:
        return len(list(read(flow.target.bootstrap, topic, partition)))

    def appear(settings: Settings) -> None:
        until(lambda: COPIES.key(flow.name) in flow.journal())
        make_topic(flow.source.bootstrap, running)
        produce(flow.source.bootstrap, running, [b"%d" % number for number in range(20)])
        grow(flow.source.bootstrap, flow.name, 2)
        flow.fill(0, 10, partition=1)
        target = AdminClient({"bootstrap.servers": flow.target.bootstrap})

        def appeared() -> bool:
            found = target.list_topics(timeout=60).topics
            return running in found and len(found[flow.name].partitions) == 2

        until(appeared)
        until(lambda: count(running) == 20 and count(flow.name, 1) == 10)

    settings = flow.settings()
    settings = settings.model_copy(update={"sync": settings.sync.model_copy(update={"interval_s": 0.5})})
    context: Any = InThisProcess()
    watcher = TopicWatcher(Replanner(settings), lambda: settings)
    live = Supervisor(context, replace(prepare(settings), epoch_seconds=2.0), lambda _: None, topic_watcher=watcher)
    run_beside(live, lambda: appear(settings))
    make_topic(flow.source.bootstrap, later)
    produce(flow.source.bootstrap, later, [b"%d" % number for number in range(15)])
    flow.fill(25, 5)
    assert run(flow) == 5
    assert_copied(flow, 25, 5)
    assert (count(later), count(running), count(flow.name, 1)) == (15, 20, 10)


@pytest.mark.proves("exactly-once")
@MODES
def test_a_copy_that_holds_records_goes_on_behind_them_whatever_the_start(flow: Flow, offsets: str) -> None:
    flow.topics["offsets"] = offsets
    flow.make()
    flow.fill(0, 20)
    assert run(flow) == 20
    flow.topics["start"] = "latest"
    flow.fill(20, 10)
    assert run(flow) == 10
    assert_copied(flow, 0, 30)


@pytest.mark.proves("never-silent")
@MODES
def test_a_group_below_the_start_is_held_back(flow: Flow, monkeypatch: pytest.MonkeyPatch, offsets: str) -> None:
    monkeypatch.setattr("mirror.groups.follower.LAST_SYNC_SECONDS", DEADLINE_S)
    flow.topics |= {"offsets": offsets, "start": "latest"}
    flow.make()
    flow.fill(0, 30)
    below, above = f"{flow.name}-below", f"{flow.name}-above"
    commit(flow.source.bootstrap, below, flow.name, 29)

    def follow() -> GroupFigures:
        settings = flow.settings()
        groups = settings.groups.model_validate({"include": [f"{flow.name}-.*"]})
        assert run_once(settings.model_copy(update={"groups": groups})).exit_code == ExitCode.DONE
        return GroupFigures.from_json(flow.journal()[KEY])

    follow()
    flow.fill(30, 10)
    commit(flow.source.bootstrap, above, flow.name, 34)
    figures = follow()
    assert (figures.groups, figures.synced, figures.held_back) == (2, 1, 1)
    moved = 0 if offsets == "preserve" else 30
    assert committed(flow.target.bootstrap, below, flow.name) < 0
    assert committed(flow.target.bootstrap, above, flow.name) == 34 - moved
    commit(flow.source.bootstrap, below, flow.name, 31)
    assert follow().synced == 2
    assert committed(flow.target.bootstrap, below, flow.name) == 31 - moved
