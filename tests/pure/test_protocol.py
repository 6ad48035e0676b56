"""Requests to bytes and answers to values: equal to kio's own encoding, no payload copied, nothing left over."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from entities import REQUESTS, RESPONSES, answer, encoded, name_of, sample
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.schema.response_header.v0.header import ResponseHeader
from kio.static.primitive import i32

from mirror.errors import MalformedFrame, UnsupportedVersion
from mirror.kafka.cluster import TopicPartition
from mirror.kafka.produce import ProduceRequest
from mirror.kafka.protocol import (
    API_VERSIONS,
    FETCH,
    LARGE_PART,
    METADATA,
    PRODUCE,
    Api,
    Versions,
    correlation_of,
    decode,
    decode_versions,
    encode,
)

FEW = settings(max_examples=8)


def plainly(request: Any, correlation_id: int, client_id: str) -> bytes:
    """A request by kio alone, with its length in front."""
    header = request.__header_schema__(
        request_api_key=request.__api_key__,
        request_api_version=request.__version__,
        correlation_id=correlation_id,
        client_id=client_id,
    )
    body = encoded(header) + encoded(request)
    return len(body).to_bytes(4, "big") + body


@pytest.mark.parametrize("request_type", REQUESTS, ids=name_of)
@given(random=st.randoms(use_true_random=False), correlation_id=st.integers(0, 2**31 - 1))
@FEW
def test_a_request_is_encoded_as_kio_encodes_it(request_type: Any, random: Random, correlation_id: int) -> None:
    request = sample(request_type, random)
    assert b"".join(encode(request, correlation_id, "mirror")) == plainly(request, correlation_id, "mirror")


def produced(payload: Any) -> list[Any]:
    """Return what is sent of a Produce request for two partitions with the same records."""
    batches = {TopicPartition("orders", number): (b"h" * 61, payload) for number in range(2)}
    return encode(ProduceRequest(9, batches, {}), 1, "mirror")


@pytest.mark.parametrize("size", [0, 1, LARGE_PART - 1, LARGE_PART, 100_000])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_batch_in_pieces_is_one_on_the_wire(size: int, kind: type[Any]) -> None:
    payload = kind(b"p" * size)
    sent = b"".join(produced(payload))
    assert sent.count(b"h" * 61 + bytes(payload)) == 2
    assert int.from_bytes(sent[:4], "big") == len(sent) - 4
    assert payload == b"p" * size, "what was handed over is not written to"


def test_a_large_payload_is_referred_to_and_small_parts_are_joined() -> None:
    payload = memoryview(bytes(LARGE_PART))
    assert [part.obj is payload.obj if isinstance(part, memoryview) else False for part in produced(payload)] == [
        *(False, True, False, True, False)
    ]
    assert len(produced(bytes(100))) == 1


@pytest.mark.parametrize("response", RESPONSES, ids=name_of)
@given(random=st.randoms(use_true_random=False), correlation_id=st.integers(-(2**31), 2**31 - 1))
@FEW
def test_an_answer_is_decoded_whole(response: Any, random: Random, correlation_id: int) -> None:
    value = sample(response, random)
    frame = memoryview(answer(value, correlation_id))
    assert correlation_of(frame) == correlation_id
    assert decode(response, frame) == value
    for leftover in (b"\0", b"\0" * 100):
        with pytest.raises(MalformedFrame, match=f"{len(leftover)} bytes left over"):
            decode(response, memoryview(bytes(frame) + leftover))
    with pytest.raises(MalformedFrame):
        decode(response, frame[:-1])


def test_what_is_no_answer_is_malformed() -> None:
    """An error code that no schema has, text that is not UTF-8, and too few bytes for a correlation id."""
    with pytest.raises(MalformedFrame, match="ApiVersionsResponse v3"):
        decode(API_VERSIONS.response(3), memoryview(b"\0\0\0\1" + b"\x7f\x7f" + b"\1" + bytes(5)))
    schema = METADATA.schema(12, "response")
    none = sample(schema.MetadataResponse, Random(1)).throttle_time
    value = schema.MetadataResponse(throttle_time=none, brokers=(), cluster_id="abc", controller_id=1, topics=())
    with pytest.raises(MalformedFrame):
        decode(type(value), memoryview(answer(value).replace(b"abc", b"\xff\xfe\xfd")))
    for length in range(4):
        with pytest.raises(MalformedFrame, match="no correlation id"):
            correlation_of(memoryview(bytes(length)))


PARTS = Api(0, "produce", 5, 9)


@pytest.mark.parametrize(
    ("offered", "version"),
    [((0, 20), 9), ((0, 7), 7), ((6, 20), 9), ((9, 9), 9), ((5, 5), 5), ((9, 30), 9), ((0, 5), 5)],
)
def test_the_newest_common_version(offered: tuple[int, int], version: int) -> None:
    assert Versions({0: offered}).common(PARTS) == version


@pytest.mark.parametrize("ranges", [{}, {1: (0, 20)}, {0: (0, 4)}, {0: (10, 20)}, {0: (0, -1)}, {0: (8, 7)}])
def test_no_common_version(ranges: dict[int, tuple[int, int]]) -> None:
    with pytest.raises(UnsupportedVersion, match=r"produce: the broker .* this client 5 to 9"):
        Versions(ranges).common(PARTS)


def offered(version: int, *, error: int = 0) -> bytes:
    """A broker's ApiVersions answer in some version, always under the oldest header."""
    schema = API_VERSIONS.schema(version, "response")
    keys = ((PRODUCE.key, 3, 13), (FETCH.key, 4, 17))
    value = schema.ApiVersionsResponse(
        error_code=ErrorCode(error),
        api_keys=tuple(schema.ApiVersion(api_key=k, min_version=low, max_version=high) for k, low, high in keys),
        **({"throttle_time": sample(schema.ApiVersionsResponse, Random(1)).throttle_time} if version else {}),
    )
    return encoded(ResponseHeader(correlation_id=i32(5))) + encoded(value)


def test_what_a_broker_offers() -> None:
    """An old one answers in version 0, with an error."""
    versions = decode_versions(memoryview(offered(3)))
    assert versions == decode_versions(memoryview(offered(0, error=35))) == Versions({0: (3, 13), 1: (4, 17)})
    assert (versions.common(PRODUCE), versions.common(FETCH)) == (13, 17)
    with pytest.raises(UnsupportedVersion):
        versions.common(METADATA)


@pytest.mark.parametrize("code", [-1, 1, 42])
def test_another_error_is_reported(code: int) -> None:
    with pytest.raises(MalformedFrame, match=f"answered with error {code}"):
        decode_versions(memoryview(offered(3, error=code)))
