"""What brokers keep in logs of their own: topics and settings in the metadata log, and offsets of groups."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from brokerlogs import metadata_record, offset_key, offset_value, partition_record
from hypothesis import given
from hypothesis import strategies as st
from rawbatches import batch
from recordoracle import Record, encoded
from replicas import ABORT, COMMIT, TOPIC_ID, flipped, marker, replica

from mirror.commands.restore import scan_folders
from mirror.errors import BadRecords
from mirror.kafka.cluster import TopicPartition
from mirror.kafka.groups import Committed
from mirror.records.header import CONTROL, TRANSACTIONAL
from mirror.segments.broker_messages import (
    TOPIC_RESOURCE,
    AbortTransactionRecord,
    BeginTransactionRecord,
    Commit,
    ConfigRecord,
    EndTransactionRecord,
    PartitionChangeRecord,
    PartitionRecord1,
    RemoveTopicRecord,
    TopicRecord,
    decode,
    decode_key,
    decode_value,
)
from mirror.segments.cluster_logs import METADATA, ClusterTopics, offsets_in, topics_in

IDS = [UUID(int=number) for number in range(1001, 1005)]
names, ids = st.sampled_from(["orders", "clicks", "zoë"]), st.sampled_from(IDS)
replicas = st.lists(st.integers(0, 2**31 - 1), max_size=4, unique=True).map(tuple)
numbers, epochs, folders = st.integers(0, 5), st.integers(0, 2**31 - 1), st.lists(ids, max_size=4).map(tuple)
lists, maybe = (replicas,) * 4, st.none() | replicas
values = st.none() | st.text(max_size=200)
messages: st.SearchStrategy[Any] = st.one_of(
    st.builds(TopicRecord, names, ids),
    st.builds(PartitionRecord1, numbers, ids, *lists, epochs, epochs, epochs, maybe, folders),
    st.builds(PartitionChangeRecord, numbers, ids, maybe, st.sampled_from([-2, -1, 3]), maybe),
    st.builds(
        ConfigRecord, st.just(TOPIC_RESOURCE), names, st.sampled_from(["retention.ms", "cleanup.policy"]), values
    ),
    st.builds(RemoveTopicRecord, ids),
    st.sampled_from([BeginTransactionRecord(), EndTransactionRecord(), AbortTransactionRecord()]),
)
TRANSACTIONS = BeginTransactionRecord | EndTransactionRecord | AbortTransactionRecord


def setting(topic: str, name: str, value: str | None) -> ConfigRecord:
    return ConfigRecord(TOPIC_RESOURCE, topic, name, value)


@given(messages)
def test_a_message_is_read_as_it_was_written_and_not_when_it_is_cut(message: Any) -> None:
    stored = metadata_record(message)
    assert decode(stored) == message
    for size in range(len(stored)):
        with pytest.raises(BadRecords):
            decode(stored[:size])


@pytest.mark.parametrize(
    "stored",
    [
        b"\0\2\0\1",  # the frame of a preview
        b"\1\2\1" + metadata_record(TopicRecord("orders", IDS[0]))[3:],  # a version that is not known yet
        metadata_record(TopicRecord("orders", IDS[0])) + b"\0",
        b"\1\x04\0\2\x02\xff\1\0\0",  # no UTF-8
        b"\xff\xff\xff\xff\x7f",
    ],
)
def test_what_no_controller_wrote_is_refused(stored: bytes) -> None:
    with pytest.raises(BadRecords):
        decode(stored)


@given(st.lists(messages, max_size=30))
def test_a_replay_keeps_what_stands(log: Sequence[Any]) -> None:
    """Names and ids are those of the log, a removed id has no topic, and what a transaction took back left nothing."""
    cluster = ClusterTopics()
    for message in log:
        cluster.learn(message)
    assert not cluster.removed & {one.topic_id for one in cluster.topics.values()}
    aborted = ClusterTopics()
    inside = [one for one in log if not isinstance(one, TRANSACTIONS)]
    for message in [BeginTransactionRecord(), *inside, AbortTransactionRecord()]:
        aborted.learn(message)
    assert aborted == ClusterTopics()


def test_a_topic_that_is_made_again_has_no_setting_of_the_one_before() -> None:
    cluster = ClusterTopics()
    for message in (
        TopicRecord("orders", IDS[0]),
        setting("orders", "retention.ms", "1"),
        partition_record(IDS[0], 3),
        RemoveTopicRecord(IDS[0]),
        TopicRecord("orders", IDS[1]),
        partition_record(IDS[1], 0),
        BeginTransactionRecord(),
        setting("orders", "retention.ms", "2"),
    ):
        cluster.learn(message)
    assert (cluster.topics["orders"].partition_count, cluster.topics["orders"].configs) == (1, {})
    assert cluster.removed == {IDS[0]}
    cluster.learn(EndTransactionRecord())
    assert cluster.topics["orders"].configs == {"retention.ms": "2"}


def test_who_was_in_sync_is_known_with_the_leader_epoch() -> None:
    cluster = ClusterTopics()
    for message in (
        TopicRecord("orders", IDS[0]),
        partition_record(IDS[0], 0, (1, 2, 3), leader_epoch=4),
        PartitionChangeRecord(0, IDS[0], isr=(1, 2)),
        PartitionChangeRecord(0, IDS[0], isr=(2,), leader=2),
        PartitionChangeRecord(0, IDS[0], eligible=(1,)),
        PartitionChangeRecord(0, IDS[0], leader=-1),
        PartitionChangeRecord(1, IDS[0], isr=(9,)),
    ):
        cluster.learn(message)
    ((number, known),) = cluster.topics["orders"].partitions.items()
    assert (number, known.in_sync, known.leader_epoch) == (0, frozenset({1, 2}), 6)


@given(
    st.text(max_size=60),
    st.sampled_from(["orders", "clicks"]),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**63 - 1),
    st.text(max_size=60),
    st.integers(0, 4),
    st.none() | st.just(IDS[2]),
)
def test_an_offset_is_read_as_it_was_written(
    group: str, topic: str, partition: int, offset: int, text: str, version: int, topic_id: UUID | None
) -> None:
    key, value = offset_key(group, topic, partition), offset_value(offset, text, version, topic_id)
    assert decode_key(key) == (group, TopicPartition(topic, partition))
    assert decode_value(value) == Commit(Committed(offset, text), topic_id if version == 4 else None)
    for stored, read in ((key, decode_key), (value, decode_value)):
        for size in range(len(stored)):
            with pytest.raises(BadRecords):
                read(stored[:size])


def batch_of(at: int, *values: bytes, epoch: int = 0) -> bytes:
    """A batch of the metadata log."""
    payload = encoded([Record(number, 0, None, value) for number, value in enumerate(values)])
    return batch(at, count=len(values), leader_epoch=epoch, payload=payload)


def test_what_a_later_controller_cut_off_is_no_metadata(tmp_path: Path) -> None:
    """The stale replica is the longer one, and holds a topic that was never committed."""
    orders, late, clicks = (
        metadata_record(TopicRecord(name, IDS[number])) for number, name in enumerate(("orders", "late", "clicks"))
    )
    more = batch_of(2, late, epoch=3) + batch_of(3, late, epoch=3)
    common = batch_of(0, orders, epoch=3)
    stale = replica(tmp_path / "a", (0, common + batch_of(1, late, epoch=3) + more), name="__cluster_metadata-0")
    newer = replica(tmp_path / "b", (0, common + batch_of(1, clicks, epoch=4)), name="__cluster_metadata-0")
    for folders in ([stale, newer], [newer, stale]):
        found = topics_in(folders)
        assert found is not None
        assert (sorted(found.topics), found.end) == (["clicks", "orders"], 2)


def test_a_record_that_cannot_be_read_is_left_out_and_reported(tmp_path: Path) -> None:
    """One of a kind that says nothing of topics may hold whatever it likes."""
    values = [metadata_record(TopicRecord("orders", IDS[0])), b"\0\2\0\1", b"\1\x0c\x7f whatever"]
    values.append(metadata_record(partition_record(IDS[0], 2)))
    found = topics_in([replica(tmp_path, (0, batch_of(0, *values)), name="__cluster_metadata-0")])
    assert found is not None
    assert found.topics["orders"].partition_count == 3
    (note,) = found.notes
    assert note.startswith("1 records of the cluster's metadata log cannot be read, and are left out")
    assert "offset 1: " in note


READER = TopicPartition("orders", 0)


def committed(at: int, group: str, offset: int, producer: int = -1) -> bytes:
    """A batch with one commit of a group, of a transaction where a producer is named."""
    payload = encoded([Record(0, 0, offset_key(group, *READER), offset_value(offset, "x" * 50))])
    more = {"attributes": TRANSACTIONAL, "producer_id": producer, "producer_epoch": 0} if producer >= 0 else {}
    return batch(at, payload=payload, **more)


def offsets_of(log: Path) -> tuple[dict[str, int], set[str], list[str]]:
    """What counts of each group, whose transactions have no end, and what is reported."""
    found = offsets_in({0: [log]})
    return {group: of[READER].committed.offset for group, of in found.groups.items()}, {*found.undecided}, found.notes


def test_an_offset_of_a_transaction_counts_from_its_marker_on(tmp_path: Path) -> None:
    """And not over one that was committed in between, nor where it was aborted."""
    log = [
        *(committed(at, group, 5) for at, group in enumerate(("plain", "behind", "aborted", "between"))),
        committed(4, "behind", 30, producer=1),
        committed(5, "between", 30, producer=1),
        committed(6, "aborted", 30, producer=2),
        committed(7, "between", 50),
        committed(8, "plain", 6),
        marker(9, 1, COMMIT),
        marker(10, 2, ABORT),
    ]
    found = offsets_of(replica(tmp_path, (0, b"".join(log)), name="__consumer_offsets-0"))
    assert found == ({"plain": 6, "behind": 30, "aborted": 5, "between": 50}, set(), [])


def test_a_transaction_that_has_no_end_counts_for_nothing_and_is_reported(tmp_path: Path) -> None:
    """Nor does one whose marker is behind damage, where the log ends."""
    parts = [committed(0, "open", 5), committed(1, "open", 30, producer=1), committed(2, "other", 7)]
    found = offsets_of(replica(tmp_path / "a", (0, b"".join(parts)), name="__consumer_offsets-0"))
    assert found == ({"open": 5, "other": 7}, {"open"}, [])
    start = sum(map(len, parts[:2]))
    log = flipped(b"".join([*parts, marker(3, 1, COMMIT), committed(4, "last", 9)]), start + 70)
    groups, undecided, notes = offsets_of(replica(tmp_path / "b", (0, log), name="__consumer_offsets-0"))
    assert (groups, undecided, len(notes)) == ({"open": 5}, {"open"}, 1)


def test_offsets_that_may_lack_anything_are_not_whole(tmp_path: Path) -> None:
    parts = [committed(at, "group", at) for at in range(4)]
    unread = batch(3, payload=encoded([Record(0, 0, b"\0\1\0", b"")]))
    logs = {
        "sound": [(0, b"".join(parts))],
        "compacted": [(0, parts[0]), (3, parts[3])],
        "open": [(0, b"".join([*parts[:3], committed(3, "open", 30, producer=1)]))],
        "cut": [(0, b"".join(parts[:2]))],
        "damaged": [(0, flipped(b"".join(parts), len(parts[0]) + 70))],
        "short": [(2, b"".join(parts[2:]))],
        "unread": [(0, b"".join([*parts[:3], unread]))],
        "without a checkpoint": [(0, b"".join(parts))],
    }
    for name, files in logs.items():
        folder = replica(tmp_path / name, *files, name="__consumer_offsets-0", topic_id=None)
        (folder / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
        checkpoint = folder.parent / "replication-offset-checkpoint"
        checkpoint.write_text("" if name == "without a checkpoint" else "0\n1\n__consumer_offsets 0 4\n")
        found = offsets_in({0: [folder]})
        assert found.is_whole is (name in ("sound", "compacted", "open")), (name, found.notes)
    assert not offsets_in({0: [tmp_path / "none"]}).is_whole


@pytest.mark.parametrize(("voters", "enough"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (7, 4)])
def test_so_many_controllers_as_meet_any_majority_lack_nothing(voters: int, enough: int) -> None:
    known = ClusterTopics(voters=frozenset(range(voters)))
    assert [known.may_lack(range(number)) for number in range(voters + 1)] == [
        number < enough for number in range(voters + 1)
    ]
    assert known.may_lack([*range(enough - 1), voters + 1]), "another node is no voter"
    assert ClusterTopics().may_lack(range(9)), "nobody knows who voted"
    assert replace(known, is_whole=False).may_lack(range(voters)), "records are missing from what is here"


def control(at: int, kind: int, value: bytes) -> bytes:
    """A batch of the metadata log with a control record."""
    return batch(at, attributes=CONTROL, payload=encoded([Record(0, 0, struct.pack(">hh", 0, kind), value)]))


#: Nodes 1, 2 and 3 vote (Kafka `LeaderChangeMessage`, version 0).
ELECTED = struct.pack(">hi", 0, 3) + b"\4" + b"".join(struct.pack(">ib", node, 0) for node in (1, 2, 3)) + b"\1\0"
QUORUM = """{"leaderId":3,"leaderEpoch":1,"votedId":-1,"appliedOffset":0,
    "currentVoters":[{"voterId":1},{"voterId":2},{"voterId":3}],"data_version":0}"""


@pytest.mark.parametrize("known_by", ["the log", "the log below the snapshot", "quorum-state", "nobody"])
def test_the_node_that_died_first_is_known_whatever_a_snapshot_leaves_of_the_log(tmp_path: Path, known_by: str) -> None:
    """By its own log it was in sync with the others, which may have gone on without it."""
    made = partition_record(TOPIC_ID, 0, (1, 2, 3))
    records = batch_of(1, metadata_record(TopicRecord("orders", TOPIC_ID)), metadata_record(made))
    data = tmp_path / "node-1"
    more = batch_of(3, metadata_record(setting("orders", "retention.ms", "1")))
    log = (0, control(0, 2, ELECTED) + records + more) if "log" in known_by else (3, more)
    folder = replica(data, log, name=str(METADATA), topic_id=None)
    if known_by != "the log":
        header, footer = control(0, 3, struct.pack(">hqb", 0, 0, 0)), control(3, 4, struct.pack(">hb", 0, 0))
        (folder / f"{3:020}-{1:010}.checkpoint").write_bytes(header + records + footer)
    if known_by == "quorum-state":
        (folder / known_by).write_text(QUORUM)
    replica(data, (0, batch(0)), topic_id=TOPIC_ID)
    (data / "meta.properties").write_text("node.id=1\n")
    found = topics_in([folder])
    assert found is not None
    assert found.voters == (set() if known_by == "nobody" else {1, 2, 3})
    ((at, text),) = scan_folders([data], groups=False).replicas.unconfirmed.items()
    assert at == READER
    assert "nobody knows whether brokers 2, 3 went on without these replicas" in text
    assert ("do not say which controllers there were" in text) is (known_by == "nobody")
