"""A sample of schedules, schedules that showed a fault once, and each decision that protects from one: nothing is found
while it is there, and the fault without it. `python -m tests.adversary` hunts on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from adversary.hunting import hunt, play_mend, play_without
from adversary.mends import MENDS, Mend
from adversary.operations import REPERTOIRES, Schedule, schedule, written
from adversary.world import World

#: Of each repertoire; more of the first one, which has the most kinds.
SCHEDULES, OF_CLUSTERS = 5, 20
#: An empty copy under a running mirror whose source goes on behind aborted records that it deleted; a copy made anew
#: behind a stop; a deleted copy whose name collides with another one's by now; somebody who writes to a copy between a
#: loss and its acceptance.
SHOWN = (
    "produce(a, amount=9, kind=abort); live; produce(a, amount=5, kind=abort); expire_source(a, amount=90); settle",
    "produce(a, amount=9); run; stranger_writes; run; delete_target; run",
    "produce(a, amount=9); run; live; delete_target; clash; appear; grow; settle",
    "produce(a, amount=9); run; produce(a, amount=9); expire_source(a, amount=75); run; stranger_writes; accept; run",
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("adversary")) as found:
        yield found


def _shows_nothing(world: World, schedules: Sequence[Schedule]) -> None:
    found = [played for played in hunt(world, schedules) if played.findings or played.failure]
    assert not found, "\n".join(map(str, found))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("repertoire", REPERTOIRES)
def test_a_sample_of_schedules_shows_nothing(repertoire: str, world: World) -> None:
    count = OF_CLUSTERS if repertoire == "clusters" else SCHEDULES
    _shows_nothing(world, [schedule(seed, repertoire) for seed in range(2000, 2000 + count)])


@pytest.mark.timeout(1800)
def test_what_was_found_once_is_found_no_more(world: World) -> None:
    _shows_nothing(world, [written(plays) for plays in SHOWN])


@pytest.mark.parametrize("mend", MENDS, ids=lambda mend: mend.name)
def test_a_mend_that_is_taken_out_is_missed(mend: Mend, world: World) -> None:
    whole = play_mend(world, mend)
    assert not whole.findings, str(whole)
    assert not whole.failure
    lacking = play_without(world, mend)
    assert {*lacking.kinds} & {*mend.finds}, str(lacking)
