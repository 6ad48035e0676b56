"""Fixtures that every test may ask for: two real one-broker clusters, names, ports; and how Hypothesis searches."""

from __future__ import annotations

import os
import signal
import socket
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from oldbroker import OldBroker, started_or_skip

from mirror.lab.embedded import Cluster, Spec, start_many

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The same examples on every run, unless somebody goes looking: HYPOTHESIS_PROFILE=exhaustive pytest ...
_SLOW_MACHINES = [HealthCheck.too_slow]
settings.register_profile("deterministic", derandomize=True, deadline=None, suppress_health_check=_SLOW_MACHINES)
settings.register_profile("exhaustive", max_examples=10_000, deadline=None, suppress_health_check=_SLOW_MACHINES)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "deterministic"))

# What is printed is as wide as in a file, also for a worker of pytest-xdist, which hands the terminal's width down.
os.environ.pop("COLUMNS", None)

# A shell without job control starts what runs in its background with SIGINT ignored, and what a test starts would
# inherit that: a Ctrl-C would do nothing.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)  # behind pytest-randomly, whose order stays within each kind
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that start Spark come first, pure ones last: those are short, so that workers that take files one after
    another (`make test`) end together.
    """
    kinds: dict[Path, int] = {}
    for item in items:
        kind = 0 if item.get_closest_marker("spark") else 1 if item.get_closest_marker("brokers") else 2
        kinds[item.path] = min(kind, kinds.get(item.path, kind))
    items.sort(key=lambda item: kinds[item.path])


#: A member of a group of the newer protocol learns at its next heartbeat what it has: by default after five seconds.
_BEATS = {"group.consumer.min.heartbeat.interval.ms": 200, "group.consumer.heartbeat.interval.ms": 200}
#: Nobody kills the brokers of a session, so that they are fenced only where the machine has too much to do.
_NEVER_KILLED = {"broker.session.timeout.ms": 60_000}


@pytest.fixture(scope="session")
def _clusters() -> Iterator[tuple[Cluster, Cluster]]:
    specs = [Spec(name=name, config=_BEATS | _NEVER_KILLED) for name in ("source", "target")]
    with ExitStack() as stack:
        source, target = (stack.enter_context(cluster) for cluster in start_many(specs))
        yield source, target


@pytest.fixture(scope="session")
def source_cluster(_clusters: tuple[Cluster, Cluster]) -> Cluster:
    """One broker, shared by the session: use topics of your own, and leave it running."""
    return _clusters[0]


@pytest.fixture(scope="session")
def target_cluster(_clusters: tuple[Cluster, Cluster]) -> Cluster:
    """Another cluster like `source_cluster`."""
    return _clusters[1]


@pytest.fixture(scope="session")
def old_broker() -> Iterator[OldBroker]:
    """Kafka 2.8.2, which stores the formats that later brokers only read; skipped where it cannot be fetched."""
    with started_or_skip() as broker:
        yield broker


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session for all tests of DataFrames and queries, which knows `kafka-batches`."""
    from pyspark.sql import SparkSession

    from mirror.config import SparkSettings
    from mirror.spark.datasource import register
    from mirror.spark.session import open_context

    context = open_context(SparkSettings(conf={"spark.ui.enabled": "false"}), "tests", tasks=2, evaluates=True)
    session = SparkSession(context)
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.shuffle.partitions", "2")
    register(session)
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _logs_as_in_a_new_process() -> None:
    """A command that another test ran may have left them silent, or in another form."""
    if structlog := sys.modules.get("structlog"):
        structlog.reset_defaults()


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of a restore run here, one after another."""
    from mirror.spark.restore import Portion, Restored, restored

    def here(_: object, __: str, portions: Sequence[Portion], done: Callable[[Restored], None]) -> None:
        for one in restored(portions):
            done(one)

    monkeypatch.setattr("mirror.spark.restore.restore_on_spark", here)


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> str:
    """A topic name that nobody else has, recognisable by its test."""
    test = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    return f"{test[:60]}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def free_port() -> int:
    """A port of 127.0.0.1 on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
