"""What is asked of a cluster's controller, in portions that it takes.

A KRaft controller writes what one request changes as one batch of metadata records, of 10,000 at most, and answers a
request for more with POLICY_VIOLATION (Kafka `QuorumController.MAX_RECORDS_PER_USER_OP`). A topic costs a record, and
one for each partition and each config.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

T = TypeVar("T")

#: Metadata records that one request may cost: the half of what a controller takes, since it may need some of its own.
RECORDS_AT_ONCE: Final = 5_000


def portions(items: Iterable[T], records: Callable[[T], int], limit: int = RECORDS_AT_ONCE) -> Iterator[list[T]]:
    """The items in their order, as lists that cost at most `limit` records each; one that costs more stands alone."""
    portion: list[T] = []
    total = 0
    for item in items:
        cost = records(item)
        if portion and total + cost > limit:
            yield portion
            portion, total = [], 0
        portion.append(item)
        total += cost
    if portion:
        yield portion
