"""The flow's journal: the compacted topic `mirror.<flow>.offsets` on the target, with one record for each thing
worth knowing later.

    key                        value (JSON)
    owner                      which process runs the flow, and the number of its claim: a greater one ends it;
                               said again every few seconds (`journal/ownership.py`)
    ended                      which process ended in good order
    failover                   that the flow was failed over: whichever mirror reads it ends (`journal/ownership.py`)
    failover/account           what that failover reported, to be shown again (`commands/failover_view.py`)
    pause/<source topic>       that a topic is paused until `mirror resume`
    topic/<target topic>       source topic, its id and cluster id as first seen, so that a recreated one is known;
                               and where it began to be mirrored (`journal/entries.py`); the target topic's id, whether
                               the flow made or adopted it, and the clusters that the data came through
    rekeyed/<target topic>     the same of a topic that is re-keyed, without where it began
    start/<target topic>       where a re-keyed topic begins, by the flow's first start, until its first plan says it
    state/<topic>/<partition>  live figures, every second
    task/<number>              how long a task's requests take, with the live figures
    loss/<topic>/<partition>/<offset>  records that the source lost before they were mirrored
    accept/<topic>/<partition>         up to where such a loss was accepted by a person
    position/<topic>/<partition>       the last acknowledged position of a copy (`journal/positions.py`)
    stop/<topic>/<partition>           a stop that stands until a person, a policy or another target topic lifts it
    acl/<topic or group>/<name>        ACLs that the flow gave there, to be taken back when the source revokes them
    groups                     how consumer groups stand, after each round that changed it or ten seconds
    runs/<topic>/<partition>/<offset>  where offsets moved to (`journal/offset_maps.py`)
    cut/<topic>/<partition>            that a target where they moved lost its tail, until groups are put back for it

Nothing here decides where to resume: that is the target's log alone (`replication/decide.py`), as soon as it holds a
record. Records are few and small, so they go without a producer id; a repeated state is the same state. Encoding and
decoding are kio's. Anybody may write to a topic: a batch that is not the journal's is skipped with a warning, since it
must not keep a mirror from starting.

    J1  the topic may lose its end (an unclean election, a lost disk), its first records (a policy that somebody set)
        or be made anew. Whoever follows it looks at each read whether what it read is still there: another topic id, an
        end before the place that was reached, another start, or, where the leader's epoch changed, an end of the
        former epoch before that place (KIP-101). Then all of it is read again, and whoever runs the flow writes again
        what only it knows; a log that lost its end may say again what was true before, which is not learned
    J2  a process that was suspended, or that has not heard yet whether its flow still is its own, appends nothing
        before it has (Z1): what it knows is older than what another mirror wrote
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple
from uuid import UUID

from kio.records.readers import read_batch
from kio.records.schema import NewRecordBatch, Record
from kio.records.writers import write_new_batch
from kio.serial.errors import SerialError
from kio.static.primitive import TZAwareMicros, i8, i16, i32, i64

from mirror.errors import BadRecords, BrokerError, ClusterError, ClusterUnreachable, FlowLost, Suspended
from mirror.kafka.cluster import OFFSET_OUT_OF_RANGE, Cluster, Leader, TopicPartition
from mirror.kafka.fetch import fetch_below
from mirror.kafka.produce import append
from mirror.kafka.queries import EARLIEST, LATEST, READ_UNCOMMITTED, epoch_end, list_offset
from mirror.observability.logs import get
from mirror.policy.remedies import set_configs
from mirror.policy.rules import AFTER_MAX, NO_LIMIT
from mirror.records.header import RawBatch, crc_holds, split
from mirror.suspension import Clearance

OWNER = b"owner"
ENDED = b"ended"
#: Kafka `Errors`.
INVALID_TIMESTAMP = 32
_READ_BYTES = 4 * 1024 * 1024
#: Bytes of records in one batch, well below what a broker takes by default.
_BATCH_BYTES = 256 * 1024
_log = get(__name__)


def journal_topic(flow: str) -> str:
    """The name of the flow's topic on the target."""
    return f"mirror.{flow}.offsets"


#: A key and its new value; None deletes it.
Change = tuple[bytes, bytes | None]


class Entry(NamedTuple):
    """One record of the journal."""

    offset: int
    key: bytes
    value: bytes | None


class Skipped(NamedTuple):
    """A batch that is not the journal's, by its base offset."""

    offset: int
    reason: str


class JournalPlace(NamedTuple):
    """How far a journal was read: the next offset, in which topic, and the newest leader's epoch that is known to have
    all of that. A broker may have heard of an older epoch only; then it is that of the records. `start`: where the log
    began then. `written`: the newest epoch that a record which was read is of, -1 where none is.
    """

    offset: int
    topic_id: UUID | None
    epoch: int
    start: int = 0
    written: int = -1


class LostRecords(NamedTuple):
    """Records that were read and are gone (J1). Those below `kept` are as they were; 0 where none is known to be. Those
    from `new_from` on were written since: what lies before may be older than what was read.
    """

    reason: str
    read_until: int
    kept: int
    new_from: int


class JournalMissing(ClusterError):
    """The topic is not there any more."""


class News(NamedTuple):
    """What is new in a journal since a place: all of it where `lost` says that something is gone."""

    entries: list[Entry]
    place: JournalPlace
    lost: LostRecords | None = None


class _Suspended(Exception):
    """This process was, since it asked whether it may write."""


@dataclass(slots=True)
class Journal:
    """The journal of one flow. The topic must exist, but for `newest`. `clearance`: asked before anything is appended
    (J2), by whoever has the flow for longer than one command.
    """

    cluster: Cluster
    flow: str
    clearance: Clearance | None = None

    @property
    def partition(self) -> TopicPartition:
        """The journal is one partition, so its order is the order of events."""
        return TopicPartition(journal_topic(self.flow), 0)

    async def append(self, entries: Sequence[Change], *, waits: bool = True) -> int:
        """Append keys and values (None: a deletion) as one batch; the offset of the first. `waits` for a quota.

        Raises FlowLost where the flow is no longer ours, Suspended, ClusterUnreachable, AccessDenied, BrokerError; and
        as `follow` does, where it has to be asked for.
        """
        try:
            while True:
                if self.clearance is not None and not await self.clearance.given():
                    raise FlowLost(f"{self.flow}: it is not known to be this mirror's, so its journal is not written")
                with contextlib.suppress(_Suspended):
                    batch = (encode(entries),)
                    return await append(
                        self.cluster,
                        self.partition,
                        batch,
                        doing="append to the journal",
                        check=self._check_clear,
                        waits=waits,
                    )
        except Suspended:
            raise
        except ClusterUnreachable as problem:
            raise ClusterUnreachable(f"{problem}; it may be written all the same") from problem
        except BrokerError as problem:
            if problem.code != INVALID_TIMESTAMP:
                raise
            lifted = set_configs(self.cluster.endpoint, self.partition.topic, {AFTER_MAX: str(NO_LIMIT)})
            now = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
            raise ClusterUnreachable(
                f"{self.cluster}: takes no record of this machine's time, {now}, into {self.partition.topic}: set the"
                f" clock of this machine, or of the brokers; to have that topic take any time: {lifted}"
            ) from problem

    def _check_clear(self) -> None:
        """At the last moment. Raises _Suspended."""
        if self.clearance is not None and self.clearance.is_due:
            raise _Suspended

    async def append_all(self, entries: Iterable[Change]) -> None:
        """The same in as many batches as they need: who dies in between leaves the first of them."""
        for some in batches(entries):
            await self.append(some)

    async def read(self, offset: int | None = None) -> tuple[list[Entry], int]:
        """Every entry from `offset` (the start where None) to the end of now, and the offset to go on from.

        Batches that are not the journal's are skipped with a warning; nobody's open transaction hides what follows it.
        Raises MalformedBatch for what is no record set, and as `Cluster.call_leader` does.
        """
        at = await list_offset(self.cluster, self.partition, EARLIEST) if offset is None else offset
        entries, following, _, _ = await self._read(at, await list_offset(self.cluster, self.partition, LATEST))
        return entries, following

    async def _read(self, at: int, end: int) -> tuple[list[Entry], int, int, int]:
        """Besides, the newest leader's epoch of a batch that was read and where the log began; -1 where none was."""
        found: list[Entry] = []
        epoch = start = -1
        while at < end:
            fetched = await fetch_below(
                self.cluster, self.partition, at, end, max_bytes=_READ_BYTES, isolation=READ_UNCOMMITTED
            )
            if not fetched.records:
                break  # compaction left nothing up to the end
            entries, following, skipped = decode(fetched.records)
            start = fetched.log_start
            epoch = max(epoch, *(raw.header.partition_leader_epoch for raw in split(fetched.records)))
            for one in skipped:
                _log.warning("journal_batch_unread", topic=self.partition.topic, offset=one.offset, reason=one.reason)
            found += (entry for entry in entries if entry.offset >= at)
            at = max(following, at + 1)
        return found, at, epoch, start

    async def follow(self, place: JournalPlace | None) -> News:
        """What is new since `place`; everything where that is None, or where records before it are gone (J1).

        Raises JournalMissing, and as `read` does.
        """
        topic = self.partition.topic
        now = await self.cluster.describe(topic)
        if now is None:
            raise JournalMissing(f"{self.cluster}: the flow's journal, topic {topic}, is not there any more")
        known, leader = self.cluster.topics.get(topic), now.leaders.get(0, Leader(-1, -1))
        if known is None or known.topic_id != now.topic_id or known.leaders.get(0) != leader:
            await self.cluster.refresh([topic])
        end, lost = await list_offset(self.cluster, self.partition, LATEST), None
        if place is not None:
            lost = await self._lost(place, now.topic_id, leader.epoch, end)
            if lost is None:
                try:
                    entries, at, epoch, start = await self._read(place.offset, end)
                    if (
                        leader.epoch == place.epoch < epoch
                    ):  # whoever was asked for the leader had not heard of this one
                        lost = await self._lost(place, now.topic_id, epoch, end)
                    if lost is None and start > place.start:
                        lost = LostRecords(f"the log begins at {start}, and began at {place.start}", place.offset, 0, 0)
                    if lost is None:
                        newest, written = max(place.epoch, leader.epoch, epoch), max(place.written, epoch)
                        return News(entries, JournalPlace(at, now.topic_id, newest, place.start, written))
                except BrokerError as problem:
                    if problem.code != OFFSET_OUT_OF_RANGE:
                        raise
                    begin = await list_offset(self.cluster, self.partition, EARLIEST)
                    kept = 0 if begin > place.offset else end
                    lost = LostRecords(f"the log begins at {begin}", place.offset, kept, kept)
        start = await list_offset(self.cluster, self.partition, EARLIEST)
        entries, at, epoch, _ = await self._read(start, await list_offset(self.cluster, self.partition, LATEST))
        return News(entries, JournalPlace(at, now.topic_id, max(leader.epoch, epoch), start, epoch), lost)

    async def _lost(self, place: JournalPlace, topic_id: UUID | None, epoch: int, end: int) -> LostRecords | None:
        if place.topic_id != topic_id:
            return LostRecords(
                f"the topic was made anew: its id is {topic_id}, and was {place.topic_id}", place.offset, 0, 0
            )
        kept = end
        if epoch != place.epoch and place.written >= 0:
            former = await epoch_end(self.cluster, self.partition, place.written)
            if 0 <= former.epoch < place.written:
                text = f"its leader has no record of leader epoch {place.written}, of which records were read"
                return LostRecords(text, place.offset, 0, former.end)
            kept = min(end, former.end) if former.end >= 0 else end
        return LostRecords(f"the log ended at {kept}", place.offset, kept, kept) if kept < place.offset else None

    async def all_entries(self) -> list[Entry]:
        """Every entry to the end of now; none where the flow has no journal. Raises as `read`."""
        topic = self.partition.topic
        await self.cluster.refresh([topic])
        return (await self.read())[0] if topic in self.cluster.topics else []

    async def newest(self) -> dict[bytes, bytes]:
        """The newest value of every key that stands now; nothing where the flow has no journal. Raises as `read`."""
        return newest(await self.all_entries())


def newest(entries: Iterable[Entry]) -> dict[bytes, bytes]:
    """The newest value of every key, of entries in the journal's order; without keys that were deleted."""
    found = {entry.key: entry.value for entry in entries}
    return {key: value for key, value in found.items() if value is not None}


def batches(entries: Iterable[Change]) -> Iterator[list[Change]]:
    """Cut where a batch would become large."""
    batch: list[Change] = []
    size = 0
    for key, value in entries:
        if batch and size > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append((key, value))
        size += len(key) + len(value or b"")
    if batch:
        yield batch


def encode(entries: Iterable[Change]) -> bytes:
    """One batch, uncompressed, without a producer id, as a producer sends it."""
    now = TZAwareMicros.parse(datetime.now(UTC).replace(microsecond=0))
    records = tuple(
        Record(attributes=i8(0), timestamp=now, offset=i64(index), key=key, value=value, headers=())
        for index, (key, value) in enumerate(entries)
    )
    buffer = io.BytesIO()
    write_new_batch(
        buffer,
        NewRecordBatch(
            producer_id=i64(-1), producer_epoch=i16(-1), base_sequence=i32(-1), attributes=i16(0), records=records
        ),
    )
    return buffer.getvalue()


def decode(records: memoryview) -> tuple[list[Entry], int, list[Skipped]]:
    """The entries of a record set, the offset after it, and the batches that are not the journal's.

    Raises MalformedBatch where the record set cannot be cut into batches.
    """
    entries: list[Entry] = []
    skipped: list[Skipped] = []
    following = 0
    for raw in split(records):
        base_offset = raw.header.base_offset
        try:
            entries += _entries(raw)
        except (SerialError, ValueError, TypeError) as problem:  # TypeError: kio's word for a time before 1970
            skipped.append(Skipped(base_offset, f"not a batch of the journal: {problem}"))
        following = max(raw.header.next_offset, base_offset + 1)  # magic 0 and 1 have no last offset
    return entries, following, skipped


def _entries(raw: RawBatch) -> list[Entry]:
    """Raises SerialError, ValueError or TypeError for a batch that `encode` did not make."""
    if raw.header.is_control:
        raise ValueError("a transaction's marker")
    batch, _ = read_batch(_opened(raw), 0)
    return [Entry(record.offset, record.key or b"", record.value) for record in batch.records]


def _opened(raw: RawBatch) -> bytes:
    """The batch as `encode` made it: a topic with a compression.type of its own has it compressed by its broker, and
    kio takes compressed bytes for records. Raises ValueError for what does not decompress.
    """
    header = raw.header
    if header.magic != 2 or not header.codec:
        return bytes(raw.data)
    if not crc_holds(raw):
        raise ValueError("Checksum mismatch")
    from mirror.records.codecs import uncompressed  # noqa: PLC0415 -- loads every codec, and is seldom needed

    try:
        return uncompressed(raw)
    except BadRecords as problem:
        raise ValueError(problem.detail) from problem
