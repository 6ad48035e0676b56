"""`mirror failover`: all that can get over does, groups go on at their next record, and what is missing is named."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from threading import Event
from typing import Any

import pytest
from confluent_kafka import Producer
from failovers import Flow, end_of, values
from groupoffsets import commit, committed, read_on
from helpers import make_topic, produce
from pair import Shared
from sparkless import InThisProcess, run_beside
from syncing import admin_of, delete_topics, ends
from topicadmin import configure, delete_records, grow
from transactional import transactions
from waiting import DEADLINE_S, MovableClock, until

from mirror.commands.accept import accept
from mirror.commands.failover import _FailoverRun
from mirror.commands.status import status
from mirror.driver.flow import prepare
from mirror.errors import ClusterUnreachable, ConfigError, ExitCode, PreflightError
from mirror.failover.account import UNCHECKED
from mirror.failover.rpo import UNLIKE, JournalSnapshot
from mirror.groups.gap import GROUPS_STAY
from mirror.journal.entries import pause_entry
from mirror.journal.journal import OWNER
from mirror.journal.ownership import ACCOUNT, KEY, FailedOver, Owner
from mirror.observability.status import PartitionStatus
from mirror.spark.supervisor import Supervisor
from mirror.states import State

pytestmark = [pytest.mark.proves("mirror failover")]

#: A mirror on another machine, with a claim behind all others.
ELSEWHERE = Owner(instance="elsewhere", host="elsewhere", pid=1, at_ms=0, claim=9)


@pytest.fixture
def flow(source_cluster: Shared, target_cluster: Shared, topic_name: str) -> Flow:
    """One partition with a hundred records, mirrored."""
    return Flow(source_cluster.bootstrap, target_cluster.bootstrap, topic_name).mirrored(100)


@pytest.mark.proves("exactly-once")
@pytest.mark.parametrize("offsets", ["preserve", "translate"])
def test_what_is_missing_is_copied_and_groups_go_on_at_their_next_record(
    source_cluster: Shared, target_cluster: Shared, topic_name: str, offsets: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flow = Flow(source_cluster.bootstrap, target_cluster.bootstrap, topic_name, offsets=offsets)
    make_topic(flow.source, topic_name)
    with pytest.raises(ConfigError, match="never ran"):
        flow.fail_over()
    transactions(flow.source, topic_name, [False, True])
    flow.copies()
    produce(flow.source, topic_name, values(50))
    commit(flow.source, topic_name, topic_name, 32)
    kept = admin_of(flow.target).topic_configs([topic_name])[topic_name]["retention.ms"]
    configure(flow.source, topic_name, retention_ms="7200000", max_message_bytes="2000000")

    rehearsed = flow.fail_over(ExitCode.DATA_AT_RISK, rehearse=True)
    assert (rehearsed["rpo"]["records"], rehearsed["groups"]) == (50, {"held_back": 1})
    assert rehearsed["rpo"]["seconds"] > 3000, "the records are an hour old"
    assert "no mirror runs" in rehearsed["warnings"][0]
    assert committed(flow.target, topic_name, topic_name) < 0, "nothing was committed"

    done = flow.fail_over()
    assert (done["whole"], done["rpo"]) == (True, {"records": 0, "seconds": 0.0, "certain": True})
    assert [(one["position"], one["source_end"]) for one in done["partitions"]] == [(62, 62)]
    assert done["groups"] == {"synced": 1}
    assert read_on(flow.target, topic_name, topic_name, 30) == values(30, begin=20)
    settings = admin_of(flow.target).topic_configs([topic_name])[topic_name]
    assert settings["max.message.bytes"].value == "2000000", "what larger records need"
    assert settings["retention.ms"] == kept, "but no copy is to keep less"

    account = flow.printed
    with pytest.raises(PreflightError, match=r"was failed over at .* --undo"):
        flow.fail_over()
    assert flow.printed == account, "from the journal, wherever consumers are by now"
    with pytest.raises(PreflightError, match="mirror failover CONFIG --undo"):
        flow.copy()
    status(flow.settings, as_json=False, watch=False)
    assert "; failed over at 20" in " ".join(capsys.readouterr().out.split())


@pytest.mark.proves("never-silent")
@pytest.mark.parametrize("where", ["nobody", "another cluster"])
def test_what_a_source_that_is_away_holds_is_unknown(flow: Flow, where: str, free_port: int) -> None:
    """Where its address leads to the target already, all that the copy holds is all that it asks for."""
    produce(flow.source, flow.topic, values(30))
    flow.reaches_source_at(flow.target if where == "another cluster" else f"127.0.0.1:{free_port}")
    done = flow.fail_over(ExitCode.DATA_AT_RISK, source_s=1.0)
    assert (done["source_reachable"], done["rpo"]["certain"], done["rpo"]["records"]) == (False, False, 0)
    assert done["rpo"]["seconds"] > 0, "as long ago as the last report"
    assert [(one["position"], one["source_end"]) for one in done["partitions"]] == [(100, None)]
    problem = "answers there, and not one of" if where == "another cluster" else "no broker answered"
    assert problem in done["source_problem"]
    assert GROUPS_STAY in done["warnings"]


def make_anew(bootstrap: str, flow: Flow) -> None:
    delete_topics(bootstrap, flow.topic)
    make_topic(bootstrap, flow.topic)
    produce(bootstrap, flow.topic, [b"foreign"] * 100)


def write_to_the_copy(flow: Flow) -> None:
    produce(flow.target, flow.topic, [b"foreign"] * 50)
    produce(flow.source, flow.topic, values(50))


def hang(flow: Flow) -> None:
    """Its task reported that both are equal, before the copy was written to and the source grew."""
    write_to_the_copy(flow)
    key = PartitionStatus.key_of(flow.topic, 0)
    before = PartitionStatus.from_json(flow.journal()[key])
    hangs = replace(before, instance=ELSEWHERE.instance, state=State.CAUGHT_UP, next_offset=150, log_end=150)
    flow.append((OWNER, ELSEWHERE.to_json()), (key, hangs.to_json()))


@pytest.mark.proves("never-silent", "nothing-by-name-alone", "RECREATED", "DIVERGED")
@pytest.mark.parametrize(
    ("harm", "state", "reason"),
    [
        (lambda flow: make_anew(flow.target, flow), None, "the target topic is another one than was mirrored to"),
        (lambda flow: make_anew(flow.source, flow), "RECREATED", "the source topic is another one than was mirrored"),
        (write_to_the_copy, "DIVERGED", "the target holds other records than the source"),
        (hang, "DIVERGED", "the target holds other records than the source"),
    ],
    ids=["copy made anew", "source made anew", "copy written to", "reported equal since"],
)
def test_a_copy_that_is_not_its_source_is_not_reported_as_whole(
    flow: Flow, harm: Callable[[Flow], None], state: str | None, reason: str
) -> None:
    """Whatever the journal says: both topics are compared. Each holds as many records as its source."""
    harm(flow)
    commit(flow.source, flow.topic, flow.topic, 40)
    found = flow.fail_over(ExitCode.DATA_AT_RISK, rehearse=True)
    (partition,) = found["partitions"]
    assert (found["whole"], found["rpo"]["certain"], partition["doubt"]) == (False, False, reason)
    assert found["rpo"]["records"] == partition["source_end"], "of none of them it is known that it got over"
    assert state is None or partition["state"] == state
    assert [one["target_offset"] for one in found["group_offsets_not_reached"]] == [None]


@pytest.mark.proves("never-silent")
def test_a_copy_that_could_not_be_checked_is_in_doubt(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flow is ended by then, so that the account names what failed, and the exit code does not say: unchanged."""

    async def failing(*_: object) -> None:
        raise ClusterUnreachable("no answer")

    commit(flow.source, flow.topic, flow.topic, 40)
    monkeypatch.setattr("mirror.commands.failover.doubts_of", failing)
    done = flow.fail_over(ExitCode.DATA_AT_RISK)
    assert done["warnings"] == ["could not check the copies: no answer"]
    (partition,) = done["partitions"]
    assert (partition["whole"], partition["certain"], partition["doubt"]) == (False, False, UNCHECKED.reason)
    assert [one["cause"] for one in done["group_offsets_not_reached"]] == [UNCHECKED.reason]
    assert committed(flow.target, flow.topic, flow.topic) < 0


@pytest.mark.proves("never-silent")
def test_what_the_ends_of_the_copies_do_not_show_is_named(flow: Flow) -> None:
    """Records that somebody deleted of a copy, a partition that was never mirrored, and a topic that the mirror copies
    and this configuration leaves out.
    """
    other = f"{flow.topic}-b"
    make_topic(flow.source, other)
    flow.includes(flow.topic, other)
    flow.copies()
    flow.includes(flow.topic)
    grow(flow.source, flow.topic, 2)
    produce(flow.source, flow.topic, values(5), partition=1)
    delete_records(flow.target, flow.topic, 10)
    found = flow.fail_over(ExitCode.DATA_AT_RISK, rehearse=True)
    assert found["rpo"]["records"] == 5
    left_out, deleted, missing = sorted(found["warnings"], key=len, reverse=True)
    assert f"by which it copied {other}, too" in left_out
    assert deleted.startswith(f"{flow.topic}-0: the target deleted offsets 0 to 9, which the source has")
    assert missing == f"{flow.topic}-1 was never mirrored: nothing of it is on the target"


@pytest.mark.proves("never-silent")
def test_what_lies_behind_an_open_transaction_did_not_get_over(flow: Flow) -> None:
    """A reader of committed records sees none of it, and its producers had their acknowledgments all the same."""
    producer = Producer({"bootstrap.servers": flow.source, "transactional.id": flow.topic})
    producer.init_transactions(120)
    producer.begin_transaction()
    for value in values(5):
        producer.produce(flow.topic, value)
    assert not producer.flush(120)
    produce(flow.source, flow.topic, values(5))
    done = flow.fail_over(ExitCode.DATA_AT_RISK)
    producer.abort_transaction(120)
    (partition,) = done["partitions"]
    assert (done["whole"], done["rpo"]["records"]) == (False, 10)
    assert (partition["position"], partition["source_end"], partition["open_transaction_from"]) == (100, 110, 100)


@pytest.mark.proves("mirror accept", "never-silent")
def test_a_copy_that_was_compacted_is_named_until_somebody_accepts_it(
    flow: Flow, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its cleaner may have removed what that of the source, which was compacted for a moment, has kept."""
    for policy in ("compact", "delete"):
        configure(flow.source, flow.topic, cleanup_policy=policy)
        flow.copies()
    (loss,) = flow.fail_over(ExitCode.NOT_WHOLE, rehearse=True)["accepted_losses"]
    assert loss["reason"] == "compaction"
    assert accept(flow.settings, flow.topic, (), unconfirmed=False, as_json=False) == ExitCode.DONE
    assert "accepted what may be missing (reason compaction)" in capsys.readouterr().out
    assert flow.fail_over()["whole"]


@pytest.mark.proves("never-silent")
def test_a_topic_that_is_gone_keeps_no_other_one_from_being_copied(flow: Flow) -> None:
    """Preflight would not start such a flow."""
    other = f"{flow.topic}-b"
    make_topic(flow.source, other)
    produce(flow.source, other, values(5))
    flow.includes(flow.topic, other)
    flow.copies()
    delete_topics(flow.source, other)
    delete_topics(flow.target, other)
    produce(flow.source, flow.topic, values(50))
    done = flow.fail_over(ExitCode.DATA_AT_RISK)
    assert any(text.startswith("what was missing could not be copied: ") and other in text for text in done["warnings"])
    one, gone = sorted(done["partitions"], key=lambda partition: len(partition["topic"]))
    assert (one["whole"], one["position"]) == (True, 150)
    assert (gone["whole"], gone["certain"], gone["position"]) == (False, False, None)
    assert gone["doubt"].endswith(f"there is no partition {other}-0")


@pytest.mark.proves("PAUSED", "mirror pause")
def test_a_paused_topic_is_not_copied_any_further_and_its_groups_follow(flow: Flow) -> None:
    """What the copy has is its source's, so that offsets mean the same."""
    produce(flow.source, flow.topic, values(50))
    commit(flow.source, flow.topic, flow.topic, 90)
    commit(flow.target, flow.topic, flow.topic, 10)
    flow.append(pause_entry(flow.topic))
    done = flow.fail_over(ExitCode.DATA_AT_RISK)
    assert (done["rpo"]["records"], done["partitions"][0]["position"]) == (50, 100)
    (warning,) = done["warnings"]
    assert warning.startswith(f"{flow.topic} is paused, so that it was not copied any further; `mirror failover")
    assert warning.endswith(f"and then `mirror resume CONFIG {flow.topic}` lets it go on")
    assert (done["groups"], done["group_offsets_not_reached"]) == ({"synced": 1}, [])
    assert committed(flow.target, flow.topic, flow.topic) == 90


def gaps(account: Any) -> list[tuple[Any, ...]]:
    """What is named of groups: where each stands, where it goes on, what it reads again and what it misses."""
    fields = "source_offset", "target_offset", "reads_again", "misses"
    return [tuple(one[name] for name in fields) for one in account["group_offsets_not_reached"]]


@pytest.mark.proves("never-silent")
def test_groups_that_do_not_go_on_where_they_stood_are_named(flow: Flow) -> None:
    """Somebody wrote to the copy, so that nobody knows what an offset means there: none is moved."""
    ahead, behind, nowhere = (f"{flow.topic}-{name}" for name in ("ahead", "behind", "nowhere"))
    for group, source, target in ((ahead, 20, 70), (behind, 90, 10), (nowhere, 40, None)):
        commit(flow.source, group, flow.topic, source)
        if target is not None:
            commit(flow.target, group, flow.topic, target)
    produce(flow.target, flow.topic, [b"foreign"] * 10)
    produce(flow.source, flow.topic, values(30))
    done = flow.fail_over(ExitCode.DATA_AT_RISK)
    assert gaps(done) == [(20, 70, 0, 50), (90, 10, 80, 0), (40, None, 40, 70)]
    for one in done["group_offsets_not_reached"]:
        assert one["cause"] == UNLIKE[State.DIVERGED]
    assert [committed(flow.target, group, flow.topic) for group in (ahead, behind)] == [70, 10]


@pytest.mark.proves("never-silent")
def test_groups_behind_the_end_of_a_copy_are_put_back_or_named(flow: Flow, free_port: int) -> None:
    """It lost its tail: they would skip what is written there next. One that read on there is left where it is."""
    produce(flow.source, flow.topic, values(50))
    flow.append(pause_entry(flow.topic))
    follows, alone = f"{flow.topic}-1", f"{flow.topic}-2"
    for group, source, target in ((follows, 140, 140), (alone, 20, 130)):
        commit(flow.source, group, flow.topic, source)
        commit(flow.target, group, flow.topic, target)
    settings = flow.settings
    flow.reaches_source_at(f"127.0.0.1:{free_port}")
    away = flow.fail_over(ExitCode.DATA_AT_RISK, rehearse=True, source_s=1.0)
    assert gaps(away) == [(None, 140, 0, 40), (None, 130, 0, 30)]
    for one in away["group_offsets_not_reached"]:
        assert one["cause"].startswith("it stands behind the end of the copy")
        assert "put it to offset 100" in one["cause"]
    flow.settings = settings
    done = flow.fail_over(ExitCode.DATA_AT_RISK)
    assert gaps(done) == [(140, 100, 0, 0), (20, 130, 0, 110)]
    assert [one["cause"].partition(",")[0] for one in done["group_offsets_not_reached"]] == [
        "the target ends at offset 100",
        "it stands behind the end of the copy",
    ]
    assert [committed(flow.target, group, flow.topic) for group in (follows, alone)] == [100, 130]


@pytest.mark.proves("never-silent")
def test_no_group_is_put_below_the_log_start_of_the_copy(flow: Flow) -> None:
    """A consumer would fall back on auto.offset.reset there. What it passes over is named where the source has it."""
    delete_records(flow.target, flow.topic, 90)
    delete_records(flow.source, flow.topic, 30)
    early, late = f"{flow.topic}-1", f"{flow.topic}-2"
    commit(flow.source, early, flow.topic, 40)
    commit(flow.source, late, flow.topic, 95)
    done = flow.fail_over(ExitCode.DATA_AT_RISK)
    assert done["groups"] == {"expired": 1, "synced": 1}
    assert gaps(done) == [(40, 90, 0, 50)]
    assert "of which the source still has 50" in done["group_offsets_not_reached"][0]["cause"]
    assert [committed(flow.target, group, flow.topic) for group in (early, late)] == [90, 95]


@pytest.mark.proves("never-silent")
def test_a_mirror_that_fell_silent_is_named_and_what_it_left_is_copied(
    flow: Flow, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be frozen on its machine, and write when it wakes."""
    produce(flow.source, flow.topic, values(50))
    flow.append((OWNER, ELSEWHERE.to_json()))
    reaching = JournalSnapshot.reaching

    async def later(*args: Any) -> Any:
        clock.move(DEADLINE_S + 1)
        return await reaching(*args)

    monkeypatch.setattr(JournalSnapshot, "reaching", later)
    done = flow.fail_over(ExitCode.DATA_AT_RISK)
    assert (done["rpo"]["records"], done["partitions"][0]["position"]) == (0, 150)
    (warning,) = done["warnings"]
    assert "(pid 1 on elsewhere) is silent, and did not say that it ended" in warning


@pytest.mark.proves("exactly-once")
def test_a_failover_that_was_interrupted_is_finished_by_the_next_call(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed behind the end of the flow: groups were nowhere, and nobody could put them anywhere any more."""
    commit(flow.source, flow.topic, flow.topic, 40)
    produce(flow.source, flow.topic, values(50))

    async def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_FailoverRun, "check", killed)
        with pytest.raises(KeyboardInterrupt):
            flow.fail_over()
    assert committed(flow.target, flow.topic, flow.topic) < 0
    begun = flow.journal()[KEY]
    with pytest.raises(PreflightError):
        flow.fail_over(rehearse=True)
    done = flow.fail_over()
    assert (done["partitions"][0]["position"], done["groups"]) == (150, {"synced": 1})
    assert committed(flow.target, flow.topic, flow.topic) == 40
    assert flow.journal()[KEY] == begun, "it began then"


@pytest.mark.proves("exactly-once")
@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("drain", r"before the failover was recorded, .* Run it again if it is meant"),
        ("_prove_ended", r"was taken back .* while it ran: nothing more is done"),
    ],
    ids=["before its record", "behind its record"],
)
def test_a_failover_that_others_took_back_meanwhile_ends_nobody(
    flow: Flow, monkeypatch: pytest.MonkeyPatch, step: str, message: str
) -> None:
    """Nor does it move a group: the flow may run for others by now."""
    commit(flow.source, flow.topic, flow.topic, 40)
    taken = getattr(_FailoverRun, step)

    async def overtaken(*args: Any) -> None:
        await taken(*args)
        await asyncio.to_thread(flow.append, (KEY, FailedOver.here().to_json()))
        await asyncio.to_thread(flow.append, (ACCOUNT, None), (KEY, None))

    with monkeypatch.context() as patch:
        patch.setattr(_FailoverRun, step, overtaken)
        with pytest.raises(PreflightError, match=message):
            flow.fail_over()
    assert KEY not in flow.journal()
    assert committed(flow.target, flow.topic, flow.topic) < 0
    flow.copies()
    assert flow.fail_over()["groups"] == {"synced": 1}, "as the message says"


@pytest.mark.proves("exactly-once")
@pytest.mark.parametrize("is_taken", [False, True])
def test_a_suspended_failover_goes_on_unless_another_mirror_has_the_flow(
    flow: Flow, clock: MovableClock, monkeypatch: pytest.MonkeyPatch, *, is_taken: bool
) -> None:
    """As on a laptop that slept, or a machine that had too much to do for a moment."""
    produce(flow.source, flow.topic, values(50))
    drain = _FailoverRun.drain

    async def suspended(*args: Any) -> None:
        await drain(*args)
        if is_taken:
            await asyncio.to_thread(flow.append, (OWNER, ELSEWHERE.to_json()))
        clock.move(3600)

    monkeypatch.setattr(_FailoverRun, "drain", suspended)
    if not is_taken:
        assert flow.fail_over()["partitions"][0]["position"] == 150
        return
    with pytest.raises(PreflightError, match=r"another mirror \(pid 1 on elsewhere\) took the flow .* Run it again"):
        flow.fail_over()
    assert KEY not in flow.journal()


@contextmanager
def feeding(flow: Flow) -> Iterator[None]:
    """Write to the source all the while."""
    is_over = Event()

    def feed() -> None:
        producer = Producer({"bootstrap.servers": flow.source, "linger.ms": 5})
        while not is_over.wait(0.002):
            producer.produce(flow.topic, b"more", partition=0)
            producer.poll(0)
        producer.flush(DEADLINE_S)

    with ThreadPoolExecutor(1) as threads:
        threads.submit(feed)
        try:
            yield
        finally:
            is_over.set()


@pytest.mark.proves("mirror run")
def test_a_running_mirror_copies_the_rest_and_ends_in_good_order(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rehearsed, it goes on; a log that grows while it is compared is no other one."""
    monkeypatch.setattr(Owner, "is_gone", property(lambda _: False))  # it runs in the process of the command
    context: Any = InThisProcess()
    mirror = Supervisor(context, prepare(flow.settings), lambda _: None)
    commit(flow.source, flow.topic, flow.topic, 40)

    def story() -> None:
        until(lambda: committed(flow.target, flow.topic, flow.topic) == 40)
        with feeding(flow):
            rehearsed = flow.fail_over(rehearse=True)
        assert (rehearsed["whole"], rehearsed["warnings"]) == (True, [])
        assert KEY not in flow.journal()
        end = ends(flow.source, flow.topic)[0]
        commit(flow.source, flow.topic, flow.topic, end - 10)
        done = flow.fail_over()
        assert (done["whole"], done["warnings"]) == (True, []), "it said that it ended"
        assert end_of(flow.target, flow.topic) == end
        assert committed(flow.target, flow.topic, flow.topic) == end - 10

    assert run_beside(mirror, story).exit_code == ExitCode.DONE
