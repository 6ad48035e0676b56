"""Work that blocks keeps no other from being done, nor the program from ending."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest
from waiting import until_true

from mirror.background import in_background

#: More than any pool of threads has by default.
MANY = 64


def test_what_hangs_keeps_nothing_else_waiting() -> None:
    """As lookups of a name server that is dead do, beside a Spark job and tokens that are asked for."""

    async def run() -> None:
        begun, over = threading.Semaphore(0), threading.Event()

        def hang() -> None:
            begun.release()
            over.wait()

        hanging = [asyncio.create_task(in_background(hang)) for _ in range(MANY)]
        try:
            for _ in hanging:
                await until_true(lambda: begun.acquire(blocking=False))
            assert await in_background(lambda: "done") == "done"
            assert not any(one.done() for one in hanging)
        finally:
            over.set()
            await asyncio.gather(*hanging)

    asyncio.run(run())


def test_what_is_raised_is_raised_where_it_is_awaited() -> None:
    def fail() -> None:
        raise ValueError("no such name")

    with pytest.raises(ValueError, match="no such name"):
        asyncio.run(in_background(fail))


def test_the_end_of_the_program_waits_for_nothing_that_hangs() -> None:
    script = """
import asyncio, threading
from mirror.background import in_background

async def run():
    begun = threading.Event()
    task = asyncio.ensure_future(in_background(lambda: (begun.set(), threading.Event().wait())))
    while not begun.is_set():
        await asyncio.sleep(0)
    task.cancel()

asyncio.run(run())
print("ended")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr
