"""Which partition a record's key belongs to, by the rule of Kafka's Java client (`BuiltInPartitioner`, KIP-794).

Whoever writes keyed records with that client, or reads them and expects the records of a key together, counts on it.
librdkafka has the same rule under the name `murmur2_random`, and another one unless it is asked for.
"""

from __future__ import annotations

import numpy as np

from mirror.batch import kernels
from mirror.batch.records import Int32s, Records


def partitions_of(records: Records, count: int) -> Int32s:
    """The partition, from 0 to below `count`, of each record by its key; -1 for one without a key, which a producer
    may put anywhere. An empty key is a key.
    """
    assert count > 0, f"{count} partitions"
    found = np.empty(len(records), np.int32)
    kernels.murmur2_partitions(records.data, records.key_at, records.key_size, count, found)
    return found
