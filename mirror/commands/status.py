"""`mirror status`: where every partition is, as the flow's journal has it.

Figures in a journal outlive the mirror that wrote them, so what they are worth is shown first: whether the mirror runs,
by the age of its last report and, on its own machine, by its process.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any, Final, NoReturn

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from mirror import clock
from mirror.config import Settings
from mirror.errors import ClusterError, ExitCode, WireError
from mirror.journal.journal import journal_topic
from mirror.journal.snapshot import LISTEN_SECONDS, STALE_MS, Follower, Pulse, Status, is_latency_known
from mirror.kafka.cluster import Cluster, Endpoint
from mirror.observability.status import GroupFigures, PartitionStatus, Totals
from mirror.rendering import (
    COMMAND,
    Field,
    console,
    count,
    duration,
    json_of,
    number,
    plain,
    print_json,
    size,
    state_text,
    table_of,
)
from mirror.states import State

# --- What `mirror status` says of partitions that do not copy ---------------------------------------------------------


def troubles(figures: Iterable[PartitionStatus]) -> Iterator[Text]:
    """A line for each trouble, stops first. Details that differ in the partition's own name alone are one."""
    groups: dict[tuple[State, str, str], list[PartitionStatus]] = {}
    for one in figures:
        if one.detail:
            alike = one.detail.replace(f"{one.topic}-{one.partition}", one.topic)
            groups.setdefault((one.state, one.topic, alike), []).append(one)
    for (state, topic, alike), every in sorted(groups.items(), key=lambda group: not group[0][0].is_stop):
        what = f"{topic}, {count(len(every), 'partition')} ({spans(one.partition for one in every)}): {alike}"
        if len(every) == 1:
            what = f"{topic}-{every[0].partition} at offset {every[0].next_offset}: {every[0].detail}"
        text = Text.assemble(state_text(state), plain(f" {what}"))
        text.stylize("red" if state.is_stop else "yellow")
        yield text


def spans(numbers: Iterable[int]) -> str:
    """Numbers, those in a row as one: 0-3, 5."""
    rows: list[tuple[int, int]] = []
    for each in sorted(numbers):
        if rows and each == rows[-1][1] + 1:
            rows[-1] = rows[-1][0], each
        else:
            rows.append((each, each))
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in rows)


# --- `mirror status` --------------------------------------------------------------------------------------------------

WATCH_SECONDS: Final = 1.0
#: Whom a watch shows before partitions that copy: who needs a person, then who does not move.
_URGENCY: Final = (State.UNAVAILABLE, State.PAUSED, State.PADDING, State.STARTING)
#: Columns from which on what was copied of every partition is shown beside it.
WIDE: Final = 110


def status(settings: Settings, *, watch: bool, as_json: bool) -> ExitCode:
    """Print the status once, or every second until Ctrl-C. Raises MirrorError where the target cannot be read."""
    try:
        asyncio.run(_status(settings, watch=watch, as_json=as_json))
    except KeyboardInterrupt:
        if not watch:
            raise
    return ExitCode.DONE


async def _status(settings: Settings, *, watch: bool, as_json: bool) -> None:
    async with Cluster(Endpoint.of(settings.target)) as target, Cluster(Endpoint.of(settings.source)) as source:
        follower = Follower(settings, target, source)
        found = await follower.poll()
        if found.is_clock_in_doubt and not watch:
            what = "by its clock the mirror is silent, or ahead of this machine"
            print(f"{what}: listening for it for up to {LISTEN_SECONDS:g} s", file=sys.stderr)
            found = await follower.listen()
        out = console()
        if watch and out.is_terminal and not as_json:
            await _live(follower, found, out)
        _print(found, out, as_json)
        while watch:
            await asyncio.sleep(WATCH_SECONDS)
            _print(await follower.poll(), out, as_json)


async def _live(follower: Follower, found: Status, out: Console) -> NoReturn:
    """In place, for ever; an outage of the target is shown, and what was last known grows old."""
    with Live(fitted(found, out, Text()), console=out, auto_refresh=False) as live:
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            problem = Text()
            try:
                found = await follower.poll()
            except (ClusterError, WireError) as lost:
                found = replace(found, now_ms=clock.now_ms())
                problem = Text(f"cannot read the journal: {lost}\n", "red")
            live.update(fitted(found, out, problem), refresh=True)


def _print(found: Status, out: Console, as_json: bool) -> None:
    if as_json:
        print_json(as_dict(found))
    else:
        for part in rendered(found, out.width).renderables:
            out.print(part, soft_wrap=isinstance(part, Text) and COMMAND in part.plain)


def as_dict(found: Status) -> dict[str, Any]:
    """The status for `--json`; ages in ms."""
    totals, _ = _added(found)
    return {
        "flow": found.flow,
        "target": found.cluster,
        "source_id": found.source_id or None,
        "target_id": found.target_id or None,
        "topic": journal_topic(found.flow),
        "pulse": found.pulse,
        "running": found.pulse is Pulse.RUNNING,
        "owner": asdict(found.owner) if found.owner else None,
        "age_ms": found.age_ms if found.seen_ms else None,
        "at_ms": found.now_ms,
        "clock_behind_ms": found.skew_ms,
        "totals": asdict(totals)
        | {"states": dict(totals.states), "verdicts": dict(totals.verdicts)}
        | {"stale": sum(map(found.is_stale, found.figures))},
        "partitions": [
            asdict(figures) | {"verdicts": dict(figures.verdicts)} | json_of(_fields(found), figures)
            for figures in found.figures
        ],
        "groups": asdict(found.groups) | {"age_ms": found.age_of(found.groups.at_ms)} if found.groups else None,
        "failed_over": asdict(found.failed_over) if found.failed_over else None,
        "settings_not_followed": [unfollowed._asdict() for unfollowed in found.unfollowed],
        "unread": list(found.unread),
    }


def fitted(found: Status, out: Console, problem: Text) -> Group:
    """The status for a terminal, which cuts off what it has no lines for: the partitions that need somebody stand first
    then, and not in the order of their names.
    """
    shown = rendered(found, out.width)
    if len(out.render_lines(shown, pad=False)) > out.height:
        shown = rendered(replace(found, figures=tuple(sorted(found.figures, key=_urgency))), out.width)
    return Group(problem, shown) if problem else shown


def _urgency(figures: PartitionStatus) -> tuple[int, int]:
    if figures.state.is_stop:
        return -1, 0
    quiet = _URGENCY.index(figures.state) if figures.state in _URGENCY else len(_URGENCY)
    return quiet, -(figures.lag_records or 0)


def rendered(found: Status, width: int) -> Group:
    """The status for people, what matters most at the top."""
    lines = [_heading(found)]
    if found.source_id or found.target_id:
        ids = (("source", found.source_id), ("target", found.target_id))
        named = ", ".join(f"{side} {plain(name)}" for side, name in ids if name)
        lines.append(Text(f"cluster ids: {named}", "dim"))
    if found.figures:
        lines.append(_totals(found))
    if found.groups:
        lines.append(_groups(found.groups, found.age_of(found.groups.at_ms)))
    lines += troubles(found.figures)
    lines += [Text(plain(str(unfollowed)), "yellow") for unfollowed in found.unfollowed]
    lines += [Text(f"not understood: {plain(what)}", "yellow") for what in found.unread]
    if not found.figures:
        return Group(*lines)
    left_out = set() if width >= WIDE else set(_WIDE_ONLY)
    if not any(one.filled for one in found.figures):
        left_out.add("filled")
    columns = [field for field in _fields(found) if field.head not in left_out]
    return Group(*lines, Text(), table_of(columns, found.figures))


#: Columns that a narrow terminal does not get: how much was copied stands in the totals.
_WIDE_ONLY: Final = frozenset({"behind", "records", "filled", "size", "batches by verdict"})


def _fields(found: Status) -> tuple[Field, ...]:
    """Return what is said of a partition."""
    return (
        Field("age_ms", lambda row: found.age_of(row.at_ms)),
        Field("", lambda row: f"{row.topic}-{row.partition}", "partition"),
        Field("", lambda row: state_text(row.state, former=found.is_stale(row)), "state", layout="no_wrap"),
        Field("", lambda row: row.next_offset if row.next_offset >= 0 else None, "position", number, "-"),
        Field("", "lag_records", "lag", number, "?"),
        Field("lag_bytes", head="behind", show=size, unknown="?"),
        Field("lag_ms", lambda row: row.lag_ms if is_latency_known(row) else None, "latency", duration, "-"),
        Field("", "records", "records", number),
        Field("", "filled", "filled", number),
        Field("", "bytes", "size", size),
        Field("", lambda row: _verdicts(_without_reasons(row.verdicts)), "batches by verdict"),
        Field("stale", found.is_stale),
        Field("stopped", "state.is_stop"),
        Field("", lambda row: _age(found.age_of(row.at_ms), is_old=found.is_stale(row)), "age", layout="right"),
    )


def _age(age_ms: int, *, is_old: bool) -> Text:
    return Text(duration(age_ms), "yellow" if is_old else "dim")


def _heading(found: Status) -> Text:
    heading = Text(f"{found.flow}: ", "bold")
    owner, ago = found.owner, duration(found.age_ms)
    who = plain(str(owner)) if owner else "owner unknown"
    match found.pulse:
        case Pulse.NEVER_RAN:
            heading.append("never ran", "bold yellow")
            heading.append(f": no journal {journal_topic(found.flow)} on cluster {found.cluster}")
        case Pulse.RUNNING:
            heading.append("running", "bold green")
            heading.append(f" ({who}), reported {ago} ago")
        case Pulse.SILENT:
            heading.append("silent", "bold yellow")
            heading.append(f" ({who} is alive), last seen {ago} ago")
        case Pulse.ENDED if found.is_unheard:
            at = datetime.fromtimestamp(found.seen_ms / 1000, UTC)
            heading.append("not running", "bold yellow")
            heading.append(f" ({who}): nothing came of it in {LISTEN_SECONDS:g} s; by its clock, last seen at")
            heading.append(f" {at:%Y-%m-%d %H:%M:%S} UTC")
        case Pulse.ENDED:
            heading.append(f"not running, last seen {ago} ago", "bold yellow")
            heading.append(f" ({who})")
    if found.skew_ms:
        where = "behind" if found.skew_ms > 0 else "ahead of"
        heading.append(f"; its clock is {duration(abs(found.skew_ms))} {where} this machine's", "bold yellow")
    if found.failed_over:
        heading.append(f"; failed over {plain(str(found.failed_over))}", "bold yellow")
    return heading


def _added(found: Status) -> tuple[Totals, int]:
    """The figures of all partitions, and how many have no fresh report: where the mirror runs, a state, or a latency,
    from before its first report would pass for that of now; a stop remains. What was copied is this run's alone.
    """
    running = found.pulse is Pulse.RUNNING
    fresh = [
        figures for figures in found.figures if not running or figures.state.is_stop or not found.is_stale(figures)
    ]
    copied = Totals.of(
        figures for figures in found.figures if not found.owner or figures.instance == found.owner.instance
    )
    every = Totals.of(found.figures)
    now = replace(
        copied,
        partitions=every.partitions,
        states=Totals.of(fresh).states,
        stopped=every.stopped,
        lag_records=every.lag_records,
        lag_unknown=every.lag_unknown,
        lag_ms=Totals.of(filter(is_latency_known, fresh)).lag_ms,
    )
    return now, len(found.figures) - len(fresh)


def _totals(found: Status) -> Text:
    running = found.pulse is Pulse.RUNNING
    run = "this run" if running else "the last run"
    now, silent = _added(found)
    states = [Text.assemble(f"{many} ", state_text(state)) for state, many in sorted(now.states.items())]
    states += [Text(f"{silent} without a fresh report", "yellow")] if silent else []
    return Text.assemble(
        "" if running else "last known: ",
        f"{count(len(found.figures), 'partition')}: ",
        Text(", ").join(states),
        "; lag unknown" if now.lag_records is None else f"; lag {count(now.lag_records, 'record')}",
        f" and unknown for {count(now.lag_unknown, 'partition')}"
        if now.lag_records is not None and now.lag_unknown
        else "",
        f", latency {duration(now.lag_ms)}" if now.lag_ms else "",
        f"; copied by {run}: {count(now.records, 'record')} in",
        f" {count(now.batches, 'batch', 'batches')}, {size(now.bytes)}",
        f"; {count(now.filled, 'offset')} without a record filled" if now.filled else "",
        f"; {count(now.lost, 'offset')} lost or left out" if now.lost else "",
        f"; {_verdicts(now.verdicts)}" if now.verdicts else "",
    )


def _groups(groups: GroupFigures, age_ms: int) -> Text:
    others = {
        "held back until records are mirrored": groups.held_back,
        "ahead on the target": groups.ahead,
        "moved to the target's log start": groups.expired,
        "with members on the target": groups.active,
        "blocked, see the log": groups.blocked,
    }
    return Text.assemble(
        f"{count(groups.groups, 'consumer group')}: {number(groups.synced)} synced",
        *(f", {number(many)} {what}" for what, many in others.items() if many),
        "; looked at ",
        Text(f"{duration(age_ms)} ago", "yellow" if age_ms > STALE_MS else ""),
    )


def _without_reasons(verdicts: Mapping[str, int]) -> Mapping[str, int]:
    """A row has no room for them; the totals and `--json` have."""
    summed = Counter[str]()
    for verdict, many in verdicts.items():
        summed[verdict.partition("/")[0]] += many
    return summed


def _verdicts(verdicts: Mapping[str, int]) -> str:
    return ", ".join(f"{plain(verdict)} {number(many)}" for verdict, many in Counter(verdicts).most_common())
