"""What modules of this tier share beside the pair of clusters."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from secured import Guarded, every_way_in

from mirror.lab.embedded import start_many


@pytest.fixture(scope="session")
def guarded_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A broker that asks who comes and what they may do; whoever uses it is of the group `security` of workers."""
    folder = tmp_path_factory.mktemp("certificates")
    (cluster,) = start_many([every_way_in(folder)])
    with cluster:
        yield Guarded(cluster, folder)
