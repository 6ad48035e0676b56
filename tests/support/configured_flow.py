"""A flow between two clusters: its configuration file, its commands, its journal, and its mirror at work."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from copy import copy, deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pair import AnyCluster, Shared
from sparkless import InThisProcess, run_beside, run_once
from syncing import write_journal
from typer.testing import CliRunner

from mirror.cli import app
from mirror.config import Settings, load
from mirror.driver.flow import RunOutcome, prepare
from mirror.driver.topic_watcher import Replanner, TopicWatcher
from mirror.errors import MirrorError
from mirror.journal.entries import COPIES, FirstSeen
from mirror.journal.journal import Change
from mirror.kafka.admin import Admin
from mirror.kafka.cluster import TopicPartition
from mirror.observability.status import PartitionStatus
from mirror.spark.supervisor import Supervisor
from mirror.topics.apply import ensure_flow_topic
from mirror.topics.history import read_own


def values(many: int, word: str = "record") -> list[bytes]:
    return [f"{word} {number}".encode() for number in range(many)]


@pytest.fixture
def flow(source_cluster: Shared, target_cluster: Shared, tmp_path: Path, topic_name: str) -> ConfiguredFlow:
    return ConfiguredFlow(source_cluster, target_cluster, tmp_path, topic_name)


class ConfiguredFlow:
    """A flow that mirrors the topics whose names begin with its own; a test changes `topics` and `sync` as a person
    edits the file.
    """

    def __init__(self, source: AnyCluster, target: AnyCluster, folder: Path, name: str) -> None:
        self.source, self.target = source.bootstrap, target.bootstrap
        self.folder, self.name = folder, name
        self.topics: dict[str, Any] = {"include": [f"{name}(-.*)?"]}
        self.sync: dict[str, Any] = {"interval_s": 0.5}
        self.groups: list[str] = []
        self.target_settings: dict[str, Any] = {}
        self.figures: dict[TopicPartition, PartitionStatus] = {}

    def another(self, name: str, *, is_back: bool = False) -> ConfiguredFlow:
        """Another flow for the same topics, in the same direction or from the target to the source."""
        other = copy(self)
        if is_back:
            other.source, other.target = self.target, self.source
        other.name = f"{self.name}-{name}"
        other.topics, other.sync, other.figures = deepcopy(self.topics), deepcopy(self.sync), {}
        return other

    @property
    def file(self) -> Path:
        """The configuration file, as it is now."""
        path = self.folder / f"{self.name}.yaml"
        content = {
            "name": self.name,
            "source": {"alias": "eu", "bootstrap.servers": self.source},
            "target": {"alias": "us", "bootstrap.servers": self.target, **self.target_settings},
            "topics": self.topics,
            "sync": self.sync,
            "groups": {"include": self.groups},
        }
        path.write_text(json.dumps(content), encoding="utf-8")  # JSON is YAML
        return path

    @property
    def settings(self) -> Settings:
        """What the file says."""
        return load(self.file)

    def mirror(self, command: str, *arguments: str) -> tuple[int, str]:
        """Run `mirror COMMAND CONFIG ARGUMENTS...`: its exit code and what it prints."""
        done = CliRunner().invoke(app, [command, str(self.file), *arguments])
        if isinstance(done.exception, MirrorError):
            return done.exception.exit_code, str(done.exception)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.exit_code, done.stdout

    def plan(self) -> tuple[int, dict[str, Any]]:
        """The exit code and the fields of `mirror plan`."""
        code, printed = self.mirror("plan", "--json")
        return code, json.loads(printed)

    def states(self) -> dict[tuple[str, int], str]:
        """The states that `mirror status` shows, by source topic and partition."""
        fields = json.loads(self.mirror("status", "--json")[1])
        return {(one["topic"], one["partition"]): one["state"] for one in fields["partitions"]}

    def once(self) -> RunOutcome:
        """Run `mirror run --once` in this process."""
        return run_once(self.settings)

    def while_running(self, story: Callable[[], None], epoch_s: float = 2.0) -> RunOutcome:
        """Run the mirror in this process for as long as a story takes; SIGHUP makes it read its file again.

        `figures` are what it knows of its partitions meanwhile.
        """
        flow = replace(prepare(self.settings), epoch_seconds=epoch_s, tasks=1)
        watcher = TopicWatcher(Replanner(self.settings), lambda: load(self.folder / f"{self.name}.yaml"))
        context: Any = InThisProcess()
        return run_beside(Supervisor(context, flow, self.figures.update, topic_watcher=watcher), story)

    def journal(self) -> dict[bytes, bytes]:
        """The newest value of each key of the flow's journal."""
        return dict(asyncio.run(read_own(self.settings)).newest)

    def seen(self) -> dict[str, FirstSeen]:
        """What the journal says of its target topics."""
        return COPIES.newest(self.journal())

    def write_journal(self, *changes: Change) -> None:
        """Append records to the flow's journal, which is made where there is none."""
        ensure_flow_topic(Admin(self.settings.target), self.name)
        if changes:
            write_journal(self.settings, *changes)
