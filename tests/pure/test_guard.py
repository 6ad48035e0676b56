"""Lengths that lie: any answer that the mirror reads, cut short or announcing more than it holds, is malformed."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from entities import RESPONSES, encoded, lie_sample, lies, name_of, nulls, sample
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.describe_topic_partitions.v0.response import DescribeTopicPartitionsResponse
from kio.serial import entity_reader

from mirror.errors import MalformedFrame
from mirror.kafka.protocol import API_VERSIONS, LIST_OFFSETS, check_lengths, decode, readable

#: The mirror's, and one with a nullable struct in it.
WALKED = [*RESPONSES, DescribeTopicPartitionsResponse]


@pytest.mark.parametrize("response", WALKED, ids=name_of)
@given(random=st.randoms(use_true_random=False), before=st.binary(max_size=4), after=st.binary(max_size=4))
@settings(max_examples=6)
def test_the_walk_ends_where_kio_does(response: Any, random: Random, before: bytes, after: bytes) -> None:
    """And nowhere in an answer that is cut short."""
    value = sample(response, random)
    body = encoded(value)
    frame = memoryview(before + body + after)
    assert check_lengths(response, frame, len(before)) == len(before) + len(body)
    assert entity_reader(response)(frame, len(before)) == (value, len(body))
    for length in {0, len(body) // 2, len(body) - 1, random.randrange(len(body))}:
        with pytest.raises(MalformedFrame):
            check_lengths(response, memoryview(body[:length]))


@pytest.mark.parametrize("response", WALKED, ids=name_of)
def test_no_length_may_lie_and_no_array_be_null(response: Any) -> None:
    """kio would put None in the place of an array. What does not lie is read where it is, and not copied."""
    value, reported = lie_sample(response), 0
    for lie in lies(value):
        with pytest.raises(MalformedFrame, match="announced"):
            check_lengths(response, memoryview(encoded(lie)))
        reported += 1
    assert reported or response.__name__.startswith(("InitProducerId", "EndTxn"))  # which have none
    for lie in nulls(value):
        with pytest.raises(MalformedFrame, match="null"):
            check_lengths(response, memoryview(encoded(lie)))
    body = memoryview(b"head" + encoded(value) + b"tail")
    known, end = readable(response, body, 4)
    assert (known.obj is body.obj, known == body[4:-4], end) == (True, True, len(body) - 4)


def test_counts_of_either_encoding() -> None:
    """ListOffsets 5 is not flexible: lengths are plain numbers, and -1 alone means null."""
    for count in (2**31 - 1, -2, -(2**31), 1000):
        body = bytes(4) + count.to_bytes(4, "big", signed=True) + bytes(16)
        with pytest.raises(MalformedFrame, match="announced"):
            check_lengths(LIST_OFFSETS.response(5), memoryview(body))
    with pytest.raises(MalformedFrame, match="does not end"):
        check_lengths(API_VERSIONS.response(3), memoryview(b"\0\0" + b"\xff" * 40))


def test_a_tagged_field_of_another_size_than_it_says() -> None:
    """kio reads such a field by its schema and not by its size: the walk and kio would go on at different bytes."""
    response = API_VERSIONS.response(3)
    plain = b"\0\0" + b"\1" + bytes(4)
    for tagged in (b"\1\3\2\0\0", b"\1\1\7" + bytes(8), b"\1\0\3\1\1"):
        with pytest.raises(MalformedFrame):
            check_lengths(response, memoryview(plain + tagged))
    assert check_lengths(response, memoryview(plain + b"\1\3\1\1")) == len(plain) + 4


def test_unknown_tagged_fields_are_passed_over() -> None:
    """Newer brokers add them without a new version (KIP-482), at every depth; kio alone would stop there."""
    unknown = b"\x63\3abc"
    many = b"\xff\x01\x80\x01" + bytes(128)
    body = (
        b"\0\0\3"  # no error, two ApiVersion
        + (b"\0\x12" + b"\0\0" + b"\0\3" + b"\1" + unknown)
        + (b"\0\1" + b"\0\4" + b"\0\x11" + b"\0")
        + bytes(4)  # throttle time
        + b"\4"  # four tagged fields
        + (b"\0" + b"\x0d" + b"\2" + b"\2f" + b"\0\0" + b"\0\7" + b"\1" + unknown)  # 0: one feature
        + (b"\1" + b"\x08" + b"\0\0\0\0\0\0\0\5")  # 1: an epoch
        + unknown
        + many
    )
    frame = memoryview(b"head" + body)
    response = API_VERSIONS.response(3)
    assert check_lengths(response, frame, 4) == len(frame)
    known, end = readable(response, frame, 4)
    assert end == len(frame)
    value, size = entity_reader(response)(known, 0)
    assert size == len(known)
    assert [(key.api_key, key.max_version) for key in value.api_keys] == [(18, 3), (1, 17)]
    assert value.finalized_features_epoch == 5
    assert [(feature.name, feature.max_version) for feature in value.supported_features] == [("f", 7)]
    assert decode(response, memoryview(bytes(4) + body)) == value
    for length in range(len(body)):
        with pytest.raises(MalformedFrame):
            readable(response, memoryview(body[:length]))
