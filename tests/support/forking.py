"""The process that tests fork mirrors from, with what they need imported ahead."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from multiprocessing import forkserver, get_context
from typing import Any, Final

#: What starts a process that is forked.
CONTEXT: Final = get_context("forkserver")
_server: Any = forkserver._forkserver  # there is no public way to ask or to stop it
_starting = threading.Lock()


def ensure_server(preloaded: Sequence[str]) -> None:
    """Start the process with these modules imported, unless it runs with them: there is one at a time. It gets this
    one's path. Python 3.11 does not hand that over, and passes over what cannot be imported ahead without a word.
    """
    path = {"PYTHONPATH": os.pathsep.join(one for one in sys.path if one), "PYTHONSAFEPATH": "1"}
    with _starting:
        if _server._preload_modules != [*preloaded]:
            forget_server()
            CONTEXT.set_forkserver_preload([*preloaded])
        former = {name: os.environ.get(name) for name in path}
        os.environ |= path
        try:
            forkserver.ensure_running()
        finally:
            for name, value in former.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def forget_server() -> None:
    """Let the next process begin with a server of its own, which imports anew."""
    _server._stop()
