"""How a schedule ended."""

from __future__ import annotations

from dataclasses import dataclass, field

from checker import Finding

from .schedule import Schedule


@dataclass(slots=True)
class Played:
    """How a schedule ended. `stops` are the partitions that ended in a state that must not go on; `excused` is what was
    found in these behind the offset at which one of two mirrors said that another one wrote, too.
    """

    schedule: Schedule
    topic: str
    lines: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    excused: list[Finding] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    stops: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def is_good(self) -> bool:
        """Equal, or stopped in a state that docs/states.md names for such a schedule, with nothing wrong before it."""
        return not self.findings and not self.failures

    def __str__(self) -> str:
        lines = [
            f"seed {self.schedule.seed} on {self.topic}: {'good' if self.is_good else 'BAD'}, {self.seconds:.1f} s"
        ]
        lines += [f"  {line}" for line in self.lines]
        lines += [f"  stopped: {line}" for line in self.stops]
        lines += [f"  excused: {finding}" for finding in self.excused[:3]]
        lines += [f"  FAILED: {line}" for line in self.failures]
        lines += [f"  FOUND: {finding}" for finding in self.findings[:20]]
        return "\n".join(lines)
