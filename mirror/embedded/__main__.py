"""Fetches the brokers' jars, or says that they are there: what `make jars` does."""

from __future__ import annotations

import sys

from mirror.embedded import jars
from mirror.errors import EmbeddedError

try:
    found = jars.fetch()
except EmbeddedError as error:
    sys.exit(str(error))
print(f"{len(found)} jars of Kafka {jars.KAFKA_VERSION} are in {found[0].parent}")
