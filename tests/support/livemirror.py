"""A mirror of one topic that runs in a thread of this process, without a JVM, and the person who operates it: who runs
the commands that a stop names, as they are written, and changes the configuration.

Kafka's own tools are run by an admin client with the same options: the text must name the right broker, topic and
setting, but no JVM is started for each.
"""

from __future__ import annotations

import asyncio
import io
import json
import re
import shlex
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, Final, Self

import typer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)
from flows import Flow
from helpers import RECENT_MS, make_topic, produce
from pair import AnyCluster, data_of
from samerecords import read
from sparkless import InThisProcess, run_once
from waiting import DEADLINE_S, until

from mirror import config
from mirror.cli import app
from mirror.driver.flow import RunOutcome, prepare
from mirror.driver.topic_watcher import Replanner, TopicWatcher
from mirror.errors import ExitCode
from mirror.kafka.cluster import TopicPartition
from mirror.observability.status import PartitionStatus
from mirror.spark.supervisor import Supervisor
from mirror.states import Remedy, State

#: Records stay, however old they are.
KEPT: Final = {"retention.ms": "-1"}


def values(first: int, end: int, name: str = "") -> list[bytes]:
    """Return the values of records first to end - 1."""
    return [f"{name}{number:06d}".encode() for number in range(first, end)]


class _Threaded(Supervisor):
    """Signals go to the main thread, where the test runs."""

    def _listen(self) -> None:
        self._listening()


class LiveMirror:
    """A topic of one partition, its copy, and the mirror."""

    def __init__(self, source: AnyCluster, target: AnyCluster, topic: str, folder: Path) -> None:
        self.clusters = {"source": source, "target": target}
        self.source, self.target = source.bootstrap, target.bootstrap
        self.topic = self.copy = topic
        self.config = folder / "flow.yaml"
        self.settings: dict[str, Any] = {
            "name": topic,
            "source": {"alias": "eu", "bootstrap.servers": self.source},
            "target": {"alias": "us", "bootstrap.servers": self.target},
            "topics": {"include": [f"{topic}.*"], "exclude": [], "naming": {"rename": {}}},
            "sync": {"interval_s": 0.5, "configs_exclude": []},
            "groups": {"include": []},
            "metrics": {"listen": None},
            "spark": {"tasks": 1, "epoch_s": 2},
        }
        self.admin: Mapping[str, Any] = {}  # client settings of who runs Kafka's tools
        self._seen: dict[TopicPartition, PartitionStatus] = {}
        self._supervisor: Supervisor | None = None
        self._watcher: TopicWatcher | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    # --- the source -------------------------------------------------------------------------------------------------

    def begin(self) -> Self:
        """Make the source topic with a hundred records; return the mirror, which is not started yet."""
        self.create()
        self.fill(0, 100)
        return self

    def create(self, configs: Mapping[str, str] = KEPT) -> None:
        """Make the source topic."""
        make_topic(self.source, self.topic, configs=configs)

    def fill(self, first: int, end: int, name: str = "", begin_ms: int = RECENT_MS) -> list[bytes]:
        """Write records to the source, ten in a batch; return their values."""
        made = values(first, end, name)
        produce(self.source, self.topic, made, begin_ms=begin_ms + first)
        return made

    def segment(self, side: str) -> Path:
        """Return the file with the batches of the topic, or of its copy."""
        topic = self.topic if side == "source" else self.copy
        return data_of(self.clusters[side]) / f"{topic}-0" / f"{0:020}.log"

    @property
    def flow(self) -> Flow:
        """The same flow while no mirror runs."""
        return Flow(self.clusters["source"], self.clusters["target"], self.topic, self.config.parent)

    def copied(self) -> list[bytes]:
        """Return the values of the copy."""
        return [one[4] for one in read(self.target, self.copy, 0)]

    # --- the mirror -------------------------------------------------------------------------------------------------

    def copy_once(self) -> None:
        """Copy what there is, as `mirror run --once` does."""
        self._write()
        assert run_once(config.load(self.config)).exit_code == ExitCode.DONE

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the mirror beside what follows."""
        self._write()
        settings, context = config.load(self.config), InThisProcess()
        self._watcher = TopicWatcher(Replanner(settings), lambda: config.load(self.config))
        standing: Any = context
        self._supervisor = _Threaded(standing, prepare(settings), self._seen.update, topic_watcher=self._watcher)
        ended: list[RunOutcome | BaseException] = []
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._run, args=(self._loop, self._supervisor, ended))
        thread.start()
        try:
            yield
        finally:
            if thread.is_alive():
                self._loop.call_soon_threadsafe(self._supervisor._stop)
            thread.join()
        (result,) = ended
        assert isinstance(result, RunOutcome), result

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop, supervisor: Supervisor, ended: list[RunOutcome | BaseException]) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                ended.append(runner.run(supervisor.run()))
        except BaseException as problem:  # the test's thread reports it
            ended.append(problem)

    def _write(self) -> None:
        self.config.write_text(json.dumps(self.settings), encoding="utf-8")  # JSON is YAML

    def reload(self) -> None:
        """Write the configuration, and have the mirror read it again, as SIGHUP does; return when it has."""
        self._write()
        assert self._watcher is not None
        assert self._loop is not None
        before = self._watcher._replanner.settings
        self._loop.call_soon_threadsafe(self._watcher.read_again)
        until(lambda: self._watcher and self._watcher._replanner.settings is not before, self._standing)

    def status(self) -> PartitionStatus | None:
        """Return what the mirror reported last."""
        return self._seen.get(TopicPartition(self.topic, 0))

    def status_is(self, state: State) -> bool:
        """Return whether that was this state."""
        return (found := self.status()) is not None and found.state is state

    def until(self, state: State) -> PartitionStatus:
        """Wait for a state."""
        found = until(lambda: one if (one := self.status()) and one.state is state else None, self._standing)
        assert found
        return found

    def until_stopped(self, state: State, *remedies: Remedy) -> str:
        """Wait for a stop; return its advice, which must name these remedies."""
        detail = self.until(state).detail
        for remedy in remedies:
            assert re.search(pattern(remedy), detail), (remedy.name, detail)
        return detail

    def until_equal(self, wanted: Sequence[bytes]) -> None:
        """Wait until the mirror has caught up and the copy holds these values."""

        def is_equal() -> bool:
            return self.status_is(State.CAUGHT_UP) and self.copied() == list(wanted)

        until(is_equal, self._standing)

    def _standing(self) -> str:
        return str(self.status())

    # --- the person -------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Pause the topic."""
        self.mirror("pause", "CONFIG", self.topic)
        self.until(State.PAUSED)

    def mirror(self, *arguments: str, code: ExitCode = ExitCode.DONE) -> str:
        """Run a command of `mirror`, which must end so; return what it prints."""
        words = [str(self.config) if one == "CONFIG" else one for one in arguments]
        with redirect_stdout(io.StringIO()) as printed:
            assert typer.main.get_command(app).main(words, standalone_mode=False) == code, arguments
        return printed.getvalue()

    def reported(self) -> list[str]:
        """Return the topics that `mirror status` shows."""
        found = json.loads(self.mirror("status", "CONFIG", "--json", "--log-level", "error"))
        return [one["topic"] for one in found["partitions"]]

    def quoted(self, advice: str, command: str, code: ExitCode = ExitCode.DONE) -> str:
        """Run the command in backquotes that begins with this; return what it prints."""
        found = re.search(rf"`mirror ({command} [^`]+)`", advice)
        assert found, (command, advice)
        return self.mirror(*shlex.split(found[1]), code=code)

    def tool(self, advice: str, name: str) -> None:
        """Run one of Kafka's tools as the advice has it."""
        found = re.search(rf"{name}\.sh ((?:--?[\w-]+(?: (?!-)\S+)?\s?)+)", advice)
        assert found, (name, advice)
        options: dict[str, list[str]] = {}
        for word in shlex.split(found[1].strip().rstrip(".")):
            if word.startswith("--"):
                options.setdefault(last := word, [])
            else:
                options[last].append(word)
        (servers,) = options.pop("--bootstrap-server")
        admin = AdminClient({**self.admin, "bootstrap.servers": servers})
        {"kafka-topics": _topics, "kafka-configs": _configs, "kafka-acls": _acls}[name](admin, options)


def pattern(remedy: Remedy) -> str:
    """Return what any text of a remedy matches."""
    return re.sub(r"\\\{\w+\\\}", ".*", re.escape(remedy.value.replace("{{", "{").replace("}}", "}")))


def _topics(admin: AdminClient, options: Mapping[str, Sequence[str]]) -> None:
    assert options.keys() == {"--delete", "--topic"}, options
    (topic,) = options["--topic"]
    admin.delete_topics([topic])[topic].result(DEADLINE_S)


def _configs(admin: AdminClient, options: Mapping[str, Sequence[str]]) -> None:
    assert options.keys() == {"--alter", "--entity-type", "--entity-name", "--add-config"}, options
    assert options["--entity-type"] == ["topics"]
    (topic,), (added,) = options["--entity-name"], options["--add-config"]
    entries = [
        ConfigEntry(key, value.strip("[]"), incremental_operation=AlterConfigOpType.SET)
        for key, value in re.findall(r"([\w.]+)=(\[[^\]]*\]|[^,]*)", added)
    ]
    asked = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin.incremental_alter_configs([asked])[asked].result(DEADLINE_S)


def _acls(admin: AdminClient, options: Mapping[str, Sequence[str]]) -> None:
    assert options["--add"] == []
    assert options["--allow-principal"] == ["User:PRINCIPAL"], options
    kind, name = ResourceType.BROKER, "kafka-cluster"
    if "--topic" in options:
        kind, (name,) = ResourceType.TOPIC, options["--topic"]
    else:
        assert options["--cluster"] == []
    literal, allowed = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
    for operation in options["--operation"]:
        given = AclOperation[re.sub(r"(?<!^)(?=[A-Z])", "_", operation).upper()]
        granted = AclBinding(kind, name, literal, "User:alice", "*", given, allowed)
        admin.create_acls([granted])[granted].result(DEADLINE_S)
