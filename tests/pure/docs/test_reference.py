"""The reference pages are what the code says: the configuration of its models, the commands of their help, and the
invariants of docstrings."""

from __future__ import annotations

import pytest
from references import REFERENCE, ROOT


@pytest.mark.parametrize("name", REFERENCE.PAGES)
def test_a_page_is_up_to_date(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == REFERENCE.PAGES[name](), "run `make reference`"


def test_every_key_of_the_quick_start_has_a_row() -> None:
    page = REFERENCE.configuration()
    for key in ("name", "bootstrap.servers", "coalesce_bytes", "acl_principals", "memory_mb", "listen", "epoch_s"):
        assert f"\n| `{key}` | " in page


def test_a_secret_is_marked() -> None:
    row = next(line for line in REFERENCE.configuration().splitlines() if line.startswith("| `sasl.password` |"))
    assert "by reference only" in row
