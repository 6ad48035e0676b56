"""Every command that the pages show exists, with the options that they give it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import dropwhile
from pathlib import Path
from typing import Any

from typer.main import get_command

from mirror.cli import app

ROOT = Path(__file__).parents[3]
MIRROR: Any = get_command(app)
#: In a block of code, or between backquotes.
SHOWN = re.compile(r"^    mirror (?P<block>.+)$|`mirror (?P<inline>[^`]+)`", re.MULTILINE)


def shown(page: Path) -> Iterator[str]:
    """Command lines without their name; a comment behind them is left out."""
    for found in SHOWN.finditer(page.read_text(encoding="utf-8")):
        yield re.split(r"\s#|\s&&|;|\(", found["block"] or found["inline"])[0].strip()


def wrong(line: str) -> str:
    """What is wrong with a command line, or nothing; values and files are not looked at."""
    words, command = shlex.split(line.replace("[", " ").replace("]", " ").replace("...", "")), MIRROR
    if "translate" in words and words[0] == "offsets":  # the configuration may come first there
        words = ["offsets", "translate", *words[2:]]
    own = {name for parameter in command.params for name in parameter.opts}
    words = list(dropwhile(own.__contains__, words)) or ["plan"]  # an option of mirror itself, such as --version
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    if hasattr(command, "commands") and not command.invoke_without_command:
        return f"no command {words[0] if words else ''}"
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    return ", ".join(word for word in words if word.startswith("--") and word not in known | {"--help", "--version"})


def test_commands_of_the_pages_exist() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
    lines = [(page.name, line) for page in pages for line in shown(page)]
    assert len(lines) > 100
    assert [(name, line, reported) for name, line in lines if (reported := wrong(line))] == []


def test_a_command_that_does_not_exist_is_found() -> None:
    assert wrong("run CONFIG --once") == ""
    assert wrong("run CONFIG --twice") == "--twice"
    assert wrong("walk CONFIG") == "no command walk"
    assert wrong("bench compare OLD NEW --json") == ""
