"""Beside the epochs: looks for what is new on the clusters, and in the configuration when told to by SIGHUP."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Protocol

from mirror.assignment import Assignment
from mirror.background import in_background
from mirror.config import Settings
from mirror.config.reloading import reloaded
from mirror.errors import ClusterError, ConfigError, MalformedBatch, PreflightError
from mirror.observe import logs
from mirror.offsets.firstseen import FirstSeen
from mirror.policy.rekeying import Rekeying
from mirror.spark.flow import Refusal
from mirror.spark.renewal import Look, Renewal


class Mirroring(Protocol):
    """The mirror that is looked out for."""

    @property
    def assignments(self) -> Sequence[Assignment] | None:
        """What is mirrored now; None while a plan that was found waits to be adopted."""

    @property
    def seen(self) -> Mapping[str, FirstSeen]:
        """By target topic, as what its source was first seen."""

    @property
    def sound(self) -> Collection[str]:
        """The target topics whose every partition a task of this process found to be its source's, or copied to."""

    async def refuse(self, refused: Sequence[Refusal]) -> None:
        """These topics are left out for now."""

    async def found(self, look: Look) -> None:
        """There is something else to mirror."""

    def rekey(self, rules: Sequence[Rekeying]) -> None:
        """These topics are to be re-keyed, those that are already as before."""

    def configured(self, settings: Settings) -> None:
        """Other settings hold from now on."""


class Lookout:
    """One flow's; its mirror is told of what it finds."""

    def __init__(self, renewal: Renewal, reload: Callable[[], Settings]) -> None:
        """`reload` reads the configuration again, and may raise ConfigError."""
        self._renewal, self._reload = renewal, reload
        self._asked = asyncio.Event()
        self._is_due = False  # the configuration is to be read again
        self._failing = ""
        self._log = logs.get("mirror.sync").bind(flow=renewal.settings.flow)

    def read_again(self) -> None:
        """Read the configuration again, and look at once."""
        self._asked.set()

    async def run(self, mirror: Mirroring) -> None:
        """Until cancelled. A look that fails is told once, and the next one may do."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._renewal.rest):
                    await self._asked.wait()
            if self._asked.is_set():
                self._asked.clear()
                self._is_due = True
            if self._is_due:
                self._is_due = not await self._take_over(mirror)
            if (current := mirror.assignments) is None:
                continue  # compared with what ends, the same plan looks new again, and a deleted copy like one to keep
            try:
                before = tuple(current)
                look = await in_background(partial(self._renewal.look, before, mirror.seen, mirror.sound))
            except (ClusterError, PreflightError, MalformedBatch) as problem:
                if str(problem) != self._failing:
                    self._log.warning("clusters_not_looked_at", reason=str(problem))
                self._failing = str(problem)
                continue
            self._failing = ""
            mirror.rekey(look.rekeyed)
            await mirror.refuse(look.refused)
            if look.made or look.anew or look.assignments != before:
                await mirror.found(look)

    async def _take_over(self, mirror: Mirroring) -> bool:
        """Take over what can change while running. A configuration with a mistake, or one that preflight refuses where
        it does not refuse the old one, is refused whole, and the old one stays: half of it may be what nobody wants,
        as an include with a typo that matches no topic. False while no cluster can be asked whether it is.
        """
        try:
            found = reloaded(self._renewal.settings, self._reload())
            if fixed := [name for name in found.in_vain if name.startswith("topics.")]:
                raise ConfigError(
                    f"{' and '.join(fixed)} cannot change while the mirror runs, and the rest of topics is meant to "
                    "go with it: start the mirror anew"
                )
            if found.changed:
                refusals = await in_background(partial(self._renewal.refusals_of, found.settings, mirror.seen))
                if refusals:
                    raise ConfigError("; ".join(refusals))
        except (ConfigError, PreflightError) as problem:
            self._log.error("configuration_refused", reason=str(problem))
            return True
        except (ClusterError, MalformedBatch) as problem:
            if str(problem) != self._failing:
                self._log.warning("configuration_waits", reason=str(problem))
            self._failing = str(problem)
            return False
        self._renewal.settings = found.settings
        self._log.info("configuration_read", changed=list(found.changed), needs_restart=list(found.in_vain))
        if found.changed:
            mirror.configured(found.settings)
        return True
