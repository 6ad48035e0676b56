"""Logs: events with fields, on stderr.

A terminal gets aligned, coloured lines; anything else gets one logfmt line per event (or JSON), with UTC times, because
then a machine reads it. structlog takes a third of a second to import, so it is imported at the first event: a Spark
worker that logs nothing does not pay for it, and an unconfigured process logs like a configured one.

    log = get(__name__)
    log.info("epoch_started", flow="eu-to-us", lanes=4)
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from structlog.typing import Processor

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


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
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),  # whatever stderr is at the time of the event
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
