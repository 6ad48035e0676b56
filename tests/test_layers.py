"""The layers of the package (docs/contributing.md) as a table: an import that points upwards fails, and so does
a module too long to read."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "mirror"

#: Lowest first; a module may import from its own row and those above it in this table.
LAYERS = (
    {"__init__", "background", "errors", "folders", "heap", "names", "states"},
    {"config", "java", "yamltree", "observe"},
    {"embedded", "mm2"},
    {"batch"},
    {"wire"},
    {"policy"},
    {"aligning", "assignment", "channel", "classifier", "coalesce", "fetcher", "identity", "keeper", "position"}
    | {"damage", "reading", "retracing", "sink", "turns", "verify", "writer"},
    {"pipeline"},
    {"admin", "offsets"},
    {"spark"},
    {"__main__", "bench", "cli", "commands", "demo"},
)
HEIGHT = {unit: height for height, units in enumerate(LAYERS) for unit in units}
#: Library -> the only units that may import it.
RESERVED = {"pyspark": {"spark"}, "confluent_kafka": {"admin", "bench", "demo"}}
#: Units of bytes and values alone -> what they may not import.
PURE = {"batch", "policy"}
IMPURE = {"asyncio", "logging", "socket", "structlog", "threading", "time"}
LONGEST = 800


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
        for name in imports(text):
            library, _, rest = name.partition(".")
            other = rest.partition(".")[0] or "__init__"
            if name.startswith("."):
                yield f"{where}: relative import {name}"
            elif library == "mirror" and HEIGHT.get(other, 0) > HEIGHT[unit]:
                yield f"{where}: imports {name}, which is above it"
            elif unit not in RESERVED.get(library, {unit}):
                yield f"{where}: imports {library}, which is for {', '.join(sorted(RESERVED[library]))}"
            elif unit in PURE and library in IMPURE:
                yield f"{where}: imports {library}, and {unit} is pure"


def test_the_package_keeps_its_layers() -> None:
    assert list(complaints(PACKAGE)) == []


@pytest.mark.parametrize(
    ("path", "text", "complaint"),
    [
        ("batch/header.py", "from mirror.wire.frames import Frame", "imports mirror.wire.frames, which is above it"),
        ("batch/header.py", "from mirror import pipeline", "imports mirror.pipeline, which is above it"),
        ("errors.py", "def late():\n    import mirror.cli", "imports mirror.cli, which is above it"),
        ("__init__.py", "from mirror.pipeline import relay", "imports mirror.pipeline, which is above it"),
        ("writer.py", "from .batch import header", "relative import .batch"),
        ("pipeline.py", "import pyspark.sql", "imports pyspark, which is for spark"),
        ("spark/relay.py", "import confluent_kafka", "imports confluent_kafka, which is for admin, bench, demo"),
        ("policy/gaps.py", "from time import monotonic", "imports time, and policy is pure"),
        ("helpers.py", "", "helpers is in no layer"),
        ("writer.py", "\n" * (LONGEST + 1), f"{LONGEST + 1} lines"),
    ],
)
def test_a_broken_rule_is_found(tmp_path: Path, path: str, text: str, complaint: str) -> None:
    planted = tmp_path / path
    planted.parent.mkdir(exist_ok=True)
    planted.write_text(text, encoding="utf-8")
    assert list(complaints(tmp_path)) == [f"{path}: {complaint}"]


def test_downward_imports_are_fine(tmp_path: Path) -> None:
    (tmp_path / "writer.py").write_text("import time\nimport mirror\nfrom mirror.wire.cluster import Cluster\n")
    assert list(complaints(tmp_path)) == []
