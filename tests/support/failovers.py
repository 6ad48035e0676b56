"""A flow of one topic between two clusters, whose commands run in this process: for failovers and failbacks."""

from __future__ import annotations

import json
from contextlib import redirect_stdout
from io import StringIO
from typing import Any, Self

import pytest
from helpers import make_topic, produce, settings_between
from samerecords import read
from sparkless import run_once
from syncing import read_journal, write_journal
from waiting import DEADLINE_S

from mirror.commands.adopt import adopt
from mirror.commands.failover import failover
from mirror.config import ClusterSettings
from mirror.driver.flow import RunOutcome
from mirror.errors import ExitCode
from mirror.journal.journal import Change
from mirror.kafka.cluster import Endpoint

#: What a failover waits for, in seconds: a loaded machine may take longer than an operator would wait.
_WAITS = (
    "mirror.commands.failover.IDLE_SECONDS",
    "mirror.commands.failover.END_SECONDS",
    "mirror.commands.failover.GROUPS_SECONDS",
    "mirror.commands.failover.LIVENESS_SECONDS",
    "mirror.journal.ownership.LIVENESS_SECONDS",
    "mirror.failover.drain.STRETCH_SECONDS",
)


def values(count: int, begin: int = 0) -> list[bytes]:
    return [b"value %d" % number for number in range(begin, begin + count)]


def end_of(bootstrap: str, topic: str) -> int:
    """Return the offset behind the last committed record of partition 0."""
    return max((record[0] for record in read(bootstrap, topic, 0)), default=-1) + 1


class Flow:
    """A flow with the name of its topic; its groups are those whose names begin with that."""

    def __init__(self, source: str, target: str, topic: str, name: str = "", **topics: Any) -> None:
        self.source, self.target, self.topic = source, target, topic
        settings = settings_between(source, target, [topic], flow=name or topic, **topics)
        groups = settings.groups.model_validate({"include": [f"{topic}.*"]})
        self.settings = settings.model_copy(update={"groups": groups})
        self.printed = ""  # by the last command

    def mirrored(self, count: int) -> Self:
        """Make the topic with so many records, mirror it, and return the flow."""
        make_topic(self.source, self.topic)
        produce(self.source, self.topic, values(count))
        self.copies()
        return self

    def includes(self, *topics: str) -> None:
        """Change the configuration: mirror these topics."""
        chosen = settings_between(self.source, self.target, topics).topics
        self.settings = self.settings.model_copy(update={"topics": chosen})

    def reaches_source_at(self, address: str) -> None:
        """Change the configuration: the source has this address."""
        cluster = ClusterSettings.model_validate({"alias": "eu", "bootstrap.servers": address})
        self.settings = self.settings.model_copy(update={"source": cluster})

    def copy(self) -> RunOutcome:
        """Do what `mirror run --once` does."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("mirror.groups.follower.LAST_SYNC_SECONDS", DEADLINE_S)
            return run_once(self.settings)

    def copies(self) -> None:
        """Do the same, and nothing may be in the way."""
        outcome = self.copy()
        assert (outcome.exit_code, outcome.stops) == (ExitCode.DONE, [])

    def fail_over(self, code: int = ExitCode.DONE, *, rehearse: bool = False, source_s: float = DEADLINE_S) -> Any:
        """Run `mirror failover CONFIG --json`; the account. `source_s`: a source that is silent for so long is away."""
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as out:
            for name in _WAITS:
                patch.setattr(name, DEADLINE_S)
            patch.setattr("mirror.commands.failover.SOURCE_SECONDS", source_s)
            try:
                found = failover(self.settings, rehearse=rehearse, undo=False, as_json=True)
            finally:
                self.printed = out.getvalue()
        assert found == code, self.printed
        return json.loads(self.printed)

    def undo(self) -> None:
        """Run `mirror failover CONFIG --undo`."""
        with redirect_stdout(StringIO()):
            assert failover(self.settings, rehearse=False, undo=True, as_json=False) == ExitCode.DONE

    def adopts(self) -> ExitCode:
        """Run `mirror adopt CONFIG TOPIC`."""
        with redirect_stdout(StringIO()):
            return adopt(self.settings, [self.topic], every=False, ends_only=False, as_json=True)

    def append(self, *changes: Change) -> None:
        """Write to the flow's journal."""
        write_journal(self.settings, *changes)

    def journal(self) -> dict[bytes, bytes]:
        """Return what stands in the flow's journal."""
        return read_journal(Endpoint.of(self.settings.target), self.settings.flow)
