"""The ways to copy a topic that are measured beside one another: the mirror and its rivals."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from mirror.driver.scheduling import task_count
from mirror.errors import ConfigError
from mirror.lab.bench.loop import CONSUMER, PRODUCER
from mirror.lab.bench.result import Arm as Facts
from mirror.lab.bench.workloads import Shape, create
from mirror.lab.demo.processes import Bound
from mirror.lab.embedded.jars import KAFKA_VERSION, Module, classpath_of, fetched, jars, java

# --- The ways to copy a topic that are measured beside one another, behind one small interface ------------------------

#: Seconds from SIGTERM to SIGKILL for whatever has to be ended.
GRACE_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One copy to be made. `source` and `target` are bootstrap addresses; `run` is a name that no other copy has, and
    `folder` is its own. `replicas` are those of the topic on the target, and `spark` is laid
    over the mirror's own settings of that section. A `live` copy goes on until it is ended.
    """

    run: str
    source: str
    target: str
    topic: str
    shape: Shape
    folder: Path
    replicas: int = 1
    live: bool = False
    spark: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rekeying:
    """A copy whose records have a field of their JSON values as key, in another number of partitions."""

    field: str
    partitions: int


class Arm(ABC):
    """A way to copy a topic; most end by themselves, keep times and keys, and copy batches as they are."""

    #: A copy that is not live ends when everything is copied; else it is ended once everything is on the target.
    ends_itself: bool = True
    #: The times of the source's records are on the target; else they are not compared.
    keeps_timestamps: bool = True
    #: None where keys and partitions stay as they are.
    rekeys: Rekeying | None = None

    @property
    @abstractmethod
    def facts(self) -> Facts:
        """What it is, with the settings that it runs with."""

    @abstractmethod
    def start(self, job: Job) -> Bound:
        """Begin; the process ends with this one, whatever happens."""

    def fits(self, shape: Shape) -> bool:
        """Return whether it is to copy a topic of this shape."""
        return not (shape.compacted or shape.transactional)

    def prepare(self) -> None:  # noqa: B027 -- most need nothing
        """Fetch what it needs. Raises BenchError."""

    def target_topic(self, job: Job) -> str:
        """Return where its copy comes to lie: each has a prefix of its own."""
        return f"{job.run}.{job.topic}"

    def created(self, job: Job) -> str:
        """Create the target topic, and return its name."""
        topic = self.target_topic(job)
        create(job.target, topic, job.shape.partitions, job.replicas)
        return topic


# --- The mirror itself, and what bounds it ----------------------------------------------------------------------------

#: Processes of a replay: as many as the mirror's planner makes tasks of four partitions on this machine.
REPLAY_TASKS: Final = task_count(None, 4)


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


class Mirror(Arm):
    """`mirror run`: batches keep their compressed bytes, only their headers are written anew."""

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

    def start(self, job: Job) -> Bound:
        """`mirror run --once`, or without `--once` a live one."""
        if job.replicas > 1:  # a topic that it makes itself has as many as the source's
            self.created(job)
        file = job.folder / "flow.yaml"
        names = (job.run, job.source, job.target, job.topic)
        text = settings(*names, translate=self._translate, rekeys=self.rekeys, spark=job.spark)
        file.write_text(text, encoding="utf-8")
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


class Replay(Arm):
    """The mirror's writer alone, with the batches in memory before the clock starts: no source, no Spark."""

    @property
    def facts(self) -> Facts:
        """The limit."""
        return Facts(
            name="replay",
            title="replay from memory",
            kind="limit",
            what="The mirror's writer alone, fed from memory: what the target takes when nothing has to be read.",
            settings=f"{REPLAY_TASKS} processes, 8 MB in flight each\n",
        )

    def start(self, job: Job) -> Bound:
        """Load, then append."""
        topic = self.created(job)
        command = [sys.executable, "-m", "mirror.lab.bench.replay", job.source, job.target, job.topic, topic]
        return Bound([*command, str(job.shape.partitions), str(REPLAY_TASKS)], job.folder / "log", grace=GRACE_S)


# --- What else copies topics ------------------------------------------------------------------------------------------

#: MirrorMaker 2's settings, with places for addresses, topic and codec.
SETTINGS: Final = Path(__file__).parents[3] / "configs" / "bench"
#: The newest that is published: there is none of 4.3, whose sessions take this one.
SPARK_KAFKA: Final = "4.2.0"
#: What Kafka's own start script gives the JVM of `connect-mirror-maker.sh`.
JVM: Final = (
    "-Xms256M",
    "-Xmx2G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
#: It takes its time to leave its groups, and nobody waits for that any more.
_MIRROR_MAKER_GRACE_S: Final = 1.0
_LOG4J: Final = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %p [%t] %c{1}: %m%n
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
"""


def mirror_maker_jars() -> Path:
    """The folder of its jars. Raises BenchError."""
    modules = [Module("org.apache.kafka", name, KAFKA_VERSION) for name in ("connect-mirror", "connect-runtime")]
    return fetched(
        f"mirrormaker-{KAFKA_VERSION}", [*modules, Module("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4")]
    )


def spark_kafka_jars() -> Path:
    """Those that PySpark does not bring itself. Raises BenchError."""
    there = ("org.apache.hadoop", "org.scala-lang", "org.scala-lang.modules", "org.slf4j", "org.lz4", "at.yawk.lz4")
    module = Module("org.apache.spark", "spark-sql-kafka-0-10_2.13", SPARK_KAFKA, (*there, "org.xerial.snappy"))
    return fetched(f"spark-sql-kafka-{SPARK_KAFKA}", [module])


class MirrorMaker(Arm):
    """As Kafka publishes it, with one of two files of settings. It does not end by itself."""

    ends_itself = False

    def __init__(self, *, tuned: bool) -> None:
        self._tuned = tuned

    @property
    def _template(self) -> str:
        file = SETTINGS / f"mm2-{'tuned' if self._tuned else 'default'}.properties"
        try:
            return file.read_text(encoding="utf-8")
        except OSError:
            raise ConfigError(f"{file}: not there: run `mirror bench` from a copy of the project's folder") from None

    @property
    def facts(self) -> Facts:
        """Both kinds."""
        return Facts(
            name="mm2-tuned" if self._tuned else "mm2",
            title=f"MirrorMaker 2, {'tuned' if self._tuned else 'as it comes'}",
            kind="rival",
            what=f"MirrorMaker 2 of Kafka {KAFKA_VERSION} "
            + ("with four tasks, larger fetches and batches, and the source's codec." if self._tuned else "as it is."),
            settings=self._template,
        )

    def fits(self, shape: Shape) -> bool:
        """It copies records, whatever they lie in. The tuned one stands for both where data is rewritten."""
        return self._tuned or not (shape.compacted or shape.transactional)

    def prepare(self) -> None:
        """Fetch the jars."""
        mirror_maker_jars()

    def start(self, job: Job) -> Bound:
        """In one JVM, as its start script does it."""
        properties, logging = job.folder / "mm2.properties", job.folder / "log4j2.properties"
        properties.write_text(filled(self._template, job), encoding="utf-8")
        logging.write_text(_LOG4J, encoding="utf-8")
        command = [java(), *JVM, f"-Dlog4j2.configurationFile={logging.as_uri()}"]
        command += ["-cp", classpath_of(mirror_maker_jars()), "org.apache.kafka.connect.mirror.MirrorMaker"]
        return Bound([*command, str(properties)], job.folder / "log", grace=_MIRROR_MAKER_GRACE_S)


def filled(template: str, job: Job) -> str:
    """MirrorMaker 2's settings for one copy, without comments (pure)."""
    places = {"alias": job.run, "source": job.source, "target": job.target}
    text = template.format(**places, topic=job.topic, codec=job.shape.codec)
    return "".join(f"{line}\n" for line in text.splitlines() if line and not line.startswith("#"))


class Loop(Arm):
    """`lab/bench/loop.py`, a process of its own."""

    @property
    def facts(self) -> Facts:
        """What one writes by hand."""
        given = {f"consumer {key}": value for key, value in CONSUMER.items()}
        given |= {f"producer {key}": value for key, value in PRODUCER.items()}
        return Facts(
            name="loop",
            title="consume-produce loop",
            kind="rival",
            what="Forty lines of Python around Kafka's C client (librdkafka): consume, produce to the same partition.",
            settings="".join(f"{key} = {str(value).lower()}\n" for key, value in given.items()),
        )

    def start(self, job: Job) -> Bound:
        """Into a topic that is made first."""
        topic = self.created(job)
        command = [sys.executable, "-m", "mirror.lab.bench.loop", job.source, job.target, job.topic, topic]
        return Bound([*command, job.shape.codec], job.folder / "log", grace=GRACE_S)


class SparkKafka(Arm):
    """Spark's own connector from source to sink, as one batch query: it offers no target timestamps."""

    keeps_timestamps = False

    @property
    def facts(self) -> Facts:
        """The way one would do it on the same engine."""
        return Facts(
            name="spark-kafka",
            title="Spark's Kafka source and sink",
            kind="rival",
            what="One batch query of Spark's own Kafka connector, source to sink, key, value, headers and partition; "
            "its sink has no column for timestamps, so they are not kept.",
            settings=f"connector = spark-sql-kafka-0-10_2.13:{SPARK_KAFKA}\nmaster = local[*]\n"
            "kafka.batch.size = 1048576\nkafka.linger.ms = 50\nkafka.compression.type = the source's\n",
        )

    def fits(self, shape: Shape) -> bool:
        """On the first workload alone: it takes its time to start."""
        return super().fits(shape) and shape.batch_bytes >= 1_000_000

    def prepare(self) -> None:
        """Fetch the jars."""
        spark_kafka_jars()

    def start(self, job: Job) -> Bound:
        """Into a topic that is made first."""
        topic = self.created(job)
        paths = ",".join(map(str, jars(spark_kafka_jars())))
        command = [sys.executable, "-m", "mirror.lab.bench.kafka_copy", paths, job.source, job.target, job.topic, topic]
        scratch = {"SPARK_LOCAL_DIRS": str(job.folder), "SPARK_LOCAL_IP": "127.0.0.1"}
        return Bound([*command, job.shape.codec], job.folder / "log", grace=GRACE_S, environment=scratch)


# --- Every arm by its name --------------------------------------------------------------------------------------------

#: In the order in which they are shown.
ARMS: Final[Mapping[str, Arm]] = {
    "mirror": Mirror(),
    "mirror-rewrite": Rewriting(),
    "mirror-rekey": Rekey(),
    "mm2": MirrorMaker(tuned=False),
    "mm2-tuned": MirrorMaker(tuned=True),
    "loop": Loop(),
    "spark-kafka": SparkKafka(),
    "replay": Replay(),
}
#: What is measured unless somebody names others: nobody else's way to re-key is among them, and it takes its time.
USUAL: Final = tuple(name for name in ARMS if name != "mirror-rekey")


def chosen(names: Sequence[str]) -> tuple[Arm, ...]:
    """The arms of these names. Raises ConfigError."""
    if unknown := [name for name in names if name not in ARMS]:
        raise ConfigError(f"there is no arm {', '.join(unknown)}: choose from {', '.join(ARMS)}")
    return tuple(ARMS[name] for name in dict.fromkeys(names))
