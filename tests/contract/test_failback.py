"""A failback to its end, as the runbook says: what was written on the target comes home, and the first flow goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from failovers import Flow, values
from helpers import make_topic, mirror_once, produce
from pair import Shared
from samerecords import assert_same_records, read
from syncing import delete_topics
from topicadmin import delete_records
from transactional import transactions

from mirror.commands.accept import accept
from mirror.commands.verify import verify_flow
from mirror.errors import ClusterUnreachable, ConfigError, ExitCode, PreflightError
from mirror.journal.entries import COPIES, loss_entry
from mirror.journal.journal import Journal, journal_topic
from mirror.kafka.cluster import TopicPartition
from mirror.observability.status import PartitionStatus
from mirror.replication.assignment import COMPACTION, Loss
from mirror.states import State

pytestmark = [pytest.mark.proves("mirror failover")]

#: Larger than the source takes in these tests.
LARGE = b"z" * 9000


@pytest.fixture
def first(source_cluster: Shared, target_cluster: Shared, topic_name: str) -> Flow:
    """A flow that has copied twenty records; the source topic takes batches of 2,000 bytes."""
    flow = Flow(source_cluster.bootstrap, target_cluster.bootstrap, topic_name)
    sync = flow.settings.sync.model_copy(update={"configs": False})
    flow.settings = flow.settings.model_copy(update={"sync": sync})
    make_topic(flow.source, topic_name, configs={"max.message.bytes": "2000"})
    produce(flow.source, topic_name, values(20))
    flow.copies()
    return flow


@pytest.fixture
def back(first: Flow) -> Flow:
    """The flow in the other direction, of which there is nothing yet."""
    flow = Flow(first.target, first.source, first.topic, f"{first.topic}-back", on_too_large="skip")
    flow.settings = flow.settings.model_copy(update={"sync": first.settings.sync})
    return flow


@pytest.mark.proves("mirror adopt", "same-offsets", "exactly-once")
def test_what_was_written_on_the_target_comes_home_and_the_first_flow_goes_on(first: Flow, back: Flow) -> None:
    """It owns what it made no longer: else it would delete the copy where its source is deleted, as failbacks ask."""
    with pytest.raises(ConfigError, match="was not failed over"):
        first.undo()
    assert COPIES.newest(first.journal())[first.topic].made
    first.fail_over()
    produce(first.target, first.topic, [b"there"] * 3)
    assert back.adopts() == ExitCode.DONE
    back.copies()
    back.fail_over()
    first.undo()
    assert not COPIES.newest(first.journal())[first.topic].made
    produce(first.source, first.topic, [b"again"] * 5)
    first.copies()
    assert not COPIES.newest(first.journal())[first.topic].made
    assert assert_same_records(first.source, first.target, first.topic, 1) == 28


@pytest.mark.proves("same-offsets")
@pytest.mark.parametrize("before", [[True], [False]])
def test_transactions_at_the_end_of_either_log_are_passed(first: Flow, back: Flow, before: list[bool]) -> None:
    """What was aborted is no record there, and the other side has control markers for it, and for its end."""
    transactions(first.source, first.topic, before, name="before")
    first.fail_over()
    assert back.adopts() == ExitCode.DONE
    for outcomes in ([False], [True, False]):
        transactions(first.target, first.topic, outcomes, name="there")
        back.copies()
    produce(first.target, first.topic, [b"there"] * 3)
    back.fail_over()
    first.undo()
    produce(first.source, first.topic, [b"again"] * 5)
    first.copies()
    assert verify_flow(first.settings).equal
    count = 20 + 5 * sum(before) + 5 + 3 + 5
    assert assert_same_records(first.source, first.target, first.topic, 1) == count


@pytest.mark.proves("DIVERGED", "mirror adopt", "nothing-by-name-alone")
@pytest.mark.parametrize("kind", ["records", "a transaction"])
def test_what_never_got_over_stops_the_way_back(first: Flow, back: Flow, kind: str, free_port: int) -> None:
    """Growth on the new source lifts nothing. As the runbook says, the topic is deleted then, and copied anew."""

    def comes_back() -> PartitionStatus:
        """Without adopting it: as at a later failback, whose journal knows the topic."""
        found = mirror_once(back.source, back.target, [back.topic], back.settings.flow, names_copies=False)
        return found[TopicPartition(back.topic, 0)]

    if kind == "records":
        produce(first.source, first.topic, values(30))
    else:
        transactions(first.source, first.topic, [True], name="old")
    first.reaches_source_at(f"127.0.0.1:{free_port}")
    assert first.fail_over(ExitCode.DATA_AT_RISK, source_s=1.0)["partitions"][0]["position"] == 20
    if kind == "a transaction":  # that ends where the other one does
        transactions(first.target, first.topic, [True], name="new")
    assert back.adopts() == ExitCode.DIFFERENT
    for _ in range(2):
        found = comes_back()
        assert (found.state, found.records) == (State.DIVERGED, 0), found
        produce(first.target, first.topic, [b"new"] * 20)
    delete_topics(first.source, first.topic)
    back.copies()
    assert assert_same_records(first.source, first.target, first.topic, 1) == (60 if kind == "records" else 65)


@pytest.mark.proves("DIVERGED", "exactly-once")
def test_what_was_written_behind_a_failover_and_expired_since_stops_the_flow_that_runs_again(first: Flow) -> None:
    """Nothing is left to compare, and the source has records of its own at those offsets."""
    first.fail_over()
    produce(first.target, first.topic, [b"of an application"] * 10)
    delete_records(first.target, first.topic, 30)
    produce(first.source, first.topic, values(30))
    first.undo()
    outcome = first.copy()
    (one,) = outcome.figures.values()
    assert (outcome.exit_code, one.state) == (ExitCode.DATA_AT_RISK, State.DIVERGED)
    assert not list(read(first.target, first.topic, 0)), "nothing was written behind it"


@pytest.mark.proves("never-silent")
@pytest.mark.parametrize("batch", [1, 10])
def test_a_failover_is_not_taken_back_where_the_flow_back_left_records_out(first: Flow, back: Flow, batch: int) -> None:
    """The copy alone has them. As the message says, it is deleted then, and copied anew."""
    first.fail_over()
    assert back.adopts() == ExitCode.DONE
    produce(first.target, first.topic, [b"a", LARGE, b"c"], batch=batch)
    back.copies()
    back.fail_over(ExitCode.NOT_WHOLE)
    with pytest.raises(PreflightError, match=rf"flow `{back.settings.flow}` lost records of .*: too_large\)"):
        first.undo()
    assert not verify_flow(first.settings).equal
    delete_topics(first.target, first.topic)
    first.undo()
    first.copies()
    assert assert_same_records(first.source, first.target, first.topic, 1) == 22


@pytest.mark.proves("mirror accept", "mirror adopt", "never-silent")
@pytest.mark.parametrize("is_accepted", [True, False])
def test_a_possible_loss_of_the_flow_back_is_accepted_or_compared(first: Flow, back: Flow, is_accepted: bool) -> None:
    """Where both sides are equal, another flow name takes the copy over."""
    first.fail_over()
    assert back.adopts() == ExitCode.DONE
    back.copies()
    partition = TopicPartition(first.topic, 0)
    back.append(loss_entry(Loss(partition, partition, 0, 0, COMPACTION)))
    back.fail_over(ExitCode.NOT_WHOLE)
    with pytest.raises(PreflightError, match="mirror adopt CONFIG --all"):
        first.undo()
    if is_accepted:
        assert accept(back.settings, first.topic, (), unconfirmed=False, as_json=True) == ExitCode.DONE
        first.undo()
        flow = first
    else:
        assert verify_flow(first.settings).equal
        flow = Flow(first.source, first.target, first.topic, f"{first.topic}-again")
        assert flow.adopts() == ExitCode.DONE
    produce(first.source, first.topic, [b"again"] * 5)
    flow.copies()
    assert assert_same_records(first.source, first.target, first.topic, 1) == 25


@contextmanager
def unreadable(flow: str) -> Iterator[None]:
    """Let the journal of this flow be one that cannot be read."""
    read_journal = Journal.read

    async def reads(self: Journal, *more: Any) -> Any:
        if self.flow == flow:
            raise ClusterUnreachable("its partition has no leader")
        return await read_journal(self, *more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "read", reads)
        yield


@pytest.mark.proves("never-silent")
def test_a_failover_is_not_taken_back_before_the_flow_back_is_over(
    first: Flow, back: Flow, capfd: pytest.CaptureFixture[str]
) -> None:
    """It may lose records until then. A journal that cannot be read may be that of a flow back."""
    other = f"{first.topic}-a"  # which comes first
    make_topic(first.source, journal_topic(other))
    first.fail_over()
    assert back.adopts() == ExitCode.DONE
    with pytest.raises(PreflightError, match="Run `mirror failover` with its configuration first"):
        first.undo()
    back.copies()
    with (
        unreadable(other),
        pytest.raises(PreflightError, match=rf"flow `{back.settings.flow}` mirrors it back .* was not failed over"),
    ):
        first.undo()
    back.fail_over()
    with unreadable(other):
        first.undo()
    assert f"{journal_topic(other)} on" in capfd.readouterr().err, "of which nobody knows what it says"
    first.copies()


@pytest.mark.proves("never-silent")
def test_a_failover_is_taken_back_with_a_warning_while_the_source_is_away(
    first: Flow, free_port: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """It may have the journal of a flow back."""
    first.fail_over()
    first.reaches_source_at(f"127.0.0.1:{free_port}")
    first.undo()
    assert "nobody knows whether a flow back lost records" in capfd.readouterr().err
