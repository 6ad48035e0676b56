"""Behaviours of MirrorMaker 2's own tests (`conformance.md`) that no other test shows."""

from __future__ import annotations

import pytest
from helpers import make_topic, mirror_once, produce, settings_between
from pair import Shared
from samerecords import read
from sparkless import run_once
from syncing import admin_of, ends
from transactional import transactions

from mirror.kafka.cluster import TopicPartition
from mirror.states import State


def held(bootstrap: str, topic: str) -> tuple[set[str], int, dict[str, str | None]]:
    """The topics that have a name in theirs, how far its own topic goes, and that one's settings."""
    admin = admin_of(bootstrap)
    names = {one for one in admin.topic_names() if topic in one}
    return names, ends(bootstrap, topic)[0], {n: one.value for n, one in admin.topic_configs([topic])[topic].items()}


@pytest.mark.proves("source-only-read", "mirror run")
@pytest.mark.parametrize("offsets", ["preserve", "translate"])
def test_the_source_is_only_read(source_cluster: Shared, target_cluster: Shared, topic_name: str, offsets: str) -> None:
    """No topic of state, no marker, no record: it is as it was."""
    make_topic(source_cluster.bootstrap, topic_name)
    transactions(source_cluster.bootstrap, topic_name, [True, False, True])
    before = held(source_cluster.bootstrap, topic_name)
    run_once(
        settings_between(
            source_cluster.bootstrap, target_cluster.bootstrap, [topic_name], flow=topic_name, offsets=offsets
        )
    )
    assert len(list(read(target_cluster.bootstrap, topic_name, 0))) == 10
    assert held(source_cluster.bootstrap, topic_name) == before


@pytest.mark.proves("exactly-once")
def test_two_directions_under_the_same_names_do_not_go_round(
    source_cluster: Shared, target_cluster: Shared, topic_name: str
) -> None:
    """What came from there equals what is there: it is found again, and not copied back."""
    one, other = source_cluster.bootstrap, target_cluster.bootstrap
    make_topic(one, topic_name)
    produce(one, topic_name, [b"%d" % index for index in range(30)])
    for _ in range(3):
        there = mirror_once(one, other, [topic_name], flow=f"{topic_name}-there")[TopicPartition(topic_name, 0)]
        back = mirror_once(other, one, [topic_name], flow=f"{topic_name}-back")[TopicPartition(topic_name, 0)]
        assert (there.state, back.state, back.records) == (State.CAUGHT_UP, State.CAUGHT_UP, 0)
    assert ends(one, topic_name) == ends(other, topic_name) == {0: 30}
