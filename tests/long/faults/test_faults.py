"""Every point at which a mirror may die, and every request that a network may lose, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import get_args

import pytest
from faults.network import Rule, What
from faults.points import MOVING_POINTS, POINTS, REQUESTS
from faults.singles import Singles

from mirror.lab.embedded import Cluster, Spec, start_many

#: What the mirror asks of each side again and again.
ASKED = {
    "source": ("fetch", "list-offsets", "metadata", "api-versions"),
    "target": ("produce", "markers", "list-offsets", "leader-epoch", "metadata"),
}
#: Brokers that forget old producers at once.
BROKERS = {"producer.id.expiration.check.interval.ms": 1000}


@pytest.fixture(scope="module")
def clusters() -> Iterator[tuple[Cluster, Cluster]]:
    source, target = start_many([Spec(name=f"faults-{side}", config=BROKERS) for side in ("source", "target")])
    with source, target:
        yield source, target


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("points", "moves"), [(POINTS, False), (MOVING_POINTS, True)], ids=["equal", "translated"])
def test_a_kill_at_every_point(
    points: tuple[str, ...], moves: bool, clusters: tuple[Cluster, Cluster], tmp_path: Path
) -> None:
    seed = Random().randrange(2**32)
    print(f"seed {seed}")
    ran = Singles(*clusters, tmp_path, Random(seed), moves=moves).kill_at(points)
    assert ran.missed == [], "the mirror did not pass these points, so nothing was tested there"
    assert ran.struck == len(points)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("moves", [False, True], ids=["equal", "translated"])
def test_a_disturbance_of_every_request(moves: bool, clusters: tuple[Cluster, Cluster], tmp_path: Path) -> None:
    seed = Random().randrange(2**32)
    print(f"seed {seed}")
    chance = Random(seed)
    rules = [
        (side, Rule(what, REQUESTS[request], 1, chance.random(), chance))
        for side, requests in ASKED.items()
        for request in requests
        for what in get_args(What)
        if (what != "flip" or request in ("fetch", "produce")) and not (moves and request == "markers")
    ]
    ran = Singles(*clusters, tmp_path, chance, moves=moves).disturb(rules)
    assert ran.missed == [], "the mirror did not ask this, so nothing was tested there"
