"""What a comparison measured, as values: the raw figures of every run, from which pages and tables are made (pure).

Medians, ratios and goals are no part of it: whoever doubts one can work it out again from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError

from mirror.errors import ConfigError

#: Raised with every change that an older reader would get wrong.
FORMAT: Final = 1

Kind = Literal["mirror", "rival", "limit"]
#: Figures as they can be: a hostile file might hold others.
Amount = Annotated[float, Field(ge=0, le=1e15)]
Difference = Annotated[float, Field(ge=-1e15, le=1e15)]
Count = Annotated[int, Field(ge=0, le=1 << 62)]
Axis = Literal["partitions", "lanes", "round_trip_ms", "loss", "replication"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The machine; `load` is the one-minute average when the measurement began."""

    cpu: str
    cores: int
    memory_bytes: int
    kernel: str
    system: str
    python: str
    java: str
    load: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A source topic: what was asked for, and what lay in it. `batch_bytes` is what the producer aimed at before it
    compresses; `transactional` and `keyed` are shares from 0 to 1; `stored_bytes` are those of the batches.
    """

    name: str
    title: str
    codec: str
    batch_bytes: int
    record_bytes: int
    partitions: int
    transactional: float
    compacted: bool
    keyed: float
    seed: int
    records: int
    batches: int
    uncompressed_bytes: int
    stored_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A way to copy: `what` says it in one sentence, `settings` is the configuration as it ran."""

    name: str
    title: str
    kind: Kind
    what: str
    settings: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one copy took: seconds, CPU-seconds of its whole process tree, bytes; None where not known.

    `start_*` is from the start of the process to the first record on the target, `copy_*` from there to the last one,
    and `java_cpu_s` the JVMs' part of `cpu_s`. Of `copy_cpu_s`, `copy_java_cpu_s` were spent in JVMs and
    `copy_kernel_cpu_s` in the system's kernel, wherever; `copy_source_cpu_s` and `copy_target_cpu_s` are what the
    brokers took in the same time. `wire_*` are bytes of payload over TCP, into and out of the arm.
    """

    wall_s: Amount
    start_s: Amount
    copy_s: Amount
    cpu_s: Amount
    start_cpu_s: Amount
    copy_cpu_s: Amount
    java_cpu_s: Amount
    source_broker_cpu_s: Amount
    target_broker_cpu_s: Amount
    peak_rss_bytes: Count
    peak_pss_bytes: Count | None
    wire_in_bytes: Count | None
    wire_out_bytes: Count | None
    copy_kernel_cpu_s: Amount | None = None
    copy_java_cpu_s: Amount | None = None
    copy_source_cpu_s: Amount | None = None
    copy_target_cpu_s: Amount | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(Measured):
    """One copy of a workload by an arm. `turn` is the place in its round, from 0. `checked` says in one sentence what
    `equal` was concluded from.
    """

    workload: str
    arm: str
    round: Count
    turn: Count
    records: Count
    equal: bool
    checked: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Records at a fixed rate (a second), read on the target, in milliseconds since they were sent.

    `added_*` is less what a consumer of the source sees, record by record. `buckets` are (upper bound in ms, count).
    """

    arm: str
    rate: Amount
    round: Count
    records: Count
    p50_ms: Amount
    p90_ms: Amount
    p99_ms: Amount
    max_ms: Amount
    added_p50_ms: Difference
    added_p99_ms: Difference
    buckets: tuple[tuple[Amount, Count], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One copy with one thing changed: stored bytes a second and CPU-seconds per 10^9 stored bytes, while copying."""

    axis: Axis
    value: Amount
    arm: str
    round: Count
    bytes_per_s: Amount
    cpu_s_per_gb: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A whole comparison; `made` is ISO 8601 in UTC, `seconds` how long it took, `command` how to have it again.
    `failures` say what could not be measured; a copy that is not equal to its source is among the runs.
    """

    format: Literal[1] = FORMAT
    made: str
    seconds: float
    command: str
    environment: Environment
    versions: dict[str, str]
    workloads: tuple[Workload, ...]
    arms: tuple[Arm, ...]
    runs: tuple[Run, ...]
    latencies: tuple[Latency, ...] = ()
    scaling: tuple[Point, ...] = ()
    failures: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Indented, and the same text for the same figures."""
        return _ADAPTER.dump_json(self, indent=1).decode() + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, name: str = "the file") -> Result:
        """The reverse; `name` is for the error. Raises ConfigError for what no comparison of this format wrote."""
        try:
            return _ADAPTER.validate_json(text, extra="forbid")
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "the whole"
            raise ConfigError(
                f"{name}: not raw figures of `mirror bench` in format {FORMAT}: {where}: {first['msg']}"
            ) from None


_ADAPTER: Final = TypeAdapter(Result)
