"""A Kafka-aware TCP proxy in front of one broker, for faults that a sound broker does not show.

It rewrites the broker's address in Metadata answers to its own, so every connection of a client goes through it, and
hands each Fetch answer to a function that may damage it.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from background import BackgroundServers
from kio.serial import entity_reader, entity_writer

from mirror.wire.protocol import FETCH, METADATA

Tamper = Callable[[Any, bytearray], None]


class Proxy(BackgroundServers):
    """`tamper(answer, frame)` gets each decoded Fetch answer and its bytes to change in place."""

    def __init__(self, upstream: str, tamper: Tamper | None = None) -> None:
        super().__init__()
        host, port = upstream.split(":")
        self._upstream = (host, int(port))
        self._tamper = tamper
        self.port = 0

    @property
    def bootstrap(self) -> str:
        """Where clients connect."""
        return f"127.0.0.1:{self.port}"

    async def _listen(self) -> list[asyncio.Server]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return [server]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            up_reader, up_writer = await asyncio.open_connection(*self._upstream)
        except BaseException:  # the proxy ends at this moment, or the broker has
            writer.transport.abort()
            raise
        asked: dict[int, tuple[int, int]] = {}

        async def requests() -> None:
            while frame := await _frame(reader):
                key, version = int.from_bytes(frame[:2], "big"), int.from_bytes(frame[2:4], "big")
                asked[int.from_bytes(frame[4:8], "big")] = (key, version)
                _send(up_writer, frame)

        async def answers() -> None:
            while frame := await _frame(up_reader):
                _send(writer, self._changed(frame, *asked.pop(int.from_bytes(frame[:4], "big"))))

        both = [asyncio.create_task(requests()), asyncio.create_task(answers())]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            writer.transport.abort()
            up_writer.transport.abort()

    def _changed(self, frame: bytearray, key: int, version: int) -> bytearray:
        for api in (METADATA, FETCH):
            if api.key != key or not api.oldest <= version <= api.newest:
                continue
            schema = api.response(version)
            _, start = entity_reader(schema.__header_schema__)(bytes(frame), 0)
            answer, _ = entity_reader(schema)(bytes(frame), start)
            if api is FETCH:
                if self._tamper:
                    self._tamper(answer, frame)
            else:
                brokers = tuple(replace(b, host="127.0.0.1", port=self.port) for b in answer.brokers)
                body = io.BytesIO()
                entity_writer(schema)(body, replace(answer, brokers=brokers))
                return frame[:start] + body.getvalue()
        return frame


async def _frame(reader: asyncio.StreamReader) -> bytearray:
    """The next frame, empty at the end."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        length = int.from_bytes(await reader.readexactly(4), "big")
        return bytearray(await reader.readexactly(length))
    return bytearray()


def _send(writer: asyncio.StreamWriter, frame: bytearray) -> None:
    writer.write(len(frame).to_bytes(4, "big") + frame)
