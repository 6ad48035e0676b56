"""What a comparison measured and on what machine, as values. Medians and ratios of them are in `summary.py`."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

import psutil
from pydantic import Field, TypeAdapter, ValidationError

from mirror import __version__
from mirror.errors import ConfigError
from mirror.lab.embedded.jars import KAFKA_VERSION, java

#: Raised with every change that an older reader would get wrong.
FORMAT: Final = 1
_LIBRARIES: Final = ("pyspark", "confluent-kafka", "kio", "crc32c", "numba", "numpy", "pyarrow")

#: Figures as they can be: a hostile file might hold others.
Amount = Annotated[float, Field(ge=0, le=1e15)]
Difference = Annotated[float, Field(ge=-1e15, le=1e15)]
Count = Annotated[int, Field(ge=0, le=1 << 62)]
Axis = Literal["partitions", "tasks", "round_trip_ms", "replication"]
Side = Literal["", "source", "target"]
FAR_SIDES: Final[tuple[Side, ...]] = ("target", "source")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The machine."""

    cpu: str
    cores: int
    memory_bytes: int
    kernel: str
    system: str
    python: str
    java: str
    load: float  # average of the minute before the measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Source topics of one shape: what was asked for, and what lay in them."""

    name: str
    title: str
    codec: str
    batch_bytes: int  # what the producer aimed at, before compression
    record_bytes: int
    partitions: int  # of each topic
    transactional: float  # share of the partitions that are written in transactions, 0 to 1
    compacted: bool
    keyed: float  # share of the records with a key, 0 to 1
    seed: int
    records: int
    batches: int
    uncompressed_bytes: int
    stored_bytes: int  # of the batches as the broker has them
    topics: int = 1
    far: Side = ""  # the side that is a long link away
    round_trip_ms: float = 0.0  # of that link


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredArm:
    """A way to copy."""

    name: str
    title: str
    kind: Literal["mirror", "rival"]
    what: str  # one sentence
    settings: str  # its configuration as it ran


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Holds what a copy took: its whole process tree, and the brokers. None where the system does not say."""

    wall_s: Amount  # from the start of the process to its end
    start_s: Amount  # from the start of the process to the first record on the target
    copy_s: Amount  # from there to the last record
    cpu_s: Amount
    start_cpu_s: Amount
    copy_cpu_s: Amount
    java_cpu_s: Amount  # the part of `cpu_s` that JVMs took
    source_broker_cpu_s: Amount
    target_broker_cpu_s: Amount
    peak_rss_bytes: Count
    peak_pss_bytes: Count | None  # shared pages counted once
    wire_in_bytes: Count | None = None  # received over TCP: in older files alone
    wire_out_bytes: Count | None = None  # sent over TCP: in older files alone
    copy_kernel_cpu_s: Amount | None = None  # the part of `copy_cpu_s` in the system's kernel
    copy_java_cpu_s: Amount | None = None  # the part of `copy_cpu_s` in JVMs
    copy_source_cpu_s: Amount | None = None  # of the source's brokers in the time of `copy_s`
    copy_target_cpu_s: Amount | None = None  # of the target's brokers in the time of `copy_s`


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun(Measured):
    """One copy of a workload by an arm."""

    workload: str
    arm: str
    round: Count
    turn: Count  # place in its round, from 0
    records: Count
    equal: bool  # the copy holds what the source holds
    checked: str  # one sentence: what was compared, or where the first difference is


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """One live copy of a trickle: milliseconds from sending a record to reading it on the target, and CPU."""

    arm: str
    rate: Amount  # records a second
    round: Count
    records: Count
    p50_ms: Amount
    p90_ms: Amount
    p99_ms: Amount
    max_ms: Amount
    added_p50_ms: Difference  # less what a consumer of the source sees, record by record
    added_p99_ms: Difference
    buckets: tuple[tuple[Amount, Count], ...]  # (upper bound in ms, records)
    partitions: Count = 2
    cores: Amount | None = None  # cores that the copying processes kept busy
    source_cores: Amount | None = None  # and those that the source's brokers did
    target_cores: Amount | None = None  # and those that the target's brokers did


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One copy with one thing changed."""

    axis: Axis
    value: Amount  # of what was changed
    arm: str
    round: Count
    bytes_per_s: Amount  # stored bytes
    cpu_s_per_gb: Amount  # of the copy, for 10^9 stored bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonResult:
    """A whole comparison."""

    format: Literal[1] = FORMAT
    made: str  # ISO 8601 in UTC
    seconds: float  # that all of it took
    command: str  # measures the same again
    environment: Environment
    versions: dict[str, str]
    workloads: tuple[Workload, ...]
    arms: tuple[MeasuredArm, ...]
    runs: tuple[MeasuredRun, ...]
    latencies: tuple[Latency, ...] = ()
    scaling: tuple[Point, ...] = ()
    failures: tuple[str, ...] = ()  # what could not be measured

    def to_json(self) -> str:
        """Return indented JSON, the same text for the same figures."""
        return _ADAPTER.dump_json(self, indent=1).decode() + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, name: str = "the file") -> ComparisonResult:
        """Read it back; `name` is for the error. Raises ConfigError for what no comparison of this format wrote."""
        try:
            return _ADAPTER.validate_json(text, extra="forbid")
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "the whole"
            raise ConfigError(
                f"{name}: not raw figures of `mirror bench` in format {FORMAT}: {where}: {first['msg']}"
            ) from None


_ADAPTER: Final = TypeAdapter(ComparisonResult)


def environment() -> Environment:
    """Describe this machine. Raises ConfigError where there is no Java."""
    output = subprocess.run([java(), "-version"], capture_output=True, text=True, check=False).stderr.splitlines()
    return Environment(
        cpu=_cpu(),
        cores=psutil.cpu_count() or 1,
        memory_bytes=psutil.virtual_memory().total,
        kernel=platform.release(),
        system=_system(),
        python=platform.python_version(),
        java=output[0] if output else "unknown",
        load=round(os.getloadavg()[0], 2),
    )


def versions() -> dict[str, str]:
    """Return name to version; the brokers and MirrorMaker 2 are of one release."""
    libraries = {name: importlib.metadata.version(name) for name in _LIBRARIES}
    return {"mirror": __version__, "kafka": KAFKA_VERSION} | libraries


def _cpu() -> str:
    try:
        model = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        model = None
    return model[1] if model else platform.processor() or platform.machine()


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.platform(terse=True)
