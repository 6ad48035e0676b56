"""A damaged batch with which a leader epoch begins."""

from __future__ import annotations

from pathlib import Path

import pytest
from crashcut import crash_and_cut_all
from helpers import make_topic, produce, stored_batches
from planted import turn_a_bit
from watchedtask import WatchedTask

from mirror.kafka.cluster import TopicPartition
from mirror.lab.embedded import Cluster
from mirror.policy.rules import Rules


@pytest.mark.parametrize("number", [1, 3], ids=["in the midst of the log", "at its end"])
def test_damage_where_a_leader_epoch_begins_is_no_loss_of_the_source(
    own_target: Cluster, topic_name: str, tmp_path: Path, number: int
) -> None:
    with Cluster.start(name="elected", folder=tmp_path / "elected") as source:
        pair, at = (source.bootstrap, own_target.bootstrap), TopicPartition(topic_name, 0)
        for bootstrap in pair:
            make_topic(bootstrap, topic_name)
        values = [b"%d" % value for value in range(10)]
        produce(source.bootstrap, topic_name, values)
        for _ in range(number):
            crash_and_cut_all(source, {(topic_name, 0): None})
            produce(source.bootstrap, topic_name, values)
        if number == 1:
            produce(source.bootstrap, topic_name, values)
        until = stored_batches(source.bootstrap, topic_name)[-1].header.next_offset
        turn_a_bit(source, topic_name, 70, 10 * number)
        with WatchedTask(*pair, [at], rules=Rules(skips_damage=True)) as task:
            found = task.until(at, lambda one: one.state.is_stop or one.next_offset == until)
            assert (found.state.is_stop, found.lost) == (False, 10), found.detail
            produce(source.bootstrap, topic_name, values)
            found = task.until(at, lambda one: one.state.is_stop or one.next_offset == until + 10)
            assert not found.state.is_stop, found.detail
