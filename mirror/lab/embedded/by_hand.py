"""Clusters that outlive the command that started them: `mirror embedded up`, `down` and `list`.

Each is described by `NAME.json` in the user's state folder, written as soon as its processes run, with its data in the
folder NAME beside it. A process is known by its id and its start time, so one that merely got a reused id is never
signalled.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from mirror.errors import ConfigError, EmbeddedError
from mirror.lab.embedded.cluster import Cluster, Spec, started
from mirror.lab.embedded.jars import locked
from mirror.lab.embedded.node import GRACE_S, Config, Identity, stop_all

#: Stands for every cluster, so none may be called so.
ALL: Final = "all"
NAME_PATTERN: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,40}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One node of a cluster that was started by hand."""

    id: int
    port: int
    process: Identity


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingCluster:
    """A cluster that was started by hand and not yet taken down, whether its nodes still run or not."""

    name: str
    cluster_id: str
    folder: Path
    nodes: tuple[Member, ...]

    @property
    def bootstrap(self) -> str:
        """`bootstrap.servers`: every node's host:port."""
        return ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    @property
    def alive(self) -> int:
        """How many nodes run."""
        return sum(node.process.alive for node in self.nodes)


_ADAPTER: Final = TypeAdapter(StandingCluster)


def up(name: str, nodes: int = 1, config: Config | None = None) -> StandingCluster:
    """Starts a cluster that stays until `down(name)`. Raises EmbeddedError, also when the name is in use."""
    if not NAME_PATTERN.fullmatch(name) or name == ALL:
        raise EmbeddedError(
            f"{name!r} is no name for a cluster: use a-z, 0-9, '.', '_' and '-', at most 41 characters, and not {ALL!r}"
        )
    with _registry() as folder:
        record = folder / f"{name}.json"
        if record.exists():
            standing = _read(record)
            if standing.alive:
                raise EmbeddedError(f"{name} is up at {standing.bootstrap}: take it down first, or choose another name")
            _take_down(record)
        spec = Spec(nodes=nodes, name=name, folder=folder / name, config=config or {})
        try:
            started(spec, detached=True, on_launch=lambda cluster: _write(record, cluster)).let_go()
        except BaseException:
            record.unlink(missing_ok=True)
            raise
        return _read(record)


def down(name: str) -> tuple[str, ...]:
    """Stops one cluster, or `all`, and removes its folder; returns the names. Raises ConfigError if there is none."""
    with _registry() as folder:
        records = [record for record in sorted(folder.glob("*.json")) if name in (ALL, record.stem)]
        if not records and name != ALL:
            raise ConfigError(f"no cluster {name}: `mirror embedded list` shows those that are there")
        for record in records:
            _take_down(record)
        return tuple(record.stem for record in records)


def named(name: str) -> StandingCluster:
    """The cluster of that name. Raises EmbeddedError if there is none, or none of its nodes runs."""
    for cluster in standing():
        if cluster.name == name and cluster.alive:
            return cluster
    raise EmbeddedError(f"no cluster {name} is up: `mirror embedded list` shows those that are there")


def standing() -> tuple[StandingCluster, ...]:
    """All clusters that were started by hand, by name."""
    return tuple(_read(record) for record in sorted(_state_folder().glob("*.json")))


def _state_folder() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "mirror" / "embedded"


@contextmanager
def _registry() -> Iterator[Path]:
    folder = _state_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / "lock"):
        yield folder


def _take_down(record: Path) -> None:
    standing = _read(record)
    stop_all([node.process for node in standing.nodes], GRACE_S)
    shutil.rmtree(standing.folder, ignore_errors=True)
    record.unlink()


def _write(record: Path, cluster: Cluster) -> None:
    members = tuple(Member(id=node.id, port=node.port, process=node.process) for node in cluster.nodes if node.process)
    standing = StandingCluster(name=cluster.name, cluster_id=cluster.cluster_id, folder=cluster.folder, nodes=members)
    scratch = record.with_suffix(".part")
    scratch.write_bytes(_ADAPTER.dump_json(standing, indent=2))
    scratch.replace(record)


def _read(record: Path) -> StandingCluster:
    try:
        return _ADAPTER.validate_json(record.read_bytes())
    except ValidationError as error:
        raise EmbeddedError(
            f"{record} cannot be read ({error!r}): end its brokers by hand and remove the file"
        ) from error
