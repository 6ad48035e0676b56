"""Lengths that lie: every answer that the mirror reads, cut short anywhere or announcing more than it holds, is told as malformed."""

from __future__ import annotations

import subprocess
import sys
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.describe_topic_partitions.v0.response import DescribeTopicPartitionsResponse
from kio.serial import entity_reader

from mirror.errors import MalformedFrame
from mirror.wire.guard import check_lengths
from mirror.wire.protocol import API_VERSIONS, LIST_OFFSETS
from tests.entities import RESPONSES, encoded, lies, name_of, sample

#: The mirror's, and one with a nullable struct in it.
WALKED = [*RESPONSES, DescribeTopicPartitionsResponse]
SEEDED = settings(max_examples=12)


def lie_sample(response: Any) -> Any:
    """An answer in which every array holds something, so that lies lie deep."""
    return max((sample(response, Random(seed)) for seed in range(40)), key=lambda value: len(encoded(value)))


@pytest.mark.parametrize("response", WALKED, ids=name_of)
@given(random=st.randoms(use_true_random=False), before=st.binary(max_size=4), after=st.binary(max_size=4))
@SEEDED
def test_the_walk_ends_where_kio_does(response: Any, random: Random, before: bytes, after: bytes) -> None:
    value = sample(response, random)
    body = encoded(value)
    frame = memoryview(before + body + after)
    assert check_lengths(response, frame, len(before)) == len(before) + len(body)
    assert entity_reader(response)(frame, len(before)) == (value, len(body))


@pytest.mark.parametrize("response", WALKED, ids=name_of)
@given(random=st.randoms(use_true_random=False))
@settings(max_examples=4)
def test_cut_short_anywhere(response: Any, random: Random) -> None:
    body = encoded(sample(response, random))
    for length in range(len(body)):
        with pytest.raises(MalformedFrame):
            check_lengths(response, memoryview(body[:length]))


@pytest.mark.parametrize("response", WALKED, ids=name_of)
def test_every_length_can_lie(response: Any) -> None:
    told = 0
    for lie in lies(lie_sample(response)):
        with pytest.raises(MalformedFrame, match="announced"):
            check_lengths(response, memoryview(encoded(lie)))
        told += 1
    assert told or response.__name__.startswith("InitProducerId")


@pytest.mark.parametrize("count", [2**31 - 1, -2, -(2**31), 1000])
def test_a_count_of_the_older_encoding(count: int) -> None:
    """ListOffsets 5 is not flexible: lengths are plain numbers, and -1 alone means null."""
    response = LIST_OFFSETS.response(5)
    body = bytes(4) + count.to_bytes(4, "big", signed=True) + bytes(16)
    with pytest.raises(MalformedFrame, match="announced"):
        check_lengths(response, memoryview(body))


def test_a_varint_that_does_not_end() -> None:
    response = API_VERSIONS.response(3)
    with pytest.raises(MalformedFrame, match="does not end"):
        check_lengths(response, memoryview(b"\0\0" + b"\xff" * 40))


def test_a_tagged_field_of_another_size_than_it_says() -> None:
    """kio reads such a field by its schema and not by its size: the walk and kio would part there, and read different counts."""
    response = API_VERSIONS.response(3)
    plain = b"\0\0" + b"\1" + bytes(4)
    for tagged in (b"\1\3\2\0\0", b"\1\1\7" + bytes(8), b"\1\0\3\1\1"):
        with pytest.raises(MalformedFrame):
            check_lengths(response, memoryview(plain + tagged))
    assert check_lengths(response, memoryview(plain + b"\1\3\1\1")) == len(plain) + 4


TORTURE = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
from random import Random
from mirror.errors import MalformedFrame
from mirror.wire.protocol import decode
from tests.entities import RESPONSES, answer, lies
from tests.test_guard import lie_sample

HUGE = (b"\\xff\\xff\\xff\\xff\\x0f", b"\\xff\\xff\\xff\\xff\\x07", b"\\x7f\\xff\\xff\\xff", b"\\x80\\x80\\x80\\x80\\x04")
tried = refused = 0

def attempt(response, frame):
    global tried, refused
    tried += 1
    try:
        decode(response, memoryview(frame))
    except MalformedFrame:
        refused += 1

for response in RESPONSES:
    value = lie_sample(response)
    for lie in lies(value):
        attempt(response, answer(lie))
    whole = answer(value)
    for position in range(0, len(whole), max(1, len(whole) // 150)):
        for huge in HUGE:
            attempt(response, whole[:position] + huge + whole[position + len(huge):])
            attempt(response, whole[:position] + huge)
print(tried, refused)
"""


def test_no_lie_takes_memory_or_the_process() -> None:
    """In a process of its own with a gigabyte of address space: a count that kio believed would abort it."""
    done = subprocess.run([sys.executable, "-c", TORTURE], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    tried, refused = map(int, done.stdout.split())
    assert tried > refused > tried // 2
