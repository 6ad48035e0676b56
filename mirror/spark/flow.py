"""A flow that is ready to run, and how a run of it ended (values)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mirror.admin.history import Claim
from mirror.assignment import Assignment
from mirror.errors import ExitCode
from mirror.observe.figures import Figures
from mirror.policy.rekeying import Rekeying
from mirror.states import State
from mirror.wire.cluster import Endpoint, TopicPartition
from mirror.wire.queries import EARLIEST


@dataclass(frozen=True, slots=True)
class Refusal:
    """A topic that the flow is to mirror and does not, by both of its names, with as many partitions; 0 where it has no
    copy to report of. `reason` says what to do.
    """

    source: str
    target: str
    partitions: int
    reason: str


def _follows_every(_source: str, _target: str) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """What to mirror and how: the outcome of configuration and preflight.

    `groups` must match the whole name of a consumer group for it to be followed, every `groups_seconds`.
    `bytes_per_second` bounds what all lanes fetch together; `heartbeats`: their topic is there; `made`: target topics
    that were created for it just now. `start`: what the first start begins with, as ListOffsets takes it. `rekeyed`:
    what the re-key query does, topic by topic. `refused`: topics that are left out. `origins`: by source topic, the ids
    of the clusters that its records came through before they were on the source. `take_over`: from a
    mirror that runs. `make_journal` makes the flow's journal where it is gone. `follows`: whether a source topic is of
    the flow, under this name on the target. `claims`: asks which other flow names a target topic as its own now.
    """

    name: str
    source: Endpoint
    target: Endpoint
    assignments: tuple[Assignment, ...]
    lanes: int
    epoch_seconds: float
    memory_bytes: int
    once: bool = False
    until_caught_up: bool = False
    groups: tuple[re.Pattern[str], ...] = ()
    groups_seconds: float = 1.0
    bytes_per_second: int | None = None
    heartbeats: bool = False
    made: frozenset[str] = frozenset()
    start: int = EARLIEST
    rekeyed: tuple[Rekeying, ...] = ()
    refused: tuple[Refusal, ...] = ()
    origins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    take_over: bool = False
    make_journal: Callable[[], object] = dict
    follows: Callable[[str, str], bool] = _follows_every
    claims: Callable[[], Mapping[str, Claim]] = dict

    @property
    def copy_rate(self) -> float | None:
        """What of the bound all lanes share: topics that are re-keyed get their part by number."""
        return None if self.bytes_per_second is None else self.bytes_per_second * (1 - self._rekeyed_share)

    @property
    def rekey_rate(self) -> float | None:
        """What of the bound one re-keyed topic gets."""
        if self.bytes_per_second is None:
            return None
        return self.bytes_per_second * self._rekeyed_share / max(1, len(self.rekeyed))

    @property
    def _rekeyed_share(self) -> float:
        if not self.rekeyed:
            return 0.0
        topics = len({one.source.topic for one in self.assignments})
        return len(self.rekeyed) / (topics + len(self.rekeyed))


@dataclass(slots=True)
class Outcome:
    """How a run ended.

    `contended` names the other mirror, if one took over; `incomplete` says what a bounded run did not copy;
    `interrupted` is the signal that ended it, or 0. `refused`: topics that were left out in the end.
    """

    figures: dict[TopicPartition, Figures] = field(default_factory=dict)
    contended: str = ""
    incomplete: str = ""
    interrupted: int = 0
    refused: tuple[Refusal, ...] = ()

    @property
    def stops(self) -> list[Figures]:
        """The partitions in a state that needs a person."""
        return [figures for figures in self.figures.values() if figures.state.is_stop]

    @property
    def exit_code(self) -> int:
        """Data at risk before an interruption before lost access; 0 only where everything asked for was done."""
        if self.contended or any(figures.state is not State.DENIED for figures in self.stops):
            return ExitCode.DATA_AT_RISK
        if self.incomplete and self.interrupted:
            return 128 + self.interrupted
        if self.stops or self.incomplete:
            return ExitCode.CLUSTER
        return ExitCode.PREFLIGHT if self.refused else ExitCode.DONE
