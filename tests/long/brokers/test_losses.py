"""What a person accepted, as the journal keeps it."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import TopicPartition as Confluent
from confluent_kafka.admin import AdminClient
from helpers import config_file, make_topic, mirror_once, produce
from syncing import delete_topics
from typer.testing import CliRunner

from mirror.cli import app
from mirror.commands import accept as accept_command
from mirror.errors import ConfigError, ExitCode, FlowLost
from mirror.journal.entries import Accepted, accept_entry, accepted_for, accepted_in, read_accepted
from mirror.journal.journal import Entry
from mirror.kafka.cluster import TopicPartition
from mirror.lab.embedded import Cluster
from mirror.policy.rules import Rules
from mirror.replication.assignment import Assignment, Loss
from mirror.suspension import SuspensionDetector

AT = TopicPartition("orders.eu/1", 12)


def test_what_is_accepted_is_read_back() -> None:
    for topic_id in (uuid4(), None):
        reported = accept_entry(Loss(AT, AT, 100, 150), topic_id)
        assert read_accepted(Entry(0, *reported)) == Accepted(AT, (100, 150), topic_id)


def test_what_was_accepted_of_another_topic_of_that_name_is_not_accepted() -> None:
    first, second = uuid4(), uuid4()
    reported = accepted_in(dict([accept_entry(Loss(AT, AT, 100, 150), first), (b"accept/orders/0", b"torn")]))
    assert accepted_for(Assignment(AT, AT, first, Rules()), reported) == (100, 150)
    assert accepted_for(Assignment(AT, AT, second, Rules()), reported) is None
    assert accepted_for(Assignment(AT, AT, None, Rules()), reported) is None
    before = json.dumps({"first": 100, "upto": 150, "at_ms": 1}).encode()  # as earlier versions wrote it
    assert accepted_in({b"accept/orders.eu/1/12": before}) == {}


def test_what_an_acceptance_covers() -> None:
    topic = uuid4()
    accepted = Accepted(AT, (100, 150), topic)
    assert accepted.covers(Loss(AT, AT, 100, 150), topic)
    assert accepted.covers(Loss(AT, AT, 120, 140), topic)
    assert not accepted.covers(Loss(AT, AT, 120, 151), topic), "the source has lost more since"
    assert not accepted.covers(Loss(AT, AT, 99, 150), topic)
    assert not accepted.covers(Loss(AT, AT, 100, 150), uuid4())


@pytest.mark.parametrize("record", [(b"owner", b"{}"), (b"accept/orders/0", None), (b"state/accept/0", b"{}")])
def test_records_about_something_else(record: tuple[bytes, bytes | None]) -> None:
    assert read_accepted(Entry(0, *record)) is None


@pytest.mark.parametrize(
    "record",
    [
        (b"accept/orders/x", b'{"first": 1, "upto": 2, "topic_id": null}'),
        (b"accept/orders/0", b'{"first": 1}'),
        (b"accept/orders/0", b"[" * 100_000),
        (b"accept/\xff/0", b'{"first": 1, "upto": 2, "topic_id": null}'),
        (b"accept/orders/0", b"7"),
    ],
)
def test_a_record_that_somebody_else_wrote_is_named(record: tuple[bytes, bytes]) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        read_accepted(Entry(0, *record))


@pytest.mark.brokers
def test_a_re_keyed_topic_is_refused_with_what_resolves_its_stops(
    own_source: Cluster, own_target: Cluster, tmp_path: Path
) -> None:
    """Unless it is on record that its copy may lack deletions, as in `test_rekey.py`."""
    rules = [{"match": "orders", "partitions": 4}]
    file = config_file(tmp_path, own_source.bootstrap, own_target.bootstrap, ["orders"], rules=rules)
    done = CliRunner().invoke(app, ["accept", str(file), "orders"])
    assert isinstance(done.exception, ConfigError), done.output
    assert "set topics.on_data_loss: continue, and start the mirror again" in str(done.exception)


@pytest.mark.brokers
def test_a_loss_is_accepted_once_and_again_for_a_topic_made_anew(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    source, target = own_source.bootstrap, own_target.bootstrap
    config = config_file(tmp_path, source, target, [topic_name], topic_name)
    admin = AdminClient({"bootstrap.servers": source})

    def accepted(*options: str) -> Any:
        done = CliRunner().invoke(app, ["accept", str(config), topic_name, *options])
        assert done.exit_code == ExitCode.DONE, done.output
        return json.loads(done.stdout) if options else done.stdout

    def lose() -> None:
        make_topic(source, topic_name)
        produce(source, topic_name, [b"mirrored"] * 100)
        assert mirror_once(source, target, [topic_name], topic_name)
        produce(source, topic_name, [b"lost"] * 50)
        for deleted in admin.delete_records([Confluent(topic_name, 0, 150)]).values():
            deleted.result(60)

    lose()
    assert f"{topic_name}-0: accepted the loss of 50 offsets, 100 to 149\n" in accepted()
    assert f"{topic_name}-0: the loss of 50 offsets, 100 to 149, was accepted before\n" in accepted()
    loss = {"partition": 0, "target": topic_name, "first_offset": 100, "last_offset": 149, "reason": "retention"}
    fields = {"flow": topic_name, "topic": topic_name, "confirmed": [], "lifted": [], "possible": [], "stopped": []}
    assert accepted("--json") == fields | {"losses": [loss | {"was_accepted": True}]}
    delete_topics(source, topic_name)
    delete_topics(target, topic_name)
    lose()
    assert accepted("--json") == fields | {"losses": [loss | {"was_accepted": False}]}, "of other records"


@pytest.mark.brokers
def test_an_accept_that_was_suspended_records_nothing(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it found in both logs may be so no longer (Z1)."""
    source, target = own_source.bootstrap, own_target.bootstrap
    config = config_file(tmp_path, source, target, [topic_name], topic_name)
    make_topic(source, topic_name)
    produce(source, topic_name, [b"mirrored"] * 100)
    assert mirror_once(source, target, [topic_name], topic_name)
    produce(source, topic_name, [b"lost"] * 50)
    admin = AdminClient({"bootstrap.servers": source})
    for deleted in admin.delete_records([Confluent(topic_name, 0, 150)]).values():
        deleted.result(60)
    real, detector = accept_command._settle, SuspensionDetector()

    async def suspended(*values: Any, **named: Any) -> None:
        await real(*values, **named)
        detector.suspensions += 1

    with monkeypatch.context() as sleeping:
        sleeping.setattr(accept_command, "_settle", suspended)
        sleeping.setattr(accept_command, "beating", lambda: nullcontext(detector))
        done = CliRunner().invoke(app, ["accept", str(config), topic_name])
    assert isinstance(done.exception, FlowLost), done.output
    done = CliRunner().invoke(app, ["accept", str(config), topic_name, "--json"])
    (loss,) = json.loads(done.stdout)["losses"]
    assert not loss["was_accepted"]
