"""Names and bytes that others rely on change on purpose alone."""

from __future__ import annotations

import json

from outward import KEPT, outward


def test_what_others_rely_on_is_as_it_was() -> None:
    before, now = json.loads(KEPT.read_text(encoding="utf-8")), json.loads(json.dumps(outward()))
    changed = {name: (before.get(name), now.get(name)) for name in before | now if before.get(name) != now.get(name)}
    assert not changed, (
        "if that is meant: cd tests/support; python outward.py > outward.json; and a line in the CHANGELOG"
    )
