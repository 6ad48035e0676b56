"""Added latency at a fixed rate: the same records read on the source and, mirrored, on the target; epoch changes
included.

Both readers run in this process and note when each record arrives, so the difference is what the mirror adds.

    python -m tests.bench.latency [--rate 100] [--seconds 180]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from mirror.embedded import Spec, start_many

from .workload import create

PARTITIONS = 2
TOPIC = "ticks"


class Reader(threading.Thread):
    """Notes when each numbered record arrives."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self.arrived: dict[int, float] = {}
        self.done = threading.Event()
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "latency", "fetch.wait.max.ms": 500})
        self._consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])

    def run(self) -> None:
        """Until `done`."""
        while not self.done.is_set():
            message = self._consumer.poll(0.2)
            if message is not None and not message.error():
                self.arrived[int((message.value() or b"0")[:12])] = time.perf_counter()
        self._consumer.close()


def summary(name: str, milliseconds: list[float]) -> dict[str, float]:
    """One printed line, and the figures."""
    ordered = sorted(milliseconds)
    figures = {
        "p50": statistics.median(ordered),
        "p99": ordered[int(len(ordered) * 0.99)],
        "max": ordered[-1],
        "records": len(ordered),
    }
    print(f"{name:<22} p50 {figures['p50']:7.1f} ms   p99 {figures['p99']:7.1f} ms   max {figures['max']:7.1f} ms")
    return figures


def main() -> None:
    """Run it and print three lines and, last, the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=100, help="records a second")
    parser.add_argument("--seconds", type=int, default=180)
    options = parser.parse_args()
    source, target = start_many([Spec(name="latency-source", jit="full"), Spec(name="latency-target", jit="full")])
    with source, target, tempfile.TemporaryDirectory() as folder:
        for cluster in (source, target):
            create(cluster.bootstrap, TOPIC, PARTITIONS)
        config, log = Path(folder) / "flow.yaml", Path(folder) / "log"
        config.write_text(
            f'name: latency\nsource: {{alias: a, bootstrap.servers: "{source.bootstrap}"}}\n'
            f'target: {{alias: b, bootstrap.servers: "{target.bootstrap}"}}\ntopics: {{include: ["{TOPIC}"]}}\n'
        )
        direct, mirrored = Reader(source.bootstrap), Reader(target.bootstrap)
        producer = Producer({"bootstrap.servers": source.bootstrap, "linger.ms": 0})
        with log.open("w") as out:
            mirror = subprocess.Popen([sys.executable, "-m", "mirror", "run", str(config)], stderr=out)
        try:
            direct.start()
            mirrored.start()
            number = 0
            while number not in mirrored.arrived:  # the mirror runs once it has brought this one over
                producer.produce(TOPIC, f"{number:012d}".encode(), partition=0)
                producer.flush()
                for _ in range(600):
                    if number in mirrored.arrived:
                        break
                    time.sleep(0.1)
                if mirror.poll() is not None:
                    raise SystemExit(log.read_text())
            sent: dict[int, float] = {}
            began = time.perf_counter()
            while (elapsed := time.perf_counter() - began) < options.seconds:
                due = int(elapsed * options.rate)
                while len(sent) < due:
                    number += 1
                    sent[number] = time.perf_counter()
                    producer.produce(TOPIC, f"{number:012d} {'.' * 300}".encode(), partition=number % PARTITIONS)
                producer.poll(0)
                time.sleep(0.001)
            producer.flush()
            while not (sent.keys() <= mirrored.arrived.keys() and sent.keys() <= direct.arrived.keys()):
                time.sleep(0.05)
        finally:
            mirror.terminate()
            mirror.wait(30)
            for reader in (direct, mirrored):
                reader.done.set()
                if reader.is_alive():
                    reader.join()
        epochs = log.read_text().count("event=epoch_ended")
        print(f"{len(sent)} records at {options.rate}/s, {epochs} epochs")
        at_source = {n: (direct.arrived[n] - sent[n]) * 1e3 for n in sent}
        at_target = {n: (mirrored.arrived[n] - sent[n]) * 1e3 for n in sent}
        figures = {
            "direct": summary("read on the source", list(at_source.values())),
            "mirrored": summary("read on the target", list(at_target.values())),
            "added": summary("added by the mirror", [at_target[n] - at_source[n] for n in sent]),
        }
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
