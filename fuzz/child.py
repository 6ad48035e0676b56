"""One target in a process of its own: `python -m fuzz.child fuzz|repeat TARGET FOLDER ...`; started by `run`.

The process may die of what it finds. So it keeps the input at hand, and the number of the run, in a mapped file that
outlives it.
"""

from __future__ import annotations

import mmap
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from hashlib import sha1
from pathlib import Path
from random import Random
from struct import Struct
from typing import Final

try:
    import atheris
except ImportError:  # it is made for few platforms; plain damage does everywhere
    atheris = None

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from fuzz.limits import CPU_SECONDS, Memory, TooSlow, seconds_for  # noqa: E402 -- found by the line above

#: Bytes of the longest input that is made.
LONGEST: Final = 8192
#: Wall seconds after which an input hangs, and MiB of memory for the whole process.
_HANGS: Final = 30
_RSS_MIB: Final = 1024
#: Slow inputs that are kept for a second look; by the first ones the rest is known.
_MOST_SLOW: Final = 20

_STATE: Final = Struct(">QI")
#: Bytes that mean trouble to somebody: ends of ranges in fixed-length and in variable-length numbers.
_TELLING: Final = (
    b"\0",
    b"\x7f",
    b"\x80",
    b"\xff",
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff\x07",
    b"\x80\0\0\0",
)


class Progress:
    """How many inputs were run, and the last of them, in a file that its writer's death leaves behind."""

    def __init__(self, path: Path) -> None:
        with path.open("a+b") as file:
            file.truncate(_STATE.size + 2 * LONGEST)
            self._memory = mmap.mmap(file.fileno(), 0)

    def note(self, data: bytes) -> None:
        """One more run, of this input."""
        runs, _ = _STATE.unpack_from(self._memory)
        self._memory[_STATE.size : _STATE.size + len(data)] = data
        _STATE.pack_into(self._memory, 0, runs + 1, len(data))

    @property
    def runs(self) -> int:
        """Inputs run, the last one included."""
        return int(_STATE.unpack_from(self._memory)[0])

    @property
    def last(self) -> bytes:
        """The last input."""
        _, size = _STATE.unpack_from(self._memory)
        return self._memory[_STATE.size : _STATE.size + size]


def damaged(data: bytes, random: Random) -> bytes:
    """`data` with a few bytes changed, cut out, repeated, or replaced by numbers that mean trouble."""
    changed = bytearray(data)
    for _ in range(random.choice((0, 1, 1, 2, 4, 16))):
        at = random.randrange(len(changed) + 1)
        match random.randrange(5):
            case 0 if at < len(changed):
                changed[at] ^= 1 << random.randrange(8)
            case 1:
                telling = random.choice(_TELLING)
                changed[at : at + len(telling)] = telling
            case 2:
                del changed[at : at + random.randrange(1, 20)]
            case 3:
                changed[at:at] = changed[at : at + random.randrange(1, 60)]
            case _:
                changed[at:at] = random.randbytes(random.randrange(1, 9))
    return bytes(changed[: random.randrange(len(changed) + 1)] if random.randrange(8) == 0 else changed)


def with_damage(run: Callable[[bytes], None], seeds: Path, seconds: float, seed: int) -> None:
    """Every seed, then seeds with damage for as long as there is time; the same inputs for the same `seed`."""
    sound = [path.read_bytes()[:LONGEST] for path in sorted(seeds.iterdir())]
    deadline = time.monotonic() + seconds
    for data in sound:
        run(data)
    random = Random(seed)
    while time.monotonic() < deadline:
        run(damaged(random.choice(sound), random)[:LONGEST])


def with_atheris(run: Callable[[bytes], None], seeds: Path, seconds: float, seed: int, findings: Path) -> None:
    """What libFuzzer makes of the seeds, guided by the branches that inputs take. Ends the process."""
    flags = {
        "max_total_time": max(round(seconds), 1),
        "seed": seed or 1,  # 0 means any
        "max_len": LONGEST,
        "timeout": _HANGS,
        "rss_limit_mb": _RSS_MIB,
        "artifact_prefix": f"{findings}/libfuzzer-",
        "print_final_stats": 1,
    }
    atheris.Setup([sys.argv[0], *(f"-{name}={value}" for name, value in flags.items()), str(seeds)], run)
    atheris.Fuzz()


def main() -> int:
    """Fuzz, or run given inputs again."""
    given = _arguments()
    guided = atheris is not None and given.doing == "fuzz" and not given.plain
    import mirror.batch.kernels  # noqa: F401, PLC0415 -- numba compiles it, so its bytecode must be as it was

    with atheris.instrument_imports(include=["mirror"]) if guided else nullcontext():
        from fuzz.targets import TARGETS  # noqa: PLC0415 -- what is imported here is instrumented
    bounded = partial(Memory().bounded, TARGETS[given.target].check)
    progress = Progress(given.folder / "progress")
    if given.doing == "repeat":
        for path in given.files:
            data = path.read_bytes()
            progress.note(data[:LONGEST])
            if (seconds := seconds_for(bounded, data)) > CPU_SECONDS:
                raise TooSlow(f"{path.name}: {1000 * seconds:.0f} ms of CPU, more than {1000 * CPU_SECONDS:.0f}")
        return 0
    slow = _slow_names(given.folder)

    def run(data: bytes) -> None:
        progress.note(data)
        # Instrumented code is slow: whether the input is, another process tells.
        if seconds_for(bounded, data) > CPU_SECONDS and (name := next(slow, None)):
            (given.folder / name).write_bytes(data)

    if guided:
        with_atheris(run, given.folder / "seeds", given.seconds, given.seed, given.folder)
    with_damage(run, given.folder / "seeds", given.seconds, given.seed)
    return 0


def _slow_names(folder: Path) -> Iterator[str]:
    (folder / "slow").mkdir(exist_ok=True)
    return iter([f"slow/{number}" for number in range(_MOST_SLOW)])


def name_of(data: bytes) -> str:
    """The file name of an input."""
    return sha1(data, usedforsecurity=False).hexdigest()[:16]


def _arguments() -> Namespace:
    parser = ArgumentParser(prog="fuzz.child")
    parser.add_argument("doing", choices=["fuzz", "repeat"])
    parser.add_argument("target")
    parser.add_argument("folder", type=Path)
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plain", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
