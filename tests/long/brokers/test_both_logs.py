"""What is believed of a copy is what both logs show: a source or a target that lost its tail, a stranger, and evidence
that expired, on real brokers. Nothing differs in silence, no stop lifts itself, and each names the side that failed.

All topics are hurt by one crash of each side; every test looks at its own.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from cleaning import CLEANED_SOON, delete_keys, ten_keys
from compared_logs import delete_before
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from crashcut import crash_and_cut, crash_and_cut_all
from helpers import RECENT_MS, config_file, make_topic, mirror_once, produce, settings_between
from running import wait_for
from samerecords import read
from sparkless import InThisProcess, run_once
from syncing import delete_topics
from transactional import transactions
from typer.testing import CliRunner
from watchedtask import WatchedTask

from mirror.cli import app
from mirror.driver.flow import prepare
from mirror.errors import ClusterUnreachable, ExitCode
from mirror.journal.entries import FirstSeen, losses_in
from mirror.journal.journal import Journal
from mirror.kafka.cluster import Cluster as Wire
from mirror.kafka.cluster import Endpoint, TopicPartition
from mirror.lab.embedded import Cluster, Spec, start_many
from mirror.observability.status import PartitionStatus
from mirror.policy.rules import Rules
from mirror.spark import task
from mirror.spark.supervisor import Supervisor
from mirror.states import State

pytestmark = pytest.mark.brokers

MODES = ("preserve", "translate")
#: Thirty days ago: a broker forgets the producers of such records at once when it reads its log again.
OLD_MS = int(time.time()) * 1000 - 30 * 86_400_000
KEPT = {"retention.ms": "-1"}
#: Cleaned as soon as a segment is followed by another one.
CLEANED = {
    **dict.fromkeys(("segment.ms", "max.compaction.lag.ms", "delete.retention.ms"), "100"),
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.001",
}


@dataclass(frozen=True, slots=True)
class Pair:
    """Two clusters whose brokers crash."""

    source: Cluster
    target: Cluster

    def copy(self, topic: str, offsets: str, **more: Any) -> PartitionStatus:
        """Mirror up to the source's end of now, by a flow of the topic's own."""
        ends = self.source.bootstrap, self.target.bootstrap
        return mirror_once(*ends, [topic], topic, offsets=offsets, **more)[TopicPartition(topic, 0)]

    def copied(self, topic: str, offsets: str, **more: Any) -> PartitionStatus:
        """The same, where it must be whole."""
        found = self.copy(topic, offsets, **more)
        assert found.state is State.CAUGHT_UP, found
        return found

    def records(self, topic: str) -> tuple[list[bytes], list[bytes]]:
        """The values that a reader of committed records gets of the source, and of the copy."""
        source, target = (list(read(one.bootstrap, topic, 0)) for one in (self.source, self.target))
        return [one[4] for one in source], [one[4] for one in target]

    def fill(self, topic: str, first: int, count: int, prefix: str = "", begin_ms: int = OLD_MS) -> None:
        """Records that have their number, ten in a batch."""
        values = (f"{prefix}{number:06d}".encode() for number in range(first, first + count))
        produce(self.source.bootstrap, topic, values, begin_ms=begin_ms + first)

    def accept(self, folder: Path, topic: str, offsets: str, *options: str, code: ExitCode = ExitCode.DONE) -> str:
        """What `mirror accept` prints."""
        ends = self.source.bootstrap, self.target.bootstrap
        config = config_file(folder, *ends, [topic], topic, offsets=offsets)
        done = CliRunner().invoke(app, ["accept", str(config), topic, *options])
        assert done.exit_code == code, done.output
        return done.stdout

    def write(self, flow: str, key: bytes, value: bytes) -> None:
        """A record of a flow's journal."""

        async def append() -> None:
            host, port = self.target.bootstrap.split(":")
            async with Wire(Endpoint("us", ((host, int(port)),))) as cluster:
                await Journal(cluster, flow).append([(key, value)])

        asyncio.run(append())

    def losses(self, flow: str) -> set[tuple[int, int]]:
        """What a flow's journal has on record as lost."""

        async def read() -> set[tuple[int, int]]:
            host, port = self.target.bootstrap.split(":")
            async with Wire(Endpoint("us", ((host, int(port)),))) as cluster:
                found = losses_in(await Journal(cluster, flow).newest())
            return {(one.first, one.next_offset) for each in found.values() for one in each}

        return asyncio.run(read())

    def expire(self, cluster: Cluster, topic: str, before: int) -> None:
        """What retention leaves of a log."""
        client = AdminClient({"bootstrap.servers": cluster.bootstrap})
        for deleted in client.delete_records([Place(topic, 0, before)]).values():
            deleted.result(20)


def named(what: str, offsets: str) -> str:
    return f"{what}-{offsets}"


def prepared(pair: Pair) -> None:
    """Topics that are mirrored whole, before anything happens to them."""
    for offsets in MODES:
        for what in ("commits", "unrecorded", "aborts", "unwritten-aborts"):
            make_topic(pair.source.bootstrap, topic := named(what, offsets), configs=KEPT)
            if "aborts" in what:
                transactions(pair.source.bootstrap, topic, [True, True, False], size=4)
            else:
                transactions(pair.source.bootstrap, topic, [True] * 10, size=4)
            pair.copied(topic, offsets, records_runs=not what.startswith("un"))
        for what in ("disk", "refilled", "tail", "gone", "deleted", "accepted"):
            make_topic(pair.source.bootstrap, topic := named(what, offsets), configs=KEPT)
            pair.fill(topic, 0, 1000)
            pair.copied(topic, offsets)
        for what in ("emptied", "emptied-accepted", "later"):
            make_topic(pair.source.bootstrap, topic := named(what, offsets), configs=KEPT)
            pair.fill(topic, 0, 1000)
            if what == "later":
                pair.expire(pair.source, topic, 800)
            pair.copied(topic, offsets)


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with ExitStack() as stack:
        cleaning = {"log.cleaner.backoff.ms": 300}  # of the source: a target's would clean the journals as well
        specs = [Spec(name="logs-source", config=cleaning), Spec(name="logs-target")]
        both = Pair(*(stack.enter_context(one) for one in start_many(specs)))
        prepared(both)
        cut: dict[tuple[str, int], int | None] = {}
        for offsets in MODES:
            cut |= {(named(what, offsets), 0): 25 for what in ("commits", "unrecorded")}
            cut |= {(named(what, offsets), 0): 10 for what in ("aborts", "unwritten-aborts")}
            cut |= {(named("disk", offsets), 0): 0, (named("refilled", offsets), 0): 600}
        print("the source ends at", crash_and_cut_all(both.source, cut))
        lost: dict[tuple[str, int], int | None] = {
            (named(what, offsets), 0): end
            for offsets in MODES
            for what, end in (("tail", 600), ("gone", 0), ("deleted", 600), ("accepted", 600))
        }
        lost |= {(named(what, one), 0): 0 for one in MODES for what in ("emptied", "emptied-accepted", "later")}
        print("the target ends at", crash_and_cut_all(both.target, lost))
        yield both


def assert_stands(pair: Pair, topic: str, offsets: str, *states: State) -> PartitionStatus:
    """The copy stops in one of these states, at the next start as well, and gets not one record more."""
    before = pair.records(topic)[1]
    first, second = pair.copy(topic, offsets), pair.copy(topic, offsets)
    print(f"{first.state} at offset {first.next_offset}: {first.detail}")
    assert first.state in states, first
    assert second.state is first.state, second
    assert pair.records(topic)[1] == before
    return first


@pytest.mark.parametrize("offsets", MODES)
@pytest.mark.parametrize("what", ["commits", "unrecorded"])
def test_other_transactions_in_place_of_those_that_were_mirrored(pair: Pair, offsets: str, what: str) -> None:
    """The source lost half, and grew past the copy with markers at the same offsets: where a journal was not written,
    the last records before the marker show it.
    """
    topic = named(what, offsets)
    transactions(pair.source.bootstrap, topic, [True] * 6, size=4, name="other")
    assert_stands(pair, topic, offsets, State.TRUNCATED, State.DIVERGED)


@pytest.mark.parametrize("offsets", MODES)
@pytest.mark.parametrize("what", ["aborts", "unwritten-aborts"])
def test_records_in_place_of_an_aborted_transaction(pair: Pair, offsets: str, what: str) -> None:
    """The copy has nothing of these offsets, and the source has records there by now: none may be passed over."""
    topic = named(what, offsets)
    transactions(pair.source.bootstrap, topic, [True, True], size=4, name="other")
    if what == "unwritten-aborts" and offsets == "translate":  # nothing says that anything was passed over there
        pair.copied(topic, offsets)
        theirs, ours = pair.records(topic)
        assert ours == theirs
    else:
        assert_stands(pair, topic, offsets, State.TRUNCATED, State.DIVERGED)


@pytest.mark.parametrize("offsets", MODES)
def test_a_source_that_lost_its_disk_stays_truncated(pair: Pair, offsets: str, tmp_path: Path) -> None:
    """It grows past the copy, and then the copy expires: there is nothing left to compare, and the stop stands."""
    topic = named("disk", offsets)
    found = pair.copy(topic, offsets)
    assert (found.state, "target's log" in found.detail or "ends at" in found.detail) == (State.TRUNCATED, True), found
    pair.fill(topic, 0, 1200, prefix="new ")
    assert "the source's log" in assert_stands(pair, topic, offsets, State.TRUNCATED).detail
    pair.expire(pair.target, topic, 1000)
    assert_stands(pair, topic, offsets, State.TRUNCATED)
    config = config_file(tmp_path, pair.source.bootstrap, pair.target.bootstrap, [topic], topic, offsets=offsets)
    done = CliRunner().invoke(app, ["adopt", str(config), topic])
    assert done.exit_code == ExitCode.DATA_AT_RISK, done.output
    assert "is this flow's already; partition 0 is TRUNCATED at source offset" in done.stdout


@pytest.mark.parametrize("offsets", MODES)
def test_a_stop_whose_evidence_expired_is_lifted_by_name_alone(pair: Pair, tmp_path: Path, offsets: str) -> None:
    """The source was filled again and deleted what would distinguish it from the copy: that 400 of its records never
    got over is known by the stop alone, and a person who accepts the loss of what came later has not learned of them.
    """
    topic = named("refilled", offsets)
    pair.fill(topic, 600, 900, prefix="new ")
    assert_stands(pair, topic, offsets, State.TRUNCATED)
    pair.expire(pair.source, topic, 1200)
    reported = pair.accept(tmp_path, topic, offsets, code=ExitCode.DATA_AT_RISK)
    assert f"{topic}-0: nothing is accepted; it stays stopped: TRUNCATED at offset 1000: nothing confirms" in reported
    assert f"run `mirror accept CONFIG {topic} --partition 0 --unconfirmed`" in reported
    assert_stands(pair, topic, offsets, State.TRUNCATED)
    pair.expire(pair.target, topic, 1000)
    reported = pair.accept(tmp_path, topic, offsets, code=ExitCode.DATA_AT_RISK)
    assert "no record is left by which" in reported
    assert_stands(pair, topic, offsets, State.TRUNCATED)
    reported = pair.accept(tmp_path, topic, offsets, "--unconfirmed")
    assert f"{topic}-0: accepted the copy as it stands, up to offset 1,000" in reported
    assert f"{topic}-0: TRUNCATED does not stand any more" in reported
    assert pair.copied(topic, offsets).lost == 200


@pytest.mark.parametrize("offsets", MODES)
@pytest.mark.parametrize(("what", "end"), [("tail", 600), ("gone", 0)])
def test_what_the_target_lost_is_copied_again(pair: Pair, offsets: str, what: str, end: int) -> None:
    """Its broker has forgotten the producer of such old records, and would take a batch at any offset."""
    topic = named(what, offsets)
    pair.fill(topic, 1000, 100)
    found = pair.copied(topic, offsets)
    print(found.detail)
    assert (found.records, found.target_lost) == (1100 - end, 1000 - end)
    assert f"lost acknowledged records (source offsets {end} to 999)" in found.detail
    theirs, ours = pair.records(topic)
    assert ours == theirs
    assert len(ours) == 1100
    assert pair.copied(topic, offsets).target_lost == 0, "reported once"


@pytest.mark.parametrize("offsets", MODES)
def test_what_the_target_lost_and_the_source_deleted(pair: Pair, offsets: str) -> None:
    """The target is to blame, and the source cannot help any more."""
    topic = named("deleted", offsets)
    pair.fill(topic, 1000, 100)
    pair.expire(pair.source, topic, 800)
    found = assert_stands(pair, topic, offsets, State.TARGET_LOST)
    assert "the target lost its tail" in found.detail
    assert f"mirror accept CONFIG {topic}" in found.detail
    found = pair.copied(topic, offsets, on_data_loss="continue")
    assert found.lost == 200
    theirs, ours = pair.records(topic)
    assert ours[:600] + theirs == ours
    pair.copied(topic, offsets)


@pytest.mark.parametrize("offsets", MODES)
def test_a_loss_of_the_target_is_accepted(pair: Pair, tmp_path: Path, offsets: str) -> None:
    topic = named("accepted", offsets)
    pair.expire(pair.source, topic, 800)
    assert pair.copy(topic, offsets).state is State.TARGET_LOST
    assert f"{topic}-0: accepted the loss of 200 offsets, 600 to 799" in pair.accept(tmp_path, topic, offsets)
    found = pair.copied(topic, offsets)
    assert (found.lost, found.records) == (200, 200)
    pair.fill(topic, 1000, 10)
    assert pair.copied(topic, offsets).records == 10


@pytest.mark.parametrize("offsets", MODES)
def test_a_copy_that_lost_all_and_a_source_that_deleted_some_of_it(pair: Pair, offsets: str) -> None:
    """It does not begin anew as if it had never been there."""
    topic = named("emptied", offsets)
    pair.expire(pair.source, topic, 800)
    found = assert_stands(pair, topic, offsets, State.TARGET_LOST)
    assert "the target lost its tail, and the source deleted offsets 0 to 799" in found.detail
    found = pair.copied(topic, offsets, on_data_loss="continue")
    assert (found.records, found.target_lost, found.lost) == (200, 1000, 800)
    assert "(source offsets 0 to 999), copied again from 800 on" in found.detail
    assert pair.losses(topic) == {(0, 800)}
    theirs, ours = pair.records(topic)
    assert ours == theirs
    found = pair.copied(topic, offsets)
    assert (found.lost, found.target_lost) == (0, 0)


@pytest.mark.parametrize("offsets", MODES)
def test_a_loss_of_all_that_a_target_had_is_accepted(pair: Pair, tmp_path: Path, offsets: str) -> None:
    topic = named("emptied-accepted", offsets)
    pair.expire(pair.source, topic, 800)
    assert pair.copy(topic, offsets).state is State.TARGET_LOST
    assert f"{topic}-0: accepted the loss of 800 offsets, 0 to 799" in pair.accept(tmp_path, topic, offsets)
    found = pair.copied(topic, offsets)
    assert (found.records, found.lost) == (200, 800)
    assert pair.losses(topic) == {(0, 800)}
    pair.fill(topic, 1000, 10)
    assert pair.copied(topic, offsets).records == 10
    theirs, ours = pair.records(topic)
    assert ours == theirs


@pytest.mark.parametrize("offsets", MODES)
def test_a_copy_that_lost_all_of_what_its_source_still_has(pair: Pair, offsets: str) -> None:
    """What the source had deleted before the copy began is nobody's loss."""
    topic = named("later", offsets)
    pair.expire(pair.source, topic, 800)  # the crash brought those back
    found = pair.copied(topic, offsets)
    assert (found.records, found.target_lost, found.lost) == (200, 200, 0)
    assert "(source offsets 800 to 999), copied again" in found.detail
    theirs, ours = pair.records(topic)
    assert ours == theirs


@pytest.mark.parametrize("offsets", MODES)
def test_a_live_mirror_notices_that_the_target_lost_records(pair: Pair, offsets: str) -> None:
    """It has nothing to send when the broker crashes, and then writes on at the right place."""
    make_topic(pair.source.bootstrap, topic := f"live-{offsets}", configs=KEPT)
    make_topic(pair.target.bootstrap, topic, configs=KEPT)
    pair.fill(topic, 0, 1000)
    at = TopicPartition(topic, 0)
    ends = pair.source.bootstrap, pair.target.bootstrap
    with WatchedTask(*ends, [at], rules=Rules(offsets=offsets)) as task:  # type: ignore[arg-type]
        task.until(at, lambda one: one.state is State.CAUGHT_UP and one.next_offset == 1000)
        crash_and_cut(pair.target, topic, below=600)
        pair.fill(topic, 1000, 100)
        found = task.until(at, lambda one: one.state.is_stop or one.next_offset == 1100)
    print(found.state, found.detail)
    assert (found.state.is_stop, found.target_lost) == (False, 400)
    theirs, ours = pair.records(topic)
    assert ours == theirs


@pytest.mark.parametrize("offsets", MODES)
@pytest.mark.parametrize("stopped", [True, False])
def test_a_stranger_whose_records_expire(pair: Pair, offsets: str, stopped: bool) -> None:
    """Whether a mirror met the stranger's records or not: the copy lacks the source's at their offsets."""
    make_topic(pair.source.bootstrap, topic := f"stranger-{stopped}-{offsets}", configs=KEPT)
    pair.fill(topic, 0, 100)
    pair.copied(topic, offsets)
    produce(pair.target.bootstrap, topic, [b"foreign %d" % number for number in range(10)], begin_ms=OLD_MS)
    if stopped:
        assert pair.copy(topic, offsets).state is State.DIVERGED
    pair.expire(pair.target, topic, 110)
    pair.fill(topic, 100, 20)
    assert_stands(pair, topic, offsets, State.DIVERGED)


@pytest.mark.parametrize("offsets", MODES)
def test_a_source_that_deleted_up_to_the_middle_of_a_strangers_records(pair: Pair, offsets: str) -> None:
    make_topic(pair.source.bootstrap, topic := f"middle-{offsets}", configs=KEPT)
    pair.fill(topic, 0, 100)
    pair.copied(topic, offsets)
    produce(pair.target.bootstrap, topic, [b"foreign %d" % number for number in range(10)], begin_ms=OLD_MS)
    pair.fill(topic, 100, 20)
    pair.expire(pair.source, topic, 105)
    assert_stands(pair, topic, offsets, State.DIVERGED)


@pytest.mark.parametrize("offsets", MODES)
def test_a_copy_that_expired_goes_on(pair: Pair, offsets: str) -> None:
    """Nothing happened to either log but that it grew old, and the journal knows where the copy ended."""
    make_topic(pair.source.bootstrap, topic := f"sound-{offsets}", configs=KEPT)
    pair.fill(topic, 0, 100)
    pair.copied(topic, offsets)
    for cluster in (pair.source, pair.target):
        pair.expire(cluster, topic, 100)
    pair.fill(topic, 100, 20)
    assert pair.copied(topic, offsets).records == 20
    pair.expire(pair.target, topic, 120)
    assert pair.copied(topic, offsets).records == 0


@pytest.mark.parametrize("offsets", MODES)
def test_an_expired_copy_that_no_journal_names_is_not_believed(pair: Pair, offsets: str) -> None:
    make_topic(pair.source.bootstrap, topic := f"unknown-{offsets}", configs=KEPT)
    pair.fill(topic, 0, 100)
    pair.copied(topic, offsets, records_runs=False)
    pair.expire(pair.target, topic, 100)
    pair.fill(topic, 100, 20)
    found = assert_stands(pair, topic, offsets, State.DIVERGED)
    fields = {"preserve": "nothing confirms the copy", "translate": "the journal does not say where offset 100"}
    assert fields[offsets] in found.detail


def test_a_copy_that_nothing_confirms_is_accepted(pair: Pair, tmp_path: Path) -> None:
    make_topic(pair.source.bootstrap, topic := "vouched", configs=KEPT)
    pair.fill(topic, 0, 100)
    pair.copied(topic, "preserve", records_runs=False)
    pair.expire(pair.target, topic, 100)
    pair.fill(topic, 100, 20)
    assert "--unconfirmed" in pair.copy(topic, "preserve").detail
    assert "nothing is accepted" in pair.accept(tmp_path, topic, "preserve", code=ExitCode.DATA_AT_RISK)
    reported = pair.accept(tmp_path, topic, "preserve", "--unconfirmed")
    assert "accepted the copy as it stands, up to offset 100" in reported
    assert pair.copied(topic, "preserve").records == 20


@pytest.mark.parametrize("offsets", MODES)
@pytest.mark.parametrize("known", [True, False])
def test_a_loss_behind_records_of_others_is_accepted(pair: Pair, tmp_path: Path, offsets: str, known: bool) -> None:
    """As after a failback: the copy's records are the source's, and were not written by this flow."""
    if not known and offsets == "translate":
        pytest.skip("without runs and records nobody knows where the copy ends")
    topic = f"failback-{known}-{offsets}"
    for cluster in (pair.source, pair.target):
        make_topic(cluster.bootstrap, topic, configs=KEPT)
        produce(cluster.bootstrap, topic, (b"%d" % number for number in range(100)), begin_ms=OLD_MS)
    if known:
        assert pair.copied(topic, offsets).records == 0
    pair.fill(topic, 100, 50)
    pair.expire(pair.source, topic, 130)
    assert pair.copy(topic, offsets).state is State.RETENTION_GAP
    options = () if known else ("--unconfirmed",)
    assert "accepted the loss of 30 offsets, 100 to 129" in pair.accept(tmp_path, topic, offsets, *options)
    found = pair.copied(topic, offsets)
    assert (found.lost, found.records) == (30, 20)


@pytest.mark.parametrize("offsets", MODES)
def test_who_accepts_a_loss_does_not_vouch_for_records_of_somebody_else(
    pair: Pair, tmp_path: Path, offsets: str
) -> None:
    """They came after the loss was reported, and the source has nothing left that they could be compared with."""
    make_topic(pair.source.bootstrap, topic := f"overwritten-{offsets}", configs=KEPT)
    pair.fill(topic, 0, 100)
    pair.copied(topic, offsets)
    pair.fill(topic, 100, 50)
    pair.expire(pair.source, topic, 130)
    assert pair.copy(topic, offsets).state is State.RETENTION_GAP
    produce(pair.target.bootstrap, topic, [b"foreign"] * 10, begin_ms=OLD_MS)
    found = assert_stands(pair, topic, offsets, State.DIVERGED)
    if offsets == "translate":
        assert "at offset 100 of the target, the record is not the source's" in found.detail
        assert "somebody else wrote to the target" in found.detail
    else:
        assert "its log ends at 110, the journal keeps 100" in found.detail
        assert "the last of them is not this mirror's" in found.detail
    assert "nothing is accepted" in pair.accept(tmp_path, topic, offsets, code=ExitCode.DATA_AT_RISK)


def keyed(cluster: Cluster, topic: str, value: str, keys: str = "key") -> None:
    """One batch of ten records with a key each, the same `keys` every time."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 1000, "log_level": 0})
    for number in range(10):
        producer.produce(topic, f"{value}-{number}", f"{keys}-{number}", partition=0)
    producer.flush(20)


@pytest.mark.parametrize("offsets", MODES)
def test_a_hole_in_the_source_vouches_for_no_record_of_somebody_else(pair: Pair, offsets: str) -> None:
    """As where a failover is undone: applications wrote to the copy, and the cleaner took what the source had there."""
    make_topic(pair.source.bootstrap, topic := f"hole-{offsets}", configs=CLEANED)
    keyed(pair.source, topic, "first", keys="other")
    pair.copied(topic, offsets)
    keyed(pair.target, topic, "foreign")
    keyed(pair.source, topic, "second")
    deadline = time.monotonic() + 60
    while b"second-0" in (left := pair.records(topic)[0]):
        assert time.monotonic() < deadline, f"the cleaner did not run: {left}"
        time.sleep(0.2)
        keyed(pair.source, topic, "third")  # rolls a segment
    assert_stands(pair, topic, offsets, State.DIVERGED)


def test_what_cannot_be_accepted_is_named(pair: Pair, tmp_path: Path) -> None:
    make_topic(pair.source.bootstrap, topic := "refused", configs=KEPT)
    pair.fill(topic, 0, 100)
    pair.copied(topic, "preserve")
    produce(pair.target.bootstrap, topic, [b"foreign"] * 10, begin_ms=OLD_MS)
    pair.fill(topic, 100, 50)
    assert pair.copy(topic, "preserve").state is State.DIVERGED
    reported = pair.accept(tmp_path, topic, "preserve", code=ExitCode.DATA_AT_RISK)
    assert f"{topic}-0: nothing is accepted; it stays stopped: DIVERGED at offset 110" in reported
    assert f"--bootstrap-server {pair.target.bootstrap} --delete --topic {topic}" in reported, "ready to be pasted"
    assert_stands(pair, topic, "preserve", State.DIVERGED)
    seen = FirstSeen(source_topic=topic, topic_id=uuid4(), target_topic_id=None, cluster_id=None)
    pair.write(topic, FirstSeen.key(topic), seen.to_json())
    reported = pair.accept(tmp_path, topic, "preserve", code=ExitCode.DATA_AT_RISK)
    assert "nothing is accepted; it stays stopped: RECREATED" in reported


def test_a_stop_that_does_not_hold_any_more_is_lifted(pair: Pair, tmp_path: Path) -> None:
    """Somebody put the source's log in order; or, as here, the target topic is another one, which needs nobody."""
    make_topic(pair.source.bootstrap, topic := "lifted", configs=KEPT)
    pair.fill(topic, 0, 100)
    pair.copied(topic, "preserve")
    produce(pair.target.bootstrap, topic, [b"foreign"] * 10, begin_ms=OLD_MS)
    assert_stands(pair, topic, "preserve", State.DIVERGED)
    delete_topics(pair.target.bootstrap, topic)
    assert pair.copied(topic, "preserve").records == 100
    pair.fill(topic, 100, 10)
    assert pair.copied(topic, "preserve").records == 10


@pytest.mark.parametrize("offsets", MODES)
def test_a_copy_that_expired_before_its_last_second_was_written_down(pair: Pair, offsets: str) -> None:
    """The sequences of the flow's producer count the records that nobody can compare any more."""
    make_topic(pair.source.bootstrap, topic := f"second-{offsets}", configs=KEPT)
    pair.fill(topic, 0, 100, begin_ms=RECENT_MS)
    pair.copied(topic, offsets)
    pair.fill(topic, 100, 20, begin_ms=RECENT_MS)
    pair.copied(topic, offsets, records_runs=False)
    pair.expire(pair.target, topic, 120)
    pair.fill(topic, 120, 30, begin_ms=RECENT_MS)
    assert pair.copied(topic, offsets).records == 30
    theirs, ours = pair.records(topic)
    assert ours == theirs[120:]


@pytest.mark.parametrize("offsets", MODES)
def test_a_last_second_of_which_nothing_is_left(pair: Pair, offsets: str) -> None:
    """The source has deleted it as well: a person decides, and nothing waits for ever."""
    make_topic(pair.source.bootstrap, topic := f"nothing-{offsets}", configs=KEPT)
    pair.fill(topic, 0, 100)
    pair.copied(topic, offsets)
    pair.fill(topic, 100, 20)
    pair.copied(topic, offsets, records_runs=False)
    produce(pair.target.bootstrap, topic, [b"foreign"] * 5, begin_ms=OLD_MS)
    for cluster, end in ((pair.source, 120), (pair.target, 125)):
        pair.expire(cluster, topic, end)
    pair.fill(topic, 120, 30)
    assert_stands(pair, topic, offsets, State.DIVERGED)


@pytest.mark.parametrize("offsets", MODES)
@pytest.mark.parametrize("kept_ms", [300, 86_400_000])
def test_deletions_that_a_compacted_source_has_forgotten_are_on_record(pair: Pair, offsets: str, kept_ms: int) -> None:
    """The copy was behind for longer than the source keeps tombstones: keys may live on there. Where it was not, a hole
    says nothing.
    """
    topic, bootstrap = f"tombstones-{kept_ms}-{offsets}", pair.source.bootstrap
    flow = settings_between(bootstrap, pair.target.bootstrap, [topic], flow=topic, offsets=offsets)
    make_topic(bootstrap, topic, configs=CLEANED_SOON | {"delete.retention.ms": str(kept_ms)})
    ten_keys(bootstrap, topic)
    assert run_once(flow).exit_code == ExitCode.DONE
    delete_keys(bootstrap, topic, forgets=kept_ms == 300)
    for _ in range(2):
        assert run_once(flow).exit_code == ExitCode.DONE
        assert pair.losses(topic) == ({(10, 10)} if kept_ms == 300 else set())


def test_deletions_of_what_the_target_lost_may_be_forgotten(pair: Pair) -> None:
    """The copy had them, and the source has them no more: what is copied again lacks them. A copy that is begun anew
    lacks nothing, until it is behind for long.
    """
    topic, bootstrap = "lost-tombstones", pair.source.bootstrap
    flow = settings_between(bootstrap, pair.target.bootstrap, [topic], flow=topic)
    make_topic(bootstrap, topic, configs=CLEANED_SOON | {"delete.retention.ms": "300"})
    ten_keys(bootstrap, topic)
    with ThreadPoolExecutor(1) as threads:
        deleting = threads.submit(delete_keys, bootstrap, topic, forgets=True)
        while not deleting.done():  # it has every deletion at once
            assert run_once(flow).exit_code == ExitCode.DONE
        deleting.result()
    assert run_once(flow).exit_code == ExitCode.DONE
    assert pair.losses(topic) == set()
    crash_and_cut(pair.target, topic, below=10)
    assert run_once(flow).exit_code == ExitCode.DONE
    assert pair.losses(topic) == {(10, 10)}
    for _ in range(2):
        delete_topics(pair.target.bootstrap, topic)
        assert run_once(flow).exit_code == ExitCode.DONE
        assert pair.losses(topic) == set(), "another copy"
    delete_keys(bootstrap, topic, forgets=True)
    assert run_once(flow).exit_code == ExitCode.DONE
    assert len(pair.losses(topic)) == 1


@pytest.mark.parametrize("deletes", [False, True])
def test_what_a_target_lost_is_known_over_epochs_in_which_it_was_away(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, deletes: bool
) -> None:
    """The journal, which is there, too, does not have what was acknowledged last; the tasks had."""
    topic, bootstrap = f"away-{deletes}", pair.source.bootstrap
    settings = settings_between(bootstrap, pair.target.bootstrap, [topic], flow=topic)
    make_topic(bootstrap, topic)
    produce(bootstrap, topic, [b"before"] * 50)
    states: dict[TopicPartition, PartitionStatus] = {}
    written, restart, at = task._write, Cluster.restart, TopicPartition(topic, 0)
    epochs, is_away = [0], threading.Event()

    class Counting(InThisProcess):
        def collect(self) -> list[Any]:
            epochs[0] += 1
            return super().collect()

    async def write(*given: Any) -> None:
        if is_away.is_set():
            raise ClusterUnreachable("the journal is away")
        await written(*given)

    def restarted(cluster: Cluster, node: int) -> None:
        if deletes:
            produce(bootstrap, topic, [b"later"] * 10)
            delete_before(pair.source, topic, 100)
        before = epochs[0]
        wait_for(lambda: epochs[0] >= before + 2, 60, lambda: "no epoch ended")
        restart(cluster, node)
        is_away.clear()

    async def until(condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(0.05)

    async def story() -> None:
        context: Any = Counting()
        flow = replace(await asyncio.to_thread(prepare, settings), epoch_seconds=2.0)
        live = Supervisor(context, flow, states.update)
        run = asyncio.create_task(live.run())
        try:
            async with asyncio.timeout(120):
                await until(lambda: at in states and states[at].next_offset == 50)
                is_away.set()
                await asyncio.to_thread(produce, bootstrap, topic, [b"since"] * 50)
                await until(lambda: states[at].next_offset == 100)
                await asyncio.to_thread(crash_and_cut, pair.target, topic, below=50)
                await until(lambda: states[at].state is State.TARGET_LOST if deletes else states[at].target_lost == 50)
        finally:
            live._stop()
            await run

    monkeypatch.setattr(task, "_write", write)
    monkeypatch.setattr(Cluster, "restart", restarted)
    asyncio.run(story())


def test_what_the_source_kept_while_it_was_behind_counts(pair: Pair) -> None:
    """`delete.retention.ms` is raised behind the outage, as is advised."""
    topic, bootstrap = "raised-tombstones", pair.source.bootstrap
    flow = settings_between(bootstrap, pair.target.bootstrap, [topic], flow=topic)
    make_topic(bootstrap, topic, configs=CLEANED_SOON | {"delete.retention.ms": "300"})
    ten_keys(bootstrap, topic)
    assert run_once(flow).exit_code == ExitCode.DONE
    delete_keys(bootstrap, topic, forgets=True)
    asked = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry("delete.retention.ms", "86400000", incremental_operation=AlterConfigOpType.SET)
        ],
    )
    client = AdminClient({"bootstrap.servers": bootstrap})
    client.incremental_alter_configs([asked])[asked].result(20)
    assert run_once(flow).exit_code == ExitCode.DONE
    assert pair.losses(topic) == {(10, 10)}


@pytest.mark.parametrize("offsets", MODES)
@pytest.mark.parametrize("is_early", [True, False])
def test_a_way_back_may_lack_deletions_of_before_it_was_adopted(
    pair: Pair, tmp_path: Path, is_early: bool, offsets: str
) -> None:
    """Keys were deleted on the other side after the failover, and their tombstones are gone: nobody has ever seen when
    the old source had all that the new one has. Where all records were compared before, that is known.
    """
    topic, here, there = f"way-{is_early}-{offsets}", pair.source.bootstrap, pair.target.bootstrap
    forth, back = tmp_path / "forth", tmp_path / "back"
    for folder in (forth, back):
        folder.mkdir()
    kept_ms = 86_400_000 if is_early else 300
    make_topic(here, topic, configs=CLEANED_SOON | {"delete.retention.ms": str(kept_ms)})
    ten_keys(here, topic)
    assert (
        run_once(settings_between(here, there, [topic], flow=f"{topic}-forth", offsets=offsets)).exit_code
        == ExitCode.DONE
    )
    begun = config_file(forth, here, there, [topic], f"{topic}-forth", offsets=offsets)
    done = CliRunner().invoke(app, ["failover", str(begun)])
    assert done.exit_code == ExitCode.DONE, done.output
    adopt = ["adopt", str(config_file(back, there, here, [topic], topic, offsets=offsets)), topic]
    if is_early:
        assert CliRunner().invoke(app, adopt).exit_code == ExitCode.DONE
    delete_keys(there, topic, forgets=not is_early)
    if not is_early:
        compared = CliRunner().invoke(app, adopt)
        assert compared.exit_code == ExitCode.DIFFERENT, compared.output
        assert f"`mirror adopt CONFIG {topic} --ends-only`" in compared.output
        assert CliRunner().invoke(app, [*adopt, "--ends-only"]).exit_code == ExitCode.DONE
    assert run_once(settings_between(there, here, [topic], flow=topic, offsets=offsets)).exit_code == ExitCode.DONE
    assert Pair(pair.target, pair.source).losses(topic) == (set() if is_early else {(10, 10)})
