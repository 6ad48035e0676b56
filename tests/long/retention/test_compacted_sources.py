"""Sources that a cleaner works on: before they are copied, after, and while nobody copies them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cleaning import CLEANED_SOON, delete_keys, ten_keys
from flows import Flow
from helpers import stored_batches
from pair import SETTINGS
from samerecords import read
from transactional import CLEANED, wait_until_cleaned, write_over
from translated_copies import assert_translated, index_of
from waiting import DEADLINE_S

from mirror.errors import ExitCode
from mirror.lab.embedded import Cluster


@pytest.fixture(scope="module")
def cleaned_source() -> Iterator[Cluster]:
    """A source whose cleaner looks for work three times a second."""
    with Cluster.start(name="cleaned", config=SETTINGS | {"log.cleaner.backoff.ms": 300}) as cluster:
        yield cluster


@pytest.fixture
def flow(cleaned_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path) -> Flow:
    """A flow whose topic is cleaned."""
    return Flow(cleaned_source, own_target, topic_name, tmp_path)


def test_holes_close_up_where_offsets_move(flow: Flow) -> None:
    flow.topics["offsets"] = "translate"
    flow.make(configs=CLEANED)
    flow.make(flow.target)
    wait_until_cleaned(flow.source.bootstrap, flow.name, write_over(flow.source.bootstrap, flow.name))
    found = flow.copied()
    assert any(reason.startswith("REWRITE/holes") for reason in found.verdicts), found
    assert assert_translated((flow.source.bootstrap, flow.target.bootstrap), flow.name) <= 1000
    many = sum(1 for one in stored_batches(flow.source.bootstrap, flow.name) if one.header.count)
    assert len(stored_batches(flow.target.bootstrap, flow.name)) == many, "a batch with holes stays one"


def test_what_was_cleaned_before_it_was_recorded_where_it_went_is_found_again(flow: Flow) -> None:
    flow.topics["offsets"] = "translate"
    flow.make(configs=CLEANED | {"min.compaction.lag.ms": "8000", "max.compaction.lag.ms": "8001"})
    flow.make(flow.target)
    client = write_over(flow.source.bootstrap, flow.name)
    every = {one[4]: one[0] for one in read(flow.source.bootstrap, flow.name, 0)}
    flow.copied(records_runs=False)
    wait_until_cleaned(flow.source.bootstrap, flow.name, client)
    left = {one[4] for one in read(flow.source.bootstrap, flow.name, 0)}
    assert len(left) < len(every)
    client.produce(flow.name, b"more", key=b"more", partition=0)
    client.flush(DEADLINE_S)
    flow.copied()
    index = index_of((flow.source.bootstrap, flow.target.bootstrap), flow.name)
    kept = [one for one in read(flow.target.bootstrap, flow.name, 0) if one[4] in left and one[4] in every]
    assert kept
    for target, *_, value, _ in kept:
        assert index.to_source(target) == every[value]
        assert index.to_target(every[value]) == target


@pytest.mark.parametrize(
    ("offsets", "kept_ms"), [("preserve", 300), ("translate", 300), ("preserve", 86_400_000)], ids=str
)
def test_deletions_that_the_source_has_forgotten_meanwhile_are_on_record(
    flow: Flow, offsets: str, kept_ms: int
) -> None:
    """The copy was behind for longer than the source keeps tombstones: keys may live on there."""
    flow.topics["offsets"] = offsets
    flow.make(configs=CLEANED_SOON | {"delete.retention.ms": str(kept_ms)})
    ten_keys(flow.source.bootstrap, flow.name)
    assert flow.run().exit_code == ExitCode.DONE
    delete_keys(flow.source.bootstrap, flow.name, forgets=kept_ms == 300)
    for _ in range(2):
        assert flow.run().exit_code == ExitCode.DONE
        assert flow.lost() == ({(10, 10, "tombstones")} if kept_ms == 300 else set())
