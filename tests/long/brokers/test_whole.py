"""`mirror verify` as a gate: equal and whole, equal as far as compared, or different, each with a code of its own."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from compared_logs import PAIR, VALUES, Between, delete_before, end_after, kinds, log_of, some, stored
from confluent_kafka import Producer
from helpers import make_topic, mirror_once, produce, settings_between
from recordoracle import Record
from syncing import write_journal
from watchedtask import WatchedTask

from mirror.commands.status import status
from mirror.commands.verify import Means, verify, verify_flow
from mirror.config import Settings
from mirror.errors import ExitCode
from mirror.journal.entries import FirstSeen, Lost, loss_entry, losses_in, pause_entry
from mirror.journal.journal import OWNER
from mirror.journal.ownership import Owner
from mirror.journal.positions import standing_in
from mirror.kafka.cluster import TopicPartition
from mirror.lab.embedded import Cluster
from mirror.observability.status import PartitionStatus
from mirror.policy.rules import Rules
from mirror.replication.assignment import Assignment, Loss
from mirror.states import State
from mirror.verify.compare import Bounds, compare
from mirror.verify.report import Kind, Lack, PartitionReport

# --- the walk over an accepted loss ---------------------------------------------------------------------------------


def compared(
    source: Sequence[bytes], target: Sequence[bytes], end: int, lost: Sequence[tuple[int, int]]
) -> PartitionReport:
    async def run() -> PartitionReport:
        bounds = Bounds(0, end, 0, end, end)
        left, right = log_of(source, 0, end), log_of(target, 0, min(end, end_after(target)))
        left._losses = lost
        return await compare(PAIR, bounds, left, right, lost)

    return asyncio.run(run())


def test_an_accepted_loss_of_whole_batches_is_named_and_not_counted_as_equal() -> None:
    source = [stored(some(0, 1), base) for base in (0, 2, 4, 6)]
    report = compared(source, [source[0], source[3]], 8, [(2, 6)])
    assert (kinds(report), report.lost, report.lost_records) == ([], ((2, 6),), 4)
    assert (report.identical, report.batches) == (2, 4)
    assert report.source_digest != report.target_digest
    assert kinds(compared(source, [source[0], source[3]], 8, [(2, 5)])) == [(4, Kind.MISSING)]
    assert kinds(compared(source, [source[3]], 8, [(2, 6)])) == [(0, Kind.MISSING)]


def test_an_accepted_loss_of_one_record_of_a_batch() -> None:
    source, target = [stored(some(0, 1, 2, 3, 4))], [stored(some(0, 1, 3, 4))]
    report = compared(source, target, 5, [(2, 3)])
    assert (kinds(report), report.lost, report.lost_records, report.rewritten) == ([], ((2, 3),), 1, 0)
    assert kinds(compared(source, target, 5, [(1, 2)])) == [(2, Kind.MISSING)]
    last = compared(source, [stored(some(0, 1, 2))], 5, [(3, 5)])
    assert (kinds(last), last.lost_records) == ([], 2)


def test_what_is_there_is_compared_though_its_loss_was_accepted_once() -> None:
    source = [stored(some(0, 1), base) for base in (0, 2)]
    report = compared(source, source, 4, [(0, 4)])
    assert (kinds(report), report.lost, report.identical) == ([], (), 2)
    other = [source[0], stored([Record(0, value=b"other"), *some(1)], 2)]
    assert [offset for offset, _ in kinds(compared(source, other, 4, [(0, 4)]))] == [2]


def test_damage_on_the_source_is_passed_where_its_loss_was_accepted() -> None:
    source = [stored(some(0, 1), base) for base in (0, 2, 4)]
    flipped = bytearray(source[1])
    flipped[-1] ^= 1
    torn = bytearray(source[1])
    torn[16] = 77  # a magic that nobody knows
    for damaged in (flipped, torn):
        log = [source[0], bytes(damaged), source[2]]
        report = compared(log, [source[0], source[2]], 6, [(2, 4)])
        assert (kinds(report), report.lost, report.identical) == ([], ((2, 4),), 2)
        assert kinds(compared(log, [source[0], source[2]], 6, []))


def test_losses_in_a_journal() -> None:
    at = TopicPartition("us.orders", 3)
    key, value = loss_entry(Loss(TopicPartition("orders", 3), at, 10, 20))
    damage = json.dumps({"topic": "orders", "first": 5, "next": 7, "at_ms": 1, "reason": "damage"}).encode()
    hostile = {b"loss/x": b"{}", b"loss/a/b/c": b"[]", b"loss/us.orders/3/9": b'{"first": 9, "next": 9}', b"loss/": b""}
    found = losses_in({key: value, b"loss/us.orders/3/5": damage, **hostile})
    assert found == {at: (Lost(5, 7, "damage"), Lost(10, 20, "retention"))}


# --- on brokers -----------------------------------------------------------------------------------------------------


def test_a_loss_of_another_topic_by_that_name_does_not_count() -> None:
    at, former, now = TopicPartition("orders", 0), uuid4(), uuid4()
    seen = FirstSeen(source_topic="orders", topic_id=now, target_topic_id=uuid4(), cluster_id="eu")
    lost = [Loss(at, at, 0, 5, topic_id=former), Loss(at, at, 10, 20, topic_id=now), Loss(at, at, 30, 31)]
    known = dict(map(loss_entry, lost)) | {FirstSeen.key("orders"): seen.to_json()}
    assert [(one.first, one.next_offset) for one in losses_in(known)[at]] == [(10, 20), (30, 31)]
    standing = standing_in(known)
    assert standing.lost_of(at, now, None) == ((10, 20), (30, 31))
    assert standing.lost_of(at, former, None) == ((0, 5), (30, 31))
    assert standing.handed(Assignment(at, at, now, Rules())).losses == ((10, 20), (30, 31))


def test_a_loss_of_a_former_copy_does_not_count() -> None:
    at, source, copy = TopicPartition("orders", 0), uuid4(), uuid4()
    seen = FirstSeen(source_topic="orders", topic_id=source, target_topic_id=copy, cluster_id="eu")
    lost = [Loss(at, at, 0, 5, topic_id=source, target_topic_id=each) for each in (uuid4(), copy)]
    known = {FirstSeen.key("orders"): seen.to_json()}
    assert losses_in(known | dict([loss_entry(lost[0])])) == {}
    assert losses_in(known | dict([loss_entry(lost[1])])) == {at: (Lost(0, 5, "retention", source, copy),)}
    for one, found in zip(lost, ((), ((0, 5),)), strict=True):
        standing = standing_in(known | dict([loss_entry(one)]))
        assert standing.lost_of(at, source, copy) == found
        assert standing.handed(Assignment(at, at, source, Rules(), target_topic_id=copy)).losses == found


def test_a_loss_of_a_topic_that_was_copied_before_it_was_re_keyed_counts() -> None:
    """The record of the copy that it was stays in the journal."""
    at, source, copy = TopicPartition("orders", 0), uuid4(), uuid4()
    now = FirstSeen(source_topic="orders", topic_id=source, target_topic_id=copy, cluster_id="eu")
    known = {
        FirstSeen.key("orders"): replace(now, target_topic_id=uuid4()).to_json(),
        FirstSeen.rekeyed_key("orders"): now.to_json(),
    }
    lost = [Loss(at, at, 0, 5, topic_id=source, target_topic_id=each) for each in (uuid4(), copy)]
    assert losses_in(known | dict([loss_entry(lost[0])])) == {}
    assert losses_in(known | dict([loss_entry(lost[1])])) == {at: (Lost(0, 5, "retention", source, copy),)}


def figures_of(settings: Settings, topic: str, partition: int, state: State, **more: Any) -> PartitionStatus:
    fields: dict[str, Any] = {"next_offset": 0, "log_end": -1, "lag_records": 0, "detail": "why", **more}
    return PartitionStatus(
        flow=settings.flow,
        instance="test",
        topic=topic,
        partition=partition,
        target_topic=topic,
        state=state,
        at_ms=int(time.time() * 1000),
        **fields,
    )


def judged(settings: Settings, capsys: pytest.CaptureFixture[str], **more: Any) -> tuple[ExitCode, dict[str, Any]]:
    code = verify(settings, (), as_json=True, **more)
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.brokers
def test_records_that_are_missing_are_not_whole(
    own_source: Cluster, own_target: Cluster, topic_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stopped partition with an empty copy, one that lacks its last records, and one that is whole."""
    between = Between(own_source, own_target, topic_name, partitions=3)
    settings = settings_between(between.source, between.target, [topic_name], topic_name)
    between.mirror()
    assert judged(settings, capsys)[0] is ExitCode.DONE
    produce(between.source, topic_name, [b"1", b"2"], partition=1)
    assert judged(settings, capsys)[0] is ExitCode.NOT_WHOLE

    stopped = f"{topic_name}-stopped"
    make_topic(between.source, stopped)
    make_topic(between.target, stopped)
    produce(between.source, stopped, VALUES)
    settings = settings_between(between.source, between.target, [topic_name, stopped], topic_name)
    refused = figures_of(settings, stopped, 0, State.REFUSED, detail="a null key")
    whole = figures_of(settings, topic_name, 0, State.UNAUTHORIZED, next_offset=40)
    write_journal(settings, *((one.key(), one.to_json()) for one in (refused, whole)))
    code, found = judged(settings, capsys)
    assert (code, found["equal"], found["whole"]) == (ExitCode.NOT_WHOLE, True, False)
    assert [one["text"] for one in found["not_whole"]] == [
        f"{topic_name}-0: stopped: UNAUTHORIZED at source offset 40: why",
        f"{topic_name}-1: not there yet, offsets 40 to 41 (2): the mirror: not running",
        f"{stopped}-0: stopped, offsets 0 to 39 (40): REFUSED at source offset 0: a null key",
    ]
    assert found["sealed"]["whole"] is False
    assert verify(settings, (), as_json=False) is ExitCode.NOT_WHOLE
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{topic_name}: NOT WHOLE: us is not known to hold everything that eu held at 20")
    assert "not whole: 2 offsets not there yet (1 partition), 40 offsets stopped (2 partitions)" in " ".join(lines)

    produce(between.target, topic_name, [b"another"], partition=1)
    assert judged(settings, capsys)[0] is ExitCode.DIFFERENT, "what differs is worse than what lacks"


@pytest.mark.brokers
def test_a_mirror_that_runs_is_waited_for(
    own_source: Cluster, own_target: Cluster, topic_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Up to where the source ended when the proof began, however much it grows; a paused topic is not waited for."""
    between = Between(own_source, own_target, topic_name)
    settings = settings_between(between.source, between.target, [topic_name], topic_name)
    between.mirror()
    produce(between.source, topic_name, VALUES)

    def alive() -> None:
        behind = figures_of(settings, topic_name, 0, State.MIRRORING, next_offset=40, log_end=80, lag_records=40)
        owner = replace(Owner.here("test"), at_ms=int(time.time() * 1000))
        write_journal(settings, (behind.key(), behind.to_json()), (OWNER, owner.to_json()))

    alive()
    began = time.monotonic()
    code, found = judged(settings, capsys, wait=0.5)
    assert (code, found["not_whole"][0]["offsets"]) == (ExitCode.NOT_WHOLE, 40)
    assert "the mirror had not copied it yet (MIRRORING)" in found["not_whole"][0]["text"]
    assert time.monotonic() - began >= 0.5

    def go_on() -> None:
        time.sleep(1)
        produce(between.source, topic_name, VALUES)
        between.mirror()
        produce(between.source, topic_name, VALUES)

    alive()
    copying = threading.Thread(target=go_on)
    copying.start()
    code, found = judged(settings, capsys, wait=50)
    copying.join()
    assert (code, found["whole"], found["partitions"][0]["lag"]) == (ExitCode.DONE, True, 0)
    assert found["partitions"][0]["end"] >= 80

    write_journal(settings, pause_entry(topic_name))
    alive()
    report = verify_flow(settings, means=Means(wait=300))
    (one,) = report.shortfalls
    assert (one.kind, one.reason) == (Lack.BEHIND, f"paused; `mirror resume CONFIG {topic_name}` resumes it")


@pytest.mark.brokers
def test_an_accepted_loss_is_named_where_offsets_move(
    own_source: Cluster, own_target: Cluster, topic_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The copy deleted nothing of it, however far the source's retention is by now."""
    between = Between(own_source, own_target, topic_name)
    moved: dict[str, Any] = {"offsets": "translate"}
    settings = settings_between(between.source, between.target, [topic_name], topic_name, **moved)
    mirror_once(between.source, between.target, [topic_name], topic_name, **moved)
    produce(between.source, topic_name, VALUES)
    delete_before(own_source, topic_name, 55)
    mirror_once(between.source, between.target, [topic_name], topic_name, on_data_loss="continue", **moved)
    at = TopicPartition(topic_name, 0)
    write_journal(settings, loss_entry(Loss(at, at, 40, 55)))
    code, found = judged(settings, capsys)
    assert code is ExitCode.NOT_WHOLE
    (one,) = found["not_whole"]
    assert (one["kind"], one["first"], one["next_offset"]) == ("accepted loss", 40, 55)


@pytest.mark.brokers
def test_an_accepted_loss_is_named_with_its_offsets(
    own_source: Cluster, own_target: Cluster, topic_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """For as long as the target's log spans it; another part of the source that is missing is a difference."""
    between = Between(own_source, own_target, topic_name)
    settings = settings_between(between.source, between.target, [topic_name], topic_name)
    mirror_once(between.source, between.target, [topic_name], topic_name)
    produce(between.source, topic_name, VALUES)
    delete_before(own_source, topic_name, 55)
    mirror_once(between.source, between.target, [topic_name], topic_name, on_data_loss="continue")
    at = TopicPartition(topic_name, 0)
    write_journal(settings, loss_entry(Loss(at, at, 40, 55)))
    code, found = judged(settings, capsys)
    assert code is ExitCode.NOT_WHOLE
    (one,) = found["not_whole"]
    assert (one["kind"], one["first"], one["next_offset"], one["offsets"]) == ("accepted loss", 40, 55, 15)
    assert verify(settings, (), as_json=False) is ExitCode.NOT_WHOLE
    output = f"{topic_name}-0: accepted loss, offsets 40 to 54 (15): reason retention, as the journal says"
    assert output in " ".join(capsys.readouterr().out.split())
    delete_before(own_target, topic_name, 50)
    (one,) = judged(settings, capsys)[1]["not_whole"]
    assert (one["first"], one["next_offset"]) == (50, 55)
    delete_before(own_target, topic_name, 55)
    assert judged(settings, capsys)[0] is ExitCode.DONE, "nobody who reads the target misses them now"


@pytest.mark.brokers
def test_lag_of_what_nobody_copies_grows_and_is_unknown_where_the_source_does_not_say(
    own_source: Cluster, own_target: Cluster, topic_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of paused, stopped and waiting partitions, whatever the mirror saw last, and of one whose mirror has ended."""
    states = [State.PAUSED, State.REFUSED, State.UNAVAILABLE, State.STARTING, State.CAUGHT_UP]
    make_topic(own_source.bootstrap, topic_name, len(states))
    settings = settings_between(own_source.bootstrap, own_target.bootstrap, [topic_name], topic_name)
    frozen = [
        figures_of(settings, topic_name, number, state, next_offset=3, log_end=3, lag_records=lag)
        for number, (state, lag) in enumerate(zip(states, (None, None, 0, None, 0), strict=True))
    ]
    write_journal(settings, *((one.key(), one.to_json()) for one in frozen))

    def shown(by: Settings) -> tuple[list[int | None], int | None, int]:
        assert status(by, watch=False, as_json=True) is ExitCode.DONE
        found = json.loads(capsys.readouterr().out)
        totals = found["totals"]
        return [one["lag_records"] for one in found["partitions"]], totals["lag_records"], totals["lag_unknown"]

    for ends in (5, 9):
        for number in range(len(states)):
            produce(own_source.bootstrap, topic_name, VALUES[: ends - (0 if ends == 5 else 5)], partition=number)
        assert shown(settings) == ([ends - 3] * 5, (ends - 3) * 5, 0)
    away = settings_between("127.0.0.1:1", own_target.bootstrap, [topic_name], topic_name)
    assert shown(away) == ([None] * 5, None, 5), "never 0 for what nobody knows"
    assert status(away, watch=False, as_json=False) is ExitCode.DONE
    assert "lag unknown" in " ".join(capsys.readouterr().out.split())


@pytest.mark.brokers
@pytest.mark.parametrize("offsets", ["preserve", "translate"])
def test_what_lies_behind_an_open_transaction_is_not_there(
    own_source: Cluster, own_target: Cluster, topic_name: str, offsets: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reader of committed records sees none of it, and its producers had their acknowledgments all the same: it lags,
    for `verify` and for a task that has caught up with all that may be read.
    """
    ends = own_source.bootstrap, own_target.bootstrap
    for servers in ends:
        make_topic(servers, topic_name)
    settings = settings_between(*ends, [topic_name], topic_name, offsets=offsets)
    produce(ends[0], topic_name, VALUES)
    mirror_once(*ends, [topic_name], topic_name, offsets=offsets)
    producer = Producer({"bootstrap.servers": ends[0], "transactional.id": topic_name})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topic_name, b"undecided")
    assert not producer.flush(20)
    produce(ends[0], topic_name, [b"acknowledged"] * 3)
    mirror_once(*ends, [topic_name], topic_name, offsets=offsets)

    code, found = judged(settings, capsys)
    assert (code, found["equal"], found["whole"]) == (ExitCode.NOT_WHOLE, True, False)
    (reported,) = found["not_whole"]
    assert (reported["kind"], reported["first"], reported["offsets"]) == ("not there yet", len(VALUES), 4)
    assert f"a transaction is open on the source from offset {len(VALUES)} on" in reported["text"]

    at = TopicPartition(topic_name, 0)
    if offsets == "preserve":
        with WatchedTask(*ends, [at]) as task:
            held = task.until(at, lambda one: "transaction is open" in one.detail)
            assert (held.state, held.lag_records, held.log_end) == (State.CAUGHT_UP, 4, len(VALUES) + 4), held
            assert held.lag_ms is None
            producer.commit_transaction(20)
            done = task.mirrored(at, len(VALUES) + 5)
            done = task.until(at, lambda one: one.state is State.CAUGHT_UP)
            assert (done.lag_records, done.detail) == (0, "")
    else:
        producer.abort_transaction(20)
        mirror_once(*ends, [topic_name], topic_name, offsets=offsets)
    assert judged(settings, capsys)[0] is ExitCode.DONE
