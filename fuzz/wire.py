"""Targets: what comes over the wire around record sets, and the journal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import Any, Final
from uuid import UUID

from entities import RESPONSES, answer, lies, sample
from rawbatches import batch

from mirror.errors import AccessDenied, ConnectionLost, FrameTooLarge, MalformedBatch, MalformedFrame
from mirror.journal import journal, offset_maps, positions
from mirror.journal.entries import ACCEPTED
from mirror.journal.kinds import PartitionKind
from mirror.kafka.cluster import Cluster, Endpoint, TopicPartition
from mirror.kafka.connection import FrameReader
from mirror.kafka.fetch import fetch_of, plain_fetch, read_fetch
from mirror.kafka.produce import plain_produce, produce_of, read_produce
from mirror.kafka.protocol import FETCH, METADATA, PRODUCE, decode, decode_versions
from mirror.observability.status import NOT_OURS
from mirror.records.header import HEADER_BYTES
from mirror.replication.assignment import KnownStop, LastBatch, LastPosition
from mirror.replication.offset_map import OffsetMap
from mirror.states import State

_LIMIT: Final = 4096
_FIRST_SIZES: Final = (8, 16, 256)
_PLAIN: Final[dict[int, Any]] = {FETCH.key: plain_fetch, PRODUCE.key: plain_produce}
_PARTITION: Final = TopicPartition("a", 0)
_VERSIONS: Final = tuple(entity for entity in RESPONSES if entity.__name__ == "ApiVersionsResponse")


def frames(data: bytes) -> None:
    """A stream in pieces, into a buffer that must not outgrow it: a byte that chooses the pieces' sizes, the stream."""
    random = Random(data[:1])
    stream = data[1:]
    reader = FrameReader(_LIMIT, first_size=random.choice(_FIRST_SIZES))
    first, given = reader.capacity, 0
    try:
        while stream:
            room = reader.buffer()
            count = min(len(room), len(stream), random.randrange(1, 700))
            room[:count], stream = stream[:count], stream[count:]
            given += count
            assert all(len(frame) <= _LIMIT for frame in reader.received(count))
            assert reader.capacity <= max(first, 2 * given)
    except FrameTooLarge:
        pass


def streams(random: Random) -> Iterator[bytes]:
    """Seeds for `frames`."""
    for _ in range(20):
        bodies = [random.randbytes(random.choice((0, 3, 100, 2000))) for _ in range(random.randrange(1, 6))]
        yield random.randbytes(1) + b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


def answers(data: bytes) -> None:
    """An answer of any API and version: a byte that chooses which, the frame. What is read by hand, kio reads alike."""
    if not data:
        return
    response, frame = RESPONSES[data[0] % len(RESPONSES)], memoryview(data)[1:]
    plain = _PLAIN[response.__api_key__](response.__version__, frame) if response.__api_key__ in _PLAIN else None
    try:
        found = decode(response, frame)
    except MalformedFrame:
        assert plain is None
        return
    if found.__api_key__ == FETCH.key:
        answer = fetch_of(found)
        assert plain is None or plain == answer
        for fetched in read_fetch(
            answer, {(part[0], number): _PARTITION for part in answer.parts for number in (0, 1)}
        ):
            memoryview(fetched.records)
    elif found.__api_key__ == METADATA.key:
        with suppress(AccessDenied, ConnectionLost):
            Cluster(Endpoint("a", ()))._learn(found, frozenset(), "a:1")
    elif found.__api_key__ == PRODUCE.key:
        acks = produce_of(found)
        assert plain is None or plain == acks
        list(read_produce(acks, {"a": None}))


def sound_and_lying(random: Random) -> Iterator[bytes]:
    """Seeds for `answers`: three of each, and as many whose lengths lie."""
    assert len(RESPONSES) <= 256
    for number, response in enumerate(RESPONSES):
        for _ in range(3):
            value = sample(response, random)
            lying = list(lies(value))
            for one in (value, *random.sample(lying, min(3, len(lying)))):
                yield bytes([number]) + answer(one)


def versions(data: bytes) -> None:
    """The first answer on a connection."""
    with suppress(MalformedFrame):
        decode_versions(memoryview(data))


def first_answers(random: Random) -> Iterator[bytes]:
    """Seeds for `versions`."""
    for response in _VERSIONS:
        for _ in range(5):
            yield answer(sample(response, random))


def entries(data: bytes) -> None:
    """The journal: a byte that is odd if the records section of one batch follows, else a record set."""
    if not data:
        return
    records = data[1:]
    if data[0] & 1:
        records = batch(0, count=2, payload=records[:500], max_timestamp=2**62, base_timestamp=-(2**62) * (data[0] & 2))
    with suppress(MalformedBatch):
        journal.decode(memoryview(records))


def runs(data: bytes) -> None:
    """Where offsets moved to: a journal record's key, up to the first newline, and its value."""
    key, _, value = data.partition(b"\n")
    for recorded in offset_maps.recorded_ranges([journal.Entry(0, key, value), journal.Entry(1, b"runs/t/0/0", value)]):
        assert recorded.runs is not None
        edge = recorded.runs.next_target
        assert all(recorded.runs.to_target(run.source) == run.target for run in recorded.runs)
        assert recorded.runs.to_source(edge) == recorded.runs.next_source


def copies(data: bytes) -> None:
    """How copies stand: a record's key, up to the first newline, and its value. What is read is written alike."""
    key, _, value = data.partition(b"\n")
    kinds: tuple[PartitionKind[Any], ...] = (positions.POSITIONS, positions.STOPS, ACCEPTED)
    for kind in kinds:
        for prefix in (b"", kind.prefix):
            with suppress(*NOT_OURS):
                if (found := kind.read(journal.Entry(0, prefix + key, value))) is not None:
                    assert kind.read(journal.Entry(0, *kind.change(*found))) == found


def standings(random: Random) -> Iterator[bytes]:
    """Seeds."""
    at, topic_id = TopicPartition("t", 0), UUID(int=random.getrandbits(128))
    batch = LastBatch(
        base=90, next_offset=95, source_base=99, crc=7, source_crc=None, count=5, base_timestamp=1, max_timestamp=2
    )
    last = LastPosition(
        source_next=random.randrange(1000), target_end=95, stamp=(1 << 52, 3, 4), batch=batch, source_topic_id=topic_id
    )
    stop = KnownStop(state=State.TRUNCATED, offset=104, detail="cut back", target_topic_id=topic_id)
    for key, value in (positions.POSITIONS.entry(at, last), positions.STOPS.entry(at, stop)):
        yield key + b"\n" + value


def recorded_maps(random: Random) -> Iterator[bytes]:
    """Seeds."""
    for count in (1, 2, 300):
        offset_map = OffsetMap()
        for _ in range(count):
            offset_map.add(
                offset_map.runs.next_source + random.randrange(3), offset_map.runs.next_target, random.randrange(1, 9)
            )
        for key, value in offset_maps.map_entries(TopicPartition("t", 0), offset_map):
            yield key + b"\n" + (value or b"")


def journals(random: Random) -> Iterator[bytes]:
    """Seeds for `entries`."""
    for count in (1, 2, 3):
        yield b"\0" + journal.encode([(b"key", random.randbytes(20))] * count)
    for first in (b"\1", b"\3"):
        yield first + journal.encode([(b"key", b"value")] * 2)[HEADER_BYTES:]
