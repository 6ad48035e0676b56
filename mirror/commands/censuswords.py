"""A census in words: the sentences and cells that the terminal and the page share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mirror.batch.header import HEADER_BYTES
from mirror.commands.tables import count, number, plain, size
from mirror.spark.census import DOCUMENTED_HEADER, SMALL_CLASS, Census, Framing, Sums

#: The columns of what records are made of: mean bytes of a record, then of its parts.
FRAMING_HEAD: Final = (
    *("records", "mean", "key", "value", "headers", "format", "length", "attributes", "timestamp", "offset"),
    *("key length", "value length", "header count"),
)

#: A share that is shown as all.
FULL: Final = 0.995


def cells(sums: Sums, whole: Sums) -> list[str]:
    """Batches, records, bytes, share of the bytes, bytes of a batch, compression ratio with the share it rests on."""
    return [
        number(sums.batches),
        number(sums.records),
        size(sums.bytes),
        f"{_percent(sums.bytes, whole.bytes)} %",
        "" if sums.mean is None else size(round(sums.mean)),
        ratio(sums),
    ]


def ratio(sums: Sums) -> str:
    """How many times smaller records are for their compression; in brackets the share of the bytes of which that is
    known, unless that is all.
    """
    if sums.ratio is None or sums.ratio_share is None:
        return "?"
    share = f"{100 * sums.ratio_share:.0f}"
    return f"{sums.ratio:.1f}" if share == "100" else f"{sums.ratio:.1f} ({share} %)"


def framing_cells(one: Framing) -> list[str]:
    """As `FRAMING_HEAD` names them."""
    parts = (
        *(one.bytes, one.keys, one.values, one.headers, one.format, one.lengths, one.attributes),
        *(one.timestamp_deltas, one.offset_deltas, one.key_lengths, one.value_lengths, one.header_counts),
    )
    return [number(one.measured), *(f"{part / one.measured:.1f}" if one.measured else "" for part in parts)]


def told(found: Census) -> Iterator[str]:
    """What passthrough saves, and what the format costs."""
    whole = found.whole
    if any(sums.ratio is None for sums in (*found.by_topic.values(), *found.by_codec.values())):
        yield "ratio ?: these payloads do not state their size before compression; --ratio decompresses them"
    elif any((sums.ratio_share or 1.0) < FULL for sums in (*found.by_topic.values(), *found.by_codec.values())):
        yield "ratio (..%): of so much of the bytes the size before compression is known; --ratio decompresses the rest"
    theirs, ours = found.decompressed
    grown = f", {size(theirs.uncompressed)} when decompressed" if theirs.known == _payload(theirs) > 0 else ""
    yield (
        f"MirrorMaker 2 decompresses {count(theirs.batches, 'batch', 'batches')} ({size(theirs.bytes)}{grown}) and"
        f" compresses them again; mirror {count(ours.batches, 'batch', 'batches')} ({size(ours.bytes)})"
    )
    if not whole.headers:
        return
    yield from _framings(found)
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
        f" {size(whole.spared)} here; and a byte or two of each record"
        + ("" if found.framings else ": --records measures what the format costs each")
    )


def _framings(found: Census) -> Iterator[str]:
    """What the format costs each record, of all that were decoded."""
    measured = sum(one.measured for one in found.framings)
    if not measured:
        return
    costs, whole, spared = (
        sum(of) for of in zip(*((one.format, one.bytes, one.kip931) for one in found.framings), strict=True)
    )
    yield (
        f"the format takes {costs / measured:.1f} of the {whole / measured:.1f} bytes of a record before compression"
        f" ({_percent(costs, whole)} %); KIP-931 (discarded) would spare {spared / measured:.1f} of them"
        f" ({_percent(spared, whole)} %)"
    )
    if unread := sum(one.unread for one in found.framings):
        yield f"{count(unread, 'batch', 'batches')} could not be decoded, and are in none of these figures"


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
