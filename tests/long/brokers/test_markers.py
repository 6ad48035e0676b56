"""What filling offsets with control markers rests on: how a broker takes WriteTxnMarkers for a producer id that also
writes data (Kafka `UnifiedLog.appendAsLeader` with origin COORDINATOR, `ProducerAppendInfo`).

A marker takes one offset and no consumer sees it. None of this is documented, so every line of it is tried here.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from fakebroker import in_loop
from helpers import RECENT_MS
from probe import WRITE_TXN_MARKERS, Answer, Ends, Probe, Remembered, probing
from rawbatches import batch
from samerecords import read

from mirror.kafka.protocol import PRODUCE
from mirror.lab.embedded import Cluster
from mirror.records.header import CONTROL, TRANSACTIONAL

pytestmark = pytest.mark.brokers

#: Ids belong to a partition here, and every test has a topic of its own.
PRODUCER: Final = 9_000_000
OTHER: Final = PRODUCER + 1
LAST_EPOCH: Final = 32767

WRITTEN: Final = 0
OUT_OF_ORDER: Final = 45
STALE_EPOCH: Final = 47
STALE_COORDINATOR: Final = 52
UNKNOWN_ERROR: Final = -1

#: One v2 record: length, attributes, timestamp delta, offset delta, null key, value "v", no headers.
RECORDS: Final = [bytes((14, 0, 0, 2 * delta, 1, 2, ord("v"), 0)) for delta in range(5)]


def data(epoch: int, sequence: int, count: int = 1, *, producer_id: int = PRODUCER) -> bytes:
    """A batch of `count` records, an hour old."""
    return batch(
        count=count,
        payload=b"".join(RECORDS[:count]),
        base_timestamp=RECENT_MS,
        max_timestamp=RECENT_MS,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


async def mark(probe: Probe, *epochs: int) -> int:
    """Markers of the one producer id in one request; the one code that is answered."""
    answered = await probe.mark(*((PRODUCER, epoch) for epoch in epochs))
    return answered[PRODUCER]


async def written(probe: Probe) -> list[tuple[int, str, int]]:
    """The log as (base offset, kind, epoch)."""
    return [
        (raw.header.base_offset, "marker" if raw.header.attributes & CONTROL else "data", raw.header.producer_epoch)
        for raw in await probe.stored()
    ]


@in_loop
async def test_a_marker_of_a_higher_epoch_fences_the_data_of_the_epoch_before(
    own_target: Cluster, topic_name: str
) -> None:
    async with probing(own_target.bootstrap, topic_name) as probe:
        assert await probe.send(data(0, 0, 3)) == (WRITTEN, 0)
        assert await probe.send(data(0, 3, 2)) == (WRITTEN, 3)
        assert await mark(probe, 1) == WRITTEN
        assert await probe.send(data(0, 5)) == (STALE_EPOCH, -1), "what came next"
        assert await probe.send(data(0, 3, 2)) == (STALE_EPOCH, -1), "a replay is no longer recognised as one"
        assert await probe.ends() == (6, 6, 6)


@pytest.mark.parametrize("epoch", [1, 2, 500])
@in_loop
async def test_after_a_marker_of_a_higher_epoch_data_starts_at_sequence_0_in_that_epoch_or_a_higher_one(
    epoch: int, own_target: Cluster, topic_name: str
) -> None:
    async with probing(own_target.bootstrap, topic_name) as probe:
        await probe.send(data(0, 0, 5))
        assert await mark(probe, 1) == WRITTEN
        for sequence in (5, 1, 2**31 - 1):
            assert await probe.send(data(epoch, sequence)) == (OUT_OF_ORDER, -1), sequence
        assert await probe.send(data(epoch, 0, 2)) == (WRITTEN, 6)
        assert await probe.send(data(epoch, 0, 2)) == (WRITTEN, 6), "a replay is recognised"
        assert await probe.send(data(epoch, 2)) == (WRITTEN, 8)
        assert await probe.ends() == (9, 9, 9)


@in_loop
async def test_a_marker_in_the_epoch_of_the_data_leaves_sequences_and_replays_as_they_were(
    own_target: Cluster, topic_name: str
) -> None:
    async with probing(own_target.bootstrap, topic_name) as probe:
        await probe.send(data(0, 0, 3))
        assert await mark(probe, 0) == WRITTEN
        assert await probe.send(data(0, 0, 3)) == (WRITTEN, 0), "a replay across the marker"
        assert await probe.send(data(0, 4)) == (OUT_OF_ORDER, -1), "a gap"
        assert await probe.send(data(0, 3)) == (WRITTEN, 4)
        assert await written(probe) == [(0, "data", 0), (3, "marker", 0), (4, "data", 0)]


@in_loop
async def test_a_repeated_marker_is_written_again_and_a_lower_one_refused(own_target: Cluster, topic_name: str) -> None:
    async with probing(own_target.bootstrap, topic_name) as probe:
        assert [await mark(probe, epoch) for epoch in (3, 3, 2, 4, 3)] == [0, 0, STALE_EPOCH, 0, STALE_EPOCH]
        assert await written(probe) == [(0, "marker", 3), (1, "marker", 3), (2, "marker", 4)]


@in_loop
async def test_data_of_a_higher_epoch_fences_the_markers_before_it(own_target: Cluster, topic_name: str) -> None:
    async with probing(own_target.bootstrap, topic_name) as probe:
        await mark(probe, 0)
        await probe.send(data(1, 0))
        assert await mark(probe, 0) == STALE_EPOCH
        assert await probe.ends() == (2, 2, 2)
        assert await mark(probe, 1) == WRITTEN
        assert await probe.send(data(1, 1)) == (WRITTEN, 3), "the marker of its own epoch did not reset it"


@in_loop
async def test_the_markers_of_a_request_are_written_in_its_order(own_target: Cluster, topic_name: str) -> None:
    async with probing(own_target.bootstrap, topic_name) as probe:
        assert await mark(probe, *range(1, 6)) == WRITTEN
        assert await mark(probe, 5, 5) == WRITTEN
        assert await written(probe) == [(at, "marker", epoch) for at, epoch in enumerate((1, 2, 3, 4, 5, 5, 5))]


@in_loop
async def test_a_repeated_request_of_rising_epochs_adds_its_last_marker_until_something_follows(
    own_target: Cluster, topic_name: str
) -> None:
    async with probing(own_target.bootstrap, topic_name) as probe:
        assert await mark(probe, 1, 2, 3) == WRITTEN
        assert await mark(probe, 1, 2, 3) == WRITTEN
        assert await probe.ends() == (4, 4, 4), "3 again"
        assert await probe.send(data(4, 0)) == (WRITTEN, 4)
        assert await mark(probe, 1, 2, 3) == STALE_EPOCH
        assert await probe.ends() == (5, 5, 5)


@pytest.mark.parametrize(
    ("epochs", "answered", "kept"),
    [
        ((6, 7, 5), STALE_EPOCH, (6, 7)),
        ((3, 6, 4, 7), WRITTEN, (6, 7)),
        ((7, 6), STALE_EPOCH, (7,)),
        ((1, 2), STALE_EPOCH, ()),
    ],
)
@in_loop
async def test_the_answer_names_an_ids_last_marker_alone(
    epochs: tuple[int, ...], answered: int, kept: tuple[int, ...], own_target: Cluster, topic_name: str
) -> None:
    async with probing(own_target.bootstrap, topic_name) as probe:
        await probe.send(data(5, 0))
        assert await mark(probe, *epochs) == answered
        assert await written(probe) == [(0, "data", 5), *((at, "marker", e) for at, e in enumerate(kept, 1))]


@in_loop
async def test_one_refused_id_does_not_stop_the_others_of_a_request(own_target: Cluster, topic_name: str) -> None:
    async with probing(own_target.bootstrap, topic_name) as probe:
        await mark(probe, 7)
        answered = await probe.mark((PRODUCER, 6), (OTHER, 0), (PRODUCER, 5))
        assert answered == {PRODUCER: STALE_EPOCH, OTHER: WRITTEN}
        assert await written(probe) == [(0, "marker", 7), (1, "marker", 0)]


@in_loop
async def test_the_last_epoch_can_be_used_and_not_be_passed(own_target: Cluster, topic_name: str) -> None:
    async with probing(own_target.bootstrap, topic_name) as probe:
        assert [await mark(probe, LAST_EPOCH) for _ in range(2)] == [WRITTEN, WRITTEN]
        assert await probe.send(data(LAST_EPOCH, 0)) == (WRITTEN, 2)
        assert await mark(probe, LAST_EPOCH) == WRITTEN
        assert await probe.send(data(LAST_EPOCH, 1)) == (WRITTEN, 4)
        assert await probe.send(data(0, 0)) == (STALE_EPOCH, -1)
        assert await mark(probe, 0) == STALE_EPOCH
        assert await mark(probe, -1) == UNKNOWN_ERROR
        assert await probe.ends() == (5, 5, 5)


@in_loop
async def test_a_marker_needs_a_producer_id(own_target: Cluster, topic_name: str) -> None:
    async with probing(own_target.bootstrap, topic_name) as probe:
        assert await probe.mark((-1, 0)) == {-1: UNKNOWN_ERROR}
        assert await probe.ends() == (0, 0, 0)


@in_loop
async def test_what_describe_producers_shows_after_each_step(own_target: Cluster, topic_name: str) -> None:
    async with probing(own_target.bootstrap, topic_name) as probe:
        began_ms = int(time.time() * 1000)

        async def remembered() -> Remembered:
            return (await probe.remembered())[PRODUCER]

        assert await probe.remembered() == {}
        await probe.send(data(0, 0, 3))
        assert await remembered() == (0, 2, RECENT_MS, -1, -1)
        await mark(probe, 0)
        own = await remembered()
        assert own == (0, 2, own.last_timestamp, 0, -1), "the sequence stays"
        assert own.last_timestamp >= began_ms, "a marker is stamped by the broker, however old the data is"
        await mark(probe, 1)
        higher = await remembered()
        assert higher == (1, -1, higher.last_timestamp, 0, -1)
        await probe.send(data(1, 0))
        assert await remembered() == (1, 0, RECENT_MS, 0, -1), "the coordinator's epoch stays"


@pytest.mark.parametrize("committed", [True, False], ids=["commit", "abort"])
@in_loop
async def test_every_end_follows_and_no_consumer_sees_a_marker(
    committed: bool, own_target: Cluster, topic_name: str
) -> None:
    async with probing(own_target.bootstrap, topic_name) as probe:
        await probe.send(data(0, 0, 2))
        for number in range(3):
            await probe.mark((PRODUCER, number), committed=committed)
            assert await probe.ends() == Ends(*[3 + number] * 3)
        await probe.send(data(2, 0))
        await probe.mark((OTHER, 0), committed=committed)
        assert await probe.ends() == (7, 7, 7)
        assert await probe.aborted() == ()
        markers = [raw.header for raw in await probe.stored() if raw.header.attributes & CONTROL]
        assert {(h.attributes, h.count, h.base_sequence) for h in markers} == {(CONTROL | TRANSACTIONAL, 1, -1)}
    for isolation in ("read_committed", "read_uncommitted"):
        ours = [record[0] for record in read(own_target.bootstrap, topic_name, 0, isolation)]
        assert ours == [0, 1, 5], f"kafka-python, {isolation}"
        assert _offsets(own_target.bootstrap, topic_name, isolation) == [0, 1, 5], f"librdkafka, {isolation}"


def _offsets(bootstrap: str, topic: str, isolation: str) -> list[int]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": topic,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[int] = []
        while True:
            message = consumer.poll(20)
            assert message is not None, "no end within 20 s"
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return found
            offset = message.offset()
            assert offset is not None
            found.append(offset)
    finally:
        consumer.close()


@in_loop
async def test_an_id_never_seen_may_begin_anywhere(own_target: Cluster, topic_name: str) -> None:
    async with probing(own_target.bootstrap, topic_name) as probe:
        assert await probe.send(data(5, 7)) == (WRITTEN, 0)
        assert await probe.send(data(5, 8)) == (WRITTEN, 1)
        assert await probe.send(data(6, 9)) == (OUT_OF_ORDER, -1)
        assert await probe.send(data(4, 0)) == (STALE_EPOCH, -1)
        assert await mark(probe, 4) == STALE_EPOCH


@in_loop
async def test_an_id_known_by_markers_alone_begins_at_sequence_0(own_target: Cluster, topic_name: str) -> None:
    async with probing(own_target.bootstrap, topic_name) as probe:
        await mark(probe, 3)
        assert await probe.send(data(3, 7)) == (OUT_OF_ORDER, -1)
        assert await probe.send(data(2, 0)) == (STALE_EPOCH, -1)
        assert await probe.send(data(3, 0)) == (WRITTEN, 1)


@in_loop
async def test_the_coordinators_epoch_orders_markers_without_touching_the_data(
    own_target: Cluster, topic_name: str
) -> None:
    async with probing(own_target.bootstrap, topic_name) as probe:

        async def shown(coordinator_epoch: int, epoch: int = 0) -> int:
            return (await probe.mark((PRODUCER, epoch), coordinator_epoch=coordinator_epoch))[PRODUCER]

        await probe.send(data(0, 0, 2))
        assert [await shown(number) for number in (10, 9, 10, 2**31 - 1)] == [0, STALE_COORDINATOR, 0, 0]
        assert await probe.send(data(0, 2)) == (WRITTEN, 5)
        assert await shown(2**31 - 2) == STALE_COORDINATOR, "data in between changes nothing"
        assert await shown(0, epoch=1) == STALE_COORDINATOR, "a higher producer epoch does not help"
        assert await probe.send(data(0, 3)) == (WRITTEN, 6)
        assert await probe.mark((OTHER, 0)) == {OTHER: WRITTEN}, "each id has its own"
        assert await probe.ends() == (8, 8, 8)


@pytest.mark.parametrize("transaction_version", [0, 1, 2])
@in_loop
async def test_no_transaction_version_keeps_a_marker_from_being_repeated(
    transaction_version: int, own_target: Cluster, topic_name: str
) -> None:
    async with probing(own_target.bootstrap, topic_name) as probe:
        await probe.send(data(0, 0))
        for epoch in (0, 0, 1, 1):
            answered = await probe.mark((PRODUCER, epoch), transaction_version=transaction_version)
            assert answered == {PRODUCER: WRITTEN}
        assert await probe.ends() == (5, 5, 5)


@in_loop
async def test_data_and_markers_of_one_connection_need_not_wait_for_each_other(
    own_target: Cluster, topic_name: str
) -> None:
    rounds = 20
    async with probing(own_target.bootstrap, topic_name) as probe:
        steps = []
        for epoch in range(rounds):
            steps += [probe.send(data(epoch, 0, 2)), probe.send(data(epoch, 2)), mark(probe, epoch + 1, epoch + 1)]
        answered = await asyncio.gather(*steps)
        expected: list[Answer | int] = []
        for at in range(0, 5 * rounds, 5):
            expected += [Answer(WRITTEN, at), Answer(WRITTEN, at + 2), WRITTEN]
        assert answered == expected


@in_loop
async def test_a_thousand_markers_in_one_request(own_target: Cluster, topic_name: str) -> None:
    async with probing(own_target.bootstrap, topic_name) as probe:
        assert await mark(probe, *range(1000)) == WRITTEN
        assert await mark(probe, *[999] * 1000) == WRITTEN
        assert await probe.ends() == (2000, 2000, 2000)


@in_loop
async def test_a_broker_of_this_version_speaks_both(own_target: Cluster, topic_name: str) -> None:
    async with probing(own_target.bootstrap, topic_name) as probe:
        connection = await probe.leader()
        assert connection.versions.ranges[WRITE_TXN_MARKERS.key] == (1, 2)
        assert connection.version(PRODUCE) == PRODUCE.newest
