"""What else copies topics: MirrorMaker 2, a loop of Kafka's C client, and Spark's own Kafka source and sink."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from mirror.bench.arms import GRACE_S, Job
from mirror.bench.jars import Module, classpath, fetched, jars
from mirror.bench.loop import CONSUMER, PRODUCER
from mirror.bench.records import create
from mirror.bench.result import Arm as Facts
from mirror.bench.shapes import Shape
from mirror.demo.bound import Bound
from mirror.embedded.jars import KAFKA_VERSION, java
from mirror.errors import ConfigError

#: MirrorMaker 2's settings, with places for addresses, topic and codec.
SETTINGS: Final = Path(__file__).parents[2] / "configs" / "bench"
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


class MirrorMaker:
    """As Kafka publishes it, with one of two files of settings. It does not end by itself."""

    ends_itself, keeps_timestamps, rekeys = False, True, None

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

    def target_topic(self, job: Job) -> str:
        """By its own policy: the source's alias, a dot, the topic's name."""
        return f"{job.run}.{job.topic}"

    def start(self, job: Job) -> Bound:
        """In one JVM, as its start script does it."""
        properties, logging = job.folder / "mm2.properties", job.folder / "log4j2.properties"
        properties.write_text(filled(self._template, job), encoding="utf-8")
        logging.write_text(_LOG4J, encoding="utf-8")
        command = [java(), *JVM, f"-Dlog4j2.configurationFile={logging.as_uri()}"]
        command += ["-cp", classpath(mirror_maker_jars()), "org.apache.kafka.connect.mirror.MirrorMaker"]
        return Bound([*command, str(properties)], job.folder / "log", grace=_MIRROR_MAKER_GRACE_S)


def filled(template: str, job: Job) -> str:
    """MirrorMaker 2's settings for one copy, without comments (pure)."""
    places = {"alias": job.run, "source": job.source, "target": job.target}
    text = template.format(**places, topic=job.topic, codec=job.shape.codec)
    return "".join(f"{line}\n" for line in text.splitlines() if line and not line.startswith("#"))


class Loop:
    """`loop.py`, a process of its own."""

    ends_itself, keeps_timestamps, rekeys = True, True, None

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

    def fits(self, shape: Shape) -> bool:
        """Where the mirror does not rewrite."""
        return not (shape.compacted or shape.transactional)

    def prepare(self) -> None:
        """Nothing is needed."""

    def target_topic(self, job: Job) -> str:
        """By the run's name."""
        return f"{job.run}.{job.topic}"

    def start(self, job: Job) -> Bound:
        """Into a topic that is made first."""
        topic = self.target_topic(job)
        create(job.target, topic, job.shape.partitions, job.replicas)
        command = [sys.executable, "-m", "mirror.bench.loop", job.source, job.target, job.topic, topic, job.shape.codec]
        return Bound(command, job.folder / "log", grace=GRACE_S)


class SparkKafka:
    """Spark's own connector from source to sink, as one batch query: it offers no target timestamps."""

    ends_itself, keeps_timestamps, rekeys = True, False, None

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
        return not (shape.compacted or shape.transactional) and shape.batch_bytes >= 1_000_000

    def prepare(self) -> None:
        """Fetch the jars."""
        spark_kafka_jars()

    def target_topic(self, job: Job) -> str:
        """By the run's name."""
        return f"{job.run}.{job.topic}"

    def start(self, job: Job) -> Bound:
        """Into a topic that is made first."""
        topic = self.target_topic(job)
        create(job.target, topic, job.shape.partitions, job.replicas)
        paths = ",".join(map(str, jars(spark_kafka_jars())))
        command = [sys.executable, "-m", "mirror.spark.kafkacopy", paths, job.source, job.target, job.topic, topic]
        scratch = {"SPARK_LOCAL_DIRS": str(job.folder), "SPARK_LOCAL_IP": "127.0.0.1"}
        return Bound([*command, job.shape.codec], job.folder / "log", grace=GRACE_S, environment=scratch)
