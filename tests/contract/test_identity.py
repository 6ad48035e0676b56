"""Addresses that lead to another cluster: nothing is asked of it or written to it, and a copy is of one source."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace

import pytest
from flows import Flow, flow
from helpers import config_file
from typer.testing import CliRunner

from mirror.cli import app
from mirror.config import ClusterSettings
from mirror.driver.flow import prepare
from mirror.errors import ClusterError, ClusterUnreachable, ExitCode, PreflightError
from mirror.journal.entries import COPIES, REKEYED, FirstSeen
from mirror.kafka.admin import Admin, Creation
from mirror.kafka.cluster import Cluster as Wire
from mirror.kafka.cluster import Endpoint

__all__ = ["flow"]

OTHER = r"a broker of cluster \S+ answers there, and not one of "


@pytest.mark.proves("nothing-by-name-alone", "mirror plan", "mirror verify", "mirror status")
def test_another_cluster_than_the_configured_one_is_refused(flow: Flow) -> None:
    fields = {"alias": "any", "bootstrap.servers": flow.source.bootstrap, "cluster_id": flow.target.cluster_id}
    expected = ClusterSettings.model_validate(fields)

    async def refreshed() -> None:
        async with Wire(Endpoint.of(expected)) as cluster:
            await cluster.refresh()

    with pytest.raises(ClusterUnreachable, match=OTHER):
        asyncio.run(refreshed())
    with pytest.raises(ClusterError, match=OTHER):
        Admin(expected).groups()
    with pytest.raises(ClusterError, match=OTHER):
        Admin(expected).create_topics([Creation(topic=flow.name, partitions=1, replication_factor=1)])
    flow.make()
    ends = flow.source.bootstrap, flow.target.bootstrap
    wrong = {"target": {"alias": "us", "bootstrap.servers": ends[1], "cluster_id": flow.source.cluster_id}}
    file = config_file(flow.folder, *ends, [flow.name], flow.name, sections=wrong)
    for command in ("plan", "verify", "status"):
        problem = CliRunner().invoke(app, [command, str(file)]).exception
        assert isinstance(problem, ClusterUnreachable), (command, problem)
        assert re.search(OTHER, str(problem))


@pytest.mark.proves("nothing-by-name-alone", "mirror plan", "mirror run", "mirror failover")
@pytest.mark.parametrize("how", ["mirrored", "re-keyed"])
def test_a_flow_is_of_the_source_with_which_it_began(flow: Flow, how: str) -> None:
    """Two flows have one name, or the address of the source leads astray."""
    flow.make()
    flow.fill(0, 10)
    assert flow.run().exit_code == ExitCode.DONE
    key = COPIES.key(flow.name)
    seen = replace(FirstSeen.from_json(flow.journal()[key]), cluster_id="of-another-one")
    if how == "mirrored":
        flow.write((key, seen.to_json()))
    else:
        flow.topics["rules"] = [{"match": flow.name, "partitions": 1, "rekey": "key"}]
        flow.write((key, None), REKEYED.entry(flow.name, seen))
    planned = flow.command("plan", "CONFIG", code=ExitCode.PREFLIGHT)
    assert f"{flow.name}: {how} from cluster of-another-one" in planned.output
    with pytest.raises(PreflightError, match=f"the source is cluster {flow.source.cluster_id}"):
        prepare(flow.settings())
    report = json.loads(flow.command("failover", "CONFIG", "--json", code=ExitCode.DATA_AT_RISK).stdout)
    assert "not one of of-another-one" in report["source_problem"]
    assert report["whole"] is False
