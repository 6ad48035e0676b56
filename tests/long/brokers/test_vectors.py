"""Golden vectors: what real brokers stored for foreign producers is read, and rewritten, as foreign consumers read it.

What the vectors are, and how they were made, is said in `vectors/README.md`.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest
from helpers import make_topic, produce
from oldbroker import Magic, OldBroker, plant
from vectors.corpus import FOLDER, Expected, Row, Vector, file_sums, load
from vectors.foreign import CONSUMERS, DECODERS

from mirror.kafka.cluster import Cluster, Endpoint, TopicPartition
from mirror.kafka.fetch import fetch_at
from mirror.kafka.produce import produce_request, read_produce
from mirror.kafka.protocol import PRODUCE
from mirror.kafka.queries import LATEST, list_offset
from mirror.lab.embedded import Cluster as Brokers
from mirror.records import columns, header
from mirror.records.header import CODECS, CONTROL, RawBatch, passed, split
from mirror.records.recipe import Recipe
from mirror.records.rewrite import read, rewrite

VECTORS = load()


def _groups() -> dict[str, list[Vector]]:
    """Vectors by origin and shape: a test for each would be two thousand."""
    groups: dict[str, list[Vector]] = {}
    for vector in VECTORS:
        origin, _, shape, _ = vector.name.split("/")
        groups.setdefault(f"{origin}/{shape}", []).append(vector)
    return groups


GROUPS = _groups()
in_groups = pytest.mark.parametrize("group", GROUPS)


def data_batches(vector: Vector) -> list[RawBatch]:
    """The batches that hold records."""
    return [
        raw
        for raw in split(vector.data)
        if raw.header.magic < 2 or (raw.header.count and not raw.header.attributes & CONTROL)
    ]


def mirror_rows(raws: Sequence[RawBatch]) -> Iterator[Row]:
    """What the mirror reads in batches."""
    for raw in raws:
        found = read(raw)
        for i in range(len(found)):
            yield Row(
                int(found.offsets[i]),
                int(found.timestamps[i]),
                columns.key(found, i),
                columns.value(found, i),
                tuple(columns.headers(found, i)),
            )


def rewritten(vector: Vector) -> list[RawBatch]:
    """A vector made anew: neighbours of one codec together, as the writer joins them."""
    runs = itertools.groupby(data_batches(vector), key=lambda raw: raw.header.codec)
    return [made for _, run in runs for made in rewrite(list(run), Recipe())]


# --- the files


def test_the_files_have_the_sums_of_the_manifest() -> None:
    for name, digest in file_sums().items():
        assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == digest, name
    for vector in VECTORS:
        assert hashlib.sha256(vector.data).hexdigest() == vector.sha256, vector.name


def test_every_byte_of_the_files_belongs_to_one_vector() -> None:
    ends: Counter[str] = Counter()
    for vector in VECTORS:
        assert vector.position == ends[vector.file], vector.name
        ends[vector.file] += vector.size
    assert ends == {name: (FOLDER / name).stat().st_size for name in file_sums()}


def test_the_vectors_show_all_that_brokers_store() -> None:
    assert len(VECTORS) >= 300
    assert len({vector.name for vector in VECTORS}) == len(VECTORS)
    found = Counter(kind for vector in VECTORS for kind in vector.kinds)
    codecs = {f"magic{magic} {codec}" for magic in (0, 1, 2) for codec in CODECS[: 5 if magic == 2 else 4]}
    features = {"append_time", "control", "delete_horizon", "empty", "holes", "producer_id", "transactional"}
    assert set(found) == codecs | features
    assert all(found[kind] >= 10 for kind in codecs | features), found
    assert {marker for vector in VECTORS for marker in vector.markers} == {"abort", "commit"}


def test_every_vector_was_read_alike_by_two_consumers_and_is_readable_by_two_decoders_or_magic_0_with_lz4() -> None:
    for vector in VECTORS:
        few = vector.kinds.get("magic0 lz4")
        assert len(vector.read_by) == (2 if few else 3), vector.name
        assert set(vector.unreadable) == (set(DECODERS) if few else set()), vector.name


# --- reading


@in_groups
def test_the_mirror_reads_what_foreign_consumers_read(group: str) -> None:
    for vector in GROUPS[group]:
        assert Expected.of(mirror_rows(data_batches(vector))) == vector.expected, vector.name


@in_groups
@pytest.mark.parametrize("decoder", DECODERS)
def test_foreign_decoders_read_the_same(group: str, decoder: str) -> None:
    for vector in GROUPS[group]:
        if decoder not in vector.unreadable:
            assert Expected.of(DECODERS[decoder](bytes(vector.data))) == vector.expected, vector.name


def test_control_batches_are_the_markers_that_foreign_decoders_read() -> None:
    names = {header.ABORT: "abort", header.COMMIT: "commit"}
    for vector in VECTORS:
        found = [
            names[header.marker_type(raw)]
            for raw in split(vector.data)
            if raw.header.attributes & CONTROL
            if raw.header.magic == 2 and raw.header.count
        ]
        assert tuple(found) == vector.markers, vector.name


# --- rewriting


@in_groups
@pytest.mark.parametrize("decoder", DECODERS)
def test_foreign_decoders_read_the_same_in_rewritten_batches(group: str, decoder: str) -> None:
    for vector in GROUPS[group]:
        made = b"".join(raw.data for raw in rewritten(vector))
        assert Expected.of(DECODERS[decoder](made)) == vector.expected, vector.name


@in_groups
def test_rewritten_batches_are_dense_and_keep_their_codec(group: str) -> None:
    for vector in GROUPS[group]:
        made = rewritten(vector)
        assert all(raw.header.magic == 2 and raw.header.is_dense for raw in made), vector.name
        assert {raw.header.codec for raw in made} == {raw.header.codec for raw in data_batches(vector)}, vector.name


@pytest.mark.brokers
@pytest.mark.timeout(120)
def test_a_broker_stores_rewritten_batches_as_they_are_and_all_consumers_read_them(
    own_target: Brokers, topic_name: str
) -> None:
    """One topic for each codec: all batches in a row, so a record's offset is its number."""
    batches: dict[TopicPartition, list[RawBatch]] = {}
    expected: dict[tuple[str, int], list[Row]] = {}
    for codec, name in enumerate(CODECS):
        partition = TopicPartition(f"{topic_name}-{name}", 0)
        every = [raw for vector in VECTORS for raw in rewritten(vector) if raw.header.codec == codec]
        batches[partition] = every
        rows = DECODERS["kafka-python"](b"".join(raw.data for raw in every))
        expected[partition.topic, 0] = [row._replace(offset=number) for number, row in enumerate(rows)]
        keep = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**63 - 1)}
        make_topic(own_target.bootstrap, partition.topic, configs=keep)
    asyncio.run(_append(own_target.bootstrap, batches))
    for partition, stored in asyncio.run(_stored(own_target.bootstrap, list(batches))).items():
        sections = [bytes(raw.records) for raw in stored]
        assert sections == [bytes(raw.records) for raw in batches[partition]], partition
    for name, consumer in CONSUMERS.items():
        found = consumer(own_target.bootstrap, list(expected))
        assert found == expected, name


async def _append(bootstrap: str, batches: dict[TopicPartition, list[RawBatch]]) -> None:
    async with Cluster(_endpoint(bootstrap)) as cluster:
        await cluster.refresh({partition.topic for partition in batches})
        ids = {partition.topic: cluster.topic_id(partition.topic) for partition in batches}
        for row in itertools.zip_longest(*batches.values()):
            parts = {at: (passed(raw), raw.records) for at, raw in zip(batches, row, strict=True) if raw is not None}
            connection = await cluster.connection(0)
            request = produce_request(connection.version(PRODUCE), parts, ids)
            for ack in read_produce(await connection.call(PRODUCE, request, timeout=10), ids):
                assert not ack.error_code, ack


async def _stored(bootstrap: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, list[RawBatch]]:
    found: dict[TopicPartition, list[RawBatch]] = {}
    async with Cluster(_endpoint(bootstrap)) as cluster:
        await cluster.refresh({partition.topic for partition in partitions})
        for partition in partitions:
            stored = found[partition] = []
            end = await list_offset(cluster, partition, LATEST)
            while (offset := stored[-1].header.next_offset if stored else 0) < end:
                stored += split((await fetch_at(cluster, partition, offset, max_bytes=1 << 20)).records)
    return found


def _endpoint(bootstrap: str) -> Endpoint:
    host, port = bootstrap.split(":")
    return Endpoint("test", ((host, int(port)),))


# --- sources that store magic 0 and 1


@pytest.mark.brokers
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_an_old_broker_is_a_source_of_old_magics(
    old_broker: OldBroker, topic_name: str, magic: Magic, codec: str
) -> None:
    topic = f"{topic_name}-{magic}-{codec}".replace("[", "-").replace("]", "-")
    old_broker.make_topic(topic, magic)
    values = [b"value %d" % number for number in range(25)]
    produce(old_broker.bootstrap, topic, values, codec=codec)
    (stored,) = asyncio.run(_stored(old_broker.bootstrap, [TopicPartition(topic, 0)])).values()
    assert {raw.header.magic for raw in stored} == {magic}
    assert {CODECS[raw.header.codec] for raw in stored} == {codec}
    assert [row.value for row in mirror_rows(stored)] == values


@pytest.mark.brokers
def test_a_new_broker_serves_the_old_magics_of_a_planted_segment() -> None:
    (vector,) = (vector for vector in VECTORS if vector.name == "kafka-2.8.2/java/mixed/gzip")
    with Brokers.start(name="planted") as brokers:
        make_topic(brokers.bootstrap, "planted", configs={"retention.ms": "-1"})
        plant(brokers, "planted", bytes(vector.data))
        (stored,) = asyncio.run(_stored(brokers.bootstrap, [TopicPartition("planted", 0)])).values()
        assert b"".join(raw.data for raw in stored) == vector.data
        assert [raw.header.magic for raw in stored] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
        for name, consumer in CONSUMERS.items():
            found = consumer(brokers.bootstrap, [("planted", 0)])
            assert Expected.of(found["planted", 0]) == vector.expected, name
