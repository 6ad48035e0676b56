"""Schedules by seed, from the command line: `python -m tests.faults.run --seed N [--count M]`.

Starts two clusters of its own. Ends with 1 if any schedule was bad; every bad one is shown in full, and is played again
by its seed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the folders that pytest puts there
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))


def main() -> int:
    """Play, print, and count."""
    # Not at the top: every mirror's process imports this module anew.
    from faults.play import BROKERS, REPLICATED, Player
    from faults.schedule import schedule
    from mirror.lab.embedded import Spec, start_many
    from mirror.observability import logs

    logs.configure(level="error")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True, help="of the first schedule")
    parser.add_argument("--count", type=int, default=1, help="how many seeds in a row")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no schedule after so long")
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=1, help="of each cluster")
    parser.add_argument("--offsets", choices=("any", "preserve", "translate"), default="any", help="default: by seed")
    options = parser.parse_args()
    config = REPLICATED if options.brokers == 3 else BROKERS
    clusters = start_many(
        [Spec(nodes=options.brokers, name=f"faults-{side}", config=config) for side in ("source", "target")]
    )
    moves = {"any": None, "preserve": False, "translate": True}[options.offsets]
    bad: list[int] = []
    excused: list[int] = []
    played = 0
    with (
        clusters[0],
        clusters[1],
        tempfile.TemporaryDirectory() as folder,
        Player(clusters[0], clusters[1], Path(folder)) as player,
    ):
        began = time.monotonic()
        for seed in range(options.seed, options.seed + options.count):
            if time.monotonic() - began > options.seconds:
                break
            reported = player.play(schedule(seed, moves))
            played += 1
            print(
                reported
                if options.count == 1 or not reported.is_good or reported.excused
                else str(reported).splitlines()[0],
                flush=True,
            )
            if not reported.is_good:
                bad.append(seed)
            elif reported.excused:
                excused.append(seed)
        print(
            f"{played} schedules in {time.monotonic() - began:.0f} s; with two mirrors, and named: {excused};"
            f" bad: {bad}"
        )
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
