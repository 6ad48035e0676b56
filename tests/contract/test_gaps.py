"""Offsets that hold no record: the target keeps them with control markers, and readers see the same on both sides."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any, Final

import pytest
from confluent_kafka import Producer
from copies import Killed, Pair, copied
from fakebroker import in_loop
from helpers import RECENT_MS, make_topic, produce
from pair import Shared
from probe import Probe, probing, probing_existing
from rawbatches import batch
from samerecords import assert_same_logs, assert_same_records, read
from topicadmin import delete_records
from transactional import transactions

from mirror.kafka.cluster import TopicPartition
from mirror.records.header import ProducerState
from mirror.replication.observe import MARKERS, Observer, producer_id
from mirror.replication.writer import SentMarkers, Writer
from mirror.states import State

#: A producer id; they belong to a partition here, and every test has a topic of its own.
PRODUCER: Final = 9_000_000
#: Error codes of brokers.
WRITTEN, OUT_OF_ORDER, STALE_EPOCH = 0, 45, 47


def interleaved(bootstrap: str, topic: str) -> None:
    """Two producers at a time: one aborts while the other's transaction, which lies around it, commits."""
    clients = [Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-{name}"}) for name in "ab"]
    for client in clients:
        client.init_transactions(120)
    for number in range(4):
        for client in clients:
            client.begin_transaction()
        for index in range(3):
            for client in clients:
                client.produce(topic, b"%d %d" % (number, index), partition=0)
                client.flush(20)
        clients[number % 2].commit_transaction(20)
        clients[1 - number % 2].abort_transaction(20)


@pytest.mark.proves("same-offsets", "DROP", "RESTAMP")
def test_a_transactional_topic(pair: Pair, topic_name: str) -> None:
    """30 % aborted; records without a transaction in between."""
    random = Random(7)
    make_topic(pair[0], topic_name)
    for number in range(2):
        produce(pair[0], topic_name, [b"plain %d" % number] * 20)
        transactions(pair[0], topic_name, [random.random() > 0.3 for _ in range(10)])
    interleaved(pair[0], topic_name)
    transactions(pair[0], topic_name, [False], size=400, name="long")
    found = copied(pair, topic_name)
    assert found.verdicts["DROP/aborted"] > 5
    assert found.verdicts["DROP/control"] == 20 + 8 + 1
    assert assert_same_records(*pair, topic_name, 1) > 60


@pytest.mark.proves("exactly-once", "same-offsets")
def test_a_second_run_goes_on_behind_a_marker(pair: Pair, topic_name: str) -> None:
    """The log ends with a marker each time, or with data, or in the middle of what was aborted."""
    make_topic(pair[0], topic_name)
    for outcomes in ([True], [True, False], [False]):
        transactions(pair[0], topic_name, outcomes)
        copied(pair, topic_name)
        assert_same_records(*pair, topic_name, 1)
    produce(pair[0], topic_name, [b"plain"] * 15)
    copied(pair, topic_name)
    assert assert_same_records(*pair, topic_name, 1) == 25


@pytest.mark.proves("exactly-once", "same-offsets")
def test_the_filling_of_a_loss_goes_on_where_it_was_killed(
    pair: Pair, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last markers that landed are in no journal, and the source has deleted all that shows what came before them:
    by now it knows no leader epoch of that.
    """
    make_topic(pair[0], topic_name)
    produce(pair[0], topic_name, [b"copied"] * 10)
    copied(pair, topic_name)
    produce(pair[0], topic_name, [b"lost"] * 2500, batch=500)
    delete_records(pair[0], topic_name, 2510)
    produce(pair[0], topic_name, [b"kept"] * 5)
    filled, killed_at = Writer._filled, list[int]()

    async def forgotten(*_: Any) -> None:
        return None

    def kill(self: Writer, sent: SentMarkers) -> None:
        if sent.markers == MARKERS and not killed_at:
            killed_at.append(sent.gap.first + sent.markers)
            raise Killed
        filled(self, sent)

    monkeypatch.setattr(Observer, "_kept_until", forgotten)
    monkeypatch.setattr(Writer, "_filled", kill)
    with pytest.raises(ExceptionGroup):
        copied(pair, topic_name, on_data_loss="continue")
    assert killed_at == [1011]
    copied(pair, topic_name, on_data_loss="continue")
    assert [one[0] for one in read(pair[1], topic_name, 0)] == [*range(10), *range(2510, 2515)]


@pytest.mark.proves("never-silent", "DIVERGED")
@pytest.mark.parametrize(
    ("count", "state"),
    [
        (2, State.CAUGHT_UP),  # the gap, no more
        (3, State.DIVERGED),  # over a record
        (14, State.DIVERGED),  # over all ten records and into the next gap, where the last one is right by itself
    ],
)
def test_markers_of_two_mirrors_that_reach_over_records_are_noticed(
    pair: Pair, topic_name: str, count: int, state: State
) -> None:
    for bootstrap in pair:
        make_topic(bootstrap, topic_name)
    transactions(pair[0], topic_name, [False], size=1, name="one")
    produce(pair[0], topic_name, [b"value %d" % number for number in range(10)])
    transactions(pair[0], topic_name, [False], size=9, name="two")
    produce(pair[0], topic_name, [b"more"] * 5)
    first = ProducerState(producer_id(topic_name, TopicPartition(topic_name, 0)))
    stamps = [first.then(number + 1) for number in range(count)]

    async def mark() -> None:
        async with probing_existing(pair[1], topic_name) as probe:
            assert await probe.mark(*((one.producer_id, one.epoch) for one in stamps)) == {first.producer_id: 0}

    asyncio.run(mark())
    copied(pair, topic_name, state)
    if state is State.CAUGHT_UP:
        assert assert_same_logs(*pair, topic_name) == 15
    else:
        assert not list(read(pair[1], topic_name, 0)), "nothing is written behind them"


# --- what all of this rests on: how a broker takes WriteTxnMarkers for a producer id that also writes data (Kafka
# `UnifiedLog.appendAsLeader` with origin COORDINATOR, `ProducerAppendInfo`); none of it is documented


async def send(probe: Probe, epoch: int, sequence: int, count: int = 1) -> tuple[int, int]:
    """Append `count` records; the code, and the offset that they got."""
    records = b"".join(bytes((14, 0, 0, 2 * delta, 1, 2, ord("v"), 0)) for delta in range(count))
    stamped = {"producer_id": PRODUCER, "producer_epoch": epoch, "base_sequence": sequence}
    return await probe.send(
        batch(count=count, payload=records, base_timestamp=RECENT_MS, max_timestamp=RECENT_MS, **stamped)
    )


async def mark(probe: Probe, *epochs: int) -> int:
    """Write markers in one request; the one code that is answered."""
    return (await probe.mark(*((PRODUCER, epoch) for epoch in epochs)))[PRODUCER]


@pytest.mark.proves("same-offsets", "exactly-once")
@in_loop
async def test_markers_take_one_offset_each_and_those_of_a_higher_epoch_fence_off_data(
    target_cluster: Shared, topic_name: str
) -> None:
    async with probing(target_cluster.bootstrap, topic_name) as probe:
        assert await send(probe, 0, 0, 3) == (WRITTEN, 0)
        assert await mark(probe, 0) == WRITTEN
        assert await send(probe, 0, 0, 3) == (WRITTEN, 0), "a marker of its own epoch changes nothing: a replay"
        assert await send(probe, 0, 3) == (WRITTEN, 4)
        assert await mark(probe, 1) == WRITTEN
        assert await send(probe, 0, 4) == (STALE_EPOCH, -1), "what came next"
        assert await send(probe, 0, 3) == (STALE_EPOCH, -1), "a replay is no longer recognised as one"
        assert (await probe.remembered())[PRODUCER][:2] == (1, -1)
        assert await send(probe, 1, 4) == (OUT_OF_ORDER, -1)
        assert await send(probe, 1, 0) == (WRITTEN, 6)
        assert await send(probe, 1, 0) == (WRITTEN, 6)
        assert await mark(probe, 0) == STALE_EPOCH, "data of a higher epoch fences off markers"
        assert await probe.ends() == (7, 7, 7)
        for isolation in ("read_committed", "read_uncommitted"):
            records = await asyncio.to_thread(read_all, target_cluster.bootstrap, topic_name, isolation)
            assert records == [0, 1, 2, 4, 6]
        end = 7
        for epochs, answer, written in [  # the answer is about the last marker alone
            ((2, 3, 4), WRITTEN, 3),
            ((2, 3, 4), WRITTEN, 1),  # the newest is taken again
            ((5, 6, 4), STALE_EPOCH, 2),
            ((4, 7, 5, 8), WRITTEN, 2),
            ((1, 2), STALE_EPOCH, 0),
            (range(9, 1009), WRITTEN, 1000),
            ((32767, 32767), WRITTEN, 2),  # the last epoch
        ]:
            end += written
            assert await mark(probe, *epochs) == answer
            assert (await probe.ends()).log_end == end
        answers = await probe.mark((PRODUCER, 6), (PRODUCER + 1, 0))
        assert answers == {PRODUCER: STALE_EPOCH, PRODUCER + 1: WRITTEN}, "one refused id does not stop another"


def read_all(bootstrap: str, topic: str, isolation: str) -> list[int]:
    return [one[0] for one in read(bootstrap, topic, 0, isolation)]
