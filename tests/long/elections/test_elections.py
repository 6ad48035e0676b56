"""Three brokers a side, and leaders that change under live mirrors while applications write: brokers that are killed
one by one lose nothing, and nothing stops; an election of a replica that lagged (unclean) takes acknowledged records
back, and each loss is reported: the target's is copied again, the source's is TRUNCATED.

MIRROR_ELECTIONS_SEED chooses other elections, and MIRROR_ELECTIONS how many.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from threading import Event
from typing import Any, Final

import pytest
from adversary.driving import Command
from adversary.judging import Allowed, Finding, differences, moved_differences
from adversary.logs import Reader
from adversary.world import SIDES, Side
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from helpers import config_file
from waiting import DEADLINE_S, until

from mirror.lab.embedded import Cluster, Spec, start_many

SEED: Final = int(os.environ.get("MIRROR_ELECTIONS_SEED", "1"))
EVENTS: Final = int(os.environ.get("MIRROR_ELECTIONS", "3"))
#: Topics by what is written to them; two partitions each.
PLAIN, TRANSACTIONS, COMPACTED = "o-plain", "o-transactions", "o-compacted"
TOPICS: Final = (PLAIN, TRANSACTIONS, COMPACTED)
PREFIX: Final = "moved."
#: Brokers that miss each other soon.
BROKERS: Final[Mapping[str, str | int | bool]] = {
    "broker.session.timeout.ms": 3000,
    "broker.heartbeat.interval.ms": 500,
    "replica.lag.time.max.ms": 3000,
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
}
#: Every record is on two brokers before it is acknowledged; or one that is left may lead without what it lacks.
SAFE: Final = {"default.replication.factor": 3, "min.insync.replicas": 2}
UNCLEAN: Final = {"default.replication.factor": 2, "min.insync.replicas": 1, "unclean.leader.election.enable": True}


class Trio:
    """A cluster of three."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})

    def create(self, topic: str) -> None:
        """A topic by the cluster's defaults."""
        configs = {"cleanup.policy": "compact"} if topic == COMPACTED else {}
        self._admin.create_topics([NewTopic(topic, 2, config=configs)])[topic].result(DEADLINE_S)

    def partitions(self, topic: str) -> dict[int, Any]:
        """Of a topic, by number."""
        return dict(self._admin.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions)

    def is_in_sync(self) -> bool:
        """Every replica of every partition."""
        topics = self._admin.list_topics(timeout=DEADLINE_S).topics.values()
        return all(len(one.isrs) == len(one.replicas) for topic in topics for one in topic.partitions.values())

    def roll(self, chance: Random) -> None:
        """A broker is killed, and comes back some time later."""
        node = chance.randrange(3)
        self.cluster.kill(node)
        time.sleep(chance.choice((1, 4, 8)))
        self.cluster.restart(node)
        until(self.is_in_sync, lambda: f"broker {node} does not catch up")

    def elect_unclean(self, topic: str, chance: Random) -> None:
        """The follower is away, its leader goes on alone and dies; the follower leads without what it missed."""
        number = chance.randrange(2)
        leader = self.partitions(topic)[number].leader
        (follower,) = (node for node in self.partitions(topic)[number].replicas if node != leader)
        self.cluster.kill(follower)
        until(lambda: self.partitions(topic)[number].isrs == [leader], lambda: f"{follower} stays in sync")
        time.sleep(chance.choice((2, 5)))  # for records that it misses
        self.cluster.kill(leader)
        self.cluster.restart(follower)
        until(lambda: self.partitions(topic)[number].leader == follower, lambda: f"{follower} is not elected")
        time.sleep(chance.choice((0, 3)))
        self.cluster.restart(leader)
        until(self.is_in_sync, lambda: f"broker {leader} does not catch up")


class Elections:
    """Both clusters, applications that write, and a live mirror for equal offsets and one for those that move."""

    def __init__(self, folder: Path, brokers: Mapping[str, str | int | bool]) -> None:
        self._folder, self._over = folder, Event()
        started = start_many([Spec(name=f"elections-{side}", nodes=3, config={**BROKERS, **brokers}) for side in SIDES])
        self.sides: dict[Side, Trio] = {side: Trio(cluster) for side, cluster in zip(SIDES, started, strict=True)}
        for topic in TOPICS:
            self.sides["source"].create(topic)
        self.mirrors: dict[str, Command] = {}

    @contextmanager
    def running(self) -> Iterator[None]:
        """While applications write and both mirrors run, to when these have copied all."""
        configs = {prefix: self._config(prefix) for prefix in ("", PREFIX)}
        with ThreadPoolExecutor(3) as threads:
            try:
                writers = [threads.submit(self._write, PLAIN), threads.submit(self._write, COMPACTED)]
                writers.append(threads.submit(self._write_in_transactions))
                self.mirrors |= {
                    prefix: Command(self._folder, "run", str(path), "--json") for prefix, path in configs.items()
                }
                for prefix, path in configs.items():
                    until(partial(self._states, path), partial(self._logged, prefix))
                yield
            finally:
                self._over.set()
            for writer in writers:
                writer.result()
        for path in configs.values():
            until(partial(self._is_at_rest, path), lambda: "it does not come to rest")
        for mirror in self.mirrors.values():
            mirror.send(signal.SIGTERM)

    def stop(self) -> None:
        """End everything."""
        for mirror in self.mirrors.values():
            mirror.end()
        for side in self.sides.values():
            side.cluster.stop()

    def events(self, name: str) -> list[dict[str, Any]]:
        """What both mirrors logged by this name."""
        lines = [line for mirror in self.mirrors.values() for line in mirror.logged.splitlines()]
        return [found for line in lines if line.startswith("{") and (found := json.loads(line))["event"] == name]

    def unlike(self, prefix: str) -> dict[tuple[str, int], list[Finding]]:
        """In what the copies of one mirror differ from their sources, by source partition."""
        source, target = (Reader(self.sides[side].cluster.bootstrap) for side in SIDES)
        compare = moved_differences if prefix else differences
        copies = target.topics([prefix + topic for topic in TOPICS])
        return {
            (name, number): found
            for name, topic in source.topics(TOPICS).items()
            for number, log in topic.partitions.items()
            if (found := [*compare(f"{prefix}{name}-{number}", log, copies[prefix + name].partitions[number], _ANY)])
        }

    def _config(self, prefix: str) -> Path:
        spark = {"tasks": 2, "epoch_s": 5 if SEED % 2 else 600}
        sections = {"groups": {"include": []}, "metrics": {"listen": None}, "spark": spark}
        topics: dict[str, Any] = {"offsets": "translate", "naming": {"prefix": prefix}} if prefix else {}
        source, target = (self.sides[side].cluster.bootstrap for side in SIDES)
        flow = f"elections{prefix}".rstrip(".")
        return config_file(self._folder, source, target, ["o-.*"], flow, sections=sections, **topics)

    def _states(self, config: Path) -> dict[tuple[str, int], tuple[str, int]]:
        """By source partition, its state and how many offsets of the source are missing; empty where none is known."""
        asked = Command(self._folder, "status", str(config), "--json", "--log-level", "error")
        if asked.wait(DEADLINE_S):
            return {}
        fields = json.loads(asked.printed)["partitions"]
        return {(one["topic"], one["partition"]): (one["state"], one["lag_records"]) for one in fields}

    def _logged(self, prefix: str) -> str:
        return self.mirrors[prefix].logged

    def _is_at_rest(self, config: Path) -> bool:
        states = self._states(config).values()
        return bool(states) and all(one == ("CAUGHT_UP", 0) or one[0] == "TRUNCATED" for one in states)

    def _write(self, topic: str) -> None:
        """Again with a producer of its own where a broker does not know the former one's records any more."""
        count = 0
        while not self._over.is_set():
            try:
                producer = self._producer(**{"enable.idempotence": True})
                while not self._over.is_set():
                    for number in range(count, count + 20):
                        producer.produce(topic, b"v%d" % number, b"k%d" % (number % 37), partition=number % 2)
                    count += 20
                    producer.flush(DEADLINE_S)
                    time.sleep(0.1)
            except KafkaException:
                time.sleep(0.5)

    def _write_in_transactions(self) -> None:
        chance, count = Random(SEED), 0
        while not self._over.is_set():
            try:
                producer = self._producer(**{"transactional.id": "elections", "transaction.timeout.ms": 20_000})
                producer.init_transactions(DEADLINE_S)
                while not self._over.is_set():
                    producer.begin_transaction()
                    for number in range(count, count + chance.randrange(1, 30)):
                        producer.produce(TRANSACTIONS, b"t%d" % number, partition=number % 2)
                    count += 30
                    (producer.commit_transaction if chance.random() < 0.7 else producer.abort_transaction)(30)
                    time.sleep(0.15)
            except KafkaException:
                time.sleep(0.5)

    def _producer(self, **more: Any) -> Producer:
        servers = self.sides["source"].cluster.bootstrap
        return Producer({"bootstrap.servers": servers, "acks": "all", "linger.ms": 5, "log_level": 0} | more)


_ANY: Final = Allowed(compacted=True)


@pytest.fixture
def held(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[Mapping[str, str | int | bool]], Elections]:
    """Elections among brokers of these settings."""

    def hold(brokers: Mapping[str, str | int | bool]) -> Elections:
        found = Elections(tmp_path, brokers)
        request.addfinalizer(found.stop)
        print(f"MIRROR_ELECTIONS_SEED={SEED} MIRROR_ELECTIONS={EVENTS}")
        return found

    return hold


def test_brokers_that_are_killed_one_by_one(held: Callable[..., Elections]) -> None:
    """Of either side: nothing acknowledged is lost, so that nothing may stop, and nothing be reported as lost."""
    elections, chance = held(SAFE), Random(SEED)
    with elections.running():
        for _ in range(EVENTS):
            elections.sides[chance.choice(SIDES)].roll(chance)
    assert [mirror.wait(DEADLINE_S) for mirror in elections.mirrors.values()] == [0, 0]
    for name in ("partition_stopped", "target_lost_records", "records_lost", "journal_lost_records"):
        assert elections.events(name) == []
    assert (elections.unlike(""), elections.unlike(PREFIX)) == ({}, {})


def test_the_target_elects_replicas_that_lagged(held: Callable[..., Elections]) -> None:
    """What it lost of the copies is reported, and copied again, exactly."""
    elections, chance = held(UNCLEAN), Random(SEED)
    with elections.running():
        for _ in range(EVENTS):
            elections.sides["target"].elect_unclean(chance.choice(("", PREFIX)) + chance.choice(TOPICS), chance)
    assert [mirror.wait(DEADLINE_S) for mirror in elections.mirrors.values()] == [0, 0]
    assert elections.events("target_lost_records")
    assert elections.events("partition_stopped") == []
    assert (elections.unlike(""), elections.unlike(PREFIX)) == ({}, {})


def test_the_source_elects_a_replica_that_lagged(held: Callable[..., Elections]) -> None:
    """What it lost and the copies have stops them, by the right name; what lost nothing is equal."""
    elections, chance = held(UNCLEAN), Random(SEED)
    with elections.running():
        elections.sides["source"].elect_unclean(chance.choice(TOPICS), chance)
    assert [mirror.wait(DEADLINE_S) for mirror in elections.mirrors.values()] == [4, 4]
    stopped = {(one["topic"], one["partition"]) for one in elections.events("partition_stopped")}
    assert {one["state"] for one in elections.events("partition_stopped")} == {"TRUNCATED"}
    for prefix in ("", PREFIX):
        assert elections.unlike(prefix).keys() <= stopped
