"""`mirror inspect` over files made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rawbatches import batch
from typer.testing import CliRunner, Result

from mirror.cli import app
from mirror.records.header import TRANSACTIONAL


def transactional(offset: int, producer: int) -> bytes:
    return batch(offset, attributes=TRANSACTIONAL, producer_id=producer, producer_epoch=0, base_sequence=0)


def run(*arguments: str | Path, width: int = 200) -> Result:
    return CliRunner().invoke(app, ["inspect", *map(str, arguments)], env={"COLUMNS": str(width)})


def lines(result: Result, kind: str = "batch") -> list[dict[str, Any]]:
    found = [json.loads(line) for line in result.stdout.splitlines()]
    return [line for line in found if line["type"] == kind]
