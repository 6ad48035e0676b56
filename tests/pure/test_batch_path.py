"""The way of a plain batch through the code, as docs/how-it-works.md draws it."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from unconnected import fetch_frame, relay

from mirror.kafka.cluster import TopicPartition

AT = TopicPartition("orders", 0)
ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "how-it-works.md"


def drawn() -> list[tuple[str, str]]:
    """Read the steps of the drawing: module and function."""
    return re.findall(r"^ {4}(\w+/\w+)\.py +(\w+)", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def test_a_plain_batch_takes_the_way_that_is_drawn() -> None:
    steps, seen = drawn(), list[tuple[str, str]]()

    def called(frame: FrameType, event: str, _: Any) -> None:
        module = Path(frame.f_code.co_filename)
        if event == "call" and module.is_relative_to(ROOT / "mirror"):
            seen.append((str(module.relative_to(ROOT / "mirror").with_suffix("")), frame.f_code.co_name))

    def frames() -> Iterator[bytes]:
        yield fetch_frame({AT: 0}, b"first")
        seen.clear()  # what is done once is not on the way
        yield fetch_frame({AT: 1}, b"second")

    sys.setprofile(called)
    try:
        assert asyncio.run(relay([AT], frames())) == 2
    finally:
        sys.setprofile(None)
    assert [step for step in dict.fromkeys(seen) if step in steps] == steps
    assert len({module for module, _ in steps}) <= 8
    strays = {module for module, _ in seen if module.startswith(("replication/", "records/"))}
    helpers = {"replication/partition_task", "replication/cursor", "replication/coalescer"}
    assert strays - helpers == {module for module, _ in steps if not module.startswith("kafka/")}
