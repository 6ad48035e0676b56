"""`mirror census`: what logs are made of, as sentences, tables, and a page."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final
from xml.etree.ElementTree import SubElement

from rich.console import Group as Parts
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
    Field,
    class_of,
    console,
    count,
    document,
    json_groups,
    json_of,
    number,
    plain,
    print_json,
    put_fields,
    put_text,
    size,
    table_of,
    written,
)
from mirror.spark.census import DOCUMENTED_HEADER, SMALL_CLASS, Census, Framing, Sums, taken_by
from mirror.spark.datasource.options import parse
from mirror.spark.datasource.plan import planned
from mirror.spark.session import Engine, close_context, failure_text, open_context
from mirror.verify import report

# --- A census in words ------------------------------------------------------------------------------------------------

#: A share that is shown as all.
FULL: Final = 0.995


def _ratio(sums: Sums) -> str:
    """Return how many times smaller records are for their compression; in brackets the share of the bytes of which that
    is known, unless that is all.
    """
    if sums.ratio is None or sums.ratio_share is None:
        return "?"
    share = f"{100 * sums.ratio_share:.0f}"
    return f"{sums.ratio:.1f}" if share == "100" else f"{sums.ratio:.1f} ({share} %)"


def _fields(whole: Sums) -> tuple[Field, ...]:
    """Return what is said of a topic, codec, verdict or size, as a part of the whole."""
    return (
        Field("batches", head="batches", show=number),
        Field("records", head="records", show=number),
        Field("bytes", head="size", show=size),
        Field("", lambda sums: f"{_percent(sums.bytes, whole.bytes)} %", "share", layout="right"),
        Field("", lambda sums: sums.mean and round(sums.mean), "mean", size),
        Field("", _ratio, "ratio", layout="right"),
        Field("ratio", lambda sums: sums.ratio and round(sums.ratio, 3)),
        Field("ratio_share", lambda sums: sums.ratio_share and round(sums.ratio_share, 4)),
        Field("uncompressed", lambda sums: sums.uncompressed if sums.known else None),
    )


def _mean(name: str) -> Callable[[Framing], str]:
    return lambda framing: f"{getattr(framing, name) / framing.measured:.1f}" if framing.measured else ""


#: What the records of a topic are made of: how many there are, and mean bytes of a record and of its parts.
_PARTS: Final = (
    Field("", lambda framing: framing.topic or "?", "bytes of a record"),
    Field("measured", head="records", show=number),
    *(
        Field("", _mean(name), head, layout="right")
        for name, head in {
            "bytes": "mean",
            "keys": "key",
            "values": "value",
            "headers": "headers",
            "format": "format",
            "lengths": "length",
            "attributes": "attributes",
            "timestamp_deltas": "timestamp",
            "offset_deltas": "offset",
            "key_lengths": "key length",
            "value_lengths": "value length",
            "header_counts": "header count",
        }.items()
    ),
)


def _groups(found: Census) -> dict[str, Mapping[str, Sums]]:
    """Return the sums of which there is a table each, by what they are about."""
    topics = {name or "?": sums for name, sums in found.by_topic.items()}
    return {"topic": topics, "codec": found.by_codec, "verdict": found.by_verdict}


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


def _remarks(found: Census) -> list[Text]:
    """Return all that no table says."""
    damaged = found.whole.damaged
    return [
        *map(Text, summary_lines(found)),
        *(Text(line, "yellow") for line in warnings(found)),
        *([Text(f"{count(damaged, 'log')} damaged: mirror inspect shows where", "red")] if damaged else []),
    ]


def _heading(whole: Sums) -> str:
    return f"{count(whole.records, 'record')} in {count(whole.batches, 'batch', 'batches')}, {size(whole.bytes)}"


# --- The report of `mirror census` as one page of HTML ------------------------------------------------------


def page(found: Census, subject: str) -> str:
    """The whole page; `subject` is what was looked at."""
    root, body = document(f"mirror census: {subject}", f"Census of batches: {subject}")
    whole = found.whole
    put_text(body, "p", _heading(whole), "verdict bad" if whole.damaged else "verdict")
    for line in _remarks(found):
        put_text(body, "p", line.plain, class_of(line))
    sizes = {f"{size(1 << power)} and more": sums for power, sums in found.by_size.items()}
    for name, groups in (_groups(found) | {"size": sizes}).items():
        shares = [sums.bytes / whole.bytes for sums in groups.values()] if whole.bytes and name != "topic" else ()
        put_fields(body, f"Batches by {name}", _fields(whole), groups, name, shares)
    put_fields(body, "Mean bytes of a record, before compression", _PARTS, found.framings)
    when = report.at(clock.now_ms())
    text = f"mirror {__version__} on {platform.node()}, {when}, in {found.seconds:.1f} s"
    put_text(SubElement(body, "footer"), "p", text)
    return written(root)


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
    refused = any(group.verdict == "REFUSE" for group in found.groups)
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
    fields = _fields(whole)
    return {
        **json_of(fields, whole),
        "seconds": round(found.seconds, 3),
        "damaged": whole.damaged,
        "topics": json_groups(fields, found.by_topic),
        "codecs": json_groups(fields, found.by_codec),
        "verdicts": json_groups(fields, found.by_verdict),
        "sizes": json_groups(fields, {str(1 << power): sums for power, sums in found.by_size.items()}),
        "decompressed": json_groups(fields, {"mirrormaker2": theirs, "mirror": ours}),
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
    tables = [table_of(_fields(whole), groups, name) for name, groups in _groups(found).items()]
    tables += [table_of(_PARTS, found.framings)] if found.framings else []
    spaced = (part for shown in tables for part in (shown, Text()))
    return Parts(*spaced, *_remarks(found), Text(f"{_heading(whole)}; looked at in {found.seconds:.1f} s", "bold"))
