"""The mirror itself, and what bounds it: its writer fed from memory."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

import yaml

from mirror.bench.arms import GRACE_S, Job, Rekeying
from mirror.bench.records import create
from mirror.bench.result import Arm as Facts
from mirror.bench.shapes import Shape
from mirror.demo.bound import Bound
from mirror.spark.plan import lane_count

#: Processes of a replay: as many as the mirror's planner makes lanes of four partitions on this machine.
REPLAY_LANES: Final = lane_count(None, 4)


def settings(
    run: str,
    source: str,
    target: str,
    topic: str,
    *,
    translate: bool = False,
    rekeys: Rekeying | None = None,
    spark: Mapping[str, Any] | None = None,
) -> str:
    """The mirror's configuration for one copy (pure); everything else is as it is by default."""
    topics: dict[str, Any] = {"include": [topic], "naming": {"prefix": f"{run}."}}
    if translate:
        topics["offsets"] = "translate"
    if rekeys:
        rule = {"rekey": f"get_json_object(string(value), '$.{rekeys.field}')", "partitions": rekeys.partitions}
        topics["rules"] = [{"match": topic, **rule}]
    found = {
        "name": run,
        "source": {"alias": "a", "bootstrap.servers": source},
        "target": {"alias": "b", "bootstrap.servers": target},
        "topics": topics,
    }
    if spark:
        found["spark"] = dict(spark)
    return str(yaml.safe_dump(found, sort_keys=False))


class Mirror:
    """`mirror run`: batches keep their compressed bytes, only their headers are written anew."""

    ends_itself, keeps_timestamps = True, True
    rekeys: Rekeying | None = None
    _translate = False

    @property
    def facts(self) -> Facts:
        """The normal case."""
        return Facts(
            name="mirror",
            title="mirror",
            kind="mirror",
            what="`mirror run --once` with its defaults: batches keep their compressed bytes, headers are restamped.",
            settings=settings("RUN", "SOURCE", "TARGET", "TOPIC", translate=self._translate),
        )

    def fits(self, shape: Shape) -> bool:
        """Batches with holes cannot stay as they are."""
        return not shape.compacted

    def prepare(self) -> None:
        """Nothing is needed."""

    def target_topic(self, job: Job) -> str:
        """Each copy has a prefix of its own."""
        return f"{job.run}.{job.topic}"

    def start(self, job: Job) -> Bound:
        """`mirror run --once`, or without `--once` a live one."""
        if job.replicas > 1:  # a topic that it makes itself has as many as the source's
            create(job.target, self.target_topic(job), job.shape.partitions, job.replicas)
        file = job.folder / "flow.yaml"
        names = (job.run, job.source, job.target, job.topic)
        told = settings(*names, translate=self._translate, rekeys=self.rekeys, spark=job.spark)
        file.write_text(told, encoding="utf-8")
        command = [sys.executable, "-m", "mirror", "run", str(file), *(() if job.live else ("--once",))]
        scratch = {"SPARK_LOCAL_DIRS": str(job.folder)}
        return Bound(command, job.folder / "log", grace=GRACE_S, environment=scratch)


class Rewriting(Mirror):
    """`mirror run` where compaction left holes in the batches, so that each is decompressed and compressed again."""

    _translate = True

    @property
    def facts(self) -> Facts:
        """The last resort."""
        return Facts(
            name="mirror-rewrite",
            title="mirror, rewriting",
            kind="mirror",
            what="`mirror run --once` where cleaning left holes in the batches: each is decompressed, closed up and "
            "compressed again with the same codec.",
            settings=settings("RUN", "SOURCE", "TARGET", "TOPIC", translate=self._translate),
        )

    def fits(self, shape: Shape) -> bool:
        """Where there are holes."""
        return shape.compacted


class Rekey(Mirror):
    """`mirror run` with a rule: what of the mirror is a query of Spark's, and handles every record."""

    rekeys = Rekeying("user", 12)

    @property
    def facts(self) -> Facts:
        """The other query."""
        return Facts(
            name="mirror-rekey",
            title="mirror, re-keying",
            kind="mirror",
            what="`mirror run --once` with a rule: a field of each record becomes its key, in 12 partitions.",
            settings=settings("RUN", "SOURCE", "TARGET", "TOPIC", rekeys=self.rekeys),
        )

    def fits(self, shape: Shape) -> bool:
        """On the first workload alone."""
        return super().fits(shape) and shape.batch_bytes >= 1_000_000


class Replay:
    """The mirror's writer alone, with the batches in memory before the clock starts: no source, no Spark."""

    ends_itself, keeps_timestamps, rekeys = True, True, None

    @property
    def facts(self) -> Facts:
        """The limit."""
        return Facts(
            name="replay",
            title="replay from memory",
            kind="limit",
            what="The mirror's writer alone, fed from memory: what the target takes when nothing has to be read.",
            settings=f"{REPLAY_LANES} processes, 8 MB in flight each\n",
        )

    def fits(self, shape: Shape) -> bool:
        """Batches as they are stored, of which none may have to be rewritten or left out."""
        return not shape.compacted and not shape.transactional

    def prepare(self) -> None:
        """Nothing is needed."""

    def target_topic(self, job: Job) -> str:
        """By the run's name."""
        return f"{job.run}.{job.topic}"

    def start(self, job: Job) -> Bound:
        """Load, then append."""
        topic = self.target_topic(job)
        create(job.target, topic, job.shape.partitions, job.replicas)
        command = [sys.executable, "-m", "mirror.bench.replay", job.source, job.target, job.topic, topic]
        return Bound([*command, str(job.shape.partitions), str(REPLAY_LANES)], job.folder / "log", grace=GRACE_S)
