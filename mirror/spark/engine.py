"""Spark's JVM as the driver's event loop sees it: it may hang, or find its scratch folder gone, and nothing may wait
for it without an end.

E1  no call to the JVM is made on the event loop; each has a deadline, after which nobody waits for it any more
E2  a JVM that has not answered for `HANGS_SECONDS` is lost: it is ended, and the mirror with it. Its tasks, which are
    processes of their own, end when the driver does
E3  folders of Spark's scratch space that are gone are made again before a job; nothing that is needed is kept in them
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import psutil
from pyspark import SparkContext

from mirror.background import in_background
from mirror.errors import EngineLost
from mirror.observe import logs
from mirror.spark.session import is_alive

T = TypeVar("T")

#: How often the JVM is asked whether it lives, how long it may take to say so, and how long it may say nothing.
ASK_SECONDS: Final = 10.0
ANSWER_SECONDS: Final = 10.0
HANGS_SECONDS: Final = 60.0
#: How long Spark may take to stop.
STOP_SECONDS: Final = 4.0

_log = logs.get("mirror.supervisor")


async def asked(work: Callable[[], T], seconds: float) -> T:
    """What a call to the JVM gives. Raises TimeoutError where it takes longer (E1), and what the call raises."""
    async with asyncio.timeout(seconds):
        return await in_background(work)


async def may_live(context: SparkContext) -> bool:
    """False where the JVM is dead, or has stopped its side. One that does not answer may only hang."""
    try:
        return await asked(partial(is_alive, context), ANSWER_SECONDS)
    except TimeoutError:
        return True


class Engine:
    """One context's JVM."""

    def __init__(self, context: SparkContext) -> None:
        """To be made before the event loop runs."""
        self.context, self._scratch = context, Scratch.of(context)
        self._silent_since: float | None = None

    async def watch(self) -> None:
        """Until cancelled. Raises EngineLost where the JVM hangs (E2)."""
        clock = asyncio.get_running_loop()
        while True:
            try:
                await asked(partial(is_alive, self.context), ANSWER_SECONDS)
                self._silent_since = None
            except TimeoutError:
                self._silent_since = self._silent_since or clock.time() - ANSWER_SECONDS
                silent = clock.time() - self._silent_since
                _log.error("engine_silent", seconds=round(silent), text="Spark's JVM does not answer")
                if silent >= HANGS_SECONDS:
                    end_jvm()
                    raise EngineLost(
                        f"Spark's JVM hangs: it has not answered for {silent:.0f} s, and was ended. Nothing is lost:"
                        " start the mirror again"
                    ) from None
            await asyncio.sleep(ASK_SECONDS)

    def mend_scratch(self) -> None:
        """Make what is gone of Spark's scratch folders (E3)."""
        if made := self._scratch.mend():
            _log.error("scratch_folders_gone", made_again=made, text="something removed Spark's scratch folders")


class Scratch:
    """The folders that Spark made for itself on this machine; it remembers them, and does not look whether they are
    there.
    """

    def __init__(self, roots: list[Path]) -> None:
        self._roots, self._known = roots, set[Path]()
        self.mend()

    @classmethod
    def of(cls, context: Any) -> Scratch:
        """Those of a context in local mode: one of the driver, and one for blocks beside it."""
        own = getattr(context, "_temp_dir", None)  # .../spark-UUID/pyspark-UUID
        if own is None or not str(context.master).startswith("local"):
            return cls([])
        spark = Path(own).parent
        with contextlib.suppress(OSError):
            began = spark.stat().st_mtime - _NEAR_SECONDS
            blocks = [one for one in spark.parent.glob("blockmgr-*") if one.stat().st_mtime >= began]
            return cls([spark, *(one for one in blocks if one.stat().st_uid == os.geteuid())])
        return cls([spark])

    def mend(self) -> int:
        """Make again what was there and is not; how many that were."""
        made = 0
        for folder in sorted(self._known):
            if not folder.is_dir():
                with contextlib.suppress(OSError):  # the disk is full, or gone: the job tells
                    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                    made += 1
        for root in self._roots:
            self._known |= {Path(folder) for folder, _, _ in os.walk(root)}
        return made


#: Spark's folders of one start are made within so many seconds.
_NEAR_SECONDS: Final = 60.0


def end_jvm() -> None:
    """Kill the JVM that this process started, and what that started."""
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


def close_in_time(close: Callable[[], None]) -> None:
    """Stop Spark by `close`; where that hangs, kill its JVM."""
    closing = threading.Thread(target=close, daemon=True, name="mirror-closing")
    closing.start()
    closing.join(STOP_SECONDS)
    if closing.is_alive():
        _log.error("engine_killed", reason=f"Spark's JVM did not stop within {STOP_SECONDS:g} s")
        end_jvm()
