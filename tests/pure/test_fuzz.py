"""What the fuzzer runs, for a moment: what it once found, sound inputs, and some damaged ones, the same each time."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))

from fuzz.engines import LONGEST, damaged  # noqa: E402 -- found by the line above
from fuzz.targets import TARGETS  # noqa: E402 -- the same

#: Damaged inputs of each target; `make fuzz` makes millions.
DAMAGED = 200
SOUND = 15


@pytest.mark.parametrize("name", TARGETS)
def test_damage_is_refused_by_an_error_that_is_meant_for_it(name: str) -> None:
    target, random = TARGETS[name], Random(name)
    for path in sorted((ROOT / "fuzz" / "regressions" / name).glob("*")):
        target.check(path.read_bytes())
    sound = [data for data in target.seeds(random) if len(data) <= LONGEST]
    for data in random.sample(sound, min(SOUND, len(sound))):
        target.check(data)
    for _ in range(DAMAGED):
        target.check(damaged(random.choice(sound), random)[:LONGEST])


def test_every_regression_is_of_a_target() -> None:
    assert {path.name for path in (ROOT / "fuzz" / "regressions").iterdir()} <= TARGETS.keys()
