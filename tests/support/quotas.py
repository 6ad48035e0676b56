"""Quotas of client ids."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from helpers import endpoint
from waiting import until

from mirror.kafka.cluster import Cluster
from mirror.kafka.protocol import Api

DESCRIBE_QUOTAS: Final = Api(48, "describe_client_quotas", 1, 1)
ALTER_QUOTAS: Final = Api(49, "alter_client_quotas", 1, 1)
_EXACT: Final = 0


@contextmanager
def quota(bootstrap: str, client_id: str, name: str, value: float) -> Iterator[None]:
    """A quota for a client id while this is open, from when the broker knows of it on."""

    async def alter(*, remove: bool) -> None:
        schema = ALTER_QUOTAS.schema(1, "request")
        entity = schema.EntityData(entity_type="client-id", entity_name=client_id)
        entry = schema.EntryData(entity=(entity,), ops=(schema.OpData(key=name, value=value, remove=remove),))
        async with Cluster(endpoint(bootstrap)) as cluster:
            await cluster.refresh()
            answer = await cluster.call(cluster.nodes[0], ALTER_QUOTAS, entries=(entry,), validate_only=False)
            assert [one.error_code for one in answer.entries] == [0]

    async def described() -> bool:
        schema = DESCRIBE_QUOTAS.schema(1, "request")
        component = schema.ComponentData(entity_type="client-id", match_type=_EXACT, match=client_id)
        async with Cluster(endpoint(bootstrap)) as cluster:
            await cluster.refresh()
            answer = await cluster.call(cluster.nodes[0], DESCRIBE_QUOTAS, components=(component,), strict=True)
            return any(held.key == name for entry in answer.entries or () for held in entry.values)

    asyncio.run(alter(remove=False))
    until(lambda: asyncio.run(described()), lambda: f"{name} of {client_id}")
    try:
        yield
    finally:
        asyncio.run(alter(remove=True))
