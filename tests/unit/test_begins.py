"""What a flow begins, by what other flows' journals say right before its first record: without brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from helpers import settings_between
from sparkless import InThisProcess

from mirror.driver import start, topic_watcher
from mirror.driver.flow import Flow
from mirror.driver.journal_state import JournalState
from mirror.driver.start import record_rekeyed, recorded
from mirror.driver.topic_watcher import Deletions, NewPlan, Replanner
from mirror.errors import ClusterUnreachable, MalformedBatch, MirrorError, PreflightError
from mirror.journal.entries import FirstSeen
from mirror.journal.journal import OWNER, Change, Entry, Journal, newest
from mirror.journal.ownership import Owner
from mirror.kafka.admin import Admin, ConfigValue, TopicInfo
from mirror.kafka.cluster import Cluster, Endpoint, Topic, TopicPartition
from mirror.observability.metrics import Metrics
from mirror.policy.rules import Rules
from mirror.policy.selection import Rekeying
from mirror.replication.assignment import Assignment
from mirror.spark import supervisor
from mirror.spark.jobs import Epochs
from mirror.spark.supervisor import Supervisor
from mirror.suspension import SUSPENDED_SECONDS, Clearance, SuspensionDetector
from mirror.topics.acls import Acl, AclPlan
from mirror.topics.adoption import Gate
from mirror.topics.apply import plan_topics
from mirror.topics.history import Claim, History, Origin

IDS = {name: uuid4() for name in ("old", "new", "letters")}


@dataclass
class Side:
    """A cluster, as far as who begins asks it."""

    cluster_id: str
    topics: dict[str, Topic] = field(default_factory=lambda: {name: Topic(name, one, {}) for name, one in IDS.items()})
    endpoint: Any = field(default_factory=lambda: SimpleNamespace(alias="there"))

    def topic_id(self, name: str) -> UUID | None:
        return self.topics[name].topic_id if name in self.topics else None

    async def refresh(self, _topics: Collection[str]) -> None:
        """Nothing changes."""


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
        begun = recorded(self.source, self.journal, assignments, known, elsewhere=elsewhere, failures=failures)
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
        assert list(asyncio.run(mirror.journal.newest())) == [FirstSeen.key("old")]
    assert mirror.tries(History) == (["old", "new"], {}), "the other flow has ended"


@pytest.mark.parametrize("problem", [ClusterUnreachable("away"), MalformedBatch("garbled", 0)])
def test_what_was_not_looked_at_is_looked_at_again(problem: Exception) -> None:
    def away() -> History:
        raise problem

    mirror = Begins()
    with pytest.raises(type(problem)):
        mirror.tries(away)
    assert mirror.tries(lambda: CLAIMED)[0] == ["old"]


def test_a_copy_that_is_gone_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "MISSING_TRIES", 0)
    mirror = Begins()
    del mirror.journal.cluster.topics["new"]
    begun, failures = mirror.tries(History)
    assert (begun, list(failures)) == (["old"], ["new"])
    assert "no broker knows topic new" in str(failures["new"])
    with pytest.raises(ClusterUnreachable, match="no broker knows topic new"):
        asyncio.run(recorded(mirror.source, mirror.journal, [one("new")], {}))


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
    both = [FirstSeen.rekeyed_key(name) for name in ("new", "letters")]
    for _ in range(2):
        naming = record_rekeyed(mirror.source, mirror.journal, rule, (), lambda: elsewhere)
        if why:
            with pytest.raises(PreflightError, match=why):
                asyncio.run(naming)
        else:
            asyncio.run(naming)
        assert list(asyncio.run(mirror.journal.newest())) == ([] if why else both)


# --- a plan that cannot be adopted ------------------------------------------------------------------------------------


def test_a_plan_that_cannot_be_adopted_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic watcher goes on meanwhile, and nobody's epoch is ended for it."""
    there = Endpoint("there", (("127.0.0.1", 1),))
    flow = Flow(
        name="b", source=there, target=there, assignments=(one("old"),), tasks=1, epoch_seconds=1.0, memory_bytes=1
    )
    engine: Any = InThisProcess()
    written = list[Change]()
    problems = iter([ClusterUnreachable("away"), {"new": PreflightError("new: flow a writes to it")}, {}])

    async def begun(*given: Any, **_: Any) -> list[Assignment]:
        if isinstance(problem := next(problems), ClusterUnreachable):
            raise problem
        given[-1].update(problem)
        return [found for found in given[2] if found.target.topic not in given[-1]]

    async def nothing(*_: Any) -> bool:
        return True

    async def append_all(_: Any, changes: Iterable[Change]) -> None:
        written.extend(changes)

    async def story() -> None:
        mirror = Supervisor(engine, flow, lambda _: None)
        for of, name in ((Cluster, "refresh"), (Epochs, "join"), (JournalState, "read")):
            monkeypatch.setattr(of, name, nothing)
        monkeypatch.setattr(Journal, "append_all", append_all)
        monkeypatch.setattr(supervisor, "recorded", begun)
        wanted = NewPlan((one("old"), one("new")), frozenset({"new"}))
        for refused in ((), ("new",)):
            await mirror.found(wanted)
            assert mirror.assignments == [one("old")]
            assert tuple(left.source for left in mirror._refused) == refused
            assert not mirror._early.is_set()
        await mirror.found(wanted)
        assert mirror.assignments == [one("old"), one("new")]
        assert any(key == b"state/new/0" and value for key, value in written), "it was reported as left out"

    asyncio.run(story())


# --- a cluster that is slow is no suspension --------------------------------------------------------------------------


class Slowly:
    """A clock by which each answer takes longer than a suspension, while what beats does so every second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._now, self._beaten = 0.0, list[SuspensionDetector]()
        monkeypatch.setattr(SuspensionDetector.__init__, "__defaults__", (lambda: (self._now, self._now),))
        monkeypatch.setattr("mirror.kafka.admin.beating", self._beating)

    @contextmanager
    def _beating(self) -> Iterator[SuspensionDetector]:
        self._beaten.append(SuspensionDetector())
        yield self._beaten[-1]
        self._beaten.pop()

    def answers(self) -> None:
        for _ in range(int(2 * SUSPENDED_SECONDS)):
            self._now += 1
            for detector in self._beaten:
                detector.beat()


def test_acls_are_given_by_a_slow_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, done = Slowly(monkeypatch), list[bool]()
    replanner = Replanner(settings_between("a:1", "b:2", ["a"]))
    replanner._given = set()

    async def slowly(*_: Any) -> None:
        clock.answers()

    for name, stand_in in (
        ("followed_groups", lambda *_: ()),
        ("plan_acls", lambda *_: AclPlan(missing=(Acl("topic", "a", "User:x", "*", "READ", True),))),
        ("OwnershipCheck.refuse_lost", slowly),
        ("record_given", slowly),
        ("create_acls", lambda *_: done.append(replanner._target.may_go())),
    ):
        monkeypatch.setattr(f"mirror.driver.topic_watcher.{name}", stand_in)
    monkeypatch.setattr(Gate, "held", lambda *_: {})
    nothing: Any = SimpleNamespace(pairs=(), seen={})
    replanner._sync_acls(nothing, nothing, ())
    clock.answers()
    assert done == [True]
    assert replanner._target.may_go(), "what was asked for the ACLs says nothing of later orders"


def test_copies_are_deleted_by_a_slow_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, done = Slowly(monkeypatch), list[object]()
    settings = settings_between("a:1", "b:2", ["a"])
    target = Admin(settings.target)
    deletions = Deletions(target, target)
    seen = FirstSeen(source_topic="old", topic_id=None, target_topic_id=IDS["old"], cluster_id="here", made=True)

    class Away(Kept):
        def __init__(self, _cluster: Any, _flow: str, clearance: Clearance) -> None:
            super().__init__()
            self._clearance = clearance

        async def newest(self) -> dict[bytes, bytes]:
            clock.answers()
            return {OWNER: Owner.here("this").to_json(), FirstSeen.key("old"): seen.to_json()}

        async def append_all(self, _changes: Iterable[Change]) -> None:
            done.append(await self._clearance.given())
            clock.answers()

    monkeypatch.setattr(topic_watcher, "Journal", Away)
    monkeypatch.setattr(Deletions, "_made", lambda _, copies, __: copies)
    monkeypatch.setattr(target, "delete_topics", lambda gone: done.append((target.may_go(), gone)))
    assert list(deletions.delete(settings, {"old": one("old")})) == ["old"]
    clock.answers()
    assert done == [True, (True, {"old": IDS["old"]})]
    assert target.may_go()


# --- settings that nobody has an answer for ---------------------------------------------------------------------------


class Answering:
    """A cluster's administration that answers what it is given."""

    def __init__(self, cluster_id: str, configs: Mapping[str, Mapping[str, ConfigValue]]) -> None:
        self._id, self.configs = cluster_id, dict(configs)

    def __getattr__(self, name: str) -> Any:
        answers = {
            "topics": {name: TopicInfo(name=name, topic_id=IDS[name], partitions=()) for name in ("old", "new")},
            "cluster_id": self._id,
            "topic_configs": self.configs,
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
def test_a_topic_whose_settings_nobody_knows_is_left_as_it_is(side: str, rules: list[dict[str, Any]]) -> None:
    """Its copy would get the defaults of the target, which delete; or it would be left out without a word."""
    settings = settings_between("a:1", "b:2", ["old", "new"], rules=rules)
    source: Any = Answering("here", {"old": KEEPS, "new": KEEPS})
    target: Any = Answering("there", {"old": KEEPS, "new": KEEPS})
    del (source if side == "source" else target).configs["new"]
    found = plan_topics(source, target, settings)
    assert found.unread == {"new"}
    assert (found.changes, found.growths, [made for made in found.creations if made.topic == "new"]) == ((), (), [])
    assert [refusal.topic for refusal in found.refusals] == ["new"]
    assert (
        f"cluster {getattr(settings, side).alias} lists it and says nothing of its settings" in found.refusals[0].text
    )
    assert [pair.source for pair in found.allowed().pairs] == ["old"]
    assert found.allowed().rekeyed == ()
