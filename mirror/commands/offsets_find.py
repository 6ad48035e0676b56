"""`mirror offsets find`: the first offset of each partition whose record is of a time or later, live or in files.

A cluster is asked (ListOffsets); files are searched as `segments/time_lookup.py` says. Both count markers and the
records of aborted transactions, and both name the first record by offset: what lies before it is older.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.text import Text

from mirror import config as configuration
from mirror.commands.inspect_topic import chosen, cluster_at, parse_target
from mirror.commands.inspect_view import iso
from mirror.config import ClusterSettings
from mirror.errors import ConfigError, ExitCode
from mirror.journal.entries import moment
from mirror.kafka.cluster import Cluster, Endpoint, TopicPartition
from mirror.kafka.queries import EARLIEST, LATEST, first_since, list_offset, may_have_since
from mirror.names import did_you_mean
from mirror.rendering import console, count, number, plain, print_json, table
from mirror.segments.replica_sets import partitions_in
from mirror.segments.time_lookup import Lookup, first_in


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Where to look: a flow's file and which of its clusters, or a cluster's address, or folders; those with a `scan`
    of every segment or not.
    """

    config: Path | None = None
    side: Literal["source", "target"] | None = None
    bootstrap: str | None = None
    folders: tuple[Path, ...] = ()
    scan: bool = False


@dataclass(frozen=True, slots=True)
class FoundOffset:
    """What was found of one partition; in files, of its replica in `folder`."""

    at: TopicPartition
    found: Lookup
    folder: Path | None = None

    @property
    def at_risk(self) -> bool:
        """There is more damage than what a crash leaves at the end of a log."""
        return bool(self.found.damage) and not self.found.is_torn


def find(target: str, time: str, where: Where, *, as_json: bool) -> ExitCode:
    """Print the first offset of `time` or later of TOPIC, or TOPIC:PARTITION; DATA_AT_RISK where files are damaged
    before there is one.

    Raises ConfigError for what is not there, is no time or does not go together, and ClusterError.
    """
    try:
        when = moment(configuration.instant(time))
    except ValueError:
        raise ConfigError(f"--time {time}: must be an ISO time such as 2026-01-31T12:00:00Z") from None
    topic, partition = parse_target(target)
    if (where.config is not None) + (where.bootstrap is not None) + bool(where.folders) != 1:
        raise ConfigError("say where to look by one of --config, --bootstrap and --from")
    if where.side and where.config is None:
        raise ConfigError("--side chooses between the clusters of a --config")
    if where.scan and not where.folders:
        raise ConfigError("--scan is about the files of --from")
    if where.folders:
        answers = _in_files(where, topic, partition, when)
    else:
        answers = asyncio.run(_on_cluster(_cluster(where), topic, partition, when))
    if as_json:
        print_json({"topic": topic, "time": when, "partitions": [_as_dict(answer) for answer in answers]})
    else:
        _show(answers)
    return ExitCode.DATA_AT_RISK if any(answer.at_risk for answer in answers) else ExitCode.DONE


def _cluster(where: Where) -> ClusterSettings:
    if where.config is None:
        return cluster_at(where.bootstrap or "")
    flow = configuration.load(where.config)
    return flow.target if where.side == "target" else flow.source


async def _on_cluster(settings: ClusterSettings, topic: str, partition: int | None, when: int) -> list[FoundOffset]:
    async with Cluster(Endpoint.of(settings)) as cluster:
        await cluster.refresh((topic,))
        known = cluster.topics.get(topic)
        numbers = chosen(known.leaders if known else (), topic, partition, str(cluster))

        async def answer(partition: TopicPartition) -> FoundOffset:
            # asked before: what comes in between may be of that time
            end = await list_offset(cluster, partition, LATEST)
            first = await first_since(cluster, partition, when)
            begin = await list_offset(cluster, partition, EARLIEST) if first is None else end
            if begin < end and await may_have_since(cluster, partition, when):
                raise ConfigError(
                    f"{cluster}: {partition}: its broker does not say where the first record of that time or later is:"
                    f" where it looks, such ones were deleted. What was not begins at offset {begin}; find it in the"
                    " segment files (--from)"
                )
            return FoundOffset(partition, Lookup(first=first, end=end))

        return list(await asyncio.gather(*(answer(TopicPartition(topic, number)) for number in numbers)))


def _in_files(where: Where, topic: str, partition: int | None, when: int) -> list[FoundOffset]:
    there = partitions_in(where.folders)
    hint = did_you_mean(topic, {topic_partition.topic for topic_partition in there})
    numbers = [topic_partition.partition for topic_partition in there if topic_partition.topic == topic]
    folders = ", ".join(map(str, where.folders))
    return [
        FoundOffset(topic_partition, first_in(folder, when, believes=not where.scan), folder)
        for topic_partition in (TopicPartition(topic, one) for one in chosen(numbers, topic, partition, folders, hint))
        for folder in there[topic_partition]
    ]


def _as_dict(answer: FoundOffset) -> dict[str, Any]:
    """One partition for `--json`; `log_end` is given where there is no record of that time."""
    found = answer.found
    fields: dict[str, Any] = {
        "partition": answer.at.partition,
        "offset": found.first and found.first.offset,
        "timestamp": found.first and found.first.timestamp,
        "log_end": None if found.first else found.end,
    }
    if answer.folder is not None:
        fields |= {"folder": str(answer.folder), "trusted_segments": found.trusted, "damage": found.damage or None}
    return fields


def _show(answers: Sequence[FoundOffset]) -> None:
    shown = table(("partition", "no_wrap"), ("offset", "right"), ("time", "no_wrap"), "")
    for answer in answers:
        first = answer.found.first
        cells = (number(first.offset), iso(first.timestamp) or str(first.timestamp)) if first else ("none", "")
        shown.add_row(plain(str(answer.at)), *cells, _remarks(answer))
    console().print(shown)


def _remarks(answer: FoundOffset) -> Text:
    found, remarks = answer.found, []
    if answer.folder is not None:
        remarks.append(plain(str(answer.folder)))
    if found.first is None:
        remarks.append(f"{'sound below' if found.damage else 'the log ends at'} offset {number(found.end)}")
    if found.damage:
        remarks.append(found.damage)
    if found.trusted:
        remarks.append(f"{count(found.trusted, 'segment')} left out by time index; --scan reads all")
    return Text("; ".join(remarks), "bold red" if answer.at_risk else "")
