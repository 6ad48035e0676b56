"""The rights that docs/security.md lists for each side: together they are enough, and none of them is one too many."""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from acls import every_acl, put_acls
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from groupoffsets import commit, committed
from helpers import make_topic, produce
from running import TIMEOUT, wait_for
from samerecords import read
from secured import USERS, scram, spec
from sparkless import InThisProcess, run_once
from syncing import awaited
from typer.testing import CliRunner

from mirror import config
from mirror.cli import app
from mirror.commands.failover import failover
from mirror.commands.verify import Means, verify_flow
from mirror.config import Settings
from mirror.driver.flow import Outcome, prepare
from mirror.driver.reports import reports_in
from mirror.driver.topic_watcher import Deletions, Replanner
from mirror.errors import ExitCode, MirrorError
from mirror.journal.entries import seen_in
from mirror.kafka.admin import Admin
from mirror.kafka.cluster import TopicPartition as Partition
from mirror.lab.embedded import Cluster, start_many
from mirror.observability import logs
from mirror.policy.rules import Rules
from mirror.replication.assignment import Assignment
from mirror.spark.rekey.driver import Rekeyer
from mirror.spark.rekey.queries import Queries
from mirror.spark.supervisor import Supervisor
from mirror.states import State
from mirror.topics.apply import plan_topics
from mirror.topics.history import read_history, read_own
from mirror.topics.plan import plan_flow
from mirror.verify.report import Lack

pytestmark = pytest.mark.brokers

#: A name that each test replaces by its own, for the target topic and the flow.
OWN = "<own>"


class Right(NamedTuple):
    """What a principal may do, on which side and with what."""

    side: str
    operation: str
    kind: ResourceType
    name: str

    def __str__(self) -> str:
        return f"{self.operation} on the {self.side}'s {self.kind.name.lower()} {self.name}"


def topic(side: str, name: str, *operations: str) -> list[Right]:
    return [Right(side, operation, ResourceType.TOPIC, name) for operation in operations]


ALWAYS = (
    *topic("source", "t", "READ", "DESCRIBE_CONFIGS"),
    Right("source", "DESCRIBE", ResourceType.GROUP, "g"),
    *topic("target", OWN, "CREATE", "DESCRIBE_CONFIGS", "READ", "WRITE"),
    *topic("target", f"mirror.{OWN}.offsets", "CREATE", "READ", "WRITE"),
    Right("target", "READ", ResourceType.GROUP, "g"),
)
ALL = ("CREATE", "DESCRIBE_CONFIGS", "READ", "WRITE")
TO_PRESERVE = (
    *topic("target", OWN, "DELETE"),
    Right("target", "ALTER", ResourceType.BROKER, "kafka-cluster"),
)
#: What is shown where one is missing, in the order of `ALWAYS` and `TO_PRESERVE`.
EXPECTED = (
    "t: no such topic on cluster eu, or no right to READ it",
    "cluster eu {source}: cannot describe configs of topic t: topic_authorization_failed. Grant DESCRIBE_CONFIGS on",
    'cause="cluster eu: grant DESCRIBE on the group" groups=g',
    "cluster us {target}: cannot create topic {own}: Authorization failed. Grant CREATE on the topic or on the cluster",
    "cluster us {target}: cannot describe configs of topic {own}: topic_authorization_failed. Grant DESCRIBE_CONFIGS",
    "UNAUTHORIZED cluster us {target}: DescribeProducers of {own}-0 needs READ on topic {own}. Grant READ on topic",
    "UNAUTHORIZED cluster us {target}: Produce of {own}-0 needs WRITE on topic {own}. Grant WRITE on topic {own}; ",
    "cluster us {target}: cannot create topic mirror.{own}.offsets: Authorization failed. Grant CREATE on the topic or",
    "cluster us {target}: Fetch at offset 0 of mirror.{own}.offsets-0 needs READ on topic mirror.{own}.offsets",
    "cluster us {target}: append to the journal of mirror.{own}.offsets-0 needs WRITE on topic mirror.{own}.offsets",
    'cause="cluster us: grant READ on the group" groups=g',
    "UNAUTHORIZED cluster us {target}: DeleteRecords of {own}-0 needs DELETE on topic {own}. Grant DELETE on topic",
    "UNAUTHORIZED the target answered cluster_authorization_failed to control markers. Grant ALTER on the cluster",
)


class Pair(NamedTuple):
    """A guarded source, whose topic `t` has all that needs a right, and a guarded target; folders with their CAs."""

    source: Cluster
    target: Cluster
    folders: dict[str, Path]

    def admin(self, side: str) -> AdminClient:
        """Somebody who may do everything."""
        cluster: Cluster = getattr(self, side)
        return AdminClient({"bootstrap.servers": cluster.bootstrap})

    def settings(self, own: str, offsets: str) -> Settings:
        """A flow to the target topic `own`, by a principal with the rights that ACLs give it."""
        ends = {
            side: scram(cluster, self.folders[side]).model_dump(by_alias=True, exclude_none=True)
            for side, cluster in (("source", self.source), ("target", self.target))
        }
        return Settings.model_validate(
            {
                "name": own,
                "source": ends["source"] | {"alias": "eu"},
                "target": ends["target"],
                "topics": {"include": ["t"], "naming": {"rename": {"t": own}}, "offsets": offsets},
                "groups": {"include": ["g"]},
            }
        )

    def allow(self, rights: Iterable[Right], own: str, *sides: str) -> None:
        """These and no others; returns when the brokers know. On both sides, if none is named."""
        wanted = list(rights)
        for side in sides or ("source", "target"):
            bindings = [
                AclBinding(
                    right.kind,
                    right.name.replace(OWN, own),
                    ResourcePatternType.LITERAL,
                    "User:alice",
                    "*",
                    AclOperation[right.operation],
                    AclPermissionType.ALLOW,
                )
                for right in wanted
                if right.side == side
            ]
            put_acls(self.admin(side), every_acl(), bindings)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folders = {side: tmp_path_factory.mktemp(side) for side in ("source", "target")}
    with ExitStack() as stack:
        clusters = start_many([spec(f"rights-{side}", folder) for side, folder in folders.items()])
        source, target = (stack.enter_context(cluster) for cluster in clusters)
        pair = Pair(source, target, folders)
        fill(source.bootstrap, pair.admin("source"))
        yield pair


def fill(bootstrap: str, admin: AdminClient) -> None:
    """A topic with markers that begins at offset 2, and a group that stands at 4."""
    make_topic(bootstrap, "t")
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "rights"})
    producer.init_transactions(120)
    for number in range(3):  # offsets 0, 2 and 4; each transaction's marker takes the next one
        producer.begin_transaction()
        producer.produce("t", b"record %d" % number)
        producer.commit_transaction(60)
    (trimmed,) = admin.delete_records([TopicPartition("t", 0, 2)]).values()
    trimmed.result()
    deadline = time.monotonic() + 60
    group = ConsumerGroupTopicPartitions("g", [TopicPartition("t", 0, 4)])
    while any(one.error for one in admin.alter_consumer_group_offsets([group])["g"].result().topic_partitions):
        assert time.monotonic() < deadline  # the first one who asks has the groups' coordinator begin
        time.sleep(0.05)


@pytest.fixture(autouse=True)
def _plain_logs() -> None:
    logs.configure(json=False, level="info")


def kept(pair: Pair, own: str) -> list[tuple[int, bytes]]:
    """Offsets and values on the target."""
    return [(record[0], record[4]) for record in read(pair.target.bootstrap, own, 0)]


def test_the_rights_are_enough_for_equal_offsets(pair: Pair, capfd: pytest.CaptureFixture[str]) -> None:
    """With a word on what cannot be seen with them: journals of other flows."""
    pair.allow(ALWAYS + TO_PRESERVE, "equal")
    assert run_once(pair.settings("equal", "preserve")).exit_code == ExitCode.DONE
    assert kept(pair, "equal") == [(2, b"record 1"), (4, b"record 2")]
    assert committed(pair.target.bootstrap, "g", "equal") == 4
    output = capfd.readouterr().err
    assert "journals of other flows on cluster eu may be hidden, and a loop would not be seen" in output
    assert "journals of other flows on cluster us may be hidden, and a flow that writes to the same topics" in output


def test_what_locks_the_mirror_out_of_a_copy_is_taken_back_when_the_source_has_it_no_more(pair: Pair) -> None:
    """Copies keep the ACLs they have while they cannot be compared, and this one could not be for that very ACL."""
    own = "denied"
    sees = [Right(side, "DESCRIBE", ResourceType.BROKER, "kafka-cluster") for side in ("source", "target")]
    pair.allow([*ALWAYS, *TO_PRESERVE, *sees], own)
    settings = pair.settings(own, "preserve")
    meaning = {re.compile("User:bob"): "User:alice"}
    sync = settings.sync.model_copy(update={"acls": True, "acl_principals": meaning})
    settings = settings.model_copy(update={"sync": sync})
    assert run_once(settings).exit_code == ExitCode.DONE
    literal, deny = ResourcePatternType.LITERAL, AclPermissionType.DENY
    denied = AclBinding(ResourceType.TOPIC, "t", literal, "User:bob", "*", AclOperation.READ, deny)
    source, target = pair.admin("source"), pair.admin("target")  # kept for the answers
    source.create_acls([denied])[denied].result(20)
    replanner, seen = Replanner(settings), seen_in(asyncio.run(read_own(settings)).newest)

    def is_denied() -> bool:
        replanner.replan((), seen)
        found = target.describe_acls(every_acl(ResourceType.TOPIC, own)).result(20)
        return any(one.permission_type is deny for one in found)

    awaited(is_denied)
    (removed,) = source.delete_acls([every_acl(ResourceType.TOPIC, "t")]).values()
    removed.result(20)
    pair.allow([one for one in [*ALWAYS, *TO_PRESERVE, *sees] if one.side == "source"], own, "source")
    awaited(lambda: not is_denied())


def test_where_journals_may_be_hidden_nobody_knows_of_a_way_back(pair: Pair, capfd: pytest.CaptureFixture[str]) -> None:
    pair.allow(ALWAYS + TO_PRESERVE, "undone")
    settings = pair.settings("undone", "preserve")
    assert run_once(settings).exit_code == ExitCode.DONE
    failover(settings, rehearse=False, undo=False, as_json=True)
    capfd.readouterr()
    assert failover(settings, rehearse=False, undo=True, as_json=False) == ExitCode.DONE
    output = capfd.readouterr().err
    assert "way_back_unknown" in output
    assert "may be hidden: grant READ on topics that begin with mirror. there" in output


def test_fewer_are_enough_where_offsets_are_translated(pair: Pair) -> None:
    pair.allow(ALWAYS, "moved")
    assert run_once(pair.settings("moved", "translate")).exit_code == ExitCode.DONE
    assert kept(pair, "moved") == [(0, b"record 1"), (1, b"record 2")]
    assert committed(pair.target.bootstrap, "g", "moved") == 1


@pytest.mark.parametrize(
    ("missing", "expected"), list(zip(ALWAYS + TO_PRESERVE, EXPECTED, strict=True)), ids=map(str, ALWAYS + TO_PRESERVE)
)
def test_each_right_is_needed_and_named_where_it_is_missing(
    pair: Pair, missing: Right, expected: str, request: pytest.FixtureRequest, capfd: pytest.CaptureFixture[str]
) -> None:
    own = f"without-{[*ALWAYS, *TO_PRESERVE].index(missing)}"
    pair.allow([right for right in ALWAYS + TO_PRESERVE if right != missing], own)
    try:
        outcome = run_once(pair.settings(own, "preserve"))
    except MirrorError as error:
        seen, code = str(error), error.exit_code
    else:
        (figures,) = outcome.figures.values()
        blocked = capfd.readouterr().err
        seen = f"{figures.state} {figures.detail}\n{blocked}"
        is_group = missing.kind is ResourceType.GROUP
        assert figures.state is (State.CAUGHT_UP if is_group else State.UNAUTHORIZED)
        assert ("consumer groups do not follow: cluster " in outcome.incomplete) == is_group
        code = ExitCode(outcome.exit_code)
        assert code is ExitCode.CLUSTER
        at = committed(pair.target.bootstrap, "g", own)
        assert at < 0 or (at < 4 and not is_group), "a group never goes ahead of what was mirrored"
    ends = {side: f"({getattr(pair, side).bootstrap_by('SCRAM')})" for side in ("source", "target")}
    assert expected.format(own=own, **ends) in seen, seen
    assert code in (ExitCode.PREFLIGHT, ExitCode.CLUSTER)


class Hidden(NamedTuple):
    """A flow's configuration, and its topics, which are its groups' names as well."""

    pair: Pair
    file: Path
    seen: str
    hidden: str

    def hide_on_target(self) -> None:
        """Have the source hide nothing, and the target the second copy."""
        output = json.loads(self.file.read_text())
        theirs = scram(self.pair.target, self.pair.folders["target"])
        output["target"] |= theirs.model_dump(by_alias=True, exclude_none=True, mode="json")
        output["target"]["sasl.password"] = "${env:PASSWORD}"
        output["source"] = {"alias": "eu", "bootstrap.servers": self.pair.source.bootstrap}
        self.file.write_text(json.dumps(output))
        operations = ("CREATE", "DESCRIBE_CONFIGS", "READ", "WRITE")
        self.pair.allow(
            [
                *topic("target", self.seen, *operations),
                *topic("target", f"mirror.{output['name']}.offsets", *operations),
                *(Right("target", "READ", ResourceType.GROUP, group) for group in (self.seen, self.hidden)),
                Right("target", "CREATE", ResourceType.BROKER, "kafka-cluster"),
                Right("target", "DESCRIBE", ResourceType.BROKER, "kafka-cluster"),
            ],
            output["name"],
        )

    def invoke(self, *arguments: str) -> tuple[int, Any]:
        """A command's exit code and what it printed."""
        command, *more = arguments
        done = CliRunner().invoke(app, [command, str(self.file), "--json", *more])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.exit_code, json.loads(done.stdout)


@pytest.fixture
def hidden(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hidden:
    """Two topics that were mirrored with a group each, of which a principal has lost every right to the second."""
    monkeypatch.setenv("PASSWORD", USERS["alice"])
    name = f"hidden-{uuid.uuid4().hex[:6]}"
    topics = [f"{name}-{letter}" for letter in "ab"]
    for one in topics:
        make_topic(pair.source.bootstrap, one)
        produce(pair.source.bootstrap, one, [b"early"] * 20)
        commit(pair.source.bootstrap, one, one, 5)
    rights = [*(right for one in topics for right in topic("source", one, "READ", "DESCRIBE_CONFIGS"))]
    rights += [Right("source", "DESCRIBE", ResourceType.GROUP, one) for one in topics]
    file = tmp_path / "flow.yaml"
    source = scram(pair.source, pair.folders["source"]).model_dump(by_alias=True, exclude_none=True, mode="json")
    output = {
        "name": name,
        "source": source | {"alias": "eu", "sasl.password": "${env:PASSWORD}"},
        "target": {"alias": "us", "bootstrap.servers": pair.target.bootstrap},
        "topics": {"include": [f"{name}-.*"]},
        "groups": {"include": [f"{name}-.*"]},
        "metrics": {"listen": None},
    }
    file.write_text(json.dumps(output))
    pair.allow(rights, name)
    assert run_once(config.load(file)).exit_code == ExitCode.DONE
    for one in topics:
        produce(pair.source.bootstrap, one, [b"late"] * 10)
        commit(pair.source.bootstrap, one, one, 25)
    pair.allow([right for right in rights if right.name == topics[0]], name)
    return Hidden(pair, file, *topics)


def test_a_topic_that_the_source_hides_is_not_taken_for_one_that_was_deleted(hidden: Hidden) -> None:
    """Brokers leave it out where they list all. Its copy lacks records, and nobody can compare it."""
    code, plan = hidden.invoke("plan")
    assert code == ExitCode.PREFLIGHT, plan
    assert "hides it now: no right to READ or DESCRIBE it" in json.dumps(plan)
    outcome = run_once(config.load(hidden.file))
    assert outcome.exit_code == ExitCode.PREFLIGHT
    assert [one.source for one in outcome.refused] == [hidden.hidden]
    assert len(list(read(hidden.pair.target.bootstrap, hidden.seen, 0))) == 30, "the other goes on"
    code, proof = hidden.invoke("verify", "--no-spark")
    assert code == ExitCode.NOT_WHOLE, proof
    assert "the source hides it" in json.dumps(proof)


def test_what_the_source_hides_keeps_a_failover_from_nothing_else_and_is_named(hidden: Hidden) -> None:
    code, done = hidden.invoke("failover")
    assert code == ExitCode.DATA_AT_RISK
    assert done["source_problem"] == ""
    doubts = {one["topic"]: (one["rpo_records"], one["certain"], one["doubt"]) for one in done["partitions"]}
    assert doubts[hidden.seen] == (0, True, "")
    assert doubts[hidden.hidden][1] is False
    assert f"no DESCRIBE right on topic {hidden.hidden}" in doubts[hidden.hidden][2]
    assert len(list(read(hidden.pair.target.bootstrap, hidden.seen, 0))) == 30
    assert committed(hidden.pair.target.bootstrap, hidden.seen, hidden.seen) == 25
    assert f"group {hidden.hidden}: cluster eu: grant DESCRIBE on the group" in done["warnings"]


def test_a_topic_that_the_source_hides_does_not_keep_deletions_from_others(hidden: Hidden) -> None:
    """Nor is its copy deleted."""
    settings = config.load(hidden.file)
    settings = settings.model_copy(update={"sync": settings.sync.model_copy(update={"deletions": "delete"})})
    source, target = Admin(settings.source), Admin(settings.target)
    deletions = Deletions(source, target)
    own = asyncio.run(read_own(settings))
    history = asyncio.run(read_history(settings, own, source.topic_names(), target.topic_names()))
    current = [
        Assignment(source=at, target=at, topic_id=history.seen[at.topic].topic_id, rules=Rules())
        for at in (Partition(hidden.seen, 0), Partition(hidden.hidden, 0))
    ]
    plan = plan_topics(source, target, settings, history)
    assert deletions.due(settings, plan, current, history.seen, {hidden.seen, hidden.hidden}) == {}


def test_a_copy_that_the_target_hides_is_not_taken_for_one_that_is_to_be_made(hidden: Hidden) -> None:
    """It looks as if it were missing, for a principal without any right to it."""
    hidden.hide_on_target()
    code, plan = hidden.invoke("plan")
    assert code == ExitCode.PREFLIGHT, plan
    assert hidden.hidden not in [one["topic"] for one in plan["create"]]
    assert "cluster us hides it: no right to DESCRIBE it" in json.dumps(plan)
    code, proof = hidden.invoke("verify", "--no-spark")
    assert code == ExitCode.NOT_WHOLE, proof
    assert "the target hides it" in json.dumps(proof)


def test_a_copy_that_the_target_hides_costs_no_other_one_its_check(hidden: Hidden) -> None:
    """None was compared, and no group was put anywhere, or all of them unchecked."""
    hidden.hide_on_target()
    commit(hidden.pair.source.bootstrap, hidden.seen, hidden.hidden, 25)  # a group with an offset on each
    code, done = hidden.invoke("failover")
    assert code == ExitCode.DATA_AT_RISK
    doubts = {one["topic"]: (one["rpo_records"], one["whole"], one["doubt"]) for one in done["partitions"]}
    assert doubts[hidden.seen] == (0, True, "")
    assert f"no DESCRIBE right on topic {hidden.hidden}" in doubts[hidden.hidden][2]
    assert committed(hidden.pair.target.bootstrap, hidden.seen, hidden.seen) == 25
    assert committed(hidden.pair.target.bootstrap, hidden.hidden, hidden.hidden) == 5
    for group in (hidden.seen, hidden.hidden):
        assert f"group {group}: cluster us: grant READ on topic {hidden.hidden}" in done["warnings"]
    assert not any("could not" in one for one in done["warnings"] if hidden.hidden not in one), done["warnings"]


def test_a_rekeyed_topic_that_the_source_hides_is_named(hidden: Hidden) -> None:
    """The topic that holds where its query stands names it."""
    output = json.loads(hidden.file.read_text())
    output["name"] = f"{output['name']}-rekeyed"
    output["topics"]["rules"] = [{"match": hidden.hidden, "rekey": "value", "partitions": 2}]
    output["topics"]["naming"] = {"prefix": "eu."}
    hidden.file.write_text(json.dumps(output))
    make_topic(hidden.pair.target.bootstrap, f"mirror.{output['name']}.rekey.eu.{hidden.hidden}")
    code, plan = hidden.invoke("plan")
    assert code == ExitCode.PREFLIGHT, plan
    (refused,) = plan["refused"]
    assert refused.startswith(f"{hidden.hidden}: was mirrored, and cluster eu hides it now")


def test_what_re_keying_writes_and_the_target_hides_is_not_taken_for_missing(pair: Pair) -> None:
    """As the topic that holds where the query stands, after a clean-up of ACLs: the copy was said to be somebody
    else's, and to be recreated. What is advised is enough.
    """
    own, copy, letters = "unseen", "eu.unseen", "unseen.letters"
    progress = f"mirror.{own}.rekey.{copy}"
    make_topic(pair.source.bootstrap, own)
    make_topic(pair.target.bootstrap, letters)
    rule = {"match": own, "rekey": "key", "partitions": 3, "on_bad_record": "dead-letter", "dead_letter": letters}
    reported = pair.settings(own, "preserve").model_dump(by_alias=True, exclude_none=True, exclude={"topics"})
    reported |= {"topics": {"include": [own], "naming": {"prefix": "eu."}, "rules": [rule]}}
    settings = Settings.model_validate(reported)
    base = [*topic("source", own, "READ", "DESCRIBE_CONFIGS"), *topic("target", copy, *ALL), *ALWAYS[7:]]
    of_progress = topic("target", progress, "READ", "WRITE", "DESCRIBE_CONFIGS")
    of_letters = topic("target", letters, "READ", "WRITE", "DESCRIBE_CONFIGS")
    pair.allow([*base, *topic("target", progress, *ALL), *of_letters], own)
    assert [one.progress for one in prepare(settings).rekeyed] == [progress]
    produce(pair.target.bootstrap, copy, [b"re-keyed"])
    for missing, given in ((progress, of_letters), (letters, of_progress)):
        pair.allow([*base, *given], own)
        wait_for(lambda: missing not in Admin(settings.target).topics(), TIMEOUT, lambda: "it is still seen")  # noqa: B023
        (refusal,) = plan_flow(settings).refusals
        assert refusal.startswith(f"{missing}: may be there, and cluster us hides it: no right to DESCRIBE it"), refusal
    pair.allow([*base, *of_progress, *of_letters], own)
    wait_for(lambda: letters in Admin(settings.target).topics(), TIMEOUT, lambda: "it is not seen")
    assert plan_flow(settings).refusals == ()


def test_re_keying_without_its_rights_says_which(pair: Pair) -> None:
    """That on transactional ids is asked of nobody before it is needed."""
    own = "computed"
    progress = f"mirror.{own}.rekey.{own}"
    make_topic(pair.source.bootstrap, own)
    reported = pair.settings(own, "preserve").model_dump(by_alias=True, exclude_none=True, exclude={"topics"})
    rules = [{"match": own, "rekey": "key", "partitions": 3}]
    topics = {"include": [own], "rules": rules}
    settings = Settings.model_validate(reported | {"topics": topics, "groups": {"include": []}})
    given = [
        *topic("source", own, "READ", "DESCRIBE_CONFIGS"),
        *topic("target", own, *ALL),
        *topic("target", progress, *ALL),
        *ALWAYS[7:],
    ]
    pair.allow(given, own)
    context: Any = InThisProcess()
    nowhere: Any = None  # Spark is not asked: there is nothing to re-key

    def ended() -> Outcome:
        flow = replace(prepare(settings, until_caught_up=True), epoch_seconds=2.0)
        queries = Queries(lambda rule: Rekeyer(nowhere, flow, rule, frozenset()), flow.rekeyed)
        mirror = Supervisor(context, flow, lambda _: None, queries=queries)
        return asyncio.run(asyncio.wait_for(mirror.run(), TIMEOUT))

    outcome = ended()
    assert outcome.exit_code == ExitCode.CLUSTER
    (stop,) = outcome.stops
    assert (stop.topic, stop.state) == (own, State.UNAUTHORIZED)
    assert f"needs WRITE on transactional id {progress}." in stop.detail
    assert f"--transactional-id {progress}. --resource-pattern-type prefixed" in stop.detail
    slots = len(Admin(settings.target).describe([progress])[progress].partitions) - 1
    ids = [f"{progress}.{slot}" for slot in ("plans", *range(slots))]
    kind = ResourceType.TRANSACTIONAL_ID
    granted = [Right("target", operation, kind, one) for one in ids for operation in ("WRITE", "DESCRIBE")]
    pair.allow([*given, *granted], own)
    outcome = ended()
    assert (outcome.exit_code, [one.state for one in outcome.figures.values()]) == (ExitCode.DONE, [State.CAUGHT_UP])


def test_a_topic_that_may_not_be_described_any_more_is_not_taken_for_deleted(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    """No command says that all is well, or that it is gone; the others of the flow go on, and so do all of them once
    the right is given as the plan says.
    """
    own, lost, kept_one = "hidden", "hidden-lost", "hidden-kept"
    topics = [Right("source", right, ResourceType.TOPIC, lost) for right in ("READ", "DESCRIBE_CONFIGS")]
    others = [Right("source", right, ResourceType.TOPIC, kept_one) for right in ("READ", "DESCRIBE_CONFIGS")]
    on_target = [
        right
        for name in (f"{own}.{lost}", f"{own}.{kept_one}")
        for right in topic("target", name, "CREATE", "DESCRIBE_CONFIGS", "READ", "WRITE", "DELETE")
    ]
    on_target += topic("target", f"mirror.{own}.heartbeats", "CREATE", "DESCRIBE", "WRITE")
    base = [*ALWAYS[2:3], *ALWAYS[4:], *TO_PRESERVE[1:], *on_target, *others]
    for name in (lost, kept_one):
        make_topic(pair.source.bootstrap, name)
        produce(pair.source.bootstrap, name, [b"before"] * 10)
    reported = pair.settings(own, "preserve").model_dump(by_alias=True, exclude_none=True, exclude={"topics"})
    reported |= {"topics": {"include": ["hidden-.*"], "naming": {"prefix": f"{own}."}}, "sync": {"deletions": "delete"}}
    settings = Settings.model_validate(reported)
    pair.allow([*base, *topics], own)
    assert run_once(settings).exit_code == ExitCode.DONE
    for name in (lost, kept_one):
        produce(pair.source.bootstrap, name, [b"after"] * 5)
    current = prepare(settings, once=True).assignments
    seen = seen_in(asyncio.run(read_own(settings)).newest)

    pair.allow(base, own)
    wait_for(lambda: lost not in Admin(settings.source).topics(), TIMEOUT, lambda: "it is still seen")
    plan = plan_flow(settings)
    (refusal,) = plan.refusals
    assert refusal.startswith(f"{lost}: was mirrored, and cluster eu hides it now"), refusal
    assert "--operation Read --operation DescribeConfigs --topic hidden-lost" in refusal
    assert plan.gone == ()
    outcome = run_once(settings)
    assert (outcome.exit_code, [one.source for one in outcome.refused]) == (ExitCode.PREFLIGHT, [lost])
    reports = {one.topic: one for one in reports_in(asyncio.run(read_own(settings)).newest)}
    assert (reports[lost].state, reports[lost].next_offset) == (State.REFUSED, 10), "it had caught up"
    assert "hides it now" in reports[lost].detail
    report = verify_flow(settings, means=Means(spark=False))
    assert report.gone == ()
    assert [(one.topic, one.kind) for one in report.shortfalls] == [(lost, Lack.NOT_VERIFIED)]
    new_plan = Replanner(settings).replan(current, seen)
    assert {one.source.topic for one in new_plan.assignments} == {lost, kept_one}, "whose copies stay and report"
    capsys.readouterr()
    assert failover(settings, rehearse=True, undo=False, as_json=True) == ExitCode.DATA_AT_RISK
    account = json.loads(capsys.readouterr().out)
    assert account["source_reachable"], account
    doubts = {one["topic"]: one["doubt"] for one in account["partitions"]}
    assert lost in doubts[lost], account

    pair.allow([*base, *topics], own)
    wait_for(lambda: lost in Admin(settings.source).topics(), TIMEOUT, lambda: "it is not seen")
    assert run_once(settings).exit_code == ExitCode.DONE
    assert verify_flow(settings, means=Means(spark=False)).is_whole
