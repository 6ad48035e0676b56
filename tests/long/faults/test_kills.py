"""SIGKILL in the middle of a copy: whatever dies, every record arrives once, in order, at its source offset.

One kill of each kind in a normal run; `pytest -m soak tests/long/faults/test_kills.py` does ten of each.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from adversary.driving import Command
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from samerecords import assert_same_records

from mirror.lab.embedded import Cluster

PARTITIONS = 4
#: Many, at full speed; and in a normal run few, at a speed that leaves as much time for the kill.
RECORDS, FEW_RECORDS, FEW_RATE = 24_000, 6_000, 16_000_000
VALUE_BYTES = 8_000


@pytest.mark.brokers
@pytest.mark.spark
@pytest.mark.parametrize("victim", ["driver", "worker", "jvm"])
def test_a_kill_loses_nothing(
    victim: str, own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    seed = random.randrange(2**32)
    kill_and_check(victim, own_source, own_target, topic_name, tmp_path, seed, FEW_RECORDS, FEW_RATE)


@pytest.mark.soak
@pytest.mark.brokers
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("repeat", range(10))
@pytest.mark.parametrize("victim", ["driver", "worker", "jvm"])
def test_ten_kills_lose_nothing(
    victim: str, repeat: int, own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    kill_and_check(victim, own_source, own_target, topic_name, tmp_path, repeat, RECORDS, None)


def kill_and_check(
    victim: str,
    own_source: Cluster,
    own_target: Cluster,
    topic: str,
    folder: Path,
    seed: int,
    records: int,
    rate: int | None,
) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    source, target = own_source.bootstrap, own_target.bootstrap
    _fill(source, topic, chance, records)
    config = folder / "flow.yaml"
    config.write_text(
        f"name: {topic}\nsource: {{alias: a, bootstrap.servers: '{source}'}}\n"
        f"target: {{alias: b, bootstrap.servers: '{target}'}}\ntopics: {{include: ['{topic}']}}\n"
        f"limits: {{bytes_per_second: {rate or 'null'}}}\n"
    )
    command = [sys.executable, "-m", "mirror", "run", str(config), "--once"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stderr=log)
        try:
            reached = _wait_until_copied(target, topic, records * chance.uniform(0.02, 0.8), process)
            tree = psutil.Process(process.pid).children(recursive=True)
            _kill(victim, process, tree, chance)
            returncode = process.wait(timeout=240)
        finally:
            process.kill()
    print(f"killed the {victim} at {reached} of {records} records; exit {returncode}")
    assert reached < records, "the copy was over before the kill: nothing was tested"
    if victim == "worker":
        assert returncode == 0, (folder / "log").read_text()
    else:
        assert returncode == (-signal.SIGKILL if victim == "driver" else 1)
        _until(lambda: not any(_alive(one) for one in tree), 20, "tasks or the JVM outlived the driver")
        again = Command(folder, "run", str(config), "--once")  # it finds its place in the logs, with Spark or without
        assert again.wait(240) == 0, again.logged
    assert assert_same_records(source, target, topic, PARTITIONS) == records


def _fill(bootstrap: str, topic: str, chance: random.Random, records: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics([NewTopic(topic, PARTITIONS, 1)]).values():
        created.result()
    producer = Producer(
        {"bootstrap.servers": bootstrap, "compression.type": "lz4", "linger.ms": 20, "batch.size": 100_000}
    )
    noise = [chance.randbytes(VALUE_BYTES) for _ in range(64)]
    for number in range(records):
        value = number.to_bytes(8, "big") + noise[number % len(noise)]
        headers: list[tuple[str, str | bytes | None]] = [("n", str(number))] if number % 3 == 0 else []
        producer.produce(topic, value, key=None if number % 5 == 0 else b"k%d" % number, headers=headers)
        producer.poll(0)
        if number % 1000 == 0:
            producer.flush()
    producer.flush()


def _wait_until_copied(bootstrap: str, topic: str, count: float, process: subprocess.Popen[bytes]) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none"})
    try:
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline and process.poll() is None:
            try:
                ends = [
                    consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=2)[1] for p in range(PARTITIONS)
                ]
            except KafkaException:  # not there yet
                continue
            if sum(ends) >= count:
                return sum(ends)
    finally:
        consumer.close()
    raise AssertionError(f"the copy did not get to {count:.0f} records; exit {process.poll()}")


def _kill(victim: str, driver: subprocess.Popen[bytes], tree: list[psutil.Process], chance: random.Random) -> None:
    if victim == "driver":
        driver.kill()
        return
    if victim == "jvm":
        found = [one for one in tree if one.name() == "java"]
    else:  # a worker is a child of the daemon, which is a Python child of the JVM
        python = [one for one in tree if one.name().startswith("python")]
        found = [one for one in python if one.ppid() in {other.pid for other in python}]
    chance.choice(found).send_signal(signal.SIGKILL)


def _alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def _until(condition: Callable[[], bool], seconds: float, otherwise: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, otherwise
        os.sched_yield()
        time.sleep(0.02)
