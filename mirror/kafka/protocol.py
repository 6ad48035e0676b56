"""Requests to bytes and answers to values, on kio's schemas; counts and lengths that lie are found first.

kio 0.6 sets memory aside for an array by the count that the peer wrote, and the process aborts where that is too
much. This walk over the same schema follows the lengths of an answer without building anything, so a count is
believed only once its elements were seen. kio also stops at a tagged field that its schema lacks, where KIP-482 says
to pass over it (brokers add such fields without a new version); `readable` leaves them out. And it refuses a time of
-1, as Kafka gives where there is none, unless the schema says null: `readable` makes that 0.
"""

from __future__ import annotations

import io
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass
from functools import cache, lru_cache
from importlib import import_module
from types import NoneType
from typing import Any, ClassVar, Final, TypeVar, get_args, get_origin
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.schema.response_header.v0.header import ResponseHeader as PlainHeader
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError

from mirror.errors import MalformedFrame, UnsupportedVersion

# --- Counts and lengths that lie, found before kio reads them ---------------------------------------------------------


@dataclass(slots=True)
class _Walk:
    """A frame under way, and what to replace in it for kio: (start, end, bytes), in order."""

    frame: memoryview
    edits: list[tuple[int, int, bytes]] = field(default_factory=list)

    def edited(self, start: int, end: int) -> memoryview:
        """The bytes from `start` to `end`, edits made; the same view where there are none."""
        if not self.edits:
            return self.frame[start:end]
        made = bytearray()
        for at, following, replacement in self.edits:
            made += self.frame[start:at]
            made += replacement
            start = following
        return memoryview(bytes(made + self.frame[start:end]))


Skip = Callable[[_Walk, int], int]
Length = Callable[[memoryview, int], tuple[int, int]]

_FIXED: Final = {
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "uint32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "uint64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "float64": 8,
    "uuid": 16,
}
_LONGEST_VARINT: Final = 5


def check_lengths(entity: Any, frame: memoryview, position: int = 0) -> int:
    """Walk one entity of the kio schema; the position after it.

    Raises MalformedFrame where a length or count is negative, or leads past the end of the frame.
    """
    return _walked(entity, _Walk(frame), position)


def readable(entity: Any, frame: memoryview, position: int = 0) -> tuple[memoryview, int]:
    """The entity's bytes as kio can read them, without unknown tagged fields, and the position after it in `frame`.

    Raises MalformedFrame as `check_lengths` does.
    """
    walk = _Walk(frame)
    end = _walked(entity, walk, position)
    return walk.edited(position, end), end


def _walked(entity: Any, walk: _Walk, position: int) -> int:
    try:
        return _walker(entity)(walk, position)
    except IndexError:
        detail = f"the frame of {len(walk.frame)} bytes ends inside a field"
    except MalformedFrame as problem:
        detail = str(problem)
    raise MalformedFrame(f"{entity.__name__} v{entity.__version__}: {detail}")


def read_varint(frame: memoryview, position: int) -> tuple[int, int]:
    """Return an unsigned varint and the position behind it. Raises IndexError and MalformedFrame."""
    value = 0
    for at in range(_LONGEST_VARINT):
        byte = frame[position + at]
        value |= (byte & 0x7F) << (7 * at)
        if byte < 0x80:
            return value, position + at + 1
    raise MalformedFrame(f"a varint at byte {position} does not end")


def _past(frame: memoryview, position: int, count: int) -> int:
    if count < 0 or position + count > len(frame):
        raise MalformedFrame(f"{count} bytes announced at byte {position} of a frame of {len(frame)}")
    return position + count


def _fixed(count: int) -> Skip:
    def skip(walk: _Walk, position: int) -> int:
        return _past(walk.frame, position, count)

    return skip


def _time(walk: _Walk, position: int) -> int:
    end = _past(walk.frame, position, _FIXED["datetime_i64"])
    if walk.frame[position] >= 0x80:
        walk.edits.append((position, end, bytes(end - position)))
    return end


def _legacy_length(width: int) -> Length:
    def read(frame: memoryview, position: int) -> tuple[int, int]:
        end = _past(frame, position, width)
        return int.from_bytes(frame[position:end], "big", signed=True), end

    return read


def _compact_length(frame: memoryview, position: int) -> tuple[int, int]:
    length, position = read_varint(frame, position)
    return length - 1, position


def _sized(length: Length, optional: bool) -> Skip:
    def skip(walk: _Walk, position: int) -> int:
        count, position = length(walk.frame, position)
        if count != -1:
            return _past(walk.frame, position, count)
        return _at_null(position, optional)

    return skip


def _array(length: Length, element: Skip, optional: bool) -> Skip:
    def skip(walk: _Walk, position: int) -> int:
        count, position = length(walk.frame, position)
        if count == -1:
            return _at_null(position, optional)
        left = len(walk.frame) - position
        if not 0 <= count <= left:
            raise MalformedFrame(f"{count} elements announced with {left} bytes left")
        for _ in range(count):
            position = element(walk, position)
        return position

    return skip


def _at_null(position: int, optional: bool) -> int:
    """kio gives None for an array that must not be null."""
    if not optional:
        raise MalformedFrame(f"null before byte {position}, where the schema has none")
    return position


def _nullable(entity: Skip) -> Skip:
    def skip(walk: _Walk, position: int) -> int:
        """KIP-893: a nullable struct is preceded by one byte, -1 for null."""
        return entity(walk, position + 1) if walk.frame[position] < 0x80 else position + 1

    return skip


def _field(field: Field[Any], flexible: bool) -> Skip:
    kind: Any = field.type
    optional = NoneType in get_args(kind)
    if optional:
        kind = next(inner for inner in get_args(kind) if inner is not NoneType)
    is_array = get_origin(kind) is tuple
    if is_array:
        kind = get_args(kind)[0]
    entity: Any = kind
    if is_dataclass(kind):
        element = _walker(entity)
        if optional and not is_array:
            element = _nullable(element)
    else:
        name = field.metadata["kafka_type"]
        if name == "datetime_i64" and not optional:
            element = _time
        elif name in _FIXED:
            element = _fixed(_FIXED[name])
        else:
            length = _compact_length if flexible else _legacy_length(2 if name == "string" else 4)
            element = _sized(length, optional and not is_array)
    return _array(_compact_length if flexible else _legacy_length(4), element, optional) if is_array else element


@cache
def _walker(entity: Any) -> Skip:
    flexible: bool = entity.__flexible__
    plain = [_field(field, flexible) for field in fields(entity) if "tag" not in field.metadata]
    tagged = {field.metadata["tag"]: _field(field, flexible) for field in fields(entity) if "tag" in field.metadata}

    def skip(walk: _Walk, position: int) -> int:
        for skip_field in plain:
            position = skip_field(walk, position)
        return _tags(walk, position, tagged) if flexible else position

    return skip


def _tags(walk: _Walk, start: int, known: Mapping[int, Skip]) -> int:
    """KIP-482: a count, then for each tagged field its tag, its size and its bytes."""
    frame = walk.frame
    count, position = read_varint(frame, start)
    kept: list[bytes] = []
    changed = False
    for _ in range(count):
        tag, position = read_varint(frame, position)
        size, position = read_varint(frame, position)
        end = _past(frame, position, size)
        if tag in known:
            inner = _Walk(frame[:end])
            if known[tag](inner, position) != end:
                raise MalformedFrame(f"a tagged field at byte {position} is not of the {size} bytes announced")
            body = inner.edited(position, end)
            kept.append(to_varint(tag) + to_varint(len(body)) + body)
            changed |= bool(inner.edits)
        else:
            changed = True
        position = end
    if changed:
        walk.edits.append((start, position, to_varint(len(kept)) + b"".join(kept)))
    return position


@lru_cache(maxsize=1 << 14)
def to_varint(value: int) -> bytes:
    """Return a number of 0 or more as an unsigned varint."""
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)


# --- Requests to bytes and answers to values, with the versions both sides share (sans-io -----------------------------

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Api:
    """One kind of request and the versions of it that this client speaks."""

    key: int
    name: str
    oldest: int
    newest: int

    def schema(self, version: int, part: str) -> Any:
        """kio's module of `part` ("request" or "response") for one version."""
        return _schema(self.name, version, part)

    def request(self, version: int) -> Any:
        """kio's request class for one version."""
        return self._entity(version, "request")

    def response(self, version: int) -> Any:
        """kio's response class for one version."""
        return self._entity(version, "response")

    def _entity(self, version: int, part: str) -> Any:
        return _entity(self.name, version, part)


@cache
def _schema(name: str, version: int, part: str) -> Any:
    return import_module(f"kio.schema.{name}.v{version}.{part}")


@cache
def _entity(name: str, version: int, part: str) -> Any:
    camel = "".join(word.capitalize() for word in name.split("_"))
    return getattr(_schema(name, version, part), camel + part.capitalize())


# The oldest versions are those of Kafka 2.8 where it has them: topic ids came with Metadata 10, epochs with Fetch 12.
PRODUCE: Final = Api(0, "produce", 9, 13)
FETCH: Final = Api(1, "fetch", 12, 18)
LIST_OFFSETS: Final = Api(2, "list_offsets", 5, 10)
METADATA: Final = Api(3, "metadata", 10, 13)
OFFSET_COMMIT: Final = Api(8, "offset_commit", 8, 9)
OFFSET_FETCH: Final = Api(9, "offset_fetch", 7, 9)
FIND_COORDINATOR: Final = Api(10, "find_coordinator", 3, 4)
LIST_GROUPS: Final = Api(16, "list_groups", 4, 5)
SASL_HANDSHAKE: Final = Api(17, "sasl_handshake", 1, 1)
API_VERSIONS: Final = Api(18, "api_versions", 3, 3)
DELETE_TOPICS: Final = Api(20, "delete_topics", 6, 6)
DELETE_RECORDS: Final = Api(21, "delete_records", 1, 2)
INIT_PRODUCER_ID: Final = Api(22, "init_producer_id", 4, 5)
LEADER_EPOCH: Final = Api(23, "offset_for_leader_epoch", 3, 4)
# Newer versions of these two are another protocol: of brokers to brokers (4 and 5), and KIP-890's (5).
ADD_PARTITIONS_TO_TXN: Final = Api(24, "add_partitions_to_txn", 3, 3)
END_TXN: Final = Api(26, "end_txn", 3, 4)
WRITE_TXN_MARKERS: Final = Api(27, "write_txn_markers", 1, 1)
DESCRIBE_CONFIGS: Final = Api(32, "describe_configs", 2, 4)
SASL_AUTHENTICATE: Final = Api(36, "sasl_authenticate", 1, 2)
DESCRIBE_CLUSTER: Final = Api(60, "describe_cluster", 0, 1)
DESCRIBE_PRODUCERS: Final = Api(61, "describe_producers", 0, 0)
DESCRIBE_TRANSACTIONS: Final = Api(65, "describe_transactions", 0, 0)
DESCRIBE_SHARE_GROUP_OFFSETS: Final = Api(90, "describe_share_group_offsets", 0, 1)

#: What every task speaks; those of consumer groups and of transactions are not for tasks.
APIS: Final = (
    *(PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS, DELETE_RECORDS),
    *(LEADER_EPOCH, WRITE_TXN_MARKERS, DESCRIBE_PRODUCERS),
)


def preload(apis: Iterable[Api] = APIS) -> None:
    """Import the schemas of the newest versions and make their readers and writers: half a second, ahead of time."""
    for api in apis:
        request, response = api.request(api.newest), api.response(api.newest)
        entity_writer(request)
        entity_writer(request.__header_schema__)
        _reader(response)


#: The API key of Vote, which controllers alone answer.
_VOTE: Final = 52


@dataclass(frozen=True, slots=True)
class Versions:
    """What one broker offers, as its ApiVersions answer says."""

    ranges: Mapping[int, tuple[int, int]]

    def common(self, api: Api) -> int:
        """The newest version that both sides speak. Raises UnsupportedVersion."""
        if api.key not in self.ranges and _VOTE in self.ranges:
            raise UnsupportedVersion(
                f"a KRaft controller listens there, which does not answer {api.name}: use the address of a broker"
            )
        low, high = self.ranges.get(api.key, (0, -1))
        version = min(high, api.newest)
        if version < max(low, api.oldest):
            raise UnsupportedVersion(
                f"{api.name}: the broker speaks versions {low} to {high}, this client {api.oldest} to {api.newest}"
            )
        return version


Part = TypeVar("Part")
#: Bytes of a frame's length.
LENGTH_BYTES: Final = 4
#: Bytes of an answer's header, the last of which counts its tagged fields.
HEADER: Final = 5
NO_TAGS: Final = b"\x00"
NO_ERROR: Final = ErrorCode.none
#: How a partition begins in answers to Fetch and Produce alike: its number, error code, and three offsets or times.
PART: Final = struct.Struct(">ihqqq")
_ID_BYTES: Final = 16


#: What reading an answer by hand raises of one that is not plain: it has an error or tagged fields, or is malformed.
NOT_PLAIN: Final = (IndexError, struct.error, UnicodeDecodeError, MalformedFrame)


def id_bytes(topic_id: UUID | None) -> bytes:
    """Return a topic's id as it is on the wire, where kio has None for zeros."""
    return topic_id.bytes if topic_id else bytes(_ID_BYTES)


def named(name: str, topic_id: UUID | None, *, by_id: bool) -> bytes:
    """Return how a request names a topic."""
    if by_id:
        return id_bytes(topic_id)
    text = name.encode()
    return to_varint(len(text) + 1) + text


def read_name(frame: memoryview, position: int, *, by_id: bool) -> tuple[str | bytes, int]:
    """Return how an answer names a topic, by an id's bytes or by name, and the position behind it."""
    size = _ID_BYTES + 1
    if not by_id:
        size, position = read_varint(frame, position)
    end = _past(frame, position, size - 1)
    found = bytes(frame[position:end])
    return found if by_id else found.decode(), end


def read_topics(
    frame: memoryview,
    position: int,
    read_part: Callable[[str | bytes, memoryview, int], tuple[Part, int]],
    *,
    by_id: bool,
) -> tuple[list[Part], int]:
    """Walk the topics of a plain answer to Fetch or Produce; `read_part` reads a partition of a topic. Return the
    partitions, and the position behind them. Raises as `NOT_PLAIN` says.
    """
    parts: list[Part] = []
    topics, position = read_varint(frame, position)
    for _ in range(_plain_count(topics)):
        topic, position = read_name(frame, position, by_id=by_id)
        partitions, position = read_varint(frame, position)
        for _ in range(_plain_count(partitions)):
            part, position = read_part(topic, frame, position)
            parts.append(part)
        if frame[position]:
            raise MalformedFrame("tagged fields")
        position += 1
    if frame[HEADER - 1]:
        raise MalformedFrame("tagged fields")
    return parts, position


def _plain_count(count: int) -> int:
    """Return how many elements an array has, by what is written in front of it."""
    if not count:
        raise MalformedFrame("null")
    return count - 1


class HotRequest(ABC):
    """A request that is written by hand, and so is its answer read: those that a task sends all the time."""

    __slots__ = ()
    api: ClassVar[Api]
    version: int

    @abstractmethod
    def body(self) -> Iterable[Buffer]:
        """Return what follows the header."""

    @abstractmethod
    def read(self, frame: memoryview) -> Any:
        """Return the answer that a frame holds. Raises MalformedFrame."""


#: A part of at least this many bytes travels as a part of its own; smaller neighbors are joined.
LARGE_PART: Final = 4096


def encode(request: Any, correlation_id: int, client_id: str) -> list[Buffer]:
    """Return a request as the buffers to send in turn: small parts joined, large ones as the views they came as."""
    if isinstance(request, HotRequest):
        kind, parts = request.api.request(request.version), request.body()
    else:
        kind, parts = type(request), [_written(request)]
    start, end = _header(kind, client_id)
    small = first = bytearray(LENGTH_BYTES)
    small += start + correlation_id.to_bytes(4, "big") + end
    joined: list[Buffer] = [first]
    for part in parts:
        if len(part) < LARGE_PART:
            small += part
        else:
            joined += memoryview(part), (small := bytearray())
    if not small:
        joined.pop()
    first[:LENGTH_BYTES] = (sum(map(len, joined)) - LENGTH_BYTES).to_bytes(LENGTH_BYTES, "big")
    return joined


def _written(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


@cache
def _header(request: Any, client_id: str) -> tuple[bytes, bytes]:
    """A request's header before and behind its correlation id, which follows two numbers of 16 bits in all versions."""
    schema = request.__header_schema__
    key, version = request.__api_key__, request.__version__
    made = schema(request_api_key=key, request_api_version=version, correlation_id=0, client_id=client_id)
    whole = _written(made)
    return whole[:4], whole[8:]


def correlation_of(frame: memoryview) -> int:
    """The number of the request that a frame answers. Raises MalformedFrame."""
    if len(frame) < 4:
        raise MalformedFrame(f"an answer of {len(frame)} bytes has no correlation id")
    return int.from_bytes(frame[:4], "big", signed=True)


def decode(response: Any, frame: memoryview) -> Any:
    """One answer, whole. Raises MalformedFrame on bytes that do not follow the schema, and on bytes left over.

    `response` is a class of kio; what it holds is copied out of `frame`.
    """
    header = response.__header_schema__
    try:
        position = check_lengths(header, frame)
        body, end = readable(response, frame, position)
        if end != len(frame):
            raise MalformedFrame(f"{response.__name__}: {len(frame) - end} bytes left over")
        value, _ = _reader(response)(body, 0)
    except (SerialError, ValueError, OverflowError, TypeError) as problem:
        raise MalformedFrame(f"{response.__name__} v{response.__version__}: {problem}") from problem
    return value


@cache
def _reader(response: Any) -> Any:
    return entity_reader(response)


def decode_versions(frame: memoryview) -> Versions:
    """An ApiVersions answer: its header is always the oldest, and an old broker answers in version 0 (KIP-511)."""
    position = check_lengths(PlainHeader, frame)
    version = API_VERSIONS.newest
    if bytes(frame[position : position + 2]) == b"\x00\x23":  # UNSUPPORTED_VERSION
        version = 0
    answer = decode(API_VERSIONS.response(version), frame)
    if answer.error_code and version:
        raise MalformedFrame(f"ApiVersions was answered with error {int(answer.error_code)}")
    return Versions({entry.api_key: (entry.min_version, entry.max_version) for entry in answer.api_keys})
