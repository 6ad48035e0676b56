"""What a topic was when it was first seen, as the journal keeps it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from uuid import UUID

import pytest
from fakebroker import in_loop
from helpers import make_topic

from mirror.config import parse_address
from mirror.driver.start import recorded
from mirror.journal.entries import FirstSeen, making_in, mirrored_cluster, rekeyed_in, seen_in
from mirror.journal.journal import Journal, journal_topic
from mirror.kafka.cluster import CALL_TIMEOUT, Endpoint, TopicPartition
from mirror.kafka.cluster import Cluster as Wire
from mirror.lab.embedded import Cluster
from mirror.observability.status import NOT_OURS
from mirror.policy.rules import Rules
from mirror.replication.assignment import Assignment

SEEN = FirstSeen(
    source_topic="orders", topic_id=UUID(int=1), target_topic_id=UUID(int=2), cluster_id="a-cluster", made=True
)


def test_written_and_read_back() -> None:
    assert FirstSeen.read(SEEN.to_json()) == SEEN


@pytest.mark.parametrize(
    "foreign",
    [b"[]", b"7", b"null", b'"x"', b"{}", b"\xff", b'{"source_topic": "t", "topic_id": 7, "target_topic_id": [1]}'],
)
def test_somebody_elses_record(foreign: bytes) -> None:
    with pytest.raises(NOT_OURS):
        FirstSeen.read(foreign)
    assert seen_in({FirstSeen.key("a"): foreign, FirstSeen.key("b"): SEEN.to_json()}) == {"b": SEEN}


def test_what_is_re_keyed_is_no_copy_and_of_one_source() -> None:
    """A dead-letter topic is of none."""
    letters = FirstSeen(source_topic="", topic_id=None, target_topic_id=UUID(int=3), cluster_id=None)
    journal = {
        FirstSeen.rekeyed_key("a"): SEEN.to_json(),
        FirstSeen.rekeyed_key("letters"): letters.to_json(),
        FirstSeen.rekeyed_key("b"): b"[]",
    }
    assert (seen_in(journal), rekeyed_in(journal)) == ({}, {"a": SEEN, "letters": letters})
    assert (letters.is_letters, letters.chain, SEEN.is_letters) == (True, (), False)
    assert mirrored_cluster(journal) == "a-cluster"
    other = replace(SEEN, cluster_id="b-cluster")
    assert mirrored_cluster({**journal, FirstSeen.key("a"): other.to_json()}) is None


def test_what_is_seen_anew_is_learned() -> None:
    now = replace(SEEN, topic_id=UUID(int=7), origins=("a-cluster", "b-cluster"), made=False)
    assert SEEN.learned(now) == SEEN, "another source topic by that name: what was seen first stands"
    assert replace(SEEN, topic_id=None).learned(now) == replace(now, made=True)
    for another in (replace(now, target_topic_id=UUID(int=8)), replace(now, cluster_id="b-cluster")):
        assert SEEN.learned(another) is another


@pytest.mark.brokers
@in_loop
async def test_more_topics_than_a_batch_of_the_journal_holds(own_target: Cluster, topic_name: str) -> None:
    only = journal_topic(topic_name)
    make_topic(own_target.bootstrap, only)
    sources = [TopicPartition(f"{topic_name}-{number}", 0) for number in range(5_000)]
    endpoint = Endpoint("eu", (parse_address(own_target.bootstrap),))

    class Many(Wire):
        async def refresh(self, topics: Iterable[str] = (), timeout: float = CALL_TIMEOUT) -> None:
            """Each topic that is asked for is the one that there is."""
            await super().refresh([only], timeout)
            self.topics |= dict.fromkeys(topics, self.topics[only])

    async with Many(endpoint) as cluster:
        journal = Journal(cluster, topic_name)
        await recorded(cluster, journal, [Assignment(at, at, None, Rules()) for at in sources], {})
        assert seen_in(await journal.newest()).keys() == {at.topic for at in sources}


@pytest.mark.brokers
@in_loop
@pytest.mark.parametrize("former", [UUID(int=8), None])
async def test_a_copy_that_was_re_keyed_before_is_so_no_more(
    own_target: Cluster, topic_name: str, former: UUID | None
) -> None:
    """Unless it may be the same topic."""
    for name, many in ((topic_name, 2), (journal_topic(topic_name), 1)):
        make_topic(own_target.bootstrap, name, many)
    places = [TopicPartition(topic_name, number) for number in range(2)]
    endpoint = Endpoint("eu", (parse_address(own_target.bootstrap),))
    key = FirstSeen.rekeyed_key(topic_name)
    async with Wire(endpoint) as cluster:
        await cluster.refresh([topic_name, journal_topic(topic_name)])
        journal = Journal(cluster, topic_name)
        before = FirstSeen(source_topic=topic_name, topic_id=None, target_topic_id=former, cluster_id=None)
        await journal.append([(key, before.to_json()), (FirstSeen.making_key(topic_name), before.to_json())])
        known = await journal.newest()
        await recorded(cluster, journal, [Assignment(at, at, None, Rules()) for at in places], known)
        assert known == await journal.newest()
        assert seen_in(known).keys() == {topic_name}
        assert (key in known) is (former is None)
        assert making_in(known) == {}, "it is made, and what is known of it stands in its own record"
