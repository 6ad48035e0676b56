"""From an older mirror of a flow to a younger one."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
from helpers import settings_between

from mirror.admin.client import Admin
from mirror.admin.topics import ensure_flow_topic
from mirror.embedded import Cluster
from mirror.observe.figures import Figures
from mirror.offsets.journal import ENDED, OWNER, Entry, Journal, journal_topic
from mirror.offsets.owner import Owner
from mirror.spark import handover
from mirror.states import State
from mirror.wire.cluster import Cluster as Wire
from mirror.wire.cluster import Endpoint

NOW = 1_700_000_000_000
OLDER = Owner(instance="older", host="elsewhere", pid=7, at_ms=NOW - 60_000)
REPORT = Figures(
    flow="any", instance="older", topic="orders", partition=0, target_topic="orders", state=State.MIRRORING,
    next_offset=1, log_end=1, lag_records=0, at_ms=NOW - 5_000,
)  # fmt: skip
CLAIMED = 11
OURS = Entry(CLAIMED - 1, OWNER, replace(OLDER, instance="ours", at_ms=NOW).to_json())


def entries(*records: tuple[bytes, bytes | None]) -> list[Entry]:
    return [*(Entry(offset, *record) for offset, record in enumerate(records)), OURS]


@pytest.mark.parametrize(
    ("records", "found"),
    [
        ([], None),
        ([(OWNER, OLDER.to_json())], None),
        ([(OWNER, replace(OLDER, at_ms=NOW - 1000).to_json())], replace(OLDER, at_ms=NOW - 1000)),
        ([(OWNER, OLDER.to_json()), (REPORT.key(), REPORT.to_json())], OLDER),
        ([(OWNER, OLDER.to_json()), (REPORT.key(), REPORT.to_json()), (ENDED, b'{"instance": "older"}')], None),
        ([(OWNER, OLDER.to_json()), (REPORT.key(), REPORT.to_json()), (ENDED, b'{"instance": "another"}')], OLDER),
        ([(OWNER, b"[" * 10_000), (OWNER, b"7"), (OWNER, None), (ENDED, b"7"), (b"state/x/0", b"no figures")], None),
    ],
)
def test_the_one_to_wait_for(records: list[tuple[bytes, bytes | None]], found: Owner | None) -> None:
    """One that was heard of a moment ago, and did not say that it ended."""
    assert handover.predecessor(entries(*records), CLAIMED, NOW) == found


@pytest.fixture
def another() -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


@pytest.mark.brokers
@pytest.mark.parametrize("how", ["ends", "is killed", "is frozen"])
def test_the_younger_waits_for_the_older(
    target_cluster: Cluster,
    topic_name: str,
    another: subprocess.Popen[bytes],
    how: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flow = topic_name[-60:].strip("-")
    settings = settings_between(target_cluster.bootstrap, target_cluster.bootstrap, ["any"], flow)
    ensure_flow_topic(Admin(settings.target), flow)
    older = replace(Owner.here("older"), pid=another.pid)
    monkeypatch.setattr(handover, "PATIENCE_SECONDS", 60.0 if how != "is frozen" else 0.5)

    async def handed_over() -> tuple[bool, Owner | None]:
        async with Wire(Endpoint.of(settings.target)) as cluster:
            await cluster.refresh([journal_topic(flow)])
            journal = Journal(cluster, flow)
            await handover.claim(journal, older)
            claimed = await handover.claim(journal, Owner.here("younger"))
            waiting = asyncio.create_task(handover.older_ended(journal, claimed, asyncio.Event()))
            done, _ = await asyncio.wait([waiting], timeout=0.4)
            if how == "ends":
                await journal.append([(ENDED, json.dumps({"instance": "older"}).encode())])
            elif how == "is killed":
                another.kill()
                another.wait()
            older_one, known = await waiting
            assert Owner.read(known[OWNER]).instance == "younger"
            assert (ENDED in known) == (how == "ends"), "read once more when it had ended"
            return bool(done), older_one

    assert asyncio.run(handed_over()) == (False, older if how == "is frozen" else None)
