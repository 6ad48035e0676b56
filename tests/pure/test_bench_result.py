"""Raw figures of a comparison: what is written reads back the same, and what is none of them is refused by name."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mirror.errors import ConfigError, ExitCode
from mirror.lab.bench.result import Arm, Environment, Latency, Point, Result, Run, Workload

RESULT = Result(
    made="2026-01-02T03:04:05Z",
    seconds=12.5,
    command="mirror bench",
    environment=Environment(
        cpu="a CPU",
        cores=2,
        memory_bytes=1 << 34,
        kernel="6.1",
        system="Linux",
        python="3.11.2",
        java="17",
        load=0.1,
    ),
    versions={"kafka": "4.3.0"},
    workloads=(
        Workload(
            name="1MB-zstd",
            title="1 MB batches, zstd",
            codec="zstd",
            batch_bytes=1_000_000,
            record_bytes=400,
            partitions=4,
            transactional=0.0,
            compacted=False,
            keyed=0.5,
            seed=1,
            records=10,
            batches=1,
            uncompressed_bytes=4000,
            stored_bytes=1200,
        ),
    ),
    arms=(Arm(name="mirror", title="mirror", kind="mirror", what="It copies.", settings="name: bench\n"),),
    runs=(
        Run(
            workload="1MB-zstd",
            arm="mirror",
            round=1,
            turn=0,
            wall_s=10.0,
            start_s=8.0,
            copy_s=1.5,
            cpu_s=9.0,
            start_cpu_s=7.0,
            copy_cpu_s=1.0,
            java_cpu_s=5.0,
            source_broker_cpu_s=1.0,
            target_broker_cpu_s=2.0,
            peak_rss_bytes=600_000_000,
            peak_pss_bytes=None,
            wire_in_bytes=None,
            wire_out_bytes=1300,
            records=10,
            equal=True,
            checked="All of it.",
        ),
    ),
    latencies=(
        Latency(
            arm="mirror",
            rate=1000.0,
            round=1,
            records=3,
            p50_ms=3.0,
            p90_ms=4.0,
            p99_ms=5.0,
            max_ms=5.5,
            added_p50_ms=1.0,
            added_p99_ms=2.0,
            buckets=((4.0, 2), (8.0, 1)),
        ),
    ),
    scaling=(Point(axis="tasks", value=2, arm="mirror", round=1, bytes_per_s=1e8, cpu_s_per_gb=1.5),),
)


def test_what_is_written_reads_back() -> None:
    assert Result.from_json(RESULT.to_json()) == RESULT


@pytest.mark.parametrize(
    ("change", "named"),
    [({"format": 2}, "format"), ({"rounds": 3}, "rounds"), ({"runs": [{}]}, "runs.0"), ({"made": None}, "made")],
)
def test_another_format_is_refused_by_name(change: dict[str, object], named: str) -> None:
    text = json.dumps(json.loads(RESULT.to_json()) | change)
    with pytest.raises(ConfigError, match=f"^old.json: not raw figures .*{named}") as raised:
        Result.from_json(text, "old.json")
    assert raised.value.exit_code == ExitCode.USAGE


def test_no_json_is_refused() -> None:
    with pytest.raises(ConfigError, match="not raw figures"):
        Result.from_json("<html>")


def test_the_same_figures_make_the_same_text() -> None:
    assert replace(RESULT).to_json() == RESULT.to_json()
