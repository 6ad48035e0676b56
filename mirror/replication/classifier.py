"""The verdict on a batch: a pure table from its header and the rules of its partition.

Read top to bottom; the first row that applies decides. Nothing is decompressed and nothing is asked of a broker.
What a broker does with each kind of batch is Kafka's `LogValidator` and `ProduceRequest.validateRecords`; the row
names the rule.

A verdict is a deterministic function of the source log, so that two runs append the same batches (invariant P2 in
`replication/decide.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from mirror.policy.rules import Rules
from mirror.records.header import (
    APPEND_TIME,
    CODEC_MASK,
    CODECS,
    CONTROL,
    DELETE_HORIZON,
    LENGTH_PREFIX,
    TRANSACTIONAL,
    BatchHeader,
)


class Action(StrEnum):
    """What the writer does with a batch, from the cheapest to the last resort."""

    RESTAMP = "RESTAMP"
    REWRITE = "REWRITE"
    DROP = "DROP"
    REFUSE = "REFUSE"


@dataclass(frozen=True, slots=True)
class Verdict:
    """An action and the reason for it, as the metrics count them."""

    action: Action
    reason: str
    name: str = field(init=False)  # both

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", f"{self.action}/{self.reason}")

    def __str__(self) -> str:
        return self.name


OWN_PRODUCER = Verdict(Action.RESTAMP, "own_producer")
WAS_TRANSACTIONAL = Verdict(Action.RESTAMP, "transactional")
HAD_HORIZON = Verdict(Action.RESTAMP, "delete_horizon")
APPEND_TIME_BOTH = Verdict(Action.RESTAMP, "append_time")

LEGACY = Verdict(Action.REWRITE, "legacy_magic")
STARTS_INSIDE = Verdict(Action.REWRITE, "starts_inside")
HOLES = Verdict(Action.REWRITE, "holes")
APPEND_TIME_KEPT = Verdict(Action.REWRITE, "append_time")
TOO_LARGE = Verdict(Action.REWRITE, "too_large")
CODEC_FIXED = Verdict(Action.REWRITE, "codec")

ALREADY_MIRRORED = Verdict(Action.DROP, "already_mirrored")
CONTROL_MARKER = Verdict(Action.DROP, "control")
ABORTED = Verdict(Action.DROP, "aborted")
EMPTY = Verdict(Action.DROP, "empty")

BAD_CRC = Verdict(Action.REFUSE, "bad_crc")
UNKNOWN_MAGIC = Verdict(Action.REFUSE, "unknown_magic")
UNKNOWN_CODEC = Verdict(Action.REFUSE, "unknown_codec")
IMPOSSIBLE = Verdict(Action.REFUSE, "impossible_header")

#: The header says which offsets the batch takes, and no version of the mirror can read its records.
UNREADABLE = frozenset({UNKNOWN_CODEC, IMPOSSIBLE})

VERDICTS = (
    *(OWN_PRODUCER, WAS_TRANSACTIONAL, HAD_HORIZON, APPEND_TIME_BOTH),
    *(LEGACY, STARTS_INSIDE, HOLES, APPEND_TIME_KEPT, TOO_LARGE, CODEC_FIXED),
    *(ALREADY_MIRRORED, CONTROL_MARKER, ABORTED, EMPTY),
    *(BAD_CRC, UNKNOWN_MAGIC, UNKNOWN_CODEC, IMPOSSIBLE),
)


def classify(
    header: BatchHeader, rules: Rules, *, next_offset: int, aborted: bool = False, crc_holds: bool = True
) -> Verdict:
    """The verdict on one batch.

    `next_offset` is the partition's position: the first offset not mirrored yet. `aborted` says that the fetch
    answer's index lists the batch's transaction as aborted. `crc_holds` is the result of the check over the stored
    bytes.
    """
    base_offset, length, _, magic, _, attributes, delta, _, _, _, _, _, count = header
    if not 0 <= magic <= 2:
        return UNKNOWN_MAGIC
    if not crc_holds:
        return BAD_CRC
    if magic < 2:  # ProduceRequest.validateRecords: a live Produce version takes magic 2 alone
        return LEGACY if header.last_offset >= next_offset else ALREADY_MIRRORED
    if base_offset < 0 or delta < 0:
        return IMPOSSIBLE
    if base_offset + delta < next_offset:
        return ALREADY_MIRRORED  # whatever it holds: nobody has to read it again
    codec = attributes & CODEC_MASK
    if codec >= len(CODECS):
        return UNKNOWN_CODEC
    if not 0 <= count <= delta + 1:
        return IMPOSSIBLE
    if attributes & CONTROL:
        return CONTROL_MARKER  # LogValidator.validateBatch: clients may not write control records
    if aborted:
        return ABORTED
    if not count:
        return EMPTY  # a header that compaction kept for its producer's sequence
    if base_offset < next_offset:
        return STARTS_INSIDE
    if count != delta + 1:
        return HOLES  # LogValidator.validateBatch: inconsistent batch offset range
    if attributes & APPEND_TIME and not rules.target_append_time:
        return APPEND_TIME_KEPT  # a broker would clear the bit and show the producers' create times
    if LENGTH_PREFIX + length > rules.max_message_bytes:
        return TOO_LARGE  # UnifiedLog.analyzeAndValidateRecords
    if rules.codec is not None and rules.codec != codec:
        return CODEC_FIXED
    if attributes & TRANSACTIONAL:
        return WAS_TRANSACTIONAL
    if attributes & DELETE_HORIZON:
        return HAD_HORIZON
    if attributes & APPEND_TIME:
        return APPEND_TIME_BOTH
    return OWN_PRODUCER  # ids belong to one cluster: a foreign one collides with a native producer's
