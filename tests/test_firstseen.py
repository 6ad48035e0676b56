"""What a topic was when it was first seen, as the journal keeps it."""

from __future__ import annotations

from uuid import UUID

import pytest

from mirror.admin.history import seen_in
from mirror.observe.jsonrecords import NOT_OURS
from mirror.offsets.firstseen import FirstSeen

SEEN = FirstSeen(
    source_topic="orders", topic_id=UUID(int=1), target_topic_id=UUID(int=2), cluster_id="a-cluster", made=True
)


def test_written_and_read_back() -> None:
    assert FirstSeen.read(SEEN.to_json()) == SEEN


@pytest.mark.parametrize(
    "foreign",
    [b"[]", b"7", b"null", b'"x"', b"{}", b"\xff", b'{"source_topic": "t", "topic_id": 7, "target_topic_id": [1]}'],
)
def test_somebody_elses_record(foreign: bytes) -> None:
    with pytest.raises(NOT_OURS):
        FirstSeen.read(foreign)
    assert seen_in({FirstSeen.key("a"): foreign, FirstSeen.key("b"): SEEN.to_json()}) == {"b": SEEN}
