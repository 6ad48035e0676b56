"""The README is short, and the pages name every state, exit code and library that there is."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from mirror.errors import ExitCode
from mirror.states import State

ROOT = Path(__file__).parents[3]
MOST_WORDS = 1200


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def rows(text: str, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its head."""
    below = text.partition(f"{heading}\n")[2]
    table = re.search(r"(?:^\|.*\n)+", below, re.MULTILINE)
    assert table, heading
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[0].splitlines()[2:]]


def test_the_readme_is_read_in_five_minutes() -> None:
    assert len(page("README.md").split()) <= MOST_WORDS


@pytest.mark.parametrize(("name", "heading"), [("README.md", "## Partition states"), ("docs/states.md", "# States")])
def test_every_state_has_a_row_and_stops_are_marked(name: str, heading: str) -> None:
    found = {state: meaning for state, meaning, *_ in rows(page(name), heading)}
    assert set(found) == set(State)
    assert {state for state, meaning in found.items() if re.match(r"\W*stop\b", meaning, re.IGNORECASE)} == {
        state for state in State if state.is_stop
    }


def test_every_exit_code_has_a_row() -> None:
    codes = [code for code, *_ in rows(page("docs/commands.md"), "## Exit codes")]
    assert codes == [*(str(code.value) for code in ExitCode), "130, 143"]


def test_every_library_is_accounted_for() -> None:
    project = tomllib.loads(page("pyproject.toml"))["project"]
    wanted = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    text = page("docs/dependencies.md")
    assert [name for name in (re.split(r"[><=;\[ ]", one)[0] for one in wanted) if f"`{name}`" not in text] == []
