"""Records for trying things: `mirror embedded fill` writes some to topics of a cluster that was started by hand."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Final

from mirror.admin.client import Admin
from mirror.admin.values import Creation
from mirror.config import ClusterSettings
from mirror.demo.producers import Ends, PlainFiller
from mirror.demo.records import POOL, pool

PARTITIONS: Final = 3
CODEC: Final = "zstd"


def fill(cluster: str, bootstrap: str, topics: Sequence[str], records: int) -> Mapping[str, int]:
    """Write `records` to each topic, creating those that are not there; how many each then holds.

    Raises ClusterError, EmbeddedError.
    """
    admin = Admin(ClusterSettings.model_validate({"alias": cluster, "bootstrap.servers": bootstrap}))
    admin.create_topics([Creation(topic=name, partitions=PARTITIONS, replication_factor=1) for name in topics])
    made = pool(count=min(records, POOL))
    for name in topics:
        PlainFiller(bootstrap, name, CODEC, made, records, threading.Event()).run()
    partitions = {name: len(info.partitions) for name, info in admin.describe(topics).items()}
    ends = Ends(bootstrap).of(partitions)
    return {name: sum(ends[name, partition] for partition in range(partitions[name])) for name in partitions}
