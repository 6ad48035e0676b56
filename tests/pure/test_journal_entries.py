"""What the journal keeps of topics and of accepted losses: written, read back, and read from what others wrote."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID, uuid4

import pytest

from mirror.journal.entries import (
    ACCEPTED,
    COPIES,
    REKEYED,
    Accepted,
    FirstSeen,
    accept_entry,
    accepted_for,
    mirrored_cluster,
    moment,
)
from mirror.journal.journal import Entry
from mirror.journal.positions import standing_in
from mirror.kafka.cluster import TopicPartition
from mirror.kafka.queries import EARLIEST, LATEST
from mirror.observability.status import NOT_OURS
from mirror.policy.rules import Rules
from mirror.replication.assignment import Assignment, Loss

AT = TopicPartition("orders.eu/1", 12)
SEEN = FirstSeen(
    source_topic="orders",
    topic_id=UUID(int=1),
    target_topic_id=UUID(int=2),
    cluster_id="a-cluster",
    made=True,
    since=(0, 7, 2**63 - 1),
)


def test_what_a_topic_was_first_seen_as_is_read_back() -> None:
    found = FirstSeen.from_json(SEEN.to_json())
    assert found == SEEN
    assert [found.begins(partition) for partition in range(4)] == [0, 7, 2**63 - 1, 0]


@pytest.mark.parametrize(
    "foreign",
    [
        *[b"[]", b"null", b'"x"', b"{}", b"\xff", b'{"source_topic": "t", "topic_id": 7, "target_topic_id": [1]}'],
        *[json.dumps(json.loads(SEEN.to_json()) | {"since": since}).encode() for since in (7, [-1], ["7"], [2**63])],
    ],
)
def test_what_somebody_else_wrote_is_no_record_of_a_topic(foreign: bytes) -> None:
    with pytest.raises(NOT_OURS):
        FirstSeen.from_json(foreign)
    assert COPIES.newest({COPIES.key("a"): foreign, COPIES.key("b"): SEEN.to_json()}) == {"b": SEEN}


def test_what_is_re_keyed_is_no_copy_and_of_one_source() -> None:
    """A dead-letter topic is of none."""
    letters = FirstSeen(source_topic="", topic_id=None, target_topic_id=UUID(int=3), cluster_id=None)
    journal = {
        REKEYED.key("a"): SEEN.to_json(),
        REKEYED.key("letters"): letters.to_json(),
        REKEYED.key("b"): b"[]",
    }
    assert (COPIES.newest(journal), REKEYED.newest(journal)) == ({}, {"a": SEEN, "letters": letters})
    assert (letters.is_letters, letters.chain, SEEN.is_letters) == (True, (), False)
    assert mirrored_cluster(journal) == "a-cluster"
    other = replace(SEEN, cluster_id="b-cluster")
    assert mirrored_cluster({**journal, COPIES.key("a"): other.to_json()}) is None


def test_what_is_seen_anew_is_learned() -> None:
    now = replace(SEEN, topic_id=UUID(int=7), origins=("a-cluster", "b-cluster"), made=False)
    assert SEEN.learned(now) == SEEN, "another source topic by that name: what was seen first stands"
    assert replace(SEEN, topic_id=None).learned(now) == replace(now, made=True)
    for another in (replace(now, target_topic_id=UUID(int=8)), replace(now, cluster_id="b-cluster")):
        assert SEEN.learned(another) is another


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
def test_a_start_is_asked_for_by_its_moment(start: Any, when: int) -> None:
    assert moment(start) == when


def test_what_is_accepted_is_read_back() -> None:
    for topic_id in (uuid4(), None):
        reported = accept_entry(Loss(AT, AT, 100, 150), topic_id)
        assert ACCEPTED.read(Entry(0, *reported)) == (AT, Accepted(100, 150, topic_id))
    assert ACCEPTED.read(Entry(0, b"accept/orders/0", None)) == (TopicPartition("orders", 0), None)
    assert ACCEPTED.read(Entry(0, b"state/accept/0", b"{}")) is None
    for key, value in (
        (b"accept/orders/x", b'{"first": 1, "upto": 2, "topic_id": null}'),
        (b"accept/\xff/0", b'{"first": 1, "upto": 2, "topic_id": null}'),
        (b"accept/orders/0", b'{"first": 1}'),
        (b"accept/orders/0", b"[" * 100_000),
    ):
        with pytest.raises((ValueError, KeyError)):
            ACCEPTED.read(Entry(0, key, value))
        assert standing_in({key: value}).accepted == {}


def test_what_was_accepted_of_another_topic_of_that_name_is_not_accepted() -> None:
    first, second = uuid4(), uuid4()
    reported = standing_in(dict([accept_entry(Loss(AT, AT, 100, 150), first), (b"accept/orders/0", b"torn")])).accepted
    assert accepted_for(Assignment(AT, AT, first, Rules()), reported) == (100, 150)
    assert accepted_for(Assignment(AT, AT, second, Rules()), reported) is None
    assert accepted_for(Assignment(AT, AT, None, Rules()), reported) is None
    before = json.dumps({"first": 100, "upto": 150, "at_ms": 1}).encode()  # as earlier versions wrote it
    assert standing_in({b"accept/orders.eu/1/12": before}).accepted == {}


def test_what_an_acceptance_covers() -> None:
    topic = uuid4()
    accepted = Accepted(100, 150, topic)
    assert accepted.covers(Loss(AT, AT, 100, 150), topic)
    assert accepted.covers(Loss(AT, AT, 120, 140), topic)
    assert not accepted.covers(Loss(AT, AT, 120, 151), topic), "the source has lost more since"
    assert not accepted.covers(Loss(AT, AT, 99, 150), topic)
    assert not accepted.covers(Loss(AT, AT, 100, 150), uuid4())
