"""`sync.deletions: delete`: a copy goes with its source topic, where the flow made it and nothing speaks against it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from configured_flow import ConfiguredFlow, flow
from helpers import make_topic, produce
from syncing import admin_of, delete_topics
from topicadmin import partitions_of, recreate
from waiting import until

from mirror.driver.topic_watcher import Replanner
from mirror.errors import BrokerError
from mirror.journal.entries import COPIES, FirstSeen
from mirror.journal.journal import OWNER
from mirror.journal.ownership import KEY as FAILOVER
from mirror.journal.ownership import FailedOver, Owner
from mirror.journal.positions import POSITIONS, STOPS
from mirror.kafka.cluster import TopicPartition
from mirror.replication.assignment import Assignment, KnownStop, LastPosition
from mirror.states import State

__all__ = ["flow"]


@pytest.fixture(autouse=True)
def _asks_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that is gone is asked for several times."""
    monkeypatch.setattr("mirror.driver.topic_watcher._AGAIN_SECONDS", 0.01)


def mirrored(flow: ConfiguredFlow, many: int) -> tuple[list[str], tuple[Assignment, ...], dict[str, FirstSeen]]:
    """Topics with ten records each, copied by a flow that deletes copies and belongs to this process: their names, what
    it mirrors, and as what it saw them.
    """
    names = [f"{flow.name}-{number}" for number in range(many)]
    flow.sync["deletions"] = "delete"
    for name in names:
        make_topic(flow.source, name)
        produce(flow.source, name, [b"record"] * 10)
    flow.once()
    seen = flow.seen()
    flow.write_journal((OWNER, Owner.here("this").to_json()))
    return names, Replanner(flow.settings).replan((), seen).assignments, seen


@pytest.mark.proves("nothing-by-name-alone", "mirror run")
def test_a_running_mirror_deletes_the_copy_of_a_deleted_topic(flow: ConfiguredFlow) -> None:
    gone, left = f"{flow.name}-gone", f"{flow.name}-left"
    flow.sync["deletions"] = "delete"
    for name in (gone, left):
        make_topic(flow.source, name)
        produce(flow.source, name, [b"record"] * 10)

    def story() -> None:
        until(lambda: [one.state for one in flow.figures.values()] == [State.CAUGHT_UP] * 2)
        delete_topics(flow.source, gone)
        until(lambda: partitions_of(flow.target, gone) == 0)
        until(lambda: flow.states() == {(left, 0): State.CAUGHT_UP})

    flow.while_running(story)
    assert partitions_of(flow.target, left) == 1
    assert flow.seen()[gone].deleted_ms > 0


@pytest.mark.proves("nothing-by-name-alone", "never-silent")
def test_a_copy_stays_where_somebody_else_has_a_say_in_it(
    flow: ConfiguredFlow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the journal of that moment, and by what the log holds. Other reasons: `tests/pure/test_topic_watcher.py`."""
    (gone, other), current, seen = mirrored(flow, 2)
    known, mine = seen[gone], (OWNER, flow.journal()[OWNER])
    delete_topics(flow.source, gone)

    def left() -> list[str]:
        return [one.source.topic for one in Replanner(flow.settings).replan(current, seen, [gone]).assignments]

    for why, change, back in (
        ("another mirror has the flow", (OWNER, replace(Owner.here("x"), host="elsewhere").to_json()), mine),
        ("failed over", (FAILOVER, FailedOver.here().to_json()), (FAILOVER, None)),
        ("let go of", COPIES.entry(gone, replace(known, made=False)), COPIES.entry(gone, known)),
    ):
        flow.write_journal(change)
        assert left() == [gone, other], why
        flow.write_journal(back)
    produce(flow.target, gone, [b"nobody else has it"])
    assert left() == [gone, other], "somebody else wrote to it"
    ids: Any = {"source_topic_id": known.topic_id, "target_topic_id": known.target_topic_id}
    flow.write_journal(POSITIONS.entry(TopicPartition(gone, 0), LastPosition(source_next=11, target_end=11, **ids)))

    async def disabled(*_: object) -> None:
        raise BrokerError(73, "TOPIC_DELETION_DISABLED", f"delete topic {gone}")

    with monkeypatch.context() as refusing:
        refusing.setattr("mirror.kafka.admin.delete_topic", disabled)
        assert left() == [gone, other], "the target refuses it"
    assert (partitions_of(flow.target, gone), flow.seen()[gone].deleted_ms) == (1, 0)
    assert left() == [other]
    until(lambda: partitions_of(flow.target, gone) == 0)


@pytest.mark.proves("nothing-by-name-alone", "never-silent")
@pytest.mark.parametrize("sign", ["most are gone", "TRUNCATED", "shorter", "RECREATED"])
def test_a_source_that_lost_its_data_deletes_no_copy(flow: ConfiguredFlow, sign: str) -> None:
    """As one that lost a disk, or was put back to what it was an hour ago: topics that were new then are gone."""
    names, current, seen = mirrored(flow, 4)
    gone, witness = names[0], names[1]
    at, known = TopicPartition(witness, 0), seen[witness]
    ids: Any = {"source_topic_id": known.topic_id, "target_topic_id": known.target_topic_id}
    if sign == "shorter":
        flow.write_journal(POSITIONS.entry(at, LastPosition(source_next=12, target_end=12, **ids)))
    elif sign == "TRUNCATED":
        flow.write_journal(STOPS.entry(at, KnownStop(state=State.TRUNCATED, offset=5, detail="it was cut", **ids)))
    elif sign == "RECREATED":
        recreate(flow.source, witness)
    living = Replanner(flow.settings)
    if sign == "most are gone":
        delete_topics(flow.source, *names[1:3])
        assert len(living.replan(current, seen, ()).assignments) == 4, "half of them, and none was checked"
    delete_topics(flow.source, gone)
    for _ in range(2):
        assert sorted(one.target.topic for one in living.replan(current, seen, names).assignments) == names
    assert [*admin_of(flow.target).describe(names)] == names
