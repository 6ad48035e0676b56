"""A mirror on a Spark standalone cluster in the ways that docs/clusters.md describes: by `spark-submit`, in a packed
environment, with executors that may write to their scratch space alone, and from executors that are pods.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pyspark
import pytest
import yaml
from deployment import RELEASES, executor, flow_map, manifests, referred_to
from helpers import config_file, make_topic, produce
from kubernetes_validate import validate
from kubernetesapi import image_environment, kill, kubernetes_api
from running import TIMEOUT, running, wait_for
from samerecords import assert_same_records
from sparkcluster import SparkCluster, spark_cluster
from syncing import ends

from mirror.lab.embedded import Cluster

pytestmark = [pytest.mark.brokers, pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(1200)]

HOME = Path(__file__).parents[3]
APP = HOME / "configs" / "spark" / "mirror_app.py"
SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
LOOPBACK = "127.0.0.1"
PARTITIONS = 4
RECORDS = 400
#: What a cluster has whose tasks carry secrets; master, workers and driver know the same one.
GUARDED = {
    "spark.authenticate": "true",
    "spark.authenticate.secret": "known-to-this-cluster-alone",
    "spark.network.crypto.enabled": "true",
    "spark.io.encryption.enabled": "true",
}
#: A mount namespace in which one folder can be written to and nothing else on the root file system.
READ_ONLY = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" "$0" && mount -o remount,bind,ro / && exec "$@"')
TASKS = {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK, "spark.executor.memory": "512m"}


@pytest.fixture(autouse=True)
def on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's user interface listens where this says, too."""
    monkeypatch.setenv("SPARK_LOCAL_IP", LOOPBACK)


@pytest.fixture
def topic(own_source: Cluster, own_target: Cluster, topic_name: str) -> str:
    """On the source, and empty on the target, whose fixed codec has every batch rewritten."""
    make_topic(own_source.bootstrap, topic_name, PARTITIONS)
    for partition in range(PARTITIONS):
        records = [b"%06d" % number + b"." * 300 for number in range(RECORDS)]
        produce(own_source.bootstrap, topic_name, records, partition=partition, codec="zstd")
    make_topic(own_target.bootstrap, topic_name, PARTITIONS, {"compression.type": "gzip"})
    return topic_name


def flow_of(folder: Path, source: Cluster, target: Cluster, topic: str, spark: dict[str, Any]) -> Path:
    config = config_file(folder, source.bootstrap, target.bootstrap, [topic], flow=topic)
    settings = json.loads(config.read_text()) | {"sync": {"configs": False}, "spark": {"tasks": 2} | spark}
    config.write_text(json.dumps(settings))
    return config


def ran(*command: str | Path, **environment: str) -> str:
    """What it wrote; it must succeed. `spark-submit` writes both outputs of a program to its own stdout."""
    both = subprocess.STDOUT
    reported = list(map(str, command))
    done = subprocess.run(
        reported, env=os.environ | environment, stdout=subprocess.PIPE, stderr=both, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def was_rewritten(log: str) -> bool:
    return re.search(r"flow_ended .*REWRITE", log) is not None


def properties(folder: Path, conf: dict[str, str]) -> Path:
    """A file of settings that nobody else may read."""
    folder.mkdir(exist_ok=True)
    file = folder / "spark-defaults.conf"
    file.write_text("".join(f"{key} {value}\n" for key, value in conf.items()))
    file.chmod(0o600)
    return file


def test_spark_submit_copies_and_passes_on_the_exit_code(
    own_source: Cluster, own_target: Cluster, topic: str, tmp_path: Path
) -> None:
    """On a cluster that knows a secret. Settings of `spark-submit` hold before the flow's own."""
    flow = flow_of(tmp_path, own_source, own_target, topic, {"master": "spark://nowhere.example:7077"})
    with spark_cluster(tmp_path, 2, conf=GUARDED) as spark:
        conf = properties(tmp_path / "conf", GUARDED | TASKS | {"spark.pyspark.python": sys.executable})
        submit: list[str | Path] = [SUBMIT, "--master", spark.address, "--properties-file", conf]
        log = ran(*submit, APP, "run", flow, "--once")
        assert was_rewritten(log), log
        assert f"master={spark.address}" in log
        assert assert_same_records(own_source.bootstrap, own_target.bootstrap, topic, PARTITIONS) > 0
        missing = subprocess.run([*submit, APP, "run", tmp_path / "none.yaml"], capture_output=True, check=False)
        assert missing.returncode == 2, missing.stderr


def test_a_driver_of_spark_submit_ends_in_good_order(
    own_source: Cluster, own_target: Cluster, topic: str, tmp_path: Path
) -> None:
    """A live mirror, by a signal to the driver's Python process."""
    flow = flow_of(tmp_path, own_source, own_target, topic, {})
    log = tmp_path / "mirror.log"
    with spark_cluster(tmp_path, 1) as spark, log.open("w") as out:
        conf = [f"--conf={key}={value}" for key, value in TASKS.items()]
        python = f"--conf=spark.pyspark.python={sys.executable}"
        command = [SUBMIT, "--master", spark.address, *conf, python, APP, "run", flow]
        process = subprocess.Popen(list(map(str, command)), stdout=out, stderr=out)
        try:
            wait_for(lambda: "event=mirroring" in log.read_text(), TIMEOUT, log.read_text)
            (driver,) = [one for one in psutil.Process(process.pid).children() if one.name().startswith("python")]
            driver.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT) == 0, log.read_text()
        finally:
            process.kill()
            process.wait()
    assert assert_same_records(own_source.bootstrap, own_target.bootstrap, topic, PARTITIONS) > 0


def test_a_packed_environment_is_all_that_workers_need(
    own_source: Cluster, own_target: Cluster, topic: str, tmp_path: Path
) -> None:
    """Workers that have Spark and no `mirror`, and a driver that is no `spark-submit`. The cluster's secret is where
    only Spark looks.
    """
    archive = tmp_path / "env.tar.gz"
    ran(HOME / "scripts" / "pack-environment", Path(sys.executable).parent, archive)
    with spark_cluster(tmp_path, 2, conf=GUARDED, environment={"PYTHONPATH": "", "HOME": "/dev/null"}) as spark:
        conf = {"spark.archives": f"{archive}#environment", "spark.pyspark.python": "./environment/bin/python"}
        tasks = {"master": spark.address, "conf": TASKS | conf}
        flow = flow_of(tmp_path, own_source, own_target, topic, tasks)
        secret = properties(tmp_path / "conf", GUARDED)
        log = ran(sys.executable, "-m", "mirror", "run", flow, "--once", SPARK_CONF_DIR=str(secret.parent))
        assert was_rewritten(log), log
        assert GUARDED["spark.authenticate.secret"] not in log
        unpacked = [found for number in (0, 1) for found in folders(spark, number, "environment/bin/python")]
        assert unpacked, "the archive was not used"
    assert assert_same_records(own_source.bootstrap, own_target.bootstrap, topic, PARTITIONS) > 0


def folders(spark: SparkCluster, number: int, name: str) -> Sequence[Path]:
    """What executors of a worker have under this name."""
    return list(spark.folder_of(number).glob(f"*/*/{name}"))


@pytest.mark.skipif(
    not shutil.which("unshare") or subprocess.run(["unshare", "--mount", "true"], check=False).returncode != 0,
    reason="needs the right to make mount namespaces",
)
def test_executors_write_to_nothing_but_their_scratch_space(
    own_source: Cluster, own_target: Cluster, topic: str, tmp_path: Path
) -> None:
    """The whole root file system is read-only for them, `/tmp` and home folder included, but for the worker's own."""
    own = tmp_path / "own"
    own.mkdir()
    scratch = {"SPARK_LOCAL_DIRS": str(own), "TMPDIR": str(own), "XDG_CACHE_HOME": "", "NUMBA_CACHE_DIR": ""}
    with spark_cluster(own, 2, environment=scratch, within=(*READ_ONLY, str(own))) as spark:
        flow = flow_of(tmp_path, own_source, own_target, topic, {"master": spark.address, "conf": TASKS})
        log = ran(sys.executable, "-m", "mirror", "run", flow, "--once")
        assert was_rewritten(log), log
    assert assert_same_records(own_source.bootstrap, own_target.bootstrap, topic, PARTITIONS) > 0


def test_the_driver_on_kubernetes_gets_its_executors(
    own_source: Cluster, own_target: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flow and the pod template of the manifests, with these clusters, against a stand-in for Kubernetes' API: it
    is asked for nothing that the driver has no right to, its executors copy, and one that is lost is made anew.
    """
    written: dict[str, Any] = yaml.safe_load(flow_map()["eu-to-us.yaml"])["spark"]
    template = tmp_path / "executor.yaml"
    template.write_text(flow_map()["executor.yaml"])
    for name in referred_to():
        monkeypatch.setenv(name, LOOPBACK if name.endswith("_IP") else name.lower().replace("_", "-"))
    image = image_environment(Path(pyspark.__file__).parent)
    entrypoint = HOME / "containers" / "entrypoint"
    with kubernetes_api(tmp_path, entrypoint, image) as api:
        driver = {"metadata": {"name": os.environ["POD_NAME"], "namespace": os.environ["POD_NAMESPACE"]}}
        api.add("pods", {"kind": "Pod", "apiVersion": "v1", **driver, "spec": {}, "status": {"phase": "Running"}})
        conf = written["conf"] | {"spark.kubernetes.executor.podTemplateFile": str(template)}
        spark = written | {"master": f"k8s://{api.address}", "conf": conf}
        flow = flow_of(tmp_path, own_source, own_target, topic, spark)
        with running(flow, tmp_path / "mirror.log") as mirror:

            def is_copied() -> bool:
                assert mirror.process.poll() is None, mirror.log
                return ends(own_target.bootstrap, topic) == ends(own_source.bootstrap, topic)

            wait_for(is_copied, TIMEOUT, lambda: mirror.log)
            instances = int(conf["spark.executor.instances"])
            assert len(api.pods) == instances
            kill(api.processes[0])
            wait_for(lambda: len(api.pods) > instances, TIMEOUT, lambda: mirror.log)
            for partition in range(PARTITIONS):
                produce(own_source.bootstrap, topic, [b"later"] * RECORDS, partition=partition)
            wait_for(is_copied, TIMEOUT, lambda: mirror.log)
            mirror.process.terminate()
            assert mirror.ended() == 0, mirror.log
        assert was_rewritten(mirror.log), mirror.log
        for pod in api.pods.values():
            (owner,) = pod["metadata"]["ownerReferences"]
            assert owner["name"] == os.environ["POD_NAME"]
            assert executor()["metadata"]["labels"].items() <= pod["metadata"]["labels"].items()
            assert executor()["spec"]["securityContext"].items() <= pod["spec"]["securityContext"].items()
            (container,) = pod["spec"]["containers"]
            assert container["securityContext"]["readOnlyRootFilesystem"]
            assert pod["spec"]["serviceAccountName"] == "mirror-executor"
            for release in RELEASES:
                validate({key: value for key, value in pod.items() if key != "status"}, release)
        rules = manifests()["Role/mirror-driver"]["rules"]
        given = {(verb, resource) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}
        assert ("create", "pods") in api.asked
        assert api.asked - given == set()
    assert assert_same_records(own_source.bootstrap, own_target.bootstrap, topic, PARTITIONS) > 0
