"""The digest of what a proof compared: one number for each side of a partition, whatever the ranges it was read in.

A batch of the source adds one term: SHA-256 over its magic, length, base offset, last offset delta, record count, base
and largest timestamp, codec and timestamp type, and the CRC-32C of its records section (byte 61 to the end; of magic 0
and 1, of all that follows the length). The digest is the sum of the terms modulo 2^256. Every term holds its batch's
own offset, so a sum loses no order, and ranges may be added up in any order and cut anywhere between two batches.

    D1  the source's digest is a function of the batches with records that its log holds between the offsets compared,
        and of nothing else: two proofs over the same offsets print the same one, whatever the target is
    D2  the target's digest has the same term where its batch, or its records in other batches, were found equal, and
        another one for every difference and every accepted loss: the two digests are equal exactly where nothing
        differs and nothing is lost
    D3  a checksum guards against faults: somebody who forges batches can forge it (CRC-32C has 32 bits)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

_BITS: Final = 256
_MODULUS: Final = 1 << _BITS


class Digest:
    """A running digest."""

    __slots__ = ("_sum",)

    def __init__(self) -> None:
        """Of nothing yet."""
        self._sum = 0

    def add(self, term: bytes) -> None:
        """One batch, or one difference."""
        self._sum = (self._sum + int.from_bytes(hashlib.sha256(term).digest())) % _MODULUS

    def hexdigest(self) -> str:
        """64 hexadecimal digits."""
        return f"{self._sum:0{_BITS // 4}x}"


def added_up(digests: Iterable[str]) -> str:
    """The digest of several ranges together."""
    return f"{sum(int(one, 16) for one in digests) % _MODULUS:0{_BITS // 4}x}"
