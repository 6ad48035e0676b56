"""Taking over from MirrorMaker 2: a target topic that it filled is gone on with, or refused by name.

MirrorMaker consumes and produces, so its target topic holds the source's records in batches of other sizes and codecs,
at offsets that begin with 0. What it copied is found by comparing both logs record by record.
"""

from __future__ import annotations

import pytest
from confluent_kafka import Producer
from helpers import make_topic, produce
from samerecords import read
from transactional import transactions
from translated_copies import assert_translated, copied, index_of, pair, trim

from mirror.states import State

__all__ = ["pair"]
pytestmark = pytest.mark.brokers


def as_mirrormaker(
    pair: tuple[str, str], topic: str, until: int, *, begin: int = 0, transactional: bool = False
) -> int:
    """Copy the committed records from offset `begin` to before `until` as MirrorMaker does: what is read is produced,
    in batches as they come and with a codec of their own. Returns how many there were.
    """
    settings = {"bootstrap.servers": pair[1], "linger.ms": 50, "compression.type": "lz4", "acks": "all"}
    producer = Producer(settings | ({"transactional.id": topic} if transactional else {}))
    if transactional:
        producer.init_transactions(120)
        producer.begin_transaction()
    count = 0
    for offset, timestamp, _, key, value, headers in read(pair[0], topic, 0):
        if begin <= offset < until:
            producer.produce(topic, value, key, partition=0, timestamp=timestamp, headers=list(headers))
            count += 1
    assert producer.flush(30) == 0
    if transactional:
        producer.commit_transaction(20)
    return count


def both_topics(pair: tuple[str, str], topic: str) -> None:
    for side in pair:
        make_topic(side, topic)


def numbered(first: int, end: int) -> list[bytes]:
    return [b"%d" % index for index in range(first, end)]


def test_it_is_gone_on_where_the_copy_ends(pair: tuple[str, str], topic_name: str) -> None:
    """Plain records, transactions and what was aborted; the copy ends inside a batch of the source."""
    both_topics(pair, topic_name)
    produce(pair[0], topic_name, numbered(0, 100), batch=30, codec="zstd")
    transactions(pair[0], topic_name, [True, False, True])
    produce(pair[0], topic_name, numbered(100, 200), batch=40, codec="gzip")
    assert as_mirrormaker(pair, topic_name, until=150) == 142
    found = copied(pair, topic_name)
    assert found.lag_records == 0
    assert assert_translated(pair, topic_name) == 210


def test_nothing_is_copied_where_the_copy_was_whole(pair: tuple[str, str], topic_name: str) -> None:
    """Nor at the next start, though the last batch is still none of the mirror's."""
    both_topics(pair, topic_name)
    produce(pair[0], topic_name, numbered(0, 100), batch=7)
    as_mirrormaker(pair, topic_name, until=100)
    for _ in range(2):
        assert copied(pair, topic_name).records == 0
        assert assert_translated(pair, topic_name) == 100
    produce(pair[0], topic_name, numbered(100, 110))
    assert copied(pair, topic_name).records == 10
    assert assert_translated(pair, topic_name) == 110


def test_a_record_that_mirrormaker_wrote_twice_is_named(pair: tuple[str, str], topic_name: str) -> None:
    """It is not exactly once unless set to be; where it began again, its copy is not the source's."""
    both_topics(pair, topic_name)
    produce(pair[0], topic_name, numbered(0, 100), batch=30)
    as_mirrormaker(pair, topic_name, until=60)
    as_mirrormaker(pair, topic_name, begin=50, until=80)
    found = copied(pair, topic_name, State.DIVERGED)
    assert "at offset 60 of the target, the record is not the source's at offset 60" in found.detail
    assert found.records == 0


def test_a_record_that_mirrormaker_left_out_is_named(pair: tuple[str, str], topic_name: str) -> None:
    both_topics(pair, topic_name)
    produce(pair[0], topic_name, numbered(0, 100), batch=30)
    as_mirrormaker(pair, topic_name, until=60)
    as_mirrormaker(pair, topic_name, begin=61, until=80)
    found = copied(pair, topic_name, State.DIVERGED)
    assert "at offset 60 of the target, the record is not the source's at offset 60" in found.detail


def test_a_copy_in_transactions_is_named(pair: tuple[str, str], topic_name: str) -> None:
    """MirrorMaker with exactly.once.source.support leaves markers, which take offsets that no run may have."""
    both_topics(pair, topic_name)
    produce(pair[0], topic_name, numbered(0, 10))
    as_mirrormaker(pair, topic_name, until=10, transactional=True)
    assert "control marker" in copied(pair, topic_name, State.DIVERGED).detail


def test_a_copy_that_began_behind_the_first_record(pair: tuple[str, str], topic_name: str) -> None:
    """The source has deleted since what was mirrored first."""
    both_topics(pair, topic_name)
    produce(pair[0], topic_name, numbered(0, 100), batch=30)
    as_mirrormaker(pair, topic_name, until=80)
    trim(pair[0], topic_name, 50)
    copied(pair, topic_name)
    assert [one[4] for one in read(pair[1], topic_name, 0)] == numbered(0, 100)
    index = index_of(pair, topic_name)
    assert [index.to_target(offset) for offset in (50, 79, 80, 99)] == [50, 79, 80, 99]


@pytest.mark.parametrize("source_begins", [0, 20, 65])
def test_a_copy_whose_first_records_are_gone(pair: tuple[str, str], topic_name: str, source_begins: int) -> None:
    """Either side's retention may have taken more."""
    both_topics(pair, topic_name)
    produce(pair[0], topic_name, numbered(0, 20), batch=30)
    transactions(pair[0], topic_name, [False])
    produce(pair[0], topic_name, numbered(20, 100), batch=30)
    as_mirrormaker(pair, topic_name, until=80)
    trim(pair[1], topic_name, 50)
    trim(pair[0], topic_name, source_begins + 6 if source_begins else 0)
    for _ in range(2):
        copied(pair, topic_name)
        assert [one[4] for one in read(pair[1], topic_name, 0)] == numbered(50, 100)
    index = index_of(pair, topic_name)
    assert [index.to_target(offset + 6) for offset in (65, 79, 80, 99)] == [65, 79, 80, 99]
    assert [index.to_source(offset) for offset in (65, 79, 80, 99)] == [71, 85, 86, 105]


def test_somebody_elses_records_whose_first_are_gone(pair: tuple[str, str], topic_name: str) -> None:
    both_topics(pair, topic_name)
    produce(pair[0], topic_name, numbered(0, 100))
    produce(pair[1], topic_name, numbered(500, 600))
    trim(pair[1], topic_name, 10)
    assert "and nor does the source" in copied(pair, topic_name, State.DIVERGED).detail
    trim(pair[0], topic_name, 95)
    assert "the journal does not say where offset 10" in copied(pair, topic_name, State.DIVERGED).detail
