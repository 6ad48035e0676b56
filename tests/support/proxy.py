"""A Kafka-aware TCP proxy in front of one broker, for faults that a sound broker does not show.

It rewrites the broker's address in Metadata answers to its own, so every connection of a client goes through it, and
hands each Fetch answer to a function that may damage it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from background import BackgroundServers
from kio.serial import entity_reader
from proxied import answer_id, api_of, as_sent, read_frame, relocated, request_id, until_one_ends

from mirror.kafka.protocol import FETCH, METADATA

Tamper = Callable[[Any, bytearray], None]


class Proxy(BackgroundServers):
    """`tamper(answer, frame)` gets each decoded Fetch answer and its bytes to change in place. A connection over which
    a request of more than `most` bytes comes is closed; `closed` counts these.
    """

    def __init__(self, upstream: str, tamper: Tamper | None = None, most: int = 1 << 30) -> None:
        super().__init__()
        host, port = upstream.split(":")
        self._upstream = (host, int(port))
        self._tamper = tamper
        self.most, self.closed = most, 0
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
            while frame := await read_frame(reader):
                if len(frame) > self.most:
                    self.closed += 1
                    return
                asked[request_id(frame)] = api_of(frame)
                up_writer.write(as_sent(frame))

        async def answers() -> None:
            while frame := await read_frame(up_reader):
                writer.write(as_sent(self._changed(frame, *asked.pop(answer_id(frame)))))

        await until_one_ends((requests(), answers()), writer, up_writer)

    def _changed(self, frame: bytes, key: int, version: int) -> bytes:
        if METADATA.key == key and METADATA.oldest <= version <= METADATA.newest:
            return relocated(frame, version, lambda _: self.port)
        if self._tamper and FETCH.key == key and FETCH.oldest <= version <= FETCH.newest:
            schema = FETCH.response(version)
            _, start = entity_reader(schema.__header_schema__)(frame, 0)
            answer, _ = entity_reader(schema)(frame, start)
            changed = bytearray(frame)
            self._tamper(answer, changed)
            return bytes(changed)
        return frame
