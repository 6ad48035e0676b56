"""`mirror inspect` of a live topic: its batches as a broker hands them out, from the log's start to its end of now.

Up to the last stable offset a partition is read as the mirror reads it, committed, with the broker's own word on
aborted transactions. Behind that, up to the high watermark, it is read uncommitted, and every transaction there is
undecided.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pydantic
from rich.text import Text

from mirror import config as configuration
from mirror.admin.client import Admin
from mirror.admin.topics import rules_from
from mirror.batch.header import RawBatch
from mirror.batch.segment import Damage, DamageKind, Walk
from mirror.commands.logview import LogView, Wish
from mirror.config import ClusterSettings, Settings
from mirror.errors import ClusterError, ClusterUnreachable, ConfigError, ExitCode
from mirror.policy.outcomes import Outcome, Outcomes
from mirror.policy.rules import Rules
from mirror.policy.selection import selects
from mirror.verify.reader import EMPTY_ANSWERS, EMPTY_PAUSE
from mirror.wire.cluster import Cluster, Endpoint, TopicPartition
from mirror.wire.fetch import Fetched, fetch_at
from mirror.wire.queries import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED, list_offset

FETCH_BYTES: Final = 4 * 1024 * 1024
DEFAULT_RULES: Final = "the mirror's default rules"


def inspect_topic(target: str, wish: Wish, *, config: Path | None, side: str, bootstrap: str | None) -> ExitCode:
    """Show TOPIC, or TOPIC:PARTITION; DATA_AT_RISK where a batch is damaged. Raises ConfigError and ClusterError."""
    topic, partition = parse_target(target)
    rules, judged_by = Rules(), DEFAULT_RULES
    if config is not None:
        settings = configuration.load(config)
        cluster = settings.target if side == "target" else settings.source
        if side == "source":
            rules, judged_by = rules_for(settings, topic)
    else:
        cluster = _at(bootstrap or "")
    return asyncio.run(_inspect(Endpoint.of(cluster), topic, partition, wish, rules, judged_by))


def parse_target(target: str) -> tuple[str, int | None]:
    """A topic, and the partition behind the colon or None for all. Raises ConfigError."""
    topic, colon, number = target.partition(":")
    if not topic or (colon and not (number.isascii() and number.isdigit() and len(number) < 10)):
        raise ConfigError(f"{target}: a topic is named as TOPIC, or as TOPIC:PARTITION with a number")
    return topic, int(number) if colon else None


def rules_for(settings: Settings, topic: str) -> tuple[Rules, str]:
    """The rules of the flow's target topic, and whose they are; the default ones where it has none to give."""
    if not selects(topic, settings.topics):
        return Rules(), f"{DEFAULT_RULES}: the flow does not mirror {topic}"
    name = settings.topics.naming.target_of(topic)
    where = f"{name} on {settings.target.alias}"
    try:
        configs = Admin(settings.target).topic_configs([name]).get(name)
    except ClusterError as problem:
        return Rules(), f"{DEFAULT_RULES}: {where} cannot be read ({problem})"
    if configs is None:
        return Rules(), f"{DEFAULT_RULES}: {where} does not exist yet"
    return rules_from(configs, settings.topics), f"the rules of {where}"


async def _inspect(
    endpoint: Endpoint, topic: str, partition: int | None, wish: Wish, rules: Rules, judged_by: str
) -> ExitCode:
    async with Cluster(endpoint) as cluster:
        await cluster.refresh((topic,))
        known = cluster.topics.get(topic)
        if known is None or (partition is not None and partition not in known.leaders):
            what = f"topic {topic}" if known is None else f"partition {partition} of {topic}"
            raise ConfigError(f"{cluster}: no {what}")
        at_risk = False
        for number in sorted(known.leaders) if partition is None else [partition]:
            at_risk |= await _inspect_partition(cluster, TopicPartition(topic, number), wish, rules, judged_by)
    return ExitCode.DATA_AT_RISK if at_risk else ExitCode.DONE


async def _inspect_partition(
    cluster: Cluster, partition: TopicPartition, wish: Wish, rules: Rules, judged_by: str
) -> bool:
    """Show one partition; whether anything in it is damaged."""
    start, stable, end = await asyncio.gather(
        list_offset(cluster, partition, EARLIEST),
        list_offset(cluster, partition, LATEST, READ_COMMITTED),
        list_offset(cluster, partition, LATEST),
    )
    identity = {"topic": partition.topic, "partition": partition.partition}
    view = LogView(wish, str(partition), identity, rules, start)
    log = Log(cluster, partition, stable, end)
    async for raw, outcome in log.batches(max(start, wish.first)):
        view.take(raw, outcome)
        if view.is_full:
            break  # the rest would have to be fetched
    if log.damage and log.damage.batch:
        view.take(log.damage.batch, Outcome.NONE, crc_holds=False)
    damage = log.damage and {"kind": log.damage.kind, "detail": log.damage.detail}
    told: dict[str, Any] = {"log_start": start, "last_stable": stable, "log_end": end, "next_offset": log.at}
    ends = f"the log begins at {start:,} and ends at {end:,}"
    notes = [Text(ends if stable == end else f"{ends}; open transactions from {stable:,} on")]
    notes.append(Text(f"verdicts by {judged_by}"))
    if log.damage:
        notes.append(Text(f"{log.damage.kind} behind offset {log.at - 1:,}: {log.damage.detail}", "bold red"))
    elif log.at < end:
        notes.append(Text(f"read up to offset {log.at - 1:,}: --limit N or --from OFFSET for more, --summary for all"))
    view.close({**told, "rules": judged_by, "damage": damage}, notes)
    return log.damage is not None or view.totals.at_risk


class Log:
    """A partition from an offset on. `at` is the next offset to fetch; `damage` says why reading ended early."""

    def __init__(self, cluster: Cluster, partition: TopicPartition, stable: int, end: int) -> None:
        self._cluster, self._partition, self._stable, self._end = cluster, partition, stable, end
        self.at = 0
        self.damage: Damage | None = None

    async def batches(self, begin: int) -> AsyncIterator[tuple[RawBatch, Outcome]]:
        """Batches up to the end, or to a damaged one. Raises as `fetch_at` does, and ClusterUnreachable where a leader
        gives nothing for a while.
        """
        self.at, empty = begin, 0
        while self.at < self._end and not self.damage:
            before = self.at
            decided = before < self._stable
            fetched = await self._fetch(READ_COMMITTED if decided else READ_UNCOMMITTED)
            outcomes = Outcomes(fetched.aborted)
            walk = Walk(fetched.records)
            for raw in walk:
                outcome = outcomes.of(raw) if decided else _undecided(raw)
                if raw.header.last_offset < before:
                    continue
                if raw.header.base_offset >= self._end:
                    return
                self.at = raw.header.next_offset
                yield raw, outcome
            if walk.damage and not (walk.damage.kind is DamageKind.PARTIAL and walk.position):
                self.damage = walk.damage
            elif self.at == before:
                empty += 1
                if empty >= EMPTY_ANSWERS:
                    raise ClusterUnreachable(
                        f"{self._cluster}: nothing of {self._partition} at offset {before} below its end {self._end};"
                        " try again when its leader has settled"
                    )
                await asyncio.sleep(EMPTY_PAUSE)
            else:
                empty = 0

    async def _fetch(self, isolation: int) -> Fetched:
        return await fetch_at(self._cluster, self._partition, self.at, max_bytes=FETCH_BYTES, isolation=isolation)


def _undecided(raw: RawBatch) -> Outcome:
    header = raw.header
    return Outcome.UNDECIDED if header.is_transactional and not header.is_control else Outcome.NONE


def _at(bootstrap: str) -> ClusterSettings:
    try:
        return ClusterSettings.model_validate({"alias": "unnamed", "bootstrap.servers": bootstrap})
    except pydantic.ValidationError as problem:
        details = "; ".join(error["msg"] for error in problem.errors(include_url=False, include_input=False))
        raise ConfigError(f"--bootstrap {bootstrap}: {details}") from problem
