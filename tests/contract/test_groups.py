"""Consumer groups follow: who goes on at the target reads every record once, and nobody there is disturbed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from confluent_kafka import ShareConsumer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient
from failovers import Flow, values
from group_pairs import Pair, commit_all, node_of, with_pair
from groupoffsets import commit, consuming, read_on
from helpers import make_topic, mirror_once, produce
from pair import Shared
from syncing import delete_topics
from topicadmin import delete_records
from transactional import transactions
from waiting import DEADLINE_S, MovableClock, until

from mirror.errors import ExitCode
from mirror.groups.decide import GroupStanding
from mirror.groups.gap import UNFOLLOWED_SHARE, UNFOLLOWED_STREAMS
from mirror.groups.sync import RENEWED_SECONDS, WHOLE_SECONDS
from mirror.kafka.cluster import Cluster, TopicPartition
from mirror.kafka.groups import Committed, ListedGroup, commit_offsets, list_groups


@pytest.fixture
def at(topic_name: str) -> TopicPartition:
    """The one partition of the test's topic."""
    return TopicPartition(topic_name, 0)


def mirrored(source: Shared, target: Shared, topic: str, count: int) -> tuple[str, str]:
    """Mirror a topic with so many records; the addresses of source and target."""
    make_topic(source.bootstrap, topic)
    produce(source.bootstrap, topic, values(count))
    mirror_once(source.bootstrap, target.bootstrap, [topic], flow=topic)
    return source.bootstrap, target.bootstrap


def plain(bootstrap: str, topic: str) -> list[bytes]:
    produce(bootstrap, topic, values(40))
    return values(40)


def transactional(bootstrap: str, topic: str) -> list[bytes]:
    transactions(bootstrap, topic, [True, False, False, True, True])
    return [b" %d %d 1" % (number, index) for number in (0, 3, 4) for index in range(5)]


def begins_late(bootstrap: str, topic: str) -> list[bytes]:
    produce(bootstrap, topic, values(60))
    delete_records(bootstrap, topic, 17)
    return values(43, begin=17)


@pytest.mark.proves("exactly-once", "same-offsets")
@pytest.mark.parametrize(
    ("filled", "offsets", "protocol"),
    [
        (plain, "preserve", "classic"),
        (transactional, "preserve", "consumer"),
        (transactional, "translate", "classic"),
        (begins_late, "translate", "consumer"),
    ],
)
def test_a_group_that_switches_reads_every_record_once(
    source_cluster: Shared,
    target_cluster: Shared,
    topic_name: str,
    filled: Callable[[str, str], list[bytes]],
    offsets: str,
    protocol: str,
) -> None:
    source, target = source_cluster.bootstrap, target_cluster.bootstrap
    make_topic(source, topic_name)
    records = filled(source, topic_name)
    spoken = {"group.protocol": protocol}
    seen = read_on(source, topic_name, topic_name, 7, **spoken, **{"auto.offset.reset": "earliest"})
    mirror_once(source, target, [topic_name], flow=topic_name, offsets=offsets)
    journal_of = topic_name if offsets == "translate" else ""

    async def follows(pair: Pair) -> None:
        assert await pair.standings() == {"synced": 1}
        assert (await pair.sync_once()).committed == 0

    async def left_alone(pair: Pair) -> None:
        before = await pair.committed(pair.target, topic_name)
        assert await pair.standings() == {"ahead": 1}
        assert await pair.committed(pair.target, topic_name) == before

    with_pair(source, target, topic_name, follows, journal_of=journal_of)
    seen += read_on(target, topic_name, topic_name, 5, **spoken)
    with_pair(source, target, topic_name, left_alone, journal_of=journal_of)
    seen += read_on(target, topic_name, topic_name, len(records) - 12, **spoken)
    assert seen == records


def test_what_did_not_move_is_committed_again_before_a_broker_forgets_it(
    source_cluster: Shared, target_cluster: Shared, topic_name: str, at: TopicPartition, clock: MovableClock
) -> None:
    """Not what the group has read on the target beyond that."""
    source, target = mirrored(source_cluster, target_cluster, topic_name, 20)

    async def story(pair: Pair) -> None:
        await pair.commit(pair.source, topic_name, topic_name, 10, "of 10")
        assert await pair.standings() == {"synced": 1}
        assert (await pair.sync_once()).committed == 0
        clock.move(WHOLE_SECONDS)  # a process that lives for minutes
        assert [(await pair.sync_once()).committed for _ in range(2)] == [1, 0]
        clock.move(RENEWED_SECONDS)
        assert [(await pair.sync_once()).committed for _ in range(2)] == [1, 0]
        assert (await pair.sync.sync_once(renewing=True)).committed == 1, "at the end of a bounded copy"
        assert await pair.committed(pair.target, topic_name) == {at: Committed(10, "of 10")}
        await pair.commit(pair.target, topic_name, topic_name, 15, "read here")
        clock.move(RENEWED_SECONDS)
        assert (await pair.sync_once()).committed == 0
        assert await pair.committed(pair.target, topic_name) == {at: Committed(15, "read here")}

    with_pair(source, target, topic_name, story)


@pytest.mark.proves("never-silent")
def test_a_group_is_never_ahead_of_the_mirror(
    source_cluster: Shared, target_cluster: Shared, topic_name: str, at: TopicPartition
) -> None:
    source, target = mirrored(source_cluster, target_cluster, topic_name, 20)
    produce(source, topic_name, values(30))

    async def story(pair: Pair) -> None:
        await pair.commit(pair.source, topic_name, topic_name, 35, "of 35")
        assert await pair.standings() == {"held_back": 1}
        assert await pair.committed(pair.target, topic_name) == {at: Committed(20)}
        assert await pair.sync.left_behind() == [], "it is as far as the copy goes"
        await asyncio.to_thread(mirror_once, source, target, [topic_name], flow=topic_name)
        assert await pair.standings() == {"synced": 1}
        assert await pair.committed(pair.target, topic_name) == {at: Committed(35, "of 35")}

    with_pair(source, target, topic_name, story)


@pytest.mark.proves("mirror run", "never-silent")
def test_a_bounded_copy_names_groups_that_stay_behind_for_their_members(
    source_cluster: Shared, target_cluster: Shared, topic_name: str
) -> None:
    """One with members on the target reads again what it had read on the source; once it has read on, it is not."""
    flow = Flow(source_cluster.bootstrap, target_cluster.bootstrap, topic_name)
    make_topic(flow.source, topic_name)
    produce(flow.source, topic_name, values(50))
    commit(flow.source, topic_name, topic_name, 10)
    flow.copies()
    with consuming(flow.target, topic_name, topic_name) as consumer:
        assert consumer.poll(DEADLINE_S)
        commit(flow.source, topic_name, topic_name, 30)
        found = flow.copy()
        assert found.exit_code == ExitCode.CLUSTER
        assert f"do not follow: group {topic_name} stays behind (active) (" in found.incomplete
        consumer.commit(offsets=[Place(topic_name, 0, 40)], asynchronous=False)
        flow.copies()


def test_a_group_that_was_put_back_is_put_back_there_too(
    source_cluster: Shared, target_cluster: Shared, topic_name: str, at: TopicPartition
) -> None:
    """Unless somebody else has moved it there; and one that is deleted on the source stays."""
    source, target = mirrored(source_cluster, target_cluster, topic_name, 50)

    async def story(pair: Pair) -> None:
        for wanted in (40, 10, 30, 0, 20):
            await pair.commit(pair.source, topic_name, topic_name, wanted)
            assert await pair.standings() == {"synced": 1}
            assert await pair.committed(pair.target, topic_name) == {at: Committed(wanted)}
        await pair.commit(pair.target, topic_name, topic_name, 25)
        await pair.commit(pair.source, topic_name, topic_name, 15)
        assert await pair.standings() == {"ahead": 1}
        admin = AdminClient({"bootstrap.servers": source})
        admin.delete_consumer_groups([topic_name])[topic_name].result(DEADLINE_S)
        assert await pair.standings() == {}
        assert await pair.committed(pair.target, topic_name) == {at: Committed(25)}

    with_pair(source, target, topic_name, story)


@pytest.mark.proves("nothing-by-name-alone")
@pytest.mark.parametrize(
    ("side", "cause"),
    [
        ("source", "its source topic is gone or another one"),
        ("target", "it is gone, or another one than was mirrored to"),
    ],
)
def test_a_group_is_not_moved_where_a_topic_was_made_anew(
    source_cluster: Shared, target_cluster: Shared, topic_name: str, at: TopicPartition, side: str, cause: str
) -> None:
    """Whether or not the tasks have noticed: its offsets mean records that the copy does not hold."""
    source, target = mirrored(source_cluster, target_cluster, topic_name, 50)
    address = source if side == "source" else target

    def make_anew() -> None:
        delete_topics(address, topic_name)
        make_topic(address, topic_name)
        produce(address, topic_name, [b"another"] * 50)

    async def story(pair: Pair) -> None:
        await pair.commit(pair.source, topic_name, topic_name, 40)
        assert await pair.standings() == {"synced": 1}
        await asyncio.to_thread(make_anew)
        await pair.commit(pair.source, topic_name, topic_name, 48)
        await pair.commit(pair.target, topic_name, topic_name, 5)
        result = await pair.sync_once()
        assert [one.cause for one in result.blockers] == [f"cluster us: offsets of {topic_name} stay: {cause}"]
        assert result.standings == {GroupStanding.BLOCKED: 1}
        assert await pair.committed(pair.target, topic_name) == {at: Committed(5)}

    with_pair(source, target, topic_name, story)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_with_members_at_the_target_is_left_alone(
    source_cluster: Shared, target_cluster: Shared, topic_name: str, at: TopicPartition, protocol: str
) -> None:
    source, target = mirrored(source_cluster, target_cluster, topic_name, 50)

    async def story(pair: Pair) -> None:
        await pair.commit(pair.source, topic_name, topic_name, 10)
        assert await pair.standings() == {"synced": 1}
        with consuming(target, topic_name, topic_name, **{"group.protocol": protocol}) as consumer:
            assert await asyncio.to_thread(consumer.poll, DEADLINE_S)
            await pair.commit(pair.source, topic_name, topic_name, 30)
            assert await pair.standings() == {"active": 1}
            wanted = {topic_name: {at: Committed(30)}}
            refused = await commit_offsets(pair.target, await node_of(pair.target, topic_name), wanted)
            assert [refusal.code for refusal in refused] == [25], "the broker sees to it as well"
            assert await pair.committed(pair.target, topic_name) == {at: Committed(10)}
        assert await pair.standings() == {"synced": 1}
        assert await pair.committed(pair.target, topic_name) == {at: Committed(30)}

    with_pair(source, target, topic_name, story)


def test_offsets_are_of_verified_copies_alone_under_their_names_on_the_target(
    source_cluster: Shared, target_cluster: Shared, topic_name: str, at: TopicPartition
) -> None:
    source, target = source_cluster.bootstrap, target_cluster.bootstrap
    empty, other, copy = f"{topic_name}-empty", f"{topic_name}-other", TopicPartition(f"eu.{topic_name}", 0)
    for name in (topic_name, empty, other):
        make_topic(source, name)
    produce(source, topic_name, values(10))
    mirror_once(source, target, [topic_name, empty], flow=topic_name, naming={"prefix": "eu."})

    async def story(pair: Pair) -> None:
        for name, offset in ((topic_name, 5), (empty, 0), (other, 0)):
            await commit_all(pair.source, [topic_name], {TopicPartition(name, 0): Committed(offset)})
        pair.unsound.add(at)
        assert await pair.standings() == {"held_back": 1}
        assert await pair.committed(pair.target, topic_name) == {TopicPartition(f"eu.{empty}", 0): Committed(0)}
        assert await pair.sync.left_behind() == [f"group {topic_name} stays behind (held_back)"]
        pair.unsound.clear()
        assert await pair.standings() == {"synced": 1}
        assert (await pair.committed(pair.target, topic_name))[copy] == Committed(5)
        pair.unsound.add(at)
        assert await pair.standings() == {"held_back": 1}, "nobody follows it any more"
        assert await pair.sync.left_behind() == [], "it stands where it should"

    with_pair(source, target, {topic_name: f"eu.{topic_name}", empty: f"eu.{empty}"}, story)


@pytest.mark.proves("never-silent")
def test_share_groups_and_streams_groups_are_named_until_they_are_put_where_they_stand(
    source_cluster: Shared, target_cluster: Shared, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A share group would begin at the log's end there, by default, and pass over what nobody has got yet."""
    source, target = mirrored(source_cluster, target_cluster, topic_name, 10)
    share, streams = f"{topic_name}.share", f"{topic_name}.streams"
    consumer = ShareConsumer({"bootstrap.servers": source, "group.id": share})
    consumer.subscribe([topic_name])

    def gets_records() -> bool:
        produce(source, topic_name, values(10))
        return bool(consumer.poll(1.0))

    until(gets_records)
    consumer.close()

    async def listed(cluster: Cluster, node: int) -> list[ListedGroup]:
        groups = await list_groups(cluster, node)
        of_streams = cluster.endpoint.alias == "eu"
        return [replace(one, kind="Streams") if of_streams and one.group == streams else one for one in groups]

    async def story(pair: Pair) -> None:
        await pair.commit(pair.source, streams, topic_name, 7)
        for reached, reads_again in ((None, 7), (5, 2)):
            if reached is not None:
                await pair.commit(pair.target, streams, topic_name, reached)
            await pair.sync_once()
            gaps, _ = await pair.sync.gaps({}, {}, {})
            assert [(one.group, one.reached, one.cause) for one in gaps] == [
                (share, None, UNFOLLOWED_SHARE),
                (streams, reached, UNFOLLOWED_STREAMS),
            ]
            assert gaps[1].reads_again == reads_again
        await pair.commit(pair.target, streams, topic_name, 7)
        gaps, _ = await pair.sync.gaps({}, {}, {})
        assert [one.group for one in gaps] == [share]

    monkeypatch.setattr("mirror.groups.side.list_groups", listed)
    with_pair(source, target, topic_name, story)
