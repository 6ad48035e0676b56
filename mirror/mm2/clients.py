"""Client settings of MirrorMaker 2 under librdkafka's names: `source:`, `target:`, and JAAS lines.

org.apache.kafka.common.security.plain.PlainLoginModule required username="me" password="secret";

Java keeps keys and certificates in stores (JKS, PKCS12) that OpenSSL does not read. Those are named with the command
that turns them into PEM files; stores that are PEM files already are taken as they are.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from mirror.config.security import NEEDED
from mirror.mm2.properties import Draft, Property, Side, variable_name

# --- A line of `sasl.jaas.config` -------------------------------------------------------------------------------------

_FLAGS: Final = frozenset({"required", "requisite", "sufficient", "optional"})


@dataclass(frozen=True, slots=True)
class Login:
    """The first entry of a line. The options hold secrets, so no representation shows them."""

    #: The class without its package.
    module: str
    #: Values by name.
    options: Mapping[str, str] = field(repr=False)


def login(text: str) -> Login:
    """Read the first entry of a line. Raises ValueError where it is none; its message shows nothing of the text."""
    words = shlex.shlex(text, posix=True, punctuation_chars="=;")
    words.whitespace_split, words.commenters, words.escapedquotes = True, "", "\"'"
    module, flag = next(words, ""), next(words, "")
    if flag.lower() not in _FLAGS:
        raise ValueError("not a login module with a control flag (required) and options")
    options: dict[str, str] = {}
    for name in iter(words.get_token, ";"):
        if name is None:
            break
        sign, value = words.get_token(), words.get_token()
        if sign != "=" or value is None:
            raise ValueError("options must be written as name=value")
        options[name] = value
    return Login(module.rpartition(".")[2], options)


# --- The sections `source` and `target` -------------------------------------------------------------------------------


class _Setting(NamedTuple):
    """A setting of Kafka's clients that has the same name here."""

    #: The name.
    key: str
    #: What the security protocol must name for it to count.
    protocol: str = ""
    #: Turns its value, without blanks around it, into ours.
    convert: Callable[[str], str] = str
    #: One value may stand for all clusters.
    is_common: bool = True


_SETTINGS: Final = (
    _Setting("bootstrap.servers", convert=lambda text: ",".join(filter(None, map(str.strip, text.split(","))))),
    _Setting("security.protocol", convert=str.upper),
    _Setting("sasl.mechanism", "SASL", str.upper),
    _Setting("sasl.oauthbearer.token.endpoint.url", "SASL"),
    _Setting("sasl.kerberos.service.name", "SASL"),
    _Setting("ssl.endpoint.identification.algorithm", "SSL", lambda text: text.lower() or "none"),
    _Setting("client.id", is_common=False),
)
#: Option of a login module -> our key, and whether it is a secret.
_OPTIONS: Final[dict[str, tuple[str, bool]]] = {
    "username": ("sasl.username", False),
    "password": ("sasl.password", True),
    "clientId": ("sasl.oauthbearer.client.id", False),
    "clientSecret": ("sasl.oauthbearer.client.secret", True),
    "scope": ("sasl.oauthbearer.scope", False),
}
_P12_KEY: Final = (
    "openssl pkcs12 -in {p12} -nokeys -out {pem}; (umask 077; openssl pkcs12 -in {p12} -nocerts -out {key})"
)
#: Store and kind -> the command that makes PEM files of it.
_CONVERT: Final = {
    ("truststore", "JKS"): "keytool -exportcert -rfc -alias ALIAS -keystore {store} > {pem}",
    ("truststore", "PKCS12"): "openssl pkcs12 -in {store} -nokeys -out {pem}",
    ("keystore", "JKS"): (
        "keytool -importkeystore -srckeystore {store} -destkeystore {p12} -deststoretype PKCS12; " + _P12_KEY
    ),
    ("keystore", "PKCS12"): _P12_KEY,
}
#: Store -> our keys for what it holds.
_PEM: Final = {"truststore": ("ssl.ca.location",), "keystore": ("ssl.certificate.location", "ssl.key.location")}


def add_cluster(draft: Draft, side: Side, alias: str) -> None:
    """Set all that is known of one cluster."""
    scope = draft.scope
    draft.put((side, "alias"), alias)
    given = scope.client(side, "security.protocol")
    protocol = given.value.strip().upper() if given else ""
    for setting in _SETTINGS:
        if setting.protocol in protocol and (found := scope.client(side, setting.key, common=setting.is_common)):
            _put(draft, side, setting.key, setting.convert(found.value.strip()), found)
    if "SASL" in protocol:
        _login(draft, side)
    if "SSL" in protocol:
        _store(draft, side, "truststore")
        _store(draft, side, "keystore")


def _put(
    draft: Draft, side: Side, key: str, value: str, origin: Property, *, is_secret: bool = False, part: str = ""
) -> None:
    """Set a value with its references translated; in place of a secret, a reference to it."""
    translate = draft.translator.secret if is_secret else draft.translator.text
    wanted = variable_name(draft.scope.names[side], key)
    draft.put((side, key), translate(value, wanted, part + origin.key), origin)


def _login(draft: Draft, side: Side) -> None:
    """Set how the mirror is known there: Java gives users and passwords in the line of a login module. What its
    mechanism needs, and cannot be read there, is to be in variables.
    """
    mechanism = draft.values.get((side, "sasl.mechanism")) or "GSSAPI"  # Java's default
    draft.put((side, "sasl.mechanism"), mechanism)
    if mechanism == "OAUTHBEARER":
        draft.put((side, "sasl.oauthbearer.method"), "oidc")
    if found := draft.scope.client(side, "sasl.jaas.config"):
        _options(draft, side, found)
    alias = draft.scope.names[side]
    for key in NEEDED.get(mechanism, ()):
        if (side, key) not in draft.values:
            draft.put((side, key), draft.translator.secret("", variable_name(alias, key), f"{alias}'s {key}"))


def _options(draft: Draft, side: Side, found: Property) -> None:
    """Set what a login line says, or explain what it says in vain."""
    try:
        entry = login(found.value)
    except ValueError as problem:
        draft.scope.explain(found, f"cannot be read: {problem}")
        return
    for option, (key, is_secret) in _OPTIONS.items():
        if option in entry.options:
            _put(draft, side, key, entry.options[option], found, is_secret=is_secret, part=f"{option} in ")
    if left := [option for option in entry.options if option not in _OPTIONS]:
        draft.scope.explain(found, f"options of {entry.module} without an equivalent: {', '.join(left)}")


def _store(draft: Draft, side: Side, which: str) -> None:
    """Set who is trusted, or who the mirror is; or say how to convert the store."""
    scope = draft.scope
    found, given = scope.client(side, f"ssl.{which}.location"), scope.client(side, f"ssl.{which}.type")
    if found is None:
        return
    path = found.value.strip()
    store = PurePosixPath(path)
    if not store.name:
        scope.explain(found, "names no file")
        return
    kind = given.value.strip().upper() if given else ""
    kind = kind or {".p12": "PKCS12", ".pfx": "PKCS12", ".pem": "PEM"}.get(store.suffix.lower(), "JKS")
    password = scope.client(side, "ssl.key.password") if which == "keystore" else None
    if kind == "PEM":
        for key in _PEM[which]:
            _put(draft, side, key, path, found)
        if password is not None:
            _put(draft, side, "ssl.key.password", password.value, password, is_secret=True)
        return
    if password is not None:
        scope.explain(password, "openssl asks for the new file's: give that as ssl.key.password")
    files = {suffix: shlex.quote(str(store.with_suffix(f".{suffix}"))) for suffix in ("pem", "key", "p12")}
    files["store"] = shlex.quote(path)
    if kind == "PKCS12":
        files["p12"] = files["store"]
    command = _CONVERT.get((which, kind)) or _CONVERT[which, "JKS"]
    then = ", ".join(f"{key}: {files[suffix]}" for key, suffix in zip(_PEM[which], ("pem", "key"), strict=False))
    scope.explain(found, f"OpenSSL reads no {kind} store. Run: {command.format(**files)}; then set {then}")
