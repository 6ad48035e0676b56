"""The rights that docs/security.md lists for each side: together they are enough, and each one that is missing is
named.

One broker asks for rights: as a source it is mirrored to the shared target, as a target from the shared source.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from commandline import called
from confluent_kafka import Producer
from confluent_kafka.admin import ResourceType
from faults.network import Network
from groupoffsets import commit, committed
from helpers import make_topic, produce
from livemirror import LiveMirror, values
from pair import Shared
from samerecords import read
from secured import SUPER_USER, USERS, Guarded, Right
from sparkless import run_once
from topicadmin import delete_records

from mirror.config import Settings, load
from mirror.errors import ExitCode, MirrorError
from mirror.states import Remedy, State

pytest_plugins = ["guardedbroker"]

TOPIC, GROUP, BROKER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.BROKER
#: The rights of docs/security.md by side, and what is shown where one is missing. The source topic and the group are
#: called `{t}`, the copy and the flow `{own}`.
NEEDED: Final = [
    ("source", Right("READ", TOPIC, "{t}"), "{t}: no such topic on cluster eu, or no right to READ it"),
    (
        "source",
        Right("DESCRIBE_CONFIGS", TOPIC, "{t}"),
        "cannot describe configs of topic {t}: topic_authorization_fai",
    ),
    ("source", Right("DESCRIBE", GROUP, "{t}"), 'cause="cluster eu: grant DESCRIBE on the group" groups={t}'),
    ("target", Right("CREATE", TOPIC, "{own}"), "cannot create topic {own}: Authorization failed. Grant CREATE on the"),
    ("target", Right("DESCRIBE_CONFIGS", TOPIC, "{own}"), "cannot describe configs of topic {own}: topic_authorizati"),
    ("target", Right("READ", TOPIC, "{own}"), "DescribeProducers of {own}-0 needs READ on topic {own}. Grant READ on"),
    ("target", Right("WRITE", TOPIC, "{own}"), "Produce of {own}-0 needs WRITE on topic {own}. Grant WRITE on topic"),
    ("target", Right("CREATE", TOPIC, "mirror.{own}.offsets"), "cannot create topic mirror.{own}.offsets: Authorizati"),
    ("target", Right("READ", TOPIC, "mirror.{own}.offsets"), "Fetch at offset 0 of mirror.{own}.offsets-0 needs READ"),
    ("target", Right("WRITE", TOPIC, "mirror.{own}.offsets"), "append to the journal of mirror.{own}.offsets-0 needs"),
    ("target", Right("READ", GROUP, "{t}"), 'cause="cluster us: grant READ on the group" groups={t}'),
    (
        "target",
        Right("DELETE", TOPIC, "{own}"),
        "DeleteRecords of {own}-0 needs DELETE on topic {own}. Grant DELETE on",
    ),
    (
        "target",
        Right("ALTER", BROKER, "kafka-cluster"),
        "answered cluster_authorization_failed to control markers. Gra",
    ),
]
#: With translated offsets neither padding nor markers are written.
TO_PRESERVE: Final = {"DELETE", "ALTER"}


@pytest.fixture(scope="module")
def filled(guarded_cluster: Guarded, source_cluster: Shared) -> str:
    """A topic with markers that begins at offset 2, and a group of its name that stands at 4, on the guarded broker and
    on the shared source.
    """
    name = f"rights-{uuid.uuid4().hex[:8]}"
    for bootstrap in (guarded_cluster.cluster.bootstrap, source_cluster.bootstrap):
        make_topic(bootstrap, name)
        producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
        producer.init_transactions(120)
        for number in range(3):  # offsets 0, 2 and 4; each transaction's marker takes the next one
            producer.begin_transaction()
            producer.produce(name, b"record %d" % number)
            producer.commit_transaction(60)
        delete_records(bootstrap, name, 2)
        commit(bootstrap, name, name, 4)
    return name


@dataclass(frozen=True, slots=True)
class Flow:
    """A flow whose source or target is the guarded broker."""

    guarded: Guarded
    side: str
    source: str  #: a bootstrap address by which anybody may do everything
    target: str
    name: str
    file: Path

    def configure(self, **sections: Any) -> Settings:
        """Write the configuration, and return what it says."""
        ends = {
            "source": {"alias": "eu", "bootstrap.servers": self.source},
            "target": {"alias": "us", "bootstrap.servers": self.target},
        }
        ends[self.side] = self.guarded.login(ends[self.side]["alias"])
        content = {"name": self.name, **ends, "metrics": {"listen": None}, **sections}
        self.file.write_text(json.dumps(content), encoding="utf-8")  # JSON is YAML
        return load(self.file)

    def command(self, *words: str) -> tuple[int, Any]:
        """Return the exit code of a command, and what it printed."""
        command, *more = words
        done = called(command, self.file, "--json", *more)
        return done.code, json.loads(done.out)

    def values(self, copy: str) -> list[tuple[int, bytes]]:
        """Return offsets and values of a copy."""
        return [(one[0], one[4]) for one in read(self.target, copy, 0)]


@pytest.fixture
def side() -> str:
    """Which side of a flow is guarded; tests say it by their parameter."""
    raise AssertionError


@pytest.fixture
def flow(
    side: str, guarded_cluster: Guarded, source_cluster: Shared, target_cluster: Shared, topic_name: str, tmp_path: Path
) -> Flow:
    source, target = source_cluster.bootstrap, target_cluster.bootstrap
    if side == "source":
        source = guarded_cluster.cluster.bootstrap
    else:
        target = guarded_cluster.cluster.bootstrap
    return Flow(guarded_cluster, side, source, target, topic_name, tmp_path / "flow.yaml")


def topics_of(flow: Flow, filled: str, offsets: str) -> dict[str, Any]:
    return {
        "topics": {"include": [filled], "naming": {"rename": {filled: flow.name}}, "offsets": offsets},
        "groups": {"include": [filled]},
    }


def rights_of(flow: Flow, filled: str) -> list[Right]:
    """Return the rights that a flow of this side needs."""
    return [
        right._replace(name=right.name.format(t=filled, own=flow.name))
        for side, right, _ in NEEDED
        if side == flow.side
    ]


@pytest.mark.proves("mirror run", "source-only-read", "same-offsets")
@pytest.mark.parametrize(
    ("side", "offsets", "expected"),
    [("source", "preserve", [2, 4]), ("target", "preserve", [2, 4]), ("target", "translate", [0, 1])],
)
def test_the_rights_are_enough(flow: Flow, filled: str, offsets: str, expected: list[int]) -> None:
    is_moved = offsets == "translate"
    needed = [one for one in rights_of(flow, filled) if not (is_moved and one.operation in TO_PRESERVE)]
    flow.guarded.allow(needed)
    assert run_once(flow.configure(**topics_of(flow, filled, offsets))).exit_code == ExitCode.DONE
    assert flow.values(flow.name) == list(zip(expected, [b"record 1", b"record 2"], strict=True))
    assert committed(flow.target, filled, flow.name) == expected[1]


@pytest.mark.proves("UNAUTHORIZED", "never-silent")
@pytest.mark.parametrize(
    ("side", "missing", "expected"),
    NEEDED,
    ids=[f"{right.operation} on the {side}'s {right.name}" for side, right, _ in NEEDED],
)
def test_each_right_is_needed_and_named_where_it_is_missing(
    flow: Flow, filled: str, missing: Right, expected: str, capfd: pytest.CaptureFixture[str]
) -> None:
    missing = missing._replace(name=missing.name.format(t=filled, own=flow.name))
    flow.guarded.allow(one for one in rights_of(flow, filled) if one != missing)
    settings = flow.configure(**topics_of(flow, filled, "preserve"))
    try:
        outcome = run_once(settings)
    except MirrorError as error:
        shown, code = str(error), error.exit_code
    else:
        (figures,) = outcome.figures.values()
        shown = f"{figures.detail}\n{capfd.readouterr().err}"
        is_group = missing.kind is GROUP
        assert figures.state is (State.CAUGHT_UP if is_group else State.UNAUTHORIZED)
        assert ("consumer groups do not follow: cluster " in outcome.incomplete) == is_group
        code = ExitCode(outcome.exit_code)
        assert code is ExitCode.CLUSTER
        assert committed(flow.target, filled, flow.name) < 4, "a group never goes ahead of what was mirrored"
    assert expected.format(t=filled, own=flow.name) in shown
    assert code in (ExitCode.PREFLIGHT, ExitCode.CLUSTER)


@pytest.mark.proves("UNAUTHORIZED", "never-silent")
@pytest.mark.parametrize(("side", "operation"), [("source", "READ"), ("target", "WRITE")])
def test_a_right_that_was_taken_away_is_granted_as_the_stop_says(
    flow: Flow, source_cluster: Shared, target_cluster: Shared, operation: str, tmp_path: Path
) -> None:
    clusters = {"source": source_cluster, "target": target_cluster} | {flow.side: flow.guarded.cluster}
    live = LiveMirror(clusters["source"], clusters["target"], flow.name, tmp_path)
    flow.guarded.allow(rights_of(flow, flow.name))
    live.settings[flow.side] = flow.guarded.login(live.settings[flow.side]["alias"])
    live.admin = flow.guarded.admin()
    live.begin()
    with live.running():
        live.until_equal(values(0, 100))
        flow.guarded.deny(Right(operation, TOPIC, flow.name))
        more = live.fill(100, 110)
        live.tool(live.until_stopped(State.UNAUTHORIZED, Remedy.GRANT), "kafka-acls")
        live.until_equal(values(0, 100) + more)


@pytest.mark.proves("UNAUTHORIZED", "never-silent")
def test_a_login_that_is_refused_later_is_mended_on_the_cluster(
    guarded_cluster: Guarded, target_cluster: Shared, topic_name: str, tmp_path: Path
) -> None:
    live = LiveMirror(guarded_cluster.cluster, target_cluster, topic_name, tmp_path)
    live.begin()
    with Network(guarded_cluster.cluster.bootstrap_by("OPEN")) as network:
        login = guarded_cluster.login("eu", SUPER_USER)
        login |= {"bootstrap.servers": network.bootstrap, "security.protocol": "SASL_PLAINTEXT"}
        live.settings["source"] = {key: one for key, one in login.items() if not key.startswith("ssl")}
        with live.running():
            live.until_equal(values(0, 100))
            guarded_cluster.password(SUPER_USER, "another")
            network.cut()
            network.heal()
            live.until_stopped(State.UNAUTHORIZED, Remedy.MEND_LOGIN)
            more = live.fill(100, 110)
            guarded_cluster.password(SUPER_USER, USERS[SUPER_USER])
            live.until_equal(values(0, 100) + more)


def hide_the_second(flow: Flow) -> list[str]:
    """Copy two topics with a group each, add to both, and take every right to the second from alice."""
    names = [f"{flow.name}-{letter}" for letter in "ab"]
    for name in names:
        make_topic(flow.source, name)
        produce(flow.source, name, [b"early"] * 20)
        commit(flow.source, name, name, 5)
    if flow.side == "source":
        rights = [Right(one, TOPIC, name) for name in names for one in ("READ", "DESCRIBE_CONFIGS")]
        rights += [Right("DESCRIBE", GROUP, name) for name in names]
    else:
        topics = (*names, f"mirror.{flow.name}.offsets")
        rights = [Right(one, TOPIC, name) for name in topics for one in ("CREATE", "DESCRIBE_CONFIGS", "READ", "WRITE")]
        rights += [Right("READ", GROUP, name) for name in names]
        rights += [Right(one, BROKER, "kafka-cluster") for one in ("CREATE", "DESCRIBE")]
    flow.guarded.allow(rights)
    included = [f"{flow.name}-.*"]
    settings = flow.configure(topics={"include": included}, groups={"include": included})
    assert run_once(settings).exit_code == ExitCode.DONE
    for name in names:
        produce(flow.source, name, [b"late"] * 10)
        commit(flow.source, name, name, 25)
    flow.guarded.allow(one for one in rights if one.name != names[1] or (flow.side, one.kind) == ("target", GROUP))
    return names


@pytest.mark.proves("REFUSED", "never-silent", "mirror plan", "mirror verify", "mirror failover")
@pytest.mark.parametrize("side", ["source"])
def test_a_topic_that_the_source_hides_is_not_taken_for_one_that_was_deleted(flow: Flow) -> None:
    """Brokers leave it out where they list all. Its copy lacks records, and nobody can compare it."""
    seen, hidden = hide_the_second(flow)
    code, plan = flow.command("plan")
    assert code == ExitCode.PREFLIGHT, plan
    assert f"{hidden}: was mirrored, and cluster eu hides it now: no right to READ or DESCRIBE it" in json.dumps(plan)
    outcome = run_once(load(flow.file))
    assert (outcome.exit_code, [one.source for one in outcome.refused]) == (ExitCode.PREFLIGHT, [hidden])
    assert len(flow.values(seen)) == 30, "the other goes on"
    code, proof = flow.command("verify", "--no-spark")
    assert code == ExitCode.NOT_WHOLE, proof
    assert "the source hides it" in json.dumps(proof)
    code, done = flow.command("failover")
    assert code == ExitCode.DATA_AT_RISK
    doubts = {one["topic"]: (one["certain"], one["doubt"]) for one in done["partitions"]}
    assert doubts[seen] == (True, "")
    assert doubts[hidden][0] is False
    assert f"no DESCRIBE right on topic {hidden}" in doubts[hidden][1]
    assert committed(flow.target, seen, seen) == 25
    assert f"group {hidden}: cluster eu: grant DESCRIBE on the group" in done["warnings"]


@pytest.mark.proves("REFUSED", "never-silent", "mirror plan", "mirror verify", "mirror failover")
@pytest.mark.parametrize("side", ["target"])
def test_a_copy_that_the_target_hides_is_not_made_and_costs_no_other_one_its_check(flow: Flow) -> None:
    """It looks as if it were missing, for a principal without any right to it."""
    seen, hidden = hide_the_second(flow)
    code, plan = flow.command("plan")
    assert code == ExitCode.PREFLIGHT, plan
    assert hidden not in [one["topic"] for one in plan["create"]]
    assert "cluster us hides it: no right to DESCRIBE it" in json.dumps(plan)
    code, proof = flow.command("verify", "--no-spark")
    assert code == ExitCode.NOT_WHOLE, proof
    assert "the target hides it" in json.dumps(proof)
    commit(flow.source, seen, hidden, 25)  # a group with an offset on each
    code, done = flow.command("failover")
    assert code == ExitCode.DATA_AT_RISK
    doubts = {one["topic"]: (one["rpo_records"], one["whole"], one["doubt"]) for one in done["partitions"]}
    assert doubts[seen] == (0, True, "")
    assert f"no DESCRIBE right on topic {hidden}" in doubts[hidden][2]
    assert [committed(flow.target, name, name) for name in (seen, hidden)] == [25, 5]
    for group in (seen, hidden):
        assert f"group {group}: cluster us: grant READ on topic {hidden}" in done["warnings"]
