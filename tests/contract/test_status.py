"""`mirror status` of flows with journals on a broker; what it shows of them is in tests/pure/test_status_view.py."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import config_file, make_topic, produce, settings_between
from pair import Shared
from scraped import report
from sparkless import run_once
from syncing import delete_topics, write_journal
from typer.testing import CliRunner

from mirror import clock
from mirror.cli import app
from mirror.journal.journal import OWNER
from mirror.states import State


@pytest.mark.proves("mirror status", "CAUGHT_UP")
def test_the_lag_of_a_mirror_that_ended_is_known_by_the_source(
    source_cluster: Shared, target_cluster: Shared, topic_name: str, tmp_path: Path
) -> None:
    """While the source has the topic that was mirrored."""
    source, target = source_cluster.bootstrap, target_cluster.bootstrap
    config = config_file(tmp_path, source, target, [topic_name], topic_name)

    def shown() -> Any:
        return json.loads(CliRunner().invoke(app, ["status", str(config), "--json"]).stdout)

    assert (shown()["pulse"], shown()["partitions"], shown()["owner"]) == ("never ran", [], None)
    make_topic(source, topic_name)
    produce(source, topic_name, [b"a"] * 5)
    run_once(settings_between(source, target, [topic_name], topic_name))
    produce(source, topic_name, [b"b"] * 3)
    (one,) = shown()["partitions"]
    assert (one["state"], one["next_offset"], one["lag_records"], one["stale"]) == ("CAUGHT_UP", 5, 3, True)
    assert shown()["pulse"] == "not running"
    delete_topics(source, topic_name)
    make_topic(source, topic_name)
    produce(source, topic_name, [b"c"] * 20)
    (one,) = shown()["partitions"]
    assert (one["next_offset"], one["lag_records"]) == (5, None), "what another topic holds is no lag"


def entry(flow: str, topic: str, next_offset: int) -> tuple[bytes, bytes]:
    """A record of a journal."""
    ends = {"next_offset": next_offset, "log_end": next_offset, "lag_records": 0, "at_ms": clock.now_ms()}
    made = report(flow=flow, instance="me", topic=topic, target_topic=topic, state=State.CAUGHT_UP, **ends)
    return made.key(), made.to_json()


@pytest.mark.proves("mirror status")
def test_a_watch_on_a_terminal_draws_over_what_it_drew_and_ends_with_ctrl_c(
    target_cluster: Shared, topic_name: str, tmp_path: Path
) -> None:
    config = config_file(tmp_path, target_cluster.bootstrap, target_cluster.bootstrap, ["x"], topic_name)
    owner = {"instance": "me", "host": "here", "pid": 1, "at_ms": clock.now_ms()}
    settings = settings_between(target_cluster.bootstrap, target_cluster.bootstrap, ["x"], topic_name)
    write_journal(settings, (OWNER, json.dumps(owner).encode()), entry(topic_name, "orders", 7))
    command = [sys.executable, "-m", "mirror", "status", str(config), "--watch"]
    ours, theirs = pty.openpty()
    shown = b""
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=os.environ | {"TERM": "xterm"}
    ) as it:
        os.close(theirs)
        while shown.count(b"orders-0") < 2:
            shown += os.read(ours, 65536)
        it.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # how a terminal ends
            while more := os.read(ours, 65536):
                shown += more
        assert it.wait() == 0
    os.close(ours)
    assert b"\x1b[1A" in shown
    assert b"Traceback" not in shown
