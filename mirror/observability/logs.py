"""Logs: events with fields on stderr, and recurring errors once per kind.

A terminal gets aligned, coloured lines; anything else gets one logfmt line per event (or JSON), with UTC times, because
then a machine reads it. structlog takes a third of a second to import, so it is imported at the first event: a Spark
worker that logs nothing does not pay for it, and an unconfigured process logs like a configured one.

    log = get(__name__)
    log.info("epoch_started", flow="eu-to-us", tasks=4)

- Logging never ends or holds up what it logs: a line that stderr does not take (a full disk, a reader that is gone, or
  one that does not read) is lost and counted, and the first line that is taken again is followed by that count
  (`log_lines_lost`).
"""

from __future__ import annotations

import logging
import os
import select
import sys
import threading
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

if TYPE_CHECKING:
    from structlog.typing import Processor


T = TypeVar("T")

# --- Logs -------------------------------------------------------------------------------------------------------------

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

#: How long a reader of stderr may keep a line waiting; one that did is not waited for again until it reads.
_TIMEOUT_SECONDS: Final = 1.0


class _Lost:
    """Of this process: lines that stderr did not take since it took one."""

    lines = 0
    lock = threading.Lock()


def lines_lost() -> int:
    """How many lines stderr did not take since it took one."""
    return _Lost.lines


class _Printer:
    """structlog's logger: prints to whatever stderr is at the time of the event."""

    def msg(self, line: str) -> None:
        """Print a line, or count it."""
        with _Lost.lock:
            try:
                if not _takes(0.0 if _Lost.lines else _TIMEOUT_SECONDS):
                    raise BlockingIOError("stderr is not read")
                _print(line)
            except (OSError, ValueError, AttributeError):  # ValueError: closed; AttributeError: there is none
                _Lost.lines += 1
                return
            lost, _Lost.lines = _Lost.lines, 0
        if lost:
            get("mirror.logs").warning("log_lines_lost", count=lost)

    debug = info = warning = error = msg


def _print(line: str) -> None:
    """Past the stream's buffer, which would keep what was not taken and fail again with it."""
    if sys.__stderr__ is None or sys.stderr is not sys.__stderr__:  # a progress bar's, or a test's
        print(line, file=sys.stderr, flush=True)
        return
    left = memoryview(f"{line}\n".encode(errors="backslashreplace"))
    while left:
        left = left[os.write(sys.__stderr__.fileno(), left) :]


def _takes(seconds: float) -> bool:
    """Whether stderr takes a line within so many seconds; a file always does, or says why not."""
    try:
        return bool(select.select([], [sys.stderr.fileno()], [], seconds)[1])
    except (OSError, ValueError):  # a test's stream, or one that is closed: printing reports it
        return True


def configure(*, json: bool = False, level: str = "info") -> None:
    """Set the form and the lowest level (a key of `LEVELS`) of this process's logs; may be called again."""
    import structlog  # noqa: PLC0415 -- see the module's first lines

    terminal = sys.stderr.isatty() and not json
    shared: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S" if terminal else "iso", utc=not terminal),
    ]
    form: list[Processor]
    if terminal:
        form = [_counts_as_text, structlog.dev.ConsoleRenderer()]
    elif json:
        form = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    else:
        first = ["timestamp", "level", "logger", "event"]
        text = structlog.processors.LogfmtRenderer(key_order=first)
        form = [structlog.processors.format_exc_info, _counts_as_text, text]
    structlog.configure(
        processors=[*shared, *form],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=lambda *_: _Printer(),
        cache_logger_on_first_use=False,
    )


def _counts_as_text(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Counts by name as people write them; JSON keeps them as an object."""
    for name, value in event.items():
        if isinstance(value, Mapping):
            event[name] = ", ".join(f"{count} {what}" for what, count in value.items()) or "none"
    return event


def get(name: str) -> Log:
    """The logger of a module; costs nothing until it is used."""
    return Log(name=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """A named logger, perhaps with fields that every event repeats."""

    name: str
    fields: dict[str, Any] = field(default_factory=dict)

    def bind(self, **fields: Any) -> Log:
        """The same logger with more fields."""
        return replace(self, fields={**self.fields, **fields})

    def debug(self, event: str, **fields: Any) -> None:
        """Something only a developer wants to know."""
        self._emit("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """Something happened as it should."""
        self._emit("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Something heals by itself, and should be rare."""
        self._emit("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Something needs a person."""
        self._emit("error", event, fields)

    def exception(self, event: str, **fields: Any) -> None:
        """An error, with the traceback of the exception being handled."""
        self._emit("error", event, {**fields, "exc_info": True})

    def _emit(self, level: str, event: str, fields: dict[str, Any]) -> None:
        import structlog  # noqa: PLC0415 -- see the module's first lines

        if not structlog.is_configured():
            configure()
        getattr(structlog.get_logger(), level)(event, logger=self.name, **self.fields, **fields)


# --- A blocker that recurs every second is logged once for each kind of reason, until it is over -------------------


@dataclass(slots=True, eq=False)
class LogOnce:
    """Which kinds of problems were logged since all was well."""

    _logged: set[tuple[type[Exception], object]] = field(default_factory=set)

    def is_new(self, problem: Exception) -> bool:
        """Whether this one is to be logged: silence, a missing right and each broker error code are other kinds."""
        kind = type(problem), getattr(problem, "code", None)
        if kind in self._logged:
            return False
        self._logged.add(kind)
        return True

    def over(self) -> None:
        """All is well again, and what comes next is news."""
        self._logged.clear()


@dataclass(slots=True, eq=False)
class Lasting(Generic[T]):
    """Remembers what was logged at the last round of something, and is not logged again while it lasts."""

    _before: frozenset[T] = frozenset()

    def new(self, now: Iterable[T]) -> list[T]:
        """Return what there is now and was not the last time, in the order of its text."""
        found = frozenset(now)
        before, self._before = self._before, found
        return sorted(found - before, key=str)
