"""The small files beside segments: believed when they are whole, and harmless when they are anything else."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID, uuid4

import pytest
from replicas import TOPIC_ID, replica

from mirror.commands.restore import ReplicaChoice, scan_folders
from mirror.errors import ConfigError
from mirror.kafka.cluster import TopicPartition
from mirror.segments.broker_messages import PartitionRecord
from mirror.segments.cluster_logs import ClusterTopics, KnownTopic
from mirror.segments.files import cluster_id_of, history_of, log_start_of, topic_id_of

HISTORY, STARTS, METADATA = "leader-epoch-checkpoint", "log-start-offset-checkpoint", "partition.metadata"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A partition's."""
    path = tmp_path / "orders-0"
    path.mkdir()
    return path


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("0\n3\n0 0\n2 17\n5 17\n", [(0, 0), (2, 17), (5, 17)]),
        ("0\n2\n0 0\n1 1", []),  # of 1234: it would cut off nearly all
        ("0\n2\n0 0\n", []),
        ("0\n1\n0 0\n1 1234\n", []),
        ("1\n1\n0 0\n", []),
        ("0\n2\n0 9\n1 0\n", []),
        ("0\n1\n2147483648 0\n", []),
        (f"0\n1\n0 {'9' * 5000}\n", []),
        ("0\n1\n0 0 0\n", []),
        ("", []),
    ],
)
def test_a_history_that_is_not_whole_says_nothing(folder: Path, text: str, entries: list[tuple[int, int]]) -> None:
    (folder / HISTORY).write_text(text)
    assert history_of(folder) == entries


@pytest.mark.parametrize(
    ("text", "start"),
    [("0\n2\nother 0 5\norders 0 40\n", 40), ("0\n2\nother 0 5\norders 0 4", 0), ("0\n1\norders 1 40\n", 0)],
)
def test_a_log_start(folder: Path, text: str, start: int) -> None:
    (folder.parent / STARTS).write_text(text)
    assert log_start_of(folder) == start


@pytest.mark.parametrize(
    ("text", "topic_id"),
    [("AAAAAAAAAAAAAAAAAAAABw", UUID(int=7)), ("AAAAAAAAAAAAAAAAAAAAAA", None), ("AAAAAAAAAAAAAAAAAAAAB", None)],
)
def test_a_topic_id(folder: Path, text: str, topic_id: UUID | None) -> None:
    """That of zeros is none (Kafka `Uuid.ZERO_UUID`)."""
    (folder / METADATA).write_text(f"version: 0\ntopic_id: {text}\n")
    assert topic_id_of(folder) == topic_id


def test_checkpoints_say_what_an_older_metadata_log_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Partitions and topics that were made since; those that it knows as deleted, or deleted and made anew, aside."""
    data = tmp_path / "data"
    for name in ("orders-0", "__cluster_metadata-0"):
        replica(data, (0, b""), name=name, topic_id=None)
    rows = ("orders 0 5", "orders 2 7", "clicks 1 9", "gone 3 4", "anew 3 4")
    (data / "replication-offset-checkpoint").write_text("\n".join(("0", str(len(rows)), *rows)) + "\n")
    known = {name: KnownTopic(name, uuid4(), {}, {0: PartitionRecord(0, None)}) for name in ("orders", "anew")}
    reported = ClusterTopics(topics=known, gone={"gone", "anew"})
    monkeypatch.setattr("mirror.commands.restore.topics_in", lambda _: reported)
    disks = scan_folders([data], groups=False)
    assert (disks.topics["orders"].partitions, disks.lacking) == (3, {"clicks": 2, "anew": 1})


def test_folders_of_two_clusters_are_refused(tmp_path: Path) -> None:
    for name, text in (("one", "#now\nversion=1\ncluster.id=A-b_c\nnode.id=1\n"), ("two", "cluster.id = other\n")):
        replica(tmp_path / name, (0, b""))
        (tmp_path / name / "meta.properties").write_text(text)
    assert [cluster_id_of(tmp_path / name) for name in ("one", "two", "none")] == ["A-b_c", "other", None]
    assert scan_folders([tmp_path / "one"], groups=True).cluster_id == "A-b_c"
    with pytest.raises(ConfigError, match=r"one of cluster A-b_c, .*two of cluster other"):
        scan_folders([tmp_path / "one", tmp_path / "two"], groups=True)


def test_a_topic_that_the_metadata_log_does_not_know_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log may end before it was made; one that it knows as removed, or that is a former one, is left out."""
    data, removed, other, current = tmp_path / "data", UUID(int=5), UUID(int=6), UUID(int=7)
    for name, topic_id in (("late-1", other), ("gone-0", removed), ("orders-0", current), ("orders-1", other)):
        replica(data, (0, b""), name=name, topic_id=topic_id)
    replica(data, (0, b""), name="__cluster_metadata-0", topic_id=None)
    known = KnownTopic("orders", current, {}, {1: PartitionRecord(1, current)})
    reported = ClusterTopics(topics={"orders": known}, removed={removed})
    monkeypatch.setattr("mirror.commands.restore.topics_in", lambda _: reported)
    disks = scan_folders([data], groups=False)
    assert sorted(disks.partitions) == [TopicPartition("late", 1), TopicPartition("orders", 0)]
    assert disks.topics["late"].partitions == 2
    for left in ("gone-0", "orders-1"):
        assert [note for note in disks.notes if f"{left} is left out" in note]


def test_a_replica_of_which_nobody_knows_the_broker_is_in_sync_by_no_guess(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was copied without its data folder's `meta.properties`. Beside a replica that was in sync it does no harm."""
    metadata = replica(tmp_path / "node-2", (0, b""), name="__cluster_metadata-0", topic_id=None)
    (tmp_path / "node-2" / "meta.properties").write_text("node.id=2\n")
    nameless = replica(tmp_path / "copied", (0, b""))
    known = KnownTopic("orders", TOPIC_ID, {}, {0: PartitionRecord(0, TOPIC_ID, isr=(2,))})
    reported = ClusterTopics(topics={"orders": known}, voters=frozenset({2}))
    monkeypatch.setattr("mirror.commands.restore.topics_in", lambda _: reported)
    ((at, text),) = scan_folders([metadata, nameless], groups=False).replicas.refused.items()
    assert at == TopicPartition("orders", 0)
    assert f"nobody knows of which broker {nameless} is" in text
    assert "those of brokers 2 were in sync" in text
    there = replica(tmp_path / "node-2", (0, b""))
    disks = scan_folders([tmp_path / "node-2", nameless], groups=False)
    assert disks.replicas == ReplicaChoice({at: [there]})


def test_a_metadata_log_that_cannot_be_read_is_reported_and_one_that_is_not_there_is_said(tmp_path: Path) -> None:
    """The first is of a cluster that wrote down who was in sync; others have none (ZooKeeper)."""
    replica(tmp_path, (0, b""))
    disks = scan_folders([tmp_path], groups=False)
    assert (disks.replicas.unconfirmed, len(disks.notes)) == ({}, 1)
    assert "others may have had more records than these" in disks.notes[0]
    replica(tmp_path, (7, b""), name="__cluster_metadata-0", topic_id=None)
    replicas = scan_folders([tmp_path], groups=False).replicas
    assert "which brokers were in sync" in replicas.unconfirmed[TopicPartition("orders", 0)]
