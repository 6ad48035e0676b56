"""`mirror inspect` of a live topic: its batches as a broker hands them out, from the log's start to its end of now.

Up to the last stable offset a partition is read as the mirror reads it, committed, with the broker's own word on
aborted transactions. Behind that, up to the high watermark, it is read uncommitted, and every transaction there is
undecided.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.text import Text

from mirror import config as configuration
from mirror.commands.inspect_view import InspectOptions, LogView
from mirror.config import ClusterSettings
from mirror.errors import ConfigError, ExitCode
from mirror.kafka.cluster import Cluster, Endpoint, TopicPartition
from mirror.kafka.log_reader import ReadLog
from mirror.kafka.queries import EARLIEST, LATEST, READ_COMMITTED, list_offset
from mirror.policy.rules import Rules
from mirror.records.transactions import Outcome
from mirror.topics.apply import DEFAULT_RULES, rules_for


def inspect_topic(
    target: str, options: InspectOptions, *, config: Path | None, side: str, bootstrap: str | None
) -> ExitCode:
    """Show TOPIC, or TOPIC:PARTITION; DATA_AT_RISK where a batch is damaged. Raises ConfigError and ClusterError."""
    topic, partition = parse_target(target)
    rules, judged_by = Rules(), DEFAULT_RULES
    if config is not None:
        settings = configuration.load(config)
        cluster = settings.target if side == "target" else settings.source
        if side == "source":
            rules, judged_by = rules_for(settings, topic)
    else:
        cluster = cluster_at(bootstrap or "")

    async def inspect() -> bool:
        async with Cluster(Endpoint.of(cluster)) as asked:
            await asked.refresh((topic,))
            known, at_risk = asked.topics.get(topic), False
            for number in chosen(known.leaders if known else (), topic, partition, str(asked)):
                at_risk |= await _inspect_partition(asked, TopicPartition(topic, number), options, rules, judged_by)
        return at_risk

    return ExitCode.DATA_AT_RISK if asyncio.run(inspect()) else ExitCode.DONE


def parse_target(target: str) -> tuple[str, int | None]:
    """A topic, and the partition behind the colon or None for all. Raises ConfigError."""
    topic, colon, number = target.partition(":")
    if not topic or (colon and not (number.isascii() and number.isdigit() and len(number) < 10)):
        raise ConfigError(f"{target}: a topic is named as TOPIC, or as TOPIC:PARTITION with a number")
    return topic, int(number) if colon else None


def chosen(there: Iterable[int], topic: str, partition: int | None, place: str, hint: str = "") -> list[int]:
    """The partitions asked for, in order, of those of a topic that are `there`; None asks for all. Raises ConfigError
    where there is none.
    """
    numbers = sorted(there)
    if not numbers:
        raise ConfigError(f"{place}: no topic {topic}{hint}")
    if partition is None:
        return numbers
    if partition not in numbers:
        raise ConfigError(f"{place}: no partition {partition} of {topic}")
    return [partition]


def cluster_at(bootstrap: str) -> ClusterSettings:
    """A cluster of which the command line gives the addresses alone. Raises ConfigError."""
    try:
        return configuration.cluster({"bootstrap.servers": bootstrap}, "unnamed")
    except ConfigError as problem:
        raise ConfigError(f"--bootstrap {bootstrap}: {problem}") from problem


async def _inspect_partition(
    cluster: Cluster, partition: TopicPartition, options: InspectOptions, rules: Rules, judged_by: str
) -> bool:
    """Show one partition; whether anything in it is damaged."""
    start, stable, end = await asyncio.gather(
        list_offset(cluster, partition, EARLIEST),
        list_offset(cluster, partition, LATEST, READ_COMMITTED),
        list_offset(cluster, partition, LATEST),
    )
    identity = {"topic": partition.topic, "partition": partition.partition}
    view = LogView(options, str(partition), identity, rules, start)
    log = ReadLog(cluster, partition, stable, end)
    async for raw, outcome in log.batches(max(start, options.first)):
        view.take(raw, outcome)
        if view.is_full:
            break  # the rest would have to be fetched
    if log.damage and log.damage.batch:
        view.take(log.damage.batch, Outcome.NONE, crc_holds=False)
    damage = log.damage and {"kind": log.damage.kind, "detail": log.damage.detail}
    offsets: dict[str, Any] = {"log_start": start, "last_stable": stable, "log_end": end, "next_offset": log.at}
    ends = f"the log begins at {start:,} and ends at {end:,}"
    notes = [Text(ends if stable == end else f"{ends}; open transactions from {stable:,} on")]
    notes.append(Text(f"verdicts by {judged_by}"))
    if log.damage:
        notes.append(Text(f"{log.damage.kind} behind offset {log.at - 1:,}: {log.damage.detail}", "bold red"))
    elif log.at < end:
        notes.append(Text(f"read up to offset {log.at - 1:,}: --limit N or --from OFFSET for more, --summary for all"))
    view.close({**offsets, "rules": judged_by, "damage": damage}, notes)
    return log.damage is not None or view.totals.at_risk
