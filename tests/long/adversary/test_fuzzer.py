"""The fuzzer: a short run over all targets, what it once found, and that it does find what is planted."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
REGRESSIONS = ROOT / "fuzz" / "regressions"

#: A second for each target, and five to load them; `make fuzz` takes longer.
SMOKE_SECONDS = 30

#: Targets with one fault each, of every kind that is a finding, a few damaged bytes away from the seed.
FAULTY = """
import __main__
from os import abort
from threading import Event
from time import thread_time

from fuzz.limits import CPU_SECONDS, NEW_BYTES

__main__._GRACE = 3  # seconds for which the hang is waited for


def burn():
    end = thread_time() + 2 * CPU_SECONDS
    while thread_time() < end:
        pass


class Target:
    def __init__(self, fault):
        self.fault = fault

    def check(self, data):
        if data != b"seed":
            self.fault()

    def seeds(self, random):
        yield b"seed"


TARGETS = {
    "error": Target(lambda: {}["planted"]),
    "abort": Target(abort),
    "hang": Target(lambda: Event().wait()),
    "slow": Target(burn),
    "memory": Target(lambda: bytearray(NEW_BYTES)),
    "sound": Target(lambda: None),
}
"""
#: Makes legacy messages believed to be whole that are not: seen only below the CRC of their wrapper.
FAULT_BELOW_CRC = """
from mirror.records import rewrite as faulty

faulty._SMALLEST = (0, 0)
"""


def test_short_run_finds_nothing() -> None:
    seed = random.randrange(1 << 30)
    done = fuzz(ROOT, "--seconds", str(SMOKE_SECONDS), "--seed", str(seed))
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


def test_regressions_stay_mended() -> None:
    files = sorted(str(path) for path in REGRESSIONS.glob("*/*"))
    assert files
    done = fuzz(ROOT, "--repeat", *files)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("error", "KeyError: 'planted'"),
        pytest.param(
            *("memory", "MemoryError"),
            marks=pytest.mark.skipif(sys.platform != "linux", reason="no other system bounds a process's memory so"),
        ),
    ],
)
def test_error_is_found_and_can_be_repeated(tmp_path: Path, fault: str, expected: str) -> None:
    project = copied(tmp_path)
    (project / "fuzz" / "targets.py").write_text(FAULTY)
    done = fuzz(project, "--seconds", "1", fault)
    assert done.returncode == 1, done.stdout + done.stderr
    assert expected in done.stdout
    again = fuzz(project, *repeating(done.stdout))
    assert again.returncode == 1, again.stdout + again.stderr
    assert expected in again.stdout


def test_what_says_nothing_is_found_and_what_is_sound_is_not(tmp_path: Path) -> None:
    project = copied(tmp_path)
    (project / "fuzz" / "targets.py").write_text(FAULTY)
    done = fuzz(project, "--plain", "--seconds", "1", "abort", "hang", "slow", "sound")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "abort: signal 6" in done.stdout
    assert "hang: it did not end" in done.stdout
    assert "TooSlow" in done.stdout
    found = {path.name for path in (project / "fuzz" / "findings").iterdir()}
    assert found == {"abort", "hang", "slow"}


def test_fault_below_a_right_crc_is_found(tmp_path: Path) -> None:
    project = copied(tmp_path)
    with (project / "fuzz" / "targets.py").open("a") as targets:
        targets.write(FAULT_BELOW_CRC)
    done = fuzz(project, "--plain", "--seconds", "5", "inside_legacy")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "unpack_from requires" in done.stdout


def fuzz(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "fuzz/run.py", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}  # a copied project has no mirror of its own
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)


def repeating(output: str) -> list[str]:
    """The arguments of the command that the last finding comes with."""
    python, script, *arguments = output.rstrip().splitlines()[-1].split()
    assert (python, script) == ("python", "fuzz/run.py")
    return arguments


def copied(folder: Path) -> Path:
    """A project of the fuzzer alone, which knows of no finding, and keeps its own to itself."""
    left_out = shutil.ignore_patterns("findings", "regressions", "__pycache__")
    shutil.copytree(ROOT / "fuzz", folder / "fuzz", ignore=left_out)
    (folder / "tests").symlink_to(ROOT / "tests")
    return folder
