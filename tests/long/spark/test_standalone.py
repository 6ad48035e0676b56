"""A mirror whose tasks run on the workers of a Spark standalone cluster, and what is left of a copy when those die."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random

import pytest
from helpers import config_file, make_topic, produce
from running import TIMEOUT, running, wait_for
from samerecords import assert_same_records
from sparkcluster import spark_cluster
from syncing import ends

from mirror.lab.embedded import Cluster

pytestmark = [pytest.mark.brokers, pytest.mark.spark]

LOOPBACK = "127.0.0.1"
PARTITIONS = 4
WORKERS = 2
KILLS = 10


@contextmanager
def writing(bootstrap: str, topic: str) -> Iterator[None]:
    """Records for every partition, all the time."""
    ending = threading.Event()

    def write() -> None:
        number = 0
        while not ending.wait(0.1):
            produce(bootstrap, topic, [b"%08d" % (number + one) for one in range(20)], partition=number % PARTITIONS)
            number += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


@pytest.fixture(autouse=True)
def on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's user interface listens where this says, too."""
    monkeypatch.setenv("SPARK_LOCAL_IP", LOOPBACK)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_ten_workers_die_during_a_copy(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    """Of a live copy; one after another, each comes back before the next one goes."""
    source, target, topic = own_source.bootstrap, own_target.bootstrap, topic_name
    seed = Random().randrange(2**32)
    print(f"seed {seed}")
    random = Random(seed)
    make_topic(source, topic, PARTITIONS)
    config = config_file(tmp_path, source, target, [topic], flow=topic)
    with spark_cluster(tmp_path, WORKERS) as spark:
        conf = {"spark.executor.memory": "512m", "spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
        tasks = {"master": spark.address, "tasks": 2, "epoch_s": 5, "conf": conf}
        config.write_text(json.dumps(json.loads(config.read_text()) | {"spark": tasks}))
        with running(config, tmp_path / "mirror.log") as mirror:

            def all_move_on() -> None:
                due = ends(source, topic)

                def has_moved_on() -> bool:
                    assert mirror.process.poll() is None, mirror.log
                    there = ends(target, topic)
                    return all(there.get(at, 0) >= end for at, end in due.items())

                wait_for(has_moved_on, TIMEOUT, lambda: mirror.log)

            mirror.until("spark_started")
            with writing(source, topic):
                all_move_on()
                for _ in range(KILLS):
                    victim = random.randrange(WORKERS)
                    wait_for(partial(spark.has_executor, victim), TIMEOUT, lambda: mirror.log)
                    spark.kill(victim)
                    all_move_on()
                    spark.start_worker(victim)
                    all_move_on()
            all_move_on()
            mirror.process.terminate()
            assert mirror.ended() == 0, mirror.log
    assert assert_same_records(source, target, topic, PARTITIONS) > 0
