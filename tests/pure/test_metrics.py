"""What is reported of partitions and tasks: as the journal keeps it, in total, and by the Prometheus endpoint, which is
right over epochs and tasks that start again, and bounded.
"""

from __future__ import annotations

import json
import socket
import urllib.request

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families as parsed
from scraped import NOW_MS, metrics, report, task, took, value
from waiting import DEADLINE_S

from mirror.errors import ConfigError
from mirror.observability import metrics as endpoint
from mirror.observability.metrics import serving
from mirror.observability.status import BOUNDS, PartitionStatus, TaskStatus, Totals
from mirror.states import State


def test_lag_and_state_of_a_partition() -> None:
    exposed = metrics()
    exposed.learn([report(bytes=1000, records=10)])
    at = {"flow": "eu-to-us", "topic": "orders", "partition": "0"}
    assert value(exposed, "mirror_records_lag", **at) == 2
    assert value(exposed, "mirror_bytes_lag", **at) == 200
    assert value(exposed, "mirror_partition_state", **at, state="MIRRORING") == 1
    exposed.learn([report(state=State.CORRUPT, at_ms=NOW_MS + 1)])
    assert value(exposed, "mirror_partition_state", **at) == 1, "of the state that it has, and no other"
    assert value(exposed, "mirror_partition_state", **at, state="CORRUPT") == 1
    exposed.learn([report(log_end=-1, lag_records=None, at_ms=NOW_MS + 2)])
    assert [value(exposed, f"mirror_{what}_lag", **at) for what in ("records", "bytes")] == [None, None], "not known"


def test_counters_grow_by_what_each_report_has_more() -> None:
    exposed = metrics()
    exposed.learn([report(verdicts={"RESTAMP/own_producer": 3}, verdict_bytes={"RESTAMP/own_producer": 300}, lost=1)])
    exposed.learn([report(partition=1, verdicts={"RESTAMP/own_producer": 5, "DROP/control": 1})])
    exposed.learn([report(verdicts={"RESTAMP/own_producer": 4}, verdict_bytes={"RESTAMP/own_producer": 450}, lost=1)])
    assert value(exposed, "mirror_batches_total", topic="orders", verdict="RESTAMP", reason="own_producer") == 9
    assert value(exposed, "mirror_batches_total", topic="orders", verdict="DROP", reason="control") == 1
    assert value(exposed, "mirror_bytes_total", verdict="RESTAMP", flow="eu-to-us") == 450
    assert value(exposed, "mirror_data_loss_records_total", topic="orders") == 1


def test_a_task_that_starts_again_takes_nothing_back() -> None:
    """It counts from where its epoch began; what it had done since stays counted, and counts no second time. Here that
    was at 100, and the task was killed after it had reported 150.
    """
    exposed = metrics()
    for at_ms, many in enumerate((100, 150, 100, 130)):
        latency = took(*([0.02] * many))
        exposed.learn([report(verdicts={"RESTAMP/own_producer": many}, latency=latency, at_ms=NOW_MS + at_ms)])
    assert value(exposed, "mirror_batches_total", verdict="RESTAMP") == 180
    assert value(exposed, "mirror_replication_latency_seconds_count", topic="orders") == 180


def test_a_report_that_comes_late_changes_nothing() -> None:
    """A result overtakes what a task wrote to the journal."""
    exposed = metrics()
    exposed.learn([report(verdicts={"RESTAMP/own_producer": 7}, at_ms=NOW_MS + 5)])
    exposed.learn([report(verdicts={"RESTAMP/own_producer": 4}, state=State.UNAVAILABLE)])
    exposed.learn([report(verdicts={"RESTAMP/own_producer": 7}, at_ms=NOW_MS + 5)])
    assert value(exposed, "mirror_batches_total", verdict="RESTAMP") == 7
    assert value(exposed, "mirror_partition_state", state="MIRRORING") == 1


def test_histograms_as_prometheus_wants_them() -> None:
    exposed = metrics()
    exposed.learn([report(latency=took(0.005, 0.02, 400.0))])
    of = {"topic": "orders"}
    assert value(exposed, "mirror_replication_latency_seconds_bucket", le="0.005", **of) == 1, "the bound included"
    assert value(exposed, "mirror_replication_latency_seconds_bucket", le="0.01", **of) == 1
    assert value(exposed, "mirror_replication_latency_seconds_bucket", le="300.0", **of) == 2
    assert value(exposed, "mirror_replication_latency_seconds_bucket", le="+Inf", **of) == 3
    assert value(exposed, "mirror_replication_latency_seconds_sum", **of) == pytest.approx(400.025)


def test_requests_of_tasks_add_up_over_epochs_and_attempts() -> None:
    exposed = metrics()
    assert value(exposed, "mirror_restarts_total", what="epoch") == 0, "so that the first one is a rise"
    exposed.epoch_failed()
    exposed.learn_task(task(fetch=took(0.1), source_throttled_ms=500))
    exposed.learn_task(task(fetch=took(0.1, 0.2), produce=took(0.3), source_throttled_ms=1500))
    exposed.learn_task(task(task=1, fetch=took(0.1)))
    exposed.learn_task(task(attempt=2, fetch=took(0.1)))  # Spark started it again, twice
    exposed.learn_task(task(epoch=1, fetch=took(0.1, 0.1), target_throttled_ms=250))
    assert value(exposed, "mirror_fetch_seconds_count", flow="eu-to-us") == 6
    assert value(exposed, "mirror_produce_seconds_count", flow="eu-to-us") == 1
    assert value(exposed, "mirror_restarts_total", what="task") == 2
    assert value(exposed, "mirror_restarts_total", what="epoch") == 1
    assert value(exposed, "mirror_throttled_seconds_total", cluster="source") == 1.5
    assert value(exposed, "mirror_throttled_seconds_total", cluster="target") == 0.25


def test_a_partition_that_is_mirrored_no_more_is_reported_no_more_but_stays_counted() -> None:
    exposed = metrics()
    exposed.learn([report(verdicts={"RESTAMP/own_producer": 7}), report(topic="gone", verdicts={"DROP/control": 2})])
    exposed.keep([("orders", 0)])
    assert value(exposed, "mirror_records_lag", topic="gone") is None
    assert value(exposed, "mirror_partition_state", topic="orders") == 1
    assert value(exposed, "mirror_batches_total", topic="gone") == 2


def test_samples_stay_bounded() -> None:
    """Gauges by partition, one state each; everything else by topic or flow: however long it runs."""
    exposed = metrics()
    for round_ in range(3):
        exposed.learn(
            report(
                topic=f"topic-{number // 3}",
                partition=number % 3,
                state=list(State)[(number + round_) % len(State)],
                verdicts={"RESTAMP/own_producer": round_, "DROP/control": round_},
                at_ms=NOW_MS + round_,
            )
            for number in range(300)
        )
        exposed.learn_task(task(epoch=round_))
    registry = CollectorRegistry(auto_describe=False)
    registry.register(exposed)
    lines = generate_latest(registry).splitlines()
    by_topic = 2 + 1 + len(BOUNDS) + 3  # batches by verdict, loss, and the histogram
    assert len(lines) < 300 * 3 + 100 * by_topic + 100


def test_figures_of_a_task_travel_as_json() -> None:
    answer = task(attempt=1, fetch=took(0.1), produce=took(0.2, 9000), source_throttled_ms=3)
    assert TaskStatus.from_json(answer.to_json()) == answer
    with pytest.raises(ValueError, match="TaskStatus: instance: Field required"):
        TaskStatus.from_json(b"{}")


def test_the_endpoint_answers_and_a_port_that_is_taken_is_an_error(free_port: int) -> None:
    exposed = metrics()
    exposed.learn([report()])
    listen = f"127.0.0.1:{free_port}"
    with serving(listen, exposed):
        assert families(listen) >= {"mirror_records_lag", "mirror_batches", "mirror_restarts"}
        with pytest.raises(ConfigError, match=rf"metrics.listen: cannot listen on {listen}: Address already in use"):
            serving(listen, metrics()).__enter__()
    with serving(listen, exposed):  # it is free again
        assert families(listen)
    with pytest.raises(ConfigError, match="cannot listen on"):  # no address of this machine
        serving("192.0.2.1:9404", metrics()).__enter__()


def families(listen: str) -> set[str]:
    with urllib.request.urlopen(f"http://{listen}/metrics", timeout=DEADLINE_S) as answer:
        return {family.name for family in parsed(answer.read().decode())}


def silent(listen: str) -> socket.socket:
    """A client that connects and sends nothing."""
    host, _, port = listen.partition(":")
    return socket.create_connection((host, int(port)), timeout=DEADLINE_S)


def test_a_client_that_sends_nothing_holds_no_thread(
    free_port: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert endpoint._Handler.timeout == endpoint.SILENCE_SECONDS
    monkeypatch.setattr(endpoint._Handler, "timeout", 0.2)
    listen = f"127.0.0.1:{free_port}"
    with serving(listen, metrics()), silent(listen) as nothing, silent(listen) as half:
        half.sendall(b"GET /metrics HTTP/1.1\r\nHost:")
        assert (nothing.recv(1), half.recv(1)) == (b"", b""), "closed"
        monkeypatch.undo()
        assert families(listen)
    assert "Traceback" not in capfd.readouterr().err


# --- reports and their totals -----------------------------------------------------------------------------------------


COUNT = st.integers(0, 2**63 - 1)
FIGURES = st.builds(
    PartitionStatus,
    flow=st.text(),
    instance=st.text(),
    topic=st.text(),
    partition=COUNT,
    target_topic=st.text(),
    state=st.sampled_from(State),
    detail=st.text(),
    next_offset=COUNT,
    log_end=COUNT,
    lag_records=COUNT,
    lag_ms=st.none() | COUNT,
    records=COUNT,
    batches=COUNT,
    bytes=COUNT,
    verdicts=st.dictionaries(st.text(), COUNT),
    at_ms=COUNT,
)


@given(FIGURES)
def test_round_trip(figures: PartitionStatus) -> None:
    assert PartitionStatus.from_json(figures.to_json()) == figures


@pytest.mark.parametrize(
    "change",
    [
        {"state": "SLEEPING"},
        {"state": 1},
        {"partition": "2"},
        {"partition": True},
        {"next_offset": None},
        {"lag_ms": 1.5},
        {"lag_ms": 2**63},
        {"at_ms": -(2**63) - 1},
        {"verdicts": []},
        {"verdicts": {"RESTAMP/own_producer": "3"}},
        {"verdicts": {"RESTAMP/own_producer": 2**63}},
        {"latency": {"counts": [0], "total": 0.0}},
        {"latency": {"counts": [-1] * (len(BOUNDS) + 1), "total": 0.0}},
        {"latency": {"counts": [0] * (len(BOUNDS) + 1), "total": float("nan")}},
    ],
)
def test_values_of_the_wrong_kind_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"^PartitionStatus: {next(iter(change))}[:.]"):
        PartitionStatus.from_json(json.dumps({**json.loads(report().to_json()), **change}).encode())


def test_text_that_could_not_be_shown_is_written_and_not_read() -> None:
    value = report(detail="half a character: \ud800").to_json()
    assert json.loads(value) == {**json.loads(report().to_json()), "detail": "half a character: \ud800"}
    with pytest.raises(ValueError, match=r"^PartitionStatus: Invalid JSON"):
        PartitionStatus.from_json(value)


def test_unknown_keys_are_ignored_and_some_have_defaults() -> None:
    assert report(partition=2, target_topic="eu.orders").key() == b"state/eu.orders/2"
    value = {**json.loads(report().to_json()), "from_the_future": [1]}
    for name in ("detail", "verdicts", "lag_ms"):
        del value[name]
    assert PartitionStatus.from_json(json.dumps(value).encode()) == report()
    del value["log_end"]
    with pytest.raises(ValueError, match=r"^PartitionStatus: log_end: Field required$"):
        PartitionStatus.from_json(json.dumps(value).encode())


def test_totals() -> None:
    totals = Totals.of(
        [
            report(lag_ms=5, records=10, batches=1, bytes=100, verdicts={"RESTAMP/own_producer": 1}),
            report(state=State.CORRUPT, lag_ms=None, verdicts={"RESTAMP/own_producer": 2, "DROP/control": 1}),
            report(state=State.CORRUPT, lag_ms=9, records=1, batches=2, bytes=3, filled=7, lost=2),
        ]
    )
    assert totals == Totals(
        partitions=3,
        states={State.MIRRORING: 1, State.CORRUPT: 2},
        stopped=2,
        lag_records=6,
        lag_unknown=0,
        lag_ms=9,
        records=11,
        batches=3,
        bytes=103,
        filled=7,
        lost=2,
        verdicts={"RESTAMP/own_producer": 3, "DROP/control": 1},
    )
    assert (Totals.of([]).lag_ms, Totals.of([]).lag_records) == (None, None)
    partly = Totals.of([report(lag_records=4), report(state=State.PAUSED, lag_records=None)])
    assert (partly.lag_records, partly.lag_unknown) == (4, 1)
    unknown = Totals.of([report(state=State.UNAVAILABLE, lag_records=None)])
    assert (unknown.lag_records, unknown.lag_unknown) == (None, 1), "not 0: nobody knows it"


def test_a_lag_is_of_the_end_that_is_known_now() -> None:
    stopped = report(state=State.CORRUPT, next_offset=5, log_end=9, lag_records=None)
    assert (stopped.with_end(25).lag_records, stopped.with_end(25).log_end) == (20, 25)
    assert stopped.with_end(25, 22).lag_records == 3, "the source deleted the others"
    assert stopped.with_end(25).with_end(None).lag_records is None, "the source went away"
    assert stopped.lag_bytes is None
    assert report(state=State.PAUSED, next_offset=-1, lag_records=None).with_end(25).lag_records is None
    assert report(state=State.RECREATED, next_offset=5, lag_records=3).with_end(25).lag_records is None, "another topic"
    assert report(state=State.PAUSED, next_offset=30, lag_records=3).with_end(25).lag_records is None, "it lost records"
    assert PartitionStatus.from_json(stopped.to_json()).lag_records is None
