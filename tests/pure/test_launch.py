"""Spark that does not start says why in one line, with exit code 2 or 6, before a broker is asked for anything."""

from __future__ import annotations

import json
import os
import socket
import threading
from pathlib import Path

import pyspark
import pytest
from pyspark import SparkConf
from typer.testing import CliRunner
from waiting import until

from mirror.cli import app
from mirror.errors import ConfigError, EngineUnavailable, ExitCode, MirrorError
from mirror.spark import compat, launch
from mirror.spark.launch import JvmLog, _named, _Registering

#: Nobody listens there: no broker, no master.
NOBODY = "127.0.0.1:1"


def run(folder: Path, **spark: object) -> MirrorError:
    """The error with which `mirror run --once` ends."""
    clusters = {side: {"alias": side, "bootstrap.servers": NOBODY} for side in ("source", "target")}
    file = folder / "flow.yaml"
    file.write_text(json.dumps({"name": "flow", **clusters, "topics": {"include": ["orders"]}, "spark": spark}))
    error = CliRunner().invoke(app, ["run", str(file), "--once"]).exception
    assert isinstance(error, MirrorError), error
    return error


@pytest.mark.parametrize(
    ("spark", "code", "message"),
    [
        ({"master": "foo"}, ExitCode.USAGE, "use local[*], spark://HOST:PORT, yarn or k8s://https://HOST:PORT"),
        ({"master": "spark://host"}, ExitCode.USAGE, "use local[*]"),
        ({"master": f"spark://{NOBODY}"}, ExitCode.CLUSTER, "no master listens there (127.0.0.1:1: "),
        ({"master": f"spark://{NOBODY},localhost:2"}, ExitCode.CLUSTER, "; localhost:2: "),
        ({"master": "yarn"}, ExitCode.USAGE, "set HADOOP_CONF_DIR or YARN_CONF_DIR"),
        ({"master": f"k8s://https://{NOBODY}"}, ExitCode.USAGE, "set spark.kubernetes.container.image"),
        (
            {"master": f"k8s://https://{NOBODY}", "conf": {"spark.kubernetes.container.image": "mirror:0.1"}},
            ExitCode.CLUSTER,
            "no master listens there",
        ),
        ({"conf": {"spark.driver.memory": "lots"}}, ExitCode.USAGE, "spark.driver.memory: lots is no size of memory"),
        ({"master": "local[1]"}, ExitCode.USAGE, "too few slots for 1 tasks: use local[*] or local[3]"),
    ],
)
def test_what_no_spark_starts_with_is_named_before_a_broker_is_asked(
    spark: dict[str, object], code: ExitCode, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)
    error = run(tmp_path, **spark)
    assert message in str(error)
    assert "\n" not in str(error)
    assert error.exit_code is code


def test_a_master_that_listens_is_left_to_spark() -> None:
    with socket.create_server(("127.0.0.1", 0)) as master:
        port = master.getsockname()[1]
        launch.check(f"spark://{NOBODY},127.0.0.1:{port}", {})
        launch.check(f"k8s://https://127.0.0.1:{port}", {"spark.kubernetes.driver.container.image": "mirror:0.1"})
    launch.check("local[4]", {"spark.driver.memory": "512m"})


# --- What a JVM says --------------------------------------------------------------------------------------------------


def log_of(text: str) -> JvmLog:
    """What a JVM printed before it ended."""
    made = JvmLog(lambda: None)
    os.write(made.descriptor, text.encode())
    os.close(made.descriptor)
    until(lambda: made.text.count("\n") == text.count("\n"))
    return made


EXITED = RuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number.")
NO_HEAP = "Error occurred during initialization of VM\nCould not reserve enough space for 9G object heap\n"
REFUSED = "Error: Could not create the Java Virtual Machine.\nUnrecognized VM option 'Foo'\n"
THROWN = 'WARNING: Using incubator modules: jdk.incubator.vector\nException in thread "main" java.lang.Error: no disk\n'


@pytest.mark.parametrize(
    ("printed", "failure", "kind", "message"),
    [
        (
            NO_HEAP,
            EXITED,
            ConfigError,
            "Spark's JVM refuses its settings: Could not reserve enough space for 9G object",
        ),
        (REFUSED, EXITED, ConfigError, "Spark's JVM refuses its settings: Unrecognized VM option 'Foo'"),
        (THROWN, EXITED, EngineUnavailable, "Spark does not start (spark.master local[3]): no disk"),
        ("Killed\n", EXITED, EngineUnavailable, "Spark does not start (spark.master local[3]): Killed"),
        ("", EXITED, EngineUnavailable, "[JAVA_GATEWAY_EXITED]"),
        (
            "",
            RuntimeError(
                "An error occurred while calling None.x.\n: java.lang.IllegalArgumentException: at least 450m\n"
            ),
            ConfigError,
            "Spark refuses its settings: at least 450m",
        ),
    ],
)
def test_the_cause_is_what_the_jvm_printed(
    printed: str, failure: Exception, kind: type[MirrorError], message: str
) -> None:
    error = _named("local[3]", SparkConf(loadDefaults=False), failure, log_of(printed), _Registering(lambda: None))
    assert type(error) is kind
    assert message in str(error)
    assert "\n" not in str(error)


def test_what_a_jvm_prints_is_passed_on_once_it_runs(capfd: pytest.CaptureFixture[str]) -> None:
    printed = log_of("WARNING: Using incubator modules: x\na warning\n")
    assert capfd.readouterr().err == ""
    printed.release()
    assert capfd.readouterr().err == "a warning\n"


@pytest.mark.parametrize("given", ['"version" style="margin-right: 15px;"', '"version me-3"'], ids=["3.5", "4.3"])
def test_a_master_of_another_version_is_named_with_both(given: str) -> None:
    page = f"HTTP/1.0 200 OK\r\n\r\n<span class={given}>3.5.7</span> spark://127.0.0.1:7077".encode()
    with socket.create_server(("127.0.0.1", 0)) as server:
        conf = SparkConf(loadDefaults=False).set("spark.master.ui.port", str(server.getsockname()[1]))

        def answer() -> None:
            asked, _ = server.accept()
            with asked:
                asked.recv(4096)
                asked.sendall(page)

        registering = _Registering(lambda: None)
        registering.has_failed = True
        answering = threading.Thread(target=answer)
        answering.start()
        error = _named("spark://127.0.0.1:7077", conf, EXITED, log_of(""), registering)
        answering.join()
    assert isinstance(error, ConfigError)
    assert f"runs Spark 3.5.7, and the mirror has PySpark {pyspark.__version__}" in str(error)


# --- What a version can do --------------------------------------------------------------------------------------------


def test_a_feature_that_this_spark_lacks_is_named() -> None:
    compat.require("a plain copy", "3.5")
    with pytest.raises(ConfigError, match=f"census needs Spark 9.0 or newer, and this is Spark {pyspark.__version__}"):
        compat.require("census", "9.0")


@pytest.mark.parametrize(("number", "hashed"), [(0, 933211791), (1, -559580957), (2, 1765031574), (42, 29417773)])
def test_an_integer_is_hashed_as_spark_does(number: int, hashed: int) -> None:
    """From `SELECT hash(0), hash(1), ...` of Spark."""
    assert compat._murmur3(number) == hashed
