"""`mirror pause` and `mirror resume`: topics stand still, over restarts of the mirror, until they are resumed."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Collection, Sequence
from typing import Any

from mirror.config import Settings
from mirror.errors import ConfigError, ExitCode
from mirror.journal.entries import pause_entry, read_pause, resume_entry, seen_in
from mirror.journal.journal import Journal, journal_topic, newest
from mirror.kafka.admin import Admin
from mirror.kafka.cluster import Cluster, Endpoint
from mirror.names import did_you_mean
from mirror.policy.selection import select, selects
from mirror.rendering import print_json
from mirror.topics.apply import ensure_flow_topic


def pause(settings: Settings, topics: Sequence[str], *, as_json: bool) -> ExitCode:
    """Pause source topics. Raises ConfigError for one that is not mirrored, and ClusterError."""
    paused = _paused_of(settings, topics)
    new = [topic for topic in topics if topic not in paused]
    asyncio.run(_append(settings, [pause_entry(topic) for topic in new]))
    if as_json:
        print_json(_as_dict(settings, topics, new, paused=True))
        return ExitCode.DONE
    for topic in topics:
        print(f"{topic}: {'paused' if topic in new else 'was paused already'}")
    return ExitCode.DONE


def resume(settings: Settings, topics: Sequence[str], *, as_json: bool) -> ExitCode:
    """Let topics go on. Raises as `pause` does."""
    paused = _paused_of(settings, topics)
    asyncio.run(_append(settings, [resume_entry(topic) for topic in topics if topic in paused]))
    if as_json:
        print_json(_as_dict(settings, topics, paused, paused=False))
        return ExitCode.DONE
    for topic in topics:
        print(f"{topic}: {'goes on' if topic in paused else 'was not paused'}")
    return ExitCode.DONE


def _as_dict(settings: Settings, topics: Sequence[str], changed: Collection[str], *, paused: bool) -> dict[str, Any]:
    """What holds now of each topic, and whether that is new."""
    states = [{"topic": topic, "paused": paused, "changed": topic in changed} for topic in topics]
    return {"flow": settings.flow, "topics": states}


def _paused_of(settings: Settings, topics: Sequence[str]) -> set[str]:
    """Every paused topic; one that is gone from the source may be among them. The source, which may be away, is asked
    for those alone that the journal does not know.
    """
    paused, begun = asyncio.run(_known(settings))
    known = paused | {topic for topic in begun if selects(topic, settings.topics)}
    if not known.issuperset(topics):
        names = Admin(settings.source).topic_names()
        known |= {pair.source for pair in select(dict.fromkeys(names, 1), settings.topics).pairs}
    for topic in topics:
        if topic not in known:
            raise ConfigError(f"{topic}: no such topic is mirrored by {settings.flow}{did_you_mean(topic, known)}")
    return paused


async def _known(settings: Settings) -> tuple[set[str], set[str]]:
    """The paused topics, and those that the flow has begun."""
    target_admin, name = Admin(settings.target), journal_topic(settings.flow)
    if not target_admin.describe([name]):
        where = f"cluster {settings.target.alias} ({target_admin.cluster_id()})"
        print(f"{settings.flow}: never ran on {where}: its journal {name} is made now", file=sys.stderr)
    ensure_flow_topic(target_admin, settings.flow, settings.topics.replication_factor)
    found = set[str]()
    async with Cluster(Endpoint.of(settings.target)) as target:
        await target.refresh([journal_topic(settings.flow)])
        entries = (await Journal(target, settings.flow).read())[0]
        for entry in entries:
            with contextlib.suppress(ValueError):  # somebody else's record
                if (change := read_pause(entry)) is not None:
                    (found.add if change.is_paused else found.discard)(change.topic)
    return found, {one.source_topic for one in seen_in(newest(entries)).values()}


async def _append(settings: Settings, entries: Sequence[tuple[bytes, bytes | None]]) -> None:
    if not entries:
        return
    async with Cluster(Endpoint.of(settings.target)) as target:
        await target.refresh([journal_topic(settings.flow)])
        await Journal(target, settings.flow).append(entries)
