"""A thousand topics with three thousand partitions and a thousand consumer groups, on clusters of one broker each: how
long the mirror takes to start, what it costs at rest, when it sees a new topic, and how fresh groups are.

    start           from the start of `mirror run` to the prepared flow, Spark, the first record on the target, and
                    until the last record that was there is on the target
    idle            CPU seconds of the mirror's process tree for each second, with nothing to copy and groups at rest
    one record      from its sending to its reading on the target, with all other partitions at rest
    new topic       from the creation of a topic on the source to its first record's arrival on the target; as often as
                    asked
    groups          from a commit on the source to the same offset committed on the target, one group after another
    all groups      the same where all groups commit at once, until the last one

    python -m tests.bench.scale [--topics 1000] [--partitions 3] [--groups 1000] [--repeats 5] [--records 200]
                                [--idle 60]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from mirror.config import parse_address
from mirror.kafka.cluster import Cluster as Wire
from mirror.kafka.cluster import Endpoint
from mirror.kafka.cluster import TopicPartition as Place
from mirror.kafka.groups import Committed, fetch_offsets
from mirror.lab.demo.processes import Bound, Tree
from mirror.lab.demo.producers import Ends
from mirror.lab.embedded import Cluster, Spec, start_many
from mirror.lab.embedded.node import GRACE_S

from .recovery import wait_for

#: Topics created in one request.
AT_ONCE: Final = 100
RECORDS: Final = 3
#: Topics of which a reader waits for single records, and records before the first that counts.
_READ: Final = 20
_WARMING: Final = 40


class Bench:
    """Two clusters, and the mirror between them."""

    def __init__(self, source: Cluster, target: Cluster, folder: Path, stack: ExitStack) -> None:
        self._source, self._target, self._folder, self._stack = source, target, folder, stack
        self._admin = AdminClient({"bootstrap.servers": source.bootstrap})
        # A broker may need more than the half minute that a producer gives it to list a thousand topics.
        patient = {"topic.metadata.propagation.max.ms": 180_000}
        self._producer = Producer({"bootstrap.servers": source.bootstrap, "linger.ms": 5, **patient})
        self.topics: list[str] = []
        self.groups: list[str] = []
        self._partitions = 0

    def fill(self, topics: int, partitions: int, groups: int) -> None:
        """Topics with a few records in each partition, and groups that have read some of them."""
        self.topics, self._partitions = [f"topic-{number:04}" for number in range(topics)], partitions
        for first in range(0, topics, AT_ONCE):
            made = [NewTopic(topic, partitions, 1) for topic in self.topics[first : first + AT_ONCE]]
            for future in self._admin.create_topics(made).values():
                future.result(60)
        for topic, partition, number in product(self.topics, range(partitions), range(RECORDS)):
            self._producer.produce(topic, b"%d" % number, partition=partition)
            self._producer.poll(0)
        self._producer.flush(240)
        there, every = self._records(self._source, self.topics), topics * partitions * RECORDS
        if there != every:
            raise RuntimeError(f"the source has {there} records of {every}: nothing can be measured with these")
        self.groups = [f"group-{number:04}" for number in range(groups)]
        self.commit(self.groups, 1)

    def commit(self, groups: Sequence[str], offset: int) -> None:
        """An offset of one topic's first partition for each group, on the source."""
        for group in groups:
            consumer = Consumer({"bootstrap.servers": self._source.bootstrap, "group.id": group})
            consumer.commit(offsets=[TopicPartition(self.topic_of(group), 0, offset)], asynchronous=False)
            consumer.close()

    def topic_of(self, group: str) -> str:
        """What a group reads."""
        return self.topics[int(group.rpartition("-")[2]) % len(self.topics)]

    def start(self) -> dict[str, float]:
        """Start the mirror; seconds until each thing was so."""
        config, log = self._folder / "flow.yaml", self._folder / "log"
        config.write_text(
            f'name: scale\nsource: {{alias: a, bootstrap.servers: "{self._source.bootstrap}"}}\n'
            f'target: {{alias: b, bootstrap.servers: "{self._target.bootstrap}"}}\ntopics: {{include: ["topic-.*"]}}\n'
        )
        began = time.monotonic()
        command = [sys.executable, "-m", "mirror", "run", str(config)]
        self._mirror = self._stack.enter_context(Bound(command, log, grace=GRACE_S))
        found = {}
        for event in ("flow_prepared", "spark_started"):
            wait_for(partial(self._has_logged, log, event), f"no {event}")
            found[event] = round(time.monotonic() - began, 1)
        wait_for(lambda: self._records(self._target, self.topics[:1]) > 0, "nothing was mirrored")
        found["first_record"] = round(time.monotonic() - began, 1)
        every = len(self.topics) * self._partitions * RECORDS
        wait_for(lambda: self._records(self._target, self.topics) >= every, "not everything was mirrored", pause=2)
        found["all_records"] = round(time.monotonic() - began, 1)
        wait_for(lambda: self._committed(self.groups) == {1}, "not every group was synced", pause=1)
        found["all_groups"] = round(time.monotonic() - began, 1)
        return found

    def idle(self, seconds: float) -> dict[str, float]:
        """What the mirror costs with nothing to do."""
        tree, began = Tree(self._mirror.pid), time.monotonic()
        before = tree.sample()
        time.sleep(seconds)
        used, took = tree.sample() - before, time.monotonic() - began
        share, memory = used / took, tree.counters.peak_rss
        return {"seconds": round(took, 1), "cpu_share": round(share, 3), "rss_mb": round(memory / 1e6)}

    def one_record(self, repeats: int) -> dict[str, float]:
        """Milliseconds until a reader of the target has a record that is sent to one partition of all."""
        chosen = self.topics[:: max(1, len(self.topics) // _READ)]
        reader = Consumer({"bootstrap.servers": self._target.bootstrap, "group.id": "bench", "fetch.wait.max.ms": 500})
        reader.assign([TopicPartition(topic, 0, RECORDS) for topic in chosen])
        sender, found = Producer({"bootstrap.servers": self._source.bootstrap, "linger.ms": 0}), list[float]()
        for number in range(repeats + _WARMING):
            began = time.monotonic()
            sender.produce(chosen[number % len(chosen)], b"one", partition=0)
            sender.poll(0)
            while (message := reader.poll(1)) is None or message.error() or message.value() != b"one":
                pass
            found.append((time.monotonic() - began) * 1000)
            time.sleep(0.1)
        reader.close()
        figures = sorted(found[_WARMING:])
        return {"p50_ms": round(statistics.median(figures), 1), "p95_ms": round(figures[len(figures) * 19 // 20], 1)}

    def new_topic(self, number: int) -> float:
        """Seconds until a new topic's first record is on the target."""
        topic = f"topic-new-{number}"
        began = time.monotonic()
        self._admin.create_topics([NewTopic(topic, self._partitions, 1)])[topic].result(60)
        self._producer.produce(topic, b"first", partition=0)
        self._producer.flush(60)
        wait_for(lambda: self._records(self._target, [topic]) > 0, f"{topic} was not mirrored")
        return time.monotonic() - began

    def group(self, group: str, offset: int) -> float:
        """Seconds until a group's commit is on the target."""
        self.commit([group], offset)
        began = time.monotonic()
        wait_for(lambda: self._committed([group]) == {offset}, f"{group} was not synced")
        return time.monotonic() - began

    def all_groups(self, offset: int) -> dict[str, float]:
        """Seconds that the commits of all groups take by themselves, and from the last one until all are synced."""
        began = time.monotonic()
        self.commit(self.groups, offset)
        committed = time.monotonic()
        wait_for(lambda: self._committed(self.groups) == {offset}, "not every group was synced")
        return {"committing": round(committed - began, 1), "then": round(time.monotonic() - committed, 1)}

    def _has_logged(self, log: Path, event: str) -> bool:
        text = log.read_text()
        assert self._mirror.exit_code is None, text
        return f"event={event}" in text

    def _records(self, cluster: Cluster, topics: Sequence[str]) -> int:
        """Count records by the ends of their logs; a topic that is not there yet has none."""
        return sum(Ends(cluster.bootstrap).of(dict.fromkeys(topics, self._partitions), growing=True).values())

    def _committed(self, groups: Sequence[str]) -> set[int]:
        """The offsets that these groups have on the target; -1 stands for none."""

        async def asked() -> set[int]:
            endpoint = Endpoint("target", (parse_address(self._target.bootstrap),))
            async with Wire(endpoint) as cluster:
                await cluster.refresh()
                found = await fetch_offsets(cluster, cluster.nodes[0], groups)
            places = {group: Place(self.topic_of(group), 0) for group in groups}
            none = Committed(-1)
            return {found.offsets.get(group, {}).get(at, none).offset for group, at in places.items()}

        return asyncio.run(asked())


@contextmanager
def bench(folder: Path) -> Iterator[Bench]:
    """Both clusters, and the mirror's end."""
    source, target = start_many([Spec(name="scale-source", jit="full"), Spec(name="scale-target", jit="full")])
    with source, target, ExitStack() as stack:
        try:
            yield Bench(source, target, folder, stack)
        except TimeoutError:
            print((folder / "log").read_text()[-20_000:], file=sys.stderr)
            raise


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--partitions", type=int, default=3, help="of each topic")
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5, help="new topics, and groups one by one")
    parser.add_argument("--records", type=int, default=200, help="sent one after the other")
    parser.add_argument("--idle", type=float, default=60, help="seconds")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, bench(Path(folder)) as measured:
        measured.fill(options.topics, options.partitions, options.groups)
        result: dict[str, object] = {"start_s": measured.start()}
        print(result, file=sys.stderr)
        result["idle"] = measured.idle(options.idle)
        result["one_record"] = measured.one_record(options.records)
        result["new_topic_s"] = [round(measured.new_topic(number), 2) for number in range(options.repeats)]
        print(result, file=sys.stderr)
        fresh = [measured.group(group, 2) for group in measured.groups[: options.repeats]]
        result["group_s"] = {"median": round(statistics.median(fresh), 2), "max": round(max(fresh), 2)}
        result["all_groups_s"] = measured.all_groups(3)
    json.dump(result, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
