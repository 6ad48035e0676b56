"""The reading side: raw batches from the source, in offset order for each partition, each with its CRC verified.

One task for each source leader keeps one fetch request open there, in a session (KIP-227): the broker holds it until
there is data, so leaders that have nothing new cost a request every half second and a new record arrives at once.

    R1  a cursor moves only past batches that were handed out; whoever fails later starts it again at the offset it
        needs
    R2  a partition without room for half of what it may hold is not asked for, so answers stay large and what is held
        stays bounded; what was fetched and waits to be relayed counts, since rewriting is slower than reading.
        One budget of bytes rules over all partitions, whatever their number: what a request may bring is taken from it
        before the request goes out, and what readers and writers hold counts. A broker gives a whole batch whatever was
        asked for, so what is held may exceed it by one batch for each leader, not by one for each partition. A leader
        whose batches are larger than half of it is asked when there is room for that half
    R3  a batch that is damaged is fetched again twice, then its partition stops as CORRUPT, and only its partition;
        so is an answer that holds nothing from the offset on that was asked for, which would be asked for ever.
        Where that is allowed, the batch is left out instead, to where the next sound one begins
    R4  where the flow has a bound, no request goes out before the task's bucket has something for it; what comes is
        taken from the bucket, whatever becomes of it. While a large batch keeps it in debt, leaders are asked where
        their logs end, and only partitions that have nothing new are fetched: that brings no bytes, and reveals a log
        that was cut back
    R5  what a mirror pads a log with so that it begins where another one does (`log_start.py`) is no record. A source
        that is such a copy, and begins with padding still, is waited for
    R6  a fetch names the leader epoch of the batch before, so that the source's leader shows where it was cut back. One
        that keeps no leader epochs refuses that as out of range, and is asked without; so is one that has a hole where
        that epoch was
    R7  a leader whose quota is used up answers at once, and names no partition; it does so for ever where a batch is
        larger than the quota allows at once (Kafka `getThrottledResponse`). Who hears nothing of a partition does not
        know where its log ends, and says so
    R8  compaction may leave nothing from a cursor up to the last stable offset, where a transaction is open: no later
        batch shows that hole. It is passed over once a leader that knows all has said so as often as is believed of an
        empty answer (`fetch_below`), and never beyond what a reader of committed records gets
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Iterator
from dataclasses import replace
from itertools import takewhile
from typing import Any, Final, NamedTuple

from mirror import clock
from mirror.errors import (
    AccessDenied,
    ClusterError,
    ConnectionLost,
    MalformedBatch,
    MirrorError,
    NotAuthenticated,
    PartitionStop,
    WireError,
)
from mirror.kafka.cluster import AUTHORIZATION_ERRORS, OFFSET_OUT_OF_RANGE, Cluster, Leader, TopicPartition
from mirror.kafka.connection import throttled_seconds
from mirror.kafka.fetch import EMPTY_ANSWERS, SESSION_ERRORS, Ask, Fetched, FetchSession, fetch_below
from mirror.kafka.protocol import FETCH
from mirror.kafka.queries import LATEST, READ_COMMITTED, epoch_end, listed
from mirror.kafka.rate_limit import Bucket
from mirror.kafka.retry import Backoff
from mirror.observability.status import Histogram
from mirror.policy.remedies import grant
from mirror.records.compare import is_a_mirrors_padding, padding_detail
from mirror.records.header import RawBatch, crc_holds, plain, split
from mirror.replication.cursor import Arrival, Cursor
from mirror.replication.damage import Damaged, damaged_at, has_leapt, is_beyond, lost_its_magic
from mirror.replication.observe import is_of_another
from mirror.replication.topic_identity import MISSING_TRIES, other_topic, recreated
from mirror.states import RESOLVED_BY, Remedy, State

MAX_WAIT_MS: Final = 500
#: How long a request waits at the broker when it had to leave out a partition that had no room.
HURRIED_WAIT_MS: Final = 10
ANSWER_BYTES: Final = 16 * 1024 * 1024
FETCH_TIMEOUT: Final = 15.0
DAMAGE_TRIES: Final = 3
#: Seconds for which answers may leave a partition out (R7). A quota that is kept to gives something every 10.
UNHEARD_SECONDS: Final = 20.0
#: Seconds between two polls of the source while the bound lets nothing be fetched.
DEBT_POLL: Final = 1.0

#: Starts a coroutine whose failure ends the task.
Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


#: Takes the next batches of a cursor, or refuses them.
Carry = Callable[[Cursor, tuple[RawBatch, ...]], bool]


class Request(NamedTuple):
    """Says what to ask a leader for, beside what its session asks for."""

    session: FetchSession
    hurried: bool  # a partition had to be left out for a moment
    most: int  # bytes to ask for; 0 to ask for nothing now
    reserved: int  # bytes that may come, with what a broker adds


class Reading:
    """Keeps what is known of reading from one leader."""

    def __init__(self) -> None:
        self.session = FetchSession()
        self.due = set[TopicPartition]()  # what is asked for them may be another offset by now, or nothing
        self.behind = set[TopicPartition]()  # those that had more to read behind their last answer
        self.largest = 0  # bytes of the largest batch
        self.is_muted = False  # the last answer was beyond a quota (R7)
        self.task: asyncio.Task[None] | None = None


class Fetcher:
    """Give it cursors with `start`; iterate to get arrivals until `finish`.

    `room` says how many bytes more a partition's writer takes; at most `partition_bytes` are asked for at a time.
    `carry` may take plain batches (`records/header.plain`) at once, which then are no arrival.
    `bucket` bounds what all of them fetch. `memory` is the budget of bytes for what is fetched and what `writers_hold`
    (R2). A leader that had something is not asked again for `max_delay_s`, so that more comes at once. `took` has the
    seconds from a request to its answer, of answers with records; `throttled_s` are those for which brokers muted us.
    """

    def __init__(
        self,
        source: Cluster,
        room: Callable[[TopicPartition], int],
        spawn: Spawn,
        partition_bytes: int,
        bucket: Bucket | None = None,
        memory: int = sys.maxsize,
        writers_hold: Callable[[], int] = lambda: 0,
        max_delay_s: float = 0.0,
        carry: Carry = lambda *_: False,
    ) -> None:
        self._source, self._bucket = source, bucket
        self._memory, self._writers_hold, self._reserved = memory, writers_hold, 0
        self._spawn = spawn
        self._room, self._carry = room, carry
        self._partition_bytes = partition_bytes
        self._cursors: dict[TopicPartition, Cursor] = {}
        self._arrivals: deque[Arrival] = deque()
        self._arrived = asyncio.Event()
        self._changed = asyncio.Event()
        self._readings: dict[int, Reading] = {}
        self._leaders: dict[TopicPartition, Leader] = {}  # whom each partition is read of
        self._metadata = -1  # the source's metadata that these are of
        self._fetched = 0  # bytes of arrivals that wait
        self._finished = False
        self._max_delay_s = max_delay_s
        self.took, self.throttled_s = Histogram(), 0.0

    def start(self, cursor: Cursor) -> None:
        """Read a partition from the cursor on; replaces its former cursor, and what that had fetched is forgotten."""
        self.stop(cursor.partition)
        self._cursors[cursor.partition] = cursor
        for reading in self._readings.values():
            reading.session.renew(cursor.partition)  # this cursor has not heard where the source ends
        self._assign((cursor.partition,))
        self._changed.set()

    def stop(self, partition: TopicPartition) -> None:
        """Read a partition no more."""
        self._cursors.pop(partition, None)
        self._due(partition)
        if any(arrival.cursor.partition == partition for arrival in self._arrivals):
            self._arrivals = deque(a for a in self._arrivals if a.cursor.partition != partition)
            self._fetched = sum(arrival.size for arrival in self._arrivals)

    @property
    def is_finished(self) -> bool:
        """Nothing more is taken from the source."""
        return self._finished

    def nudge(self) -> None:
        """Some partition has room again."""
        self._changed.set()

    def finish(self) -> None:
        """End the iteration, and every reader."""
        self._finished = True
        self._arrived.set()
        for reading in self._readings.values():
            if reading.task is not None:
                reading.task.cancel()

    async def __aiter__(self) -> AsyncIterator[Arrival]:
        """Arrivals as they come. A cursor that was replaced or stopped yields none."""
        while not self._finished:
            if not self._arrivals:
                self._arrived.clear()
                await self._arrived.wait()
                continue
            arrival = self._arrivals.popleft()
            arrival.cursor.held -= arrival.size
            self._fetched -= arrival.size
            if arrival.batches:
                self.nudge()
            yield arrival

    def _deliver(self, arrival: Arrival) -> None:
        arrival.cursor.held += arrival.size
        self._fetched += arrival.size
        arrival.cursor.unrelayed += 1
        self._arrivals.append(arrival)
        self._arrived.set()

    def _due(self, partition: TopicPartition) -> None:
        """Have the next request consider what is asked for a partition."""
        leader = self._leaders.get(partition)
        if leader is not None and (reading := self._readings.get(leader.node)):
            reading.due.add(partition)

    def _assign(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Have each of `partitions`, or all of ours, read of its leader, by a task for every leader; one whose
        partitions moved away waits idle.
        """
        if self._finished:
            return
        if partitions is None:
            self._metadata, partitions = self._source.learned, tuple(self._cursors)
        for partition in partitions:
            self._due(partition)  # of the leader until now, which is not asked any more where it is none
            leader = self._leaders[partition] = self._source.leader(partition)
            node = leader.node
            reading = self._readings.setdefault(node, Reading())
            reading.due.add(partition)
            if reading.task is None or reading.task.done():
                reading.task = self._spawn(self._read(node, reading) if node >= 0 else self._await_leader())

    async def _await_leader(self) -> None:
        """Ask for metadata until every partition has a leader again."""
        backoff = Backoff()
        while any(self._source.leader(partition).node < 0 for partition in self._cursors):
            await asyncio.sleep(backoff.next())
            await self.refresh()

    async def _read(self, node: int, reading: Reading) -> None:
        """Fetch from one leader, for as long as there are cursors."""
        backoff, session = Backoff(), reading.session
        while True:
            idle: Collection[TopicPartition] | None = None
            if self._bucket and (wait := self._bucket.wait(clock.monotonic())):  # R4
                await asyncio.sleep(min(wait, DEBT_POLL))
                if wait <= DEBT_POLL or not (idle := await self._idle(node)):
                    continue
            if self._metadata != self._source.learned:  # somebody's refresh may have moved partitions to other leaders
                self._assign()
            request = self._request(node, reading, idle)
            if not request.most:
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.05 if request.hurried else MAX_WAIT_MS / 1000):
                        await self._changed.wait()
                continue
            sent_at, asked_ms = clock.monotonic(), clock.now_ms()
            try:
                self._reserved += request.reserved
                try:
                    answer = await self._fetch(node, request)
                finally:
                    self._reserved -= request.reserved
                if answer.error_code and answer.error_code not in SESSION_ERRORS:
                    raise ConnectionLost(f"the source answered {answer.error_code.name}")
            except (WireError, AccessDenied) as problem:
                session.end()
                self._trouble(session.asks, problem)
                await asyncio.sleep(backoff.next())
                await self.refresh()
                continue
            parts = session.read(answer)
            if answer.error_code:  # the broker has forgotten the session
                continue
            stale, muted = False, throttled_seconds(answer)
            for fetched in parts:
                stale |= self._hand_out(fetched, reading, asked_ms)
            self._measure(parts, clock.monotonic() - sent_at, muted)
            unheard = self._unheard(reading, parts, asked_ms, muted)
            if reading.behind:
                self._find_holes(session.asked.values(), parts, unheard)
            session.take_turns(parts)
            pause = self._left_out(unheard, sent_at, muted, backoff)
            if not reading.behind and not request.hurried:
                pause = max(pause, self._max_delay_s - (clock.monotonic() - sent_at))
            await asyncio.sleep(pause)
            if stale:
                await self.refresh()

    def _hand_out(self, fetched: Fetched, reading: Reading, asked_ms: int) -> bool:
        """Take a partition's part of an answer; true where metadata is stale."""
        partition = fetched.partition
        reading.due.add(partition)
        cursor = self._cursors.get(partition)
        if cursor is None or cursor.next_offset != reading.session.asked[partition].offset:
            return False  # stopped or started anew while the request was under way
        cursor.retries.unheard_at = None
        try:
            is_stale = self._take(cursor, fetched, asked_ms)
        except PartitionStop as stop:
            self._stopped(cursor, stop)
            return False
        cursor.log.session = reading.session
        reading.largest = max(reading.largest, cursor.largest)
        (reading.behind.discard if cursor.has_all else reading.behind.add)(partition)
        return is_stale

    def _unheard(
        self, reading: Reading, parts: Collection[Fetched], asked_ms: int, muted: float
    ) -> Collection[TopicPartition]:
        """The partitions of which an answer says nothing. One of a session that is not muted says so of all that it
        does not name: their logs end where they did.
        """
        session, was_muted = reading.session, reading.is_muted
        reading.is_muted = bool(muted and not parts)
        if not session.is_incremental:
            return session.asked.keys() - {fetched.partition for fetched in parts}
        if reading.is_muted:
            return session.asked.keys()
        session.heard_ms = asked_ms
        if was_muted:
            for cursor in filter(None, map(self._cursors.get, session.asked)):
                cursor.retries.unheard_at = None
        return ()

    def _measure(self, parts: Collection[Fetched], took: float, throttled: float) -> None:
        """What one answer cost."""
        size = sum(len(fetched.records) for fetched in parts)
        self.throttled_s += throttled
        if size:
            self.took.add(took)
            if self._bucket:
                self._bucket.spend(size)

    def _left_out(self, partitions: Collection[TopicPartition], since: float, muted: float, backoff: Backoff) -> float:
        """Note that an answer to what was asked at `since` names none of these, and that no other one comes while
        `muted` (R7). Return the seconds to wait before the next request.
        """
        why = "its answers do not name it"
        if muted:
            raising = "raise consumer_byte_rate, or request_percentage, of the mirror's user or client id there"
            why = f"a quota of its brokers lets nothing through: {raising}"
        until = clock.monotonic() + muted
        for cursor in filter(None, map(self._cursors.get, partitions)):
            if cursor.retries.unheard_at is None:
                cursor.retries.unheard_at = since
            if until - cursor.retries.unheard_at > UNHEARD_SECONDS:
                place = f"{cursor.partition} at offset {cursor.next_offset}"
                self._deliver(Arrival(cursor, trouble=f"{self._source}: {place}: {why}"))
        if partitions and not muted:
            return backoff.next()
        backoff.reset()
        return 0.0

    def _trouble(self, partitions: Iterable[TopicPartition], problem: MirrorError) -> None:
        """The leader cannot be used: for now, or for want of a right."""
        for partition in tuple(partitions):
            if cursor := self._cursors.get(partition):
                if isinstance(problem, AccessDenied):
                    self._halt(cursor, self._denied(cursor, problem))
                else:
                    self._deliver(Arrival(cursor, trouble=str(problem)))

    def _stopped(self, cursor: Cursor, stop: PartitionStop) -> None:
        if Remedy.ACCEPT_DAMAGE in stop.remedies and cursor.skips is not None:
            cursor.retries.not_before = float("inf")
            self._spawn(self._skip(cursor, stop))
        else:
            self._halt(cursor, stop)

    def _stands(self, cursor: Cursor, offset: int) -> bool:
        """Return False where a cursor was replaced, stopped or moved since it was at an offset."""
        return self._cursors.get(cursor.partition) is cursor and cursor.next_offset == offset

    async def _skip(self, cursor: Cursor, stop: PartitionStop) -> None:
        """Leave out the batch at a cursor, which stays damaged; its partition stops where it is not known how far that
        reaches, or more of it than may be left out.
        """
        offset = cursor.next_offset
        try:
            found = await damaged_at(self._source, cursor.partition, offset)
            found = found and await self._behind(cursor.partition, found)
        except (ClusterError, WireError) as problem:
            self._ask_later(cursor, str(problem))
            return
        if not self._stands(cursor, offset):
            return
        if found is not None and not found.is_between(cursor.skips):
            self._halt(cursor, stop)
            return
        cursor.retries.damaged, cursor.retries.not_before = 0, 0.0
        if found is not None:
            cursor.next_offset, cursor.last_epoch = found.next_offset, found.epoch
            self._deliver(Arrival(cursor, lost=found))
        self.nudge()

    def _find_holes(
        self, asks: Iterable[Ask], parts: Collection[Fetched], unheard: Collection[TopicPartition] = ()
    ) -> None:
        """Look for a hole where answers held nothing of a log that goes on, and not for want of bytes: these go to the
        partitions in the order of the asks (R8).
        """
        given = {fetched.partition: fetched for fetched in parts}
        for ask in takewhile(lambda ask: not (ask.partition in given and given[ask.partition].records), asks):
            cursor, fetched = self._cursors.get(ask.partition), given.get(ask.partition)
            if cursor is None or ask.partition in unheard or (fetched and fetched.error_code) or cursor.retries.damaged:
                continue
            if (
                cursor.retries.not_before == float("inf")
                or not cursor.next_offset == ask.offset < cursor.log.readable_until
            ):
                continue
            cursor.retries.hollow += 1
            if cursor.retries.hollow >= EMPTY_ANSWERS:
                cursor.retries.hollow, cursor.retries.not_before = 0, float("inf")
                self._due(ask.partition)
                self._spawn(self._pass_hole(cursor, cursor.log.readable_until))

    async def _pass_hole(self, cursor: Cursor, stable: int) -> None:
        """Go on at the last stable offset where nothing is left below it (R8). A leader epoch that does not reach so
        far is named no more: the next fetch would take what follows for another log (KIP-595).
        """
        offset, epoch = cursor.next_offset, cursor.last_epoch
        end = stable if cursor.until is None else min(stable, cursor.until)
        try:
            found = await fetch_below(self._source, cursor.partition, offset, end)
            kept = await epoch_end(self._source, cursor.partition, epoch) if epoch >= 0 else None
        except (ClusterError, WireError, MalformedBatch) as problem:
            self._ask_later(cursor, str(problem))
            return
        if not self._stands(cursor, offset):
            return
        cursor.retries.not_before = 0.0
        # the next fetch shows where it was cut back
        is_cut = kept is not None and kept.end >= 0 and (kept.epoch < epoch or kept.end < offset)
        if not (found.records or is_cut):
            reaches = kept is not None and kept.epoch == epoch and kept.end >= end
            cursor.next_offset, cursor.last_epoch = end, epoch if reaches else -1
            self._deliver(Arrival(cursor, hole_until=end))
        self.nudge()

    async def _find_epoch(self, cursor: Cursor) -> None:
        """Fetch without a leader epoch where the leader refuses one because it keeps none (R6), as 2.8 does once
        `message.format.version` is below 0.11 (Kafka `Log.initializeLeaderEpochCache`). One that keeps them knows where
        any up to its own ends.
        """
        offset = cursor.next_offset
        try:
            found = await epoch_end(self._source, cursor.partition, cursor.last_epoch)
        except (ClusterError, WireError) as problem:
            self._ask_later(cursor, str(problem))
            return
        if not self._stands(cursor, offset):
            return
        cursor.retries.not_before = 0.0
        now = self._source.leader(cursor.partition).epoch
        if found.end < 0 and now >= cursor.last_epoch:
            cursor.retries.epochless = now
            self.nudge()
        else:
            self._out_of_range(cursor)

    async def _find_cut(self, cursor: Cursor, stop: PartitionStop) -> None:
        """Stop where a leader that has nothing of a leader epoch holds something else there, and go on without the
        epoch where it has a hole: compaction takes all of one, and a replica made since has never heard of it (R6).
        """
        offset = cursor.next_offset
        try:
            is_cut = await is_of_another(self._source, cursor.partition, cursor.last_epoch, offset)
        except (ClusterError, WireError) as problem:
            self._ask_later(cursor, str(problem))
            return
        if not self._stands(cursor, offset):
            return
        if is_cut:
            self._halt(cursor, stop)
            return
        cursor.last_epoch, cursor.retries.not_before = -1, 0.0
        self.nudge()

    def _out_of_range(self, cursor: Cursor) -> None:
        self._deliver(Arrival(cursor, trouble=f"offset {cursor.next_offset} is out of range", astray=True))

    async def _behind(self, partition: TopicPartition, damaged: Damaged) -> Damaged:
        """The same with the leader epoch that reaches over it. A leader that is given the epoch of the batch before
        takes all of a later one for records that it lost (KIP-595), and a damaged header has none.
        """
        epoch = damaged.epoch if damaged.epoch >= 0 else self._source.leader(partition).epoch
        if epoch >= 0:
            found = await epoch_end(self._source, partition, epoch)
            if found.epoch != epoch or found.end < damaged.next_offset:
                epoch = -1
        return replace(damaged, epoch=epoch)

    def _halt(self, cursor: Cursor, stop: PartitionStop) -> None:
        del self._cursors[cursor.partition]
        self._due(cursor.partition)
        self._deliver(Arrival(cursor, stop=stop))

    def _free(self) -> int:
        """Bytes of the budget that nobody holds or asked for; negative where a batch was larger than expected."""
        return self._memory - self._writers_hold() - self._fetched - self._reserved

    async def _idle(self, node: int) -> list[TopicPartition]:
        """Which partitions of a leader have nothing that was not read; where the others end is noted (R4)."""
        partitions = [
            partition
            for partition, cursor in self._cursors.items()
            if self._source.leader(partition).node == node and not cursor.is_done
        ]
        try:
            ends = await listed(self._source, partitions, LATEST, READ_COMMITTED)
        except MirrorError:  # the next fetch shows it
            return []
        idle: list[TopicPartition] = []
        for partition, end in ends.items():
            if (cursor := self._cursors.get(partition)) is None:
                continue
            if end <= cursor.next_offset:
                idle.append(partition)
            elif end > cursor.log.readable_until:
                cursor.log.readable_until = end
                self._deliver(Arrival(cursor))
        return idle

    def _request(self, node: int, reading: Reading, only: Collection[TopicPartition] | None = None) -> Request:
        """Return what to ask a leader for now; `only` of some partitions where they are given. Looks at those alone
        whose ask may be another one: they were answered, or left out before.
        """
        session, hurried, now = reading.session, False, clock.monotonic()
        least, half = self._partition_bytes // 2, self._memory // 2
        if only is not None:
            reading.due.update(session.asks)
        due, reading.due = reading.due, set()
        for partition in due:
            cursor, leader = self._cursors.get(partition), self._leaders[partition]
            if cursor is None or leader.node != node or cursor.is_done:
                reading.behind.discard(partition)
                session.forget(partition)
                continue
            room = min(self._partition_bytes, self._room(partition) - cursor.held)
            if room < least or cursor.retries.not_before > now or (only is not None and partition not in only):
                hurried = True
                cursor.log.leave()
                session.forget(partition)
                reading.due.add(partition)
                continue
            last_epoch = -1 if cursor.retries.epochless == leader.epoch else cursor.last_epoch  # R6
            session.ask(Ask(partition, cursor.topic_id, leader.epoch, cursor.next_offset, last_epoch, room))
        free = self._free()
        if not session.asks or free < min(max(least, reading.largest), half):
            return Request(session, hurried or bool(session.asks), 0, 0)
        share = half // max(1, len(self._readings))  # a leader that has nothing must not keep the others waiting
        most = max(1, min(ANSWER_BYTES, share, free))
        reserved = min(max(min(len(session.asks) * self._partition_bytes, most), reading.largest), share)
        return Request(session, hurried, most, reserved)

    async def _fetch(self, node: int, request: Request) -> Any:
        connection = await self._source.connection(node, "fetch")
        most, wait = request.most, HURRIED_WAIT_MS if request.hurried else MAX_WAIT_MS
        if self._bucket:
            most = max(1, min(most, self._bucket.left(clock.monotonic())))
        asked = request.session.request(connection.version(FETCH), max_wait_ms=wait, max_bytes=most)
        return await connection.call(FETCH, asked, connection.request_timeout or FETCH_TIMEOUT)

    async def refresh(self) -> None:
        """Fresh metadata: leaders may have moved, topics may be gone or be others."""
        with contextlib.suppress(ClusterError):  # unreachable now: the next fetch shows it, and backs off
            await self._source.refresh()
            for cursor in tuple(self._cursors.values()):
                self._check_topic(cursor)
        self._assign()
        self._changed.set()

    def _check_topic(self, cursor: Cursor) -> None:
        """Stop a partition whose topic was deleted, is another one by the same name, or may not be looked at."""
        if self._source.is_denied(cursor.partition.topic):
            problem = AccessDenied(f"{self._source}: no DESCRIBE right on topic {cursor.partition.topic}")
            self._halt(cursor, self._denied(cursor, problem))
            return
        is_missing = cursor.partition.topic not in self._source.topics
        cursor.retries.missing = cursor.retries.missing + 1 if is_missing else 0
        if is_missing and cursor.retries.missing < MISSING_TRIES:
            return
        if detail := other_topic(self._source, cursor.partition.topic, cursor.topic_id):
            self._halt(cursor, recreated(cursor.partition, cursor.next_offset, detail))

    def _take(self, cursor: Cursor, fetched: Fetched, asked_ms: int) -> bool:
        """Hand out a partition's part of an answer; true where metadata is stale. Raises PartitionStop."""
        if fetched.diverging is not None:
            epoch, end = fetched.diverging
            detail = f"the source's log was cut back to offset {end} of epoch {epoch}, and what followed was mirrored"
            stop = self._stop(cursor, State.TRUNCATED, detail, *RESOLVED_BY[State.TRUNCATED])
            if epoch >= cursor.last_epoch or end < cursor.next_offset:
                raise stop
            cursor.retries.not_before = float("inf")
            self._spawn(self._find_cut(cursor, stop))
            return False
        if fetched.error_code:
            return self._refused(cursor, fetched)
        cursor.log.sees(fetched.last_stable_offset, fetched.high_watermark, asked_ms)
        cursor.log.start = fetched.log_start
        if fetched.records:
            cursor.retries.hollow = 0
            self._cut(cursor, fetched)
        elif not cursor.retries.damaged:
            self._deliver(Arrival(cursor))
        return False

    def _cut(self, cursor: Cursor, fetched: Fetched) -> None:
        until = fetched.high_watermark if cursor.until is None else min(cursor.until, fetched.high_watermark)
        if cursor.is_past_padding and (batches := plain(fetched.records, cursor.next_offset, until)):
            last = batches[-1].header
            cursor.next_offset, cursor.last_epoch = last.base_offset + last.count, last.partition_leader_epoch
            cursor.largest = max([len(raw.data) for raw in batches])
            cursor.retries.damaged = 0
            cursor.retries.backoff.reset()
            is_behind = cursor.unrelayed or fetched.aborted or cursor.until is not None
            if is_behind or not self._carry(cursor, batches):
                self._deliver(Arrival(cursor, batches, len(fetched.records), fetched.aborted))
        else:
            self._cut_with_care(cursor, fetched)

    def _cut_with_care(self, cursor: Cursor, fetched: Fetched) -> None:
        batches: list[RawBatch] = []
        damage, before, epoch, tries = "", cursor.next_offset, cursor.last_epoch, cursor.retries.damaged
        largest, is_sound, lies = 0, True, False
        try:
            for raw in (rest := split(fetched.records)):
                is_known = 0 <= raw.header.magic <= 2
                is_sound = crc_holds(raw) if is_known else not lost_its_magic(raw)
                if not is_sound:
                    raise MalformedBatch(
                        "CRC mismatch" if is_known else f"magic {raw.header.magic}, and its CRC is of a known one",
                        0,
                        raw.header.base_offset,
                    )
                is_past = cursor.until is not None and raw.header.base_offset >= cursor.until
                if is_beyond(raw, fetched) or (is_past and _leaps(raw, cursor.next_offset, rest)):
                    is_sound, lies = False, True
                    what = f"{_claim(raw)}, behind the log's end, {fetched.high_watermark}, or what follows it"
                    raise MalformedBatch(what, 0, before)
                if cursor.until is not None and is_past:
                    cursor.next_offset = max(cursor.next_offset, cursor.until)
                    break
                if not cursor.is_past_padding and is_a_mirrors_padding(raw):  # R5
                    self._await_source(cursor, raw)
                    return
                cursor.is_past_padding = True
                batches.append(raw)
                largest = max(largest, len(raw.data))
                epoch = cursor.last_epoch
                cursor.last_epoch = raw.header.partition_leader_epoch
                if raw.header.next_offset > before:
                    cursor.next_offset = raw.header.next_offset
                    cursor.retries.damaged = 0
                    cursor.retries.backoff.reset()
            if cursor.next_offset == before and all(0 <= raw.header.magic <= 2 for raw in batches):
                raise MalformedBatch(f"nothing but what precedes offset {before}, which was asked for", 0, before)
        except MalformedBatch as problem:
            damage = str(problem)
            if batches and is_sound:
                lies = has_leapt(batches[-1], _due(batches, before), problem.offset)
        if lies and is_sound:
            due = _due(batches, before)
            batches.pop()
            cursor.next_offset, cursor.last_epoch = due, epoch
            cursor.retries.damaged = tries if due == before else 0
        cursor.largest = largest or cursor.largest
        self._deliver(Arrival(cursor, tuple(batches), sum(len(raw.data) for raw in batches), fetched.aborted))
        if damage:
            self._damaged(cursor, damage, lies=lies)

    def _damaged(self, cursor: Cursor, damage: str, *, lies: bool) -> None:
        """Fetch again what is damaged. Raises PartitionStop where that was done often enough."""
        cursor.retries.damaged += 1
        cursor.retries.not_before = clock.monotonic() + cursor.retries.backoff.next()
        if cursor.retries.damaged >= DAMAGE_TRIES:
            raise self._stop(
                cursor,
                State.CORRUPT,
                f"the batch was damaged in each of {DAMAGE_TRIES} fetches, by the source's disk or the network:"
                f" {damage}",
                Remedy.SOUND_LEADER,
                *(() if lies else (Remedy.ACCEPT_DAMAGE,)),
                Remedy.INSPECT,
            )

    def _await_source(self, cursor: Cursor, padding: RawBatch) -> None:
        """Another mirror is bringing the source to where its own source begins."""
        self._ask_later(cursor, padding_detail(padding))

    def _ask_later(self, cursor: Cursor, trouble: str) -> None:
        cursor.retries.not_before = clock.monotonic() + cursor.retries.backoff.next()
        self._deliver(Arrival(cursor, trouble=trouble))

    def _refused(self, cursor: Cursor, fetched: Fetched) -> bool:
        code = fetched.error_code
        cursor.retries.not_before = clock.monotonic() + cursor.retries.backoff.next()
        if code == OFFSET_OUT_OF_RANGE:  # the answer does not say whether below the log's start or beyond its end
            if cursor.last_epoch >= 0 and cursor.retries.epochless != self._source.leader(cursor.partition).epoch:
                cursor.retries.not_before = float("inf")
                self._spawn(self._find_epoch(cursor))
            else:
                self._out_of_range(cursor)
            return False
        if code in AUTHORIZATION_ERRORS:
            raise self._denied(cursor, AccessDenied(f"the source answered {code.name}"))
        self._source.disowned(self._source.leader(cursor.partition).node, code, cursor.partition)
        self._deliver(Arrival(cursor, trouble=f"the source answered {code.name}"))
        return True

    def _denied(self, cursor: Cursor, problem: AccessDenied) -> PartitionStop:
        if isinstance(problem, NotAuthenticated):
            return self._stop(cursor, State.UNAUTHORIZED, str(problem), Remedy.MEND_LOGIN)
        right = grant(self._source.endpoint, cursor.partition.topic)
        return self._stop(cursor, State.UNAUTHORIZED, str(problem), Remedy.GRANT, grant=right)

    def _stop(self, cursor: Cursor, state: State, detail: str, *remedies: Remedy, **values: object) -> PartitionStop:
        return PartitionStop(state, *cursor.partition, cursor.next_offset, detail, *remedies).knowing(**values)


def _due(batches: list[RawBatch], before: int) -> int:
    """Where the last of some batches should begin at the least, of an answer to an ask for offset `before`."""
    return max(before, batches[-2].header.next_offset if len(batches) > 1 else before)


def _leaps(raw: RawBatch, due: int, rest: Iterator[RawBatch]) -> bool:
    """Whether what follows a batch in its answer shows that its offset lies: no CRC covers it. Without that, a bounded
    copy would take all up to its end for a hole.
    """
    try:
        next(rest, None)
    except MalformedBatch as problem:
        return has_leapt(raw, due, problem.offset)
    return False


def _claim(raw: RawBatch) -> str:
    return f"the batch at base offset {raw.header.base_offset} says that its last offset is {raw.header.last_offset}"
