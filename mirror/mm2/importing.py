"""From a `mm2.properties` to one configuration of ours for each of its flows.

What is written is checked by the configuration's own rules. A value that these refuse is left out and named with their
reason where the mirror can do without; where it cannot, because another choice of topics, another name or another
cluster would come out, the import fails.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mirror.config.reading import check
from mirror.errors import ConfigError
from mirror.mm2.clients import add_cluster
from mirror.mm2.document import printable, text_of
from mirror.mm2.draft import Draft
from mirror.mm2.flows import add_flow
from mirror.mm2.properties import BadProperties, Property, parse
from mirror.mm2.reasons import reason
from mirror.mm2.references import Translator, Variable, variable_name
from mirror.mm2.scope import Note, Scope
from mirror.names import is_legal
from mirror.yamltree import REFERENCE, Keys, Tree

_FLOW: Final = re.compile(r"(.+)->(.+)\.enabled", re.DOTALL)
#: Without these the mirror copies the same records to the same topics, or fails to log in, and says so.
_SPARE: Final = frozenset({"groups", "sync"})
_SPARE_KEYS: Final = frozenset({"start", "client.id", "sasl.kerberos.service.name", "sasl.oauthbearer.scope"})
_NEEDED: Final = re.compile(r"required\b")


@dataclass(frozen=True, slots=True)
class Imported:
    """One flow: the name of its file, its text, the variables that it needs, and what was not translated."""

    name: str
    text: str
    variables: tuple[Variable, ...]
    notes: tuple[Note, ...]


def imported(data: bytes, origin: str, folder: Path = Path()) -> list[Imported]:
    """All enabled flows of a property file called `origin`; files are looked for from `folder` on.

    Raises ConfigError for what is no such file, has no enabled flow, or has one that cannot be mirrored as it is.
    """
    try:
        properties = parse(data)
    except BadProperties as problem:
        raise ConfigError(f"{origin}:{problem.line}: {problem}") from problem
    values = {one.key: one.value for one in properties}
    clusters = list(dict.fromkeys(part.strip() for part in values.get("clusters", "").split(",") if part.strip()))
    if not clusters:
        raise ConfigError(f"{origin}: names no clusters: is it a configuration of MirrorMaker 2?")
    enabled = [pair for pair in _pairs(values) if set(pair) <= set(clusters) and pair[0] != pair[1]]
    if not enabled:
        raise ConfigError(
            f"{origin}: enables no flow between {printable(', '.join(clusters))}: set A->B.enabled = true"
        )
    found = [_flow(properties, values, clusters, pair, origin, folder) for pair in enabled]
    return _named_apart(found, origin)


def strays(data: bytes) -> list[Note]:
    """Keys of flows that are not enabled, and of clusters in no flow: part of no file."""
    properties = parse(data)
    values = {one.key: one.value for one in properties}
    clusters = {part.strip() for part in values.get("clusters", "").split(",")}
    enabled = {pair for pair in _pairs(values) if set(pair) <= clusters}
    lone = clusters - {alias for pair in enabled for alias in pair} - {""}
    notes = []
    for one in properties:
        if "->" in one.key:
            if not any(one.key.startswith(f"{source}->{target}.") for source, target in enabled):
                notes.append(Note(one.key, one.line, "its flow is not enabled"))
        elif any(one.key.startswith(f"{alias}.") for alias in lone):
            notes.append(Note(one.key, one.line, "its cluster is in no enabled flow"))
    return notes


def _pairs(values: Mapping[str, str]) -> list[tuple[str, str]]:
    found = ((_FLOW.fullmatch(key), value) for key, value in values.items())
    return [(flow[1], flow[2]) for flow, value in found if flow and value.strip().lower() == "true"]


def _flow(
    properties: Sequence[Property],
    values: Mapping[str, str],
    clusters: Sequence[str],
    pair: tuple[str, str],
    origin: str,
    folder: Path,
) -> Imported:
    draft = Draft(Scope(properties, clusters, *pair), Translator(values))
    source, target = (_legal(alias) for alias in pair)
    name = f"{source}-to-{target}"
    draft.put(("name",), name)
    add_cluster(draft, "source", source)
    add_cluster(draft, "target", target)
    add_flow(draft)
    for key in ("enabled", "clusters"):
        draft.scope.find(key)
    _repair(draft, origin, folder)
    _explain_rest(draft, properties)
    return Imported(
        name, text_of(draft, printable(origin)), tuple(draft.translator.variables.values()), tuple(draft.scope.notes)
    )


def _legal(alias: str) -> str:
    return alias if is_legal(alias) else re.sub(r"[^A-Za-z0-9._-]", "-", alias)[:100].strip(".") or "cluster"


def _explain_rest(draft: Draft, properties: Sequence[Property]) -> None:
    seen: dict[str, int] = {}
    for one in properties:
        if one.key in seen:
            draft.scope.notes.append(Note(one.key, seen[one.key], f"given again on line {one.line}, which holds"))
        seen[one.key] = one.line
    for one, name in list(draft.scope.rest()):
        draft.scope.explain(one, reason(name))
    draft.scope.notes.sort(key=lambda note: (note.line, note.key))


def _repair(draft: Draft, origin: str, folder: Path) -> None:
    """Leave out or ask for what the configuration's rules refuse. Raises ConfigError where neither will do."""
    for _ in range(len(draft.values) + 1):
        problems = _problems(draft, origin, folder)
        if not problems:
            return
        for where, what in problems:
            _mend(draft, where, what, origin)
    raise ConfigError(f"{origin}: {_dotted(problems[0][0])}: {problems[0][1]}")


def _problems(draft: Draft, origin: str, folder: Path) -> list[tuple[Keys, str]]:
    tree = Tree(text_of(draft, printable(origin)), folder, _Environment(os.environ))
    _, problems = check(tree, folder)
    return [(where, what) for where, what in problems if not _waits(tree.raw.get(where, ""))]


def _waits(text: str) -> bool:
    """Whether a value depends on a variable that is not set here."""
    names = [found[1].removeprefix("env:") for found in REFERENCE.finditer(text) if found[1].startswith("env:")]
    return any(name not in os.environ for name in names)


class _Environment(dict[str, str]):
    """Variables, those that are not set with a value that stands for any."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> str:
        return "placeholder"


def _mend(draft: Draft, where: Keys, what: str, origin: str) -> None:
    place = next((where[:size] for size in range(len(where), 0, -1) if where[:size] in draft.values), None)
    side, key = str(where[0]), str(where[-1])
    if place is None and side in ("source", "target") and key.startswith("sasl.") and _NEEDED.match(what):
        alias = draft.scope.source if side == "source" else draft.scope.target
        draft.put(where, draft.translator.secret("", variable_name(alias, key), f"{alias}'s {key}"))
        return
    if place is None or not _is_spare(place):
        found = draft.origins.get(place or where)
        at = f"{origin}:{found.line}: {printable(found.key)}" if found else f"{origin}: {_dotted(where)}"
        raise ConfigError(f"{at}: cannot be taken over: {what}")
    del draft.values[place]
    draft.scope.explain(draft.origins.pop(place), f"{_dotted(place)}: {what}")


def _is_spare(place: Keys) -> bool:
    key = str(place[-1])
    return place[0] in _SPARE or key in _SPARE_KEYS or key.startswith("ssl.")


def _dotted(where: Sequence[Any]) -> str:
    return ".".join(map(str, where))


def _named_apart(found: Sequence[Imported], origin: str) -> list[Imported]:
    names = [one.name for one in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"{origin}: two flows would both be called {twice}: rename a cluster")
    return list(found)
