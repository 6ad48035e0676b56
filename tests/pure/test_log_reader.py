"""A live partition read to its end: answers that are cut or empty are asked for again, and holes are believed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from rawbatches import batch
from waiting import MovableClock

from mirror.errors import ClusterUnreachable
from mirror.kafka.cluster import Cluster, Endpoint, TopicPartition
from mirror.kafka.fetch import EMPTY_ANSWERS, EMPTY_SECONDS, Fetched
from mirror.kafka.log_reader import ReadLog
from mirror.kafka.queries import EARLIEST_LOCAL, READ_COMMITTED
from mirror.records.segment import DamageKind

LOG = [batch(0, count=3), batch(3, count=2, payload=b"another"), batch(5, payload=b"the last one")]
PARTITION = TopicPartition("orders", 0)


class Leader:
    """The leader of a log that ends at `end`; below `local` its records are in remote storage. It gives `answers`, the
    last one again and again. One that was `just_elected` shows no more than what it gives.
    """

    def __init__(
        self, patch: pytest.MonkeyPatch, answers: Sequence[bytes], *, local: int = 0, just_elected: bool = False
    ) -> None:
        self.end, self.local, self.stable, self.waits = 6, local, 6, list[int]()
        self.behind_stable, self.when_asked = b"", list[Callable[[], None]]()
        self._answers, self._just_elected = list(answers), just_elected
        patch.setattr("mirror.kafka.fetch.fetch_at", self._fetched)
        patch.setattr("mirror.kafka.fetch.list_offset", self._listed)

    async def _fetched(self, *_: Any, max_wait_ms: int, isolation: int, **__: Any) -> Fetched:
        self.waits.append(max_wait_ms)
        for act in self.when_asked:
            act()
        if self.behind_stable and isolation != READ_COMMITTED:
            return Fetched(PARTITION, 0, self.end, self.stable, 0, None, (), memoryview(self.behind_stable))
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        end = 0 if self._just_elected and not answer else self.end
        return Fetched(PARTITION, 0, end, min(end, self.stable), 0, None, (), memoryview(answer))

    async def _listed(self, _cluster: Any, _partition: Any, when: int) -> int:
        assert when == EARLIEST_LOCAL
        return self.local

    def read(self) -> tuple[ReadLog, list[int]]:
        """Return its log, and the base offsets that are read of it."""

        async def read() -> tuple[ReadLog, list[int]]:
            log = ReadLog(Cluster(Endpoint("stub", ())), PARTITION, self.stable, self.end)
            return log, [raw.header.base_offset async for raw, _ in log.batches(0)]

        return asyncio.run(read())


def test_answers_that_are_cut_or_empty_are_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [b"", LOG[0] + LOG[1][:-1], LOG[1] + LOG[2] + batch(6)]
    log, found = Leader(monkeypatch, answers, just_elected=True).read()
    assert (found, log.at, log.damage) == ([0, 3, 5], 6, None)


def test_damage_ends_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    log, found = Leader(monkeypatch, [LOG[0] + batch(3, crc=1) + batch(4)]).read()
    assert (found, log.at) == ([0], 3)
    assert log.damage is not None
    assert (log.damage.kind, log.damage.batch is not None) == (DamageKind.CRC, True)


@pytest.mark.parametrize(
    ("more", "reason"),
    [({"just_elected": True}, "its log ended at 6, and its leader shows it up to 0"), ({"local": 4}, "begins at 4 on")],
)
def test_a_leader_that_gives_nothing_for_long_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, clock: MovableClock, more: dict[str, Any], reason: str
) -> None:
    leader = Leader(monkeypatch, [LOG[0], b""], **more)
    leader.when_asked = [lambda: clock.move(EMPTY_SECONDS + 1) if len(leader.waits) > EMPTY_ANSWERS else None]
    with pytest.raises(ClusterUnreachable, match=f"orders-0: nothing came back for offset 3 .*{reason}"):
        leader.read()


@pytest.mark.parametrize("local", [0, 6])
def test_an_empty_answer_of_a_leader_that_has_all_is_no_hole(monkeypatch: pytest.MonkeyPatch, local: int) -> None:
    """Remote storage that is late looks like this: no error, the true end, and nothing."""
    leader = Leader(monkeypatch, [b"", LOG[0], b"", LOG[1] + LOG[2]], local=local)
    log, found = leader.read()
    assert (found, log.at, log.damage) == ([0, 3, 5], 6, None)
    assert [wait > 0 for wait in leader.waits] == [False, True, False, True]


def test_a_hole_up_to_the_end_is_one_that_a_leaders_own_disk_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = Leader(monkeypatch, [LOG[0], b""], local=3)
    log, found = leader.read()
    assert (found, log.at, log.damage, len(leader.waits)) == ([0], 6, None, 1 + EMPTY_ANSWERS)


def test_a_hole_up_to_an_open_transaction_does_not_hide_what_is_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = Leader(monkeypatch, [LOG[0], b""], local=3)
    leader.stable, leader.behind_stable = 5, LOG[2]
    assert leader.read()[1] == [0, 5]


def test_what_precedes_the_offset_that_was_asked_for_is_no_hole_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    log, found = Leader(monkeypatch, [LOG[0], LOG[0], LOG[1] + LOG[2]]).read()
    assert (found, log.at, log.damage) == ([0, 3, 5], 6, None)
    log, found = Leader(monkeypatch, [LOG[0]]).read()
    assert (found, log.at, "nothing but what precedes offset 3" in str(log.damage)) == ([0], 3, True)
