"""A target that is away, and with it the journal: the driver knows at once what waits, and all goes on afterwards."""

from __future__ import annotations

import asyncio
import socket
import threading
from dataclasses import replace
from typing import Any

import pytest
from fakebroker import HOST, in_loop
from helpers import make_topic, produce, settings_between
from proxy import Proxy
from samerecords import assert_same_records
from sparkless import InThisProcess
from test_metrics import report, value
from test_run import wait_for
from test_stopmark import SOON, ended, known, mark, none

from mirror.embedded import Cluster
from mirror.observe import logs
from mirror.observe.metrics import Metrics
from mirror.offsets.journal import Entry
from mirror.spark import stopmark
from mirror.spark.prepare import prepare
from mirror.spark.stopmark import StopMark, Voice, until_marked
from mirror.spark.supervisor import Supervisor
from mirror.spark.tidings import Tidings
from mirror.states import State
from mirror.wire.cluster import TopicPartition

#: Seconds that anything may take on a machine with too much to do; an epoch here takes longer.
PATIENCE = 120.0

# --- what a lane tells its driver (loopback) --------------------------------------------------------------------------


@in_loop
async def test_reports_are_heard_in_their_order_beside_what_is_handed_out() -> None:
    heard: list[bytes] = []
    opened = await StopMark.open(HOST, hear=heard.append)
    try:
        voice = Voice()
        voice.tell(b"nobody is there yet")
        lane = asyncio.create_task(until_marked(opened.address, 0, lambda _: True, voice))
        await known(opened, 0)
        reports = [b"+" * 1000, b"", b"=", b"x" * 100_000]
        for one in reports:
            voice.tell(one)
            assert await opened.hand(0, ())
        assert heard == reports
        opened.set()
        await ended(lane)
        voice.tell(b"nobody is there any more")
        assert heard == reports
    finally:
        await opened.close()


@in_loop
async def test_reports_do_not_pile_up_for_a_driver_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopmark, "_UNSENT_BYTES", 1000)
    async with mark() as opened:
        voice = Voice()
        lane = asyncio.create_task(until_marked(opened.address, 0, none, voice))
        await known(opened, 0)
        assert voice.writer
        for _ in range(1000):  # without a turn of the loop nothing is read
            voice.tell(b"x" * 100_000)
        assert voice.writer.transport.get_write_buffer_size() < 10_000_000
        opened.set()
        async with asyncio.timeout(SOON):
            await lane


# --- what the driver makes of it (pure) -------------------------------------------------------------------------------


def test_what_was_heard_is_newer_than_what_the_journal_had_waiting(capfd: pytest.CaptureFixture[str]) -> None:
    metrics = Metrics("eu-to-us")
    tidings = Tidings("eu-to-us", "one", lambda _: None, lambda _: None, metrics)
    now = report(state=State.WAITING)
    older, later = replace(now, state=State.MIRRORING, at_ms=now.at_ms - 1), replace(now, state=State.CAUGHT_UP)
    tidings.hear(now.to_json())
    tidings.learn([Entry(0, older.key(), older.to_json())])
    assert tidings.live == {TopicPartition("orders", 0): now}
    assert value(metrics, "mirror_partition_state", state="WAITING") == 1
    tidings.hear(replace(now, instance="another").to_json())
    tidings.learn([Entry(1, later.key(), later.to_json())])
    assert tidings.live == {TopicPartition("orders", 0): later}

    logs.configure()
    tidings.hear(b"{")
    assert "journal_record_unread" in capfd.readouterr().err


# --- all of it (brokers) ----------------------------------------------------------------------------------------------


class Gone(Proxy):
    """A broker whose name, while it is `away`, does not resolve, as that of a container which has ended."""

    def __init__(self, upstream: str, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(upstream)
        self.away = threading.Event()
        self.asked = 0
        connect = asyncio.BaseEventLoop.create_connection

        async def resolving(loop: Any, factory: Any, host: Any = None, port: Any = None, **how: Any) -> Any:
            if port == self.port and self.away.is_set():
                self.asked += 1
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            return await connect(loop, factory, host, port, **how)

        monkeypatch.setattr(asyncio.BaseEventLoop, "create_connection", resolving)

    def go(self) -> None:
        """Let its name be forgotten, and its connections break."""
        self.away.set()
        self._await(self._cut())

    async def _cut(self) -> None:
        for one in tuple(self._loop._transports.values()):  # type: ignore[attr-defined] # asyncio tells it nowhere else
            one.abort()


@pytest.mark.brokers
def test_a_target_that_is_away_is_told_at_once(
    source_cluster: Cluster,
    target_cluster: Cluster,
    topic_name: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Not only when the epoch ends, which here it never does; and one warning is enough for a journal that is away."""
    logs.configure()
    source = source_cluster.bootstrap
    make_topic(source, topic_name)
    produce(source, topic_name, [b"before"] * 20)
    with Gone(target_cluster.bootstrap, monkeypatch) as target:
        settings = settings_between(source, target.bootstrap, [topic_name], topic_name)
        flow = replace(prepare(settings), epoch_seconds=10 * PATIENCE, lanes=1)
        metrics, context = Metrics(flow.name), InThisProcess()
        mirror = Supervisor(context, flow, lambda _: None, metrics)  # type: ignore[arg-type] # as much as is used

        def until(state: State) -> None:
            wait_for(
                lambda: value(metrics, "mirror_partition_state", state=str(state)),
                PATIENCE,
                lambda: str(mirror._tidings.live),
            )

        def story() -> None:
            until(State.CAUGHT_UP)
            target.go()
            produce(source, topic_name, [b"meanwhile"] * 20)
            until(State.WAITING)
            wait_for(lambda: target.asked > 20, PATIENCE, lambda: str(target.asked))
            target.away.clear()
            until(State.CAUGHT_UP)

        async def run() -> None:
            task = asyncio.create_task(mirror.run())
            try:
                await asyncio.to_thread(story)
            finally:
                mirror._stop()
                await task

        asyncio.run(run())
    told = capfd.readouterr().err
    assert told.count("journal_not_read") <= 1, told
    assert "Name or service not known" in told
    assert assert_same_records(source, target_cluster.bootstrap, topic_name, 1) == 40
