"""The independent judge of copies (`tests/support/samerecords.py`) finds each fault that is planted, and no other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import Producer
from copies import Pair
from helpers import RECENT_MS, make_topic, wait_for_markers
from samerecords import assert_same_logs
from topicadmin import delete_records
from waiting import DEADLINE_S

#: Value, time and headers of each record.
WRITTEN = [(b"value %d" % number, RECENT_MS + number, [("a", b"1"), ("b", b"2")]) for number in range(10)]
FAULTS = {
    "a record is missing": [*WRITTEN[:4], *WRITTEN[5:]],
    "the last record is missing": WRITTEN[:-1],
    "a record is repeated": [*WRITTEN, WRITTEN[-1]],
    "records are swapped": [*WRITTEN[:4], WRITTEN[5], WRITTEN[4], *WRITTEN[6:]],
    "a value is another": [*WRITTEN[:4], (b"?", *WRITTEN[4][1:]), *WRITTEN[5:]],
    "a time is another": [*WRITTEN[:4], (WRITTEN[4][0], RECENT_MS, WRITTEN[4][2]), *WRITTEN[5:]],
    "headers are in another order": [*WRITTEN[:4], (*WRITTEN[4][:2], WRITTEN[4][2][::-1]), *WRITTEN[5:]],
}


def write(bootstrap: str, topic: str, records: Sequence[Any], **settings: str) -> Producer:
    """Write the records in this order, in a transaction that stays open where `settings` name one."""
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    if settings:
        producer.init_transactions(DEADLINE_S)
        producer.begin_transaction()
    for value, timestamp, headers in records:
        producer.produce(topic, value, partition=0, timestamp=timestamp, headers=headers)
    assert not producer.flush(DEADLINE_S)
    return producer


@pytest.mark.parametrize("copied", FAULTS.values(), ids=FAULTS)
def test_a_copy_that_has_other_records_is_found(pair: Pair, topic_name: str, copied: Sequence[Any]) -> None:
    for bootstrap, records in zip(pair, (WRITTEN, copied), strict=True):
        make_topic(bootstrap, topic_name)
        write(bootstrap, topic_name, records)
    with pytest.raises(AssertionError):
        assert_same_logs(*pair, topic_name)


def test_a_log_that_differs_in_what_is_no_committed_record_is_found(pair: Pair, topic_name: str) -> None:
    for bootstrap in pair:
        make_topic(bootstrap, topic_name)
        write(bootstrap, topic_name, WRITTEN)
    assert assert_same_logs(*pair, topic_name) == 10
    delete_records(pair[1], topic_name, 5)
    with pytest.raises(AssertionError, match=r"start and end at .* the target's at .*5, 10"):
        assert_same_logs(*pair, topic_name)
    other = f"{topic_name}-other"
    for bootstrap in pair:
        make_topic(bootstrap, other)
    write(pair[0], other, WRITTEN[:2])
    opened = write(pair[1], other, WRITTEN[:2], **{"transactional.id": topic_name})
    with pytest.raises(AssertionError, match="a transaction hangs"):
        assert_same_logs(*pair, other)
    opened.abort_transaction(DEADLINE_S)
    wait_for_markers(pair[1], other)
    write(pair[0], other, WRITTEN[:1])
    with pytest.raises(AssertionError, match="records that were not committed"):
        assert_same_logs(*pair, other)
    make_topic(pair[0], f"{other}-two", 2)
    make_topic(pair[1], f"{other}-two")
    with pytest.raises(AssertionError, match="start and end at"):
        assert_same_logs(*pair, f"{other}-two")
