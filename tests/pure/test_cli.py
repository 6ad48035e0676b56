"""The command line as a person meets it: help with examples, exit codes, and one sentence in the place of a trace."""

from __future__ import annotations

import errno
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
import typer
from commandline import called
from helpers import config_file
from typer.testing import CliRunner

from mirror import clock
from mirror.cli import app
from mirror.commands.results import Results


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every command that does something."""
    children = getattr(group, "commands", None)
    if children is None:
        yield path
        return
    for name, child in children.items():
        yield from commands(child, (*path, name))


EVERY_COMMAND = sorted(commands(typer.main.get_command(app)))


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
        ["run"],
        ["verify", "x.yaml", "--tpic", "orders"],
        ["no-such"],
        ["embedded", "up", "--nodes", "9"],
        ["embedded", "down"],
        ["embedded", "fill", "eu"],
        ["run", "x.yaml", "--once", "--until-caught-up"],
        ["run", "x.yaml", "--log-level", "loud"],
        ["adopt", "x.yaml"],
        ["failover", "x.yaml", "--rehearse", "--undo"],
    ],
    ids=" ".join,
)
def test_wrong_usage_ends_with_2(arguments: list[str]) -> None:
    done = called(*arguments)
    assert (done.code, done.out) == (2, "")
    assert "Usage:" in done.err


@pytest.mark.parametrize("command", ["run", "verify", "status", "plan", "config show"])
def test_a_mistake_in_the_configuration_is_named_by_its_line(command: str, tmp_path: Path) -> None:
    path = tmp_path / "flow.yaml"
    path.write_text(
        'name: eu-to-us\nsource: {alias: eu, bootstrap.servers: "127.0.0.1:1"}\n'
        'target: {alias: us, bootstrap.servers: "127.0.0.1:2"}\ntopics:\n  inclde: ["orders"]\n'
    )
    done = called(*command.split(), path)
    assert (done.code, done.out) == (2, "")
    assert f"{path}:5: topics.inclde: unknown key; did you mean include?" in done.err


@pytest.mark.parametrize(
    "command",
    [
        *("run CONFIG", "plan CONFIG", "verify CONFIG", "status CONFIG", "failover CONFIG"),
        *("inspect orders --bootstrap ADDRESS", "offsets find orders --time 2026-01-31 --bootstrap ADDRESS"),
    ],
)
def test_a_wrong_address_ends_with_6_and_one_sentence(
    command: str, free_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "monotonic", lambda: 50 * time.monotonic())  # a refused connection is tried again
    address = f"127.0.0.1:{free_port}"
    config = config_file(tmp_path, address, address, ["orders"])
    done = called(*command.replace("CONFIG", str(config)).replace("ADDRESS", address).split())
    assert (done.code, done.out) == (6, "")
    assert done.err.startswith("mirror: cluster ")
    assert address in done.err
    assert "bootstrap.servers" in done.err, "what to check"
    assert done.err.count("\n") == 1


def test_what_spark_lacks_is_said_before_any_cluster_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sections = {"spark": {"master": "local[1]"}}
    config = config_file(tmp_path, "127.0.0.1:1", "127.0.0.1:2", ["orders"], sections=sections)
    done = called("run", config)
    assert done.code == 2
    assert "spark.master local[1] has too few slots" in done.err
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    done = called("run", config)
    assert done.code == 2
    assert f"Java 17 or newer is needed, and there is none in JAVA_HOME {tmp_path}: install it" in done.err


@pytest.mark.parametrize(
    ("into", "code", "expected"),
    [
        (">/dev/full", 1, "mirror: what this command printed could not be written: No space left on device\n"),
        (">&-", 0, ""),
        ("| true; exit ${PIPESTATUS[0]}", 141, ""),
    ],
)
def test_results_that_nobody_gets(tmp_path: Path, into: str, code: int, expected: str) -> None:
    """One sentence; where nobody wants them, none."""
    file = config_file(tmp_path, "127.0.0.1:1", "127.0.0.1:2", ["orders"])
    command = f"{sys.executable} -m mirror config show {file} {into}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, expected)


@pytest.mark.parametrize(("code", "shown"), [(0, 1), (10, 10), (4, 4)])
def test_the_exit_code_says_what_was_done_though_nobody_reads_it(code: int, shown: int) -> None:
    full = Mock(write=Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    results = Results(full)
    with patch("os.dup2"):  # stdout stays what it is
        results.write("done")
    assert results.end(code) == shown
