"""The command line in this process."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from mirror.cli import main


class Done(NamedTuple):
    """What a command ended with and printed."""

    code: int
    out: str
    err: str


def called(*arguments: str | Path) -> Done:
    """Run `mirror ARGUMENTS...` as its process does, but for the signals that it listens to."""
    out, err = io.StringIO(), io.StringIO()
    code: Any = None
    words = ["mirror", *map(str, arguments)]
    deaf = patch("mirror.commands.run.end_on_signals")
    with patch.object(sys, "argv", words), deaf, redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as ended:
            code = ended.code
    return Done(code, out.getvalue(), err.getvalue())
