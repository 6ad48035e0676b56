"""Re-keying: CPU, speed and memory beside MirrorMaker 2 with a consume-produce loop behind it; how late records are.

JSON records of some 400 bytes, in zstd batches of 4 partitions, go to 12 partitions by a field of theirs. `mirror run
--once` with a rule, and MirrorMaker 2 followed by a loop of Kafka's C client (`loop.py`), in turn, from the same topic.
CPU is that of the whole process tree, without the brokers. A result counts only if every record is there once, and a
sample of them where it belongs, in order.

Then records come at a fixed rate, and what counts is the time from a record's timestamp to when a consumer of committed
records sees it on the target.

    python -m tests.bench.rekey [--megabytes 800] [--rounds 3] [--rate 1000] [--seconds 60]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition

from mirror.lab.bench.arms import GRACE_S, Job, MirrorMaker
from mirror.lab.bench.measuring import Goal, Watch, settle
from mirror.lab.bench.result import Measured
from mirror.lab.bench.workloads import Shape, create, records
from mirror.lab.demo.processes import Bound, Tree
from mirror.lab.embedded import Cluster, Spec, start_many

FROM_PARTITIONS: Final = 4
PARTITIONS: Final = 12
FIELD: Final = "user"
RULE: Final = {"rekey": f"get_json_object(string(value), '$.{FIELD}')", "partitions": PARTITIONS}
CODEC: Final = "zstd"
#: Of so many records one is looked at closely.
SAMPLE: Final = 20


def watched(
    process: Bound, clusters: tuple[Cluster, Cluster], topic: str, partitions: int, end: int | None
) -> Measured:
    """What a process takes until it ends, or until the target's offsets add up to `end`: then it is ended. Whether all
    is there is looked at afterwards.
    """
    goal = Goal(topic=topic, partitions=partitions, end=end or 1, stored_bytes=0)
    with process:
        return Watch(process, time.monotonic(), *clusters, goal).measure(ends_itself=end is None)


def per_cpu_second(cost: Measured, count: int) -> float:
    """Records for each CPU-second, once it had started."""
    return count / cost.copy_cpu_s


def filled(bootstrap: str, topic: str, megabytes: int) -> int:
    """A topic of records that all differ; how many."""
    create(bootstrap, topic, FROM_PARTITIONS)
    pool = records(1)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": CODEC,
            "batch.size": 1 << 20,
            "batch.num.messages": 100_000,
            "linger.ms": 500,
            "queue.buffering.max.kbytes": 400_000,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    size = count = 0
    while size < megabytes * 1_000_000:
        value = b'{"number": %d, ' % count + pool[count % len(pool)][1:]
        try:
            producer.produce(topic, value, partition=count // 2500 % FROM_PARTITIONS)
        except BufferError:
            producer.poll(0.05)
            continue
        size, count = size + len(value), count + 1
        if count % 2000 == 0:
            producer.poll(0)
    producer.flush()
    return count


def flow(folder: Path, name: str, source: Cluster, target: Cluster, topic: str, prefix: str) -> Path:
    """A configuration that re-keys one topic to `prefix` and its name."""
    path = folder / f"{name}.yaml"
    settings = {
        "name": name,
        "source": {"alias": "a", "bootstrap.servers": source.bootstrap},
        "target": {"alias": "b", "bootstrap.servers": target.bootstrap},
        "topics": {"include": [topic], "naming": {"prefix": prefix}, "rules": [{"match": topic, **RULE}]},
    }
    path.write_text(json.dumps(settings), encoding="utf-8")  # JSON is YAML
    return path


def mirror_arm(folder: Path, round_: int, source: Cluster, target: Cluster, topic: str) -> tuple[Measured, str]:
    """One bounded run of the mirror, and the topic it made."""
    prefix = f"mirror-{round_}-"
    config = flow(folder, f"bench-{round_}", source, target, topic, prefix)
    settle()
    command = [sys.executable, "-m", "mirror", "run", str(config), "--once"]
    process = Bound(command, folder / f"bench-{round_}.log", grace=GRACE_S)
    return watched(process, (source, target), prefix + topic, PARTITIONS, None), prefix + topic


def maker_arm(
    folder: Path, round_: int, source: Cluster, target: Cluster, topic: str, count: int
) -> tuple[Measured, Measured, str]:
    """MirrorMaker 2, the loop behind it, and the topic that came of it."""
    result = f"loop-{round_}-{topic}"
    job = Job(
        run=f"m{round_}",
        source=source.bootstrap,
        target=target.bootstrap,
        topic=topic,
        shape=Shape(name=topic, codec=CODEC, megabytes=0, partitions=FROM_PARTITIONS),
        folder=folder,
    )
    settle()
    maker = MirrorMaker(tuned=True)
    between = maker.target_topic(job)
    copied = watched(maker.start(job), (source, target), between, FROM_PARTITIONS, count)
    create(target.bootstrap, result, PARTITIONS)
    settle()
    command = [sys.executable, "-m", "tests.bench.loop", target.bootstrap, between, result, FIELD, CODEC]
    process = Bound(command, folder / f"{result}.log", grace=GRACE_S)
    looped = watched(process, (target, target), result, PARTITIONS, None)
    return copied, looped, result


def check(source: Sequence[Any], bootstrap: str, topic: str) -> None:
    """Raises SystemExit unless all is there once, and the sample is as it is to be."""
    from rekeychecker import complaints, read_committed

    target = read_committed(bootstrap, topic)
    numbers = sorted(_number(one) for one in target)
    if numbers != list(range(len(source))):
        raise SystemExit(f"{topic}: {len(numbers)} records, {len(set(numbers))} different, of {len(source)}")
    some, their = ([one for one in side if _number(one) % SAMPLE == 0] for side in (source, target))
    wrong = complaints(some, their, PARTITIONS, lambda one: str(json.loads(one.value or b"")[FIELD]).encode())
    if wrong:
        raise SystemExit(f"{topic}: {len(wrong)} complaints, the first: {wrong[:3]}")


def _number(one: Any) -> int:
    value: bytes = one.value
    return int(value[11 : value.index(b",", 11)])


class Reader(threading.Thread):
    """Notes when each numbered record is to be seen on the target, and the record's own time, in milliseconds."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.arrived: dict[int, tuple[float, int]] = {}
        self.done = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "lag",
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 50,
            }
        )
        self._consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])

    def run(self) -> None:
        """Until `done`."""
        while not self.done.is_set():
            message: Any
            for message in self._consumer.consume(1000, 0.02):
                if not message.error():
                    number = int((message.value() or b"")[11:].split(b",", 1)[0])
                    self.arrived[number] = (time.time() * 1000, message.timestamp()[1])
        self._consumer.close()


def lag(folder: Path, source: Cluster, target: Cluster, rate: int, seconds: int, warm: int) -> dict[str, float]:
    """How late records are at a rate, in milliseconds, and the cores that the mirror's processes take meanwhile."""
    topic = "stream"
    create(source.bootstrap, topic, FROM_PARTITIONS)
    create(target.bootstrap, f"live-{topic}", PARTITIONS)
    pool = records(2, 5000)
    config = flow(folder, "bench-lag", source, target, topic, "live-")
    producer = Producer({"bootstrap.servers": source.bootstrap, "linger.ms": 5, "compression.type": CODEC})
    reader = Reader(target.bootstrap, f"live-{topic}")
    with (folder / "lag.log").open("wb") as log:
        mirror = subprocess.Popen([sys.executable, "-m", "mirror", "run", str(config)], stderr=log)
    try:
        reader.start()
        number = 0

        def send() -> None:
            nonlocal number
            value = b'{"number": %d, ' % number + pool[number % len(pool)][1:]
            producer.produce(topic, value, partition=number % FROM_PARTITIONS, timestamp=round(time.time() * 1000))
            number += 1

        send()
        producer.flush()
        while 0 not in reader.arrived:  # the mirror runs once it has brought this one over
            if mirror.poll() is not None:
                raise SystemExit((folder / "lag.log").read_text())
            reader.join(0.1)
        tree, used, counted = Tree(mirror.pid), 0.0, 0
        began = time.perf_counter()
        while (elapsed := time.perf_counter() - began) < warm + seconds:
            if elapsed >= warm and not counted:
                used, counted = tree.sample(), number
            while number < 1 + elapsed * rate:
                send()
            producer.poll(0.002)
        used = tree.sample() - used
        producer.flush()
        while len(reader.arrived) < number:
            if mirror.poll() is not None:
                raise SystemExit((folder / "lag.log").read_text())
            reader.join(0.1)
    finally:
        mirror.terminate()
        mirror.wait(60)
        reader.done.set()
        reader.join()
    late = sorted(seen - at for which, (seen, at) in reader.arrived.items() if which >= counted)
    return {
        "records": len(late),
        "p50_ms": statistics.median(late),
        "p99_ms": late[int(len(late) * 0.99)],
        "max_ms": late[-1],
        "cores": used / seconds,
    }


def line(name: str, found: Sequence[float], form: str) -> str:
    """A median and its range."""
    low, middle, high = (format(one, form) for one in (min(found), statistics.median(found), max(found)))
    return f"  {name:<58}{middle}  ({low} to {high})"


def summary(name: str, parts: Sequence[Sequence[Measured]], count: int) -> None:
    """Print what came of one arm; `parts`: of each round the processes, one after another."""
    print(name)
    print(line("records per CPU-second", [count / sum(c.cpu_s for c in row) for row in parts], ",.0f"))
    running = [1 / sum(1 / per_cpu_second(c, count) for c in row) for row in parts]
    print(line("  the same, start-up left out", running, ",.0f"))
    print(line("CPU-seconds", [sum(c.cpu_s for c in row) for row in parts], ".1f"))
    print(line("  of the JVM", [sum(c.java_cpu_s for c in row) for row in parts], ".1f"))
    print(line("  until the first records are there", [sum(c.start_cpu_s for c in row) for row in parts], ".1f"))
    print(line("seconds", [sum(c.wall_s for c in row) for row in parts], ".1f"))
    print(line("  until the first records are there", [sum(c.start_s for c in row) for row in parts], ".1f"))
    print(line("peak resident memory, MB", [max(c.peak_rss_bytes / 1e6 for c in row) for row in parts], ".0f"))
    print(line("  with shared pages once", [max((c.peak_pss_bytes or 0) / 1e6 for c in row) for row in parts], ".0f"))


def main() -> None:
    """Measure and print a summary and, last, the raw figures as JSON."""
    sys.path.insert(0, str(Path(__file__).parents[1]))  # the folders that pytest puts there
    sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
    from rekeychecker import read_committed

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=800, help="uncompressed size of the topic")
    parser.add_argument("--rounds", type=int, default=3, help="0 for the lag alone")
    parser.add_argument(
        "--rate", type=int, default=1000, help="records a second where the lag is measured; 0 leaves it out"
    )
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--warm", type=int, default=10, help="seconds at that rate that do not count, before")
    parser.add_argument("--alone", action="store_true", help="without MirrorMaker 2")
    options = parser.parse_args()
    MirrorMaker(tuned=True).prepare()
    mirrors: list[Measured] = []
    makers: list[tuple[Measured, Measured]] = []
    late: dict[str, float] = {}
    count = 0
    specs = [Spec(name="rekey-source", jit="full"), Spec(name="rekey-target", jit="full")]
    source, target = start_many(specs)
    with source, target, tempfile.TemporaryDirectory(prefix="mirror-rekey-") as name:
        folder = Path(name)
        if options.rounds:
            count = filled(source.bootstrap, "load", options.megabytes)
            wanted = read_committed(source.bootstrap, "load")
        for round_ in range(options.rounds):
            cost, topic = mirror_arm(folder, round_, source, target, "load")
            check(wanted, target.bootstrap, topic)
            mirrors.append(cost)
            print(f"mirror {cost}", file=sys.stderr)
            if not options.alone:
                copied, looped, topic = maker_arm(folder, round_, source, target, "load", count)
                check(wanted, target.bootstrap, topic)
                makers.append((copied, looped))
                print(f"MirrorMaker {copied}\nloop {looped}", file=sys.stderr)
        if options.rate:
            late = lag(folder, source, target, options.rate, options.seconds, options.warm)
    if mirrors:
        print(f"{count:,} records")
        summary("mirror", [(cost,) for cost in mirrors], count)
    if makers:
        summary("MirrorMaker 2 and a loop behind it", makers, count)
        summary("of these, MirrorMaker 2, which changes no key", [(copied,) for copied, _ in makers], count)
        ratios = [sum(c.cpu_s for c in maker) / mirror.cpu_s for mirror, maker in zip(mirrors, makers, strict=True)]
        print(line("CPU of MirrorMaker 2 and the loop, the mirror's being 1", ratios, ".2f"))
    if late:
        print(
            f"from a record's timestamp to a consumer of committed records, at {options.rate}/s:"
            f" p50 {late['p50_ms']:.0f} ms, p99 {late['p99_ms']:.0f} ms, max {late['max_ms']:.0f} ms;"
            f" {late['cores']:.2f} cores"
        )
    result = {
        "records": count,
        "mirror": [asdict(cost) for cost in mirrors],
        "mirrormaker": [[asdict(cost) for cost in row] for row in makers],
        "lag": late,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
