"""Schedules: what is written to the source, and what goes wrong meanwhile. All of it follows from a seed.

A schedule is a list of rounds. In each, records are written, then one mirror (or two) starts, suffers a fault, and
ends, dead or alive. At the end one more mirror, without faults, brings the rest over.

In one schedule of three, offsets move (`translate`). Whether they do is drawn apart, and so is all that is only done
then: what is written, deleted and suffered otherwise is the same for a seed in both modes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Final, Literal, get_args

from .points import BEGINNING, MOVING_POINTS, PADDING, POINTS, STAYING

Side = Literal["source", "target"]
What = Literal["drop", "delay", "cut-before", "cut-after", "flip", "deaf", "slow"]
WHATS: Final[tuple[What, ...]] = get_args(What)
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
#: Old enough for a broker to forget whose batches they were: two years, in ms.
OLD: Final = 2 * 365 * 24 * 3600 * 1000
_MOVING_SHARE: Final = 1 / 3
#: Seldom reached, or only by chance: left to the tests of single points.
_UNSURE: Final = PADDING | BEGINNING | {"before-rewrite", "after-rewrite"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Batches for one partition. `ending` says whether they are a transaction's, and how it ends."""

    partition: int
    batches: int
    records: int
    value_bytes: int
    codec: str
    age_ms: int
    ending: Literal["", "commit", "abort"] = ""


@dataclass(frozen=True, slots=True)
class Trim:
    """Records deleted from the source: a share of what a partition has, or of what is mirrored already."""

    partition: int
    share: float
    mirrored_only: bool


@dataclass(frozen=True, slots=True)
class Die:
    """SIGKILL at the `count`th passing of a point."""

    point: str
    count: int


@dataclass(frozen=True, slots=True)
class Fall:
    """SIGKILL once a share of the rest is mirrored, and `delay` seconds later."""

    share: float
    delay: float


@dataclass(frozen=True, slots=True)
class Sleep:
    """SIGSTOP at a point; a successor begins, and the frozen one wakes `seconds` after it did."""

    point: str
    count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Double:
    """A second mirror of the flow, started `seconds` after the first."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Disturb:
    """Something on the network between the mirror and one side: see `network.Rule`."""

    side: Side
    what: What
    request: str
    count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Hang:
    """SIGSTOP to a broker, and SIGCONT after some seconds."""

    side: Side
    seconds: float


@dataclass(frozen=True, slots=True)
class Crash:
    """SIGKILL to a broker in the middle of copying, and its start."""

    side: Side


Fault = Die | Fall | Sleep | Double | Disturb | Hang | Crash


@dataclass(frozen=True, slots=True)
class Round:
    """Written first, deleted then, and the fault.

    Where offsets move, `compacts`: the source's cleaner runs in between; `loses_journal`: so does somebody who deletes
    the journal; `journal_share`: how much of the journal a driver had read when it sent off the mirror, None for a
    mirror that reads all of it by itself.
    """

    chunks: tuple[Chunk, ...]
    trims: tuple[Trim, ...]
    fault: Fault
    compacts: bool = False
    loses_journal: bool = False
    journal_share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One topic's life. `coalesce_bytes` is a setting of the flow, 0 for none; `compacted`: holes are made first;
    `moves`: offsets are translated, and what the source deleted before it was mirrored is gone on behind.
    """

    seed: int
    partitions: int
    coalesce_bytes: int
    compacted: bool
    rounds: tuple[Round, ...]
    moves: bool = False

    @property
    def has_two_writers(self) -> bool:
        """Two mirrors write at the same time."""
        return any(isinstance(one.fault, Sleep | Double) for one in self.rounds)

    @property
    def may_repeat(self) -> bool:
        """Two mirrors write what a broker may not know again: markers, or batches that are old."""
        is_old = any(chunk.age_ms == OLD for one in self.rounds for chunk in one.chunks)
        return self.has_two_writers and (is_old or not self.moves)


def schedule(seed: int, moves: bool | None = None) -> Schedule:
    """The schedule of a seed. Whether offsets move is up to the seed, too, unless it is said."""
    chance = Random(seed)
    partitions = chance.choice([1, 1, 2, 3])
    compacted = chance.random() < 0.15
    old = chance.random() < 0.25
    trims = chance.random() < 0.4 and not compacted  # a broker deletes no records of a compacted topic
    coalesce = chance.choice([0, 0, 0, 64 * 1024])
    rounds = []
    for number in range(chance.randint(2, 4)):
        written = tuple(_chunks(chance, partitions, old, first=number == 0))
        trim: tuple[Trim, ...] = ()
        if trims and (number == 0 or chance.random() < 0.3):
            trim = (Trim(chance.randrange(partitions), chance.uniform(0.1, 0.9), mirrored_only=number > 0),)
        rounds.append(Round(written, trim, _fault(chance)))
    plain = Schedule(
        seed=seed, partitions=partitions, coalesce_bytes=coalesce, compacted=compacted, rounds=tuple(rounds)
    )
    apart = Random(f"{seed} moves")
    drawn = apart.random() < _MOVING_SHARE
    return _moving(plain, apart) if (drawn if moves is None else moves) else plain


def _moving(plain: Schedule, chance: Random) -> Schedule:
    """The same where offsets move, and what goes wrong only there."""
    rounds = []
    for number, one in enumerate(plain.rounds):
        fault, trims = one.fault, one.trims
        if isinstance(fault, Die | Sleep) and (fault.point in STAYING or chance.random() < 0.6):
            fault = replace(fault, point=chance.choice(MOVING_POINTS))
        if isinstance(fault, Disturb) and fault.request == "markers":
            fault = replace(fault, request="produce")
        if number and chance.random() < 0.2:
            trims = (*trims, Trim(chance.randrange(plain.partitions), chance.random(), mirrored_only=False))
        rounds.append(
            replace(
                one,
                trims=trims,
                fault=fault,
                compacts=number > 0 and chance.random() < 0.25,
                loses_journal=number > 0 and chance.random() < 0.25,
                journal_share=chance.choice([None, chance.random()]),
            )
        )
    return replace(plain, rounds=tuple(rounds), moves=True)


def _chunks(chance: Random, partitions: int, old: bool, first: bool) -> Iterator[Chunk]:
    for partition in range(partitions):
        for _ in range(chance.randint(2, 5) if first else chance.randint(1, 3)):
            yield Chunk(
                partition=partition,
                batches=chance.randint(1, 12),
                records=chance.choice([1, 3, 10, 50]),
                value_bytes=chance.choice([10, 100, 2000]),
                codec=chance.choice(CODECS),
                age_ms=OLD if old and chance.random() < 0.7 else 3_600_000,
                ending=chance.choice(["", "", "commit", "abort"]),
            )


def _fault(chance: Random) -> Fault:
    kind = chance.choices(["die", "fall", "sleep", "double", "disturb", "hang", "crash"], [8, 2, 3, 3, 8, 1, 1])[0]
    side: Side = chance.choice(["source", "target"])
    point = chance.choice([one for one in POINTS if one not in _UNSURE])
    count = chance.choice([1, 1, 1, 1, 2, 2, 3, 5])
    seconds = round(chance.uniform(0.0, 1.0), 3)
    match kind:
        case "die":
            return Die(point, count)
        case "fall":
            return Fall(chance.random(), seconds / 50)
        case "sleep":
            return Sleep(point, count, chance.choice([seconds / 10, seconds, 2.5]))
        case "double":
            return Double(chance.choice([0.0, seconds / 20, seconds]))
        case "hang":
            return Hang(side, 0.3 + 2 * seconds)
        case "crash":
            return Crash(side)
    requests = ["fetch", "list-offsets", "metadata", "api-versions"]
    if side == "target":
        requests = [*["produce", "markers"] * 4, "list-offsets", "leader-epoch", "metadata", "describe-producers"]
    request = chance.choice(requests)
    what = chance.choice(WHATS)
    if what == "flip":
        request = "fetch" if side == "source" else "produce"
    return Disturb(side, what, request, count, seconds)
