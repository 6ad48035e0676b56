"""Lets a copy of the package (`mends`) use the compiled kernels of the original: imported before all else."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import mirror.records

_path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
if len(_places := [found for one in _path if (found := Path(one) / "mirror" / "records" / "kernels.py").exists()]) > 1:
    _spec = importlib.util.spec_from_file_location("mirror.records.kernels", _places[-1])
    assert _spec is not None
    assert _spec.loader is not None
    _kernels = importlib.util.module_from_spec(_spec)
    sys.modules["mirror.records.kernels"] = _kernels
    setattr(mirror.records, "kernels", _kernels)  # noqa: B010 -- mypy knows of no such module
    _spec.loader.exec_module(_kernels)
