"""What a mirror reports of re-keyed topics when it ends, and what a failover believes of them. Without Spark."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from groupoffsets import commit
from helpers import make_topic, produce, wait_for_markers
from rekey_story import COMPACTED, Story, rekeyed_file, story
from rekeychecker import read_committed
from syncing import delete_topics, ends
from topicadmin import delete_records
from typer.testing import CliRunner
from waiting import DEADLINE_S

from mirror.cli import app
from mirror.driver.start import record_rekeyed
from mirror.errors import ExitCode, Fenced
from mirror.kafka.cluster import Cluster as Wire
from mirror.kafka.transactions import Transaction
from mirror.spark.rekey.microbatch import MicroBatchPlan, RekeyStop, number_at, transactional_id
from mirror.spark.rekey.verify import RekeySubject, _behind, extent_of
from mirror.states import State
from mirror.verify.report import Lack

__all__ = ["story"]


def failed_over(config: Path, *options: str) -> tuple[int, Any]:
    """Return the exit code and the account of `mirror failover`."""
    done = CliRunner().invoke(app, ["failover", str(config), "--json", *options])
    assert done.stdout, (done.output, done.exception)
    return done.exit_code, json.loads(done.stdout)


@pytest.mark.proves("PAUSED", "never-silent", "mirror run")
@pytest.mark.parametrize("once", [True, False], ids=["once", "until caught up"])
def test_a_bounded_copy_ends_where_its_topic_is_paused_and_names_what_it_lacks(story: Story, *, once: bool) -> None:
    story.fill(0, 50)
    story.copied()
    story.says_that_it_ended()
    story.pauses(is_paused=True)
    story.fill(50, 90)
    outcome = story.ended(story.settings(), once=once)
    resume = f"`mirror resume CONFIG {story.topic}` lets it go on"
    assert outcome.exit_code == ExitCode.CLUSTER
    assert outcome.incomplete == f"{story.topic}-0: PAUSED at offset 50, paused; {resume}"
    assert [one.lag_records for one in outcome.figures.values()] == [40]
    assert len(read_committed(story.target, story.topic)) == 50


@pytest.mark.proves("never-silent", "mirror run", "mirror verify")
def test_what_an_open_transaction_holds_back_is_lag_and_is_named(
    story: Story, capfd: pytest.CaptureFixture[str]
) -> None:
    story.fill(0, 50)
    opened = story.open_transaction()
    story.fill(60, 80)
    subject = RekeySubject(flow=story.topic, rule=story.rule, source=story.flow.source, target=story.flow.target)

    def not_there_yet() -> list[tuple[Lack, int, int]]:
        extent = asyncio.run(extent_of(subject, 0.0))
        assert extent is not None
        return [(one.kind, one.first, one.next_offset) for one in _behind(subject, extent)]

    outcome = story.ended(story.settings(), once=True)
    (figures,) = outcome.figures.values()
    assert (outcome.exit_code, figures.state) == (ExitCode.DONE, State.CAUGHT_UP)
    assert (figures.next_offset, figures.log_end, figures.lag_records) == (50, 80, 30)
    assert f"{story.topic}-0 from offset 50" in capfd.readouterr().err
    assert not_there_yet() == [(Lack.BEHIND, 50, 80)]
    opened.commit_transaction(DEADLINE_S)
    wait_for_markers(story.source, story.topic)
    (figures,) = story.copied().figures.values()
    assert (figures.next_offset, figures.lag_records, not_there_yet()) == (81, 0, [])


@pytest.mark.proves("exactly-once", "mirror failover")
@pytest.mark.parametrize("is_whole", [False, True])
def test_a_failover_fences_a_re_keyed_topic_whose_driver_was_lost(story: Story, tmp_path: Path, is_whole: bool) -> None:
    """In its first micro-batch, and its tasks live on: what came over is known from the plans."""
    story.fill(0, 50)
    config = rekeyed_file(story, tmp_path)

    async def begun() -> MicroBatchPlan:
        driver = story.driver()
        async with driver._source, driver._target:
            assert await driver._take_over() is None
            await record_rekeyed(driver._source, driver.journal, story.rule, ())
            plan = await driver._planned()
            assert plan is not None
            return plan

    async def fenced() -> tuple[int, Any]:
        async with Wire(story.flow.target) as target:
            late = await Transaction.begin(target, transactional_id(story.rule, 1))
            account = await asyncio.to_thread(failed_over, config)
            with pytest.raises(Fenced):
                await late.join([number_at(story.rule, 1)])
            return account

    plan = asyncio.run(begun())
    for slot in range(2) if is_whole else [0]:
        story.write(plan, slot)
    code, account = asyncio.run(fenced())
    (partition,) = account["partitions"]
    assert (code, partition["whole"]) == (ExitCode.DONE if is_whole else ExitCode.DATA_AT_RISK, is_whole), account
    assert partition["rpo_records"] == (0 if is_whole else 50)
    for slot in range(2):
        with pytest.raises(RekeyStop, match="planned anew"):
            story.write(plan, slot)
    story.copied()  # as a mirror does once the failover is taken back
    assert sorted(int(one.value or b"") for one in read_committed(story.target, story.topic)) == [*range(50)]


def delete_all_records(story: Story) -> None:
    for partition, end in ends(story.target, story.topic).items():
        delete_records(story.target, story.topic, end, partition)


def replace_copy(story: Story) -> None:
    delete_topics(story.target, story.topic, story.progress)
    make_topic(story.target, story.topic, 4)
    make_topic(story.target, story.progress, 3, COMPACTED)


@pytest.mark.proves("never-silent", "mirror failover")
@pytest.mark.parametrize(
    ("happens", "reason"),
    [
        (
            lambda story: produce(story.target, story.topic, [b"foreign"]),
            "the target holds other records than the source",
        ),
        (delete_all_records, "the target deleted all that was re-keyed"),
        (replace_copy, "the target lost records that had got over"),
    ],
    ids=["foreign record", "emptied", "made anew"],
)
def test_a_failover_believes_no_report_that_the_target_belies(
    story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, happens: Callable[[Story], object], reason: str
) -> None:
    monkeypatch.setattr("mirror.commands.failover.GROUPS_SECONDS", 0.0)  # nobody lives who may have written just now
    story.fill(0, 50)
    story.copied()
    story.says_that_it_ended()
    config = rekeyed_file(story, tmp_path)
    happens(story)
    code, account = failed_over(config, "--rehearse")
    assert (code, account["whole"]) == (ExitCode.DATA_AT_RISK, False), account
    assert reason in json.dumps(account), account


@pytest.mark.proves("never-silent", "mirror failover")
def test_a_failover_names_groups_that_stand_on_a_re_keyed_topic(story: Story, tmp_path: Path) -> None:
    """Nobody puts them anywhere on the target: it is for whoever reads there."""
    story.fill(0, 50)
    story.copied()
    story.says_that_it_ended()
    group = f"{story.topic}-readers"
    commit(story.source, group, story.topic, 12)
    config = rekeyed_file(story, tmp_path, groups={"include": [group]})
    code, account = failed_over(config, "--rehearse")
    (gap,) = account["group_offsets_not_reached"]
    assert (code, account["whole"]) == (ExitCode.DATA_AT_RISK, False)
    assert (gap["group"], gap["source_offset"], gap["target_offset"]) == (group, 12, None)
    assert "the topic is re-keyed" in gap["cause"]
    commit(story.target, group, story.topic, 3)
    assert failed_over(config)[1]["group_offsets_not_reached"] == []
