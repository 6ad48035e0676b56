"""What `mirror failover` prints, and keeps in the journal for who asks again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from pydantic import TypeAdapter
from rich.console import Group
from rich.text import Text

from mirror.failover.rpo import AcceptedLoss, PartitionRpo, RecoveryPoint
from mirror.groups.decide import GroupStanding
from mirror.groups.gap import OffsetGap
from mirror.journal.journal import Change
from mirror.journal.ownership import ACCOUNT
from mirror.observability import logs
from mirror.observability.status import NOT_OURS
from mirror.rendering import Field, count, duration, json_of, json_rows, keys, number, plain, table_of
from mirror.replication.assignment import COMPACTION, POSSIBLE, TOMBSTONES

# --- What `mirror failover` shows -------------------------------------------------------------------------------------

#: Offsets of groups that people are shown at most.
SHOWN_GAPS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverReport:
    """What came of a failover, or of its rehearsal. `exposed` is what the target lacked when the rehearsal began: what
    a loss of the source at that moment would have cost. `groups` counts them by how they stand, `gaps` are those
    that do not go on where they stood, and `more_gaps` counts more of them; `steps` are in seconds.
    """

    flow: str
    source: str
    target: str
    rehearsal: bool
    exposures: tuple[PartitionRpo, ...]
    exposed: tuple[PartitionRpo, ...]
    source_problem: str
    groups: Mapping[GroupStanding, int]
    warnings: tuple[str, ...]
    steps: Mapping[str, float]
    seconds: float
    gaps: tuple[OffsetGap, ...] = ()
    more_gaps: int = 0

    @property
    def shown(self) -> tuple[PartitionRpo, ...]:
        """Return what counts: of a rehearsal, as if the source had been lost at its beginning."""
        return self.exposed if self.rehearsal else self.exposures

    @property
    def rpo(self) -> RecoveryPoint:
        """Return the recovery point over all partitions that are shown."""
        return RecoveryPoint.of(self.shown)

    @property
    def is_whole(self) -> bool:
        """Nothing is lost, nobody is in doubt, every group goes on where it stood; a rehearsal: nothing would keep a
        failover from that.
        """
        return self._is_whole_but_for_losses and not self.losses

    @property
    def lacks_losses_alone(self) -> bool:
        """It would be whole without the losses that were accepted."""
        return self._is_whole_but_for_losses and bool(self.losses)

    @property
    def losses(self) -> tuple[tuple[PartitionRpo, AcceptedLoss], ...]:
        """What was left out for good and accepted, by partition."""
        return tuple((exposure, loss) for exposure in self.exposures for loss in exposure.losses)

    @property
    def _is_whole_but_for_losses(self) -> bool:
        if self.gaps or self.more_gaps:
            return False
        if self.rehearsal:
            return not (
                self.source_problem
                or self.warnings
                or any(not exposure.is_certain or exposure.state.is_stop for exposure in self.exposures)
            )
        return all(exposure.is_over for exposure in self.exposures) and not self.warnings


def _missing(partition: PartitionRpo, *, rehearsal: bool) -> Text:
    style = "green" if partition.is_whole else "yellow" if rehearsal else "red"
    return Text(f"{'' if partition.is_certain else 'at least '}{number(partition.records)}", style)


def _fields(*, rehearsal: bool) -> tuple[Field, ...]:
    """Return what is said of a partition."""
    return (
        *keys("topic partition target_topic"),
        Field("", str, "partition"),
        Field("state", head="state", layout="no_wrap"),
        Field("position", head="holds\nup to", show=number, unknown="unknown"),
        Field("source_end", "end", "source\nends", number, "unknown"),
        *keys("open_transaction_from=open_from rpo_records=records"),
        Field("", lambda partition: _missing(partition, rehearsal=rehearsal), "not got\nover", layout="right"),
        Field("rpo_seconds", lambda partition: _rounded(partition.seconds)),
        Field("", "seconds", "reaches\nback", lambda seconds: duration(int(1000 * seconds)), "unknown", "right"),
        *keys("certain=is_certain whole=is_whole doubt"),
    )


def as_dict(account: FailoverReport) -> dict[str, Any]:
    """For `--json`; times in seconds."""
    return {
        **json_of(keys("flow source target rehearsal whole=is_whole"), account),
        "source_reachable": not account.source_problem,
        "source_problem": account.source_problem,
        "rpo": {**asdict(account.rpo), "seconds": _rounded(account.rpo.seconds)},
        "rto_seconds": _rounded(account.seconds),
        "steps": {name: _rounded(seconds) for name, seconds in account.steps.items()},
        "groups": {str(standing): many for standing, many in account.groups.items()},
        "group_offsets_not_reached": [
            {"target_offset" if name == "reached" else name: value for name, value in asdict(gap).items()}
            for gap in account.gaps
        ],
        "group_offsets_left_out": account.more_gaps,
        "accepted_losses": [
            json_of(keys("topic partition target_topic"), rpo) | asdict(loss) for rpo, loss in account.losses
        ],
        "warnings": list(account.warnings),
        "partitions": json_rows(_fields(rehearsal=account.rehearsal), account.shown),
    }


def rendered(account: FailoverReport) -> Group:
    """For people."""
    shown = account.shown
    lines = table_of(_fields(rehearsal=account.rehearsal), shown)
    doubts = [f"{rpo}: it is not known how many records are missing, since {rpo.doubt}" for rpo in shown if rpo.doubt]
    in_doubt = {str(rpo) for rpo in shown if rpo.doubt}
    doubts += [  # a stop, or what a rehearsal has met since it began
        f"{rpo}: not whole, since it is {rpo.state}{rpo.doubt and f': {rpo.doubt}'}"
        for rpo in account.exposures
        if (rpo.doubt or rpo.state.is_stop) and str(rpo) not in in_doubt
    ]
    doubts += [
        f"{rpo}: not whole for certain, since no leader on the source says where it ends"
        for rpo in account.exposures
        if account.rehearsal and rpo.end is None and not account.source_problem
    ]
    undone = "" if account.rehearsal else ", once `mirror failover CONFIG --undo` ran,"
    open_ones = [
        f"{rpo}: a transaction is open on the source at offset {number(rpo.open_from)}; nothing behind it gets over"
        " before it ends. Where the source still serves, end its producer or wait for transaction.timeout.ms, and"
        f"{undone} fail over again"
        for rpo in shown
        if rpo.open_from is not None
    ]
    notes = [Text(f"note: {plain(text)}", "yellow") for text in (*doubts, *open_ones, *account.warnings)]
    if account.source_problem:
        notes.insert(0, Text(f"the source is away: {plain(account.source_problem)}", "yellow"))
    if account.groups:
        groups = ", ".join(f"{number(many)} {standing}" for standing, many in account.groups.items())
        notes.append(Text(f"consumer groups: {groups.replace('_', ' ')}"))
    notes += [Text(plain(_lost(*lost, is_over=not account.rehearsal)), "yellow") for lost in account.losses]
    notes += [Text(plain(_gap_text(gap)), "yellow") for gap in account.gaps[:SHOWN_GAPS]]
    if more := len(account.gaps[SHOWN_GAPS:]) + account.more_gaps:
        notes.append(Text(f"and {number(more)} more offsets of groups; --json names them", "yellow"))
    steps = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in account.steps.items())
    return Group(lines, Text(), *notes, Text(f"steps: {steps}", "dim"), _verdict(account))


def _lost(rpo: PartitionRpo, loss: AcceptedLoss, *, is_over: bool) -> str:
    """One loss, in the words of `mirror verify`; a flow that is over takes nothing as it is any more."""
    if loss.reason in POSSIBLE:
        what = {
            TOMBSTONES: "keys that were deleted on the source may live on in the copy, which was behind for longer than"
            " delete.retention.ms (verify: extra)",
            COMPACTION: "the copy was compacted, and may lack records that its source has kept (verify: missing)",
        }[loss.reason]
        accept = "" if is_over else f"; `mirror accept CONFIG {rpo.topic}` takes it as it is"
        return f"{rpo}: {what}. `mirror verify` shows whether that is so{accept}"
    offsets = f"offsets {loss.first} to {loss.next_offset - 1} ({number(loss.next_offset - loss.first)})"
    return f"{rpo}: accepted loss, {offsets}: reason {loss.reason}, as the journal says"


def _gap_text(gap: OffsetGap) -> str:
    """One group that does not go on where it stood."""
    where = f"group {gap.group}, {gap.topic}-{gap.partition}: "
    if gap.source_offset is not None:
        where += f"stands at {number(gap.source_offset)} on the source, "
    if gap.reached is None:
        effect = (
            f"has no offset on the target: it reads {count(gap.reads_again, 'record')} again "
            f"(auto.offset.reset=earliest) or misses {number(gap.misses)} (latest)"
        )
    else:
        effects = [
            *([f"reads {count(gap.reads_again, 'record')} again"] if gap.reads_again else []),
            *([f"misses {count(gap.misses, 'record')}"] if gap.misses else []),
        ]
        effect = f"goes on at {number(gap.reached)}"
        effect += f" and {' and '.join(effects)}" if effects else ""
    return f"{where}{effect}: {gap.cause}"


def _verdict(account: FailoverReport) -> Text:
    rpo = account.rpo
    reach = "an unknown time" if rpo.seconds is None else duration(int(1000 * rpo.seconds))
    lost = f"{'' if rpo.certain else 'at least '}{count(rpo.records, 'record')}, {reach}"
    took = f"{account.seconds:.1f} s"
    if account.losses:
        lost += "; not counting accepted losses"
    verdict = Text(f"{account.flow}: ", "bold")
    if account.rehearsal:
        verdict.append("rehearsed, nothing was changed", "bold green" if account.is_whole else "bold yellow")
        verdict.append(f": RPO {lost} had {account.source} been lost at the start; RTO {took} and the mirror's end")
        return verdict
    verdict.append(f"failed over to {account.target}", "bold green" if account.is_whole else "bold red")
    verdict.append(f": RPO {lost}; RTO {took}. `mirror run` refuses this flow from now on")
    return verdict


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


# --- A failover's account in the flow's journal, for whoever asks again -----------------------------------------------

#: A broker takes a megabyte unless set otherwise; of a larger account the partitions that are whole are left out, and
#: then offsets of groups, which are counted.
_MOST_BYTES: Final = 900_000
_ACCOUNT: Final = TypeAdapter(FailoverReport)


def account_entry(account: FailoverReport) -> Change:
    """The record that keeps it."""
    value = _ACCOUNT.dump_json(account)
    if len(value) > _MOST_BYTES:
        lacking = tuple(exposure for exposure in account.exposures if not exposure.is_whole)
        account = replace(account, exposures=lacking)
        value = _ACCOUNT.dump_json(account)
    while len(value) > _MOST_BYTES and account.gaps:
        kept = account.gaps[: len(account.gaps) // 2]
        account = replace(account, gaps=kept, more_gaps=account.more_gaps + len(account.gaps) - len(kept))
        value = _ACCOUNT.dump_json(account)
    return ACCOUNT, value


def account_in(known: Mapping[bytes, bytes]) -> FailoverReport | None:
    """What the newest records of a journal keep; None where there is none, or none that can be read."""
    if (value := known.get(ACCOUNT)) is None:
        return None
    try:
        return _ACCOUNT.validate_json(value)
    except NOT_OURS as problem:
        logs.get("mirror.failover").warning("journal_record_unread", key=ACCOUNT.decode(), reason=repr(problem))
        return None
