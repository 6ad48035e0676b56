"""From where Spark's processes get what they start with: Java's archive of classes, and PySpark. No JVM runs here."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pyspark
import pytest

from mirror import host
from mirror.spark import class_archive
from mirror.spark.archives import without_archives


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where archives lie; Java is some file."""
    monkeypatch.setattr(class_archive, "_FOLDER", tmp_path)
    monkeypatch.setattr(host, "find", lambda: sys.executable)
    return tmp_path


def test_java_is_given_the_archive_that_was_made_for_it_and_else_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert class_archive.option("tasks") == ""
    class_archive.archive("tasks").write_bytes(b"")
    option = class_archive.option("tasks")
    assert str(folder) in option
    assert "-Xlog:disable" in option, "an archive that does not fit is no word on stdout, which may be a command's JSON"
    other = shutil.which("sh")
    monkeypatch.setattr(host, "find", lambda: other)
    assert class_archive.option("tasks") == "", "it was made for another Java"


def test_spark_submit_brings_a_pyspark_without_jars(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archived = folder / "pyspark.zip"
    archived.write_bytes(b"")
    monkeypatch.setattr(pyspark, "__file__", str(archived / "pyspark" / "__init__.py"))
    assert class_archive.option("tasks") == ""


# --- PySpark ----------------------------------------------------------------------------------------------------------


def test_archives_inside_an_installed_package_are_left_and_others_stay(tmp_path: Path) -> None:
    site, other = tmp_path / "site", tmp_path / "spark"
    inside = site / "pyspark" / "python" / "lib" / "pyspark.zip"
    jar = site / "pyspark" / "jars" / "core.jar"
    beside = other / "python" / "lib" / "pyspark.zip"
    for one in (inside, jar, beside, site / "pyspark" / "__init__.py"):
        one.parent.mkdir(parents=True, exist_ok=True)
        one.touch()
    path = [str(one) for one in (inside, jar, beside, tmp_path / "sent.zip", inside.parent, site)]
    assert without_archives(path) == [str(one) for one in (beside, tmp_path / "sent.zip", inside.parent, site)]
    assert without_archives(path[:-1]) == path[:-1], "a package that is on no path"
