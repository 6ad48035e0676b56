"""The settings that hold, one by one, and where each comes from.

A secret is shown as the reference it was given by, and so is a setting of Spark's that is one: what such names mean is
not known here. Anything else is shown as it is used, with references resolved.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from mirror.config.clusters import ClusterSettings
from mirror.config.models import Naming
from mirror.config.reading import read
from mirror.config.secrets import is_secret
from mirror.config.section import Section
from mirror.yamltree import REFERENCE, Keys, Tree


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


def _settings(section: Section, where: Keys, tree: Tree) -> Iterator[Setting]:
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
    if naming.rename:
        return {"rename": dict(naming.rename)}
    return {"prefix": naming.prefix} if naming.prefix else "identity"
