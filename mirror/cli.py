"""The `mirror` command: each command does one thing, says what it did, and ends with a code that scripts can act on."""

from __future__ import annotations

import contextlib
import sys
import traceback
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from mirror import __version__, config
from mirror.commands import ConfigFile, Json, LogLevel, Side
from mirror.commands.offsets import offsets
from mirror.commands.results import Results
from mirror.errors import ExitCode, MirrorError
from mirror.lab.commands.bench import bench
from mirror.lab.commands.embedded import embedded
from mirror.observability import logs

app = typer.Typer(
    name="mirror",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Topics = Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Source topics.", show_default=False)]


class _Shown:
    """What an error shows."""

    traces = False


def _version(asked: bool) -> None:
    if asked:
        print(f"mirror {__version__}")
        raise typer.Exit


@app.callback()
def every(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the trace of an error.")] = False,
) -> None:
    """Copy topics between Apache Kafka clusters without decompressing: same bytes, same offsets, exactly once."""
    _Shown.traces = debug


@app.command()
def run(
    config_file: ConfigFile,
    once: Annotated[bool, typer.Option("--once", help="Copy up to the current end offsets, then exit.")] = False,
    until_caught_up: Annotated[
        bool, typer.Option("--until-caught-up", help="Exit when every partition has caught up.")
    ] = False,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Take the flow over from a running mirror instead of standing by.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Write the logs, on stderr, as JSON.")] = False,
    log_level: LogLevel = "info",
) -> None:
    """Mirror topics until stopped. If a mirror of the flow is already running, stand by until it ends.

    Example: mirror run configs/quickstart.yaml --once
    """
    from mirror.commands.run import run_flow

    if once and until_caught_up:
        raise typer.BadParameter("--once and --until-caught-up exclude each other: choose where to end")
    logs.configure(json=as_json, level=log_level)
    load = partial(config.load, config_file)
    raise typer.Exit(run_flow(load, once=once, until_caught_up=until_caught_up, take_over=take_over))


@app.command()
def plan(config_file: ConfigFile, as_json: Json = False, log_level: LogLevel = "warning") -> None:
    """Show what `mirror run` would create, change and refuse; exit 0: nothing to do, 10: changes, 3: refused.

    Example: mirror plan configs/quickstart.yaml
    """
    from mirror.commands.plan import plan as plan_flow

    logs.configure(json=as_json, level=log_level)
    raise typer.Exit(plan_flow(config.load(config_file), as_json=as_json))


@app.command()
def verify(
    config_file: ConfigFile,
    topics: Annotated[
        list[str] | None, typer.Option("--topic", metavar="T", help="Only this source topic; may be repeated.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE.html", help="Also write the proof as an HTML page.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume",
            metavar="FILE",
            help="Save finished ranges to this file and resume from it. [beside --report]",
        ),
    ] = None,
    spark: Annotated[
        bool | None,
        typer.Option("--spark/--no-spark", help="Compare in Spark tasks or in this process. [Spark from 4 GB]"),
    ] = None,
    wait: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="Wait this long for a running mirror to catch up."),
    ] = 10.0,
    as_json: Json = False,
    log_level: LogLevel = "info",
) -> None:
    """Prove that the copy is equal and whole; exit 0: it is, 5: it differs, 7: equal but not whole.

    Example: mirror verify configs/quickstart.yaml --topic orders --report proof.html
    """
    from mirror.commands.verify import verify as verify_flow

    logs.configure(json=as_json, level=log_level)
    settings = config.load(config_file)
    exit_code = verify_flow(
        settings, topics or (), as_json=as_json, report_file=report, resume=resume, spark=spark, wait=wait
    )
    raise typer.Exit(exit_code)


@app.command()
def restore(
    config_file: ConfigFile,
    folders: Annotated[
        list[Path],
        typer.Option("--from", metavar="DIR", help="Data folder of a broker; may be repeated.", show_default=False),
    ],
    with_settings: Annotated[
        bool, typer.Option("--settings/--no-settings", help="Restore topic configurations.")
    ] = True,
    with_groups: Annotated[bool, typer.Option("--groups/--no-groups", help="Restore consumer group offsets.")] = True,
    take_over: Annotated[bool, typer.Option("--take-over", help="Take the flow over from a running mirror.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read every batch and write nothing.")] = False,
    as_json: Json = False,
    log_level: LogLevel = "info",
) -> None:
    """Restore topics, their configurations and groups from the data folders of lost brokers: same bytes, same offsets.

    Exit 4: something is missing or damaged, each named; 10: --dry-run has printed its plan.

    Example: mirror restore configs/quickstart.yaml --from /mnt/disk-of-broker-1 --from /mnt/disk-of-broker-2
    """
    from mirror.commands.restore import restore as restore_flow

    logs.configure(json=as_json, level=log_level)
    wanted = {"with_settings": with_settings, "with_groups": with_groups, "take_over": take_over, "dry_run": dry_run}
    raise typer.Exit(restore_flow(config.load(config_file), folders, **wanted, as_json=as_json))


@app.command()
def status(
    config_file: ConfigFile,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every second until Ctrl-C.")] = False,
    as_json: Json = False,
    log_level: LogLevel = "info",
) -> None:
    """Show the state of every partition, from any machine that reaches the target cluster.

    Example: mirror status configs/quickstart.yaml --watch
    """
    from mirror.commands.status import status as show_status

    logs.configure(json=as_json, level=log_level)
    raise typer.Exit(show_status(config.load(config_file), watch=watch, as_json=as_json))


@app.command()
def accept(
    config_file: ConfigFile,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The source topic.", show_default=False)],
    partitions: Annotated[
        list[int] | None, typer.Option("--partition", metavar="N", min=0, help="Only this partition; may be repeated.")
    ] = None,
    unconfirmed: Annotated[
        bool, typer.Option("--unconfirmed", help="Also accept a copy that can no longer be compared with its source.")
    ] = False,
    as_json: Json = False,
    log_level: LogLevel = "info",
) -> None:
    """Continue after records that are lost or cannot be copied, or from a copy that can no longer be compared.

    Checks both logs and prints what it accepts. Exit 4: a partition stays stopped.

    Example: mirror accept configs/quickstart.yaml orders --partition 3
    """
    from mirror.commands.accept import accept as accept_loss

    logs.configure(json=as_json, level=log_level)
    settings, chosen = config.load(config_file), tuple(partitions or ())
    raise typer.Exit(accept_loss(settings, topic, chosen, unconfirmed=unconfirmed, as_json=as_json))


@app.command()
def adopt(
    config_file: ConfigFile,
    topics: Annotated[list[str] | None, typer.Argument(metavar="TOPIC...", help="Source topics.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All topics that the flow selects.")] = False,
    ends_only: Annotated[
        bool, typer.Option("--ends-only", help="Compare only the last batch of each partition.")
    ] = False,
    as_json: Json = False,
    log_level: LogLevel = "warning",
) -> None:
    """Take over target topics that another tool filled, if they equal their sources; exit 5: one does not.

    Example: mirror adopt configs/quickstart.yaml orders
    """
    from mirror.commands.adopt import adopt as adopt_topics

    if bool(topics) is every:
        raise typer.BadParameter("name the topics, or give --all")
    logs.configure(json=as_json, level=log_level)
    exit_code = adopt_topics(config.load(config_file), topics or (), every=every, ends_only=ends_only, as_json=as_json)
    raise typer.Exit(exit_code)


@app.command()
def failover(
    config_file: ConfigFile,
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="Report RPO and RTO, but stop and move nothing.")
    ] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Allow a failed-over flow to run again.")] = False,
    as_json: Json = False,
    log_level: LogLevel = "info",
) -> None:
    """Drain the flow, end it, move consumer groups to their final offsets, and report RPO and RTO.

    Exit 0: nothing is lost; 4: each loss is named; 7: only accepted losses are missing.

    Example: mirror failover configs/quickstart.yaml --rehearse
    """
    from mirror.commands.failover import failover as fail_over

    if rehearse and undo:
        raise typer.BadParameter("--rehearse and --undo exclude each other")
    logs.configure(json=as_json, level=log_level)
    raise typer.Exit(fail_over(config.load(config_file), rehearse=rehearse, undo=undo, as_json=as_json))


@app.command()
def pause(config_file: ConfigFile, topics: Topics, as_json: Json = False, log_level: LogLevel = "info") -> None:
    """Pause topics until `mirror resume`. The pause survives restarts; a running mirror applies it within seconds.

    Example: mirror pause configs/quickstart.yaml orders
    """
    from mirror.commands.pause import pause as pause_topics

    logs.configure(json=as_json, level=log_level)
    raise typer.Exit(pause_topics(config.load(config_file), topics, pauses=True, as_json=as_json))


@app.command()
def resume(config_file: ConfigFile, topics: Topics, as_json: Json = False, log_level: LogLevel = "info") -> None:
    """Resume paused topics from their current position.

    Example: mirror resume configs/quickstart.yaml orders
    """
    from mirror.commands.pause import pause as pause_topics

    logs.configure(json=as_json, level=log_level)
    raise typer.Exit(pause_topics(config.load(config_file), topics, pauses=False, as_json=as_json))


app.add_typer(offsets, name="offsets")


@app.command()
def inspect(
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE_OR_TOPIC",
            help="A segment file, a partition's folder, or TOPIC or TOPIC:PARTITION of a cluster.",
            show_default=False,
        ),
    ],
    config_file: Annotated[
        Path | None, typer.Option("--config", metavar="CONFIG", help="A flow's YAML file: a topic of its clusters.")
    ] = None,
    side: Side = None,
    bootstrap: Annotated[
        str | None, typer.Option("--bootstrap", metavar="HOST:PORT", help="A topic of this cluster.")
    ] = None,
    first: Annotated[int, typer.Option("--from", metavar="OFFSET", min=0, help="The first offset to show.")] = 0,
    limit: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Batches shown of each log; 50, with --json all.", show_default=False),
    ] = None,
    summary: Annotated[bool, typer.Option("--summary", help="Print only totals by codec and verdict.")] = False,
    ratio: Annotated[bool, typer.Option("--ratio", help="Decompress and show compression ratios.")] = False,
    wide: Annotated[bool, typer.Option("--wide", help="Show all columns, even on a narrow terminal.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines: each batch, then totals.")] = False,
) -> None:
    """Show the batches of a segment file or a live topic: headers, codecs, verdicts; exit 4: damage.

    Example: mirror inspect data/orders-0/00000000000000000000.log --summary
    """
    from mirror.commands.inspect import inspect as inspect_log
    from mirror.commands.inspect_view import InspectOptions

    options = InspectOptions(first=first, limit=limit, summary=summary, as_json=as_json, ratio=ratio, wide=wide)
    raise typer.Exit(inspect_log(target, options, config=config_file, side=side, bootstrap=bootstrap))


@app.command()
def census(
    target: Annotated[
        Path,
        typer.Argument(
            metavar="CONFIG_OR_FOLDER",
            help="A flow's YAML file, or a folder of segment files (a broker's data folder).",
            show_default=False,
        ),
    ],
    side: Side = None,
    topics: Annotated[
        list[str] | None, typer.Option("--topic", metavar="T", help="Only this topic; may be repeated.")
    ] = None,
    ratio: Annotated[bool, typer.Option("--ratio", help="Decompress to get all compression ratios.")] = False,
    records: Annotated[
        bool, typer.Option("--records", help="Decode, and show what the format costs each record of these topics.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE.html", help="Also write an HTML page with plots.")
    ] = None,
    as_json: Json = False,
    log_level: LogLevel = "warning",
) -> None:
    """Summarize batch headers with Spark SQL: codecs, sizes, verdicts; exit 4: damage.

    Example: mirror census configs/quickstart.yaml --report census.html
    """
    from mirror.commands.census import census as take_census

    logs.configure(json=as_json, level=log_level)
    exit_code = take_census(
        target,
        side=side,
        topics=topics or (),
        measured=ratio,
        records=records,
        report_file=report,
        as_json=as_json,
    )
    raise typer.Exit(exit_code)


@app.command("import-mm2")
def import_mm2(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="MirrorMaker 2's properties file.", show_default=False)],
    output: Annotated[str, typer.Option("--output", metavar="DIR", help="Folder to write to; - is stdout.")] = "-",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Translate MirrorMaker 2's mm2.properties: one YAML file per flow, and a reason for each key left out.

    Example: mirror import-mm2 mm2.properties --output configs
    """
    from mirror.commands.import_mm2 import translate_file

    raise typer.Exit(translate_file(file, output, as_json=as_json))


@app.command()
def demo(as_json: Json = False) -> None:
    """Run two real clusters, eight topics and a live mirror, and prove that the copy is equal; about a minute.

    Example: mirror demo
    """
    from mirror.lab.commands.demo import demo as play_demo

    raise typer.Exit(play_demo(as_json=as_json))


settings = typer.Typer(help="A flow's settings.", no_args_is_help=True)
app.add_typer(settings, name="config")


@settings.command("show")
def config_show(config_file: ConfigFile, as_json: Json = False) -> None:
    """Validate the file and show the effective settings; defaults are marked, secrets are not shown.

    Example: mirror config show configs/quickstart.yaml
    """
    from mirror.commands.config import show

    raise typer.Exit(show(config_file, as_json=as_json))


app.add_typer(embedded, name="embedded")
app.add_typer(bench, name="bench")


def main() -> NoReturn:
    """Run the command line; an error of ours becomes one message and its exit code, anything else shows its trace."""
    given = sys.stdout
    results: Any = Results(given)
    sys.stdout = results
    code: int = ExitCode.DONE
    try:
        app()
    except MirrorError as error:
        with contextlib.suppress(OSError, ValueError):  # stderr may be full or gone; the code still says it
            if _Shown.traces:
                traceback.print_exception(error)
            print(f"mirror: {error}", file=sys.stderr, flush=True)
        code = error.exit_code
    except KeyboardInterrupt:
        code = 130
    except SystemExit as ended:
        if isinstance(ended.code, str):
            raise
        code = ended.code or ExitCode.DONE
    finally:
        sys.stdout = given
    sys.exit(results.end(code))
