"""The vectors on disk, and the one form in which all readers' records are compared.

A vector is the record set of one partition as a Fetch answer carried it. The vectors of one origin lie end to end in
one file; `manifest.json` says where each begins, its SHA-256, and the digest of the records that foreign consumers
read there. No code of the mirror has a part in that digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

FOLDER: Final = Path(__file__).parent
MANIFEST: Final = FOLDER / "manifest.json"

Header = tuple[bytes, bytes | None]


class Row(NamedTuple):
    """One record as a consumer sees it. The timestamp is in ms, -1 where the format has none."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()

    def line(self) -> str:
        """Canonical text: offset, timestamp, key, value, headers; bytes in hex, `-` for null, `key=value,...`."""
        headers = ",".join(f"{key.hex()}={_hex(value)}" for key, value in self.headers)
        return f"{self.offset} {self.timestamp} {_hex(self.key)} {_hex(self.value)} {headers}"

    @classmethod
    def of_line(cls, line: str) -> Row:
        """The row that `line` gives back. Raises ValueError on other text."""
        offset, timestamp, key, value, headers = line.split(" ")
        pairs = (pair.split("=") for pair in headers.split(",") if pair)
        named = tuple((bytes.fromhex(name), _bytes(content)) for name, content in pairs)
        return cls(int(offset), int(timestamp), _bytes(key), _bytes(value), named)


@dataclass(frozen=True, slots=True)
class Expected:
    """What the foreign consumers read, isolation read_uncommitted: `first` and `last` are offsets, -1 for none."""

    count: int
    first: int
    last: int
    digest: str

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Expected:
        """The summary of records in offset order."""
        found = list(rows)
        text = "\n".join(row.line() for row in found)
        first, last = (found[0].offset, found[-1].offset) if found else (-1, -1)
        return cls(len(found), first, last, hashlib.sha256(text.encode("ascii")).hexdigest())


@dataclass(frozen=True, slots=True)
class Vector:
    """One entry of the manifest.

    `name` is origin/producer/shape/codec. `kinds` counts the batches by what their headers say. `markers` are the
    control records in offset order. `read_by` are the consumers that agreed on `expected`; `unreadable` says which
    decoder cannot read the bytes, and why.
    """

    name: str
    file: str
    position: int
    size: int
    sha256: str
    kinds: Mapping[str, int]
    markers: tuple[str, ...]
    expected: Expected
    read_by: tuple[str, ...]
    unreadable: Mapping[str, str]

    @property
    def data(self) -> memoryview:
        """The record set."""
        return memoryview(_file(self.file))[self.position : self.position + self.size]


@cache
def load() -> tuple[Vector, ...]:
    """All vectors, in the order of the manifest."""
    entries: list[dict[str, Any]] = json.loads(MANIFEST.read_text(encoding="utf-8"))["vectors"]
    return tuple(
        Vector(
            **{
                **entry,
                "expected": Expected(**entry["expected"]),
                "markers": tuple(entry["markers"]),
                "read_by": tuple(entry["read_by"]),
            }
        )
        for entry in entries
    )


def save(origins: Mapping[str, str], files: Mapping[str, bytes], vectors: Sequence[Vector]) -> None:
    """Write the files and the manifest; `origins` says in words where each file is from."""
    for name, content in files.items():
        (FOLDER / name).write_bytes(content)
    described = [
        {"file": name, "origin": origins[name], "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in files.items()
    ]
    lines = ",\n".join(json.dumps(asdict(vector)) for vector in vectors)
    text = f'{{"files": {json.dumps(described, indent=1)},\n"vectors": [\n{lines}\n]}}\n'
    MANIFEST.write_text(text, encoding="utf-8")


def file_sums() -> dict[str, str]:
    """File name -> SHA-256 as the manifest has it."""
    files: list[dict[str, str]] = json.loads(MANIFEST.read_text(encoding="utf-8"))["files"]
    return {entry["file"]: entry["sha256"] for entry in files}


@cache
def _file(name: str) -> bytes:
    return (FOLDER / name).read_bytes()


def _hex(content: bytes | None) -> str:
    return "-" if content is None else content.hex()


def _bytes(text: str) -> bytes | None:
    return None if text == "-" else bytes.fromhex(text)
