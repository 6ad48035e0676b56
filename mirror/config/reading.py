"""From a file to settings, or to all its problems with their lines."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError as Invalid

from mirror import yamltree
from mirror.config import security
from mirror.config.clusters import ClusterSettings
from mirror.config.models import Settings
from mirror.config.secrets import carelessness, exposes_secret, is_secret
from mirror.config.section import Section
from mirror.errors import ConfigError
from mirror.yamltree import Keys, key_of, line_of

#: What pydantic calls a type, and what a person who writes YAML does.
_KINDS = {"tuple_type": "must be a list", "model_type": "must be a section with keys", "dict_type": "must hold keys"}


def load(path: str | Path) -> Settings:
    """Read and check a configuration file. `ConfigError` lists every problem as `file:line: where: what`."""
    return read(Path(path))[0]


def read(path: Path) -> tuple[Settings, yamltree.Tree]:
    """The same, with the file's values as they were written."""
    tree = yamltree.read(path)
    settings, problems = check(tree, path.parent)
    if settings is not None and not problems:
        return settings, tree
    lines = sorted((tree.line(where), ".".join(map(str, where)), what) for where, what in problems)
    count = "1 problem" if len(lines) == 1 else f"{len(lines)} problems"
    told_lines = [f"  {path}:{line}: {where}: {what}" for line, where, what in lines]
    raise ConfigError("\n".join([f"{path}: {count}", *told_lines]))


def check(tree: yamltree.Tree, folder: Path) -> tuple[Settings | None, list[tuple[Keys, str]]]:
    """The settings of a tree, if they are any, and all that is wrong with them, each with where it stands."""
    _locate_files(tree, folder)
    problems = [*tree.problems, *_careless(tree, folder)]
    try:
        return Settings.model_validate(tree.data), problems
    except Invalid as error:
        told = {where for where, _ in problems}  # a value that was complained of once needs no second complaint
        found = map(_explain, error.errors(include_url=False, include_input=False))
        return None, problems + [(where, what) for where, what in found if where not in told]


def cluster(values: Mapping[str, str], alias: str) -> ClusterSettings:
    """A cluster from single settings, under the names and rules of a file's section: a secret is a reference.

    Raises ConfigError with every problem.
    """
    numbers = {key for key, value in values.items() if key == "socket.timeout.ms" and value.isdecimal()}
    given = {"alias": line_of(alias)} | {k: v if k in numbers else line_of(v) for k, v in values.items()}
    tree = yamltree.Tree("source: {" + ", ".join(f"{key_of(key)}: {v}" for key, v in given.items()) + "}", Path())
    _locate_files(tree, Path())
    problems = [*tree.problems, *_careless(tree, Path())]
    settings = None
    try:
        settings = ClusterSettings.model_validate(tree.data["source"])
    except Invalid as error:
        told = {where for where, _ in problems}
        errors = error.errors(include_url=False, include_input=False)
        found = [_explain({**one, "loc": ("source", *one["loc"])}) for one in errors]
        problems += [(where, what) for where, what in found if where not in told]
    if settings is None or problems:
        raise ConfigError("; ".join(sorted(f"{where[-1]}: {what}" for where, what in problems)))
    return settings


def _locate_files(tree: yamltree.Tree, folder: Path) -> None:
    """Names of files as absolute ones: a lane may run in another folder."""
    for side in ("source", "target"):
        if isinstance(section := tree.data.get(side), dict):
            for key in security.FILES:
                if (name := section.get(key)) and isinstance(name, str):
                    section[key] = str((folder / name).absolute())


def _careless(tree: yamltree.Tree, folder: Path) -> Iterator[tuple[Keys, str]]:
    """Values that are valid one by one and wrong all the same."""
    for where, raw in tree.raw.items():
        if exposes_secret(where, raw):
            yield where, "would show a secret in a command line; name a file that holds it, with an option for that"
        elif raw and is_secret(where):
            found = yamltree.REFERENCE.fullmatch(raw)
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
