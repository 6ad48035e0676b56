"""The report of `mirror verify` as one page of HTML."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Final
from xml.etree.ElementTree import Element, SubElement

from mirror import __version__
from mirror.commands.htmlpage import document, put_head, put_table, put_text, written
from mirror.commands.tables import count, number, size
from mirror.commands.verifyview import compared, rekeyed
from mirror.verify import signoff
from mirror.verify.report import PartitionReport, VerifyReport

#: Differences on the page; `--json` gives all that were kept.
SHOWN: Final = 1000


def page(report: VerifyReport) -> str:
    """The whole page."""
    root, body = document(f"mirror verify: {report.flow}", f"Proof of equality: {report.flow}")
    _verdict(body, report)
    _shares(body, report)
    _topics(body, report)
    _partitions(body, report.partitions)
    _shortfalls(body, report)
    _differences(body, report)
    _not_compared(body, report)
    _sign_off(body, report)
    return written(root)


def _verdict(body: Element, report: VerifyReport) -> None:
    colour = " bad" if not report.equal else "" if report.is_whole else " warn"
    put_text(body, "p", signoff.headline(report), f"verdict{colour}")
    put_text(body, "p", signoff.verdict(report))
    lag = sum(one.lag for one in report.partitions)
    rows = [
        ("source", f"{report.source}, cluster id {report.source_id or 'unknown'}"),
        ("target", f"{report.target}, cluster id {report.target_id or 'unknown'}"),
        ("offsets", "translated: each record at the place that the runs tell" if report.moved else "preserved"),
        ("ends fixed", signoff.at(report.begun_ms)),
        ("compared", f"{', '.join(compared(report))} in {report.seconds:.1f} s, {_engine(report)}"),
        ("not there yet", f"{count(lag, 'offset')} that the source held when the proof began"),
    ]
    if report.resumed:
        rows.append(("resumed", f"{count(report.resumed, 'range')} by an earlier run that was interrupted"))
    put_table(body, (), rows)


def _engine(report: VerifyReport) -> str:
    return "by tasks of Apache Spark" if report.spark else "in one process"


def _shares(body: Element, report: VerifyReport) -> None:
    """What became of the source's batches, as far as both logs tell."""
    parts = report.partitions
    as_stored, identical, own, rewritten, hidden = (
        sum(getattr(one, what) for one in parts)
        for what in ("as_stored", "identical", "own_timestamps", "rewritten", "hidden")
    )
    shares = (
        ("passed as stored", as_stored),
        ("restamped: new header, the same records section", identical - as_stored),
        ("rewritten: the same records in other batches", rewritten),
        ("dropped: markers, aborted and emptied batches", hidden),
        ("timestamps set by the target", own),
    )
    total = sum(many for _, many in shares)
    if not total:
        return
    put_text(body, "h2", "What became of the batches")
    bar = SubElement(body, "div", {"class": "bar"})
    for index, (_, many) in enumerate(shares):
        if many:
            SubElement(bar, "span", {"class": f"s{index}", "style": f"width:{100 * many / total:.3f}%"})
    table = put_head(body, ("", "verdict", "batches", "share"))
    for index, (name, many) in enumerate(shares):
        if not many:
            continue
        row = SubElement(table, "tr")
        SubElement(SubElement(row, "td"), "span", {"class": f"key s{index}"})
        for cell in (name, number(many), f"{100 * many / total:.2f} %"):
            put_text(row, "td", cell, "n" if cell != name else "")


def _topics(body: Element, report: VerifyReport) -> None:
    put_text(body, "h2", "Topics")
    table = put_head(body, ("topic", "on the target", "partitions", "codecs", "records", "batches", "bytes", "lag", ""))
    for one in report.topics:
        cells = (one.partitions, one.records, one.batches)
        row = SubElement(table, "tr")
        for text in (one.topic, one.target):
            put_text(row, "td", text)
        partitions, records, batches = map(number, cells)
        put_text(row, "td", partitions, "n")
        put_text(row, "td", ", ".join(one.codecs))
        for text in (records, batches, size(one.bytes), number(one.lag)):
            put_text(row, "td", text, "n")
        told = "equal" if one.equal else count(one.different, "difference")
        put_text(row, "td", told, "equal" if one.equal else "different")

    for topic in report.rekeyed:
        put_text(body, "p", rekeyed(topic), "different" if topic.different else "equal")


def _partitions(body: Element, partitions: Sequence[PartitionReport]) -> None:
    put_text(body, "h2", "Partitions and digests")
    put_text(
        body,
        "p",
        "A digest is the sum, modulo 2^256, of SHA-256 over each batch's magic, length, base offset, last offset "
        "delta, record count, base and largest timestamp, codec, timestamp type and the CRC-32C of its records "
        "section. It depends on the source's batches with records between the offsets compared, and on nothing else: "
        "two proofs over the same offsets have the same one. The target's is the same exactly where nothing differs.",
    )
    table = put_head(body, ("partition", "from", "to before", "records", "batches", "bytes", "digest"))
    for one in partitions:
        row = SubElement(table, "tr")
        put_text(row, "td", str(one.pair.source))
        for text in (*map(number, (one.begin, one.end, one.records, one.batches)), size(one.bytes)):
            put_text(row, "td", text, "n")
        cell = SubElement(row, "td")
        put_text(cell, "code", one.source_digest)
        if one.target_digest != one.source_digest:
            put_text(SubElement(cell, "div", {"class": "different"}), "code", f"target: {one.target_digest}")
        for note in one.notes:
            put_text(cell, "div", note, "note")


def _shortfalls(body: Element, report: VerifyReport) -> None:
    if not report.shortfalls:
        return
    put_text(body, "h2", "Not whole")
    rows = [
        (
            one.topic,
            "all" if one.partition < 0 else str(one.partition),
            str(one.kind),
            f"{one.first} to {one.next_offset - 1}" if one.next_offset > one.first >= 0 else "",
            "" if one.offsets is None else number(one.offsets),
            one.reason,
        )
        for one in report.shortfalls[:SHOWN]
    ]
    put_table(body, ("topic", "partition", "what", "offsets", "how many", "why"), rows)
    if more := len(report.shortfalls) - len(rows):
        put_text(body, "p", f"and {number(more)} more; --json lists them all", "note")


def _differences(body: Element, report: VerifyReport) -> None:
    if not report.different:
        return
    put_text(body, "h2", count(report.different, "difference"))
    rows = [
        (
            one.topic,
            "all" if one.partition < 0 else str(one.partition),
            "" if one.offset < 0 else str(one.offset),
            str(one.kind),
            one.source,
            one.target,
        )
        for one in report.differences[:SHOWN]
    ]
    put_table(body, ("topic", "partition", "offset", "differs in", "source", "target"), rows)
    if more := report.different - len(rows):
        put_text(body, "p", f"and {number(more)} more; --json lists the first hundred of each partition", "note")


def _not_compared(body: Element, report: VerifyReport) -> None:
    rows = [
        *((str(one.pair.source), str(one.pair.target), one.reason) for one in report.unread),
        *((one.topic, one.target, "gone from the source") for one in report.gone),
    ]
    if rows:
        put_text(body, "h2", "Not verified")
        put_table(body, ("on the source", "on the target", "why"), rows)


def _sign_off(body: Element, report: VerifyReport) -> None:
    foot = SubElement(body, "footer")
    partitions = count(len(report.partitions), "partition")
    records = count(sum(one.records for one in report.partitions), "record")
    put_text(
        foot,
        "p",
        f"Signed off by mirror {__version__} on {platform.node()}: flow {report.flow}, {signoff.at(report.begun_ms)}, "
        f"{report.source} ({report.source_id}) to {report.target} ({report.target_id}), {partitions}, {records}: "
        f"{signoff.verdict(report)}.",
    )
    line = put_text(foot, "p", "Seal, SHA-256 over the facts that --json gives as sealed: ")
    put_text(line, "code", signoff.seal(report))
