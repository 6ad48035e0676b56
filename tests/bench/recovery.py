"""How soon a mirror appends again: after its task or its driver was killed, after the target's leader was, after a
network came back.

One partition is written all the time, and mirrored to a target of three brokers that stamps records itself
(`LogAppendTime`), so that the brokers' own clock says when a record was appended, and no reader's delay is counted. A
time ends with the first append after it began; what a killed process had sent lands within LANDING_SECONDS, and is not
taken for it.

    task            SIGKILL to the Python worker that runs the task; Spark starts it again
    driver          SIGKILL to the whole process tree of `mirror run`, which is started again at once
    target leader   SIGKILL to the broker that leads the target partition; brokers of these clusters are given up after
                    `broker.session.timeout.ms` = 3 s, a part of the time that no client can save
    source network  from the moment when connections to the source are possible again, after OUTAGE_SECONDS without any
    target network  the same at the target

    python -m tests.bench.recovery [--repeats 10] [--faults task driver ...]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from mirror.lab.bench.workloads import NO_LIMIT, create
from mirror.lab.embedded import Cluster, Spec, start_many

if TYPE_CHECKING:
    from faults.network import Network

sys.path.insert(0, str(Path(__file__).parents[1]))  # the folders that pytest puts there
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

TOPIC = "ticks"
EPOCH_SECONDS = 3
OUTAGE_SECONDS = 3.0
LANDING_SECONDS = 0.05
FAULTS = ("task", "source network", "target network", "target leader", "driver")
#: Records a second: 10 ms is what a time may be too long.
RATE = 100
TIMEOUT = 300.0
_STAMPED = {
    "compression.type": "producer",
    "message.timestamp.type": "LogAppendTime",
    "message.timestamp.after.max.ms": NO_LIMIT,
    "min.insync.replicas": "2",
}


class Writer(threading.Thread):
    """Numbered records into the source. `sent` is the newest number that was handed over."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self.sent, self.done = -1, threading.Event()
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})

    def run(self) -> None:
        """Until `done`."""
        while not self.done.wait(1 / RATE):
            self._producer.produce(TOPIC, b"%d" % (self.sent + 1), partition=0)
            self._producer.poll(0)
            self.sent += 1
        self._producer.flush(10)


class Reader(threading.Thread):
    """When each record was appended to the target, by its number; Unix time in seconds."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self.appended: dict[int, float] = {}
        self.done = threading.Event()
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "recovery"})
        self._consumer.assign([TopicPartition(TOPIC, 0, 0)])

    def run(self) -> None:
        """Until `done`."""
        while not self.done.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and not message.error():
                stamped, at = message.timestamp()
                assert stamped == TIMESTAMP_LOG_APPEND_TIME, "the target does not say when it appended"
                self.appended[int(message.value() or b"0")] = at / 1000
        self._consumer.close()

    def until(self, number: int) -> None:
        """Wait for a record."""
        wait_for(lambda: number in self.appended, f"record {number} was not mirrored")

    def first_after(self, moment: float) -> float:
        """When the first record after a moment was appended, once it is there."""
        wait_for(lambda: next(reversed(self.appended.values())) > moment, "nothing was mirrored any more")
        return min(at for at in list(self.appended.values()) if at > moment)


class Mirror:
    """A `mirror run` that can be killed in parts."""

    def __init__(self, config: Path, log: Path) -> None:
        self._config, self._log = config, log
        self._process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        with self._log.open("a") as out:
            return subprocess.Popen([sys.executable, "-m", "mirror", "run", str(self._config)], stderr=out)

    @property
    def epochs(self) -> int:
        """How many have ended."""
        return self._log.read_text().count("event=epoch_ended")

    def kill_task(self) -> None:
        """SIGKILL to the workers that Spark's daemon forked: with one partition there is one task."""
        parents: dict[psutil.Process, int] = {}
        for process in psutil.Process(self._process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # a worker that ends now
                if "mirror.spark.daemon" in process.cmdline():
                    parents[process] = process.ppid()
        pids = {process.pid for process in parents}
        workers = [process for process, parent in parents.items() if parent in pids]
        assert workers, "no task runs"
        for worker in workers:
            worker.kill()

    def kill(self) -> None:
        """SIGKILL to everything."""
        tree = [psutil.Process(self._process.pid), *psutil.Process(self._process.pid).children(recursive=True)]
        for process in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        psutil.wait_procs(tree[1:], 10)

    def restart(self) -> None:
        """Start it again."""
        self._process = self._started()


class Bench:
    """The clusters, what is written and read, and the mirror between them."""

    def __init__(self, source: Network, target: Network, brokers: Cluster, writer: Writer, reader: Reader) -> None:
        self._networks = {"source network": source, "target network": target}
        self._brokers, self._writer, self._reader = brokers, writer, reader

    def times(self, what: str, mirror: Mirror) -> float:
        """Seconds from one fault to the next append."""
        self._reader.until(self._writer.sent)
        match what:
            case "task":
                epochs = mirror.epochs  # a job survives three deaths of a task: no two in one epoch
                wait_for(lambda: mirror.epochs > epochs + 1, "no epoch ended")
                self._reader.until(self._writer.sent)
                return self._after(mirror.kill_task)
            case "driver":
                return self._after(mirror.kill, mirror.restart)
            case "target leader":
                leader = self._leader()
                took = self._after(lambda: self._brokers.kill(leader))
                self._brokers.restart(leader)
                wait_for(self._all_in_sync, "the broker did not catch up")
                return took
            case _:
                network = self._networks[what]
                network.cut()
                time.sleep(OUTAGE_SECONDS)
                began = time.time()  # nothing came since the cut
                network.heal()
                return self._reader.first_after(began) - began

    def _after(self, strike: Callable[[], None], then: Callable[[], None] = lambda: None) -> float:
        began = time.time()
        strike()
        struck = time.time() + LANDING_SECONDS
        then()
        return self._reader.first_after(struck) - began

    def _leader(self) -> int:
        return int(self._metadata().topics[TOPIC].partitions[0].leader)

    def _all_in_sync(self) -> bool:
        topics = self._metadata().topics.values()
        partitions = [partition for topic in topics for partition in topic.partitions.values()]
        return all(len(partition.isrs) == len(partition.replicas) for partition in partitions)

    def _metadata(self) -> Any:
        return AdminClient({"bootstrap.servers": self._brokers.bootstrap}).list_topics(timeout=20)


def wait_for(condition: Callable[[], bool], otherwise: str, pause: float = 0.02) -> None:
    """Poll every `pause` seconds. Raises TimeoutError after TIMEOUT seconds."""
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(otherwise)
        time.sleep(pause)


def summary(seconds: list[float]) -> dict[str, float]:
    """The figures that are reported of one kind of fault."""
    ordered = sorted(seconds)
    return {
        "repeats": len(ordered),
        "median_s": round(statistics.median(ordered), 2),
        "p90_s": round(ordered[math.ceil(0.9 * len(ordered)) - 1], 2),
        "max_s": round(ordered[-1], 2),
    }


@contextlib.contextmanager
def bench(folder: Path) -> Iterator[tuple[Bench, Mirror]]:
    """Everything started, and the first records mirrored."""
    from faults.network import Network

    with ExitStack() as stack:
        specs = [Spec(name="recovery-source"), Spec(name="recovery-target", nodes=3)]
        source, target = map(stack.enter_context, start_many(specs))
        create(source.bootstrap, TOPIC, 1)
        topic = NewTopic(TOPIC, 1, 3, config=_STAMPED)
        admin = AdminClient({"bootstrap.servers": target.bootstrap})
        admin.create_topics([topic])[TOPIC].result(30)
        source_network, target_network = (
            stack.enter_context(Network(cluster.bootstrap)) for cluster in (source, target)
        )
        config = folder / "flow.yaml"
        config.write_text(
            f'name: recovery\nsource: {{alias: a, bootstrap.servers: "{source_network.bootstrap}"}}\n'
            f'target: {{alias: b, bootstrap.servers: "{target_network.bootstrap}"}}\n'
            f'topics: {{include: ["{TOPIC}"], append_time: target}}\n'
            f"sync: {{configs: false}}\nspark: {{epoch_s: {EPOCH_SECONDS}}}\n"
        )
        writer, reader = Writer(source.bootstrap), Reader(target.bootstrap)
        mirror = Mirror(config, folder / "log")
        stack.callback(mirror.kill)
        for thread in (writer, reader):
            thread.start()
            stack.callback(thread.join)
            stack.callback(thread.done.set)
        reader.until(0)
        yield Bench(source_network, target_network, target, writer, reader), mirror


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=FAULTS, metavar="FAULT")
    options = parser.parse_args()
    result = {}
    with tempfile.TemporaryDirectory() as folder, bench(Path(folder)) as (measured, mirror):
        for what in options.faults:
            result[what] = summary([measured.times(what, mirror) for _ in range(options.repeats)])
            print(f"{what}: {result[what]}", file=sys.stderr)
    json.dump(result, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
