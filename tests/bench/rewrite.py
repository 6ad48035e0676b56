"""The rewriting path alone: records per CPU-second for each codec, and where the time goes.

Records are JSON of about 400 bytes that zstd compresses four to one, in batches of 1 MB before compression; each is
read and made anew as the writer does it, in memory. MirrorMaker 2 was measured at 58,000 records per CPU-second on such
data (`mm2` is the ratio to that).

    python -m tests.bench.rewrite [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from mirror.lab.bench.workloads import records
from mirror.records.codecs import compress, decompress
from mirror.records.columns import Records, decode, encode
from mirror.records.header import CODECS
from mirror.records.recipe import Recipe
from mirror.records.rewrite import build, rewrite

MIRROR_MAKER: int = 58_000
BATCH_BYTES = 1_000_000
REPEATS = 20


def batch_of(values: list[bytes]) -> Records:
    """The records as columns, with keys of ten bytes and rising timestamps."""
    keys = [b"%010d" % number for number in range(len(values))]
    data = b"".join(key + value for key, value in zip(keys, values, strict=True))
    found = Records.empty(data, len(values))
    sizes = np.array([len(value) for value in values], np.int64)
    starts = np.concatenate(([0], np.cumsum(sizes + 10)))[:-1]
    found.offsets[:] = np.arange(len(values))
    found.timestamps[:] = 1_700_000_000_000 + 13 * np.arange(len(values))
    found.key_at[:], found.key_size[:] = starts, 10
    found.value_at[:], found.value_size[:] = starts + 10, sizes
    found.headers_at[:] = found.headers_end[:] = starts + 10 + sizes
    found.header_count[:] = 0
    return found


def cpu_of(work: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    began = time.process_time()
    for _ in range(REPEATS):
        work()
    return (time.process_time() - began) / REPEATS


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    pool = records(1, 4000, vocabulary=50)
    count = BATCH_BYTES // (sum(map(len, pool)) // len(pool))
    plain = batch_of(pool[:count])
    section = bytes(encode(plain, int(plain.timestamps[0])))
    batches = {codec: build(plain, codec) for codec in range(len(CODECS))}
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in CODECS}
    for _ in range(rounds):
        for codec, name in enumerate(CODECS):
            raw = batches[codec]
            measured[name].append(
                {
                    "total": cpu_of(partial(rewrite, (raw,), Recipe())),
                    "decompress": cpu_of(partial(decompress, codec, raw.records)),
                    "compress": cpu_of(partial(compress, codec, section)),
                    "decode": cpu_of(lambda: decode(section, count, 0, 0)),
                    "encode": cpu_of(lambda: encode(plain, 0)),
                }
            )
    result = {}
    for name, runs in measured.items():
        middle = {part: statistics.median(run[part] for run in runs) for part in runs[0]}
        speed = count / middle["total"]
        result[name] = {
            "records_per_cpu_s": round(speed),
            "mm2": round(speed / MIRROR_MAKER, 1),
            "codec_share": round((middle["decompress"] + middle["compress"]) / middle["total"], 2),
            "ms": {part: round(1000 * seconds, 2) for part, seconds in middle.items()},
            "ratio": round(len(batches[CODECS.index(name)].data) / len(section), 3),
        }
    json.dump({"records": count, "bytes": len(section), "codecs": result}, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
