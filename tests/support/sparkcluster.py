"""A Spark standalone cluster on loopback, its master and its workers as processes of their own, as on machines."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

import psutil
import pyspark
from waiting import until

from mirror import host

_HOME: Final = Path(pyspark.__file__).parent
_HOST: Final = "127.0.0.1"
_CORES: Final = 2
#: Where either kind listens: on loopback, at ports that are free.
_ADDRESSES: Final = ("--host", _HOST, "--port", "0", "--webui-port", "0")


class SparkCluster:
    """`kill` takes a worker with all that runs under it away, as a machine that loses its power; `start_worker` brings
    it back.
    """

    def __init__(
        self,
        folder: Path,
        *,
        conf: Mapping[str, str] = MappingProxyType({}),
        environment: Mapping[str, str] = MappingProxyType({}),
        within: Sequence[str] = (),
        home: Path = _HOME,
    ) -> None:
        """The master alone. `conf`: settings of Spark's for master and workers; `environment`: variables of workers,
        empty for none of that name; `within`: a command that a worker is started by; `home`: PySpark's folder.
        """
        self._home = home
        self._folder, self._workers = folder, dict[int, subprocess.Popen[bytes]]()
        self._environment, self._within = environment, within
        self._properties = folder / "daemons.conf"
        self._properties.write_text("".join(f"{key} {value}\n" for key, value in conf.items()))
        self._properties.chmod(0o600)
        self._master = self._start("master", ["master.Master"])
        self.address = self._announced("master", r"Starting Spark master at (spark://\S+)", self._master)
        self.page_port = self._announced("master", r"Bound MasterWebUI to .*:(\d+)", self._master)

    def start_worker(self, number: int) -> None:
        """Start one, and wait until the master knows it."""
        name, before = f"worker-{number}", self._registered()
        work = str(self.folder_of(number))
        options = ["--cores", str(_CORES), "--memory", "1g", "--work-dir", work]
        program = ["worker.Worker", *options, self.address]
        self._workers[number] = self._start(name, program, self._environment, self._within)
        until(lambda: self._registered() > before, lambda: self._log("master"))

    @property
    def pids(self) -> list[int]:
        """Of the master and the workers."""
        return [self._master.pid, *(worker.pid for worker in self._workers.values())]

    def folder_of(self, number: int) -> Path:
        """Where a worker keeps what its executors write, and what they print."""
        return self._folder / f"worker-{number}"

    def has_executor(self, number: int) -> bool:
        """Whether something runs under a worker."""
        return bool(psutil.Process(self._workers[number].pid).children())

    def kill(self, number: int) -> None:
        """SIGKILL for the worker, its executors and their Python processes."""
        process = self._workers.pop(number)
        worker = psutil.Process(process.pid)
        # Python's daemon leads a process group of its own, but is the executor's child all the same.
        tree = [worker, *worker.children(recursive=True)]
        for one in tree:
            one.kill()
        psutil.wait_procs(tree[1:], timeout=10)
        process.wait()

    def stop(self) -> None:
        """End everything."""
        for number in tuple(self._workers):
            self.kill(number)
        self._master.kill()
        self._master.wait()

    def _registered(self) -> int:
        return self._log("master").count("Registering worker")

    def _log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text()

    def _start(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str] = MappingProxyType({}),
        within: Sequence[str] = (),
    ) -> subprocess.Popen[bytes]:
        jvm = [
            host.find(),
            "-Xmx256m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            f"{self._home / 'jars'}/*",
        ]
        own = ["--properties-file", str(self._properties)]
        program = [f"org.apache.spark.deploy.{command[0]}", *_ADDRESSES, *own, *command[1:]]
        spark = {"SPARK_HOME": str(self._home), "SPARK_LOCAL_IP": _HOST, "SPARK_SCALA_VERSION": "2.13"}
        wanted = {key: value for key, value in {**os.environ, **spark, **environment}.items() if value}
        with (self._folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen([*within, *jvm, *program], stdout=log, stderr=log, env=wanted)

    def _announced(self, name: str, pattern: str, process: subprocess.Popen[bytes]) -> str:
        until(lambda: re.search(pattern, self._log(name)) or process.poll() is not None, lambda: self._log(name))
        found = re.search(pattern, self._log(name))
        assert found, self._log(name)
        return found[1]


@contextmanager
def spark_cluster(
    folder: Path,
    workers: int,
    *,
    conf: Mapping[str, str] = MappingProxyType({}),
    environment: Mapping[str, str] = MappingProxyType({}),
    within: Sequence[str] = (),
) -> Iterator[SparkCluster]:
    """A master and its workers, until the end; as for `SparkCluster`."""
    cluster = SparkCluster(folder, conf=conf, environment=environment, within=within)
    try:
        for number in range(workers):
            cluster.start_worker(number)
        yield cluster
    finally:
        cluster.stop()
