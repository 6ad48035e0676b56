"""Spark's JVM and its scratch folders as the driver sees them, and notes to a service manager. No JVM runs here."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sparkless import InThisProcess
from waiting import DEADLINE_S, MovableClock, until

from mirror.commands import run
from mirror.errors import EngineLost
from mirror.spark import session
from mirror.spark.session import HANGS_SECONDS, Engine, Scratch

# --- a JVM that hangs -------------------------------------------------------------------------------------------------


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when the JVM is killed; it is asked again and again."""
    killed = threading.Event()
    monkeypatch.setattr(session, "end_jvm", killed.set)
    monkeypatch.setattr(session, "ASK_SECONDS", 0.01)
    return killed


def hangs(_: Any) -> bool:
    raise TimeoutError


def test_a_jvm_that_hangs_is_killed_and_one_that_answers_again_is_not(
    monkeypatch: pytest.MonkeyPatch, ended: threading.Event, clock: MovableClock
) -> None:
    context: Any = InThisProcess()
    answers = [hangs, lambda _: True, hangs, hangs]

    def asked(_: Any) -> bool:
        clock.move(HANGS_SECONDS - 10)
        return answers.pop(0)(context) if answers else hangs(context)

    monkeypatch.setattr(session, "is_alive", asked)
    with pytest.raises(EngineLost, match="Spark's JVM hangs: it has not answered for"):
        asyncio.run(Engine(context).watch())
    assert answers == [], "it was killed before its second silence"
    assert ended.is_set()


def test_a_command_that_waits_for_jobs_kills_a_jvm_that_hangs(
    monkeypatch: pytest.MonkeyPatch, ended: threading.Event, clock: MovableClock
) -> None:
    context: Any = InThisProcess()

    def asked(_: Any) -> bool:
        clock.move(HANGS_SECONDS)
        return hangs(context)

    monkeypatch.setattr(session, "is_alive", asked)
    with Engine(context).watched():
        assert ended.wait(DEADLINE_S), "the command waits for good"


def test_a_call_to_the_jvm_that_hangs_is_given_up_and_holds_up_nothing() -> None:
    answers, callers = threading.Event(), list[int]()

    def call() -> None:
        callers.append(threading.get_ident())
        answers.wait(DEADLINE_S)

    async def ask() -> None:
        with pytest.raises(TimeoutError):
            await session.asked(call, 0.1)

    asyncio.run(ask())
    answers.set()
    assert callers != [threading.get_ident()]


# --- scratch folders --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_own", [True, False])
def test_scratch_folders_that_are_gone_are_made_again(tmp_path: Path, *, is_own: bool) -> None:
    """In a place that mirrors share, nothing shows which folders of blocks are whose: none is made that another one has
    removed.
    """
    parent = str(tmp_path / "that" / "spark makes") if is_own else str(tmp_path)
    first, second = (session._own_scratch(parent) for _ in range(2)) if is_own else (parent,) * 2
    contexts = []
    for number, place in enumerate((first, second)):
        driver, blocks = Path(place, f"spark-{number}", "pyspark"), Path(place, f"blockmgr-{number}", "0c")
        for made in (driver, blocks):
            made.mkdir(parents=True)
        context: Any = SimpleNamespace(_temp_dir=str(driver), master="local[4,4]")
        contexts.append((Scratch.of(context), driver, blocks))
    assert [scratch.mend() for scratch, _, _ in contexts] == [0, 0]
    for folder in tmp_path.iterdir():
        shutil.rmtree(folder)
    scratch, driver, blocks = contexts[0]
    assert scratch.mend() == (5 if is_own else 2)
    assert (driver.is_dir(), blocks.is_dir()) == (True, is_own)
    assert not contexts[1][1].exists()
    assert not contexts[1][2].exists()


def test_scratch_folders_are_made_again_where_no_epoch_runs(
    monkeypatch: pytest.MonkeyPatch, ended: threading.Event, tmp_path: Path
) -> None:
    """A flow whose topics are all re-keyed has none, and Spark remembers the folders of its shuffles."""
    folder = tmp_path / "spark-1" / "pyspark-1"
    folder.mkdir(parents=True)
    context: Any = SimpleNamespace(_temp_dir=str(folder), master="local[4,4]")
    monkeypatch.setattr(session, "is_alive", lambda _: True)
    with Engine(context).watched():
        (tmp_path / "spark-1").rename(tmp_path / "removed")  # at once: what makes it anew does not wait for a walk
        until(folder.is_dir)
    assert not ended.is_set()


# --- service managers -------------------------------------------------------------------------------------------------


def test_a_service_manager_is_notified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert not run.notify("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "20000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(DEADLINE_S)
        assert run.notify("READY=1")

        async def received() -> list[bytes]:
            living = asyncio.create_task(run.live())
            found = [await asyncio.to_thread(listening.recv, 100) for _ in range(3)]
            living.cancel()
            return found

        assert asyncio.run(received()) == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
