"""What equal offsets cost: a source that commits transactions beside one that does not, and a source that was trimmed.

The same records go into a plain topic and into one with a transaction for each batch, so that a control marker follows
each; both are copied turn and turn about, without Spark, the latter with equal and with translated offsets. At
10 MB/s a partition, a transaction of 1 MB is one every 100 ms. Then an empty target is aligned with a source that
begins at a high offset.

    python -m tests.bench.offsets [--rounds 3] [--begin 100_000_000]
    python -m tests.bench.offsets --padding     # the last of these alone, and what other batches would cost
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from contextlib import ExitStack

from confluent_kafka import Producer

from mirror.kafka.cluster import Cluster as Wire
from mirror.kafka.cluster import Endpoint, TopicPartition
from mirror.kafka.queries import EARLIEST, LATEST, list_offset
from mirror.lab.bench.measuring import BrokerCpu, on_disk
from mirror.lab.bench.workloads import Shape, create, fill, records
from mirror.lab.embedded import Cluster, Spec, start_many
from mirror.policy.rules import Rules
from mirror.records.header import ProducerState
from mirror.replication.assignment import Assignment
from mirror.replication.decide import Position
from mirror.replication.log_start import align
from mirror.replication.observe import producer_id

from .against import ROOT, copied_by_child, fill_small

PARTITIONS = 2
#: By name: bytes of a transaction, uncompressed, and MB in all.
WORKLOADS = {"1 MB": (1_000_000, 400), "50 KB": (50_000, 100)}

ALIGNED = Rules()
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3}


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


async def aligned(
    target: Cluster, begin: int, name: str = "aligned", partitions: int = 1, rules: Rules = ALIGNED
) -> dict[str, float]:
    """Seconds, and CPU-seconds of the broker and of this process, to let each partition of a new topic begin at an
    offset, and the bytes of its log, each for a million offsets.
    """
    topics = [TopicPartition(name, number) for number in range(partitions)]
    create(target.bootstrap, name, partitions)
    host, _, port = target.bootstrap.partition(":")
    async with Wire(Endpoint("target", ((host, int(port)),))) as cluster:
        await cluster.refresh([name])

        async def one(topic: TopicPartition) -> None:
            position = Position(0, ProducerState(producer_id("bench", topic)), known=False, last_epoch=-1, begin=begin)
            await align(cluster, Assignment(topic, topic, None, rules), position, lambda _: None)
            assert await list_offset(cluster, topic, EARLIEST) == await list_offset(cluster, topic, LATEST) == begin

        await asyncio.gather(*(list_offset(cluster, topic, LATEST) for topic in topics))  # waits for its leader
        began, cpu, broker = time.monotonic(), time.process_time(), BrokerCpu(target)
        await asyncio.gather(*map(one, topics))
        found = {
            "seconds": time.monotonic() - began,
            "broker_cpu_s": broker.used,
            "mirror_cpu_s": time.process_time() - cpu,
            "megabytes": on_disk(target, [name]) / 1e6,
        }
    return {key: round(value / (begin * partitions / 1e6), 3) for key, value in found.items()}


def compared(target: Cluster, rounds: int, begin: int = 2 << 20) -> dict[str, dict[str, float]]:
    """The same by what could make padding cheaper: medians, turn and turn about, so that the ratios say something."""
    ways: dict[str, tuple[Rules, int]] = {
        "as it is: zstd, 1 Mi records": (ALIGNED, 1),
        "two partitions at a time": (ALIGNED, 2),
        **{f"{name}, 1 Mi records": (Rules(codec=id_, max_message_bytes=16 << 20), 1) for name, id_ in CODECS.items()},
        **{f"zstd, batches of {size // 1000} KB": (Rules(max_message_bytes=size), 1) for size in (10_000, 100_000)},
    }
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for turn in range(-1, rounds):  # the first warms the broker up
        for number, (name, (rules, partitions)) in enumerate(ways.items()):
            found = asyncio.run(aligned(target, begin, f"padded-{turn + 1}-{number}", partitions, rules))
            turns[name] += [found] if turn >= 0 else []
            print(turn, name, found, file=sys.stderr, flush=True)
    return {name: {key: statistics.median(one[key] for one in of) for key in of[0]} for name, of in turns.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--begin", type=int, default=100_000_000)
    parser.add_argument("--padding", action="store_true", help="measure padding alone, and what would be cheaper")
    options = parser.parse_args()
    result: dict[str, object] = {}
    with ExitStack() as stack:
        large = {"message.max.bytes": str(16 << 20)}
        specs = [Spec(name="source"), Spec(name="target", config=large)]
        source, target = (stack.enter_context(one) for one in start_many(specs))
        if options.padding:
            json.dump(compared(target, options.rounds), sys.stdout, indent=2)
            return
        fill_small(source)
        ends = source.bootstrap, target.bootstrap

        def copy(topic: str, turn: int, offsets: str = "preserve") -> dict[str, float]:
            return copied_by_child(ROOT, ends, topic, f"{turn}-{offsets}-", offsets=offsets)

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
        result["padding, for a million offsets"] = asyncio.run(aligned(target, options.begin))
    json.dump(result, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
