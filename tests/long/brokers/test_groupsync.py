"""Group sync between real brokers: who goes on at the target reads every record once, and nobody there is disturbed."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest
from acls import every_acl, put_acls
from brokerlogs import folders_of
from confluent_kafka import Consumer, KafkaError, Producer, ShareConsumer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from crashcut import crash_and_cut
from group_pairs import Offsets, Pair, commit_all, node_of, with_pair
from groupoffsets import commit
from helpers import make_topic, mirror_once, produce, settings_between, wait_for_markers
from oldbroker import OldBroker
from padded import trimmed as cut_before
from sparkless import run_once

from mirror.config import ClusterSettings
from mirror.errors import ExitCode
from mirror.groups.decide import Standing
from mirror.groups.gap import FURTHER, LOST_THERE, REKEYED, UNFOLLOWED_SHARE, UNFOLLOWED_STREAMS
from mirror.groups.side import Side
from mirror.groups.terms import Terms, preserved, uncut
from mirror.kafka.admin import Admin, Creation
from mirror.kafka.cluster import Cluster as Wire
from mirror.kafka.cluster import TopicPartition
from mirror.kafka.groups import (
    OFFSETS_TOPIC,
    Committed,
    ListedGroup,
    commit_offsets,
    coordinators,
    fetch_offsets,
    list_groups,
)
from mirror.lab.embedded import Cluster
from mirror.policy.rules import NO_LIMIT
from mirror.segments.cluster_logs import offsets_in

pytestmark = pytest.mark.brokers


@contextmanager
def consuming(bootstrap: str, group: str, topic: str, **more: str) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": "false",
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            **more,
        }
    )
    consumer.subscribe([topic])
    try:
        yield consumer
    finally:
        consumer.close()


def read_on(bootstrap: str, group: str, topic: str, count: int, **more: str) -> list[bytes]:
    """What a group reads from where it stands, `count` records, and commits."""
    with consuming(bootstrap, group, topic, **more) as consumer:
        found: list[bytes] = []
        while len(found) < count:
            message = consumer.poll(20)
            assert message is not None, f"{len(found)} of {count} records"
            assert message.error() is None, message.error()
            found.append(message.value() or b"")
        consumer.commit(asynchronous=False)
        return found


def at_the_end(bootstrap: str, group: str, topic: str) -> bool:
    """Whether nothing is left to read for the group."""
    with consuming(bootstrap, group, topic, **{"enable.partition.eof": "true"}) as consumer:
        message = consumer.poll(20)
        assert message is not None
        error = message.error()
        return error is not None and error.code() == KafkaError._PARTITION_EOF


def values(begin: int, end: int) -> list[bytes]:
    return [b"value %d" % number for number in range(begin, end)]


def transactions(bootstrap: str, topic: str, count: int) -> list[bytes]:
    """Committed and aborted transactions in turn, of three records each; the committed values."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(120)
    kept: list[bytes] = []
    for number in range(count):
        producer.begin_transaction()
        reported = [b"%d/%d" % (number, index) for index in range(3)]
        for value in reported:
            producer.produce(topic, value, partition=0)
        if number % 2:
            producer.flush(30)
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
            kept += reported
    wait_for_markers(bootstrap, topic)
    return kept


def plain(bootstrap: str, topic: str) -> list[bytes]:
    produce(bootstrap, topic, values(0, 40))
    return values(0, 40)


def transactional(bootstrap: str, topic: str) -> list[bytes]:
    return transactions(bootstrap, topic, 12)


def trimmed(bootstrap: str, topic: str) -> list[bytes]:
    produce(bootstrap, topic, values(0, 60))
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_records([Place(topic, 0, 17)])[Place(topic, 0)].result(20)
    return values(17, 60)


def mirrored(own_source: Cluster, own_target: Cluster, topic: str, count: int) -> tuple[str, str]:
    """A topic with some records that is mirrored as it is now; the addresses of source and target."""
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic)
    produce(source, topic, values(0, count))
    mirror_once(source, target, [topic], flow=topic)
    return source, target


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("offsets", ["preserve", "translate"])
@pytest.mark.parametrize("filled", [plain, transactional, trimmed], ids=lambda filled: filled.__name__)
def test_a_group_that_switches_reads_every_record_once(
    own_source: Cluster,
    own_target: Cluster,
    topic_name: str,
    filled: Callable[[str, str], list[bytes]],
    offsets: str,
    protocol: str,
) -> None:
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name)
    records = filled(source, topic_name)
    spoken = {"group.protocol": protocol}
    seen = read_on(source, topic_name, topic_name, 7, **spoken, **{"auto.offset.reset": "earliest"})
    mirror_once(source, target, [topic_name], flow=topic_name, offsets=offsets)
    journal_of = topic_name if offsets == "translate" else ""

    async def story(pair: Pair) -> None:
        assert await pair.standings() == {"synced": 1}
        assert (await pair.sync_once()).committed == 0

    with_pair(source, target, topic_name, story, journal_of=journal_of)
    seen += read_on(target, topic_name, topic_name, 5, **spoken)

    async def left_alone(pair: Pair) -> None:
        before = await pair.committed(pair.target, topic_name)
        assert await pair.standings() == {"ahead": 1}
        assert await pair.committed(pair.target, topic_name) == before

    with_pair(source, target, topic_name, left_alone, journal_of=journal_of)
    seen += read_on(target, topic_name, topic_name, len(records) - 12, **spoken)
    assert seen == records
    assert at_the_end(target, topic_name, topic_name)


def test_what_did_not_move_is_committed_again_before_a_broker_forgets_it(
    own_source: Cluster, own_target: Cluster, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not what the group has read on the target beyond that."""
    source, target = mirrored(own_source, own_target, topic_name, 20)

    async def story(pair: Pair) -> None:
        at = TopicPartition(topic_name, 0)
        await pair.commit(pair.source, topic_name, topic_name, 10, "of 10")
        assert await pair.standings() == {"synced": 1}
        assert (await pair.sync_once()).committed == 0
        assert (await pair.sync.sync_once(rehearsing=True, renewing=True)).committed == 0
        assert (await pair.sync.sync_once(renewing=True)).committed == 1
        assert await pair.committed(pair.target, topic_name) == {at: Committed(10, "of 10")}
        for seconds in ("WHOLE_SECONDS", "RENEWED_SECONDS"):
            monkeypatch.setattr(f"mirror.groups.sync.{seconds}", 0.0)
        assert (await pair.sync_once()).committed == 1
        await pair.commit(pair.target, topic_name, topic_name, 15, "read here")
        assert (await pair.sync_once()).committed == 0
        assert await pair.committed(pair.target, topic_name) == {at: Committed(15, "read here")}

    async def soon(pair: Pair) -> None:
        await pair.commit(pair.source, topic_name, topic_name, 15, "read here")
        assert [(await pair.sync_once()).committed for _ in range(2)] == [1, 0], "a process that lives for minutes"

    with_pair(source, target, topic_name, story)
    monkeypatch.setattr("mirror.groups.sync.RENEWED_SECONDS", 3600.0)
    with_pair(source, target, topic_name, soon)


def test_a_group_is_never_ahead_of_the_mirror(own_source: Cluster, own_target: Cluster, topic_name: str) -> None:
    source, target = mirrored(own_source, own_target, topic_name, 20)
    produce(source, topic_name, values(20, 50))

    async def story(pair: Pair) -> None:
        at = TopicPartition(topic_name, 0)
        await pair.commit(pair.source, topic_name, topic_name, 35, "of 35")
        assert await pair.standings() == {"held_back": 1}
        assert await pair.committed(pair.target, topic_name) == {at: Committed(20)}
        assert (await pair.sync_once()).committed == 0
        assert await pair.sync.left_behind() == [], "it is as far as the copy goes"
        await asyncio.to_thread(mirror_once, source, target, [topic_name], flow=topic_name)
        assert await pair.standings() == {"synced": 1}
        assert await pair.committed(pair.target, topic_name) == {at: Committed(35, "of 35")}
        pair.unsound.add(at)
        await pair.commit(pair.source, topic_name, topic_name, 45)
        assert await pair.standings() == {"held_back": 1}
        assert await pair.sync.left_behind() == [f"group {topic_name} stays behind (held_back)"]

    with_pair(source, target, topic_name, story)


def test_a_bounded_copy_names_groups_that_stay_behind_though_nothing_is_in_the_way(
    own_source: Cluster, own_target: Cluster, topic_name: str
) -> None:
    """One with members on the target reads again what it had read on the source; once it has read on, it is not."""
    source, target = mirrored(own_source, own_target, topic_name, 50)
    settings = settings_between(source, target, [topic_name], flow=topic_name)
    groups = settings.groups.model_validate({"include": [f"{topic_name}.*"]})
    settings = settings.model_copy(update={"groups": groups})

    commit(source, topic_name, topic_name, 10)
    assert run_once(settings).exit_code == ExitCode.DONE
    with consuming(target, topic_name, topic_name) as consumer:
        assert consumer.poll(20)
        commit(source, topic_name, topic_name, 30)
        found = run_once(settings)
        assert found.exit_code == ExitCode.CLUSTER
        assert f"do not follow: group {topic_name} stays behind (active) (" in found.incomplete
        consumer.commit(offsets=[Place(topic_name, 0, 40)], asynchronous=False)
        found = run_once(settings)
        assert (found.exit_code, found.incomplete) == (ExitCode.DONE, "")


def test_a_group_waits_for_where_its_offset_moved_to(own_source: Cluster, own_target: Cluster, topic_name: str) -> None:
    """The journal names it while the target is asked: what was translated without it is not believed."""
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name)
    produce(source, topic_name, values(0, 20))
    mirror_once(source, target, [topic_name], flow=topic_name, offsets="translate")

    async def story(pair: Pair) -> None:
        at = TopicPartition(topic_name, 0)
        indexes, ask = cast(Any, pair.sync._known_until).__self__, Side.fetched
        reported = dict(indexes)

        async def answered(side: Side, nodes: Mapping[str, int]) -> dict[str, Offsets]:
            found = await ask(side, nodes)
            indexes.clear()
            indexes.update(reported if side is pair.sync._target else {})
            return found

        await pair.commit(pair.source, topic_name, topic_name, 14)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Side, "fetched", answered)
            assert await pair.standings() == {"held_back": 1}
        assert await pair.committed(pair.target, topic_name) == {at: Committed(0)}
        assert await pair.standings() == {"synced": 1}
        assert await pair.committed(pair.target, topic_name) == {at: Committed(14)}

    with_pair(source, target, topic_name, story, journal_of=topic_name)


def test_a_group_that_was_put_back_is_put_back_there_too(
    own_source: Cluster, own_target: Cluster, topic_name: str
) -> None:
    source, target = mirrored(own_source, own_target, topic_name, 50)

    async def story(pair: Pair) -> None:
        async def offset() -> int:
            return (await pair.committed(pair.target, topic_name))[TopicPartition(topic_name, 0)].offset

        for wanted in (40, 10, 30, 0):
            await pair.commit(pair.source, topic_name, topic_name, wanted)
            assert await pair.standings() == {"synced": 1}
            assert await offset() == wanted
        await pair.commit(pair.source, topic_name, topic_name, 20)
        await pair.sync_once()
        await pair.commit(pair.target, topic_name, topic_name, 25)
        await pair.commit(pair.source, topic_name, topic_name, 15)
        assert await pair.standings() == {"ahead": 1}
        assert await offset() == 25, "somebody else has moved it: it is theirs"

    with_pair(source, target, topic_name, story)


@pytest.mark.parametrize("offset", [3, 48], ids=["back", "forward"])
def test_a_group_is_not_moved_by_a_source_topic_made_anew(
    own_source: Cluster, own_target: Cluster, topic_name: str, offset: int
) -> None:
    """Whether or not the tasks have noticed: its offsets mean records that the copy does not hold."""
    source, target = mirrored(own_source, own_target, topic_name, 50)

    async def story(pair: Pair) -> None:
        await pair.commit(pair.source, topic_name, topic_name, 40)
        assert await pair.standings() == {"synced": 1}
        await asyncio.to_thread(make_anew, source, topic_name, 50)
        await pair.commit(pair.source, topic_name, topic_name, offset)
        result = await pair.sync_once()
        assert [blocker.cause for blocker in result.blockers] == [
            f"cluster us: offsets of {topic_name} stay: its source topic is gone or another one"
        ]
        assert result.standings == {Standing.BLOCKED: 1}
        assert await pair.committed(pair.target, topic_name) == {TopicPartition(topic_name, 0): Committed(40)}

    with_pair(source, target, topic_name, story)


def test_a_group_is_not_moved_in_a_target_topic_made_anew(
    own_source: Cluster, own_target: Cluster, topic_name: str
) -> None:
    """It is somebody else's, as all are where the target's address leads to another cluster."""
    source, target = mirrored(own_source, own_target, topic_name, 50)

    async def story(pair: Pair) -> None:
        await pair.commit(pair.source, topic_name, topic_name, 40)
        await asyncio.to_thread(make_anew, target, topic_name, 50)
        await pair.commit(pair.target, topic_name, topic_name, 5)
        result = await pair.sync_once()
        assert [blocker.cause for blocker in result.blockers] == [
            f"cluster us: offsets of {topic_name} stay: it is gone, or another one than was mirrored to"
        ]
        assert await pair.committed(pair.target, topic_name) == {TopicPartition(topic_name, 0): Committed(5)}

    with_pair(source, target, topic_name, story)


def make_anew(bootstrap: str, topic: str, records: int) -> None:
    """Delete a topic, and make another one of that name with so many records; returns when the broker knows."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(20)
    while topic in admin.list_topics(timeout=20).topics:
        time.sleep(0.02)
    make_topic(bootstrap, topic)
    produce(bootstrap, topic, [b"another"] * records)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_with_members_at_the_target_is_left_alone(
    own_source: Cluster, own_target: Cluster, topic_name: str, protocol: str
) -> None:
    source, target = mirrored(own_source, own_target, topic_name, 50)

    async def story(pair: Pair) -> None:
        await pair.commit(pair.source, topic_name, topic_name, 10)
        assert await pair.standings() == {"synced": 1}
        with consuming(target, topic_name, topic_name, **{"group.protocol": protocol}) as consumer:
            assert await asyncio.to_thread(consumer.poll, 20)
            await pair.commit(pair.source, topic_name, topic_name, 30)
            assert await pair.standings() == {"active": 1}
            assert await pair.sync.left_behind() == [f"group {topic_name} stays behind (active)"]
            refused = await commit_offsets(
                pair.target,
                await node_of(pair.target, topic_name),
                {topic_name: {TopicPartition(topic_name, 0): Committed(30)}},
            )
            assert [refusal.code for refusal in refused] == [25], "the broker sees to it as well"
            assert await pair.committed(pair.target, topic_name) == {TopicPartition(topic_name, 0): Committed(10)}
        assert await pair.standings() == {"synced": 1}
        assert await pair.committed(pair.target, topic_name) == {TopicPartition(topic_name, 0): Committed(30)}

    with_pair(source, target, topic_name, story)


def test_only_mirrored_partitions_under_their_names_on_the_target(
    own_source: Cluster, own_target: Cluster, topic_name: str
) -> None:
    source, target = own_source.bootstrap, own_target.bootstrap
    other = f"{topic_name}-other"
    for name in (topic_name, other):
        make_topic(source, name)
        produce(source, name, values(0, 10))
    mirror_once(source, target, [topic_name], flow=topic_name, naming={"prefix": "eu."})

    async def story(pair: Pair) -> None:
        for name in (topic_name, other):
            await pair.commit(pair.source, topic_name, name, 5)
        await pair.commit(pair.source, f"{topic_name}-elsewhere", other, 5)
        assert await pair.standings() == {"synced": 1}
        assert await pair.committed(pair.target, topic_name) == {TopicPartition(f"eu.{topic_name}", 0): Committed(5)}
        assert await pair.committed(pair.target, f"{topic_name}-elsewhere") == {}

    with_pair(source, target, {topic_name: f"eu.{topic_name}"}, story)


def test_an_empty_partition_and_one_that_nobody_vouches_for(
    own_source: Cluster, own_target: Cluster, topic_name: str
) -> None:
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name)
    make_topic(target, topic_name)

    async def story(pair: Pair) -> None:
        at = TopicPartition(topic_name, 0)
        await pair.commit(pair.source, topic_name, topic_name, 0, "none yet")
        pair.unsound.add(at)
        assert await pair.standings() == {"held_back": 1}
        assert await pair.committed(pair.target, topic_name) == {}
        assert await pair.sync.left_behind() == [], "there is nothing to read again"
        pair.unsound.clear()
        assert await pair.standings() == {"synced": 1}
        assert await pair.committed(pair.target, topic_name) == {at: Committed(0, "none yet")}
        pair.unsound.add(at)
        assert await pair.standings() == {"held_back": 1}, "nobody follows it any more"
        assert await pair.sync.left_behind() == [], "it stands where it should"

    with_pair(source, target, topic_name, story)


def test_a_group_deleted_on_the_source_stays_on_the_target(
    own_source: Cluster, own_target: Cluster, topic_name: str
) -> None:
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name)
    make_topic(target, topic_name)

    async def story(pair: Pair) -> None:
        await pair.commit(pair.source, topic_name, topic_name, 0)
        assert await pair.standings() == {"synced": 1}
        admin = AdminClient({"bootstrap.servers": source})
        admin.delete_consumer_groups([topic_name])[topic_name].result(20)
        assert await pair.standings() == {}
        assert await pair.committed(pair.target, topic_name) == {TopicPartition(topic_name, 0): Committed(0)}

    with_pair(source, target, topic_name, story)


def test_two_thousand_groups(own_source: Cluster, own_target: Cluster, topic_name: str) -> None:
    source, target = mirrored(own_source, own_target, topic_name, 10)
    groups = [f"{topic_name}-{number}" for number in range(2000)]
    at = TopicPartition(topic_name, 0)

    async def story(pair: Pair) -> None:
        await commit_all(pair.source, groups, {at: Committed(3)})
        await node_of(pair.target, topic_name)
        for item, committed in (("all anew", 2000), ("nothing has changed", 0), ("two have changed", 2)):
            if committed == 2:
                await commit_all(pair.source, groups[:2], {at: Committed(4)})
            began, busy = time.monotonic(), time.process_time()
            result = await pair.sync_once()
            print(f"{item}: {time.monotonic() - began:.2f} s, {time.process_time() - busy:.2f} CPU-s")
            assert (result.standings, result.committed) == ({Standing.SYNCED: 2000}, committed)
        node = await node_of(pair.target, topic_name)
        found = (await fetch_offsets(pair.target, node, groups)).offsets
        assert [found[group][at].offset for group in groups] == [4, 4, *[3] * 1998]

    with_pair(source, target, topic_name, story)


def test_a_source_of_kafka_2_8(old_broker: OldBroker, own_target: Cluster, topic_name: str) -> None:
    old_broker.make_topic(topic_name, 2)
    produce(old_broker.bootstrap, topic_name, values(0, 10))
    mirror_once(old_broker.bootstrap, own_target.bootstrap, [topic_name], flow=topic_name)
    groups = [f"{topic_name}-{number}" for number in range(100)]
    at = TopicPartition(topic_name, 0)

    async def story(pair: Pair) -> None:
        await commit_all(pair.source, groups, {at: Committed(3, "x")})
        assert await pair.standings() == {"synced": 100}
        found = await fetch_offsets(pair.target, await node_of(pair.target, topic_name), groups)
        assert all(offsets == {at: Committed(3, "x")} for offsets in found.offsets.values())

    with_pair(old_broker.bootstrap, own_target.bootstrap, topic_name, story)


def test_a_long_text_is_given_up_and_the_offset_kept(own_source: Cluster, topic_name: str) -> None:
    make_topic(own_source.bootstrap, topic_name)
    with Cluster.start(name="terse", config={"offset.metadata.max.bytes": 10}) as target:
        make_topic(target.bootstrap, topic_name)

        async def story(pair: Pair) -> None:
            await pair.commit(pair.source, topic_name, topic_name, 0, "more than ten bytes")
            assert await pair.standings() == {"synced": 1}
            assert await pair.committed(pair.target, topic_name) == {TopicPartition(topic_name, 0): Committed(0)}
            assert (await pair.sync_once()).committed == 0, "the broker is not asked again"

        with_pair(own_source.bootstrap, target.bootstrap, topic_name, story)


def test_coordinators_that_move(own_source: Cluster, topic_name: str) -> None:
    """Three brokers share the groups; one dies, and its groups find another."""
    make_topic(own_source.bootstrap, topic_name)
    groups = [f"{topic_name}-{number}" for number in range(40)]
    at = TopicPartition(topic_name, 0)
    with Cluster.start(nodes=3, name="three") as target:
        admin = Admin(ClusterSettings.model_validate({"alias": "us", "bootstrap.servers": target.bootstrap}))
        assert not admin.create_topics([Creation(topic=topic_name, partitions=1, replication_factor=3)])

        async def story(pair: Pair) -> None:
            await commit_all(pair.source, groups, {at: Committed(0, "first")})
            assert await pair.standings() == {"synced": 40}
            nodes = (await coordinators(pair.target, pair.target.nodes[0], groups)).nodes
            assert len(set(nodes.values())) == 3
            await asyncio.to_thread(target.kill, 2)
            await commit_all(pair.source, groups, {at: Committed(0, "second")})
            result = await pair.sync.sync_once()
            assert not result.is_complete
            assert await pair.standings() == {"synced": 40}
            for group in groups:
                assert await pair.committed(pair.target, group) == {at: Committed(0, "second")}

        with_pair(own_source.bootstrap, target.bootstrap, topic_name, story)


def test_groups_that_read_what_the_target_lost(own_source: Cluster, topic_name: str) -> None:
    """Where offsets moved they stand at those of other records, and are put back by a mirror that starts then; but for
    those that read on there since.
    """
    source, at = own_source.bootstrap, TopicPartition(topic_name, 0)
    make_topic(source, topic_name)
    produce(source, topic_name, values(0, 100))
    standing, reading, active = (f"{topic_name}-{name}" for name in ("standing", "reading", "active"))
    with Cluster.start(name="loses") as cluster:
        target = cluster.bootstrap
        copy = partial(mirror_once, source, target, [topic_name], flow=topic_name, offsets="translate")
        between = partial(with_pair, source, target, topic_name, journal_of=topic_name)

        async def read_all(pair: Pair) -> None:
            await commit_all(pair.source, [standing, reading, active], {at: Committed(100)})
            assert await pair.standings() == {"synced": 3}

        async def read_on(pair: Pair) -> None:
            consumer = Consumer({"bootstrap.servers": target, "group.id": reading})
            here = Place(topic_name, 0, 84, leader_epoch=pair.target.leader(at).epoch)
            await asyncio.to_thread(consumer.commit, offsets=[here], asynchronous=False)
            await asyncio.to_thread(consumer.close)
            with consuming(target, active, topic_name) as consumer:
                assert await asyncio.to_thread(consumer.poll, 20)
                found = await pair.sync_once()
                assert found.standings == {Standing.SYNCED: 1, Standing.AHEAD: 1, Standing.ACTIVE: 1}
                assert {there: cut.groups for there, cut in found.cuts.items()} == {at: frozenset({active})}
                gaps, _ = await pair.sync.gaps({}, {at: 130}, {})
                assert [(gap.group, gap.misses, gap.cause) for gap in gaps] == [
                    (active, 20, LOST_THERE.format(80)),
                    (reading, 4, FURTHER),
                ]
            await pair.commit(pair.target, active, topic_name, 80)
            gaps, _ = await pair.sync.gaps({}, {at: 130}, {})
            assert [gap.group for gap in gaps] == [reading]
            assert await pair.committed(pair.target, standing) == {at: Committed(80)}
            assert await pair.standings() == {"synced": 2, "ahead": 1}

        copy()
        between(read_all)
        cut_before(own_source, topic_name, 70)
        crash_and_cut(cluster, topic_name, below=50)
        copy(on_data_loss="continue")
        produce(source, topic_name, values(100, 130))
        copy()
        between(read_on)


GUARDED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


def test_missing_rights_are_named_and_granted_later(own_target: Cluster, topic_name: str) -> None:
    """On one side or the other; groups that may be followed are."""
    other = own_target.bootstrap
    free, denied = f"{topic_name}-free", f"{topic_name}-denied"
    with Cluster.start(name="guarded", config=GUARDED) as guarded:
        for bootstrap in (guarded.bootstrap, other):
            make_topic(bootstrap, topic_name)
        admin = AdminClient({"bootstrap.servers": guarded.bootstrap})

        def right(operation: AclOperation, principal: str = "User:ANONYMOUS") -> AclBinding:
            return AclBinding(
                ResourceType.GROUP,
                denied,
                ResourcePatternType.LITERAL,
                principal,
                "*",
                operation,
                AclPermissionType.ALLOW,
            )

        def grant(*operations: AclOperation) -> None:
            made_for = [right(AclOperation.READ, "User:somebody"), *map(right, operations)]  # then others have none
            put_acls(admin, every_acl(ResourceType.GROUP, denied), made_for)

        async def blocked(pair: Pair, *causes: str) -> None:
            """A change of rights reaches the broker a moment later."""
            deadline = time.monotonic() + 20
            wanted = {(cause, denied) for cause in causes}
            result = await pair.sync_once()
            while {(one.cause, one.group) for one in result.blockers} != wanted:
                assert time.monotonic() < deadline, result
                result = await pair.sync_once()
            assert result.standings == ({Standing.SYNCED: 1, Standing.BLOCKED: 1} if causes else {Standing.SYNCED: 2})

        async def as_target(pair: Pair) -> None:
            for group in (free, denied):
                await pair.commit(pair.source, group, topic_name, 0)
            for granted in ((), (AclOperation.DESCRIBE,)):
                await asyncio.to_thread(grant, *granted)
                await blocked(pair, "cluster us: grant READ on the group")
            await asyncio.to_thread(grant, AclOperation.READ)
            await blocked(pair)
            assert await pair.committed(pair.target, denied) == {TopicPartition(topic_name, 0): Committed(0)}

        async def as_source(pair: Pair) -> None:
            for group in (free, denied):
                await pair.commit(pair.source, group, topic_name, 0)
            pair.sync.include = (re.compile(re.escape(free)), re.compile(denied))
            await blocked(pair)
            await asyncio.to_thread(grant)
            await blocked(pair, "cluster eu: grant DESCRIBE on the group")

        with_pair(other, guarded.bootstrap, topic_name, as_target)
        with_pair(guarded.bootstrap, other, topic_name, as_source)


def test_a_share_group_is_named_where_nobody_follows_it(
    own_source: Cluster, own_target: Cluster, topic_name: str
) -> None:
    """It would begin at the log's end there, by default, and pass over what nobody has got yet."""
    source, target, topic, group = own_source.bootstrap, own_target.bootstrap, topic_name, f"{topic_name}.share"
    make_topic(source, topic)
    consumer = ShareConsumer({"bootstrap.servers": source, "group.id": group})
    consumer.subscribe([topic])
    got, deadline = 0, time.monotonic() + 60
    while not got:
        assert time.monotonic() < deadline, "the share group got nothing"
        produce(source, topic, values(0, 10))
        got = len(list(consumer.poll(1.0) or ()))
    consumer.close()
    stored = offsets_in(folders_of(own_source, OFFSETS_TOPIC)).share[group]
    admin = Admin(ClusterSettings.model_validate({"alias": "eu", "bootstrap.servers": source}))
    assert stored == {topic: admin.describe([topic])[topic].topic_id}, "as a restore reads it from its disk"
    mirror_once(source, target, [topic])

    async def story(pair: Pair) -> None:
        await pair.sync_once()
        gaps, blockers = await pair.sync.gaps({}, {}, {})
        assert not [one for one in blockers if not one.passing]
        assert [(one.group, one.topic, one.partition, one.reached) for one in gaps] == [(group, topic, 0, None)]
        assert gaps[0].cause == UNFOLLOWED_SHARE
        pair.sync.mirrors(Terms(preserved({}), {}, lambda _: NO_LIMIT, {}, {}, uncut))
        (gap,), _ = await pair.sync.gaps({}, {}, {}, {topic: f"{topic}.by-key"})
        assert (gap.group, gap.topic, gap.target_topic, gap.reached) == (group, topic, f"{topic}.by-key", None)
        assert gap.cause == REKEYED

    with_pair(source, target, topic, story)


def test_a_streams_group_is_named_until_it_is_put_where_it_stands(
    own_source: Cluster, own_target: Cluster, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is committed from outside for a group that is not there makes a classic group of the name, in whose place
    the application's own comes.
    """
    source, target = mirrored(own_source, own_target, topic_name, 10)

    async def listed(cluster: Wire, node: int) -> list[ListedGroup]:
        groups = await list_groups(cluster, node)
        return [replace(one, kind="Streams") for one in groups] if cluster.endpoint.alias == "eu" else groups

    monkeypatch.setattr("mirror.groups.side.list_groups", listed)

    async def story(pair: Pair) -> None:
        await pair.commit(pair.source, topic_name, topic_name, 7)
        for reached, reads_again in ((None, 7), (5, 2)):
            if reached is not None:
                await pair.commit(pair.target, topic_name, topic_name, reached)
            await pair.sync_once()
            gaps, _ = await pair.sync.gaps({}, {}, {})
            assert [(gap.group, gap.reached, gap.reads_again) for gap in gaps] == [(topic_name, reached, reads_again)]
            assert gaps[0].cause == UNFOLLOWED_STREAMS
        await pair.commit(pair.target, topic_name, topic_name, 7)
        gaps, blockers = await pair.sync.gaps({}, {}, {})
        assert (gaps, [one for one in blockers if not one.passing]) == ([], [])

    with_pair(source, target, topic_name, story)


def test_a_group_that_moves_while_a_failover_is_rehearsed_is_not_named_for_that(
    own_source: Cluster, own_target: Cluster, topic_name: str
) -> None:
    """A mirror that runs follows it meanwhile, and copies what it has read."""
    source, target = mirrored(own_source, own_target, topic_name, 40)
    produce(source, topic_name, values(40, 50))
    reading, fast, ahead = (f"{topic_name}-{kind}" for kind in ("reading", "fast", "ahead"))

    async def story(pair: Pair) -> None:
        async def named() -> list[tuple[str, int, int]]:
            gaps, _ = await pair.sync.gaps(rehearsed.stood, {}, {})
            return [(gap.group, gap.reads_again, gap.misses) for gap in gaps]

        for group, offset in ((reading, 10), (fast, 45), (ahead, 10)):
            await pair.commit(pair.source, group, topic_name, offset)
        await pair.commit(pair.target, ahead, topic_name, 30)
        while not (rehearsed := await pair.sync.sync_once(rehearsing=True)).is_complete:
            await asyncio.sleep(0.05)
        assert await named() == [(ahead, 0, 20), (fast, 0, 0)]
        for cluster, offset in ((pair.target, 15), (pair.source, 20)):
            await pair.commit(cluster, reading, topic_name, offset)
        await asyncio.to_thread(mirror_once, source, target, [topic_name], flow=topic_name)
        assert await named() == [(ahead, 0, 20)]
        gaps, _ = await pair.sync.gaps({}, {}, {})
        assert [(gap.group, gap.reads_again) for gap in gaps] == [(ahead, 0), (fast, 45), (reading, 5)], "a failover"

    with_pair(source, target, topic_name, story)
