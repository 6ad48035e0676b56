"""There and back again: the same topics fail over between two clusters, leg by leg as the runbook says, with mirrors
that run or were killed, and topics that end with whatever an application left there. Nothing is lost here, so nothing
may stop: each failover is whole, both sides are equal, and groups go on where they stood.

`pytest -m soak tests/long/brokers/test_there_and_back.py` takes some minutes.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Final

import pytest
from adversary.driving import Command
from adversary.judging import Allowed, differences
from adversary.logs import Log, Reader
from adversary.world import SIDES, OneSide
from remedyworld import until

from mirror.lab.embedded import Cluster

pytestmark = [pytest.mark.brokers, pytest.mark.soak]

LEGS: Final = 5
SECONDS: Final = 60
KINDS: Final = ("plain", "commit", "abort")


class Journey:
    """Two clusters, a flow in each direction, and an application that writes to the one that it uses."""

    def __init__(self, folder: Path, clusters: tuple[Cluster, Cluster], name: str, seed: int) -> None:
        self._folder, self._name, self._chance = folder, name, Random(seed)
        self._sides = [OneSide(side, one) for side, one in zip(SIDES, clusters, strict=True)]
        self._readers = [Reader(one.bootstrap) for one in clusters]
        self._topics = [f"{name}.{letter}" for letter in "abc"[: self._chance.randint(1, 3)]]
        self._group, self._read = f"g-{name}", dict[tuple[str, int], int]()
        self._has_run = [False, False]
        for topic in self._topics:
            self._sides[0].create(topic, self._chance.randint(1, 2), {"retention.ms": "-1"})

    def leg(self, here: int) -> None:
        """From one side to the other one, on which the application goes on."""
        config, there = str(self._config(here)), 1 - here
        self._write(here, 20)
        if self._has_run[here]:
            self._done("failover", config, "--undo")
        elif any(self._has_run):
            self._done("adopt", config, "--all")
        self._has_run[here] = True
        mirror = Command(self._folder, "run", config, "--json") if self._chance.random() < 0.7 else None
        if mirror is None:
            self._done("run", config, "--once")
        else:
            until(lambda: self._has_begun(here), lambda: mirror.logged[-2000:])
        for _ in range(self._chance.randint(1, 3)):
            self._write(here, 15)
        if mirror is not None and self._chance.random() < 0.4:
            mirror.end()
        self._consume(here)
        done = json.loads(self._done("failover", config, "--json"))
        assert done["whole"]
        if mirror is not None:
            assert mirror.wait(SECONDS) in (0, -9), mirror.logged[-2000:]
        self._assert_equal(here, there)

    def _has_begun(self, here: int) -> bool:
        there = self._logs(1 - here)
        return there.keys() == self._logs(here).keys() and all(log.end for log in there.values())

    def _write(self, here: int, most: int) -> None:
        for topic, number in self._logs(here):
            kind, records = self._chance.choice(KINDS), self._chance.randint(1, most)
            self._sides[here].produce(topic, number, records, kind, self._chance, f"{kind}-{here}")

    def _consume(self, here: int) -> None:
        for at, log in self._logs(here).items():
            self._read[at] = self._chance.randint(self._read.get(at, 0), log.stable)
        self._sides[here].commit(self._group, self._read)

    def _logs(self, here: int) -> dict[tuple[str, int], Log]:
        found = self._readers[here].topics(self._topics)
        return {(name, number): log for name, topic in found.items() for number, log in topic.partitions.items()}

    def _assert_equal(self, here: int, there: int) -> None:
        source, target = self._logs(here), self._logs(there)
        assert source.keys() == target.keys()
        for (topic, number), log in source.items():
            assert not [*differences(f"{topic}-{number}", log, target[topic, number], Allowed())]
        assert self._sides[there].committed(self._group, list(source)) == self._read

    def _done(self, name: str, *arguments: str) -> str:
        command = Command(self._folder, name, *arguments)
        assert command.wait(SECONDS) == 0, f"mirror {name}: {command.printed}{command.logged[-3000:]}"
        return command.printed

    def _config(self, here: int) -> Path:
        source, target = (
            {"alias": one.name, "bootstrap.servers": one.bootstrap}
            for one in (self._sides[here], self._sides[1 - here])
        )
        content = {
            "name": f"{self._name}-{here}",
            "source": source,
            "target": target,
            "topics": {"include": [f"{self._name}\\..*"]},
            "groups": {"include": [self._group], "interval_s": 0.5},
            "sync": {"interval_s": 1.0},
            "spark": {"epoch_s": 2.0, "tasks": 1},
        }
        path = self._folder / f"{here}.yaml"
        path.write_text(json.dumps(content))
        return path


@pytest.mark.parametrize("seed", range(10))
def test_each_leg_is_whole(
    seed: int, own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    journey = Journey(tmp_path, (own_source, own_target), topic_name[-60:].lstrip("-"), seed)
    for number in range(LEGS):
        print(f"seed {seed}, leg {number}")
        journey.leg(number % 2)
