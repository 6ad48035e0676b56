"""What a person accepted, as the journal keeps it."""

from __future__ import annotations

import pytest

from mirror.offsets.journal import Entry
from mirror.offsets.losses import Accepted, accept_entry, read_accepted
from mirror.pipeline import Loss
from mirror.wire.cluster import TopicPartition

AT = TopicPartition("orders.eu/1", 12)


def test_what_is_accepted_is_read_back() -> None:
    assert read_accepted(Entry(0, *accept_entry(Loss(AT, AT, 100, 150)))) == Accepted(AT, (100, 150))


@pytest.mark.parametrize("record", [(b"owner", b"{}"), (b"accept/orders/0", None), (b"state/accept/0", b"{}")])
def test_records_about_something_else(record: tuple[bytes, bytes | None]) -> None:
    assert read_accepted(Entry(0, *record)) is None


@pytest.mark.parametrize(
    "record",
    [
        (b"accept/orders/x", b'{"first": 1, "upto": 2}'),
        (b"accept/orders/0", b'{"first": 1}'),
        (b"accept/orders/0", b"[" * 100_000),
        (b"accept/\xff/0", b'{"first": 1, "upto": 2}'),
        (b"accept/orders/0", b"7"),
    ],
)
def test_a_record_that_somebody_else_wrote_is_named(record: tuple[bytes, bytes]) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        read_accepted(Entry(0, *record))
