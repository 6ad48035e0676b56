"""Faults one by one: a mirror dies at a point, or loses a request to the network, and its successor makes up for it."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Final

from helpers import endpoint, settings_between
from samerecords import LogEnds, assert_same_logs, log_ends
from translated_copies import assert_runs_tell_the_truth, assert_translated
from waiting import DEADLINE_S

from mirror.driver.flow import Flow, prepare
from mirror.lab.embedded import Cluster

from .mirroring import Mirror
from .network import Network, Rule
from .points import BEGINNING, PADDING, RETRACING, Strike
from .workload import Chunk, Topic

#: Points that a mirror passes only on a topic that it begins.
FRESH: Final = PADDING | BEGINNING
_COALESCED: Final = 64 * 1024
#: Steps that are reached only where the mirror before recorded all.
_RECORDED: Final = frozenset({"before-checked-tail", "after-checked-tail"})


@dataclass(slots=True)
class Ran:
    """Keeps how many faults struck, and those that no mirror came to."""

    struck: int = 0
    missed: list[str] = field(default_factory=list)


class Singles:
    """A mirror for each fault, one after the other on one topic. `moves`: offsets are translated."""

    def __init__(self, source: Cluster, target: Cluster, folder: Path, chance: Random, *, moves: bool = False) -> None:
        self._moves = moves
        self._source, self._target, self._folder, self._chance = source.bootstrap, target.bootstrap, folder, chance
        self._ran = Ran()

    def kill_at(self, points: Iterable[str]) -> Ran:
        """Die at each of them, then let a last mirror finish, and compare; points that need a new topic get one."""
        shuffled = self._chance.sample(sorted(points), len(list(points)))
        for point in shuffled:
            if point in FRESH:
                self._die_on_a_topic([point])
        self._die_on_a_topic([point for point in shuffled if point not in FRESH])
        return self._ran

    def disturb(self, rules: Iterable[tuple[str, Rule]]) -> Ran:
        """Let each of these rules strike on the network of one side, "source" or "target", then compare."""
        topic, flow = self._begun()
        with Network(self._source) as to_source, Network(self._target) as to_target:
            networks = {"source": to_source, "target": to_target}
            behind = {side: endpoint(network.bootstrap, side) for side, network in networks.items()}
            disturbed = replace(flow, source=behind["source"], target=behind["target"])
            for side, rule in rules:
                topic.write(self._chunks())
                networks[side].disturb(rule)
                self._copy(disturbed)
                networks[side].disturb()
                self._ran.struck += rule.fired
                if not rule.fired:
                    self._ran.missed.append(f"{side}: {rule.what} of request {rule.key}")
        self._judge(topic, flow)
        return self._ran

    def _die_on_a_topic(self, points: list[str]) -> None:
        topic, flow = self._begun()
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
                    self._ran.struck += 1
                    break
                topic.write(self._chunks())
            else:
                self._ran.missed.append(point)
        self._judge(topic, flow)

    def _begun(self) -> tuple[Topic, Flow]:
        """A topic whose source deleted some of it already, and its flow."""
        topic = Topic(self._source, f"singles-{uuid.uuid4().hex[:8]}", self._chance.randrange(2**32))
        topic.write(self._chunks())
        topic.trim(self._chance.randrange(1, log_ends(self._source, topic.name)[0].end))
        more = {"coalesce_bytes": _COALESCED, "offsets": "translate" if self._moves else "preserve"}
        settings = settings_between(self._source, self._target, [topic.name], topic.name, **more)
        return topic, prepare(settings, once=True)

    def _lead_to(self, point: str, flow: Flow, topic: Topic) -> None:
        """Let a mirror die with runs that it did not record, or end with all of them recorded, as a point needs it."""
        if point not in RETRACING | _RECORDED:
            return
        mirror = Mirror(flow, self._folder, Strike("after-landed") if point in RETRACING else None)
        mirror.wait(DEADLINE_S)
        mirror.end()
        topic.write(self._chunks())

    def _copy(self, flow: Flow) -> None:
        """Let a mirror copy all that there is."""
        mirror = Mirror(flow, self._folder)
        code = mirror.wait(DEADLINE_S)
        mirror.end()
        assert code == 0, f"a mirror ended with {code}: {mirror.log}"
        assert all(one.is_copied for one in mirror.report.values()), mirror.report

    def _judge(self, topic: Topic, flow: Flow) -> None:
        self._copy(flow)
        if not self._moves:
            assert_same_logs(self._source, self._target, topic.name)
            return
        pair = self._source, self._target
        count = assert_translated(pair, topic.name)
        assert log_ends(self._target, topic.name) == {0: LogEnds(0, count, count)}, "a record at each offset"
        assert_runs_tell_the_truth(pair, topic.name)

    def _chunks(self) -> list[Chunk]:
        """Something for every step: batches large and tiny, a transaction that ends, and one that does not."""
        usual = Chunk(batches=3, records=20, value_bytes=2000, codec="lz4")
        tiny = replace(usual, batches=2, records=1, value_bytes=10)
        return [usual, replace(tiny, ending="abort"), tiny, replace(tiny, ending="commit"), usual]
