"""The report of `mirror verify`: a table with each difference by name, JSON, or a page."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any, Final
from xml.etree.ElementTree import Element, SubElement

from rich.console import Group
from rich.text import Text

from mirror import __version__
from mirror.rendering import count, document, number, plain, put_head, put_table, put_text, size, table, written
from mirror.verify.report import (
    PartitionReport,
    RekeyedReport,
    TopicReport,
    VerifyReport,
    at,
    facts,
    headline,
    seal,
    verdict,
)

# --- What `mirror verify` shows of a report ---------------------------------------------------------------------------

#: Differences of one partition that a terminal gets; `--json` gives all that were kept.
SHOWN: Final = 20
#: The same of what the target lacks.
SHORTFALLS: Final = 40
_OMITTED: Final = ("pair", "differences", "source_mark", "target_mark")


def as_dict(report: VerifyReport) -> dict[str, Any]:
    """The report for `--json`."""
    return {
        "flow": report.flow,
        "source": report.source,
        "target": report.target,
        "equal": report.equal,
        "whole": report.is_whole,
        "different": report.different,
        "offsets": "translate" if report.moved else "preserve",
        "sealed": facts(report),
        "seal": seal(report),
        "spark": report.spark,
        "resumed_ranges": report.resumed,
        "seconds": round(report.seconds, 3),
        "topics": [{**asdict(topic), "equal": topic.equal} for topic in report.topics],
        "partitions": [
            {
                **{name: value for name, value in asdict(one).items() if name not in _OMITTED},
                "topic": one.pair.source.topic,
                "target": one.pair.target.topic,
                "partition": one.pair.source.partition,
            }
            for one in report.partitions
        ],
        "rekeyed": [
            {name: value for name, value in asdict(one).items() if name not in _OMITTED} for one in report.rekeyed
        ],
        "not_verified": [
            {
                "topic": one.pair.source.topic,
                "target": one.pair.target.topic,
                "partition": one.pair.source.partition,
                "reason": one.reason,
            }
            for one in report.unread
        ],
        "gone": [asdict(one) for one in report.gone],
        "not_whole": [{**asdict(one), "text": str(one)} for one in report.shortfalls],
        "differences": [{**asdict(one), "text": str(one)} for one in report.differences],
    }


def rendered(report: VerifyReport) -> Group:
    """The report for people."""
    lines = table(
        "topic",
        ("parts", "right"),
        ("codec", "no_wrap"),
        ("records", "right"),
        ("batches", "right"),
        ("identical", "right"),
        ("size", "right"),
        ("offsets", "no_wrap"),
        ("lag", "right"),
    )
    for topic in report.topics:
        lines.add_row(
            _title(topic),
            number(topic.partitions),
            "\n".join(topic.codecs),
            number(topic.records),
            number(topic.batches),
            _share(topic),
            size(topic.bytes),
            _offsets(topic, moved=report.moved),
            Text(number(topic.lag), "yellow" if topic.lag else ""),
        )
    first = Text.assemble((f"{report.flow}: ", "bold"), (headline(report), f"bold {_colour(report)}"))
    remarks = (*_notes(report), *_shortfalls(report), *_differences(report))
    return Group(first, Text(), lines, Text(), *remarks, _verdict(report))


def _colour(report: VerifyReport) -> str:
    return "red" if not report.equal else "green" if report.is_whole else "yellow"


def _offsets(topic: TopicReport, *, moved: bool) -> Text:
    if not topic.offsets_equal:
        return Text("differ", "red")
    return Text("translated" if moved else "equal", "green")


def _title(topic: TopicReport) -> str:
    return topic.topic if topic.target in ("", topic.topic) else f"{topic.topic} → {topic.target}"


def _share(topic: TopicReport) -> Text:
    if not topic.batches:
        return Text("-", "dim")
    if topic.identical == topic.batches:
        return Text("all", "green")
    same = topic.identical + topic.own_timestamps
    if same == topic.batches:
        return Text("but times", "yellow")
    if same + topic.rewritten == topic.batches:
        return Text(f"all but\n{number(topic.rewritten)}", "green" if topic.identical == same else "yellow")
    percent = 100 * (same + topic.rewritten) / topic.batches
    return Text(f"{min(percent, 99.9):.1f} %", "red")  # never rounded up to what it is not


def _notes(report: VerifyReport) -> list[Text]:
    notes = Counter((one.pair.source.topic, note) for one in report.partitions for note in one.notes)
    return [
        *(
            Text(f"note: {topic}, {count(partitions, 'partition')}: {note}", "yellow")
            for (topic, note), partitions in notes.items()
        ),
        *(Text(rekeyed(one), "red" if one.different else "green") for one in report.rekeyed),
        *(Text(f"note: {plain(str(one))}", "yellow") for one in report.gone),
        *(Text(f"not verified: {plain(str(one))}", "red") for one in report.unread),
    ]


def rekeyed(one: RekeyedReport) -> str:
    """What became of a re-keyed topic, in a sentence."""
    buried = f", {number(one.buried)} of them in the dead-letter topic" if one.buried else ""
    found = count(one.different, "difference") if one.different else "each once, as the rule says, in its order"
    text = f"{count(one.records, 'record')} computed once more and looked for{buried}"
    stamped = f"; {number(one.own_timestamps)} with the target's own timestamps" if one.own_timestamps else ""
    return f"{plain(one.topic)} → {plain(one.target)}, re-keyed: {text}: {found}{stamped}"


def _shortfalls(report: VerifyReport) -> list[Text]:
    found = [Text(plain(str(one)), "yellow") for one in report.shortfalls[:SHORTFALLS]]
    if more := len(report.shortfalls) - len(found):
        found.append(Text(f"and {count(more, 'part')} more that the target lacks: --json lists them all", "yellow"))
    return found


def _differences(report: VerifyReport) -> list[Text]:
    found: list[Text] = []
    for _, group in groupby(report.differences, key=lambda one: (one.topic, one.partition)):
        found += [Text(str(one), "red") for one in list(group)[:SHOWN]]
    more = report.different - len(found)
    if more:
        found.append(Text(f"and {count(more, 'difference')} more: --json lists the first of each partition", "red"))
    return found


def _verdict(report: VerifyReport) -> Text:
    line = Text.assemble((f"{report.flow}: ", "bold"), (verdict(report), f"bold {_colour(report)}"))
    return line.append(f" ({', '.join(compared(report))} compared in {report.seconds:.1f} s)")


def compared(report: VerifyReport) -> list[str]:
    """How much was compared, in words."""
    batches, rewritten, hidden = (
        sum(getattr(one, what) for one in report.partitions) for what in ("batches", "rewritten", "hidden")
    )
    parts = [count(batches, "batch", "batches")]
    parts += [f"{number(rewritten)} of them rewritten"] if rewritten else []
    parts += [f"{number(hidden)} without records for a reader left out"] if hidden else []
    return [*parts, size(sum(one.bytes for one in report.partitions))]


# --- The report of `mirror verify` as one page of HTML ----------------------------------------------------------------

#: Differences on the page; `--json` gives all that were kept.
PAGE_SHOWN: Final = 1000


def page(report: VerifyReport) -> str:
    """The whole page."""
    root, body = document(f"mirror verify: {report.flow}", f"Proof of equality: {report.flow}")
    _page_verdict(body, report)
    _shares(body, report)
    _topics(body, report)
    _partitions(body, report.partitions)
    _page_shortfalls(body, report)
    _page_differences(body, report)
    _not_compared(body, report)
    _sign_off(body, report)
    return written(root)


def _page_verdict(body: Element, report: VerifyReport) -> None:
    colour = " bad" if not report.equal else "" if report.is_whole else " warn"
    put_text(body, "p", headline(report), f"verdict{colour}")
    put_text(body, "p", verdict(report))
    lag = sum(one.lag for one in report.partitions)
    rows = [
        ("source", f"{report.source}, cluster id {report.source_id or 'unknown'}"),
        ("target", f"{report.target}, cluster id {report.target_id or 'unknown'}"),
        ("offsets", "translated: each record at the place that the runs name" if report.moved else "preserved"),
        ("ends fixed", at(report.begun_ms)),
        ("compared", f"{', '.join(compared(report))} in {report.seconds:.1f} s, {_engine(report)}"),
        ("not there yet", f"{count(lag, 'offset')} that the source held when the proof began"),
    ]
    if report.resumed:
        rows.append(("resumed", f"{count(report.resumed, 'range')} by an earlier run that was interrupted"))
    put_table(body, (), rows)


def _engine(report: VerifyReport) -> str:
    return "by tasks of Apache Spark" if report.spark else "in one process"


def _shares(body: Element, report: VerifyReport) -> None:
    """What became of the source's batches, as far as both logs say."""
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
        outcome = "equal" if one.equal else count(one.different, "difference")
        put_text(row, "td", outcome, "equal" if one.equal else "different")

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


def _page_shortfalls(body: Element, report: VerifyReport) -> None:
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
        for one in report.shortfalls[:PAGE_SHOWN]
    ]
    put_table(body, ("topic", "partition", "what", "offsets", "how many", "why"), rows)
    if more := len(report.shortfalls) - len(rows):
        put_text(body, "p", f"and {number(more)} more; --json lists them all", "note")


def _page_differences(body: Element, report: VerifyReport) -> None:
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
        for one in report.differences[:PAGE_SHOWN]
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
        f"Signed off by mirror {__version__} on {platform.node()}: flow {report.flow}, {at(report.begun_ms)}, "
        f"{report.source} ({report.source_id}) to {report.target} ({report.target_id}), {partitions}, {records}: "
        f"{verdict(report)}.",
    )
    line = put_text(foot, "p", "Seal, SHA-256 over the facts that --json gives as sealed: ")
    put_text(line, "code", seal(report))
