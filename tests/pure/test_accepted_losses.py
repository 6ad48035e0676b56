"""Losses that a person or a policy accepted: as the journal keeps them, and as `mirror verify` passes over them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

from compared_logs import PAIR, end_after, kinds, log_of, some, stored
from recordoracle import Record

from mirror.journal.entries import COPIES, REKEYED, FirstSeen, Lost, loss_entry, losses_in
from mirror.journal.positions import standing_in
from mirror.kafka.cluster import TopicPartition
from mirror.policy.rules import Rules
from mirror.replication.assignment import Assignment, Loss
from mirror.verify.compare import LogBounds, compare
from mirror.verify.report import DifferenceKind, PartitionReport

AT = TopicPartition("orders", 0)
SEEN = FirstSeen(source_topic="orders", topic_id=uuid4(), target_topic_id=uuid4(), cluster_id="eu")


def compared(
    source: Sequence[bytes], target: Sequence[bytes], end: int, lost: Sequence[tuple[int, int]]
) -> PartitionReport:
    async def run() -> PartitionReport:
        bounds = LogBounds(0, end, 0, end, end)
        left, right = log_of(source, 0, end), log_of(target, 0, min(end, end_after(target)))
        left._losses = lost
        return await compare(PAIR, bounds, left, right, lost)

    return asyncio.run(run())


def test_a_loss_of_whole_batches_is_named_and_not_counted_as_equal() -> None:
    source = [stored(some(0, 1), base) for base in (0, 2, 4, 6)]
    report = compared(source, [source[0], source[3]], 8, [(2, 6)])
    assert (kinds(report), report.lost, report.lost_records) == ([], ((2, 6),), 4)
    assert (report.identical, report.batches) == (2, 4)
    assert report.source_digest != report.target_digest
    assert kinds(compared(source, [source[0], source[3]], 8, [(2, 5)])) == [(4, DifferenceKind.MISSING)]
    assert kinds(compared(source, [source[3]], 8, [(2, 6)])) == [(0, DifferenceKind.MISSING)]


def test_a_loss_of_one_record_of_a_batch() -> None:
    source, target = [stored(some(0, 1, 2, 3, 4))], [stored(some(0, 1, 3, 4))]
    report = compared(source, target, 5, [(2, 3)])
    assert (kinds(report), report.lost, report.lost_records, report.rewritten) == ([], ((2, 3),), 1, 0)
    assert kinds(compared(source, target, 5, [(1, 2)])) == [(2, DifferenceKind.MISSING)]


def test_what_is_there_is_compared_though_its_loss_was_accepted_once() -> None:
    source = [stored(some(0, 1), base) for base in (0, 2)]
    report = compared(source, source, 4, [(0, 4)])
    assert (kinds(report), report.lost, report.identical) == ([], (), 2)
    other = [source[0], stored([Record(0, value=b"other"), *some(1)], 2)]
    assert [offset for offset, _ in kinds(compared(source, other, 4, [(0, 4)]))] == [2]


def test_damage_on_the_source_is_passed_where_its_loss_was_accepted() -> None:
    source = [stored(some(0, 1), base) for base in (0, 2, 4)]
    flipped, torn = bytearray(source[1]), bytearray(source[1])
    flipped[-1] ^= 1
    torn[16] = 77  # a magic that nobody knows
    for damaged in (flipped, torn):
        log = [source[0], bytes(damaged), source[2]]
        report = compared(log, [source[0], source[2]], 6, [(2, 4)])
        assert (kinds(report), report.lost, report.identical) == ([], ((2, 4),), 2)
        assert kinds(compared(log, [source[0], source[2]], 6, []))


def test_losses_in_a_journal() -> None:
    at = TopicPartition("us.orders", 3)
    key, value = loss_entry(Loss(TopicPartition("orders", 3), at, 10, 20))
    damage = json.dumps({"topic": "orders", "first": 5, "next": 7, "at_ms": 1, "reason": "damage"}).encode()
    hostile = {b"loss/x": b"{}", b"loss/a/b/c": b"[]", b"loss/us.orders/3/9": b'{"first": 9, "next": 9}', b"loss/": b""}
    found = losses_in({key: value, b"loss/us.orders/3/5": damage, **hostile})
    assert found == {at: (Lost(5, 7, "damage"), Lost(10, 20, "retention"))}


def test_a_loss_of_another_source_topic_or_copy_by_that_name_does_not_count() -> None:
    now: dict[str, Any] = {"topic_id": SEEN.topic_id, "target_topic_id": SEEN.target_topic_id}
    counts, of_any = Loss(AT, AT, 10, 20, **now), Loss(AT, AT, 30, 31)
    former = [Loss(AT, AT, n, n + 1, **now | {key: uuid4()}) for n, key in enumerate(("topic_id", "target_topic_id"))]
    known = dict(map(loss_entry, [*former, counts, of_any])) | {COPIES.key("orders"): SEEN.to_json()}
    assert [(one.first, one.next_offset) for one in losses_in(known)[AT]] == [(10, 20), (30, 31)]
    standing = standing_in(known)
    assert standing.lost_of(AT, SEEN.topic_id, SEEN.target_topic_id) == ((10, 20), (30, 31))
    assignment = Assignment(AT, AT, SEEN.topic_id, Rules(), target_topic_id=SEEN.target_topic_id)
    assert standing.handed(assignment).losses == ((10, 20), (30, 31))


def test_a_loss_of_a_topic_that_was_copied_before_it_was_re_keyed_counts() -> None:
    """The record of the copy that it was stays in the journal."""
    known = {
        COPIES.key("orders"): replace(SEEN, target_topic_id=uuid4()).to_json(),
        REKEYED.key("orders"): SEEN.to_json(),
    }
    ids = SEEN.topic_id, SEEN.target_topic_id
    lost = [Loss(AT, AT, 0, 5, topic_id=ids[0], target_topic_id=each) for each in (uuid4(), ids[1])]
    assert losses_in(known | dict([loss_entry(lost[0])])) == {}
    assert losses_in(known | dict([loss_entry(lost[1])])) == {AT: (Lost(0, 5, "retention", *ids),)}
