"""Mends that can be taken out again, each by a patch in this folder, so that the adversary is held to finding what they
mend: `NAME.patch` is a unified diff against the mirror as it is, with lines before it that say what it takes out and
within how many schedules, from which seed on, that is found:

    Settings of a topic that was made anew go to the copy of the old one.
    Finds: I1 settings were changed
    Seed: 1000
    Schedules: 40

Of the schedule of one seed a part may be enough, which is played in seconds, as the command line takes it; what it
plays is said beside it, so that a change of what seeds mean shows:

    Only: 0,3,4
    Plays: produce(a, amount=9, kind=plain); run(a); verify(a)

And a seed may be one of another repertoire than "clusters":

    Repertoire: settings

Of "rekeyed", whose schedules are sessions of re-keyed topics, `Only` has topics.

A patch is applied to a copy of the package alone. Several mechanisms may keep one promise: a patch takes out as many as
it needs for the adversary to see it broken.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import mirror

#: The repertoire of a seed that is one of `adversary.rekeyed`.
REKEYED: Final = "rekeyed"
FOLDER: Final = Path(__file__).resolve().parent
PACKAGE: Final = Path(mirror.__file__).resolve().parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Mend:
    """What a patch takes out: `finds` are kinds of findings, of which one must be found within `schedules` from `seed`
    on, of a `repertoire`, by the operations, or re-keyed topics, `only` of each (empty: all), which are `plays`.
    """

    name: str
    about: str
    finds: tuple[str, ...]
    seed: int
    schedules: int
    only: tuple[int, ...]
    plays: str
    repertoire: str
    patch: Path

    @classmethod
    def read(cls, path: Path) -> Self:
        """From a patch. Raises KeyError and ValueError for one that does not say all of it."""
        about, reported = [], dict[str, str]()
        for line in path.read_text().splitlines():
            if line.startswith("--- "):
                break
            name, colon, value = line.partition(": ")
            if colon and name in {"Finds", "Seed", "Schedules", "Only", "Plays", "Repertoire"}:
                reported[name] = value
            else:
                about.append(line)
        return cls(
            name=path.stem,
            about=" ".join(about).strip(),
            finds=tuple(reported["Finds"].split("; ")),
            seed=int(reported["Seed"]),
            schedules=int(reported.get("Schedules", 1)),
            only=tuple(map(int, filter(None, reported.get("Only", "").split(",")))),
            plays=reported.get("Plays", ""),
            repertoire=reported.get("Repertoire", "clusters"),
            patch=path,
        )


def mends() -> list[Mend]:
    """All of them, by name."""
    return [Mend.read(path) for path in sorted(FOLDER.glob("*.patch"))]


@contextmanager
def without(name: str) -> Iterator[Path]:
    """A folder with a copy of the mirror's package that has one mend less. Raises ValueError where there is no such
    mend, or where its patch does not fit any more.
    """
    path = FOLDER / f"{name}.patch"
    if not path.exists():
        raise ValueError(f"no mend {name}: there are {', '.join(one.name for one in mends())}")
    with tempfile.TemporaryDirectory(prefix="mirror-without-") as folder:
        shutil.copytree(PACKAGE, Path(folder) / "mirror", ignore=shutil.ignore_patterns("__pycache__"))
        command = ["patch", "--strip", "1", "--batch", "--forward", "--fuzz", "2", "--input", str(path)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ValueError(f"{path.name} does not fit the mirror any more: {done.stdout}{done.stderr}")
        yield Path(folder)
