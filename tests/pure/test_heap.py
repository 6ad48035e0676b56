"""That a task's heap keeps what is freed: counted in page faults, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mirror.host import keep_what_is_freed

#: Allocates and frees megabytes again and again, as a task does, and prints how many pages were faulted in meanwhile.
CHILD = """
import resource, sys
from mirror.host import keep_what_is_freed
if sys.argv[1] == "kept":
    assert keep_what_is_freed()
def used():
    for _ in range(50):
        held = [bytearray(1_000_000) for _ in range(8)]
        for one in held:
            one[::4096] = bytes(len(one[::4096]))
used()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
used()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", CHILD, how], check=True, capture_output=True, text=True)
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's heap")
def test_what_is_freed_is_not_given_back() -> None:
    assert faults("kept") < 1000 < faults("left")


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirror.host.ctypes.CDLL", lambda _: object())
    assert not keep_what_is_freed()
