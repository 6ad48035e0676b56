"""What a refresh of a cluster asks for, and what is remembered of earlier ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from uuid import uuid4

import pytest
from waiting import MovableClock

from mirror.config import ClusterSettings
from mirror.kafka import remembering_admin as remembering
from mirror.kafka.admin import Admin, PartitionInfo, TopicInfo
from mirror.kafka.remembering_admin import AGAIN_SECONDS, RememberingAdmin
from mirror.kafka.topic_configs import ConfigChange, ConfigValue


def topic(name: str, partitions: int = 1) -> TopicInfo:
    of = tuple(PartitionInfo(partition=number, leader=1, replicas=(1,)) for number in range(partitions))
    return TopicInfo(name=name, topic_id=uuid4(), partitions=of)


class Kafka:
    """Topics and their configs, and which of them were asked for since the last time that this was asked."""

    def __init__(self, names: Iterable[str]) -> None:
        self.topics = {name: topic(name) for name in names}
        self.configs = dict.fromkeys(self.topics, "1")
        self._described, self._configured = list[str](), list[str]()

    def make(self, name: str, partitions: int = 1) -> None:
        self.topics[name] = topic(name, partitions)
        self.configs[name] = "1"

    def partition_counts(self) -> dict[str, int]:
        return {name: len(one.partitions) for name, one in self.topics.items()}

    def describe(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        asked = list(names)
        self._described += asked
        return {name: self.topics[name] for name in asked if name in self.topics}

    def topic_configs(self, names: Iterable[str], _: object = None) -> dict[str, dict[str, ConfigValue]]:
        asked = list(names)
        self._configured += asked
        held = {name: self.configs[name] for name in asked if name in self.topics}
        return {name: {"retention.ms": ConfigValue(value=value, is_default=False)} for name, value in held.items()}

    def asked(self) -> tuple[list[str], list[str]]:
        found = self._described, self._configured
        self._described, self._configured = [], []
        return found


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    """Five topics, of which two are described at a time."""
    made = Kafka("abcde")
    monkeypatch.setattr(remembering, "AT_ONCE", 2)
    for name in ("partition_counts", "describe", "topic_configs", "topic_configs_now"):
        method = getattr(made, name.removesuffix("_now"))
        monkeypatch.setattr(Admin, name, lambda _, *names, method=method: method(*names))
    monkeypatch.setattr(
        Admin, "alter_configs", lambda _, changes, *_more: [made.configs.update({c.topic: c.after}) for c in changes]
    )
    return made


@pytest.fixture
def admin(kafka: Kafka) -> RememberingAdmin:
    """It has refreshed, and knows the configs of all topics."""
    made = RememberingAdmin(ClusterSettings.model_validate({"alias": "eu", "bootstrap.servers": "nowhere:1"}))
    assert made.refresh(0), "everything is new"
    assert list(made.topics()) == list(made.topic_configs("abcde")) == list("abcde")
    assert kafka.asked() == (list("abcde"), list("abcde"))
    return made


def test_what_is_as_it_was_is_described_in_turns(kafka: Kafka, admin: RememberingAdmin, clock: MovableClock) -> None:
    for part, is_round in (("ab", False), ("cd", False), ("e", True), ("", False), ("", False)):
        assert admin.refresh(0) is is_round
        assert (admin.topics(), len(admin.topic_configs("abcde"))) == (kafka.topics, 5)
        assert kafka.asked() == (list(part), list(part))
    clock.move(AGAIN_SECONDS)
    assert not admin.refresh(0)
    assert kafka.asked() == (list("ab"), list("ab"))
    assert admin.refresh(60), "there is time for all of them"
    assert kafka.asked() == (list("cde"), list("cde"))


def test_what_is_new_or_grew_or_is_gone_is_known_at_once(kafka: Kafka, admin: RememberingAdmin) -> None:
    admin.refresh(0)
    kafka.asked()
    kafka.make("f")
    kafka.topics["a"] = topic("a", 3)
    del kafka.topics["b"]
    assert admin.refresh(60)
    assert kafka.asked() == (["a", "f"], [])
    assert list(admin.topics()) == list("acdef")
    assert len(admin.topics()["a"].partitions) == 3
    assert list(admin.topic_configs("acdef")) == list("acdef")
    assert kafka.asked() == ([], ["a", "f"]), "only what is not known, or not of this topic"


def test_new_topics_again_and_again_do_not_keep_the_others_waiting(kafka: Kafka, admin: RememberingAdmin) -> None:
    described = set[str]()
    for number in range(20):
        kafka.make(f"new-{number}")
        assert admin.refresh(0)
        described |= {*kafka.asked()[1]}
    assert described >= set("abcde")


def test_other_configs_and_a_topic_made_anew_are_reported_when_their_turn_comes(
    kafka: Kafka, admin: RememberingAdmin, clock: MovableClock
) -> None:
    kafka.configs["c"] = "2"
    assert [admin.refresh(0), admin.refresh(0)] == [False, True]
    assert admin.topic_configs("c")["c"]["retention.ms"].value == "2"
    admin.refresh(0)
    clock.move(AGAIN_SECONDS)
    kafka.topics["b"] = replace(topic("b"), topic_id=uuid4())
    assert admin.refresh(0)
    assert admin.topics()["b"] == kafka.topics["b"]
    del kafka.topics["d"]  # after it was counted
    kafka_counts = {**kafka.partition_counts(), "d": 1}
    admin.partition_counts = lambda: kafka_counts  # type: ignore[method-assign] # what the cluster said a moment ago
    assert admin.refresh(0)
    assert "d" not in admin.topics()
    assert admin.topic_configs("d") == {}


def test_what_was_changed_from_here_is_asked_for_again(kafka: Kafka, admin: RememberingAdmin) -> None:
    admin.alter_configs([ConfigChange(topic="b", name="retention.ms", before="1", after="3")])
    assert admin.topic_configs("b")["b"]["retention.ms"].value == "3"
    assert kafka.asked() == ([], ["b"])


def test_what_a_change_rests_on_is_asked_for_anew_and_remembered(kafka: Kafka, admin: RememberingAdmin) -> None:
    kafka.configs["b"] = "2"
    assert admin.topic_configs("b")["b"]["retention.ms"].value == "1"
    for configs in (admin.topic_configs_now("b"), admin.topic_configs("b")):
        assert configs["b"]["retention.ms"].value == "2"
    assert kafka.asked() == ([], ["b"])


def test_a_cluster_of_few_topics_is_described_whole_each_time(
    kafka: Kafka, admin: RememberingAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembering, "AT_ONCE", 5)
    for _ in range(3):
        assert admin.refresh(0)
        assert kafka.asked() == (list("abcde"), list("abcde"))
