"""Java property files as MirrorMaker 2 reads them, which hold for a flow, references to secrets, and the draft.

- Bytes are ISO-8859-1; other characters are written `\\u20ac`.
- A line that ends with an odd number of backslashes goes on in the next one, whose leading blanks do not count.
- A line whose first character is `#` or `!` is a comment; one never goes on in the next line.
- A key ends at the first blank, `=` or `:` that has no backslash before it. One `=` or `:` and blanks around it are
  skipped; the rest, blanks at its end included, is the value. Backslashes with nothing behind them are no property.
- `\\t`, `\\n`, `\\r` and `\\f` are what they are in C; a backslash before anything else is left out.
- Of a key that is given twice the last value holds.

Kafka's configuration providers are named by whoever writes the file, so what `${name:...}` means follows from the class
(`config.providers.<name>.class`); an undeclared name is taken for what it is usually given to.

    ${env:NAME}                 EnvVarConfigProvider     ${env:NAME}
    ${directory:/FOLDER:FILE}   DirectoryConfigProvider  ${file:/FOLDER/FILE}
    ${file:/PATH:KEY}           FileConfigProvider       ${env:...}: one entry of a property file cannot be referred to
    any other                                            ${env:...}
    a secret in clear                                    ${env:...}

MirrorMaker's names, from the most to the least specific (`MirrorMakerConfig`, `MirrorConnectorConfig`):

    A->B.topics                        of a flow
    A->B.source.consumer.KEY           of the flow's client, as A->B.consumer.KEY and A->B.source.cluster.KEY
    A.consumer.KEY                     of a cluster's client; so producer and admin
    A.KEY                              of a cluster
    topics                             of every flow, and so a client's KEY of every cluster

A mirror has one set of settings for each cluster where MirrorMaker has three clients. That of the client that moves
records holds: the source's consumer, the target's producer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, count, permutations
from pathlib import PurePosixPath
from typing import Any, Final, Literal

from mirror.config.yaml_tree import Keys

# --- Java's property files (`java.util.Properties.load`), read as MirrorMaker does ------------------------------------

_BLANKS: Final = " \t\f"
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
#: A key, up to the first blank, `=` or `:` without a backslash; what separates it; and its value.
_PAIR: Final = re.compile(r"((?:\\.|[^\\ \t\f=:])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
#: A backslash at the very end is left out.
_ESCAPE: Final = re.compile(r"\\(u[0-9A-Fa-f]{4}|.|\Z)", re.DOTALL)
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class BadProperties(ValueError):
    """Text that Java would refuse, too, or a choice that cannot be taken over; `line` counts from 1."""

    def __init__(self, line: int, what: str) -> None:
        self.line = line
        super().__init__(what)


@dataclass(frozen=True, slots=True)
class Property:
    """A key with its value and the line where it begins, counted from 1."""

    key: str
    value: str
    line: int


def parse(data: bytes) -> list[Property]:
    """All properties of a file in their order, those that a later one overrides included. Raises BadProperties."""
    found = []
    for line, text in _logical_lines(data.decode("iso-8859-1")):
        pair = _PAIR.fullmatch(text)
        assert pair is not None, "the pattern matches any text"
        found.append(Property(_unescaped(pair[1], line), _unescaped(pair[2], line), line))
    return found


class PropertyFile:
    """A file of MirrorMaker's. Raises BadProperties."""

    def __init__(self, data: bytes) -> None:
        #: Every property in its order, those that a later one overrides included.
        self.properties = parse(data)
        #: By key, the property that holds.
        self.last = {property_.key: property_ for property_ in self.properties}
        #: The names of the clusters.
        self.clusters = list(dict.fromkeys(filter(None, map(str.strip, self.value("clusters").split(",")))))
        #: The flows that are enabled; `enabled` without a flow before it holds for each that says nothing.
        self.flows = [
            (source, target)
            for source, target in permutations(self.clusters, 2)
            if self.value(f"{source}->{target}.enabled", self.value("enabled")).strip().lower() == "true"
        ]

    def value(self, key: str, default: str = "") -> str:
        """Return the value of a key as it stands."""
        return self.last[key].value if key in self.last else default


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with what continues them, without comments, empty lines and leading blanks; each with its number."""
    begun, whole = 0, ""
    for number, line in enumerate(_LINE_END.split(text), 1):
        bare = line.lstrip(_BLANKS)
        if not whole:
            if not bare or bare[0] in "#!":
                continue
            begun = number
        goes_on = (len(bare) - len(bare.rstrip("\\"))) % 2 == 1
        whole += bare[:-1] if goes_on else bare
        if whole and not goes_on:
            yield begun, whole
            whole = ""
    if whole:
        yield begun, whole


def _unescaped(text: str, line: int) -> str:
    def one(found: re.Match[str]) -> str:
        what = found[1]
        if len(what) == 5:
            return chr(int(what[1:], 16))
        if what == "u":
            raise BadProperties(line, r"malformed \uxxxx, which Java refuses")
        return _CONTROLS.get(what, what)

    return _ESCAPE.sub(one, text)


# --- Values that stand elsewhere, and secrets, which shall ------------------------------------------------------------

#: `${provider:path:key}` or `${provider:key}` (Kafka `ConfigTransformer`).
REFERENCE: Final = re.compile(r"\$\{([^}:]*):(?:([^}]*?):)?([^}]*)\}")
_BY_NAME: Final = {
    "env": "EnvVarConfigProvider",
    "strimzienv": "EnvVarConfigProvider",
    "directory": "DirectoryConfigProvider",
    "dir": "DirectoryConfigProvider",
}
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable that the new configuration reads, and what it must hold."""

    name: str
    holds: str


@dataclass(slots=True)
class Translator:
    """Turns values with references into ours; `variables` are those that have to be set, by their names."""

    properties: Mapping[str, str]
    variables: dict[str, Variable] = field(default_factory=dict)

    def text(self, value: str, wanted: str, key: str) -> str:
        """A value that is no secret, its references translated; `wanted` names a variable that is needed for one, and
        `key` says whose value it holds.
        """
        names = chain([wanted], (f"{wanted}_{number}" for number in count(2)))
        return REFERENCE.sub(lambda found: self._reference(found, next(names), key), value)

    def secret(self, value: str, wanted: str, key: str) -> str:
        """A secret: the reference it was given by, or one to a variable that is to hold it."""
        found = REFERENCE.fullmatch(value)
        return self._reference(found, wanted, key) if found else self._variable(wanted, f"the value of {key}")

    def _reference(self, found: re.Match[str], wanted: str, key: str) -> str:
        provider, folder, name = found.groups()
        declared = self.properties.get(f"config.providers.{provider}.class", "").strip()
        match declared.rpartition(".")[2].rpartition("$")[2] or _BY_NAME.get(provider.lower(), ""):
            case "EnvVarConfigProvider" if _VARIABLE.fullmatch(name):
                return self._variable(name, f"what it held for MirrorMaker, for {key}")
            case "DirectoryConfigProvider" if folder and name and not {"/", "\n"} & set(name):
                return f"${{file:{PurePosixPath(folder) / name}}}"
            case _:
                return self._variable(wanted, f"the value of {key}, which provider {provider} looked up")

    def _variable(self, name: str, holds: str) -> str:
        self.variables.setdefault(name, Variable(name, holds))
        return f"${{env:{name}}}"


def variable_name(*parts: str) -> str:
    """A name for an environment variable, made of anything."""
    joined = "_".join(re.sub(r"[^A-Za-z0-9]+", "_", part).strip("_") for part in parts).upper()
    return joined if _VARIABLE.fullmatch(joined) else f"_{joined}"


# --- Which properties of a file hold for one flow, and which of them were used ----------------------------------------

Side = Literal["source", "target"]

#: The client that moves records, on each side.
_MAIN: Final[dict[Side, str]] = {"source": "consumer", "target": "producer"}
#: What says of which client a setting is.
_CLIENT: Final = re.compile(
    r"((source|target)\.cluster\.)?(((source|target)\.)?(consumer|producer\.override|producer|admin)\.(?=.))?"
)


@dataclass(frozen=True, slots=True)
class Note:
    """A key that was not translated as it stands, and why. Never its value. Line 0 is Kafka's default, nowhere set."""

    key: str
    line: int
    why: str

    def __str__(self) -> str:
        return f"{f'line {self.line}' if self.line else 'by default'}: {self.key}: {self.why}"


class Scope:
    """The properties of a flow from `source` to `target`; each is used, or explained in the end."""

    def __init__(self, file: PropertyFile, source: str, target: str) -> None:
        #: What MirrorMaker calls the clusters.
        self.names: dict[Side, str] = {"source": source, "target": target}
        self._flow = f"{source}->{target}."
        self.notes: list[Note] = []
        self.clusters, self._last = file.clusters, file.last
        self._used: set[str] = set()

    def find(self, *names: str) -> Property | None:
        """The flow's property of the first of these names that is set, for the flow or for all; empty values count."""
        found = None
        for name in names:
            for key in (f"{self._flow}{name}", name):
                one = self._last.get(key)
                if one is None:
                    continue
                if found is not None and key not in self._used:
                    self.explain(one, f"{found.key} is set, too, and holds")
                self._used.add(key)
                found = found or one
        return found

    def value(self, *names: str, default: str) -> str:
        """The same as text without blanks around it."""
        found = self.find(*names)
        return found.value.strip() if found else default

    def alias(self, side: Side) -> str:
        """Return what MirrorMaker calls a cluster in names of topics: its alias, unless a key gives another or none."""
        alias = self.names[side]
        given = self._given(f"{self._flow}{side}.cluster.alias", f"{alias}.alias", f"{side}.cluster.alias")
        self._used |= {property_.key for property_ in given}
        return given[0].value.strip() if given else alias

    def client(self, side: Side, key: str, *, common: bool = True) -> Property | None:
        """What holds for one of a cluster's clients; `common` where one setting may stand for all clusters."""
        alias, flow, main = self.names[side], self._flow, _MAIN[side]
        override = (f"{flow}producer.override.{key}",) if side == "target" else ()
        of_flow = f"{flow}{side}.{main}.{key}", *override, f"{flow}{main}.{key}", f"{flow}{side}.cluster.{key}"
        found = self._given(*of_flow, f"{alias}.{main}.{key}", f"{alias}.{key}", *([key] if common else []))
        self._used |= {property_.key for property_ in found}
        for one in self._given(f"{flow}{side}.admin.{key}", f"{flow}admin.{key}", f"{alias}.admin.{key}"):
            if found and one.value.strip() == found[0].value.strip():
                self._used.add(one.key)
            elif one.key not in self._used:
                self.explain(one, "a cluster has one set of settings here: that of the client that moves records")
        return found[0] if found else None

    def _given(self, *keys: str) -> list[Property]:
        return [self._last[key] for key in keys if key in self._last]

    def explain(self, property_: Property, why: str) -> None:
        """Note a property, used or not."""
        self._used.add(property_.key)
        self.notes.append(Note(property_.key, property_.line, why))

    def rest(self) -> Iterator[tuple[Property, str]]:
        """The properties that hold for this flow and were not used, each with its name alone; those that hold for
        other flows or clusters only are no part of it.
        """
        for key, property_ in self._last.items():
            name = self._own_name(key)
            if name is not None and key not in self._used:
                yield property_, name

    def _own_name(self, key: str) -> str | None:
        if key.startswith(self._flow):
            return base_name(key.removeprefix(self._flow))
        if "->" in key:
            return None
        for alias in sorted(self.clusters, key=len, reverse=True):
            if key.startswith(f"{alias}."):
                return base_name(key.removeprefix(f"{alias}.")) if alias in self.names.values() else None
        return base_name(key)


def base_name(name: str) -> str:
    """`source.consumer.fetch.min.bytes`, `consumer.fetch.min.bytes`: all the same setting of a client."""
    return _CLIENT.sub("", name, count=1)


# --- A configuration under way ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Draft:
    """One flow's file."""

    #: The properties that hold for it.
    scope: Scope
    #: What translates its references.
    translator: Translator
    #: By place, in their order.
    values: dict[Keys, Any] = field(default_factory=dict)
    #: The properties that values came from.
    origins: dict[Keys, Property] = field(default_factory=dict)
    #: A comment above the value at its place.
    remarks: dict[Keys, str] = field(default_factory=dict)

    def put(self, where: Keys, value: Any, origin: Property | None = None, remark: str = "") -> None:
        """Set a value, and say something about it."""
        self.values[where] = value
        if origin is not None:
            self.origins[where] = origin
        if remark:
            self.remarks[where] = remark
