"""The archives of classes that Spark's JVM starts from."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from mirror import host
from mirror.spark import class_archive

#: Starts Spark as a mirror does, and prints the archives that its JVM has mapped.
STARTED = """
import psutil
from mirror.config import SparkSettings
from mirror.spark.session import close_context, open_context
context = open_context(SparkSettings(), "classes", tasks=2)
(jvm,) = (child for child in psutil.Process().children() if child.name() == "java")
print(*(each.path for each in jvm.memory_maps() if each.path.endswith(".jsa")))
close_context(context)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(class_archive, "_FOLDER", tmp_path)
    return tmp_path


def test_without_an_archive_java_gets_none(folder: Path) -> None:
    assert class_archive.option("tasks") == ""


def test_spark_submit_brings_a_pyspark_without_jars(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archived = folder / "pyspark.zip"
    archived.write_bytes(b"")
    monkeypatch.setattr(pyspark, "__file__", str(archived / "pyspark" / "__init__.py"))
    assert class_archive.option("tasks") == ""


@pytest.mark.parametrize("content", [b"", b"no archive at all", bytes(100_000)])
def test_java_starts_without_a_word_from_what_is_no_archive(folder: Path, content: bytes) -> None:
    class_archive.archive("queries").write_bytes(content)
    option = shlex.split(class_archive.option("queries"))
    assert str(folder) in option[0]
    result = subprocess.run([host.find(), *option, "-XshowSettings:none", "-version"], capture_output=True, check=True)
    assert result.stdout == b""
    assert b"jsa" not in result.stderr


def test_another_java_has_other_archives(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = class_archive.archive("tasks")
    monkeypatch.setattr(host, "find", lambda: sys.executable)
    assert class_archive.archive("tasks") != here


@pytest.mark.spark
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows what a process has mapped")
def test_spark_starts_from_the_archive_of_this_environment() -> None:
    wanted = class_archive.archive("tasks")
    assert wanted.is_file(), "make setup makes it"
    done = subprocess.run([sys.executable, "-c", STARTED], capture_output=True, text=True, check=True)
    assert str(wanted) in done.stdout.split()


@pytest.mark.soak
@pytest.mark.spark
def test_archives_are_made_in_place_of_those_for_another_java(folder: Path) -> None:
    other = folder / "tasks-another.jsa"
    other.write_bytes(b"")
    class_archive.make("tasks")
    assert list(folder.iterdir()) == [class_archive.archive("tasks")]
