"""Files as a cluster: what whoever reads them as a broker's is answered."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from rawbatches import batch
from replicas import replica

from mirror.errors import BrokerError
from mirror.kafka.cluster import TopicPartition
from mirror.kafka.fetch import fetch_below
from mirror.kafka.queries import EARLIEST, EARLIEST_LOCAL, LATEST, list_offset
from mirror.records.header import TRANSACTIONAL
from mirror.replication.position import gap_difference
from mirror.segments.file_cluster import FileCluster
from mirror.segments.replica_sets import load

OPEN = batch(30, attributes=TRANSACTIONAL, producer_id=7, producer_epoch=0, base_sequence=0)


@pytest.mark.parametrize("last", [b"", OPEN], ids=["at the end", "before an open transaction"])
def test_a_hole_in_files_is_one(tmp_path: Path, last: bytes) -> None:
    """The last file lost what was not flushed, or the cleaner left nothing there: a copy without records there is the
    same, since files are what a leader has on its own disk.
    """
    log = load([replica(tmp_path, (10, batch(10, count=10)), (30, last))])
    at = TopicPartition("orders", 0)

    async def compare() -> None:
        async with FileCluster("lost", {at: log}) as source:
            bounds = [await list_offset(source, at, when) for when in (EARLIEST, EARLIEST_LOCAL, LATEST)]
            assert bounds == [10, 10, 31 if last else 30]
            with pytest.raises(BrokerError):
                await list_offset(source, at, 1_700_000_000_000)
            assert not (await fetch_below(source, at, 20, 30)).records
            assert await gap_difference(source, at, 20, 30) == ""

    asyncio.run(compare())
