"""Every point by itself: a mirror dies there, and its successor has to make up for it."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Final

from checker import Expected, Finding, check, dump
from helpers import settings_between
from waiting import DEADLINE_S

from mirror.driver.flow import Flow, prepare
from mirror.lab.embedded import Cluster

from .mirroring import Mirror
from .moving import Moves
from .play import KEPT
from .points import BEGINNING, PADDING, RETRACING, Strike
from .schedule import Chunk
from .workload import Topic

#: Points that a mirror passes only on a topic that it begins.
FRESH: Final = PADDING | BEGINNING
_COALESCED: Final = 64 * 1024
#: Steps that are reached only where the mirror before recorded all.
_RECORDED: Final = frozenset({"before-checked-tail", "after-checked-tail"})


@dataclass(slots=True)
class Ran:
    """How often a mirror died where it should, the points that it did not pass, and what was found afterwards."""

    died: int = 0
    missed: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


class Points:
    """A mirror for each point, one after the other on one topic; those that need a new topic get one. `moves`: offsets
    are translated.
    """

    def __init__(self, source: Cluster, target: Cluster, folder: Path, chance: Random, *, moves: bool = False) -> None:
        self._moves = moves
        self._source, self._target, self._folder, self._chance = source.bootstrap, target.bootstrap, folder, chance
        self._ran = Ran()

    def kill_at(self, points: Iterable[str]) -> Ran:
        """Die at each of them, then let a last mirror finish, and compare."""
        shuffled = self._chance.sample(sorted(points), len(list(points)))
        for point in shuffled:
            if point in FRESH:
                self._on_a_topic([point])
        self._on_a_topic([point for point in shuffled if point not in FRESH])
        return self._ran

    def _on_a_topic(self, points: list[str]) -> None:
        topic = Topic(self._source, f"points-{uuid.uuid4().hex[:8]}", 1, KEPT, self._chance.randrange(2**32))
        topic.write(self._chunks())
        moves = Moves(self._source, self._target, topic.name, 1) if self._moves else None
        begin = self._chance.randrange(1, dump(self._source, topic.name, uncommitted=False)[0].end)
        topic.trim(0, begin)
        offsets = "translate" if moves else "preserve"
        more = {"coalesce_bytes": _COALESCED, "offsets": offsets}
        settings = settings_between(self._source, self._target, [topic.name], topic.name, **more)
        flow = prepare(settings, once=True)
        for point in points:
            if point not in FRESH:
                topic.write(self._chunks())
            count = 1 if point in FRESH else self._chance.choice([1, 1, 2])
            # what is passed once only is died at the first time, what a topic's first mirror does not pass by the next
            for strike in (Strike(point, count), Strike(point)):
                self._lead_to(point, flow, topic)
                mirror = Mirror(flow, self._folder, strike)
                code = mirror.wait(DEADLINE_S)
                mirror.end()
                if code == -9:
                    self._ran.died += 1
                    break
                topic.write(self._chunks())
            else:
                self._ran.missed.append(point)
        last = Mirror(flow, self._folder)
        code = last.wait(DEADLINE_S)
        assert code == 0, f"the last mirror ended with {code}: {last.log}"
        assert all(one.is_copied for one in last.report.values()), last.report
        if moves:
            self._ran.findings += moves.findings()
        else:
            self._ran.findings += check(self._source, self._target, topic.name, expected=Expected())

    def _lead_to(self, point: str, flow: Flow, topic: Topic) -> None:
        """Let a mirror die with runs that it did not record, or end with all of them recorded, as a point needs it."""
        if point not in RETRACING | _RECORDED:
            return
        mirror = Mirror(flow, self._folder, Strike("after-landed") if point in RETRACING else None)
        mirror.wait(DEADLINE_S)
        mirror.end()
        topic.write(self._chunks())

    def _chunks(self) -> list[Chunk]:
        """Something for every step: batches large and tiny, a transaction that ends, and one that does not."""
        usual = Chunk(partition=0, batches=3, records=20, value_bytes=2000, codec="lz4", age_ms=3_600_000)
        tiny = replace(usual, batches=2, records=1, value_bytes=10)
        return [usual, replace(tiny, ending="abort"), tiny, replace(tiny, ending="commit"), usual]
