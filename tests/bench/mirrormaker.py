"""MirrorMaker 2 as it is published, to be measured beside the mirror: fetched once, kept in the user's cache folder."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from mirror import folders
from mirror.embedded.jars import KAFKA_VERSION, ivy, java, locked

_CONF: Final = "default->runtime(*),master(*)"
_IVY: Final = f"""\
<ivy-module version="2.0">
  <info organisation="mirror" module="mirrormaker"/>
  <dependencies>
    <dependency org="org.apache.kafka" name="connect-mirror" rev="{KAFKA_VERSION}" conf="{_CONF}"/>
    <dependency org="org.apache.kafka" name="connect-runtime" rev="{KAFKA_VERSION}" conf="{_CONF}"/>
    <dependency org="org.apache.logging.log4j" name="log4j-slf4j-impl" rev="2.25.4" conf="{_CONF}"/>
  </dependencies>
</ivy-module>
"""
_LOG4J: Final = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %p [%t] %c{1}: %m%n
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
"""
#: What Kafka's own start script gives the JVM of `connect-mirror-maker.sh`.
_JVM: Final = (
    "-Xms256M",
    "-Xmx2G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)


def jars() -> Path:
    """The folder of its jars, fetched by Ivy if need be. Raises CalledProcessError."""
    folder = folders.cache() / f"mirrormaker-{KAFKA_VERSION}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(f"{folder.name}.lock")), tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        if not folder.exists():
            wanted, fresh = Path(scratch) / "ivy.xml", Path(scratch) / "jars"
            wanted.write_text(_IVY, encoding="utf-8")
            command = [java(), "-jar", str(ivy()), "-ivy", str(wanted), "-confs", "default"]
            command += [
                "-cache",
                f"{scratch}/cache",
                "-retrieve",
                f"{fresh}/[artifact]-[revision](-[classifier]).[ext]",
            ]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            fresh.rename(folder)
    return folder


def started(source: str, target: str, alias: str, topic: str, codec: str, folder: Path) -> subprocess.Popen[bytes]:
    """A process that copies a topic to `alias.topic`, with nothing besides: no heartbeats, no groups. It does not end
    by itself. Its log is in `folder`.

    Batches and fetches are large, and four tasks share the partitions: as somebody would set it who wants it quick.
    """
    settings = {
        "clusters": f"{alias}, b",
        f"{alias}.bootstrap.servers": source,
        "b.bootstrap.servers": target,
        f"{alias}->b.enabled": "true",
        f"b->{alias}.enabled": "false",
        f"{alias}->b.topics": topic,
        "tasks.max": "4",
        "emit.heartbeats.enabled": "false",
        "emit.checkpoints.enabled": "false",
        "sync.topic.acls.enabled": "false",
        "replication.factor": "1",
        f"{alias}.consumer.auto.offset.reset": "earliest",
        f"{alias}.consumer.max.poll.records": "5000",
        f"{alias}.consumer.max.partition.fetch.bytes": str(8 << 20),
        "b.producer.compression.type": codec,
        "b.producer.batch.size": str(1 << 20),
        "b.producer.linger.ms": "50",
        "b.producer.buffer.memory": str(128 << 20),
    }
    topics = ("config.storage", "offset.storage", "status.storage", "checkpoints.topic", "heartbeats.topic")
    settings |= {f"{name}.replication.factor": "1" for name in (*topics, "offset-syncs.topic")}
    properties, logging = folder / f"{alias}.properties", folder / "log4j2.properties"
    properties.write_text("".join(f"{key} = {value}\n" for key, value in settings.items()), encoding="utf-8")
    logging.write_text(_LOG4J, encoding="utf-8")
    path = os.pathsep.join(map(str, sorted(jars().glob("*.jar"))))
    command = [java(), *_JVM, f"-Dlog4j2.configurationFile={logging.as_uri()}", "-cp", path]
    with (folder / f"{alias}.log").open("wb") as log:
        return subprocess.Popen(
            [*command, "org.apache.kafka.connect.mirror.MirrorMaker", str(properties)],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
