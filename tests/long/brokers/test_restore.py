"""Topics out of the data folder of a broker that was killed, and what happens when it comes back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from compared_logs import delete_before
from crashcut import crash_and_cut
from groupoffsets import commit, committed
from helpers import RECENT_MS, config_file, make_topic, mirror_once, produce, remove_topics, stored_batches
from running import values, wait_for
from samerecords import assert_same_records, read
from sparkless import run_once
from syncing import delete_topics
from transactional import transactions
from typer.testing import CliRunner

from mirror.cli import app
from mirror.commands import restore as command
from mirror.config import Settings, load
from mirror.errors import ConfigError, ExitCode, PreflightError
from mirror.journal.entries import Lost, losses_in, seen_in
from mirror.journal.journal import ENDED, OWNER, Journal, journal_topic
from mirror.journal.ownership import KEY, FailedOver, Owner, Watched
from mirror.kafka.admin import Admin
from mirror.kafka.cluster import Cluster as KafkaCluster
from mirror.kafka.cluster import Endpoint, TopicPartition
from mirror.kafka.queries import LATEST, delete_records, list_offset
from mirror.kafka.topic_configs import ConfigChange
from mirror.lab.embedded import Cluster
from mirror.spark import restore as restoring
from mirror.spark.restore import Portion
from mirror.states import State
from mirror.topics.apply import ensure_flow_topic

CHECKPOINT = "replication-offset-checkpoint"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Cluster]:
    """One to be killed, with a folder that outlives it."""
    with Cluster.start(name="lost", folder=tmp_path / "lost") as cluster:
        yield cluster


def restore(config: Path, folder: Path, *more: str) -> tuple[int, Any]:
    """The exit code of `mirror restore --json`, and what it printed."""
    command = [sys.executable, "-m", "mirror", "restore", str(config), "--from", str(folder), "--json", *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def restore_here(config: Path, folder: Path, *more: str) -> tuple[int, Any]:
    """The same in this process, where `without_spark` spares its start."""
    done = CliRunner().invoke(app, ["restore", str(config), "--from", str(folder), "--json", *more])
    assert done.stdout, (done.output, done.exception)
    return done.exit_code, json.loads(done.stdout)


@pytest.mark.brokers
@pytest.mark.spark
@pytest.mark.usefixtures("without_spark")  # for what is not restored by a process of its own
def test_a_topic_of_a_killed_broker(broker: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path) -> None:
    """Same bytes and offsets, transactions and all; a torn tail is cut and reported; the broker that returns is
    followed from where its files ended.
    """
    source, target, topic = broker.bootstrap, own_target.bootstrap, topic_name
    make_topic(source, topic, 2)
    produce(source, topic, [b"%d" % number for number in range(300)], codec="zstd")
    transactions(source, topic, [True, False, True, False])
    produce(source, topic, [b"other %d" % number for number in range(50)], partition=1, codec="lz4")
    wanted = [list(read(source, topic, partition)) for partition in range(2)]
    stored = {partition: stored_batches(source, topic, partition) for partition in range(2)}
    broker.kill(0)
    folder = broker.nodes[0].data
    torn = next((folder / f"{topic}-1").glob("*.log"))
    whole = torn.read_bytes()
    torn.write_bytes(whole + whole[:40])

    config = config_file(tmp_path, source, target, [topic], flow=topic)
    code, planned = restore_here(config, folder, "--dry-run")
    assert (code, planned["create"], planned["missing"]) == (10, [topic], [])
    assert "not written whole" in planned["partitions"][1]["notes"][0]
    code, reported = restore(config, folder)
    assert code == 0, reported
    assert [one["whole"] for one in reported["partitions"]] == [True, True]
    assert "not written whole" in reported["partitions"][1]["notes"][0]
    assert [list(read(target, topic, partition)) for partition in range(2)] == wanted
    for partition, batches in stored.items():
        copies = {raw.header.base_offset: raw for raw in stored_batches(target, topic, partition)}
        for raw in batches:
            if not raw.header.is_transactional:
                assert bytes(copies[raw.header.base_offset].records) == bytes(raw.records)

    assert restore_here(config, folder)[1]["partitions"][0]["records"] == 0, "what is there is not written again"
    torn.write_bytes(whole)
    broker.restart(0)
    produce(source, topic, [b"after"])
    assert run_once(load(config)).exit_code == ExitCode.DONE
    assert list(read(target, topic, 0)) == list(read(source, topic, 0))


@pytest.mark.brokers
@pytest.mark.spark
@pytest.mark.usefixtures("without_spark")  # for what is not restored by a process of its own
def test_a_restore_that_is_killed_and_started_again(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    """Driver, JVM and workers at once, in the middle of a partition at least."""
    source, target, topic = own_source.bootstrap, own_target.bootstrap, topic_name
    make_topic(source, topic, 2)
    transactions(source, topic, [True, False])
    for partition in range(2):
        produce(source, topic, [b"%d" % number + bytes(2_000) for number in range(1_000)], partition=partition)
    transactions(source, topic, [False, True])
    ends = [stored_batches(source, topic, partition)[-1].header.next_offset for partition in range(2)]
    config = config_file(tmp_path, source, target, [topic], flow=topic)
    unbound = config.read_text()  # and bound, it takes some eight seconds
    config.write_text(json.dumps(json.loads(unbound) | {"limits": {"bytes_per_second": 500_000}}))
    arguments = [sys.executable, "-m", "mirror", "restore", str(config), "--from", str(own_source.nodes[0].data)]
    with (tmp_path / "log").open("w") as log, subprocess.Popen(arguments, stdout=log, stderr=log) as process:
        try:
            await_share(target, topic, ends, process)
        finally:
            kill_tree(process)
    reached = log_ends(target, topic, len(ends))
    assert any(0 < at < end for at, end in zip(reached, ends, strict=True)), "nothing was tested"
    known = asyncio.run(named(target, topic))
    assert known == {topic: own_source.cluster_id}, "a mirror that runs now knows the copy for the flow's"

    config.write_text(unbound)
    code, reported = restore_here(config, own_source.nodes[0].data)
    assert (code, [one["next_offset"] for one in reported["partitions"]]) == (0, ends)
    for partition, at in enumerate(reached):
        assert reported["partitions"][partition]["records"] < ends[partition] - at + 1, "nothing is written twice"
        ours, theirs = (list(stored_batches(one, topic, partition)) for one in (target, source))
        data = [raw for raw in theirs if not raw.header.is_transactional]
        copies = {raw.header.base_offset: raw for raw in ours}
        assert all(bytes(copies[raw.header.base_offset].records) == bytes(raw.records) for raw in data)
    assert assert_same_records(source, target, topic, 2) == 2_010


async def named(bootstrap: str, flow: str) -> dict[str, str | None]:
    """The target topics that a flow's journal names, and the cluster that each is copied from."""
    host, port = bootstrap.split(":")
    async with KafkaCluster(Endpoint("any", ((host, int(port)),))) as cluster:
        return {name: one.cluster_id for name, one in seen_in(await Journal(cluster, flow).newest()).items()}


def await_share(bootstrap: str, topic: str, ends: Sequence[int], process: subprocess.Popen[bytes]) -> None:
    """Until a fifth of each partition is there."""
    deadline = time.monotonic() + 180
    while any(5 * at < end for at, end in zip(log_ends(bootstrap, topic, len(ends)), ends, strict=True)):
        assert process.poll() is None, "it was over before the kill"
        assert time.monotonic() < deadline, "it does not get on"
        time.sleep(0.05)


def log_ends(bootstrap: str, topic: str, partitions: int) -> list[int]:
    """The end of each partition's log; 0 where the topic is not there yet."""

    async def asked() -> list[int]:
        host, port = bootstrap.split(":")
        async with KafkaCluster(Endpoint("any", ((host, int(port)),))) as cluster:
            await cluster.refresh([topic])
            if topic not in cluster.topics:
                return [0] * partitions
            return [await list_offset(cluster, TopicPartition(topic, number), LATEST) for number in range(partitions)]

    return asyncio.run(asked())


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to a process and all that it started, and wait for their ends."""
    tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for one in tree:
        with contextlib.suppress(psutil.NoSuchProcess):  # one that ended by itself
            one.kill()
    process.wait()
    assert not psutil.wait_procs(tree[1:], 30)[1]


@pytest.mark.brokers
@pytest.mark.usefixtures("without_spark")
def test_offsets_that_move(
    own_source: Cluster,
    own_target: Cluster,
    topic_name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """From the files of a broker that runs: records alone, and runs in the journal for whoever goes on."""
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name)
    transactions(source, topic_name, [True, False, True])
    produce(source, topic_name, [b"%d" % number for number in range(30)])
    config = load(config_file(tmp_path, source, target, [topic_name], flow=topic_name, offsets="translate"))
    folder = own_source.nodes[0].data
    assert command.restore(config, [folder], command.Wanted(dry_run=False), as_json=True) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["partitions"][0]["records"] == 40
    values = [(record[1], record[2]) for record in read(target, topic_name, 0)]
    assert values == [(record[1], record[2]) for record in read(source, topic_name, 0)]
    produce(source, topic_name, [b"after"])
    after = mirror_once(source, target, [topic_name], topic_name, offsets="translate")
    assert after[TopicPartition(topic_name, 0)].state is State.CAUGHT_UP
    assert len(list(read(target, topic_name, 0))) == 41


@pytest.mark.brokers
@pytest.mark.usefixtures("without_spark")
def test_what_is_missing_or_damaged_is_reported(
    own_source: Cluster,
    own_target: Cluster,
    topic_name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name, 3)
    for partition in (0, 1, 2):
        produce(source, topic_name, [b"%d" % number for number in range(40)], partition=partition)
    found, lost = own_source.nodes[0].data, tmp_path / "disk"
    for partition in (0, 2):
        shutil.copytree(found / f"{topic_name}-{partition}", lost / f"{topic_name}-{partition}")
    shutil.copy(found / CHECKPOINT, lost)
    segment = next((lost / f"{topic_name}-2").glob("*.log"))
    damaged = bytearray(segment.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    segment.write_bytes(damaged)
    config = load(config_file(tmp_path, source, target, [topic_name], flow=topic_name))
    assert command.restore(config, [lost], command.Wanted(dry_run=False), as_json=False) == 4
    output = capsys.readouterr().out
    assert f"no replica in these folders of {topic_name}-1" in output
    assert "damaged behind offset 19" in output
    assert "1 of 3 partitions restored whole" in output
    assert [len(list(read(target, topic_name, partition))) for partition in range(3)] == [40, 0, 20]


@pytest.mark.brokers
@pytest.mark.usefixtures("without_spark")
def test_one_damaged_batch_is_left_out_and_all_behind_it_is_restored(
    own_source: Cluster,
    own_target: Cluster,
    topic_name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One bit of the first of five batches: without --skip-damage nothing is copied, and with it all but that batch,
    at its own offsets. A dry run says the same as the real one.
    """
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name)
    produce(source, topic_name, [b"%d" % number for number in range(500)], batch=100)
    wanted = [record for record in read(source, topic_name, 0) if record[0] >= 100]
    lost = tmp_path / "disk"
    shutil.copytree(own_source.nodes[0].data / f"{topic_name}-0", lost / f"{topic_name}-0")
    segment = next((lost / f"{topic_name}-0").glob("*.log"))
    damaged = bytearray(segment.read_bytes())
    damaged[300] ^= 1
    segment.write_bytes(damaged)
    config = load(config_file(tmp_path, source, target, [topic_name], flow=topic_name))
    for dry_run in (True, False):
        assert command.restore(config, [lost], command.Wanted(dry_run=dry_run), as_json=False) == 4
        output = capsys.readouterr().out
        assert "--skip-damage leaves out offsets 0 to 99 alone" in output
    for dry_run in (True, False):
        assert command.restore(config, [lost], command.Wanted(dry_run=dry_run, skip_damage=True), as_json=True) == 4
        found = json.loads(capsys.readouterr().out)["partitions"][0]
        assert (found["start"], found["committed_end"]) == (0, 500)
        assert found["lost"] == [{"first_offset": 0, "last_offset": 99, "reason": "damage"}]
        assert found["records"] == (0 if dry_run else 400)
    assert list(read(target, topic_name, 0)) == wanted

    async def recorded() -> Mapping[TopicPartition, tuple[Lost, ...]]:
        async with KafkaCluster(Endpoint.of(config.target)) as cluster:
            return losses_in(await Journal(cluster, config.flow).newest())

    ((at, (missing,)),) = asyncio.run(recorded()).items()
    assert (at, missing[:3]) == (TopicPartition(topic_name, 0), (0, 100, "damage"))


def disk_of(cluster: Cluster, topic: str, folder: Path, damaged: Sequence[int] = ()) -> Path:
    """A copy of a partition's folder and of the checkpoint beside it, with a flipped bit in the records of these
    batches, as counted from 0.
    """
    shutil.copytree(cluster.nodes[0].data / f"{topic}-0", folder / f"{topic}-0")
    segment = next((folder / f"{topic}-0").glob("*.log"))
    held, sizes = bytearray(segment.read_bytes()), [len(raw.data) for raw in stored_batches(cluster.bootstrap, topic)]
    for number in damaged:
        held[sum(sizes[: number + 1]) - 1] ^= 1
    segment.write_bytes(held)
    shutil.copy(cluster.nodes[0].data / CHECKPOINT, folder)
    return folder


def losses_of(config: Settings) -> list[tuple[int, int, str]]:
    """What the flow's journal has as lost."""

    async def recorded() -> Mapping[TopicPartition, tuple[Lost, ...]]:
        async with KafkaCluster(Endpoint.of(config.target)) as cluster:
            return losses_in(await Journal(cluster, config.flow).newest())

    return [one[:3] for lost in asyncio.run(recorded()).values() for one in lost]


@pytest.mark.brokers
@pytest.mark.usefixtures("without_spark")
@pytest.mark.parametrize("offsets", ["preserve", "translate"])
def test_damage_of_records_that_the_copy_has_is_no_loss(
    own_source: Cluster,
    own_target: Cluster,
    topic_name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    offsets: str,
) -> None:
    """The flow mirrored 50, and a batch of these is damaged on the disk, and one behind them: that alone is lost. A
    restore that ends below the copy keeps it, and says so.
    """
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name)
    produce(source, topic_name, [b"%d" % number for number in range(50)])
    config = load(config_file(tmp_path, source, target, [topic_name], flow=topic_name, offsets=offsets))
    assert run_once(config).exit_code == ExitCode.DONE
    produce(source, topic_name, [b"%d" % number for number in range(50, 90)])
    disk = disk_of(own_source, topic_name, tmp_path / "disk", damaged=(2, 6))
    for dry_run in (True, False):
        assert command.restore(config, [disk], command.Wanted(dry_run=dry_run), as_json=True) == 4
        output = capsys.readouterr().out
        assert "Keep the copy" in output, output
        assert "--delete" not in output, "it may be the only one"
    for dry_run in (True, False, False):
        assert command.restore(config, [disk], command.Wanted(dry_run=dry_run, skip_damage=True), as_json=True) == 4
        (found,) = json.loads(capsys.readouterr().out)["partitions"]
        assert found["lost"] == [{"first_offset": 60, "last_offset": 69, "reason": "damage"}]
        assert "offsets 20 to 29 are on the target, and stay there" in found["notes"]
    assert losses_of(config) == [(60, 70, "damage")]
    values = [b"%d" % number for number in range(90) if number // 10 != 6]
    assert [one[4] for one in read(target, topic_name, 0)] == values


@pytest.mark.brokers
@pytest.mark.usefixtures("without_spark")
@pytest.mark.parametrize("offsets", ["preserve", "translate"])
def test_what_a_copy_lacks_and_the_files_have_is_not_restored_whole(
    own_source: Cluster,
    own_target: Cluster,
    topic_name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    offsets: str,
) -> None:
    """The flow went on behind a loss, and a disk that is found later has those records. Under another name they are
    restored, as the advice has it.
    """
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name)
    produce(source, topic_name, [b"%d" % number for number in range(20)])
    more: dict[str, Any] = {"flow": topic_name, "offsets": offsets, "on_data_loss": "continue"}
    config = load(config_file(tmp_path, source, target, [topic_name], **more))
    assert run_once(config).exit_code == ExitCode.DONE
    produce(source, topic_name, [b"%d" % number for number in range(20, 50)])
    disk = disk_of(own_source, topic_name, tmp_path / "disk")
    expire(source, topic_name, 30)
    assert run_once(config).exit_code == ExitCode.DONE
    assert losses_of(config) == [(20, 30, "retention")]
    for dry_run in (True, False):
        assert command.restore(config, [disk], command.Wanted(dry_run=dry_run), as_json=True) == 4
        (found,) = json.loads(capsys.readouterr().out)["partitions"]
        assert any("the copy lacks offsets 20 to 29, which these files have" in note for note in found["notes"])
        assert dry_run or not found["whole"]
    other = load(config_file(tmp_path, source, target, [topic_name], **more, naming={"prefix": "again."}))
    assert command.restore(other, [disk], command.Wanted(groups=False), as_json=True) == 0
    assert len(list(read(target, f"again.{topic_name}", 0))) == 50


@pytest.mark.brokers
@pytest.mark.usefixtures("without_spark")
@pytest.mark.parametrize("offsets", ["preserve", "translate"])
def test_files_of_a_source_that_was_cut_back_are_not_written_behind_the_copy(
    broker: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path, offsets: str
) -> None:
    """It grew again, and its producer sent its last batch once more: the copy's last one is in the files, and only
    their leader epochs show the cut. Once a mirror has seen it, its stop stands in the journal.
    """
    source, target = broker.bootstrap, own_target.bootstrap
    make_topic(source, topic_name)
    produce(source, topic_name, values(20), batch=5)
    file = config_file(tmp_path, source, target, [topic_name], flow=topic_name, offsets=offsets)
    config = load(file)
    assert run_once(config).exit_code == ExitCode.DONE
    assert crash_and_cut(broker, topic_name, below=10) == 10
    produce(source, topic_name, [b"other"] * 5, batch=5)
    produce(source, topic_name, values(20)[15:], batch=5, begin_ms=RECENT_MS + 15)
    produce(source, topic_name, [b"more"] * 5, batch=5)
    before, disk = [*read(target, topic_name, 0)], disk_of(broker, topic_name, tmp_path / "disk")

    def refused() -> str:
        reported = ""
        for more in ([], ["--dry-run"]):
            code, found = restore_here(file, disk, *more)
            assert code == ExitCode.DATA_AT_RISK, found
            reported += json.dumps(found["partitions"])
        assert [*read(target, topic_name, 0)] == before
        return reported

    assert "TRUNCATED: leader epoch" in refused()
    assert run_once(config).exit_code == ExitCode.DATA_AT_RISK
    assert "TRUNCATED: leader epoch" in refused()


def expire(bootstrap: str, topic: str, before: int) -> None:
    """Delete the records of partition 0 below an offset."""

    async def gone() -> None:
        host, port = bootstrap.split(":")
        async with KafkaCluster(Endpoint("any", ((host, int(port)),))) as cluster:
            await cluster.refresh([topic])
            await delete_records(cluster, TopicPartition(topic, 0), before)

    asyncio.run(gone())


#: Older than a broker keeps records by default.
OLD_MS = int(time.time()) * 1000 - 30 * 86_400_000


@pytest.mark.brokers
@pytest.mark.usefixtures("without_spark")
def test_old_records_into_a_missing_topic_never_expire(
    own_source: Cluster,
    own_target: Cluster,
    topic_name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The target's default of seven days would delete what was restored, and its log's end would never go back."""
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name, configs={"retention.ms": "-1"})
    produce(source, topic_name, [b"%d" % number for number in range(100)], begin_ms=OLD_MS)
    config = load(config_file(tmp_path, source, target, [topic_name], flow=topic_name))
    assert command.restore(config, [own_source.nodes[0].data], command.Wanted(dry_run=False), as_json=False) == 0
    output = capsys.readouterr().out
    assert "1 of 1 partition restored whole" in output
    assert f"{topic_name} keeps every record (retention.ms=-1, retention.bytes=-1) until you set what it had" in output
    assert f"kafka-configs.sh --bootstrap-server {target} --alter --entity-type topics" in output
    configs = Admin(config.target).topic_configs([topic_name])[topic_name]
    held = ("retention.ms", "retention.bytes", "cleanup.policy", "message.timestamp.type")
    assert [configs[name].value for name in held] == ["-1", "-1", "delete", "CreateTime"]
    assert len(list(read(target, topic_name, 0))) == 100


@pytest.mark.brokers
@pytest.mark.usefixtures("without_spark")
def test_a_target_that_would_delete_what_is_restored_is_refused_before_anything_is_written(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name, 2, configs={"retention.ms": "-1", "message.timestamp.before.max.ms": str(2**63 - 1)})
    make_topic(target, topic_name, 2)
    produce(source, topic_name, [b"%d" % number for number in range(100)])
    produce(source, topic_name, [b"%d" % number for number in range(100)], partition=1, begin_ms=OLD_MS)
    config = load(config_file(tmp_path, source, target, [topic_name], flow=topic_name))
    admin, folder = Admin(config.target), own_source.nodes[0].data

    def restore_now() -> int:
        return command.restore(config, [folder], command.Wanted(dry_run=False), as_json=False)

    with pytest.raises(PreflightError, match=r"the files have some that are 30\.0 days old") as refused:
        restore_now()
    assert "--add-config retention.ms=-1,retention.bytes=-1" in str(refused.value)
    change = ConfigChange(topic=topic_name, name="retention.ms", before=None, after="-1")
    admin.alter_configs([change, replace(change, name="retention.bytes", after="1000")])
    with pytest.raises(PreflightError, match="keeps 1,000 bytes of a partition, and the files have"):
        restore_now()
    assert log_ends(target, topic_name, 2) == [0, 0], "nothing was written"
    admin.alter_configs([replace(change, name="retention.bytes")])
    assert restore_now() == 0
    assert log_ends(target, topic_name, 2) == [100, 100]


@pytest.mark.brokers
@pytest.mark.usefixtures("without_spark")
def test_an_old_record_behind_young_ones_is_seen_before_its_partition_is_written(
    own_source: Cluster,
    own_target: Cluster,
    topic_name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No scan at a segment's first batch shows it."""
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name, configs={"retention.ms": "-1"})
    make_topic(target, topic_name)
    produce(source, topic_name, [b"young"])
    produce(source, topic_name, [b"old"], begin_ms=OLD_MS)
    config = load(config_file(tmp_path, source, target, [topic_name], flow=topic_name))
    for dry_run in (True, False):
        assert command.restore(config, [own_source.nodes[0].data], command.Wanted(dry_run=dry_run), as_json=False) == 4
        assert "30.0 days old; nothing was written" in capsys.readouterr().out
        assert log_ends(target, topic_name, 1) == [0]


@pytest.mark.brokers
@pytest.mark.usefixtures("without_spark")
def test_records_that_the_target_deletes_meanwhile_do_not_count_as_restored(
    own_source: Cluster,
    own_target: Cluster,
    topic_name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name)
    produce(source, topic_name, [b"%d" % number for number in range(100)])
    config = load(config_file(tmp_path, source, target, [topic_name], flow=topic_name))

    async def expire() -> None:
        async with KafkaCluster(Endpoint.of(config.target)) as cluster:
            await cluster.refresh([topic_name])
            await delete_records(cluster, TopicPartition(topic_name, 0), 60)

    folder = own_source.nodes[0].data
    assert command.restore(config, [folder], command.Wanted(dry_run=False), as_json=False) == 0
    asyncio.run(expire())
    capsys.readouterr()
    assert command.restore(config, [folder], command.Wanted(dry_run=False), as_json=False) == 4
    output = capsys.readouterr().out
    assert "the copy lacks offsets 0 to 59, which these files have: the target has deleted them" in output
    assert "0 of 1 partition restored whole" in output


@pytest.mark.brokers
@pytest.mark.usefixtures("without_spark")
@pytest.mark.parametrize("offsets", ["preserve", "translate"])
@pytest.mark.parametrize(
    ("start", "gone", "why"),
    [("earliest", 10, "0 to 9, .*the target has deleted"), ("latest", 0, "0 to 29, .*began at offset 30")],
)
def test_a_copy_that_begins_behind_the_files_is_not_whole(
    own_source: Cluster,
    own_target: Cluster,
    topic_name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    offsets: str,
    start: str,
    gone: int,
    why: str,
) -> None:
    """Whatever offsets it has; a dry run foresees it. Nor is a group put behind records that it has not read."""
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name)
    produce(source, topic_name, values(30))
    more: dict[str, Any] = {"flow": topic_name, "offsets": offsets, "start": start}
    config = load(config_file(tmp_path, source, target, [topic_name], **more))
    assert run_once(config).exit_code == ExitCode.DONE
    produce(source, topic_name, values(30))
    assert run_once(config).exit_code == ExitCode.DONE
    if gone:
        delete_before(own_target, topic_name, gone)
    commit(source, topic_name, topic_name, 5)
    for path in own_source.nodes[0].data.glob("__consumer_offsets-*"):
        shutil.copytree(path, tmp_path / "disk" / path.name)
    disk = disk_of(own_source, topic_name, tmp_path / "disk")
    for dry_run in (True, False):
        capsys.readouterr()
        code = command.restore(config, [disk], command.Wanted(dry_run=dry_run), as_json=True)
        report = json.loads(capsys.readouterr().out)
        (found,) = report["partitions"]
        assert (code, found["at_risk"]) == (ExitCode.DATA_AT_RISK, True), found
        assert re.search(f"lacks offsets {why}", str(found["notes"])), found
    assert start == "earliest" or committed(target, topic_name, topic_name) < 0, report["groups"]


@pytest.mark.brokers
@pytest.mark.usefixtures("without_spark")
def test_disks_of_another_cluster_than_the_flows_are_refused(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    """By the configuration, and by what the flow has copied so far: no topic of that cluster is made on the target."""
    source, target, other = own_source.bootstrap, own_target.bootstrap, f"{topic_name}-other"
    make_topic(source, topic_name)
    produce(source, topic_name, values(10))
    path = config_file(tmp_path, source, target, [f"{topic_name}.*"], flow=topic_name)
    config, folder = load(path), own_source.nodes[0].data
    named = config.keeping_to("AAAAAAAAAAAAAAAAAAAABw", None)
    for dry_run in (True, False):
        with pytest.raises(ConfigError, match=r"AAAAAAAAAAAAAAAAAAAABw \(source\.cluster_id\)"):
            command.restore(named, [folder], command.Wanted(dry_run=dry_run), as_json=True)
    assert command.restore(config, [folder], command.Wanted(), as_json=True) == ExitCode.DONE
    shutil.copytree(folder / f"{topic_name}-0", tmp_path / "disk" / f"{other}-0")
    (tmp_path / "disk" / "meta.properties").write_text("cluster.id=another\n")
    for dry_run in (True, False):
        with pytest.raises(ConfigError, match=rf"of cluster another, .* {own_source.cluster_id} \(the flow's journal"):
            command.restore(config, [tmp_path / "disk"], command.Wanted(dry_run=dry_run), as_json=True)
    assert not Admin(config.target).describe([other])


@pytest.mark.brokers
@pytest.mark.usefixtures("without_spark")
def test_what_cannot_be_restored_is_refused(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name, 2)
    make_topic(target, topic_name, 1)
    produce(source, topic_name, [b"one"], partition=1)
    config = load(config_file(tmp_path, source, target, [topic_name, "nothing-of-it"], flow=topic_name))
    with pytest.raises(PreflightError) as refused:
        command.restore(config, [own_source.nodes[0].data], command.Wanted(dry_run=True), as_json=True)
    assert "nothing-of-it: there are no files of it in these folders" in str(refused.value)
    assert f"{topic_name}: 1 of the 2 partitions in the files are on the target" in str(refused.value)
    with pytest.raises(ConfigError, match="no such folder"):
        command.restore(config, [tmp_path / "gone"], command.Wanted(dry_run=True), as_json=True)


ELSEWHERE = Owner(instance="elsewhere", host="elsewhere", pid=7, at_ms=0, claim=50)


async def append(config: Settings, *entries: tuple[bytes, bytes | None]) -> None:
    """Records of the flow's journal."""
    async with KafkaCluster(Endpoint.of(config.target)) as cluster:
        journal = Journal(cluster, config.flow)
        await cluster.refresh([journal.partition.topic])
        await journal.append(entries)


@contextlib.contextmanager
def a_mirror_elsewhere(config: Settings) -> Iterator[None]:
    """One that says every moment that it has the flow, until somebody takes it over."""
    begun, ended = threading.Event(), threading.Event()

    async def says_so() -> None:
        async with KafkaCluster(Endpoint.of(config.target)) as cluster:
            seen = Watched(Journal(cluster, config.flow))
            await cluster.refresh([seen.journal.partition.topic])
            while not ended.is_set():
                await seen.poll()
                if seen.claims.owner is not None and seen.claims.owner.instance != ELSEWHERE.instance:
                    await seen.journal.append([(ENDED, json.dumps({"instance": ELSEWHERE.instance}).encode())])
                    return
                await seen.journal.append([(OWNER, ELSEWHERE.to_json())])
                begun.set()
                await asyncio.sleep(0.2)

    with ThreadPoolExecutor(1) as threads:
        saying = threads.submit(lambda: asyncio.run(says_so()))
        try:
            assert begun.wait(60), saying
            yield
        finally:
            ended.set()
            saying.result()


@pytest.mark.brokers
@pytest.mark.usefixtures("without_spark")
def test_a_flow_that_a_mirror_runs_is_refused_or_taken_over(
    own_source: Cluster,
    own_target: Cluster,
    topic_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By its claim in the journal; and a restore of which the flow is taken while it runs writes nothing more."""
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name)
    produce(source, topic_name, [b"%d" % number for number in range(100)])
    config = load(config_file(tmp_path, source, target, [topic_name], flow=topic_name))
    admin, folder = Admin(config.target), own_source.nodes[0].data
    ensure_flow_topic(admin, config.flow)
    with a_mirror_elsewhere(config):
        for dry_run in (True, False):
            with pytest.raises(PreflightError, match=r"a mirror runs already \(pid 7 on elsewhere\)"):
                command.restore(config, [folder], command.Wanted(dry_run=dry_run), as_json=True)
        assert not admin.describe([topic_name]), "nothing was made"
        here = restoring.restore_on_spark

        def taken_meanwhile(settings: Any, flow: str, portions: Sequence[Portion], done: Any) -> None:
            theirs = replace(ELSEWHERE, instance="third", claim=99)
            asyncio.run(append(config, (OWNER, theirs.to_json())))
            here(settings, flow, portions, done)

        with monkeypatch.context() as patched:
            patched.setattr("mirror.spark.restore.restore_on_spark", taken_meanwhile)
            code = command.restore(config, [folder], command.Wanted(take_over=True), as_json=True)
    assert code == 6
    assert log_ends(target, topic_name, 1) == [0], "nothing was written"
    asyncio.run(append(config, (ENDED, json.dumps({"instance": "third"}).encode())))

    def taken_behind_it(settings: Any, flow: str, portions: Sequence[Portion], done: Any) -> None:
        here(settings, flow, portions, done)
        asyncio.run(append(config, (OWNER, replace(ELSEWHERE, instance="fourth", claim=199).to_json())))

    def touched(*_: Any) -> Any:
        raise AssertionError("the flow is another mirror's")

    capsys.readouterr()
    with monkeypatch.context() as patched:
        patched.setattr("mirror.spark.restore.restore_on_spark", taken_behind_it)
        patched.setattr(command, "_set", touched)
        patched.setattr(command, "_groups", touched)
        assert command.restore(config, [folder], command.Wanted(), as_json=True) == 6
    assert "a mirror (pid 7 on elsewhere" in json.loads(capsys.readouterr().out)["taken_over"]
    asyncio.run(append(config, (ENDED, json.dumps({"instance": "fourth"}).encode())))
    assert command.restore(config, [folder], command.Wanted(), as_json=True) == 0
    assert log_ends(target, topic_name, 1) == [100]


@pytest.mark.brokers
@pytest.mark.usefixtures("without_spark")
def test_a_flow_that_is_failed_over_meanwhile_is_written_to_no_more(
    own_source: Cluster,
    own_target: Cluster,
    topic_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whoever uses its topics from then on must not meet records, settings or offsets of groups that come late."""
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name)
    for _ in range(40):
        produce(source, topic_name, [b"x" * 20] * 10)
    file = config_file(tmp_path, source, target, [topic_name], flow=topic_name)
    output, folder = json.loads(file.read_text()), own_source.nodes[0].data
    file.write_text(json.dumps(output | {"limits": {"bytes_per_second": 1000}}))
    slow = load(file)

    def failed_over() -> None:
        wait_for(lambda: log_ends(target, topic_name, 1)[0] > 0, 60, lambda: "nothing came")
        asyncio.run(append(slow, (KEY, FailedOver.here().to_json())))

    def touched(*_: Any) -> Any:
        raise AssertionError("the flow was failed over")

    with monkeypatch.context() as patched, ThreadPoolExecutor(1) as threads:
        patched.setattr(command, "_set", touched)
        patched.setattr(command, "_groups", touched)
        somebody = threads.submit(failed_over)
        code = command.restore(slow, [folder], command.Wanted(), as_json=True)
        somebody.result()
    report = json.loads(capsys.readouterr().out)
    assert code == 6
    assert "the flow was failed over" in report["taken_over"]
    assert log_ends(target, topic_name, 1)[0] < 400
    asyncio.run(append(slow, (KEY, None)))
    file.write_text(json.dumps(output))
    assert restore_here(file, folder)[0] == 0, "taken back, it is restored"
    assert log_ends(target, topic_name, 1) == [400]


@pytest.mark.brokers
@pytest.mark.usefixtures("without_spark")
def test_a_topic_that_was_made_anew_meanwhile_gets_nothing_of_the_lost_one(
    broker: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither settings, which may delete what a stranger wrote to it, nor offsets of groups; and it is not whole."""
    source, target, group = broker.bootstrap, own_target.bootstrap, f"{topic_name}-group"
    make_topic(source, topic_name, configs={"retention.ms": "7200000"})
    produce(source, topic_name, [b"%d" % number for number in range(50)])
    commit(source, group, topic_name, 30)
    broker.kill(0)
    copied = command._run

    def run(*arguments: Any, **options: Any) -> Any:
        found = copied(*arguments, **options)
        delete_topics(target, topic_name)
        make_topic(target, topic_name)
        produce(target, topic_name, [b"a stranger's"] * 60)
        return found

    monkeypatch.setattr(command, "_run", run)
    config = config_file(tmp_path, source, target, [topic_name], flow=topic_name)
    code, report = restore_here(config, broker.nodes[0].data)
    assert code == ExitCode.DATA_AT_RISK
    (partition,) = report["partitions"]
    assert not partition["whole"]
    assert "was deleted, or made anew, since this restore began" in partition["notes"][-1]
    configs = Admin(load(config).target).topic_configs([topic_name])[topic_name]
    assert configs["retention.ms"].value != "7200000"
    assert committed(target, group, topic_name) < 0


@pytest.mark.brokers
@pytest.mark.usefixtures("without_spark")
def test_a_topic_that_is_not_the_flows_is_not_written_to(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    """Though its records are the same: that is not known, and who made it may write on."""
    source, target = own_source.bootstrap, own_target.bootstrap
    keeping = {"retention.ms": "-1", "message.timestamp.before.max.ms": str(2**63 - 1)}
    for bootstrap in (source, target):
        make_topic(bootstrap, topic_name, configs=keeping)
        produce(bootstrap, topic_name, [b"%d" % number for number in range(50)])
    produce(source, topic_name, [b"more"])
    config = load(config_file(tmp_path, source, target, [topic_name], flow=topic_name))
    with pytest.raises(PreflightError, match="this flow's journal does not name it: nothing is written to it"):
        command.restore(config, [own_source.nodes[0].data], command.Wanted(), as_json=True)
    assert log_ends(target, topic_name, 1) == [50]
    assert not Admin(config.target).describe([journal_topic(config.flow)]), "a refusal leaves no trace"


@pytest.mark.brokers
@pytest.mark.usefixtures("without_spark")
def test_a_topic_of_which_no_folder_is_there_is_missed(
    own_source: Cluster,
    own_target: Cluster,
    topic_name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One of several log.dirs was forgotten: the metadata log knows what lay there."""
    source, target, other = own_source.bootstrap, own_target.bootstrap, f"{topic_name}-b"
    config = load(config_file(tmp_path, source, target, [f"{topic_name}.*"], flow=topic_name))
    folder, given = own_source.nodes[0].data, tmp_path / "given"
    for name in (topic_name, other):
        make_topic(source, name)
        produce(source, name, [b"x"])
    shutil.copytree(folder / f"{topic_name}-0", given / f"{topic_name}-0")
    shutil.copytree(folder / "__cluster_metadata-0", given / "__cluster_metadata-0")
    for dry_run in (True, False):
        assert command.restore(config, [given], command.Wanted(dry_run=dry_run), as_json=True) == ExitCode.DATA_AT_RISK
        assert json.loads(capsys.readouterr().out)["missing"] == [f"{other}-0"]
    assert [record[4] for record in read(target, topic_name, 0)] == [b"x"]


@pytest.mark.brokers
@pytest.mark.usefixtures("without_spark")
@pytest.mark.parametrize("offsets", ["preserve", "translate"])
def test_a_dry_run_sees_a_copy_that_the_files_do_not_join(
    own_source: Cluster,
    own_target: Cluster,
    topic_name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    offsets: str,
) -> None:
    """It ends at 20, and the first record of the files is 30: the same stop, and the same exit code, as the real run's.
    Where they begin at 10 there is none.
    """
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name)
    for _ in range(2):
        produce(source, topic_name, [b"x"] * 10)
    config = load(config_file(tmp_path, source, target, [topic_name], flow=topic_name, offsets=offsets))
    assert command.restore(config, [own_source.nodes[0].data], command.Wanted(), as_json=True) == 0
    produce(source, topic_name, [b"y"] * 20)
    capsys.readouterr()
    disk = tmp_path / "disk"
    shutil.copytree(own_source.nodes[0].data / f"{topic_name}-0", disk / f"{topic_name}-0")
    shutil.copy(own_source.nodes[0].data / CHECKPOINT, disk)
    for first, codes in ((10, (10,)), (30, (4, 4))):
        (disk / "log-start-offset-checkpoint").write_text(f"0\n1\n{topic_name} 0 {first}\n")
        for dry_run, code in zip((True, False), codes, strict=False):
            wanted = command.Wanted(groups=False, dry_run=dry_run)
            assert command.restore(config, [disk], wanted, as_json=True) == code
            (found,) = json.loads(capsys.readouterr().out)["partitions"]
            assert code == 10 or "the source deleted offsets 20 to 29 before they were mirrored" in str(found)


@pytest.mark.brokers
@pytest.mark.usefixtures("without_spark")
def test_folders_of_a_deleted_topic_are_left_out(
    own_source: Cluster,
    own_target: Cluster,
    topic_name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One topic was deleted, and another one has its name; a broker that was away then still has the first one's."""
    source, target = own_source.bootstrap, own_target.bootstrap
    config = load(config_file(tmp_path, source, target, [topic_name], flow=topic_name))
    admin, folder, old = Admin(config.source), own_source.nodes[0].data, tmp_path / "old"
    make_topic(source, topic_name, 2)
    produce(source, topic_name, [b"old"])
    shutil.copytree(folder / f"{topic_name}-0", old / f"{topic_name}-0")
    remove_topics(admin, topic_name)
    wait_until(lambda: not admin.describe([topic_name]))
    make_topic(source, topic_name, 1)
    produce(source, topic_name, [b"new"])
    for dry_run, code in ((True, 10), (False, 0)):
        wanted = command.Wanted(dry_run=dry_run)
        assert command.restore(config, [old, folder], wanted, as_json=True) == code
        notes = json.loads(capsys.readouterr().out)["notes"]
        assert any(f"{old / topic_name}-0 is left out: its topic (id " in note for note in notes)
    assert [record[4] for record in read(target, topic_name, 0)] == [b"new"]
    metadata = folder / "__cluster_metadata-0"
    with pytest.raises(PreflightError, match="is left out: its topic"):  # and that none of the new one is there
        command.restore(config, [old, metadata], command.Wanted(dry_run=True), as_json=True)


@pytest.mark.brokers
@pytest.mark.usefixtures("without_spark")
def test_a_partition_begins_where_the_replica_in_sync_does(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    """By the metadata log, which says who was: another broker had deleted more by its own retention."""
    source, target = own_source.bootstrap, own_target.bootstrap
    config = config_file(tmp_path, source, target, [topic_name], flow=topic_name)
    make_topic(source, topic_name)
    produce(source, topic_name, [b"%d" % number for number in range(9)])
    folder, other = own_source.nodes[0].data, tmp_path / "other"
    ahead = shutil.copytree(folder / f"{topic_name}-0", other / f"{topic_name}-0")
    (ahead / "leader-epoch-checkpoint").write_text("0\n1\n0 5\n")
    (other / "log-start-offset-checkpoint").write_text(f"0\n1\n{topic_name} 0 5\n")
    properties = (folder / "meta.properties").read_text()
    (other / "meta.properties").write_text(re.sub("(?m)^node.id=.*", "node.id=99", properties))
    found = restore_here(config, folder, "--from", str(other), "--dry-run")[1]["partitions"][0]
    assert (found["start"], found["end"], found["at_risk"]) == (0, 9, False), found


def wait_until(condition: Callable[[], bool]) -> None:
    """What a cluster does by itself may take a moment."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
