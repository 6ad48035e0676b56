"""What a copy is: the source's batches, byte for byte, at the source's offsets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from copies import Pair
from helpers import make_topic, mirror_once, produce, stored_batches
from samerecords import assert_same_records, read
from sparkless import run_once

from mirror.config import load
from mirror.config.models import MetricSettings
from mirror.kafka.cluster import TopicPartition
from mirror.records.header import CODECS

CONFIGS = Path(__file__).parents[2] / "configs"


def batches(bootstrap: str, topic: str, partition: int) -> list[tuple[Any, ...]]:
    """All of the stored batches but for who produced them."""
    return [
        (h.base_offset, h.count, h.attributes, h.base_timestamp, h.max_timestamp, bytes(raw.records))
        for raw in stored_batches(bootstrap, topic, partition)
        for h in [raw.header]
    ]


@pytest.mark.proves("same-bytes", "same-offsets", "exactly-once", "RESTAMP")
def test_batches_of_every_codec_keep_their_bytes_and_offsets(pair: Pair, topic_name: str) -> None:
    """A partition for each codec. A second run adds what came since, and nothing twice."""
    make_topic(pair[0], topic_name, len(CODECS))
    for rounds in (1, 2):
        for partition, codec in enumerate(CODECS):
            values = [b"value %d " % number * 9 for number in range(100 * rounds)]
            produce(pair[0], topic_name, values, partition=partition, batch=100, codec=codec)
        found = mirror_once(*pair, [topic_name], flow=topic_name)
        for partition in range(len(CODECS)):
            assert found[TopicPartition(topic_name, partition)].verdicts == {"RESTAMP/own_producer": rounds}
            assert batches(pair[1], topic_name, partition) == batches(pair[0], topic_name, partition)
    assert assert_same_records(*pair, topic_name, len(CODECS)) == 1500


@pytest.mark.proves("mirror run")
@pytest.mark.parametrize(("example", "prefix"), [("quickstart", ""), ("prefix", "eu."), ("compacted", "")])
def test_the_topic_settings_of_an_example_copy(
    pair: Pair, topic_name: str, monkeypatch: pytest.MonkeyPatch, example: str, prefix: str
) -> None:
    monkeypatch.setenv("EU", pair[0])
    monkeypatch.setenv("US", pair[1])
    given = load(CONFIGS / f"{example}.yaml")
    own = {
        "flow": topic_name,
        "topics": given.topics.model_copy(update={"include": (re.compile(topic_name),)}),
        "groups": given.groups.model_copy(update={"include": ()}),
        "metrics": MetricSettings(listen=None),
    }
    make_topic(pair[0], topic_name)
    values = [b"%d" % number for number in range(50)]
    produce(pair[0], topic_name, values, codec="zstd")
    run_once(given.model_copy(update=own))
    assert [one[4] for one in read(pair[1], prefix + topic_name, 0)] == values
