"""Passwords that are planted in a flow's configuration reach the brokers, and no log, event log, error or output; and
what Spark listens on is for this machine alone.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
from helpers import make_topic, produce
from secured import USERS, spec

from mirror.lab.embedded import start_many

TOPIC = "guarded"
WRONG = "wrong-and-secret-all-the-same"
ENGINE = "secret-between-the-parts-of-the-engine"
PLANTED = (*USERS.values(), WRONG, ENGINE)


def watched(folder: Path, password: str, *arguments: str | Path) -> tuple[int, str, set[str]]:
    """Return the exit code, all that was printed and that stood in a command line, and the addresses that the process
    and its children listened on.
    """
    commands, addresses = set[str](), set[str]()
    command = [sys.executable, "-m", "mirror", *map(str, arguments)]
    with (folder / "printed").open("w+") as printed:
        environment = os.environ | {"ALICE": password, "ENGINE": ENGINE}
        process = psutil.Popen(command, stdout=printed, stderr=printed, env=environment)
        while process.poll() is None:
            with suppress(psutil.Error):
                for one in [process, *process.children(recursive=True)]:
                    commands.add(" ".join(one.cmdline()))
                    addresses |= {it.laddr.ip for it in one.net_connections("tcp") if it.status == psutil.CONN_LISTEN}
            time.sleep(0.1)
        printed.seek(0)
        return process.returncode, "\n".join([printed.read(), *commands]), addresses


def test_no_secret_is_ever_seen(tmp_path: Path) -> None:
    """The source's password comes from the environment, the target's from a file."""
    (tmp_path / "password").write_text(USERS["bob"])
    (tmp_path / "password").chmod(0o600)
    (tmp_path / "events").mkdir()
    logins = {"source": ("alice", "${env:ALICE}"), "target": ("bob", "${file:password}")}
    with ExitStack() as stack:
        specs = []
        for side in logins:
            (tmp_path / side).mkdir()
            specs.append(spec(f"secret-{side}", tmp_path / side, everybody=True))
        clusters = [stack.enter_context(one) for one in start_many(specs)]
        make_topic(clusters[0].bootstrap, TOPIC)
        produce(clusters[0].bootstrap, TOPIC, [b"record"] * 100)
        ends: dict[str, Any] = {
            side: {
                "alias": side,
                "bootstrap.servers": cluster.bootstrap_by("SCRAM"),
                "security.protocol": "SASL_SSL",
                "ssl.ca.location": str(tmp_path / side / "ca.pem"),
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.username": user,
                "sasl.password": password,
            }
            for cluster, (side, (user, password)) in zip(clusters, logins.items(), strict=True)
        }
        log = {"enabled": "true", "dir": (tmp_path / "events").as_uri(), "compress": "false"}  # to be searched
        conf = {f"spark.eventLog.{name}": value for name, value in log.items()}
        conf |= {"spark.authenticate": "true", "spark.authenticate.secret": "${env:ENGINE}"}
        path = tmp_path / "flow.yaml"
        content = {"name": "secret", **ends, "topics": {"include": [TOPIC]}, "spark": {"conf": conf}}
        path.write_text(json.dumps(content))

        alice = USERS["alice"]
        code, seen, addresses = watched(tmp_path, alice, "run", path, "--once", "--log-level", "debug")
        assert (code, "records=100" in seen) == (0, True), seen
        assert addresses, "Spark's UI and its driver at least"
        assert {address.removeprefix("::ffff:") for address in addresses} <= {"127.0.0.1", "::1"}, addresses
        for command in (("verify", path, "--json"), ("status", path, "--json"), ("config", "show", path)):
            code, result, _ = watched(tmp_path, alice, *command)
            assert code == 0, result
            seen += result
        code, result, _ = watched(tmp_path, WRONG, "run", path, "--once", "--log-level", "debug", "--json")
        assert (code, "Check sasl.username and sasl.password" in result) == (6, True), result
    events = [file.read_bytes() for file in (tmp_path / "events").rglob("*") if file.is_file()]
    assert any(b"SparkListenerJobEnd" in part for part in events)
    for planted in PLANTED:
        assert planted not in seen + result
        assert not any(planted.encode() in part for part in events)
