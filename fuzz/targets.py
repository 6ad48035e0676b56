"""The table of targets: what runs an input, and the sound inputs that damage begins with.

Seeds of the batch format are the vectors that the tests hold the format against: record sets as real brokers stored
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Final

from vectors.corpus import load

from fuzz import brokerlogs, disks, layout, payloads, relay, settings, wire
from fuzz.limits import CAP, Check
from mirror.records import codecs
from mirror.records.header import APPEND_TIME, CODEC_MASK, CODECS, HEADER_BYTES, RawBatch, split

#: Seeds beyond this are left out: what a long batch shows, a short one shows sooner.
_LONGEST: Final = 4096
_LEGACY_VALUE: Final = (26, 34)


@dataclass(frozen=True, slots=True)
class Target:
    """`check` takes one input; `seeds` makes sound ones from random numbers."""

    check: Check
    seeds: Callable[[Random], Iterator[bytes]]


def _record_sets(_: Random) -> Iterator[bytes]:
    for vector in load():
        if vector.size <= _LONGEST:
            yield bytes(vector.data)


def _batches() -> Iterator[RawBatch]:
    for record_set in _record_sets(Random(0)):
        yield from split(memoryview(record_set))


def _headers(_: Random) -> Iterator[bytes]:
    for raw in _batches():
        yield bytes(raw.data[:HEADER_BYTES])


def _with_index(_: Random) -> Iterator[bytes]:
    for record_set in _record_sets(Random(0)):
        for raw in split(memoryview(record_set)):
            if raw.header.magic == 2 and raw.header.producer_id >= 0:
                yield bytes([1, raw.header.producer_id & 0xFF, 0]) + record_set
                break


def _replicas(random: Random) -> Iterator[bytes]:
    return disks.replicas(_record_sets(random), random)


def _payloads(codec: int) -> Iterator[tuple[RawBatch, memoryview]]:
    """Compressed payloads of all magics, each with its batch."""
    for raw in _batches():
        if raw.header.codec == codec:
            begin = HEADER_BYTES if raw.header.magic == 2 else _LEGACY_VALUE[raw.header.magic]
            yield raw, raw.data[begin:]


def _compressed(codec: int) -> Callable[[Random], Iterator[bytes]]:
    def seeds(_: Random) -> Iterator[bytes]:
        for raw, payload in _payloads(codec):
            yield bytes([raw.header.magic != 0]) + bytes(payload)
        yield b"\1" + codecs.compress(codec, bytes(CAP + 1))

    return seeds


def _sections(_: Random) -> Iterator[tuple[RawBatch, bytes]]:
    """Records sections of magic 2 as they are before compression."""
    for raw in _batches():
        if raw.header.magic == 2 and not raw.header.is_control and raw.header.count:
            yield raw, bytes(codecs.decompress(raw.header.codec, raw.records))


def _records(random: Random) -> Iterator[bytes]:
    for raw, section in _sections(random):
        if len(section) <= _LONGEST:
            yield payloads.PLACE.pack(raw.header.count, raw.header.base_offset, raw.header.base_timestamp) + section


def _old_sets(_: Random) -> Iterator[bytes]:
    for record_set in _record_sets(Random(0)):
        if all(raw.header.magic < 2 for raw in split(memoryview(record_set))):
            yield record_set


def _chosen(random: Random) -> bytes:
    return relay.CHOICE.pack(
        random.randrange(len(relay.RULES)), random.choice((-100, -100, 0, 1)), random.choice((255, 0))
    )


def _choices(random: Random) -> Iterator[bytes]:
    for record_set in _record_sets(random):
        yield _chosen(random) + record_set


def _inside(random: Random) -> Iterator[bytes]:
    for raw, section in _sections(random):
        header = raw.header
        if len(section) > _LONGEST:
            continue
        for is_section, payload in ((1, section), (0, bytes(raw.records))):
            fields = relay.PAYLOAD.pack(
                *(is_section, header.attributes & 0xFF, header.last_offset_delta, header.count),
                *(header.base_timestamp, header.max_timestamp, -1 if header.producer_id < 0 else 0),
            )
            yield _chosen(random) + fields + payload


def _inside_legacy(random: Random) -> Iterator[bytes]:
    for codec in (codecs.GZIP, codecs.SNAPPY, codecs.LZ4):
        for raw, payload in _payloads(codec):
            if raw.header.magic == 2:
                continue
            inner = bytes(codecs.decompress(codec, payload, magic=raw.header.magic))
            attributes = raw.header.attributes & (CODEC_MASK | APPEND_TIME)
            for is_set, value in ((1, inner), (0, bytes(payload))):
                fields = (is_set, raw.header.magic, attributes, 2 * raw.header.base_offset, raw.header.max_timestamp)
                if len(value) <= _LONGEST:
                    yield _chosen(random) + relay.MESSAGES.pack(*fields) + value


TARGETS: Final = {
    "header": Target(layout.header, _headers),
    "split": Target(layout.split, _record_sets),
    "segment": Target(layout.segment, _record_sets),
    "transactions": Target(layout.transactions, _with_index),
    "records": Target(payloads.records, _records),
    "legacy": Target(payloads.legacy, _old_sets),
    **{
        CODECS[codec]: Target(payloads.codec(codec), _compressed(codec))
        for codec in (codecs.GZIP, codecs.SNAPPY, codecs.LZ4, codecs.ZSTD)
    },
    "classify": Target(relay.classified, _choices),
    "rewrite": Target(relay.rewritten, _choices),
    "inside": Target(relay.inside, _inside),
    "inside_legacy": Target(relay.inside_legacy, _inside_legacy),
    "frames": Target(wire.frames, wire.streams),
    "answers": Target(wire.answers, wire.sound_and_lying),
    "versions": Target(wire.versions, wire.first_answers),
    "journal": Target(wire.entries, wire.journals),
    "runs": Target(wire.runs, wire.recorded_maps),
    "standing": Target(wire.copies, wire.standings),
    "replica": Target(disks.replica, _replicas),
    "sidecars": Target(disks.sidecars, disks.small_files),
    "timeindex": Target(disks.timeindex, disks.time_indexes),
    "metadata": Target(brokerlogs.metadata, brokerlogs.metadata_values),
    "commits": Target(brokerlogs.commits, brokerlogs.stored_commits),
    "properties": Target(settings.properties, settings.property_files),
}
