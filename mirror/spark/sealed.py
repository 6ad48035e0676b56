"""Frames on a connection of two sides that share a key: a kind, a length, a proof and what is said.

The proof is over the kind, which one of its side's frames it is, and what it says, so that whoever is in between can
make none up, change none, leave none out and send none again.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

PROOF_BYTES: Final = 32
_PROOF: Final = "sha256"
_SIZE_BYTES: Final = 4
_COUNT_BYTES: Final = 8


class Unproven(ConnectionError):
    """What came is of nobody who knows the key."""


def proof(key: bytes, *said: bytes) -> bytes:
    """What only somebody who knows the key can say of this."""
    return hmac.digest(key, b"".join(said), _PROOF)


@dataclass(slots=True, eq=False)
class Frames:
    """One side's end. A kind is one byte, and each side has kinds of its own."""

    key: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    _sent: int = 0
    _got: int = 0

    @property
    def unsent(self) -> int:
        """Bytes that wait for the other side to read."""
        return self.writer.transport.get_write_buffer_size()

    def write(self, kind: bytes, said: bytes = b"") -> None:
        """Send one, which waits for nobody."""
        sealed = proof(self.key, kind, self._sent.to_bytes(_COUNT_BYTES), said)
        self._sent += 1
        self.writer.write(kind + len(said).to_bytes(_SIZE_BYTES) + sealed + said)

    async def read(self, kinds: Collection[bytes], most: int) -> tuple[bytes, bytes]:
        """The next one, of one of `kinds`, with at most so many bytes: no more is ever held of what is not proven.

        Raises Unproven; IncompleteReadError and OSError as a StreamReader does.
        """
        kind = await self.reader.readexactly(1)
        size = int.from_bytes(await self.reader.readexactly(_SIZE_BYTES))
        if kind not in kinds or size > most:
            raise Unproven(f"a frame of kind {kind!r} with {size} bytes")
        sealed, said = await self.reader.readexactly(PROOF_BYTES), await self.reader.readexactly(size)
        if not hmac.compare_digest(sealed, proof(self.key, kind, self._got.to_bytes(_COUNT_BYTES), said)):
            raise Unproven("a frame without its proof")
        self._got += 1
        return kind, said
