"""Which settings are secrets, and whether the files that hold them are well kept.

A secret never stands in the configuration itself, which may therefore be readable by everybody; it is referred to. A
file that a secret is read from, and that of a private key, must be this user's, or root's, and nobody else may read or
change it. One of root's may be readable by its group, which is how a secret reaches a service that does not run as root
(PostgreSQL asks the same of a server's private key).
"""

from __future__ import annotations

import os
import re
import stat
import typing
from pathlib import Path
from typing import Final

from pydantic import SecretStr

from mirror.config.clusters import ClusterSettings
from mirror.yamltree import Keys

#: What Spark itself leaves out where it shows its settings (`spark.redaction.regex`).
_SPARK: Final = re.compile(r"(?i)secret|password|token|access[.]?key")
#: A secret inside a value: `-Djavax.net.ssl.keyStorePassword=...`.
_ASSIGNED: Final = re.compile(r"(?i)(?:secret|password|token|access[.]?key)[\w.-]*\s*=\s*[^\s=]")
_OTHERS: Final = 0o077
_OTHERS_BUT_GROUP_READS: Final = 0o037


_CLUSTER: Final = frozenset(
    key
    for name, field in ClusterSettings.model_fields.items()
    if SecretStr in (field.annotation, *typing.get_args(field.annotation))
    for key in ClusterSettings.keys()[name]
)


def is_secret(where: Keys) -> bool:
    """Whether the value at this place of the file may be given by reference only, and is never shown."""
    match where:
        case ("source" | "target", str(key)):
            return key in _CLUSTER
        case ("spark", "conf", str(key)):
            return _SPARK.search(key) is not None
        case _:
            return False


def exposes_secret(where: Keys, raw: str) -> bool:
    """Whether a setting of Spark holds a secret among other words, as options of Java do. Those end in a command line,
    which every user of the machine can read, however the secret was referred to.
    """
    return where[:2] == ("spark", "conf") and _ASSIGNED.search(raw) is not None


def carelessness(file: Path) -> str:
    """What is wrong with how a file with a secret is kept, and how to mend it; the empty string where nothing is, or
    where there is no such file (who reads it says that).
    """
    try:
        found = file.stat()
    except OSError:
        return ""
    me = os.geteuid()
    if found.st_uid not in (me, 0):
        return (
            f"file {file} with a secret belongs to another user, who could change it; chown it to the one who runs this"
        )
    open_to = found.st_mode & (_OTHERS if found.st_uid == me else _OTHERS_BUT_GROUP_READS)
    if not open_to:
        return ""
    mode = stat.S_IMODE(found.st_mode)
    return f"file {file} with a secret is open to other users (mode {mode:04o}): chmod 600 {file}"
