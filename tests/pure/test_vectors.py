"""Golden vectors: what real brokers stored for foreign producers is read, and rewritten, as foreign consumers read it.

What the vectors are, and how they were made, is said in `vectors/README.md`.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest
from vectors.corpus import FOLDER, Expected, Row, Vector, file_sums, load
from vectors.foreign import DECODERS

from mirror.records import columns, header
from mirror.records.header import CODECS, CONTROL, RawBatch, split
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


def test_the_vectors_show_all_that_brokers_store() -> None:
    assert len(VECTORS) >= 300
    assert len({vector.name for vector in VECTORS}) == len(VECTORS)
    found = Counter(kind for vector in VECTORS for kind in vector.kinds)
    codecs = {f"magic{magic} {codec}" for magic in (0, 1, 2) for codec in CODECS[: 5 if magic == 2 else 4]}
    features = {"append_time", "control", "delete_horizon", "empty", "holes", "producer_id", "transactional"}
    assert set(found) == codecs | features
    assert all(found[kind] >= 10 for kind in codecs | features), found
    assert {marker for vector in VECTORS for marker in vector.markers} == {"abort", "commit"}


# --- reading


@in_groups
def test_the_mirror_reads_what_foreign_consumers_read(group: str) -> None:
    for vector in GROUPS[group]:
        assert Expected.of(mirror_rows(data_batches(vector))) == vector.expected, vector.name


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
