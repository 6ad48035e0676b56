"""The generated pages."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
import types
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "make-reference"


def script() -> types.ModuleType:
    loader = importlib.machinery.SourceFileLoader("make_reference", str(SCRIPT))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module  # where its dataclasses look up the names in their annotations
    loader.exec_module(module)
    return module


REFERENCE = script()
