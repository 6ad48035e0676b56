"""Processes at their start: a signal ends a command, whatever it is doing, and kernels are compiled anywhere."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest
from waiting import DEADLINE_S

#: Sends itself a signal from a hook of the first fork, which lies between those of the handler.
FORKING = """
import os, subprocess
from mirror.commands.run import end_on_signals
where, number, parent, sent, forks = {where!r}, {number}, os.getpid(), [], []
os.register_at_fork(before=lambda: forks.append(1))
def send():
    if not sent and len(forks) == 1:
        sent.append(1)
        os.kill(os.getpid() if where == "after_in_child" else parent, number)
        if where == "after_in_child":
            os.kill(parent, number)
os.register_at_fork(**{{where: send}})
end_on_signals()
while True:
    subprocess.run(["true"], preexec_fn=lambda: None)
"""


@pytest.mark.parametrize("where", ["before", "after_in_parent", "after_in_child"])
def test_a_signal_in_the_middle_of_a_fork(where: str) -> None:
    number = int(signal.SIGTERM)
    script = FORKING.format(where=where, number=number)
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (128 + number, "")


#: `mirror run` as far as its configuration, which sends a SIGHUP and then ends the command with 7.
STARTING = """
import os, signal
from mirror.commands.run import run_flow
def load():
    os.kill(os.getpid(), signal.SIGHUP)
    raise SystemExit(7)
run_flow(load, once={once}, until_caught_up=False)
"""

#: A SIGHUP that came before the supervisor listens, and what it hears of it then, forks in between.
HELD = """
import os, signal, subprocess
from mirror.commands.run import deliver_held, end_on_signals
end_on_signals(holds_reloads=True)
os.kill(os.getpid(), signal.SIGHUP)
end_on_signals(holds_reloads=True)
subprocess.run(["true"], preexec_fn=lambda: None)
signal.signal(signal.SIGHUP, lambda *_: print("served", flush=True))
deliver_held()
deliver_held()
"""


@pytest.mark.parametrize(("once", "code"), [(False, 7), (True, 128 + signal.SIGHUP)])
def test_a_mirror_that_starts_is_not_ended_by_a_reload(once: bool, code: int) -> None:
    assert _run(STARTING.format(once=once)) == (code, "")


def test_a_reload_that_came_early_is_served_once() -> None:
    assert _run(HELD) == (0, "served\n")


def _run(script: str) -> tuple[int, str]:
    heeding = "import signal\nsignal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # under nohup it would be ignored
    command = [sys.executable, "-c", heeding + script]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return ended.returncode, ended.stdout


HANGING = """
import time
from mirror.commands import run
run.END_SECONDS = {seconds}
run.end_in_time(lambda: print("killed", flush=True))
print("ready", flush=True)
while True:
    time.sleep(1)
"""


@pytest.mark.parametrize(("seconds", "is_repeated"), [(0.2, False), (600, True)], ids=["in time", "at once"])
def test_a_process_that_hangs_ends_in_time_or_at_once_at_a_second_signal(seconds: float, is_repeated: bool) -> None:
    command = [sys.executable, "-c", HANGING.format(seconds=seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        while process.poll() is None:
            process.send_signal(signal.SIGTERM)
            if not is_repeated:
                process.wait(DEADLINE_S)
            time.sleep(0.05)  # two that come at once are one
        assert process.returncode == 128 + signal.SIGTERM
        assert process.stdout.read() == b"killed\n"


def test_kernels_are_compiled_without_a_folder_to_keep_them_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/dev/null")
    for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "SPARK_LOCAL_DIRS"):
        monkeypatch.delenv(name, raising=False)
    program = """
import numpy
from mirror.records.kernels import read_varint
print(read_varint(numpy.frombuffer(b"\\x06", numpy.uint8), 0, 1))
"""
    assert _run(program) == (0, "(3, 1)\n")
