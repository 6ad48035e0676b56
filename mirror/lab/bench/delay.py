"""A TCP proxy that holds everything back for half a round trip, each way: a broker that is far away.

The link has no limit of its own and loses nothing. It ends with SIGTERM.

    python -m mirror.lab.bench.delay PORT BROKER_PORT ROUND_TRIP_MS
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from typing import Final

_CHUNK: Final = 1 << 18
_LOOPBACK: Final = "127.0.0.1"


async def serve(port: int, broker: int, delay_s: float) -> None:
    """Until it is cancelled. `delay_s` is that of one way."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            up_reader, up_writer = await asyncio.open_connection(_LOOPBACK, broker)
            ways = [_carry(reader, up_writer, delay_s), _carry(up_reader, writer, delay_s)]
            await asyncio.gather(*ways)
        writer.close()

    server = await asyncio.start_server(connected, _LOOPBACK, port)
    async with server:
        await server.serve_forever()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
    clock = asyncio.get_running_loop().time

    async def take() -> None:
        while data := await reader.read(_CHUNK):
            held.put_nowait((clock() + delay_s, data))
        held.put_nowait((clock() + delay_s, b""))

    async def give() -> None:
        while True:
            due, data = await held.get()
            if (left := due - clock()) > 0:
                await asyncio.sleep(left)
            if not data:
                writer.write_eof()
                return
            writer.write(data)
            await writer.drain()

    with contextlib.suppress(OSError):
        await asyncio.gather(take(), give())


async def _main() -> None:
    port, broker, round_trip_ms = sys.argv[1:]
    serving = asyncio.create_task(serve(int(port), int(broker), float(round_trip_ms) / 2000))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, serving.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await serving


if __name__ == "__main__":
    asyncio.run(_main())
