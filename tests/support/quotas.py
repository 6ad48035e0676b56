"""Quotas of client ids."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from mirror.config import parse_address
from mirror.kafka.cluster import Cluster, Endpoint
from mirror.kafka.protocol import Api

ALTER_QUOTAS: Final = Api(49, "alter_client_quotas", 1, 1)


@contextmanager
def quota(bootstrap: str, client_id: str, name: str, value: float) -> Iterator[None]:
    """A quota for a client id while this is open."""

    async def alter(*, remove: bool) -> None:
        schema = ALTER_QUOTAS.schema(1, "request")
        entity = schema.EntityData(entity_type="client-id", entity_name=client_id)
        entry = schema.EntryData(entity=(entity,), ops=(schema.OpData(key=name, value=value, remove=remove),))
        async with Cluster(Endpoint("any", (parse_address(bootstrap),))) as cluster:
            await cluster.refresh()
            answer = await cluster.call(cluster.nodes[0], ALTER_QUOTAS, entries=(entry,), validate_only=False)
            assert [one.error_code for one in answer.entries] == [0]

    asyncio.run(alter(remove=False))
    try:
        yield
    finally:
        asyncio.run(alter(remove=True))
