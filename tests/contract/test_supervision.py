"""What a running mirror makes of its journal, and what it takes for the end of a copy."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from flows import Flow, flow
from helpers import make_topic, produce
from samerecords import read
from sparkless import InThisProcess, run_beside
from syncing import delete_topics
from waiting import DEADLINE_S, until

from mirror.driver.flow import prepare
from mirror.errors import ExitCode
from mirror.journal.entries import FirstSeen, pause_entry, resume_entry
from mirror.journal.journal import OWNER, journal_topic
from mirror.journal.ownership import Owner
from mirror.spark.supervisor import Supervisor

__all__ = ["flow"]
pytestmark = pytest.mark.brokers


def supervisor(flow: Flow, *, until_caught_up: bool = False) -> Supervisor:
    """Return a mirror that runs in this process, in short epochs."""
    context: Any = InThisProcess()
    prepared = prepare(flow.settings(), until_caught_up=until_caught_up)
    return Supervisor(context, replace(prepared, epoch_seconds=2.0), lambda _: None)


@pytest.mark.proves("never-silent", "mirror failover")
@pytest.mark.parametrize("by", ["nobody", "somebody"])
def test_a_journal_that_was_deleted_is_written_again_and_a_failover_still_ends_the_mirror(
    flow: Flow, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """Also where somebody made the topic anew meanwhile."""
    monkeypatch.setattr(Owner, "is_gone", property(lambda _: False))  # both have this process's number
    flow.make()
    flow.fill(0, 10)
    mirror, paused = supervisor(flow), pause_entry("elsewhere")

    def story() -> None:
        until(lambda: FirstSeen.key(flow.name) in flow.journal() and len(flow.values()[1]) == 10)
        flow.write(paused)
        until(lambda: "elsewhere" in mirror._journal_state.paused)
        before = flow.journal()
        delete_topics(flow.target.bootstrap, journal_topic(flow.name))
        if by == "somebody":
            make_topic(flow.target.bootstrap, journal_topic(flow.name))
        until(lambda: {OWNER, paused[0]} <= flow.journal().keys())
        after = flow.journal()
        assert after[FirstSeen.key(flow.name)] == before[FirstSeen.key(flow.name)]
        assert Owner.read(after[OWNER]).instance == Owner.read(before[OWNER]).instance
        until(lambda: any(key.startswith(b"state/") for key in flow.journal()))
        flow.command("failover", "CONFIG", "--json")

    run_beside(mirror, story)
    flow.fill(10, 10)
    assert len(flow.values()[1]) == 10


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
    flow.write(resume_entry(rests))
    assert flow.run().exit_code == ExitCode.DONE
    assert len(list(read(flow.target.bootstrap, rests, 0))) == 10
