"""Embedded brokers without starting one: names, jars, Java, and how clusters are listed."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
from commandline import called

from mirror.errors import ConfigError, EmbeddedError
from mirror.lab.embedded import down, jars, standing
from mirror.lab.embedded.by_hand import Member, StandingCluster
from mirror.lab.embedded.node import Identity


@pytest.fixture
def state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "mirror" / "embedded"


def test_taking_down_an_unknown_cluster_is_an_error_and_all_of_none_is_not(state_folder: Path) -> None:
    with pytest.raises(ConfigError, match="no cluster nobody"):
        down("nobody")
    assert down("all") == ()


def test_a_damaged_record_is_named(state_folder: Path) -> None:
    state_folder.mkdir(parents=True)
    record = state_folder / "odd.json"
    record.write_text('{"name": "odd"}')
    with pytest.raises(EmbeddedError, match=r"odd\.json cannot be read"):
        standing()
    record.unlink()


def copy_of_the_cache(into: Path) -> None:
    into.mkdir()
    for jar in jars.fetch():
        os.link(jar, into / jar.name) if into.stat().st_dev == jar.stat().st_dev else shutil.copyfile(
            jar, into / jar.name
        )


def test_a_jar_with_one_other_byte_is_refused_without_a_download(tmp_path: Path) -> None:
    folder = tmp_path / "jars"
    copy_of_the_cache(folder)
    victim = folder / "kafka-server-4.3.0.jar"
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.unlink()
    victim.write_bytes(content)
    with pytest.raises(EmbeddedError, match=r"kafka-server-4\.3\.0\.jar: SHA-256 is "):
        jars.fetch(folder, retrieve=lambda into: pytest.fail("nothing is to be fetched"))


def test_a_wrong_download_never_reaches_the_cache(tmp_path: Path) -> None:
    def truncated(into: Path) -> None:
        copy_of_the_cache(into)
        (into / "jose4j-0.9.6.jar").unlink()

    with pytest.raises(EmbeddedError, match=r"jose4j-0\.9\.6\.jar: SHA-256 is no such file"):
        jars.fetch(tmp_path / "jars", retrieve=truncated)
    assert [path.name for path in tmp_path.iterdir()] == ["jars.lock"]


def test_a_missing_java_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"there is none in JAVA_HOME .*apt-get install openjdk-17"):
        jars.java()


@pytest.mark.parametrize(
    ("release", "answer", "expected"),
    [
        ('JAVA_VERSION="17.0.9"', "exit 9", None),
        ('JAVA_VERSION="11.0.2"', "exit 9", "is 11: install"),
        ('JAVA_VERSION="1.8.0_392"', "exit 9", "is 8: install"),
        (None, """echo 'openjdk version "21.0.1"' >&2""", None),
        (None, """echo 'openjdk version "11.0.2"' >&2""", "is 11: install"),
        (None, "exit 9", "is of unknown version: install"),
    ],
)
def test_the_age_of_a_java(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, release: str | None, answer: str, expected: str | None
) -> None:
    binary = tmp_path / "bin" / "java"
    binary.parent.mkdir()
    binary.write_text(f"#!/bin/sh\n{answer}\n")
    binary.chmod(0o755)
    if release:
        (tmp_path / "release").write_text(f"{release}\n")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if expected is None:
        assert jars.java() == str(binary)
    else:
        with pytest.raises(ConfigError, match=expected):
            jars.java()


@pytest.mark.proves("mirror embedded list")
def test_clusters_are_listed_with_what_of_them_runs(state_folder: Path) -> None:
    assert "mirror embedded up" in called("embedded", "list").out
    assert called("embedded", "list", "--json") == (0, "[]\n", "")
    mine = Identity.of(os.getpid())
    assert mine is not None
    gone = Identity(pid=1 << 30, started=0.0)
    members = [Member(id=0, port=9092, process=mine), Member(id=1, port=9093, process=gone)]
    state_folder.mkdir(parents=True)
    for name, nodes in {"half": members, "none": members[1:], "whole": members[:1]}.items():
        cluster = StandingCluster(name=name, cluster_id="c", folder=state_folder / name, nodes=tuple(nodes))
        (state_folder / f"{name}.json").write_text(json.dumps(asdict(cluster), default=str))
    rows = [" ".join(line.split()) for line in called("embedded", "list").out.splitlines()[2:]]
    assert rows == [
        "half partly up 1/2 127.0.0.1:9092,127.0.0.1:9093",
        "none down 0/1 127.0.0.1:9093",
        "whole up 1/1 127.0.0.1:9092",
    ]
    found = json.loads(called("embedded", "list", "--json").out)
    assert [(one["name"], one["alive"], one["nodes"]) for one in found] == [
        ("half", 1, 2),
        ("none", 0, 1),
        ("whole", 1, 1),
    ]
