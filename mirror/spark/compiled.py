"""The kernels that rewrite batches, compiled before a task needs them.

Compilation takes some seconds, once for a machine and a version of the kernels. The driver sees to it while nothing is
under way yet; a task on another machine, where nobody did, compiles when it first rewrites a batch.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from mirror import host
from mirror.observability import logs

_KERNELS = "mirror.records.kernels"


def ensure_compiled() -> None:
    """Compile the kernels unless they are there. A machine where that fails still copies what need not be rewritten."""
    log = logs.get("mirror.kernels")
    if (kept := host.kernels_folder()) is None:
        log.warning("kernels_not_kept", text="no folder can be written: set XDG_CACHE_HOME, or each process compiles")
        return
    if _is_compiled(kept):
        return
    log.info("kernels_compiling", text="for batches that must be rewritten; once for this machine")
    done = subprocess.run([sys.executable, "-m", _KERNELS], capture_output=True, text=True, check=False)
    if done.returncode:
        log.warning("kernels_not_compiled", text=done.stderr.strip().rpartition("\n")[2])


def _is_compiled(kept: Path) -> bool:
    spec = find_spec(_KERNELS)
    assert spec is not None
    assert spec.origin is not None
    made = Path(spec.origin).stat().st_mtime
    return any(found.stat().st_mtime > made for found in kept.glob("*/kernels.gather_bytes-*.nbi"))
