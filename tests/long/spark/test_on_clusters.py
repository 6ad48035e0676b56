"""A mirror on Spark clusters in the ways that docs/clusters.md describes: on workers that die, by `spark-submit`, in a
packed environment, with executors that may write to their scratch space alone, and from executors that are pods.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pyspark
import pytest
import yaml
from deployment import RELEASES, executor, flow_map, manifests, referred_to
from helpers import config_file, make_topic, produce
from kubernetes_validate import validate
from kubernetesapi import image_environment, kill, kubernetes_api
from running import running
from samerecords import assert_same_records
from sparkcluster import spark_cluster
from syncing import ends
from waiting import until

from mirror.lab.embedded import Cluster

pytestmark = pytest.mark.timeout(1200)

HOME = Path(__file__).parents[3]
APP = HOME / "configs" / "spark" / "mirror_app.py"
SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
LOOPBACK = "127.0.0.1"
PARTITIONS = 4
RECORDS = 400
WORKERS = 2
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


class Copied:
    """A flow whose topic is on the source, and empty on the target, whose fixed codec has every batch rewritten."""

    def __init__(self, folder: Path, source: Cluster, target: Cluster, topic: str) -> None:
        self.source, self.target, self.topic, self._folder = source.bootstrap, target.bootstrap, topic, folder
        make_topic(self.source, topic, PARTITIONS)
        self.fill()
        make_topic(self.target, topic, PARTITIONS, {"compression.type": "gzip"})

    def fill(self, count: int = RECORDS) -> None:
        for partition in range(PARTITIONS):
            records = [b"%06d" % number + b"." * 300 for number in range(count)]
            produce(self.source, self.topic, records, partition=partition, codec="zstd")

    def config(self, **spark: Any) -> Path:
        sections = {"sync": {"configs": False}, "spark": {"tasks": 2} | spark}
        return config_file(self._folder, self.source, self.target, [self.topic], self.topic, sections=sections)

    def is_whole(self) -> bool:
        return ends(self.target, self.topic) == ends(self.source, self.topic)

    def check(self, log: str) -> None:
        assert re.search(r"flow_ended .*REWRITE", log), log
        assert assert_same_records(self.source, self.target, self.topic, PARTITIONS) > 0


@pytest.fixture
def flow(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Copied:
    monkeypatch.setenv("SPARK_LOCAL_IP", LOOPBACK)  # Spark's user interface listens there, too
    return Copied(tmp_path, own_source, own_target, topic_name)


def ran(*command: str | Path, code: int = 0, **environment: str) -> str:
    """Return what a command wrote. `spark-submit` writes both outputs of a program to its own stdout."""
    done = subprocess.run(
        list(map(str, command)),
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == code, done.stdout
    return done.stdout


def properties(folder: Path, conf: dict[str, str]) -> Path:
    """Write a file of settings that nobody else may read."""
    folder.mkdir()
    file = folder / "spark-defaults.conf"
    file.write_text("".join(f"{key} {value}\n" for key, value in conf.items()))
    file.chmod(0o600)
    return file


@pytest.mark.proves("exactly-once")
def test_workers_die_one_after_another_during_a_live_copy(flow: Copied, tmp_path: Path) -> None:
    ending = threading.Event()

    def keep_writing() -> None:
        while not ending.wait(0.1):
            flow.fill(20)

    with spark_cluster(tmp_path, WORKERS) as spark:
        config = flow.config(master=spark.address, epoch_s=5, conf=TASKS)
        with running(config, tmp_path / "mirror.log") as mirror:

            def all_move_on() -> None:
                due = ends(flow.source, flow.topic)

                def has_moved_on() -> bool:
                    assert mirror.process.poll() is None, mirror.log
                    there = ends(flow.target, flow.topic)
                    return all(there.get(at, 0) >= end for at, end in due.items())

                until(has_moved_on, lambda: mirror.log)

            writing = threading.Thread(target=keep_writing)
            writing.start()
            try:
                all_move_on()
                for victim in (0, 1, 0):
                    until(partial(spark.has_executor, victim), lambda: mirror.log)
                    spark.kill(victim)
                    all_move_on()
                    spark.start_worker(victim)
                    all_move_on()
            finally:
                ending.set()
                writing.join()
            all_move_on()
            mirror.process.terminate()
            assert mirror.ended() == 0, mirror.log
    flow.check(mirror.log)


def test_spark_submit_copies_and_passes_on_the_exit_code(flow: Copied, tmp_path: Path) -> None:
    """On a cluster that knows a secret. Settings of `spark-submit` hold before the flow's own."""
    config = flow.config(master="spark://nowhere.example:7077")
    with spark_cluster(tmp_path, WORKERS, conf=GUARDED) as spark:
        conf = properties(tmp_path / "conf", GUARDED | TASKS | {"spark.pyspark.python": sys.executable})
        submit: list[str | Path] = [SUBMIT, "--master", spark.address, "--properties-file", conf]
        log = ran(*submit, APP, "run", config, "--once")
        assert f"master={spark.address}" in log
        ran(*submit, APP, "run", tmp_path / "none.yaml", code=2)
    flow.check(log)


def test_a_packed_environment_is_all_that_workers_need(flow: Copied, tmp_path: Path) -> None:
    """Workers that have Spark and no `mirror`. The cluster's secret is where only Spark looks."""
    archive = tmp_path / "env.tar.gz"
    ran(HOME / "scripts" / "pack-environment", Path(sys.executable).parent, archive)
    with spark_cluster(tmp_path, WORKERS, conf=GUARDED, environment={"PYTHONPATH": "", "HOME": "/dev/null"}) as spark:
        conf = {"spark.archives": f"{archive}#environment", "spark.pyspark.python": "./environment/bin/python"}
        config = flow.config(master=spark.address, conf=TASKS | conf)
        secret = properties(tmp_path / "conf", GUARDED)
        log = ran(sys.executable, "-m", "mirror", "run", config, "--once", SPARK_CONF_DIR=str(secret.parent))
        assert GUARDED["spark.authenticate.secret"] not in log
        unpacked = [path for one in (0, 1) for path in spark.folder_of(one).glob("*/*/environment/bin/python")]
        assert unpacked, "the archive was not used"
    flow.check(log)


def test_workers_without_the_mirror_are_named_before_anything_is_made(flow: Copied, tmp_path: Path) -> None:
    with spark_cluster(tmp_path, 1, environment={"PYTHONPATH": ""}) as spark:
        for python, why in (
            (Path(sys.base_prefix) / "bin" / "python3", "their Python cannot import it"),
            (tmp_path / "none", f"{tmp_path / 'none'}: No such file or directory"),
        ):
            conf = {"spark.pyspark.python": str(python), "spark.pyspark.driver.python": sys.executable}
            config = flow.config(master=spark.address, conf=TASKS | conf)
            log = ran(sys.executable, "-m", "mirror", "run", config, "--once", code=2)
            assert f"executors of {spark.address} cannot run the mirror: {why}" in log
    assert not any(ends(flow.target, flow.topic).values())


@pytest.mark.skipif(
    not shutil.which("unshare") or subprocess.run(["unshare", "--mount", "true"], check=False).returncode != 0,
    reason="needs the right to make mount namespaces",
)
def test_executors_write_to_nothing_but_their_scratch_space(flow: Copied, tmp_path: Path) -> None:
    """The whole root file system is read-only for them, `/tmp` and home folder included."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    names = {"SPARK_LOCAL_DIRS": str(scratch), "TMPDIR": str(scratch), "XDG_CACHE_HOME": "", "NUMBA_CACHE_DIR": ""}
    with spark_cluster(scratch, WORKERS, environment=names, within=(*READ_ONLY, str(scratch))) as spark:
        config = flow.config(master=spark.address, conf=TASKS)
        log = ran(sys.executable, "-m", "mirror", "run", config, "--once")
    flow.check(log)


def test_the_driver_on_kubernetes_gets_its_executors(
    flow: Copied, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flow and the pod template of the manifests, against a stand-in for Kubernetes' API: it is asked for nothing
    that the driver has no right to, its executors copy, and one that is lost is made anew.
    """
    written: dict[str, Any] = yaml.safe_load(flow_map()["eu-to-us.yaml"])["spark"]
    template = tmp_path / "executor.yaml"
    template.write_text(flow_map()["executor.yaml"])
    for name in referred_to():
        monkeypatch.setenv(name, LOOPBACK if name.endswith("_IP") else name.lower().replace("_", "-"))
    image = image_environment(Path(pyspark.__file__).parent)
    with kubernetes_api(tmp_path, HOME / "containers" / "entrypoint", image) as api:
        driver = {"metadata": {"name": os.environ["POD_NAME"], "namespace": os.environ["POD_NAMESPACE"]}}
        api.add("pods", {"kind": "Pod", "apiVersion": "v1", **driver, "spec": {}, "status": {"phase": "Running"}})
        conf = written["conf"] | {"spark.kubernetes.executor.podTemplateFile": str(template)}
        config = flow.config(**written | {"master": f"k8s://{api.address}", "conf": conf})
        with running(config, tmp_path / "mirror.log") as mirror:
            until(flow.is_whole, lambda: mirror.log)
            instances = int(conf["spark.executor.instances"])
            assert len(api.pods) == instances
            kill(api.processes[0])
            until(lambda: len(api.pods) > instances, lambda: mirror.log)
            flow.fill()
            until(flow.is_whole, lambda: mirror.log)
            mirror.process.terminate()
            assert mirror.ended() == 0, mirror.log
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
    flow.check(mirror.log)
