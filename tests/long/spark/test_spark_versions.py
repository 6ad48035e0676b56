"""What a flow needs of Spark, with whichever version is installed: `make test-spark` runs this with each of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from helpers import RECENT_MS, config_file, make_topic, produce
from pair import Shared
from rekeychecker import Seen, complaints, read_committed
from running import running
from samerecords import assert_same_records, read
from sparkcluster import SparkCluster

from mirror.config import load
from mirror.errors import ExitCode
from mirror.kafka.admin import Admin
from mirror.spark.compat import VERSION

#: The same topic and flow for each version that runs these tests on one pair of clusters.
ONGOING = "spark-versions"
#: The variable that names the folder of a PySpark of another version.
OTHER = "MIRROR_OTHER_SPARK"


def mirror(*arguments: str | Path, code: int = 0) -> str:
    """Run a command: what it printed, on stderr where it fails as it should."""
    command = [sys.executable, "-m", "mirror", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == code, f"{done.returncode}: {done.stderr}"
    return done.stdout if code == 0 else done.stderr


def values(begin: int, end: int) -> list[bytes]:
    """Values that name a user, each once."""
    return [b'{"user": "%d", "number": %d}' % (number % 7, number) for number in range(begin, end)]


class Flow:
    """One topic of two partitions with 100 records in each, and a flow that copies it."""

    def __init__(self, source: Shared, target: Shared, folder: Path, topic: str) -> None:
        self.source, self.target, self.topic = source.bootstrap, target.bootstrap, topic
        self.config = config_file(folder, self.source, self.target, [topic], topic)
        make_topic(self.source, topic, 2)
        for partition in range(2):
            produce(self.source, topic, values(partition * 1000, partition * 1000 + 100), partition=partition)

    def assert_equal(self) -> None:
        """Every record is on the target, at its offset."""
        assert assert_same_records(self.source, self.target, self.topic, 2) >= 200


@pytest.fixture
def flow(source_cluster: Shared, target_cluster: Shared, tmp_path: Path, topic_name: str) -> Flow:
    return Flow(source_cluster, target_cluster, tmp_path, topic_name)


def test_copy_and_verify(flow: Flow) -> None:
    mirror("run", flow.config, "--once")
    flow.assert_equal()
    assert json.loads(mirror("verify", flow.config, "--json"))["equal"]


def test_kill_and_resume(flow: Flow, tmp_path: Path) -> None:
    with running(flow.config, tmp_path / "log") as live:
        live.until("CAUGHT_UP")
        live.process.kill()
        live.process.wait()
    produce(flow.source, flow.topic, values(100, 200), begin_ms=RECENT_MS + 1000)
    mirror("run", flow.config, "--once", "--take-over")
    flow.assert_equal()


def test_restore(flow: Flow, source_cluster: Shared) -> None:
    mirror("restore", flow.config, "--from", source_cluster.data)
    flow.assert_equal()


@pytest.mark.parametrize(
    "key", ["get_json_object(string(value), '$.user')", "value"], ids=["by_expression", "natively"]
)
def test_re_key(flow: Flow, key: str) -> None:
    given = json.loads(flow.config.read_text())
    given["topics"]["rules"] = [{"match": flow.topic, "rekey": key, "partitions": 3}]
    flow.config.write_text(json.dumps(given))
    mirror("run", flow.config, "--once")

    def new_key(record: Seen) -> bytes:
        assert record.value is not None
        return record.value if key == "value" else json.loads(record.value)["user"].encode()

    source, copy = read_committed(flow.source, flow.topic), read_committed(flow.target, flow.topic)
    assert len(copy) == 200
    assert complaints(source, copy, 3, new_key) == []
    mirror("verify", flow.config)


def test_census(flow: Flow) -> None:
    found = json.loads(mirror("census", flow.config, "--json"))
    assert found["topics"][flow.topic]["batches"] == 20


def test_kafka_batches(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    if VERSION < (4, 0):
        pytest.skip("data sources in Python need Spark 4.0")
    from pyspark.sql import SparkSession

    from mirror.spark.datasource import records, register

    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)  # else Spark runs the first python3 of the PATH
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        register(spark)
        reader = spark.read.format("kafka-batches").options(config=str(flow.config), topic=flow.topic)
        assert reader.load().count() == 20
        assert records(reader.option("data", "true").load()).count() == 200
    finally:
        spark.stop()


@pytest.mark.skipif(OTHER not in os.environ, reason="no other PySpark is given")
def test_a_cluster_of_another_version_is_refused(flow: Flow, tmp_path: Path) -> None:
    cluster = SparkCluster(tmp_path, home=Path(os.environ[OTHER]))
    try:
        given = json.loads(flow.config.read_text())
        conf = {"spark.driver.host": "127.0.0.1", "spark.master.ui.port": cluster.page_port}
        flow.config.write_text(json.dumps(given | {"spark": {"master": cluster.address, "conf": conf}}))
        error = mirror("run", flow.config, "--once", code=ExitCode.USAGE)
    finally:
        cluster.stop()
    assert re.search(rf"runs Spark \S+, and the mirror has PySpark {pyspark.__version__}: install pyspark==", error)
    assert flow.topic not in Admin(load(flow.config).target).topic_names()


def test_a_flow_of_another_version_goes_on(source_cluster: Shared, target_cluster: Shared, tmp_path: Path) -> None:
    source, target = source_cluster.bootstrap, target_cluster.bootstrap
    config = config_file(tmp_path, source, target, [ONGOING], ONGOING)
    before = list(read(target, ONGOING, 0)) if ONGOING in Admin(load(config).target).topic_names() else []
    if not before:
        make_topic(source, ONGOING)
    produce(source, ONGOING, values(len(before), len(before) + 50))
    mirror("run", config, "--once")
    assert list(read(target, ONGOING, 0))[: len(before)] == before
    assert assert_same_records(source, target, ONGOING, 1) == len(before) + 50
