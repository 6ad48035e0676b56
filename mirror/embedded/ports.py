"""Free ports that stay ours until the broker listens on them.

A port that is looked up and let go can be taken by anybody before the broker binds it. So the socket that found it
stays bound, never listening: Linux lets a listener with SO_REUSEADDR, which Java sets, share such a port and gives it
to nobody else. It also lets a killed broker come back on the port it had. Other systems refuse to share; there the port
is let go just before the start.
"""

from __future__ import annotations

import socket
import sys


def reserve(count: int) -> list[socket.socket]:
    """`count` sockets bound to free ports of 127.0.0.1, not listening. Close them to give the ports back."""
    sockets = []
    for _ in range(count):
        found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(("127.0.0.1", 0))
        sockets.append(found)
    return sockets


def number(reserved: socket.socket) -> int:
    """The port that a reserving socket holds."""
    port: int = reserved.getsockname()[1]
    return port


def hand_over(reserved: list[socket.socket]) -> None:
    """Makes way for the processes that are about to listen."""
    if sys.platform != "linux":
        for held in reserved:
            held.close()
