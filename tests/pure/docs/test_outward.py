"""Names and bytes that others rely on change on purpose alone: states, exit codes, events and metrics, the journal's
records, producer ids, and what is written in place of records that are not there. `outward.json` keeps them.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from mirror.errors import ExitCode
from mirror.journal.entries import COPIES, FirstSeen, accept_entry, loss_entry, pause_entry
from mirror.journal.heartbeats import Heartbeat, heartbeat_topic
from mirror.journal.journal import journal_topic
from mirror.journal.ownership import FailedOver, Owner
from mirror.journal.positions import POSITIONS, STOPS
from mirror.kafka.cluster import TopicPartition
from mirror.kafka.produce import markers_request
from mirror.kafka.protocol import WRITE_TXN_MARKERS, encode
from mirror.observability.metrics import Metrics
from mirror.observability.status import GroupFigures, PartitionStatus, TaskStatus
from mirror.policy.selection import progress_topic
from mirror.records.rewrite import padding
from mirror.replication.assignment import KnownStop, LastBatch, LastPosition, Loss
from mirror.replication.observe import producer_id
from mirror.spark.rekey.microbatch import Reached, numbered
from mirror.states import Remedy, State

PACKAGE: Final = Path(__file__).parents[3] / "mirror"
KEPT: Final = Path(__file__).with_name("outward.json")
FLOW: Final = "eu-to-us"
AT: Final = TopicPartition("orders", 3)
ID: Final = UUID(int=7)
MADE: Final[dict[str, Any]] = {"instance": "one", "at_ms": 1}
STATUS: Final = PartitionStatus(
    flow=FLOW,
    topic="orders",
    partition=3,
    target_topic="orders",
    state=State.MIRRORING,
    next_offset=5,
    log_end=9,
    lag_records=4,
    lag_ms=20,
    verdicts={"RESTAMP": 1},
    verdict_bytes={"RESTAMP": 70},
    **MADE,
)
TASK: Final = TaskStatus(task=0, epoch=0, **MADE)
BATCH: Final = LastBatch(
    base=4, next_offset=5, source_base=4, crc=7, source_crc=7, count=1, base_timestamp=1, max_timestamp=1
)
LAST: Final = LastPosition(
    source_next=5,
    target_end=5,
    source_topic_id=ID,
    target_topic_id=ID,
    stamp=(1, 2, 3),
    batch=BATCH,
    was_accepted=True,
    begins=1,
)
STOP: Final = KnownStop(
    state=State.TRUNCATED, offset=5, detail="cut", advice="do", source_topic_id=ID, target_topic_id=ID
)
LOSS: Final = Loss(AT, AT, 1, 3, "damage", "CRC", ID, ID)
SEEN: Final = FirstSeen(
    source_topic="orders",
    topic_id=ID,
    target_topic_id=ID,
    cluster_id="eu",
    compared=True,
    compared_ms=1,
    deleted_ms=1,
)


def outward() -> dict[str, Any]:
    """All of it as it is now, as JSON has it."""
    markers = encode(markers_request(WRITE_TXN_MARKERS.newest, AT, [(1, 2), (1, 3)]), 1, "mirror")
    return {
        "states": {state.value: state.is_stop for state in State},
        "remedies": sorted(remedy.name for remedy in Remedy),
        "exit_codes": {code.name: int(code) for code in ExitCode},
        "events": sorted(set(events())),
        "metrics": metrics(),
        "topics": [journal_topic(FLOW), heartbeat_topic(FLOW), progress_topic(FLOW, "orders")],
        "journal": dict(sorted(journal())),
        "producer_ids": {name: producer_id(FLOW, TopicPartition(name, 0)) for name in ("orders", "payments")},
        "padding": digest(bytes(padding(0, 1000, codec=None, max_bytes=1 << 20).data)),
        "markers": digest(b"".join(markers)),
    }


def digest(data: bytes) -> str:
    return f"{len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()[:16]}"


def events() -> Iterator[str]:
    """First arguments of calls of a logger: they are names, and all else of a line is by keyword."""
    levels = {"debug", "info", "warning", "error", "exception", "critical"}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse("" if PACKAGE / "lab" in path.parents else path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in levels:
                match node.args:
                    case [ast.Constant(value=str(name)), *_]:
                        yield name


def metrics() -> dict[str, list[str]]:
    """By name: the type, and the labels."""
    made = Metrics(FLOW, lambda: 1.0)
    made.learn([STATUS])
    made.learn_task(TASK)
    made.groups_followed()
    return {
        family.name: [family.type, *sorted({label for sample in family.samples for label in sample.labels})]
        for family in made.collect()
    }


def journal() -> Iterator[tuple[str, Any]]:
    """Keys of records, and the fields of their values."""
    for key, value in (
        (b"owner", Owner(host="host", pid=7, claim=2, place="boot", **MADE).to_json()),
        (b"failover", FailedOver(at_ms=1, host="host", pid=7, silent=("a",)).to_json()),
        COPIES.entry("orders", SEEN),
        (STATUS.key(), STATUS.to_json()),
        (b"task/0", TASK.to_json()),
        (b"groups", GroupFigures(**MADE).to_json()),
        (b"heartbeat", Heartbeat.of(FLOW, "one", [STATUS]).to_json()),
        POSITIONS.entry(AT, LAST),
        STOPS.entry(AT, STOP),
        loss_entry(LOSS),
        accept_entry(LOSS, ID),
        pause_entry("orders"),
    ):
        yield key.decode(), sorted(json.loads(value or b"{}"))
    yield "number", len(numbered(Reached(1, {0: (1, 2)})).data)


def test_what_others_rely_on_is_as_it_was() -> None:
    now = outward()
    if "UPDATE" in os.environ:
        KEPT.write_text(json.dumps(now, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    before, now = json.loads(KEPT.read_text(encoding="utf-8")), json.loads(json.dumps(now))
    changed = {name: (before.get(name), now.get(name)) for name in before | now if before.get(name) != now.get(name)}
    assert not changed, "if that is meant: UPDATE=1 pytest tests/pure/docs/test_outward.py, and a line in the CHANGELOG"
