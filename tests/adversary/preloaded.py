"""What the mirror's commands import late, imported before the first fork."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil

import mirror.cli
import mirror.commands
import mirror.spark
from mirror.spark.compiled import ensure_compiled

for _found in pkgutil.iter_modules(mirror.spark.__path__, "mirror.spark."):
    if not _found.name.endswith("daemon"):
        importlib.import_module(_found.name)
for _name in ("run", "failover", "accept", "pause", "verify", "plan", "status", "adopt", "restore"):
    if importlib.util.find_spec(f"mirror.commands.{_name}"):
        importlib.import_module(f"mirror.commands.{_name}")
for _name in (
    "mirror.replication.log_start",
    "mirror.records.rewrite",
    "mirror.records.rewrite",
    "mirror.spark.rekey.driver",
    "mirror.spark.rekey.queries",
    "structlog",
):
    importlib.import_module(_name)
ensure_compiled()
