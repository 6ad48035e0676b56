"""Portions of what is asked of a controller."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from helpers import make_topic, remove_topics
from hypothesis import given
from hypothesis import strategies as st

from mirror.config import ClusterSettings
from mirror.kafka.admin import Admin, Creation, portions
from mirror.lab.embedded import Cluster


@given(st.lists(st.integers(0, 9)), st.integers(1, 20))
def test_nothing_is_left_out_and_no_portion_costs_too_much(costs: Sequence[int], limit: int) -> None:
    found = list(portions(costs, lambda cost: cost, limit))
    assert [cost for portion in found for cost in portion] == costs
    assert all(portion and (sum(portion) <= limit or len(portion) == 1) for portion in found)
    assert all(sum(portion) + after[0] > limit for portion, after in pairwise(found))


@pytest.mark.brokers
def test_more_topics_than_a_controller_takes_at_once(own_target: Cluster, topic_name: str) -> None:
    """Each topic sets all of its configs: 400 of them cost more than the 10,000 metadata records of one request."""
    admin = Admin(ClusterSettings.model_validate({"alias": "eu", "bootstrap.servers": own_target.bootstrap}))
    make_topic(own_target.bootstrap, topic_name)
    configs = {name: found.value for name, found in admin.topic_configs([topic_name])[topic_name].items()}
    names = [f"{topic_name}-{number}" for number in range(400)]
    creations = [Creation(topic=name, partitions=1, replication_factor=1, configs=configs) for name in names]
    assert sum(2 + len(one.configs) for one in creations) > 10_000
    try:
        assert not admin.create_topics(creations)
        assert admin.create_topics(creations) == set(names), "they are all there"
    finally:
        remove_topics(admin, *names)
