"""The layers of the package (docs/contributing.md) as a table: an import that points upwards fails, and so does
a module too long to read."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[3] / "mirror"

#: Lowest first; a module may import from its own row and those above it in this table.
LAYERS = (
    {"__init__", "background", "clock", "errors", "host", "names", "states", "suspension"},
    {"config"},
    {"mm2", "observability"},
    {"records"},
    {"kafka"},
    {"policy"},
    {"replication"},
    {"journal"},
    {"topics", "groups"},
    {"segments", "verify"},
    {"driver"},
    {"spark"},
    {"failover", "rendering"},
    {"commands"},
    {"lab"},
    {"__main__", "cli"},
)
HEIGHT = {unit: height for height, units in enumerate(LAYERS) for unit in units}
#: Library -> the only units, or modules, that may import it.
#: `topics/acls.py` handles the ACLs that `kafka/admin.py` reads and creates, as values of that library.
RESERVED = {"pyspark": {"spark", "lab"}, "confluent_kafka": {"kafka/admin.py", "topics/acls.py", "lab"}}
#: Units of bytes and values alone -> what they may not import.
PURE = {"records", "policy"}
IMPURE = {"asyncio", "logging", "socket", "structlog", "threading", "time"}
LONGEST = 800
#: What is not public in PySpark: names of it, and modules that it does not document. All of it stands in one module.
PRIVATE = re.compile(
    r"\._(?:jvm|jsc|jdf|jc|jrdd|gateway|ensure_initialized|temp_dir)\b"
    r"|pyspark\.(?:daemon|worker|java_gateway|serializers|util|rdd|sql\.udf|sql\.pandas|sql\.classic)"
    r"|^(?:from|import) py4j",
    re.MULTILINE,
)
PRIVATE_IN = "spark/compat.py"


def imports(source: str) -> Iterator[str]:
    """Dotted names that a module imports, those inside functions and `TYPE_CHECKING` blocks included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from (f"mirror.{alias.name}" for alias in node.names) if module == "mirror" else (module,)


def complaints(package: Path) -> Iterator[str]:
    """Everything in a package that breaks the rules above."""
    for path in sorted(package.rglob("*.py")):
        where, text = path.relative_to(package), path.read_text(encoding="utf-8")
        unit = where.parts[0].removesuffix(".py")
        if unit not in HEIGHT:
            yield f"{where}: {unit} is in no layer"
            continue
        if (length := len(text.splitlines())) > LONGEST:
            yield f"{where}: {length} lines"
        if unit == "spark" and where.as_posix() != PRIVATE_IN and (found := PRIVATE.search(text)):
            yield f"{where}: {found[0]} is not public in PySpark: {PRIVATE_IN} has what is not"
        for name in imports(text):
            library, _, rest = name.partition(".")
            other = rest.partition(".")[0] or "__init__"
            if name.startswith("."):
                yield f"{where}: relative import {name}"
            elif library == "mirror" and HEIGHT.get(other, 0) > HEIGHT[unit]:
                yield f"{where}: imports {name}, which is above it"
            elif not {unit, where.as_posix()} & RESERVED.get(library, {unit}):
                yield f"{where}: imports {library}, which is for {', '.join(sorted(RESERVED[library]))}"
            elif unit in PURE and library in IMPURE:
                yield f"{where}: imports {library}, and {unit} is pure"


def test_the_package_keeps_its_layers() -> None:
    assert list(complaints(PACKAGE)) == []


@pytest.mark.parametrize(
    ("path", "text", "complaint"),
    [
        ("records/header.py", "from mirror.kafka.fetch import Api", "imports mirror.kafka.fetch, which is above it"),
        ("records/header.py", "from mirror import spark", "imports mirror.spark, which is above it"),
        ("errors.py", "def late():\n    import time, mirror.cli", "imports mirror.cli, which is above it"),
        ("kafka/fetch.py", "from .queries import at", "relative import .queries"),
        ("driver/flow.py", "import pyspark.sql", "imports pyspark, which is for lab, spark"),
        (
            "spark/task.py",
            "import confluent_kafka",
            "imports confluent_kafka, which is for kafka/admin.py, lab, topics/acls.py",
        ),
        ("policy/gaps.py", "from time import monotonic", "imports time, and policy is pure"),
        (
            "spark/task.py",
            "import pyspark\npyspark.SparkContext._gateway",
            "._gateway is not public in PySpark: spark/compat.py has what is not",
        ),
        ("helpers.py", "", "helpers is in no layer"),
        ("kafka/fetch.py", "\n" * (LONGEST + 1), f"{LONGEST + 1} lines"),
    ],
)
def test_a_broken_rule_is_found(tmp_path: Path, path: str, text: str, complaint: str) -> None:
    planted = tmp_path / path
    planted.parent.mkdir(exist_ok=True)
    planted.write_text(text, encoding="utf-8")
    assert list(complaints(tmp_path)) == [f"{path}: {complaint}"]
