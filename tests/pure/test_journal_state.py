"""What a running mirror knows by its journal, also where that lost what it had read."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from mirror.driver.journal_state import JournalState
from mirror.journal.entries import Lost as Missing
from mirror.journal.entries import forgotten_entry, loss_entry, pause_entry, resume_entry
from mirror.journal.journal import OWNER, Change, Entry, Lost, News, Place
from mirror.journal.ownership import KEY, FailedOver, Owner, Taken, Watched
from mirror.journal.positions import lifted_entry, stop_entry
from mirror.kafka.cluster import TopicPartition
from mirror.observability.metrics import Metrics
from mirror.replication.assignment import TOMBSTONES, KnownStop, Loss
from mirror.states import State

AT = TopicPartition("orders", 0)
IDS = uuid4(), uuid4()
STOP = KnownStop(state=State.TRUNCATED, offset=5, detail="", source_topic_id=IDS[0], target_topic_id=IDS[1])
LOSS = Loss(AT, AT, 7, 7, TOMBSTONES, topic_id=IDS[0], target_topic_id=IDS[1])
LOSS_KEY = loss_entry(LOSS)[0]
ELDER, OURS = (
    Owner(instance=name, host="there", pid=1, at_ms=1, claim=claim) for name, claim in (("elder", 3), ("ours", 4))
)
#: What an older leader epoch ends with, and what a newer one, which is lost, had behind it.
OLDER: list[Change] = [
    (OWNER, ELDER.to_json()),
    stop_entry(AT, STOP),
    lifted_entry(AT),
    loss_entry(LOSS),
    forgotten_entry(AT, Missing(7, 7, TOMBSTONES)),
    pause_entry("orders"),
]
NEWER: list[Change] = [(OWNER, OURS.to_json()), resume_entry("orders"), stop_entry(AT, STOP), loss_entry(LOSS)]


@pytest.mark.parametrize("compacted", [0, 1], ids=["all is known", "a former owner is not"])
def test_a_log_that_lost_an_epoch_takes_nothing_back(compacted: int) -> None:
    """Its leader ends with records that newer ones had replaced; cleaning had removed one that is there again."""
    log = [Entry(offset, *one) for offset, one in enumerate([*OLDER, *NEWER])]
    over = list[object]()
    seen = Watched(SimpleNamespace(flow="f"))  # type: ignore[arg-type] # nothing is read
    seen.learn(log[compacted:], are_new=False)
    seen.place = Place(len(log), None, 12, 0, 12)
    state = JournalState("f", "ours", over.append, over.append, Metrics("f"))
    state.begin(Taken(OURS, seen))

    def known() -> tuple[Any, ...]:
        return dict(state.standing.stops), {at: dict(of) for at, of in state.standing.losses.items()}, set(state.paused)

    before = known()
    assert before == ({AT: STOP}, {AT: {LOSS_KEY: Missing(7, 7, TOMBSTONES, *IDS)}}, set())
    end = len(OLDER)
    written = Entry(end, *pause_entry("letters"))
    state._learn_anew([*log[:end], written], Lost("the epoch is gone", len(log), 0, end))
    assert known() == (*before[:2], {"letters"})
    assert not over, "a process that is long dead took the flow over"
    assert state._gone == {key for key, _ in NEWER} - {OWNER}, "which is to be written again"
    state._learn_anew([Entry(0, OWNER, ELDER.to_json())], Lost("the topic was made anew", end + 1, 0, 0))
    assert bool(over) == bool(compacted), "whoever is not known found an empty journal"


@pytest.mark.parametrize(
    "lost",
    [(KEY, FailedOver.here().to_json()), (OWNER, replace(OURS, instance="younger", claim=5).to_json())],
    ids=["failed over", "taken over"],
)
def test_a_mirror_that_reads_that_it_lost_the_flow_does_not_have_it(lost: Change) -> None:
    """At once, without a suspension in between: whoever asks is about to fence others."""
    over = list[object]()
    news = iter([[Entry(0, OWNER, OURS.to_json())], [Entry(1, *lost)]])
    state = JournalState("f", "ours", over.append, over.append, Metrics("f"))

    async def follow(_: Place | None) -> News:
        return News(next(news), Place(1, None, 0))

    journal: Any = SimpleNamespace(follow=follow)
    assert asyncio.run(state.has_flow(journal))
    assert not over
    assert not asyncio.run(state.has_flow(journal))
    assert over
