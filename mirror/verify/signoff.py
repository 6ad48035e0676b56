"""The line that signs a proof off, and its seal, by which it can be told later that nobody changed what it says.

The seal is SHA-256 over the facts as compact JSON with sorted keys. Whoever has the report's `--json` form can compute
it again; it proves nothing about who made the report.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from datetime import UTC, datetime
from typing import Any

from mirror import __version__
from mirror.verify.report import Lack, VerifyReport


def facts(report: VerifyReport) -> dict[str, Any]:
    """What is sealed: which clusters were compared when, up to where, and what was found."""
    return {
        "flow": report.flow,
        "version": __version__,
        "begun": at(report.begun_ms),
        "source_id": report.source_id,
        "target_id": report.target_id,
        "different": report.different,
        "partitions": [
            [*one.pair.source, *one.pair.target, one.begin, one.end, one.records, one.source_digest, one.target_digest]
            for one in report.partitions
        ],
        "not_verified": [[*one.pair.source, *one.pair.target] for one in report.unread],
        "gone": [[one.topic, one.target] for one in report.gone],
        "rekeyed": [[one.topic, one.target, one.records, one.target_records, one.different] for one in report.rekeyed],
        "whole": report.is_whole,
        "not_whole": [
            [one.kind, one.topic, one.target, one.partition, one.first, one.next_offset, one.offsets]
            for one in report.shortfalls
        ],
    }


def seal(report: VerifyReport) -> str:
    """64 hexadecimal digits."""
    text = json.dumps(facts(report), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def verdict(report: VerifyReport) -> str:
    """In a few words: equal or not, whole or not, and what is not covered."""
    sides = f"{report.source} and {report.target}"
    if not report.equal:
        many = f"{report.different:,} difference{'s' if report.different > 1 else ''}"
        return f"{sides} differ: {many}{_gaps(report)}"
    return f"{_likeness(report, sides)}{_gaps(report)}"


def _likeness(report: VerifyReport, sides: str) -> str:
    if not any(one.batches for one in report.partitions) and not any(one.records for one in report.rekeyed):
        return f"nothing {'to compare' if report.is_whole else 'was compared'} between {sides}"
    if any(one.own_timestamps for one in report.partitions):
        return f"{sides} are equal, but for timestamps that the target set itself"
    return f"{sides} are equal"


def _gaps(report: VerifyReport) -> str:
    """What the verdict does not cover."""
    many, lacks = len(report.unread), lacking(report)
    unread = f"; {many:,} partition{'s were' if many > 1 else ' was'} not verified" if many else ""
    return f"{unread}; not whole: {lacks}" if lacks else unread


def lacking(report: VerifyReport) -> str:
    """What keeps a copy from being whole, by kind and in numbers; empty where nothing does."""
    told = []
    for kind in Lack:
        some = [one for one in report.shortfalls if one.kind is kind]
        if not some:
            continue
        offsets = sum(one.offsets or 0 for one in some)
        where = Counter("topic" if one.partition < 0 else "partition" for one in some)
        places = " and ".join(f"{many:,} {what}{'s' if many > 1 else ''}" for what, many in sorted(where.items()))
        count = f"{offsets:,} offset{'' if offsets == 1 else 's'} " if offsets else ""
        told.append(f"{count}{kind} ({places})")
    return ", ".join(told)


def headline(report: VerifyReport) -> str:
    """Whole, not whole or different, before all else."""
    since = f"everything that {report.source} held at {at(report.begun_ms)}"
    but = ", but for timestamps of its own" if any(one.own_timestamps for one in report.partitions) else ""
    if not report.equal:
        return f"DIFFERENT: {report.target} is not equal to {report.source}"
    if report.is_whole:
        return f"WHOLE: {report.target} holds {since}, equal{but}"
    return f"NOT WHOLE: {report.target} is not known to hold {since}; what was compared is equal{but}"


def at(milliseconds: int) -> str:
    """A Unix time as people and machines read it: 2026-01-31T12:00:00Z."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
