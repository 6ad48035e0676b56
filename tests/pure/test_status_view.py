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
from rich.text import Text

from mirror import rendering
from mirror.commands.status import as_dict, fitted, rendered
from mirror.config import Settings
from mirror.journal.entries import FirstSeen
from mirror.journal.journal import OWNER, Entry, Journal, Lost, News, Place, journal_topic
from mirror.journal.snapshot import LISTEN_SECONDS, STALE_MS, Follower, Pulse, Status, status_of
from mirror.kafka.cluster import Cluster
from mirror.observability.status import GroupFigures, PartitionStatus
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
        "flow": "eu-to-us",
        "instance": "me",
        "topic": "orders",
        "partition": partition,
        "target_topic": "orders",
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
    return PartitionStatus(**{**given, **more})


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


def test_a_partition_that_is_reported_no_more_beside_one_that_is() -> None:
    found = status_in(journal(figures(0), figures(1, age_ms=3_600_000)))
    rows = {line.split()[0]: line.split()[1:3] for line in text_of(found, 80).splitlines() if line.startswith("orders")}
    assert (rows["orders-0"][0], rows["orders-1"]) == ("CAUGHT_UP", ["was", "CAUGHT_UP"])
    assert [one["stale"] for one in as_dict(found)["partitions"]] == [False, True]


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

    async def follow(_: object, place: Place | None) -> News:
        known = journal(figures(age_ms=60_000), host="elsewhere")
        arrived = known.items() if place is None else [(OWNER, known[OWNER])] if restated else []
        return News([Entry(next(numbers), *one) for one in arrived], Place(next(numbers), None, 1), None)

    monkeypatch.setattr(Journal, "follow", follow)
    found = asyncio.run(Follower(cast(Settings, FLOW), cast(Cluster, CLUSTER)).listen())
    assert found.pulse is (Pulse.RUNNING if restated else Pulse.ENDED)
    assert ("nothing came of it in 12 s; by its clock, last seen at 20" in text_of(found)) is not restated


def test_who_watches_a_flow_forgets_a_journal_that_lost_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that was made anew, whose offsets begin at 0 again."""
    first, second, third = (figures(0), figures(1)), (figures(0, next_offset=1007),), (figures(2),)
    news = iter([(first, False), (second, False), (third, True)])

    async def follow(_: object, __: Place | None) -> News:
        every, lost = next(news)
        entries = [Entry(number, one.key(), one.to_json()) for number, one in enumerate(every)]
        return News(entries, Place(1, None, 1), Lost("it was made anew", 3, 0, 0) if lost else None)

    async def shown(follower: Follower) -> list[list[tuple[int, int]]]:
        return [[(one.partition, one.next_offset) for one in (await follower.poll()).figures] for _ in range(3)]

    monkeypatch.setattr(Journal, "follow", follow)
    follower = Follower(cast(Settings, FLOW), cast(Cluster, CLUSTER))
    assert asyncio.run(shown(follower)) == [[(0, 1000), (1, 1000)], [(0, 1007), (1, 1000)], [(2, 1000)]]


# --- what is shown --------------------------------------------------------------------------------------------------


def test_every_figure_of_a_partition_is_shown_where_there_is_room() -> None:
    one = figures(
        state=State.MIRRORING, lag_records=1234, lag_ms=2300, verdicts={"RESTAMP/own_producer": 7, "PASS/clean": 9}
    )
    wide, narrow = (text_of(status_in(journal(one)), width).splitlines() for width in (140, 80))
    heads = "partition state position lag behind latency records size batches by verdict age"
    assert next(line for line in wide if "position" in line).split() == heads.split()
    row = next(line for line in wide if line.startswith("orders-0"))
    for part in ("MIRRORING", "1,000", "1,234", "67.0 kB", "2.3 s", "54.3 kB", "PASS 9, RESTAMP 7", "500 ms"):
        assert part in row
    heads = "partition state position lag latency age"
    assert next(line for line in narrow if "position" in line).split() == heads.split()
    assert max(map(len, narrow)) <= 80


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


def test_partitions_that_stand_alike_are_one_line() -> None:
    alike = [figures(n, state=State.UNAVAILABLE, detail=f"no leader of orders-{n}") for n in (0, 1, 2, 5)]
    other = figures(3, state=State.UNAVAILABLE, detail="no route", next_offset=9)
    shown = text_of(status_in(journal(*alike, other))).splitlines()
    assert [line.rstrip() for line in shown if line.startswith("UNAVAILABLE")] == [
        "UNAVAILABLE orders, 4 partitions (0-2, 5): no leader of orders",
        "UNAVAILABLE orders-3 at offset 9: no route",
    ]


def test_a_watch_shows_first_who_needs_a_person_where_there_are_few_lines() -> None:
    many = [figures(number, state=State.MIRRORING, lag_records=number) for number in range(30)]
    stopped = figures(30, state=State.REFUSED, detail="too large")
    waiting = figures(31, state=State.UNAVAILABLE, detail="no leader")
    found = status_in(journal(*many, stopped, waiting))
    out = io.StringIO()
    terminal = Console(file=out, width=80, height=24, highlight=False)
    terminal.print(fitted(found, terminal, Text("cannot read the journal")))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert len(lines) <= 24
    rows = [line.split()[0] for line in lines if line.startswith("orders-")]
    assert rows[:4] == ["orders-30", "orders-31", "orders-29", "orders-28"], "stopped, waiting, then who lags most"
    left = f"and {32 - len(rows)} partitions more, none more urgent than these"
    assert lines[-2:] == [left, "cannot read the journal"]


def test_cluster_ids_filled_offsets_and_groups_are_shown_where_there_are_some() -> None:
    seen = FirstSeen(source_topic="orders", topic_id=None, target_topic_id=None, cluster_id="source-id")
    groups = GroupFigures(instance="me", at_ms=NOW - 3000, groups=2001, synced=1998, active=2, held_back=1)
    entries = {
        **journal(figures(filled=1234)),
        FirstSeen.key("orders"): seen.to_json(),
        b"groups": groups.to_json(),
    }
    found = status_of("eu-to-us", "us", entries, NOW, "target-id")
    text = text_of(found, 200)
    assert text.splitlines()[1].rstrip() == "cluster ids: source source-id, target target-id"
    assert "1,234 offsets without a record filled" in text
    expected = "2,001 consumer groups: 1,998 synced, 1 held back until records are mirrored, 2 with members on the"
    assert expected in text
    given = as_dict(found)
    assert (given["source_id"], given["target_id"], given["unread"]) == ("source-id", "target-id", [])
    assert (given["totals"]["filled"], given["groups"]["age_ms"]) == (1234, 3000)
    assert GroupFigures.from_json(groups.to_json()[:-1] + b',"more":[1]}') == groups, "those of a newer version"


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


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (99_949, "99.9 kB"),
        (99_950, "100 kB"),
        (999_500, "1.0 MB"),
        (5 * 10**15, "5,000.0 TB"),
    ],
)
def test_sizes(value: int, text: str) -> None:
    assert rendering.size(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-5, "0 ms"),
        (999, "999 ms"),
        (9_940, "9.9 s"),
        (14_000, "14 s"),
        (47 * 3_600_000, "47 h"),
        (72 * 3_600_000, "3 d"),
    ],
)
def test_durations(value: int, text: str) -> None:
    assert rendering.duration(value) == text


def test_every_state_has_a_style() -> None:
    assert all(rendering.state_text(state).plain == state for state in State)
    assert all(rendering.state_text(state, former=True).plain in (state, f"was {state}") for state in State)
