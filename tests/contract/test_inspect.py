"""`mirror inspect`: a segment file and a live partition show the same batches, with the verdict of each."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from helpers import config_file, make_topic, produce
from inspecting import lines, run
from kafka.record import MemoryRecords
from pair import Shared

from mirror.errors import ConfigError, ExitCode


@pytest.mark.proves("mirror inspect")
def test_a_segment_file_is_read_as_another_client_reads_it(source_cluster: Shared, topic_name: str) -> None:
    make_topic(source_cluster.bootstrap, topic_name)
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    for codec in codecs:
        produce(source_cluster.bootstrap, topic_name, (b"value %d" % number * 9 for number in range(19)), codec=codec)
    folder = source_cluster.data / f"{topic_name}-0"
    result = run(folder, "--json", "--ratio")
    assert result.exit_code == ExitCode.DONE, result.stdout
    batches = lines(result)
    reader = MemoryRecords((folder / f"{0:020}.log").read_bytes())
    expected = []
    while one := reader.next_batch():
        records = list(one)
        expected.append((one.base_offset, len(records), records[0].timestamp, max(r.timestamp for r in records)))
    assert [(b["base_offset"], b["records"], b["base_timestamp"], b["max_timestamp"]) for b in batches] == expected
    assert [b["codec"] for b in batches[::2]] == list(codecs)
    assert all((b["uncompressed"] > b["bytes"] - 61) == (b["codec"] != "none") for b in batches)


@contextmanager
def transaction(bootstrap: str, name: str) -> Iterator[Producer]:
    """A transaction in which each flush makes a batch; aborted at the end of the block."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 5_000})
    producer.init_transactions(180)
    producer.begin_transaction()
    try:
        yield producer
    finally:
        producer.abort_transaction(180)


def send(producer: Producer, topic: str, *values: bytes) -> None:
    for value in values:
        producer.produce(topic, value, partition=0)
    assert not producer.flush(180)


def without_place(batches: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in one.items() if name not in ("position", "file", "topic", "partition")}
        for one in batches
    ]


@pytest.mark.proves("mirror inspect", "RESTAMP", "DROP")
def test_a_live_partition_shows_how_its_transactions_ended(source_cluster: Shared, topic_name: str) -> None:
    where = source_cluster.bootstrap
    make_topic(where, topic_name, partitions=2)
    with transaction(where, f"{topic_name}-a") as first:
        send(first, topic_name, b"kept", b"kept too")  # 0, 1
        first.commit_transaction(180)  # 2
        first.begin_transaction()
        send(first, topic_name, b"regretted")  # 3
        produce(where, topic_name, [b"in between"])  # 4
        send(first, topic_name, b"regretted, too")  # 5
    produce(where, topic_name, [b"behind the marker"])  # 7
    with transaction(where, f"{topic_name}-b") as second:
        send(second, topic_name, b"open")  # 8
        live = run(f"{topic_name}:0", "--bootstrap", where, "--json")
        assert live.exit_code == ExitCode.DONE, live.output
        batches = lines(live)
        assert [(b["base_offset"], b["records"], b["outcome"], b["control"], b["verdict"]) for b in batches] == [
            (0, 2, "committed", None, "RESTAMP"),
            (2, 1, None, "COMMIT", "DROP"),
            (3, 1, "aborted", None, "DROP"),
            (4, 1, None, None, "RESTAMP"),
            (5, 1, "aborted", None, "DROP"),
            (6, 1, None, "ABORT", "DROP"),
            (7, 1, None, None, "RESTAMP"),
            (8, 1, "undecided", None, "RESTAMP"),
        ]
        (summary,) = lines(live, "summary")
        assert (summary["log_start"], summary["last_stable"], summary["log_end"]) == (0, 8, 9)
        in_file = run(source_cluster.data / f"{topic_name}-0", "--json")
        assert without_place(lines(in_file)) == without_place(batches)
        inside = run(f"{topic_name}:0", "--bootstrap", where, "--json", "--from", "5")
        assert without_place(lines(inside)) == without_place(batches[4:])
    text = run(topic_name, "--bootstrap", where, "--limit", "3").stdout
    assert "read up to offset 3: --limit N or --from OFFSET for more, --summary for all" in text
    assert f"{topic_name}-1: no batches" in text
    for target in (f"{topic_name}:7", f"{topic_name}-other"):
        missing = run(target, "--bootstrap", where)
        assert isinstance(missing.exception, ConfigError)
        assert topic_name in str(missing.exception)


@pytest.mark.proves("mirror inspect", "REWRITE")
def test_verdicts_go_by_the_rules_of_the_target_topic(
    source_cluster: Shared, target_cluster: Shared, topic_name: str, tmp_path: Path
) -> None:
    source, target = source_cluster.bootstrap, target_cluster.bootstrap
    make_topic(source, topic_name)
    produce(source, topic_name, [b"x" * 2000])
    config = config_file(tmp_path, source, target, [topic_name], flow=topic_name)

    def judged() -> tuple[dict[str, Any], str]:
        result = run(topic_name, "--config", config, "--json")
        assert result.exit_code == ExitCode.DONE, result.output
        (summary,) = lines(result, "summary")
        return lines(result)[-1], summary["rules"]

    batch, rules = judged()
    assert (batch["verdict"], batch["reason"]) == ("RESTAMP", "own_producer")
    assert "does not exist yet" in rules
    make_topic(target, topic_name, configs={"max.message.bytes": "1000"})
    batch, rules = judged()
    assert (batch["verdict"], batch["reason"], rules) == ("REWRITE", "too_large", f"the rules of {topic_name} on us")
    too_large = [bytes(1000), random.randbytes(3000), random.randbytes(3000)]
    produce(source, topic_name, too_large, codec="zstd")
    unwritable = judged()[0]["unwritable"]
    assert (unwritable["first_offset"], unwritable["last_offset"], unwritable["reason"]) == (2, 3, "too_large")
    assert "offset 2 would stop the mirror: a record takes 30" in run(topic_name, "--config", config).stdout
