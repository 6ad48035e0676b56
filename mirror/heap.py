"""How glibc's heap treats what a lane frees: it is kept for the next answer.

A lane allocates and frees megabytes for each answer that it fetches. Left to itself, glibc gives them back to the
kernel or keeps them, by what happens to lie on top of its heap; given back, each byte mirrored costs page faults
again, up to a fifth of a lane's CPU with large batches (`python -m tests.bench.against`).
"""

from __future__ import annotations

import ctypes
from typing import Final

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
