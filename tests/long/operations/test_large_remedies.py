"""Remedies of stops that come of large records and long gaps, done as the stops say on a running mirror."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from confluent_kafka import Producer
from crashcut import crash_and_cut
from helpers import RECENT_MS, make_topic, settings_between
from livemirror import LiveMirror, values
from samerecords import read
from sparkless import run_once
from syncing import delete_topics
from topicadmin import configure
from waiting import DEADLINE_S, until

from mirror.errors import ExitCode
from mirror.lab.embedded import Cluster
from mirror.states import Remedy, State


@pytest.fixture
def live(own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path) -> LiveMirror:
    return LiveMirror(own_source, own_target, topic_name, tmp_path).begin()


def test_a_record_that_does_not_fit_into_memory_is_opened_when_there_is_more(live: LiveMirror) -> None:
    """Seventy megabytes in a few kilobytes, which the target wants by another codec."""
    live.settings["limits"] = {"memory_mb": 64}
    live.copy_once()
    configure(live.target, live.copy, compression_type="lz4")
    size = 70 << 20
    settings = {"compression.type": "zstd", "message.max.bytes": 1 << 27, "queue.buffering.max.kbytes": 1 << 18}
    producer = Producer({"bootstrap.servers": live.source, **settings})
    producer.produce(live.topic, bytes(size), partition=0, timestamp=RECENT_MS + 100)
    assert not producer.flush(DEADLINE_S)
    with live.running():
        live.until_stopped(State.REFUSED, Remedy.RAISE_MEMORY)
        live.settings["limits"] = {"memory_mb": 2048}
        live.reload()
        until(lambda: (one := live.status()) and (one.state, one.next_offset) == (State.CAUGHT_UP, 101))
    assert [len(one[4]) for one in read(live.target, live.copy, 0)][-1] == size


def test_a_topic_with_more_than_a_million_missing_offsets_is_mirrored_by_another_flow(
    live: LiveMirror, own_source: Cluster
) -> None:
    make_topic(live.source, f"{live.topic}-other")
    live.copy_once()
    segment = live.segment("source")
    begin = segment.stat().st_size
    more = live.fill(100, 110)
    with segment.open("r+b") as file:
        file.seek(begin)
        file.write(struct.pack(">q", 1_500_000))
    assert crash_and_cut(own_source, live.topic, below=2_000_000) == 1_500_010
    with live.running():
        live.until_stopped(State.REFUSED, Remedy.OTHER_FLOW)
        live.settings["topics"]["exclude"].append(live.topic)
        live.reload()
        until(lambda: live.topic not in live.reported())
        delete_topics(live.target, live.copy)
        other = settings_between(live.source, live.target, [live.topic], f"{live.topic}-flow", offsets="translate")
        assert run_once(other).exit_code == ExitCode.DONE
    assert live.copied() == values(0, 100) + more
