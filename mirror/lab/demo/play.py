"""The demonstration, step by step."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mirror import config
from mirror.commands.verify import verify_flow
from mirror.errors import BenchError, EmbeddedError
from mirror.kafka.admin import Admin, Creation
from mirror.lab.bench.content import Topics
from mirror.lab.bench.measuring import CopyGoal, Watch
from mirror.lab.bench.result import Measured
from mirror.lab.demo.copying import STOP_SECONDS, CopyResult, Cost, Following, Line, MirrorFailed, verdicts_of
from mirror.lab.demo.processes import Bound
from mirror.lab.demo.producers import Ends, Filler, JavaFiller, Live, PlainFiller, Record, TransactionalFiller, pool
from mirror.lab.embedded import Cluster, Spec, jars, start_many
from mirror.verify.report import VerifyReport

if TYPE_CHECKING:
    from mirror.lab.commands.demo import Narrator

FLOW: Final = "demo"
#: Of each topic.
PARTITIONS: Final = 3
#: Of each topic that lies ready, about 400 bytes each.
RECORDS: Final = 240_000
#: Of the topic with transactions, a tenth of them aborted.
IN_TRANSACTIONS: Final = 60_000
LIVE_RATE: Final = 1_000
#: Short, so that the plan is made anew while the live topic is written.
EPOCH_S: Final = 12
LIVE_S: Final = 10
#: Producers at once; the Java one comes first, since it takes longest to start.
WRITERS: Final = 3


@dataclass(frozen=True, slots=True)
class DemoTopic:
    """A topic to fill."""

    name: str
    codec: str


@dataclass(frozen=True, slots=True)
class Filled:
    """The backlog: records for a reader, by topic, and the bytes of all their keys and values."""

    records: Mapping[str, int]
    bytes: int


JAVA: Final = DemoTopic("java", "zstd")
TRANSACTIONS: Final = DemoTopic("transactions", "lz4")
BY_LIBRDKAFKA: Final = (
    DemoTopic("gzip", "gzip"),  # the slowest: first
    DemoTopic("lz4", "lz4"),
    DemoTopic("none", "none"),
    DemoTopic("snappy", "snappy"),
    DemoTopic("zstd", "zstd"),
)
LIVE: Final = DemoTopic("live", "lz4")
BACKLOG: Final = (JAVA, TRANSACTIONS, *BY_LIBRDKAFKA)
TOPICS: Final = (*BACKLOG, LIVE)


class Clock:
    """Seconds by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What is inside counts as this phase."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - began


def play(progress: Narrator) -> CopyResult:
    """All of it; leaves nothing behind. Raises MirrorFailed when the mirror fails, MirrorError for anything else."""
    clock = Clock()
    with ExitStack() as stack:
        with clock.phase("brokers"):
            downloads = _fetch_jars(progress)
            source, target = (
                stack.enter_context(cluster)
                for cluster in start_many([Spec(name="demo-source", jit="full"), Spec(name="demo-target", jit="full")])
            )
        progress.step(f"two clusters are up: source {source.bootstrap}, target {target.bootstrap}")
        scratch = tempfile.TemporaryDirectory(prefix="mirror-demo-", ignore_cleanup_errors=True)
        folder = Path(stack.enter_context(scratch))
        ends = Ends(source.bootstrap)
        records = pool()
        with clock.phase("filling"):
            filled = _fill(source, records, folder, ends, progress)
        file = _configured(source, target, folder / "demo.yaml")
        settings = config.load(file)
        live = Live(source.bootstrap, LIVE.name, LIVE.codec, records, LIVE_RATE)
        with clock.phase("mirroring"):
            live.start()
            stack.callback(live.stop)
            mirror = stack.enter_context(_mirror(file, folder))
            progress.step(f"mirror run {file} (live); {LIVE.name} is written, {LIVE_RATE:,} records/s")
            backlog = {topic.name: PARTITIONS for topic in BACKLOG}
            watch = Watch(mirror, time.monotonic(), source, target, _goal(target, backlog, ends))
            measured = _backlog_copied(watch, progress)
            following = Following(settings, mirror, watch.tree, ends)
            asyncio.run(following.until_caught_up(backlog))
            _live_copied(live, following, backlog, progress)
            stopping = time.monotonic()
            exit_code = mirror.stop()
            stopped = time.monotonic() - stopping
        progress.step(f"the mirror ended with exit code {exit_code} after {stopped:.1f} s")
        with clock.phase("comparing"):
            report = verify_flow(settings)
        progress.step(f"both sides are read and compared, batch by batch, in {report.seconds:.1f} s")
        cost = Cost(
            start_s=measured.start_s,
            start_cpu_s=measured.start_cpu_s,
            backlog_s=measured.copy_s,
            backlog_cpu_s=measured.copy_cpu_s,
            backlog_bytes=sum(topic.bytes for topic in report.topics if topic.topic in backlog),
            record_bytes=filled.bytes,
            peak_rss=watch.tree.counters.peak_rss,
            peak_pss=watch.tree.counters.peak_pss,
            stop_s=stopped,
            exit_code=exit_code,
        )
        result = CopyResult(
            lines=tuple(_lines(report, following, {**filled.records, LIVE.name: live.written})),
            cost=cost,
            misfits=tuple(_misfits(report)),
            seconds=clock.seconds,
            downloads=downloads,
        )
        with clock.phase("cleaning up"):
            stack.close()
    return result


def _goal(target: Cluster, backlog: Mapping[str, int], source_ends: Ends) -> CopyGoal:
    topics = Topics(target.bootstrap, list(backlog), PARTITIONS)
    return CopyGoal(topics=topics, end=sum(source_ends.of(backlog).values()))


def _backlog_copied(watch: Watch, progress: Narrator) -> Measured:
    """Wait until the target's logs end where the source's do. Raises MirrorFailed."""
    try:
        found = watch.measure(
            ends_itself=False, on_progress=lambda done: progress.progress("mirroring", done, watch.goal.end)
        )
    except BenchError as problem:
        raise MirrorFailed(str(problem)) from None
    progress.step(f"the backlog is there; its first records were after {found.start_s:.1f} s")
    return found


def _live_copied(live: Live, following: Following, backlog: Mapping[str, int], progress: Narrator) -> None:
    """Write the live topic on, and wait until all of it is mirrored. Raises MirrorFailed, EmbeddedError."""
    progress.step(f"caught up; {LIVE.name} is written on for {LIVE_S} s, past the end of an epoch")
    time.sleep(LIVE_S)
    live.stop()
    asyncio.run(following.until_caught_up({**backlog, LIVE.name: PARTITIONS}))
    progress.step(f"{live.written:,} records of {LIVE.name} are mirrored too; SIGTERM to the mirror")


def _lines(report: VerifyReport, following: Following, written: Mapping[str, int]) -> Iterator[Line]:
    """Return a line for each topic that was compared; `written`: its records by its producer."""
    verdicts, codecs = verdicts_of(following.statuses.values()), {topic.name: topic.codec for topic in TOPICS}
    for topic in report.topics:
        yield Line.of(topic, verdicts.get(topic.topic, {}), codecs[topic.topic], written[topic.topic])


def _misfits(report: VerifyReport) -> Iterator[str]:
    yield from map(str, (*report.differences, *report.shortfalls))
    compared = {topic.topic for topic in report.topics}
    yield from (f"{name} was not compared" for name in sorted(topic.name for topic in TOPICS) if name not in compared)


def _fetch_jars(progress: Narrator) -> float:
    """Seconds that the download took."""
    if jars.jars_folder().exists():
        progress.step(f"Kafka {jars.KAFKA_VERSION} is in the cache, no download")
        return 0.0
    progress.step(f"fetching Kafka {jars.KAFKA_VERSION} (44 MB, kept in the cache)")
    began = time.monotonic()
    jars.fetch()
    seconds = time.monotonic() - began
    progress.step(f"fetched: {seconds:.1f} s of download")
    return seconds


def _fill(source: Cluster, records: Sequence[Record], folder: Path, ends: Ends, progress: Narrator) -> Filled:
    """Create the topics and write the backlog. Raises EmbeddedError."""
    address = config.ClusterSettings.model_validate({"alias": "source", "bootstrap.servers": source.bootstrap})
    wanted = [Creation(topic=t.name, partitions=PARTITIONS, replication_factor=1) for t in TOPICS]
    Admin(address).create_topics(wanted)
    stopping = threading.Event()
    in_transactions = TransactionalFiller(
        source.bootstrap, TRANSACTIONS.name, TRANSACTIONS.codec, records, IN_TRANSACTIONS, stopping
    )
    fillers: list[Filler] = [
        JavaFiller(source.bootstrap, JAVA.name, JAVA.codec, records, RECORDS, stopping, folder),
        in_transactions,
        *(PlainFiller(source.bootstrap, t.name, t.codec, records, RECORDS, stopping) for t in BY_LIBRDKAFKA),
    ]
    every = sum(filler.count for filler in fillers)
    with ThreadPoolExecutor(WRITERS) as writers:
        try:
            filling: list[Future[int]] = [writers.submit(filler.run) for filler in fillers]
            waiting: set[Future[int]] = set(filling)
            while waiting:
                done, waiting = wait(waiting, timeout=0.2, return_when=FIRST_EXCEPTION)
                for future in done:
                    future.result()
                progress.progress("filling", sum(filler.written for filler in fillers), every)
        except BaseException:
            stopping.set()
            writers.shutdown(cancel_futures=True)
            raise
        size = sum(future.result() for future in filling)
    _count(ends)
    counts = {filler.topic: filler.written for filler in fillers} | {TRANSACTIONS.name: in_transactions.committed}
    total, aborted = sum(counts.values()), in_transactions.written - in_transactions.committed
    progress.step(
        f"{len(BACKLOG)} topics hold {total:,} records, {size / 1e6:.0f} MB uncompressed; {aborted:,} aborted"
    )
    return Filled(counts, size)


def _count(ends: Ends) -> None:
    """Where there is no transaction, a log's end is its number of records."""
    plain = (JAVA, *BY_LIBRDKAFKA)
    found = ends.of({topic.name: PARTITIONS for topic in plain})
    for topic in plain:
        records = sum(end for (name, _), end in found.items() if name == topic.name)
        if records != RECORDS:
            raise EmbeddedError(f"{topic.name}: {RECORDS:,} records were written, the source holds {records:,}")


def _mirror(file: Path, folder: Path) -> Bound:
    command = [sys.executable, "-m", "mirror", "run", str(file)]
    scratch = {"SPARK_LOCAL_DIRS": str(folder)}
    return Bound(command, folder / "mirror.log", grace=STOP_SECONDS, folder=folder, environment=scratch)


def _configured(source: Cluster, target: Cluster, file: Path) -> Path:
    """Write a flow as people would write it; JSON is YAML."""
    settings = {
        "name": FLOW,
        "source": {"alias": "source", "bootstrap.servers": source.bootstrap},
        "target": {"alias": "target", "bootstrap.servers": target.bootstrap},
        "topics": {"include": [topic.name for topic in TOPICS]},
        "metrics": {"listen": None},
        "spark": {"epoch_s": EPOCH_S},
    }
    file.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in settings.items()), encoding="utf-8")
    return file
