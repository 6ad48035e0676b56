"""A replica's files, and how they are damaged."""

from __future__ import annotations

import base64
import errno
import os
import struct
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest
from rawbatches import batch

from mirror.records.header import CONTROL, TRANSACTIONAL

TOPIC_ID = UUID(int=7)
#: A marker's record as a coordinator writes it: key with version and type, value with version and coordinator epoch.
ABORT, COMMIT = 0, 1


def replica(broker: Path, *files: tuple[int, bytes], name: str = "orders-0", topic_id: UUID | None = TOPIC_ID) -> Path:
    """A partition's folder with segments of the given base offsets, in a data folder with an empty checkpoint."""
    folder = broker / name
    folder.mkdir(parents=True)
    (broker / "replication-offset-checkpoint").write_text("0\n0\n")
    for base, data in files:
        (folder / f"{base:020}.log").write_bytes(data)
    if topic_id:
        reported = base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()
        (folder / "partition.metadata").write_text(f"version: 0\ntopic_id: {reported}")
    return folder


def marker(at: int, producer_id: int, kind: int) -> bytes:
    record = b"\x00\x00\x00\x08" + struct.pack(">hh", 0, kind) + b"\x0c" + struct.pack(">hi", 0, 0) + b"\x00"
    payload = bytes([2 * len(record)]) + record
    attributes = TRANSACTIONAL | CONTROL
    return batch(at, attributes=attributes, producer_id=producer_id, producer_epoch=0, payload=payload)


def flipped(data: bytes, at: int) -> bytes:
    """The same with one bit of a byte turned."""
    found = bytearray(data)
    found[at] ^= 1
    return bytes(found)


def fail_at(patch: pytest.MonkeyPatch, file: Path, byte: Callable[[], int]) -> None:
    """One sector of a file cannot be read."""
    inode, preadv = file.stat().st_ino, os.preadv

    def failing(descriptor: int, buffers: list[memoryview], position: int) -> int:
        at = byte()
        if os.fstat(descriptor).st_ino == inode and position < at + 512 and position + len(buffers[0]) > at:
            if position >= at:
                raise OSError(errno.EIO, "Input/output error")
            buffers = [buffers[0][: at - position]]
        return preadv(descriptor, buffers, position)

    patch.setattr(os, "preadv", failing)
