"""Client settings of MirrorMaker 2 under librdkafka's names: `source:`, `target:`, and JAAS lines.

org.apache.kafka.common.security.plain.PlainLoginModule required username="me" password="secret";

Java keeps keys and certificates in stores (JKS, PKCS12) that OpenSSL does not read. Those are named with the command
that turns them into PEM files; stores that are PEM files already are taken as they are.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from mirror.mm2.properties import Draft, Property, Side, variable_name

# --- A line of `sasl.jaas.config` -------------------------------------------------------------------------------------

_TOKEN: Final = re.compile(r'\s*(?:"((?:\\.|[^"\\])*)"|\'((?:\\.|[^\'\\])*)\'|([=;])|([^\s"\'=;]+))', re.DOTALL)
_FLAGS: Final = ("required", "requisite", "sufficient", "optional")


@dataclass(frozen=True, slots=True)
class Login:
    """`module` is the class without its package; the options hold secrets, so no representation shows them."""

    module: str
    options: Mapping[str, str] = field(repr=False)


def login(text: str) -> Login:
    """The first entry of a line. Raises ValueError where it is none; its message shows nothing of the text."""
    tokens = _tokens(text)
    if len(tokens) < 2 or tokens[1].text.lower() not in _FLAGS:
        raise ValueError("not a login module with a control flag (required) and options")
    options: dict[str, str] = {}
    rest = tokens[2:]
    while rest and rest[0] != _END:
        if len(rest) < 3 or [one.is_mark for one in rest[:3]] != [False, True, False] or rest[1] == _END:
            raise ValueError("options must be written as name=value")
        options[rest[0].text] = rest[2].text
        rest = rest[3:]
    return Login(tokens[0].text.rpartition(".")[2], options)


class _Token(NamedTuple):
    """A word, in quotes or not, or one of the marks `=` and `;`."""

    text: str
    is_mark: bool


_END: Final = _Token(";", is_mark=True)


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    at = 0
    text = text.rstrip()
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise ValueError("a quote is not closed")
        double, single, mark, word = token.groups()
        quoted = double if double is not None else single
        plain = re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL) if quoted is not None else mark or word
        found.append(_Token(plain, is_mark=mark is not None))
        at = token.end()
    return found


# --- The sections `source` and `target` -------------------------------------------------------------------------------

#: Option of a login module -> our key, and whether it is a secret.
_OPTIONS: Final[dict[str, tuple[str, bool]]] = {
    "username": ("sasl.username", False),
    "password": ("sasl.password", True),
    "clientId": ("sasl.oauthbearer.client.id", False),
    "clientSecret": ("sasl.oauthbearer.client.secret", True),
    "scope": ("sasl.oauthbearer.scope", False),
}
#: Keys that are called the same, but for a role's default (Kafka `SaslConfigs`).
_SAME: Final = (
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.kerberos.service.name",
    "client.id",
)
_JKS_TRUST: Final = "keytool -exportcert -rfc -alias ALIAS -keystore {store} > {pem}"
_P12_TRUST: Final = "openssl pkcs12 -in {store} -nokeys -out {pem}"
_JKS_KEY: Final = "keytool -importkeystore -srckeystore {store} -destkeystore {p12} -deststoretype PKCS12"
_P12_KEY: Final = (
    "openssl pkcs12 -in {p12} -nokeys -out {pem}; (umask 077; openssl pkcs12 -in {p12} -nocerts -out {key})"
)


def add_cluster(draft: Draft, side: Side, alias: str) -> None:
    """Set all that is known of one cluster."""
    client = _Client(draft, side)
    draft.put((side, "alias"), alias)
    client.plain("bootstrap.servers", lambda text: ",".join(part.strip() for part in text.split(",") if part.strip()))
    protocol = client.plain("security.protocol", str.upper)
    client.sasl() if "SASL" in protocol else client.void("sasl.", protocol)
    client.tls() if "SSL" in protocol else client.void("ssl.", protocol)
    for key in _SAME:
        if key == "client.id" or "SASL" in protocol:
            client.plain(key, common=key != "client.id")


class _Client:
    """One side of a draft."""

    def __init__(self, draft: Draft, side: Side) -> None:
        self._draft, self._side = draft, side
        self._alias = draft.scope.source if side == "source" else draft.scope.target

    def plain(self, key: str, form: object = None, *, common: bool = True) -> str:
        """Set a value that is no secret, if the properties do; returns it."""
        found = self._draft.scope.client(self._side, key, common=common)
        if found is None:
            return ""
        value = form(found.value.strip()) if callable(form) else found.value.strip()
        self._put(key, value, found)
        return str(value)

    def void(self, prefix: str, protocol: str) -> None:
        """Explain settings that the protocol does not look at."""
        for key in self._draft.scope.client_keys(self._side):
            found = self._draft.scope.client(self._side, key, common=False) if key.startswith(prefix) else None
            if found is not None:
                self._draft.scope.explain(found, f"has no effect with security.protocol {protocol or 'PLAINTEXT'}")

    def sasl(self) -> None:
        """How to be known there: Java gives users and passwords in the line of a login module."""
        mechanism = self.plain("sasl.mechanism", str.upper)
        found = self._draft.scope.client(self._side, "sasl.jaas.config")
        if not mechanism:
            self._draft.put((self._side, "sasl.mechanism"), "GSSAPI")  # Java's default
        if found is None:
            return
        try:
            entry = login(found.value)
        except ValueError as problem:
            self._draft.scope.explain(found, f"cannot be read: {problem}")
            return
        self._login(entry, found)

    def _login(self, entry: Login, found: Property) -> None:
        left = []
        for option, value in entry.options.items():
            if option in _OPTIONS:
                key, is_secret = _OPTIONS[option]
                self._put(key, value, found, is_secret=is_secret, part=f"{option} in ")
            else:
                left.append(option)
        if entry.module == "OAuthBearerLoginModule":
            self._draft.put((self._side, "sasl.oauthbearer.method"), "oidc")
        if left:
            options = ", ".join(left)
            self._draft.scope.explain(found, f"options of {entry.module} without an equivalent: {options}")

    def tls(self) -> None:
        """Who is trusted, and who we are."""
        self._trust()
        self._key()
        found = self._draft.scope.client(self._side, "ssl.endpoint.identification.algorithm")
        if found is not None:
            self._put("ssl.endpoint.identification.algorithm", found.value.strip().lower() or "none", found)

    def _trust(self) -> None:
        inline = self._draft.scope.client(self._side, "ssl.truststore.certificates")
        if inline is not None:
            self._draft.scope.explain(inline, "write the certificates into a file, and its name into ssl.ca.location")
        found, kind = self._store("truststore")
        self._password("truststore")
        if found is None:
            return
        store = found.value.strip()
        if kind == "PEM":
            self._put("ssl.ca.location", store, found)
            return
        convert = (_P12_TRUST if kind == "PKCS12" else _JKS_TRUST).format(
            store=shlex.quote(store), pem=_beside(store, ".pem")
        )
        self._convert(found, kind, convert, f"ssl.ca.location: {_beside(store, '.pem')}")

    def _key(self) -> None:
        for name in ("ssl.keystore.key", "ssl.keystore.certificate.chain"):
            inline = self._draft.scope.client(self._side, name)
            if inline is not None:
                ours = "ssl.key.location" if name.endswith("key") else "ssl.certificate.location"
                self._draft.scope.explain(inline, f"write it into a file (chmod 600), and its name into {ours}")
        found, kind = self._store("keystore")
        self._password("keystore")
        if found is None:
            return
        store = found.value.strip()
        password = self._draft.scope.client(self._side, "ssl.key.password")
        if kind == "PEM":
            self._put("ssl.certificate.location", store, found)
            self._put("ssl.key.location", store, found)
            if password is not None:
                self._put("ssl.key.password", password.value, password, is_secret=True)
            return
        if password is not None:
            self._draft.scope.explain(password, "openssl asks for the new file's: give that as ssl.key.password")
        p12 = shlex.quote(store) if kind == "PKCS12" else _beside(store, ".p12")
        convert = _P12_KEY.format(p12=p12, pem=_beside(store, ".pem"), key=_beside(store, ".key"))
        if kind != "PKCS12":
            convert = f"{_JKS_KEY.format(store=shlex.quote(store), p12=p12)}; {convert}"
        named = f"ssl.certificate.location: {_beside(store, '.pem')}, ssl.key.location: {_beside(store, '.key')}"
        self._convert(found, kind, convert, named)

    def _store(self, which: str) -> tuple[Property | None, str]:
        """Where a store is, and of what kind it is."""
        found = self._draft.scope.client(self._side, f"ssl.{which}.location")
        store_type = self._draft.scope.client(self._side, f"ssl.{which}.type")
        if store_type is not None and store_type.value.strip():
            return found, store_type.value.strip().upper()
        suffix = PurePosixPath(found.value.strip()).suffix.lower() if found else ""
        return found, {".p12": "PKCS12", ".pfx": "PKCS12", ".pem": "PEM"}.get(suffix, "JKS")

    def _password(self, which: str) -> None:
        found = self._draft.scope.client(self._side, f"ssl.{which}.password")
        if found is not None:
            self._draft.scope.explain(found, "a PEM file has no store password")

    def _convert(self, found: Property, kind: str, command: str, then: str) -> None:
        self._draft.scope.explain(found, f"OpenSSL reads no {kind} store. Run: {command}; then set {then}")

    def _put(self, key: str, value: str, origin: Property, *, is_secret: bool = False, part: str = "") -> None:
        wanted = variable_name(self._alias, key)
        translate = self._draft.translator.secret if is_secret else self._draft.translator.text
        self._draft.put((self._side, key), translate(value, wanted, part + origin.key), origin)


def _beside(store: str, suffix: str) -> str:
    return shlex.quote(str(PurePosixPath(store).with_suffix(suffix)))
