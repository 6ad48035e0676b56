"""The command line as a person meets it: help with examples, exit codes, and messages instead of traces."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import typer
from helpers import config_file, make_topic
from typer.testing import CliRunner

from mirror import __version__
from mirror.cli import app
from mirror.config import ClusterSettings
from mirror.kafka.admin import Admin
from mirror.lab.demo.producers import fill
from mirror.lab.embedded import Cluster

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {**os.environ, "COLUMNS": "80", "PYTHONPATH": str(ROOT)}


def mirror(*arguments: str | Path, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "mirror", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**ENVIRONMENT, **(environment or {})},
    )


def ended(process: subprocess.Popen[str], within: float = 180) -> tuple[int, str, str]:
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
        ["embedded", "down"],
        ["embedded", "fill", "eu"],
        ["run", "x.yaml", "--once", "--until-caught-up"],
        ["run", "x.yaml", "--log-level", "loud"],
    ],
    ids=" ".join,
)
def test_wrong_usage(arguments: list[str]) -> None:
    code, out, err = ended(mirror(*arguments))
    assert (code, out) == (2, "")
    assert "Usage:" in err
    assert "Traceback" not in err


def test_version() -> None:
    assert ended(mirror("--version")) == (0, f"mirror {__version__}\n", "")


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
    running = {command: mirror(command, path) for command in ("run", "verify", "status")}
    running |= {"inspect": mirror("inspect", "orders", "--bootstrap", address)}
    running |= {"offsets find": mirror("offsets", "find", "orders", "--time", "2026-01-31", "--bootstrap", address)}
    for command, process in running.items():
        code, out, err = ended(process)
        assert (code, out) == (6, ""), command
        assert err.startswith("mirror: cluster "), command
        assert address in err
        assert "bootstrap.servers" in err, "what to look at"
        assert err.count("\n") == 1, f"{command} printed more than one sentence: {err}"


@pytest.mark.brokers
@pytest.mark.parametrize("command", ["run", "verify"])
def test_a_topic_that_is_not_there(
    command: str, own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    path = config_file(tmp_path, own_source.bootstrap, own_target.bootstrap, [topic_name])
    code, out, err = ended(mirror(command, path))
    assert (code, out) == (3, "")
    assert f"{topic_name}: no such topic on cluster eu" in err
    assert "Traceback" not in err


@pytest.mark.brokers
def test_a_topic_that_the_flow_does_not_mirror(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    path = config_file(tmp_path, own_source.bootstrap, own_target.bootstrap, [".*"])
    code, _, err = ended(mirror("verify", path, "--topic", topic_name))
    assert code in (2, 3), "3 where the shared cluster has no topics yet"
    assert err.startswith("mirror: ")


@pytest.mark.brokers
def test_what_spark_lacks_is_reported_before_anything_is_created(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    make_topic(own_source.bootstrap, topic_name)
    path = config_file(tmp_path, own_source.bootstrap, own_target.bootstrap, [topic_name])
    path.write_text(json.dumps({**json.loads(path.read_text()), "spark": {"master": "local[1]"}}))
    code, _, err = ended(mirror("run", path))
    assert code == 2
    assert "spark.master local[1] has too few slots" in err
    code, _, err = ended(mirror("run", path, environment={"JAVA_HOME": str(tmp_path)}))
    assert code == 2
    assert f"Java 17 or newer is needed, and there is none in JAVA_HOME {tmp_path}: install it" in err
    settings = ClusterSettings.model_validate({"alias": "us", "bootstrap.servers": own_target.bootstrap})
    assert Admin(settings).describe([topic_name]) == {}


@pytest.mark.brokers
@pytest.mark.spark
@pytest.mark.parametrize(("number", "expected"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_while_spark_starts(
    number: signal.Signals,
    expected: int,
    own_source: Cluster,
    own_target: Cluster,
    topic_name: str,
    tmp_path: Path,
) -> None:
    make_topic(own_source.bootstrap, topic_name)
    path = config_file(tmp_path, own_source.bootstrap, own_target.bootstrap, [topic_name], topic_name)
    process = mirror("run", path)
    tree: list[psutil.Process] = []
    while not tree:
        assert process.poll() is None
        tree = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    code, _, err = ended(process)
    assert code == expected, err
    assert "Traceback" not in err
    _, left = psutil.wait_procs(tree, timeout=10)
    assert left == [], "Spark's JVM outlives the mirror"


@pytest.mark.brokers
def test_embedded_fill(own_target: Cluster, topic_name: str, tmp_path: Path) -> None:
    code, _, err = ended(mirror("embedded", "fill", "eu", topic_name, environment={"XDG_STATE_HOME": str(tmp_path)}))
    assert code == 1
    assert "no cluster eu is up" in err
    names = [f"{topic_name}-a", f"{topic_name}-b"]
    assert fill("us", own_target.bootstrap, names, 500) == dict.fromkeys(names, 500)
    assert fill("us", own_target.bootstrap, names[:1], 25_000) == {names[0]: 25_500}, "more than the pool has"


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


@pytest.mark.parametrize(
    ("into", "code", "expected"),
    [
        (">/dev/full", 1, "mirror: what this command printed could not be written: No space left on device\n"),
        (">&-", 0, ""),
        ("| true; exit ${PIPESTATUS[0]}", 141, ""),
    ],
)
def test_results_that_nobody_gets(tmp_path: Path, into: str, code: int, expected: str) -> None:
    """One sentence and no trace; where nobody wants them, none."""
    file = config_file(tmp_path, "127.0.0.1:1", "127.0.0.1:2", ["orders"])
    command = f"{sys.executable} -m mirror config show {file} {into}"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env=ENVIRONMENT, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (code, expected)


@pytest.mark.brokers
def test_the_exit_code_is_what_was_done_though_nobody_reads_it(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    """It was 1, as of a bug, also behind a failover that was whole or a copy that differed."""
    make_topic(own_source.bootstrap, topic_name)
    file = config_file(tmp_path, own_source.bootstrap, own_target.bootstrap, [topic_name], flow=topic_name)
    for into, code in ((">/dev/full", 10), (">&-", 10)):
        command = f"{sys.executable} -m mirror plan {file} {into}"
        done = subprocess.run(
            ["bash", "-c", command], capture_output=True, text=True, env=ENVIRONMENT, timeout=120, check=False
        )
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
