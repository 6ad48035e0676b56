"""A Kafka-aware TCP proxy in front of one cluster: each broker behind a port of its own, faults at chosen requests.

It reads frames and no more of them than it must: the request's key and version, the correlation id, and, in Metadata
answers, where the brokers are, which it replaces by its own ports, so that clients stay behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final, Literal

from background import BackgroundServers
from crc32c import crc32c
from kio.serial import entity_reader, entity_writer

from mirror.kafka.protocol import METADATA

Address = tuple[str, int]
What = Literal["drop", "delay", "cut-before", "cut-after", "flip", "deaf", "slow"]
#: Bytes a second of a slowed connection, and the piece by which it moves.
SLOW_BYTES: Final = 200_000
_PIECE: Final = 4096
_CRC_AT, _CRC_FROM, _HEADER_BYTES = 17, 21, 61


@dataclass(slots=True)
class Rule:
    """What happens to the `count`th request with this key.

    drop        its answer is swallowed
    delay       its answer, and all that follow on the connection, come `seconds` later
    cut-before  the connection is cut, and the broker never sees the request
    cut-after   the connection is cut once the broker has answered
    flip        one bit of a record batch's protected part is turned, in the answer or, for Produce, in the request
    deaf        for `seconds`, nothing from the brokers gets through, on no connection; what they send is lost
    slow        the connection moves `SLOW_BYTES` a second from then on
    """

    what: What
    key: int
    count: int
    seconds: float = 0.0
    chance: Random = field(default_factory=lambda: Random(0))
    fired: int = 0

    def strikes(self, key: int) -> bool:
        """Whether this request is the one."""
        if key != self.key:
            return False
        self.count -= 1
        self.fired += self.count == 0
        return self.count == 0


class Network(BackgroundServers):
    """All brokers of one cluster."""

    def __init__(self, upstream: str, far_s: float = 0.0, most: int = 1 << 30) -> None:
        """`upstream` is the cluster's bootstrap.servers: all its brokers, whose answers are `far_s` on their way. A
        request of more than `most` bytes closes its connection; `closed` counts these.
        """
        super().__init__()
        self.far_s, self.most, self.closed = far_s, most, 0
        self._brokers = [(host, int(port)) for host, port in (one.split(":") for one in upstream.split(","))]
        self._ports: dict[tuple[str, int], int] = {}
        self._rules: list[Rule] = []
        self._deaf_until = 0.0
        self._links: set[_Link] = set()
        self.is_cut = False

    @property
    def bootstrap(self) -> str:
        """Where clients connect."""
        return ",".join(f"127.0.0.1:{self._ports[one]}" for one in self._brokers)

    def disturb(self, *rules: Rule) -> None:
        """These rules from now on, and no others."""
        self._await(self._disturb(rules))

    def cut(self) -> None:
        """End every connection, and take none until `heal`."""
        self._await(self._cut())

    def heal(self) -> None:
        """Take connections again."""
        self.is_cut = False

    async def _disturb(self, rules: tuple[Rule, ...]) -> None:
        self._rules, self._deaf_until = list(rules), 0.0

    async def _cut(self) -> None:
        self.is_cut = True
        for link in self._links:
            link.abort()

    async def _listen(self) -> list[asyncio.Server]:
        servers = []
        for broker in self._brokers:

            async def serve(
                reader: asyncio.StreamReader, writer: asyncio.StreamWriter, broker: tuple[str, int] = broker
            ) -> None:
                link = _Link(self, reader, writer)
                self._links.add(link)
                try:
                    await link.run(broker)
                finally:
                    self._links.discard(link)

            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            servers.append(server)
            self._ports[broker] = server.sockets[0].getsockname()[1]
        return servers

    # --- for links

    def struck(self, key: int) -> Rule | None:
        """The rule that this request triggers, if any."""
        rule = next((one for one in self._rules if one.strikes(key)), None)
        if rule and rule.what == "deaf":
            self._deaf_until = self._loop.time() + rule.seconds
        return rule

    @property
    def is_deaf(self) -> bool:
        """Nothing from the brokers gets through."""
        return self._loop.time() < self._deaf_until

    def relocated(self, frame: bytes, version: int) -> bytes:
        """A Metadata answer that names our ports."""
        return relocated(frame, version, lambda broker: self._ports.get(broker, broker[1]))


class _Link:
    """One connection of a client, and ours to the broker."""

    def __init__(self, network: Network, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._network, self._reader, self._writer = network, reader, writer
        self._asked: dict[int, tuple[int, int, Rule | None]] = {}
        self._slow = False

    def abort(self) -> None:
        """Cut this connection."""
        self._writer.transport.abort()

    async def run(self, broker: tuple[str, int]) -> None:
        if self._network.is_cut:
            self.abort()
            return
        try:
            reader, writer = await asyncio.open_connection(*broker)
        except OSError:  # the broker is down, and so is its port here
            self.abort()
            return
        except asyncio.CancelledError:  # the network ends at this moment
            self.abort()
            raise
        await until_one_ends((self._requests(writer), self._answers(reader)), self._writer, writer)

    async def _requests(self, up: asyncio.StreamWriter) -> None:
        while frame := await read_frame(self._reader):
            if len(frame) > self._network.most:
                self._network.closed += 1
                return
            key, version = api_of(frame)
            rule = self._network.struck(key)
            if rule and rule.what == "cut-before":
                return
            if rule and rule.what == "slow":
                self._slow = True
            if rule and rule.what == "flip" and key == 0:
                frame = flipped(frame, rule.chance)
            self._asked[request_id(frame)] = (key, version, rule)
            await self._send(up, frame)

    async def _answers(self, up: asyncio.StreamReader) -> None:
        while frame := await read_frame(up):
            key, version, rule = self._asked.pop(answer_id(frame))
            if key == METADATA.key:
                frame = self._network.relocated(frame, version)
            match rule.what if rule else "":
                case "cut-after":
                    return
                case "drop":
                    continue
                case "delay":
                    await asyncio.sleep(rule.seconds if rule else 0)
                case "flip" if key != 0:
                    frame = flipped(frame, rule.chance if rule else Random(0))
            if self._network.is_deaf:
                continue
            if self._network.far_s:
                asyncio.get_running_loop().call_later(self._network.far_s, self._writer.write, as_sent(frame))
            else:
                await self._send(self._writer, frame)

    async def _send(self, writer: asyncio.StreamWriter, frame: bytes) -> None:
        data = as_sent(frame)
        if not self._slow:
            writer.write(data)
            await writer.drain()
            return
        for at in range(0, len(data), _PIECE):
            piece = data[at : at + _PIECE]
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(len(piece) / SLOW_BYTES)


def flipped(frame: bytes, chance: Random) -> bytes:
    """The frame with one bit turned in what the CRC of its first batch protects; as it is where it holds none."""
    for at in range(len(frame) - _HEADER_BYTES):
        if frame[at + 16] != 2:
            continue
        end = at + 12 + int.from_bytes(frame[at + 8 : at + 12], "big")
        crc = int.from_bytes(frame[at + _CRC_AT : at + _CRC_FROM], "big")
        if at + _HEADER_BYTES <= end <= len(frame) and crc32c(frame[at + _CRC_FROM : end]) == crc:
            changed = bytearray(frame)
            changed[chance.randrange(at + _CRC_FROM, end)] ^= 1 << chance.randrange(8)
            return bytes(changed)
    return frame


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
