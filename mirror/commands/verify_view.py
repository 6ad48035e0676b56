"""The report of `mirror verify`: a table with each difference by name, JSON, or a page."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Mapping
from itertools import groupby
from typing import Any, Final

from rich.console import Group
from rich.text import Text

from mirror import __version__
from mirror.rendering import Field, Page, count, json_of, json_rows, keys, number, plain, size, table_of
from mirror.verify.report import RekeyedReport, TopicReport, VerifyReport, at, facts, headline, verdict

#: Differences of one partition that a terminal gets; `--json` gives all that were kept.
SHOWN: Final = 20
#: Shortfalls that a terminal gets.
SHORTFALLS: Final = 40
#: Differences, and shortfalls, that a page gets.
PAGE_SHOWN: Final = 1000

# --- What the report says of each topic, partition, shortfall and difference ------------------------------------------


def _title(topic: TopicReport) -> str:
    return topic.topic if topic.target in ("", topic.topic) else f"{topic.topic} → {topic.target}"


def _identical(topic: TopicReport) -> Text:
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


def _offsets(topic: TopicReport, *, moved: bool) -> Text:
    if not topic.offsets_equal:
        return Text("differ", "red")
    return Text("translated" if moved else "equal", "green")


def _outcome(topic: TopicReport) -> Text:
    return Text("equal", "green") if topic.equal else Text(count(topic.different, "difference"), "red")


def _topic_fields(*, moved: bool) -> tuple[Field, ...]:
    return (
        *keys("topic target"),
        Field("", _title, "topic"),
        Field("partitions", head="parts", show=number),
        Field("codecs", head="codec", show=lambda codecs: Text("\n".join(codecs)), layout="no_wrap"),
        Field("records", head="records", show=number),
        Field("batches", head="batches", show=number),
        *keys("hidden"),
        Field("", _identical, "identical", layout="right"),
        Field("bytes", head="size", show=size),
        *keys("identical as_stored own_timestamps rewritten offsets_equal"),
        Field("", lambda topic: _offsets(topic, moved=moved), "offsets", layout="no_wrap"),
        Field("lag", head="lag", show=lambda lag: Text(number(lag), "yellow" if lag else ""), layout="right"),
        *keys("different equal"),
    )


_OUTCOME: Final = Field("", _outcome, "outcome")
_PARTITION: Final = (
    Field("", "pair.source", "partition"),
    Field("begin", head="from", show=number),
    Field("end", head="to before", show=number),
    Field("batches", head="batches", show=number),
    *keys("hidden"),
    Field("records", head="records", show=number),
    Field("bytes", head="size", show=size),
    *keys("codecs identical as_stored own_timestamps rewritten offsets_equal lag"),
    Field("source_digest", head="digest", show=lambda digest: Text(digest, "dim")),
    Field("target_digest", head="digest on the target", show=lambda digest: Text(digest, "dim")),
    *keys("different"),
    Field("notes", head="notes", show=lambda notes: Text("; ".join(notes), "yellow")),
    *keys("lost lost_records topic=pair.source.topic target=pair.target.topic partition=pair.source.partition"),
)
_REKEYED: Final = keys("topic target partitions records target_records buried different own_timestamps")
_NOT_VERIFIED: Final = (
    *keys("topic=pair.source.topic target=pair.target.topic partition=pair.source.partition"),
    Field("", "pair.source", "on the source"),
    Field("", "pair.target", "on the target"),
    Field("reason", head="why"),
)
_GONE: Final = (Field("topic", head="topic"), Field("target", head="copy that is left"))
_NUMBER: Final = Field("partition", head="partition", show=lambda number: "all" if number < 0 else str(number))
_SHORTFALL: Final = (
    Field("kind", head="what"),
    Field("topic", head="topic"),
    *keys("target"),
    _NUMBER,
    *keys("first next_offset"),
    Field(
        "",
        lambda row: f"{row.first} to {row.next_offset - 1}" if row.next_offset > row.first >= 0 else None,
        "which offsets",
    ),
    Field("offsets", head="how many", show=number),
    Field("reason", head="why"),
    Field("text", str),
)
_DIFFERENCE: Final = (
    Field("topic", head="topic"),
    _NUMBER,
    Field("offset", head="offset", show=lambda offset: "" if offset < 0 else str(offset), layout="right"),
    Field("kind", head="differs in"),
    Field("source", head="source"),
    Field("target", head="target"),
    Field("text", str),
)


def as_dict(report: VerifyReport) -> dict[str, Any]:
    """Return the report for `--json`."""
    return {
        **json_of(keys("flow source target equal whole=is_whole different"), report),
        "offsets": "translate" if report.moved else "preserve",
        "sealed": facts(report),
        "spark": report.spark,
        "resumed_ranges": report.resumed,
        "seconds": round(report.seconds, 3),
        "topics": json_rows(_topic_fields(moved=report.moved), report.topics),
        "partitions": json_rows(_PARTITION, report.partitions),
        "rekeyed": json_rows(_REKEYED, report.rekeyed),
        "not_verified": json_rows(_NOT_VERIFIED, report.unread),
        "gone": json_rows(_GONE, report.gone),
        "not_whole": json_rows(_SHORTFALL, report.shortfalls),
        "differences": json_rows(_DIFFERENCE, report.differences),
    }


# --- The report on a terminal -----------------------------------------------------------------------------------------


def rendered(report: VerifyReport) -> Group:
    """Return the report for people."""
    style = f"bold {'red' if not report.equal else 'green' if report.is_whole else 'yellow'}"
    flow = f"{report.flow}: ", "bold"
    last = f" ({', '.join(compared(report))} compared in {report.seconds:.1f} s)"
    return Group(
        Text.assemble(flow, (headline(report), style)),
        Text(),
        table_of(_topic_fields(moved=report.moved), report.topics),
        Text(),
        *_notes(report),
        *_shortfalls(report),
        *_differences(report),
        Text.assemble(flow, (verdict(report), style), last),
    )


def _notes(report: VerifyReport) -> list[Text]:
    notes = Counter((partition.pair.source.topic, note) for partition in report.partitions for note in partition.notes)
    return [
        *(
            Text(f"note: {topic}, {count(partitions, 'partition')}: {note}", "yellow")
            for (topic, note), partitions in notes.items()
        ),
        *(Text(rekeyed(topic), "red" if topic.different else "green") for topic in report.rekeyed),
        *(Text(f"note: {plain(str(gone))}", "yellow") for gone in report.gone),
        *(Text(f"not verified: {plain(str(unread))}", "red") for unread in report.unread),
    ]


def rekeyed(topic: RekeyedReport) -> str:
    """What became of a re-keyed topic, in a sentence."""
    buried = f", {number(topic.buried)} of them in the dead-letter topic" if topic.buried else ""
    stamped = f"; {number(topic.own_timestamps)} with the target's own timestamps" if topic.own_timestamps else ""
    equal = "each once, as the rule says, in its order"
    found = count(topic.different, "difference") if topic.different else equal
    text = f"{count(topic.records, 'record')} computed once more and looked for{buried}"
    return f"{plain(topic.topic)} → {plain(topic.target)}, re-keyed: {text}: {found}{stamped}"


def _shortfalls(report: VerifyReport) -> list[Text]:
    found = [Text(plain(str(shortfall)), "yellow") for shortfall in report.shortfalls[:SHORTFALLS]]
    if more := len(report.shortfalls) - len(found):
        found.append(Text(f"and {count(more, 'part')} more that the target lacks: --json lists them all", "yellow"))
    return found


def _differences(report: VerifyReport) -> list[Text]:
    found: list[Text] = []
    for _, group in groupby(report.differences, key=lambda difference: (difference.topic, difference.partition)):
        found += [Text(str(difference), "red") for difference in list(group)[:SHOWN]]
    if more := report.different - len(found):
        found.append(Text(f"and {count(more, 'difference')} more: --json lists the first of each partition", "red"))
    return found


def compared(report: VerifyReport) -> list[str]:
    """How much was compared, in words."""
    sums = report.sums
    parts = [count(sums["batches"], "batch", "batches")]
    parts += [f"{number(sums['rewritten'])} of them rewritten"] if sums["rewritten"] else []
    parts += [f"{number(sums['hidden'])} without records for a reader left out"] if sums["hidden"] else []
    return [*parts, size(sums["bytes"])]


# --- The report as one page of HTML -----------------------------------------------------------------------------------


def page(report: VerifyReport) -> str:
    """The whole page."""
    sheet = Page(f"mirror verify: {report.flow}", f"Proof of equality: {report.flow}")
    _page_verdict(sheet, report)
    _page_shares(sheet, report.sums)
    sheet.fields("Topics", (*_topic_fields(moved=report.moved), _OUTCOME), report.topics)
    for topic in report.rekeyed:
        sheet.text(rekeyed(topic), "different" if topic.different else "equal")
    sheet.fields("Partitions and digests", _PARTITION, report.partitions)
    sheet.text(
        "A digest is the sum, modulo 2^256, of SHA-256 over each batch's magic, length, base offset, last offset "
        "delta, record count, base and largest timestamp, codec, timestamp type and the CRC-32C of its records "
        "section. It depends on the source's batches with records between the offsets compared, and on nothing else: "
        "two proofs over the same offsets have the same one. The target's is the same exactly where nothing differs."
    )
    sheet.fields("Not whole", _SHORTFALL, report.shortfalls[:PAGE_SHOWN])
    if more := len(report.shortfalls[PAGE_SHOWN:]):
        sheet.text(f"and {number(more)} more; --json lists them all", "note")
    differences = report.differences[:PAGE_SHOWN]
    sheet.fields(count(report.different, "difference"), _DIFFERENCE, differences)
    if more := report.different - len(differences):
        sheet.text(f"and {number(more)} more; --json lists the first hundred of each partition", "note")
    sheet.fields("Not verified", _NOT_VERIFIED, report.unread)
    sheet.fields("Gone from the source", _GONE, report.gone)
    partitions, records = count(len(report.partitions), "partition"), count(report.sums["records"], "record")
    sheet.footer(
        f"Signed off by mirror {__version__} on {platform.node()}: flow {report.flow}, {at(report.begun_ms)}, "
        f"{report.source} ({report.source_id}) to {report.target} ({report.target_id}), {partitions}, {records}: "
        f"{verdict(report)}.",
    )
    return str(sheet)


def _page_verdict(sheet: Page, report: VerifyReport) -> None:
    style = " bad" if not report.equal else "" if report.is_whole else " warn"
    sheet.text(headline(report), f"verdict{style}")
    sheet.text(verdict(report))
    engine = "by tasks of Apache Spark" if report.spark else "in one process"
    lag = count(report.sums["lag"], "offset")
    resumed = f"{count(report.resumed, 'range')} by an earlier run that was interrupted"
    sheet.pairs(
        [
            ("source", f"{report.source}, cluster id {report.source_id or 'unknown'}"),
            ("target", f"{report.target}, cluster id {report.target_id or 'unknown'}"),
            ("offsets", "translated: each record at the place that the runs name" if report.moved else "preserved"),
            ("ends fixed", at(report.begun_ms)),
            ("compared", f"{', '.join(compared(report))} in {report.seconds:.1f} s, {engine}"),
            ("not there yet", f"{lag} that the source held when the proof began"),
            *([("resumed", resumed)] if report.resumed else []),
        ],
    )


def _page_shares(sheet: Page, sums: Mapping[str, int]) -> None:
    """Put what became of the source's batches, as far as both logs say."""
    shares = {
        "passed as stored": sums["as_stored"],
        "restamped: new header, the same records section": sums["identical"] - sums["as_stored"],
        "rewritten: the same records in other batches": sums["rewritten"],
        "dropped: markers, aborted and emptied batches": sums["hidden"],
        "timestamps set by the target": sums["own_timestamps"],
    }
    shares = {name: batches for name, batches in shares.items() if batches}
    parts = {name: batches / sum(shares.values()) for name, batches in shares.items()}
    fields = (
        Field("", lambda name: name, "verdict"),
        Field("", lambda name: shares[name], "batches", number),
        Field("", lambda name: f"{100 * parts[name]:.2f} %", "share", layout="right"),
    )
    sheet.fields("What became of the batches", fields, list(shares), shares=list(parts.values()))
