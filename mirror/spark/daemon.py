"""The daemon that forks Spark's Python workers (`spark.python.daemon.module`): imports the relay once, so a worker
is ready when it is forked.

Nothing imported here starts a thread, which a fork would lose. Frozen objects stay shared between the workers, and
the collector that PySpark runs after every task does not walk them.
"""

from __future__ import annotations

import gc

from mirror.spark.archives import leave_archives

leave_archives()

import mirror.spark.task  # noqa: F401 -- workers are forked with it
from mirror.host import keep_what_is_freed
from mirror.kafka.protocol import APIS, Api, preload
from mirror.spark.compat import serve_workers


def serve(*more: Api) -> None:
    """Fork workers until Spark ends it; they know how to ask for what tasks ask for, and `more`."""
    preload((*APIS, *more))
    keep_what_is_freed()
    gc.collect()
    gc.freeze()
    serve_workers()


if __name__ == "__main__":
    serve()
