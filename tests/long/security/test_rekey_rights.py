"""The rights that re-keying needs on the target: what is missing is named, and nothing hidden is taken for missing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from confluent_kafka.admin import ResourceType
from helpers import config_file, make_topic, produce
from secured import Guarded, Right
from sparkless import InThisProcess
from waiting import until

from mirror.config import Settings, load
from mirror.driver.flow import RunOutcome, prepare
from mirror.errors import ExitCode
from mirror.kafka.admin import Admin
from mirror.lab.embedded import Cluster
from mirror.spark.rekey.driver import Rekeyer
from mirror.spark.rekey.queries import Queries
from mirror.spark.supervisor import Supervisor
from mirror.states import State
from mirror.topics.plan import plan_flow

pytest_plugins = ["guardedbroker"]

ALL = ("CREATE", "DESCRIBE_CONFIGS", "READ", "WRITE")


def on(topic: str, *operations: str) -> list[Right]:
    return [Right(operation, ResourceType.TOPIC, topic) for operation in operations]


def journal_of(flow: str) -> list[Right]:
    return on(f"mirror.{flow}.offsets", "CREATE", "READ", "WRITE")


def settings_of(source: Cluster, target: Guarded, flow: str, folder: Path, **topics: Any) -> Settings:
    sections = {"target": target.login("us"), "groups": {"include": []}, "metrics": {"listen": None}}
    return load(config_file(folder, source.bootstrap, "", [flow], flow, sections=sections, **topics))


def test_what_re_keying_writes_and_the_target_hides_is_not_taken_for_missing(
    own_source: Cluster, guarded_cluster: Guarded, topic_name: str, tmp_path: Path
) -> None:
    """Nor is the copy of a query whose topic of progress is hidden taken for somebody else's."""
    copy, letters, progress = f"eu.{topic_name}", f"{topic_name}.letters", f"mirror.{topic_name}.rekey.eu.{topic_name}"
    make_topic(own_source.bootstrap, topic_name)
    make_topic(guarded_cluster.cluster.bootstrap, letters)
    rule = {
        "match": topic_name,
        "rekey": "key",
        "partitions": 3,
        "on_bad_record": "dead-letter",
        "dead_letter": letters,
    }
    settings = settings_of(own_source, guarded_cluster, topic_name, tmp_path, naming={"prefix": "eu."}, rules=[rule])
    base = [*on(copy, *ALL), *journal_of(topic_name)]
    of_progress = on(progress, "READ", "WRITE", "DESCRIBE_CONFIGS")
    of_letters = on(letters, "READ", "WRITE", "DESCRIBE_CONFIGS")
    guarded_cluster.allow([*base, *on(progress, *ALL), *of_letters])
    assert [one.progress for one in prepare(settings).rekeyed] == [progress]
    produce(guarded_cluster.cluster.bootstrap, copy, [b"re-keyed"])
    for hidden, given in ((progress, of_letters), (letters, of_progress)):
        guarded_cluster.allow([*base, *given])
        until(lambda: hidden not in Admin(settings.target).topics())  # noqa: B023
        (refusal,) = plan_flow(settings).refusals
        assert refusal.startswith(f"{hidden}: may be there, and cluster us hides it: no right to DESCRIBE it"), refusal
    guarded_cluster.allow([*base, *of_progress, *of_letters])
    until(lambda: letters in Admin(settings.target).topics())
    assert plan_flow(settings).refusals == ()


def test_re_keying_without_its_rights_says_which(
    own_source: Cluster, guarded_cluster: Guarded, topic_name: str, tmp_path: Path
) -> None:
    """That on transactional ids is asked of nobody before it is needed."""
    progress = f"mirror.{topic_name}.rekey.{topic_name}"
    make_topic(own_source.bootstrap, topic_name)
    settings = settings_of(
        own_source,
        guarded_cluster,
        topic_name,
        tmp_path,
        rules=[{"match": topic_name, "rekey": "key", "partitions": 3}],
    )
    given = [*on(topic_name, *ALL), *on(progress, *ALL), *journal_of(topic_name)]
    guarded_cluster.allow(given)
    context: Any = InThisProcess()
    nowhere: Any = None  # Spark is not asked: there is nothing to re-key

    def ended() -> RunOutcome:
        flow = replace(prepare(settings, until_caught_up=True), epoch_seconds=2.0)
        queries = Queries(lambda rule: Rekeyer(nowhere, flow, rule, frozenset()), flow.rekeyed)
        return asyncio.run(Supervisor(context, flow, lambda _: None, queries=queries).run())

    outcome = ended()
    assert outcome.exit_code == ExitCode.CLUSTER
    (stop,) = outcome.stops
    assert (stop.topic, stop.state) == (topic_name, State.UNAUTHORIZED)
    assert f"needs WRITE on transactional id {progress}." in stop.detail
    assert f"--transactional-id {progress}. --resource-pattern-type prefixed" in stop.detail
    slots = len(Admin(settings.target).describe([progress])[progress].partitions) - 1
    ids = [f"{progress}.{slot}" for slot in ("plans", *range(slots))]
    kind = ResourceType.TRANSACTIONAL_ID
    guarded_cluster.allow(
        [*given, *(Right(operation, kind, one) for one in ids for operation in ("WRITE", "DESCRIBE"))]
    )
    outcome = ended()
    assert (outcome.exit_code, [one.state for one in outcome.figures.values()]) == (ExitCode.DONE, [State.CAUGHT_UP])
