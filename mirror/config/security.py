"""Security settings and secrets: which belong together, which are secret, and how well their files are kept.

A secret never stands in the configuration itself, which may therefore be readable by everybody; it is referred to. A
file that a secret is read from, and that of a private key, must be this user's, or root's, and nobody else may read or
change it. One of root's may be readable by its group, which is how a secret reaches a service that does not run as root
(PostgreSQL asks the same of a server's private key).

Each value by itself is pydantic's to check. The rules look at the plain data, so that all problems are listed at once.
"""

from __future__ import annotations

import importlib.util
import os
import re
import stat
import typing
from collections.abc import Iterator, Mapping
from itertools import permutations
from pathlib import Path
from typing import Any, Final

from pydantic import SecretStr

from mirror.config.models import ClusterSettings
from mirror.config.yaml_tree import Keys

# --- Which settings are secrets, and whether the files that hold them are well kept -----------------------------------

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


# --- What the security settings of a cluster must have, each with the others ------------------------------------------

#: Values that name files, relative to the configuration's own folder.
FILES: Final = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location")

_MECHANISM: Final = ("sasl.mechanism", "sasl.mechanisms")
_USER: Final = ("sasl.username", "sasl.password")
_OIDC: Final = ("method", "client.id", "client.secret", "token.endpoint.url")
#: Mechanism -> the keys that it must have.
NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    "PLAIN": _USER,
    "SCRAM-SHA-256": _USER,
    "SCRAM-SHA-512": _USER,
    "OAUTHBEARER": tuple(f"sasl.oauthbearer.{name}" for name in _OIDC),
    "GSSAPI": (),
}
#: Mechanism -> the keys that it may have besides.
_OPTIONAL: Final[Mapping[str, tuple[str, ...]]] = {
    "OAUTHBEARER": ("sasl.oauthbearer.scope",),
    "GSSAPI": ("sasl.kerberos.service.name",),
}
#: Mechanisms that hand over what proves who we are: whoever reads it can be us.
_BARE: Final = frozenset({"PLAIN", "OAUTHBEARER"})


def problems(section: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(key, what is wrong) for `source:` or `target:` as the file has it."""
    protocol = section.get("security.protocol", "PLAINTEXT")
    known = {key for keys in ClusterSettings.keys().values() for key in keys}
    for prefix, wanted in (("ssl.", "SSL"), ("sasl.", "SASL")):
        if wanted not in str(protocol):
            for key in known & set(section):
                if key.startswith(prefix):
                    yield key, f"has no effect with security.protocol {protocol}; remove it"
    if "SSL" in str(protocol):
        yield from _tls_problems(section)
    if "SASL" in str(protocol):
        yield from _sasl_problems(section, str(protocol), known)


def insecure(settings: ClusterSettings) -> Iterator[str]:
    """What was asked for and lowers the guard: for a warning at each start."""
    if settings.uses_tls and settings.ssl_endpoint_identification_algorithm == "none":
        yield "ssl.endpoint.identification.algorithm: none: any certificate of the CA is taken for any broker"
    if settings.security_protocol == "SASL_PLAINTEXT":
        yield "security.protocol: SASL_PLAINTEXT: records travel in clear, and who listens may try passwords"


def _tls_problems(section: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, other in permutations(FILES[1:]):
        if section.get(key) and not section.get(other):
            yield other, f"required with {key}"
    if section.get("ssl.key.password") and not section.get("ssl.key.location"):
        yield "ssl.key.location", "required with ssl.key.password"
    for key in FILES:
        if section.get(key) == "":
            yield key, "must name a file"
        elif isinstance(section.get(key), str) and (reason := _unreadable(Path(section[key]))):
            yield key, f"{section[key]} cannot be read: {reason}"
    private = section.get("ssl.key.location")
    if isinstance(private, str) and (reason := carelessness(Path(private))):
        yield "ssl.key.location", reason


def _unreadable(path: Path) -> str:
    try:
        if not path.is_dir():
            path.open("rb").close()
    except OSError as problem:
        return problem.strerror or str(problem)
    return ""


def _sasl_problems(section: Mapping[str, Any], protocol: str, known: set[str]) -> Iterator[tuple[str, str]]:
    named = next((key for key in _MECHANISM if key in section), None)
    if named is None:
        yield "sasl.mechanism", f"required with {protocol}: {', '.join(NEEDED)}"
        return
    mechanism = section[named]
    if not isinstance(mechanism, str) or mechanism not in NEEDED:
        return
    for key in NEEDED[mechanism]:
        if not section.get(key):
            yield key, f"required with {mechanism}"
    allowed = {*_MECHANISM, *NEEDED[mechanism], *_OPTIONAL.get(mechanism, ())}
    for key in known & set(section) - allowed:
        if key.startswith("sasl."):
            yield key, f"has no effect with {mechanism}; remove it"
    if mechanism in _BARE and protocol == "SASL_PLAINTEXT":
        yield "security.protocol", f"{mechanism} sends what proves who you are in clear: use SASL_SSL"
    if mechanism == "GSSAPI" and importlib.util.find_spec("gssapi") is None:
        yield (
            named,
            "GSSAPI needs the Python package gssapi, which is not installed: install it, or use another mechanism",
        )
