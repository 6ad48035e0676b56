"""`mirror bench`: the mirror beside MirrorMaker 2 and other ways to copy a topic."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from mirror.commands import Json

#: Of `--quick`: uncompressed MB of each workload, seconds of a trickle, and those before that do not count.
_QUICK_MEGABYTES = 40
_QUICK_SECONDS = 10.0
_QUICK_WARM_SECONDS = 5.0

_RUN = """Measure: every arm copies every workload in turn, and each copy is compared with its source record by record.

Example: mirror bench run --quick --json bench.json
"""

bench = typer.Typer(help="Compare the mirror with MirrorMaker 2 and other ways to copy.", invoke_without_command=True)

Workloads = Annotated[
    list[str] | None, typer.Option("--workload", help="Only this workload; may be repeated.", show_default=False)
]
Arms = Annotated[
    list[str] | None, typer.Option("--arm", help="Only this way to copy; may be repeated.", show_default=False)
]
Rounds = Annotated[int, typer.Option(min=1, max=99, help="Number of times to copy everything.")]
Megabytes = Annotated[
    int | None,
    typer.Option(min=1, help="Size of each workload, in MB before compression.", show_default=False),
]
WithLatency = Annotated[bool, typer.Option(help="Also copy trickles: latency, and CPU.")]
Rates = Annotated[
    list[float] | None,
    typer.Option(
        "--rate",
        min=1,
        max=100_000,
        help="Records per second of a trickle; may be repeated. Without it 1000 and 4000.",
        show_default=False,
    ),
]
WithScaling = Annotated[bool, typer.Option(help="Also vary partitions, tasks and replicas.")]
Quick = Annotated[
    bool, typer.Option("--quick", help="Run one round with little data, as a smoke test: the figures say little.")
]
Report = Annotated[
    Path | None,
    typer.Option(metavar="FILE.html", help="Write an HTML page, and the raw figures beside it.", show_default=False),
]
RawFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write only the raw figures.", show_default=False)
]
Measured = Annotated[Path, typer.Argument(metavar="RAW.json", help="Raw figures of a run.", show_default=False)]
Older = Annotated[Path, typer.Argument(metavar="OLD.json", help="Raw figures of the older run.", show_default=False)]
Newer = Annotated[Path, typer.Argument(metavar="NEW.json", help="Raw figures of the newer run.", show_default=False)]


@bench.callback()
@bench.command("run", help=_RUN)
def run(
    context: typer.Context,
    workload: Workloads = None,
    arm: Arms = None,
    rounds: Rounds = 5,
    megabytes: Megabytes = None,
    latency: WithLatency = True,
    rate: Rates = None,
    scaling: WithScaling = True,
    quick: Quick = False,
    report: Report = None,
    raw: RawFile = None,
) -> None:
    """Copy generated topics with the mirror, MirrorMaker 2 and others in turn, between real brokers.

    It takes about an hour for each round, as a copy by the mirror takes ten seconds or more.

    Example: mirror bench --report bench.html
    """
    if context.invoked_subcommand is not None:
        return
    from mirror.lab.bench import arms, workloads
    from mirror.lab.bench.latency import Pace
    from mirror.lab.bench.play import LIVE_ARMS, RATES, Plan
    from mirror.lab.bench.report import measure

    paces = [Pace(records) for records in rate or RATES] if latency else []
    chosen = arms.chosen(arm or arms.USUAL)
    plan = Plan(
        shapes=workloads.chosen(workload or workloads.USUAL, megabytes or (_QUICK_MEGABYTES if quick else None)),
        arms=chosen,
        rounds=1 if quick else rounds,
        paces=[replace(pace, seconds=_QUICK_SECONDS, warm_s=_QUICK_WARM_SECONDS) if quick else pace for pace in paces],
        live_arms=[way for way in chosen if way.name in LIVE_ARMS],
        scaling=scaling and not quick,
        command=shlex.join(["mirror", *sys.argv[1:]]),
    )
    raise typer.Exit(measure(plan, report=report, raw=raw))


@bench.command()
def page(
    raw: Measured,
    report: Annotated[
        Path,
        typer.Option(
            metavar="FILE.html", help="Write an HTML page, and the raw figures beside it.", show_default=False
        ),
    ],
) -> None:
    """Write the HTML page from raw figures.

    Example: mirror bench page bench.json --report bench.html
    """
    from mirror.lab.bench.report import make_page

    raise typer.Exit(make_page(raw, report))


@bench.command()
def compare(old: Older, new: Newer, as_json: Json = False) -> None:
    """Compare two runs of the same workloads, as ratios of medians.

    A change is beyond noise if the ranges do not overlap. Exit 5: a figure of the mirror's became worse beyond noise.

    Example: mirror bench compare old.json new.json
    """
    from mirror.lab.bench.report import show_changes

    raise typer.Exit(show_changes(old, new, as_json=as_json))


@bench.command()
def table(raw: Measured) -> None:
    """Print the headline table as Markdown.

    Example: mirror bench table bench.json
    """
    from mirror.lab.bench.report import show_table

    raise typer.Exit(show_table(raw))
