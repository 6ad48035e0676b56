"""`mirror verify`: is the copy equal? A line for each topic, each difference by name, and an exit code."""

from __future__ import annotations

import asyncio
import difflib
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any, Final

from rich.console import Console, Group
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from mirror.admin.client import Admin, TopicInfo
from mirror.admin.topics import plan_topics
from mirror.commands.tables import console, count, number, print_json, size, table
from mirror.config import Settings
from mirror.errors import ConfigError, ExitCode
from mirror.offsets.journal import Journal
from mirror.offsets.ledgers import indexes_of
from mirror.offsets.runlog import Indexes
from mirror.policy.selection import TopicPair, select
from mirror.verify.flow import Moves, Watch, verify_partitions
from mirror.verify.report import Difference, Kind, Pair, TopicReport, VerifyReport
from mirror.wire.cluster import Cluster, Endpoint, TopicPartition

#: Differences of one partition that a terminal gets; `--json` gives all that were kept.
SHOWN: Final = 20


def verify_flow(settings: Settings, topics: Sequence[str] | None = None, watch: Watch | None = None) -> VerifyReport:
    """Compare the flow's topics, or those of them with the given source names, as they are now. Writes nothing.

    Raises ConfigError for a name that the flow does not mirror, PreflightError where `mirror run` would find no topics,
    and ClusterError.
    """
    began = time.monotonic()
    source, target = Admin(settings.source), Admin(settings.target)
    pairs = _selected(_pairs(source, target, settings), topics)
    there = target.describe(pair.target for pair in pairs)
    moves = Moves(settings.flow, asyncio.run(_recorded(settings))) if settings.topics.offsets == "translate" else None
    reports = asyncio.run(
        verify_partitions(
            Endpoint.of(settings.source),
            Endpoint.of(settings.target),
            [
                Pair(TopicPartition(pair.source, index), TopicPartition(pair.target, index))
                for pair in pairs
                for index in range(min(pair.partitions, _partitions(there.get(pair.target))))
            ],
            watch,
            moves,
        )
    )
    return VerifyReport(
        flow=settings.flow,
        source=settings.source.alias,
        target=settings.target.alias,
        partitions=tuple(reports),
        misfits=tuple(
            _misfit(pair, found) for pair in pairs if _partitions(found := there.get(pair.target)) != pair.partitions
        ),
        seconds=time.monotonic() - began,
        moved=moves is not None,
    )


async def _recorded(settings: Settings) -> Indexes:
    """Where offsets moved to, as far as the journal tells."""
    async with Cluster(Endpoint.of(settings.target)) as target:
        journal = Journal(target, settings.flow)
        await target.refresh([journal.partition.topic])
        return await indexes_of(journal)


def verify(settings: Settings, topics: Sequence[str], *, as_json: bool) -> ExitCode:
    """Verify and print; the exit code. Raises MirrorError."""
    with Progress(
        TextColumn("[bold]verifying"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=as_json or not sys.stderr.isatty(),
    ) as bar:
        task = bar.add_task("", total=None)
        report = verify_flow(settings, topics, lambda done, total: bar.update(task, advance=done, total=total))
    if as_json:
        print_json(as_dict(report))
    else:
        console().print(rendered(report))
    return ExitCode.DONE if report.equal else ExitCode.DIFFERENT


def as_dict(report: VerifyReport) -> dict[str, Any]:
    """The report for `--json`."""
    return {
        "flow": report.flow,
        "source": report.source,
        "target": report.target,
        "equal": report.equal,
        "different": report.different,
        "offsets": "translate" if report.moved else "preserve",
        "seconds": round(report.seconds, 3),
        "topics": [{**asdict(topic), "equal": topic.equal} for topic in report.topics],
        "partitions": [
            {
                **{name: value for name, value in asdict(one).items() if name not in ("pair", "differences")},
                "topic": one.pair.source.topic,
                "target": one.pair.target.topic,
                "partition": one.pair.source.partition,
            }
            for one in report.partitions
        ],
        "differences": [{**asdict(one), "text": str(one)} for one in report.differences],
    }


def rendered(report: VerifyReport) -> Group:
    """The report for people."""
    lines = table(
        "topic",
        ("parts", "right"),
        ("codec", "no_wrap"),
        ("records", "right"),
        ("batches", "right"),
        ("identical", "right"),
        ("size", "right"),
        ("offsets", "no_wrap"),
        ("lag", "right"),
    )
    for topic in report.topics:
        lines.add_row(
            _title(topic),
            number(topic.partitions),
            "\n".join(topic.codecs),
            number(topic.records),
            number(topic.batches),
            _share(topic),
            size(topic.bytes),
            _offsets(topic, moved=report.moved),
            Text(number(topic.lag), "yellow" if topic.lag else ""),
        )
    return Group(lines, Text(), *_notes(report), *_differences(report), _verdict(report))


def _offsets(topic: TopicReport, *, moved: bool) -> Text:
    if not topic.offsets_equal:
        return Text("differ", "red")
    return Text("translated" if moved else "equal", "green")


def _pairs(source: Admin, target: Admin, settings: Settings) -> Sequence[TopicPair]:
    selection = select({name: len(info.partitions) for name, info in source.topics().items()}, settings.topics)
    if selection.missing or selection.clashes or selection.illegal or not selection.pairs:
        plan_topics(source, target, settings).raise_refusals()  # in the words in which `mirror run` refuses it
    return selection.pairs


def _selected(pairs: Sequence[TopicPair], topics: Sequence[str] | None) -> Sequence[TopicPair]:
    if not topics:
        return pairs
    names = [pair.source for pair in pairs]
    for topic in topics:
        if topic not in names:
            near = difflib.get_close_matches(topic, names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it mirrors {', '.join(names[:10])}"
            raise ConfigError(f"--topic {topic}: the flow mirrors no source topic of that name; {hint}")
    return [pair for pair in pairs if pair.source in topics]


def _partitions(found: TopicInfo | None) -> int:
    return len(found.partitions) if found else 0


def _misfit(pair: TopicPair, found: TopicInfo | None) -> Difference:
    there = count(len(found.partitions), "partition") if found else f"no topic {pair.target}"
    return Difference(pair.source, -1, -1, Kind.TOPIC, count(pair.partitions, "partition"), there)


def _title(topic: TopicReport) -> str:
    return topic.topic if topic.target in ("", topic.topic) else f"{topic.topic} → {topic.target}"


def _share(topic: TopicReport) -> Text:
    if not topic.batches:
        return Text("-", "dim")
    if topic.identical == topic.batches:
        return Text("all", "green")
    same = topic.identical + topic.own_timestamps
    if same == topic.batches:
        return Text("but times", "yellow")
    if same + topic.rewritten == topic.batches:
        return Text(f"all but\n{number(topic.rewritten)}", "green" if topic.identical == same else "yellow")
    percent = 100 * (same + topic.rewritten) / topic.batches
    return Text(f"{min(percent, 99.9):.1f} %", "red")  # never rounded up to what it is not


def _notes(report: VerifyReport) -> list[Text]:
    notes = Counter((one.pair.source.topic, note) for one in report.partitions for note in one.notes)
    return [
        Text(f"note: {topic}, {count(partitions, 'partition')}: {note}", "yellow")
        for (topic, note), partitions in notes.items()
    ]


def _differences(report: VerifyReport) -> list[Text]:
    found: list[Text] = []
    for _, group in groupby(report.differences, key=lambda one: (one.topic, one.partition)):
        found += [Text(str(one), "red") for one in list(group)[:SHOWN]]
    more = report.different - len(found)
    if more:
        found.append(Text(f"and {count(more, 'difference')} more: --json lists the first of each partition", "red"))
    return found


def _verdict(report: VerifyReport) -> Text:
    sides = f"{report.source} and {report.target}"
    batches = sum(one.batches for one in report.partitions)
    lag = sum(one.lag for one in report.partitions)
    amount = size(sum(one.bytes for one in report.partitions))
    verdict = Text(f"{report.flow}: ", "bold")
    if report.equal and not batches:
        verdict.append(f"nothing to compare between {sides}", "bold yellow")
    elif report.equal:
        verdict.append(f"{sides} are equal", "bold green")
        if any(one.own_timestamps for one in report.partitions):
            verdict.append(", but for timestamps that the target set itself", "yellow")
    else:
        verdict.append(f"{sides} differ: {count(report.different, 'difference')}", "bold red")
    rewritten = sum(one.rewritten for one in report.partitions)
    hidden = sum(one.hidden for one in report.partitions)
    compared = [count(batches, "batch", "batches")]
    compared += [f"{number(rewritten)} of them rewritten"] if rewritten else []
    compared += [f"{number(hidden)} without records for a reader left out"] if hidden else []
    verdict.append(f" ({', '.join(compared)}, {amount} compared in {report.seconds:.1f} s)")
    if lag:
        verdict.append(f"; {count(lag, 'record')} not mirrored yet", "yellow")
    return verdict
