"""`mirror verify` as a gate: a copy may be equal as far as it goes, and not whole (exit code 7)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from configured_flow import ConfiguredFlow, flow, values
from confluent_kafka import Producer
from helpers import make_topic, produce, wait_for_markers
from topicadmin import configure, delete_records, held
from waiting import until

from mirror.errors import ExitCode
from mirror.states import State

__all__ = ["flow"]

VALUES = values(40)


def verified(flow: ConfiguredFlow, *options: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the fields of `mirror verify`."""
    code, printed = flow.mirror("verify", "--json", *options)
    return code, json.loads(printed)


@pytest.mark.proves("mirror verify", "never-silent", "REFUSE")
def test_what_is_not_there_yet_or_stopped_is_named_and_what_differs_is_worse(flow: ConfiguredFlow) -> None:
    late, stopped = f"{flow.name}-late", f"{flow.name}-stopped"
    for topic in (late, stopped):
        make_topic(flow.source, topic)
    produce(flow.source, late, VALUES)
    assert flow.once().exit_code == ExitCode.DONE
    assert verified(flow)[0] == ExitCode.DONE
    produce(flow.source, stopped, VALUES)
    configure(flow.source, stopped, cleanup_policy="compact")
    assert [(one.topic, one.state) for one in flow.once().stops] == [(stopped, State.REFUSED)], "it has no keys"
    produce(flow.source, late, VALUES[:2])

    code, found = verified(flow)
    assert (code, found["equal"], found["whole"], found["sealed"]["whole"]) == (ExitCode.NOT_WHOLE, True, False, False)
    texts = [one["text"] for one in found["not_whole"]]
    assert texts[0] == f"{late}-0: not there yet, offsets 40 to 41 (2): the mirror: not running"
    assert texts[1].startswith(f"{stopped}-0: stopped, offsets 0 to 39 (40): REFUSED at source offset 0: ")
    produce(flow.target, late, [b"another"])
    assert verified(flow)[0] == ExitCode.DIFFERENT


@pytest.mark.proves("mirror verify")
def test_a_mirror_that_runs_is_waited_for_and_a_paused_topic_is_not(flow: ConfiguredFlow) -> None:
    make_topic(flow.source, flow.name)
    produce(flow.source, flow.name, VALUES)

    def story() -> None:
        until(lambda: [one.state for one in flow.figures.values()] == [State.CAUGHT_UP])
        produce(flow.source, flow.name, VALUES)
        code, found = verified(flow, "--wait", "3000")
        assert (code, found["whole"], found["partitions"][0]["end"]) == (ExitCode.DONE, True, 80)
        flow.mirror("pause", flow.name)
        until(lambda: [*flow.states().values()] == [State.PAUSED])
        produce(flow.source, flow.name, VALUES)
        code, found = verified(flow, "--wait", "3000")
        (lack,) = found["not_whole"]
        assert (code, lack["kind"], lack["offsets"]) == (ExitCode.NOT_WHOLE, "not there yet", 40)
        assert f"`mirror resume CONFIG {flow.name}` resumes it" in lack["text"]

    flow.while_running(story)


@pytest.mark.proves("mirror verify", "never-silent")
@pytest.mark.parametrize("offsets", ["preserve", "translate"])
def test_an_accepted_loss_is_named_for_as_long_as_a_reader_may_miss_it(flow: ConfiguredFlow, offsets: str) -> None:
    flow.topics |= {"on_data_loss": "continue", "offsets": offsets}
    make_topic(flow.source, flow.name)
    produce(flow.source, flow.name, VALUES)
    assert flow.once().exit_code == ExitCode.DONE
    produce(flow.source, flow.name, VALUES)
    delete_records(flow.source, flow.name, 55)
    assert flow.once().exit_code == ExitCode.DONE
    code, found = verified(flow)
    (lack,) = found["not_whole"]
    assert (code, lack["kind"], lack["first"], lack["next_offset"]) == (ExitCode.NOT_WHOLE, "accepted loss", 40, 55)
    if offsets == "preserve":
        delete_records(flow.target, flow.name, 50)
        (lack,) = verified(flow)[1]["not_whole"]
        assert (lack["first"], lack["next_offset"]) == (50, 55)
        delete_records(flow.target, flow.name, 55)
        assert verified(flow)[0] == ExitCode.DONE


@pytest.mark.proves("mirror verify", "never-silent")
@pytest.mark.parametrize("offsets", ["preserve", "translate"])
def test_what_lies_behind_an_open_transaction_is_not_there_yet(flow: ConfiguredFlow, offsets: str) -> None:
    """No reader of committed records sees it, but its producers had their acknowledgments all the same."""
    flow.topics["offsets"] = offsets
    make_topic(flow.source, flow.name)
    produce(flow.source, flow.name, VALUES)
    producer = Producer({"bootstrap.servers": flow.source, "transactional.id": flow.name})
    producer.init_transactions(120)
    producer.begin_transaction()
    producer.produce(flow.name, b"undecided")
    assert not producer.flush(120)
    produce(flow.source, flow.name, [b"acknowledged"] * 3)
    flow.once()
    code, found = verified(flow)
    (lack,) = found["not_whole"]
    assert (code, lack["kind"], lack["first"], lack["offsets"]) == (ExitCode.NOT_WHOLE, "not there yet", 40, 4)
    assert "a transaction is open on the source from offset 40 on" in lack["text"]
    producer.abort_transaction(120)
    wait_for_markers(flow.source, flow.name)
    assert flow.once().exit_code == ExitCode.DONE
    assert verified(flow)[0] == ExitCode.DONE
    assert held(flow.target, flow.name)[1] == (45 if offsets == "preserve" else 43)
