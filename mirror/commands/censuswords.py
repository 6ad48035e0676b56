"""A census in words: the sentences and cells that the terminal and the page share."""

from __future__ import annotations

from collections.abc import Iterator

from mirror.batch.header import HEADER_BYTES
from mirror.batch.records import SMALLEST_RECORD
from mirror.commands.tables import count, number, plain, size
from mirror.spark.census import DOCUMENTED_HEADER, SMALL_CLASS, Census, Sums


def cells(sums: Sums, whole: Sums) -> list[str]:
    """Batches, records, bytes, share of the bytes, bytes of a batch, compression ratio."""
    return [
        number(sums.batches),
        number(sums.records),
        size(sums.bytes),
        f"{_percent(sums.bytes, whole.bytes)} %",
        "" if sums.mean is None else size(round(sums.mean)),
        "?" if sums.ratio is None else f"{sums.ratio:.1f}",
    ]


def told(found: Census) -> Iterator[str]:
    """What passthrough saves, and what the format costs."""
    whole = found.whole
    if any(sums.ratio is None for sums in (*found.by_topic.values(), *found.by_codec.values())):
        yield "ratio ?: some payloads do not state their size before compression; --ratio decompresses those"
    theirs, ours = found.decompressed
    grown = f", {size(theirs.uncompressed)} when decompressed" if theirs.known == _payload(theirs) > 0 else ""
    yield (
        f"MirrorMaker 2 decompresses {count(theirs.batches, 'batch', 'batches')} ({size(theirs.bytes)}{grown}) and"
        f" compresses them again; mirror {count(ours.batches, 'batch', 'batches')} ({size(ours.bytes)})"
    )
    if not whole.headers:
        return
    spent = whole.headers * HEADER_BYTES
    yield (
        f"headers of batches take {size(spent)}, {_percent(spent, whole.bytes)} % of the bytes; attributes that no"
        f" record uses {size(whole.attributes)} before compression"
    )
    spared = whole.spared / whole.headers
    documented, all_of_it = (100 * spared / of for of in (DOCUMENTED_HEADER, HEADER_BYTES))
    yield (
        f"KIP-931 (discarded) would spare {spared:.1f} bytes of a batch's header: {documented:.1f} % of the"
        f" {DOCUMENTED_HEADER} bytes that Kafka documents, {all_of_it:.1f} % of all {HEADER_BYTES},"
        f" {size(whole.spared)} here; and a byte of each record: of the smallest, {SMALLEST_RECORD} bytes,"
        f" {100 / SMALLEST_RECORD:.0f} %"
    )


def warnings(found: Census) -> Iterator[str]:
    """Topics of small batches, and once for all of them what to do."""
    for topic, (small, of) in found.small.items():
        yield (
            f"{plain(topic) or 'a file'}: {number(small)} of {count(of, 'batch', 'batches')} smaller than"
            f" {size(1 << SMALL_CLASS)}"
        )
    if found.small:
        yield (
            "each small batch costs a mirror and its brokers as much as a large one: raise linger.ms and batch.size of"
            " the producers, or set topics.coalesce_bytes where offsets are translated"
        )


def _payload(sums: Sums) -> int:
    """Bytes of the records sections, of batches that are all of magic 2."""
    return sums.bytes - HEADER_BYTES * sums.batches


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}" if whole else "0.0"
