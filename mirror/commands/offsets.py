"""`mirror offsets`: where an offset of one cluster is on the other, and from which one on a topic has a time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from mirror.commands import ConfigFile, Json, LogLevel, Side
from mirror.observability import logs

_TRANSLATE = "translate"


class _ConfigFirst(TyperGroup):
    """A flow's file comes first with every command, so `offsets CONFIG translate` is `offsets translate CONFIG`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.commands and _TRANSLATE in args:
            at = args.index(_TRANSLATE)
            args = [_TRANSLATE, *args[:at], *args[at + 1 :]]
        return super().resolve_command(ctx, args)


offsets = typer.Typer(cls=_ConfigFirst, help="Look up offsets by time or on the other cluster.", no_args_is_help=True)


@offsets.command("translate")
def offsets_translate(
    config_file: ConfigFile,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The source topic.", show_default=False)],
    partition: Annotated[int, typer.Argument(metavar="PARTITION", min=0, help="The partition.", show_default=False)],
    offset: Annotated[int, typer.Argument(metavar="OFFSET", min=0, help="The source offset.", show_default=False)],
    reverse: Annotated[bool, typer.Option("--reverse", help="OFFSET is a target offset: print the source's.")] = False,
    as_json: Json = False,
    log_level: LogLevel = "info",
) -> None:
    """Translate an offset of one cluster to the other, exactly. CONFIG may also come before `translate`.

    Example: mirror offsets translate configs/quickstart.yaml orders 3 1500
    """
    from mirror import config
    from mirror.commands.offsets_translate import translate

    logs.configure(json=False, level=log_level)
    settings = config.load(config_file)
    raise typer.Exit(translate(settings, topic, partition, offset, reverse=reverse, as_json=as_json))


@offsets.command("find")
def offsets_find(
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="TOPIC for all partitions, or TOPIC:PARTITION.", show_default=False)
    ],
    time: Annotated[
        str,
        typer.Option(
            "--time", metavar="WHEN", help="ISO 8601 time, as in topics.start; UTC without a zone.", show_default=False
        ),
    ],
    config_file: Annotated[
        Path | None, typer.Option("--config", metavar="CONFIG", help="A flow's YAML file: search one of its clusters.")
    ] = None,
    side: Side = None,
    bootstrap: Annotated[
        str | None, typer.Option("--bootstrap", metavar="HOST:PORT", help="Search this cluster.")
    ] = None,
    folders: Annotated[
        list[Path] | None,
        typer.Option(
            "--from", metavar="DIR", help="A broker's data folder: search its segment files; may be repeated."
        ),
    ] = None,
    scan: Annotated[bool, typer.Option("--scan", help="Read every segment file and ignore time indexes.")] = False,
    as_json: Json = False,
) -> None:
    """Find, in each partition, the first offset whose record has this timestamp or a later one.

    Example: mirror offsets find orders --time 2026-01-31T12:00Z --from data

    Example: mirror offsets find orders:3 --time 2026-01-31 --config eu-to-us.yaml
    """
    from mirror.commands.offsets_find import Where, find

    where = Where(config=config_file, side=side, bootstrap=bootstrap, folders=tuple(folders or ()), scan=scan)
    raise typer.Exit(find(topic, time, where, as_json=as_json))
