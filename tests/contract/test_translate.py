"""Offsets that move: every record once and in order, and an exact translation of every offset."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from confluent_kafka import Producer
from flows import Flow, flow
from helpers import produce, stored_batches
from syncing import delete_topics
from transactional import transactions
from translated_copies import assert_translated, index_of

from mirror.commands.offsets_translate import _translate
from mirror.errors import ConfigError, PartitionStop
from mirror.journal.journal import journal_topic
from mirror.journal.ownership import FailedOver
from mirror.replication import offset_map
from mirror.states import State

__all__ = ["flow"]

MODES = pytest.mark.parametrize("offsets", ["preserve", "translate"])


@pytest.fixture
def moved(flow: Flow) -> Flow:
    """A flow whose offsets move."""
    flow.topics["offsets"] = "translate"
    flow.make()
    return flow


def assert_exact(flow: Flow) -> int:
    """Expect the same records on both sides, and each offset translated to where its record is; return how many."""
    return assert_translated((flow.source.bootstrap, flow.target.bootstrap), flow.name)


def commit_and_abort(flow: Flow, *outcomes: bool, name: str = "") -> None:
    """Add a transaction of five records to the source for each outcome."""
    transactions(flow.source.bootstrap, flow.name, list(outcomes), name=name)


@pytest.mark.proves("exactly-once", "DROP")
def test_transactions_leave_no_gap(moved: Flow) -> None:
    for number in range(3):
        moved.fill(number * 20, 20)
        commit_and_abort(moved, True, False, True, name=str(number))
        assert moved.copied().verdicts["DROP/aborted"] == 1
    assert assert_exact(moved) == 90
    assert stored_batches(moved.target.bootstrap, moved.name)[-1].header.next_offset == 90


@pytest.mark.proves("exactly-once")
def test_a_source_that_begins_late_needs_no_padding(moved: Flow) -> None:
    moved.fill(0, 100, batch=50)
    moved.expire(moved.source, 30)
    moved.copied(records_runs=False)  # inside a batch that is still there
    assert stored_batches(moved.target.bootstrap, moved.name)[0].header.base_offset == 0
    commit_and_abort(moved, True)
    moved.copied()
    assert assert_exact(moved) == 75


@pytest.mark.proves("exactly-once")
@pytest.mark.parametrize("lost", ["the last runs", "all runs", "the journal"])
def test_offsets_that_were_not_recorded_are_found_again_from_both_logs(moved: Flow, lost: str) -> None:
    commit_and_abort(moved, True, False, True, True, name="one")
    moved.copied(records_runs=lost != "all runs")
    commit_and_abort(moved, True, False, True, name="two")
    moved.copied(records_runs=False)
    if lost == "the journal":
        delete_topics(moved.target.bootstrap, journal_topic(moved.name))
    commit_and_abort(moved, False, True, name="three")
    moved.copied()
    assert assert_exact(moved) == 30


@pytest.mark.proves("exactly-once")
def test_a_target_that_lost_more_than_its_newest_runs_cover_goes_on_by_earlier_ones(
    moved: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_map, "RUNS_IN_A_RECORD", 4)
    commit_and_abort(moved, *[True] * 10)
    moved.copied()
    commit_and_abort(moved, *[True] * 4, name="lost")
    runs = f"runs/{moved.name}/0/"
    moved.write(
        (f"{runs}40".encode(), b'{"source":48,"target":40,"runs":[5,1,5,1,5,1,5],"next":72}'),
        (f"{runs}60".encode(), b'{"source":72,"target":60,"runs":[5,1,5],"next":84}'),
    )
    assert index_of((moved.source.bootstrap, moved.target.bootstrap), moved.name).end == 70
    assert translated(moved, 58) == 49
    with pytest.raises(ConfigError, match="not mirrored yet"):
        translated(moved, 72)
    moved.copied()
    assert assert_exact(moved) == 70


@pytest.mark.proves("DIVERGED", "never-silent")
@pytest.mark.parametrize("behind", ["an aborted transaction", "an open transaction"])
def test_a_foreign_record_does_not_pass_for_one_of_a_transaction(moved: Flow, behind: str) -> None:
    commit_and_abort(moved, True, *[False] * (behind == "an aborted transaction"))
    moved.copied(records_runs=False)
    client = Producer({"bootstrap.servers": moved.source.bootstrap, "transactional.id": f"{moved.name}-open"})
    if behind == "an open transaction":
        client.init_transactions(120)
        client.begin_transaction()
        client.produce(moved.name, b"open", partition=0)
        client.flush(60)
    moved.intrude(b"foreign")
    found = moved.copy()
    assert found.state is State.DIVERGED, found
    assert "at offset 5 of the target, the record is not the source's" in found.detail
    if behind == "an open transaction":
        client.abort_transaction(60)


def translated(flow: Flow, offset: int, **more: Any) -> int:
    """Return where `mirror offsets translate` finds a source offset on the target."""
    flow.topics |= more
    return asyncio.run(_translate(flow.settings(), flow.at, offset, reverse=False)).target_offset


@pytest.mark.proves("mirror offsets translate", "nothing-by-name-alone")
@MODES
def test_offsets_are_translated_of_what_the_flow_copied_alone(flow: Flow, offsets: str) -> None:
    """Also once it was failed over, whoever writes behind its records."""
    flow.topics["offsets"] = offsets
    flow.make()
    flow.make(flow.target)
    flow.fill(0, 20)
    flow.intrude(*[b"stranger"] * 20)
    with pytest.raises(ConfigError, match="it is no copy of"):
        translated(flow, 5)
    delete_topics(flow.target.bootstrap, flow.name)
    flow.copied()
    flow.fill(20, 5)
    found = json.loads(flow.command("offsets", "translate", "CONFIG", flow.name, "0", "19", "--json").stdout)
    assert (found["target_offset"], found["record"]) == (19, True)
    with pytest.raises(ConfigError, match=r"not mirrored yet|none of them"):
        translated(flow, 23)
    flow.intrude(*[b"stranger"] * 5)
    with pytest.raises(PartitionStop, match="DIVERGED"):
        translated(flow, 23)
    flow.write((b"failover", FailedOver.here().to_json()))
    assert translated(flow, 19) == 19
    with pytest.raises(ConfigError, match=r"not mirrored yet|none of them"):
        translated(flow, 23)
    flow.write((b"failover", None))
    delete_topics(flow.source.bootstrap, flow.name)
    flow.make()
    produce(flow.source.bootstrap, flow.name, [b"other"] * 20)
    with pytest.raises(PartitionStop, match="RECREATED"):
        translated(flow, 5)
