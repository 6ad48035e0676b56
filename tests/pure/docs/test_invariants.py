"""Tests that others name exist: those of invariants (docs/invariants.md), and of the table of what MirrorMaker 2's own
tests ask (conformance.md).
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from references import REFERENCE

FOLDER = Path(__file__).parents[2]
PROOFS = REFERENCE.proofs((FOLDER / "invariants.toml").read_text(encoding="utf-8"))
INVARIANTS = REFERENCE.invariants()
TABLE = (FOLDER / "conformance.md").read_text(encoding="utf-8")
#: So many invariants a maintainer can hold in the head.
MOST = 60
#: More than so many that are argued alone are no proof.
MOST_ARGUED = 10


@cache
def named_in(file: str) -> frozenset[str]:
    """The names of a file's tests."""
    path = next(FOLDER.rglob(file), None)
    tree = ast.parse(path.read_text(encoding="utf-8")) if path else ast.Module([], [])
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in tree.body if isinstance(node, kinds) and node.name.startswith("test_"))


def exists(test: str) -> bool:
    """`test_file.py::test_name`, whatever its parameters."""
    file, _, name = test.partition("::")
    return name in named_in(file)


def test_every_invariant_has_an_entry_and_every_entry_an_invariant() -> None:
    names = [(module, one.name) for module, those in INVARIANTS.items() for one in those]
    assert len(names) == len({name for _, name in names}) <= MOST, "a name is unique, and few are named"
    proved = {(module, name) for module, entries in PROOFS.items() for name in entries}
    assert set(names) - proved == set(), "name the tests of these in tests/invariants.toml"
    assert proved - set(names) == set(), "these are gone from the docstrings"


def test_every_test_that_is_named_exists() -> None:
    proofs = [proof for entries in PROOFS.values() for proof in entries.values()]
    by_tests = [proof for proof in proofs if isinstance(proof, tuple)]
    assert sorted({test for proof in by_tests for test in proof if not exists(test)}) == []
    assert [proof for proof in by_tests if len(proof) != len(set(proof))] == []
    assert len(proofs) - len(by_tests) < MOST_ARGUED
    assert exists("test_invariants.py::test_every_test_that_is_named_exists")
    assert not exists("test_invariants.py::test_nothing")


def test_every_behavior_of_mirrormaker_has_a_row_whose_tests_exist() -> None:
    rows = re.findall(r"^\| (I\d+) \| .+ \| .{10,} \|$", TABLE, re.MULTILINE)
    assert rows == [f"I{number}" for number in range(1, 20)]
    assert [test for test in re.findall(r"`(test_\w+\.py::\w+)`", TABLE) if not exists(test)] == []
