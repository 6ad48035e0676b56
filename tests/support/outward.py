"""What others rely on, as it is now: names of states, exit codes, events and metrics, the journal's records, producer
ids, and what is written in place of records that are not there. `python tests/support/outward.py` prints it, as
`tests/support/outward.json` keeps it: who changes a name on purpose writes it anew, and says so in the CHANGELOG.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from mirror.errors import ExitCode
from mirror.journal.entries import FirstSeen, accept_entry, loss_entry, pause_entry
from mirror.journal.heartbeats import Heartbeat, heartbeat_topic
from mirror.journal.journal import journal_topic
from mirror.journal.ownership import FailedOver, Owner
from mirror.journal.positions import position_entry, stop_entry
from mirror.kafka.cluster import TopicPartition
from mirror.kafka.produce import markers_request
from mirror.kafka.protocol import WRITE_TXN_MARKERS, encode
from mirror.observability.metrics import Metrics
from mirror.observability.status import GroupFigures, PartitionStatus, TaskStatus
from mirror.records.rewrite import padding
from mirror.replication.assignment import KnownStop, LastBatch, LastPosition, Loss
from mirror.replication.both_logs import producer_id
from mirror.spark.rekey.microbatch import Reached, numbered
from mirror.states import Remedy, State
from mirror.topics.rekeyed import progress_topic

PACKAGE: Final = Path(__file__).resolve().parents[2] / "mirror"
KEPT: Final = Path(__file__).resolve().with_suffix(".json")
AT: Final = TopicPartition("orders", 3)
_ID: Final = UUID(int=7)
_BATCH: Final = LastBatch(
    base=4, next_offset=5, source_base=4, crc=7, source_crc=7, count=1, base_timestamp=1, max_timestamp=1
)
_LEVELS: Final = frozenset({"debug", "info", "warning", "error", "exception", "critical"})


def outward() -> dict[str, Any]:
    """All of it, as JSON has it."""
    return {
        "states": {state.value: state.is_stop for state in State},
        "remedies": sorted(remedy.name for remedy in Remedy),
        "exit_codes": {code.name: int(code) for code in ExitCode},
        "events": sorted(set(_events())),
        "metrics": _metrics(),
        "topics": [journal_topic("eu-to-us"), heartbeat_topic("eu-to-us"), progress_topic("eu-to-us", "orders")],
        "journal": dict(sorted(_journal())),
        "producer_ids": {name: producer_id("eu-to-us", TopicPartition(name, 0)) for name in ("orders", "payments")},
        "padding": _digest(bytes(padding(0, 1000, codec=None, max_bytes=1 << 20).data)),
        "markers": _digest(b"".join(encode(markers_request(_markers_version(), AT, [(1, 2), (1, 3)]), 1, "mirror"))),
    }


def _markers_version() -> int:
    return WRITE_TXN_MARKERS.newest


def _digest(data: bytes) -> str:
    return f"{len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()[:16]}"


def _events() -> Iterator[str]:
    """First arguments of calls of a logger: they are names, and all else of a line is by keyword."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if "lab" in path.relative_to(PACKAGE).parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                continue
            name = node.args[0]
            if node.func.attr in _LEVELS and isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield name.value


def _status() -> PartitionStatus:
    return PartitionStatus(
        flow="eu-to-us",
        instance="one",
        topic="orders",
        partition=3,
        target_topic="orders",
        state=State.MIRRORING,
        next_offset=5,
        log_end=9,
        lag_records=4,
        lag_ms=20,
        verdicts={"PASS": 1},
        verdict_bytes={"PASS": 70},
        at_ms=1_700_000_000_000,
    )


def _metrics() -> dict[str, list[str]]:
    """By name: the type, and the labels."""
    metrics = Metrics("eu-to-us", lambda: 1_700_000_000.0)
    metrics.learn([_status()])
    metrics.learn_task(TaskStatus(instance="one", task=0, epoch=0, at_ms=1_700_000_000_000))
    metrics.groups_followed()
    return {
        family.name: [family.type, *sorted({label for sample in family.samples for label in sample.labels})]
        for family in metrics.collect()
    }


def _journal() -> Iterator[tuple[str, Any]]:
    """Keys of records, and the fields of their values."""
    seen = FirstSeen(
        source_topic="orders",
        topic_id=_ID,
        target_topic_id=_ID,
        cluster_id="eu",
        compared=True,
        compared_ms=1,
        deleted_ms=1,
    )
    last = LastPosition(
        source_next=5,
        target_end=5,
        source_epoch=1,
        epoch_until=5,
        target_epoch=1,
        source_topic_id=_ID,
        target_topic_id=_ID,
        stamp=(1, 2, 3),
        batch=_BATCH,
        was_accepted=True,
        begins=1,
    )
    stop = KnownStop(
        state=State.TRUNCATED, offset=5, detail="cut", advice="do", source_topic_id=_ID, target_topic_id=_ID
    )
    loss = Loss(AT, AT, 1, 3, "damage", "CRC", _ID, _ID)
    owner = Owner(instance="one", host="host", pid=7, at_ms=1, claim=2, place="boot")
    answer: list[tuple[bytes, bytes | None]] = [
        (b"owner", owner.to_json()),
        (b"failover", FailedOver(at_ms=1, host="host", pid=7, silent=("a",)).to_json()),
        (FirstSeen.key("orders"), seen.to_json()),
        (_status().key(), _status().to_json()),
        (b"task/0", TaskStatus(instance="one", task=0, epoch=0, at_ms=1).to_json()),
        (b"groups", GroupFigures(instance="one", at_ms=1).to_json()),
        (b"heartbeat", Heartbeat.of("eu-to-us", "one", [_status()]).to_json()),
        position_entry(AT, last),
        stop_entry(AT, stop),
        loss_entry(loss),
        accept_entry(loss, _ID),
        pause_entry("orders"),
    ]
    for key, value in answer:
        yield key.decode(), sorted(json.loads(value)) if value else None
    yield "number", len(numbered(Reached(1, {0: (1, 2)})).data)


if __name__ == "__main__":
    print(json.dumps(outward(), indent=1, sort_keys=True))
