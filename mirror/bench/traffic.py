"""Bytes that a copy exchanges with brokers of this machine, as the kernel counts them for each TCP connection (Linux).

The kernel is asked over netlink, as `ss -ti` asks it, which takes less than a millisecond: so it can be asked again
and again, and what a connection carried between the last answer and its end is next to nothing. All connections to the
brokers' ports count but for those of this process and of the brokers themselves.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_DUMP_REQUEST: Final = 0x301
_DONE: Final = 3
_ERROR: Final = 2
_INFO: Final = 2
#: ESTABLISHED, FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT, LAST_ACK: those that still have counters.
_STATES: Final = sum(1 << state for state in (1, 4, 5, 8, 9))
_HEADER: Final = struct.Struct("=IHHII")
_REQUEST: Final = struct.Struct("=BBBxI48x")
_PORTS: Final = struct.Struct(">HH")
_ATTRIBUTE: Final = struct.Struct("=HH")
#: The share of what must have been carried that has to be seen.
_SEEN: Final = 0.9
#: Where `struct inet_diag_msg` has the ports and the inode, and its size; where `struct tcp_info` has the counters.
_PORTS_AT, _INODE_AT, _MESSAGE_SIZE = 4, 68, 72
_COUNTERS: Final = struct.Struct("=QQ")
_COUNTERS_AT: Final = 120


@dataclass(frozen=True, slots=True)
class Connection:
    """One end of a connection: the local and the remote port, the socket's inode (0 once its process has closed it),
    bytes that the other end has acknowledged and bytes that came from it.
    """

    local: int
    port: int
    inode: int
    sent: int
    received: int


def parsed(answer: bytes) -> Iterator[Connection | None]:
    """The connections in one part of the kernel's answer, and None for its end (pure)."""
    at = 0
    while at + _HEADER.size <= len(answer):
        length, kind, *_ = _HEADER.unpack_from(answer, at)
        if kind in (_DONE, _ERROR) or length < _HEADER.size:
            yield None
            return
        if (found := _connection(answer[at + _HEADER.size : at + length])) is not None:
            yield found
        at += (length + 3) & ~3


def _connection(message: bytes) -> Connection | None:
    local, port = _PORTS.unpack_from(message, _PORTS_AT)
    (inode,) = struct.unpack_from("=I", message, _INODE_AT)
    at = _MESSAGE_SIZE
    while at + _ATTRIBUTE.size <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, at)
        if kind == _INFO and length >= _ATTRIBUTE.size + _COUNTERS_AT + _COUNTERS.size:
            return Connection(local, port, inode, *_COUNTERS.unpack_from(message, at + _ATTRIBUTE.size + _COUNTERS_AT))
        at += max(_ATTRIBUTE.size, (length + 3) & ~3)
    return None


class Traffic:
    """Adds up what goes to and comes from brokers on these `ports`; `brokers` are their processes' ids."""

    def __init__(self, ports: Iterable[int], brokers: Iterable[int]) -> None:
        self._ports, self._others = frozenset(ports), (os.getpid(), *brokers)
        self._counts: dict[tuple[int, int], tuple[int, int]] = {}
        self._foreign: set[tuple[int, int]] = set()

    def look(self) -> None:
        """Now. Nothing happens where the kernel cannot be asked."""
        if sys.platform != "linux":
            return
        with suppress(OSError):
            for one in (*_asked(socket.AF_INET), *_asked(socket.AF_INET6)):  # Java's are of the second family
                which = one.local, one.port
                if one.port not in self._ports or which in self._foreign:
                    continue
                if which not in self._counts and (not one.inode or self._is_foreign(one.inode)):
                    self._foreign.add(which)
                    continue
                received, sent = self._counts.get(which, (0, 0))
                self._counts[which] = max(received, one.received), max(sent, one.sent)

    def _is_foreign(self, inode: int) -> bool:
        return any(inode in _inodes(pid) for pid in self._others)

    def total(self, least_received: int, least_sent: int) -> tuple[int | None, int | None]:
        """Bytes received and sent so far, given what must have gone either way. A connection may carry something
        between the last look and its end; where that can be more than a little, the sum is not known.
        """
        received, sent = (sum(pair[way] for pair in self._counts.values()) for way in (0, 1))
        return _known(received, least_received), _known(sent, least_sent)


def _known(counted: int, least: int) -> int | None:
    return max(counted, least) if counted >= _SEEN * least else None


def _asked(family: socket.AddressFamily) -> Iterator[Connection]:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
        body = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INFO - 1), _STATES)
        kernel.send(_HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _DUMP_REQUEST, 1, 0) + body)
        while True:
            for found in parsed(kernel.recv(1 << 17)):
                if found is None:
                    return
                yield found


def _inodes(pid: int) -> Iterator[int]:
    with suppress(OSError):  # it has ended
        for name in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                target = str(name.readlink())
                if target.startswith("socket:["):
                    yield int(target[8:-1])
