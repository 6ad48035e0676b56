"""`mirror run` as a user runs it: Spark, epochs, signals, and a second mirror of the same flow."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
from helpers import config_file, make_topic, produce
from running import forked, running, values
from samerecords import assert_same_records
from waiting import until

from mirror.lab.embedded import Cluster


@pytest.mark.proves("mirror run", "FENCED")
def test_a_bounded_copy_a_live_mirror_and_those_that_stand_by_and_take_over(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    """One story, since each start of Spark costs seconds: a bounded copy, a live mirror that follows over epochs, a
    second one that stands by, a third that takes over, and the one that stood by when that one has ended.
    """
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name, 2)
    for partition in (0, 1):
        produce(source, topic_name, values(100), partition=partition)
    sections = {"spark": {"epoch_s": 4}}
    config = config_file(tmp_path, source, target, [topic_name], flow=topic_name, sections=sections)

    def is_same() -> bool:
        try:
            assert_same_records(source, target, topic_name, 2)
        except AssertionError:
            return False
        return True

    with forked(config, tmp_path / "once.log", "--once") as once:
        assert once.ended() == 0, once.log
    assert assert_same_records(source, target, topic_name, 2) == 200

    with ExitStack() as stack, running(config, tmp_path / "older.log") as older:
        older.until("spark_started")
        produce(source, topic_name, values(50))
        older.until("epoch_ended .*epoch=1")
        until(is_same, lambda: older.log)
        with (
            forked(config, tmp_path / "waiting.log") as waiting,
            forked(config, tmp_path / "bounded.log", "--once") as bounded,
        ):
            waiting.until(f"standing_by .*pid {older.process.pid}")
            assert bounded.ended() == 3, bounded.log
            assert f"a mirror runs already (pid {older.process.pid} on " in bounded.log
            assert older.process.poll() is None, older.log
            younger = stack.enter_context(running(config, tmp_path / "younger.log", "--take-over"))
            assert older.ended() == 4, older.log
            assert "state=FENCED" in older.log
            younger.until("epoch_ended .*epoch=0")
            produce(source, topic_name, values(50), partition=1)
            until(is_same, lambda: younger.log)
            younger.process.send_signal(signal.SIGTERM)
            assert younger.ended() == 0, younger.log
            waiting.until("epoch_ended .*epoch=0")
            waiting.process.send_signal(signal.SIGTERM)
            assert waiting.ended() == 0, waiting.log
    assert "records=50" in younger.log.splitlines()[-1], "everything acknowledged is accounted for"
    assert assert_same_records(source, target, topic_name, 2) == 300
