"""Rules from a topic's configs, and what preflight says about a pair."""

from __future__ import annotations

import pytest

from mirror.policy.rules import NO_LIMIT, Finding, Rules, Severity, grows, preflight, preflight_rekeyed, shortened
from mirror.policy.selection import TopicPair

PAIR = TopicPair(source="orders", target="orders-copy", partitions=3)
NEW_TOPIC = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": str(NO_LIMIT),
    "message.timestamp.before.max.ms": str(NO_LIMIT),
    "message.timestamp.type": "CreateTime",
    "min.insync.replicas": "1",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
}


def find(
    source: dict[str, str] | None = None, target: dict[str, str] | None = None, partitions: int = 3
) -> tuple[Finding, ...]:
    both = {**NEW_TOPIC, **(source or {})}, {**NEW_TOPIC, **(target or {})}
    return preflight(*both, PAIR, target_partitions=partitions, target_replicas=3)


def test_rules_are_those_of_the_target_topic() -> None:
    configs = {
        "cleanup.policy": "compact, delete",
        "compression.type": "zstd",
        "max.message.bytes": "500",
        "message.timestamp.after.max.ms": "3600000",
        "message.timestamp.before.max.ms": "7200000",
        "message.timestamp.type": "LogAppendTime",
    }
    assert Rules.from_configs(configs) == Rules(
        target_append_time=True,
        max_message_bytes=500,
        compacted=True,
        codec=4,
        timestamp_after_max_ms=3_600_000,
        timestamp_before_max_ms=7_200_000,
    )
    own = Rules.from_configs(NEW_TOPIC)
    assert (own.codec, own.compacted, own.max_message_bytes, own.target_append_time) == (None, False, 1_048_588, False)
    with pytest.raises(ValueError, match=r"compression\.type=brotli"):
        Rules.from_configs({"compression.type": "brotli"})
    assert find() == ()


def test_before_kafka_3_6_one_limit_held_both_ways() -> None:
    rules = Rules.from_configs({"message.timestamp.difference.max.ms": "1000"})
    assert (rules.timestamp_after_max_ms, rules.timestamp_before_max_ms) == (1000, 1000)


def test_whether_the_target_may_soon_take_more() -> None:
    """A segment's limit that no sync raises is no reason to wait."""

    def may(source: int, target: int, segment: int = 1 << 30, *, follows: bool = True) -> bool:
        ours = {"max.message.bytes": str(source)}
        theirs = {"max.message.bytes": str(target), "segment.bytes": str(segment)}
        return Rules(max_message_bytes=1000, size_follows=follows).may_take_more(ours, theirs)

    assert may(2000, 1000)
    assert not may(2000, 1000, follows=False)
    assert not may(1000, 1000)
    assert not may(500, 1000)
    assert may(2000, 2000), "it was raised a moment ago"
    assert may(1000, 2000, follows=False), "the same by a person"
    assert not may(2000, 2000, segment=1000)


@pytest.mark.parametrize(
    ("request_bytes", "batch", "is_bound"),
    [(104_857_600, 1_048_588, False), (1_049_612, 1_048_588, True), (400_000, 398_976, True)],
)
def test_a_batch_must_fit_into_a_request(request_bytes: int, batch: int, is_bound: bool) -> None:
    configs = {**NEW_TOPIC, "socket.request.max.bytes": str(request_bytes)}
    rules = Rules.from_configs(configs)
    assert (rules.max_message_bytes, rules.bound_by_requests) == (batch, is_bound)
    assert not rules.may_take_more(configs, configs)


def test_a_batch_that_a_target_cuts_off_is_halved_until_it_fits() -> None:
    """Only a single record is tried at any size below."""
    rules = Rules.from_configs(NEW_TOPIC)
    assert not rules.max_record_bytes
    found = [(one.max_message_bytes, one.max_record_bytes) for one in map(rules.below, (900_000, 450_000, 4_000_000))]
    assert found == [(450_000, 899_999), (225_000, 449_999), (1_048_588, 1_048_588)]


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ({}, {"cleanup.policy": "compact"}, "set cleanup.policy=delete"),
        ({}, {"message.timestamp.before.max.ms": "5400000"}, "max.ms, 5400000 ms (1.5 h), which"),
        ({}, {"message.format.version": "0.10.2-IV0"}, "stores the old format 0.10.2-IV0"),
        (
            {"retention.ms": "-1"},
            {"retention.ms": "-1", "message.timestamp.before.max.ms": "604800000"},
            "refuses records older",
        ),
    ],
)
def test_refusals(source: dict[str, str], target: dict[str, str], expected: str) -> None:
    (finding,) = find(source, target)
    assert finding.severity is Severity.REFUSE
    assert expected in finding.text
    assert str(finding).startswith("orders-copy: ")


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ({"max.message.bytes": "2000000"}, {}, "set max.message.bytes to 2000000 or more"),
        ({"message.format.version": "0.10.2"}, {"message.format.version": "0.11.0-IV2"}, "every batch is rewritten"),
        ({}, {"segment.bytes": "1000000"}, "set segment.bytes to 1048588 or more"),
        ({}, {"socket.request.max.bytes": "400000"}, "takes batches of 398976 bytes"),
        ({}, {"socket.request.max.bytes": "400000"}, "of its brokers, 400000, to 1049612 or more"),
        ({}, {"compression.type": "gzip"}, "compression.type=producer keeps them"),
        ({"message.timestamp.type": "LogAppendTime"}, {}, "every batch is rewritten"),
        ({"cleanup.policy": "compact"}, {"cleanup.policy": "compact"}, "filled with a control marker"),
        ({}, {"message.timestamp.type": "LogAppendTime"}, "the source's timestamps are lost"),
        ({}, {"message.timestamp.after.max.ms": "3600000"}, f"set message.timestamp.after.max.ms={NO_LIMIT}"),
        ({"retention.ms": "-1"}, {}, "set retention.ms as on the source"),
        ({}, {"retention.bytes": "1000"}, "set retention.bytes as on the source"),
        ({}, {"min.insync.replicas": "4"}, "needs 4 in-sync replicas and has 3 in all"),
    ],
)
def test_advice(source: dict[str, str], target: dict[str, str], expected: str) -> None:
    (finding,) = find(source, target)
    assert finding.severity is Severity.ADVISE
    assert expected in finding.text


@pytest.mark.parametrize(
    ("partitions", "expected", "remedy"),
    [
        (1, "1 partition", "add partitions to it"),
        (4, "4 partitions", "add partitions to its source, delete it, or mirror to another name"),
    ],
)
def test_partition_counts_must_be_equal(partitions: int, expected: str, remedy: str) -> None:
    (finding,) = find(partitions=partitions)
    assert finding.severity is Severity.REFUSE
    assert f"has {expected} where orders has 3; {remedy}" in finding.text


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ({"retention.ms": "-1"}, {"cleanup.policy": "compact"}, "cleanup.policy=compact"),
        ({"retention.ms": "-1"}, {}, "retention.ms=604800000"),
        (
            {"cleanup.policy": "compact"},
            {"retention.ms": "1000"},
            "retention.ms=1000 and cleanup.policy=delete",
        ),
        (
            {"cleanup.policy": "compact", "min.compaction.lag.ms": str(NO_LIMIT)},
            {"cleanup.policy": "compact", "min.compaction.lag.ms": "0"},
            "min.compaction.lag.ms=0",
        ),
        ({"cleanup.policy": "compact"}, {"cleanup.policy": "compact"}, ""),
        ({"cleanup.policy": "compact"}, {"cleanup.policy": "compact", "min.compaction.lag.ms": "1"}, ""),
        ({}, {"retention.ms": "-1"}, ""),
    ],
)
def test_what_a_copy_keeps_no_more_by_other_settings(before: dict[str, str], after: dict[str, str], named: str) -> None:
    """Compaction as well: it removes what a copy with every version of a key holds, and its source has no more."""
    said = shortened(NEW_TOPIC | before, NEW_TOPIC | after)
    assert said.startswith(f"gets {named} as its source has, and deletes") if named else said == ""


def test_a_topic_that_gets_records_one_by_one_is_judged_by_its_limits_alone() -> None:
    target = NEW_TOPIC | {
        "compression.type": "zstd",
        "cleanup.policy": "compact",
        "message.timestamp.before.max.ms": "1000",
        "message.timestamp.after.max.ms": "2000",
        "min.insync.replicas": "2",
    }
    found = preflight_rekeyed(NEW_TOPIC, target, "orders-by-user", 1)
    refused = [one.text for one in found if one.severity is Severity.REFUSE]
    advised = [one.text for one in found if one.severity is Severity.ADVISE]
    (one,) = refused
    assert "message.timestamp.before.max.ms, 1000 ms" in one
    times, replicas = advised
    assert "set message.timestamp.after.max.ms" in times
    assert "2 in-sync replicas" in replicas


@pytest.mark.parametrize(
    ("configs", "topic", "begin", "is_named"),
    [
        ({"retention.ms": "-1"}, "orders", 500, True),
        ({"retention.ms": "-1"}, "orders", 0, False),
        ({"retention.ms": "-1"}, "app-orders-repartition", 0, True),
        ({"retention.ms": "-1", "retention.bytes": "1000"}, "orders", 500, False),
        ({"retention.ms": "-1", "cleanup.policy": "compact,delete"}, "orders", 500, False),
        ({}, "orders", 500, False),
    ],
)
def test_a_copy_that_keeps_what_its_source_deletes_by_request_is_named(
    configs: dict[str, str], topic: str, begin: int, is_named: bool
) -> None:
    assert ("sync.log_start to follow" in grows(configs, topic, begin)) is is_named
