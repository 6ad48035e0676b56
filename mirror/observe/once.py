"""A hindrance that is met again every second is told once for each kind of reason, until it is over."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Once:
    """Which kinds of problems were told since all was well."""

    _told: set[tuple[type[Exception], object]] = field(default_factory=set)

    def is_new(self, problem: Exception) -> bool:
        """Whether this one is to be told: silence, a missing right and each error code of a broker are other kinds."""
        kind = type(problem), getattr(problem, "code", None)
        if kind in self._told:
            return False
        self._told.add(kind)
        return True

    def over(self) -> None:
        """All is well again, and what comes next is news."""
        self._told.clear()
