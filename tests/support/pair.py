"""One pair of one-broker clusters for a whole test run, whichever of its workers asks first.

    python tests/support/pair.py FOLDER PID

The host is a process of its own, since no worker lives as long as the run. It starts both clusters, writes where they
are into FOLDER, and ends with SIGTERM or with the process PID; the clusters end with it.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import psutil
from confluent_kafka.admin import AdminClient
from waiting import DEADLINE_S

from mirror.lab.embedded import Cluster, Spec, start_many

#: What brokers of tests are started with.
SETTINGS = {
    # a member of a group of the newer protocol learns at its next heartbeat what it has: by default after five seconds
    "group.consumer.min.heartbeat.interval.ms": 200,
    "group.consumer.heartbeat.interval.ms": 200,
    # a broker that nobody kills would be fenced only where the machine has too much to do
    "broker.session.timeout.ms": 60_000,
}
#: Seconds that two brokers may take to start on a machine with too much to do.
_STARTED_WITHIN = 240.0


@dataclass(frozen=True, slots=True)
class Shared:
    """A cluster of one broker that the tests of a run share: each uses topics and a flow of its own."""

    bootstrap: str  #: host:port of its broker
    cluster_id: str
    data: Path  #: the broker's log directory, with a folder for each partition


#: What only asks a cluster takes either.
AnyCluster = Cluster | Shared


def data_of(cluster: AnyCluster) -> Path:
    """Return the log directory of a cluster's first broker."""
    return cluster.data if isinstance(cluster, Shared) else cluster.nodes[0].data


def shared_pair(folder: Path, run: int) -> tuple[Shared, Shared]:
    """Return the source and the target of the run with process id `run`, and start them if nobody did."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "pair.json").exists():
            _start_host(folder, run)
        source, target = json.loads((folder / "pair.json").read_text())
    return _cluster(source), _cluster(target)


def forget_topics(cluster: Shared, part: str) -> None:
    """Delete all topics of a shared cluster whose names hold `part`; nobody waits for it."""
    admin = _admin(cluster.bootstrap)
    if topics := [topic for topic in admin.list_topics(timeout=DEADLINE_S).topics if part in topic]:
        admin.delete_topics(topics, operation_timeout=0)


@cache
def _admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


def end_pair(folder: Path) -> None:
    """End the host of this folder, if there is one, and wait until its brokers are gone."""
    if not (folder / "host").exists():
        return
    try:
        host = psutil.Process(int((folder / "host").read_text()))
        host.terminate()
        host.wait(DEADLINE_S)
    except psutil.NoSuchProcess:
        pass


def _start_host(folder: Path, run: int) -> None:
    log = folder / "host.log"
    with log.open("w") as out:
        host = os.posix_spawn(
            sys.executable,
            [sys.executable, __file__, str(folder), str(run)],
            os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, out.fileno(), 1), (os.POSIX_SPAWN_DUP2, out.fileno(), 2)],
            setsid=True,
        )
    (folder / "host").write_text(str(host))
    deadline = time.monotonic() + _STARTED_WITHIN
    while not (folder / "pair.json").exists():
        if os.waitpid(host, os.WNOHANG) != (0, 0) or time.monotonic() > deadline:
            raise AssertionError(f"the shared brokers did not start:\n{log.read_text()}")
        time.sleep(0.05)


def _cluster(stored: dict[str, str]) -> Shared:
    return Shared(stored["bootstrap"], stored["cluster_id"], Path(stored["data"]))


def _keep(folder: Path, run: psutil.Process) -> None:
    is_over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: is_over.set())
    with ExitStack() as stack:
        specs = [Spec(name=name, config=SETTINGS) for name in ("source", "target")]
        clusters = [stack.enter_context(cluster) for cluster in start_many(specs)]
        found = [Shared(one.bootstrap, one.cluster_id, one.nodes[0].data) for one in clusters]
        scratch = folder / "pair.part"
        scratch.write_text(json.dumps([asdict(one) for one in found], default=str))
        scratch.replace(folder / "pair.json")
        while not is_over.wait(0.5) and run.is_running():
            pass


if __name__ == "__main__":
    _keep(Path(sys.argv[1]), psutil.Process(int(sys.argv[2])))
