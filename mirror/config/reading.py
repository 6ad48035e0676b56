"""From a YAML file to settings, or to all of its problems with their lines; and which settings hold.

A secret is shown as the reference it was given by, and so is a setting of Spark's that is one: what such names mean is
not known here. Anything else is shown as it is used, with references resolved.
"""

from __future__ import annotations

import difflib
import re
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import ValidationError as Invalid

from mirror.config import security, yaml_tree
from mirror.config.models import ClusterSettings, Naming, Section, Settings
from mirror.config.security import carelessness, exposes_secret, is_secret
from mirror.config.yaml_tree import REFERENCE, Keys, YamlTree, key_of, line_of
from mirror.errors import ConfigError

# --- From a file to settings, or to all its problems with their lines -------------------------------------------------

#: What pydantic calls a type, and what a person who writes YAML does.
_KINDS = {"tuple_type": "must be a list", "model_type": "must be a section with keys", "dict_type": "must hold keys"}


def load(path: str | Path) -> Settings:
    """Read and check a configuration file. `ConfigError` lists every problem as `file:line: where: what`."""
    return read(Path(path))[0]


def read(path: Path) -> tuple[Settings, yaml_tree.YamlTree]:
    """The same, with the file's values as they were written."""
    tree = yaml_tree.read(path)
    settings, problems = check(tree, path.parent)
    if settings is not None and not problems:
        return settings, tree
    lines = sorted((tree.line(where), ".".join(map(str, where)), what) for where, what in problems)
    count = "1 problem" if len(lines) == 1 else f"{len(lines)} problems"
    problem_lines = [f"  {path}:{line}: {where}: {what}" for line, where, what in lines]
    raise ConfigError("\n".join([f"{path}: {count}", *problem_lines]))


def check(tree: yaml_tree.YamlTree, folder: Path) -> tuple[Settings | None, list[tuple[Keys, str]]]:
    """The settings of a tree, if they are any, and all that is wrong with them, each with where it stands."""
    _locate_files(tree, folder)
    problems = [*tree.problems, *_careless(tree, folder)]
    try:
        return Settings.model_validate(tree.data), problems
    except Invalid as error:
        reported = {where for where, _ in problems}  # a value that was complained of once needs no second complaint
        found = map(_explain, error.errors(include_url=False, include_input=False))
        return None, problems + [(where, what) for where, what in found if where not in reported]


def cluster(values: Mapping[str, str], alias: str) -> ClusterSettings:
    """A cluster from single settings, under the names and rules of a file's section: a secret is a reference.

    Raises ConfigError with every problem.
    """
    numbers = {key for key, value in values.items() if key == "socket.timeout.ms" and value.isdecimal()}
    given = {"alias": line_of(alias)} | {k: v if k in numbers else line_of(v) for k, v in values.items()}
    tree = yaml_tree.YamlTree("source: {" + ", ".join(f"{key_of(key)}: {v}" for key, v in given.items()) + "}", Path())
    _locate_files(tree, Path())
    problems = [*tree.problems, *_careless(tree, Path())]
    settings = None
    try:
        settings = ClusterSettings.model_validate(tree.data["source"])
    except Invalid as error:
        reported = {where for where, _ in problems}
        errors = error.errors(include_url=False, include_input=False)
        found = [_explain({**one, "loc": ("source", *one["loc"])}) for one in errors]
        problems += [(where, what) for where, what in found if where not in reported]
    if settings is None or problems:
        raise ConfigError("; ".join(sorted(f"{where[-1]}: {what}" for where, what in problems)))
    return settings


def _locate_files(tree: yaml_tree.YamlTree, folder: Path) -> None:
    """Names of files as absolute ones: a task may run in another folder."""
    for side in ("source", "target"):
        if isinstance(section := tree.data.get(side), dict):
            for key in security.FILES:
                if (name := section.get(key)) and isinstance(name, str):
                    section[key] = str((folder / name).absolute())


def _careless(tree: yaml_tree.YamlTree, folder: Path) -> Iterator[tuple[Keys, str]]:
    """Values that are valid one by one and wrong all the same."""
    for where, raw in tree.raw.items():
        if exposes_secret(where, raw):
            yield where, "would show a secret in a command line; name a file that holds it, with an option for that"
        elif raw and is_secret(where):
            found = yaml_tree.REFERENCE.fullmatch(raw)
            if not found:
                yield where, "a secret may not stand in this file; write ${env:NAME} or ${file:PATH}"
            elif found[1].startswith("file:") and (problem := carelessness(folder / found[1].removeprefix("file:"))):
                yield where, problem
    for side in ("source", "target"):
        if isinstance(section := tree.data.get(side), dict):
            yield from (((side, key), what) for key, what in security.problems(section))
    alias = _at(tree.data, "source", "alias")
    if alias is not None and alias == _at(tree.data, "target", "alias"):
        yield (("target", "alias"), "the same as source.alias; the two clusters need different names")


def _at(data: object, *keys: str) -> Any:
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def _explain(error: Any) -> tuple[Keys, str]:
    where: Keys = error["loc"]
    match error["type"]:
        case "missing":
            return where, "required, but not given"
        case "extra_forbidden":
            names = _names(_section_at(where[:-1]))
            near = difflib.get_close_matches(str(where[-1]), names, n=1, cutoff=0.5)
            return (
                where,
                f"unknown key; did you mean {near[0]}?" if near else f"unknown key; valid here: {', '.join(names)}",
            )
        case "value_error":
            return where, str(error["ctx"]["error"])
        case kind if kind in _KINDS:
            return where, _KINDS[kind]
        case _:
            return where, str(error["msg"]).replace("Input should be", "must be")


def _section_at(where: Keys) -> type[Section]:
    """The model that reads the section at `where`."""
    section: type[Section] = Settings
    for key in where:
        for name, field in section.model_fields.items():
            if key in (name, field.alias):
                kinds = (field.annotation, *typing.get_args(field.annotation))
                section = next(
                    (kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)), section
                )
    return section


def _names(section: type[Section]) -> list[str]:
    """The keys a section may have, as written in the file."""
    return [key for keys in section.keys().values() for key in keys]


# --- The settings that hold, one by one, and where each comes from ----------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting: where it stands, its value as plain data, and whether it was left to its default.

    `reference` is the text with `${...}` that the value was given by, or empty; `is_secret` says that the value shown
    is that text.
    """

    where: Keys
    value: Any
    is_default: bool
    reference: str = ""
    is_secret: bool = False


def effective(path: Path) -> list[Setting]:
    """All that holds for a flow, in the order of the sections. Raises ConfigError as `load` does.

    A cluster's settings that nobody gave and that have no default are left out.
    """
    settings, tree = read(path)
    return list(_settings(settings, (), tree))


def _settings(section: Section, where: Keys, tree: YamlTree) -> Iterator[Setting]:
    for name, keys in section.keys().items():
        value, is_default = getattr(section, name), name not in section.model_fields_set
        at = (*where, keys[0])
        if isinstance(value, Section) and not isinstance(value, Naming):
            yield from _settings(value, at, tree)
        elif value and isinstance(value, dict):
            for key, one in value.items():
                text = key.pattern if isinstance(key, re.Pattern) else key
                yield _setting((*at, text), one, tree.raw.get((*at, text), ""), is_default=False)
        elif value is not None or not is_default or not isinstance(section, ClusterSettings):
            given = next((tree.raw[(*where, key)] for key in keys if (*where, key) in tree.raw), "")
            yield _setting(at, _plain(value), given, is_default=is_default)


def _setting(where: Keys, value: Any, given: str, *, is_default: bool) -> Setting:
    reference = given if REFERENCE.search(given) else ""
    hidden = reference != "" and (is_secret(where) or where[:2] == ("spark", "conf"))
    return Setting(
        where=where, value=reference if hidden else value, is_default=is_default, reference=reference, is_secret=hidden
    )


def _plain(value: Any) -> Any:
    """A value as the file would hold it."""
    match value:
        case Naming():
            return _naming(value)
        case re.Pattern():
            return value.pattern
        case datetime():
            return value.isoformat()
        case tuple():
            return [_plain(one) for one in value]
        case Section():
            return {
                keys[0]: _plain(getattr(value, name))
                for name, keys in value.keys().items()
                if name in value.model_fields_set
            }
        case Mapping():
            return dict(value)
        case _:
            return value


def _naming(naming: Naming) -> Any:
    prefix = {"prefix": naming.prefix} if naming.prefix else {}
    rename = {"rename": dict(naming.rename)} if naming.rename else {}
    return prefix | rename or "identity"


# --- A configuration that is read again while the mirror runs ---------------------------------------------------------

#: What a running mirror takes over, section by section.
LIVE: Final = ("topics", "groups", "sync", "limits")
#: Of the topics, what holds for the life of a mirror.
FIXED: Final = ("offsets", "rules")


class Reloaded(NamedTuple):
    """The settings that hold from now on; the sections that changed; the keys that changed in vain until a restart."""

    settings: Settings
    changed: tuple[str, ...]
    in_vain: tuple[str, ...]


def reloaded(old: Settings, new: Settings) -> Reloaded:
    """Take over from `new` what can change while running."""
    topics = new.topics.model_copy(update={name: getattr(old.topics, name) for name in FIXED})
    live = {"topics": topics, "groups": new.groups, "sync": new.sync, "limits": new.limits}
    in_vain = [name for name in Settings.model_fields if name not in LIVE and getattr(old, name) != getattr(new, name)]
    in_vain += [f"topics.{name}" for name in FIXED if getattr(new.topics, name) != getattr(old.topics, name)]
    changed = tuple(name for name, section in live.items() if getattr(old, name) != section)
    return Reloaded(old.model_copy(update=live), changed, tuple(in_vain))
