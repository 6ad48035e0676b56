"""Files as a cluster: what whoever reads them as a broker's is answered."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rawbatches import batch
from replicas import replica

from mirror.kafka.cluster import TopicPartition
from mirror.kafka.queries import EARLIEST, EARLIEST_LOCAL, LATEST, list_offset
from mirror.replication.position import gap_difference
from mirror.segments.file_cluster import FileCluster
from mirror.segments.replica_sets import load


def test_a_hole_at_the_end_of_files_is_one(tmp_path: Path) -> None:
    """The last file lost what was not flushed, and the next one has nothing yet: a copy without records there is the
    same, since files are what a leader has on its own disk.
    """
    log = load([replica(tmp_path, (10, batch(10, count=10)), (30, b""))])
    at = TopicPartition("orders", 0)

    async def compare() -> None:
        async with FileCluster("lost", {at: log}) as source:
            bounds = [await list_offset(source, at, when) for when in (EARLIEST, EARLIEST_LOCAL, LATEST)]
            assert bounds == [10, 10, 30]
            assert await gap_difference(source, at, 20, 30) == ""

    asyncio.run(compare())
