"""Transactions on the older releases that a target may have."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest
from helpers import make_topic
from kraftbroker import KraftBroker
from releases import NotFetched
from transaction_story import transaction_story


@pytest.mark.parametrize("version", ["3.3.2", "3.9.1"])
def test_a_transaction_is_the_same_on_an_older_release(version: Literal["3.3.2", "3.9.1"]) -> None:
    try:
        broker = KraftBroker(version)
    except NotFetched as problem:
        pytest.skip(str(problem))
    with broker:
        make_topic(broker.bootstrap, "story", 2)
        asyncio.run(transaction_story(broker.bootstrap, "story"))
