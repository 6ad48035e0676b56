"""Starts one process and sees to it that it does not outlive the program that asked for it.

    python -S -E guard.py bound GRACE FOLDER COMMAND...   ends the command when standard input ends, and removes FOLDER
    python -S -E guard.py detached COMMAND...             leaves it running, and ends at once

The process id of the command is written to standard output; the command's own output goes to standard error, a log
file. The parent holds the other end of standard input: the system closes it however the parent dies, SIGKILL included,
and that is the sign to stop: SIGTERM, and SIGKILL after GRACE seconds. FOLDER (empty: none) is what nobody else is left
to remove. On Linux the command is killed when the guard is. Run as a file, with the standard library alone, so that it
starts in a few milliseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import select
import shutil
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
STOPS = frozenset({signal.SIGTERM, signal.SIGINT})


def main(mode: str, *arguments: str) -> int:
    """Returns the command's exit status as a shell would give it; 0 at once for a detached one."""
    if mode == "detached":
        report(spawn(list(arguments), bound=False))
        return 0
    grace, folder, *command = arguments
    return watch(command, float(grace), folder)


def watch(command: list[str], grace: float, folder: str) -> int:
    """Runs the command bound to this process, until it ends or the parent does."""
    wakeups, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    child = spawn(command, bound=True)
    # Not before: between fork and exec the child would have this handler, and swallow the signal that is to end it.
    for number in STOPS:
        signal.signal(number, lambda *_: None)
    report(child)
    deadline, orphaned = math.inf, False
    while True:
        # One wait for everything that can happen: a signal, the parent's end, the end of the grace.
        stopping = deadline < math.inf
        wait = max(0.0, deadline - time.monotonic()) if stopping else None
        ready, _, _ = select.select([wakeups] if orphaned else [wakeups, 0], [], [], wait)
        signals = set(os.read(wakeups, 64)) if wakeups in ready else set()
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        # Only now: a parent that lets go of a command that has ended is alive, and still owns the folder.
        orphaned = orphaned or 0 in ready
        if not stopping and (orphaned or signals & STOPS):
            os.kill(child, signal.SIGTERM)
            os.kill(child, signal.SIGCONT)  # a suspended process sees no other signal before this one
            deadline = time.monotonic() + grace
        elif time.monotonic() >= deadline:
            os.kill(child, signal.SIGKILL)
            deadline = math.inf
    if orphaned and folder:
        remove(folder)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def remove(folder: str) -> None:
    """Removes a node's folder, and the cluster's folder around it once its last node is gone."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.rmdir(os.path.dirname(folder))  # noqa: PTH106, PTH120 -- pathlib would double the time to start


def report(child: int) -> None:
    """Reports the command's process id to the parent."""
    os.write(1, b"%d\n" % child)
    os.close(1)


def spawn(command: list[str], *, bound: bool) -> int:
    """Forks and executes; a `bound` child is killed by the system when this process ends."""
    guard = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        if bound and sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != guard:
                os._exit(1)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error}\n".encode())
    finally:
        os._exit(127)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
