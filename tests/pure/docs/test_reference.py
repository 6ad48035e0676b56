"""The reference pages are what the code says: the configuration of its models, the commands of their help, and the
invariants of docstrings.
"""

from __future__ import annotations

import pytest
from references import REFERENCE, ROOT


@pytest.mark.parametrize("name", REFERENCE.PAGES)
def test_a_page_is_up_to_date(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == REFERENCE.PAGES[name](), "run `make reference`"
