"""A failback to its end, as the runbook says: the first flow runs again, over what was mirrored back."""

from __future__ import annotations

import pytest
from helpers import make_topic, produce, settings_between
from sparkless import run_once
from transactional import transactions

from mirror.commands.adopt import adopt
from mirror.commands.failover import failover
from mirror.commands.verify import verify_flow
from mirror.config import Settings
from mirror.errors import ExitCode
from mirror.lab.embedded import Cluster

pytestmark = pytest.mark.brokers


def _failed_over(settings: Settings) -> ExitCode:
    return failover(settings, rehearse=False, undo=False, as_json=True)


def test_the_first_flow_goes_on_behind_transactions_that_were_aborted_on_its_target(
    source_cluster: Cluster, target_cluster: Cluster, topic_name: str
) -> None:
    """The copy was a source meanwhile: what was aborted there is no record, and its own source has markers for it."""
    here, there = source_cluster.bootstrap, target_cluster.bootstrap
    first = settings_between(here, there, [topic_name], flow=topic_name)
    back = settings_between(there, here, [topic_name], flow=f"{topic_name}-back")
    make_topic(here, topic_name)
    produce(here, topic_name, [b"before"] * 20)
    assert run_once(first).exit_code == ExitCode.DONE
    assert _failed_over(first) == ExitCode.DONE
    transactions(there, topic_name, [True, False, True, False, True])
    produce(there, topic_name, [b"there"] * 3)
    assert adopt(back, [topic_name], every=False, ends_only=False, as_json=True) == ExitCode.DONE
    assert run_once(back).exit_code == ExitCode.DONE
    assert _failed_over(back) == ExitCode.DONE
    failover(first, rehearse=False, undo=True, as_json=False)
    produce(here, topic_name, [b"again"] * 5)
    found = run_once(first)
    assert (found.exit_code, found.stops) == (ExitCode.DONE, [])
    assert verify_flow(first).equal
