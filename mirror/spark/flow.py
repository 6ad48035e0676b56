"""A flow that is ready to run, and how a run of it ended (values)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from mirror.assignment import Assignment
from mirror.errors import ExitCode
from mirror.observe.figures import Figures
from mirror.policy.rekeying import Rekeying
from mirror.states import State
from mirror.wire.cluster import Endpoint, TopicPartition
from mirror.wire.queries import EARLIEST


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """What to mirror and how: the outcome of configuration and preflight.

    `groups` must match the whole name of a consumer group for it to be followed, every `groups_seconds`.
    `bytes_per_second` bounds what all lanes fetch together; `heartbeats`: their topic is there; `made`: target topics
    that were created for it just now. `start`: what the first start begins with, as ListOffsets takes it. `rekeyed`:
    what the re-key query does, topic by topic.
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


@dataclass(slots=True)
class Outcome:
    """How a run ended.

    `contended` names the other mirror, if one took over; `incomplete` says what a bounded run did not copy;
    `interrupted` is the signal that ended it, or 0.
    """

    figures: dict[TopicPartition, Figures] = field(default_factory=dict)
    contended: str = ""
    incomplete: str = ""
    interrupted: int = 0

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
        return ExitCode.CLUSTER if self.stops or self.incomplete else ExitCode.DONE
