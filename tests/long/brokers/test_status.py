"""`mirror status`: what a journal says, what it is worth, and how that looks; numbers and states for people."""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest
from helpers import config_file, make_topic, produce, settings_between
from rich.console import Console
from rich.text import Text
from syncing import delete_topics

from mirror import rendering
from mirror.commands.status import as_dict, fitted, rendered, status
from mirror.errors import ExitCode
from mirror.journal.entries import FirstSeen
from mirror.journal.journal import OWNER, Entry, Journal, News, Place, journal_topic
from mirror.journal.snapshot import STALE_MS, Follower, Pulse, Status, status_of
from mirror.kafka.admin import Admin
from mirror.kafka.cluster import Cluster as WireCluster
from mirror.kafka.cluster import Endpoint
from mirror.lab.commands import embedded
from mirror.lab.embedded import Cluster
from mirror.lab.embedded.by_hand import Member, Standing
from mirror.lab.embedded.node import Identity
from mirror.observability.status import GroupFigures, PartitionStatus
from mirror.states import State
from mirror.topics.apply import ensure_flow_topic

NOW = 1_800_000_000_000
HERE = socket.gethostname()
ENVIRONMENT = {**os.environ, "COLUMNS": "100", "TERM": "xterm", "PYTHONUNBUFFERED": "1"}


def ended_pid() -> int:
    """The id of a process that is no more."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        return process.pid


def figures(partition: int = 0, age_ms: int = 500, **more: Any) -> PartitionStatus:
    values: dict[str, Any] = {
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
    return PartitionStatus(**{**values, **more})


def journal(
    *every: PartitionStatus, pid: int | None = None, host: str = HERE, age_ms: int = 60_000
) -> dict[bytes, bytes]:
    owner = {"instance": "me", "host": host, "pid": pid or os.getpid(), "at_ms": NOW - age_ms}
    return {OWNER: json.dumps(owner).encode(), **{one.key(): one.to_json() for one in every}}


def status_in(entries: Mapping[bytes, bytes]) -> Status:
    return status_of("eu-to-us", "us", entries, NOW)


def text_of(found: Status, width: int = 80) -> str:
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
        (journal(figures(), host="far"), Pulse.RUNNING, "on far), reported 500 ms ago"),
        (journal(figures(age_ms=STALE_MS + 1)), Pulse.SILENT, f"silent (pid {os.getpid()} on {HERE} is alive)"),
        (journal(figures(age_ms=STALE_MS + 1), host="far"), Pulse.ENDED, "not running, last seen 15 s ago (pid"),
        (journal(figures(), pid=ended_pid()), Pulse.ENDED, "not running, last seen 500 ms ago (pid"),
        (journal(figures(instance="other"), host="far"), Pulse.ENDED, "not running, last seen 1 min ago"),
        ({figures().key(): figures(age_ms=200_000).to_json()}, Pulse.ENDED, "last seen 3 min ago (owner unknown)"),
        (journal(figures(age_ms=-5000)), Pulse.RUNNING, "reported 0 ms ago"),
    ],
    ids=[
        "none",
        "fresh",
        "just-started",
        "remote",
        "silent",
        "remote-old",
        "dead",
        "taken-over",
        "orphan",
        "clock-ahead",
    ],
)
def test_pulse(entries: dict[bytes, bytes], pulse: Pulse, heading: str) -> None:
    found = status_in(entries)
    assert found.pulse is pulse
    assert heading in text_of(found, 160).splitlines()[0]
    assert as_dict(found)["running"] == (pulse is Pulse.RUNNING)


def test_a_mirror_that_ended_does_not_look_like_one_that_runs() -> None:
    running, ended = status_in(journal(figures())), status_in(journal(figures(), pid=ended_pid()))
    assert "was CAUGHT_UP" not in text_of(running)
    assert "last known" not in text_of(running)
    assert "was CAUGHT_UP" in text_of(ended)
    assert "last known: 1 partition: 1 CAUGHT_UP" in text_of(ended)
    assert as_dict(ended)["partitions"][0]["stale"]


def test_a_partition_that_is_reported_no_more_beside_one_that_is() -> None:
    found = status_in(journal(figures(0), figures(1, age_ms=3_600_000)))
    lines = text_of(found).splitlines()
    assert next(line for line in lines if "orders-0" in line).split()[1] == "CAUGHT_UP"
    assert next(line for line in lines if "orders-1" in line).split()[1:3] == ["was", "CAUGHT_UP"]
    assert [one["stale"] for one in as_dict(found)["partitions"]] == [False, True]


def test_what_an_earlier_run_reported_is_not_reported_as_this_one_s() -> None:
    before = figures(0, instance="other", age_ms=60_000), figures(1, instance="other", age_ms=60_000)
    starting = status_in(journal(*before, figures(2)))
    assert (
        "3 partitions: 1 CAUGHT_UP, 2 without a fresh report; lag 0 records and unknown for 2 partitions; copied by"
        in text_of(starting, 160)
    )
    totals = as_dict(starting)["totals"]
    assert (totals["partitions"], totals["states"], totals["stale"]) == (3, {State.CAUGHT_UP: 1}, 2)
    assert totals["records"] == figures(2).records, "of this run"
    nothing_yet = status_in(journal(before[0], age_ms=500))
    assert nothing_yet.pulse is Pulse.RUNNING
    assert "1 partition: 1 without a fresh report; lag unknown; copied by this run: 0 records" in text_of(
        nothing_yet, 160
    )
    stopped = figures(0, instance="other", age_ms=60_000, state=State.REFUSED, detail="too large")
    assert "2 partitions: 1 CAUGHT_UP, 1 REFUSED; lag" in text_of(status_in(journal(stopped, figures(1))), 160)


# --- what is shown --------------------------------------------------------------------------------------------------


def test_every_figure_of_a_partition() -> None:
    one = figures(
        state=State.MIRRORING, lag_records=1234, lag_ms=2300, verdicts={"RESTAMP/own_producer": 7, "PASS/clean": 9}
    )
    wide = text_of(status_in(journal(one)), 140).splitlines()
    heads = "partition state position lag behind latency records size batches by verdict age"
    assert next(line for line in wide if "position" in line).split() == heads.split()
    row = next(line for line in wide if line.startswith("orders-0"))
    for part in (
        "MIRRORING",
        "1,000",
        "1,234",
        "67.0 kB",
        "2.3 s",
        "54.3 kB",
        "PASS 9, RESTAMP 7",
        "500 ms",
    ):
        assert part in row
    narrow, heads_narrow = text_of(status_in(journal(one)), 80).splitlines(), "partition state position lag latency age"
    assert next(line for line in narrow if "position" in line).split() == heads_narrow.split()
    assert max(map(len, narrow)) <= 80


def test_a_long_name_stays_readable_on_a_narrow_terminal() -> None:
    name = "payments-settlement-events"
    assert f"\n{name}-0 " in text_of(status_in(journal(figures(topic=name, target_topic=name))), 80)


def test_stops_stand_before_what_heals_by_itself() -> None:
    waiting = figures(0, state=State.UNAVAILABLE, detail="no leader")
    stopped = figures(1, state=State.CORRUPT, detail="damaged")
    text = text_of(status_in(journal(waiting, stopped)), 160)
    assert text.index("CORRUPT orders-1 at") < text.index("UNAVAILABLE orders-0 at")


def test_cluster_ids_are_reported_where_they_are_known() -> None:
    seen = FirstSeen(source_topic="orders", topic_id=None, target_topic_id=None, cluster_id="source-id")
    entries = {**journal(figures()), FirstSeen.key("orders"): seen.to_json()}
    found = status_of("eu-to-us", "us", entries, NOW, "target-id")
    assert text_of(found).splitlines()[1] == "cluster ids: source source-id, target target-id"
    assert (as_dict(found)["source_id"], as_dict(found)["target_id"]) == ("source-id", "target-id")
    assert "cluster ids" not in text_of(status_in(journal(figures())))


def test_offsets_that_markers_took_are_shown_where_there_are_some() -> None:
    found = status_in(journal(figures(0), figures(1, filled=1234)))
    text = text_of(found, 140)
    assert "109 kB; 1,234 offsets without a record filled" in text
    assert "filled" in next(line for line in text.splitlines() if "position" in line).split()
    assert (as_dict(found)["totals"]["filled"], as_dict(found)["partitions"][1]["filled"]) == (1234, 1234)
    assert "filled" not in text_of(status_in(journal(figures(0))), 140)


def test_an_unknown_lag_is_not_none() -> None:
    unknown = figures(log_end=-1, next_offset=-1, lag_records=None, lag_ms=None, state=State.RETENTION_GAP)
    shown = text_of(status_in(journal(unknown)))
    assert shown.splitlines()[-1].split()[2:5] == ["-", "?", "-"]
    assert "1 RETENTION_GAP; lag unknown;" in shown
    assert "; lag 0 records and unknown for 1 partition;" in text_of(status_in(journal(unknown, figures(1))), 160)


@pytest.mark.parametrize("state", [State.UNAVAILABLE, State.RECREATED])
def test_a_lag_that_nobody_sees_any_more_is_not_shown(state: State) -> None:
    blind = figures(1, state=state, lag_records=70_000, log_end=71_000, lag_ms=123_000)
    found = status_in(journal(figures(0, lag_records=5, lag_ms=40), blind))
    shown = text_of(found, 160)
    assert shown.splitlines()[-1].split()[3:6] == ["?", "?", "-"]
    assert "lag 5 records and unknown for 1 partition, latency 40 ms" in shown
    given = as_dict(found)
    assert [one["lag_records"] for one in given["partitions"]] == [5, None]
    assert [(one["lag_bytes"] is None, one["lag_ms"]) for one in given["partitions"]] == [(False, 40), (True, None)]
    assert (given["totals"]["lag_records"], given["totals"]["lag_ms"]) == (5, 40)


def test_the_latency_of_a_partition_that_stopped_is_not_shown() -> None:
    stopped = status_in(journal(figures(state=State.RETENTION_GAP, lag_records=50, lag_ms=123_000)))
    assert text_of(stopped, 80).splitlines()[-1].split()[3:5] == ["50", "-"]
    assert as_dict(stopped)["partitions"][0]["lag_ms"] is None


def test_partitions_of_a_topic_that_stand_alike_are_reported_once() -> None:
    alike = [figures(n, state=State.UNAVAILABLE, detail=f"no leader of orders-{n}") for n in (0, 1, 2, 5)]
    other = figures(3, state=State.UNAVAILABLE, detail="no route", next_offset=9)
    elsewhere = figures(
        0, topic="clicks", target_topic="clicks", state=State.UNAVAILABLE, detail="no leader of clicks-0"
    )
    stopped = figures(4, state=State.REFUSED, detail="too large")
    shown = text_of(status_in(journal(*alike, other, elsewhere, stopped)), 160).splitlines()
    at = next(number for number, line in enumerate(shown) if line.startswith("REFUSED"))
    assert [line.rstrip() for line in shown[at : at + 5]] == [
        "REFUSED orders-4 at offset 1000: too large",
        "UNAVAILABLE clicks-0 at offset 1000: no leader of clicks-0",
        "UNAVAILABLE orders, 4 partitions (0-2, 5): no leader of orders",
        "UNAVAILABLE orders-3 at offset 9: no route",
        "",
    ]


def test_stops_are_named_with_what_to_do() -> None:
    found = status_in(
        journal(figures(0), figures(1, state=State.REFUSED, next_offset=77, detail="too large. Raise the limit"))
    )
    assert "REFUSED orders-1 at offset 77: too large. Raise the limit" in text_of(found)
    assert (
        "2 partitions: 1 CAUGHT_UP, 1 REFUSED; lag 0 records; copied by this run: 2,000 records in 20 batches, 109 kB"
        in text_of(found, 120)
    )
    out = io.StringIO()
    Console(file=out, width=120, force_terminal=True, color_system="standard").print(rendered(found, 120))
    assert "\x1b[1;31mREFUSED" in out.getvalue(), "stops are red"
    shown = as_dict(found)
    assert [one["stopped"] for one in shown["partitions"]] == [False, True]
    assert (shown["totals"]["stopped"], shown["totals"]["records"]) == (1, 2000)
    json.dumps(shown)


def test_a_watch_shows_first_who_needs_a_person_where_the_terminal_is_too_low_for_all() -> None:
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
    assert lines[-2:] == [
        f"and {32 - len(rows)} partitions more, none more urgent than these",
        "cannot read the journal",
    ]
    high = Console(file=out, width=80, height=60, highlight=False)
    out.truncate(out.seek(0))
    high.print(fitted(found, high))
    assert out.getvalue() == text_of(found, 80), "in the order of their names, as they are printed once"


def test_partitions_are_in_order() -> None:
    found = status_in(journal(*(figures(number) for number in (10, 2, 0))))
    assert [one.partition for one in found.figures] == [0, 2, 10]


@pytest.mark.parametrize(
    "value",
    [
        *(b"not json", b"{}", b"[]", b"\xff", b"[" * 100_000),
        b'{"instance": "x", "pid": "no", "host": "", "at_ms": 0}',
        b'{"instance": "x", "pid": Infinity, "host": "", "at_ms": 0}',
        b'{"instance": "x", "pid": %d, "host": "", "at_ms": 0}' % 2**31,
        b'{"instance": "x", "pid": 1, "host": "", "at_ms": %d}' % 2**63,
    ],
    ids=lambda value: value[:60].decode(errors="replace"),
)
@pytest.mark.parametrize("key", [OWNER, b"state/orders/1"])
def test_what_cannot_be_understood_is_reported_and_does_not_hide_the_rest(key: bytes, value: bytes) -> None:
    found = status_in({**journal(figures(0)), key: value})
    assert len(found.unread) == 1
    assert "orders-0" in text_of(found)
    assert f"not understood: {key.decode()}: " in text_of(found, 200)


def test_what_somebody_else_wrote_steers_no_terminal() -> None:
    found = figures(0, topic="[/orders]", detail="\x1b[2Jgone", verdicts={"\x1b]0;[/x]\x07": 1})
    shown = text_of(status_in({**journal(found, host="\x1b[2J"), b"state/\x1b/1": b"{}"}), 200)
    assert "[/orders]-0" in shown
    assert "\\x1b[2Jgone" in shown
    assert "\x1b" not in shown


GROUPS = GroupFigures(instance="me", at_ms=NOW - 3000, groups=2001, synced=1998, active=2, held_back=1)


def test_groups_are_counted_and_their_round_has_an_age() -> None:
    found = status_in({**journal(figures()), b"groups": GROUPS.to_json()})
    text = " ".join(text_of(found, 160).split())
    assert (
        "2,001 consumer groups: 1,998 synced, 1 held back until records are mirrored, 2 with members on the target;"
        " looked at 3.0 s ago" in text
    )
    groups = as_dict(found)["groups"]
    assert (groups["groups"], groups["active"], groups["age_ms"]) == (2001, 2, 3000)
    assert as_dict(status_in(journal(figures())))["groups"] is None


@pytest.mark.parametrize(
    "value",
    [
        *(b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"instance": 1, "at_ms": 1}', b'{"instance": "", "at_ms": true}'),
        b'{"instance": "", "at_ms": %d}' % (1 << 63),
    ],
    ids=["array", "empty", "not-utf-8", "deep", "number", "boolean", "large"],
)
def test_groups_that_cannot_be_understood(value: bytes) -> None:
    found = status_in({**journal(figures()), b"groups": value})
    assert (len(found.unread), found.groups) == (1, None)


def test_groups_of_a_newer_version_are_read() -> None:
    assert GroupFigures.from_json(GROUPS.to_json()[:-1] + b',"more":[1]}') == GROUPS


def test_other_entries_of_a_journal_are_left_alone() -> None:
    assert status_in({**journal(figures()), b"topic/orders": b"{}"}).unread == ()


# --- on a broker ----------------------------------------------------------------------------------------------------


def write(cluster: Cluster, flow: str, entries: Mapping[bytes, bytes]) -> None:
    async def run() -> None:
        async with WireCluster(Endpoint("us", (("127.0.0.1", cluster.nodes[0].port),))) as target:
            await Journal(target, flow).append(list(entries.items()))

    settings = settings_between(cluster.bootstrap, cluster.bootstrap, ["x"], flow)
    ensure_flow_topic(Admin(settings.target), flow)
    asyncio.run(run())


def flow_name(topic_name: str) -> str:
    return topic_name[-20:].strip("-")


@pytest.mark.brokers
def test_a_flow_that_never_ran(own_target: Cluster, topic_name: str, capsys: pytest.CaptureFixture[str]) -> None:
    settings = settings_between(own_target.bootstrap, own_target.bootstrap, ["x"], flow_name(topic_name))
    assert status(settings, watch=False, as_json=False) is ExitCode.DONE
    assert f"{settings.flow}: never ran: no journal mirror.{settings.flow}.offsets" in capsys.readouterr().out
    assert status(settings, watch=False, as_json=True) is ExitCode.DONE
    found = json.loads(capsys.readouterr().out)
    assert (found["pulse"], found["partitions"], found["owner"]) == ("never ran", [], None)


@pytest.mark.brokers
def test_a_journal_on_a_broker(own_target: Cluster, topic_name: str, capsys: pytest.CaptureFixture[str]) -> None:
    flow = flow_name(topic_name)
    settings = settings_between(own_target.bootstrap, own_target.bootstrap, ["x"], flow)
    write(own_target, flow, journal(figures(0), figures(1)))
    write(own_target, flow, journal(figures(1, next_offset=1001)))
    assert status(settings, watch=False, as_json=True) is ExitCode.DONE
    found = json.loads(capsys.readouterr().out)
    assert [one["next_offset"] for one in found["partitions"]] == [1000, 1001], "the newest report counts"
    assert found["totals"]["partitions"] == 2


@pytest.mark.brokers
def test_a_follower_reads_what_is_new(own_target: Cluster, topic_name: str) -> None:
    flow = flow_name(topic_name)
    settings = settings_between(own_target.bootstrap, own_target.bootstrap, ["x"], flow)

    async def run() -> None:
        async with WireCluster(Endpoint("us", settings.target.bootstrap)) as target:
            follower = Follower(settings, target)
            assert (await follower.poll()).pulse is Pulse.NEVER_RAN
            await asyncio.to_thread(write, own_target, flow, journal(figures(0)))
            assert [one.next_offset for one in (await follower.poll()).figures] == [1000]
            await asyncio.to_thread(write, own_target, flow, journal(figures(0, next_offset=1007)))
            assert [one.next_offset for one in (await follower.poll()).figures] == [1007]

    asyncio.run(run())


@pytest.mark.brokers
def test_a_follower_forgets_a_journal_that_was_made_anew(own_target: Cluster, topic_name: str) -> None:
    flow = flow_name(topic_name)
    settings = settings_between(own_target.bootstrap, own_target.bootstrap, ["x"], flow)

    async def run() -> None:
        async with WireCluster(Endpoint("us", settings.target.bootstrap)) as target:
            follower = Follower(settings, target)
            await asyncio.to_thread(write, own_target, flow, journal(figures(0), figures(1)))
            assert [one.partition for one in (await follower.poll()).figures] == [0, 1]
            await asyncio.to_thread(delete_topics, own_target.bootstrap, journal_topic(flow))
            await asyncio.to_thread(write, own_target, flow, journal(figures(2)))
            assert [one.partition for one in (await follower.poll()).figures] == [2]

    asyncio.run(run())


@pytest.mark.brokers
@pytest.mark.parametrize(
    ("is_same", "next_offset", "lag"), [(True, 2, 3), (False, 2, None), (True, 9, None)], ids=["same", "anew", "cut"]
)
def test_what_a_source_holds_that_is_not_what_was_mirrored_is_no_lag(
    own_target: Cluster, topic_name: str, is_same: bool, next_offset: int, lag: int | None
) -> None:
    """It was 0, or the length of a topic of other records."""
    flow = flow_name(topic_name)
    settings = settings_between(own_target.bootstrap, own_target.bootstrap, ["x"], flow)
    make_topic(own_target.bootstrap, topic_name)
    produce(own_target.bootstrap, topic_name, [b"a"] * 5)

    async def run() -> None:
        async with WireCluster(Endpoint("us", settings.target.bootstrap)) as cluster:
            await cluster.refresh([topic_name])
            topic_id = cluster.topic_id(topic_name) if is_same else uuid4()
            seen = FirstSeen(source_topic=topic_name, topic_id=topic_id, target_topic_id=None, cluster_id="")
            stale = figures(
                0, topic=topic_name, target_topic=topic_name, state=State.UNAVAILABLE, next_offset=next_offset
            )
            entries = {**journal(stale), FirstSeen.key(topic_name): seen.to_json()}
            await asyncio.to_thread(write, own_target, flow, entries)
            (one,) = (await Follower(settings, cluster, cluster).poll()).figures
            assert one.lag_records == lag

    asyncio.run(run())


_HOURS_MS = 7_200_000


@pytest.mark.brokers
@pytest.mark.parametrize(
    ("ahead_ms", "expected"),
    [(_HOURS_MS, "2 h ahead of"), (-_HOURS_MS, "2 h behind"), (0, "")],
    ids=["ahead", "behind", "right"],
)
def test_what_arrives_shows_whether_a_mirror_elsewhere_runs(
    own_target: Cluster, topic_name: str, capsys: pytest.CaptureFixture[str], ahead_ms: int, expected: str
) -> None:
    """And not its clock, which may be another one's."""
    flow = flow_name(topic_name)
    settings = settings_between(own_target.bootstrap, own_target.bootstrap, ["x"], flow)

    def reports(over: threading.Event, offset: int = 1000) -> None:
        while True:
            now = int(time.time() * 1000) + ahead_ms
            known = journal(figures(0, at_ms=now, next_offset=offset), host="elsewhere", age_ms=NOW - now)
            write(own_target, flow, known)
            offset += 1
            if over.wait(0.3):
                return

    over = threading.Event()
    over.set()
    reports(over)
    over.clear()
    reporting = threading.Thread(target=reports, args=(over,))
    reporting.start()
    try:
        status(settings, watch=False, as_json=False)
    finally:
        over.set()
        reporting.join()
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{flow}: running (" in shown
    assert (f"; its clock is {expected} this machine's" in shown) == bool(expected), shown
    assert "2 h ago" not in shown
    assert "1 CAUGHT_UP" in shown


def test_a_mirror_elsewhere_runs_while_it_says_again_that_it_has_the_flow(monkeypatch: pytest.MonkeyPatch) -> None:
    """No task reports, as where Spark has no executors yet; the record has the time of the claim each time."""
    monkeypatch.setattr("mirror.journal.snapshot.LISTEN_SECONDS", 0.1)
    monkeypatch.setattr("mirror.journal.snapshot._LISTEN_PAUSE", 0.01)
    now, numbers = int(time.time() * 1000), itertools.count(1)
    flow, cluster = settings_between("a:1", "b:2", ["x"], "eu-to-us"), SimpleNamespace()
    cluster.topics, cluster.cluster_id = {journal_topic("eu-to-us"): None}, None

    async def shown(*, is_restated: bool) -> Status:
        async def follow(_: object, place: Place | None) -> News:
            known = journal(figures(at_ms=now - 60_000), host="elsewhere", age_ms=NOW - now + 60_000)
            arrived = known.items() if place is None else [(OWNER, known[OWNER])] if is_restated else []
            return News([Entry(next(numbers), *one) for one in arrived], Place(next(numbers), None, 1), None)

        monkeypatch.setattr(Journal, "follow", follow)
        return await Follower(flow, cast(WireCluster, cluster)).listen()

    found = asyncio.run(shown(is_restated=True))
    assert (found.pulse, found.is_unheard) == (Pulse.RUNNING, False)
    assert "1 without a fresh report" in text_of(found)
    assert asyncio.run(shown(is_restated=False)).pulse is Pulse.ENDED


@pytest.mark.brokers
@pytest.mark.parametrize("ahead_ms", [_HOURS_MS, -_HOURS_MS], ids=["ahead", "behind"])
def test_a_mirror_elsewhere_of_which_nothing_arrives_does_not_run(
    own_target: Cluster,
    topic_name: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    ahead_ms: int,
) -> None:
    monkeypatch.setattr("mirror.journal.snapshot.LISTEN_SECONDS", 1.0)
    flow, now = flow_name(topic_name), int(time.time() * 1000) + ahead_ms
    settings = settings_between(own_target.bootstrap, own_target.bootstrap, ["x"], flow)
    write(own_target, flow, journal(figures(0, at_ms=now), host="elsewhere", age_ms=NOW - now))
    status(settings, watch=False, as_json=False)
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{flow}: not running (" in shown
    assert "nothing came of it in 12 s; by its clock, last seen at 20" in shown


@pytest.mark.brokers
@pytest.mark.parametrize("as_json", [True, False], ids=["json", "text"])
def test_a_watch_of_a_pipe(own_target: Cluster, topic_name: str, tmp_path: Path, as_json: bool) -> None:
    flow = flow_name(topic_name)
    write(own_target, flow, journal(figures(0)))
    path = config_file(tmp_path, own_target.bootstrap, own_target.bootstrap, ["x"], flow)
    command = [sys.executable, "-m", "mirror", "status", str(path), "--watch", *(["--json"] if as_json else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as watching:
        assert watching.stdout is not None
        seen = 0
        for line in watching.stdout:
            seen += '"pulse":' in line or line.startswith("orders-0")
            if seen == 2:
                break
        watching.send_signal(signal.SIGINT)
        assert watching.wait(10) == 0
    assert seen == 2


@pytest.mark.brokers
def test_a_watch_on_a_terminal(own_target: Cluster, topic_name: str, tmp_path: Path) -> None:
    flow = flow_name(topic_name)
    write(own_target, flow, journal(figures(0)))
    path = config_file(tmp_path, own_target.bootstrap, own_target.bootstrap, ["x"], flow)
    command = [sys.executable, "-m", "mirror", "status", str(path), "--watch"]
    ours, theirs = pty.openpty()
    shown = b""
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=ENVIRONMENT) as watching:
        os.close(theirs)
        while shown.count(b"orders-0") < 2:
            shown += os.read(ours, 65536)
        watching.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # how a terminal ends
            while more := os.read(ours, 65536):
                shown += more
        assert watching.wait(10) == 0
    os.close(ours)
    assert b"\x1b[1A" in shown, "the second page is drawn over the first"
    assert b"Traceback" not in shown


# --- small things ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (99_949, "99.9 kB"), (99_950, "100 kB"), (999_499, "999 kB")),
        *((999_500, "1.0 MB"), (12_345_678, "12.3 MB"), (4 * 10**9, "4.0 GB"), (5 * 10**15, "5,000.0 TB")),
    ],
)
def test_size(value: int, text: str) -> None:
    assert rendering.size(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((-5, "0 ms"), (0, "0 ms"), (999, "999 ms"), (1000, "1.0 s"), (9_940, "9.9 s"), (14_000, "14 s")),
        *((60_000, "1 min"), (3_600_000, "1 h"), (47 * 3_600_000, "47 h"), (72 * 3_600_000, "3 d")),
    ],
)
def test_duration(value: int, text: str) -> None:
    assert rendering.duration(value) == text


def test_counts() -> None:
    assert [rendering.count(n, "batch", "batches") for n in (0, 1, 2000)] == ["0 batches", "1 batch", "2,000 batches"]


def test_every_state_has_a_style() -> None:
    assert all(rendering.state_text(state).plain == state for state in State)
    assert all(rendering.state_text(state, former=True).plain in (state, f"was {state}") for state in State)


def test_clusters(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    embedded.show([], as_json=False)
    assert "mirror embedded up" in capsys.readouterr().out
    mine = Identity.of(os.getpid())
    gone = Identity(pid=ended_pid(), started=0.0)
    assert mine is not None
    members = [Member(id=0, port=9092, process=mine), Member(id=1, port=9093, process=gone)]
    standing = [
        Standing(name="half", cluster_id="c", folder=tmp_path, nodes=tuple(members)),
        Standing(name="whole", cluster_id="c", folder=tmp_path, nodes=(members[0],)),
        Standing(name="none", cluster_id="c", folder=tmp_path, nodes=(members[1],)),
    ]
    embedded.show(standing, as_json=False)
    rows = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()[2:]]
    assert rows == [
        "half partly up 1/2 127.0.0.1:9092,127.0.0.1:9093",
        "whole up 1/1 127.0.0.1:9092",
        "none down 0/1 127.0.0.1:9093",
    ]
    embedded.show(standing, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert [(one["name"], one["alive"], one["nodes"]) for one in found] == [
        ("half", 1, 2),
        ("whole", 1, 1),
        ("none", 0, 1),
    ]
