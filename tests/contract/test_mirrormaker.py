"""A target topic that MirrorMaker 2 filled is gone on with, or refused by name.

MirrorMaker consumes and produces, so its target topic holds the source's records in batches of other sizes and codecs,
at offsets that begin with 0. What it copied is found by comparing both logs record by record.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import copies
import pytest
from confluent_kafka import Producer
from copies import Pair
from helpers import make_topic, produce
from samerecords import read
from topicadmin import delete_records
from transactional import transactions
from translated_copies import assert_translated, index_of

from mirror.states import State

copied = partial(copies.copied, offsets="translate")


def copy_as_mirrormaker(pair: Pair, topic: str, first: int, end: int, *, transactional: bool = False) -> int:
    """Produce what a reader of committed records gets of these offsets, with another codec; return how many."""
    settings = {"bootstrap.servers": pair[1], "linger.ms": 50, "compression.type": "lz4", "acks": "all"}
    producer = Producer(settings | ({"transactional.id": topic} if transactional else {}))
    if transactional:
        producer.init_transactions(120)
        producer.begin_transaction()
    found = [one for one in read(pair[0], topic, 0) if first <= one[0] < end]
    for _, timestamp, _, key, value, headers in found:
        producer.produce(topic, value, key, partition=0, timestamp=timestamp, headers=list(headers))
    assert producer.flush(30) == 0
    if transactional:
        producer.commit_transaction(20)
    return len(found)


def numbered(first: int, end: int) -> list[bytes]:
    return [b"%d" % index for index in range(first, end)]


@pytest.fixture
def topic(pair: Pair, topic_name: str) -> str:
    """A topic on both sides."""
    for bootstrap in pair:
        make_topic(bootstrap, topic_name)
    return topic_name


@pytest.mark.proves("exactly-once")
def test_a_copy_is_gone_on_with_where_it_ends(pair: Pair, topic: str) -> None:
    """Plain records, transactions and what was aborted; the copy ends inside a batch of the source."""
    produce(pair[0], topic, numbered(0, 100), batch=30, codec="zstd")
    transactions(pair[0], topic, [True, False, True])
    produce(pair[0], topic, numbered(100, 200), batch=40, codec="gzip")
    assert copy_as_mirrormaker(pair, topic, 0, 150) == 142
    copied(pair, topic)
    assert assert_translated(pair, topic) == 210
    assert copied(pair, topic).records == 0


@pytest.mark.proves("DIVERGED", "never-silent")
@pytest.mark.parametrize(
    ("ranges", "transactional", "named"),
    [
        ([(0, 60), (50, 80)], False, "at offset 60 of the target, the record is not the source's at offset 60"),
        ([(0, 60), (61, 80)], False, "at offset 60 of the target, the record is not the source's at offset 60"),
        ([(0, 80)], True, "control marker"),
    ],
    ids=["records that were copied twice", "a record that was left out", "markers"],
)
def test_a_copy_that_differs_is_named(
    pair: Pair, topic: str, ranges: Sequence[tuple[int, int]], transactional: bool, named: str
) -> None:
    produce(pair[0], topic, numbered(0, 100), batch=30)
    for first, end in ranges:
        copy_as_mirrormaker(pair, topic, first, end, transactional=transactional)
    found = copied(pair, topic, State.DIVERGED)
    assert named in found.detail
    assert found.records == 0


@pytest.mark.proves("DIVERGED", "never-silent")
def test_a_copy_whose_first_records_are_gone_is_known_by_the_first_that_is_left(pair: Pair, topic: str) -> None:
    """Somebody else's is no copy."""
    produce(pair[0], topic, numbered(0, 20), batch=30)
    transactions(pair[0], topic, [False])
    produce(pair[0], topic, numbered(20, 100), batch=30)
    copy_as_mirrormaker(pair, topic, 0, 86)
    delete_records(pair[1], topic, 50)
    delete_records(pair[0], topic, 26)
    copied(pair, topic)
    assert [one[4] for one in read(pair[1], topic, 0)] == numbered(50, 100)
    index = index_of(pair, topic)
    assert [index.to_target(offset + 6) for offset in (65, 79, 80, 99)] == [65, 79, 80, 99]
    other = f"{topic}-other"
    for bootstrap, first in zip(pair, (0, 500), strict=True):
        make_topic(bootstrap, other)
        produce(bootstrap, other, numbered(first, first + 100))
    delete_records(pair[1], other, 10)
    assert "and nor does the source" in copied(pair, other, State.DIVERGED).detail
