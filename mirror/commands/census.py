"""`mirror census`: what logs are made of, as sentences, tables, and a page."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final
from xml.etree.ElementTree import Element, SubElement

from rich.console import Group as Parts
from rich.table import Table
from rich.text import Text

from mirror import __version__, clock, errors
from mirror import config as configuration
from mirror.commands.verify import check_writable
from mirror.config import SparkSettings
from mirror.driver.scheduling import task_count
from mirror.errors import (
    AccessDenied,
    ClusterError,
    ClusterUnreachable,
    ConfigError,
    EngineLost,
    ExitCode,
    MirrorError,
    NotAuthenticated,
)
from mirror.records.header import HEADER_BYTES
from mirror.rendering import (
    console,
    count,
    document,
    number,
    plain,
    print_json,
    put_head,
    put_table,
    put_text,
    size,
    table,
    written,
)
from mirror.spark.census import DOCUMENTED_HEADER, SMALL_CLASS, Census, Framing, Sums, taken_by
from mirror.spark.datasource.options import parse
from mirror.spark.datasource.plan import planned
from mirror.spark.session import Engine, close_context, failure_text, open_context
from mirror.verify import report

# --- A census in words ------------------------------------------------------------------------------------------------

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


def summary_lines(found: Census) -> Iterator[str]:
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


# --- The report of `mirror census` as one page of HTML, with plots that are drawn in it -------------------------------

_HEAD: Final = ("batches", "records", "bytes", "share", "mean", "ratio")
#: Colours of `htmlpage`, one after the other.
_COLOURS: Final = 5
#: Height of the tallest bar of a plot, and width of one with its gap, in the page's pixels.
_TALL: Final = 160
_WIDE: Final = 44


def page(found: Census, subject: str) -> str:
    """The whole page; `subject` is what was looked at."""
    root, body = document(f"mirror census: {subject}", f"Census of batches: {subject}")
    whole = found.whole
    summary = f"{count(whole.records, 'record')} in {count(whole.batches, 'batch', 'batches')}, {size(whole.bytes)}"
    put_text(body, "p", summary, "verdict bad" if whole.damaged else "verdict")
    for line in summary_lines(found):
        put_text(body, "p", line)
    for line in warnings(found):
        put_text(body, "p", line, "note")
    if whole.damaged:
        put_text(body, "p", f"{count(whole.damaged, 'log')} damaged: mirror inspect shows where", "different")
    _shares(body, "Codecs", "codec", found.by_codec, whole)
    _shares(body, "Verdicts: what the mirror does with them", "verdict", found.by_verdict, whole)
    _sizes(body, found)
    put_text(body, "h2", "Topics")
    put_table(body, ("topic", *_HEAD), [(name or "?", *cells(sums, whole)) for name, sums in found.by_topic.items()])
    if found.framings:
        put_text(body, "h2", "Mean bytes of a record, before compression")
        put_table(body, ("topic", *FRAMING_HEAD), [(one.topic or "?", *framing_cells(one)) for one in found.framings])
    foot = SubElement(body, "footer")
    when = report.at(clock.now_ms())
    put_text(foot, "p", f"mirror {__version__} on {platform.node()}, {when}, in {found.seconds:.1f} s")
    return written(root)


def _shares(body: Element, title: str, what: str, groups: Mapping[str, Sums], whole: Sums) -> None:
    """A bar of shares of the bytes, and the table that explains it."""
    if not whole.bytes:
        return
    put_text(body, "h2", title)
    bar = SubElement(body, "div", {"class": "bar"})
    for index, sums in enumerate(groups.values()):
        share = f"width:{100 * sums.bytes / whole.bytes:.3f}%"
        SubElement(bar, "span", {"class": f"s{index % _COLOURS}", "style": share})
    table = put_head(body, ("", what, *_HEAD))
    for index, (name, sums) in enumerate(groups.items()):
        row = SubElement(table, "tr")
        SubElement(SubElement(row, "td"), "span", {"class": f"key s{index % _COLOURS}"})
        put_text(row, "td", name)
        for cell in cells(sums, whole):
            put_text(row, "td", cell, "n")


def _sizes(body: Element, found: Census) -> None:
    """Batches by size, as a plot: one bar for each power of two."""
    classes = found.by_size
    if not classes:
        return
    put_text(body, "h2", "Batches by size")
    most = max(sums.batches for sums in classes.values())
    width = str(_WIDE * len(classes))
    drawn = SubElement(
        SubElement(body, "div", {"class": "scroll"}),
        "svg",
        {"width": width, "height": str(_TALL + 40), "role": "img", "aria-label": "batches by size"},
    )
    for index, (power, sums) in enumerate(classes.items()):
        tall = _TALL * sums.batches / most
        left = index * _WIDE
        place = {"x": str(left + 4), "y": f"{20 + _TALL - tall:.1f}", "width": str(_WIDE - 8), "height": f"{tall:.1f}"}
        bar = SubElement(drawn, "rect", place | {"fill": "#1f77b4"})
        words = f"{size(1 << power)} and more: {number(sums.batches)} batches, {size(sums.bytes)}"
        put_text(bar, "title", words)
        middle = str(left + _WIDE // 2)
        style = {"x": middle, "text-anchor": "middle", "font-size": "10", "fill": "currentColor"}
        for label, y in ((size(1 << power), _TALL + 34), (number(sums.batches), 20 + _TALL - tall - 4)):
            SubElement(drawn, "text", style | {"y": f"{y:.1f}"}).text = label


# --- `mirror census` --------------------------------------------------------------------------------------------------

#: How an error of ours that ended a task stands in what Spark says of it.
_OURS: Final = re.compile(r"mirror\.errors\.(\w+): (.*)")


def census(
    target: Path,
    *,
    side: str | None,
    topics: Sequence[str],
    measured: bool,
    records: bool,
    report_file: Path | None,
    as_json: bool,
) -> ExitCode:
    """Take the census of a flow's cluster, or of a folder of segments, and print it; DATA_AT_RISK for damage.
    `measured`: decompress for the ratios; `records`: decode, for what the format costs each record.

    Raises ConfigError, ClusterError, and EngineLost where Spark gives it up.
    """
    if report_file is not None:
        check_writable(report_file)
    found = _taken(target, side, topics, measured=measured, records=records)
    if report_file is not None:
        report_file.write_text(page(found, str(target)), encoding="utf-8")
    if as_json:
        print_json(as_dict(found))
    else:
        console().print(rendered(found))
    refused = any(one.verdict == "REFUSE" for one in found.groups)
    return ExitCode.DATA_AT_RISK if found.whole.damaged or refused else ExitCode.DONE


def _taken(target: Path, side: str | None, topics: Sequence[str], *, measured: bool, records: bool) -> Census:
    began = clock.monotonic()
    given = {"damage": "flag", "deleted": "skip", "uncompressed": "measured" if measured else "stated"}
    if topics:
        given["topic"] = ",".join(topics)
    settings, name = SparkSettings(), "files"
    if target.is_dir() or target.suffix == ".log":
        if side:
            raise ConfigError("--side chooses between the clusters of a CONFIG")
        given["path"] = str(target)
    else:
        flow = configuration.load(target)
        settings, name = flow.spark, flow.flow
        given |= {"config": str(target.absolute()), "side": side or "source"}
    options = parse(given)
    slices = len(planned(options, options.wanted))  # what cannot be read is reported before Spark starts
    context = open_context(settings, name, task_count(settings.tasks, max(1, slices)))
    if options.flow is not None and (bound := options.flow.limits.bytes_per_second):
        given["bytes_per_second"] = str(max(1, bound // max(1, min(slices, context.defaultParallelism))))
    try:
        with Engine(context).watched():
            groups, framings = taken_by(context, given, records=records)
        return Census(groups, clock.monotonic() - began, framings)
    except Exception as failure:  # whatever Spark raises
        raise _error(failure) from failure
    finally:
        close_context(context)


def _error(failure: Exception) -> MirrorError:
    """An error of ours loses its kind on its way through Spark; its name is in the text."""
    for kind, text in _OURS.findall(str(failure)):
        known = getattr(errors, kind, None)
        if known in (ClusterError, ClusterUnreachable, AccessDenied, NotAuthenticated, ConfigError):
            made: MirrorError = known(text)
            return made
    return EngineLost(f"Spark gave up the census: {failure_text(failure)}")


def as_dict(found: Census) -> dict[str, Any]:
    """The census for `--json`: bytes, counts, ratios; sizes by the power of two that a batch's bytes reach."""
    theirs, ours = found.decompressed
    whole = found.whole
    return {
        **_sums(whole),
        "seconds": round(found.seconds, 3),
        "damaged": whole.damaged,
        "topics": {name: _sums(sums) for name, sums in found.by_topic.items()},
        "codecs": {name: _sums(sums) for name, sums in found.by_codec.items()},
        "verdicts": {name: _sums(sums) for name, sums in found.by_verdict.items()},
        "sizes": {str(1 << power): _sums(sums) for power, sums in found.by_size.items()},
        "decompressed": {"mirrormaker2": _sums(theirs), "mirror": _sums(ours)},
        "small_batches": {topic: {"small": small, "of": of} for topic, (small, of) in found.small.items()},
        "overhead": {
            "headers": whole.headers * HEADER_BYTES,
            "attributes": whole.attributes,
            "kip931": {"headers": whole.spared, "attributes": whole.attributes},
        },
        "records_measured": {one.topic: {**asdict(one), "format": one.format} for one in found.framings} or None,
    }


def rendered(found: Census) -> Parts:
    """The census for people."""
    whole = found.whole
    parts: list[Table | Text] = []
    for title, groups in (("topic", found.by_topic), ("codec", found.by_codec), ("verdict", found.by_verdict)):
        shown = table(title, *((name, "right") for name in ("batches", "records", "size", "share", "mean", "ratio")))
        for name, sums in groups.items():
            shown.add_row(plain(name) or "?", *cells(sums, whole))
        parts += [shown, Text()]
    if found.framings:
        shown = table("bytes of a record", *((name, "right") for name in FRAMING_HEAD))
        for one in found.framings:
            shown.add_row(plain(one.topic) or "?", *framing_cells(one))
        parts += [shown, Text()]
    parts += [Text(line) for line in summary_lines(found)]
    parts += [Text(line, "yellow") for line in warnings(found)]
    if whole.damaged:
        parts.append(Text(f"{count(whole.damaged, 'log')} damaged: mirror inspect shows where", "bold red"))
    heading = f"{count(whole.records, 'record')} in {count(whole.batches, 'batch', 'batches')}, {size(whole.bytes)}"
    return Parts(*parts, Text(f"{heading}; looked at in {found.seconds:.1f} s", "bold"))


def _sums(sums: Sums) -> dict[str, Any]:
    return {
        "batches": sums.batches,
        "records": sums.records,
        "bytes": sums.bytes,
        "ratio": None if sums.ratio is None else round(sums.ratio, 3),
        "ratio_share": None if sums.ratio_share is None else round(sums.ratio_share, 4),
        "uncompressed": sums.uncompressed if sums.known else None,
    }
