"""Partitions of keys: Kafka's own vectors, a plain reading of its rule, and where the Java client puts records."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from helpers import make_topic
from hypothesis import given
from hypothesis import strategies as st

from mirror.lab.demo.processes import Bound
from mirror.lab.demo.producers import java_program
from mirror.lab.embedded import Cluster
from mirror.records.columns import Records, partitions_of

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
RECORDS = 100_000
PARTITIONS = 12


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


def keyed(keys: Sequence[bytes | None]) -> Records:
    """Records with these keys, which lie one behind the other; of the other columns nothing is said."""
    records = Records.empty(b"".join(key or b"" for key in keys), len(keys))
    sizes = [-1 if key is None else len(key) for key in keys]
    records.key_size[:] = sizes
    records.key_at[:] = np.cumsum([0, *(max(size, 0) for size in sizes)])[:-1]
    return records


@pytest.mark.parametrize(("key", "hashed"), KAFKA_S.items())
def test_kafka_s_own_vectors(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed
    assert partitions_of(keyed([key]), MOST).tolist() == [(hashed & 0x7FFFFFFF) % MOST]


@given(st.lists(st.none() | st.binary(max_size=70), max_size=50), st.integers(1, MOST))
def test_any_keys(keys: list[bytes | None], count: int) -> None:
    found = partitions_of(keyed(keys), count)
    assert found.dtype == np.int32
    assert found.tolist() == [expected(key, count) for key in keys]


def test_keys_of_some_rows_alone() -> None:
    keys = [b"one", None, b"", b"four", b"f\xfcnf"]
    found = partitions_of(keyed(keys).rows(1, 4), PARTITIONS)
    assert found.tolist() == [expected(key, PARTITIONS) for key in keys[1:4]]


@pytest.mark.parametrize("count", [0, -1])
def test_no_partitions(count: int) -> None:
    with pytest.raises(AssertionError):
        partitions_of(keyed([b"a"]), count)


def random_keys(random: Random) -> list[bytes | None]:
    """Of 0 to 60 characters that take 1 to 4 bytes, and every fiftieth missing."""
    letters = "abcXYZ0189 \n\0-_:\x7f\u00e9\u00df\u03a9\u0416\u6f22\u5b57\u20ac\U0001f600\U00010348"
    return [
        None if random.random() < 0.02 else "".join(random.choices(letters, k=random.randrange(61))).encode()
        for _ in range(RECORDS)
    ]


def where(bootstrap: str, topic: str) -> dict[int, tuple[int, bytes | None]]:
    """Number of a record -> its partition and its key."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False})
    found: dict[int, tuple[int, bytes | None]] = {}
    try:
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
        deadline = time.monotonic() + 120
        while len(found) < RECORDS:
            assert time.monotonic() < deadline, f"{len(found)} records"
            for message in consumer.consume(10_000, 1.0):
                assert message.error() is None, message.error()
                found[int(message.value() or b"")] = message.partition() or 0, message.key()
    finally:
        consumer.close()
    return found


@pytest.mark.brokers
def test_where_the_java_client_puts_them(own_target: Cluster, topic_name: str, tmp_path: Path) -> None:
    bootstrap, keys = own_target.bootstrap, random_keys(Random(20))
    make_topic(bootstrap, topic_name, PARTITIONS)
    file = tmp_path / "keys"
    with file.open("wb") as out:
        for key in keys:
            out.write((-1 if key is None else len(key)).to_bytes(4, "big", signed=True) + (key or b""))
    serializer = "org.apache.kafka.common.serialization.ByteArraySerializer"
    settings = {"bootstrap.servers": bootstrap, "key.serializer": serializer, "value.serializer": serializer}
    arguments = [topic_name, str(file), str(len(keys)), *(f"{key}={value}" for key, value in settings.items())]
    source = Path(__file__).parents[2] / "support" / "KeyedProducer.java"
    with Bound(java_program(source, tmp_path, *arguments), tmp_path / "producer.log", grace=1.0) as process:
        deadline = time.monotonic() + 120
        while process.exit_code is None:
            assert time.monotonic() < deadline, process.tail()
            time.sleep(0.05)
        assert process.exit_code == 0, process.tail()
    found = where(bootstrap, topic_name)
    assert [found[number][1] for number in range(RECORDS)] == keys
    ours = partitions_of(keyed(keys), PARTITIONS).tolist()
    theirs = [-1 if key is None else found[number][0] for number, key in enumerate(keys)]
    assert ours == theirs
    assert sorted(Counter(ours)) == [-1, *range(PARTITIONS)]
