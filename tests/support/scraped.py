"""Reports of tasks, and metrics made of them."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families as parsed

from mirror.observability.metrics import Metrics
from mirror.observability.status import Histogram, PartitionStatus, TaskStatus
from mirror.states import State

NOW_MS = 1_700_000_000_000


def took(*seconds: float) -> Histogram:
    made = Histogram()
    for one in seconds:
        made.add(one)
    return made


def report(**changes: Any) -> PartitionStatus:
    plain: dict[str, Any] = {
        "flow": "eu-to-us",
        "instance": "one",
        "topic": "orders",
        "partition": 0,
        "target_topic": "orders",
        "state": State.MIRRORING,
        "next_offset": 10,
        "log_end": 12,
        "lag_records": 2,
        "at_ms": NOW_MS,
    }
    return PartitionStatus(**{**plain, **changes})


def task(**changes: Any) -> TaskStatus:
    return TaskStatus(**{"instance": "one", "task": 0, "epoch": 0, "at_ms": NOW_MS, **changes})


def metrics() -> Metrics:
    return Metrics("eu-to-us", clock=lambda: NOW_MS / 1000 + 4)


def value(of: Metrics, name: str, **labels: str) -> float | None:
    """Of the one sample with these labels, as Prometheus would read it; None where there is none."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(of)
    wanted = labels.items()
    found = [
        sample.value
        for family in parsed(generate_latest(registry).decode())
        for sample in family.samples
        if sample.name == name and wanted <= sample.labels.items()
    ]
    assert len(found) <= 1, (name, labels, found)
    return found[0] if found else None
