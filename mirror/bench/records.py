"""Seeded records, JSON as event logs have it, and topics to put them in (pure, but for `create`)."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Mapping
from typing import Final

from confluent_kafka.admin import AdminClient, NewTopic

NO_LIMIT: Final = str(2**63 - 1)
#: Bytes: of a record with next to nothing in it; from which on there are properties; of what does not grow; as usual.
_SMALLEST: Final = 50
_WITH_PROPERTIES: Final = 200
_FIXED: Final = 130
_USUAL: Final = 400


def records(seed: int, count: int = 20_000, vocabulary: int = 600, size: int = 400) -> list[bytes]:
    """Records of about `size` bytes (not below 60) that compress about three to one with zstd, as event logs do; four
    to one with 50 words. The same ones for the same seed.
    """
    rng = random.Random(seed)
    words = ["".join(rng.choices(string.ascii_lowercase, k=rng.randint(3, 9))) for _ in range(vocabulary)]
    return [_record(rng, words, index, size) for index in range(count)]


def _record(rng: random.Random, words: list[str], index: int, size: int) -> bytes:
    made: dict[str, object] = {"user": rng.randrange(1_000_000), "event": rng.choice(words)}
    if size < _WITH_PROPERTIES:
        made |= {"text": " ".join(rng.choices(words, k=max(1, (size - _SMALLEST) // 7)))}
    else:
        share = (size - _FIXED) / (_USUAL - _FIXED)
        made |= {
            "page": "/" + "/".join(rng.choices(words, k=3)),
            "at": 1_700_000_000_000 + index * 13,
            "session": f"{rng.getrandbits(48):012x}",
            "properties": {word: rng.randrange(100) for word in rng.choices(words, k=round(9 * share))},
            "text": " ".join(rng.choices(words, k=round(24 * share))),
        }
    return json.dumps(made).encode()


def create(
    bootstrap: str, topic: str, partitions: int, replicas: int = 1, config: Mapping[str, str] | None = None
) -> None:
    """A topic that takes batches as they come. Raises confluent_kafka's KafkaException."""
    settings = {"compression.type": "producer", "message.timestamp.after.max.ms": NO_LIMIT, **(config or {})}
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for created in admin.create_topics([NewTopic(topic, partitions, replicas, config=settings)]).values():
        created.result()
