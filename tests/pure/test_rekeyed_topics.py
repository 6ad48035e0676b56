"""What a target topic that a rule fills is made with, and what preflight says of one that is there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from helpers import settings_between

from mirror.kafka.admin import PartitionInfo, TopicInfo
from mirror.kafka.topic_configs import ConfigValue
from mirror.policy.remedies import Fix
from mirror.policy.selection import select
from mirror.topics.history import History
from mirror.topics.rekeyed import RekeyPlan, plan_rekeyed
from mirror.topics.state import DesiredTopics, ObservedTopics

BY_OWNER = "split(string(key), '-')[0]"
WEEK = "604800000"
COMPACTED = {"cleanup.policy": "compact", "retention.ms": WEEK, "retention.bytes": "1000"}
BOTH = {**COMPACTED, "cleanup.policy": "compact,delete"}


def values(configs: Mapping[str, str]) -> dict[str, ConfigValue]:
    return {name: ConfigValue(value=value, is_default=False) for name, value in configs.items()}


def planned(source: Mapping[str, str], copy: Mapping[str, str] | None = None, **rule: object) -> RekeyPlan:
    settings = settings_between("a:1", "b:2", ["orders"], rules=[{"match": "orders", **rule}])
    topic = TopicInfo(name="orders", topic_id=None, partitions=(PartitionInfo(partition=0, leader=1, replicas=(1,)),))
    desired = DesiredTopics(
        settings=settings,
        cluster_id="source",
        topics={"orders": topic},
        selection=select({"orders": 1}, settings.topics),
        configs={"orders": values(source)},
    )
    observed = ObservedTopics(
        history=History(),
        topics={} if copy is None else {"orders": topic},
        configs={} if copy is None else {"orders": values(copy)},
        brokers=1,
    )
    return plan_rekeyed(desired, observed, desired.rekeyed)


@pytest.mark.parametrize(
    ("source", "rule", "policy", "retention"),
    [
        (COMPACTED, {"rekey": BY_OWNER}, "delete", ("-1", "-1")),
        (BOTH, {"rekey": BY_OWNER}, "delete", (WEEK, "1000")),
        (COMPACTED, {"rekey": BY_OWNER, "may_compact": True}, "compact", (WEEK, "1000")),
        (COMPACTED, {"value": "value"}, "compact", (WEEK, "1000")),
        (COMPACTED | {"cleanup.policy": "delete"}, {"rekey": BY_OWNER}, "delete", (WEEK, "1000")),
    ],
)
def test_a_copy_is_made_compacted_by_the_keys_of_its_source_alone(
    source: Mapping[str, str], rule: dict[str, Any], policy: str, retention: tuple[str, str]
) -> None:
    """By another key, a record would supersede, and a deletion remove, what lives on the source."""
    found = planned(source, **rule)
    configs = next(one.configs for one in found.creations if one.topic == "orders")
    assert (configs["cleanup.policy"], configs["retention.ms"], configs["retention.bytes"]) == (policy, *retention)
    assert ([one.compacted for one in found.rekeyings], found.findings) == ([policy == "compact"], ())


def fixes(plan: RekeyPlan) -> list[Fix]:
    return [one.fix for one in plan.findings if one.fix]


def test_a_copy_that_is_compacted_by_keys_that_its_source_does_not_have_is_refused() -> None:
    kept = {**COMPACTED, "cleanup.policy": "delete"}
    for source, copy, rule in (
        (COMPACTED, COMPACTED, {"rekey": BY_OWNER}),
        (COMPACTED, BOTH, {"rekey": BY_OWNER, "on_bad_record": "dead-letter", "dead_letter": "letters"}),
        (kept, COMPACTED, {"partitions": 1}),
    ):
        assert fixes(planned(source, copy, **rule)) == [Fix.FIT_COMPACTION]
        assert fixes(planned(source, copy, **rule, may_compact=True)) == []
        assert fixes(planned(source, kept, **rule)) == []
    assert fixes(planned(COMPACTED, COMPACTED, partitions=1)) == []
