"""`topics.start`: a flow begins where its first start settled that it does, and nothing else is left out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from checker import dump
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Watermark
from confluent_kafka.admin import AdminClient, NewPartitions
from groupoffsets import commit, committed
from helpers import RECENT_MS, config_file, make_topic, produce, settings_between, wait_for_markers
from samerecords import read
from sparkless import InThisProcess, run_once
from transactional import transactions
from typer.testing import CliRunner

from mirror.cli import app
from mirror.commands.adopt import adopt
from mirror.commands.failover import failover
from mirror.commands.offsets_translate import translate
from mirror.commands.verify import verify_flow
from mirror.config import Settings
from mirror.driver.flow import prepare
from mirror.driver.scheduling import renewed
from mirror.driver.topic_watcher import Replanner, TopicWatcher
from mirror.errors import ClusterUnreachable, ConfigError, ExitCode
from mirror.journal.entries import FirstSeen, moment
from mirror.journal.journal import Journal, journal_topic, newest
from mirror.kafka.cluster import Cluster as Wire
from mirror.kafka.cluster import Endpoint, TopicPartition
from mirror.kafka.queries import EARLIEST, LATEST, delete_records
from mirror.lab.embedded import Cluster
from mirror.observability.status import KEY, NOT_OURS, GroupFigures, PartitionStatus
from mirror.policy.rules import Rules
from mirror.replication.assignment import Assignment
from mirror.spark.supervisor import Supervisor
from mirror.states import State
from mirror.topics.plan import plan_flow

MODES = pytest.mark.parametrize("offsets", ["preserve", "translate"])
#: Seconds that anything may take on a machine with too much to do.
TIMEOUT = 180.0

# --- what was asked for (pure) ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "when"),
    [
        ("earliest", EARLIEST),
        ("latest", LATEST),
        (datetime(2026, 1, 31, 12, tzinfo=UTC), 1_769_860_800_000),
        (datetime(2026, 1, 31, 14, tzinfo=timezone(timedelta(hours=2))), 1_769_860_800_000),
        (datetime(2026, 1, 31, 12, microsecond=1, tzinfo=UTC), 1_769_860_800_001),  # what is written before is before
        (datetime(1969, 12, 31, tzinfo=UTC), 0),
    ],
)
def test_the_moment(start: Any, when: int) -> None:
    assert moment(start) == when


SEEN = FirstSeen(
    source_topic="orders", topic_id=UUID(int=1), target_topic_id=UUID(int=2), cluster_id="c", since=(0, 7, 2**63 - 1)
)


def test_where_a_topic_began_is_read_back() -> None:
    found = FirstSeen.read(SEEN.to_json())
    assert found == SEEN
    assert [found.begins(partition) for partition in range(4)] == [0, 7, 2**63 - 1, 0]


def test_a_record_of_an_earlier_version_begins_with_the_first_record() -> None:
    fields = {key: value for key, value in json.loads(SEEN.to_json()).items() if key != "since"}
    assert FirstSeen.read(json.dumps(fields).encode()) == replace(SEEN, since=())


@pytest.mark.parametrize("since", [7, [-1], ["7"], [True], [2**63], None])
def test_what_are_no_offsets(since: object) -> None:
    with pytest.raises(NOT_OURS):
        FirstSeen.read(json.dumps(json.loads(SEEN.to_json()) | {"since": since}).encode())


def test_a_new_plan_keeps_where_a_partition_began() -> None:
    at = TopicPartition("orders", 0)
    begun, planned = Assignment(at, at, None, Rules(), since=7), Assignment(at, at, None, Rules(compacted=True))
    assert renewed([begun], [planned], lambda _: True) == (replace(planned, since=7),)


# --- on brokers -------------------------------------------------------------------------------------------------------


class Flow:
    """A flow between two clusters that has a name of its own."""

    def __init__(self, source: Cluster, target: Cluster, topic: str, **more: Any) -> None:
        """`more` goes into the section `topics`."""
        self.source, self.target, self.topic = source.bootstrap, target.bootstrap, topic
        self.topics, self.more = [topic], more

    def settings(self) -> Settings:
        settings = settings_between(self.source, self.target, self.topics, flow=self.topic, **self.more)
        groups = settings.groups.model_validate({"include": [f"{self.topic}.*"]})
        return settings.model_copy(update={"groups": groups})

    def run(self) -> dict[TopicPartition, PartitionStatus]:
        """What `mirror run --once` does; all of it must be copied."""
        found = run_once(self.settings())
        assert (found.exit_code, found.incomplete) == (ExitCode.DONE, ""), (found.stops, found.incomplete)
        return found.figures

    def fill(self, first: int, count: int, partition: int = 0, **more: Any) -> None:
        """Records whose values, and times after `RECENT_MS`, count from `first`."""
        values = [b"%d" % number for number in range(first, first + count)]
        produce(self.source, self.topic, values, partition=partition, begin_ms=RECENT_MS + first, **more)

    def trim(self, before: int) -> None:
        """Let the source delete its first records."""
        admin = AdminClient({"bootstrap.servers": self.source})  # kept until the answer is there
        (deleted,) = admin.delete_records([Watermark(self.topic, 0, before)]).values()
        assert deleted.result(20).low_watermark == before

    def assert_copied(self, since: int, until: int, partition: int = 0) -> None:
        """The source's records from `since` on, and nothing else, `until` being the last one; and `verify` says so."""
        theirs = [one for one in read(self.source, self.topic, partition) if one[0] >= since]
        ours = list(read(self.target, self.topic, partition))
        assert [one[0] for one in theirs][:1] == [since] * bool(theirs)
        assert [one[0] for one in theirs][-1:] == [until] * bool(theirs)
        if self.more.get("offsets") == "translate":
            assert [one[0] for one in ours] == list(range(len(theirs)))
            theirs, ours = [one[1:] for one in theirs], [one[1:] for one in ours]
        assert ours == theirs
        report = verify_flow(self.settings())
        assert report.equal, report.differences

    def journal(self) -> dict[bytes, bytes]:
        """The newest records of the flow's journal."""

        async def shown() -> dict[bytes, bytes]:
            async with Wire(Endpoint.of(self.settings().target)) as cluster:
                journal = Journal(cluster, self.topic)
                await cluster.refresh([journal.partition.topic])
                return newest((await journal.read())[0])

        return asyncio.run(shown())


class Died(Exception):
    """Here the mirror is killed."""


def dies(monkeypatch: pytest.MonkeyPatch, flow: Flow) -> None:
    """A first start that settles where the flow begins, and no task of it ever runs."""

    async def killed(*_: Any) -> None:
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(Supervisor, "_epochs", killed)
        with pytest.raises(Died):
            flow.run()


@pytest.mark.brokers
@MODES
def test_latest(own_source: Cluster, own_target: Cluster, topic_name: str, offsets: str) -> None:
    """Only what comes after the first start, of each partition; one that was empty has it all. What the source deletes
    of what it was not asked for is no loss.
    """
    flow = Flow(own_source, own_target, topic_name, start="latest", offsets=offsets)
    make_topic(flow.source, topic_name, 2)
    flow.fill(0, 30)
    figures = flow.run()
    assert {(one.state, one.records) for one in figures.values()} == {(State.CAUGHT_UP, 0)}
    assert not any(one.lag_records for one in figures.values()), "where nothing was read it is not known"
    report = verify_flow(flow.settings())
    assert report.equal
    assert [(str(one.kind), one.first, one.next_offset) for one in report.shortfalls] == [
        ("before topics.start", 0, 30)
    ]
    flow.trim(20)
    flow.fill(30, 10, codec="zstd")
    flow.fill(0, 5, partition=1)
    assert {at.partition: one.records for at, one in flow.run().items()} == {0: 10, 1: 5}
    flow.assert_copied(30, 39)
    flow.assert_copied(0, 4, partition=1)
    flow.trim(35)
    flow.fill(40, 5)
    assert flow.run()[TopicPartition(topic_name, 0)].records == 5
    starts = {one.start for one in dump(flow.target, topic_name).values()}
    assert starts == ({30, 0} if offsets == "preserve" else {0}), "the target keeps what the source had"


@pytest.mark.brokers
def test_a_topic_that_appears_while_no_mirror_runs_of_a_flow_that_adopted_all_others(
    own_source: Cluster, own_target: Cluster, topic_name: str
) -> None:
    """It is copied from its first record: what was adopted is no first start, and a mirror that reported was one."""
    flow = Flow(own_source, own_target, topic_name, start="latest")
    for side in (flow.source, flow.target):
        make_topic(side, topic_name)
        produce(side, topic_name, [b"%d" % number for number in range(30)])
    settings = flow.settings()
    assert adopt(settings, [topic_name], every=False, ends_only=False, as_json=True) == ExitCode.DONE
    assert flow.run()[TopicPartition(topic_name, 0)].records == 0
    flow.topics = [topic_name, f"{topic_name}-later"]
    make_topic(flow.source, flow.topics[1])
    produce(flow.source, flow.topics[1], [b"%d" % number for number in range(50)])
    assert not plan_flow(flow.settings()).beginnings, "the plan shows it as it will be"
    assert flow.run()[TopicPartition(flow.topics[1], 0)].records == 50
    assert len(list(read(flow.target, flow.topics[1], 0))) == 50


@pytest.mark.brokers
def test_a_failover_names_nothing_deleted_below_the_start(
    own_source: Cluster, own_target: Cluster, topic_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was never to be copied is not missing: the failover is whole."""
    flow = Flow(own_source, own_target, topic_name, start="latest")
    make_topic(flow.source, topic_name)
    flow.fill(0, 30)
    flow.run()
    flow.fill(30, 10)
    flow.run()
    code = failover(flow.settings(), rehearse=False, undo=False, as_json=True)
    assert (code, json.loads(capsys.readouterr().out)["warnings"]) == (ExitCode.DONE, [])


@pytest.mark.brokers
@MODES
@pytest.mark.parametrize(
    ("after_ms", "since"), [(34, 34), (40, 40), (-5, 0), (3_000_000, 60)], ids=["inside", "edge", "before", "none"]
)
def test_a_time(
    own_source: Cluster, own_target: Cluster, topic_name: str, offsets: str, after_ms: int, since: int
) -> None:
    """From the first record of that time on, wherever it lies in a batch."""
    time = datetime.fromtimestamp(RECENT_MS / 1000, UTC) + timedelta(milliseconds=after_ms)
    flow = Flow(own_source, own_target, topic_name, start=time.isoformat(), offsets=offsets)
    make_topic(flow.source, topic_name)
    flow.fill(0, 60, codec="gzip")
    figures = flow.run()[TopicPartition(topic_name, 0)]
    assert (figures.state, figures.records) == (State.CAUGHT_UP, 60 - since)
    assert figures.verdicts.get("REWRITE/starts_inside", 0) == (1 if since % 10 else 0)
    flow.fill(60, 7)
    flow.run()
    flow.assert_copied(since, 66)


@pytest.mark.brokers
@MODES
def test_a_time_of_which_the_first_records_were_deleted(
    own_source: Cluster, own_target: Cluster, topic_name: str, offsets: str
) -> None:
    """A broker looks into the first segment of that time alone, and says that there is none: it begins at the log's
    start. `offsets find` says that nobody knows.
    """
    time = datetime.fromtimestamp(RECENT_MS / 1000, UTC) + timedelta(milliseconds=4)
    flow = Flow(own_source, own_target, topic_name, start=time.isoformat(), offsets=offsets)
    make_topic(flow.source, topic_name, configs={"segment.ms": "5"})
    for first in (0, 10, 20):
        flow.fill(first, 10)
    flow.trim(10)
    figures = flow.run()[TopicPartition(topic_name, 0)]
    assert (figures.state, figures.records) == (State.CAUGHT_UP, 20)
    flow.assert_copied(10, 29)
    found = CliRunner().invoke(
        app, ["offsets", "find", topic_name, "--time", time.isoformat(), "--bootstrap", flow.source]
    )
    # a broker that has deleted the segment by now says which record is the first one
    assert "begins at offset 10" in str(found.exception) or (found.exit_code == 0 and "10" in found.output)


@pytest.mark.brokers
@MODES
def test_an_open_transaction_is_mirrored_whole(
    own_source: Cluster, own_target: Cluster, topic_name: str, offsets: str
) -> None:
    flow = Flow(own_source, own_target, topic_name, start="latest", offsets=offsets)
    make_topic(flow.source, topic_name)
    transactions(flow.source, topic_name, [True, False])
    producer = Producer({"bootstrap.servers": flow.source, "transactional.id": topic_name})
    producer.init_transactions(120)
    producer.begin_transaction()
    for value in (b"first", b"second"):
        producer.produce(topic_name, value, partition=0)
        producer.flush(60)
    assert flow.run()[TopicPartition(topic_name, 0)].records == 0
    producer.commit_transaction(60)
    wait_for_markers(flow.source, topic_name)
    assert flow.run()[TopicPartition(topic_name, 0)].records == 2
    assert [one[4] for one in read(flow.target, topic_name, 0)] == [b"first", b"second"]
    flow.assert_copied(12, 13)


@pytest.mark.brokers
@MODES
def test_who_dies_before_the_first_append_begins_at_the_same_record(
    own_source: Cluster,
    own_target: Cluster,
    topic_name: str,
    offsets: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where the configuration says something else by then."""
    flow = Flow(own_source, own_target, topic_name, start="latest", offsets=offsets)
    make_topic(flow.source, topic_name)
    flow.fill(0, 25)
    dies(monkeypatch, flow)
    flow.fill(25, 20)
    dies(monkeypatch, flow)
    flow.fill(45, 5)
    flow.more["start"] = "earliest"
    assert flow.run()[TopicPartition(topic_name, 0)].records == 25
    flow.assert_copied(25, 49)


@pytest.mark.brokers
def test_a_first_start_that_fails_beside_a_refused_topic_is_no_first_start(
    own_source: Cluster, own_target: Cluster, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that it reports of the refused topic makes the next start a later one."""
    flow, other = Flow(own_source, own_target, topic_name, start="latest"), f"{topic_name}.other"
    flow.topics.append(other)
    for bootstrap, topic in ((flow.source, topic_name), (flow.source, other), (flow.target, other)):
        make_topic(bootstrap, topic)
    produce(flow.target, other, [b"somebody's"])
    flow.fill(0, 25)

    async def leaderless(*_: Any) -> None:
        raise ClusterUnreachable("no leader")

    with monkeypatch.context() as patched:
        patched.setattr("mirror.driver.start.start_offsets", leaderless)
        with pytest.raises(ClusterUnreachable, match="no leader"):
            run_once(flow.settings())
    flow.fill(25, 5)
    found = run_once(flow.settings())
    assert (found.exit_code, [one.source for one in found.refused]) == (ExitCode.PREFLIGHT, [other])
    assert found.figures[TopicPartition(topic_name, 0)].records == 0
    assert json.loads(flow.journal()[FirstSeen.key(topic_name)])["since"] == [30]
    assert PartitionStatus.key_of(other, 0) in flow.journal()


@pytest.mark.brokers
def test_an_alignment_that_was_broken_off(
    own_source: Cluster, own_target: Cluster, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target holds padding then, where the source holds records."""
    flow = Flow(own_source, own_target, topic_name, start="latest")
    make_topic(flow.source, topic_name)
    flow.fill(0, 25)
    tries: list[Any] = []

    async def blocked(*given: Any) -> int:
        tries.append(given)
        if len(tries) == 1:
            raise ClusterUnreachable("not now")
        return await delete_records(*given)

    monkeypatch.setattr("mirror.replication.log_start.delete_records", blocked)
    flow.run()
    assert len(tries) == 2
    flow.fill(25, 20)
    flow.run()
    flow.assert_copied(25, 44)


@pytest.mark.brokers
def test_runs_that_were_not_recorded_are_found_again(
    own_source: Cluster, own_target: Cluster, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what is below the start is not looked for, nor reported."""
    flow = Flow(own_source, own_target, topic_name, start="latest", offsets="translate")
    make_topic(flow.source, topic_name)
    flow.fill(0, 25)
    dies(monkeypatch, flow)
    flow.fill(25, 15)

    async def forgetful(*_: Any) -> None:
        return None

    with monkeypatch.context() as patched:
        patched.setattr("mirror.journal.offset_maps.OffsetMapStore.record", forgetful)
        flow.run()
    assert not any(key.startswith(b"runs/") for key in flow.journal())
    flow.fill(40, 5)
    assert flow.run()[TopicPartition(topic_name, 0)].records == 5
    flow.assert_copied(25, 44)


@pytest.mark.brokers
@MODES
def test_what_the_source_lost_behind_the_start_is_reported(
    own_source: Cluster,
    own_target: Cluster,
    topic_name: str,
    offsets: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was to be mirrored, and the mirror that had settled that died."""
    flow = Flow(own_source, own_target, topic_name, start="latest", offsets=offsets)
    make_topic(flow.source, topic_name)
    flow.fill(0, 25)
    dies(monkeypatch, flow)
    flow.fill(25, 20)
    flow.trim(30)
    found = run_once(flow.settings()).figures[TopicPartition(topic_name, 0)]
    assert found.state is State.RETENTION_GAP
    assert "offsets 25 to 29" in found.detail
    config = config_file(tmp_path, flow.source, flow.target, [topic_name], flow=topic_name, **flow.more)
    accepted = CliRunner().invoke(app, ["accept", str(config), topic_name])
    assert "5 offsets, 25 to 29" in accepted.output, accepted.output
    assert flow.run()[TopicPartition(topic_name, 0)].records == 15
    assert [one[4] for one in read(flow.target, topic_name, 0)] == [b"%d" % number for number in range(30, 45)]


@pytest.mark.brokers
def test_a_start_at_the_first_record_is_none(
    own_source: Cluster, own_target: Cluster, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the source deletes before the first append is no loss then, as with the earliest."""
    flow = Flow(own_source, own_target, topic_name, start="2001-01-01")
    make_topic(flow.source, topic_name)
    flow.fill(0, 25)
    flow.trim(5)
    dies(monkeypatch, flow)
    flow.trim(12)
    assert flow.run()[TopicPartition(topic_name, 0)].records == 13
    flow.assert_copied(12, 24)


@pytest.mark.brokers
def test_padding_that_came_back_is_deleted_again(own_source: Cluster, topic_name: str) -> None:
    """A broker that crashes forgets that it had deleted it (`test_realigning.py`); the source has records there."""
    make_topic(own_source.bootstrap, topic_name)
    with Cluster.start(name="forgetful") as target:
        flow = Flow(own_source, target, topic_name, start="latest")
        flow.fill(0, 25)
        flow.run()
        flow.fill(25, 20)
        flow.run()
        target.kill(0)
        target.restart(0)
        (before,) = dump(flow.target, topic_name).values()
        assert before.start < 25, "the broker remembered: nothing is tested"
        flow.fill(45, 5)
        assert flow.run()[TopicPartition(topic_name, 0)].records == 5
        flow.assert_copied(25, 49)


@pytest.mark.brokers
@MODES
def test_what_is_seen_later_begins_with_its_first_record(
    own_source: Cluster, own_target: Cluster, topic_name: str, offsets: str
) -> None:
    """A topic and a partition that appear while the flow runs, and a topic that appeared while it did not."""
    flow = Flow(own_source, own_target, topic_name, start="latest", offsets=offsets)
    flow.topics = [f"{topic_name}.*"]
    make_topic(flow.source, topic_name)
    flow.fill(0, 25)
    running, later = f"{topic_name}-running", f"{topic_name}-later"

    def appear() -> None:
        make_topic(flow.source, running)
        produce(flow.source, running, [b"%d" % number for number in range(20)])
        admin = AdminClient({"bootstrap.servers": flow.source})
        (grown,) = admin.create_partitions([NewPartitions(topic_name, 2)]).values()
        grown.result(20)
        flow.fill(0, 10, partition=1)

    figures = asyncio.run(run_until(flow.settings(), appear, {running: 20, topic_name: 10}))
    assert figures[TopicPartition(topic_name, 0)].records == 0
    make_topic(flow.source, later)
    produce(flow.source, later, [b"%d" % number for number in range(15)])
    flow.fill(25, 5)
    flow.run()
    flow.assert_copied(25, 29)
    flow.assert_copied(0, 9, partition=1)
    for topic, count in ((running, 20), (later, 15)):
        assert [one[4] for one in read(flow.target, topic, 0)] == [b"%d" % number for number in range(count)]


async def run_until(
    settings: Settings, appear: Callable[[], None], counts: dict[str, int]
) -> dict[TopicPartition, PartitionStatus]:
    """A live mirror that watches for what is new; once it runs, things `appear`, and it is ended when it has copied
    so many records of topics.
    """
    settings = settings.model_copy(update={"sync": settings.sync.model_copy(update={"interval_s": 0.5})})
    context: Any = InThisProcess()
    seen: dict[TopicPartition, PartitionStatus] = {}
    flow = replace(await asyncio.to_thread(prepare, settings), epoch_seconds=2.0)
    live = Supervisor(context, flow, seen.update, topic_watcher=TopicWatcher(Replanner(settings), lambda: settings))

    async def story() -> None:
        async with asyncio.timeout(TIMEOUT):
            while not seen:
                await asyncio.sleep(0.05)
            await asyncio.to_thread(appear)
            while any(sum(o.records for a, o in seen.items() if a.topic == t) < n for t, n in counts.items()):
                await asyncio.sleep(0.05)

    run = asyncio.create_task(live.run())
    try:
        await story()
    finally:
        live._stop()
        await run
    return seen


@pytest.mark.brokers
@MODES
def test_a_target_that_holds_something_says_itself_where_to_go_on(
    own_source: Cluster, own_target: Cluster, topic_name: str, offsets: str, tmp_path: Path
) -> None:
    """Be it this flow's, which had begun, or an earlier one's, which another one took over."""
    flow = Flow(own_source, own_target, topic_name, offsets=offsets)
    make_topic(flow.source, topic_name)
    flow.fill(0, 20)
    flow.run()
    flow.more["start"] = "latest"
    flow.fill(20, 10)
    assert flow.run()[TopicPartition(topic_name, 0)].records == 10
    other = Flow(own_source, own_target, topic_name, offsets=offsets, start="latest")
    settings = other.settings().model_copy(update={"flow": f"{topic_name}-other"})
    flow.fill(30, 10)
    file = config_file(tmp_path, flow.source, flow.target, [topic_name], f"{topic_name}-other", **other.more)
    refused = CliRunner().invoke(app, ["adopt", str(file), topic_name])
    assert (refused.exit_code, f"flow {topic_name} writes to it" in refused.stdout) == (ExitCode.PREFLIGHT, True)
    client = AdminClient({"bootstrap.servers": flow.target})
    client.delete_topics([journal_topic(topic_name)])[journal_topic(topic_name)].result(TIMEOUT)
    assert CliRunner().invoke(app, ["adopt", str(file), topic_name]).exit_code == ExitCode.DONE
    found = run_once(settings).figures[TopicPartition(topic_name, 0)]
    assert (found.state, found.records) == (State.CAUGHT_UP, 10), found
    flow.assert_copied(0, 39)


@pytest.mark.brokers
@MODES
def test_groups(
    own_source: Cluster,
    own_target: Cluster,
    topic_name: str,
    offsets: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One below the start gets nothing and is held back, one at it and one above it follow; a failover knows that."""
    flow = Flow(own_source, own_target, topic_name, start="latest", offsets=offsets)
    make_topic(flow.source, topic_name)
    flow.fill(0, 30)
    places = {"below": 29, "there": 30, "above": 34}
    for name, offset in places.items():
        if name != "above":
            commit(flow.source, f"{topic_name}-{name}", topic_name, offset)
    flow.run()
    flow.fill(30, 10)
    commit(flow.source, f"{topic_name}-above", topic_name, places["above"])
    flow.run()
    found = {name: committed(flow.target, f"{topic_name}-{name}", topic_name) for name in places}
    moved = 0 if offsets == "preserve" else 30
    assert found["below"] < 0, found
    assert (found["there"], found["above"]) == (30 - moved, 34 - moved)
    figures = GroupFigures.from_json(flow.journal()[KEY])
    assert (figures.groups, figures.synced, figures.held_back) == (3, 2, 1)
    capsys.readouterr()
    failover(flow.settings(), rehearse=True, undo=False, as_json=True)
    assert json.loads(capsys.readouterr().out)["groups"] == {"synced": 2, "held_back": 1}
    commit(flow.source, f"{topic_name}-below", topic_name, 31)
    flow.run()
    assert committed(flow.target, f"{topic_name}-below", topic_name) == 31 - moved
    assert GroupFigures.from_json(flow.journal()[KEY]).synced == 3


@pytest.mark.brokers
@MODES
def test_the_plan_and_an_offset_that_is_not_mirrored(
    own_source: Cluster, own_target: Cluster, topic_name: str, offsets: str, tmp_path: Path
) -> None:
    flow = Flow(own_source, own_target, topic_name, start="latest", offsets=offsets)
    make_topic(flow.source, topic_name, 2)
    flow.fill(0, 30)
    config = str(config_file(tmp_path, flow.source, flow.target, [topic_name], flow=topic_name, **flow.more))

    def shown(*command: str) -> str:
        return CliRunner().invoke(app, list(command)).stdout

    planned = json.loads(shown("plan", config, "--json"))
    assert planned["beginnings"] == [{"topic": topic_name, "offsets": [30, 0]}]
    padding = [(one["partition"], one["offsets"]) for one in planned["padding"]]
    assert padding == ([(0, 30)] if offsets == "preserve" else [])
    assert f"{topic_name}: begins at offset 30, 0 of its source (topics.start)" in shown("plan", config)
    flow.run()
    flow.fill(30, 10)
    flow.run()
    planned = json.loads(shown("plan", config, "--json"))
    assert (planned["changes"], planned["beginnings"], planned["padding"]) == (False, [], [])
    with pytest.raises(ConfigError, match=r"holds its source's offsets 30 to 39|the flow began at offset 30"):
        translate(flow.settings(), topic_name, 0, 29, reverse=False, as_json=True)
    found = json.loads(shown("offsets", config, "translate", topic_name, "0", "33", "--json"))
    assert (found["target_offset"], found["record"]) == (33 if offsets == "preserve" else 3, True)
