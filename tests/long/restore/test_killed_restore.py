"""`mirror restore` as a process, on Spark, that is killed; and what a snapshot of the metadata log says."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
from brokerlogs import folders_of
from helpers import config_file, make_topic, produce, stored_batches
from samerecords import assert_same_records, log_ends
from syncing import read_journal
from transactional import transactions
from waiting import until

from mirror.config import load
from mirror.errors import ExitCode
from mirror.journal.entries import COPIES
from mirror.kafka.cluster import Endpoint
from mirror.lab.embedded import Cluster
from mirror.segments.cluster_logs import METADATA, topics_in


def command(config: Path, folder: Path) -> list[str]:
    return [sys.executable, "-m", "mirror", "restore", str(config), "--from", str(folder), "--json"]


def restored(config: Path, folder: Path) -> tuple[int, Any]:
    """Return the exit code of `mirror restore --json`, and what it printed."""
    done = subprocess.run(command(config, folder), capture_output=True, text=True, timeout=400, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all that it started, and wait for their ends."""
    tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for one in tree:
        with contextlib.suppress(psutil.NoSuchProcess):  # one that ended by itself
            one.kill()
    process.wait()
    assert not psutil.wait_procs(tree[1:], 60)[1]


def test_a_restore_that_is_killed_and_started_again_writes_nothing_twice(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    """Driver, JVM and workers at once, in the middle of a partition at least."""
    source, target, topic = own_source.bootstrap, own_target.bootstrap, topic_name
    make_topic(source, topic, 2)
    transactions(source, topic, [True, False])
    for partition in (0, 1):
        produce(source, topic, [b"%d" % number + bytes(2_000) for number in range(1_000)], partition=partition)
    transactions(source, topic, [False, True], name="again")
    ends = [stored_batches(source, topic, partition)[-1].header.next_offset for partition in (0, 1)]
    config, folder = config_file(tmp_path, source, target, [topic], flow=topic), own_source.nodes[0].data
    unbound = config.read_text()  # and bound, it takes some eight seconds
    config.write_text(json.dumps(json.loads(unbound) | {"limits": {"bytes_per_second": 500_000}}))
    with (tmp_path / "log").open("w") as log, subprocess.Popen(command(config, folder), stdout=log, stderr=log) as run:
        try:

            def is_underway() -> bool:
                assert run.poll() is None, "it was over before the kill"
                there = log_ends(target, topic)
                return bool(there) and all(5 * there[number].end >= ends[number] for number in (0, 1))

            until(is_underway)
        finally:
            kill_tree(run)
    reached = [one.end for one in log_ends(target, topic).values()]
    assert any(0 < at < end for at, end in zip(reached, ends, strict=True)), "nothing was tested"
    named = COPIES.newest(read_journal(Endpoint.of(load(config).target), topic))
    assert {name: one.cluster_id for name, one in named.items()} == {topic: own_source.cluster_id}, (
        "a mirror that runs now knows the copy as the flow's"
    )
    config.write_text(unbound)
    code, report = restored(config, folder)
    assert (code, [one["next_offset"] for one in report["partitions"]]) == (ExitCode.DONE, ends)
    for at, end, one in zip(reached, ends, report["partitions"], strict=True):
        assert one["records"] <= end - at
    assert assert_same_records(source, target, topic, 2) == 2_010


def test_a_snapshot_of_the_metadata_log_says_what_the_log_says_no_more(tmp_path: Path) -> None:
    """A cluster that takes snapshots, and deletes its log below them. A damaged one is left out for the one before."""
    config = {
        "metadata.log.max.record.bytes.between.snapshots": 500,
        "metadata.log.segment.bytes": 8 << 20,
        "metadata.log.max.snapshot.interval.ms": 1000,
    }
    with Cluster.start(name="snapshots", folder=tmp_path / "one", config=config) as cluster:
        for number in range(5):
            make_topic(cluster.bootstrap, f"topic-{number}", 2, {"retention.ms": f"{number + 1}"})
        (folder,) = folders_of(cluster, METADATA.topic)[0]
        until(lambda: any(int(one.name[:20]) > 30 for one in folder.glob("*.checkpoint")))
        make_topic(cluster.bootstrap, "last", 1)
        until(lambda: "last" in (found.topics if (found := topics_in([folder])) else {}))
        cluster.kill(0)
    found = topics_in([folder])
    assert found is not None
    whole = {name: (one.partition_count, one.configs) for name, one in found.topics.items()}
    assert {f"topic-{number}": (2, {"retention.ms": f"{number + 1}"}) for number in range(5)}.items() <= whole.items()
    assert found.is_whole
    assert found.voters == {cluster.nodes[0].id}
    newest = max(folder.glob("*.checkpoint"))
    newest.write_bytes(newest.read_bytes()[:-20])
    former = topics_in([folder])
    assert former is not None
    assert any("is left out" in note for note in former.notes)
    assert {name: (one.partition_count, one.configs) for name, one in former.topics.items()} == whole
    assert former.voters == found.voters, "who votes was written below the snapshot"
