"""What a comparison ran on: the machine, and the versions of what was compared."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Final

import psutil

from mirror import __version__
from mirror.bench.result import Environment
from mirror.embedded.jars import KAFKA_VERSION, java

_LIBRARIES: Final = ("pyspark", "confluent-kafka", "kio", "crc32c", "numba", "numpy", "pyarrow")


def environment() -> Environment:
    """Now. Raises ConfigError where there is no Java."""
    said = subprocess.run([java(), "-version"], capture_output=True, text=True, check=False).stderr.splitlines()
    return Environment(
        cpu=_cpu(),
        cores=psutil.cpu_count() or 1,
        memory_bytes=psutil.virtual_memory().total,
        kernel=platform.release(),
        system=_system(),
        python=platform.python_version(),
        java=said[0] if said else "unknown",
        load=round(os.getloadavg()[0], 2),
    )


def versions() -> dict[str, str]:
    """Name to version; the brokers and MirrorMaker 2 are of one release."""
    found = {"mirror": __version__, "kafka": KAFKA_VERSION}
    return found | {name: importlib.metadata.version(name) for name in _LIBRARIES}


def _cpu() -> str:
    try:
        told = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        told = None
    return told[1] if told else platform.processor() or platform.machine()


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.platform(terse=True)
