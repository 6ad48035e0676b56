"""Fetch: what to ask of a source broker, and its answer partition by partition.

Versions 12 (topic names) to 18 (topic ids from 13 on). Every ask carries the leader epoch that the client believes
in and the epoch of the last batch it has, so that a stale leader and a truncated log are found by the broker
(KIP-320, KIP-595). A request is written by hand, and so is a plain answer read, since a task does little else; any
other answer is kio's. Who asks one leader again and again does so in a session (KIP-227).
"""

from __future__ import annotations

import asyncio
import struct
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby
from typing import Any, ClassVar, Final, NamedTuple

from kio.schema.errors import ErrorCode

from mirror import clock
from mirror.errors import ClusterUnreachable, MalformedBatch, MalformedFrame, OpenTransaction
from mirror.kafka.cluster import CALL_TIMEOUT, Cluster, TopicPartition
from mirror.kafka.connection import throttled_seconds
from mirror.kafka.protocol import (
    FETCH,
    HEADER,
    NO_ERROR,
    NO_TAGS,
    NOT_PLAIN,
    PART,
    Api,
    Buffer,
    HotRequest,
    decode,
    id_bytes,
    named,
    read_topics,
    read_varint,
    to_varint,
)
from mirror.kafka.queries import EARLIEST_LOCAL, READ_COMMITTED, list_offset
from mirror.kafka.retry import Backoff
from mirror.records.header import split

#: How long a leader is asked for what lies below a log's known end.
EMPTY_SECONDS: Final = CALL_TIMEOUT
#: How many answers in a row that hold nothing of what was asked for are believed of a leader that has caught up.
EMPTY_ANSWERS: Final = 3
#: How long the first repeated question waits at the broker; each further one waits that much longer.
EMPTY_WAIT_MS: Final = 500
#: For how long a quota may keep one answer from us before whoever asks gets an error.
MUTED_SECONDS: Final = 120.0
#: The first version that names no topic but by its id, and the first without a replica's id.
_BY_ID: Final = 13
_REPLICA_TAGGED: Final = 15
_NO_REPLICA: Final = (-1).to_bytes(4, "big", signed=True)
_NO_RACK: Final = b"\x01\x00"  # and no tagged field
_LIMITS: Final = struct.Struct(">iiibii")
_ASK: Final = struct.Struct(">iiqiqix")
_ANSWER: Final = struct.Struct(">ihi")
_ABORTED: Final = struct.Struct(">qqB")
_REPLICA_BYTES: Final = 4  # the preferred one
_ANYTHING: Final = 1  # bytes that a broker waits for


class Ask(NamedTuple):
    """One partition's part of a fetch request."""

    partition: TopicPartition
    topic_id: uuid.UUID | None
    leader_epoch: int
    offset: int
    last_epoch: int  # -1 where no batch was fetched before
    max_bytes: int


class Fetched(NamedTuple):
    """One partition's part of a fetch answer."""

    partition: TopicPartition
    error_code: Any
    high_watermark: int
    last_stable_offset: int
    log_start: int
    diverging: tuple[int, int] | None  # the epoch and end up to which the logs are alike, where they diverge
    aborted: tuple[tuple[int, int], ...]  # producer id and first offset of each aborted transaction
    records: memoryview  # the record set as stored; its tail may be partial


#: A topic as an answer names it, a partition's number, and the fields of `Fetched` but for the partition.
Part = tuple[str | bytes, int, Any, int, int, int, tuple[int, int] | None, tuple[tuple[int, int], ...], memoryview]


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """A fetch answer of any version."""

    throttle_time: timedelta
    error_code: Any  # of the whole answer
    session_id: int  # 0 where the broker keeps none
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True)
class FetchRequest(HotRequest):
    """A fetch request. The order of the asks is kept: brokers fill an answer in that order."""

    api: ClassVar[Api] = FETCH
    version: int
    asks: Sequence[Ask]
    max_wait_ms: int  # how long the broker waits for anything
    max_bytes: int
    isolation: int = READ_COMMITTED
    session: tuple[int, int] = (0, -1)  # its id and epoch; by default none
    forgotten: Sequence[Ask] = ()  # what the session asks for no more

    def body(self) -> list[Buffer]:
        """Return what follows the header, as Kafka's FetchRequest.json has it."""
        limits = self.max_wait_ms, _ANYTHING, self.max_bytes, self.isolation, *self.session
        parts: list[Buffer] = [_NO_REPLICA if self.version < _REPLICA_TAGGED else b"", _LIMITS.pack(*limits)]
        parts += self._topics(self.asks, _ask)
        parts += self._topics(self.forgotten, lambda ask: ask.partition.partition.to_bytes(4, "big"))
        parts.append(_NO_RACK)
        return parts

    def _topics(self, asks: Sequence[Ask], written: Callable[[Ask], bytes]) -> Iterator[Buffer]:
        by_topic = groupby(asks, key=lambda ask: (ask.partition.topic, ask.topic_id))
        groups = [(topic, list(group)) for topic, group in by_topic]
        yield to_varint(len(groups) + 1)
        for (name, topic_id), group in groups:
            yield named(name, topic_id, by_id=self.version >= _BY_ID)
            yield to_varint(len(group) + 1)
            yield from map(written, group)
            yield NO_TAGS

    def read(self, frame: memoryview) -> FetchAnswer:
        """Return the answer that a frame holds. Raises MalformedFrame."""
        return plain_fetch(self.version, frame) or fetch_of(decode(FETCH.response(self.version), frame))


def _ask(ask: Ask) -> bytes:
    log_start = -1  # of a follower
    numbers = ask.partition.partition, ask.leader_epoch, ask.offset, ask.last_epoch, log_start, ask.max_bytes
    return _ASK.pack(*numbers)


def plain_fetch(version: int, frame: memoryview) -> FetchAnswer | None:
    """Return an answer without errors and tagged fields, which is nearly every one; None for any other. What it holds
    is copied out of `frame`.
    """
    try:
        throttle_ms, code, session_id = _ANSWER.unpack_from(frame, HEADER)
        parts, position = read_topics(frame, HEADER + _ANSWER.size, _part, by_id=version >= _BY_ID)
    except NOT_PLAIN:
        return None
    if code or bytes(frame[position:]) != NO_TAGS:
        return None
    return FetchAnswer(timedelta(milliseconds=throttle_ms), NO_ERROR, session_id, parts)


def _part(topic: str | bytes, frame: memoryview, position: int) -> tuple[Part, int]:
    index, code, high_watermark, last_stable, log_start = PART.unpack_from(frame, position)
    transactions, position = read_varint(frame, position + PART.size)
    aborted = []
    for _ in range(transactions - 1):
        producer_id, first, tags = _ABORTED.unpack_from(frame, position)
        code = code or tags
        aborted.append((producer_id, first))
        position += _ABORTED.size
    size, begin = read_varint(frame, position + _REPLICA_BYTES)
    end = begin + max(0, size - 1)
    if code or frame[end]:
        raise MalformedFrame("an error, or tagged fields")
    records = memoryview(bytes(frame[begin:end]))
    return (topic, index, NO_ERROR, high_watermark, last_stable, log_start, None, tuple(aborted), records), end + 1


def fetch_of(answer: Any) -> FetchAnswer:
    """Return an answer that kio has read."""
    by_id = answer.__version__ >= _BY_ID
    parts: list[Part] = []
    for topic in answer.responses:
        name = id_bytes(topic.topic_id) if by_id else topic.topic
        for part in topic.partitions:
            end = part.diverging_epoch
            parts.append(
                (
                    name,
                    part.partition_index,
                    part.error_code,
                    part.high_watermark,
                    part.last_stable_offset,
                    part.log_start_offset,
                    (end.epoch, end.end_offset) if end.end_offset >= 0 else None,
                    tuple((aborted.producer_id, aborted.first_offset) for aborted in part.aborted_transactions or ()),
                    memoryview(part.records or b""),
                )
            )
    return FetchAnswer(answer.throttle_time, answer.error_code, answer.session_id, parts)


#: What was asked for, by what answers call it.
Asked = Mapping[tuple[str | bytes, int], TopicPartition]


def asked_by_name(asks: Iterable[Ask]) -> Asked:
    """Return the partitions that are asked for, by their topics' names and ids."""
    return {
        (name, ask.partition.partition): ask.partition
        for ask in asks
        for name in (ask.partition.topic, ask.topic_id.bytes if ask.topic_id else b"")
        if name
    }


def read_fetch(answer: FetchAnswer, asked: Asked) -> Iterator[Fetched]:
    """Yield the partitions of an answer; what was not asked for is left out, and what is named once more."""
    seen = set[TopicPartition]()  # a hostile answer may name one twice
    for part in answer.parts:
        partition = asked.get(part[:2])
        if partition is not None and partition not in seen:
            seen.add(partition)
            yield Fetched._make((partition, *part[2:]))


# --- A session: a leader is asked for what changed, and answers with what is new --------------------------------------

_LAST_EPOCH: Final = 2**31 - 1
#: What a leader answers that does not know a session any more, or not like this: it is asked for everything then.
SESSION_ERRORS: Final = (
    ErrorCode.fetch_session_id_not_found,
    ErrorCode.invalid_fetch_session_epoch,
    ErrorCode.fetch_session_topic_id_error,
)


class FetchSession:
    """Has what one leader remembers of what it was asked for (KIP-227): a request names what is asked anew or no more,
    an answer what has something new. A broker that keeps no session, which it may at any time, is asked for everything.
    No call but the first request of a session takes time for partitions that nothing changes for.
    """

    def __init__(self) -> None:
        self.asks: dict[TopicPartition, Ask] = {}  # what the next request asks for, with what was asked for before
        self.asked: dict[TopicPartition, Ask] = {}  # what the leader knows, in the order in which it fills its answers
        self.heard_ms = 0  # when the leader was asked last (Unix ms) that then said what is new in all of it
        self.is_incremental = False  # whether the last request named what changed alone
        self._id = self._epoch = 0  # of the last request; epoch 0 asks for everything, and for a new session
        self._is_over = True  # the next request asks for everything
        self._touched = set[TopicPartition]()  # what the next request may have to name
        self._names: dict[tuple[str | bytes, int], TopicPartition] = {}  # what the leader knows, as answers name it

    def ask(self, ask: Ask) -> None:
        """Ask for a partition from the next request on."""
        self.asks[ask.partition] = ask
        self._touched.add(ask.partition)

    def forget(self, partition: TopicPartition) -> None:
        """Ask for a partition no more."""
        if self.asks.pop(partition, None):
            self._touched.add(partition)

    def request(self, version: int, *, max_wait_ms: int, max_bytes: int) -> FetchRequest:
        """Return the next request."""
        self._epoch = 0 if self._is_over or not self._id else self._epoch % _LAST_EPOCH + 1
        self.is_incremental, self._is_over = self._epoch > 0, False
        if self.is_incremental:
            named, gone = self._changed()
        else:
            turns = dict.fromkeys((*self.asked, *sorted(self.asks)))
            named, gone = (
                [self.asks[partition] for partition in turns if partition in self.asks],
                list(self.asked.values()),
            )
        for ask in gone:
            del self.asked[ask.partition]
        for name in asked_by_name(gone):
            self._names.pop(name, None)
        self._names |= asked_by_name(ask for ask in named if ask.partition not in self.asked)
        self.asked.update((ask.partition, ask) for ask in named)
        self._touched = set()
        session, forgotten = (self._id, self._epoch), gone if self.is_incremental else ()
        return FetchRequest(version, named, max_wait_ms, max_bytes, session=session, forgotten=forgotten)

    def _changed(self) -> tuple[list[Ask], list[Ask]]:
        """Find what the leader does not know, and what it knows and is asked for no more."""
        named, gone = list[Ask](), list[Ask]()
        for partition in sorted(self._touched):
            ask, known = self.asks.get(partition), self.asked.get(partition)
            if known is not None and (ask is None or ask.topic_id != known.topic_id):
                gone.append(known)
            if ask is not None and ask != known:
                named.append(ask)
        return named, gone

    def read(self, answer: FetchAnswer) -> list[Fetched]:
        """Return the partitions of an answer. What an answer of a session leaves out has nothing new."""
        if answer.error_code:
            self.end()
            return []
        self._id = answer.session_id
        return [fetched for fetched in read_fetch(answer, self._names) if fetched.partition in self.asked]

    def take_turns(self, found: Iterable[Fetched]) -> None:
        """Put what an answer had records of behind all others, as the leader does (Kafka `IncrementalFetchContext`)."""
        for fetched in found:
            if fetched.records and (ask := self.asked.pop(fetched.partition, None)):
                self.asked[fetched.partition] = ask

    def end(self) -> None:
        """Ask for everything, in a new session."""
        self._is_over = True

    def renew(self, partition: TopicPartition) -> None:
        """Have the next answer name a partition, whatever was answered before."""
        if partition in self.asked:
            self.end()


# --- One partition, asked for by itself -------------------------------------------------------------------------------


class _Muted(NamedTuple):
    """An answer without a partition: what would have been in it is beyond a quota (Kafka `getThrottledResponse`)."""

    seconds: float
    error_code: int = 0


async def fetch_at(
    cluster: Cluster,
    partition: TopicPartition,
    offset: int,
    *,
    max_bytes: int = 1,
    isolation: int = READ_COMMITTED,
    max_wait_ms: int = 0,
) -> Fetched:
    """One partition from `offset` on; with `max_bytes` 1, the one batch that holds the offset, whole. Where there is
    nothing the broker waits for it, up to `max_wait_ms`. Waits first where the endpoint's bound on bytes per second
    asks for it, and asks again where a quota of the broker kept the answer from us: that time is nobody's silence.

    Raises as `Cluster.call_leader` does: BrokerError 1 where the offset is out of range; and ClusterUnreachable where a
    quota gave nothing for `MUTED_SECONDS`.
    """
    asks: list[Ask] = []

    def build(version: int, epoch: int) -> FetchRequest:
        asks[:] = [Ask(partition, cluster.topic_id(partition.topic), epoch, offset, -1, max_bytes)]
        return FetchRequest(version, asks, max_wait_ms, max_bytes, isolation=isolation)

    def read(answer: FetchAnswer) -> Any:
        for fetched in read_fetch(answer, asked_by_name(asks)):
            return fetched
        if answer.error_code:
            return answer
        if muted := throttled_seconds(answer):
            return _Muted(muted)
        raise MalformedFrame(f"a fetch answer without {partition}")

    if cluster.bucket is not None:
        while wait := cluster.bucket.wait(clock.monotonic()):  # noqa: ASYNC110 -- a bucket fills with time alone
            await asyncio.sleep(wait)
    began = clock.monotonic()
    while True:
        found: Fetched | _Muted = await cluster.call_leader(
            partition, FETCH, build=build, read=read, doing=f"Fetch at offset {offset}"
        )
        if isinstance(found, Fetched):
            break
        if clock.monotonic() - began > MUTED_SECONDS:
            raise ClusterUnreachable(
                f"{cluster}: {partition}: a quota of its brokers let nothing through at offset {offset} for"
                f" {MUTED_SECONDS:g} s: raise consumer_byte_rate, or request_percentage, of the mirror's user or client"
                " id there"
            )
        await asyncio.sleep(found.seconds)
    if cluster.bucket is not None:
        cluster.bucket.spend(len(found.records))
    return found


async def fetch_below(
    cluster: Cluster,
    partition: TopicPartition,
    offset: int,
    end: int,
    *,
    max_bytes: int = 1,
    isolation: int = READ_COMMITTED,
    may_be_open: bool = False,
) -> Fetched:
    """The same, for a log that is known to end at `end`: an empty answer below that is no proof that nothing is there.

    A leader that was just elected shows no more than the high watermark that it knows, which rises within a moment to
    the one before (Kafka `ReplicaManager.readFromLog`). So an empty answer below `end` is asked for again while its
    high watermark is lower, or the last stable offset for a committed read, unless a transaction `may_be_open` there.
    A leader that knows all may give nothing, too, and no error: where remote storage is late (`DelayedRemoteFetch`).
    So it is asked `EMPTY_ANSWERS` times, with a wait, and then believed of what its own disk holds: compaction left a
    hole up to the log's end. What is behind an open transaction is not asked for again.

    Raises as `fetch_at` does, and ClusterUnreachable where nothing is known after `EMPTY_SECONDS`: no leader has caught
    up, or remote storage gives nothing; as OpenTransaction where one has, but for what a reader of committed records
    gets. MalformedBatch where so many answers hold nothing but what precedes `offset`.
    """
    deadline, backoff, vain = clock.monotonic() + EMPTY_SECONDS, Backoff(), 0
    while True:
        found = await fetch_at(
            cluster, partition, offset, max_bytes=max_bytes, isolation=isolation, max_wait_ms=EMPTY_WAIT_MS * vain
        )
        if offset >= end or (found.records and _reaches(found.records, offset)):
            return found
        is_stable = isolation == READ_COMMITTED and not may_be_open
        shown = found.last_stable_offset if is_stable else found.high_watermark
        why = f"its log ended at {end}, and its leader shows it up to {shown}"
        if found.records or shown >= end:
            if not found.records and isolation == READ_COMMITTED and found.last_stable_offset <= offset:
                return found
            vain += 1
            if vain >= EMPTY_ANSWERS:
                if found.records:
                    what = f"{cluster}: {partition}: nothing but what precedes offset {offset}, which was asked for"
                    raise MalformedBatch(what, 0, offset)
                if (local := await list_offset(cluster, partition, EARLIEST_LOCAL)) <= offset:
                    return found
                why = (
                    f"its log ends at {end}, and its leader has only what begins at {local} on its own disk: see to the"
                    " remote storage of that cluster"
                )
        if clock.monotonic() > deadline:
            text = f"{cluster}: {partition}: nothing came back for offset {offset} within {EMPTY_SECONDS:g} s: {why}"
            if shown < end <= found.high_watermark:
                raise OpenTransaction(f"{text}, where a transaction is open", str(cluster), shown)
            raise ClusterUnreachable(text)
        await asyncio.sleep(backoff.next())


def _reaches(records: memoryview, offset: int) -> bool:
    """Whether a record set holds a batch that ends at an offset or behind it, or what is no batch, which is judged by
    whoever reads it.
    """
    precedes = False
    try:
        for raw in split(records):
            if raw.header.last_offset >= offset or not 0 <= raw.header.magic <= 2:
                return True
            precedes = True
    except MalformedBatch:
        return True
    return not precedes
