"""Offsets that hold no record: the target keeps them with markers, and readers see the same records on both sides."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from confluent_kafka import Producer
from helpers import make_topic, mirror_once, produce, stored_batches
from kio.schema.errors import ErrorCode
from samerecords import assert_same_records
from transactional import CLEANED, transactions, wait_until_cleaned, write_over

from mirror.kafka.cluster import TopicPartition
from mirror.kafka.produce import markers_request
from mirror.lab.embedded import Cluster
from mirror.observability.status import PartitionStatus
from mirror.records.header import CONTROL, records_crc
from mirror.states import State

pytestmark = pytest.mark.brokers


@pytest.fixture
def pair(source_cluster: Cluster, target_cluster: Cluster) -> tuple[str, str]:
    return source_cluster.bootstrap, target_cluster.bootstrap


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
