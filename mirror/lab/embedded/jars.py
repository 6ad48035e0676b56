"""Programs for the JVM as they are published: fetched once, kept in the cache folder, and checked.

The jars are resolved by the Ivy that PySpark ships, so nothing but Java and PySpark is needed, and are compared with
the sums in `kafka_2.13-4.3.0.sha256` each time (44 MB take a tenth of a second). They are retrieved into a folder of
their own and moved into place in one step: a folder that has the final name is whole.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from mirror import host
from mirror.errors import EmbeddedError
from mirror.host import find

# --- The published broker ---------------------------------------------------------------------------------------------

KAFKA_VERSION: Final = "4.3.0"
RESOURCES: Final = Path(__file__).parent
SUMS: Final = RESOURCES / f"kafka_2.13-{KAFKA_VERSION}.sha256"
#: The Java that runs the jars. Raises ConfigError.
java: Final = find


def classpath() -> str:
    """Fetches the jars if need be, checks their sums and returns them as a class path. Raises EmbeddedError."""
    return os.pathsep.join(str(jar) for jar in fetch())


def jars_folder() -> Path:
    """Where the jars are kept, with what is derived from them."""
    return host.cache_folder() / f"kafka-{KAFKA_VERSION}"


def fetch(folder: Path | None = None, retrieve: Callable[[Path], None] | None = None) -> list[Path]:
    """The checked jars in `folder` (default: in the cache), fetched with `retrieve` when it is not there.

    One process fetches while others wait for it. Raises EmbeddedError that names the jar whose sum is wrong.
    """
    folder = folder or jars_folder()
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder.with_name(f"{folder.name}.lock")):
            if not folder.exists():
                _fetch_into(folder, retrieve or _retrieve)
    return check(folder, expected_sums())


def check(folder: Path, sums: Mapping[str, str]) -> list[Path]:
    """The jars of `folder` in the order of `sums`. Raises EmbeddedError for one that is missing or has another sum."""
    jars = [folder / name for name in sums]
    for jar in jars:
        try:
            with jar.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            found = "no such file"
        if found != sums[jar.name]:
            raise EmbeddedError(
                f"{jar}: SHA-256 is {found}, expected {sums[jar.name]}: remove {folder} to fetch the jars again"
            )
    return jars


@cache
def expected_sums() -> Mapping[str, str]:
    """Jar name -> SHA-256 in hex, as recorded when the version was chosen."""
    pairs = (line.split() for line in SUMS.read_text(encoding="ascii").splitlines())
    return {name: digest for digest, name in pairs}


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock on `path`; the system lets go of it when the process dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch_into(folder: Path, retrieve: Callable[[Path], None]) -> None:
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}.", dir=folder.parent) as scratch:
        fresh = Path(scratch) / "jars"
        retrieve(fresh)
        check(fresh, expected_sums())
        fresh.rename(folder)


def _retrieve(into: Path, wanted: Path = RESOURCES / "ivy.xml", name: str = f"Kafka {KAFKA_VERSION}") -> None:
    """Run Ivy. Its own cache lies beside `into` and goes with it: the jars alone are kept. Raises EmbeddedError."""
    command = [java(), "-XX:-UsePerfData", "-jar", str(ivy()), "-ivy", str(wanted), "-confs", "default"]
    command += ["-cache", str(into.with_name("ivy"))]
    command += ["-retrieve", f"{into}/[artifact]-[revision](-[classifier]).[ext]"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 or not into.is_dir():
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise EmbeddedError(f"could not fetch {name}; is there a network? Ivy said:\n{tail}")


def ivy() -> Path:
    """The Ivy that PySpark ships. Raises EmbeddedError."""
    # Looked up, not imported: importing pyspark takes longer than checking the jars.
    spec = importlib.util.find_spec("pyspark")
    found = sorted(Path(spec.origin).parent.glob("jars/ivy-*.jar")) if spec and spec.origin else []
    if not found:
        raise EmbeddedError("no Ivy jar in PySpark's jars folder: install pyspark 4.3 from its own distribution")
    return found[-1]


# --- Programs for the Java virtual machine as they are published ------------------------------------------------------

_MODULE: Final = """\
<ivy-module version="2.0">
  <info organisation="mirror" module="bench"/>
  <dependencies>
{}
  </dependencies>
</ivy-module>
"""


@dataclass(frozen=True, slots=True)
class Module:
    """One published module with all that it needs at run time, but for the organisations `without`."""

    organisation: str
    name: str
    revision: str
    without: tuple[str, ...] = ()

    def as_xml(self) -> str:
        """As Ivy wants to have it."""
        excluded = "".join(f'<exclude org="{one}"/>' for one in self.without)
        conf = "default-&gt;runtime(*),master(*)"
        where = f'org="{self.organisation}" name="{self.name}" rev="{self.revision}" conf="{conf}"'
        return f"    <dependency {where}>{excluded}</dependency>"


def fetched(name: str, modules: Iterable[Module]) -> Path:
    """Return the folder `name` of the cache with these jars; they are fetched when it is not there yet.

    Raises EmbeddedError.
    """
    folder = host.cache_folder() / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(f"{name}.lock")), tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        if not folder.exists():
            wanted, fresh = Path(scratch) / "ivy.xml", Path(scratch) / "jars"
            wanted.write_text(_MODULE.format("\n".join(module.as_xml() for module in modules)), encoding="utf-8")
            _retrieve(fresh, wanted, name)
            fresh.rename(folder)
    return folder


def jars(folder: Path) -> list[Path]:
    """Of a folder of `fetched`."""
    return sorted(folder.glob("*.jar"))


def classpath_of(folder: Path) -> str:
    """The same as Java wants to have it."""
    return os.pathsep.join(map(str, jars(folder)))
