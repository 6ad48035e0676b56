"""What a running mirror knows by its journal."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from mirror.driver.journal_state import JournalState
from mirror.journal.journal import OWNER, Change, Entry, JournalPlace, News
from mirror.journal.ownership import KEY, FailedOver, Owner
from mirror.observability.metrics import Metrics

OURS = Owner(instance="ours", host="there", pid=1, at_ms=1, claim=4)


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

    async def follow(_: JournalPlace | None) -> News:
        return News(next(news), JournalPlace(1, None, 0))

    journal: Any = SimpleNamespace(follow=follow)
    assert asyncio.run(state.has_flow(journal))
    assert not over
    assert not asyncio.run(state.has_flow(journal))
    assert over
