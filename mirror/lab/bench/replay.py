"""The mirror's writer fed from memory, in several processes: what the target's brokers take, and no more.

python -m mirror.lab.bench.replay SOURCE TARGET FROM TO PARTITIONS PROCESSES
"""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.synchronize import Barrier
from typing import Final

from mirror.host import keep_what_is_freed
from mirror.kafka.cluster import Cluster, TopicPartition
from mirror.kafka.queries import replicated_end
from mirror.lab.bench.stored import endpoint, loaded
from mirror.records.header import ProducerState, RawBatch
from mirror.replication.classifier import OWN_PRODUCER
from mirror.replication.decide import Position
from mirror.replication.observe import producer_id
from mirror.replication.partition_writer import PartitionWriter
from mirror.replication.writer import Writer

MEMORY_BYTES: Final = 8 << 20


def main() -> None:
    """Load the batches, then append them all."""
    source, target, topic, copy, partitions, tasks = sys.argv[1:]
    batches = loaded(source, topic, int(partitions))
    context = multiprocessing.get_context("fork")  # the batches are shared, not copied
    go = context.Barrier(int(tasks))
    shares = [{p: b for p, b in batches.items() if p % int(tasks) == task} for task in range(int(tasks))]
    workers = [context.Process(target=_task, args=(target, copy, share, go)) for share in shares]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    sys.exit(any(worker.exitcode for worker in workers))


def _task(target: str, topic: str, batches: Mapping[int, Sequence[RawBatch]], go: Barrier) -> None:
    keep_what_is_freed()  # as Spark's workers have it
    asyncio.run(_replay(target, topic, batches, go))


async def _replay(target: str, topic: str, batches: Mapping[int, Sequence[RawBatch]], go: Barrier) -> None:
    async with Cluster(endpoint("target", target)) as cluster, asyncio.TaskGroup() as tasks:
        await cluster.refresh([topic])
        moved = asyncio.Event()
        writer = Writer(cluster, lambda _: moved.set(), tasks.create_task, MEMORY_BYTES)
        partition_writers = []
        for partition, raws in batches.items():
            at = TopicPartition(topic, partition)
            begin = await replicated_end(cluster, at)  # waits for the leader of a topic that was just made
            partition_writer = PartitionWriter(
                at, at, Position(begin, ProducerState(producer_id("bench", at)), False, -1)
            )
            writer.begin(partition_writer)
            partition_writers.append((partition_writer, iter(raws)))
        await asyncio.to_thread(go.wait)
        while partition_writers:
            for partition_writer, left in tuple(partition_writers):
                if partition_writer.in_doubt:
                    raise RuntimeError(f"{partition_writer.source}: {partition_writer.in_doubt}")
                while writer.room(partition_writer.source) > 0:
                    if (raw := next(left, None)) is None:
                        if partition_writer.is_idle:
                            partition_writers.remove((partition_writer, left))
                        break
                    writer.carry_out(OWN_PRODUCER, (raw,), partition_writer)
            writer.flush()
            if partition_writers:
                moved.clear()
                await moved.wait()


if __name__ == "__main__":
    main()
