"""Which properties of a file hold for one flow, and which of them were used.

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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from mirror.mm2.properties import Property

Side = Literal["source", "target"]

#: The client that moves records, on each side.
_MAIN: Final[dict[Side, str]] = {"source": "consumer", "target": "producer"}
_ROLES: Final = ("consumer.", "producer.override.", "producer.", "admin.")


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

    def __init__(self, properties: Sequence[Property], clusters: Sequence[str], source: str, target: str) -> None:
        self.source, self.target = source, target
        self.notes: list[Note] = []
        self._last = {one.key: one for one in properties}
        self._clusters = clusters
        self._used: set[str] = set()

    def find(self, *names: str) -> Property | None:
        """The flow's property of the first of these names that is set, for the flow or for all; empty values count."""
        found = None
        for name in names:
            for key in (f"{self.source}->{self.target}.{name}", name):
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

    def client(self, side: Side, key: str, *, common: bool = True) -> Property | None:
        """What holds for one of a cluster's clients; `common` where one setting may stand for all clusters."""
        alias = self.source if side == "source" else self.target
        flow, main = f"{self.source}->{self.target}.", _MAIN[side]
        candidates = [
            f"{flow}{side}.{main}.{key}",
            *([f"{flow}producer.override.{key}"] if side == "target" else []),
            f"{flow}{main}.{key}",
            f"{flow}{side}.cluster.{key}",
            f"{alias}.{main}.{key}",
            f"{alias}.{key}",
            *([key] if common else []),
        ]
        found = [self._last[name] for name in candidates if name in self._last]
        others = [
            self._last[name]
            for name in (f"{flow}{side}.admin.{key}", f"{flow}admin.{key}", f"{alias}.admin.{key}")
            if name in self._last
        ]
        self._used |= {one.key for one in found}
        for one in others:
            if found and one.value.strip() == found[0].value.strip():
                self._used.add(one.key)
            elif one.key not in self._used:
                self.explain(one, "a cluster has one set of settings here: that of the client that moves records")
        return found[0] if found else None

    def client_keys(self, side: Side) -> list[str]:
        """The names of all settings of a cluster's client, without what tells where they hold."""
        alias = self.source if side == "source" else self.target
        flow = f"{self.source}->{self.target}."
        prefixes = (f"{flow}{side}.cluster.", f"{flow}{side}.", f"{alias}.")
        found: dict[str, None] = {}
        for key in self._last:
            for prefix in prefixes:
                if key.startswith(prefix) and "->" not in (rest := key.removeprefix(prefix)):
                    found[base_name(rest)] = None
        return list(found)

    def explain(self, one: Property, why: str) -> None:
        """Note a property, used or not."""
        self._used.add(one.key)
        self.notes.append(Note(one.key, one.line, why))

    def rest(self) -> Iterator[tuple[Property, str]]:
        """The properties that hold for this flow and were not used, each with its name alone; those that hold for
        other flows or clusters only are no part of it.
        """
        for key, one in self._last.items():
            name = self._own_name(key)
            if name is not None and key not in self._used:
                yield one, name

    def _own_name(self, key: str) -> str | None:
        flow = f"{self.source}->{self.target}."
        if key.startswith(flow):
            return base_name(key.removeprefix(flow))
        if "->" in key:
            return None
        for alias in sorted(self._clusters, key=len, reverse=True):
            if key.startswith(f"{alias}."):
                return base_name(key.removeprefix(f"{alias}.")) if alias in (self.source, self.target) else None
        return base_name(key)


def base_name(name: str) -> str:
    """`source.consumer.fetch.min.bytes`, `consumer.fetch.min.bytes`: all the same setting of a client."""
    for prefix in ("source.cluster.", "target.cluster."):
        name = name.removeprefix(prefix)
    for role in _ROLES:
        for prefix in (f"source.{role}", f"target.{role}", role):
            if name.startswith(prefix) and name != prefix:
                return name.removeprefix(prefix)
    return name
