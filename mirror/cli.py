"""The `mirror` command: each command does one thing, says what it did, and ends with a code that scripts can act on."""

from __future__ import annotations

import contextlib
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from mirror import __version__, config
from mirror.commands.bench import bench
from mirror.commands.embedded import embedded
from mirror.commands.offsets import offsets
from mirror.commands.options import ConfigFile, Json, LogLevel, Side
from mirror.commands.results import Results
from mirror.errors import ExitCode, MirrorError
from mirror.observe import logs

app = typer.Typer(
    name="mirror",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Topics = Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Source topics.", show_default=False)]


def _version(asked: bool) -> None:
    if asked:
        print(f"mirror {__version__}")
        raise typer.Exit


@app.callback()
def every(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Copies topics between Apache Kafka clusters without decompressing: same bytes, same offsets, exactly once."""


@app.command()
def run(
    config_file: ConfigFile,
    once: Annotated[bool, typer.Option("--once", help="Copy up to the source's ends of now, then exit.")] = False,
    until_caught_up: Annotated[
        bool, typer.Option("--until-caught-up", help="Exit when every partition has caught up.")
    ] = False,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Take the flow over from a mirror that runs, instead of standing by.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Write the logs, on stderr, as JSON.")] = False,
    log_level: LogLevel = "info",
) -> None:
    """Mirror topics until stopped. Where a mirror of the flow runs already, stand by until it ends.

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
    """Show what `mirror run` would make, change and refuse: exit code 0 for nothing to do, 10 for changes, 3 refused.

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
        Path | None, typer.Option("--report", metavar="FILE.html", help="Write the proof as a page, too.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume",
            metavar="FILE",
            help="Keep finished ranges there, and go on if there are some. [beside --report]",
        ),
    ] = None,
    spark: Annotated[
        bool | None, typer.Option("--spark/--no-spark", help="Read by tasks of Spark or not. [from 4 GB on]")
    ] = None,
    wait: Annotated[
        float,
        typer.Option(
            min=0, metavar="SECONDS", help="How long a mirror that runs may take to catch up with the source."
        ),
    ] = 10.0,
    as_json: Json = False,
    log_level: LogLevel = "info",
) -> None:
    """Prove that the copy is equal and whole: exit code 0 if it is, 5 if it differs, 7 if it is equal but not whole.

    Example: mirror verify configs/quickstart.yaml --topic orders --report proof.html
    """
    from mirror.commands.verify import verify as verify_flow

    logs.configure(json=as_json, level=log_level)
    settings = config.load(config_file)
    told = verify_flow(
        settings, topics or (), as_json=as_json, report_file=report, resume=resume, spark=spark, wait=wait
    )
    raise typer.Exit(told)


@app.command()
def restore(
    config_file: ConfigFile,
    folders: Annotated[
        list[Path],
        typer.Option("--from", metavar="DIR", help="Data folder of a broker; may be repeated.", show_default=False),
    ],
    skip_damage: Annotated[
        bool, typer.Option("--skip-damage", help="Leave out damaged batches, and go on behind them.")
    ] = False,
    with_settings: Annotated[
        bool, typer.Option("--settings/--no-settings", help="Set what the lost cluster had set on its topics.")
    ] = True,
    with_groups: Annotated[
        bool, typer.Option("--groups/--no-groups", help="Commit what its consumer groups had committed.")
    ] = True,
    take_over: Annotated[bool, typer.Option("--take-over", help="Take the flow from a mirror that runs it.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read every batch, and write nothing.")] = False,
    as_json: Json = False,
    log_level: LogLevel = "info",
) -> None:
    """Copy topics from the data folders of brokers that are gone: same bytes, same offsets, settings and groups.

    Exit code 4 where something is missing or damaged, each thing named; 10 for what --dry-run found.

    Example: mirror restore configs/quickstart.yaml --from /mnt/disk-of-broker-1 --from /mnt/disk-of-broker-2
    """
    from mirror.commands.restore import Wanted
    from mirror.commands.restore import restore as restore_flow

    logs.configure(json=as_json, level=log_level)
    wanted = Wanted(
        settings=with_settings, groups=with_groups, skip_damage=skip_damage, take_over=take_over, dry_run=dry_run
    )
    raise typer.Exit(restore_flow(config.load(config_file), folders, wanted, as_json=as_json))


@app.command()
def status(
    config_file: ConfigFile,
    watch: Annotated[bool, typer.Option("--watch", help="Show it anew each second, until Ctrl-C.")] = False,
    as_json: Json = False,
    log_level: LogLevel = "info",
) -> None:
    """Show where every partition stands, from anywhere that reaches the target cluster.

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
        list[int] | None, typer.Option("--partition", metavar="N", min=0, help="Only this one; may be repeated.")
    ] = None,
    unconfirmed: Annotated[
        bool, typer.Option("--unconfirmed", help="Also take a copy that nothing confirms any more for whole.")
    ] = False,
    as_json: Json = False,
    log_level: LogLevel = "info",
) -> None:
    """Go on behind records that are lost or cannot be copied, or from a copy that nothing confirms any more.

    Looks at both logs, and says what is accepted; exit code 4 where a partition stays stopped all the same.

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
    every: Annotated[bool, typer.Option("--all", help="Every topic that the flow selects.")] = False,
    ends_only: Annotated[
        bool, typer.Option("--ends-only", help="Compare the last batch of each partition, and not all records.")
    ] = False,
    as_json: Json = False,
    log_level: LogLevel = "warning",
) -> None:
    """Take over target topics that something else filled, where they are copies: exit code 5 if one is not.

    Example: mirror adopt configs/quickstart.yaml orders
    """
    from mirror.commands.adopt import adopt as adopt_topics

    if bool(topics) is every:
        raise typer.BadParameter("name the topics, or give --all")
    logs.configure(json=as_json, level=log_level)
    told = adopt_topics(config.load(config_file), topics or (), every=every, ends_only=ends_only, as_json=as_json)
    raise typer.Exit(told)


@app.command()
def failover(
    config_file: ConfigFile,
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="Do all of it but the end: nothing is stopped or moved.")
    ] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Let a flow run again that was failed over.")] = False,
    as_json: Json = False,
    log_level: LogLevel = "info",
) -> None:
    """Copy what is left, end the flow, put consumer groups where they go on, and tell RPO and RTO.

    Exit code 0: nothing is lost; 4: what is lost is named.

    Example: mirror failover configs/quickstart.yaml --rehearse
    """
    from mirror.commands.failover import failover as fail_over

    if rehearse and undo:
        raise typer.BadParameter("--rehearse and --undo exclude each other")
    logs.configure(json=as_json, level=log_level)
    raise typer.Exit(fail_over(config.load(config_file), rehearse=rehearse, undo=undo, as_json=as_json))


@app.command()
def pause(config_file: ConfigFile, topics: Topics, as_json: Json = False, log_level: LogLevel = "info") -> None:
    """Let topics rest until `mirror resume`, over restarts too; a running mirror stops them within seconds.

    Example: mirror pause configs/quickstart.yaml orders
    """
    from mirror.commands.pause import pause as pause_topics

    logs.configure(json=as_json, level=log_level)
    raise typer.Exit(pause_topics(config.load(config_file), topics, as_json=as_json))


@app.command()
def resume(config_file: ConfigFile, topics: Topics, as_json: Json = False, log_level: LogLevel = "info") -> None:
    """Let paused topics go on, from where they stand.

    Example: mirror resume configs/quickstart.yaml orders
    """
    from mirror.commands.pause import resume as resume_topics

    logs.configure(json=as_json, level=log_level)
    raise typer.Exit(resume_topics(config.load(config_file), topics, as_json=as_json))


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
    summary: Annotated[bool, typer.Option("--summary", help="Totals by codec and verdict alone.")] = False,
    ratio: Annotated[bool, typer.Option("--ratio", help="Decompress, and show compression ratios.")] = False,
    wide: Annotated[bool, typer.Option("--wide", help="All columns, however narrow the terminal.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines: each batch, then totals.")] = False,
) -> None:
    """Show the batches of a segment file or a live topic: headers, codecs, verdicts, damage (exit code 4).

    Example: mirror inspect data/orders-0/00000000000000000000.log --summary
    """
    from mirror.commands.inspect import inspect as inspect_log
    from mirror.commands.logview import Wish

    wish = Wish(first=first, limit=limit, summary=summary, as_json=as_json, ratio=ratio, wide=wide)
    raise typer.Exit(inspect_log(target, wish, config=config_file, side=side, bootstrap=bootstrap))


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
        list[str] | None, typer.Option("--topic", metavar="T", help="Only this topic there; may be repeated.")
    ] = None,
    ratio: Annotated[bool, typer.Option("--ratio", help="Decompress, for all compression ratios.")] = False,
    records: Annotated[
        bool, typer.Option("--records", help="Decode, for what the format costs each record of these topics.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE.html", help="Write it as a page with plots, too.")
    ] = None,
    as_json: Json = False,
    log_level: LogLevel = "warning",
) -> None:
    """Count what logs are made of, by Spark SQL over batch headers: codecs, sizes, verdicts (exit code 4: damage).

    Example: mirror census configs/quickstart.yaml --report census.html
    """
    from mirror.commands.census import census as take_census

    logs.configure(json=as_json, level=log_level)
    told = take_census(
        target,
        side=side,
        topics=topics or (),
        measured=ratio,
        records=records,
        report_file=report,
        as_json=as_json,
    )
    raise typer.Exit(told)


@app.command("import-mm2")
def import_mm2(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="MirrorMaker 2's properties.", show_default=False)],
    output: Annotated[str, typer.Option("--output", metavar="DIR", help="Where to write; - is stdout.")] = "-",
    as_json: Annotated[bool, typer.Option("--json", help="Print what was made of it as JSON.")] = False,
) -> None:
    """Translate MirrorMaker 2's mm2.properties: one YAML file for each flow, and a reason for each key left out.

    Example: mirror import-mm2 mm2.properties --output configs
    """
    from mirror.commands.import_mm2 import translate_file

    raise typer.Exit(translate_file(file, output, as_json=as_json))


@app.command()
def demo(as_json: Json = False) -> None:
    """Two real clusters, eight topics, a live mirror, and the proof that the copy is equal; about a minute.

    Example: mirror demo
    """
    from mirror.commands.demo import demo as play_demo

    raise typer.Exit(play_demo(as_json=as_json))


settings = typer.Typer(help="A flow's settings.", no_args_is_help=True)
app.add_typer(settings, name="config")


@settings.command("show")
def config_show(config_file: ConfigFile, as_json: Json = False) -> None:
    """Show the settings that hold, defaults included and marked, with secrets left out; also: is the file valid?

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
        with contextlib.suppress(OSError, ValueError):  # stderr may be full or gone; the code still tells
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
