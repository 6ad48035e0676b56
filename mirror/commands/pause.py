"""`mirror pause` and `mirror resume`: topics stand still, over restarts of the mirror, until they are resumed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from mirror.config import Settings
from mirror.errors import ConfigError, ExitCode
from mirror.journal.entries import COPIES, PAUSES, pause_entry, paused_in
from mirror.journal.journal import journal_topic
from mirror.kafka.admin import Admin
from mirror.names import did_you_mean
from mirror.policy.selection import select, selects
from mirror.rendering import print_json
from mirror.topics.apply import ensure_flow_topic
from mirror.topics.history import read_own, write_own


def pause(settings: Settings, topics: Sequence[str], *, pauses: bool, as_json: bool) -> ExitCode:
    """Pause source topics, or let them go on. Raises ConfigError for one that is not mirrored, and ClusterError."""
    paused = _paused_of(settings, topics)
    changed = [topic for topic in topics if (topic in paused) is not pauses]
    entries = [pause_entry(topic) if pauses else PAUSES.tombstone(topic) for topic in changed]
    if entries:
        asyncio.run(write_own(settings, entries))
    if as_json:  # what holds now of each topic, and whether that is new
        states = [{"topic": topic, "paused": pauses, "changed": topic in changed} for topic in topics]
        print_json({"flow": settings.flow, "topics": states})
    else:
        new, old = ("paused", "was paused already") if pauses else ("goes on", "was not paused")
        for topic in topics:
            print(f"{topic}: {new if topic in changed else old}")
    return ExitCode.DONE


def _paused_of(settings: Settings, topics: Sequence[str]) -> set[str]:
    """Every paused topic; one that is gone from the source may be among them. The source, which may be away, is asked
    for those alone that the journal does not know.
    """
    target, name = Admin(settings.target), journal_topic(settings.flow)
    if not target.describe([name]):
        where = f"cluster {settings.target.alias} ({target.cluster_id()})"
        print(f"{settings.flow}: never ran on {where}: its journal {name} is made now", file=sys.stderr)
    ensure_flow_topic(target, settings.flow, settings.topics.replication_factor)
    newest = asyncio.run(read_own(settings)).newest
    paused, begun = {*paused_in(newest)}, {seen.source_topic for seen in COPIES.newest(newest).values()}
    known = paused | {topic for topic in begun if selects(topic, settings.topics)}
    if not known.issuperset(topics):
        names = Admin(settings.source).topic_names()
        known |= {pair.source for pair in select(dict.fromkeys(names, 1), settings.topics).pairs}
    for topic in topics:
        if topic not in known:
            raise ConfigError(f"{topic}: no such topic is mirrored by {settings.flow}{did_you_mean(topic, known)}")
    return paused
