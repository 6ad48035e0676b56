"""What a lane as a whole reports beside its partitions, under the key `lane/<number>` of the flow's journal."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Final

from mirror.observe.histogram import Histogram
from mirror.observe.jsonrecords import read_fields

PREFIX: Final = b"lane/"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneFigures:
    """One lane in one epoch, counted since this attempt at it began.

    `attempt` is 0 unless Spark started the lane again. `fetch`: from a fetch request to its answer, of answers with
    records; `produce`: from a produce request to its acks; both in seconds. `throttled_ms`: how long the brokers of
    either side muted us for a quota.
    """

    instance: str
    lane: int
    epoch: int
    attempt: int = 0
    at_ms: int
    fetch: Histogram = field(default_factory=Histogram)
    produce: Histogram = field(default_factory=Histogram)
    source_throttled_ms: int = 0
    target_throttled_ms: int = 0

    def key(self) -> bytes:
        """The record key on the flow's topic: the newest report of a lane replaces the older ones."""
        return PREFIX + str(self.lane).encode()

    def to_json(self) -> bytes:
        """The record value."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> LaneFigures:
        """Read a record value. `ValueError` when it is not one; unknown keys are ignored."""
        values = read_fields(data, _KINDS, _REQUIRED, "figures of a lane")
        for name in _HISTOGRAMS & values.keys():
            values[name] = Histogram.read(values[name])
        return cls(**values)


_HISTOGRAMS: Final = {"fetch", "produce"}
_REQUIRED: Final = ("instance", "lane", "epoch", "at_ms")
_COUNTS: Final = ("lane", "epoch", "attempt", "at_ms", "source_throttled_ms", "target_throttled_ms")
_KINDS: Final[dict[str, tuple[type, ...]]] = {
    "instance": (str,),
    **dict.fromkeys(_COUNTS, (int,)),
    **dict.fromkeys(_HISTOGRAMS, (dict,)),
}
