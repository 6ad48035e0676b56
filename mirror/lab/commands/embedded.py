"""`mirror embedded`: real brokers on loopback, by hand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from mirror.commands import Json
from mirror.rendering import console, print_json, table

if TYPE_CHECKING:
    from mirror.lab.embedded.by_hand import StandingCluster

Clusters = Annotated[str, typer.Argument(help="The cluster's name, or `all`.", show_default=False)]

embedded = typer.Typer(help="Real Kafka brokers on loopback, to try things.", no_args_is_help=True)


@embedded.command("up")
def embedded_up(
    name: Annotated[str, typer.Argument(help="A name for the cluster.")] = "kafka",
    nodes: Annotated[int, typer.Option(min=1, max=3, help="Brokers in the cluster.")] = 1,
) -> None:
    """Start a cluster that keeps running after this command, and print its bootstrap address.

    Example: mirror embedded up eu --nodes 3
    """
    from mirror.lab.embedded import by_hand

    print(by_hand.up(name, nodes).bootstrap)


@embedded.command("fill")
def embedded_fill(
    name: Annotated[str, typer.Argument(help="The cluster's name.", show_default=False)],
    topics: Annotated[
        list[str], typer.Argument(metavar="TOPIC...", help="Topics; created if missing.", show_default=False)
    ],
    records: Annotated[int, typer.Option(min=1, help="Records for each topic.")] = 10_000,
) -> None:
    """Write generated records to topics of an embedded cluster.

    Example: mirror embedded fill eu orders clicks-web --records 50000
    """
    from mirror.lab.demo.producers import fill
    from mirror.lab.embedded import by_hand

    for topic, held in fill(name, by_hand.named(name).bootstrap, topics, records).items():
        print(f"{topic} holds {held:,} records")


@embedded.command("down")
def embedded_down(name: Clusters) -> None:
    """Stop a cluster, or all of them, and delete the data.

    Example: mirror embedded down eu
    """
    from mirror.lab.embedded import by_hand

    for ended in by_hand.down(name):
        print(f"{ended} is down")


@embedded.command("list")
def embedded_list(as_json: Json = False) -> None:
    """List embedded clusters.

    Example: mirror embedded list --json
    """
    from mirror.lab.embedded import by_hand

    show(by_hand.standing(), as_json)


def show(standing: Iterable[StandingCluster], as_json: bool) -> None:
    """What `mirror embedded list` prints."""
    found = list(standing)
    if as_json:
        print_json(
            [
                {
                    "name": cluster.name,
                    "bootstrap": cluster.bootstrap,
                    "alive": cluster.alive,
                    "nodes": len(cluster.nodes),
                    "cluster_id": cluster.cluster_id,
                    "folder": str(cluster.folder),
                }
                for cluster in found
            ]
        )
        return
    out = console()
    if not found:
        out.print("No clusters. Start one: mirror embedded up")
        return
    shown = table(("name", "no_wrap"), "state", ("nodes", "right"), "bootstrap.servers")
    for one in found:
        shown.add_row(one.name, _style(one), f"{one.alive}/{len(one.nodes)}", one.bootstrap)
    out.print(shown)


def _style(cluster: StandingCluster) -> Text:
    if not cluster.alive:
        return Text("down", "red")
    return Text("up", "green") if cluster.alive == len(cluster.nodes) else Text("partly up", "yellow")
