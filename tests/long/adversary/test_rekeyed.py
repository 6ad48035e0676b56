"""A part of one session of the re-keyed adversary, with Spark; `--repertoire rekeyed` hunts on."""

from __future__ import annotations

from pathlib import Path

import pytest
from adversary.rekeyed.play import play
from adversary.rekeyed.scripts import session
from adversary.world import World


@pytest.mark.timeout(1800)
def test_a_part_of_a_session_shows_nothing(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        played = play(world, session(2004).part((1, 3, 4), 2))
    print(played)
    assert not played.failure
    assert not played.findings
