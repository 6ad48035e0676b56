"""One partition that cannot be read must not end a proof of the others: it is told of, with the reason."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TypeVar

from mirror.errors import BrokerError, ClusterUnreachable
from mirror.verify.report import Pair, Unread
from mirror.wire.cluster import Cluster

Told = TypeVar("Told")


async def or_unread(source: Cluster, target: Cluster, pair: Pair, doing: Awaitable[Told]) -> Told | Unread:
    """What comes of a question about a partition, or why it cannot be answered, as long as both clusters themselves
    answer. Raises ClusterUnreachable where one does not, and AccessDenied.
    """
    try:
        return await doing
    except (ClusterUnreachable, BrokerError) as problem:
        await asyncio.gather(source.refresh(), target.refresh())
        return Unread(pair, str(problem))


async def each(
    source: Cluster, target: Cluster, pairs: Iterable[Pair], doing: Iterable[Awaitable[Told]]
) -> list[Told | Unread]:
    """The same of several partitions at the same time, in their order."""
    asked = (or_unread(source, target, pair, one) for pair, one in zip(pairs, doing, strict=True))
    return await asyncio.gather(*asked)


def readable(found: Iterable[tuple[Pair, Told | Unread]], unread: dict[Pair, Unread]) -> dict[Pair, Told]:
    """What was found, by partition; those that could not be read are added to `unread`."""
    told: dict[Pair, Told] = {}
    for pair, one in found:
        if isinstance(one, Unread):
            unread[pair] = one
        else:
            told[pair] = one
    return told
