"""A failback to its end, as the runbook says: the first flow runs again, over what was mirrored back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from compared_logs import delete_before
from crashcut import crash_and_cut_all
from helpers import make_topic, produce, settings_between
from samerecords import read
from sparkless import run_once
from transactional import transactions

from mirror.commands import failover as command
from mirror.commands.accept import accept
from mirror.commands.adopt import adopt
from mirror.commands.failover import failover
from mirror.commands.verify import verify_flow
from mirror.config import Settings
from mirror.errors import ClusterUnreachable, ExitCode, FlowLost, PreflightError
from mirror.journal.journal import Journal, journal_topic
from mirror.journal.ownership import KEY as FAILED_OVER
from mirror.journal.ownership import FailedOver
from mirror.kafka.cluster import Cluster as Wire
from mirror.lab.embedded import Cluster, Spec, start_many
from mirror.states import State
from mirror.suspension import SuspensionDetector

pytestmark = pytest.mark.brokers

#: Larger than the source takes in these tests.
LARGE = b"z" * 9000


def _failed_over(settings: Settings) -> ExitCode:
    return failover(settings, rehearse=False, undo=False, as_json=True)


def _forth(
    here: str, there: str, topic_name: str, *, is_made: bool = False, is_marked: bool = False, **back: Any
) -> tuple[Settings, Settings]:
    """A flow that has copied 20 records and was failed over, and a flow `back`, of which there is nothing yet.
    `is_made`: the source has records already. `is_marked`: it ends with a transaction.
    """
    first = settings_between(here, there, [topic_name], flow=topic_name)
    if not is_made:
        make_topic(here, topic_name)
    produce(here, topic_name, [b"before"] * 20)
    if is_marked:
        transactions(here, topic_name, [True])
    assert run_once(first).exit_code == ExitCode.DONE
    assert _failed_over(first) == ExitCode.DONE
    return first, settings_between(there, here, [topic_name], flow=f"{topic_name}-back", **back)


def test_the_first_flow_goes_on_behind_transactions_that_were_aborted_on_its_target(
    own_source: Cluster, own_target: Cluster, topic_name: str
) -> None:
    """The copy was a source meanwhile: what was aborted there is no record, and its own source has markers for it."""
    here, there = own_source.bootstrap, own_target.bootstrap
    first, back = _forth(here, there, topic_name)
    transactions(there, topic_name, [True, False, True, False, True])
    produce(there, topic_name, [b"there"] * 3)
    assert adopt(back, [topic_name], every=False, ends_only=False, as_json=True) == ExitCode.DONE
    assert run_once(back).exit_code == ExitCode.DONE
    assert _failed_over(back) == ExitCode.DONE
    failover(first, rehearse=False, undo=True, as_json=False)
    produce(here, topic_name, [b"again"] * 5)
    found = run_once(first)
    assert (found.exit_code, found.stops) == (ExitCode.DONE, [])
    assert verify_flow(first).equal


def test_a_source_that_lost_its_tail_has_it_again_from_the_flow_back(topic_name: str) -> None:
    """As a source that crashed, and was failed over for that: only what is the same again is gone on with; also where
    the source has deleted into a batch of that by then. The epoch that was cut back does not count any more: behind a
    marker it outlasted what was found, and stopped the flow again with the next record. Nor does one of which the
    source has nothing any more.
    """
    both = start_many([Spec(name=name) for name in ("lossy", "standing")])
    with both[0], both[1]:
        here, there = (one.bootstrap for one in both)
        same, others, marked, deleted = (f"{topic_name}-{what}" for what in ("same", "others", "marked", "deleted"))
        newer = f"{topic_name}-newer"
        make_topic(here, newer)
        produce(here, newer, [b"before"] * 11)
        both[0].restart(0)
        flows = {name: _forth(here, there, name) for name in (same, others, deleted)}
        flows[marked] = _forth(here, there, marked, is_marked=True)
        flows[newer] = _forth(here, there, newer, is_made=True)
        crash_and_cut_all(both[0], {(name, 0): 10 for name in flows})
        produce(here, others, [b"others"] * 13)
        produce(there, same, [b"there"] * 3)
        for name, (first, back) in flows.items():
            if name != others:
                assert adopt(back, [name], every=False, ends_only=False, as_json=True) == ExitCode.DONE
                assert run_once(back).exit_code == ExitCode.DONE
                assert _failed_over(back) == ExitCode.DONE
            if name == deleted:
                delete_before(both[0], name, 15)
            failover(first, rehearse=False, undo=True, as_json=False)
            for _ in range(3):
                produce(here, name, [b"again"] * 5)
                found = run_once(first)
                assert [one.state for one in found.stops] == ([] if name != others else [State.TRUNCATED]), name
        assert verify_flow(flows[same][0]).equal
        assert verify_flow(flows[marked][0]).equal


def test_what_the_flow_back_lost_is_a_difference_of_the_way_forth(
    own_source: Cluster, own_target: Cluster, topic_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The journal of the flow back says so, which the first flow takes over when its failover is taken back."""
    here, there = own_source.bootstrap, own_target.bootstrap

    def losses() -> list[str]:
        capsys.readouterr()
        failover(first, rehearse=True, undo=False, as_json=True)
        account = json.loads(capsys.readouterr().out.splitlines()[-1])
        return [one["reason"] for one in account["accepted_losses"]]

    first, back = _forth(here, there, topic_name, on_data_loss="continue")
    assert adopt(back, [topic_name], every=False, ends_only=False, as_json=True) == ExitCode.DONE
    assert run_once(back).exit_code == ExitCode.DONE
    for count in (2, 5):
        produce(there, topic_name, [b"there"] * count)
    delete_before(own_target, topic_name, 22)
    assert run_once(back).exit_code == ExitCode.DONE
    assert _failed_over(back) == ExitCode.NOT_WHOLE
    failover(first, rehearse=False, undo=True, as_json=False)
    produce(here, topic_name, [b"again"] * 5)
    found = run_once(first)
    assert (found.exit_code, found.stops) == (ExitCode.DONE, [])
    assert losses() == ["way-back"]
    assert accept(first, topic_name, (), unconfirmed=False, as_json=True) == ExitCode.DONE
    assert losses() == []


def test_a_failover_is_not_taken_back_before_the_flow_back_is_over(
    own_source: Cluster, own_target: Cluster, topic_name: str
) -> None:
    """What that flow lost later, as in the drain of its own failover, was on record nowhere."""
    here, there = own_source.bootstrap, own_target.bootstrap
    first = settings_between(here, there, [topic_name], flow=topic_name)
    back = settings_between(there, here, [topic_name], flow=f"{topic_name}-back", on_too_large="skip")
    alone = {"sync": first.sync.model_copy(update={"configs": False})}
    first, back = first.model_copy(update=alone), back.model_copy(update=alone)
    make_topic(here, topic_name, configs={"max.message.bytes": "2000"})
    make_topic(there, topic_name)
    produce(here, topic_name, [b"before"] * 20)
    assert run_once(first).exit_code == ExitCode.DONE
    assert _failed_over(first) == ExitCode.DONE
    assert adopt(back, [topic_name], every=False, ends_only=False, as_json=True) == ExitCode.DONE
    assert run_once(back).exit_code == ExitCode.DONE
    with pytest.raises(PreflightError, match=rf"flow `{back.flow}` mirrors it back .* was not failed over"):
        failover(first, rehearse=False, undo=True, as_json=False)
    produce(there, topic_name, [b"a", LARGE, b"c"], batch=1)
    assert _failed_over(back) == ExitCode.NOT_WHOLE
    assert failover(first, rehearse=False, undo=True, as_json=False) == ExitCode.DONE
    produce(here, topic_name, [b"again"] * 5)
    found = run_once(first)
    assert (found.exit_code, found.stops) == (ExitCode.DONE, [])


def test_a_flow_back_that_never_ran_is_ended_as_advised(
    own_source: Cluster, own_target: Cluster, topic_name: str
) -> None:
    """Its copies were adopted alone: the flow forth would refuse to run for the loop."""
    here, there = own_source.bootstrap, own_target.bootstrap
    first, back = _forth(here, there, topic_name)
    assert adopt(back, [topic_name], every=False, ends_only=False, as_json=True) == ExitCode.DONE
    with pytest.raises(PreflightError, match="Run `mirror failover` with its configuration first"):
        failover(first, rehearse=False, undo=True, as_json=False)
    assert _failed_over(back) == ExitCode.DONE
    assert failover(first, rehearse=False, undo=True, as_json=False) == ExitCode.DONE
    produce(here, topic_name, [b"again"] * 5)
    assert run_once(first).exit_code == ExitCode.DONE


@pytest.mark.parametrize("batch", [1, 10])
@pytest.mark.parametrize(
    "values", [[b"a", LARGE, b"c"], [b"a", LARGE, LARGE], [LARGE, b"c"], [LARGE]], ids=["mid", "end", "begin", "all"]
)
def test_what_the_flow_back_left_out_as_too_large_stays_where_it_is(
    own_source: Cluster,
    own_target: Cluster,
    topic_name: str,
    values: list[bytes],
    batch: int,
) -> None:
    """The copy alone has it, and the source has markers: that is on record, and is no sign of somebody else."""
    here, there = own_source.bootstrap, own_target.bootstrap

    def first_runs() -> None:
        produce(here, topic_name, [b"again"] * 5)
        found = run_once(first)
        assert (found.exit_code, found.stops) == (ExitCode.DONE, [])

    first = settings_between(here, there, [topic_name], flow=topic_name)
    back = settings_between(there, here, [topic_name], flow=f"{topic_name}-back", on_too_large="skip")
    alone = {"sync": first.sync.model_copy(update={"configs": False})}
    first, back = first.model_copy(update=alone), back.model_copy(update=alone)
    make_topic(here, topic_name, configs={"max.message.bytes": "2000"})
    make_topic(there, topic_name)
    produce(here, topic_name, [b"before"] * 20)
    assert run_once(first).exit_code == ExitCode.DONE
    assert _failed_over(first) == ExitCode.DONE
    assert adopt(back, [topic_name], every=False, ends_only=False, as_json=True) == ExitCode.DONE
    produce(there, topic_name, values, batch=batch)
    assert run_once(back).exit_code == ExitCode.DONE
    assert _failed_over(back) == ExitCode.NOT_WHOLE
    failover(first, rehearse=False, undo=True, as_json=False)
    first_runs()
    assert failover(first, rehearse=True, undo=False, as_json=True) == ExitCode.NOT_WHOLE
    assert accept(first, topic_name, (), unconfirmed=False, as_json=True) == ExitCode.DONE
    first_runs()
    assert _failed_over(first) == ExitCode.DONE
    assert any(LARGE in one for one in read(there, topic_name, 0))


def test_a_source_whose_address_leads_elsewhere_does_not_say_that_the_flow_back_lost_nothing(
    own_source: Cluster, own_target: Cluster, topic_name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    here, there = own_source.bootstrap, own_target.bootstrap
    first = settings_between(here, there, [topic_name], flow=topic_name)
    elsewhere = settings_between(there.replace("127.0.0.1", "localhost"), there, [topic_name], flow=topic_name)
    make_topic(here, topic_name)
    produce(here, topic_name, [b"before"] * 20)
    assert run_once(first).exit_code == ExitCode.DONE
    for settings, is_unknown in ((elsewhere, True), (first, False)):
        assert _failed_over(first) == ExitCode.DONE
        capfd.readouterr()
        assert failover(settings, rehearse=False, undo=True, as_json=False) == ExitCode.DONE
        assert ("way_back_unknown" in capfd.readouterr().err) == is_unknown


def test_a_journal_that_cannot_be_read_does_not_hide_the_flow_back(
    own_source: Cluster,
    own_target: Cluster,
    topic_name: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """It is that of a flow that has nothing to do with it, and whose name comes first."""
    here, there = own_source.bootstrap, own_target.bootstrap
    first, back = _forth(here, there, topic_name)
    assert adopt(back, [topic_name], every=False, ends_only=False, as_json=True) == ExitCode.DONE
    assert run_once(back).exit_code == ExitCode.DONE
    make_topic(here, journal_topic(f"{topic_name}-a"))
    read_journal = Journal.read

    async def read(self: Journal, *more: Any) -> Any:
        if self.flow.endswith("-a"):
            raise ClusterUnreachable("its partition has no leader")
        return await read_journal(self, *more)

    monkeypatch.setattr(Journal, "read", read)
    with pytest.raises(PreflightError, match="mirrors it back into"):
        failover(first, rehearse=False, undo=True, as_json=False)
    assert _failed_over(back) == ExitCode.DONE
    capfd.readouterr()
    assert failover(first, rehearse=False, undo=True, as_json=False) == ExitCode.DONE
    assert f"mirror.{topic_name}-a.offsets: its partition has no leader" in capfd.readouterr().err


@pytest.mark.parametrize("sleeps", [False, True])
def test_a_failover_that_was_overtaken_before_it_was_recorded_ends_nobody(
    own_source: Cluster,
    own_target: Cluster,
    topic_name: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    sleeps: bool,
) -> None:
    """A laptop may sleep in its midst, while others fail the flow over, and take that back."""
    first = settings_between(own_source.bootstrap, own_target.bootstrap, [topic_name], flow=topic_name)
    make_topic(own_source.bootstrap, topic_name)
    produce(own_source.bootstrap, topic_name, [b"before"] * 20)
    assert run_once(first).exit_code == ExitCode.DONE
    moment, courses = [0.0], list[object]()

    @contextmanager
    def beating() -> Iterator[SuspensionDetector]:
        yield SuspensionDetector(lambda: (moment[0], moment[0]))

    async def drain(course: object, *_: object) -> None:
        courses.append(course)
        if len(courses) > 1:
            return
        if sleeps:
            moment[0] += 3600
        else:
            assert await asyncio.to_thread(_failed_over, first) == ExitCode.DONE
            await asyncio.to_thread(failover, first, rehearse=False, undo=True, as_json=False)

    monkeypatch.setattr(command, "beating", beating, raising=False)
    monkeypatch.setattr(command._FailoverRun, "drain", drain)
    with pytest.raises(PreflightError, match=r"before the failover was recorded, .* Run it again if it is meant"):
        _failed_over(first)
    assert run_once(first).exit_code == ExitCode.DONE
    assert _failed_over(first) == ExitCode.DONE, "as the message says"


def test_a_drain_that_slept_appends_nothing_to_the_journal_of_a_flow_that_is_over(
    own_source: Cluster, own_target: Cluster, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it copied is nobody's business any more, and it is not to say so to those who have the flow by then."""
    first = settings_between(own_source.bootstrap, own_target.bootstrap, [topic_name], flow=topic_name)
    make_topic(own_source.bootstrap, topic_name)
    produce(own_source.bootstrap, topic_name, [b"before"] * 20)
    assert run_once(first).exit_code == ExitCode.DONE
    refused = list[FlowLost]()

    async def asleep(_flow: object, _owner: object, _left: object, journal: Journal, *_: object) -> None:
        await replace(journal, clearance=None).append([(FAILED_OVER, FailedOver.here().to_json())])
        if journal.clearance is not None:
            journal.clearance._detector.suspensions += 1
        try:
            await journal.append([(b"drained", b"{}")])
        except FlowLost as lost:
            refused.append(lost)

    monkeypatch.setattr("mirror.failover.drain._stretches", asleep)
    with pytest.raises(PreflightError, match="failed the flow over, or took that back, before the failover was"):
        _failed_over(first)
    assert len(refused) == 1


def test_a_failover_that_took_the_place_of_one_is_not_taken_back_with_it(
    own_source: Cluster, own_target: Cluster, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever takes a failover back may be suspended, while it is taken back by somebody else, and done again."""
    first = settings_between(own_source.bootstrap, own_target.bootstrap, [topic_name], flow=topic_name)
    make_topic(own_source.bootstrap, topic_name)
    produce(own_source.bootstrap, topic_name, [b"before"] * 20)
    assert run_once(first).exit_code == ExitCode.DONE
    assert _failed_over(first) == ExitCode.DONE
    asked = list[Wire]()

    async def suspended(source: Wire, *_: object) -> tuple[list[object], list[str]]:
        asked.append(source)
        if len(asked) == 1:
            await asyncio.to_thread(failover, first, rehearse=False, undo=True, as_json=False)
            assert await asyncio.to_thread(_failed_over, first) == ExitCode.DONE
        return [], []

    monkeypatch.setattr(command, "losses_on_the_way_back", suspended)
    with pytest.raises(PreflightError, match="was taken back, or failed over again"):
        failover(first, rehearse=False, undo=True, as_json=False)
    with pytest.raises(PreflightError, match="failed over at"):
        run_once(first)
    assert len(asked) == 2
