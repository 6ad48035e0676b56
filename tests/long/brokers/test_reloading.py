"""What a mirror does while it runs and people change its configuration, or the topics of its source."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from adversary.driving import Command
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from helpers import make_topic, produce, settings_between
from remedyworld import until
from samerecords import assert_same_records

from mirror.driver.topic_watcher import Replanner
from mirror.errors import ExitCode
from mirror.lab.embedded import Cluster

pytestmark = pytest.mark.brokers


class Live:
    """One flow with short rounds, and its mirror while it runs."""

    def __init__(self, source: Cluster, target: Cluster, folder: Path, topics: list[str], **more: Any) -> None:
        """`more` goes into the section `topics`."""
        self.folder, self.config = folder, folder / "flow.yaml"
        self.settings: dict[str, Any] = {
            "name": topics[0],
            "source": {"alias": "eu", "bootstrap.servers": source.bootstrap},
            "target": {"alias": "us", "bootstrap.servers": target.bootstrap},
            "topics": {"include": topics, **more},
            "groups": {"include": []},
            "sync": {"interval_s": 1},
            "spark": {"epoch_s": 2},
        }
        self.mirror: Command | None = None

    @contextmanager
    def running(self) -> Iterator[Command]:
        """While the mirror runs."""
        self.write()
        self.mirror = Command(self.folder, "run", str(self.config), "--json")
        try:
            yield self.mirror
        finally:
            self.mirror.end()

    def write(self) -> None:
        """The configuration as it is now."""
        self.config.write_text(json.dumps(self.settings), encoding="utf-8")  # JSON is YAML

    def reload(self) -> None:
        """Write it, and have the mirror read it again."""
        assert self.mirror is not None
        self.write()
        self.mirror.send(signal.SIGHUP)

    def log(self) -> str:
        """The mirror's log."""
        return self.mirror.logged if self.mirror is not None else ""

    def logs(self, event: str) -> Callable[[], bool]:
        """Whether the mirror logged such an event."""
        return lambda: f'"event": "{event}"' in self.log()

    def printed(self, *arguments: str, code: ExitCode = ExitCode.DONE) -> str:
        """What a command prints that ends so."""
        command = Command(self.folder, *arguments)
        assert command.wait(60) == code, command.logged + command.printed
        return command.printed

    def states(self) -> dict[str, str]:
        """The states that `mirror status` shows, by source topic."""
        fields = json.loads(self.printed("status", str(self.config), "--json"))
        return {one["topic"]: one["state"] for one in fields["partitions"]}

    def lag(self) -> int | None:
        """How many records are not copied yet, by `mirror status`."""
        lag: int | None = json.loads(self.printed("status", str(self.config), "--json"))["totals"]["lag_records"]
        return lag

    def until_states(self, wanted: dict[str, str]) -> None:
        """Until `mirror status` shows these, and no others."""
        until(lambda: self.states() == wanted, self.log)


def admin(cluster: Cluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})


@pytest.mark.parametrize("way", ["exclude", "include"])
def test_a_deleted_topic_that_is_taken_out_of_the_flow_is_reported_no_more(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path, way: str
) -> None:
    """As the advice of RECREATED has it, where `topics.include` names the topic: excluded, or not included any more;
    and a mirror that starts with that configuration is not refused.
    """
    gone = f"{topic_name}-gone"
    for topic in (topic_name, gone):
        make_topic(own_source.bootstrap, topic)
        produce(own_source.bootstrap, topic, [b"%d" % number for number in range(20)])
    live = Live(own_source, own_target, tmp_path, [topic_name, gone])
    with live.running():
        live.until_states({topic_name: "CAUGHT_UP", gone: "CAUGHT_UP"})
        person = admin(own_source)
        person.delete_topics([gone])[gone].result(30)
        until(lambda: live.states()[gone] == "RECREATED", live.log)
        until(live.logs("not_mirrored"), live.log)  # preflight refuses a name that no topic has
        if way == "exclude":
            live.settings["topics"]["exclude"] = [gone]
        else:
            live.settings["topics"]["include"] = [topic_name]
        live.reload()
        live.until_states({topic_name: "CAUGHT_UP"})
    assert "nothing to do" in live.printed("plan", str(live.config))


@pytest.mark.parametrize("offsets", ["preserve", "translate"])
def test_no_policy_leaves_out_records_for_a_limit_that_is_about_to_follow(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path, offsets: str
) -> None:
    """`max.message.bytes` is raised on the source, and records that need it follow at once. What is still too large for
    both limits is left out.
    """
    make_topic(own_source.bootstrap, topic_name, configs={"max.message.bytes": "10000"})
    produce(own_source.bootstrap, topic_name, [b"%d" % number for number in range(20)])
    live = Live(own_source, own_target, tmp_path, [topic_name], on_too_large="skip", offsets=offsets)
    live.settings["sync"] = {"interval_s": 4}
    with live.running():
        live.until_states({topic_name: "CAUGHT_UP"})
        limit = ConfigEntry("max.message.bytes", "200000", incremental_operation=AlterConfigOpType.SET)
        topic = ConfigResource(ResourceType.TOPIC, topic_name, incremental_configs=[limit])
        person = admin(own_source)
        person.incremental_alter_configs([topic])[topic].result(30)
        producer = Producer({"bootstrap.servers": own_source.bootstrap, "acks": "all"})
        for number in range(3):
            producer.produce(topic_name, b"%d" % number * 50_000)
            producer.flush()
        until(live.logs("topic_config_changed"), live.log)
        live.until_states({topic_name: "CAUGHT_UP"})
        until(
            lambda: json.loads(live.printed("status", str(live.config), "--json"))["totals"]["lag_records"] == 0,
            live.log,
        )
        assert not live.logs("records_lost")(), live.log()
    live.printed("verify", str(live.config))
    if offsets == "preserve":
        assert_same_records(own_source.bootstrap, own_target.bootstrap, topic_name, 1)


def test_the_configuration_of_another_flow_is_refused_whole(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    other = f"{topic_name}-other"
    for topic in (topic_name, other):
        make_topic(own_source.bootstrap, topic)
        produce(own_source.bootstrap, topic, [b"record"])
    live = Live(own_source, own_target, tmp_path, [topic_name])
    with live.running():
        live.until_states({topic_name: "CAUGHT_UP"})
        mine = json.loads(json.dumps(live.settings))
        live.settings |= {"name": other, "topics": {"include": [other]}}
        live.reload()
        until(live.logs("configuration_refused"), live.log)
        assert "another flow" in live.log()
        live.settings = mine
        live.write()
        live.until_states({topic_name: "CAUGHT_UP"})


def test_a_word_in_the_naming_moves_no_copies(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    """A prefix would have all topics copied again by other names, and leave the copies that are in use. A new topic is
    none of these.
    """
    make_topic(own_source.bootstrap, topic_name)
    produce(own_source.bootstrap, topic_name, [b"record"])
    live = Live(own_source, own_target, tmp_path, [topic_name])
    live.settings["topics"]["include"] = [f"{topic_name}.*"]
    with live.running():
        live.until_states({topic_name: "CAUGHT_UP"})
        live.settings["topics"]["naming"] = {"prefix": "z."}
        live.reload()
        until(live.logs("configuration_refused"), live.log)
        assert (
            f"{topic_name}: this flow mirrors it into {topic_name}, and topics.naming says z.{topic_name}" in live.log()
        )
        live.settings["topics"]["naming"] |= {"rename": {topic_name: topic_name}}
        live.reload()
        until(live.logs("configuration_read"), live.log)
        make_topic(own_source.bootstrap, f"{topic_name}-new")
        live.until_states({topic_name: "CAUGHT_UP", f"{topic_name}-new": "CAUGHT_UP"})
    assert f"z.{topic_name}-new" in admin(own_target).list_topics(timeout=20).topics
    assert f"z.{topic_name}" not in admin(own_target).list_topics(timeout=20).topics


@pytest.mark.parametrize("change", ["include", "naming"])
def test_a_failover_names_what_the_mirror_copies_by_another_configuration(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path, change: str
) -> None:
    """The file was changed, and the mirror has not read it. Once it has, nothing is left to name."""
    other = f"{topic_name}-other"
    for topic in (topic_name, other):
        make_topic(own_source.bootstrap, topic)
        produce(own_source.bootstrap, topic, [b"record"])
    live = Live(own_source, own_target, tmp_path, [topic_name, other])
    with live.running():
        live.until_states({topic_name: "CAUGHT_UP", other: "CAUGHT_UP"})
        if change == "include":
            live.settings["topics"]["include"] = [topic_name]
        else:
            live.settings["topics"]["naming"] = {"rename": {other: f"{other}-now"}}
        live.write()
        reported = live.printed("failover", str(live.config), "--rehearse", "--json", code=ExitCode.DATA_AT_RISK)
        warning = json.loads(reported)["warnings"][0]
        assert "another configuration" in warning
        assert other in warning
        live.reload()
        until(live.logs("plan_changed"), live.log)
        live.until_states({topic_name: "CAUGHT_UP"} | ({other: "CAUGHT_UP"} if change == "naming" else {}))
        assert json.loads(live.printed("failover", str(live.config), "--json"))["whole"]


def test_a_topic_that_is_re_keyed_is_not_excluded_or_renamed(own_source: Cluster, topic_name: str) -> None:
    """Its query goes on under the name that it began with: the mirror said that it had read the file."""
    at = own_source.bootstrap
    make_topic(at, topic_name)
    rules = [{"match": topic_name, "partitions": 3}]
    settings = settings_between(at, at, [f"{topic_name}.*"], rules=rules)
    replanner = Replanner(settings)

    def refused(**more: Any) -> list[str]:
        return replanner.refusals_of(settings_between(at, at, [f"{topic_name}.*"], rules=rules, **more), {})

    assert [one for one in refused() if "anew" in one] == []
    for more in ({"exclude": [topic_name]}, {"naming": {"prefix": "z."}}):
        (reason,) = (one for one in refused(**more) if "anew" in one)
        assert reason.startswith(f"{topic_name}: is re-keyed")
