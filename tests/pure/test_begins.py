"""What a flow begins, by what other flows' journals say right before its first record: without brokers."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from helpers import settings_between
from sparkless import InThisProcess

from mirror.commands.run import run_flow
from mirror.driver import start, topic_watcher
from mirror.driver.flow import Flow, Outcome, Refusal
from mirror.driver.journal_state import JournalState
from mirror.driver.reports import unreported
from mirror.driver.start import record_rekeyed, recorded
from mirror.driver.topic_watcher import Deletions, NewPlan, Replanner
from mirror.errors import AccessDenied, ClusterUnreachable, FlowRuns, MalformedBatch, MirrorError, PreflightError
from mirror.journal.entries import FirstSeen, loss_entry
from mirror.journal.journal import OWNER, Change, Entry, Journal, newest
from mirror.journal.ownership import Owner
from mirror.kafka.admin import Admin, TopicInfo
from mirror.kafka.cluster import Cluster, Endpoint, Topic, TopicPartition
from mirror.kafka.topic_configs import ConfigValue
from mirror.observability.metrics import Metrics
from mirror.observability.status import PartitionStatus
from mirror.policy.rules import Rules
from mirror.policy.selection import Rekeying
from mirror.replication.assignment import Assignment, Loss
from mirror.spark import supervisor
from mirror.spark.jobs import Epochs
from mirror.spark.supervisor import Supervisor
from mirror.states import State
from mirror.suspension import SUSPENDED_SECONDS, Clearance, SuspensionDetector
from mirror.topics.acls import Acl, AclPlan
from mirror.topics.adoption import Gate
from mirror.topics.apply import plan_topics
from mirror.topics.history import Claim, History, Origin

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
        FirstSeen.key(name): FirstSeen(
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
    found = asyncio.run(recorded(mirror.source, mirror.journal, [one("old"), one("new")], known))
    assert {key: known[key] for key in on_record} == on_record
    for begun in found:
        topic_id = now[begun.source.topic].topic_id
        assert (begun.topic_id, begun.target_topic_id, begun.since) == (topic_id, topic_id, 7)


def test_the_ids_of_what_is_re_keyed_are_those_of_now() -> None:
    mirror, now = Begins(), topics_of({name: uuid4() for name in IDS})
    for side in (mirror.source, mirror.journal.cluster):
        side.now = now
    rule = Rekeying(source="old", target="new", partitions=3)
    asyncio.run(record_rekeyed(mirror.source, mirror.journal, rule, ()))
    named = FirstSeen.read(asyncio.run(mirror.journal.newest())[FirstSeen.rekeyed_key("new")])
    assert (named.topic_id, named.target_topic_id) == (now["old"].topic_id, now["new"].topic_id)


@pytest.mark.parametrize("once", [False, True], ids=["live", "bounded"])
def test_whoever_stands_by_again_prepares_anew(once: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two that stood by the other one was quicker; a bounded copy is refused then, and both start one engine."""
    done, settings = list[str](), settings_between("a:1", "b:2", ["old"])
    there = Endpoint("there", (("127.0.0.1", 1),))
    flow = Flow(name="b", source=there, target=there, assignments=(), tasks=1, epoch_seconds=1.0, memory_bytes=1)

    async def turn(*_: Any, **__: Any) -> bool:
        done.append("stands by")
        return False

    class Slower:
        def __init__(self, *_: Any) -> None:
            """Nothing is begun."""

        async def run(self) -> Outcome:
            done.append("runs")
            if done.count("runs") == 1:
                raise FlowRuns("b: a mirror runs already")
            return Outcome()

    def does(what: str, result: object) -> Callable[..., object]:
        def do(*_: Any, **__: Any) -> object:
            done.append(what)
            return result

        return do

    for name, stand_in in (
        ("commands.run.end_on_signals", lambda **_: None),
        ("driver.flow.prepare", does("prepares", flow)),
        ("journal.ownership.wait_for_turn", turn),
        ("spark.compiled.ensure_compiled", lambda: None),
        ("spark.rekey.queries.queries_for", lambda *_: None),
        ("spark.session.open_context", does("starts", SimpleNamespace(master="local", uiWebUrl=""))),
        ("spark.session.close_context", does("ends", None)),
        ("spark.supervisor.Supervisor", Slower),
    ):
        monkeypatch.setattr(f"mirror.{name}", stand_in)
    if once:
        with pytest.raises(FlowRuns):
            run_flow(lambda: settings, once=True, until_caught_up=False)
        assert done == ["stands by", "prepares", "starts", "runs", "ends"]
    else:
        assert run_flow(lambda: settings, once=False, until_caught_up=False) == 0
        again = ["stands by", "prepares", "runs"]
        assert done == ["stands by", "prepares", "starts", "runs", *again, "ends"]


@pytest.mark.parametrize(("once", "code"), [(False, 0), (True, 128 + signal.SIGTERM)], ids=["live", "bounded"])
def test_a_signal_while_it_stands_by_is_no_copy_that_is_done(
    once: bool, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever would have gone on with the copy must not: nothing was looked at."""

    async def stands_by(_: object, stopping: asyncio.Event, *, waits: bool) -> None:
        assert waits is not once
        os.kill(os.getpid(), signal.SIGTERM)
        await stopping.wait()

    monkeypatch.setattr("mirror.commands.run.end_on_signals", lambda **_: None)
    monkeypatch.setattr("mirror.journal.ownership.stand_by", stands_by)
    settings = settings_between("a:1", "b:2", ["old"])
    assert run_flow(lambda: settings, once=once, until_caught_up=False) == code


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


@pytest.mark.parametrize("copy", ["new", "old"], ids=["renamed", "made anew"])
def test_a_paused_topic_is_reported_of_the_copy_that_it_has_now(copy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was reported of the one before, a stop above all, is not true of this one."""
    there, written = Endpoint("there", (("127.0.0.1", 1),)), dict[bytes, bytes | None]()
    flow = Flow(
        name="b", source=there, target=there, assignments=(one("old"),), tasks=1, epoch_seconds=1.0, memory_bytes=1
    )
    before = replace(unreported(one("old"), "b", "i"), state=State.DIVERGED, detail="somebody's records", next_offset=7)
    now = replace(one("old"), target=TopicPartition(copy, 0), target_topic_id=uuid4())

    async def begun(*given: Any, **_: Any) -> list[Assignment]:
        return list(given[2])

    async def nothing(*_: Any) -> bool:
        return True

    async def append_all(_: Any, changes: Iterable[Change]) -> None:
        written.update(changes)

    async def story() -> None:
        engine: Any = InThisProcess()
        mirror = Supervisor(engine, flow, lambda _: None)
        monkeypatch.setattr(JournalState, "read", nothing)
        monkeypatch.setattr(Journal, "append_all", append_all)
        monkeypatch.setattr(supervisor, "recorded", begun)
        mirror._journal_state.live[now.source] = mirror._outcome.figures[now.source] = before
        mirror._journal_state.paused = {"old"}
        await mirror._report_paused()
        assert PartitionStatus.from_json(written[before.key()] or b"").state is State.DIVERGED
        await mirror.found(NewPlan((now,), anew=frozenset({copy})))
        await mirror._adopt()
        await mirror._report_paused()
        ours = {key: PartitionStatus.from_json(value) for key, value in written.items() if value}
        assert {key: (of.target_topic, of.state) for key, of in ours.items()} == {
            PartitionStatus.key_of(*now.target): (copy, State.PAUSED)
        }

    asyncio.run(story())


# --- a topic that no plan sees ----------------------------------------------------------------------------------------


def test_a_topic_that_no_plan_sees_is_reported_as_refused_for_as_long_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last report would stand for good: that it has caught up."""
    there, written = Endpoint("there", (("127.0.0.1", 1),)), list[Change]()
    flow = Flow(
        name="b", source=there, target=there, assignments=(one("old"),), tasks=1, epoch_seconds=1.0, memory_bytes=1
    )
    hidden, foreign = Refusal("hidden", "hidden", 0, "no right"), Refusal("foreign", "foreign", 0, "somebody else's")
    before = [
        replace(unreported(one("old"), "b", "i"), topic="hidden", partition=number, target_topic="eu.hidden")
        for number in (1, 0)
    ]
    known = {at.key(): at.to_json() for at in before}

    async def append_all(_: Any, changes: Iterable[Change]) -> None:
        written.extend(changes)

    async def story() -> None:
        engine: Any = InThisProcess()
        mirror = Supervisor(engine, replace(flow, refused=(hidden, foreign)), lambda _: None)
        monkeypatch.setattr(Journal, "append_all", append_all)
        mirror._reports_before = dict(known)
        await mirror._mend_reports(known)
        found = [PartitionStatus.from_json(value or b"") for _, value in written]
        assert {figures.key() for figures in found} == known.keys()
        assert {(figures.state, figures.topic) for figures in found} == {(State.REFUSED, "hidden")}
        written.clear()
        await mirror.refuse((hidden, foreign))
        assert not written, "nothing is new"
        await mirror.refuse(())
        assert dict(written) == dict.fromkeys(known), "it is left out on purpose now"

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
    monkeypatch.setattr(target, "delete_topics", lambda gone, _: done.append((target.may_go(), gone)))
    assert list(deletions.delete(settings, {"old": one("old")})) == ["old"]
    clock.answers()
    assert done == [(True, {"old": IDS["old"]}), True], "on record is what is gone"
    assert target.may_go()


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


# --- what people lift while an epoch is under way ---------------------------------------------------------------------


def test_an_epoch_ends_where_a_person_takes_a_copy_as_it_is() -> None:
    """What it may lack came on record during this epoch, whose task would not name more of it."""
    there = Endpoint("there", (("127.0.0.1", 1),))
    flow = Flow(name="b", source=there, target=there, assignments=(), tasks=1, epoch_seconds=60.0, memory_bytes=1)
    engine: Any = InThisProcess()

    async def story() -> None:
        mirror = Supervisor(engine, flow, lambda _: None)
        old = TopicPartition("old", 0)
        for reason in ("tombstones", "compaction"):
            key, value = loss_entry(Loss(old, old, 5, 5, reason))
            assert not mirror._has_acted()
            mirror._journal_state.learn([Entry(0, key, value)])
            assert not mirror._has_acted(), "its task wrote that"
            mirror._journal_state.learn([Entry(1, key, None)])
            assert mirror._has_acted()
            mirror._obeyed = mirror._acts()

    asyncio.run(story())
