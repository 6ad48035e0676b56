"""Every row of the decision table (`decision-table.md`, `decisions.py`) tried on a real broker.

Two foreign consumers read what was stored, each at both isolation levels. A broker that changes its mind fails the row.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pytest
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, KafkaError, Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from decisions import DAY_MS, NOTHING, ROWS, SAMPLES, TRANSACTIONAL_ID, Row, Sample, Seen, T
from fakebroker import in_loop
from groupoffsets import committed
from helpers import make_topic
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPartition
from kio.schema.errors import ErrorCode
from pair import Shared
from probe import Answer, Probe, probing_existing
from waiting import DEADLINE_S

from mirror.config import ClusterSettings
from mirror.errors import BadRecords, MalformedBatch
from mirror.kafka.admin import Admin
from mirror.kafka.cluster import TopicPartition
from mirror.policy.rules import Rules
from mirror.records.header import ProducerState, RawBatch, crc_holds, restamp, split
from mirror.records.recipe import Recipe
from mirror.records.rewrite import rewrite
from mirror.replication.classifier import Action, Verdict, classify

PARTITIONS: Final = 3
STARTED_MS: Final = int(time.time() * 1000)
#: Where the mirror's batches go; the forwarded ones are in the others.
OURS: Final = 2
KAFKA_PYTHON_APPEND_TIME: Final = 1
COMPARED: Final = ("attributes", "last_offset_delta", "base_timestamp", "max_timestamp", "count")
STAMPED: Final = ("producer_id", "producer_epoch", "base_sequence")


class Readers:
    """Two foreign consumers at two isolation levels each, kept for all rows since they take long to start."""

    def __init__(self, bootstrap: str) -> None:
        self._confluent: dict[str, Consumer] = {}
        self._python: dict[str, Any] = {}
        for isolation in ("read_committed", "read_uncommitted"):
            self._confluent[isolation] = Consumer(
                {
                    "bootstrap.servers": bootstrap,
                    "group.id": "decisions",
                    "isolation.level": isolation,
                    "enable.partition.eof": True,
                    "enable.auto.commit": False,
                    "auto.offset.reset": "error",
                    "fetch.wait.max.ms": 10,
                    "check.crcs": True,
                }
            )
            self._python[isolation] = KafkaConsumer(
                bootstrap_servers=bootstrap,
                isolation_level=isolation,
                auto_offset_reset="none",
                enable_auto_commit=False,
                check_crcs=True,
            )

    def close(self) -> None:
        """End all four."""
        for consumer in (*self._confluent.values(), *self._python.values()):
            consumer.close()

    def read(self, topic: str, partition: int, end: int) -> str:
        """What all four read up to `end`; each by name where they do not read the same."""
        fields = {}
        for isolation, consumer in self._confluent.items():
            fields[f"librdkafka {isolation}"] = _confluent_reads(consumer, topic, partition)
        for isolation, reader in self._python.items():
            fields[f"kafka-python {isolation}"] = _python_reads(reader, topic, partition, end)
        if len(set(fields.values())) == 1:
            return fields.popitem()[1]
        return "; ".join(f"{name}: {text}" for name, text in fields.items())


def _confluent_reads(consumer: Consumer, topic: str, partition: int) -> str:
    consumer.list_topics(topic, DEADLINE_S)  # learns the leader now; by itself it would ask again a second later
    consumer.assign([ConfluentPartition(topic, partition, 0)])
    found: list[str] = []
    while True:
        message = consumer.poll(DEADLINE_S)
        assert message is not None, f"no end of {topic}-{partition}"
        if (error := message.error()) is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            return ", ".join(found)
        kind, when = message.timestamp()
        stamped = kind == TIMESTAMP_LOG_APPEND_TIME
        found.append(shown_record(message.offset(), message.value(), when, stamped=stamped))


def _python_reads(consumer: Any, topic: str, partition: int, end: int) -> str:
    at = KafkaPartition(topic, partition)
    consumer.assign([at])
    consumer.seek(at, 0)
    found = []
    while consumer.position(at) < end:
        for message in consumer.poll(timeout_ms=5_000).get(at, []):
            stamped = message.timestamp_type == KAFKA_PYTHON_APPEND_TIME
            found.append(shown_record(message.offset, message.value, message.timestamp, stamped=stamped))
    return ", ".join(found)


def shown_record(offset: int | None, value: bytes | None, when: int, *, stamped: bool) -> str:
    """`offset value time`; a long value by its first byte."""
    text = "null" if value is None else value.decode() if len(value) == 1 else f"{chr(value[0])}.."
    shown = shown_time(when)
    assert (shown == "append") == stamped, "who stamped a record is known with its time"
    return f"{offset} {text} {shown}"


def shown_time(when: int) -> str:
    """ms relative to `T`, in days where it is whole days; `append` for a time that a broker's clock has said since."""
    if when < 0:
        return "none"
    if STARTED_MS <= when <= time.time() * 1000 + 1000:
        return "append"
    days, rest = divmod(when - T, DAY_MS)
    return f"T{when - T:+d}" if rest or not days else f"T{days:+d}d"


def shown_answer(answer: Answer) -> str:
    """An offset, or an error by code and name."""
    return str(answer.offset) if answer.code == 0 else f"{answer.code} {ErrorCode(answer.code).name.upper()}"


def difference(sent: RawBatch, kept: RawBatch, source: RawBatch | None, unchanged: str) -> str:
    """What changed on the way, base offset and leader epoch aside; `source` is what a restamped batch was before."""
    changed = []
    assert source is None or all(getattr(sent.header, name) == getattr(kept.header, name) for name in STAMPED)
    names, sent = (COMPARED, source) if source else (COMPARED + STAMPED, sent)
    for name in names:
        before, after = getattr(sent.header, name), getattr(kept.header, name)
        if before != after:
            show = hex if name == "attributes" else shown_time if name.endswith("timestamp") else str
            changed.append(f"{name} {show(before)} -> {show(after)}")
    if bytes(sent.records) != bytes(kept.records):
        changed.append("records anew")
    return ", ".join(changed) or unchanged


def first_batch(data: bytes) -> RawBatch:
    """The first whole batch of a record set."""
    return next(split(memoryview(data)))


async def seen(
    probe: Probe,
    readers: Readers,
    partition: int,
    requests: Sequence[Sequence[tuple[int, bytes]]],
    *,
    transactional_id: str | None = None,
    source: RawBatch | None = None,
    unchanged: str = "as sent",
) -> Seen:
    """Send the requests in turn and look at what came of them in one partition."""
    answers: list[str] = []
    accepted: list[tuple[int, RawBatch]] = []
    for request in requests:
        answered = await probe.produce(request, transactional_id)
        answers.append(" and ".join(shown_answer(answered[at]) for at in sorted(answered)))
        answer = answered[partition]
        if answer.code == 0 and answer.offset not in [offset for offset, _ in accepted]:
            # of several entries the last is kept (row 31)
            accepted.append((answer.offset, first_batch([data for at, data in request if at == partition][-1])))
    if not accepted:
        return Seen(", ".join(answers))
    stored = await probe.stored(partition)
    epoch = probe.cluster.leader(TopicPartition(probe.topic, partition)).epoch
    for raw, (offset, _) in zip(stored, accepted, strict=True):
        assert (raw.header.base_offset, raw.header.partition_leader_epoch) == (offset, epoch)
        assert crc_holds(raw), "whatever the broker changed, the CRC fits"
    return Seen(
        ", ".join(answers),
        "; ".join(difference(sent, kept, source, unchanged) for kept, (_, sent) in zip(stored, accepted, strict=True)),
        readers.read(probe.topic, partition, (await probe.ends(partition)).log_end),
    )


def verdict_on(row: Sample, rules: Rules) -> tuple[Verdict | None, RawBatch | None]:
    """What the mirror makes of the batch; no verdict where its bytes are not taken for a batch at all."""
    try:
        raw = first_batch(row.batch)
    except MalformedBatch:
        return None, None
    holds = raw.header.magic < 2 or crc_holds(raw)
    return classify(raw.header, rules, next_offset=row.next_offset, aborted=row.aborted, crc_holds=holds), raw


def made_of(raw: RawBatch, verdict: Verdict, rules: Rules, next_offset: int) -> list[bytes]:
    """What the mirror sends for a batch, one request for each. Raises BadRecords."""
    if verdict.action is Action.RESTAMP:
        batches = [raw]
    elif verdict.action is Action.REWRITE:
        recipe = Recipe(first_offset=next_offset, codec=rules.codec, max_bytes=rules.max_message_bytes)
        batches = list(rewrite([raw], recipe))
    else:
        batches = []
    stamp, sent = ProducerState(5_000_000), []
    for one in batches:
        sent.append(restamp(one, stamp) + bytes(one.records))
        stamp = stamp.after(one.header.last_offset_delta)
    return sent


async def mirrored(row: Row, rules: Rules, probe: Probe, readers: Readers) -> Seen:
    """What comes of what the mirror sends; the error where it cannot make it."""
    verdict, raw = verdict_on(row.sample, rules)
    if verdict is None or raw is None or row.sample.topic is not None:
        return NOTHING
    try:
        sent = made_of(raw, verdict, rules, row.sample.next_offset)
    except BadRecords as problem:
        return Seen(type(problem).__name__)
    if not sent:
        return NOTHING
    requests = [[(OURS, one)] for one in sent]
    if verdict.action is Action.REWRITE:
        return await seen(probe, readers, OURS, requests, unchanged="as made")
    return await seen(probe, readers, OURS, requests, source=raw)


@pytest.fixture(scope="module")
def readers(target_cluster: Shared) -> Iterator[Readers]:
    make_internal_topics(target_cluster.bootstrap)
    started = Readers(target_cluster.bootstrap)
    yield started
    started.close()


def make_internal_topics(bootstrap: str) -> None:
    """A broker makes them when somebody first needs a coordinator."""
    Producer({"bootstrap.servers": bootstrap, "transactional.id": TRANSACTIONAL_ID}).init_transactions(120)
    committed(bootstrap, "decisions", "nowhere")


def rules_for(bootstrap: str, topic: str) -> Rules:
    """The classifier's rules as the mirror derives them, from the topic's configs in effect."""
    admin = Admin(ClusterSettings.model_validate({"alias": "us", "bootstrap.servers": bootstrap}))
    return Rules.from_configs({name: found.value for name, found in admin.topic_configs([topic])[topic].items()})


@pytest.mark.proves("RESTAMP", "REWRITE", "DROP", "REFUSE")
@pytest.mark.parametrize("row", ROWS, ids=[row.number for row in ROWS])
@in_loop
async def test_row(row: Row, target_cluster: Shared, topic_name: str, readers: Readers) -> None:
    bootstrap, sample = target_cluster.bootstrap, row.sample
    if sample.topic is None:
        make_topic(bootstrap, topic_name, PARTITIONS, row.configs)
    topic = sample.topic or topic_name
    rules = rules_for(bootstrap, topic)
    verdict, _ = verdict_on(sample, rules)
    assert str(verdict or "MalformedBatch") == row.verdict
    async with probing_existing(bootstrap, topic) as probe:
        forwarded = await seen(probe, readers, 0, sample.sent(), transactional_id=sample.transactional_id)
        assert forwarded == row.forwarded
        assert await mirrored(row, rules, probe, readers) == row.mirrored


def test_every_row_has_a_number_of_its_own_and_a_batch() -> None:
    assert [row.number for row in ROWS] == list(SAMPLES)
    assert {int("".join(c for c in number.split("-")[0] if c.isdigit())) for number in SAMPLES} == set(range(36))
