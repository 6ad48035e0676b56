"""Fetch: what to ask of a source broker, and its answer partition by partition.

Versions 12 (topic names) to 18 (topic ids from 13 on). Every ask carries the leader epoch that the client believes
in and the epoch of the last batch it has, so that a stale leader and a truncated log are found by the broker
(KIP-320, KIP-595). Who asks one leader again and again does so in a session: what is asked and answered then is what
changed (KIP-227).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from mirror import clock
from mirror.errors import ClusterUnreachable, MalformedBatch, MalformedFrame, OpenTransaction
from mirror.kafka.cluster import CALL_TIMEOUT, Cluster, TopicPartition
from mirror.kafka.connection import throttled_seconds
from mirror.kafka.protocol import FETCH
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
_BY_ID: Final = 13
_LAST_SESSION_EPOCH: Final = 2**31 - 1
#: What a leader answers that does not know a session any more, or not like this: it is asked for everything then.
SESSION_ERRORS: Final = (
    ErrorCode.fetch_session_id_not_found,
    ErrorCode.invalid_fetch_session_epoch,
    ErrorCode.fetch_session_topic_id_error,
)


class Ask(NamedTuple):
    """One partition's part of a fetch request."""

    partition: TopicPartition
    topic_id: uuid.UUID | None
    leader_epoch: int
    offset: int
    last_epoch: int  # -1 where no batch was fetched before
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """One partition's part of a fetch answer. `records` is the record set as stored; its tail may be partial."""

    partition: TopicPartition
    error_code: Any
    high_watermark: int
    last_stable_offset: int
    log_start: int
    diverging: tuple[int, int] | None
    aborted: tuple[tuple[int, int], ...]
    records: memoryview


@dataclass(frozen=True, slots=True)
class _Muted:
    """An answer without a partition: what would have been in it is beyond a quota (Kafka `getThrottledResponse`)."""

    seconds: float
    error_code: int = 0


def fetch_request(
    version: int,
    asks: Sequence[Ask],
    *,
    max_wait_ms: int,
    max_bytes: int,
    min_bytes: int = 1,
    isolation: int = READ_COMMITTED,
    session: tuple[int, int] = (0, -1),
    forgotten: Iterable[Ask] = (),
) -> Any:
    """A request in kio's schema for `version`. The order of the asks is kept: brokers fill an answer in that order.
    `session` is its id and epoch, by default none; `forgotten` is asked for no more in it.
    """
    schema = FETCH.schema(version, "request")
    topics = []
    for (name, topic_id), group in groupby(asks, key=lambda ask: (ask.partition.topic, ask.topic_id)):
        partitions = tuple(
            schema.FetchPartition(
                partition=ask.partition.partition,
                current_leader_epoch=ask.leader_epoch,
                fetch_offset=ask.offset,
                last_fetched_epoch=ask.last_epoch,
                partition_max_bytes=ask.max_bytes,
            )
            for ask in group
        )
        topics.append(schema.FetchTopic(partitions=partitions, **_named(version, name, topic_id)))
    return schema.FetchRequest(
        max_wait=timedelta(milliseconds=max_wait_ms),
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation,
        topics=tuple(topics),
        session_id=session[0],
        session_epoch=session[1],
        forgotten_topics_data=tuple(
            schema.ForgottenTopic(
                partitions=(ask.partition.partition,), **_named(version, ask.partition.topic, ask.topic_id)
            )
            for ask in forgotten
        ),
    )


def _named(version: int, name: str, topic_id: uuid.UUID | None) -> dict[str, Any]:
    return {"topic_id": topic_id} if version >= _BY_ID else {"topic": name}


class FetchSession:
    """What one leader remembers of what it was asked for (KIP-227): a request names what is asked anew or no more, an
    answer what has something new. A broker that keeps no session, which it may at any time, is asked for everything.
    """

    def __init__(self) -> None:
        self._id = self._epoch = 0  # of the last request; epoch 0 asks for everything, and for a new session
        self._is_over = True  # the next request asks for everything
        self._asks: dict[TopicPartition, Ask] = {}  # in the order in which the leader fills its answers
        self._names: dict[uuid.UUID | str | None, str] = {}  # topics by what answers call them
        self._new: Sequence[Ask] = ()  # what the next request names
        self._forgotten: list[Ask] = []  # and what is asked for no more
        self.is_incremental = False  # whether that is what changed alone

    def ask(self, asks: Sequence[Ask]) -> None:
        """From the next request on ask for `asks` and nothing else."""
        asked = {ask.partition: ask for ask in asks}
        self._epoch = 0 if self._is_over or not self._id else self._epoch % _LAST_SESSION_EPOCH + 1
        self.is_incremental, self._is_over = self._epoch > 0, False
        if not self.is_incremental:
            self._asks = {}
        self._forgotten = [
            ask
            for partition, ask in self._asks.items()
            if (again := asked.get(partition)) is None or again.topic_id != ask.topic_id
        ]
        for ask in self._forgotten:
            del self._asks[ask.partition]
        before = len(self._asks)
        self._new = [ask for ask in asks if self._asks.get(ask.partition) != ask]
        self._asks.update((ask.partition, ask) for ask in self._new)
        if self._forgotten or len(self._asks) != before:
            self._names = _names_of(asks)

    def request(self, version: int, *, max_wait_ms: int, max_bytes: int) -> Any:
        """Return the request that says so."""
        return fetch_request(
            version,
            self._new,
            max_wait_ms=max_wait_ms,
            max_bytes=max_bytes,
            session=(self._id, self._epoch),
            forgotten=self._forgotten,
        )

    @property
    def asks(self) -> dict[TopicPartition, Ask]:
        """All that the leader is asked for, in the order in which it fills its answers."""
        return self._asks.copy()

    def read(self, answer: Any) -> list[Fetched]:
        """Return the partitions of an answer. What an answer of a session leaves out has nothing new."""
        if answer.error_code:
            self.end()
            return []
        self._id = answer.session_id
        found = list(_parts(answer, self._names, self._asks))
        for fetched in found:
            if fetched.records:  # its turn comes behind all others (Kafka `IncrementalFetchContext`)
                self._asks[fetched.partition] = self._asks.pop(fetched.partition)
        return found

    def end(self) -> None:
        """Ask for everything, in a new session."""
        self._is_over = True

    def renew(self, partition: TopicPartition) -> None:
        """Have the next answer name a partition, whatever was answered before."""
        if partition in self._asks:
            self.end()


def read_fetch(answer: Any, asks: Collection[Ask]) -> Iterator[Fetched]:
    """The partitions of an answer, named by the asks that it answers; what was not asked for is left out."""
    return _parts(answer, _names_of(asks), {ask.partition for ask in asks})


def _names_of(asks: Iterable[Ask]) -> dict[uuid.UUID | str | None, str]:
    return {key: ask.partition.topic for ask in asks for key in (ask.topic_id, ask.partition.topic)}


def _parts(
    answer: Any, names: Mapping[uuid.UUID | str | None, str], asked: Collection[TopicPartition]
) -> Iterator[Fetched]:
    by_id = answer.__version__ >= _BY_ID
    seen = set[TopicPartition]()  # a hostile answer may name one twice
    for topic in answer.responses:
        name = names.get(topic.topic_id if by_id else topic.topic)
        for part in topic.partitions:
            partition = TopicPartition(name or "", part.partition_index)
            if partition not in asked or partition in seen:
                continue
            seen.add(partition)
            diverging = part.diverging_epoch
            yield Fetched(
                partition=partition,
                error_code=part.error_code,
                high_watermark=part.high_watermark,
                last_stable_offset=part.last_stable_offset,
                log_start=part.log_start_offset,
                diverging=(diverging.epoch, diverging.end_offset) if diverging.end_offset >= 0 else None,
                aborted=tuple(
                    (aborted.producer_id, aborted.first_offset) for aborted in part.aborted_transactions or ()
                ),
                records=memoryview(part.records or b""),
            )


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
    asks for it, and asks again where a quota of the broker kept the answer from us: that time is nobody's silence (C5).

    Raises as `Cluster.call_leader` does: BrokerError 1 where the offset is out of range; and ClusterUnreachable where a
    quota gave nothing for `MUTED_SECONDS`.
    """
    asks: list[Ask] = []

    def build(version: int, epoch: int) -> Any:
        asks[:] = [Ask(partition, cluster.topic_id(partition.topic), epoch, offset, -1, max_bytes)]
        return fetch_request(version, asks, max_wait_ms=max_wait_ms, max_bytes=max_bytes, isolation=isolation)

    def read(answer: Any) -> Any:
        for fetched in read_fetch(answer, asks):
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
