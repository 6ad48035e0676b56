"""Spark as plain flows use it: a run, a task that fails, a proof and a restore in tasks; and what the JVM itself says
of settings, property files and its archive of classes.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pytest
import yaml
from deployment import CONFIGS, HOME, flow_map, submitted
from helpers import config_file, make_topic, produce, settings_between, stored_batches
from pair import Shared
from pyspark import SparkContext
from samerecords import assert_same_records
from sparkcontext import context
from sparkless import run_once
from transactional import transactions
from typer.testing import CliRunner

from mirror.cli import app
from mirror.errors import ExitCode
from mirror.mm2.properties import BadProperties, parse
from mirror.spark import class_archive

__all__ = ["context"]

# --- a flow in tasks of Spark -----------------------------------------------------------------------------------------


def filled(bootstrap: str, topic: str) -> None:
    """Two partitions of compressed batches, one with transactions."""
    make_topic(bootstrap, topic, 2)
    produce(bootstrap, topic, [b"%d" % number for number in range(300)], codec="zstd")
    transactions(bootstrap, topic, [True, False])
    produce(bootstrap, topic, [b"other %d" % number for number in range(50)], partition=1, codec="lz4")


def assert_same_bytes(source: str, target: str, topic: str) -> None:
    """Each batch outside of transactions has its records section at its offset."""
    for partition in range(2):
        copies = {raw.header.base_offset: bytes(raw.records) for raw in stored_batches(target, topic, partition)}
        batches = [raw for raw in stored_batches(source, topic, partition) if not raw.header.is_transactional]
        assert batches
        assert all(copies[raw.header.base_offset] == bytes(raw.records) for raw in batches)


@pytest.mark.proves("same-bytes", "same-offsets", "exactly-once", "RESTAMP", "mirror run")
@pytest.mark.parametrize("fails", [False, True])
def test_a_bounded_copy_in_tasks_of_spark(
    source_cluster: Shared,
    target_cluster: Shared,
    topic_name: str,
    context: SparkContext,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fails: bool,
) -> None:
    """Also where a task fails when it has copied all, and Spark tries it again."""
    source, target = source_cluster.bootstrap, target_cluster.bootstrap
    filled(source, topic_name)
    has_failed = tmp_path / "has-failed"

    def relay(tasks: Iterable[Any]) -> Iterator[Any]:  # nested, so that Spark's workers get its code
        from mirror.spark.task import relay as relayed

        results = list(relayed(tasks))
        if not has_failed.exists():
            has_failed.touch()
            raise RuntimeError("this task fails once")
        yield from results

    if fails:
        monkeypatch.setattr("mirror.spark.jobs.relay", relay)
    outcome = run_once(settings_between(source, target, [topic_name], topic_name), context)
    assert outcome.exit_code == ExitCode.DONE
    assert has_failed.exists() is fails
    assert assert_same_records(source, target, topic_name, 2) == 355
    assert_same_bytes(source, target, topic_name)


@pytest.mark.proves("mirror verify", "never-silent")
@pytest.mark.usefixtures("context")
def test_tasks_of_spark_prove_what_one_process_proves(
    source_cluster: Shared,
    target_cluster: Shared,
    topic_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Down to the digests, in many ranges; and a foreign record is named."""
    source, target = source_cluster.bootstrap, target_cluster.bootstrap
    filled(source, topic_name)
    assert run_once(settings_between(source, target, [topic_name], topic_name)).exit_code == ExitCode.DONE
    produce(target, topic_name, [b"foreign"], partition=1)
    config = config_file(tmp_path, source, target, [topic_name], topic_name)
    monkeypatch.setattr("mirror.verify.ranges.RANGE_BYTES", 1000)
    page, found = tmp_path / "pages" / "proof.html", {}
    page.parent.mkdir()
    for way in ("--no-spark", "--spark"):
        done = CliRunner().invoke(app, ["verify", str(config), "--json", "--report", str(page), way])
        assert done.exit_code == ExitCode.DIFFERENT, done.output
        found[way] = json.loads(done.stdout)
        assert [(one["partition"], one["offset"]) for one in found[way]["differences"]] == [(1, 50)]
    assert (found["--spark"]["spark"], found["--no-spark"]["spark"]) == (True, False)
    by_spark, by_one_process = (found[way]["partitions"] for way in ("--spark", "--no-spark"))
    for digest in ("source_digest", "target_digest"):
        assert [one[digest] for one in by_spark] == [one[digest] for one in by_one_process]
    text = page.read_text(encoding="utf-8")
    assert "by tasks of Apache Spark" in text
    assert by_spark[0]["source_digest"] in text
    assert [path.name for path in page.parent.iterdir()] == [page.name], "nothing is left to go on from"


@pytest.mark.proves("same-bytes", "same-offsets", "mirror restore")
@pytest.mark.usefixtures("context")
def test_tasks_of_spark_restore_a_topic_from_a_brokers_disk(
    source_cluster: Shared, target_cluster: Shared, topic_name: str, tmp_path: Path
) -> None:
    source, target = source_cluster.bootstrap, target_cluster.bootstrap
    filled(source, topic_name)
    disk = tmp_path / "disk"
    for number in range(2):
        shutil.copytree(source_cluster.data / f"{topic_name}-{number}", disk / f"{topic_name}-{number}")
    shutil.copy(source_cluster.data / "meta.properties", disk)
    replicated = f"0\n2\n{topic_name} 0 312\n{topic_name} 1 50\n"  # as the broker writes it when it stops
    (disk / "replication-offset-checkpoint").write_text(replicated)
    config = config_file(tmp_path, source, target, [topic_name], topic_name)
    done = CliRunner().invoke(app, ["restore", str(config), "--from", str(disk), "--json"])
    assert done.exit_code == ExitCode.DONE, done.stdout
    assert [one["whole"] for one in json.loads(done.stdout)["partitions"]] == [True, True]
    assert assert_same_records(source, target, topic_name, 2) == 355
    assert_same_bytes(source, target, topic_name)


# --- what the JVM says ------------------------------------------------------------------------------------------------

#: What Spark takes by a prefix, and what it reads without an entry of its own.
FAMILIES = ("spark.yarn.appMasterEnv.", "spark.executorEnv.")
PLAIN = {"spark.master", "spark.app.name", "spark.local.dir"}
REGISTRIES = (
    *("internal.config.package$", "internal.config.Python$", "internal.config.UI$", "internal.config.Network$"),
    *("internal.config.Deploy$", "internal.config.Worker$", "deploy.k8s.Config$", "deploy.yarn.config.package$"),
)


@pytest.fixture
def is_known(context: SparkContext) -> Callable[[str], bool]:
    """Whether this version of Spark has a setting, by its own registry."""
    jvm: Any = context._jvm
    for name in REGISTRIES:
        jvm.java.lang.Class.forName(f"org.apache.spark.{name}")  # which enters what it defines
    entries = jvm.org.apache.spark.internal.config.ConfigEntry
    return lambda key: key in PLAIN or f"{key}.".startswith(FAMILIES) or entries.findEntry(key) is not None


def test_spark_knows_every_setting_of_the_manifests_and_of_the_guide(is_known: Callable[[str], bool]) -> None:
    standalone = yaml.safe_load((CONFIGS / "standalone" / "eu-to-us.yaml").read_text(encoding="utf-8"))["spark"]["conf"]
    kubernetes = yaml.safe_load(flow_map()["eu-to-us.yaml"])["spark"]["conf"]
    guide = (HOME / "docs" / "clusters.md").read_text(encoding="utf-8")
    named = re.findall(r"(?<![\w./`$-])`?(spark\.[a-zA-Z]+(?:\.[a-zA-Z]+)*)(?![\w/])", guide)
    of_the_flow = {"spark.tasks", "spark.conf", "spark.epoch_s"}
    ours = {key for key in named if key not in of_the_flow and not re.search(r"\.(md|py)$", key)}
    assert len(ours) >= 20
    assert [key for key in {*ours, *standalone, *kubernetes, *submitted()} if not is_known(key)] == []
    assert not is_known("spark.executor.memoryOverhed")


def test_java_reads_property_files_alike(context: SparkContext) -> None:
    jvm: Any = context._jvm
    random = Random(7)
    pieces = ["a", "b", "=", ":", "\\", "\\\\", "#", "!", "\t", "\f", "\n", "\r", "\r\n", "\\\n", " ", "  "]
    pieces += ["\\u0041", "\\u00", "\\t", "\\n", "\xe9", "k=v", "enabled"]
    refused = 0
    for _ in range(100):
        data = "".join(random.choices(pieces, k=random.randrange(1, 14))).encode("iso-8859-1")
        java = jvm.java.util.Properties()
        expected: dict[str, str] | None = None
        try:
            java.load(jvm.java.io.ByteArrayInputStream(data))
            # What Java makes of a last line of a backslash alone depends on the line before: nobody means either.
            expected = {key: value for key, value in dict(java).items() if key}
        except Exception as refusal:
            assert "Malformed" in str(refusal), data  # noqa: PT017 -- Java's own complaint is what is compared
            refused += 1
        try:
            found = {one.key: one.value for one in parse(data) if one.key}
        except BadProperties:
            found = None
        assert found == expected, data
    assert 0 < refused < 80


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows what a process has mapped")
@pytest.mark.usefixtures("context")
def test_the_jvm_starts_from_the_archive_of_this_environment() -> None:
    wanted = class_archive.archive("queries")
    assert wanted.is_file(), "make setup makes it"
    jvms = [one for one in psutil.Process().children(recursive=True) if one.name() == "java"]
    mapped = [[each.path for each in jvm.memory_maps() if each.path.endswith(".jsa")] for jvm in jvms]
    assert any(str(wanted) in paths for paths in mapped)
