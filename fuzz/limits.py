"""What one input may cost: CPU time, and memory beyond what the process has."""

from __future__ import annotations

import mmap
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

Check = Callable[[bytes], None]

#: Seconds of CPU for one input.
CPU_SECONDS: Final = 0.05
#: Bytes that a compressed payload may decompress to in all targets: small, so that both limits mean something.
CAP: Final = 1 << 20
#: Bytes of address space that one input may add: the columns of 150,000 records and three copies of the data fit.
NEW_BYTES: Final = 64 << 20
#: Runs of a slow input, of which the fastest counts: the machine has other things to do, and first calls load code.
_RUNS: Final = 3


class TooSlow(Exception):
    """An input that took more than `CPU_SECONDS` each time it was run."""


class Memory:
    """Bounds what a call may allocate; with it, an allocation beyond the bound is a MemoryError or an abort."""

    def __init__(self) -> None:
        self._sizes = os.open("/proc/self/statm", os.O_RDONLY) if Path("/proc/self/statm").exists() else -1

    def bounded(self, check: Check, data: bytes) -> None:
        """Run `check(data)`; without a bound where the system does not show a process's size."""
        if self._sizes < 0:
            check(data)
            return
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        pages = int(os.pread(self._sizes, 64, 0).split(b" ", 1)[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * mmap.PAGESIZE + NEW_BYTES, hard))
        try:
            check(data)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def seconds_for(run: Check, data: bytes) -> float:
    """CPU seconds that `run(data)` takes: of the first run, or the fastest of three where that was too slow."""
    fastest = _seconds(run, data)
    for _ in range(_RUNS - 1):
        if fastest <= CPU_SECONDS:
            break
        fastest = min(fastest, _seconds(run, data))
    return fastest


def _seconds(run: Check, data: bytes) -> float:
    begin = time.thread_time()
    run(data)
    return time.thread_time() - begin
