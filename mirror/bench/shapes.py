"""What a comparison copies: the shapes of source topics, and those that are measured by default (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mirror.bench.result import Workload
from mirror.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A source topic to be made. `megabytes` is the size of its records before they are compressed (10^6 bytes).

    `transactional` is the share of partitions that are written in transactions, `keyed` that of records with a key;
    `compacted` takes away records that have a younger one with their key, and leaves holes in most batches.
    """

    name: str
    title: str = ""
    codec: str = "zstd"
    batch_bytes: int = 1_000_000
    megabytes: int
    record_bytes: int = 400
    partitions: int = 4
    transactional: float = 0.0
    compacted: bool = False
    keyed: float = 0.5
    seed: int = 1

    def filled(self, *, records: int, batches: int, uncompressed_bytes: int, stored_bytes: int) -> Workload:
        """With what lies in the topic now."""
        return Workload(
            name=self.name,
            title=self.title,
            codec=self.codec,
            batch_bytes=self.batch_bytes,
            record_bytes=self.record_bytes,
            partitions=self.partitions,
            transactional=self.transactional,
            compacted=self.compacted,
            keyed=self.keyed,
            seed=self.seed,
            records=records,
            batches=batches,
            uncompressed_bytes=uncompressed_bytes,
            stored_bytes=stored_bytes,
        )


#: By name; the first one is what single figures are given for.
SHAPES: Final[Mapping[str, Shape]] = {
    shape.name: shape
    for shape in (
        Shape(name="1MB-zstd", title="1 MB batches, zstd", codec="zstd", batch_bytes=1_000_000, megabytes=1200),
        Shape(
            name="64KB-lz4-txn",
            title="64 KB batches, lz4, half of the partitions in transactions",
            codec="lz4",
            batch_bytes=64_000,
            megabytes=200,
            transactional=0.5,
        ),
        Shape(
            name="8KB-lz4",
            title="8 KB batches, lz4, keyed, 16 partitions",
            codec="lz4",
            batch_bytes=8_000,
            megabytes=200,
            partitions=16,  # producers that write small batches have many
            keyed=1.0,
        ),
        Shape(
            name="64KB-zstd-compacted",
            title="64 KB batches, zstd, compacted",
            codec="zstd",
            batch_bytes=64_000,
            megabytes=400,
            compacted=True,
            keyed=1.0,
        ),
        Shape(
            name="64KB-none-small",
            title="64 KB batches, uncompressed, 100-byte records",
            codec="none",
            batch_bytes=64_000,
            megabytes=100,
            record_bytes=100,
        ),
    )
}
#: What is measured unless somebody names others.
USUAL: Final = ("1MB-zstd", "64KB-lz4-txn", "8KB-lz4", "64KB-zstd-compacted")


def chosen(names: Sequence[str], megabytes: int | None = None) -> tuple[Shape, ...]:
    """The shapes of these names, all with as much data as `megabytes` where given. Raises ConfigError."""
    if unknown := [name for name in names if name not in SHAPES]:
        raise ConfigError(f"there is no workload {', '.join(unknown)}: choose from {', '.join(SHAPES)}")
    return tuple(sized(SHAPES[name], megabytes) for name in dict.fromkeys(names))


def sized(shape: Shape, megabytes: int | None) -> Shape:
    """The same with another amount of data, in 10^6 bytes."""
    return shape if megabytes is None else replace(shape, megabytes=megabytes)
