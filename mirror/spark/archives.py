"""Where Spark's Python processes find PySpark: in its installed folder, not in the archives inside that.

Spark puts `python/lib/pyspark.zip`, Py4J's archive and its own core's jar first on the path of each process that it
starts. Python keeps nothing that it compiled from an archive, so that each start compiles PySpark again: 0.4 of its 1.4
CPU-seconds. Executors whose Spark is no installed package (Kubernetes, YARN) keep their archives: what lies beside them
may be of another version.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path


def leave_archives() -> None:
    """Take them off this process's path; before PySpark is imported."""
    sys.path[:] = without_archives(sys.path)


def without_archives(path: Sequence[str]) -> list[str]:
    """A path without the archives that lie inside a `pyspark` package which is found on that path itself."""
    packages = {Path(place, "pyspark") for place in path if Path(place, "pyspark", "__init__.py").is_file()}
    return [place for place in path if not (packages & set(Path(place).parents) and Path(place).is_file())]
