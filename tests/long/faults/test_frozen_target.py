"""A target that does not answer for a while: memory is bounded, and the copy goes on by itself."""

from __future__ import annotations

import os
import time
from random import Random

import psutil
from helpers import make_topic, produce
from watchedtask import WatchedTask

from mirror.kafka.cluster import TopicPartition
from mirror.lab.embedded import Cluster

#: Partitions of which one batch of 900 kB each does not go into memory together.
MANY = 80
MEMORY_BYTES = 16 << 20


def test_memory_is_shared_by_all_partitions_while_the_target_is_frozen(
    own_source: Cluster, own_target: Cluster, topic_name: str
) -> None:
    """Each may take a whole batch, if only of what is left: together these would be more than four times as much."""
    us, noise = psutil.Process(os.getpid()), Random(7)
    partitions = [TopicPartition(topic_name, number) for number in range(MANY)]
    for side in (own_source, own_target):
        make_topic(side.bootstrap, topic_name, MANY)
    for at in partitions:
        produce(own_source.bootstrap, topic_name, [b"first"], partition=at.partition)
    with WatchedTask(own_source.bootstrap, own_target.bootstrap, partitions, memory_bytes=MEMORY_BYTES) as task:
        for at in partitions:
            task.mirrored(at, 1)
        own_target.suspend(0)
        try:
            before = us.memory_info().rss
            for at in partitions:
                values = [noise.randbytes(100_000) for _ in range(9)]
                produce(own_source.bootstrap, topic_name, values, partition=at.partition, batch=9)
            time.sleep(15)  # for a task that goes on to fetch
            held = us.memory_info().rss - before
        finally:
            own_target.resume(0)
        for at in partitions:
            task.mirrored(at, 10)
    print(f"{held >> 20} MB more, of {MANY * 900_000 >> 20} MB")
    assert held < 3 * MEMORY_BYTES
