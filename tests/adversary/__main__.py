"""The adversary from the command line; see the package. Ends with 1 if anything was found."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

_TESTS = Path(__file__).resolve().parent.parent


def main() -> int:
    """Play, print and count."""
    sys.path[:0] = [str(_TESTS), str(_TESTS / "support")]
    from adversary.operations import REPERTOIRES

    parser = argparse.ArgumentParser(prog="python -m tests.adversary", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first schedule")
    parser.add_argument("--schedules", type=int, default=1, help="how many seeds in a row")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin none after so long")
    parser.add_argument("--at-once", type=int, default=4, help="how many are played side by side")
    parser.add_argument("--repertoire", default="clusters", help=f"one of {', '.join((*REPERTOIRES, 'rekeyed'))}")
    parser.add_argument("--plays", default="", help="other operations, as they are printed, on the flow of the seed")
    parser.add_argument("--shrink", action="store_true", help="find the operations that are enough")
    parser.add_argument("--logs", action="store_true", help="print the mirrors' logs of what was found")
    parser.add_argument("--without", metavar="MEND", default="", help="with a mend taken out")
    parser.add_argument(
        "--mends", nargs="*", metavar="MEND", help="take mends out, each or these; say which are not missed"
    )
    options = parser.parse_args()
    # Not at the top: every forked process imports this module anew.
    from adversary.mends import MENDS, named, without
    from adversary.world import World

    with ExitStack() as stack:
        world = stack.enter_context(World(Path(stack.enter_context(tempfile.TemporaryDirectory()))))
        if options.mends is not None:
            return _missed(world, [*map(named, options.mends)] or MENDS)
        if options.without:
            stack.enter_context(without(named(options.without)))
        return _rekeyed(world, options) if options.repertoire == "rekeyed" else _hunt(world, options)


def _hunt(world: Any, options: argparse.Namespace) -> int:
    from adversary.hunting import hunt, shrink
    from adversary.operations import schedule, written

    seeds = range(options.seed, options.seed + options.schedules)
    schedules = [schedule(seed, options.repertoire) for seed in seeds]
    if options.plays:
        schedules = [replace(one, operations=written(options.plays).operations) for one in schedules]
    kinds = Counter[str]()
    for played in hunt(world, schedules, options.at_once, time.monotonic() + options.seconds):
        kinds.update(played.kinds or ["not played to its end"] * bool(played.failure))
        is_shown = played.findings or played.failure or options.schedules == 1
        print(played if is_shown else str(played).splitlines()[0], flush=True)
        if options.logs:
            print(played.logs, flush=True)
        if options.shrink and played.findings:
            print(f"    --plays '{'; '.join(map(str, shrink(world, played).operations))}'", flush=True)
    print(*(f"{times:4} {kind}" for kind, times in kinds.most_common()), sep="\n")
    return bool(kinds)


def _rekeyed(world: Any, options: argparse.Namespace) -> int:
    from adversary.rekeyed.play import play
    from adversary.rekeyed.scripts import session

    found, until = 0, time.monotonic() + options.seconds
    for seed in range(options.seed, options.seed + options.schedules):
        if time.monotonic() < until:
            played = play(world, session(seed))
            found += bool(played.findings or played.failure)
            print(played, *([played.logs] if options.logs else []), sep="\n", flush=True)
    return bool(found)


def _missed(world: Any, mends: Sequence[Any]) -> int:
    """Play what each mend is to be missed in, with it and without it, and say which are not missed."""
    from adversary.hunting import play_mend, play_without

    wrong = 0
    for mend in mends:
        whole, lacking = play_mend(world, mend), play_without(world, mend)
        is_right = not whole.findings and not whole.failure and bool({*mend.finds} & {*lacking.kinds})
        wrong += not is_right
        found = ", ".join(lacking.kinds) or "nothing"
        print(
            f"{'ok   ' if is_right else 'WRONG'} {mend.name}: {found} [{whole.seconds:.0f} + {lacking.seconds:.0f} s]",
            flush=True,
        )
        if not is_right:
            print(whole, lacking, sep="\n", flush=True)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
