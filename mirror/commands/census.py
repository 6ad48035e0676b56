"""`mirror census`: what logs are made of, by Spark SQL over the headers of their batches."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rich.console import Group as Parts
from rich.table import Table
from rich.text import Text

from mirror import config as configuration
from mirror import errors
from mirror.batch.header import HEADER_BYTES
from mirror.commands.censuspage import page
from mirror.commands.censuswords import FRAMING_HEAD, cells, framing_cells, told, warnings
from mirror.commands.tables import console, count, plain, print_json, size, table
from mirror.commands.verify import check_writable
from mirror.config import SparkSettings
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
from mirror.spark.batches.options import parse
from mirror.spark.batches.plan import planned
from mirror.spark.census import Census, Sums, taken_by
from mirror.spark.plan import task_count
from mirror.spark.session import close_context, open_context, told_by

#: How an error of ours that ended a task stands in what Spark tells of it.
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
    began = time.monotonic()
    given = {"damage": "flag", "uncompressed": "measured" if measured else "stated"}
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
    slices = len(planned(options, options.wanted))  # what cannot be read is told before Spark starts
    context = open_context(settings, name, task_count(settings.lanes, max(1, slices)))
    if options.flow is not None and (bound := options.flow.limits.bytes_per_second):
        given["bytes_per_second"] = str(max(1, bound // max(1, min(slices, context.defaultParallelism))))
    try:
        groups, framings = taken_by(context, given, records=records)
        return Census(groups, time.monotonic() - began, framings)
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
    return EngineLost(f"Spark gave up the census: {told_by(failure)}")


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
    parts += [Text(line) for line in told(found)]
    parts += [Text(line, "yellow") for line in warnings(found)]
    if whole.damaged:
        parts.append(Text(f"{count(whole.damaged, 'log')} damaged: mirror inspect tells where", "bold red"))
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
