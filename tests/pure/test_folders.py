"""Where compiled kernels are kept, on machines where not every folder can be written to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mirror import host
from mirror.spark import compiled

NOWHERE = "/dev/null"


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user whose home cannot be written to."""
    monkeypatch.setenv("HOME", NOWHERE)
    for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "SPARK_LOCAL_DIRS"):
        monkeypatch.delenv(name, raising=False)


def test_the_users_cache_folder_goes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "scratch"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert host.kernels_folder() == tmp_path / ".cache" / "mirror" / "kernels"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert host.kernels_folder() == tmp_path / "cache" / "mirror" / "kernels"
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "named"))
    assert host.kernels_folder() == tmp_path / "named"


def test_an_executor_keeps_them_in_sparks_scratch_space(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path / 'one'},{tmp_path / 'two'}")
    found = host.kernels_folder()
    assert found == tmp_path / "one" / "mirror-kernels"
    assert found.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_write_to_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    (tmp_path / "mirror-kernels").mkdir()
    (tmp_path / "mirror-kernels").chmod(0o777)
    assert host.kernels_folder() is None


def test_a_driver_that_can_keep_none_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert host.kernels_folder() is None
    compiled.ensure_compiled()
    assert "kernels_not_kept" in capsys.readouterr().err


def test_without_any_folder_they_are_compiled_all_the_same() -> None:
    program = """
import numpy
from mirror.records.kernels import read_varint
print(read_varint(numpy.frombuffer(b"\\x06", numpy.uint8), 0, 1))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "(3, 1)"), done.stderr
