"""Each decision that protects from a fault: the hunt finds nothing while it is there, and the fault without it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from adversary.hunting import play_mend, play_without
from adversary.mends import MENDS, Mend
from adversary.world import World


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("mends")) as found:
        yield found


@pytest.mark.parametrize("mend", MENDS, ids=lambda mend: mend.name)
def test_a_mend_that_is_taken_out_is_missed(mend: Mend, world: World) -> None:
    whole = play_mend(world, mend)
    assert not whole.findings, str(whole)
    assert not whole.failure
    lacking = play_without(world, mend)
    assert {*lacking.kinds} & {*mend.finds}, str(lacking)
