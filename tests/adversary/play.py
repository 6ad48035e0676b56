"""Plays a schedule: one operation after another, each judged, up to the first that shows something."""

from __future__ import annotations

import time
import traceback
from typing import Final

from .memory import TIMEOUT_S, Played
from .on_mirror import OnMirror
from .operations import Schedule
from .world import World

#: In which a broker notices what a setting destroys.
RETENTION_SECONDS: Final = 1.0
#: In which a live mirror looks at both clusters, and does what it found there.
REFRESH_SECONDS: Final = 2.5
#: Operations on a copy that a task need not see while it has nothing to write.
UNSEEN: Final = frozenset(
    {"expire_target", "cut_target", "stranger_writes", "delete_target", "cut_journal", "delete_journal", "undo"}
)


def play(world: World, schedule: Schedule, timeout_s: float = TIMEOUT_S) -> Played[Schedule]:
    """Play it until something is found; `timeout_s`: in how many seconds a live mirror must come to rest, or end."""
    played, began = Played(schedule), time.monotonic()
    with world.playing():
        player = _Player(world, schedule, played, timeout_s)
        try:
            player.play()
        except Exception:  # of the adversary itself: reported, and no finding
            played.failure = traceback.format_exc()
        finally:
            player.clear()
    played.seconds = time.monotonic() - began
    return played


class _Player(OnMirror):
    def play(self) -> None:
        """Play the schedule."""
        schedule, played = self._schedule, self._played
        for name, kind, partitions in zip(self._names, schedule.created, schedule.partitions, strict=True):
            self._create(name, partitions, kind)
        self._rebase()
        for self._place, op in enumerate(schedule.operations):
            began = time.monotonic()
            output = getattr(self, f"_op_{op.name}")(op)
            if op.name in UNSEEN and output != "-" and self._live:
                self._disturbed_at = time.time()
                self._is_unseen |= schedule.lasts and op.name != "cut_target"
            played.steps.append(f"{self._place:2} {op}: {output} [{time.monotonic() - began:.1f} s]")
            if output != "-":
                self._judge()
            if played.findings:
                break
        else:
            self._judge_late()
        if played.findings:
            played.logs = "\n".join(
                f"== {path.name}\n{path.read_text(errors='replace')[-6000:]}"
                for path in sorted(self._folder.glob("*.err"))
            )

    def _judge_late(self) -> None:
        """Judge once more what retention may have deleted of copies that their sources' settings must not reach."""
        copies = self._copies.values()
        is_kept = any(copy.kept for copy in copies)
        is_strange = any(not self._is_of_now(copy) or not copy.owned for copy in copies)
        if is_kept or is_strange or any(copy.standing and self._kind(copy.source) == "short" for copy in copies):
            time.sleep(REFRESH_SECONDS if is_kept else RETENTION_SECONDS)
            self._judge()

    def clear(self) -> None:
        """End what runs, and delete what was made."""
        for command in self._live:
            command.end()
        super().clear()


OPERATIONS: Final[frozenset[str]] = frozenset(
    name.removeprefix("_op_") for name in dir(_Player) if name.startswith("_op_")
)
