"""The progress topic of a re-keyed topic: plans in partition 0, and in each slot's partition the number of the last
micro-batch that the slot has committed (R1 to R3).
"""

from __future__ import annotations

import json
from typing import Final

from mirror.batch.header import RawBatch, parse_header
from mirror.errors import ConfigError
from mirror.offsets.journal import decode, encode, newest
from mirror.policy.rekeying import Rekeying
from mirror.reading.last import last_committed
from mirror.spark.rekey.microbatch import Plan
from mirror.wire.cluster import Cluster, TopicPartition

#: What a slot has that has committed nothing yet.
NOTHING: Final = -1
_NUMBER: Final = b"number"
_PLAN: Final = b"plan"


def plans_of(rule: Rekeying) -> TopicPartition:
    """Where the plans are."""
    return TopicPartition(rule.progress, 0)


def number_at(rule: Rekeying, slot: int) -> TopicPartition:
    """Where a slot's number is."""
    return TopicPartition(rule.progress, 1 + slot)


def transactional_id(rule: Rekeying, slot: int) -> str:
    """The id under which a slot writes."""
    return f"{rule.progress}.{slot}"


def numbered(number: int) -> RawBatch:
    """The batch that says up to which micro-batch a slot has come."""
    return _batch(_NUMBER, json.dumps(number).encode())


def number_of(raw: RawBatch | None) -> int:
    """What such a batch says; `NOTHING` where there is none. Raises ConfigError for one that no mirror wrote."""
    if raw is None:
        return NOTHING
    try:
        return int(json.loads(_value(raw, _NUMBER)))
    except (ValueError, TypeError) as problem:
        raise ConfigError(f"a slot of the re-key query has no number: {problem!r}") from problem


def planned(plan: Plan) -> RawBatch:
    """The batch that holds a plan."""
    return _batch(_PLAN, plan.to_json())


async def last_plan(cluster: Cluster, rule: Rekeying) -> Plan | None:
    """The newest plan, None where there was none yet. Raises ConfigError for what is no plan, and ClusterError."""
    raw = await last_committed(cluster, plans_of(rule))
    return None if raw is None else Plan.from_json(_value(raw, _PLAN))


def _batch(key: bytes, value: bytes) -> RawBatch:
    data = memoryview(encode([(key, value)]))
    return RawBatch(parse_header(data), data)


def _value(raw: RawBatch, key: bytes) -> bytes:
    entries, _, _ = decode(raw.data)
    value = newest(entries).get(key)
    if value is None:
        raise ConfigError(f"a record of the re-key query's progress is not the mirror's: no {key.decode()} in it")
    return value
