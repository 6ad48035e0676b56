"""Hostile bytes for everything that reads what a broker sent.

    python fuzz/run.py [--seconds N] [--seed S] [TARGET ...]
    python fuzz/run.py --repeat TARGET FILE ...

Each target gets its share of the time, in a process of its own: with atheris where it is installed, which is guided by
coverage, and with plain damage where it is not. An input may be accepted, or refused by an error that is meant for
damage. Another error, an abort, more than 50 ms of CPU, and memory far beyond the cap are findings: each is kept in
fuzz/findings, printed with what repeats it, and makes the exit code 1.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from fuzz.child import LONGEST, Progress, atheris, name_of  # noqa: E402 -- found by the line above
from fuzz.targets import TARGETS  # noqa: E402 -- the same

FINDINGS: Final = ROOT / "fuzz" / "findings"
REGRESSIONS: Final = ROOT / "fuzz" / "regressions"
#: Seconds that a process may take beyond its share: to start, to load seeds, and for one input that hangs.
_GRACE: Final = 120
_COVERED: Final = re.compile(r"\bcov: (\d+)")
_TOLD_LINES: Final = 25


@dataclass(frozen=True, slots=True)
class Finding:
    """An input that must not be as it is: the file that keeps it, and how it ended."""

    path: Path
    told: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """One target's share: `seconds` of wall time, `coverage` in libFuzzer's edges or -1."""

    target: str
    runs: int
    seconds: float
    coverage: int
    findings: Sequence[Finding]

    def __str__(self) -> str:
        coverage = f"{self.coverage:8,}" if self.coverage >= 0 else f"{'-':>8}"
        rate = self.runs / max(self.seconds, 1e-3)
        return f"{self.target:14}{self.seconds:8.0f}{self.runs:14,}{rate:10,.0f}{coverage}{len(self.findings):10}"


HEADINGS: Final = f"{'target':14}{'seconds':>8}{'runs':>14}{'runs/s':>10}{'edges':>8}{'findings':>10}"


def fuzz(target: str, seconds: float, seed: int, *, plain: bool = False) -> Outcome:
    """One target for some time, up to its first finding."""
    with tempfile.TemporaryDirectory(prefix=f"fuzz-{target}-") as name:
        folder = Path(name)
        _write_seeds(target, seed, folder / "seeds")
        options = ["--seconds", str(seconds), "--seed", str(seed), *(["--plain"] if plain else [])]
        begin = time.monotonic()
        code, told = _child("fuzz", target, folder, options, seconds + _GRACE)
        taken = time.monotonic() - begin
        progress = Progress(folder / "progress")
        runs = progress.runs
        findings = [_kept(target, progress.last, f"{_ended(code)}\n{_tail(told)}")] if code else []
        findings += _confirmed(target, folder, sorted((folder / "slow").glob("*")))
    covered = _COVERED.findall(told)
    return Outcome(target, runs, taken, int(covered[-1]) if covered else -1, findings)


def repeat(target: str, files: Iterable[Path]) -> int:
    """Run inputs again, each without instrumentation; 1 where one is a finding."""
    with tempfile.TemporaryDirectory(prefix=f"fuzz-{target}-") as name:
        code, told = _child("repeat", target, Path(name), [str(path.resolve()) for path in files], None)
    if code:
        print(f"{_ended(code)}\n{_tail(told)}")
    return int(code != 0)


def _confirmed(target: str, folder: Path, slow: Iterable[Path]) -> list[Finding]:
    """Of inputs that were slow under instrumentation, those that are slow without it."""
    found = []
    for path in slow:
        code, told = _child("repeat", target, folder, [str(path)], _GRACE)
        if code:
            found.append(_kept(target, path.read_bytes(), f"{_ended(code)}\n{_tail(told)}"))
    return found


def _child(doing: str, target: str, folder: Path, more: Sequence[str], limit: float | None) -> tuple[int | None, str]:
    """Exit code and output of one process; the code is None where it had to be killed."""
    command = [sys.executable, "-m", "fuzz.child", doing, target, str(folder), *more]
    with (folder / "output").open("w+", errors="replace") as output:
        try:
            code = subprocess.run(
                command, cwd=ROOT, stdout=output, stderr=output, timeout=limit, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            code = None
        output.seek(0)
        return code, output.read()


def _write_seeds(target: str, seed: int, folder: Path) -> None:
    folder.mkdir()
    kept = (path.read_bytes() for path in sorted((REGRESSIONS / target).glob("*")))
    for data in (*kept, *TARGETS[target].seeds(Random(seed))):
        if len(data) <= LONGEST:
            (folder / name_of(data)).write_bytes(data)


def _kept(target: str, data: bytes, told: str) -> Finding:
    path = FINDINGS / target / name_of(data)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return Finding(path, told)


def _ended(code: int | None) -> str:
    if code is None:
        return "it did not end"
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _tail(told: str) -> str:
    """The end of what a process said, libFuzzer's own lines left out where Python says it."""
    lines = told.rstrip().splitlines()
    marks = [number for number, line in enumerate(lines) if line.startswith("Traceback")]
    if marks:
        lines = [
            line for line in lines[marks[-1] :] if not line.startswith(("==", "stat::", "SUMMARY", "Base64", "MS:"))
        ]
        return "\n".join(lines[-_TOLD_LINES:])
    return "\n".join(lines[-_TOLD_LINES:])


def main() -> int:
    """Fuzz the targets one after the other, and tell what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="for all targets together; default 60")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plain", action="store_true", help="without atheris")
    parser.add_argument("--repeat", action="store_true", help="run the given files of one target again")
    parser.add_argument("target", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    given = parser.parse_args()
    names: list[str] = given.target[:1] if given.repeat else given.target or list(TARGETS)
    if unknown := [name for name in names if name not in TARGETS]:
        parser.error(f"no target is called {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    if given.repeat:
        return repeat(names[0], map(Path, given.target[1:])) if names else parser.error("--repeat TARGET FILE ...")
    print(
        f"seed {given.seed}, {'plain damage' if given.plain or atheris is None else 'atheris'}\n{HEADINGS}", flush=True
    )
    outcomes = []
    for name in names:
        outcomes.append(fuzz(name, given.seconds / len(names), given.seed, plain=given.plain))
        print(outcomes[-1], flush=True)
    for outcome in outcomes:
        for finding in outcome.findings:
            print(f"\n{outcome.target}: {finding.told}\nto repeat it:")
            print(f"    python fuzz/run.py --repeat {outcome.target} {finding.path.relative_to(ROOT)}")
    return int(any(outcome.findings for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
