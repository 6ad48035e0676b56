"""The command line as a person meets it: help with examples, exit codes, and messages instead of traces."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from helpers import config_file
from typer.testing import CliRunner

from mirror.cli import app
from mirror.embedded import Cluster

ROOT = Path(__file__).parent.parent
ENVIRONMENT = {**os.environ, "COLUMNS": "80", "PYTHONPATH": str(ROOT)}


def mirror(*arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "mirror", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )


def ended(process: subprocess.Popen[str], within: float = 60) -> tuple[int, str, str]:
    with process:
        out, err = process.communicate(timeout=within)
        return process.returncode, out, err


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every command that does something."""
    children = getattr(group, "commands", None)
    if children is None:
        yield path
        return
    for name, child in children.items():
        yield from commands(child, (*path, name))


EVERY_COMMAND = sorted(commands(typer.main.get_command(app)))


def test_the_commands_are_found() -> None:
    assert {("run",), ("verify",), ("status",), ("embedded", "up"), ("embedded", "down"), ("embedded", "list")} <= set(
        EVERY_COMMAND
    )


@pytest.mark.parametrize("path", EVERY_COMMAND, ids=" ".join)
def test_help_shows_an_example_on_a_line_of_its_own(path: Sequence[str]) -> None:
    shown = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"})
    assert shown.exit_code == 0
    lines = [line.strip() for line in shown.output.splitlines()]
    assert any(line.startswith(f"Example: mirror {' '.join(path)}") for line in lines), shown.output
    assert max(map(len, shown.output.splitlines())) <= 80


@pytest.mark.parametrize(
    "arguments",
    [
        ["verify"],
        ["status"],
        ["run"],
        ["verify", "x.yaml", "--tpic", "orders"],
        ["no-such"],
        ["embedded", "up", "--nodes", "9"],
    ],
    ids=" ".join,
)
def test_wrong_usage(arguments: list[str]) -> None:
    code, out, err = ended(mirror(*arguments))
    assert (code, out) == (2, "")
    assert "Usage:" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("command", ["run", "verify", "status"])
def test_a_wrong_configuration_is_named_by_its_line(command: str, tmp_path: Path) -> None:
    path = tmp_path / "flow.yaml"
    path.write_text(
        'name: eu-to-us\nsource: {alias: eu, bootstrap.servers: "127.0.0.1:1"}\n'
        'target: {alias: us, bootstrap.servers: "127.0.0.1:2"}\ntopics:\n  inclde: ["orders"]\n'
    )
    code, out, err = ended(mirror(command, path))
    assert (code, out) == (2, "")
    assert f"{path}:5: topics.inclde: unknown key; did you mean include?" in err
    assert "Traceback" not in err


def test_a_configuration_that_is_not_there(tmp_path: Path) -> None:
    code, _, err = ended(mirror("verify", tmp_path / "none.yaml"))
    assert code == 2
    assert err.startswith("mirror: ")
    assert str(tmp_path / "none.yaml") in err


def test_a_wrong_address(free_port: int, tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port}"
    path = config_file(tmp_path, address, address, ["orders"])
    began = time.monotonic()
    running = {command: mirror(command, path) for command in ("run", "verify", "status")}
    for command, process in running.items():
        code, out, err = ended(process)
        assert (code, out) == (6, ""), command
        assert err.startswith("mirror: cluster "), command
        assert address in err
        assert "bootstrap.servers" in err, "what to look at"
        assert err.count("\n") == 1, f"{command} told more than one sentence: {err}"
    assert time.monotonic() - began < 40, "the deadlines are 8 and 10 s; the rest is a busy machine"


@pytest.mark.brokers
@pytest.mark.parametrize("command", ["run", "verify"])
def test_a_topic_that_is_not_there(
    command: str, source_cluster: Cluster, target_cluster: Cluster, topic_name: str, tmp_path: Path
) -> None:
    path = config_file(tmp_path, source_cluster.bootstrap, target_cluster.bootstrap, [topic_name])
    code, out, err = ended(mirror(command, path))
    assert (code, out) == (3, "")
    assert f"{topic_name}: no such topic on cluster eu" in err
    assert "Traceback" not in err


@pytest.mark.brokers
def test_a_topic_that_the_flow_does_not_mirror(
    source_cluster: Cluster, target_cluster: Cluster, topic_name: str, tmp_path: Path
) -> None:
    path = config_file(tmp_path, source_cluster.bootstrap, target_cluster.bootstrap, [".*"])
    code, _, err = ended(mirror("verify", path, "--topic", topic_name))
    assert code in (2, 3), "3 where the shared cluster has no topics yet"
    assert err.startswith("mirror: ")


@pytest.mark.brokers
def test_embedded_list(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "mirror", "embedded", "list", "--json"],
        capture_output=True,
        text=True,
        check=True,
        env={**ENVIRONMENT, "XDG_STATE_HOME": str(tmp_path)},
    )
    assert process.stdout == "[]\n"
