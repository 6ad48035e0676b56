"""What faults are made of: the points at which a mirror dies, and bits that turn on the way."""

from __future__ import annotations

import pkgutil
from random import Random

import pytest
from faults.network import flipped
from faults.points import MOMENTS, MOVING_POINTS, MOVING_STEPS, POINTS, REQUESTS, STEPS, Strike, arm
from rawbatches import batch

from mirror.records.header import crc_holds, split


def test_points_are_places_of_the_mirror() -> None:
    for module, path in (STEPS | MOVING_STEPS).values():
        assert callable(pkgutil.resolve_name(f"{module}:{path}"))
    assert len(POINTS) == len(REQUESTS) * len(MOMENTS) + 2 * len(STEPS)
    assert not {*POINTS} & {*MOVING_POINTS}
    for unknown in ("before-tea", "tea-sent"):
        with pytest.raises(KeyError):
            arm(Strike(unknown))
    assert Strike.from_environment("produce-sent:3:/a:b") == Strike("produce-sent", 3, once="/a:b")


def test_a_flipped_bit_breaks_the_crc_and_nothing_else() -> None:
    frame = b"something before" + batch() + batch(1)
    for seed in range(100):
        changed = flipped(frame, Random(seed))
        assert sum((one ^ other).bit_count() for one, other in zip(frame, changed, strict=True)) == 1
        assert not crc_holds(next(split(memoryview(changed[16:]))))
    assert flipped(b"no batch" * 20, Random(0)) == b"no batch" * 20
