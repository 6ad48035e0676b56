"""The Java that Spark and the embedded brokers run on: that of JAVA_HOME, else the first on the PATH, as Spark chooses.

Both need the same one, so it is looked for and checked in one place, before anything is started or created.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

from mirror.errors import ConfigError

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
    """17 for Java 17, 8 for 1.8; None where neither the file beside it nor Java itself tells."""
    release = java.parent.parent / "release"
    text = (
        release.read_text(encoding="utf-8")  # a start of Java takes a thousand times longer
        if release.is_file()
        else subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    )
    found = re.search(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)', text)
    return int(found[1]) if found else None
