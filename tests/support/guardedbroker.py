"""The plugin with the fixture `guarded_cluster`, of which all modules of a worker that name the plugin get one broker:

pytest_plugins = ["guardedbroker"]
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from secured import Guarded, every_way_in

from mirror.lab.embedded import start_many


@pytest.fixture(scope="session")
def guarded_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A broker that asks who comes and what they may do; one worker runs the modules that use it (conftest)."""
    folder = tmp_path_factory.mktemp("certificates")
    (cluster,) = start_many([every_way_in(folder)])
    with cluster:
        yield Guarded(cluster, folder)
