"""What a mirror cannot write of a live log: which offsets it takes, so that these may be left out, and no others.

What a damaged header says cannot be believed. The next sound batch shows where the damage ends: a leader gives the
bytes of its log as they follow each other, whatever a header says, up to the end of a segment. Behind the last batch of
a segment the next segment shows it, and behind the last one of a log the log's end.

A sound batch may hold records that nobody can read, and one that must be rewritten a record that is too large for the
target: its header has the offsets. The target refuses the former where it goes as it is stored.

Decision: a policy leaves out no record for a limit that is about to be raised. Whoever raises `max.message.bytes` on
the source may write the first large record before the copy's limit follows.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from mirror.errors import BadRecords, MalformedBatch
from mirror.kafka.cluster import Cluster, TopicPartition
from mirror.kafka.fetch import Fetched, fetch_at, fetch_below
from mirror.kafka.queries import READ_COMMITTED, READ_UNCOMMITTED
from mirror.kafka.topic_configs import topic_configs
from mirror.policy.rules import Rules
from mirror.records.header import HEADER_BYTES, MAGIC_AT, RawBatch, crc_holds, parse_header, split
from mirror.records.recipe import Recipe
from mirror.records.segment import DamageKind, Walk
from mirror.records.transactions import Aborted
from mirror.replication.classifier import UNREADABLE, Action, classify

#: Bytes asked for, one after the other, until the next sound batch is among them.
_SIZES: Final = (1 << 20, 8 << 20, 64 << 20)
#: Of a base offset, with which a batch begins.
_OFFSET_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Damaged:
    """Offsets from `first` to before `next_offset` that a damaged batch takes, or what else cannot be written; none
    where nothing shows how far it reaches. `reason` is that of the loss (`assignment.Loss`). `epoch` is the leader
    epoch of the sound batch behind it, -1 where there is none. `is_last`: the answer that showed it ends with it.
    """

    first: int
    next_offset: int
    detail: str
    reason: str = "damage"
    epoch: int = -1
    is_last: bool = False

    def is_between(self, offsets: tuple[int, int] | None) -> bool:
        """Whether it is known how far it reaches, and all of it lies between two offsets."""
        if offsets is None or self.next_offset <= self.first:
            return False
        return offsets[0] <= self.first and self.next_offset <= offsets[1]


async def damaged_at(cluster: Cluster, partition: TopicPartition, offset: int) -> Damaged | None:
    """What is damaged from an offset on; None where the batch that holds it, or the next one, is sound, and where the
    log ends. Raises as `fetch_at` does.
    """
    found: Damaged | None = None
    for size in _SIZES:
        fetched = await fetch_at(cluster, partition, offset, max_bytes=size, isolation=READ_UNCOMMITTED)
        found = find_damage(fetched, offset)
        if found is None or found.next_offset > found.first:
            break
        if found.is_last and len(fetched.records) < size:
            return await _until_next_segment(cluster, partition, fetched, found)
    return found


async def _until_next_segment(cluster: Cluster, partition: TopicPartition, fetched: Fetched, last: Damaged) -> Damaged:
    """The same of a damaged batch with which an answer ends: a leader answers from one segment (Kafka's LocalLog.read).

    It gives the same batch for every offset up to the one with which that claims to end, or up to the end of the
    segment where it claims more, and for all later ones what stands behind. So the first offset for which it gives
    another one is found by halves, whatever the header claims.
    """
    asked, begins = last.first, bytes(fetched.records[:HEADER_BYTES])
    behind, other = (end := fetched.high_watermark), None
    while behind - asked > 1:
        between = (asked + behind) // 2
        try:
            answer = await fetch_below(
                cluster, partition, between, end, max_bytes=_SIZES[0], isolation=READ_UNCOMMITTED
            )
        except MalformedBatch:
            return last
        if bytes(answer.records[:HEADER_BYTES]) == begins:
            asked = between
        else:
            behind, other = between, answer
    if other is None or not other.records:  # nothing stands behind
        return replace(last, next_offset=max(last.first, end))
    walk = Walk(other.records, last.first)
    if next(iter(walk), None) is not None:
        return _until(other, 0, last)
    if (sound := walk.resume()) is not None:
        return _until(other, sound.position, last)
    further = await damaged_at(cluster, partition, behind)
    if further is None or further.next_offset <= further.first:
        return last
    return replace(last, next_offset=further.next_offset, epoch=further.epoch)


def find_damage(fetched: Fetched, offset: int) -> Damaged | None:
    """The same of one answer, as far as that shows."""
    walk = Walk(fetched.records)
    batches = iter(walk)
    first = next((raw for raw in batches if raw.header.last_offset >= offset), None)
    if first is not None:
        if not is_beyond(first, fetched) and (next(batches, None) or not _falls_back(walk, fetched, first, offset)):
            return None
        return Damaged(offset, offset, f"the batch at base offset {first.header.base_offset} is not where it says")
    if walk.damage is None:
        return None
    if walk.damage.kind is DamageKind.MAGIC and walk.announced is not None:
        stored = fetched.records[walk.position : walk.announced]
        if not lost_its_magic(RawBatch(parse_header(stored), stored)):
            return Damaged(offset, offset, str(walk.damage))
    damaged = Damaged(offset, offset, str(walk.damage))
    if (sound := walk.resume()) is None:
        return replace(damaged, is_last=walk.announced == len(fetched.records))
    return _until(fetched, sound.position, damaged)


def _until(fetched: Fetched, position: int, damaged: Damaged) -> Damaged:
    """Up to the sound batch at a position, unless what follows shows that its offset lies, which no CRC covers, or its
    first offset cannot be read.
    """
    behind = Walk(fetched.records, damaged.first, position=position)
    following = next(islice(behind, 1), None)
    for _ in behind:
        break
    lies = behind.damage is not None and behind.damage.kind is DamageKind.ORDER
    if following is None or (lies and behind.next_offset == following.header.next_offset):
        return damaged
    from mirror.records.rewrite import first_offset  # noqa: PLC0415 -- loads the compiler, seldom needed

    try:
        until = first_offset(following)
    except BadRecords:
        return damaged
    return replace(damaged, next_offset=max(damaged.first, until), epoch=following.header.partition_leader_epoch)


def lost_its_magic(raw: RawBatch) -> bool:
    """Whether a batch of unknown magic is one of a known magic but for that byte, which no CRC of magic 2 covers: by it
    the CRC holds, and the records can be read. One of a later format is not damaged.
    """
    from mirror.records.rewrite import unreadable  # noqa: PLC0415 -- loads the compiler, seldom needed

    data = bytearray(raw.data)
    for magic in range(3):
        data[MAGIC_AT] = magic
        with contextlib.suppress(MalformedBatch):
            known = RawBatch(parse_header(data), memoryview(data))
            if crc_holds(known) and unreadable(known) is None:
                return True
    return False


def is_beyond(raw: RawBatch, fetched: Fetched) -> bool:
    """Whether a batch lies about its offset, which no CRC covers, or about its last one: a leader gives nothing from
    its log's end on.

    One that lies ahead is not left out. Its leader gives it to whoever asks for any offset up to the one that it
    claims, so that what follows it cannot be looked up.
    """
    return max(raw.header.base_offset, raw.header.last_offset) >= fetched.high_watermark


def has_leapt(raw: RawBatch, due: int, falls_to: int) -> bool:
    """The same of one that leaves out offsets from `due` on, where the next one falls back to these, or into it."""
    return due < raw.header.base_offset and due <= falls_to < raw.header.next_offset


def _falls_back(walk: Walk, fetched: Fetched, raw: RawBatch, due: int) -> bool:
    if walk.damage is None or walk.damage.kind is not DamageKind.ORDER:
        return False
    falls_to = int.from_bytes(fetched.records[walk.position :][:_OFFSET_BYTES], "big", signed=True)
    return has_leapt(raw, due, falls_to)


async def unwritable_at(cluster: Cluster, partition: TopicPartition, offset: int, rules: Rules) -> Damaged | None:
    """What a mirror by these rules comes to from an offset on, of sound batches, and cannot write; None where it comes
    to what it can write, and where the log ends. Raises as `fetch_at` does, and MalformedBatch.
    """
    while True:
        fetched = await fetch_at(cluster, partition, offset, max_bytes=_SIZES[0], isolation=READ_COMMITTED)
        before, aborted = offset, Aborted(fetched.aborted)
        for raw in split(fetched.records):
            is_aborted = aborted.covers(raw)
            if raw.header.last_offset < offset:
                continue
            verdict = classify(raw.header, rules, next_offset=offset, aborted=is_aborted)
            if verdict.action is not Action.DROP:
                if verdict in UNREADABLE:
                    header = raw.header
                    return Damaged(max(offset, header.base_offset), header.next_offset, f"REFUSE for {verdict.reason}")
                if verdict.action is Action.REFUSE:
                    return None
                from mirror.records.rewrite import unfit, unreadable  # noqa: PLC0415 -- loads the compiler, seldom needed

                recipe = Recipe(first_offset=offset, codec=rules.codec, max_bytes=rules.max_message_bytes)
                found = unfit(raw, recipe) if verdict.action is Action.REWRITE else unreadable(raw)
                return None if found is None else Damaged(*found)
            offset = raw.header.next_offset
        if offset == before:
            return None


async def may_take_more(source: Cluster, topic: str, target: Cluster, copy: str, rules: Rules) -> bool:
    """Whether the copy of a topic takes larger batches than these rules know, or is about to, as far as both clusters
    say. Raises ClusterError and WireError.
    """
    found = await asyncio.gather(topic_configs(source, [topic]), topic_configs(target, [copy]))
    described = found[0].get(topic), found[1].get(copy)
    ours, theirs = (
        {config.name: config.value for config in each if config.value is not None} if isinstance(each, tuple) else None
        for each in described
    )
    return ours is not None and theirs is not None and rules.may_take_more(ours, theirs)
