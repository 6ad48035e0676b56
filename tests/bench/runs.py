"""What the index of a partition costs whose offsets move: `python -m tests.bench.runs [RUNS]`.

A run for each transaction: five records and a marker. Everything in memory, no broker.
"""

from __future__ import annotations

import sys
import time
import tracemalloc
from random import Random

from mirror.journal import offset_maps
from mirror.journal.journal import Entry
from mirror.journal.offset_maps import Indexes
from mirror.kafka.cluster import TopicPartition
from mirror.replication.offset_map import OffsetMap

TARGET = TopicPartition("orders", 0)
LOOKUPS = 100_000


def recorded(runs: int) -> list[Entry]:
    """The journal's records of so many runs, written once a thousand runs."""
    offset_map, entries = OffsetMap(), list[Entry]()
    for number in range(runs):
        offset_map.add(offset_map.runs.next_source + 1, offset_map.runs.next_target, 5)
        if number % 1000 == 999 or number == runs - 1:
            entries += (Entry(0, key, value) for key, value in offset_maps.map_entries(TARGET, offset_map))
            offset_map.recorded()
    return entries


def main() -> None:
    """Build, read, look up, and print."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    entries = list({entry.key: entry for entry in recorded(runs)}.values())  # as compaction leaves them
    began = time.process_time()
    index = Indexes(entries)[TARGET]
    reading = time.process_time() - began
    del index
    tracemalloc.start()
    index = Indexes(entries)[TARGET]
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    random = Random(1)
    asked = [random.randrange(6 * runs) for _ in range(LOOKUPS)]
    began = time.process_time()
    for offset in asked:
        index.to_target(offset)
    lookups = time.process_time() - began
    stored = sum(len(entry.key) + len(entry.value or b"") for entry in entries)
    print(f"{runs:,} runs in {len(entries):,} records of the journal, {stored / runs:.1f} bytes a run there")
    print(f"{held / len(index):.1f} bytes a run in memory, read in {reading:.2f} CPU-s")
    print(f"{lookups / LOOKUPS * 1e6:.1f} microseconds a lookup")


if __name__ == "__main__":
    main()
