"""The live figures of one partition, as a lane reports them every second.

They travel as JSON on the flow's compacted topic, keyed by target partition: the newest report of each partition is
what remains there, and `status` works from anywhere. Reading ignores keys it does not know, so that an older `status`
can watch a newer mirror.
"""

from __future__ import annotations

import builtins
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from typing import Final

from mirror.observe.histogram import Histogram
from mirror.observe.jsonrecords import is_of, read_fields
from mirror.states import State

#: What the keys of all of them begin with.
PREFIX: Final = b"state/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One partition, now.

    `instance`: the process that reports. `next_offset`: the next source offset to copy. `log_end`: the source's end as
    last seen, -1 where it never was. `lag_records`: up to the source's end of now, None where nobody knows that: a
    partition that rests, waits or stopped does not look at its source, so whoever asks the source fills it in
    (`with_end`). `lag_ms`: the latency of the last batch that the target acknowledged, from its newest record's
    timestamp to the ack; 0 when caught up, None if unknown. `records`, `batches`, `bytes`, `filled` (offsets that
    control markers took), `lost` (those among them that the source had lost), `target_lost` (records that the
    target had acknowledged and lost), `verdicts` (batches, keyed `VERDICT/reason`),
    `verdict_bytes` (the bytes of those: written, or left out for DROP) and `latency` (of each acknowledged batch whose
    records have timestamps, as in `lag_ms`) count since this instance started. `at_ms`: wall clock of the report,
    Unix ms. `verified`: since the task began, the copy's last records were found to be the source's. `presumed`: the
    state is a stop that was known before, and the task has not looked at the partition yet.
    """

    flow: str
    instance: str
    topic: str
    partition: int
    target_topic: str
    state: State
    detail: str = ""
    next_offset: int
    log_end: int
    lag_records: int | None
    lag_ms: int | None = None
    records: int = 0
    batches: int = 0
    bytes: int = 0
    filled: int = 0
    lost: int = 0
    target_lost: int = 0
    verdicts: Mapping[str, int] = field(default_factory=dict)
    verdict_bytes: Mapping[str, int] = field(default_factory=dict)
    latency: Histogram = field(default_factory=Histogram)
    at_ms: int
    verified: bool = False
    presumed: bool = False

    @property
    def lag_bytes(self) -> int | None:
        """The lag in bytes as stored, by the mean size of the records that were copied; None while none was."""
        if not self.lag_records:
            return self.lag_records
        return self.lag_records * self.bytes // self.records if self.records else None

    @property
    def is_stopped(self) -> bool:
        """Its task looked, and it stops."""
        return self.state.is_stop and not self.presumed

    @property
    def sees_the_end(self) -> bool:
        """The task that reports it looks at the source's end all the time."""
        return self.state in _SEEING

    def with_end(self, end: int | None) -> Figures:
        """The same, where the source ends at `end` by now; None where nobody knows.

        Not of a partition whose source topic is another one by now: what that holds is no lag of this copy.
        """
        if end is None or self.next_offset < 0 or self.state is State.RECREATED:
            return self if self.lag_records is None else replace(self, lag_records=None)
        return replace(self, log_end=end, lag_records=max(0, end - self.next_offset))

    def key(self) -> builtins.bytes:
        """The record key on the flow's topic: the newest report of a target partition replaces the older ones."""
        return self.key_of(self.target_topic, self.partition)

    @staticmethod
    def key_of(target_topic: str, partition: int) -> builtins.bytes:
        """The record key of a target partition."""
        return PREFIX + f"{target_topic}/{partition}".encode()

    def to_json(self) -> builtins.bytes:
        """The record value."""
        counts = {name: dict(getattr(self, name)) for name in _BY_VERDICT}
        return json.dumps({**asdict(self), **counts}, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: builtins.bytes) -> Figures:
        """Read a record value. `ValueError` when it is not one; unknown keys are ignored."""
        values = read_fields(data, _KINDS, _REQUIRED, "figures")
        if not all(is_of(count, (int,)) for name in _BY_VERDICT for count in values.get(name, {}).values()):
            raise ValueError("figures: verdicts must be counts")
        if "latency" in values:
            values["latency"] = Histogram.read(values["latency"])
        return cls(**{**values, "state": State(values["state"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The figures of several partitions together. `lag_records` is the sum of those that are known, None where none
    is, and `lag_unknown` counts the others; `lag_ms` is the worst one known.
    """

    partitions: int
    states: Mapping[State, int]
    stopped: int
    lag_records: int | None
    lag_unknown: int
    lag_ms: int | None
    records: int
    batches: int
    bytes: int
    filled: int
    lost: int
    verdicts: Mapping[str, int]

    @classmethod
    def of(cls, figures: Iterable[Figures]) -> Totals:
        """Add up one report per partition."""
        every = list(figures)
        lags = [one.lag_records for one in every if one.lag_records is not None]
        verdicts: Counter[str] = Counter()
        for one in every:
            verdicts.update(one.verdicts)
        return cls(
            partitions=len(every),
            states=Counter(one.state for one in every),
            stopped=sum(one.state.is_stop for one in every),
            lag_records=sum(lags) if lags or not every else None,
            lag_unknown=len(every) - len(lags),
            lag_ms=max((one.lag_ms for one in every if one.lag_ms is not None), default=None),
            records=sum(one.records for one in every),
            batches=sum(one.batches for one in every),
            bytes=sum(one.bytes for one in every),
            filled=sum(one.filled for one in every),
            lost=sum(one.lost for one in every),
            verdicts=verdicts,
        )


_SEEING: Final = frozenset({State.MIRRORING, State.CAUGHT_UP})
_TEXTS = ("flow", "instance", "topic", "target_topic", "state", "detail")
_PLACES = ("partition", "next_offset", "log_end", "at_ms")
_BY_VERDICT = ("verdicts", "verdict_bytes")
_COUNTS = ("records", "batches", "bytes", "filled", "lost", "target_lost")
_KINDS: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(_TEXTS, (str,)),
    **dict.fromkeys(_PLACES + _COUNTS, (int,)),
    **dict.fromkeys(("lag_records", "lag_ms"), (int, type(None))),
    **dict.fromkeys(_BY_VERDICT, (dict,)),
    "latency": (dict,),
    **dict.fromkeys(("verified", "presumed"), (bool,)),
}
_REQUIRED = {one.name for one in fields(Figures) if one.default is MISSING and one.default_factory is MISSING}
