"""A signal ends a command that starts, whatever it is doing, forks included."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

#: Sends itself a signal from a hook of the first fork, which lies between those of the handler.
FORKING = """
import os, subprocess
from mirror.commands.interrupts import end_on_signals
where, number, parent, sent = {where!r}, {number}, os.getpid(), []
def send():
    if not sent:
        sent.append(1)
        os.kill(os.getpid() if where == "after_in_child" else parent, number)
        if where == "after_in_child":
            os.kill(parent, number)
os.register_at_fork(**{{where: send}})
end_on_signals()
while True:
    subprocess.run(["true"], preexec_fn=lambda: None)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("where", ["before", "after_in_parent", "after_in_child"])
def test_a_signal_in_the_middle_of_a_fork(where: str, number: signal.Signals) -> None:
    script = FORKING.format(where=where, number=int(number))
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (128 + number, "")
