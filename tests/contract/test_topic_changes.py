"""Topics that change, and people who change their minds, while a mirror runs or between two runs."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable

import pytest
from configured_flow import ConfiguredFlow, flow, values
from helpers import make_topic, produce
from samerecords import assert_same_records
from syncing import delete_topics, ends
from topicadmin import grow, held, partitions_of
from waiting import until

from mirror.driver.topic_watcher import Replanner
from mirror.errors import ExitCode
from mirror.kafka.cluster import TopicPartition
from mirror.states import State

__all__ = ["flow"]


def end(flow: ConfiguredFlow, topic: str, partition: int = 0) -> int:
    """Where a copy ends; -1 where it is not there."""
    return ends(flow.target, topic).get(partition, -1) if partitions_of(flow.target, topic) else -1


def has_state(flow: ConfiguredFlow, topic: str, *states: State) -> Callable[[], bool]:
    """Whether `mirror status` shows a topic's first partition in one of these states."""
    return lambda: flow.states().get((topic, 0)) in states


@pytest.mark.proves("same-bytes", "same-offsets", "mirror run")
@pytest.mark.parametrize("offsets", ["preserve", "translate"])
def test_new_topics_and_partitions_join_the_epoch_under_way(
    flow: ConfiguredFlow, capfd: pytest.CaptureFixture[str], offsets: str
) -> None:
    """The others are not begun anew, which costs seconds where there are thousands."""
    first, second = f"{flow.name}-first", f"{flow.name}-second"
    flow.topics["offsets"] = offsets
    make_topic(flow.source, first, 16)
    produce(flow.source, first, values(20))
    logged = ""

    def story() -> None:
        nonlocal logged
        until(lambda: end(flow, first) == 20)
        make_topic(flow.source, second)
        produce(flow.source, second, values(20))
        until(lambda: end(flow, second) == 20)
        grow(flow.source, first, 17)
        produce(flow.source, first, values(20), partition=16)
        until(lambda: end(flow, first, 16) == 20)
        produce(flow.source, first, values(20, "later"))
        until(lambda: end(flow, first) == 40)
        logged = capfd.readouterr().err

    figures = flow.while_running(story, epoch_s=600).figures
    assert (logged.count("plan_changed"), logged.count("epoch_ended")) == (2, 0)
    assert figures[TopicPartition(second, 0)].records == figures[TopicPartition(first, 16)].records == 20
    assert assert_same_records(flow.source, flow.target, first, 17) == 60
    assert assert_same_records(flow.source, flow.target, second, 1) == 20


@pytest.mark.proves("mirror pause", "mirror resume")
def test_a_paused_topic_rests_until_it_is_resumed(flow: ConfiguredFlow) -> None:
    first, second = f"{flow.name}-first", f"{flow.name}-second"
    for topic in (first, second):
        make_topic(flow.source, topic)
        produce(flow.source, topic, values(20))

    def story() -> None:
        assert flow.mirror("pause", first) == (ExitCode.DONE, f"{first}: paused\n")
        until(has_state(flow, first, State.PAUSED))
        for topic in (first, second):
            produce(flow.source, topic, values(20))
        until(lambda: end(flow, second) == 40)
        assert end(flow, first) == 20
        code, printed = flow.mirror("pause", first, "--json")
        rests = {"flow": flow.name, "topics": [{"topic": first, "paused": True, "changed": False}]}
        assert (code, json.loads(printed)) == (ExitCode.DONE, rests)
        assert flow.mirror("resume", first) == (ExitCode.DONE, f"{first}: goes on\n")
        until(lambda: end(flow, first) == 40)

    assert flow.once().exit_code == ExitCode.DONE
    flow.while_running(story)
    code, said = flow.mirror("pause", f"{first}x")
    assert (code, f"no such topic is mirrored by {flow.name}; did you mean {first}" in said) == (ExitCode.USAGE, True)
    flow.source = "127.0.0.1:1"
    assert flow.mirror("pause", first)[0] == ExitCode.DONE, "the journal knows what the flow mirrors"


@pytest.mark.proves("mirror run", "never-silent")
def test_a_configuration_is_read_again_whole_or_not_at_all(
    flow: ConfiguredFlow, capfd: pytest.CaptureFixture[str]
) -> None:
    first, second = f"{flow.name}-first", f"{flow.name}-second"
    flow.topics["include"] = [first]
    for topic in (first, second):
        make_topic(flow.source, topic)
        produce(flow.source, topic, values(20))
    mine, logged = json.loads(flow.file.read_text()), ""

    def read_again(**changes: object) -> str:
        """What is logged of a file with these changes."""
        nonlocal logged
        capfd.readouterr()
        logged = ""
        (flow.folder / f"{flow.name}.yaml").write_text(json.dumps(mine | changes))
        until(lambda: signal.getsignal(signal.SIGHUP) is not signal.SIG_DFL)  # else it ends this process
        os.kill(os.getpid(), signal.SIGHUP)

        def log() -> str:
            nonlocal logged
            logged += capfd.readouterr().err
            return logged if "configuration_re" in logged else ""

        return until(log)

    def story() -> None:
        both = {"include": [first, second]}
        for changes, reason in (
            ({"topics": {"inclde": []}}, "inclde"),
            ({"topics": both, "name": "another"}, "another flow"),
            ({"topics": both | {"naming": {"prefix": "z."}}}, f"and topics.naming says z.{first}"),
        ):
            assert "configuration_refused" in (said := read_again(**changes))
            assert reason in said
        said = read_again(topics=both | {"naming": {"prefix": "z.", "rename": {first: first}}}, spark={"epoch_s": 5})
        assert "configuration_read" in said
        assert "needs_restart=['spark']" in said
        until(lambda: end(flow, f"z.{second}") == 20)
        produce(flow.source, first, values(20))
        until(lambda: end(flow, first) == 40)

    flow.while_running(story)
    assert [partitions_of(flow.target, topic) for topic in (second, f"z.{first}")] == [0, 0]


@pytest.mark.proves("RECREATED", "mirror status", "never-silent")
def test_a_topic_that_went_while_no_mirror_ran_has_not_caught_up(flow: ConfiguredFlow) -> None:
    """Its last report said so, and nobody mirrors it any more who could say otherwise."""
    gone, left = f"{flow.name}-gone", f"{flow.name}-left"
    for topic in (gone, left):
        make_topic(flow.source, topic, 2)
        produce(flow.source, topic, values(20))
    assert flow.once().exit_code == ExitCode.DONE
    delete_topics(flow.source, gone)
    caught_up = {(left, number): State.CAUGHT_UP for number in range(2)}
    for _ in range(2):
        done = flow.once()
        assert (done.exit_code, sorted(one.topic for one in done.stops)) == (ExitCode.DATA_AT_RISK, [gone] * 2)
        assert flow.states() == caught_up | {(gone, number): State.RECREATED for number in range(2)}
    delete_topics(flow.target, gone)
    assert flow.once().exit_code == ExitCode.DONE
    assert flow.states() == caught_up, "nobody has it, so that no failover asks for it"


@pytest.mark.proves("never-silent", "mirror status")
def test_a_refused_topic_is_left_out_until_it_fits_and_the_others_go_on(flow: ConfiguredFlow) -> None:
    """As one whose copy is gone and cannot be made anew: Kafka takes `-.x` and `-_x` for one name."""
    refused, collides, good = f"{flow.name}-.x", f"{flow.name}-_x", f"{flow.name}-good"
    for topic in (refused, good):
        make_topic(flow.source, topic)
        produce(flow.source, topic, values(20))
    living = Replanner(flow.settings)
    assert flow.once().exit_code == ExitCode.DONE
    begun, seen = living.replan((), flow.seen()).assignments, flow.seen()
    assert [one.source.topic for one in begun] == [refused, good]
    delete_topics(flow.target, refused)
    make_topic(flow.target, collides)

    found = living.replan(begun, seen)
    assert ([one.source.topic for one in found.assignments], [one.source for one in found.refused]) == (
        [good],
        [refused],
    )
    assert f"would collide with topic {collides}" in found.refused[0].reason
    assert flow.once().exit_code == ExitCode.PREFLIGHT
    assert flow.states() == {(refused, 0): State.REFUSED, (good, 0): State.CAUGHT_UP}
    delete_topics(flow.target, collides)
    again = living.replan(found.assignments, seen)
    assert ([one.source.topic for one in again.assignments], again.refused) == ([good, refused], ())
    assert flow.once().exit_code == ExitCode.DONE
    assert held(flow.target, refused) == (0, 20)
