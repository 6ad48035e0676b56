"""Fetches the brokers' jars, or says that they are there: what `make jars` does."""

from __future__ import annotations

import sys

from mirror.errors import MirrorError
from mirror.lab.embedded import jars

try:
    found = jars.fetch()
except MirrorError as error:
    sys.exit(str(error))
print(f"{len(found)} jars of Kafka {jars.KAFKA_VERSION} are in {found[0].parent}")
