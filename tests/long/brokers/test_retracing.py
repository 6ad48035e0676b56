"""What the journal does not name is found again from both logs, and nothing strange passes for the source's."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Producer
from helpers import make_topic, produce, stored_batches
from probe import probing_existing
from transactional import transactions
from translated_copies import assert_translated, copied, index_of, pair, trim

from mirror.kafka.cluster import TopicPartition
from mirror.records.header import ProducerState, restamp
from mirror.replication.both_logs import producer_id
from mirror.replication.offset_map_recovery import resume_translated
from mirror.states import State

__all__ = ["pair"]
pytestmark = pytest.mark.brokers


def test_a_source_that_begins_inside_a_batch(pair: tuple[str, str], topic_name: str) -> None:
    """What it deleted of that batch is still inside, and was never mirrored."""
    make_topic(pair[0], topic_name)
    produce(pair[0], topic_name, [b"%d" % index for index in range(100)], batch=50)
    trim(pair[0], topic_name, 30)
    copied(pair, topic_name, records_runs=False)
    copied(pair, topic_name)
    assert assert_translated(pair, topic_name) == 70


def test_what_was_deleted_of_a_batch_that_was_mirrored(pair: tuple[str, str], topic_name: str) -> None:
    make_topic(pair[0], topic_name)
    produce(pair[0], topic_name, [b"%d" % index for index in range(100)], batch=50)
    copied(pair, topic_name, records_runs=False)
    trim(pair[0], topic_name, 30)
    produce(pair[0], topic_name, [b"more"])
    found = copied(pair, topic_name)
    assert (found.next_offset, found.records) == (101, 1)


def test_a_repeated_record_does_not_pass_for_one_that_was_where_a_marker_is(
    pair: tuple[str, str], topic_name: str
) -> None:
    make_topic(pair[0], topic_name)
    transactions(pair[0], topic_name, [True, False])
    copied(pair, topic_name, records_runs=False)
    produce(pair[1], topic_name, [b"foreign"])
    found = copied(pair, topic_name, State.DIVERGED)
    assert "at offset 5 of the target, the record is not the source's at offset 5" in found.detail


def test_a_foreign_record_does_not_pass_for_one_of_an_open_transaction(pair: tuple[str, str], topic_name: str) -> None:
    make_topic(pair[0], topic_name)
    produce(pair[0], topic_name, [b"%d" % index for index in range(10)])
    copied(pair, topic_name)
    producer = Producer({"bootstrap.servers": pair[0], "transactional.id": topic_name})
    producer.init_transactions(120)
    producer.begin_transaction()
    producer.produce(topic_name, b"open", partition=0)
    producer.flush(20)
    produce(pair[1], topic_name, [b"foreign"])
    found = copied(pair, topic_name, State.DIVERGED)
    producer.abort_transaction(20)
    assert "at offset 10 of the target, the record is not the source's at offset 10" in found.detail


def test_a_batch_that_the_source_has_no_more_lands_under_the_number_of_the_next_one(
    pair: tuple[str, str], topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead mirror's last request arrives behind our read of the log's end; meanwhile the source deleted what is in
    it. A leader takes what we send for a repetition, and it must not count as mirrored.
    """
    source, target = pair
    at = TopicPartition(topic_name, 0)
    make_topic(source, topic_name)
    produce(source, topic_name, [b"%d" % index for index in range(6)], batch=3)
    late = stored_batches(source, topic_name)[0]
    trim(source, topic_name, 3)
    found_before: list[Any] = []

    async def resumed(*given: Any) -> Any:
        found = await resume_translated(*given)
        if not found_before:
            async with probing_existing(target, topic_name) as probe:
                stamped = restamp(late, ProducerState(producer_id(topic_name, at)))
                assert await probe.send(stamped + bytes(late.records)) == (0, 0)
        found_before.append(found)
        return found

    monkeypatch.setattr("mirror.replication.pipeline.resume_translated", resumed)
    found = copied(pair, topic_name, State.DIVERGED)
    assert "at offset 0 of the target, the record is not the source's at offset 3" in found.detail
    assert (found.records, len(stored_batches(target, topic_name))) == (0, 1)
    assert not len(index_of(pair, topic_name)), "no run says that it is there"
