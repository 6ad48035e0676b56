"""Arms every Python process that has this folder on its PYTHONPATH, Spark's workers among them: see `faults.points`."""

from __future__ import annotations

import os

from faults.points import VARIABLE, Strike, arm

if text := os.environ.get(VARIABLE):
    arm(Strike.from_environment(text))
