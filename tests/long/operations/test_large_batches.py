"""A batch that decompresses to more than memory holds."""

from __future__ import annotations

from typing import Any

import helpers
import pytest
from copies import copied
from helpers import RECENT_MS, make_topic, produce, settings_between, stored_batches
from planted import plant
from rawbatches import batch
from recordoracle import Record, encoded
from samerecords import assert_same_records

from mirror.commands.verify import verify_flow
from mirror.lab.embedded import Cluster
from mirror.records.codecs import ZSTD, compress
from mirror.replication.partition_writer import PartitionWriter


@pytest.mark.proves("REWRITE")
@pytest.mark.parametrize(("codec", "batches"), [("producer", 6), ("uncompressed", 79)])
def test_a_batch_that_decompresses_to_more_than_memory_holds_is_rewritten_in_portions(
    own_source: Cluster,
    own_target: Cluster,
    topic_name: str,
    codec: str,
    batches: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """80 records of 1 MB in some kilobytes of zstd, one of which compaction took away: a few batches, or 79 that take
    their own size each, and then each waits for those before it.
    """
    pair = own_source.bootstrap, own_target.bootstrap
    make_topic(pair[0], topic_name)
    make_topic(pair[1], topic_name, configs={"compression.type": codec})
    records = encoded([Record(n, 0, b"%d" % n, bytes(1_000_000 - n)) for n in range(80) if n != 41])
    times = {"base_timestamp": RECENT_MS, "max_timestamp": RECENT_MS}
    made = batch(count=79, delta=79, attributes=ZSTD, payload=compress(ZSTD, records), **times)
    plant(own_source, topic_name, made, 80)
    held: list[int] = []

    def watched(self: PartitionWriter, *given: Any) -> None:
        appended(self, *given)
        held.append(self.flight.held)

    appended = PartitionWriter.append
    monkeypatch.setattr(PartitionWriter, "append", watched)
    monkeypatch.setattr(helpers, "MEMORY_BYTES", 16 << 20)
    found = copied(pair, topic_name)
    assert (found.verdicts["REWRITE/holes"], found.filled) == (batches, 1)
    assert max(held) < 12 << 20
    assert_same_records(*pair, topic_name, 1)
    ours = [raw for raw in stored_batches(pair[1], topic_name) if not raw.header.is_control]
    assert max(raw.header.count for raw in ours) <= 16
    produce(pair[0], topic_name, [b"after"])
    copied(pair, topic_name)
    report = verify_flow(settings_between(*pair, [topic_name], topic_name))
    assert (report.equal, report.differences) == (True, ())
