"""Programs for the Java virtual machine as they are published: fetched once by Ivy, kept in the user's cache folder."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mirror import folders
from mirror.embedded.jars import ivy, java, locked
from mirror.errors import BenchError

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
    """The folder `name` of the cache with these jars; fetched when it is not there yet. Raises BenchError."""
    folder = folders.cache() / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(f"{name}.lock")), tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        if not folder.exists():
            wanted, fresh = Path(scratch) / "ivy.xml", Path(scratch) / "jars"
            wanted.write_text(_MODULE.format("\n".join(module.as_xml() for module in modules)), encoding="utf-8")
            pattern = f"{fresh}/[artifact]-[revision](-[classifier]).[ext]"
            command = [java(), "-jar", str(ivy()), "-ivy", str(wanted), "-confs", "default"]
            command += ["-cache", f"{scratch}/cache", "-retrieve", pattern]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode or not fresh.is_dir():
                tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
                raise BenchError(f"could not fetch {name}; is there a network? Ivy said:\n{tail}")
            fresh.rename(folder)
    return folder


def jars(folder: Path) -> list[Path]:
    """Of a folder of `fetched`."""
    return sorted(folder.glob("*.jar"))


def classpath(folder: Path) -> str:
    """The same as Java wants to have it."""
    return os.pathsep.join(map(str, jars(folder)))
