"""One copy of a source topic by one arm: started, measured, compared with its source, and removed again."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from mirror.errors import BenchError, UnequalCopy
from mirror.lab.bench import rekeyed
from mirror.lab.bench.arms import Arm, Job
from mirror.lab.bench.content import Content, content
from mirror.lab.bench.measuring import Goal, Watch, settle
from mirror.lab.bench.result import Measured, Run, Workload
from mirror.lab.bench.workloads import Shape, fill
from mirror.lab.embedded import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A topic that was filled, and what a reader gets from it."""

    cluster: Cluster
    topic: str
    shape: Shape
    workload: Workload
    content: Content
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What may be changed of a copy: the mirror's section `spark`, processes of a Spark cluster that count as well, and
    the replicas of the topic on the target.
    """

    spark: Mapping[str, Any] = field(default_factory=dict)
    beside: Sequence[int] = ()
    replicas: int = 1


USUAL: Final = Settings()


def source_of(cluster: Cluster, shape: Shape, topic: str = "") -> Source:
    """Make and fill a topic, and read it once. Raises ClusterUnreachable, BenchError."""
    topic = topic or shape.name
    found = fill(cluster.bootstrap, topic, shape)
    held = content(cluster.bootstrap, topic, shape.partitions)
    if held.records != found.records:
        raise BenchError(f"{topic}: batches hold {found.records:,} records, and a consumer gets {held.records:,}")
    workload = shape.filled(
        records=found.records, batches=found.batches, uncompressed_bytes=held.bytes, stored_bytes=found.bytes
    )
    return Source(cluster=cluster, topic=topic, shape=shape, workload=workload, content=held, end=found.end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """What a copy took, whether it is equal to its source, and what that was concluded from."""

    measured: Measured
    equal: bool
    checked: str


def copied(arm: Arm, source: Source, target: Cluster, run: str, settings: Settings = USUAL) -> tuple[Measured, str]:
    """One copy that counts: as `attempted`, and raises UnequalCopy where it is not equal."""
    copy = attempted(arm, source, target, run, settings)
    insist(arm, source, copy)
    return copy.measured, copy.checked


def insist(arm: Arm, source: Source, copy: Copy) -> None:
    """Raises UnequalCopy where a copy does not count."""
    if not copy.equal:
        raise UnequalCopy(f"{source.topic}: {arm.facts.name}: its copy is not equal to the source. {copy.checked}")


def attempted(arm: Arm, source: Source, target: Cluster, run: str, settings: Settings = USUAL) -> Copy:
    """One copy under the name `run`, which none before it had; its topic is gone afterwards. Raises BenchError,
    EmbeddedError.
    """
    shape, name = source.shape, f"{source.topic}: {arm.facts.name}"
    with tempfile.TemporaryDirectory(prefix="mirror-bench-") as folder:
        job = Job(
            run=run,
            source=source.cluster.bootstrap,
            target=target.bootstrap,
            topic=source.topic,
            shape=shape,
            folder=Path(folder),
            spark=settings.spark,
            replicas=settings.replicas,
        )
        topic = arm.target_topic(job)
        partitions = arm.rekeys.partitions if arm.rekeys else shape.partitions
        goal = Goal(
            topic=topic,
            partitions=partitions,
            # Where offsets are equal there are markers, too; that all is there is checked record by record.
            end=source.workload.records,
            stored_bytes=source.workload.stored_bytes,
        )
        settle()
        began = time.monotonic()
        try:
            with arm.start(job) as process:
                measured = Watch(process, began, source.cluster, target, goal, settings.beside).measure(
                    ends_itself=arm.ends_itself
                )
            equal, checked = _compared(arm, source, target.bootstrap, topic)
        except BenchError as error:
            raise BenchError(f"{name}: {error}") from None
        finally:
            removed(target, topic)
    return Copy(measured=measured, equal=equal, checked=checked)


def _compared(arm: Arm, source: Source, target: str, topic: str) -> tuple[bool, str]:
    partitions = source.shape.partitions
    if arm.rekeys is None:
        return source.content.checked(content(target, topic, partitions), timestamps=arm.keeps_timestamps)
    its = (target, topic, arm.rekeys.partitions)
    return rekeyed.compared((source.cluster.bootstrap, source.topic, partitions), its, arm.rekeys.field)


def run_of(arm: Arm, source: Source, copy: Copy, *, round_: int, turn: int) -> Run:
    """As the result holds it (pure)."""
    return Run(
        workload=source.workload.name,
        arm=arm.facts.name,
        round=round_,
        turn=turn,
        **asdict(copy.measured),
        records=source.workload.records,
        equal=copy.equal,
        checked=copy.checked,
    )


def removed(cluster: Cluster, topic: str) -> None:
    """Take a topic away, so that the next copy finds the disk as this one did."""
    admin = AdminClient(
        {"bootstrap.servers": cluster.bootstrap, "log_level": 0}
    )  # its answers come as long as it lives
    for deleted in admin.delete_topics([topic]).values():
        with suppress(KafkaException):  # what stays takes room, and nothing else
            deleted.result()
