"""What a mirror takes for the end of a copy."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from flows import Flow, flow
from helpers import make_topic, produce
from samerecords import read
from sparkless import InThisProcess
from waiting import DEADLINE_S

from mirror.driver.flow import prepare
from mirror.errors import ExitCode
from mirror.journal.entries import PAUSES, pause_entry
from mirror.spark.supervisor import Supervisor

__all__ = ["flow"]


def supervisor(flow: Flow, *, until_caught_up: bool = False) -> Supervisor:
    """Return a mirror that runs in this process, in short epochs."""
    context: Any = InThisProcess()
    prepared = prepare(flow.settings(), until_caught_up=until_caught_up)
    return Supervisor(context, replace(prepared, epoch_seconds=2.0), lambda _: None)


@pytest.mark.proves("never-silent", "PAUSED", "mirror run")
def test_a_copy_that_ends_once_it_has_caught_up_names_what_is_paused(flow: Flow) -> None:
    rests = f"{flow.name}-rests"
    flow.include = [flow.name, rests]
    flow.make()
    make_topic(flow.source.bootstrap, rests)
    for topic in flow.include:
        produce(flow.source.bootstrap, topic, [b"x"] * 10)
    flow.write(pause_entry(rests))
    outcome = asyncio.run(asyncio.wait_for(supervisor(flow, until_caught_up=True).run(), DEADLINE_S))
    assert (outcome.exit_code, outcome.incomplete.split(",")[0]) == (6, f"{rests}-0: PAUSED at offset -1")
    flow.write(PAUSES.tombstone(rests))
    assert flow.run().exit_code == ExitCode.DONE
    assert len(list(read(flow.target.bootstrap, rests, 0))) == 10
