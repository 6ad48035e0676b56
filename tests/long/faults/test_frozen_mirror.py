"""A mirror that is frozen with its work done, and goes on once another one has the flow, or once it was failed over."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from adversary.driving import Command
from groupoffsets import commit, committed
from helpers import RECENT_MS, config_file, endpoint, make_topic, produce
from syncing import read_journal
from waiting import DEADLINE_S, until

from mirror.errors import ExitCode
from mirror.journal.positions import standing_in
from mirror.kafka.cluster import TopicPartition
from mirror.lab.embedded import Cluster


@dataclass(frozen=True, slots=True)
class Frozen:
    """A frozen mirror of 100 records, and a group that it follows."""

    folder: Path
    config: Path
    mirror: Command
    group: str

    def command(self, name: str, *options: str) -> Command:
        """Run a command of the program to its end."""
        done = Command(self.folder, name, str(self.config), *options)
        done.wait(DEADLINE_S)
        return done

    def next_offset(self) -> int:
        """Return how far the copy is, as `mirror status` says."""
        partitions = json.loads(self.command("status", "--json", "--log-level", "error").printed)["partitions"]
        return int(partitions[0]["next_offset"]) if partitions else -1


@pytest.fixture
def frozen(own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path) -> Iterator[Frozen]:
    """A live mirror that was suspended."""
    source, target, group = own_source.bootstrap, own_target.bootstrap, f"{topic_name}-readers"
    make_topic(source, topic_name)
    produce(source, topic_name, [b"%d" % number for number in range(100)], begin_ms=RECENT_MS)
    commit(source, group, topic_name, 60)
    sections = {"groups": {"include": [group]}, "metrics": {"listen": None}, "spark": {"tasks": 1}}
    path = config_file(tmp_path, source, target, [topic_name], topic_name, sections=sections)
    found = Frozen(tmp_path, path, Command(tmp_path, "run", str(path), "--json"), group)
    until(lambda: committed(target, group, topic_name) == 60)
    until(lambda: found.next_offset() == 100)
    found.mirror.send(signal.SIGSTOP)
    yield found
    found.mirror.end()


def test_groups_of_a_flow_that_was_failed_over_stay_where_they_are(
    frozen: Frozen, own_source: Cluster, own_target: Cluster, topic_name: str
) -> None:
    """Somebody puts one back on the target, and on the source it reads on."""
    assert frozen.command("failover").wait(1) == ExitCode.DATA_AT_RISK, "a mirror that is silent is named"
    commit(own_target.bootstrap, frozen.group, topic_name, 10)
    commit(own_source.bootstrap, frozen.group, topic_name, 80)
    frozen.mirror.send(signal.SIGCONT)
    assert frozen.mirror.wait(DEADLINE_S) == ExitCode.DONE
    assert committed(own_target.bootstrap, frozen.group, topic_name) == 10


def test_the_journal_keeps_what_the_next_mirror_wrote(
    frozen: Frozen, own_source: Cluster, own_target: Cluster, topic_name: str
) -> None:
    """Where the copy is, its state, and who ended."""
    target = endpoint(own_target.bootstrap)
    produce(own_source.bootstrap, topic_name, [b"more"] * 50)
    assert frozen.command("run", "--once", "--json").wait(1) == ExitCode.DONE
    before = read_journal(target, topic_name)
    frozen.mirror.send(signal.SIGCONT)
    assert frozen.mirror.wait(DEADLINE_S) == ExitCode.DATA_AT_RISK
    after = read_journal(target, topic_name)
    assert after[b"ended"] == before[b"ended"]
    ends = [standing_in(journal).positions[TopicPartition(topic_name, 0)].target_end for journal in (before, after)]
    assert ends == [150, 150]
    assert frozen.next_offset() == 150
