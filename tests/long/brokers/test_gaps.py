"""Offsets that hold no record: the target keeps them with markers, and readers see the same records on both sides."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from random import Random
from typing import Any

import pytest
from compared_logs import delete_before
from confluent_kafka import Producer
from crashcut import crash_and_cut_all
from helpers import RECENT_MS, make_topic, mirror_once, produce, stored_batches
from kio.schema.errors import ErrorCode
from running import wait_for
from samerecords import assert_same_records, read
from transactional import CLEANED, transactions, wait_until_cleaned, write_over
from watchedtask import WatchedTask

from mirror.kafka.cluster import TopicPartition
from mirror.kafka.produce import markers_request
from mirror.lab.embedded import Cluster
from mirror.observability.status import PartitionStatus
from mirror.records.header import CONTROL, records_crc
from mirror.replication import both_logs
from mirror.replication.partition_writer import Gap, PartitionWriter
from mirror.replication.position import MARKERS
from mirror.replication.writer import Writer
from mirror.states import State

pytestmark = pytest.mark.brokers


@pytest.fixture
def pair(own_source: Cluster, own_target: Cluster) -> tuple[str, str]:
    return own_source.bootstrap, own_target.bootstrap


def copied(pair: tuple[str, str], topic: str, **more: Any) -> PartitionStatus:
    found = mirror_once(*pair, [topic], **more)[TopicPartition(topic, 0)]
    assert found.state is State.CAUGHT_UP, found
    return found


def test_a_transactional_topic(pair: tuple[str, str], topic_name: str) -> None:
    """30 % aborted; non-transactional records in between."""
    random = Random(7)
    make_topic(pair[0], topic_name)
    for number in range(3):
        produce(pair[0], topic_name, [b"plain %d" % number] * 20)
        transactions(pair[0], topic_name, [random.random() > 0.3 for _ in range(20)])
    found = copied(pair, topic_name)
    assert found.verdicts["DROP/aborted"] > 5
    assert found.verdicts["DROP/control"] == 60
    assert_same_records(*pair, topic_name, 1)


def test_a_second_run_goes_on_behind_a_marker(pair: tuple[str, str], topic_name: str) -> None:
    """The log ends with a marker each time, or with data, or in the middle of what was aborted."""
    make_topic(pair[0], topic_name)
    for round_ in range(4):
        transactions(pair[0], topic_name, [True, False][: 1 + round_ % 2], name=str(round_))
        copied(pair, topic_name)
        assert_same_records(*pair, topic_name, 1)
        if round_ % 2:
            produce(pair[0], topic_name, [b"plain"] * 15)
            copied(pair, topic_name)
    assert_same_records(*pair, topic_name, 1)


def test_a_topic_of_aborted_transactions_alone(pair: tuple[str, str], topic_name: str) -> None:
    make_topic(pair[0], topic_name)
    transactions(pair[0], topic_name, [False] * 5, size=400)
    found = copied(pair, topic_name)
    assert (found.records, found.next_offset) == (0, 2005)
    assert assert_same_records(*pair, topic_name, 1) == 0
    transactions(pair[0], topic_name, [True])
    copied(pair, topic_name)
    assert assert_same_records(*pair, topic_name, 1) == 5


@pytest.mark.parametrize("size", [200_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_many_records_in_one_transaction(pair: tuple[str, str], topic_name: str, size: int) -> None:
    """Behind one that was aborted."""
    make_topic(pair[0], topic_name)
    bulk = {"batch.size": 1_000_000, "batch.num.messages": 100_000, "linger.ms": 100, "compression.type": "lz4"}
    transactions(pair[0], topic_name, [False], size=20_000, name="one", **bulk)
    transactions(pair[0], topic_name, [True], size=size, name="two", **bulk)
    found = copied(pair, topic_name)
    assert (found.records, found.next_offset) == (size, size + 20_002)
    committed = [one for one in stored_batches(pair[0], topic_name) if one.header.base_offset > 20_000]
    ours = [one for one in stored_batches(pair[1], topic_name) if not one.header.attributes & CONTROL]
    assert [(one.header.base_offset, records_crc(one)) for one in ours] == [
        (one.header.base_offset, records_crc(one)) for one in committed if not one.header.attributes & CONTROL
    ]


def test_interleaved_producers(pair: tuple[str, str], topic_name: str) -> None:
    """One aborts while the other's transaction, which lies around it, commits."""
    make_topic(pair[0], topic_name)
    one, other = (Producer({"bootstrap.servers": pair[0], "transactional.id": f"{topic_name}-{name}"}) for name in "ab")
    for producer in (one, other):
        producer.init_transactions(120)
    for number in range(10):
        for producer in (one, other):
            producer.begin_transaction()
        for index in range(6):
            for producer, name in ((one, b"one"), (other, b"other")):
                producer.produce(topic_name, b"%s %d %d" % (name, number, index), partition=0)
                producer.flush(20)
        endings: list[Callable[[float], None]] = [one.commit_transaction, other.abort_transaction]
        if number % 2:
            endings = [other.commit_transaction, one.abort_transaction]
        for end in endings:
            end(20)
    copied(pair, topic_name)
    assert assert_same_records(*pair, topic_name, 1) == 60


def test_a_compacted_topic_with_holes(pair: tuple[str, str], topic_name: str) -> None:
    make_topic(pair[0], topic_name, configs=CLEANED)
    wait_until_cleaned(pair[0], topic_name, write_over(pair[0], topic_name))
    make_topic(pair[1], topic_name)
    found = copied(pair, topic_name)
    assert any(reason.startswith("REWRITE/holes") for reason in found.verdicts), found
    assert_same_records(*pair, topic_name, 1)


class Killed(Exception):
    """The process is gone."""


@pytest.mark.parametrize("is_killed", [True, False])
def test_the_filling_of_a_loss_goes_on_where_it_was_interrupted(
    pair: tuple[str, str],
    own_source: Cluster,
    topic_name: str,
    monkeypatch: pytest.MonkeyPatch,
    is_killed: bool,
) -> None:
    """The last markers that landed are in no journal, and the source has deleted all that shows what came before them:
    by now it knows no leader epoch of that.
    """
    make_topic(pair[0], topic_name)
    produce(pair[0], topic_name, [b"copied"] * 10)
    copied(pair, topic_name)
    produce(pair[0], topic_name, [b"lost"] * 2500)
    delete_before(own_source, topic_name, 2510)
    produce(pair[0], topic_name, [b"kept"] * 5)
    filled, interrupted = Writer._filled, list[int]()

    async def forgotten(*_: Any) -> None:
        return None

    def interrupt(self: Writer, writer: PartitionWriter, gap: Gap, count: int, asked_at: float) -> None:
        if count < MARKERS or interrupted:
            filled(self, writer, gap, count, asked_at)
            return
        interrupted.append(gap.first + count)
        if is_killed:
            raise Killed
        self._unsettle(writer, "the target's leader moved")

    monkeypatch.setattr(both_logs, "_kept_until", forgotten)
    monkeypatch.setattr(Writer, "_filled", interrupt)
    with pytest.raises(ExceptionGroup) if is_killed else nullcontext():
        copied(pair, topic_name, on_data_loss="continue")
    assert interrupted == [1011]
    copied(pair, topic_name, on_data_loss="continue")
    assert [one[0] for one in read(pair[1], topic_name, 0)] == [*range(10), *range(2510, 2515)]


def test_commit_markers_behind_the_last_known_position_whose_source_expired(
    pair: tuple[str, str], own_source: Cluster, topic_name: str
) -> None:
    """A kill before the journal knew of them; the stamps show that all of it is ours."""
    make_topic(pair[0], topic_name)
    transactions(pair[0], topic_name, [True] * 2, size=3)
    copied(pair, topic_name)
    transactions(pair[0], topic_name, [True, False] * 2, size=3)
    copied(pair, topic_name, records_runs=False)
    transactions(pair[0], topic_name, [True], size=3)
    delete_before(own_source, topic_name, 24)
    assert copied(pair, topic_name).records == 3


def test_a_hole_right_before_a_transaction_that_hangs_is_passed_over(own_target: Cluster, topic_name: str) -> None:
    """The source lost its tail, and with it the transaction's end: no batch that a reader of committed records gets
    shows where what the cleaner took before it ends.
    """
    at = TopicPartition(topic_name, 0)
    with Cluster.start(name="hangs", config={"log.cleaner.backoff.ms": 300}) as broker:
        pair = broker.bootstrap, own_target.bootstrap
        make_topic(pair[0], topic_name, configs=CLEANED)
        make_topic(pair[1], topic_name)
        plain = Producer({"bootstrap.servers": pair[0], "log_level": 0})
        held = Producer({"bootstrap.servers": pair[0], "transactional.id": topic_name, "log_level": 0})

        def write(client: Producer, key: bytes, ms: int, times: int = 1) -> None:
            for _ in range(times):
                client.produce(topic_name, b"value", key=key, partition=0, timestamp=ms)
            assert client.flush(20) == 0

        write(plain, b"first", RECENT_MS)
        write(plain, b"hot", RECENT_MS + 1000, times=5)  # rolls a segment, as does each later time
        held.init_transactions(60)
        held.begin_transaction()
        write(held, b"held", RECENT_MS + 2000)
        write(plain, b"hot", RECENT_MS + 2000)
        held.commit_transaction(60)
        wait_for(
            lambda: [one[0] for one in read(pair[0], topic_name, 0)] == [0, 6, 7], 60, lambda: "the cleaner did not run"
        )
        crash_and_cut_all(broker, {at: 8}, waits=False)
        found = copied(pair, topic_name)
        assert (found.next_offset, found.filled) == (6, 5)
        with WatchedTask(*pair, [at]) as task:
            task.until(at, lambda one: "a transaction is open on the source from offset 6" in one.detail)
        assert [one[0] for one in read(pair[1], topic_name, 0)] == [0]


@pytest.mark.parametrize("code", [ErrorCode.unknown_server_error, ErrorCode.invalid_request], ids=str)
def test_markers_that_the_target_never_takes_stop_the_partition(
    pair: tuple[str, str], topic_name: str, code: ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topic(pair[0], topic_name)
    transactions(pair[0], topic_name, [True])
    none_sent = markers_request
    monkeypatch.setattr("mirror.replication.writer.markers_request", lambda version, at, _: none_sent(version, at, ()))
    monkeypatch.setattr("mirror.replication.writer.read_markers", lambda _: code)
    found = mirror_once(*pair, [topic_name])[TopicPartition(topic_name, 0)]
    assert (found.state, found.next_offset) == (State.REFUSED, 5)
    assert code.name in found.detail
