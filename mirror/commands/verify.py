"""`mirror verify`: is the copy equal? A line for each topic, each difference by name, and an exit code.

Decision: what takes less than `SPARK_BYTES` to read is compared in this process, by the very code that tasks of Spark
run (`verify.flow.prove`): to start Spark takes seconds, in which one core compares gigabytes. Under
`spark-submit`, where it is there already, and with `--spark`, the size does not matter.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from mirror.admin.client import Admin
from mirror.admin.history import gone_topics
from mirror.admin.topics import plan_topics
from mirror.admin.values import TopicInfo
from mirror.commands.tables import console, count, print_json
from mirror.commands.verifypage import page
from mirror.commands.verifyview import as_dict, rendered
from mirror.config import Settings
from mirror.errors import ConfigError, ExitCode
from mirror.names import did_you_mean
from mirror.observe import logs
from mirror.offsets.firstseen import FirstSeen, seen_in
from mirror.offsets.journal import Journal, newest
from mirror.offsets.runlog import Indexes
from mirror.offsets.starts import starts_in
from mirror.policy.selection import TopicPair, select
from mirror.verify.flow import SHARES_AT_ONCE, Moves, Proof, Proved, Watch, plan_proof, prove, run_proof
from mirror.verify.report import Difference, Gone, Kind, Pair, VerifyReport
from mirror.verify.saved import SavedProof
from mirror.wire.cluster import Cluster, Endpoint, TopicPartition

#: Bytes to read of the source from which on Spark is worth its start.
SPARK_BYTES: Final = 4 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """How to prove. `spark`: with it or without, by size where None; `file` keeps the ranges that are finished, for a
    proof that is interrupted: whoever has the report safe removes it.
    """

    spark: bool | None = None
    file: Path | None = None


def verify_flow(
    settings: Settings,
    topics: Sequence[str] | None = None,
    watch: Watch | None = None,
    means: Means = Means(),
) -> VerifyReport:
    """Compare the flow's topics, or those of them with the given source names, as they are now. Writes to no cluster.

    Raises ConfigError for a name that the flow does not mirror, or a file that is of another proof, PreflightError
    where `mirror run` would find no topics, and ClusterError.
    """
    began = time.monotonic()
    source, target = Admin(settings.source), Admin(settings.target)
    every = _pairs(source, target, settings)
    pairs = _selected(every, topics)
    there = target.describe(pair.target for pair in pairs)
    known = asyncio.run(_recorded(settings, there))
    moves = Moves(settings.flow, known.indexes) if settings.topics.offsets == "translate" else None
    partitions = [
        Pair(TopicPartition(pair.source, index), TopicPartition(pair.target, index))
        for pair in pairs
        for index in range(min(pair.partitions, _partitions(there.get(pair.target))))
    ]
    ends = Endpoint.of(settings.source), Endpoint.of(settings.target)
    proof, kept = asyncio.run(plan_proof(*ends, partitions, settings.flow, moves, means.file, known.since))
    spark = _needs_spark(proof, means.spark)
    try:
        if spark:
            reports, unread = _on_spark(settings, proof, kept, watch)
        else:
            reports, unread = asyncio.run(run_proof(proof, prove, SHARES_AT_ONCE, kept, watch))
    finally:
        if kept:
            kept.close()
    mirrored = {pair.source for pair in every}
    gone = {} if topics else gone_topics(settings, target, known.seen, mirrored, proof.plan.subject.source_id)
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
        source_id=proof.plan.subject.source_id,
        target_id=proof.plan.subject.target_id,
        begun_ms=proof.plan.begun_ms,
        spark=spark,
        resumed=kept.resumed if kept else 0,
        unread=unread,
        gone=tuple(Gone(topic, copy) for copy, topic in gone.items()),
    )


def _needs_spark(proof: Proof, asked: bool | None) -> bool:
    if asked is not None:
        return asked
    return "PYSPARK_GATEWAY_PORT" in os.environ or proof.size >= SPARK_BYTES


def _on_spark(settings: Settings, proof: Proof, kept: SavedProof | None, watch: Watch | None) -> Proved:
    from mirror.spark.proof import ProofOnSpark  # noqa: PLC0415 -- who needs no Spark does not wait for its import

    with ProofOnSpark(settings.spark, settings.flow, max(1, len(proof.plan.ranges))) as engine:
        return asyncio.run(run_proof(proof, engine.prove, engine.slots, kept, watch))


@dataclass(frozen=True, slots=True)
class _Recorded:
    """What the journal tells: where offsets moved to and where the flow began, by target partition, and as what its
    topics were first seen, by target topic.
    """

    indexes: Indexes
    since: Mapping[TopicPartition, int]
    seen: Mapping[str, FirstSeen]


async def _recorded(settings: Settings, topics: Iterable[str]) -> _Recorded:
    """Where the flow began for target `topics`, and all else that the journal tells of any."""
    async with Cluster(Endpoint.of(settings.target)) as target:
        journal = Journal(target, settings.flow)
        await target.refresh([journal.partition.topic, *topics])
        if journal.partition.topic not in target.topics:
            return _Recorded(Indexes(), {}, {})
        entries, _ = await journal.read()
        known = newest(entries)
        return _Recorded(Indexes(entries), starts_in(known, target), seen_in(known))


def verify(
    settings: Settings,
    topics: Sequence[str],
    *,
    as_json: bool,
    report_file: Path | None = None,
    resume: Path | None = None,
    spark: bool | None = None,
) -> ExitCode:
    """Verify and print; the exit code. `report_file` gets the report as a page; beside it, or in `resume`, finished
    ranges are kept for as long as the proof is not complete.

    Raises MirrorError.
    """
    if report_file is not None:
        check_writable(report_file)
        resume = resume or report_file.with_name(f"{report_file.name}.unfinished")
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
        report = verify_flow(
            settings,
            topics,
            lambda done, total: bar.update(task, advance=done, total=total),
            Means(spark=spark, file=resume),
        )
    if report_file is not None:
        report_file.write_text(page(report), encoding="utf-8")
    if as_json:
        print_json(as_dict(report))
    else:
        console().print(rendered(report))
    if resume is not None:
        resume.unlink(missing_ok=True)  # the proof is complete, and told
    if not report.equal:
        return ExitCode.DIFFERENT
    return ExitCode.CLUSTER if report.unread else ExitCode.DONE


def check_writable(file: Path) -> None:
    """Before hours of reading, and without leaving an empty page. Raises ConfigError."""
    is_new = not file.exists()
    try:
        with file.open("a", encoding="utf-8"):
            pass
        if is_new:
            file.unlink()
    except OSError as problem:
        raise ConfigError(f"--report {file}: {problem.strerror}") from problem


def _pairs(source: Admin, target: Admin, settings: Settings) -> Sequence[TopicPair]:
    selection = select({name: len(info.partitions) for name, info in source.topics().items()}, settings.topics)
    if selection.missing or selection.clashes or selection.illegal or not selection.pairs:
        plan_topics(source, target, settings).raise_refusals()  # in the words in which `mirror run` refuses it
    for pair in selection.pairs:
        if pair.rekeying is not None:
            logs.get("mirror.verify").warning("not_verified", topic=pair.source, reason="a rule re-keys its records")
    return [pair for pair in selection.pairs if pair.rekeying is None]


def _selected(pairs: Sequence[TopicPair], topics: Sequence[str] | None) -> Sequence[TopicPair]:
    if not topics:
        return pairs
    names = [pair.source for pair in pairs]
    for topic in topics:
        if topic not in names:
            hint = did_you_mean(topic, names, most=1) or f"; it mirrors {', '.join(names[:10])}"
            raise ConfigError(f"--topic {topic}: the flow mirrors no source topic of that name{hint}")
    return [pair for pair in pairs if pair.source in topics]


def _partitions(found: TopicInfo | None) -> int:
    return len(found.partitions) if found else 0


def _misfit(pair: TopicPair, found: TopicInfo | None) -> Difference:
    there = count(len(found.partitions), "partition") if found else f"no topic {pair.target}"
    return Difference(pair.source, -1, -1, Kind.TOPIC, count(pair.partitions, "partition"), there)
