"""`mirror status`: where every partition stands, as the flow's journal on the target tells it.

Figures in a journal outlive the mirror that wrote them, so what they are worth is told first: whether the mirror runs,
by the age of its last report and, on its own machine, by its process.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, NoReturn

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mirror.commands.tables import console, count, duration, number, plain, print_json, size, state_text, table
from mirror.commands.troubles import troubles
from mirror.config import Settings
from mirror.errors import ClusterError, ExitCode, WireError
from mirror.observe.figures import PREFIX as STATE
from mirror.observe.figures import Figures, Totals
from mirror.observe.groupfigures import KEY as GROUPS
from mirror.observe.groupfigures import GroupFigures
from mirror.observe.jsonrecords import NOT_OURS
from mirror.offsets import failover
from mirror.offsets.failover import FailedOver
from mirror.offsets.firstseen import PREFIX as FIRST_SEEN
from mirror.offsets.firstseen import FirstSeen
from mirror.offsets.journal import ENDED, OWNER, Journal, journal_topic
from mirror.offsets.owner import Owner, ended_instance
from mirror.states import State
from mirror.wire.cluster import Cluster, Endpoint

#: A running mirror reports every partition at least every ten seconds.
STALE_MS: Final = 15_000
WATCH_SECONDS: Final = 1.0
_BLIND: Final = frozenset({State.WAITING, State.RECREATED})
#: Columns from which on what was copied of every partition is shown beside it.
WIDE: Final = 110


class Pulse(StrEnum):
    """What is known of the mirror itself."""

    NEVER_RAN = "never ran"
    RUNNING = "running"
    SILENT = "silent"
    ENDED = "not running"


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """A flow as its journal tells it at `now_ms`.

    `ended` is the instance that last ended in good order, `failed_over` when the flow was ended for good; `unread` says
    which records could not be understood. `source_id` and `target_id` are the clusters', empty where not known.
    """

    flow: str
    cluster: str
    now_ms: int
    owner: Owner | None = None
    ended: str = ""
    figures: tuple[Figures, ...] = ()
    groups: GroupFigures | None = None
    failed_over: FailedOver | None = None
    unread: tuple[str, ...] = ()
    source_id: str = ""
    target_id: str = ""

    @property
    def seen_ms(self) -> int:
        """When the owner was last heard of; 0 for never."""
        if self.owner is None:
            return max((one.at_ms for one in self.figures), default=0)
        mine = (one.at_ms for one in self.figures if one.instance == self.owner.instance)
        return max(self.owner.at_ms, *mine, 0)

    @property
    def age_ms(self) -> int:
        """How long ago that was; 0 where its clock is ahead of ours."""
        return max(0, self.now_ms - self.seen_ms)

    @property
    def pulse(self) -> Pulse:
        """Whether the mirror runs, as far as can be known."""
        if self.owner is None:
            return Pulse.ENDED if self.figures else Pulse.NEVER_RAN
        if self.ended == self.owner.instance or (self.owner.is_here and not self.owner.lives):
            return Pulse.ENDED
        if self.age_ms <= STALE_MS:
            return Pulse.RUNNING
        return Pulse.SILENT if self.owner.lives else Pulse.ENDED

    def is_stale(self, figures: Figures) -> bool:
        """What these figures say may be true no longer."""
        return self.pulse is not Pulse.RUNNING or self.now_ms - figures.at_ms > STALE_MS


@dataclass(slots=True)
class Follower:
    """Reads a flow's journal, whole the first time and then only what is new."""

    settings: Settings
    target: Cluster
    _offset: int | None = None
    _newest: dict[bytes, bytes | None] = field(default_factory=dict)

    async def look(self) -> Status:
        """The flow as of now. Raises ClusterUnreachable, AccessDenied, BrokerError, MalformedBatch."""
        flow = self.settings.flow
        topic = journal_topic(flow)
        if topic not in self.target.topics:
            await self.target.refresh({topic})
        if topic in self.target.topics:
            entries, self._offset = await Journal(self.target, flow).read(self._offset)
            self._newest |= {entry.key: entry.value for entry in entries}
        kept = {key: value for key, value in self._newest.items() if value is not None}
        now = int(time.time() * 1000)
        return status_of(flow, self.settings.target.alias, kept, now, self.target.cluster_id or "")


def status_of(flow: str, cluster: str, journal: Mapping[bytes, bytes], now_ms: int, target_id: str = "") -> Status:
    """What the newest entries of a journal say."""
    source_id = ""
    owner, ended, figures, groups, unread, over = None, "", [], None, [], None
    for key, value in journal.items():
        try:
            if key == OWNER:
                owner = Owner.read(value)
            elif key == ENDED:
                ended = ended_instance(value)
            elif key.startswith(STATE):
                figures.append(Figures.from_json(value))
            elif key == GROUPS:
                groups = GroupFigures.from_json(value)
            elif key == failover.KEY:
                over = FailedOver.read(value)
            elif key.startswith(FIRST_SEEN):
                with contextlib.suppress(*NOT_OURS):  # what is none of ours, `run` tells
                    source_id = FirstSeen.read(value).cluster_id or source_id
        except NOT_OURS as problem:
            unread.append(f"{key.decode(errors='replace')}: {problem!r}")
    figures.sort(key=lambda one: (one.target_topic, one.partition))
    return Status(
        flow=flow,
        cluster=cluster,
        now_ms=now_ms,
        owner=owner,
        ended=ended,
        figures=tuple(figures),
        groups=groups,
        failed_over=over,
        unread=tuple(unread),
        source_id=source_id,
        target_id=target_id,
    )


def is_lag_known(figures: Figures) -> bool:
    """Whether the lag is one of now: who waits, or has another topic before him, does not see the source's end."""
    return figures.log_end >= 0 and figures.state not in _BLIND


def is_latency_known(figures: Figures) -> bool:
    """Whether the latency is one of now: of a partition that stopped it is that of its last batch."""
    return is_lag_known(figures) and not figures.state.is_stop


def status(settings: Settings, *, watch: bool, as_json: bool) -> ExitCode:
    """Print the status once, or every second until Ctrl-C. Raises MirrorError where the target cannot be read."""
    try:
        asyncio.run(_status(settings, watch=watch, as_json=as_json))
    except KeyboardInterrupt:
        if not watch:
            raise
    return ExitCode.DONE


async def _status(settings: Settings, *, watch: bool, as_json: bool) -> None:
    async with Cluster(Endpoint.of(settings.target)) as target:
        follower = Follower(settings, target)
        found = await follower.look()
        out = console()
        if watch and out.is_terminal and not as_json:
            await _live(follower, found, out)
        _print(found, out, as_json)
        while watch:
            await asyncio.sleep(WATCH_SECONDS)
            _print(await follower.look(), out, as_json)


async def _live(follower: Follower, found: Status, out: Console) -> NoReturn:
    """In place, for ever; an outage of the target is shown, and what was last known grows old."""
    with Live(rendered(found, out.width), console=out, auto_refresh=False) as live:
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            problem = Text()
            try:
                found = await follower.look()
            except (ClusterError, WireError) as lost:
                found = replace(found, now_ms=int(time.time() * 1000))
                problem = Text(f"\ncannot read the journal: {lost}", "red")
            live.update(Group(rendered(found, out.width), problem), refresh=True)


def _print(found: Status, out: Console, as_json: bool) -> None:
    if as_json:
        print_json(as_dict(found))
    else:
        out.print(rendered(found, out.width))


def as_dict(found: Status) -> dict[str, Any]:
    """The status for `--json`; ages in ms."""
    totals = Totals.of(found.figures)
    lags = Totals.of(filter(is_lag_known, found.figures))
    latency_ms = Totals.of(filter(is_latency_known, found.figures)).lag_ms
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
        "totals": asdict(totals)
        | {"states": dict(totals.states), "verdicts": dict(totals.verdicts)}
        | {"lag_records": lags.lag_records, "lag_ms": latency_ms},
        "partitions": [
            asdict(one)
            | {
                "verdicts": dict(one.verdicts),
                "age_ms": max(0, found.now_ms - one.at_ms),
                "lag_records": None if one.state in _BLIND else one.lag_records,
                "lag_bytes": None if one.state in _BLIND else one.lag_bytes,
                "lag_ms": one.lag_ms if is_latency_known(one) else None,
                "stale": found.is_stale(one),
                "stopped": one.state.is_stop,
            }
            for one in found.figures
        ],
        "groups": asdict(found.groups) | {"age_ms": max(0, found.now_ms - found.groups.at_ms)}
        if found.groups
        else None,
        "failed_over": asdict(found.failed_over) if found.failed_over else None,
        "unread": list(found.unread),
    }


def rendered(found: Status, width: int) -> Group:
    """The status for people, what matters most at the top: a watch cuts at the foot of the terminal."""
    lines = [_heading(found)]
    if found.source_id or found.target_id:
        ids = (("source", found.source_id), ("target", found.target_id))
        named = ", ".join(f"{side} {plain(name)}" for side, name in ids if name)
        lines.append(Text(f"cluster ids: {named}", "dim"))
    if found.figures:
        lines.append(_totals(found))
    if found.groups:
        lines.append(_groups(found.groups, found.now_ms))
    lines += troubles(found.figures)
    lines += [Text(f"not understood: {plain(what)}", "yellow") for what in found.unread]
    if not found.figures:
        return Group(*lines)
    return Group(*lines, Text(), _partitions(found, wide=width >= WIDE))


def _partitions(found: Status, *, wide: bool) -> Table:
    """A row for each. A narrow terminal gets how they are; how much was copied stands in the totals."""
    filled = wide and any(one.filled for one in found.figures)
    copied = ["records", *(["filled"] if filled else []), "size"] if wide else []
    shown = table(
        "partition",
        ("state", "no_wrap"),
        *((name, "right") for name in ("position", "lag", *(["behind"] if wide else []), "latency", *copied)),
        *(["verdicts"] if wide else []),
        ("age", "right"),
    )
    for one in found.figures:
        stale, known = found.is_stale(one), is_lag_known(one)
        behind = size(one.lag_bytes) if known and one.lag_bytes is not None else "-"
        shown.add_row(
            Text(plain(f"{one.topic}-{one.partition}")),
            state_text(one.state, former=stale),
            number(one.next_offset) if one.next_offset >= 0 else "-",
            number(one.lag_records) if known else "-",
            *([behind] if wide else []),
            duration(one.lag_ms) if is_latency_known(one) and one.lag_ms is not None else "-",
            *([number(one.records)] if wide else []),
            *([number(one.filled)] if filled else []),
            *([size(one.bytes)] if wide else []),
            *([Text(_verdicts(one.verdicts))] if wide else []),
            Text(duration(found.now_ms - one.at_ms), "yellow" if stale else "dim"),
        )
    return shown


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
        case Pulse.ENDED:
            heading.append(f"not running, last seen {ago} ago", "bold yellow")
            heading.append(f" ({who})")
    if found.failed_over:
        heading.append(f"; failed over {plain(str(found.failed_over))}", "bold yellow")
    return heading


def _totals(found: Status) -> Text:
    """Where the mirror runs, a state or lag from before its first report would pass for that of now: a stop remains."""
    running = found.pulse is Pulse.RUNNING
    run = "this run" if running else "the last run"
    fresh = [one for one in found.figures if not running or one.state.is_stop or not found.is_stale(one)]
    silent = len(found.figures) - len(fresh)
    unknown = [one for one in fresh if not is_lag_known(one) and one.state is not State.CAUGHT_UP]
    now, lags = Totals.of(fresh), Totals.of(filter(is_lag_known, fresh))
    latency_ms = Totals.of(filter(is_latency_known, fresh)).lag_ms
    copied = Totals.of(one for one in found.figures if not found.owner or one.instance == found.owner.instance)
    states = [Text.assemble(f"{many} ", state_text(state)) for state, many in sorted(now.states.items())]
    states += [Text(f"{silent} without a fresh report", "yellow")] if silent else []
    return Text.assemble(
        "" if running else "last known: ",
        f"{count(len(found.figures), 'partition')}: ",
        Text(", ").join(states),
        "; lag unknown" if len(unknown) == len(fresh) else f"; lag {count(lags.lag_records, 'record')}",
        f" and unknown for {count(len(unknown), 'partition')}" if 0 < len(unknown) < len(fresh) else "",
        f", latency {duration(latency_ms)}" if latency_ms else "",
        f"; copied by {run}: {count(copied.records, 'record')} in",
        f" {count(copied.batches, 'batch', 'batches')}, {size(copied.bytes)}",
        f"; {count(copied.filled, 'offset')} without a record filled" if copied.filled else "",
        f"; {count(copied.lost, 'offset')} lost by the source" if copied.lost else "",
        f"; {_verdicts(copied.verdicts)}" if copied.verdicts else "",
    )


def _groups(groups: GroupFigures, now_ms: int) -> Text:
    age_ms = now_ms - groups.at_ms
    others = {
        "held back until records are mirrored": groups.held_back,
        "ahead on the target": groups.ahead,
        "with members on the target": groups.active,
        "hindered, see the log": groups.hindered,
    }
    return Text.assemble(
        f"{count(groups.groups, 'consumer group')}: {number(groups.synced)} synced",
        *(f", {number(many)} {what}" for what, many in others.items() if many),
        "; looked at ",
        Text(f"{duration(age_ms)} ago", "yellow" if age_ms > STALE_MS else ""),
    )


def _verdicts(verdicts: Mapping[str, int]) -> str:
    return ", ".join(f"{plain(verdict)} {number(many)}" for verdict, many in Counter(verdicts).most_common())
