"""`mirror status`: what a journal says, what that is worth, and how it is shown."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import os
import socket
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console
from scraped import report

from mirror.commands.status import as_dict, rendered
from mirror.config import Settings
from mirror.journal.journal import OWNER, Entry, Journal, JournalPlace, LostRecords, News, journal_topic
from mirror.journal.snapshot import LISTEN_SECONDS, STALE_MS, Follower, Pulse, Status, status_of
from mirror.kafka.cluster import Cluster
from mirror.observability.status import PartitionStatus
from mirror.states import State

NOW = 1_800_000_000_000
HERE = socket.gethostname()
#: As much of settings and of a client as is asked.
FLOW = SimpleNamespace(flow="eu-to-us", target=SimpleNamespace(alias="us"))
CLUSTER = SimpleNamespace(topics={journal_topic("eu-to-us"): None}, cluster_id=None)
#: A process id above the largest that Linux gives.
NOBODY = 1 << 30


def figures(partition: int = 0, age_ms: int = 500, **more: Any) -> PartitionStatus:
    given: dict[str, Any] = {
        "instance": "me",
        "partition": partition,
        "state": State.CAUGHT_UP,
        "next_offset": 1000,
        "log_end": 1000,
        "lag_records": 0,
        "lag_ms": 0,
        "records": 1000,
        "batches": 10,
        "bytes": 54_321,
        "verdicts": {"RESTAMP/own_producer": 10},
        "at_ms": NOW - age_ms,
    }
    return report(**{**given, **more})


def journal(
    *every: PartitionStatus, pid: int | None = None, host: str = HERE, age_ms: int = 60_000
) -> dict[bytes, bytes]:
    owner = {"instance": "me", "host": host, "pid": pid or os.getpid(), "at_ms": NOW - age_ms}
    return {OWNER: json.dumps(owner).encode(), **{one.key(): one.to_json() for one in every}}


def status_in(entries: Mapping[bytes, bytes]) -> Status:
    return status_of("eu-to-us", "us", entries, NOW)


def text_of(found: Status, width: int = 160) -> str:
    out = io.StringIO()
    Console(file=out, width=width, highlight=False).print(rendered(found, width))
    return out.getvalue()


# --- whether the mirror runs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entries", "pulse", "heading"),
    [
        ({}, Pulse.NEVER_RAN, "never ran: no journal mirror.eu-to-us.offsets on cluster us"),
        (journal(figures()), Pulse.RUNNING, f"running (pid {os.getpid()} on {HERE}), reported 500 ms ago"),
        (journal(age_ms=2000), Pulse.RUNNING, "reported 2.0 s ago"),
        (journal(figures(age_ms=STALE_MS + 1)), Pulse.SILENT, f"silent (pid {os.getpid()} on {HERE} is alive)"),
        (journal(figures(age_ms=STALE_MS + 1), host="far"), Pulse.ENDED, "not running, last seen 15 s ago (pid"),
        (journal(figures(), pid=NOBODY), Pulse.ENDED, "not running, last seen 500 ms ago (pid"),
        (journal(figures(instance="other"), host="far"), Pulse.ENDED, "not running, last seen 1 min ago"),
        ({figures().key(): figures(age_ms=200_000).to_json()}, Pulse.ENDED, "last seen 3 min ago (owner unknown)"),
        (journal(figures(age_ms=-5000)), Pulse.RUNNING, "reported 0 ms ago"),
    ],
    ids=["none", "fresh", "started", "silent", "remote", "dead", "taken-over", "orphan", "clock-ahead"],
)
def test_whether_a_mirror_runs_is_said_first(entries: dict[bytes, bytes], pulse: Pulse, heading: str) -> None:
    found = status_in(entries)
    assert found.pulse is pulse
    assert heading in text_of(found).splitlines()[0]
    assert as_dict(found)["running"] == (pulse is Pulse.RUNNING)


def test_figures_of_a_mirror_that_ended_are_shown_as_the_last_known() -> None:
    ended = status_in(journal(figures(), pid=NOBODY))
    assert "was CAUGHT_UP" in text_of(ended)
    assert "last known: 1 partition: 1 CAUGHT_UP" in text_of(ended)
    assert as_dict(ended)["partitions"][0]["stale"]


def test_what_an_earlier_run_reported_is_not_shown_as_of_this_one() -> None:
    before = figures(0, instance="other", age_ms=60_000), figures(1, instance="other", age_ms=60_000)
    starting = status_in(journal(*before, figures(2)))
    expected = "3 partitions: 1 CAUGHT_UP, 2 without a fresh report; lag 0 records and unknown for 2 partitions;"
    assert expected in text_of(starting)
    totals = as_dict(starting)["totals"]
    assert (totals["states"], totals["stale"], totals["records"]) == ({State.CAUGHT_UP: 1}, 2, figures(2).records)
    stopped = figures(0, instance="other", age_ms=60_000, state=State.REFUSED, detail="too large")
    assert "2 partitions: 1 CAUGHT_UP, 1 REFUSED; lag" in text_of(status_in(journal(stopped, figures(1))))


@pytest.mark.parametrize("restated", [True, False])
def test_a_mirror_elsewhere_runs_while_anything_arrives_of_it(monkeypatch: pytest.MonkeyPatch, restated: bool) -> None:
    """Its clock may be another one's; here it is a minute behind, and no task reports."""
    now, numbers = NOW, itertools.count(1)
    clock = SimpleNamespace(now_ms=lambda: now, monotonic=lambda: next(numbers) * LISTEN_SECONDS / 4)
    monkeypatch.setattr("mirror.journal.snapshot.clock", clock)
    monkeypatch.setattr("mirror.journal.snapshot._LISTEN_PAUSE", 0)

    async def follow(_: object, place: JournalPlace | None) -> News:
        known = journal(figures(age_ms=60_000), host="elsewhere")
        arrived = known.items() if place is None else [(OWNER, known[OWNER])] if restated else []
        return News([Entry(next(numbers), *one) for one in arrived], JournalPlace(next(numbers), None, 1), None)

    monkeypatch.setattr(Journal, "follow", follow)
    found = asyncio.run(Follower(cast(Settings, FLOW), cast(Cluster, CLUSTER)).listen())
    assert found.pulse is (Pulse.RUNNING if restated else Pulse.ENDED)
    assert ("nothing came of it in 12 s; by its clock, last seen at 20" in text_of(found)) is not restated


def test_who_watches_a_flow_forgets_a_journal_that_lost_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that was made anew, whose offsets begin at 0 again."""
    first, second, third = (figures(0), figures(1)), (figures(0, next_offset=1007),), (figures(2),)
    news = iter([(first, False), (second, False), (third, True)])

    async def follow(_: object, __: JournalPlace | None) -> News:
        every, lost = next(news)
        entries = [Entry(number, one.key(), one.to_json()) for number, one in enumerate(every)]
        return News(entries, JournalPlace(1, None, 1), LostRecords("it was made anew", 3, 0, 0) if lost else None)

    async def shown(follower: Follower) -> list[list[tuple[int, int]]]:
        return [[(one.partition, one.next_offset) for one in (await follower.poll()).figures] for _ in range(3)]

    monkeypatch.setattr(Journal, "follow", follow)
    follower = Follower(cast(Settings, FLOW), cast(Cluster, CLUSTER))
    assert asyncio.run(shown(follower)) == [[(0, 1000), (1, 1000)], [(0, 1007), (1, 1000)], [(2, 1000)]]


# --- what is shown --------------------------------------------------------------------------------------------------


def test_stops_are_named_with_what_to_do_before_what_heals_by_itself() -> None:
    waiting = figures(0, state=State.UNAVAILABLE, detail="no leader")
    found = status_in(journal(waiting, figures(1, state=State.REFUSED, next_offset=77, detail="too large. Raise it")))
    text = text_of(found)
    assert text.index("REFUSED orders-1 at offset 77: too large. Raise it") < text.index("UNAVAILABLE orders-0 at")
    out = io.StringIO()
    Console(file=out, width=120, force_terminal=True, color_system="standard").print(rendered(found, 120))
    assert "\x1b[1;31mREFUSED" in out.getvalue(), "stops are red"
    assert [one["stopped"] for one in as_dict(found)["partitions"]] == [False, True]
    assert as_dict(found)["totals"]["stopped"] == 1


@pytest.mark.parametrize("state", [State.UNAVAILABLE, State.RECREATED])
def test_a_lag_that_nobody_knows_is_not_shown(state: State) -> None:
    blind = figures(1, state=state, lag_records=70_000, log_end=71_000, lag_ms=123_000)
    found = status_in(journal(figures(0, lag_records=5, lag_ms=40), blind))
    assert text_of(found).splitlines()[-1].split()[3:6] == ["?", "?", "-"]
    assert "lag 5 records and unknown for 1 partition, latency 40 ms" in text_of(found)
    given = as_dict(found)
    assert [(one["lag_records"], one["lag_ms"]) for one in given["partitions"]] == [(5, 40), (None, None)]
    assert (given["totals"]["lag_records"], given["totals"]["lag_ms"]) == (5, 40)
    assert "lag unknown;" in text_of(status_in(journal(blind)))


@pytest.mark.parametrize("key", [OWNER, b"state/orders/1", b"groups"])
@pytest.mark.parametrize(
    "value",
    [
        *(b"not json", b"{}", b"[]", b"\xff", b"[" * 100_000),
        b'{"instance": "x", "pid": Infinity, "host": "", "at_ms": Infinity}',
        b'{"instance": "x", "pid": 1, "host": "", "at_ms": %d}' % 2**63,
    ],
    ids=lambda value: value[:40].decode(errors="replace"),
)
def test_what_cannot_be_understood_is_named_and_hides_nothing(key: bytes, value: bytes) -> None:
    found = status_in({**journal(figures(0)), key: value})
    assert len(found.unread) == 1
    assert "orders-0" in text_of(found, 80)
    assert f"not understood: {key.decode()}: " in text_of(found, 200)


def test_what_somebody_else_wrote_steers_no_terminal() -> None:
    found = figures(0, topic="[/orders]", detail="\x1b[2Jgone", verdicts={"\x1b]0;[/x]\x07": 1})
    shown = text_of(status_in({**journal(found, host="\x1b[2J"), b"state/\x1b/1": b"{}"}), 200)
    assert "[/orders]-0" in shown
    assert "\\x1b[2Jgone" in shown
    assert "\x1b" not in shown
