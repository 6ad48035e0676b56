"""Re-keying: CPU, speed and memory beside MirrorMaker 2 with a consume-produce loop behind it; how late records are.

JSON records of some 400 bytes, in zstd batches of 4 partitions, go to 12 partitions by a field of theirs. `mirror run
--once` with a rule, and MirrorMaker 2 followed by a loop of Kafka's C client, in turn, from the same topic. CPU is that
of the whole process tree, without the brokers. A copy counts only if every record is there once, with its key.

Then records come at a fixed rate, and what counts is the time from sending a record to when a consumer of committed
records sees it on the target.

    python -m tests.bench.rekey [--megabytes 800] [--rounds 3] [--rate 1000] [--seconds 60]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace

from mirror.lab.bench import latency
from mirror.lab.bench.arms import ARMS
from mirror.lab.bench.content import Topics
from mirror.lab.bench.copies import attempted, copied, insist, removed, source_of
from mirror.lab.bench.result import Measured
from mirror.lab.bench.workloads import SHAPES
from mirror.lab.embedded import Spec, start_many


def line(name: str, found: Sequence[float], form: str) -> str:
    """A median and its range."""
    low, middle, high = (format(value, form) for value in (min(found), statistics.median(found), max(found)))
    return f"  {name:<58}{middle}  ({low} to {high})"


def show(name: str, rounds: Sequence[Sequence[Measured]], count: int) -> None:
    """Print what came of a way to re-key: of each round the processes, one after another."""
    print(name)
    print(line("records per CPU-second", [count / sum(c.cpu_s for c in row) for row in rounds], ",.0f"))
    print(line("  the same, start-up left out", [count / sum(c.copy_cpu_s for c in row) for row in rounds], ",.0f"))
    print(line("CPU-seconds", [sum(c.cpu_s for c in row) for row in rounds], ".1f"))
    print(line("  until the first records are there", [sum(c.start_cpu_s for c in row) for row in rounds], ".1f"))
    print(line("seconds", [sum(c.wall_s for c in row) for row in rounds], ".1f"))
    print(line("  until the first records are there", [sum(c.start_s for c in row) for row in rounds], ".1f"))
    print(line("peak resident memory, MB", [max(c.peak_rss_bytes / 1e6 for c in row) for row in rounds], ".0f"))
    print(line("  with shared pages once", [max((c.peak_pss_bytes or 0) / 1e6 for c in row) for row in rounds], ".0f"))


def main() -> None:
    """Measure and print a summary and, last, the raw figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=800, help="uncompressed size of the topic")
    parser.add_argument("--rounds", type=int, default=3, help="0 for the lag alone")
    parser.add_argument("--rate", type=int, default=1000, help="records a second for the lag; 0 leaves it out")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--alone", action="store_true", help="without MirrorMaker 2")
    options = parser.parse_args()
    shape = replace(SHAPES["1MB-zstd"], name="load", megabytes=options.megabytes, keyed=0)
    mirror, maker, loop = (ARMS[name] for name in ("mirror-rekey", "mm2-tuned", "loop-rekey"))
    maker.prepare()
    mirrors: list[Sequence[Measured]] = []
    makers: list[Sequence[Measured]] = []
    result: dict[str, object] = {}
    with ExitStack() as stack:
        specs = [Spec(name="rekey-source", jit="full"), Spec(name="rekey-target", jit="full")]
        source, target = map(stack.enter_context, start_many(specs))
        load = source_of(source, shape) if options.rounds else None
        for round_ in range(options.rounds):
            assert load is not None, "there are rounds"
            mirrors.append([copied(mirror, load, target, f"mirror-{round_}")])
            print(f"mirror {mirrors[-1]}", file=sys.stderr)
            if not options.alone:
                first = attempted(maker, load, target, f"m{round_}", keep=True)
                insist(maker, load, first)
                between = Topics(target.bootstrap, [f"m{round_}.load"], shape.partitions)
                second = copied(loop, replace(load, cluster=target, topics=between), target, f"loop-{round_}")
                removed(target, between.names)
                makers.append([first.measured, second])
                print(f"MirrorMaker and loop {makers[-1]}", file=sys.stderr)
        if options.rate:
            pace = latency.Pace(options.rate, options.seconds, partitions=shape.partitions)
            result["lag"] = asdict(latency.measured(mirror, source, target, "lag", pace, 1))
    if load is not None:
        count = load.workload.records
        print(f"{count:,} records")
        show("mirror", mirrors, count)
        if makers:
            show("MirrorMaker 2 and a loop behind it", makers, count)
            show("of these, MirrorMaker 2, which changes no key", [row[:1] for row in makers], count)
    result |= {"mirror": [[asdict(cost) for cost in row] for row in mirrors]}
    result |= {"mirrormaker": [[asdict(cost) for cost in row] for row in makers]}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
