"""What the mirror needs of the machine that it runs on: cache folders, Java, and the C heap.

Spark and the embedded brokers need the same Java, so one function finds and checks it, before anything is started.

A task allocates and frees megabytes for each fetch answer. Left to itself, glibc returns them to the kernel or keeps
them, by what happens to lie on top of its heap; returned, each mirrored byte costs page faults again, up to a fifth of
a task's CPU with large batches (`python -m tests.bench.against`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from mirror.errors import ConfigError

# --- Where this machine keeps what is made or fetched once ------------------------------------------------------------


def cache_folder() -> Path:
    """`mirror` in the user's cache folder. Raises RuntimeError for a user without a home."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mirror"


def kernels_folder() -> Path | None:
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
        yield cache_folder() / "kernels"
    if scratch := os.environ.get("SPARK_LOCAL_DIRS"):
        yield Path(scratch.partition(",")[0]) / "mirror-kernels"


# --- The Java that Spark and the embedded brokers run on --------------------------------------------------------------

OLDEST: Final = 17
_HINT: Final = (
    "install it (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; Fedora: dnf install java-17-openjdk-headless;"
    " macOS: brew install openjdk@17) or set JAVA_HOME"
)


def find() -> str:
    """The path of a Java that is new enough, for a user that Java knows. Raises ConfigError that says what to do."""
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:  # Spark's Hadoop library asks the system for the user's name, and takes no other
        raise ConfigError(
            f"the user with id {os.geteuid()} has no name on this machine, without which Spark does not start: run as a"
            f" user that has one, or add it to /etc/passwd (mirror:x:{os.geteuid()}:{os.getegid()}::/tmp:/bin/false)"
        ) from None
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin") if home else None)
    if java is None:
        where = f"in JAVA_HOME {home}" if home else "on the PATH"
        raise ConfigError(f"Java {OLDEST} or newer is needed, and there is none {where}: {_HINT}")
    version = _major(Path(java).resolve())
    if version is None or version < OLDEST:
        raise ConfigError(f"Java {OLDEST} or newer is needed, and {java} is {version or 'of unknown version'}: {_HINT}")
    return java


@cache
def _major(java: Path) -> int | None:
    """17 for Java 17, 8 for 1.8; None where neither the file beside it nor Java itself says."""
    release = java.parent.parent / "release"
    text = (
        release.read_text(encoding="utf-8")  # a start of Java takes a thousand times longer
        if release.is_file()
        else subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    )
    found = re.search(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)', text)
    return int(found[1]) if found else None


# --- How glibc's heap treats what a task frees ------------------------------------------------------------------------

#: Parameters of `mallopt`, from glibc's malloc.h.
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3

#: Most bytes that lie free on top of the heap: several of the largest answers.
KEPT: Final = 64 * 1024 * 1024
#: Smaller pieces come from the heap: the most that glibc takes.
FROM_HEAP: Final = 32 * 1024 * 1024


def keep_what_is_freed() -> bool:
    """Set that for this process and those forked from it; false where the C library is not glibc, and nothing is
    done.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_MMAP_THRESHOLD, FROM_HEAP) and mallopt(_TRIM_THRESHOLD, KEPT))
