"""Records as an application writes them: JSON of about 400 bytes that compresses three to five times.

A pool of them is made once and written over and over: making a record takes fifty times as long as sending it. The pool
is larger than any batch, so no codec profits from the repetition.
"""

from __future__ import annotations

import json
import random
import string
from dataclasses import dataclass
from typing import Final

POOL: Final = 20_000


@dataclass(frozen=True, slots=True)
class Record:
    """One record; the key is the user's number."""

    key: bytes
    value: bytes


def pool(seed: int = 7, count: int = POOL) -> tuple[Record, ...]:
    """`count` records, the same for the same seed."""
    rng = random.Random(seed)
    words = ["".join(rng.choices(string.ascii_lowercase, k=rng.randint(3, 9))) for _ in range(600)]
    return tuple(_record(rng, words, index) for index in range(count))


def _record(rng: random.Random, words: list[str], index: int) -> Record:
    user = rng.randrange(100_000)
    value = {
        "at": 1_700_000_000_000 + index * 13,
        "user": user,
        "session": f"{rng.getrandbits(64):016x}",
        "event": rng.choice(words),
        "page": "/" + "/".join(rng.choices(words, k=3)),
        "amount": round(rng.expovariate(0.05), 2),
        "properties": {word: rng.randrange(1000) for word in rng.choices(words, k=8)},
        "text": " ".join(rng.choices(words, k=18)),
    }
    return Record(str(user).encode(), json.dumps(value, separators=(",", ":")).encode())
