"""One copy of source topics by one arm: started, measured, compared with its source, and removed again."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from mirror.errors import BenchError, UnequalCopy
from mirror.lab.bench.arms import Arm, Job
from mirror.lab.bench.content import Content, Topics, compare_rekeyed, content
from mirror.lab.bench.measuring import CopyGoal, Watch, settle
from mirror.lab.bench.result import Measured, MeasuredRun, Workload
from mirror.lab.bench.workloads import Shape, fill
from mirror.lab.embedded import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Topics that were filled."""

    cluster: Cluster
    topics: Topics
    shape: Shape
    workload: Workload
    content: Content


def source_of(cluster: Cluster, shape: Shape, *names: str) -> Source:
    """Make and fill topics, and read them once. Raises ClusterUnreachable, BenchError."""
    topics = Topics(cluster.bootstrap, names or shape.topic_names, shape.partitions)
    found = [fill(cluster.bootstrap, topic, shape) for topic in topics.names]
    held, records = content(topics), sum(topic.records for topic in found)
    if held.records != records:
        raise BenchError(f"{shape.name}: batches hold {records:,} records, and a consumer gets {held.records:,}")
    workload = shape.filled(
        records=records,
        batches=sum(topic.batches for topic in found),
        uncompressed_bytes=held.bytes,
        stored_bytes=sum(topic.bytes for topic in found),
    )
    return Source(cluster=cluster, topics=topics, shape=shape, workload=workload, content=held)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRun:
    """One copy."""

    measured: Measured
    equal: bool  # to its source
    checked: str  # what that was concluded from


def copied(arm: Arm, source: Source, target: Cluster, run: str) -> Measured:
    """Copy as `attempted` does. Raises UnequalCopy where the copy is not equal."""
    copy = attempted(arm, source, target, run)
    insist(arm, source, copy)
    return copy.measured


def insist(arm: Arm, source: Source, copy: CopyRun) -> None:
    """Raises UnequalCopy where a copy does not count."""
    if not copy.equal:
        raise UnequalCopy(f"{source.shape.name}: {arm.name}: its copy is not equal to the source. {copy.checked}")


def attempted(arm: Arm, source: Source, target: Cluster, run: str, *, keep: bool = False) -> CopyRun:
    """Copy under the name `run`, which no copy before had; its topics are gone afterwards, unless it is to `keep` them.

    Raises BenchError, EmbeddedError.
    """
    with tempfile.TemporaryDirectory(prefix="mirror-bench-") as folder:
        job = Job(
            run=run,
            source=source.cluster.bootstrap,
            target=target.bootstrap,
            topics=source.topics.names,
            shape=source.shape,
            folder=Path(folder),
        )
        copy = Topics(target.bootstrap, job.copies, arm.partitions(source.shape))
        goal = CopyGoal(
            topics=copy,
            # Where offsets are equal there are markers, too; that all is there is checked record by record.
            end=source.workload.records,
        )
        settle()
        began = time.monotonic()
        try:
            with arm.start(job) as process:
                watch = Watch(process, began, source.cluster, target, goal, arm.beside)
                measured = watch.measure(ends_itself=arm.ends_itself)
            if arm.rekeys:
                equal, checked = compare_rekeyed(source.topics, copy, arm.rekeys.field)
            else:
                equal, checked = source.content.checked(content(copy), timestamps=arm.keeps_timestamps)
        except BenchError as error:
            raise BenchError(f"{source.shape.name}: {arm.name}: {error}") from None
        finally:
            if not keep:
                removed(target, copy.names)
    return CopyRun(measured=measured, equal=equal, checked=checked)


def run_of(arm: Arm, source: Source, copy: CopyRun, *, round_: int, turn: int) -> MeasuredRun:
    """Return a copy as the result holds it (pure)."""
    return MeasuredRun(
        workload=source.workload.name,
        arm=arm.name,
        round=round_,
        turn=turn,
        **asdict(copy.measured),
        records=source.workload.records,
        equal=copy.equal,
        checked=copy.checked,
    )


def removed(cluster: Cluster, topics: Sequence[str]) -> None:
    """Take topics away, so that the next copy finds the disk as this one did."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    for deleted in admin.delete_topics(list(topics)).values():  # answers come as long as the client lives
        with suppress(KafkaException):  # what stays takes room, and nothing else
            deleted.result()
