"""Turns, as the partitions of a task take them."""

from __future__ import annotations

import asyncio

import pytest
from fakebroker import in_loop

from mirror.replication.pipeline import StartupLimiter

LONG, SHORT = 600.0, 0.01


class Crowd:
    """Three who take a turn each and keep it until they may leave."""

    def __init__(self, turns: StartupLimiter) -> None:
        self._turns, self._leave = turns, asyncio.Event()
        self.entered: list[int] = []

    async def come(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(3):
                tasks.create_task(self._come(number))

    async def _come(self, number: int) -> None:
        async with self._turns.taken():
            self.entered.append(number)
            await self._leave.wait()

    async def has_settled(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    def leave(self) -> None:
        self._leave.set()


@in_loop
async def test_so_many_at_a_time_and_in_their_order() -> None:
    crowd = Crowd(StartupLimiter(2, LONG))
    coming = asyncio.create_task(crowd.come())
    await crowd.has_settled()
    assert crowd.entered == [0, 1]
    crowd.leave()
    await coming
    assert crowd.entered == [0, 1, 2]


@in_loop
async def test_who_takes_long_keeps_nobody_from_beginning() -> None:
    crowd = Crowd(StartupLimiter(1, SHORT))
    coming = asyncio.create_task(crowd.come())
    while len(crowd.entered) < 3:
        await asyncio.sleep(SHORT)
    crowd.leave()
    await coming


@in_loop
async def test_a_turn_is_given_back_once_also_where_its_work_fails() -> None:
    turns = StartupLimiter(1, LONG)
    with pytest.raises(ValueError, match="failed"):
        async with turns.taken():
            raise ValueError("failed")
    crowd = Crowd(turns)
    coming = asyncio.create_task(crowd.come())
    await crowd.has_settled()
    assert crowd.entered == [0]
    crowd.leave()
    await coming
