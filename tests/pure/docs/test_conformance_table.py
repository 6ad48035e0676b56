"""The table of what MirrorMaker 2's own tests ask (`conformance.md`) is complete, and names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2]
TABLE = (FOLDER / "conformance.md").read_text(encoding="utf-8")


def test_every_behaviour_has_a_row() -> None:
    rows = re.findall(r"^\| (I\d+) \| .+ \| .{10,} \|$", TABLE, re.MULTILINE)
    assert rows == [f"I{number}" for number in range(1, 20)]


@pytest.mark.parametrize("named", sorted(set(re.findall(r"`(test_\w+\.py::\w+)`", TABLE))))
def test_every_test_that_is_named_exists(named: str) -> None:
    file, _, test = named.partition("::")
    (path,) = FOLDER.rglob(file)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == test for node in tree.body)
