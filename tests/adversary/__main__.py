"""The adversary from the command line; see the package. Ends with 1 if anything was found."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import ExitStack
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
    parser.add_argument("--at-once", type=int, default=4, help="how many are played side by side")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin none after so long")
    parser.add_argument("--without", metavar="MEND", default="", help="with one mend taken out of a copy of the mirror")
    parser.add_argument("--mends", action="store_true", help="take each mend out, and say which are not missed")
    parser.add_argument("--package", metavar="FOLDER", default="", help="with the mirror of another tree, an older one")
    parser.add_argument("--ignore", default="", help="invariants or kinds of findings to pass over, with commas")
    parser.add_argument("--leave-out", default="", help="operations that schedules are made without, with commas")
    parser.add_argument(
        "--repertoire",
        default="clusters",
        help=f"one of {', '.join(REPERTOIRES)}",
    )
    parser.add_argument("--only", default="", help="these of the operations alone, by number, with commas")
    parser.add_argument("--shrink", action="store_true", help="find the operations that are enough")
    parser.add_argument("--until-found", action="store_true", help="stop at the first finding")
    parser.add_argument("--logs", action="store_true", help="print the mirrors' logs of what was found")
    options = parser.parse_args()
    return _hunt(options)


def _hunt(options: argparse.Namespace) -> int:
    # Not at the top: every forked process imports this module anew.
    from adversary import driving, mends
    from adversary.hunting import Hunt, Shown

    ignored = frozenset(filter(None, options.ignore.split(",")))
    left_out = frozenset(filter(None, options.leave_out.split(",")))
    only = tuple(map(int, filter(None, options.only.split(","))))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        hunt = stack.enter_context(Hunt(folder, ignored, left_out, options.repertoire))
        if options.package:
            stack.enter_context(driving.package(Path(options.package).resolve()))
        if options.mends and options.package:
            return _lacking(hunt, options.at_once)
        if options.mends:
            return _missed(hunt, options.without, options.at_once)
        if options.without:
            stack.enter_context(driving.package(stack.enter_context(mends.without(options.without))))
        began = time.monotonic()
        seeds = range(options.seed, options.seed + options.schedules)
        shown: list[Shown] = []
        played = 0
        for one in hunt.play(seeds, options.at_once, began + options.seconds, only, until_found=options.until_found):
            played += 1
            is_reported = one.findings or one.failure or options.schedules == 1
            print(one if is_reported else str(one).splitlines()[0], flush=True)
            if one.findings and options.logs:
                print(one.logs, flush=True)
            if one.findings:
                shown.append(Shown(one.schedule.seed, one.kinds, only))
        if options.shrink:
            for found in shown:
                print(f"seed {found.seed}: {', '.join(found.kinds)}: shrunk to {hunt.shrunk(found)}", flush=True)
        hunt.summary(played, time.monotonic() - began)
    return bool(shown)


def _missed(hunt: Any, name: str, at_once: int) -> int:
    """Take each mend out, or the one named, and play what it says, with and without it."""
    from adversary import mends

    wrong = 0
    for mend in mends.mends():
        if name not in ("", mend.name):
            continue
        began = time.monotonic()
        whole = [one for one in hunt.seeds_of(mend, at_once) if one.findings or one.failure]
        found = [*hunt.without(mend, at_once)]
        kinds = {kind for one in found for kind in one.kinds}
        is_right = not whole and bool(kinds & set(mend.finds))
        wrong += not is_right
        output = ", ".join(sorted(kinds)) or "nothing"
        print(
            f"{'ok   ' if is_right else 'WRONG'} {mend.name}: {output} [{time.monotonic() - began:.1f} s]", flush=True
        )
        for one in (*whole, *(() if is_right else found)):
            print(one, flush=True)
    return bool(wrong)


def _lacking(hunt: Any, at_once: int) -> int:
    """Play what each mend is to be missed in with a mirror that has none of them."""
    from adversary import mends

    missing = 0
    for mend in mends.mends():
        began = time.monotonic()
        kinds = {kind for one in hunt.seeds_of(mend, at_once) for kind in one.kinds}
        missing += not kinds
        print(f"{mend.name}: {', '.join(sorted(kinds)) or 'nothing'} [{time.monotonic() - began:.1f} s]", flush=True)
    return bool(missing)


if __name__ == "__main__":
    sys.exit(main())
