"""The daemon of a flow with rules: what re-keying needs is imported, and the compiled kernels are loaded, once for all
workers. Each would take some 0.7 CPU-seconds and 100 MB for it; and as none of it is new to a worker, the collector
that PySpark runs after every task does not walk it, which was a quarter of their CPU at a thousand records a second.
"""

from __future__ import annotations

import os
import zipimport

from mirror.spark.archives import leave_archives

leave_archives()
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's threads, which nothing here uses, would be lost by a fork

import mirror.records.rewrite
import mirror.spark.rekey.packing
import mirror.spark.rekey.reading
import mirror.spark.rekey.writing  # noqa: F401 -- workers are forked with all of these
from mirror.kafka.transactions import APIS
from mirror.spark.daemon import serve


def _stays_as_it_is(_: zipimport.zipimporter) -> None:
    """Nothing: an archive that was opened does not change while Spark runs, and one that comes later is opened then."""


if __name__ == "__main__":
    # PySpark has every archive on the path read anew before each task: that of its own modules takes some 50 ms
    setattr(zipimport.zipimporter, "invalidate_caches", _stays_as_it_is)  # noqa: B010 -- mypy knows it is replaced
    serve(*APIS)
