"""Asks a broker who is in its cluster: the proof that it is up is an answer of its API, not a line in a log.

The few bytes are written here and not with `mirror.wire`, which lies above this package and is tested with it.
"""

from __future__ import annotations

import io
import socket
import struct
from typing import Final

from kio.schema.metadata.v12.request import MetadataRequest
from kio.schema.metadata.v12.response import MetadataResponse
from kio.schema.request_header.v2.header import RequestHeader
from kio.schema.response_header.v1.header import ResponseHeader
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError
from kio.static.primitive import i16, i32

ANSWER_LIMIT: Final = 1 << 20


def brokers_seen_by(port: int, timeout: float = 5.0) -> frozenset[int]:
    """The live brokers that the one at 127.0.0.1:`port` knows of; none when it does not answer within `timeout` s."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=timeout) as connection:
            connection.sendall(_metadata_request())
            with connection.makefile("rb") as stream:
                (length,) = struct.unpack(">i", stream.read(4))
                answer = stream.read(length) if 0 < length <= ANSWER_LIMIT else b""
        _, header_size = entity_reader(ResponseHeader)(answer, 0)
        metadata, _ = entity_reader(MetadataResponse)(answer, header_size)
    except (OSError, struct.error, SerialError):
        return frozenset()
    return frozenset(int(broker.node_id) for broker in metadata.brokers)


def _metadata_request() -> bytes:
    body = io.BytesIO()
    header = RequestHeader(
        request_api_key=i16(3), request_api_version=i16(12), correlation_id=i32(1), client_id="mirror-embedded"
    )
    request = MetadataRequest(topics=(), allow_auto_topic_creation=False, include_topic_authorized_operations=False)
    entity_writer(RequestHeader)(body, header)
    entity_writer(MetadataRequest)(body, request)
    return struct.pack(">i", body.tell()) + body.getvalue()
