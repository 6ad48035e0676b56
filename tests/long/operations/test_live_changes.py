"""One story of `mirror run` as a process: what changes on the source and in its file, and how it ends."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from configured_flow import ConfiguredFlow
from helpers import make_topic, produce
from running import forked
from samerecords import assert_same_records
from syncing import delete_topics, ends
from topicadmin import configs_of, configure, grow, partitions_of
from waiting import until

from mirror.errors import ExitCode
from mirror.lab.embedded import Cluster
from mirror.states import State


def test_a_running_mirror_follows_what_changes(
    own_source: Cluster, own_target: Cluster, tmp_path: Path, topic_name: str
) -> None:
    flow = ConfiguredFlow(own_source, own_target, tmp_path, topic_name)
    first, second, third = (f"{topic_name}-{name}" for name in ("first", "second", "third"))
    flow.topics = {"include": [f"{topic_name}-(first|second)"], "naming": {"prefix": "eu."}}
    flow.sync = {"interval_s": 2, "deletions": "delete"}
    make_topic(flow.source, first)
    produce(flow.source, first, [b"x"] * 20)

    with forked(flow.file, tmp_path / "mirror.log") as mirror:

        def until_ends(topic: str, expected: dict[int, int]) -> None:
            copy = f"eu.{topic}"
            until(lambda: partitions_of(flow.target, copy) and ends(flow.target, copy) == expected, lambda: mirror.log)

        def until_state(topic: str, state: State) -> None:
            until(lambda: flow.states().get((topic, 0)) is not None and flow.states()[topic, 0] == state)

        mirror.until("spark_started")
        # partitions and topics, from their first record
        grow(flow.source, first, 2)
        produce(flow.source, first, [b"y"] * 20, partition=1)
        make_topic(flow.source, second, configs={"segment.ms": "3600000"})
        produce(flow.source, second, [b"z"] * 20)
        until_ends(first, {0: 20, 1: 20})
        until_ends(second, {0: 20})
        # settings, and one that goes
        configure(flow.source, second, segment_ms=None, retention_ms="7200000")
        until(lambda: configs_of(flow.target, f"eu.{second}")["retention.ms"] == "7200000")
        until(lambda: configs_of(flow.target, f"eu.{second}")["segment.ms"] == "604800000")
        # a source topic goes, and its copy, which the mirror made
        until_state(second, State.CAUGHT_UP)
        delete_topics(flow.source, second)
        until(lambda: not partitions_of(flow.target, f"eu.{second}"), lambda: mirror.log)
        # the configuration, which a failover that reads it sooner names, with a mistake and without
        make_topic(flow.source, third)
        produce(flow.source, third, [b"x"] * 20)
        flow.topics["include"] = [f"{topic_name}-second"]
        code, printed = flow.mirror("failover", "--rehearse", "--json")
        assert code == ExitCode.DATA_AT_RISK
        assert "another configuration" in json.loads(printed)["warnings"][0]
        flow.file.write_text("name: torn")
        mirror.process.send_signal(signal.SIGHUP)
        mirror.until("configuration_refused")
        flow.topics["include"] = [f"{topic_name}-.*"]
        _ = flow.file
        mirror.process.send_signal(signal.SIGHUP)
        until_ends(third, {0: 20})
        flow.mirror("pause", third)
        until_state(third, State.PAUSED)
        mirror.process.send_signal(signal.SIGTERM)
        assert mirror.ended() == ExitCode.DONE, mirror.log

    assert assert_same_records(flow.source, flow.target, first, 2, target_topic=f"eu.{first}") == 40
    produce(flow.source, third, [b"x"] * 20)
    with forked(flow.file, tmp_path / "once.log", "--once") as once:
        assert once.ended() == ExitCode.CLUSTER, once.log
        assert f"{third}-0 up to offset 40: PAUSED" in once.log
    assert ends(flow.target, f"eu.{third}") == {0: 20}
