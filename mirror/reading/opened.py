"""Files opened as they should be where somebody else may have laid them: at once, and only if they hold bytes."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A regular file, open for reading. Raises OSError where it cannot be read or is something else: a pipe, which
    would wait for a writer, or a device, which may have no end.
    """
    with open(path, "rb", opener=_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("it is no regular file; save a stream to one first")
        yield file


def _at_once(path: str, flags: int) -> int:
    """A named pipe would wait for somebody to write to it."""
    return os.open(path, flags | os.O_NONBLOCK)
