"""The adversary of re-keyed topics from the command line; see the package. Ends with 1 if anything was found."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

_TESTS = Path(__file__).resolve().parent.parent.parent


def main() -> int:
    """Play, print and count."""
    parser = argparse.ArgumentParser(prog="python -m tests.adversary.rekeyed", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first session")
    parser.add_argument("--schedules", type=int, default=1, help="how many seeds in a row")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin none after so long")
    parser.add_argument("--without", metavar="MEND", default="", help="with one mend taken out of a copy of the mirror")
    parser.add_argument("--ignore", default="", help="invariants or kinds of findings to pass over, with commas")
    parser.add_argument("--only", default="", help="these of the topics alone, by number, with commas")
    parser.add_argument("--turns", type=int, default=0, help="so many of the turns alone")
    parser.add_argument("--until-found", action="store_true", help="stop at the first finding")
    parser.add_argument("--logs", action="store_true", help="print the mirrors' logs of what was found")
    options = parser.parse_args()
    sys.path[:0] = [str(_TESTS), str(_TESTS / "support")]
    return _hunt(options)


def _hunt(options: argparse.Namespace) -> int:
    # Not at the top: every forked process imports this module anew.
    from adversary import driving, mends
    from adversary.rekeyed.play import play
    from adversary.rekeyed.scripts import session
    from adversary.world import World

    only = frozenset(map(int, filter(None, options.only.split(","))))
    ignored = frozenset(filter(None, options.ignore.split(",")))
    began, kinds, played, topics = time.monotonic(), Counter[str](), 0, 0
    with ExitStack() as stack:
        world = stack.enter_context(World(Path(stack.enter_context(tempfile.TemporaryDirectory()))))
        if options.without:
            stack.enter_context(driving.package(stack.enter_context(mends.without(options.without))))
        for seed in range(options.seed, options.seed + options.schedules):
            if time.monotonic() > began + options.seconds or (kinds and options.until_found):
                break
            one = play(world, session(seed).part(only, options.turns), ignored)
            played, topics = played + 1, topics + (len(only) or len(one.schedule.rules))
            kinds.update({*one.kinds} | ({"not played to its end"} if one.failure else set()))
            print(one, flush=True)
            if one.findings and options.logs:
                print(one.logs, flush=True)
    seconds = time.monotonic() - began
    print(f"{played} sessions of {topics} topics in {seconds:.0f} s ({seconds / max(1, topics):.1f} s a topic)")
    for kind, times in kinds.most_common():
        print(f"  {times:4} {kind}")
    return bool(kinds)


if __name__ == "__main__":
    sys.exit(main())
