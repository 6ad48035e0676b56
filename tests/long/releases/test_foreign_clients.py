"""What foreign clients read of batches that many releases of brokers and clients wrote, once they are rewritten."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from helpers import stored_batches
from probe import probing
from vectors.corpus import load
from vectors.foreign import CONSUMERS, DECODERS

from mirror.lab.embedded import Cluster
from mirror.records.header import CODECS, CONTROL, RawBatch, split
from mirror.records.recipe import Recipe
from mirror.records.rewrite import rewrite


@pytest.mark.proves("REWRITE")
def test_rewritten_batches_of_many_brokers_are_stored_as_they_are_and_read_by_all_clients(
    own_target: Cluster, topic_name: str
) -> None:
    """The golden vectors (`tests/vectors`), one partition for each codec."""
    keep = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**63 - 1)}
    made: list[list[RawBatch]] = [[] for _ in CODECS]
    for vector in load():
        raws = [raw for raw in split(vector.data) if raw.header.magic < 2 or holds_records(raw)]
        for codec, run in itertools.groupby(raws, key=lambda raw: raw.header.codec):
            made[codec] += rewrite(list(run), Recipe())

    async def append() -> None:
        async with probing(own_target.bootstrap, topic_name, partitions=len(CODECS), configs=keep) as probe:
            for row in itertools.zip_longest(*made):
                sent = [(at, bytes(8) + bytes(raw.data[8:])) for at, raw in enumerate(row) if raw is not None]
                assert {answer.code for answer in (await probe.produce(sent)).values()} == {0}

    asyncio.run(append())
    expected = {}
    for codec, batches in enumerate(made):
        stored = stored_batches(own_target.bootstrap, topic_name, codec)
        assert [bytes(raw.records) for raw in stored] == [bytes(raw.records) for raw in batches]
        rows = DECODERS["kafka-python"](b"".join(raw.data for raw in batches))
        expected[topic_name, codec] = [row._replace(offset=number) for number, row in enumerate(rows)]
    for name, consumer in CONSUMERS.items():
        assert consumer(own_target.bootstrap, list(expected)) == expected, name


def holds_records(raw: RawBatch) -> bool:
    return bool(raw.header.count) and not raw.header.attributes & CONTROL
