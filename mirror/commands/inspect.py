"""`mirror inspect`: the batches of a segment file, a partition's folder or a live topic, and what is wrong there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from mirror.commands.inspect_view import InspectOptions, LogTotals, LogView, in_all, show, summed_up
from mirror.errors import ConfigError, ExitCode
from mirror.policy.rules import Rules
from mirror.records.header import LAST_OFFSET
from mirror.records.segment import RESYNC_BYTES, SPAN, DamageKind, Found, Walk
from mirror.records.transactions import Outcome, Outcomes, TransactionScan
from mirror.rendering import count, json_of, keys, number, plain, size
from mirror.segments.files import Mapped, offset_of, scan_transactions, segments_of


def inspect(
    target: str, options: InspectOptions, *, config: Path | None, side: str | None, bootstrap: str | None
) -> int:
    """Inspect a file or folder, or a topic where a cluster is named; the exit code: DATA_AT_RISK for damage.

    Raises ConfigError for what is not there or does not go together, and ClusterError.
    """
    if config and bootstrap:
        raise ConfigError("--config and --bootstrap both name a cluster: choose one")
    if side and not config:
        raise ConfigError("--side chooses between the clusters of a --config")
    if config or bootstrap:
        from mirror.commands.inspect_topic import inspect_topic  # noqa: PLC0415 -- a file needs no Kafka client

        return inspect_topic(target, options, config=config, side=side or "source", bootstrap=bootstrap)
    path = Path(target)
    if not path.exists():
        raise ConfigError(f"{target}: no such file or folder; for a topic, name its cluster by --bootstrap or --config")
    return inspect_files(segments_of(path), options)


def inspect_files(paths: Sequence[Path], options: InspectOptions) -> ExitCode:
    """Show segments that follow each other; DATA_AT_RISK where one is damaged. Raises ConfigError."""
    scan = TransactionScan()
    for path in paths:
        scan_transactions(scan, Mapped.checked(path))
    outcomes = scan.outcomes()
    whole, least, at_risk = LogTotals(), 0, False
    for path in paths:
        view = LogView(options, plain(str(path)), {"file": str(path)}, Rules())
        mapped, named = Mapped.checked(path), offset_of(path)
        highest = LAST_OFFSET if named is None else named + SPAN - 1
        walk = Walk(mapped.data, max(least, named or 0), highest)
        _show(walk, mapped, outcomes, view)
        at_risk |= walk.damage is not None or view.totals.at_risk
        least = walk.next_offset
        whole.add(view.totals)
    if len(paths) > 1 and not options.as_json:
        show(Text.assemble((f"{count(len(paths), 'segment')}: ", "bold"), in_all(whole.all)), *summed_up(whole))
    return ExitCode.DATA_AT_RISK if at_risk else ExitCode.DONE


def _show(walk: Walk, mapped: Mapped, outcomes: Outcomes, view: LogView) -> None:
    """Show one segment to its end, or to where it is damaged."""
    begin = 0
    for raw in walk:
        view.take(raw, outcomes.of(raw), begin)
        begin = walk.position
        mapped.passed(begin)
    found: Found | None = None
    if damage := walk.damage:
        if damage.batch is not None:
            view.take(damage.batch, Outcome.NONE, damage.position, crc_holds=False)
        found = walk.resume()
    notes = [Text(f"the disk is failing: {mapped.unread}", "bold red")] if mapped.unread else []
    view.close(_summary_fields(walk, found), [*notes, *_notes(walk, found)])


def _summary_fields(walk: Walk, found: Found | None) -> dict[str, Any]:
    again = found and json_of(keys("position base_offset"), found)
    damage = walk.damage and json_of(keys("kind position detail"), walk.damage)
    return {
        "size": walk.position + walk.rest,
        **json_of(keys("sound_bytes=position next_offset zeros"), walk),
        "damage": damage and {**damage, "bytes": walk.rest, "sound_again": again},
    }


def _notes(walk: Walk, found: Found | None) -> list[Text]:
    if walk.damage is None:
        zeros = f"; then {number(walk.zeros)} bytes of zeros, reserved and not written yet" if walk.zeros else ""
        return [Text(f"sound to its end{zeros}", "green")]
    notes = [Text(str(walk.damage), "bold red")]
    if walk.position:
        notes.append(Text(f"sound up to offset {number(walk.next_offset - 1)}, {number(walk.position)} bytes", "red"))
    else:
        notes.append(Text("no sound batch before it", "red"))
    behind = f"{number(walk.rest)} bytes from there on: "
    if found:
        behind += f"the next sound batch is at byte {number(found.position)}, base offset {number(found.base_offset)}"
    else:
        behind += f"no sound batch within {size(min(walk.rest, RESYNC_BYTES))}"
    notes.append(Text(behind, "red"))
    if walk.damage.kind is DamageKind.PARTIAL and not found:
        hint = "a broker that is writing this segment leaves such an end for a moment: read it again"
        notes.append(Text(hint, "yellow"))
    return notes
