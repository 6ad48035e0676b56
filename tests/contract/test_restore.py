"""`mirror restore`: topics, settings and groups out of copies of a broker's folders, and what is not restored whole."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from groupoffsets import commit, committed
from helpers import RECENT_MS, config_file, make_topic, produce, stored_batches
from pair import Shared
from rawbatches import batch
from samerecords import read
from sparkless import run_once
from syncing import delete_topics, write_journal
from topicadmin import configure, delete_records
from transactional import transactions
from typer.testing import CliRunner
from waiting import until

from mirror.cli import app
from mirror.commands import restore as command
from mirror.config import Settings, load
from mirror.errors import ConfigError, ExitCode, PreflightError
from mirror.journal.journal import OWNER, journal_topic
from mirror.journal.ownership import KEY, FailedOver, Owner
from mirror.kafka.admin import Admin
from mirror.segments.cluster_logs import topics_in
from mirror.spark import restore as restoring

pytestmark = pytest.mark.usefixtures("without_spark")

CHECKPOINT = "replication-offset-checkpoint"
METADATA = "__cluster_metadata-0"
#: Older than a broker keeps records by default.
OLD_MS = int(time.time()) * 1000 - 30 * 86_400_000
#: What keeps them.
FOREVER = {"retention.ms": "-1", "message.timestamp.before.max.ms": str(2**63 - 1)}


def values(last: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


@dataclass(frozen=True)
class Disk:
    """A topic of the shared source, a copy of its broker's folders, and the flow that restores it."""

    source: Shared
    target: Shared
    topic: str
    folder: Path

    def copy(self, partitions: Sequence[int] = (0,), damaged: Sequence[int] = ()) -> None:
        """Copy the folders of partitions, and what their broker says of them. In the batches `damaged` of partition 0,
        counted from 0, one bit is another one.
        """
        ends = []
        for number in partitions:
            name = f"{self.topic}-{number}"
            shutil.copytree(self.source.data / name, self.folder / name)
            stored = stored_batches(self.source.bootstrap, self.topic, number)
            ends.append(f"{self.topic} {number} {stored[-1].header.next_offset}")
        shutil.copy(self.source.data / "meta.properties", self.folder)
        (self.folder / CHECKPOINT).write_text("\n".join(["0", str(len(ends)), *ends, ""]))
        if damaged:
            segment = self.segment()
            data = bytearray(segment.read_bytes())
            sizes = [len(raw.data) for raw in stored_batches(self.source.bootstrap, self.topic)]
            for number in damaged:
                data[sum(sizes[: number + 1]) - 1] ^= 1
            segment.write_bytes(data)

    def copy_groups(self, *names: str) -> None:
        """Copy the logs with groups' offsets, and those of other topics."""
        for path in (*self.source.data.glob("__consumer_offsets-*"), *(self.source.data / name for name in names)):
            shutil.copytree(path, self.folder / path.name)

    def segment(self, partition: int = 0) -> Path:
        (path,) = (self.folder / f"{self.topic}-{partition}").glob("*.log")
        return path

    def config(self, topics: Sequence[str] = (), **more: Any) -> Path:
        ends, sections = (self.source.bootstrap, self.target.bootstrap), {"groups": {"include": [f"{self.topic}.*"]}}
        return config_file(self.folder.parent, *ends, [*topics] or [self.topic], self.topic, sections=sections, **more)

    def settings(self, **more: Any) -> Settings:
        return load(self.config(**more))

    def restored(self, *options: str, config: Path | None = None, folder: Path | None = None) -> tuple[int, Any]:
        """Return the exit code of `mirror restore --json`, and what it printed. Raises MirrorError."""
        asked = ["restore", str(config or self.config()), "--from", str(folder or self.folder), "--json", *options]
        done = CliRunner().invoke(app, asked)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.exit_code, json.loads(done.stdout)

    def copied(self, partition: int = 0) -> list[bytes]:
        """Return the values on the target."""
        return [record[4] for record in read(self.target.bootstrap, self.topic, partition)]


@pytest.fixture
def disk(source_cluster: Shared, target_cluster: Shared, topic_name: str, tmp_path: Path) -> Disk:
    (tmp_path / "disk").mkdir()
    return Disk(source_cluster, target_cluster, topic_name, tmp_path / "disk")


@pytest.mark.proves("mirror restore", "same-bytes", "same-offsets", "exactly-once")
@pytest.mark.parametrize("offsets", ["preserve", "translate"])
def test_a_topic_is_restored_and_mirrored_on(disk: Disk, offsets: str) -> None:
    """A torn tail is cut and reported, and what is there is not written again."""
    source, target, topic = disk.source.bootstrap, disk.target.bootstrap, disk.topic
    make_topic(source, topic, 2)
    produce(source, topic, values(60), codec="zstd")
    transactions(source, topic, [True, False, True])
    produce(source, topic, values(50), partition=1, codec="lz4")
    disk.copy((0, 1))
    torn = disk.segment(1)
    torn.write_bytes(torn.read_bytes() + torn.read_bytes()[:40])
    config = disk.config(offsets=offsets)
    code, planned = disk.restored("--dry-run", config=config)
    assert (code, planned["create"], planned["missing"]) == (10, [topic], [])
    code, report = disk.restored(config=config)
    assert (code, [one["whole"] for one in report["partitions"]]) == (ExitCode.DONE, [True, True])
    assert "not written whole" in report["partitions"][1]["notes"][0]
    first = 0 if offsets == "preserve" else 1  # offsets move
    for partition in (0, 1):
        expected, found = (read(bootstrap, topic, partition) for bootstrap in (source, target))
        assert [record[first:] for record in found] == [record[first:] for record in expected]
    records = [bytes(raw.records) for raw in stored_batches(source, topic) if raw.header.producer_id < 0]
    assert [bytes(raw.records) for raw in stored_batches(target, topic)][: len(records)] == records
    assert disk.restored(config=config)[1]["partitions"][0]["records"] == 0
    produce(source, topic, [b"after"])
    assert run_once(load(config)).exit_code is ExitCode.DONE
    assert disk.copied() == [record[4] for record in read(source, topic, 0)]


@pytest.mark.proves("mirror restore")
def test_settings_and_groups_come_back(disk: Disk) -> None:
    source, target, topic = disk.source.bootstrap, disk.target.bootstrap, disk.topic
    make_topic(source, topic, configs={"max.message.bytes": "2000001", "segment.ms": "604800001"})
    produce(source, topic, values(20))
    group = f"{topic}-group"
    commit(source, group, topic, 13)
    disk.copy()
    disk.copy_groups(METADATA)
    code, report = disk.restored()
    assert code == ExitCode.DONE, report
    configs = Admin(disk.settings().target).topic_configs([topic])[topic]
    assert [configs[name].value for name in ("max.message.bytes", "segment.ms")] == ["2000001", "604800001"]
    assert committed(target, group, topic) == 13


@pytest.mark.proves("mirror restore", "never-silent")
def test_what_is_missing_or_damaged_is_not_restored_whole(disk: Disk) -> None:
    make_topic(disk.source.bootstrap, disk.topic, 3)
    for partition in (0, 1, 2):
        produce(disk.source.bootstrap, disk.topic, values(40), partition=partition)
    disk.copy((0, 2), damaged=[2])
    code, report = disk.restored()
    assert (code, report["missing"]) == (ExitCode.DATA_AT_RISK, [f"{disk.topic}-1"])
    assert [one["whole"] for one in report["partitions"]] == [False, True]
    assert "damaged behind offset 19" in str(report["partitions"][0]["notes"])
    assert [disk.copied(partition) for partition in (0, 1, 2)] == [values(20), [], values(40)]


@pytest.mark.proves("mirror restore", "never-silent")
def test_a_replica_that_was_not_in_sync_is_restored_only_by_name(disk: Disk) -> None:
    make_topic(disk.source.bootstrap, disk.topic)
    produce(disk.source.bootstrap, disk.topic, values(20))
    disk.copy()
    disk.copy_groups(METADATA)
    properties = disk.folder / "meta.properties"
    properties.write_text(re.sub("node.id=.*", "node.id=77", properties.read_text()))
    alone = disk.segment().parent
    for options in (["--dry-run"], []):
        code, report = disk.restored(*options)
        (found,) = report["partitions"]
        assert (code, found["at_risk"], found["folders"], found["end"]) == (ExitCode.DATA_AT_RISK, True, [], None)
        assert f"--from {alone} alone restores what is there" in str(found["notes"])
    assert disk.copied() == []
    code, report = disk.restored(folder=alone)
    assert (code, report["partitions"][0]["folders"]) == (ExitCode.DONE, [str(alone)])
    assert disk.copied() == values(20)


@pytest.mark.proves("mirror restore", "never-silent")
def test_a_copy_that_has_more_than_damaged_files_stays_as_it_is(disk: Disk) -> None:
    """A dry run says the same: the copy may be all that is left."""
    make_topic(disk.source.bootstrap, disk.topic)
    produce(disk.source.bootstrap, disk.topic, values(50))
    assert run_once(disk.settings()).exit_code is ExitCode.DONE
    disk.copy(damaged=[2])
    for options in (["--dry-run"], []):
        code, report = disk.restored(*options)
        assert (code, "Keep the copy" in str(report)) == (ExitCode.DATA_AT_RISK, True)
    assert disk.copied() == values(50)


@pytest.mark.proves("mirror restore", "never-silent")
@pytest.mark.parametrize("cause", ["accepted loss", "deleted on the target", "began later"])
def test_a_copy_that_lacks_what_the_files_have_is_not_whole(disk: Disk, cause: str) -> None:
    """Nor is a group put behind records that it has not read. A dry run says the same."""
    source, topic = disk.source.bootstrap, disk.topic
    make_topic(source, topic)
    produce(source, topic, values(20))
    config = disk.config(on_data_loss="continue", start="latest" if cause == "began later" else "earliest")
    assert run_once(load(config)).exit_code is ExitCode.DONE
    produce(source, topic, values(50, 20))
    commit(source, topic, topic, 5)
    disk.copy()
    disk.copy_groups()
    if cause == "accepted loss":
        delete_records(disk.source.bootstrap, topic, 30)
    assert run_once(load(config)).exit_code is ExitCode.DONE
    if cause == "deleted on the target":
        delete_records(disk.target.bootstrap, topic, 10)
    lacking = {"accepted loss": "20 to 29", "deleted on the target": "0 to 9", "began later": "0 to 19"}[cause]
    for options in (["--dry-run"], []):
        code, report = disk.restored(*options, config=config)
        assert (code, report["partitions"][0]["at_risk"]) == (ExitCode.DATA_AT_RISK, True), report
        assert f"the copy lacks offsets {lacking}, which these files have" in str(report["partitions"][0]["notes"])
    assert cause != "began later" or committed(disk.target.bootstrap, topic, topic) < 0


@pytest.mark.proves("mirror restore", "TRUNCATED")
@pytest.mark.parametrize("offsets", ["preserve", "translate"])
def test_files_of_a_source_that_was_truncated_are_not_written_behind_the_copy(disk: Disk, offsets: str) -> None:
    """It grew again, and its producer sent the last batch once more: only leader epochs show that it was cut."""
    make_topic(disk.source.bootstrap, disk.topic)
    produce(disk.source.bootstrap, disk.topic, values(20), batch=5)
    config = disk.config(offsets=offsets)
    assert run_once(load(config)).exit_code is ExitCode.DONE
    disk.copy()
    stored = [bytes(raw.data) for raw in stored_batches(disk.source.bootstrap, disk.topic)]
    epoch = int.from_bytes(stored[0][12:16])
    again = stored[3][:12] + (epoch + 1).to_bytes(4) + stored[3][16:]
    times: dict[str, Any] = {"base_timestamp": RECENT_MS, "max_timestamp": RECENT_MS}
    others = [batch(at, count=5, leader_epoch=epoch + 1, **times) for at in (10, 20)]
    disk.segment().write_bytes(b"".join([*stored[:2], others[0], again, others[1]]))
    (disk.segment().parent / "leader-epoch-checkpoint").write_text(f"0\n2\n{epoch} 0\n{epoch + 1} 10\n")
    (disk.folder / CHECKPOINT).write_text(f"0\n1\n{disk.topic} 0 25\n")
    for options in (["--dry-run"], []):
        code, report = disk.restored(*options, config=config)
        reason = f"leader epoch {epoch} of the source ends at 10, and was mirrored up to 20"
        assert (code, reason in str(report["partitions"])) == (ExitCode.DATA_AT_RISK, True), report
        assert "TRUNCATED" in str(report["partitions"])
    assert disk.copied() == values(20)


# --- what a target keeps of old records -------------------------------------------------------------------------------


@pytest.mark.proves("mirror restore")
def test_old_records_into_a_missing_topic_never_expire(disk: Disk) -> None:
    """The target's default of seven days would delete them, and its log's end would never go back."""
    make_topic(disk.source.bootstrap, disk.topic, configs=FOREVER)
    produce(disk.source.bootstrap, disk.topic, values(100), begin_ms=OLD_MS)
    disk.copy()
    assert disk.restored()[0] == ExitCode.DONE
    configs = Admin(disk.settings().target).topic_configs([disk.topic])[disk.topic]
    kept = ("retention.ms", "retention.bytes", "cleanup.policy", "message.timestamp.type")
    assert [configs[name].value for name in kept] == ["-1", "-1", "delete", "CreateTime"]
    assert disk.copied() == values(100)


@pytest.mark.proves("mirror restore")
def test_a_target_that_would_delete_what_is_restored_is_refused_before_anything_is_written(disk: Disk) -> None:
    """In partition 1, no first batch of a segment shows the old record."""
    source, target, topic = disk.source.bootstrap, disk.target.bootstrap, disk.topic
    make_topic(source, topic, 2, configs=FOREVER)
    make_topic(target, topic, 2)
    produce(source, topic, values(100), begin_ms=OLD_MS)
    produce(source, topic, [b"young"], partition=1)
    produce(source, topic, [b"old"], partition=1, begin_ms=OLD_MS)
    disk.copy((0, 1))
    with pytest.raises(PreflightError, match=r"the files have some that are 30\.0 days old") as refused:
        disk.restored()
    assert "--add-config retention.ms=-1,retention.bytes=-1" in str(refused.value)
    shutil.rmtree(disk.folder / f"{topic}-0")
    code, report = disk.restored()
    assert (code, "30.0 days old; nothing was written" in str(report)) == (ExitCode.DATA_AT_RISK, True)
    assert [disk.copied(partition) for partition in (0, 1)] == [[], []]
    configure(target, topic, retention_ms="-1")
    shutil.rmtree(disk.folder / f"{topic}-1")
    disk.copy((0, 1))
    assert disk.restored()[0] == ExitCode.DONE
    assert [disk.copied(partition) for partition in (0, 1)] == [values(100), [b"young", b"old"]]


# --- whose topics and whose disks -------------------------------------------------------------------------------------


@pytest.mark.proves("mirror restore", "nothing-by-name-alone")
def test_a_topic_that_is_not_the_flows_is_not_written_to(disk: Disk) -> None:
    """Though its records are the same: who made it may write on."""
    for bootstrap in (disk.source.bootstrap, disk.target.bootstrap):
        make_topic(bootstrap, disk.topic, configs=FOREVER)
        produce(bootstrap, disk.topic, values(50))
    produce(disk.source.bootstrap, disk.topic, [b"more"])
    disk.copy()
    with pytest.raises(PreflightError, match="this flow's journal does not name it: nothing is written to it"):
        disk.restored()
    assert disk.copied() == values(50)
    assert not Admin(disk.settings().target).describe([journal_topic(disk.topic)]), "a refusal leaves no trace"


@pytest.mark.proves("mirror restore", "nothing-by-name-alone")
def test_a_target_topic_that_was_made_anew_meanwhile_gets_nothing(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither settings, which may delete what a stranger wrote to it, nor offsets of groups; and it is not whole."""
    source, target, topic = disk.source.bootstrap, disk.target.bootstrap, disk.topic
    make_topic(source, topic, configs={"retention.ms": "7200000"})
    produce(source, topic, values(50))
    commit(source, topic, topic, 30)
    disk.copy()
    disk.copy_groups(METADATA)
    run = command._run

    def made_anew(*arguments: Any, **options: Any) -> Any:
        found = run(*arguments, **options)
        delete_topics(target, topic)
        make_topic(target, topic)
        produce(target, topic, [b"a stranger's"] * 60)
        return found

    monkeypatch.setattr(command, "_run", made_anew)
    code, report = disk.restored()
    assert (code, report["partitions"][0]["whole"]) == (ExitCode.DATA_AT_RISK, False)
    assert "was deleted, or made anew, since this restore began" in report["partitions"][0]["notes"][-1]
    assert Admin(disk.settings().target).topic_configs([topic])[topic]["retention.ms"].value != "7200000"
    assert committed(target, topic, topic) < 0


@pytest.mark.proves("mirror restore", "exactly-once")
@pytest.mark.parametrize("by", ["another mirror", "a failover"])
def test_a_flow_that_is_taken_meanwhile_is_written_to_no_more(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """Neither records nor offsets of groups."""
    target, topic = disk.target.bootstrap, disk.topic
    make_topic(disk.source.bootstrap, topic)
    produce(disk.source.bootstrap, topic, values(100))
    commit(disk.source.bootstrap, topic, topic, 30)
    disk.copy()
    disk.copy_groups()
    settings, copy = disk.settings(), restoring.restore_on_spark
    other = Owner(instance="third", host="elsewhere", pid=7, at_ms=0, claim=99)
    taken = (KEY, FailedOver.here().to_json()) if by == "a failover" else (OWNER, other.to_json())

    def taken_first(*arguments: Any) -> None:
        write_journal(settings, taken)
        copy(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr("mirror.spark.restore.restore_on_spark", taken_first)
        code, report = disk.restored()
    assert code == ExitCode.CLUSTER
    assert ("the flow was failed over" if by == "a failover" else "pid 7 on elsewhere") in report["taken_over"]
    assert (disk.copied(), committed(target, topic, topic) < 0) == ([], True)
    if by == "a failover":
        with pytest.raises(PreflightError, match="failed over"):
            disk.restored()
        write_journal(settings, (KEY, None))
        assert disk.restored()[0] == ExitCode.DONE
        assert (disk.copied(), committed(target, topic, topic)) == (values(100), 30)


@pytest.mark.proves("mirror restore", "never-silent")
def test_folders_that_do_not_belong_together_are_refused(disk: Disk) -> None:
    """Another cluster than the configuration or the journal names; another number of partitions; no files at all."""
    source, target, topic = disk.source.bootstrap, disk.target.bootstrap, disk.topic
    make_topic(source, topic, 2)
    produce(source, topic, values(10))
    produce(source, topic, values(10), partition=1)
    disk.copy((0, 1))
    with pytest.raises(PreflightError, match="nothing-of-it: there are no files of it in these folders"):
        disk.restored(config=disk.config([topic, "nothing-of-it"]))
    assert disk.restored()[0] == ExitCode.DONE
    properties = disk.folder / "meta.properties"
    properties.write_text("cluster.id=another\n")
    with pytest.raises(ConfigError, match=rf"of cluster another, .* {disk.source.cluster_id} \(the flow's journal"):
        disk.restored()
    other = replace(disk, topic=f"{topic}-other")
    make_topic(target, other.topic, 1)
    for partition in (0, 1):
        (disk.folder / f"{topic}-{partition}").rename(disk.folder / f"{other.topic}-{partition}")
    with pytest.raises(PreflightError, match=f"{other.topic}: 1 of the 2 partitions in the files are on the target"):
        other.restored()


@pytest.mark.proves("mirror restore", "never-silent")
def test_a_topic_of_which_no_folder_is_here_is_missing(disk: Disk) -> None:
    """One of several log.dirs was forgotten: the metadata log knows what was there."""
    other = f"{disk.topic}-b"
    for name in (disk.topic, other):
        make_topic(disk.source.bootstrap, name)
        produce(disk.source.bootstrap, name, [b"x"])
    disk.copy()
    metadata = disk.folder / METADATA

    def is_known() -> bool:
        shutil.rmtree(metadata, ignore_errors=True)
        shutil.copytree(disk.source.data / METADATA, metadata)
        found = topics_in([metadata])
        return found is not None and other in found.topics

    until(is_known)
    config = disk.config([f"{disk.topic}.*"])
    for options in (["--dry-run"], []):
        code, report = disk.restored(*options, config=config)
        assert (code, report["missing"]) == (ExitCode.DATA_AT_RISK, [f"{other}-0"])
    assert disk.copied() == [b"x"]
