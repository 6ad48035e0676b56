"""`mirror config show`: the settings that hold, the defaults among them marked, and no secret."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mirror.config.reading import Setting, effective
from mirror.config.yaml_tree import key_of, line_of
from mirror.errors import ExitCode
from mirror.rendering import print_json


def show(path: Path, *, as_json: bool) -> ExitCode:
    """Print all settings of a file, as YAML that says the same, or as JSON. Raises ConfigError as `load` does."""
    settings = effective(path)
    if as_json:
        print_json(
            {
                "settings": _nested(settings),
                "defaults": [_dotted(setting) for setting in settings if setting.is_default],
                "secrets": [_dotted(setting) for setting in settings if setting.is_secret],
            }
        )
    else:
        print("\n".join(_yaml(settings)))
    return ExitCode.DONE


def _nested(settings: Sequence[Setting]) -> dict[str, Any]:
    root: dict[str, Any] = {}
    for setting in settings:
        section = root
        for key in setting.where[:-1]:
            section = section.setdefault(str(key), {})
        section[str(setting.where[-1])] = setting.value
    return root


def _dotted(setting: Setting) -> str:
    return ".".join(map(str, setting.where))


def _yaml(settings: Sequence[Setting]) -> list[str]:
    """A line for each setting, below those of its sections."""
    lines: list[str] = []
    open_sections: tuple[str | int, ...] = ()
    for setting in settings:
        *sections, key = setting.where
        for depth, name in enumerate(sections):
            if open_sections[: depth + 1] != tuple(sections[: depth + 1]):
                lines += ["", f"{name}:"] if not depth else [f"{'  ' * depth}{key_of(str(name))}:"]
        open_sections = tuple(sections)
        lines.append(f"{'  ' * len(sections)}{key_of(str(key))}: {line_of(setting.value)}{_note(setting)}")
    return lines


def _note(setting: Setting) -> str:
    if setting.is_secret:
        return " # not shown: it may be a secret"
    if setting.reference:
        return f" # from {setting.reference}"
    return " # default" if setting.is_default else ""
