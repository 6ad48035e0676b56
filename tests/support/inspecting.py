"""`mirror inspect` over files made by hand."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from rawbatches import batch
from typer.testing import CliRunner, Result

from mirror.cli import app
from mirror.records.header import (
    CONTROL,
    TRANSACTIONAL,
)

ABORT, COMMIT = 0, 1


def marker(offset: int, producer: int, kind: int) -> bytes:
    """A control batch as a transaction coordinator writes it."""
    record = b"\x00\x00\x00\x08" + struct.pack(">hh", 0, kind) + b"\x0c" + bytes(6) + b"\x00"
    payload = bytes([2 * len(record)]) + record
    return batch(offset, attributes=CONTROL | TRANSACTIONAL, payload=payload, producer_id=producer, producer_epoch=0)


def transactional(offset: int, producer: int, count: int = 1) -> bytes:
    return batch(offset, count=count, attributes=TRANSACTIONAL, producer_id=producer, producer_epoch=0, base_sequence=0)


def run(*arguments: str | Path, width: int = 200) -> Result:
    return CliRunner().invoke(app, ["inspect", *map(str, arguments)], env={"COLUMNS": str(width)})


def lines(result: Result, kind: str = "batch") -> list[dict[str, Any]]:
    found = [json.loads(line) for line in result.stdout.splitlines()]
    return [line for line in found if line["type"] == kind]
