"""What the security settings of a cluster must have, each with the others: keys that are missing, void or unsafe.

Each value by itself is pydantic's to check. The rules look at the plain data, so that all problems are told at once.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from itertools import permutations
from pathlib import Path
from typing import Any, Final

from mirror.config.clusters import ClusterSettings
from mirror.config.secrets import carelessness

#: Values that name files, relative to the configuration's own folder.
FILES: Final = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location")

_MECHANISM: Final = ("sasl.mechanism", "sasl.mechanisms")
_USER: Final = ("sasl.username", "sasl.password")
_OIDC: Final = ("method", "client.id", "client.secret", "token.endpoint.url")
#: Mechanism -> the keys that it must have.
_NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
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
        yield "sasl.mechanism", f"required with {protocol}: {', '.join(_NEEDED)}"
        return
    mechanism = section[named]
    if mechanism not in _NEEDED:
        return
    for key in _NEEDED[mechanism]:
        if not section.get(key):
            yield key, f"required with {mechanism}"
    allowed = {*_MECHANISM, *_NEEDED[mechanism], *_OPTIONAL.get(mechanism, ())}
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
