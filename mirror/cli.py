"""The `mirror` command: each command does one thing, says what it did, and ends with a code that scripts can act on."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from mirror import __version__, config
from mirror.errors import ExitCode, MirrorError
from mirror.observe import logs

app = typer.Typer(
    name="mirror",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="The flow's YAML file.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"], typer.Option("--log-level", help="The least that is logged.")
]
Topics = Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Source topics.", show_default=False)]
Clusters = Annotated[str, typer.Argument(help="The cluster's name, or all.", show_default=False)]


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
    as_json: Annotated[bool, typer.Option("--json", help="Write the logs, on stderr, as JSON.")] = False,
    log_level: LogLevel = "info",
) -> None:
    """Mirror topics until stopped.

    Example: mirror run configs/quickstart.yaml --once
    """
    from mirror.commands.run import run_flow

    if once and until_caught_up:
        raise typer.BadParameter("--once and --until-caught-up exclude each other: choose where to end")
    logs.configure(json=as_json, level=log_level)
    raise typer.Exit(run_flow(partial(config.load, config_file), once=once, until_caught_up=until_caught_up))


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
    as_json: Json = False,
    log_level: LogLevel = "info",
) -> None:
    """Prove that the copy is equal, batch by batch: exit code 0 if it is, 5 with every difference named.

    Example: mirror verify configs/quickstart.yaml --topic orders --report proof.html
    """
    from mirror.commands.verify import verify as verify_flow

    logs.configure(json=as_json, level=log_level)
    settings = config.load(config_file)
    told = verify_flow(settings, topics or (), as_json=as_json, report_file=report, resume=resume, spark=spark)
    raise typer.Exit(told)


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
    log_level: LogLevel = "info",
) -> None:
    """Go on behind records that the source deleted before they were mirrored (state RETENTION_GAP).

    Example: mirror accept configs/quickstart.yaml orders --partition 3
    """
    from mirror.commands.accept import accept as accept_loss

    logs.configure(json=False, level=log_level)
    raise typer.Exit(accept_loss(config.load(config_file), topic, tuple(partitions or ())))


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
def pause(config_file: ConfigFile, topics: Topics, log_level: LogLevel = "info") -> None:
    """Let topics rest until `mirror resume`, over restarts too; a running mirror stops them within seconds.

    Example: mirror pause configs/quickstart.yaml orders
    """
    from mirror.commands.pause import pause as pause_topics

    logs.configure(json=False, level=log_level)
    raise typer.Exit(pause_topics(config.load(config_file), topics))


@app.command()
def resume(config_file: ConfigFile, topics: Topics, log_level: LogLevel = "info") -> None:
    """Let paused topics go on, from where they stand.

    Example: mirror resume configs/quickstart.yaml orders
    """
    from mirror.commands.pause import resume as resume_topics

    logs.configure(json=False, level=log_level)
    raise typer.Exit(resume_topics(config.load(config_file), topics))


@app.command()
def offsets(
    config_file: ConfigFile,
    action: Annotated[
        Literal["translate"], typer.Argument(metavar="translate", help="Look up an offset.", show_default=False)
    ],
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The source topic.", show_default=False)],
    partition: Annotated[int, typer.Argument(metavar="PARTITION", min=0, help="Its number.", show_default=False)],
    offset: Annotated[int, typer.Argument(metavar="OFFSET", min=0, help="The source's.", show_default=False)],
    reverse: Annotated[bool, typer.Option("--reverse", help="OFFSET is the target's; where is it from?")] = False,
    as_json: Json = False,
    log_level: LogLevel = "info",
) -> None:
    """Tell where an offset of one cluster is on the other, exactly.

    Example: mirror offsets configs/quickstart.yaml translate orders 3 1500
    """
    from mirror.commands.offsets import translate

    assert action == "translate"
    logs.configure(json=False, level=log_level)
    settings = config.load(config_file)
    raise typer.Exit(translate(settings, topic, partition, offset, reverse=reverse, as_json=as_json))


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
    side: Annotated[
        Literal["source", "target"] | None, typer.Option("--side", help="Which cluster of CONFIG; the source.")
    ] = None,
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
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines: each batch, then totals.")] = False,
) -> None:
    """Show the batches of a segment file or a live topic: headers, codecs, verdicts, damage (exit code 4).

    Example: mirror inspect data/orders-0/00000000000000000000.log --summary
    """
    from mirror.commands.inspect import inspect as inspect_log
    from mirror.commands.logview import Wish

    wish = Wish(first=first, limit=limit, summary=summary, as_json=as_json, ratio=ratio)
    raise typer.Exit(inspect_log(target, wish, config=config_file, side=side, bootstrap=bootstrap))


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


embedded = typer.Typer(help="Real Kafka brokers on loopback, for trying things.", no_args_is_help=True)
app.add_typer(embedded, name="embedded")


@embedded.command("up")
def embedded_up(
    name: Annotated[str, typer.Argument(help="A name for the cluster.")] = "kafka",
    nodes: Annotated[int, typer.Option(min=1, max=3, help="Brokers in the cluster.")] = 1,
) -> None:
    """Start a cluster that stays up when this command ends; prints its bootstrap address.

    Example: mirror embedded up eu --nodes 3
    """
    from mirror.embedded import byhand

    print(byhand.up(name, nodes).bootstrap)


@embedded.command("fill")
def embedded_fill(
    name: Annotated[str, typer.Argument(help="The cluster's name.", show_default=False)],
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Made if need be.", show_default=False)],
    records: Annotated[int, typer.Option(min=1, help="Records for each topic.")] = 10_000,
) -> None:
    """Write made-up records to topics of a cluster that was started by hand.

    Example: mirror embedded fill eu orders clicks-web --records 50000
    """
    from mirror.demo.fill import fill
    from mirror.embedded import byhand

    for topic, held in fill(name, byhand.named(name).bootstrap, topics, records).items():
        print(f"{topic} holds {held:,} records")


@embedded.command("down")
def embedded_down(name: Clusters) -> None:
    """Stop a cluster, or all of them, and remove the data.

    Example: mirror embedded down eu
    """
    from mirror.embedded import byhand

    for ended in byhand.down(name):
        print(f"{ended} is down")


@embedded.command("list")
def embedded_list(as_json: Json = False) -> None:
    """Show the clusters that were started by hand.

    Example: mirror embedded list --json
    """
    from mirror.commands.tables import clusters
    from mirror.embedded import byhand

    clusters(byhand.standing(), as_json)


def main() -> NoReturn:
    """Run the command line; an error of ours becomes one message and its exit code, anything else shows its trace."""
    try:
        app()
    except MirrorError as error:
        print(f"mirror: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(ExitCode.DONE)
