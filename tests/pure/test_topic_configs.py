"""Which settings of a topic follow its source, and what a copy is made with."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from mirror.config import SyncSettings
from mirror.kafka.topic_configs import ConfigValue, agreed, plain_values
from mirror.topics.configs import changes_to, configs_for, follows

Configs = dict[str, ConfigValue]
own = partial(ConfigValue, is_default=False)
default = partial(ConfigValue, is_default=True)


def changed(copy: Configs, source: Configs, append_time: Any = "source", **sync: Any) -> dict[str, str | None]:
    """By name, the values that the copy's settings get; None for the target's default."""
    settings = SyncSettings.model_validate(sync)
    return {one.name: one.after for one in changes_to("t", copy, source, settings, append_time)}


@pytest.mark.parametrize(
    ("copy", "source", "expected"),
    [
        # of what decides which records there are, the source's defaults win
        *(
            ({name: default(value="1")}, {name: default(value="2")}, {name: "2"})
            for name in ("cleanup.policy", "retention.ms", "retention.bytes", "max.message.bytes")
        ),
        ({"retention.ms": default(value="2")}, {"retention.ms": own(value="2")}, {}),
        # of the rest, the target's defaults hold where the source has no value of its own
        ({"segment.ms": own(value="5")}, {"segment.ms": default(value="7")}, {"segment.ms": None}),
        ({"segment.ms": default(value="9")}, {"segment.ms": default(value="7")}, {}),
        ({"segment.ms": default(value="9")}, {"segment.ms": own(value="7")}, {"segment.ms": "7"}),
        # the target does not know it
        ({}, {"retention.ms": own(value="2")}, {}),
    ],
)
def test_what_a_copy_gets(copy: Configs, source: Configs, expected: dict[str, str | None]) -> None:
    assert changed(copy, source) == expected


def test_settings_that_the_user_excludes_or_adds() -> None:
    copy, source = {"retention.ms": own(value="1")}, {"retention.ms": own(value="2")}
    assert changed(copy, source, configs_exclude=["retention.*"]) == {}
    assert changed(copy, source, configs=False) == {}
    copy, source = {"vendor.tier": default(value="a")}, {"vendor.tier": own(value="b")}
    assert changed(copy, source) == {}
    assert changed(copy, source, configs_include=["vendor.*"]) == {"vendor.tier": "b"}


@pytest.mark.parametrize("name", ["min.insync.replicas", "follower.replication.throttled.replicas", "compression.type"])
def test_a_clusters_own_safety_is_never_copied(name: str) -> None:
    assert not follows(name, SyncSettings.model_validate({"configs_include": [".*"]}))


def test_whose_append_times_a_copy_shows_is_settled_when_it_is_made() -> None:
    name = "message.timestamp.type"
    stamps, creates = {name: own(value="LogAppendTime")}, {name: own(value="CreateTime")}
    assert changed(creates, stamps) == changed(stamps, stamps) == {}
    assert changed(creates, stamps, "target") == {name: "LogAppendTime"}
    assert changed(stamps, creates) == {name: "CreateTime"}, "the source's own times"


@pytest.mark.parametrize(
    ("name", "values", "kept"),
    [
        ("retention.ms", ["60000", "604800000"], "604800000"),
        ("retention.bytes", ["1000", "-1", "5"], "-1"),
        ("cleanup.policy", ["delete", "compact"], "delete"),
    ],
)
def test_where_brokers_do_not_agree_the_value_that_keeps_most_counts(name: str, values: list[str], kept: str) -> None:
    answers = [{name: default(value=one)} for one in values]
    assert agreed(answers) == {name: default(value=kept, is_disputed=True)}
    assert agreed(answers[:1]) == answers[0]


def test_a_copy_gets_a_value_of_its_own_where_its_brokers_do_not_agree() -> None:
    agreed_on, disputed = ({"retention.ms": default(value="60000", is_disputed=one)} for one in (False, True))
    assert changed(disputed, agreed_on) == {"retention.ms": "60000"}
    assert changed(agreed_on, disputed) == {}


@pytest.mark.parametrize(("lag", "expected"), [("5", {}), ("500", {"min.compaction.lag.ms": "500"})])
def test_what_decides_together_which_records_there_are_changes_together(lag: str, expected: dict[str, str]) -> None:
    """A topic was to be deleted from while its brokers did not agree for how long: the copy was at once, by a retention
    that it had had without effect.
    """
    copy = {
        "cleanup.policy": own(value="compact"),
        "retention.ms": own(value="60000"),
        "min.compaction.lag.ms": own(value="50"),
        "max.message.bytes": own(value="1"),
    }
    source = {
        "cleanup.policy": own(value="compact,delete"),
        "retention.ms": default(value="604800000", is_disputed=True),
        "min.compaction.lag.ms": own(value=lag),
        "max.message.bytes": own(value="2"),
    }
    assert changed(copy, source) == {"max.message.bytes": "2", **expected}


@pytest.mark.parametrize("policy", ["compact", "delete,compact", "delete"])
def test_a_copy_is_compacted_when_its_source_is(policy: str) -> None:
    """Its source's brokers had another default, and the copy was compacted a day sooner."""
    source, copy = (
        {"cleanup.policy": default(value=policy), "min.compaction.lag.ms": default(value=lag)}
        for lag in ("86400000", "0")
    )
    lag = {"min.compaction.lag.ms": "86400000"} if "compact" in policy else {}
    assert changed(copy, source) == lag
    made = configs_for(source, plain_values(copy), SyncSettings())
    assert {name: made[name] for name in made if name.startswith("min.")} == lag
    assert "min.compaction.lag.ms" not in configs_for(source, plain_values(source), SyncSettings())


def test_without_sync_configs_a_copy_is_made_to_take_records_as_they_are() -> None:
    source, defaults = {"segment.ms": own(value="5")}, dict.fromkeys(["message.timestamp.after.max.ms"], "1")
    made = configs_for(source, defaults, SyncSettings.model_validate({"configs": False}))
    assert made == {"compression.type": "producer", "message.timestamp.after.max.ms": str(2**63 - 1)}
