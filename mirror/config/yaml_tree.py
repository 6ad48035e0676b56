"""A YAML file as plain data that still knows its lines.

PyYAML forgets where a value stood once it is a value, and lets a later key replace an earlier one in silence. So its
node tree is walked here: keys are taken as text, duplicates and aliases are problems (an alias can also make a small
file huge), and `${env:NAME}` and `${file:PATH}` are resolved in every text value. Problems are collected, not raised:
the reader adds its own.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from mirror.errors import ConfigError

REFERENCE = re.compile(r"\$\{([^}]*)\}")
_PLAIN_KEY = re.compile(r"[A-Za-z][A-Za-z0-9._-]*")
_NO_TEXT = re.compile(r"[\0\ud800-\udfff]")

Keys = tuple[str | int, ...]
"""Where a value stands in the file: `("topics", "include", 0)`."""


def read(path: Path) -> YamlTree:
    """Read a file that must hold a mapping: `ConfigError` when it does not; all else is in `YamlTree.problems`."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text, at byte {error.start}") from error
    try:
        return YamlTree(text, path.parent)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{path}:{line}: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: nested too deeply") from error


def line_of(value: Any) -> str:
    """Plain data on one line, as YAML that reads back as the same: text is quoted, whatever is in it."""
    match value:
        case str():
            quoted: str = yaml.safe_dump(value, default_style='"', width=math.inf, allow_unicode=True)
            return quoted.rstrip("\n")
        case Mapping():
            return "{" + ", ".join(f"{key_of(key)}: {line_of(one)}" for key, one in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(line_of, value)) + "]"
        case _:
            return json.dumps(value)


def key_of(key: str) -> str:
    """A key of a mapping, in quotes where it needs them."""
    return key if _PLAIN_KEY.fullmatch(key) else line_of(key)


class YamlTree:
    """`data`: the values. `raw`: each scalar's text before references were resolved. `problems`: (where, what)."""

    def __init__(self, text: str, folder: Path, environment: Mapping[str, str] = os.environ) -> None:
        """`folder` is where relative names of files begin. Raises yaml.YAMLError."""
        self.data: dict[str, Any] = {}
        self.raw: dict[Keys, str] = {}
        self.problems: list[tuple[Keys, str]] = []
        self._folder, self._environment = folder, environment
        self._lines: dict[Keys, int] = {(): 1}
        self._visited: set[int] = set()
        self._loader = yaml.SafeLoader(text)
        try:
            root = self._loader.get_single_node()
            if not isinstance(root, yaml.MappingNode):
                mark = root.start_mark if root else None
                raise yaml.MarkedYAMLError(
                    problem="the file must hold keys such as name, source and target", problem_mark=mark
                )
            self.data = self._mapping(root, ())
        finally:
            self._loader.dispose()

    def line(self, where: Keys) -> int:
        """The line of a path, or of the nearest section around it."""
        while where not in self._lines:
            where = where[:-1]
        return self._lines[where]

    def _value(self, node: yaml.Node, where: Keys) -> Any:
        self._lines.setdefault(where, node.start_mark.line + 1)
        if id(node) in self._visited:
            self.problems.append((where, "YAML aliases are not supported; write the value out"))
            return None
        self._visited.add(id(node))
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, where)
        if isinstance(node, yaml.SequenceNode):
            return [self._value(child, (*where, index)) for index, child in enumerate(node.value)]
        self.raw[where] = node.value
        try:
            value = self._loader.construct_object(node)
        except (ValueError, LookupError, AttributeError):
            # A date such as 2026-02-30 has the form of one, and PyYAML believes it; as it believes a tag (`!!int x`).
            value = node.value
        return self._text(value, where) if isinstance(value, str) else value

    def _mapping(self, node: yaml.MappingNode, where: Keys) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.append((where, f"the key on line {line} must be plain text"))
                continue
            key = (*where, key_node.value)
            if key_node.value in found:
                self.problems.append((key, f"given twice, again on line {line}"))
                continue
            self._lines[key] = line
            found[key_node.value] = self._value(value_node, key)
        return found

    def _text(self, text: str, where: Keys) -> str:
        """A value with its references resolved; no file, host, header or setting of Kafka can hold `_NO_TEXT`."""
        resolved = text if _NO_TEXT.search(text) else self._resolved(text, where)
        if found := _NO_TEXT.search(resolved):
            self.problems.append((where, f"holds U+{ord(found.group()):04X}, which no name or setting can hold"))
        return _NO_TEXT.sub("?", resolved)

    def _resolved(self, text: str, where: Keys) -> str:
        def one(found: re.Match[str]) -> str:
            kind, _, name = found.group(1).partition(":")
            if kind == "env" and name:
                if name in self._environment:
                    return self._environment[name]
                self.problems.append((where, f"environment variable {name} is not set"))
            elif kind == "file" and name:
                try:
                    return (self._folder / name).read_text(encoding="utf-8").rstrip("\r\n")
                except OSError as error:
                    self.problems.append((where, f"file {name} cannot be read: {error.strerror}"))
                except UnicodeDecodeError:
                    self.problems.append((where, f"file {name} is not UTF-8 text"))
            else:
                self.problems.append(
                    (where, f"unknown reference {found.group()}; write ${{env:NAME}} or ${{file:PATH}}")
                )
            return found.group()

        return REFERENCE.sub(one, text)
