"""SIGKILL among markers: a mirror that dies while it fills gaps, and a successor that begins at once."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from helpers import make_topic
from samerecords import assert_same_records
from transactional import transactions

from mirror.lab.embedded import Cluster

#: Copies as a task does; the successor's command, too.
#: Where a process finds the helpers that it imports.
SUPPORT = Path(__file__).parents[2] / "support"
COPY = """
import sys
from helpers import mirror_once
(found,) = mirror_once(*sys.argv[1:3], [sys.argv[3]]).values()
sys.exit(found.lag_records != 0 or bool(found.state.is_stop))
"""


@pytest.mark.brokers
def test_kills_among_markers(own_source: Cluster, own_target: Cluster, topic_name: str) -> None:
    kill_again_and_again(own_source, own_target, topic_name, random.randrange(2**32), kills=6)


@pytest.mark.soak
@pytest.mark.brokers
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(10))
def test_many_kills_among_markers(own_source: Cluster, own_target: Cluster, topic_name: str, seed: int) -> None:
    kill_again_and_again(own_source, own_target, topic_name, seed, kills=20)


def kill_again_and_again(source: Cluster, target: Cluster, topic: str, seed: int, kills: int) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    make_topic(source.bootstrap, topic)
    make_topic(target.bootstrap, topic)
    transactions(source.bootstrap, topic, [chance.random() > 0.3 for _ in range(60 * kills)], size=3)
    command = [sys.executable, "-c", COPY, source.bootstrap, target.bootstrap, topic]
    consumer = Consumer({"bootstrap.servers": target.bootstrap, "group.id": "none"})
    landed = []
    try:
        for _ in range(kills):
            begun = log_end(consumer, topic)
            process = subprocess.Popen(command, cwd=SUPPORT)
            try:
                goal = begun + chance.randrange(1, 150)
                while log_end(consumer, topic) < goal and process.poll() is None:
                    pass
                time.sleep(chance.random() / 500)  # not always right behind an ack
            finally:
                process.send_signal(signal.SIGKILL)
            assert process.wait() in (0, -signal.SIGKILL)
            landed.append(log_end(consumer, topic))
        assert landed[-1] > landed[0], "the kills came too early to test anything"
        print("killed at", landed)
        subprocess.run(command, cwd=SUPPORT, check=True, timeout=240)
    finally:
        consumer.close()
    assert_same_records(source.bootstrap, target.bootstrap, topic, 1)


def log_end(consumer: Consumer, topic: str) -> int:
    while True:
        try:
            return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=5)[1])
        except KafkaException:  # not there yet
            continue
