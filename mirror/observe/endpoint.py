"""The HTTP endpoint where Prometheus finds the figures: prometheus-client's pages, in threads of the driver.

Whoever can connect must not be able to use the driver up. A connection that is silent for `SILENCE_SECONDS` is closed,
and where more than `MOST_CONNECTIONS` are open, the oldest one is: whoever asks anew always gets in.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.registry import Collector

from mirror.config import parse_address
from mirror.errors import ConfigError
from mirror.observe import logs

#: How long a client may send nothing, or take nothing.
SILENCE_SECONDS: Final = 5.0
#: Prometheus and its like ask once in seconds, one connection each.
MOST_CONNECTIONS: Final = 16
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


class _Handler(WSGIRequestHandler):
    """Of one connection, which asks once; nothing is logged of it."""

    timeout = SILENCE_SECONDS

    def log_message(self, *_: object) -> None:
        """Scrapes are no events."""


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each connection, of which there are few."""

    daemon_threads = True

    def __init__(self, *given: Any) -> None:
        self._open: dict[socket.socket, None] = {}  # the oldest first
        self._opening = threading.Lock()
        super().__init__(*given)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._opening:
            self._open[request] = None
            if len(self._open) > MOST_CONNECTIONS:
                oldest = next(iter(self._open))
                del self._open[oldest]
                with contextlib.suppress(OSError):  # its client was faster
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread finds that, and ends
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._opening:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # of a socket: the client was silent, or is gone
            super().handle_error(request, client_address)


class _Server6(_Server):
    address_family = socket.AF_INET6


@contextmanager
def serving(listen: str, metrics: Collector) -> Iterator[None]:
    """Answer on `listen` (host:port) while the context is open. Raises ConfigError where that cannot be listened on."""
    host, port = parse_address(listen)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(metrics)
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        kind = _Server6 if family == socket.AF_INET6 else _Server
        server = make_server(host, port, make_wsgi_app(registry), kind, _Handler)
    except OSError as problem:
        raise ConfigError(
            f"metrics.listen: cannot listen on {listen}: {problem.strerror or problem}. Choose another port, or end the"
            " process that has this one: two flows on one machine need two ports"
        ) from problem
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    log = logs.get(__name__)
    log.info("metrics_served", url=f"http://{listen}/metrics")
    if host not in _LOOPBACK:
        log.warning("metrics_exposed", listen=listen, text="whoever reaches this address reads topic names and figures")
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
