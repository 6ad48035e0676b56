"""The ways to copy a topic that are measured beside one another, as data: the mirror and its rivals."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

import yaml

from mirror.errors import ConfigError
from mirror.lab.bench.loop import CONSUMER, PRODUCER
from mirror.lab.bench.result import MeasuredArm as Facts
from mirror.lab.bench.workloads import Shape, create
from mirror.lab.demo.processes import Bound
from mirror.lab.embedded.jars import KAFKA_VERSION, Module, classpath_of, fetched, jars, java


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyField:
    """A field of a record's JSON value becomes its key."""

    field: str
    partitions: int  # of the target topic


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One copy to be made."""

    run: str  # a name that no other copy has
    source: str  # bootstrap address
    target: str
    topics: Sequence[str]
    shape: Shape
    folder: Path  # for files of this copy alone
    live: bool = False  # the copy goes on until it is ended

    @property
    def copies(self) -> list[str]:
        """The target topics: each copy has a prefix of its own."""
        return [f"{self.run}.{topic}" for topic in self.topics]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A way to copy a topic."""

    name: str
    title: str
    kind: Literal["mirror", "rival"]
    what: str  # one sentence
    settings: Callable[[], str]  # the configuration, for a reader
    command: Callable[[Arm, Job], Sequence[str]]  # writes files into the job's folder, and returns what to run
    fits: Callable[[Shape], bool] = lambda shape: not (shape.compacted or shape.transactional)
    prepare: Callable[[], object] = lambda: None  # fetches what it needs, raises EmbeddedError
    makes_topics: bool = True  # the arm makes the target topics itself
    replicas: int = 1  # of the target topics
    ends_itself: bool = True  # else it is ended once everything is on the target
    keeps_timestamps: bool = True  # else times are not compared
    rekeys: KeyField | None = None  # None where keys and partitions stay
    translates: bool = False  # the mirror's `offsets: translate`
    spark: Mapping[str, Any] = field(default_factory=dict)  # the mirror's section `spark`
    beside: Sequence[int] = ()  # processes of a Spark cluster, which count as well
    environment: Mapping[str, str] = field(default_factory=dict)
    grace_s: float = 10.0  # from SIGTERM to SIGKILL

    @property
    def facts(self) -> Facts:
        """As a result holds it."""
        return Facts(name=self.name, title=self.title, kind=self.kind, what=self.what, settings=self.settings())

    def partitions(self, shape: Shape) -> int:
        """Return the number of partitions of each target topic."""
        return self.rekeys.partitions if self.rekeys else shape.partitions

    def start(self, job: Job) -> Bound:
        """Begin; the process ends with this one, whatever happens."""
        if self.replicas > 1 or not self.makes_topics:
            for topic in job.copies:
                create(job.target, topic, self.partitions(job.shape), self.replicas)
        environment = {"SPARK_LOCAL_DIRS": str(job.folder), **self.environment}
        return Bound(self.command(self, job), job.folder / "log", grace=self.grace_s, environment=environment)


# --- The mirror itself ------------------------------------------------------------------------------------------------


def flow(arm: Arm | None, run: str, source: str, target: str, topics: Sequence[str]) -> str:
    """Return the mirror's configuration for one copy (pure); everything else is as it is by default."""
    chosen: dict[str, Any] = {"include": list(topics), "naming": {"prefix": f"{run}."}}
    if arm and arm.translates:
        chosen["offsets"] = "translate"
    if arm and arm.rekeys:
        expression = f"get_json_object(string(value), '$.{arm.rekeys.field}')"
        rule = {"match": topics[0], "rekey": expression, "partitions": arm.rekeys.partitions}
        chosen["rules"] = [rule]
    settings = {
        "name": run,
        "source": {"alias": "a", "bootstrap.servers": source},
        "target": {"alias": "b", "bootstrap.servers": target},
        "topics": chosen,
    }
    if arm and arm.spark:
        settings["spark"] = dict(arm.spark)
    return str(yaml.safe_dump(settings, sort_keys=False))


def _mirror(arm: Arm, job: Job) -> Sequence[str]:
    file = job.folder / "flow.yaml"
    file.write_text(flow(arm, job.run, job.source, job.target, job.topics), encoding="utf-8")
    return [sys.executable, "-m", "mirror", "run", str(file), *(() if job.live else ("--once",))]


MIRROR: Final = Arm(
    name="mirror",
    title="mirror",
    kind="mirror",
    what="`mirror run --once` with its defaults: batches keep their compressed bytes, headers are restamped.",
    settings=lambda: flow(None, "RUN", "SOURCE", "TARGET", ["TOPIC"]),
    command=_mirror,
    fits=lambda shape: not shape.compacted,
)


def of_tree(tree: Path, name: str) -> Arm:
    """Return the mirror of another tree."""
    path = {"PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}  # not the current folder
    return replace(MIRROR, name=name, title=f"mirror, {name}", environment=path)


# --- What else copies topics ------------------------------------------------------------------------------------------

#: MirrorMaker 2's settings, with places for addresses, topic and codec.
_SETTINGS: Final = Path(__file__).parents[3] / "configs" / "bench"
#: The newest that is published: there is none of 4.3, whose sessions take this one.
_SPARK_KAFKA: Final = "4.2.0"
#: What Kafka's own start script gives the JVM of `connect-mirror-maker.sh`.
_JVM: Final = (
    *("-Xms256M", "-Xmx2G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true"),
)
_LOG4J: Final = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %p [%t] %c{1}: %m%n
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
"""


def _mirror_maker_jars() -> Path:
    modules = [Module("org.apache.kafka", name, KAFKA_VERSION) for name in ("connect-mirror", "connect-runtime")]
    logging = Module("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4")
    return fetched(f"mirrormaker-{KAFKA_VERSION}", [*modules, logging])


def _spark_kafka_jars() -> Path:
    """Fetch those that PySpark does not bring itself."""
    there = ("org.apache.hadoop", "org.scala-lang", "org.scala-lang.modules", "org.slf4j", "org.lz4", "at.yawk.lz4")
    module = Module("org.apache.spark", "spark-sql-kafka-0-10_2.13", _SPARK_KAFKA, (*there, "org.xerial.snappy"))
    return fetched(f"spark-sql-kafka-{_SPARK_KAFKA}", [module])


def _template(arm: str) -> str:
    file = _SETTINGS / f"{arm}.properties"
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        raise ConfigError(f"{file}: not there: run `mirror bench` from a copy of the project's folder") from None


def _mirror_maker(template: str) -> Callable[[Arm, Job], Sequence[str]]:
    def command(_: Arm, job: Job) -> Sequence[str]:
        properties, logging = job.folder / "mm2.properties", job.folder / "log4j2.properties"
        places = {"alias": job.run, "source": job.source, "target": job.target, "codec": job.shape.codec}
        text = _template(template).format(**places, topic=",".join(job.topics))
        properties.write_text(text, encoding="utf-8")
        logging.write_text(_LOG4J, encoding="utf-8")
        java_ = [java(), *_JVM, f"-Dlog4j2.configurationFile={logging.as_uri()}"]
        classes = ["-cp", classpath_of(_mirror_maker_jars()), "org.apache.kafka.connect.mirror.MirrorMaker"]
        return [*java_, *classes, str(properties)]

    return command


def _loop(arm: Arm, job: Job) -> Sequence[str]:
    field_ = arm.rekeys.field if arm.rekeys else ""
    settings = [job.source, job.target, f"{job.run}.", job.shape.codec, field_, *job.topics]
    return [sys.executable, "-m", "mirror.lab.bench.loop", *settings]


def _loop_settings() -> str:
    given = {f"consumer {key}": value for key, value in CONSUMER.items()}
    given |= {f"producer {key}": value for key, value in PRODUCER.items()}
    return "".join(f"{key} = {str(value).lower()}\n" for key, value in given.items())


def _spark_kafka(_: Arm, job: Job) -> Sequence[str]:
    paths = ",".join(map(str, jars(_spark_kafka_jars())))
    places = [job.source, job.target, job.topics[0], job.copies[0], job.shape.codec]
    return [sys.executable, "-m", "mirror.lab.bench.kafka_copy", paths, *places]


_MIRROR_MAKER: Final = Arm(
    name="mm2",
    title="MirrorMaker 2, as it comes",
    kind="rival",
    what=f"MirrorMaker 2 of Kafka {KAFKA_VERSION} as it is.",
    settings=lambda: _template("mm2-default"),
    command=_mirror_maker("mm2-default"),
    prepare=_mirror_maker_jars,
    ends_itself=False,
    grace_s=1.0,  # it takes its time to leave its groups, and nobody waits for that any more
)
_LOOP: Final = Arm(
    name="loop",
    title="consume-produce loop",
    kind="rival",
    what="Forty lines of Python around Kafka's C client (librdkafka): consume, produce to the same partition.",
    settings=_loop_settings,
    command=_loop,
    makes_topics=False,
)
_REKEYING: Final = KeyField(field="user", partitions=12)


def _is_large(shape: Shape) -> bool:
    return not (shape.compacted or shape.transactional) and shape.batch_bytes >= 1_000_000 and shape.topics == 1


#: By name, in the order in which they are shown.
ARMS: Final[Mapping[str, Arm]] = {
    arm.name: arm
    for arm in (
        MIRROR,
        replace(
            MIRROR,
            name="mirror-rewrite",
            title="mirror, rewriting",
            what="`mirror run --once` where cleaning left holes in the batches: each is decompressed, closed up and "
            "compressed again with the same codec.",
            fits=lambda shape: shape.compacted,
            translates=True,
        ),
        replace(
            MIRROR,
            name="mirror-rekey",
            title="mirror, re-keying",
            what="`mirror run --once` with a rule: a field of each record becomes its key, in 12 partitions.",
            fits=_is_large,
            rekeys=_REKEYING,
        ),
        _MIRROR_MAKER,
        replace(
            _MIRROR_MAKER,
            name="mm2-tuned",
            title="MirrorMaker 2, tuned",
            what=f"MirrorMaker 2 of Kafka {KAFKA_VERSION} with four tasks, larger fetches and batches, and the "
            "source's codec.",
            settings=lambda: _template("mm2-tuned"),
            command=_mirror_maker("mm2-tuned"),
            fits=lambda _: True,  # it copies records, whatever they lie in
        ),
        _LOOP,
        replace(
            _LOOP,
            name="loop-rekey",
            title="consume-produce loop, re-keying",
            what="The same with a field of each record as its key, in 12 partitions, and a transaction a second.",
            fits=_is_large,
            rekeys=_REKEYING,
        ),
        Arm(
            name="spark-kafka",
            title="Spark's Kafka source and sink",
            kind="rival",
            what="One batch query of Spark's own Kafka connector, source to sink, key, value, headers and partition; "
            "its sink has no column for timestamps, so they are not kept.",
            settings=lambda: (
                f"connector = spark-sql-kafka-0-10_2.13:{_SPARK_KAFKA}\nmaster = local[*]\n"
                "kafka.batch.size = 1048576\nkafka.linger.ms = 50\nkafka.compression.type = the source's\n"
            ),
            command=_spark_kafka,
            fits=_is_large,  # on the first workload alone: it takes its time to start
            prepare=_spark_kafka_jars,
            makes_topics=False,
            keeps_timestamps=False,
            environment={"SPARK_LOCAL_IP": "127.0.0.1"},
        ),
    )
}
#: What is measured unless somebody names others.
USUAL: Final = tuple(name for name in ARMS if not name.endswith("-rekey"))


def chosen(names: Sequence[str]) -> tuple[Arm, ...]:
    """Return the arms of these names. Raises ConfigError."""
    if unknown := [name for name in names if name not in ARMS]:
        raise ConfigError(f"there is no arm {', '.join(unknown)}: choose from {', '.join(ARMS)}")
    return tuple(ARMS[name] for name in dict.fromkeys(names))
