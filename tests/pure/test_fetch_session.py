"""A fetch session against what a broker makes of its requests (Kafka `FetchSession`, KIP-227)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror.kafka.cluster import TopicPartition
from mirror.kafka.fetch import SESSION_ERRORS, Ask, FetchAnswer, FetchRequest, FetchSession, Part

IDS = {"orders": UUID(int=1), "clicks": UUID(int=2)}
#: The id of a session that a broker makes.
NUMBER = 7


class Leader:
    """A broker with one session: what it is asked for by partition, in the order in which it fills its answers."""

    def __init__(self) -> None:
        self.asks: dict[tuple[Any, int], tuple[int, int]] = {}
        self.epoch = 0

    def takes(self, request: FetchRequest, *, has_room: bool = True) -> int:
        """Do as a request says, and return the session's id."""
        session_id, epoch = request.session
        if epoch == 0:
            self.asks, self.epoch = {}, 0
        else:
            assert (session_id, epoch) == (NUMBER, self.epoch)
        named = {(ask.topic_id, ask.partition.partition): (ask.offset, ask.max_bytes) for ask in request.asks}
        assert epoch == 0 or all(self.asks.get(at) != ask for at, ask in named.items()), "nothing new"
        self.asks |= named
        for ask in request.forgotten:
            del self.asks[ask.topic_id, ask.partition.partition]
        self.epoch += 1
        return NUMBER if has_room else 0

    def gives(self, session_id: int, holding: set[tuple[Any, int]]) -> FetchAnswer:
        """Answer with records of some partitions, which go behind all others then."""
        found = [at for at in self.asks if at in holding]
        for at in found:
            self.asks[at] = self.asks.pop(at)
        parts: list[Part] = [(topic.bytes, number, 0, 0, 0, 0, None, (), memoryview(b"x")) for topic, number in found]
        return FetchAnswer(timedelta(0), 0, session_id, parts)


def ask(topic: str, number: int, offset: int, topic_id: UUID | None = None) -> Ask:
    return Ask(TopicPartition(topic, number), topic_id or IDS[topic], 0, offset, -1, 1000)


def request(session: FetchSession, asks: list[Ask]) -> FetchRequest:
    for partition in session.asks.keys() - {ask.partition for ask in asks}:
        session.forget(partition)
    for wanted in asks:
        session.ask(wanted)
    return session.request(13, max_wait_ms=500, max_bytes=1 << 20)


partitions = st.tuples(st.sampled_from(sorted(IDS)), st.integers(0, 2))
wanted = st.dictionaries(partitions, st.integers(0, 3))
rounds = st.lists(st.tuples(wanted, st.sets(partitions), st.sampled_from(["kept", "no room", "failed", "renewed"])))


@given(rounds)
def test_the_leader_always_knows_all_that_is_asked_for(rounds: list[Any]) -> None:
    session, leader = FetchSession(), Leader()
    for offsets, holding, fate in rounds:
        asks = [ask(topic, number, offset) for (topic, number), offset in offsets.items()]
        session_id = leader.takes(request(session, asks), has_room=fate != "no room")
        assert {at: offset for at, (offset, _) in leader.asks.items()} == {
            (IDS[topic], number): offset for (topic, number), offset in offsets.items()
        }
        assert [(one.topic_id, one.partition.partition) for one in session.asked.values()] == list(leader.asks)
        if fate == "failed":
            session.end()
            continue
        if fate == "renewed":
            for topic, number in offsets:
                session.renew(TopicPartition(topic, number))
        session.take_turns(session.read(leader.gives(session_id, {(IDS[topic], number) for topic, number in holding})))
        assert [(one.topic_id, one.partition.partition) for one in session.asked.values()] == list(leader.asks)


def test_a_topic_that_was_made_anew_is_forgotten_and_asked_for_by_its_new_id() -> None:
    session, leader = FetchSession(), Leader()
    session.read(leader.gives(leader.takes(request(session, [ask("orders", 0, 5)])), set()))
    leader.takes(request(session, [ask("orders", 0, 5, UUID(int=9))]))
    assert leader.asks == {(UUID(int=9), 0): (5, 1000)}


@pytest.mark.parametrize("error", SESSION_ERRORS)
def test_a_session_that_the_leader_forgot_begins_anew(error: Any) -> None:
    session, leader = FetchSession(), Leader()
    session.read(leader.gives(leader.takes(request(session, [ask("orders", 0, 5)])), set()))
    assert not request(session, [ask("orders", 0, 5)]).asks
    assert session.is_incremental
    assert session.read(FetchAnswer(timedelta(0), error, 0, ())) == []
    again = request(session, [ask("orders", 0, 5)])
    assert (again.session[1], len(again.asks), session.is_incremental) == (0, 1, False)
