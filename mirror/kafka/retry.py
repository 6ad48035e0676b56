"""How long to wait before trying again: exponential with full jitter, so that tasks do not come back in step."""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass(slots=True)
class Backoff:
    """Seconds to wait, longer each time until `reset`. The generator can be given, for tests."""

    first: float = 0.05
    longest: float = 2.0
    random: random.Random = field(default_factory=random.Random)
    _tries: int = 0

    def next(self) -> float:
        """A wait between half and the whole of the current step, which then doubles."""
        step = min(self.longest, self.first * (1 << min(self._tries, 30)))
        self._tries += 1
        return step * self.random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Begin again with the first step."""
        self._tries = 0
