"""The report of `mirror verify` as one page of HTML that needs nothing from anywhere: no script, font, image or link.

It is built as a tree and not as text, so that no name or detail, whoever chose it, can become markup.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from typing import Final
from xml.etree.ElementTree import Element, SubElement, tostring

from mirror import __version__
from mirror.commands.tables import count, number, plain, size
from mirror.commands.verifyview import compared
from mirror.verify import signoff
from mirror.verify.report import PartitionReport, VerifyReport

#: Differences on the page; `--json` gives all that were kept.
SHOWN: Final = 1000

#: Columns that hold them.
_NUMBERS: Final = frozenset({"batches", "share", "partitions", "records", "bytes", "lag", "from", "to before"})
_STYLE: Final = """
:root { color-scheme: light dark; --line: #8884; --good: #1a7f37; --bad: #cf222e; --warn: #9a6700; }
@media (prefers-color-scheme: dark) { :root { --good: #3fb950; --bad: #f85149; --warn: #d29922; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.verdict { border-left: .4rem solid var(--good); padding: .6rem 1rem; font-size: 1.15rem; }
.verdict.bad { border-color: var(--bad); } .verdict.warn { border-color: var(--warn); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem .7rem; border-bottom: 1px solid var(--line); vertical-align: top; }
.n { text-align: right; white-space: nowrap; } code { font-size: .85em; overflow-wrap: anywhere; }
.bar { display: flex; height: 1.1rem; border-radius: .3rem; overflow: hidden; margin: .5rem 0; }
.s0 { background: #1f77b4; } .s1 { background: #2ca02c; } .s2 { background: #ff7f0e; } .s3 { background: #7f7f7f; }
.s4 { background: #9467bd; } .key { display: inline-block; width: .8rem; height: .8rem; border-radius: .2rem; }
.equal { color: var(--good); } .different { color: var(--bad); } .note { color: var(--warn); }
footer { margin-top: 2.5rem; border-top: 1px solid var(--line); padding-top: .8rem; }
"""


def page(report: VerifyReport) -> str:
    """The whole page."""
    root = Element("html", lang="en")
    head, body = SubElement(root, "head"), SubElement(root, "body")
    SubElement(head, "meta", charset="utf-8")
    SubElement(head, "meta", name="viewport", content="width=device-width, initial-scale=1")
    _text(head, "title", f"mirror verify: {report.flow}")
    SubElement(head, "style").text = _STYLE
    _text(body, "h1", f"Proof of equality: {report.flow}")
    _verdict(body, report)
    _shares(body, report)
    _topics(body, report)
    _partitions(body, report.partitions)
    _differences(body, report)
    _sign_off(body, report)
    return f"<!DOCTYPE html>\n{tostring(root, encoding='unicode', method='html')}\n"


def _verdict(body: Element, report: VerifyReport) -> None:
    compared_any = any(one.batches for one in report.partitions)
    colour = " bad" if not report.equal else "" if compared_any else " warn"
    _text(body, "p", signoff.verdict(report), f"verdict{colour}")
    lag = sum(one.lag for one in report.partitions)
    rows = [
        ("source", f"{report.source}, cluster id {report.source_id or 'unknown'}"),
        ("target", f"{report.target}, cluster id {report.target_id or 'unknown'}"),
        ("offsets", "translated: each record at the place that the runs tell" if report.moved else "preserved"),
        ("ends fixed", signoff.at(report.begun_ms)),
        ("compared", f"{', '.join(compared(report))} in {report.seconds:.1f} s, {_engine(report)}"),
        ("not mirrored yet", f"{count(lag, 'record')} behind the target's end at that time"),
    ]
    if report.resumed:
        rows.append(("resumed", f"{count(report.resumed, 'range')} by an earlier run that was interrupted"))
    _table(body, (), rows)


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
    _text(body, "h2", "What became of the batches")
    bar = SubElement(body, "div", {"class": "bar"})
    for index, (_, many) in enumerate(shares):
        if many:
            SubElement(bar, "span", {"class": f"s{index}", "style": f"width:{100 * many / total:.3f}%"})
    table = _headed(body, ("", "verdict", "batches", "share"))
    for index, (name, many) in enumerate(shares):
        if not many:
            continue
        row = SubElement(table, "tr")
        SubElement(SubElement(row, "td"), "span", {"class": f"key s{index}"})
        for cell in (name, number(many), f"{100 * many / total:.2f} %"):
            _text(row, "td", cell, "n" if cell != name else "")


def _topics(body: Element, report: VerifyReport) -> None:
    _text(body, "h2", "Topics")
    table = _headed(body, ("topic", "on the target", "partitions", "codecs", "records", "batches", "bytes", "lag", ""))
    for one in report.topics:
        cells = (one.partitions, one.records, one.batches)
        row = SubElement(table, "tr")
        for text in (one.topic, one.target):
            _text(row, "td", text)
        partitions, records, batches = map(number, cells)
        _text(row, "td", partitions, "n")
        _text(row, "td", ", ".join(one.codecs))
        for text in (records, batches, size(one.bytes), number(one.lag)):
            _text(row, "td", text, "n")
        told = "equal" if one.equal else count(one.different, "difference")
        _text(row, "td", told, "equal" if one.equal else "different")


def _partitions(body: Element, partitions: Sequence[PartitionReport]) -> None:
    _text(body, "h2", "Partitions and digests")
    _text(
        body,
        "p",
        "A digest is the sum, modulo 2^256, of SHA-256 over each batch's magic, length, base offset, last offset "
        "delta, record count, base and largest timestamp, codec, timestamp type and the CRC-32C of its records "
        "section. It depends on the source's batches with records between the offsets compared, and on nothing else: "
        "two proofs over the same offsets have the same one. The target's is the same exactly where nothing differs.",
    )
    table = _headed(body, ("partition", "from", "to before", "records", "batches", "bytes", "digest"))
    for one in partitions:
        row = SubElement(table, "tr")
        _text(row, "td", str(one.pair.source))
        for text in (*map(number, (one.begin, one.end, one.records, one.batches)), size(one.bytes)):
            _text(row, "td", text, "n")
        cell = SubElement(row, "td")
        _text(cell, "code", one.source_digest)
        if one.target_digest != one.source_digest:
            _text(SubElement(cell, "div", {"class": "different"}), "code", f"target: {one.target_digest}")
        for note in one.notes:
            _text(cell, "div", note, "note")


def _differences(body: Element, report: VerifyReport) -> None:
    if not report.different:
        return
    _text(body, "h2", count(report.different, "difference"))
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
    _table(body, ("topic", "partition", "offset", "differs in", "source", "target"), rows)
    if more := report.different - len(rows):
        _text(body, "p", f"and {number(more)} more; --json lists the first hundred of each partition", "note")


def _sign_off(body: Element, report: VerifyReport) -> None:
    foot = SubElement(body, "footer")
    partitions = count(len(report.partitions), "partition")
    records = count(sum(one.records for one in report.partitions), "record")
    _text(
        foot,
        "p",
        f"Signed off by mirror {__version__} on {platform.node()}: flow {report.flow}, {signoff.at(report.begun_ms)}, "
        f"{report.source} ({report.source_id}) to {report.target} ({report.target_id}), {partitions}, {records}: "
        f"{signoff.verdict(report)}.",
    )
    line = _text(foot, "p", "Seal, SHA-256 over the facts that --json gives as sealed: ")
    _text(line, "code", signoff.seal(report))


def _table(parent: Element, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = _headed(parent, head)
    for cells in rows:
        row = SubElement(table, "tr")
        for index, cell in enumerate(cells):
            _text(row, "td" if head or index else "th", cell)


def _headed(parent: Element, head: Sequence[str]) -> Element:
    table = SubElement(SubElement(parent, "div", {"class": "scroll"}), "table")
    if head:
        row = SubElement(table, "tr")
        for text in head:
            _text(row, "th", text, "n" if text in _NUMBERS else "")
    return table


def _text(parent: Element, tag: str, text: str, style: str = "") -> Element:
    """An element with a text in which nothing is left that is not printable."""
    made = SubElement(parent, tag, {"class": style} if style else {})
    made.text = plain(text)
    return made
