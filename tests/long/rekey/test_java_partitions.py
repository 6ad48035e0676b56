"""Partitions of keys: where the Java client puts records."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

from helpers import make_topic
from keyed import keyed
from samerecords import read
from waiting import until

from mirror.lab.demo.processes import Bound
from mirror.lab.demo.producers import java_program
from mirror.lab.embedded import Cluster
from mirror.records.columns import partitions_of

RECORDS = 20_000
PARTITIONS = 12


def random_keys(random: Random) -> list[bytes | None]:
    """Of 0 to 60 characters that take 1 to 4 bytes, and every fiftieth missing."""
    letters = "abcXYZ0189 \n\0-_:\x7f\u00e9\u00df\u03a9\u0416\u6f22\u5b57\u20ac\U0001f600\U00010348"
    return [
        None if random.random() < 0.02 else "".join(random.choices(letters, k=random.randrange(61))).encode()
        for _ in range(RECORDS)
    ]


def test_keys_go_where_the_java_client_puts_them(own_target: Cluster, topic_name: str, tmp_path: Path) -> None:
    keys = random_keys(Random(20))
    make_topic(own_target.bootstrap, topic_name, PARTITIONS)
    file = tmp_path / "keys"
    file.write_bytes(
        b"".join((-1 if key is None else len(key)).to_bytes(4, "big", signed=True) + (key or b"") for key in keys)
    )
    serializer = "org.apache.kafka.common.serialization.ByteArraySerializer"
    settings = {
        "bootstrap.servers": own_target.bootstrap, "key.serializer": serializer, "value.serializer": serializer
    }  # fmt: skip
    arguments = [topic_name, str(file), str(len(keys)), *(f"{key}={value}" for key, value in settings.items())]
    program = java_program(Path(__file__).parents[2] / "support" / "KeyedProducer.java", tmp_path, *arguments)
    with Bound(program, tmp_path / "producer.log", grace=1.0) as process:
        until(lambda: process.exit_code is not None, process.tail)
        assert process.exit_code == 0, process.tail()
    found = {
        int(one[4]): (partition, one[3])
        for partition in range(PARTITIONS)
        for one in read(own_target.bootstrap, topic_name, partition)
    }
    assert [found[number][1] for number in range(RECORDS)] == keys
    ours = partitions_of(keyed(keys), PARTITIONS).tolist()
    assert ours == [-1 if key is None else found[number][0] for number, key in enumerate(keys)]
    assert sorted(Counter(ours)) == [-1, *range(PARTITIONS)]
