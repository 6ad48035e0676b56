"""What the host gives a process: folders in which compiled kernels are kept, and a heap that keeps what is freed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mirror import host
from mirror.spark import compiled

#: Allocates and frees megabytes again and again, as a task does, and prints how many pages were faulted in meanwhile.
ALLOCATES = """
import resource
from mirror.host import keep_what_is_freed
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        held = [bytearray(1_000_000) for _ in range(8)]
        for one in held:
            one[::4096] = bytes(len(one[::4096]))
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults())
assert keep_what_is_freed()
faults()
print(faults())
"""


@pytest.fixture
def scratch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Spark's scratch space for a user whose home cannot be written to."""
    for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/dev/null")
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},{tmp_path / 'two'}")
    return tmp_path


def test_the_users_cache_folder_goes_first(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(scratch))
    assert host.kernels_folder() == scratch / ".cache" / "mirror" / "kernels"
    monkeypatch.setenv("XDG_CACHE_HOME", str(scratch / "cache"))
    assert host.kernels_folder() == scratch / "cache" / "mirror" / "kernels"
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(scratch / "named"))
    assert host.kernels_folder() == scratch / "named"


def test_an_executor_keeps_kernels_in_sparks_scratch_space(scratch: Path) -> None:
    found = host.kernels_folder()
    assert found == scratch / "mirror-kernels"
    assert found.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_write_to_is_not_used(scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A driver that can keep no kernels says so."""
    (scratch / "mirror-kernels").mkdir()
    (scratch / "mirror-kernels").chmod(0o777)
    assert host.kernels_folder() is None
    compiled.ensure_compiled()
    assert "kernels_not_kept" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's heap")
def test_what_is_freed_is_not_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", ALLOCATES], check=True, capture_output=True, text=True)
    left, kept = map(int, done.stdout.split())
    assert kept < 1000 < left


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirror.host.ctypes.CDLL", lambda _: object())
    assert not host.keep_what_is_freed()
