"""Fixtures that every test may ask for: two real one-broker clusters, names, ports; and how Hypothesis searches."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from oldbroker import OldBroker, started_or_skip
from pair import SETTINGS, Shared, end_pair, forget_topics, shared_pair
from waiting import MovableClock

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


#: The tiers (docs/contributing.md), by their folders, in the order in which workers take them: longest first.
TIERS = ("long", "spark", "contract", "pure")
_TESTS = Path(__file__).parent
#: A line for each run of the long tier; kept out of git.
_LONG_RUNS = _TESTS.parent / "build" / "test-long.tsv"


def tier(path: Path) -> str:
    """Return the tier of a test file."""
    return path.relative_to(_TESTS).parts[0]


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let only pure tests fail for a late warning: what a test with brokers leaves to the garbage collector is found
    while any other one runs.
    """
    if tier(item.path) != "pure":
        item.add_marker(pytest.mark.filterwarnings("default::ResourceWarning"))
        item.add_marker(pytest.mark.filterwarnings("default::pytest.PytestUnraisableExceptionWarning"))


#: What one worker is to run, since it shares what takes long to start: a session of Spark, a broker with users.
_TOGETHER = {
    "tests/spark/": "spark",
    "tests/contract/test_rights.py": "security",
    "tests/contract/test_security.py": "security",
    "tests/contract/test_run_process.py": "run",
}


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist, whose own groups are no-ops with the ids of pytest 9.2
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Schedule tests one by one, but for those that belong together."""
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    if config.getvalue("dist") != "loadgroup":
        return None
    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = lambda name: next(
        (group for path, group in _TOGETHER.items() if name.startswith(path)), name
    )
    return scheduler


@pytest.hookimpl(trylast=True)  # behind pytest-randomly, whose order stays within each tier
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort tests by tier, so that a run does not end with one long test."""
    items.sort(key=lambda item: TIERS.index(tier(item.path)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Note a run of the long tier: when, commit, area, seed of the order, passed, failed, minutes."""
    areas = [
        Path(given).resolve().relative_to(_TESTS) for given in config.args if _TESTS in Path(given).resolve().parents
    ]
    is_whole = not hasattr(config, "workerinput") and not config.option.collectonly
    if not is_whole or not areas or areas[0].parts[0] != "long":
        return
    passed, *failed = (len(terminalreporter.stats.get(kind, ())) for kind in ("passed", "failed", "error"))
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    minutes = (time.time() - terminalreporter._session_start.time) / 60  # pytest names it nowhere else
    row = (
        f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
        commit.stdout.strip(),
        " ".join(map(str, areas)),
        config.getoption("randomly_seed", ""),
        passed,
        sum(failed),
        f"{minutes:.1f}",
    )
    _LONG_RUNS.parent.mkdir(exist_ok=True)
    with _LONG_RUNS.open("a") as runs:
        runs.write("\t".join(map(str, row)) + "\n")


#: The folder of the pair of clusters that all workers of a run share.
_PAIR = pytest.StashKey[Path]()
#: The variable that names the folder of a pair that somebody keeps for many runs (`tests/support/pair.py`).
_KEPT_PAIR = "MIRROR_TEST_PAIR"


def pytest_configure(config: pytest.Config) -> None:
    """Make the folder of the run's pair; workers of pytest-xdist get that of the process that started them."""
    given = getattr(config, "workerinput", {}).get("pair") or os.environ.get(_KEPT_PAIR)
    config.stash[_PAIR] = Path(given or tempfile.mkdtemp(prefix="mirror-tests-"))


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_configure_node(node: Any) -> None:
    """Hand the folder to a worker."""
    node.workerinput |= {"pair": str(node.config.stash[_PAIR]), "run": os.getpid()}


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the pair with the run."""
    if not hasattr(config, "workerinput") and _KEPT_PAIR not in os.environ:
        end_pair(config.stash[_PAIR])
        shutil.rmtree(config.stash[_PAIR], ignore_errors=True)


@pytest.fixture(scope="session")
def _pair(pytestconfig: pytest.Config) -> tuple[Shared, Shared]:
    run = getattr(pytestconfig, "workerinput", {}).get("run", os.getpid())
    return shared_pair(pytestconfig.stash[_PAIR], run)


@pytest.fixture(scope="session")
def source_cluster(_pair: tuple[Shared, Shared]) -> Shared:
    """One broker, shared by the run: use topics and a flow of your own, and leave it running."""
    return _pair[0]


@pytest.fixture(scope="session")
def target_cluster(_pair: tuple[Shared, Shared]) -> Shared:
    """Another cluster like `source_cluster`."""
    return _pair[1]


@pytest.fixture
def pair(source_cluster: Shared, target_cluster: Shared) -> tuple[str, str]:
    """The bootstrap addresses of both."""
    return source_cluster.bootstrap, target_cluster.bootstrap


@pytest.fixture(scope="session")
def _own_pair() -> Iterator[tuple[Cluster, Cluster]]:
    with ExitStack() as stack:
        # a broker that was killed is not registered again before this is over; one that is suspended for as long as a
        # request waits (`CALL_TIMEOUT`) is not fenced
        config = {**SETTINGS, "broker.session.timeout.ms": 15_000}
        specs = [Spec(name=name, config=config) for name in ("source", "target")]
        source, target = (stack.enter_context(cluster) for cluster in start_many(specs))
        yield source, target


@pytest.fixture(scope="session")
def own_source(_own_pair: tuple[Cluster, Cluster]) -> Cluster:
    """One broker of this worker's own, for tests of the long tier: whoever suspends it lets it go on."""
    return _own_pair[0]


@pytest.fixture(scope="session")
def own_target(_own_pair: tuple[Cluster, Cluster]) -> Cluster:
    """Another cluster like `own_source`."""
    return _own_pair[1]


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
    if "structlog" in sys.modules:
        importlib.import_module("structlog").reset_defaults()  # waits for a thread that is importing it


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of a restore run here, one after another."""
    from mirror.segments.restore import Restored
    from mirror.spark.restore import Portion, restored

    def here(_: object, __: str, portions: Sequence[Portion], done: Callable[[Restored], None]) -> None:
        for one in restored(portions):
            done(one)

    monkeypatch.setattr("mirror.spark.restore.restore_on_spark", here)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> MovableClock:
    """The clocks of the mirror, to be moved."""
    return MovableClock(monkeypatch)


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> Iterator[str]:
    """A topic name that nobody else has, recognizable by its test. Topics of the shared pair that hold it, journals of
    flows of that name among them, are deleted at the end: each start of a flow reads the journals of all others.
    """
    test = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    name = f"{test[:60]}-{uuid.uuid4().hex[:8]}"
    yield name
    for cluster in {"source_cluster", "target_cluster"} & set(request.fixturenames):
        forget_topics(request.getfixturevalue(cluster), name)


@pytest.fixture(autouse=True)
def _flows_of_this_test(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the shared pair a flow sees the journals of its test's flows alone: a start reads the journals of all flows
    that it sees, and another test may have spoiled or deleted its own.
    """
    if tier(request.path) in ("contract", "spark") and "topic_name" in request.fixturenames:
        from mirror.topics import history

        flows_of, own = history.flows_of, request.getfixturevalue("topic_name")[-8:]
        monkeypatch.setattr(history, "flows_of", lambda topics: [flow for flow in flows_of(topics) if own in flow])


@pytest.fixture
def free_port() -> int:
    """A port of 127.0.0.1 on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
