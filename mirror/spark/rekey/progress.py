"""The progress topic of a re-keyed topic: plans in partition 0, and in each slot's partition the number of the last
micro-batch that the slot has committed (R1 to R3), with how far the target's logs reached then.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from mirror.batch.header import RawBatch, parse_header
from mirror.errors import ConfigError
from mirror.offsets.journal import decode, encode, newest
from mirror.policy.rekeying import Rekeying
from mirror.reading.last import last_committed
from mirror.spark.rekey.microbatch import Plan
from mirror.wire.cluster import Cluster, TopicPartition
from mirror.wire.queries import epoch_end

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


@dataclass(frozen=True, slots=True)
class Reached:
    """What a slot has committed.

    number: that of its last micro-batch.
    ends: by target partition, a leader epoch, which none of the slot's records there is newer than, and the offset
        behind the last of them: a log in which that epoch ends before has lost some.
    """

    number: int = NOTHING
    ends: Mapping[int, tuple[int, int]] = field(default_factory=dict)


def numbered(reached: Reached) -> RawBatch:
    """The batch that says how far a slot has come."""
    return _batch(_NUMBER, json.dumps({"number": reached.number, "ends": reached.ends}).encode())


def reached_in(raw: RawBatch | None) -> Reached:
    """What such a batch says, or none. Raises ConfigError for one that no mirror wrote."""
    if raw is None:
        return Reached()
    try:
        told = json.loads(_value(raw, _NUMBER))
        if isinstance(told, int):  # as 0.1.0 wrote it
            return Reached(told)
        ends = {int(number): (int(epoch), int(end)) for number, (epoch, end) in told["ends"].items()}
        return Reached(int(told["number"]), ends)
    except (ValueError, TypeError, KeyError, AttributeError) as problem:
        raise ConfigError(f"a slot of the re-key query has no number: {problem!r}") from problem


async def lost_of(target: Cluster, at: TopicPartition, end: int, epoch: int) -> str:
    """What a target partition lost of a slot's records, which had been acknowledged up to before offset `end` and are
    no newer than leader epoch `epoch`: in words, empty where it has them, or nobody can tell any more. Nothing is asked
    of a leader that was not elected since.
    """
    if target.leader(at).epoch == epoch or not 0 <= (kept := await epoch_end(target, at, epoch)) < end:
        return ""
    return f"the target lost records: {at} was cut back to offset {kept}, and had acknowledged those up to {end - 1}"


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
