"""Passwords that are planted in a flow's configuration reach the brokers, and no log, event log, error or output; and
what Spark listens on is for this machine alone.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from helpers import make_topic, produce
from secured import USERS, spec

from mirror.lab.embedded import Cluster, start_many

pytestmark = [pytest.mark.brokers, pytest.mark.spark]

TOPIC = "guarded"
WRONG = "wrong-and-secret-all-the-same"
ENGINE = "secret-between-the-parts-of-the-engine"
PLANTED = (*USERS.values(), WRONG, ENGINE)


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Cluster, Path]]]:
    """Both sides by their names, each with the folder of its CA; whoever has a password may do everything."""
    folders = {side: tmp_path_factory.mktemp(side) for side in ("source", "target")}
    with ExitStack() as stack:
        started = start_many([spec(f"secret-{side}", folder, everybody=True) for side, folder in folders.items()])
        found = [stack.enter_context(cluster) for cluster in started]
        make_topic(found[0].bootstrap, TOPIC)
        produce(found[0].bootstrap, TOPIC, [b"record"] * 100)
        yield {side: (cluster, folders[side]) for side, cluster in zip(folders, found, strict=True)}


def flow(clusters: dict[str, tuple[Cluster, Path]], folder: Path) -> Path:
    """The source's password comes from the environment, the target's from a file."""
    file = folder / "password"
    file.write_text(USERS["bob"])
    file.chmod(0o600)
    logins = {"source": ("alice", "${env:ALICE}"), "target": ("bob", "${file:password}")}
    ends: dict[str, Any] = {
        side: {
            "alias": side,
            "bootstrap.servers": cluster.bootstrap_by("SCRAM"),
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(ca / "ca.pem"),
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": logins[side][0],
            "sasl.password": logins[side][1],
        }
        for side, (cluster, ca) in clusters.items()
    }
    (folder / "events").mkdir()
    log = {"enabled": "true", "dir": (folder / "events").as_uri(), "compress": "false"}  # to be searched
    conf = {f"spark.eventLog.{name}": value for name, value in log.items()}
    conf |= {"spark.authenticate": "true", "spark.authenticate.secret": "${env:ENGINE}"}
    path = folder / "flow.yaml"
    content = {"name": "secret", **ends, "topics": {"include": [TOPIC]}, "spark": {"conf": conf}}
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def mirror(folder: Path, password: str, *arguments: str | Path) -> tuple[int, str, set[str]]:
    """The exit code, all that was printed and that stood in a command line, and the addresses that the process and its
    children listened on.
    """
    commands: set[str] = set()
    listened: set[str] = set()
    with (folder / "printed").open("w+") as printed:
        process = psutil.Popen(
            [sys.executable, "-m", "mirror", *map(str, arguments)],
            stdout=printed,
            stderr=printed,
            env={**os.environ, "ALICE": password, "ENGINE": ENGINE},
        )
        while process.poll() is None:
            for one in [process, *_children(process)]:
                with suppress(psutil.Error):
                    commands.add(" ".join(one.cmdline()))
                    listened |= {c.laddr.ip for c in one.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
            time.sleep(0.1)
        printed.seek(0)
        return process.returncode, "\n".join([printed.read(), *commands]), listened


def _children(process: psutil.Popen) -> list[psutil.Process]:
    with suppress(psutil.Error):
        return process.children(recursive=True)
    return []


def test_no_secret_is_ever_seen(clusters: dict[str, tuple[Cluster, Path]], tmp_path: Path) -> None:
    path = flow(clusters, tmp_path)
    alice = USERS["alice"]
    code, seen, listened = mirror(tmp_path, alice, "run", path, "--once", "--log-level", "debug")
    assert code == 0, seen
    assert "records=100" in seen
    assert {address.removeprefix("::ffff:") for address in listened} <= {"127.0.0.1", "::1"}, listened
    assert listened, "Spark's UI and its driver at least"
    for command in (("verify", path, "--json"), ("status", path, "--json"), ("config", "show", path)):
        code, result, _ = mirror(tmp_path, alice, *command)
        assert code == 0, result
        seen += result
    code, result, _ = mirror(tmp_path, WRONG, "run", path, "--once", "--log-level", "debug", "--json")
    assert code == 6, result
    assert "Check sasl.username and sasl.password" in result
    events = [file.read_bytes() for file in (tmp_path / "events").rglob("*") if file.is_file()]
    assert any(b"SparkListenerJobEnd" in part for part in events)
    for planted in PLANTED:
        assert planted not in seen + result
        assert not any(planted.encode() in part for part in events)
