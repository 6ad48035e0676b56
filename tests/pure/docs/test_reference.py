"""The reference pages are what the code says: the configuration of its models, the commands of their help, and the
invariants of docstrings. All that is promised has a test.
"""

from __future__ import annotations

import pytest
from references import REFERENCE, ROOT


@pytest.mark.parametrize("name", REFERENCE.PAGES)
def test_a_page_is_up_to_date(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == REFERENCE.PAGES[name](), "run `make reference`"


def test_each_guarantee_verdict_state_and_command_has_a_test() -> None:
    proved = {proof.what for proof in REFERENCE.proofs_in_tests()}
    for kind, names in REFERENCE.promised().items():
        assert names, f"no {kind} were found"
        assert [name for name in names if name not in proved] == [], f"{kind} without a test that proves them"
