"""What `mirror verify` shows of a report: a table with each difference by name, or JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from itertools import groupby
from typing import Any, Final

from rich.console import Group
from rich.text import Text

from mirror.commands.tables import count, number, plain, size, table
from mirror.verify import signoff
from mirror.verify.report import RekeyedReport, TopicReport, VerifyReport

#: Differences of one partition that a terminal gets; `--json` gives all that were kept.
SHOWN: Final = 20
#: The same of what the target lacks.
SHORTFALLS: Final = 40
_NOT_TOLD: Final = ("pair", "differences", "source_mark", "target_mark")


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
        "sealed": signoff.facts(report),
        "seal": signoff.seal(report),
        "spark": report.spark,
        "resumed_ranges": report.resumed,
        "seconds": round(report.seconds, 3),
        "topics": [{**asdict(topic), "equal": topic.equal} for topic in report.topics],
        "partitions": [
            {
                **{name: value for name, value in asdict(one).items() if name not in _NOT_TOLD},
                "topic": one.pair.source.topic,
                "target": one.pair.target.topic,
                "partition": one.pair.source.partition,
            }
            for one in report.partitions
        ],
        "rekeyed": [
            {name: value for name, value in asdict(one).items() if name not in _NOT_TOLD} for one in report.rekeyed
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
    first = Text.assemble((f"{report.flow}: ", "bold"), (signoff.headline(report), f"bold {_colour(report)}"))
    told = (*_notes(report), *_shortfalls(report), *_differences(report))
    return Group(first, Text(), lines, Text(), *told, _verdict(report))


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
    told = f"{count(one.records, 'record')} computed once more and looked for{buried}"
    return f"{plain(one.topic)} → {plain(one.target)}, re-keyed: {told}: {found}"


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
    verdict = Text.assemble((f"{report.flow}: ", "bold"), (signoff.verdict(report), f"bold {_colour(report)}"))
    return verdict.append(f" ({', '.join(compared(report))} compared in {report.seconds:.1f} s)")


def compared(report: VerifyReport) -> list[str]:
    """How much was compared, in words."""
    batches, rewritten, hidden = (
        sum(getattr(one, what) for one in report.partitions) for what in ("batches", "rewritten", "hidden")
    )
    told = [count(batches, "batch", "batches")]
    told += [f"{number(rewritten)} of them rewritten"] if rewritten else []
    told += [f"{number(hidden)} without records for a reader left out"] if hidden else []
    return [*told, size(sum(one.bytes for one in report.partitions))]
