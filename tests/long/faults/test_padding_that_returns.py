"""Padding comes back with a broker that crashed: it notes log starts once a minute
(`log.flush.start.offset.checkpoint.interval.ms`), and begins with what it noted last.
"""

from __future__ import annotations

import pytest
from copies import copied
from helpers import make_topic, produce
from samerecords import assert_same_logs, log_ends, read
from topicadmin import delete_records

from mirror.lab.embedded import Cluster


@pytest.mark.proves("same-offsets")
@pytest.mark.parametrize("later", [0, 50], ids=["the source as it was", "the source begins later meanwhile"])
def test_padding_that_came_back_is_deleted_again(own_source: Cluster, topic_name: str, later: int) -> None:
    make_topic(own_source.bootstrap, topic_name)
    produce(own_source.bootstrap, topic_name, [b"value %d" % number for number in range(300)])
    delete_records(own_source.bootstrap, topic_name, 123)
    with Cluster.start(name="forgetful") as target:
        pair = own_source.bootstrap, target.bootstrap
        copied(pair, topic_name)
        assert_same_logs(*pair, topic_name)
        delete_records(own_source.bootstrap, topic_name, 123 + later)
        target.kill(0)
        target.restart(0)
        assert log_ends(target.bootstrap, topic_name)[0].start < 123, "the broker remembered: nothing is tested"
        produce(own_source.bootstrap, topic_name, [b"value %d" % number for number in range(300, 310)])
        assert copied(pair, topic_name).next_offset == 310
        copy = list(read(target.bootstrap, topic_name, 0))
    assert [one[0] for one in copy] == list(range(123, 310)), "it keeps what the source had when it was mirrored"
    assert copy[later:] == list(read(own_source.bootstrap, topic_name, 0))
