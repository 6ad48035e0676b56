"""The HTTP endpoint where Prometheus finds the figures: prometheus-client's own server, in a thread of the driver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.registry import Collector

from mirror.config import parse_address
from mirror.errors import ConfigError
from mirror.observe import logs

_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


@contextmanager
def serving(listen: str, metrics: Collector) -> Iterator[None]:
    """Answer on `listen` (host:port) while the context is open. Raises ConfigError where that cannot be listened on."""
    host, port = parse_address(listen)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(metrics)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as problem:
        raise ConfigError(
            f"metrics.listen: cannot listen on {listen}: {problem.strerror or problem}. Choose another port, or end the"
            " process that has this one: two flows on one machine need two ports"
        ) from problem
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
