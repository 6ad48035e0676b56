"""Where Spark's Python processes find PySpark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyspark

from mirror.spark.archives import without_archives

LIB = Path(pyspark.__file__).parent / "python" / "lib"


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


def test_a_daemon_takes_pyspark_from_its_folder() -> None:
    archives = [str(one) for one in LIB.glob("*.zip")]
    assert archives
    expected = "import mirror.spark.daemon, pyspark, py4j; print(pyspark.__file__, py4j.__file__)"
    first = f"import sys; sys.path[:0] = {archives!r}; {expected}"
    found = subprocess.run([sys.executable, "-c", first], capture_output=True, text=True, check=True, timeout=60)
    assert len(found.stdout.split()) == 2
    assert ".zip" not in found.stdout
