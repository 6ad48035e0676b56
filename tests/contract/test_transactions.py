"""Transactions: seen together or never, one holder at a time, each batch once whatever is cut."""

from __future__ import annotations

import asyncio

import pytest
from copies import Pair
from faults.network import Network, Rule
from helpers import endpoint, make_topic, produce, stored_batches, wait_for_markers
from samerecords import read
from syncing import delete_topics
from transaction_story import made, seen, settled, transaction_story

from mirror.errors import ClusterUnreachable
from mirror.kafka.cluster import Cluster, TopicPartition
from mirror.kafka.protocol import ADD_PARTITIONS_TO_TXN, END_TXN, FIND_COORDINATOR, INIT_PRODUCER_ID, PRODUCE, Api
from mirror.kafka.transactions import Transaction
from mirror.records.header import CODECS
from mirror.records.rewrite import build
from mirror.records.rewrite import read as decoded


@pytest.mark.proves("exactly-once")
def test_a_transaction_is_seen_whole_or_never_and_has_one_holder(pair: Pair, topic_name: str) -> None:
    make_topic(pair[1], topic_name, 2)
    asyncio.run(transaction_story(pair[1], topic_name))


@pytest.mark.proves("nothing-by-name-alone", "exactly-once")
def test_what_a_topic_was_given_that_was_made_anew_is_not_committed(pair: Pair, topic_name: str) -> None:
    """An append finds the topic by its name."""
    at = TopicPartition(topic_name, 0)
    make_topic(pair[1], topic_name, 2)

    async def story() -> None:
        async with Cluster(endpoint(pair[1], "us")) as cluster:
            await cluster.refresh([topic_name])
            transaction = await Transaction.begin(cluster, topic_name)
            await transaction.join([at])
            await asyncio.to_thread(delete_topics, pair[1], topic_name)
            appending = asyncio.create_task(transaction.append({at: made(b"of the former one")}))
            await asyncio.to_thread(make_topic, pair[1], topic_name, 2)
            assert await appending == {at: 0}
            with pytest.raises(ClusterUnreachable, match=f"not committed, since topic {topic_name} was deleted"):
                await transaction.commit()
            await transaction.abort()
            await settled(cluster, topic_name)

    asyncio.run(story())
    assert asyncio.run(seen(pair[1], topic_name)) == [[], []]


@pytest.mark.proves("same-bytes")
def test_records_in_a_transaction_stay_the_bytes_that_the_source_stored(pair: Pair, topic_name: str) -> None:
    """Of every codec, and those of a batch that was cut."""
    at = TopicPartition(topic_name, 0)
    for bootstrap in pair:
        make_topic(bootstrap, topic_name)
    for codec in CODECS:
        produce(pair[0], topic_name, [b"value %d " % number * 9 for number in range(100)], batch=100, codec=codec)
    stored = stored_batches(pair[0], topic_name)
    sent = [*stored, build(decoded(stored[1]).rows(10, 60), 4)]

    async def story() -> None:
        async with Cluster(endpoint(pair[1], "us")) as cluster:
            transaction = await Transaction.begin(cluster, topic_name)
            await transaction.join([at])
            for raw in sent:
                await transaction.append({at: raw})
            await transaction.commit()

    asyncio.run(story())
    wait_for_markers(pair[1], topic_name)
    *landed, marker = stored_batches(pair[1], topic_name)
    assert marker.header.is_control
    assert [bytes(raw.records) for raw in landed] == [bytes(raw.records) for raw in sent]
    assert [raw.header.codec for raw in landed] == [0, 1, 2, 3, 4, 4]
    assert [raw.header.base_sequence for raw in landed] == [0, 100, 200, 300, 400, 500]
    assert all(raw.header.is_transactional for raw in landed)
    values = [one[4] for one in read(pair[0], topic_name, 0)]
    assert [one[4] for one in read(pair[1], topic_name, 0)] == [*values, *values[110:160]]


@pytest.mark.proves("exactly-once")
@pytest.mark.parametrize(
    "apis",
    [[PRODUCE] * 3, [END_TXN] * 2, [INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN, FIND_COORDINATOR]],
    ids=["produce", "end", "begin"],
)
def test_what_was_cut_is_repeated_and_lands_once(pair: Pair, topic_name: str, apis: list[Api]) -> None:
    one, other = TopicPartition(topic_name, 0), TopicPartition(topic_name, 1)
    make_topic(pair[1], topic_name, 2)

    async def story(through: str) -> None:
        async with Cluster(endpoint(through, "us")) as cluster:
            transaction = await Transaction.begin(cluster, topic_name)
            await transaction.join([one, other])
            assert await transaction.append({one: made(b"a", b"b"), other: made(b"x")}) == {one: 0, other: 0}
            assert await transaction.append({one: made(b"c"), other: made(b"y")}) == {one: 2, other: 1}
            await transaction.commit()
            await settled(cluster, topic_name)

    rules = [Rule("cut-after", api.key, 1) for api in apis]
    with Network(pair[1]) as network:
        network.disturb(*rules)
        asyncio.run(story(network.bootstrap))
    assert all(rule.fired for rule in rules)
    assert asyncio.run(seen(pair[1], topic_name)) == [[b"a", b"b", b"c"], [b"x", b"y"]]
    assert [raw.header.next_offset for raw in stored_batches(pair[1], topic_name)] == [2, 3, 4]
