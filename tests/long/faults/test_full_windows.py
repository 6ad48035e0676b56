"""Faults that strike while a far broker has dozens of requests of a mirror before it (W2)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any, get_args

import pytest
from faults.network import Network, Rule, What
from helpers import make_topic, mirror_once, produce
from samerecords import assert_same_records
from waiting import until

from mirror.kafka.protocol import PRODUCE
from mirror.lab.embedded import Cluster, Spec, start_many
from mirror.replication import writer
from mirror.replication.writer import Channel, Writer

BATCHES = 1500
FAR_S = 0.08


@pytest.fixture(scope="module")
def clusters() -> Iterator[tuple[Cluster, Cluster]]:
    source, target = start_many([Spec(name=f"windows-{side}") for side in ("source", "target")])
    with source, target:
        yield source, target


@pytest.fixture
def topic(clusters: tuple[Cluster, Cluster]) -> str:
    name = f"windows-{uuid.uuid4().hex[:8]}"
    make_topic(clusters[0].bootstrap, name)
    produce(clusters[0].bootstrap, name, [b"%d" % number for number in range(BATCHES)], batch=1)
    return name


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note how many requests were in flight, each time that one was sent."""
    found, send = list[int](), Writer._send

    def sent(self: Writer, channel: Channel, *more: Any) -> Any:
        left = send(self, channel, *more)
        found.append(channel.in_flight)
        return left

    monkeypatch.setattr(Writer, "_send", sent)
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize("what", [what for what in get_args(What) if what != "slow"])
def test_a_fault_with_a_full_window_loses_nothing_and_repeats_nothing(
    what: What,
    clusters: tuple[Cluster, Cluster],
    topic: str,
    windows: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Again and again: each time the mirror connects, its window fills and is struck."""
    monkeypatch.setattr(writer, "ANSWER_TIMEOUT", 1.5)  # what is dropped is found out by it
    source, target = (cluster.bootstrap for cluster in clusters)
    chance = Random(what)
    strikes = [Rule(what, PRODUCE.key, 1 + chance.randrange(40, 900), 0.3, chance) for _ in range(6)]
    with Network(target, FAR_S) as network:
        network.disturb(*strikes)
        found = mirror_once(source, network.bootstrap, [topic], topic)
        network.disturb()
        if any(status.lag_records for status in found.values()):
            mirror_once(source, network.bootstrap, [topic], topic)
    assert max(windows) > 100
    assert any(rule.fired for rule in strikes)
    assert assert_same_records(source, target, topic, 1) == BATCHES


@pytest.mark.timeout(600)
def test_two_writers_with_full_windows_write_each_record_once(
    clusters: tuple[Cluster, Cluster], topic: str, windows: list[int]
) -> None:
    """One of them may stop, since another one writes; what both wrote is the copy."""
    source, target = (cluster.bootstrap for cluster in clusters)
    with Network(target, FAR_S) as network, ThreadPoolExecutor(2) as threads:
        writers = [threads.submit(mirror_once, source, network.bootstrap, [topic], topic) for _ in range(2)]
        until(lambda: all(found.done() for found in writers), lambda: "both end")
    assert max(windows) > 100
    mirror_once(source, target, [topic], topic)
    assert assert_same_records(source, target, topic, 1) == BATCHES


@pytest.mark.timeout(600)
def test_what_a_broker_takes_of_a_connection_that_is_lost_is_not_written_again(
    clusters: tuple[Cluster, Cluster], topic: str, windows: list[int]
) -> None:
    """A frozen broker has a full window in its sockets, and takes it while the mirror looks where the log ends."""
    source, target = (cluster.bootstrap for cluster in clusters)
    produce(source, topic, [b"%d" % number for number in range(BATCHES, 6 * BATCHES)], batch=1)
    with Network(target, FAR_S) as network, ThreadPoolExecutor(1) as thread:
        copying = thread.submit(mirror_once, source, network.bootstrap, [topic], topic)
        for _ in range(4):
            windows.clear()
            until(lambda: max(windows, default=0) > 100 or copying.done(), lambda: "the window fills")
            clusters[1].suspend(0)
            network.cut()
            network.heal()
            clusters[1].resume(0)
        (status,) = copying.result().values()
    assert not status.state.is_stop, status.detail
    mirror_once(source, target, [topic], topic)
    assert assert_same_records(source, target, topic, 1) == 6 * BATCHES
