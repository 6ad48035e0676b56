"""Brokers whose `socket.request.max.bytes` is smaller than batches of the source."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from copies import Pair, copied
from helpers import config_file, make_topic, produce
from livemirror import LiveMirror
from pair import SETTINGS
from samerecords import assert_same_records
from typer.testing import CliRunner

from mirror.cli import app
from mirror.lab.embedded import Cluster
from mirror.states import Remedy, State


@pytest.fixture(scope="module")
def bounded() -> Iterator[Cluster]:
    with Cluster.start(name="bounded", config={**SETTINGS, "socket.request.max.bytes": 400_000}) as cluster:
        yield cluster


@pytest.fixture
def pair(own_source: Cluster, bounded: Cluster) -> Pair:
    return own_source.bootstrap, bounded.bootstrap


def produce_batch(bootstrap: str, topic: str, *sizes: int) -> None:
    """Records that do not compress, as one batch."""
    values = [Random(number).randbytes(size) for number, size in enumerate(sizes)]
    produce(bootstrap, topic, values, batch=len(sizes))


@pytest.mark.proves("mirror plan", "REWRITE", "REFUSED")
@pytest.mark.parametrize("exists", [False, True])
def test_what_the_brokers_show_is_planned_and_kept_to(
    pair: Pair, topic_name: str, tmp_path: Path, *, exists: bool
) -> None:
    for bootstrap in pair[: 1 + exists]:
        make_topic(bootstrap, topic_name)
    produce_batch(pair[0], topic_name, *[90_000] * 10)
    config = str(config_file(tmp_path, *pair, [topic_name], topic_name))
    planned = CliRunner().invoke(app, ["plan", config, "--json"], catch_exceptions=False)
    (advice,) = (one for one in json.loads(planned.stdout)["advice"] if "socket.request" in one)
    assert "takes batches of 398976 bytes" in advice
    assert "set socket.request.max.bytes of its brokers, 400000, to 1049612 or more" in advice
    assert copied(pair, topic_name).verdicts["REWRITE/too_large"] == 3
    assert_same_records(*pair, topic_name, 1)
    produce_batch(pair[0], topic_name, 900_000)
    produce_batch(pair[0], topic_name, 200)
    stopped = copied(pair, topic_name, State.REFUSED)
    assert "a record takes 900072 bytes alone, more than the 398976 of a batch" in stopped.detail
    assert "socket.request.max.bytes=400000" in stopped.detail
    assert copied(pair, topic_name, on_too_large="skip").next_offset == 12


def test_a_mirror_goes_on_once_the_brokers_were_restarted_with_a_larger_limit(
    own_source: Cluster, topic_name: str, tmp_path: Path
) -> None:
    with Cluster.start(name="raised", config={**SETTINGS, "socket.request.max.bytes": 400_000}) as target:
        live = LiveMirror(own_source, target, topic_name, tmp_path)
        live.create()
        produce_batch(live.source, topic_name, 900_000)
        with live.running():
            live.until_stopped(State.REFUSED, Remedy.RAISE_REQUEST)
            properties = target.nodes[0].folder / "server.properties"
            text = properties.read_text(encoding="utf-8")
            properties.write_text(text.replace("=400000\n", "=2000000\n"), encoding="utf-8")
            target.restart(0)
            live.until(State.CAUGHT_UP)
