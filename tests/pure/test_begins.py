"""What a flow begins, by what other flows' journals say right before its first record: without brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from helpers import settings_between

from mirror.driver import start
from mirror.driver.journal_state import JournalState
from mirror.driver.start import record_rekeyed, recorded
from mirror.errors import AccessDenied, ClusterUnreachable, MirrorError, PreflightError
from mirror.journal.entries import COPIES, REKEYED, FirstSeen
from mirror.journal.journal import Change, Entry, newest
from mirror.kafka.admin import TopicInfo
from mirror.kafka.cluster import Topic, TopicPartition
from mirror.kafka.topic_configs import ConfigValue
from mirror.observability.metrics import Metrics
from mirror.policy.rules import Rules
from mirror.policy.selection import Rekeying
from mirror.replication.assignment import Assignment
from mirror.topics.history import Claim, History, Origin
from mirror.topics.reconcile import plan_topics

IDS = {name: uuid4() for name in ("old", "new", "letters")}


def topics_of(ids: Mapping[str, UUID]) -> dict[str, Topic]:
    return {name: Topic(name, one, {}) for name, one in ids.items()}


@dataclass
class Side:
    """A cluster, as far as who begins asks it. `now`: its topics where they are others than it said before."""

    cluster_id: str
    topics: dict[str, Topic] = field(default_factory=lambda: topics_of(IDS))
    now: dict[str, Topic] = field(default_factory=dict)
    endpoint: Any = field(default_factory=lambda: SimpleNamespace(alias="there"))

    def topic_id(self, name: str) -> UUID | None:
        return self.topics[name].topic_id if name in self.topics else None

    async def refresh(self, _topics: Collection[str]) -> None:
        """Learn what they are now."""
        self.topics |= self.now


class Kept:
    """A journal that holds what it was given."""

    flow = "b"

    def __init__(self) -> None:
        self.cluster, self.entries = Side("there"), list[Entry]()

    async def append(self, changes: Iterable[Change]) -> None:
        self.entries += [Entry(len(self.entries), key, value) for key, value in changes]

    append_all = append

    async def newest(self) -> dict[bytes, bytes]:
        return newest(self.entries)


def one(topic: str) -> Assignment:
    return Assignment(TopicPartition(topic, 0), TopicPartition(topic, 0), IDS[topic], Rules())


@dataclass
class Begins:
    """A mirror that begins two topics at each try, and reads its journal in between."""

    journal: Any = field(default_factory=Kept)
    source: Any = field(default_factory=lambda: Side("here"))
    read: int = 0
    state: JournalState = field(
        default_factory=lambda: JournalState("b", "me", lambda _: None, lambda _: None, Metrics("b"))
    )

    def tries(self, elsewhere: Callable[[], History]) -> tuple[list[str], dict[str, MirrorError]]:
        failures: dict[str, MirrorError] = {}
        self.state.learn(self.journal.entries[self.read :])
        self.read = len(self.journal.entries)
        assignments, known = [one("old"), one("new")], self.state.topics
        begun = recorded(self.source, self.journal, assignments, known, failures, elsewhere=elsewhere)
        return [found.source.topic for found in asyncio.run(begun)], failures


CLAIMED = History(claims={"new": Claim("a", IDS["new"])}, target_id="there")
LOOP = History(origins={"new": Origin("a", ("there",))}, target_id="there")


@pytest.mark.parametrize(
    ("elsewhere", "why"), [(CLAIMED, "flow a writes to it"), (LOOP, "would be a loop")], ids=["another flow's", "loop"]
)
def test_what_must_not_be_begun_is_not_at_the_next_try_either(elsewhere: History, why: str) -> None:
    """The mirror reads its own journal in between, which named the topic and took that back; others begin."""
    mirror = Begins()
    for _ in range(3):
        begun, failures = mirror.tries(lambda: elsewhere)
        assert (begun, list(failures)) == (["old"], ["new"])
        assert why in str(failures["new"])
        assert list(asyncio.run(mirror.journal.newest())) == [COPIES.key("old")]
    assert mirror.tries(History) == (["old", "new"], {}), "the other flow has ended"


def test_a_copy_that_is_gone_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "MISSING_TRIES", 0)
    mirror = Begins()
    del mirror.journal.cluster.topics["new"]
    begun, failures = mirror.tries(History)
    assert (begun, list(failures)) == (["old"], ["new"])
    assert "no broker knows topic new" in str(failures["new"])
    assert isinstance(failures["new"], ClusterUnreachable)


@pytest.mark.parametrize(
    ("elsewhere", "why"),
    [
        (CLAIMED, "new: flow a writes to it"),
        (History(origins={"old": Origin("a", ("there",))}, target_id="there"), "old: comes from cluster there"),
        (History(claims={"letters": Claim("a", None)}), "letters: is the dead_letter topic of a rule, and flow a"),
        (History(claims={"letters": Claim("a", None, is_letters=True)}), ""),
        (History(claims={"new": Claim("a", uuid4())}), ""),
    ],
)
def test_what_is_re_keyed_is_one_flows(elsewhere: History, why: str) -> None:
    """Also where the flow named it already, and could not ask then."""
    mirror = Begins()
    rule = Rekeying(source="old", target="new", partitions=3, on_bad_record="dead-letter", dead_letter="letters")
    both = [REKEYED.key(name) for name in ("new", "letters")]
    for _ in range(2):
        naming = record_rekeyed(mirror.source, mirror.journal, rule, (), lambda: elsewhere)
        if why:
            with pytest.raises(PreflightError, match=why):
                asyncio.run(naming)
        else:
            asyncio.run(naming)
        assert list(asyncio.run(mirror.journal.newest())) == ([] if why else both)


# --- whoever waited for the flow --------------------------------------------------------------------------------------


def test_ids_of_before_do_not_replace_those_on_record() -> None:
    """A mirror asked for them before it waited for the flow; the one that had it made a topic and its copy anew, and
    began late.
    """
    mirror, now = Begins(), topics_of({name: uuid4() for name in IDS})
    assert mirror.tries(History) == (["old", "new"], {})
    for side in (mirror.source, mirror.journal.cluster):
        side.now = now
    on_record = {
        COPIES.key(name): FirstSeen(
            source_topic=name,
            topic_id=topic.topic_id,
            target_topic_id=topic.topic_id,
            cluster_id="here",
            since=(7,),
            origins=("here",),
        ).to_json()
        for name, topic in now.items()
        if name != "letters"
    }
    known = dict(on_record)
    found = asyncio.run(recorded(mirror.source, mirror.journal, [one("old"), one("new")], known, {}))
    assert {key: known[key] for key in on_record} == on_record
    for begun in found:
        topic_id = now[begun.source.topic].topic_id
        assert (begun.topic_id, begun.target_topic_id, begun.since) == (topic_id, topic_id, 7)


# --- settings that nobody has an answer for ---------------------------------------------------------------------------


class Answering:
    """A cluster's administration that answers what it is given."""

    def __init__(self, cluster_id: str, configs: Mapping[str, Mapping[str, ConfigValue]]) -> None:
        self._id, self.configs, self.hides = cluster_id, dict(configs), set[str]()

    def topic_configs(self, _: object, denied: dict[str, MirrorError]) -> Mapping[str, Mapping[str, ConfigValue]]:
        denied.update({name: AccessDenied(name) for name in self.hides})
        return self.configs

    def __getattr__(self, name: str) -> Any:
        answers = {
            "topics": {name: TopicInfo(name=name, topic_id=IDS[name], partitions=()) for name in ("old", "new")},
            "cluster_id": self._id,
            "topic_configs_now": {},
            "may_write_markers": True,
            "denied": set(),
            "brokers": 1,
            "spans": {},
            "broker_configs": {},
        }
        return lambda *_: answers[name]


KEEPS = {
    "cleanup.policy": ConfigValue(value="compact", is_default=False),
    "retention.ms": ConfigValue(value="-1", is_default=False),
}


@pytest.mark.parametrize("rules", [[], [{"match": "new", "partitions": 1}]], ids=["copied", "re-keyed"])
@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("is_denied", [False, True], ids=["unknown", "denied"])
def test_a_topic_whose_settings_nobody_knows_is_left_as_it_is(
    side: str, rules: list[dict[str, Any]], is_denied: bool
) -> None:
    """Its copy would get the defaults of the target, which delete; or it would be left out without a word."""
    settings = settings_between("a:1", "b:2", ["old", "new"], rules=rules)
    source: Any = Answering("here", {"old": KEEPS, "new": KEEPS})
    target: Any = Answering("there", {"old": KEEPS, "new": KEEPS})
    wrong = source if side == "source" else target
    del wrong.configs["new"]
    wrong.hides = {"new"} if is_denied else set()
    found = plan_topics(source, target, settings)
    assert found.unread == {"new"}
    assert (found.changes, found.growths, [made for made in found.creations if made.topic == "new"]) == ((), (), [])
    assert [refusal.topic for refusal in found.refusals] == ["new"]
    alias = getattr(settings, side).alias
    what = "what denies it, as" if is_denied else f"cluster {alias} lists it and says nothing of its settings"
    assert what in found.refusals[0].text
    assert [pair.source for pair in found.allowed().pairs] == ["old"]
    assert found.allowed().rekeyed == ()


def test_a_topic_is_made_to_take_any_time_beside_one_whose_settings_nobody_knows() -> None:
    """It would be made with the target's own limits, by which brokers refuse records from a clock that is ahead."""

    class Empty(Answering):
        def topics(self) -> dict[str, TopicInfo]:
            return {"old": TopicInfo(name="old", topic_id=IDS["old"], partitions=())}

        def broker_configs(self) -> dict[str, ConfigValue]:
            return {"log.message.timestamp.after.max.ms": ConfigValue(value="3600000", is_default=True)}

        def creations_refused(self, _: object) -> dict[str, str]:
            return {}

    settings = settings_between("a:1", "b:2", ["old", "new"])
    source: Any = Answering("here", {"new": KEEPS})
    target: Any = Empty("there", {"old": KEEPS})
    source.hides, source.topic_configs_now = {"old"}, lambda names: dict.fromkeys(names, KEEPS)
    (creation,) = plan_topics(source, target, settings).allowed().creations
    assert (creation.topic, creation.configs["message.timestamp.after.max.ms"]) == ("new", str(2**63 - 1))
