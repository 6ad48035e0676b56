"""What equal offsets cost: a source that commits transactions beside one that does not, and a source that was trimmed.

The same records go into a plain topic and into one with a transaction for each batch, so that a control marker follows
each; both are copied turn and turn about, without Spark, the latter with equal and with translated offsets. At
10 MB/s a partition, a transaction of 1 MB is one every 100 ms. Then an empty target is aligned with a source that
begins at a high offset.

    python -m tests.bench.offsets [--rounds 3] [--begin 100_000_000]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka import Producer

from mirror.kafka.cluster import Cluster as Wire
from mirror.kafka.cluster import Endpoint, TopicPartition
from mirror.kafka.queries import EARLIEST, LATEST, list_offset
from mirror.lab.bench.workloads import Shape, create, fill, records
from mirror.lab.embedded import Cluster, Spec, start_many
from mirror.policy.rules import Rules
from mirror.records.header import ProducerState
from mirror.replication.both_logs import producer_id
from mirror.replication.log_start import Alignment, align
from mirror.replication.position import Position

#: Copies two small topics first: one so that imports and connections are made, and one for what a start takes.
CHILD = """
import gc, json, sys, time
from helpers import mirror_once
from mirror import host
host.keep_what_is_freed()  # as Spark's workers have it
source, target, topic, prefix, offsets = sys.argv[1:]
def spent(name):
    cpu = time.process_time()
    every = mirror_once(source, target, [name], naming={"prefix": prefix}, offsets=offsets).values()
    assert not any(found.lag_records for found in every), every
    return time.process_time() - cpu
spent("warm")
gc.freeze()  # likewise: what was imported is looked through no more
start = spent("small")
began = time.monotonic()
cpu = spent(topic)
print(json.dumps({"wall": time.monotonic() - began, "cpu": cpu - start}))
"""
ROOT = Path(__file__).resolve().parents[2]
PARTITIONS = 2
#: By name: bytes of a transaction, uncompressed, and MB in all.
WORKLOADS = {"1 MB": (1_000_000, 400), "50 KB": (50_000, 100)}


def copied(source: str, target: str, topic: str, prefix: str, offsets: str) -> dict[str, float]:
    """Seconds and CPU seconds of one copy, in a process of its own, without Spark, to a topic with a prefix."""
    command = [sys.executable, "-c", CHILD, source, target, topic, prefix, offsets]
    path = os.pathsep.join(map(str, (ROOT, ROOT / "tests", ROOT / "tests" / "support")))
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the copy failed:\n{done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def fill_with_transactions(bootstrap: str, topic: str, *, size: int, megabytes: int) -> int:
    """A transaction of one batch of `size` bytes after the other, in each partition in turn; how many."""
    create(bootstrap, topic, PARTITIONS)
    pool = records(1)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": topic,
            "compression.type": "zstd",
            "batch.size": size,
            "batch.num.messages": 100_000,
            "linger.ms": 1000,
            "queue.buffering.max.kbytes": 400_000,
        }
    )
    producer.init_transactions(120)
    run = size // len(pool[0]) + 1
    count = megabytes * 1_000_000 // size
    for number in range(count):
        producer.begin_transaction()
        for index in range(run):
            producer.produce(topic, pool[(number * run + index) % len(pool)], partition=number % PARTITIONS)
        producer.commit_transaction(30)
    return count


async def aligned(target: Cluster, begin: int) -> float:
    """Seconds to let a new topic begin at `begin`."""
    topic = TopicPartition("aligned", 0)
    create(target.bootstrap, topic.topic, 1)
    host, _, port = target.bootstrap.partition(":")
    async with Wire(Endpoint("target", ((host, int(port)),))) as cluster:
        await cluster.refresh([topic.topic])
        position = Position(0, ProducerState(producer_id("bench", topic)), known=False, last_epoch=-1, begin=begin)
        began = time.monotonic()
        await align(cluster, Alignment(topic, topic, Rules(), begin), position, lambda _: None)
        took = time.monotonic() - began
        assert await list_offset(cluster, topic, EARLIEST) == await list_offset(cluster, topic, LATEST) == begin
        return took


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--begin", type=int, default=100_000_000)
    options = parser.parse_args()
    result: dict[str, object] = {}
    with ExitStack() as stack:
        source, target = (stack.enter_context(one) for one in start_many([Spec(name="source"), Spec(name="target")]))
        for name in ("warm", "small"):
            fill(source.bootstrap, name, Shape(name=name, megabytes=1, partitions=1, keyed=0))

        def copy(topic: str, turn: int, offsets: str = "preserve") -> dict[str, float]:
            return copied(source.bootstrap, target.bootstrap, topic, f"{turn}-{offsets}-", offsets)

        for number, (name, (size, megabytes)) in enumerate(WORKLOADS.items()):
            plain, transactions = f"plain-{number}", f"transactions-{number}"
            shape = Shape(name=plain, batch_bytes=size, megabytes=megabytes, partitions=PARTITIONS, keyed=0)
            fill(source.bootstrap, plain, shape)
            count = fill_with_transactions(source.bootstrap, transactions, size=size, megabytes=megabytes)
            turns = [
                (copy(plain, turn), copy(transactions, turn), copy(transactions, turn, "translate"))
                for turn in range(options.rounds)
            ]
            result[f"transactions of {name}"] = {
                "count": count,
                "plain_s": round(statistics.median(turn[0]["wall"] for turn in turns), 2),
                **{
                    mode: {
                        "seconds": round(statistics.median(turn[at]["wall"] for turn in turns), 2),
                        "speed": round(statistics.median(turn[0]["wall"] / turn[at]["wall"] for turn in turns), 2),
                        "cpu": round(statistics.median(turn[at]["cpu"] / turn[0]["cpu"] for turn in turns), 2),
                    }
                    for at, mode in ((1, "preserve"), (2, "translate"))
                },
            }
        took = asyncio.run(aligned(target, options.begin))
        result["alignment"] = {"begin": options.begin, "seconds": round(took, 1)}
    json.dump(result, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
