"""What makes inputs: atheris, guided by the branches that they take, or plain damage where it is not installed."""

from __future__ import annotations

import io
import mmap
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from random import Random
from struct import Struct
from typing import Final

try:
    import atheris
except ImportError:  # it is made for few platforms; plain damage does everywhere
    atheris = None

Run = Callable[[bytes], None]

HAS_ATHERIS: Final = atheris is not None
#: Bytes of the longest input that is made.
LONGEST: Final = 8192
#: Wall seconds after which an input hangs, and MiB of memory for the whole process.
_HANGS: Final = 30
_RSS_MIB: Final = 1024

_STATE: Final = Struct(">QI")
#: Bytes that mean trouble to somebody: ends of ranges in fixed-length and in variable-length numbers.
_SAYING: Final = (
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
    """How many inputs were run, and the last of them, in memory shared with a process that may die of it."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _STATE.size + LONGEST)

    def note(self, data: bytes) -> None:
        """One more run, of this input of at most `LONGEST` bytes."""
        self._memory[_STATE.size : _STATE.size + len(data)] = data
        _STATE.pack_into(self._memory, 0, self.runs + 1, len(data))

    @property
    def runs(self) -> int:
        """Inputs run, the last one included."""
        runs, _ = _STATE.unpack_from(self._memory)
        return int(runs)

    @property
    def last(self) -> bytes:
        """The last input."""
        _, size = _STATE.unpack_from(self._memory)
        return self._memory[_STATE.size : _STATE.size + size]


@contextmanager
def instrumented() -> Iterator[None]:
    """Whatever of the mirror is imported in here shows atheris its branches."""
    import mirror.records.kernels  # noqa: F401, PLC0415 -- numba compiles it, so its bytecode must be as it was

    with redirect_stderr(io.StringIO()), atheris.instrument_imports(include=["mirror"]):  # it names every module
        yield


def with_damage(run: Run, seeds: Path, seconds: float, seed: int) -> None:
    """Every seed, then seeds with damage for as long as there is time; the same inputs for the same `seed`."""
    deadline = time.monotonic() + seconds
    sound = [path.read_bytes() for path in sorted(seeds.iterdir())]
    for data in sound:
        run(data)
    random = Random(seed)
    while time.monotonic() < deadline:
        run(damaged(random.choice(sound), random)[:LONGEST])


def with_atheris(run: Run, seeds: Path, seconds: float, seed: int) -> None:
    """What libFuzzer makes of the seeds. Ends the process, with a code other than 0 at the first error."""
    flags = {
        "max_total_time": max(round(seconds) - 1, 1),  # in whole seconds, and it stops one late
        "seed": seed or 1,  # 0 means any
        "max_len": LONGEST,
        "timeout": _HANGS,
        "rss_limit_mb": _RSS_MIB,
        "artifact_prefix": f"{seeds.parent}/libfuzzer-",
    }
    atheris.Setup([sys.argv[0], *(f"-{name}={value}" for name, value in flags.items()), str(seeds)], run)
    atheris.Fuzz()


def damaged(data: bytes, random: Random) -> bytes:
    """`data` with a few bytes changed, cut out, repeated, or replaced by numbers that mean trouble."""
    changed = bytearray(data)
    for _ in range(random.choice((0, 1, 1, 2, 4, 16))):
        at = random.randrange(len(changed) + 1)
        match random.randrange(5):
            case 0 if at < len(changed):
                changed[at] ^= 1 << random.randrange(8)
            case 1:
                saying = random.choice(_SAYING)
                changed[at : at + len(saying)] = saying
            case 2:
                del changed[at : at + random.randrange(1, 20)]
            case 3:
                changed[at:at] = changed[at : at + random.randrange(1, 60)]
            case _:
                changed[at:at] = random.randbytes(random.randrange(1, 9))
    return bytes(changed[: random.randrange(len(changed) + 1)] if random.randrange(8) == 0 else changed)
