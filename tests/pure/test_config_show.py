"""`mirror config show`, and how carefully files with secrets are kept."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from mirror.cli import app
from mirror.config import load
from mirror.config.security import carelessness
from mirror.config.yaml_tree import YamlTree, line_of
from mirror.errors import ConfigError

SMALLEST = """\
name: eu-to-us
source: {alias: eu, bootstrap.servers: "a:1"}
target: {alias: us, bootstrap.servers: "${env:US}"}
topics: {include: ["orders", "(?i)clicks\\\\..*"], naming: {rename: {orders: copies}}}
"""
SECRET = SMALLEST + 'spark: {conf: {spark.ssl.keyPassword: "${file:secret}", spark.ui.enabled: false}}\n'
Show = Callable[..., str]


@pytest.fixture
def show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Show:
    monkeypatch.setenv("US", "b:2")

    def shown(text: str, *options: str) -> str:
        path = tmp_path / "flow.yaml"
        path.write_text(text, encoding="utf-8")
        result = CliRunner().invoke(app, ["config", "show", str(path), *options], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    return shown


def secret_file(folder: Path, mode: int = 0o600) -> Path:
    path = folder / "secret"
    path.write_text("hunter2\n", encoding="utf-8")
    path.chmod(mode)
    return path


def test_every_setting_is_shown_and_defaults_are_marked(show: Show) -> None:
    lines = show(SMALLEST).splitlines()
    assert lines[:5] == ['name: "eu-to-us"', "", "source:", '  alias: "eu"', '  bootstrap.servers: "a:1"']
    assert '  bootstrap.servers: "b:2" # from ${env:US}' in lines
    assert '  security.protocol: "PLAINTEXT" # default' in lines
    assert '  naming: {rename: {orders: "copies"}}' in lines
    assert '  exclude: ["__.*", "mirror\\\\..*"] # default' in lines
    assert '  master: "local[*]" # default' in lines


def test_json(show: Show) -> None:
    found = json.loads(show(SMALLEST, "--json"))
    assert found["settings"]["topics"]["naming"] == {"rename": {"orders": "copies"}}
    assert found["settings"]["source"] == {"alias": "eu", "bootstrap.servers": "a:1", "security.protocol": "PLAINTEXT"}
    assert "topics.exclude" in found["defaults"]
    assert "topics.include" not in found["defaults"]


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_secret_is_shown_as_its_reference(show: Show, tmp_path: Path, options: list[str]) -> None:
    secret_file(tmp_path)
    shown = show(SECRET, *options)
    assert "${file:secret}" in shown
    assert "hunter2" not in shown


def test_a_setting_of_spark_by_reference_is_not_shown_either(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANY", "hunter2")
    shown = show(SMALLEST + 'spark: {conf: {spark.my.own: "${env:ANY}"}}\n')
    assert '    spark.my.own: "${env:ANY}" # not shown: it may be a secret' in shown.splitlines()


@pytest.mark.parametrize(
    ("conf", "complaint"),
    [
        ("spark.ssl.keyPassword: hunter2", "spark.conf.spark.ssl.keyPassword: a secret may not stand"),
        ("spark.hadoop.fs.s3a.access.key: hunter2", "access.key: a secret may not stand"),
        ("spark.driver.extraJavaOptions: -Dany.keyStorePassword=hunter2", "would show a secret in a command line"),
        ("spark.driver.extraJavaOptions: '-Xmx1g -Da.token=${env:US}'", "would show a secret in a command line"),
    ],
)
def test_a_secret_of_spark_may_not_stand_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, conf: str, complaint: str
) -> None:
    monkeypatch.setenv("US", "b:2")
    path = tmp_path / "flow.yaml"
    path.write_text(SMALLEST + f"spark: {{conf: {{{conf}}}}}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=complaint) as caught:
        load(path)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o622])
def test_a_file_with_a_secret_that_others_may_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    monkeypatch.setenv("US", "b:2")
    secret = secret_file(tmp_path, mode)
    path = tmp_path / "flow.yaml"
    path.write_text(SMALLEST.replace('"a:1"', '"${file:secret}:1"'), encoding="utf-8")
    assert load(path).source.bootstrap == (("hunter2", 1),), "an address is none"
    path.write_text(SECRET, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert f"{path}:5: spark.conf.spark.ssl.keyPassword: file {secret} with a secret is open" in str(caught.value)
    assert str(caught.value).endswith(f"(mode {mode:04o}): chmod 600 {secret}")
    secret.chmod(0o400)
    assert load(path).spark.conf["spark.ssl.keyPassword"] == "hunter2"


def test_whose_a_file_with_a_secret_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mine, or root's, and then its group may read it, which may be the group I am in."""
    me = os.geteuid()
    if me:
        pytest.skip("only root can give a file away")
    secret = secret_file(tmp_path, 0o640)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert carelessness(secret) == ""
    secret.chmod(0o644)
    assert "chmod 600" in carelessness(secret)
    os.chown(secret, 54321, -1)
    assert "belongs to another user" in carelessness(secret)
    os.chown(secret, 12345, -1)
    secret.chmod(0o640)
    assert "chmod 600" in carelessness(secret)


_TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
_PLAIN: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(_PLAIN)
def test_any_value_stands_on_one_line_and_is_read_back(value: Any) -> None:
    line = line_of(value)
    assert len(line.splitlines()) == 1
    tree = YamlTree(f"key: {line} # a comment\n", Path())
    assert tree.data == {"key": value} or tree.problems, "a reference alone is not read back as it is"
