"""Requests to bytes and answers to values, with the versions both sides share (sans-io, on the schemas of kio)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Final

from kio.schema.response_header.v0.header import ResponseHeader as PlainHeader
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError

from mirror.errors import MalformedFrame, UnsupportedVersion
from mirror.wire.guard import check_lengths, readable

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
DELETE_RECORDS: Final = Api(21, "delete_records", 1, 2)
INIT_PRODUCER_ID: Final = Api(22, "init_producer_id", 4, 5)
LEADER_EPOCH: Final = Api(23, "offset_for_leader_epoch", 3, 4)
# Newer versions of these two are another protocol: of brokers to brokers (4 and 5), and KIP-890's (5).
ADD_PARTITIONS_TO_TXN: Final = Api(24, "add_partitions_to_txn", 3, 3)
END_TXN: Final = Api(26, "end_txn", 3, 4)
WRITE_TXN_MARKERS: Final = Api(27, "write_txn_markers", 1, 1)
SASL_AUTHENTICATE: Final = Api(36, "sasl_authenticate", 1, 2)
DESCRIBE_CLUSTER: Final = Api(60, "describe_cluster", 0, 1)
DESCRIBE_PRODUCERS: Final = Api(61, "describe_producers", 0, 0)

#: What every lane speaks; those of consumer groups and of transactions are not for lanes.
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


@dataclass(frozen=True, slots=True)
class Versions:
    """What one broker offers, as its ApiVersions answer says."""

    ranges: Mapping[int, tuple[int, int]]

    def common(self, api: Api) -> int:
        """The newest version that both sides speak. Raises UnsupportedVersion."""
        low, high = self.ranges.get(api.key, (0, -1))
        version = min(high, api.newest)
        if version < max(low, api.oldest):
            raise UnsupportedVersion(
                f"{api.name}: the broker speaks versions {low} to {high}, this client {api.oldest} to {api.newest}"
            )
        return version


@dataclass(frozen=True, slots=True)
class RecordSet:
    """A records field in pieces: a header of ours in front of a payload that stays where it is."""

    parts: tuple[Buffer, ...]

    def __len__(self) -> int:
        return sum(map(len, self.parts))


class _Parts(list[Buffer]):
    """A sink for kio's writers that keeps what it is given, so a payload is referred to and not copied."""

    def write(self, part: Buffer | RecordSet) -> None:
        if isinstance(part, RecordSet):
            self.extend(part.parts)
        else:
            self.append(part)


#: A part of at least this many bytes travels as a part of its own; smaller neighbours are joined.
LARGE_PART: Final = 4096


def encode(request: Any, correlation_id: int, client_id: str) -> list[Buffer]:
    """One request as the buffers to send in turn: small fields joined, record sets as the views they came as."""
    parts: Any = _Parts()
    kind: Any = type(request)
    start, end = _header(kind, client_id)
    parts.extend((start, correlation_id.to_bytes(4, "big"), end))
    entity_writer(kind)(parts, request)
    joined: list[Buffer] = [bytearray(sum(map(len, parts)).to_bytes(4, "big"))]
    for part in parts:
        if len(part) >= LARGE_PART:  # as a view: what follows is added to the last bytearray, which must be ours
            joined.append(part if isinstance(part, memoryview) else memoryview(part))
        elif isinstance(joined[-1], bytearray):
            joined[-1] += part
        else:
            joined.append(bytearray(part))
    return joined


@cache
def _header(request: Any, client_id: str) -> tuple[bytes, bytes]:
    """A request's header before and behind its correlation id, which follows two numbers of 16 bits in all versions."""
    parts: Any = _Parts()
    schema = request.__header_schema__
    key, version = request.__api_key__, request.__version__
    made = schema(request_api_key=key, request_api_version=version, correlation_id=0, client_id=client_id)
    entity_writer(schema)(parts, made)
    whole = b"".join(parts)
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
