"""`mirror import-mm2`: a MirrorMaker 2 configuration as ours, a file for each flow, and what was left out on stderr."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from mirror.errors import ConfigError, ExitCode
from mirror.mm2.importing import Imported, imported, printable, strays
from mirror.mm2.properties import Note
from mirror.rendering import count, print_json


def translate_file(path: Path, output: str, *, as_json: bool) -> ExitCode:
    """Write the flows of a file into the folder `output`, or to stdout where that is `-`.

    Raises ConfigError as `imported` does, for a file that cannot be read or written, and for one that is there already.
    """
    try:
        data = path.read_bytes()
    except OSError as problem:
        raise ConfigError(f"{path}: cannot be read: {problem.strerror}") from problem
    flows = imported(data, path.name, Path() if output == "-" else Path(output))
    others = strays(data)
    if output != "-":
        _write(Path(output), flows)
    if as_json:
        print_json({"flows": [asdict(flow) for flow in flows], "strays": [asdict(note) for note in others]})
    elif output == "-":
        print("---\n".join(flow.text for flow in flows), end="")
    _report(flows, others, path)
    return ExitCode.DONE


def _write(folder: Path, flows: Sequence[Imported]) -> None:
    paths = [folder / f"{flow.name}.yaml" for flow in flows]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, flow in zip(paths, flows, strict=True):
            with path.open("x", encoding="utf-8") as file:
                file.write(flow.text)
            print(f"{path} written", file=sys.stderr)
    except FileExistsError as problem:
        raise ConfigError(f"{problem.filename}: is there already; move it away, or name another --output") from problem
    except OSError as problem:
        raise ConfigError(f"{problem.filename}: cannot be written: {problem.strerror}") from problem


def _report(flows: Sequence[Imported], others: Sequence[Note], path: Path) -> None:
    """What a person has to know, once, even where it is about several flows."""
    variables = {variable.name: variable.holds for flow in flows for variable in flow.variables}
    notes = dict.fromkeys([*(note for flow in flows for note in flow.notes), *others])
    for name, holds in variables.items():
        print(f"set {name}: {printable(holds)}", file=sys.stderr)
    for note in sorted(notes, key=lambda note: (note.line, note.key)):
        print(f"{path}: {printable(str(note))}", file=sys.stderr)
    print(f"{count(len(flows), 'flow')}; {count(len(notes), 'key')} without an equivalent", file=sys.stderr)
