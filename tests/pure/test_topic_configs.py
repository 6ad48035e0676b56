"""Which settings of a topic follow its source, and what a copy is made with."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import pytest

from mirror.config import SyncSettings
from mirror.journal.entries import Unfollowed, unfollowed_entries, unfollowed_in
from mirror.kafka.admin import Creation
from mirror.kafka.topic_configs import ConfigChange, ConfigValue, agreed, by_topic, plain_values
from mirror.policy.rules import Severity
from mirror.topics.configs import changes_to, configs_for, follows, unknown
from mirror.topics.fitting import (
    DEFAULT_REPLICAS,
    REPLICAS,
    Creations,
    fit_changes,
    fit_creations,
    nearest,
    own_replicas,
    replicas_of,
)

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
    (one,) = unknown("t", {}, source, SyncSettings.model_validate({"configs_include": ["vendor.*"]}))
    assert (one.topic, one.setting, one.source_value, one.target_value) == ("t", "vendor.tier", "b", "")
    assert [*unknown("t", {}, source, SyncSettings())] == []


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


class Refusing:
    """A target with minimums, settings that it does not know, and one that it asks for; it names the first thing."""

    def __init__(self, limits: Mapping[str, int], unknown: Collection[str] = (), needed: str = "") -> None:
        self._limits, self._unknown, self._needed = limits, unknown, needed

    def why(self, asked: Mapping[str, str | None]) -> str:
        for name in sorted(asked.keys() & self._unknown):
            return f"INVALID_CONFIG (Unknown topic config name: {name})"
        for name, least in self._limits.items():
            if 0 <= int(asked.get(name) or least) < least:
                return f"POLICY_VIOLATION ('{name}' of {asked[name]} is below the limit of {least}.)"
        return f"POLICY_VIOLATION ({self._needed} must be set)" if self._needed and self._needed not in asked else ""

    def creations_refused(self, creations: Iterable[Creation]) -> dict[str, str]:
        asked = {one.topic: {REPLICAS: str(one.replication_factor), **one.configs} for one in creations}
        return {topic: why for topic, settings in asked.items() if (why := self.why(settings))}

    def changes_refused(self, changes: Iterable[ConfigChange]) -> dict[str, str]:
        asked = {topic: {one.name: one.after for one in every} for topic, every in by_topic(changes).items()}
        return {topic: why for topic, settings in asked.items() if (why := self.why(settings))}


HOSTED: Final = {"segment.bytes": 52428800, "segment.ms": 14400000}
SMALL: Final = {"segment.bytes": "65536", "segment.ms": "60000", "retention.ms": "7200000"}


@pytest.mark.parametrize(
    ("target", "wanted", "made", "unfollowed"),
    [
        (Refusing({}), SMALL, SMALL, []),
        (
            Refusing(HOSTED),
            SMALL,
            SMALL | {"segment.bytes": "52428800", "segment.ms": "14400000"},
            ["segment.bytes", "segment.ms"],
        ),
        (Refusing({}, ["vendor.tier"]), SMALL | {"vendor.tier": "hot"}, SMALL, ["vendor.tier"]),
        (Refusing(HOSTED, needed="segment.ms"), {"a": "1", "segment.bytes": "1", "segment.ms": "14400000"},
         {"a": "1", "segment.bytes": "52428800", "segment.ms": "14400000"}, ["segment.bytes"]),
        # a longer retention than asked for is harmless
        (Refusing({"retention.ms": 86400000}), SMALL, SMALL | {"retention.ms": "86400000"}, ["retention.ms"]),
    ],
)  # fmt: skip
def test_a_topic_is_made_with_what_its_target_takes(
    target: Any, wanted: dict[str, str], made: dict[str, str], unfollowed: list[str]
) -> None:
    fit = fit_creations(target, [Creation(topic="t", partitions=1, replication_factor=1, configs=wanted)], 1, ["t"])
    assert (fit.made[0].configs, fit.made[0].replication_factor, fit.findings) == (made, 1, ())
    assert sorted(one.setting for one in fit.unfollowed) == unfollowed
    for one in fit.unfollowed:
        assert (one.source_value, one.target_value) == (wanted[one.setting], made.get(one.setting, ""))
        assert one.setting in one.reason


def test_a_thousand_refused_topics_take_no_more_requests_than_one() -> None:
    def requests(topics: int) -> int:
        asked: list[int] = []

        class Counting(Refusing):
            def changes_refused(self, changes: Iterable[ConfigChange]) -> dict[str, str]:
                asked.append(1)
                return super().changes_refused(changes)

        target: Any = Counting(HOSTED)
        every = [replace(change("segment.bytes", "9", "8"), topic=f"t{number}") for number in range(topics)]
        assert len(fit_changes(target, every)[0]) == topics
        return len(asked)

    assert requests(1000) == requests(1)


@pytest.mark.parametrize(
    ("target", "wanted", "texts"),
    [
        (Refusing({}, ["retention.ms"]), SMALL, ["retention.ms=7200000", "sync.configs_exclude"]),
        (Refusing({}, ["cleanup.policy"]), {"cleanup.policy": "compact"}, ["cleanup.policy=compact", "by hand"]),
        (Refusing({}, needed="x"), SMALL, ["refuses to create it", "x must be set", "by hand"]),
    ],
)
def test_a_topic_that_would_keep_less_than_its_source_is_refused_by_name(
    target: Any, wanted: dict[str, str], texts: list[str]
) -> None:
    fit = fit_creations(target, [Creation(topic="t", partitions=1, replication_factor=1, configs=wanted)], 1, ["t"])
    (finding,) = fit.findings
    assert (finding.severity, finding.topic) == (Severity.REFUSE, "t")
    assert all(text in finding.text for text in texts), finding.text


def change(name: str, before: str, after: str) -> ConfigChange:
    return ConfigChange(topic="t", name=name, before=before, after=after)


@pytest.mark.parametrize(
    ("limits", "changes", "taken", "unfollowed"),
    [
        # nothing else waits for a setting that is refused, and its nearest value stays
        (HOSTED, [("segment.bytes", "9", "8"), ("retention.ms", "9", "5")],
         {"segment.bytes": "52428800", "retention.ms": "5"}, {"segment.bytes": "52428800"}),
        (HOSTED, [("segment.bytes", "52428800", "8")], {}, {"segment.bytes": "52428800"}),
        # a longer retention than asked for is harmless
        ({"retention.ms": 7}, [("retention.ms", "9", "5"), ("retention.bytes", "9", "5")],
         {"retention.ms": "7", "retention.bytes": "5"}, {"retention.ms": "7"}),
    ],
)  # fmt: skip
def test_a_copy_gets_the_changes_that_its_target_takes(
    limits: dict[str, int], changes: list[tuple[str, str, str]], taken: dict[str, str], unfollowed: dict[str, str]
) -> None:
    target: Any = Refusing(limits)
    found, left = fit_changes(target, [change(*one) for one in changes])
    assert {one.name: one.after for one in found} == taken
    assert {one.setting: one.target_value for one in left} == unfollowed


def test_of_what_decides_which_records_there_are_a_copy_gets_only_what_keeps_more_where_some_of_it_is_refused() -> None:
    target: Any = Refusing({}, ["min.compaction.lag.ms"])
    asked = [change("cleanup.policy", "delete", "compact"), change("min.compaction.lag.ms", "0", "60000")]
    asked += [change("retention.ms", "5", "9"), change("retention.bytes", "9", "5")]
    found, left = fit_changes(target, asked)
    assert {one.name: one.after for one in found} == {"retention.ms": "9"}
    assert {one.setting: one.target_value for one in left} == {
        "min.compaction.lag.ms": "0",
        "cleanup.policy": "delete",
        "retention.bytes": "9",
    }


@pytest.mark.parametrize(
    ("name", "value", "why", "values"),
    [
        ("segment.bytes", "65536", "Value must be at least 1048576, and not 65536", ["1048576"]),
        ("max.message.bytes", "20971520", "must be between 1000 and 8388608 bytes", ["8388608"]),
        ("max.message.bytes", "20971520", "must be at most 8 MiB", []),
        ("retention.ms", "-1", "between 3600000 and 2592000000", ["2592000000", "3600000"]),
        ("cleanup.policy", "compact", "must be one of 3", []),
        (REPLICAS, "1", "must be 4", ["4", "-1", "3", "2"]),
    ],
)
def test_the_nearest_value_that_a_refusal_names(name: str, value: str, why: str, values: list[str]) -> None:
    assert nearest(name, value, why) == values


@pytest.mark.parametrize(
    ("asked", "source", "defaults", "brokers", "replicas", "of_flow"),
    [
        ("target", 1, (3, 2), 3, 3, 3),
        ("target", 3, (1, 1), 3, 1, 3),
        ("target", 1, (1, 2), 3, 2, 3),
        ("target", 1, (1, 2), 1, 1, 1),
        ("target", 2, (), 3, -1, 3),
        ("source", 2, (3, 2), 3, 2, 3),
        ("source", 3, (1, 1), 1, 1, 1),
        (2, 3, (3, 1), 3, 2, 2),
    ],
)
def test_how_many_replicas_a_new_topic_gets(
    asked: Any, source: int, defaults: tuple[int, ...], brokers: int, replicas: int, of_flow: int
) -> None:
    known = dict(zip((DEFAULT_REPLICAS, "min.insync.replicas"), map(str, defaults), strict=False))
    assert replicas_of(asked, source, known, brokers) == replicas
    assert own_replicas(asked, known, brokers) == of_flow


def test_the_journal_says_which_settings_do_not_follow_for_as_long_as_they_do_not() -> None:
    one = Unfollowed("t", "segment.bytes", "65536", "1048576", "too small")
    (entry,) = unfollowed_entries({}, {"t": (one,)})
    assert entry[1] is not None
    known = unfollowed_in({entry[0]: entry[1], b"settings/u": b"[1]", b"settings/v": b"{"})
    assert known == {"t": (one,)}
    assert unfollowed_entries(known, known) == []
    assert unfollowed_entries(known, {}) == [(entry[0], None)]


def test_a_cluster_without_a_broker_for_a_moment_changes_no_topic_that_is_to_be_created() -> None:
    class Starting:
        def creations_refused(self, creations: Iterable[Creation]) -> dict[str, str]:
            return {one.topic: "INVALID_REPLICATION_FACTOR (All brokers are currently fenced.)" for one in creations}

    target: Any = Starting()
    wanted = Creation(topic="t", partitions=1, replication_factor=1, configs=SMALL)
    assert fit_creations(target, [wanted], "target", ["t"]) == Creations(made=(wanted,))
