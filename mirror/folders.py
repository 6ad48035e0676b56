"""Where this machine keeps what is made or fetched once: brokers' jars, compiled kernels."""

from __future__ import annotations

import os
from pathlib import Path


def cache() -> Path:
    """`mirror` in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mirror"
