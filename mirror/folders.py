"""Where this machine keeps what is made or fetched once: brokers' jars, compiled kernels."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path


def cache() -> Path:
    """`mirror` in the user's cache folder. Raises RuntimeError for a user without a home."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mirror"


def kernels() -> Path | None:
    """Where compiled kernels are kept, made if need be: NUMBA_CACHE_DIR, the user's cache folder, or the scratch space
    that Spark gives to an executor, which may write nowhere else. None where none of them can be written to.
    """
    for folder in _for_kernels():
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()  # what numba tries, too, before it keeps anything
            found = folder.stat()
        except OSError:
            continue
        # What is kept there is run, so a folder that others may write to is none of ours.
        if found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & stat.S_IWOTH:
            return folder
    return None


def _for_kernels() -> Iterator[Path]:
    if named := os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(named)
    with contextlib.suppress(RuntimeError):  # a container's user may have no home
        yield cache() / "kernels"
    if scratch := os.environ.get("SPARK_LOCAL_DIRS"):
        yield Path(scratch.partition(",")[0]) / "mirror-kernels"
