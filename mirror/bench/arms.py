"""The ways to copy a topic that are measured beside one another, behind one small interface."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from mirror.bench.result import Arm as Facts
from mirror.bench.shapes import Shape
from mirror.demo.bound import Bound

#: Seconds from SIGTERM to SIGKILL for whatever has to be ended.
GRACE_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One copy to be made. `source` and `target` are bootstrap addresses; `run` is a name that no other copy has, and
    `folder` is its own. `replicas` are those of the topic on the target, and `spark` is laid
    over the mirror's own settings of that section. A `live` copy goes on until it is ended.
    """

    run: str
    source: str
    target: str
    topic: str
    shape: Shape
    folder: Path
    replicas: int = 1
    live: bool = False
    spark: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rekeying:
    """A copy whose records have a field of their JSON values as key, in another number of partitions."""

    field: str
    partitions: int


class Arm(Protocol):
    """`ends_itself`: a copy that is not live ends when everything is copied. `keeps_timestamps`: those of the source's
    records are on the target.
    """

    @property
    def facts(self) -> Facts:
        """What it is, with the settings that it runs with."""

    @property
    def ends_itself(self) -> bool:
        """Else it is ended once everything is on the target."""

    @property
    def keeps_timestamps(self) -> bool:
        """Else they are not compared."""

    @property
    def rekeys(self) -> Rekeying | None:
        """None where keys and partitions stay as they are."""

    def fits(self, shape: Shape) -> bool:
        """Whether it is to copy a topic of this shape."""

    def prepare(self) -> None:
        """Fetch what it needs. Raises BenchError."""

    def target_topic(self, job: Job) -> str:
        """Where its copy comes to lie."""

    def start(self, job: Job) -> Bound:
        """Begin; the process ends with this one, whatever happens."""
