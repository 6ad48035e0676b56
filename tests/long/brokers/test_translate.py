"""Offsets that move: every record once and in order, and an exact translation of every one, judged by kafka-python."""

from __future__ import annotations

import asyncio
import time
from random import Random
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from helpers import RECENT_MS, make_topic, mirror_once, produce, settings_between, stored_batches
from samerecords import read
from transactional import CLEANED, transactions, wait_until_cleaned, write_over
from translated_copies import assert_translated, copied, deleted, index_of, pair, trim, verified

from mirror.commands.offsets_translate import _translate
from mirror.errors import ConfigError, PartitionStop
from mirror.journal.journal import Journal, journal_topic
from mirror.journal.offset_maps import Indexes, forget_expired
from mirror.journal.ownership import FailedOver
from mirror.kafka.admin import Admin
from mirror.kafka.cluster import Cluster as WireCluster
from mirror.kafka.cluster import Endpoint, TopicPartition
from mirror.policy.rules import NEEDS_ALTER, Severity
from mirror.replication import offset_map
from mirror.states import State
from mirror.topics.adoption import tails
from mirror.topics.apply import plan_topics
from mirror.topics.plan import plan_flow

__all__ = ["pair"]

pytestmark = pytest.mark.brokers

MODES = ("preserve", "translate")


def test_transactions(pair: tuple[str, str], topic_name: str) -> None:
    """A third aborted; plain records in between; and each run goes on where the last one ended."""
    random = Random(7)
    make_topic(pair[0], topic_name)
    for number in range(4):
        produce(pair[0], topic_name, [b"plain %d" % number] * 20)
        transactions(pair[0], topic_name, [random.random() > 0.3 for _ in range(20)], name=str(number))
        found = copied(pair, topic_name)
        assert found.lag_records == 0
    assert found.verdicts["DROP/aborted"] > 0
    count = assert_translated(pair, topic_name)
    stored = stored_batches(pair[1], topic_name)
    assert stored[-1].header.next_offset == count, "nothing but records"


@pytest.mark.parametrize("records_runs", [False, True])
def test_runs_that_were_not_recorded_are_found_again(
    pair: tuple[str, str], topic_name: str, *, records_runs: bool
) -> None:
    make_topic(pair[0], topic_name)
    transactions(pair[0], topic_name, [True, False, True, True], name="one")
    copied(pair, topic_name, records_runs=records_runs)
    before = index_of(pair, topic_name)
    assert bool(len(before)) is records_runs
    transactions(pair[0], topic_name, [True, False, True], name="two")
    copied(pair, topic_name, records_runs=False)
    transactions(pair[0], topic_name, [False, True], name="three")
    copied(pair, topic_name)
    assert assert_translated(pair, topic_name) == 30


def test_a_lost_journal_is_made_anew(pair: tuple[str, str], topic_name: str) -> None:
    make_topic(pair[0], topic_name)
    for number in range(3):
        produce(pair[0], topic_name, [b"%d" % index for index in range(100)], codec="zstd")
        transactions(pair[0], topic_name, [True, False], name=str(number))
    copied(pair, topic_name)
    admin = AdminClient({"bootstrap.servers": pair[1]})
    admin.delete_topics([journal_topic(topic_name)])[journal_topic(topic_name)].result(20)
    transactions(pair[0], topic_name, [True], name="last")
    deadline = time.monotonic() + 20
    while journal_topic(topic_name) in admin.list_topics(timeout=10).topics:
        assert time.monotonic() < deadline
    copied(pair, topic_name)
    assert assert_translated(pair, topic_name) == 320


def test_a_compacted_topic_closes_up(pair: tuple[str, str], topic_name: str) -> None:
    make_topic(pair[0], topic_name, configs=CLEANED)
    wait_until_cleaned(pair[0], topic_name, write_over(pair[0], topic_name))
    make_topic(pair[1], topic_name)
    found = copied(pair, topic_name)
    assert any(reason.startswith("REWRITE/holes") for reason in found.verdicts), found
    assert assert_translated(pair, topic_name) <= 1000
    many = sum(1 for one in stored_batches(pair[0], topic_name) if one.header.count)
    assert len(stored_batches(pair[1], topic_name)) == many, "a batch with holes stays one"


def test_what_was_compacted_after_it_was_mirrored(pair: tuple[str, str], topic_name: str) -> None:
    """And before it was recorded where it went: what is left is found, the rest is where the holes are."""
    make_topic(
        pair[0],
        topic_name,
        configs={**CLEANED, "min.compaction.lag.ms": "8000", "max.compaction.lag.ms": "8001"},
    )
    make_topic(pair[1], topic_name)
    client = write_over(pair[0], topic_name)
    every = {one[4]: one[0] for one in read(pair[0], topic_name, 0)}
    copied(pair, topic_name, records_runs=False)
    wait_until_cleaned(pair[0], topic_name, client)
    left = {one[4] for one in read(pair[0], topic_name, 0)}
    assert len(left) < len(every)
    client.produce(topic_name, b"more", key=b"more", partition=0)
    client.flush(20)
    copied(pair, topic_name)
    index = index_of(pair, topic_name)
    for target, *_, value, _ in read(pair[1], topic_name, 0):
        if value in left and value in every:
            assert index.to_source(target) == every[value]
            assert index.to_target(every[value]) == target


def test_a_source_that_begins_late(pair: tuple[str, str], topic_name: str) -> None:
    """No padding: the target begins at 0."""
    make_topic(pair[0], topic_name)
    produce(pair[0], topic_name, [b"%d" % index for index in range(100)])
    trim(pair[0], topic_name, 55)
    copied(pair, topic_name)
    assert stored_batches(pair[1], topic_name)[0].header.base_offset == 0
    assert assert_translated(pair, topic_name) == 45
    transactions(pair[0], topic_name, [True])
    copied(pair, topic_name)
    assert assert_translated(pair, topic_name) == 50


def test_what_the_source_deleted_before_it_was_mirrored(pair: tuple[str, str], topic_name: str) -> None:
    make_topic(pair[0], topic_name)
    produce(pair[0], topic_name, [b"%d" % index for index in range(100)])
    copied(pair, topic_name)
    produce(pair[0], topic_name, [b"%d" % index for index in range(100, 200)])
    trim(pair[0], topic_name, 150)
    found = copied(pair, topic_name, State.RETENTION_GAP)
    assert (found.next_offset, "offsets 100 to 149" in found.detail) == (100, True)
    found = copied(pair, topic_name, on_data_loss="continue")
    assert (found.lost, found.next_offset) == (50, 200)
    assert copied(pair, topic_name).lost == 0, "reported once"
    index = index_of(pair, topic_name)
    assert [(run.source, run.target, run.length) for run in index] == [(0, 0, 100), (150, 100, 50)]
    assert [index.to_target(offset) for offset in (99, 100, 149, 150, 199)] == [99, 100, 100, 100, 149]


def test_what_the_target_lost_is_mirrored_again(pair: tuple[str, str], topic_name: str) -> None:
    """A target topic made anew begins anew, whatever the journal holds."""
    make_topic(pair[0], topic_name)
    transactions(pair[0], topic_name, [True] * 10)
    copied(pair, topic_name)
    delete(pair[1], topic_name)
    copied(pair, topic_name)
    assert assert_translated(pair, topic_name) == 50


def delete(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(20)
    deadline = time.monotonic() + 20
    while topic in admin.list_topics(timeout=10).topics:
        assert time.monotonic() < deadline


def test_a_target_made_anew_for_what_the_source_still_has(pair: tuple[str, str], topic_name: str) -> None:
    """The mirror dies before it records where that went: runs of the former target must not show it where to go on."""
    make_topic(pair[0], topic_name)
    produce(pair[0], topic_name, [b"%d" % index for index in range(100)])
    copied(pair, topic_name)
    trim(pair[0], topic_name, 60)
    delete(pair[1], topic_name)
    copied(pair, topic_name, records_runs=False, on_data_loss="continue")
    copied(pair, topic_name, on_data_loss="continue")
    assert assert_translated(pair, topic_name) == 40


@pytest.mark.parametrize("records_runs", [False, True])
def test_a_source_that_is_cut_back(pair: tuple[str, str], topic_name: str, *, records_runs: bool) -> None:
    make_topic(pair[0], topic_name)
    values = [b"%d" % index for index in range(100)]
    produce(pair[0], topic_name, values)
    copied(pair, topic_name, records_runs=records_runs)
    delete(pair[0], topic_name)
    make_topic(pair[0], topic_name)
    produce(pair[0], topic_name, values[:60])
    found = copied(pair, topic_name, State.TRUNCATED)
    assert ("ends at 60" in found.detail, found.next_offset) == (True, 100 if records_runs else 60)


@pytest.mark.parametrize("records_runs", [False, True])
def test_a_source_topic_that_is_another_one(pair: tuple[str, str], topic_name: str, *, records_runs: bool) -> None:
    make_topic(pair[0], topic_name)
    produce(pair[0], topic_name, [b"%d" % index for index in range(20)])
    copied(pair, topic_name, records_runs=records_runs)
    make_topic(pair[0], f"{topic_name}.other")
    produce(pair[0], f"{topic_name}.other", [b"other %d" % index for index in range(40)])
    naming = {"rename": {f"{topic_name}.other": topic_name}}
    found = mirror_once(*pair, [f"{topic_name}.other"], flow=topic_name, offsets="translate", naming=naming)
    assert found[TopicPartition(f"{topic_name}.other", 0)].state is State.DIVERGED, found


def test_a_foreign_record_in_the_target(pair: tuple[str, str], topic_name: str) -> None:
    make_topic(pair[0], topic_name)
    produce(pair[0], topic_name, [b"%d" % index for index in range(20)])
    copied(pair, topic_name)
    produce(pair[1], topic_name, [b"foreign"])
    produce(pair[0], topic_name, [b"%d" % index for index in range(20)])
    found = copied(pair, topic_name, State.DIVERGED)
    assert "at offset 20 of the target, the record is not the source's at offset 20" in found.detail
    assert [str(one.kind) for one in verified(pair, topic_name).differences] == ["stray"]


def test_a_topic_that_was_mirrored_with_equal_offsets(pair: tuple[str, str], topic_name: str) -> None:
    """Nobody wrote to it, and it goes on with equal offsets."""
    make_topic(pair[0], topic_name)
    transactions(pair[0], topic_name, [True, True])
    mirror_once(*pair, [topic_name], flow=topic_name)
    found = copied(pair, topic_name, State.REFUSED)
    assert "a control marker of this flow" in found.detail
    assert "Set topics.offsets to preserve, as the copy was begun" in found.detail
    transactions(pair[0], topic_name, [True])
    again = mirror_once(*pair, [topic_name], flow=topic_name)[TopicPartition(topic_name, 0)]
    assert (again.state, again.next_offset) == (State.CAUGHT_UP, 18)


@pytest.mark.parametrize("expires", [False, True])
def test_a_copy_whose_offsets_moved_is_none_with_equal_offsets(
    pair: tuple[str, str], topic_name: str, *, expires: bool
) -> None:
    """Its end is not the source's offset by that number: what lies between would be copied twice. Nothing of it can be
    compared where it expired. It goes on as it was begun.
    """
    make_topic(pair[0], topic_name)
    transactions(pair[0], topic_name, [False, True, True])
    copied(pair, topic_name)
    if expires:
        trim(pair[1], topic_name, 10)
    planned = [plan_flow(settings_between(*pair, [topic_name], topic_name, offsets=how)) for how in MODES]
    assert [[one for one in plan.refusals if "as the copy was begun" in one] != [] for plan in planned] == [True, False]
    found = mirror_once(*pair, [topic_name], flow=topic_name)[TopicPartition(topic_name, 0)]
    assert (found.state, found.records) == (State.REFUSED, 0), found
    assert "offset 10 of the target goes with offset 18 of the source" in found.detail
    assert "Set topics.offsets to translate, as the copy was begun" in found.detail
    transactions(pair[0], topic_name, [True])
    assert copied(pair, topic_name).records == 5
    assert [one[0] for one in read(pair[1], topic_name, 0)] == list(range(10 if expires else 0, 15))


def test_batches_split_and_joined(pair: tuple[str, str], topic_name: str) -> None:
    """The target takes smaller batches, or tiny ones are joined."""
    make_topic(pair[0], topic_name)
    make_topic(pair[1], topic_name, configs={"max.message.bytes": "2000"})
    produce(pair[0], topic_name, [bytes(300)] * 100, batch=50)
    transactions(pair[0], topic_name, [True, False])
    produce(pair[0], topic_name, [b"tiny"] * 50, batch=2, begin_ms=RECENT_MS + 1000)
    found = copied(pair, topic_name, coalesce_bytes=1024)
    assert found.verdicts["REWRITE/too_large"]
    assert found.verdicts["REWRITE/coalesced"]
    assert assert_translated(pair, topic_name) == 155


def test_a_target_without_the_right_to_write_markers(
    pair: tuple[str, str], topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan refuses equal offsets where they surely need markers, and warns of the rest."""
    plain, compact = topic_name, f"{topic_name}-compact"
    make_topic(pair[0], plain)
    make_topic(pair[0], compact, configs={"cleanup.policy": "compact"})

    def shown(offsets: str) -> list[tuple[Severity, str]]:
        settings = settings_between(*pair, [plain, compact], flow=topic_name, offsets=offsets)
        plan = plan_topics(Admin(settings.source), Admin(settings.target), settings)
        return [(one.severity, one.topic) for one in plan.findings if NEEDS_ALTER in one.text]

    assert shown("preserve") == []
    monkeypatch.setattr(Admin, "may_write_markers", lambda _: False)
    assert shown("preserve") == [(Severity.ADVISE, ""), (Severity.REFUSE, compact)]
    assert shown("translate") == []


def test_runs_of_records_that_the_target_deleted_go(
    pair: tuple[str, str], topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_map, "RUNS_IN_A_RECORD", 4)
    make_topic(pair[0], topic_name)
    transactions(pair[0], topic_name, [True] * 12)
    copied(pair, topic_name)
    trim(pair[1], topic_name, 31)

    async def forget() -> None:
        host, port = pair[1].split(":")
        async with WireCluster(Endpoint("any", ((host, int(port)),))) as cluster:
            await cluster.refresh([journal_topic(topic_name), topic_name])
            journal = Journal(cluster, topic_name)
            await forget_expired(journal, Indexes((await journal.read())[0]))

    asyncio.run(forget())
    index = index_of(pair, topic_name)
    assert [piece.begin for piece in index.pieces] == [20, 40]
    assert (index.to_source(19), index.to_source(20)) == (None, 24)
    transactions(pair[0], topic_name, [True] * 2, name="more")
    copied(pair, topic_name)
    assert verified(pair, topic_name).topics[0].records == 39
    ours = {one[0]: one[1:] for one in read(pair[1], topic_name, 0)}
    index = index_of(pair, topic_name)
    assert {index.to_target(one[0]): one[1:] for one in read(pair[0], topic_name, 0) if one[0] >= 37} == ours


def test_runs_that_are_wrong_are_found_by_verify(pair: tuple[str, str], topic_name: str) -> None:
    make_topic(pair[0], topic_name)
    transactions(pair[0], topic_name, [True] * 3)
    copied(pair, topic_name)
    write(
        pair[1],
        topic_name,
        {f"runs/{topic_name}/0/0".encode(): b'{"source":0,"target":0,"runs":[5,2,5,1,5],"next":18}'},
    )
    report = verified(pair, topic_name)
    assert not report.equal
    assert {str(one.kind) for one in report.differences} <= {"missing", "extra", "stray", "value"}


def write(bootstrap: str, flow: str, entries: dict[bytes, bytes]) -> None:
    client = Producer({"bootstrap.servers": bootstrap})
    for key, value in entries.items():
        client.produce(journal_topic(flow), value, key=key, partition=0)
    client.flush(20)


def test_a_target_that_lost_more_than_the_newest_runs_cover_is_no_strangers(
    pair: tuple[str, str], topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever only looks at it finds what a task would: nobody is to delete a good copy that goes on by itself."""
    monkeypatch.setattr(offset_map, "RUNS_IN_A_RECORD", 4)
    make_topic(pair[0], topic_name)
    transactions(pair[0], topic_name, [True] * 10)
    copied(pair, topic_name)
    transactions(pair[0], topic_name, [True] * 4, name="lost")  # as if their copies had been there, too
    runs = f"runs/{topic_name}/0/"
    lost = {
        f"{runs}40": b'{"source":48,"target":40,"runs":[5,1,5,1,5,1,5],"next":72}',
        f"{runs}60": b'{"source":72,"target":60,"runs":[5,1,5],"next":84}',
    }
    write(pair[1], topic_name, {key.encode(): value for key, value in lost.items()})
    assert index_of(pair, topic_name).end == 70

    settings = settings_between(*pair, [topic_name], flow=topic_name, offsets="translate")
    plan = plan_topics(Admin(settings.source), Admin(settings.target), settings)
    assert asyncio.run(tails(settings, plan.pairs, plan, {})) == {}
    assert asked(pair, topic_name, 58, offsets="translate") == 49
    with pytest.raises(ConfigError, match="not mirrored yet"):
        asked(pair, topic_name, 72, offsets="translate")
    report = verified(pair, topic_name)
    assert (report.topics[0].records, [*report.differences]) == (50, [])
    copied(pair, topic_name)
    assert assert_translated(pair, topic_name) == 70


# --- `mirror offsets translate` -------------------------------------------------------------------------------------


def asked(pair: tuple[str, str], topic: str, offset: int, flow: str = "", **more: Any) -> int:
    """Where an offset of partition 0 is on the target."""
    settings = settings_between(*pair, [topic], flow=flow or topic, **more)
    return asyncio.run(_translate(settings, TopicPartition(topic, 0), offset, reverse=False)).target_offset


@pytest.mark.parametrize("offsets", ["preserve", "translate"])
def test_offsets_are_translated_for_a_copy_alone(pair: tuple[str, str], topic_name: str, offsets: str) -> None:
    """Two topics of one name have offsets all the same: nothing is said of what the flow did not copy, or is not what
    it copied any more. Of a flow that was failed over, what it had copied is translated, whoever writes behind it.
    """
    source, target = pair
    make_topic(source, topic_name)
    make_topic(target, topic_name)
    produce(source, topic_name, [b"%d" % number for number in range(20)])
    produce(target, topic_name, [b"stranger %d" % number for number in range(20)])
    with pytest.raises(ConfigError, match="it is no copy of"):
        asked(pair, topic_name, 5, offsets=offsets)
    with pytest.raises(ConfigError, match="no such topic is mirrored"):
        asked(pair, topic_name, 5, exclude=[topic_name], offsets=offsets)
    with pytest.raises(ConfigError, match="a rule re-keys its records"):
        asked(pair, topic_name, 5, rules=[{"match": topic_name, "rekey": "key"}], offsets=offsets)
    deleted(target, topic_name)
    mirror_once(*pair, [topic_name], flow=topic_name, offsets=offsets)
    produce(source, topic_name, [b"more"] * 5)
    assert asked(pair, topic_name, 19, offsets=offsets) == 19
    with pytest.raises(ConfigError, match=r"not mirrored yet|none of them"):
        asked(pair, topic_name, 23, offsets=offsets)
    produce(target, topic_name, [b"stranger"] * 5)
    with pytest.raises(PartitionStop, match="DIVERGED"):
        asked(pair, topic_name, 23, offsets=offsets)
    write_entries(pair, topic_name, ("failover", FailedOver.here().to_json()))
    assert asked(pair, topic_name, 19, offsets=offsets) == 19, "these are applications' records behind the flow's"
    with pytest.raises(ConfigError, match=r"not mirrored yet|none of them"):
        asked(pair, topic_name, 23, offsets=offsets)
    write_entries(pair, topic_name, ("failover", None))
    deleted(target, topic_name)
    make_topic(target, topic_name)
    produce(target, topic_name, [b"stranger"] * 30)
    with pytest.raises(ConfigError, match="it is no copy of"):
        asked(pair, topic_name, 5, offsets=offsets)


@pytest.mark.parametrize("offsets", ["preserve", "translate"])
def test_no_offset_is_translated_for_another_source_topic(pair: tuple[str, str], topic_name: str, offsets: str) -> None:
    make_topic(pair[0], topic_name)
    produce(pair[0], topic_name, [b"%d" % number for number in range(20)])
    mirror_once(*pair, [topic_name], flow=topic_name, offsets=offsets)
    deleted(pair[0], topic_name)
    make_topic(pair[0], topic_name)
    produce(pair[0], topic_name, [b"other %d" % number for number in range(20)])
    with pytest.raises(PartitionStop, match="RECREATED"):
        asked(pair, topic_name, 5, offsets=offsets)


def write_entries(pair: tuple[str, str], flow: str, *entries: tuple[str, bytes | None]) -> None:
    """Write to a flow's journal."""

    async def append() -> None:
        host, port = pair[1].split(":")
        async with WireCluster(Endpoint("any", ((host, int(port)),))) as cluster:
            await cluster.refresh([journal_topic(flow)])
            await Journal(cluster, flow).append([(key.encode(), value) for key, value in entries])

    asyncio.run(append())
