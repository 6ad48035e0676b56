"""Partitions of keys: Kafka's own vectors and a plain reading of its rule."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keyed import keyed

from mirror.records.columns import partitions_of

#: Key -> hash, from Kafka's `UtilsTest.testMurmur2`.
KAFKA_S = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
MOST = 2**31 - 1


def murmur2(key: bytes) -> int:
    """`Utils.murmur2`, 32 bits with a sign."""
    state = 0x9747B28C ^ len(key)
    whole = len(key) // 4 * 4
    for at in range(0, whole, 4):
        word = int.from_bytes(key[at : at + 4], "little") * 0x5BD1E995 % 2**32
        word = (word ^ word >> 24) * 0x5BD1E995 % 2**32
        state = state * 0x5BD1E995 % 2**32 ^ word
    if rest := key[whole:]:
        state = (state ^ int.from_bytes(rest, "little")) * 0x5BD1E995 % 2**32
    state = (state ^ state >> 13) * 0x5BD1E995 % 2**32
    state ^= state >> 15
    return state - 2**32 if state >= 2**31 else state


def expected(key: bytes | None, count: int) -> int:
    return -1 if key is None else (murmur2(key) & 0x7FFFFFFF) % count


@pytest.mark.parametrize(("key", "hashed"), KAFKA_S.items())
def test_kafka_s_own_vectors(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed
    assert partitions_of(keyed([key]), MOST).tolist() == [(hashed & 0x7FFFFFFF) % MOST]


@given(st.lists(st.none() | st.binary(max_size=70), max_size=50), st.integers(1, MOST))
def test_any_keys(keys: list[bytes | None], count: int) -> None:
    found = partitions_of(keyed(keys), count)
    assert found.dtype == np.int32
    assert found.tolist() == [expected(key, count) for key in keys]
