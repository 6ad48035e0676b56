"""What the mirror's commands import late, imported before the first fork."""

from __future__ import annotations

import importlib
import pkgutil

import mirror.spark
from mirror.spark.compiled import ensure_compiled

for _found in pkgutil.iter_modules(mirror.spark.__path__, "mirror.spark."):
    if not _found.name.endswith("daemon"):
        importlib.import_module(_found.name)
for _name in ("run", "failover", "accept", "pause", "verify", "plan", "status", "adopt", "restore"):
    importlib.import_module(f"mirror.commands.{_name}")
for _name in ("cli", "replication.log_start", "records.rewrite", "spark.rekey.driver", "spark.rekey.queries"):
    importlib.import_module(f"mirror.{_name}")
ensure_compiled()
