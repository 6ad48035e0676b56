"""Hostile bytes for everything that reads what a broker sent.

    python fuzz/run.py [--seconds N] [--seed S] [TARGET ...]
    python fuzz/run.py --repeat FILE ...

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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from hashlib import sha1
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "support")]

from fuzz import engines  # noqa: E402 -- found by the line above
from fuzz.forked import End, forked  # noqa: E402 -- the same
from fuzz.limits import CPU_SECONDS, Check, Memory, TooSlow, seconds_for  # noqa: E402 -- the same

if TYPE_CHECKING:
    from fuzz.targets import Target

FINDINGS: Final = ROOT / "fuzz" / "findings"
REGRESSIONS: Final = ROOT / "fuzz" / "regressions"
#: Seconds that a process may take beyond its share: for seeds, and for one input that hangs.
_GRACE: Final = 120
#: Seeds of one target, so that a short run gets beyond them; another `--seed` chooses others.
_MOST_SEEDS: Final = 500
#: Slow inputs of one target that are checked again; by the first ones the rest is known.
_MOST_SLOW: Final = 20
#: An event of libFuzzer's, and the edges up to then.
_COVERED: Final = re.compile(r"(\w+)\s+cov: (\d+)")


@dataclass(frozen=True, slots=True)
class Finding:
    """An input that must not be as it is: the file that keeps it, and how it ended."""

    path: Path
    end: End


@dataclass(frozen=True, slots=True)
class Outcome:
    """One target's share: `seconds` of wall time; edges of the code that seeds took, and all inputs (-1: not known)."""

    target: str
    runs: int
    seconds: float
    seed_edges: int
    edges: int
    findings: Sequence[Finding]

    def __str__(self) -> str:
        edges = f"{self.edges:,}" if self.edges >= 0 else "-"
        new = f"+{self.edges - self.seed_edges:,}" if self.seed_edges >= 0 else "-"
        speed = f"{self.seconds:8.0f}{self.runs:14,}{self.runs / max(self.seconds, 1e-3):10,.0f}"
        return f"{self.target:14}{speed}{edges:>8}{new:>6}{len(self.findings):10}"


_HEADINGS: Final = f"{'target':14}{'seconds':>8}{'runs':>14}{'runs/s':>10}{'edges':>8}{'new':>6}{'findings':>10}"


@dataclass(frozen=True, slots=True)
class Session:
    """What all targets of one call have in common: `seconds` for each, the seed, and whether atheris guides."""

    seconds: float
    seed: int
    guided: bool

    def fuzz(self, name: str, target: Target) -> Outcome:
        """One target for its share of the time, up to its first error."""
        with tempfile.TemporaryDirectory(prefix=f"fuzz-{name}-") as path:
            folder = Path(path)
            slow = folder / "slow"
            slow.mkdir()
            _write_seeds(name, target, self.seed, folder / "seeds")
            progress = engines.Progress()
            begin = time.monotonic()
            task = partial(self._explore, target.check, progress, folder / "seeds", slow)
            end = forked(task, folder / "output", self.seconds + _GRACE)
            taken = time.monotonic() - begin
            findings = [Finding(_kept(name, progress.last), end)] if end.code != 0 else []
            findings += _confirmed(name, sorted(slow.iterdir()))
        seed_edges, edges = _coverage(end.output)
        return Outcome(name, progress.runs, taken, seed_edges, edges, findings)

    def _explore(self, check: Check, progress: engines.Progress, seeds: Path, slow: Path) -> None:
        bounded = partial(Memory().bounded, check)
        files = iter([slow / str(number) for number in range(_MOST_SLOW)])

        def run(data: bytes) -> None:
            progress.note(data)
            # Instrumented code is slow: whether the input is, another process shows.
            if seconds_for(bounded, data) > CPU_SECONDS and (file := next(files, None)):
                file.write_bytes(data)

        engine = engines.with_atheris if self.guided else engines.with_damage
        engine(run, seeds, self.seconds, self.seed)


def repeat(targets: Mapping[str, Target], files: Sequence[Path]) -> Iterator[Finding]:
    """Run inputs again, each for the target that its folder is named after."""
    with tempfile.TemporaryDirectory(prefix="fuzz-repeat-") as path:
        for file in files:
            task = partial(_once, targets[file.resolve().parent.name].check, file)
            end = forked(task, Path(path) / "output", _GRACE)
            if end.code != 0:
                yield Finding(file, end)


def _once(check: Check, file: Path) -> None:
    if (seconds := seconds_for(partial(Memory().bounded, check), file.read_bytes())) > CPU_SECONDS:
        raise TooSlow(f"{1000 * seconds:.0f} ms of CPU, more than {1000 * CPU_SECONDS:.0f}")


def _confirmed(name: str, slow: Sequence[Path]) -> Iterator[Finding]:
    """Of inputs that were slow, those that are slow without instrumentation, too."""
    for path in slow:
        kept = _kept(name, path.read_bytes())
        command = [sys.executable, __file__, "--repeat", str(kept)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            yield Finding(kept, End(done.returncode, done.stdout + done.stderr))
        else:
            kept.unlink()


def _coverage(output: str) -> tuple[int, int]:
    """Edges that the seeds took, and that all inputs took, by libFuzzer's report; -1 without one."""
    reported = _COVERED.findall(output)
    return next((int(edges) for when, edges in reported if when == "INITED"), -1), int(
        reported[-1][1]
    ) if reported else -1


def _write_seeds(name: str, target: Target, seed: int, folder: Path) -> None:
    folder.mkdir()
    random = Random(seed)
    sound = [data for data in target.seeds(random) if len(data) <= engines.LONGEST]
    regressions = (path.read_bytes() for path in (REGRESSIONS / name).glob("*"))
    for data in (*regressions, *random.sample(sound, min(_MOST_SEEDS, len(sound)))):
        (folder / _name_of(data)).write_bytes(data)


def _kept(name: str, data: bytes) -> Path:
    path = FINDINGS / name / _name_of(data)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def _name_of(data: bytes) -> str:
    return sha1(data, usedforsecurity=False).hexdigest()[:16]


def _text(finding: Finding) -> str:
    path = finding.path.resolve()
    shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    return f"\n{path.parent.name}: {finding.end}\nto repeat it:\n    python fuzz/run.py --repeat {shown}"


def main() -> int:
    """Fuzz the targets one after the other, and report what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="for all targets together; default 60")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plain", action="store_true", help="without atheris")
    parser.add_argument("--repeat", type=Path, nargs="+", default=[], metavar="FILE", help="findings, or regressions")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="all of them where none is named")
    given = parser.parse_args()
    guided = engines.HAS_ATHERIS and not given.plain and not given.repeat
    with engines.instrumented() if guided else nullcontext():
        from fuzz.targets import TARGETS  # noqa: PLC0415 -- what is imported here is instrumented
    names = [file.resolve().parent.name for file in given.repeat] or given.targets or list(TARGETS)
    if unknown := sorted(set(names) - set(TARGETS)):
        parser.error(f"no target is called {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    findings: list[Finding] = []
    if given.repeat:
        findings += repeat(TARGETS, given.repeat)
    else:
        session = Session(given.seconds / len(names), given.seed, guided)
        print(f"seed {given.seed}, {'atheris' if guided else 'plain damage'}\n{_HEADINGS}", flush=True)
        for name in names:
            outcome = session.fuzz(name, TARGETS[name])
            print(outcome, flush=True)
            findings += outcome.findings
    for finding in findings:
        print(_text(finding))
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())
