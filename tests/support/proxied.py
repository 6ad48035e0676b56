"""What proxies for Kafka have in common: frames, the answer that says where brokers are, the end of a connection."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from kio.serial import entity_reader, entity_writer

from mirror.kafka.protocol import METADATA

Address = tuple[str, int]


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """The next frame without its length, empty at the end."""
    with contextlib.suppress(asyncio.IncompleteReadError, OSError):
        length = int.from_bytes(await reader.readexactly(4), "big")
        return await reader.readexactly(length)
    return b""


def as_sent(frame: bytes) -> bytes:
    """The frame behind its length."""
    return len(frame).to_bytes(4, "big") + frame


def api_of(request: bytes) -> tuple[int, int]:
    """A request's key and version."""
    return int.from_bytes(request[:2], "big"), int.from_bytes(request[2:4], "big")


def request_id(request: bytes) -> int:
    """By which the answer is known, which begins with it."""
    return int.from_bytes(request[4:8], "big")


def answer_id(answer: bytes) -> int:
    """To which request this is the answer."""
    return int.from_bytes(answer[:4], "big")


def relocated(answer: bytes, version: int, port_of: Callable[[Address], int]) -> bytes:
    """A Metadata answer that names ports of this machine in the place of the brokers' own."""
    schema = METADATA.response(version)
    _, start = entity_reader(schema.__header_schema__)(answer, 0)
    found, _ = entity_reader(schema)(answer, start)
    brokers = tuple(replace(one, host="127.0.0.1", port=port_of((one.host, one.port))) for one in found.brokers)
    body = io.BytesIO()
    entity_writer(schema)(body, replace(found, brokers=brokers))
    return answer[:start] + body.getvalue()


async def until_one_ends(ways: tuple[Coroutine[Any, Any, None], ...], *ends: asyncio.StreamWriter) -> None:
    """Carry frames both ways; where one of the ways ends, the other does, and the connections are cut."""
    tasks = [asyncio.create_task(way) for way in ways]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for end in ends:
            end.transport.abort()
