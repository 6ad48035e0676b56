"""Topics and journals of a flow whose clusters differ."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from helpers import remove_topics
from waiting import until

from mirror.config import ClusterSettings, Settings
from mirror.journal.entries import FirstSeen
from mirror.journal.journal import Change, Journal
from mirror.kafka.admin import Admin
from mirror.kafka.cluster import Cluster as Wire
from mirror.kafka.cluster import Endpoint
from mirror.topics.apply import ensure_flow_topic


def admin_of(bootstrap: str) -> Admin:
    return Admin(ClusterSettings.model_validate({"alias": "any", "bootstrap.servers": bootstrap}))


def made_by(settings: Settings, topics: Iterable[str]) -> dict[str, FirstSeen]:
    """What a mirror has in its journal that made these topics, of the same names on both sides."""
    names = list(topics)
    ours, theirs = (Admin(cluster).describe(names) for cluster in (settings.source, settings.target))
    cluster_id = Admin(settings.source).cluster_id()
    return {
        name: FirstSeen(
            source_topic=name,
            topic_id=ours[name].topic_id,
            target_topic_id=theirs[name].topic_id,
            cluster_id=cluster_id,
            made=True,
        )
        for name in names
    }


def read_journal(target: Endpoint, flow: str) -> dict[bytes, bytes]:
    """Return the newest records of a flow's journal."""

    async def newest() -> dict[bytes, bytes]:
        async with Wire(target) as cluster:
            return await Journal(cluster, flow).newest()

    return asyncio.run(newest())


def write_journal(settings: Settings, *records: Change) -> None:
    ensure_flow_topic(Admin(settings.target), settings.flow)

    async def write() -> None:
        async with Wire(Endpoint.of(settings.target)) as target:
            journal = Journal(target, settings.flow)
            await target.refresh([journal.partition.topic])
            await journal.append(records)

    asyncio.run(write())


def delete_topics(bootstrap: str, *names: str) -> None:
    admin = admin_of(bootstrap)
    remove_topics(admin, *names)
    until(lambda: not admin.describe(names))


def ends(bootstrap: str, topic: str) -> dict[int, int]:
    admin = admin_of(bootstrap)
    return {number: span.end for (_, number), span in admin.spans(admin.describe([topic]).values()).items()}
