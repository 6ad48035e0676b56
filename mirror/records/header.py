"""Record batch headers, checksums, control records, and restamping; a record set cut into raw batches.

Layout of magic 2 (big-endian; Kafka `DefaultRecordBatch.java`, KIP-98):

    pos len field                     in CRC
      0   8 base offset               no      assigned by the leader; 0 in a Produce request
      8   4 batch length              no      bytes after this field
     12   4 partition leader epoch    no      overwritten by the leader
     16   1 magic                     no
     17   4 CRC-32C of bytes 21..end  -
     21   2 attributes                yes     0-2 codec, 3 append time, 4 transactional, 5 control, 6 delete horizon
     23   4 last offset delta         yes
     27   8 base timestamp, ms        yes     (the delete horizon where bit 6 is set)
     35   8 max timestamp, ms         yes
     43   8 producer id               yes
     51   2 producer epoch            yes
     53   4 base sequence             yes
     57   4 count                     yes
     61     records section                   the bytes that the mirror never touches

The CRC leaves out base offset and leader epoch so that a leader can set them without reading the payload; the mirror
lives on that.

Layout of magic 0 and 1, one message (Kafka `LegacyRecord.java`, KIP-31, KIP-32):

      0   8 offset                   of the message; of a compressed set, that of the last message inside
      8   4 length                   bytes after this field
     12   4 CRC-32 of bytes 16..end
     16   1 magic
     17   1 attributes               0-2 codec; 3 append time, in magic 1
     18   8 timestamp, ms            in magic 1 alone; of a compressed set, the largest
            key length, key, value length, value; the value of a compressed set is the set

Only fields that a broker lets a producer choose are written. The result goes in front of `RawBatch.records`, so the
payload is neither copied nor read again except by the CRC.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from crc32c import crc32c

from mirror.errors import BadRecords, MalformedBatch

# --- The header of a record batch, and a record set cut into raw batches ----------------------------------------------

HEADER_BYTES: Final = 61
#: Base offset and batch length: what precedes the bytes that the length counts.
LENGTH_PREFIX: Final = 12
#: Smallest batch length of magic 2.
_SHORTEST: Final = HEADER_BYTES - LENGTH_PREFIX
#: Smallest batch length of any magic: a magic 0 message with null key and null value (crc, magic, attributes, two
#: lengths).
SMALLEST_LENGTH: Final = 14
#: The same for magic 1, which has a timestamp.
SMALLEST_LENGTH_V1: Final = 22
MAGIC_AT: Final = 16
CRC_AT: Final = 17
CRC_FROM: Final = 21

CODEC_MASK: Final = 0x07
APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40

#: Compression codecs by their ids, as Kafka's settings spell them.
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")

#: Offsets are signed 64-bit numbers. The base offset is outside the CRC, so damage to it shows in its neighbours alone.
LAST_OFFSET: Final = 2**63 - 1

LAYOUT: Final = Struct(">qiibIhiqqqhii")
_PREFIX: Final = Struct(">qiib")
#: A header up to its CRC, and what that covers.
_BEFORE: Final = Struct(">qiibI")
_COVERED: Final = Struct(">hiqqqhii")
#: CRC, magic, attributes.
_LEGACY: Final = Struct(">IbB")
_LEGACY_AT: Final = 12
_TIMESTAMP: Final = Struct(">q")
_TIMESTAMP_AT: Final = 18


def codec_name(codec: int) -> str:
    """A codec id as Kafka's settings spell it."""
    return CODECS[codec] if codec < len(CODECS) else f"codec {codec}"


class BatchHeader(NamedTuple):
    """A header as stored.

    Magic 0 and 1 have no count (-1), no leader epoch (-1) and no first offset: `base_offset` is the last one of a
    compressed set, and `last_offset_delta` is 0, so that last and next offset are right. Their largest timestamp is
    the message's, or -1 in magic 0. Of any other magic but 2, only the first four fields are read.
    """

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int = 0
    attributes: int = 0
    last_offset_delta: int = -1
    base_timestamp: int = -1
    max_timestamp: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    count: int = -1  # type: ignore[assignment] # hides a method of tuples that nobody calls here

    @property
    def last_offset(self) -> int:
        """Offset of the batch's last record, kept by compaction even when that record is gone."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """Where a cursor goes after this batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def size(self) -> int:
        """Bytes of the whole batch, header included."""
        return LENGTH_PREFIX + self.batch_length

    @property
    def codec(self) -> int:
        """Compression codec id, 0 to 7; see `CODECS`."""
        return self.attributes & CODEC_MASK

    @property
    def codec_name(self) -> str:
        """The codec as Kafka's settings spell it."""
        return codec_name(self.codec)

    @property
    def stated_records(self) -> int | None:
        """How many records a batch says it has; None for a compressed one before magic 2, which does not say."""
        if self.magic == 2:
            return self.count
        return None if self.codec else 1

    @property
    def holes(self) -> int:
        """Offsets of the batch that hold no record; 0 before magic 2."""
        return self.last_offset_delta + 1 - self.count if self.magic == 2 else 0

    @property
    def is_dense(self) -> bool:
        """Every offset between base and last offset holds a record: what a broker demands of a producer."""
        return self.count == self.last_offset_delta + 1

    @property
    def is_control(self) -> bool:
        """A marker. Before magic 2 the bit has no meaning, and may be set."""
        return self.magic == 2 and bool(self.attributes & CONTROL)

    @property
    def is_transactional(self) -> bool:
        """Data or marker of a transaction. Before magic 2 this bit has no meaning either."""
        return self.magic == 2 and bool(self.attributes & TRANSACTIONAL)


class RawBatch(NamedTuple):
    """One record batch as an untouched view of the bytes that the source broker stored."""

    header: BatchHeader
    data: memoryview

    @property
    def records(self) -> memoryview:
        """The records section: byte 61 to the end, compressed as it was."""
        return self.data[HEADER_BYTES:]

    def at(self, base_offset: int) -> RawBatch:
        """The batch as if its records were at other offsets; its bytes are the same."""
        return RawBatch(self.header._replace(base_offset=base_offset), self.data)


def parse_header(data: bytes | bytearray | memoryview, position: int = 0) -> BatchHeader:
    """The header at `position`, which must be followed by a whole batch (see `split`).

    Raises MalformedBatch where the length cannot be that of a batch of its magic.
    """
    base_offset, length, epoch, magic = _PREFIX.unpack_from(data, position)
    if magic == 2:
        if length < _SHORTEST:
            raise MalformedBatch(f"batch length {length} is shorter than a header", position, base_offset)
        return BatchHeader._make(LAYOUT.unpack_from(data, position))
    if magic in (0, 1):
        return _legacy_header(data, position, base_offset, length)
    return BatchHeader(base_offset, length, epoch, magic)


def _legacy_header(data: bytes | bytearray | memoryview, position: int, offset: int, length: int) -> BatchHeader:
    crc, magic, attributes = _LEGACY.unpack_from(data, position + _LEGACY_AT)
    timestamp = -1
    if magic == 1:
        if length < SMALLEST_LENGTH_V1:
            raise MalformedBatch(f"length {length} is shorter than a message of magic 1", position, offset)
        (timestamp,) = _TIMESTAMP.unpack_from(data, position + _TIMESTAMP_AT)
    return BatchHeader(offset, length, -1, magic, crc, attributes, last_offset_delta=0, max_timestamp=timestamp)


def split(records: memoryview) -> Iterator[RawBatch]:
    """Cut a record set, as one partition's fetch answer carries it, into raw batches in offset order.

    A partial batch at the tail is left out: a fetch answer is cut by size (Kafka `LogSegment.read`). A first batch
    that is not whole is an error, since a broker returns an empty record set rather than that
    (`ReplicaManager.readFromLog`).

    Raises MalformedBatch on a length that no batch has, and on offsets that run backwards or off the end.
    """
    end = len(records)
    position = 0
    least_offset = 0
    while end - position > MAGIC_AT:
        base_offset, length, _, magic = _PREFIX.unpack_from(records, position)
        if length < SMALLEST_LENGTH:
            raise MalformedBatch(f"batch length {length}", position, base_offset)
        if base_offset < least_offset:  # seen of a partial batch, too
            raise MalformedBatch(f"base offset after offset {least_offset - 1}", position, base_offset)
        following = position + LENGTH_PREFIX + length
        if following > end:
            break
        if magic == 2 and length >= _SHORTEST:
            header = BatchHeader._make(LAYOUT.unpack_from(records, position))
        else:
            header = parse_header(records, position)
        if 0 <= magic <= 2:  # of another one nothing is known; the classifier refuses it
            if header.last_offset_delta < 0:
                raise MalformedBatch(f"last offset delta {header.last_offset_delta}", position, base_offset)
            least_offset = header.next_offset
            if least_offset > LAST_OFFSET:
                raise MalformedBatch(f"no offset follows last offset {header.last_offset}", position, base_offset)
        yield RawBatch(header, records[position:following])
        position = following
    if end and not position:
        raise MalformedBatch("the first batch is not whole", position)


def plain(records: memoryview, due: int, end: int) -> tuple[RawBatch, ...]:
    """Cut a record set of which nothing has to be looked into: whole batches of magic 2 with a record for every offset
    from `due` to before `end`, each with a CRC that holds. Return none where anything is otherwise; `split` says
    what.
    """
    batches = []
    position, size = 0, len(records)
    while size - position >= HEADER_BYTES:
        header = BatchHeader._make(LAYOUT.unpack_from(records, position))
        base_offset, length, _, magic, crc, attributes, delta, _, _, _, _, _, count = header
        following = position + LENGTH_PREFIX + length
        if following > size:  # a broker cuts its answer by size
            break
        is_dense = base_offset == due and 0 < count == delta + 1 and due + count <= end
        if magic != 2 or not is_dense or attributes & CONTROL or length < _SHORTEST:
            return ()
        data = records[position:following]
        if crc32c(data[CRC_FROM:]) != crc:
            return ()
        batches.append(RawBatch(header, data))
        position, due = following, due + count
    return tuple(batches)


# --- The checksums of a batch -----------------------------------------------------------------------------------------


def crc_holds(raw: RawBatch) -> bool:
    """Whether the stored CRC matches bytes 21 to the end, or 16 to the end in magic 0 and 1.

    Verified before a header is patched or a batch rewritten, since a CRC computed over a damaged payload would launder
    the damage.
    """
    if raw.header.magic in (0, 1):
        return crc32(raw.data[MAGIC_AT:]) == raw.header.crc
    return crc32c(raw.data[CRC_FROM:]) == raw.header.crc


def records_crc(raw: RawBatch) -> int:
    """CRC-32C of the records section of magic 2: equal on both sides of a mirror whatever was done to the header."""
    return crc32c(raw.data[HEADER_BYTES:])


def same_records(raw: RawBatch, other: RawBatch) -> bool:
    """Whether two batches of one magic hold the same bytes: the records section, or all after a message's length.

    No checksum detects that where somebody means harm: four bytes of one's choice give any CRC.
    """
    begin = HEADER_BYTES if raw.header.magic == 2 else LENGTH_PREFIX
    ours, theirs = raw.data[begin:], other.data[begin:]
    # of equal lengths; to compare two views is a hundred times slower
    return len(ours) == len(theirs) and bytes(ours).startswith(theirs)


# --- The one record of a control batch --------------------------------------------------------------------------------

ABORT: Final = 0
COMMIT: Final = 1
#: Kafka `ControlRecordType`, by its number.
_MARKERS: Final = (
    "ABORT",
    "COMMIT",
    "LEADER_CHANGE",
    "SNAPSHOT_HEADER",
    "SNAPSHOT_FOOTER",
    "KRAFT_VERSION",
    "KRAFT_VOTERS",
)

#: Length, attributes, timestamp delta, offset delta, key length: a coordinator writes each in one byte, except for a
#: length that a future marker's value may need two for. Then version and type.
_KEY: Final = struct.Struct(">hh")
_NUMBERS: Final = 5


def marker_type(raw: RawBatch) -> int:
    """`ABORT`, `COMMIT`, or a number that is neither: other kinds of control records are to be skipped.

    Raises BadRecords where the batch holds no such record. Compressed or longer than a marker is: not a marker.
    """
    assert raw.header.is_control
    section, at = raw.data, HEADER_BYTES
    try:
        if raw.header.codec or not raw.header.count:
            raise BadRecords("a control batch without a readable record", raw.header.base_offset)
        for number in range(_NUMBERS):
            at = at + 1 if number == 1 else _behind_varint(section, at)
        _, kind = _KEY.unpack_from(section, at)
    except (IndexError, struct.error) as cut:
        raise BadRecords("a control batch that ends inside its record", raw.header.base_offset) from cut
    return int(kind)


def marker_name(raw: RawBatch) -> str | None:
    """What a control batch says: COMMIT, ABORT, another of Kafka's names; None for a batch of data."""
    if not raw.header.is_control:
        return None
    try:
        kind = marker_type(raw)
    except BadRecords:
        return "unreadable"
    return _MARKERS[kind] if 0 <= kind < len(_MARKERS) else f"type {kind}"


def _behind_varint(section: memoryview, at: int) -> int:
    while section[at] & 0x80:
        at += 1
    return at + 1


# --- A new header for an untouched records section --------------------------------------------------------------------

#: Sequences are 31-bit and wrap from 2147483647 to 0, inside a batch too (Kafka
#: `DefaultRecordBatch.incrementSequence`).
SEQUENCES: Final = 1 << 31
#: Epochs are 15-bit; the last one is left alone, since brokers treat it as used up.
LAST_EPOCH: Final = (1 << 15) - 2
#: Ids that one partition's producer may go through: the low bits count them (`ProducerState.then`).
ERAS: Final = 1 << 20
#: The least producer id of any flow; the largest is below twice that.
FIRST_ID: Final = 1 << 52

_CLEARED: Final = ~(APPEND_TIME | TRANSACTIONAL | DELETE_HORIZON)


def is_a_mirrors(producer_id: int) -> bool:
    """Whether a mirror wrote what has this producer id, of whatever flow."""
    return FIRST_ID <= producer_id < 2 * FIRST_ID


class ProducerState(NamedTuple):
    """What the next batch of a partition is stamped with.

    Batches in a row count sequences up in one epoch. Each marker takes an epoch of its own, and the batch behind
    markers begins a further one with sequence 0, as a broker demands (Kafka `ProducerAppendInfo.checkSequence`). So a
    marker or a batch that somebody repeats later has an epoch that is gone, and is refused. The last batch of a log,
    data or marker, shows what comes next.
    """

    producer_id: int
    epoch: int = 0
    sequence: int = 0

    def after(self, last_offset_delta: int) -> ProducerState:
        """Behind a batch: a sequence advances by offsets, not by records (Kafka `DefaultRecordBatch.lastSequence`)."""
        return ProducerState(self.producer_id, self.epoch, (self.sequence + last_offset_delta + 1) % SEQUENCES)

    def then(self, count: int = 1) -> ProducerState:
        """The first sequence, `count` epochs on; after the last epoch the next id begins."""
        eras, epoch = divmod(self.epoch + count, LAST_EPOCH + 1)
        return ProducerState(self.producer_id + eras, epoch)

    def is_kin(self, producer_id: int) -> bool:
        """Whether an id is one that this partition's producer goes through."""
        return self.producer_id // ERAS == producer_id // ERAS


def restamp(raw: RawBatch, stamp: ProducerState, *, transactional: bool = False) -> bytes:
    """The 61 header bytes that append `raw` under a producer of ours.

    Base offset becomes 0, as a leader demands (Kafka `UnifiedLog.analyzeAndValidateRecords`). The transactional bit
    goes, since the target's coordinator does not know the transaction, unless `stamp` is one that it gave out for a
    transaction of its own (`transactional`); the append-time bit goes, since a producer
    may not claim it (`LogValidator.validateTimestamp`); the delete-horizon bit goes, so that the target's cleaner
    sets its own (`Cleaner.shouldRetainRecord`). The CRC is computed anew: verify the old one first.
    """
    _, length, _, magic, _, attributes, delta, base_timestamp, max_timestamp, _, _, _, count = raw.header
    attributes = attributes & _CLEARED | (TRANSACTIONAL if transactional else 0)
    covered = _COVERED.pack(attributes, delta, base_timestamp, max_timestamp, *stamp, count)
    return _BEFORE.pack(0, length, -1, magic, crc32c(raw.data[HEADER_BYTES:], crc32c(covered))) + covered


def sealed(packed: bytes, section: bytes | memoryview) -> bytes:
    """A header of magic 2 with the CRC that it has in front of a records section."""
    covered = packed[CRC_FROM:]
    return packed[:CRC_AT] + crc32c(section, crc32c(covered)).to_bytes(4, "big") + covered
