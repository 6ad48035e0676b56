"""Spark's JVM starts from an archive of the classes that it loads, which are parsed and verified once for all starts
(Java's application class-data sharing, JEP 350).

Decision: archives are made when an environment is set up, by `python -m mirror.spark.class_archive`, and lie in it. A
start takes seconds less with one, and nobody's mirror stops to make it. Where there is none, or Java finds that it was
made by another Java or from other jars, classes are loaded as ever. There are two, since an archive is resident: with
that of tasks a JVM takes as much memory as without, and with that of queries, which holds the SQL engine, 85 MB more.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, get_args

import pyarrow as pa
import pyspark
from pyspark import SparkContext

from mirror import host
from mirror.errors import ConfigError
from mirror.spark.compat import jvm_process

#: What for: tasks alone, or re-key queries, too.
Kind = Literal["tasks", "queries"]

_FOLDER: Final = Path(sys.prefix) / "share" / "mirror"
#: Long for what takes half a minute.
_TIMEOUT: Final = 300.0
_ROUNDS: Final = 3


def archive(kind: Kind) -> Path:
    """Where that for this Java and this PySpark is, or would be. Raises ConfigError as `java.find`."""
    binary = Path(host.find()).resolve()
    jars = Path(pyspark.__file__).parent / "jars"
    parts = (binary, binary.stat().st_mtime_ns, jars, jars.stat().st_mtime_ns, pyspark.__version__)
    return _FOLDER / f"{kind}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}.jsa"


def option(kind: Kind) -> str:
    """What a JVM is started with; empty where there is no archive."""
    try:
        if not (found := archive(kind)).is_file():
            return ""
    except OSError:  # `spark-submit` brings a PySpark without jars, and has started the JVM already
        return ""
    # Java itself looks whether it fits, and would warn on stdout, which may be a command's JSON
    return f'"-XX:SharedArchiveFile={found}" -Xlog:disable'


def make(kind: Kind) -> None:
    """Make an archive, in place of those for another Java. Raises OSError, CalledProcessError, TimeoutExpired and
    ConfigError.
    """
    wanted = archive(kind)
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_FOLDER) as scratch:
        made = Path(scratch) / wanted.name
        command = [sys.executable, "-m", __spec__.name, kind, str(made)]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT)
        with made.open("rb") as file:
            os.fsync(file.fileno())  # Java maps what is there without looking at all of it
        made.rename(wanted)
    for other in _FOLDER.glob(f"{kind}-*.jsa"):
        if other != wanted:
            other.unlink(missing_ok=True)


def train(kind: Kind, path: Path) -> None:
    """Do once, without a broker, what flows have Spark do; its JVM writes the archive to `path` as it ends."""
    from mirror.config import SparkSettings  # noqa: PLC0415 -- this and below: only where an archive is made
    from mirror.spark.session import open_context  # noqa: PLC0415

    is_query = kind == "queries"
    option = f"-XX:ArchiveClassesAtExit={path}"
    context = open_context(SparkSettings(), "classes", tasks=2, evaluates=is_query, archive=option)
    for _ in range(_ROUNDS):
        context.parallelize([1, 2], 2).mapPartitions(list).collect()
        if is_query:
            _query(context)
    jvm = jvm_process()
    context.stop()
    assert jvm.stdin is not None
    jvm.stdin.close()  # that ends it
    if code := jvm.wait(_TIMEOUT):
        raise SystemExit(f"Java ended with {code}")


def _query(context: SparkContext) -> None:
    """As `rekey/driver.py` has it."""
    from mirror.spark.compat import map_in_arrow, partitioned_by_slot  # noqa: PLC0415
    from mirror.spark.rekey.queries import session_of  # noqa: PLC0415

    def records(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            values = [b'{"user": "%d"}' % number for number in batch.column(0).to_pylist()]
            yield pa.RecordBatch.from_pydict({"slot": pa.array([0] * len(values), pa.int32()), "value": values})

    def counted(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            yield pa.RecordBatch.from_pydict({"rows": pa.array([batch.num_rows])})

    made = map_in_arrow(session_of(context).range(0, 100, 1, 2), records, "slot int, value binary")
    keyed = made.selectExpr("slot", "get_json_object(string(value), '$.user') as user", "value")
    ordered = partitioned_by_slot(keyed, 2).sortWithinPartitions("slot", "user")
    map_in_arrow(ordered, counted, "rows bigint").collect()


def main() -> None:
    """`python -m mirror.spark.class_archive`; with a kind and a path, be the process that is watched for it."""
    match sys.argv[1:]:
        case [("tasks" | "queries") as kind, path]:
            train(kind, Path(path))
        case _:
            _make_all()


def _make_all() -> None:
    try:
        if missing := [kind for kind in get_args(Kind) if not archive(kind).is_file()]:
            print("setup: archiving the classes of Spark's JVM, so that it starts in less time (half a minute, once)")
        for kind in missing:
            make(kind)
    except (OSError, subprocess.SubprocessError, ConfigError) as problem:
        output = (getattr(problem, "stderr", "") or str(problem)).strip()
        print(f"setup: no archive was made, and starts take longer: {output[-500:]}", file=sys.stderr)


if __name__ == "__main__":
    main()
