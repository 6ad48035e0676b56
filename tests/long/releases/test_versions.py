"""Every source with every target, from Kafka 2.8 to 4.3: what is copied, with equal and with translated offsets.

Each release is the published one. A source of 2.8 still runs with ZooKeeper; the others are their own controllers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, Protocol

import pytest
from configured_flow import ConfiguredFlow
from group_pairs import Pair, with_pair
from helpers import make_topic, mirror_once, produce, wait_for_markers
from kraftbroker import KraftBroker
from oldbroker import OldBroker
from releases import NotFetched
from samerecords import assert_same_records, read
from topicadmin import configs_of, configure
from transactional import CLEANED, transactions, wait_until_cleaned, write_over
from translated_copies import assert_translated
from watchedtask import WatchedTask

from mirror.config import ClusterSettings
from mirror.errors import ExitCode
from mirror.kafka.admin import Admin
from mirror.kafka.cluster import TopicPartition
from mirror.lab.embedded import Cluster
from mirror.observability.status import PartitionStatus
from mirror.states import State

SOURCES = ("2.8.2", "3.3.2", "3.9.1", "4.3.0")
TARGETS = ("3.3.2", "3.9.1", "4.3.0")
Offsets = Literal["preserve", "translate"]


class Broker(Protocol):
    """One of any release, which runs."""

    @property
    def bootstrap(self) -> str: ...


@pytest.fixture(scope="module")
def started() -> Iterator[Callable[[str, str], str]]:
    """The bootstrap address of a release on one side, started when it is first asked for."""
    running: dict[tuple[str, str], Broker] = {}
    with ExitStack() as stack:

        def of(version: str, side: str) -> str:
            if (version, side) not in running:
                running[version, side] = _entered(stack, version, side)
            return running[version, side].bootstrap

        yield of


def _entered(stack: ExitStack, version: str, side: str) -> Broker:
    try:
        match version:
            case "2.8.2":
                return stack.enter_context(OldBroker())
            case "3.3.2" | "3.9.1":
                return stack.enter_context(KraftBroker(version))
            case _:
                return stack.enter_context(Cluster.start(name=side))
    except NotFetched as problem:
        pytest.skip(str(problem))


@pytest.fixture(params=[(source, target) for source in SOURCES for target in TARGETS], ids=" to ".join, scope="module")
def pair(request: pytest.FixtureRequest, started: Callable[[str, str], str]) -> tuple[str, str]:
    """Bootstrap addresses of a source and a target."""
    source, target = request.param
    return started(source, "source"), started(target, "target")


@pytest.fixture(params=["preserve", "translate"])
def offsets(request: pytest.FixtureRequest) -> Offsets:
    found: Offsets = request.param
    return found


def copied(pair: tuple[str, str], topic: str, offsets: Offsets) -> PartitionStatus:
    wait_for_markers(pair[0], topic)
    found = mirror_once(*pair, [topic], flow=topic, offsets=offsets)[TopicPartition(topic, 0)]
    assert found.state is State.CAUGHT_UP, found
    return found


def assert_equal(pair: tuple[str, str], topic: str, offsets: Offsets) -> int:
    return assert_same_records(*pair, topic, 1) if offsets == "preserve" else assert_translated(pair, topic)


def numbered(count: int) -> list[bytes]:
    return [b"%d " % index + b"." * (index % 90) for index in range(count)]


def test_records_of_every_codec(pair: tuple[str, str], offsets: Offsets, topic_name: str) -> None:
    topic = _legal(topic_name)
    make_topic(pair[0], topic)
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        produce(pair[0], topic, numbered(500), codec=codec, batch=50)
    found = copied(pair, topic, offsets)
    assert {verdict.partition("/")[0] for verdict in found.verdicts} == {"RESTAMP"}, "nothing was decompressed"
    produce(pair[0], topic, numbered(10))
    copied(pair, topic, offsets)
    assert assert_equal(pair, topic, offsets) == 2510


def test_transactions(pair: tuple[str, str], offsets: Offsets, topic_name: str) -> None:
    topic = _legal(topic_name)
    make_topic(pair[0], topic)
    transactions(pair[0], topic, [True, False, True], name="one")
    copied(pair, topic, offsets)
    transactions(pair[0], topic, [False, True], name="two")
    copied(pair, topic, offsets)
    assert assert_equal(pair, topic, offsets) == 15


def test_what_a_cleaner_left(pair: tuple[str, str], offsets: Offsets, topic_name: str) -> None:
    topic = _legal(topic_name)
    make_topic(pair[0], topic, configs=CLEANED)
    wait_until_cleaned(pair[0], topic, write_over(pair[0], topic))
    make_topic(pair[1], topic)
    found = copied(pair, topic, offsets)
    assert any(reason.startswith("REWRITE/holes") for reason in found.verdicts), found
    assert assert_equal(pair, topic, offsets)


def test_times_that_the_broker_gave(pair: tuple[str, str], offsets: Offsets, topic_name: str) -> None:
    """Into a topic where the producers' hold: the records keep what they had."""
    topic = _legal(topic_name)
    make_topic(pair[0], topic, configs={"message.timestamp.type": "LogAppendTime"})
    make_topic(pair[1], topic)
    produce(pair[0], topic, numbered(50), codec="lz4")
    copied(pair, topic, offsets)
    theirs, ours = ([(one[1], one[3:]) for one in read(side, topic, 0)] for side in pair)
    assert ours == theirs


def test_groups_follow(pair: tuple[str, str], offsets: Offsets, topic_name: str) -> None:
    topic = _legal(topic_name)
    make_topic(pair[0], topic)
    transactions(pair[0], topic, [True, True])
    copied(pair, topic, offsets)

    async def story(groups: Pair) -> None:
        await groups.commit(groups.source, topic, topic, 8)
        assert await groups.standings() == {"synced": 1}
        found = await groups.committed(groups.target, topic)
        assert found[TopicPartition(topic, 0)].offset == (8 if offsets == "preserve" else 7)

    with_pair(*pair, topic, story, journal_of=topic if offsets == "translate" else "")


@pytest.mark.parametrize("version", TARGETS)
def test_more_in_sync_replicas_than_there_are(
    started: Callable[[str, str], str], topic_name: str, version: str
) -> None:
    """Brokers before 3.7 refuse every write; later ones take what there is for the minimum."""
    topic = _legal(topic_name)
    source, target = started("4.3.0", "source"), started(version, "target")
    make_topic(source, topic)
    make_topic(target, topic, configs={"min.insync.replicas": "2"})
    produce(source, topic, numbered(50))
    at, expected = TopicPartition(topic, 0), State.UNAVAILABLE if version == "3.3.2" else State.CAUGHT_UP
    with WatchedTask(source, target, [at]) as task:
        found = task.until(at, lambda one: one.state is expected)
    assert ("not_enough_replicas" in found.detail) == (version == "3.3.2"), found


@pytest.mark.parametrize("version", TARGETS)
def test_alter_is_enough_for_markers_from_3_8_on(
    started: Callable[[str, str], str], monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    admin = Admin(ClusterSettings.model_validate({"alias": "us", "bootstrap.servers": started(version, "target")}))
    assert admin.may_write_markers(), "who meets no authorizer may do everything"
    monkeypatch.setattr(admin, "rights", lambda: frozenset({"ALTER", "DESCRIBE"}))
    assert admin.may_write_markers() is (version != "3.3.2")


def _legal(name: str) -> str:
    return name.replace(".", "-")


@pytest.mark.proves("mirror plan", "mirror run", "never-silent")
def test_settings_that_a_newer_release_does_not_take_cost_nothing_else(
    started: Callable[[str, str], str], tmp_path: Path, topic_name: str
) -> None:
    """Kafka 4 has a larger minimum for `segment.bytes`, and knows `message.downconversion.enable` no more."""
    old = {"segment.bytes": "65536", "message.downconversion.enable": "false", "retention.ms": "7200000"}
    source, target = started("3.9.1", "source"), started("4.3.0", "target")
    sides: list[Any] = [SimpleNamespace(bootstrap=one) for one in (source, target)]
    flow = ConfiguredFlow(sides[0], sides[1], tmp_path, topic_name)
    flow.sync["configs_include"] = [".*"]
    make_topic(source, topic_name)
    later = f"{topic_name}-later"
    assert flow.once().exit_code == ExitCode.DONE
    make_topic(source, later, configs=old)
    configure(source, topic_name, **{name.replace(".", "_"): value for name, value in old.items()})
    for topic in (topic_name, later):
        produce(source, topic, [b"record"] * 20)
    code, plan = flow.plan()
    assert (code, plan["refused"]) == (ExitCode.CHANGES, [])
    named = sorted((one["topic"], one["setting"], one["target_value"]) for one in plan["settings_not_followed"])
    assert named == [
        (topic, *setting)
        for topic in (topic_name, later)
        for setting in (("message.downconversion.enable", ""), ("segment.bytes", "1048576"))
    ]
    for _ in range(2):
        assert flow.once().exit_code == ExitCode.DONE
    for topic in (topic_name, later):
        copy = configs_of(target, topic)
        assert (copy["retention.ms"], copy["segment.bytes"]) == ("7200000", "1048576")
        assert assert_same_records(source, target, topic, 1) == 20
    assert flow.mirror("status")[1].count("segment.bytes is to be 65536") == 2
