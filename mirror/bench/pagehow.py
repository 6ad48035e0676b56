"""How a comparison was measured, on what, what is not fair about it, and what it leaves out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final
from xml.etree.ElementTree import Element, SubElement

from mirror.bench.goals import goals
from mirror.bench.pagetables import contents
from mirror.bench.plots import AXES
from mirror.bench.summary import METRICS, REPLAY, RIVALS, Summary, figure
from mirror.commands.htmlpage import put_table, put_text
from mirror.commands.tables import count, duration, plain, size

_HOW: Final = """\
In a round, the arms copy each workload one after the other on the same machine; the raw figures tell each one's turn.
CPU is that of an arm's whole process tree, JVMs included. Brokers are counted for themselves.
The copy is from the first record on the target to the last. What comes before is the start, told apart, since a long \
copy makes any start small.
Memory is the peak of the process tree. Resident memory counts a page once for each process that has it; with shared \
pages once, it is what the machine has to give.
Ratios are made within a round, since what lies close in time shares the machine's mood, and their median is taken. \
Ranges are the least and the most of all rounds. A copy that is not equal to its source counts for nothing and is \
named above, and so is what could not be measured.
"""
_NOT_FAIR: Final = """\
Brokers, copies and measurement share one machine and its cores. What needs less CPU leaves more of it to the brokers, \
and is faster for that alone.
MirrorMaker 2 is made for clusters of workers; here it has this machine. Each figure is compared with the better of \
its settings on this page, and others may do better still.
Arms do not promise the same: a loop that consumes and produces keeps no offsets and may repeat records, and the \
replay reads no source at all. What was compared after each run stands beside it in the raw figures.
Records are made up. How much a codec has to do for them is not what it has to do for yours.
"""


def put_how(body: Element, summary: Summary, raw: str) -> None:
    """All of it; `raw` is the name of the file with the raw figures."""
    put_text(body, "h2", "How it was measured")
    _list(body, _HOW.splitlines())
    put_text(body, "h2", "What is not fair, and what was not measured")
    _list(body, (*_NOT_FAIR.splitlines(), *_missing(summary)))
    _machine(body, summary)
    if raw:
        put_text(body, "p", f"All of this was made from {raw}, beside this page: one object for each run.")
    _arms(body, summary)


def _list(body: Element, texts: Sequence[str]) -> None:
    made = SubElement(body, "ul")
    for text in texts:
        put_text(made, "li", text)


def _missing(summary: Summary) -> Iterator[str]:
    """What a reader may look for in vain."""
    names = {arm.name: arm.title for arm in summary.result.arms}
    for name, what in (*((one, "MirrorMaker 2") for one in RIVALS), (REPLAY, "a replay from memory: the limit")):
        if name not in names:
            yield f"Not measured: {name} ({what})."
    for goal in goals(summary):
        if goal.met is None:
            yield f"Not measured: {goal.aim}."
    varied = {point.axis for point in summary.result.scaling}
    if same := [what for axis, (_, what) in AXES.items() if axis not in varied]:
        yield f"Not varied: {'; '.join(same)}."
    for metric in METRICS:
        for load in summary.result.workloads:
            lacking = [arm.title for arm in summary.arms(load.name) if not summary.values(metric, load.name, arm.name)]
            if lacking:
                yield f"Not known, {load.title}: {metric.title} of {', '.join(lacking)}."


def _machine(body: Element, summary: Summary) -> None:
    put_text(body, "h2", "Machine, versions, data")
    result, machine = summary.result, summary.result.environment
    put_table(
        body,
        (),
        [
            ("made", f"{result.made}, in {duration(int(1000 * result.seconds))}, {count(summary.rounds, 'round')}"),
            ("CPU", f"{machine.cpu}, {count(machine.cores, 'core')}"),
            ("memory", size(machine.memory_bytes)),
            ("system", f"{machine.system}, kernel {machine.kernel}"),
            ("Python, Java", f"{machine.python}, {machine.java}"),
            ("load at the beginning", figure(machine.load)),
            *((name, version) for name, version in sorted(result.versions.items())),
            *((load.name, f"{load.title}: {contents(load)}") for load in result.workloads),
        ],
    )
    put_text(body, "p", "To have it again:")
    put_text(body, "pre", result.command)


def _arms(body: Element, summary: Summary) -> None:
    put_text(body, "h2", "The arms and their settings")
    for arm in summary.result.arms:
        fold = SubElement(body, "details")
        put_text(fold, "summary", f"{arm.title} ({arm.name}): {arm.what}")
        shown = SubElement(fold, "pre")
        shown.text = "\n".join(plain(line) for line in arm.settings.splitlines())
