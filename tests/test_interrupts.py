"""A signal ends a command that starts, whatever it is doing, forks included."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pytest

FORKING = """
import logging, os, subprocess
from mirror.commands.interrupts import end_on_signals
end_on_signals()
print("listening", flush=True)
while True:
    subprocess.run(["true"], preexec_fn=lambda: None)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_middle_of_forks(number: signal.Signals) -> None:
    seed = int(os.environ.get("SEED", random.randrange(1 << 32)))
    print(f"seed {seed}")
    dice = random.Random(seed)
    for _ in range(15):
        command = [sys.executable, "-c", FORKING]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "listening\n"
            time.sleep(dice.uniform(0, 0.02))  # any moment will do: this is where the dice fall
            process.send_signal(number)
            _, told = process.communicate(timeout=60)
            assert (process.returncode, told) == (128 + number, "")
