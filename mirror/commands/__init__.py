"""What each command shows: progress, tables, JSON. The work itself is done elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

# --- Arguments and options that several commands have, each with one name and one text --------------------------------

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="The flow's YAML file.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"],
    # With the four as its type, the help of a narrow terminal would break a word and leave half of it to the texts.
    typer.Option("--log-level", metavar="LEVEL", help="Minimum log level: debug, info, warning or error."),
]
Side = Annotated[
    Literal["source", "target"] | None,
    typer.Option("--side", help="Cluster of CONFIG to use: source or target. [source]"),
]
