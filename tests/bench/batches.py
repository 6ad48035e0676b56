"""`kafka-batches` over segment files: batches and bytes per second, and memory, of a census by Spark SQL.

Segments of 256 MB in four partitions, filled with batches of JSON records of every codec; only base offsets differ,
which no CRC covers. The census is `mirror census FOLDER --json` as users run it, Spark's start included; `scan` is one
process that reads one segment as a task does, without Spark.

    python -m tests.bench.batches [--gigabytes 1] [--batch 100000] [--folder DIR]
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
import tempfile
import time
from pathlib import Path

from mirror.lab.bench.workloads import records
from mirror.lab.demo.processes import Bound, Tree
from mirror.lab.embedded.node import GRACE_S
from mirror.records.header import CODECS
from mirror.records.rewrite import build
from mirror.spark.datasource.options import parse
from mirror.spark.datasource.plan import planned

from .rewrite import batch_of

SEGMENT_BYTES = 256 << 20
PARTITIONS = 4
EVERY = 0.2


def fill(folder: Path, size: int, batch_bytes: int) -> int:
    """Segments of about `size` bytes in all; how many batches they hold."""
    pool = records(1, 4000, vocabulary=50)
    count = max(1, batch_bytes // (sum(map(len, pool)) // len(pool)))
    made = [bytearray(build(batch_of(pool[:count]), codec).data) for codec in range(len(CODECS))]
    total = 0
    for partition in range(PARTITIONS):
        (folder / f"bench-{partition}").mkdir(parents=True)
        offset = 0
        left = size // PARTITIONS
        while left > 0:
            path = folder / f"bench-{partition}" / f"{offset:020}.log"
            with path.open("wb") as file:
                while left > 0 and file.tell() < SEGMENT_BYTES:
                    data = made[total % len(made)]
                    struct.pack_into(">q", data, 0, offset)
                    left -= file.write(data)
                    offset += count
                    total += 1
    return total


def scan(folder: Path) -> dict[str, float]:
    """One segment, read in this process as a task reads it."""
    options = parse({"path": str(folder), "topic": "bench", "partition": "0", "before": "1"})
    (part,) = planned(options, options.wanted)
    options = parse({"path": str(part.place.file)})
    (part,) = planned(options, options.wanted)
    size = Path(str(part.place.file)).stat().st_size
    began, cpu = time.monotonic(), time.process_time()
    batches = sum(made.num_rows for made in part.read())
    wall, used = time.monotonic() - began, time.process_time() - cpu
    return {
        "batches_per_s": round(batches / wall),
        "mb_per_s": round(size / wall / 1e6),
        "cpu_us_per_batch": round(used / batches * 1e6, 1),
        "mb_per_cpu_s": round(size / used / 1e6),
    }


def census(folder: Path) -> tuple[dict[str, object], dict[str, float]]:
    """The command's figures; and of its processes the most memory in MB, shared pages once, and seconds."""
    began, log = time.monotonic(), folder / "census.json"
    with Bound([sys.executable, "-m", "mirror", "census", str(folder), "--json"], log, grace=GRACE_S) as process:
        tree = Tree(process.pid)
        while process.exit_code is None:
            tree.sample()
            time.sleep(EVERY)
        assert process.exit_code == 0, process.tail()
    output: dict[str, object] = json.loads(log.read_text().splitlines()[-1])
    memory = round((tree.counters.peak_pss or tree.counters.peak_rss) / 1e6)
    return output, {"memory_mb": memory, "wall_s": round(time.monotonic() - began, 1)}


def main() -> None:
    """Fill, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--batch", type=int, default=100_000, help="bytes of a batch before compression")
    parser.add_argument("--folder", type=Path, default=None, help="where there is room")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as made:
        folder = Path(made)
        batches = fill(folder, int(given.gigabytes * 1e9), given.batch)
        alone = scan(folder)
        reported, usage = census(folder)
    seconds = float(str(reported["seconds"]))
    size = int(str(reported["bytes"]))
    assert reported["batches"] == batches
    result = {
        "batches": batches,
        "bytes": size,
        "scan": alone,
        "census": {
            "seconds_with_spark_start": seconds,
            "batches_per_s": round(batches / seconds),
            "mb_per_s": round(size / seconds / 1e6),
            **usage,
        },
    }
    json.dump(result, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
