"""Every invariant that a docstring names is proved by a test that exists, or argued (docs/invariants.md)."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest
from references import REFERENCE

FOLDER = Path(__file__).parents[2]
PROOFS = REFERENCE.proofs((FOLDER / "invariants.toml").read_text(encoding="utf-8"))
INVARIANTS = REFERENCE.invariants()
#: More than so many that are argued alone are no proof.
MOST_ARGUED = 10

DOCSTRING = '''"""A module.

    K1  one line
    K2  more lines, the
        next one, and
          a last one
    K10 two digits: 4 columns

Words behind it: see K2  here.
W1  at the edge

    and what is no part of it

X1  one whose next line
is no part of it, whose next but one
    is not either
W 1  no name, nor are A1 with one space, AB1  or A123  or a1
    A1 with one space
    AB1  two letters
    A123  three digits
"""


class One:
    """A class.

    C1  in a class
    """

    def work(self) -> None:
        """F2  in a function."""
'''


@cache
def named_in(file: str) -> frozenset[str]:
    """The names of a file's tests."""
    path = next(FOLDER.rglob(file), None) if file else None
    tree = ast.parse(path.read_text(encoding="utf-8")) if path else ast.Module([], [])
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in tree.body if isinstance(node, kinds) and node.name.startswith("test_"))


def exists(test: str) -> bool:
    """`test_file.py::test_name`, whatever its parameters."""
    file, _, name = test.partition("::")
    return name in named_in(file)


def test_every_invariant_has_an_entry_and_every_entry_an_invariant() -> None:
    known = {(module, one.name) for module, those in INVARIANTS.items() for one in those}
    proved = {(module, name) for module, entries in PROOFS.items() for name in entries}
    assert known - proved == set(), "name the tests of these in tests/invariants.toml"
    assert proved - known == set(), "these are gone from the docstrings"


@pytest.mark.parametrize("module", INVARIANTS)
def test_a_name_is_unique_within_its_module(module: str) -> None:
    names = [one.name for one in INVARIANTS[module]]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("module", PROOFS)
def test_every_test_that_is_named_exists(module: str) -> None:
    named = [proof for proof in PROOFS[module].values() if isinstance(proof, tuple)]
    assert [test for proof in named for test in proof if not exists(test)] == []
    assert all(len(proof) == len(set(proof)) for proof in named)


def test_few_are_argued() -> None:
    argued = [proof for entries in PROOFS.values() for proof in entries.values() if not isinstance(proof, tuple)]
    assert len(argued) < MOST_ARGUED


def test_a_test_that_does_not_exist_is_found() -> None:
    assert exists("test_invariants.py::test_a_test_that_does_not_exist_is_found")
    for test in ("test_invariants.py::test_nothing", "test_nothing.py::test_few_are_argued", "test_invariants.py", ""):
        assert not exists(test)


def test_docstrings_are_read_line_by_line() -> None:
    found = [(one.name, one.text) for one in REFERENCE.invariants_of(DOCSTRING)]
    assert found == [
        ("K1", "one line"),
        ("K2", "more lines, the next one, and a last one"),
        ("K10", "two digits: 4 columns"),
        ("W1", "at the edge"),
        ("X1", "one whose next line"),
        ("C1", "in a class"),
        ("F2", "in a function."),
    ]


def test_proofs_are_read_and_nothing_else_is_taken_for_one() -> None:
    text = '["a.py"]\nK1 = "t.py::test_a"\nK2 = ["t.py::test_a", "t.py::test_b"]\nK3 = { argued = "no clock" }\n'
    assert REFERENCE.proofs(text) == {
        "a.py": {
            "K1": ("t.py::test_a",),
            "K2": ("t.py::test_a", "t.py::test_b"),
            "K3": REFERENCE.Argued("no clock"),
        }
    }
    for wrong in ("[]", "7", "[7]", "{}", '{ argued = " " }', '{ argued = "x", test = "y" }'):
        with pytest.raises(ValueError, match=r"a\.py K1: a test, a list of tests"):
            REFERENCE.proofs(f'["a.py"]\nK1 = {wrong}\n')


def test_text_is_shown_as_it_is_written() -> None:
    assert REFERENCE.escaped("a <b> *c* [d] e|f _g_ h_i `j|<k>_`") == (r"a \<b\> \*c\* \[d\] e\|f \_g\_ h_i `j\|<k>_`")
