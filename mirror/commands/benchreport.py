"""`mirror bench page`, `compare` and `table`: what raw figures come to, for people."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from mirror.bench.comparing import Change, Comparison, compare
from mirror.bench.markdown import table as markdown
from mirror.bench.page import page
from mirror.bench.result import Result
from mirror.bench.summary import Summary, figure, ranged
from mirror.commands.tables import console, plain, print_json, table
from mirror.errors import ConfigError, ExitCode


def read(file: Path) -> Result:
    """Raw figures. Raises ConfigError where the file cannot be read, or holds none."""
    try:
        return Result.from_json(file.read_bytes(), str(file))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None


def raw_beside(report: Path) -> Path:
    """Where the raw figures of a page go. Raises ConfigError where that is the page itself."""
    raw = report.with_suffix(".json")
    if raw == report:
        raise ConfigError(f"{report}: the raw figures go there; give the page another name, such as {raw.stem}.html")
    return raw


def write_report(result: Result, report: Path) -> Path:
    """Writes the raw figures and then the page beside them; returns where the raw figures are.

    Raises ConfigError where a file cannot be written, or the library for plots is missing.
    """
    raw = raw_beside(report)
    try:
        raw.write_text(result.to_json(), encoding="utf-8")
        report.write_text(page(result, raw.name), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be written: {error.strerror}") from None
    return raw


def make_page(raw: Path, report: Path) -> ExitCode:
    """`mirror bench page`."""
    beside = write_report(read(raw), report)
    console().print(f"{report}, with the raw figures beside it in {beside.name}")
    return ExitCode.DONE


def show_table(raw: Path) -> ExitCode:
    """`mirror bench table`."""
    print(markdown(Summary(read(raw))), end="")
    return ExitCode.DONE


def show_changes(old: Path, new: Path, *, as_json: bool) -> ExitCode:
    """`mirror bench compare`: exit code 5 where one of the mirror's figures became worse beyond noise."""
    found = compare(Summary(read(old)), Summary(read(new)))
    if as_json:
        print_json({"changes": [_fields(one) for one in found.changes], "notes": found.notes})
    else:
        _print_changes(found)
    return ExitCode.DIFFERENT if found.worse else ExitCode.DONE


def _fields(one: Change) -> dict[str, object]:
    return {**asdict(one), "arm": one.arm.name, "kind": one.arm.kind}


def _print_changes(found: Comparison) -> None:
    out = console()
    shown = table("where", "arm", "figure", ("old", "right"), ("new", "right"), ("new / old", "right"), "")
    for one in found.changes:
        style = {"better": "green", "worse": "red"}.get(one.verdict, "dim")
        ratio = f"{figure(one.ratio)} ({figure(one.least)} to {figure(one.most)})"
        shown.add_row(
            *(plain(text) for text in (one.where, one.arm.title, f"{one.what}, {one.unit}")),
            *(ranged(spread) for spread in (one.old, one.new)),
            ratio,
            f"[{style}]{one.verdict}[/]",
        )
    out.print(shown)
    for note in found.notes:
        out.print(f"note: {plain(note)}", markup=False)
    better, worse, noise, single = (
        sum(one.verdict == verdict for one in found.changes) for verdict in ("better", "worse", "noise", "one round")
    )
    told = f"{better} better and {worse} worse beyond noise, {noise} within it"
    out.print(told + (f", {single} of one round alone, of which nothing can be said" if single else ""))
