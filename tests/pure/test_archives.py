"""Where Spark's Python processes find PySpark."""

from __future__ import annotations

from pathlib import Path

from mirror.spark.archives import without_archives


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
