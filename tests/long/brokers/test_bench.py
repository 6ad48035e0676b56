"""`mirror bench`, the measuring side: seeded records, what arms are given, what is made of what was seen, and real
copies of little data, of which one is not equal.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from mirror.config import load
from mirror.errors import ConfigError, ExitCode, UnequalCopy
from mirror.lab.bench import measuring as watching
from mirror.lab.bench import rekeyed
from mirror.lab.bench.arms import ARMS, SETTINGS, Job, Loop, chosen, filled, settings
from mirror.lab.bench.arms import USUAL as USUAL_ARMS
from mirror.lab.bench.content import Content
from mirror.lab.bench.copies import attempted, copied, run_of, source_of
from mirror.lab.bench.latency import Pace, at_share, summary
from mirror.lab.bench.measuring import Connection, Traffic, parsed
from mirror.lab.bench.play import Plan, _Measuring, rotated
from mirror.lab.bench.result import Result
from mirror.lab.bench.workloads import SHAPES, USUAL, Shape, records, values
from mirror.lab.bench.workloads import chosen as chosen_shapes
from mirror.lab.demo.processes import Bound
from mirror.lab.embedded import Cluster

ROOT = Path(__file__).parents[3]
TINY = Shape(name="tiny", megabytes=1, batch_bytes=50_000, partitions=2)
PLAN = Plan(shapes=[TINY], arms=list(ARMS.values()), rounds=5, pace=Pace(), scaling=True, command="mirror bench")


def test_a_seed_makes_the_same_records_again() -> None:
    assert list(values(TINY)) == list(values(TINY))
    other = list(values(replace(TINY, seed=2)))
    assert [value for _, _, value in other] != [value for _, _, value in values(TINY)]


@pytest.mark.parametrize("size", [100, 400, 2000])
def test_records_have_about_the_size_that_was_asked_for(size: int) -> None:
    made = records(1, 1000, size=size)
    assert 0.7 * size < sum(map(len, made)) / len(made) < 1.3 * size
    assert all(json.loads(value)["user"] >= 0 for value in made)


def test_partitions_get_alike_and_keys_their_share() -> None:
    made = list(values(replace(TINY, keyed=0.25)))
    assert sum(len(key or b"") + len(value) for _, key, value in made) == pytest.approx(1_000_000, rel=0.01)
    per_partition = Counter(partition for partition, _, _ in made)
    assert set(per_partition) == {0, 1}
    assert min(per_partition.values()) > 0.8 * max(per_partition.values())
    assert sum(key is not None for _, key, _ in made) / len(made) == pytest.approx(0.25, abs=0.04)


def test_every_usual_workload_is_there_and_has_a_title() -> None:
    assert set(USUAL) <= set(SHAPES)
    assert all(shape.title and name == shape.name for name, shape in SHAPES.items())
    assert {shape.batch_bytes for shape in SHAPES.values()} >= {8_000, 64_000, 1_000_000}


def test_workloads_and_arms_are_chosen_by_name() -> None:
    assert [shape.megabytes for shape in chosen_shapes(["8KB-lz4", "8KB-lz4"], 3)] == [3]
    assert [arm.facts.name for arm in chosen(["replay", "mirror"])] == ["replay", "mirror"]
    with pytest.raises(ConfigError, match="no workload 9KB: choose from 1MB-zstd"):
        chosen_shapes(["9KB"])
    with pytest.raises(ConfigError, match="no arm mm3: choose from mirror"):
        chosen(["mm3"])


def test_arms_have_names_of_their_own_and_show_their_settings() -> None:
    for name, arm in ARMS.items():
        assert arm.facts.name == name
        assert arm.facts.settings.strip()
        assert arm.facts.what.endswith(".")


def job(folder: Path) -> Job:
    return Job(run="r1-x", source="127.0.0.1:1", target="127.0.0.1:2", topic="orders", shape=TINY, folder=folder)


@pytest.mark.parametrize("name", ["mm2-default", "mm2-tuned"])
def test_mirror_maker_is_given_addresses_topic_and_codec(name: str, tmp_path: Path) -> None:
    template = (SETTINGS / f"{name}.properties").read_text()
    given = dict(line.split(" = ") for line in filled(template, job(tmp_path)).splitlines())
    assert given["clusters"] == "r1-x, b"
    assert given["r1-x.bootstrap.servers"] == "127.0.0.1:1"
    assert given["b.bootstrap.servers"] == "127.0.0.1:2"
    assert given["r1-x->b.topics"] == "orders"
    assert given.get("b.producer.compression.type") == (None if name == "mm2-default" else "zstd")
    assert not any("{" in text for text in (*given, *given.values()))


def test_every_tuned_setting_has_its_reason() -> None:
    blocks = (SETTINGS / "mm2-tuned.properties").read_text().split("\n\n")
    assert all(block.startswith(("#", "clusters")) for block in blocks)


@pytest.mark.parametrize("translate", [False, True])
def test_the_mirror_is_given_a_valid_configuration(translate: bool, tmp_path: Path) -> None:
    file = tmp_path / "flow.yaml"
    names = ("r1-mirror", "127.0.0.1:1", "127.0.0.1:2", "orders")
    file.write_text(settings(*names, translate=translate, spark={"tasks": 2}))
    found = load(file)
    assert [one.pattern for one in found.topics.include] == ["orders"]
    assert found.topics.offsets == ("translate" if translate else "preserve")
    assert found.spark.tasks == 2


def test_each_arm_comes_first_in_its_turn() -> None:
    arms = PLAN.turns(1, TINY)
    assert len(arms) > 3
    assert {PLAN.turns(round_, TINY)[0].facts.name for round_ in range(1, len(arms) + 1)} == {
        arm.facts.name for arm in arms
    }
    assert rotated([], 3) == []


def test_only_fitting_arms_copy_a_compacted_topic() -> None:
    names = {arm.facts.name for arm in PLAN.turns(1, replace(TINY, compacted=True))}
    assert "mirror-rewrite" in names
    assert not names & {"mirror", "replay"}


def test_contents_are_equal_or_the_first_difference_is_named() -> None:
    mine = Content(((2, "a", "t"), (1, "b", "t")), 10)
    assert mine.checked(mine, timestamps=True) == (
        True,
        "All 3 records of 2 partitions: key, value, headers and timestamp of each, in order.",
    )
    for changed, named in (
        ((3, "b", "t"), "Partition 1 holds 3 records, its source 1"),
        ((1, "c", "t"), "Partition 1: keys, values, headers or their order"),
        ((1, "b", "u"), "Partition 1: timestamps"),
    ):
        equal, text = mine.checked(Content((mine.partitions[0], changed), 10), timestamps=True)
        assert not equal
        assert named in text
    late = Content(((2, "a", "u"), (1, "b", "u")), 10)
    assert mine.checked(late, timestamps=False)[0]


def test_a_rekeyed_copy_holds_every_record_once_and_each_key_in_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = {"checked": 0, "wrong": 0, "keys": []}
    mine = [{**nothing, "records": 2, "sum": 5}, {**nothing, "records": 1, "sum": 6}]
    good = {"records": 3, "sum": 11, "checked": 3, "wrong": 0, "keys": [["a", "b"], ["c"]]}
    source, copy = ("here", "orders", 2), ("there", "orders", 12)

    def compared(its: dict[str, object]) -> tuple[bool, str]:
        monkeypatch.setattr(rekeyed, "shared_out", lambda _, address, *more: mine if address == "here" else [its])
        return rekeyed.compared(source, copy, "user")

    assert compared(good)[0]
    for change, named in (
        ({"records": 4}, "It holds 4 records, its source 3"),
        ({"sum": 12}, "differ"),
        ({"wrong": 1}, "1 records have a wrong key"),
        ({"checked": 0}, "The key of none of its records was checked"),
        ({"keys": [["a", "b"], ["b"]]}, "records of 1 keys lie in more than one partition"),
    ):
        equal, text = compared({**good, **change})
        assert not equal
        assert named in text


def test_latency_is_added_record_by_record() -> None:
    sent = dict.fromkeys(range(100), 0.0)
    direct = dict.fromkeys(sent, 0.001)
    copy = {number: 0.004 if number < 98 else 9.0 for number in sent}
    found = summary("mirror", 1000, 1, sent, direct, copy)
    assert (found.p50_ms, found.p99_ms, found.max_ms) == pytest.approx((4, 9000, 9000))
    assert (found.added_p50_ms, found.added_p99_ms) == pytest.approx((3, 8999))
    assert sum(many for _, many in found.buckets) == found.records == 100
    assert found.buckets[-1] == (9000.0, 2)
    assert at_share([1.0, 2.0], 1.0) == 2.0


def diagnosed(port: int, inode: int, sent: int, received: int) -> bytes:
    """What the kernel says of one connection."""
    message = struct.pack("=4B", 2, 1, 0, 0) + struct.pack(">HH", 40_000, port) + bytes(60) + struct.pack("=I", inode)
    info = struct.pack("=120xQQ", sent, received)
    body = message + struct.pack("=HH", 8, 5) + bytes(4) + struct.pack("=HH", 4 + len(info), 2) + info
    return struct.pack("=IHHII", 16 + len(body), 20, 2, 1, 0) + body


def test_connections_are_read_from_what_the_kernel_says() -> None:
    answer = diagnosed(9092, 7, 10, 20) + diagnosed(9093, 0, 1 << 33, 3) + struct.pack("=IHHII4x", 20, 3, 2, 1, 0)
    assert list(parsed(answer)) == [
        Connection(40_000, 9092, 7, 10, 20),
        Connection(40_000, 9093, 0, 1 << 33, 3),
        None,
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel is asked by Linux's own means")
def test_the_kernel_says_what_another_process_sent() -> None:
    sends = "import socket, sys; one = socket.create_connection(('127.0.0.1', int(sys.argv[1])));"
    sends += "one.sendall(bytes(1_000_000)); one.recv(1)"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with subprocess.Popen([sys.executable, "-c", sends, str(port)]) as process, server.accept()[0] as taken:
            left = 1_000_000
            while left:
                left -= len(taken.recv(left))
            seen, without = Traffic([port], []), Traffic([port], [process.pid])
            while seen.total(0, 1_000_000)[1] is None:  # the last bytes may still have to be acknowledged
                seen.sample()
            without.sample()
    assert seen.total(0, 1_000_000)[0] == 0
    assert without.total(1, 1) == (None, None)


class Wrong(Loop):
    """Copies another topic than it should, of the same records written at another time."""

    def target_topic(self, job: Job) -> str:
        return f"{job.run}.copy"

    def start(self, job: Job) -> Bound:
        return super().start(replace(job, topic=f"{job.topic}-other"))


def ours() -> set[int]:
    return {one.pid for one in psutil.Process().children(recursive=True)}


@pytest.mark.brokers
def test_copies_are_measured_and_compared(own_source: Cluster, own_target: Cluster, topic_name: str) -> None:
    before = ours()
    source = source_of(own_source, TINY, topic_name)
    assert source.content.bytes == source.workload.uncompressed_bytes > source.workload.stored_bytes
    for name in ("replay", "loop", "mirror"):
        copy = attempted(ARMS[name], source, own_target, f"{topic_name[-8:]}-{name}")
        run = run_of(ARMS[name], source, copy, round_=1, turn=0)
        assert run.equal, run.checked
        assert run.records == source.workload.records == source.content.records
        assert 0 < run.start_s < run.wall_s
        assert 0 < run.copy_s <= run.wall_s - run.start_s
        assert 0 <= run.start_cpu_s <= run.cpu_s  # a start of 0.1 s may have no tick of the clock of CPU times
        assert run.java_cpu_s > 0 if name == "mirror" else run.java_cpu_s == 0
        assert run.peak_rss_bytes > (10_000_000 if name == "mirror" else 0)  # one of a second may be seen but once
        assert run.wire_in_bytes is None or run.wire_in_bytes >= source.workload.stored_bytes
    assert source_of(own_source, TINY, f"{topic_name}-other").content.bytes == source.content.bytes
    with pytest.raises(UnequalCopy, match=f"{topic_name}: loop: its copy is not equal .* 0: timestamps differ"):
        copied(Wrong(), source, own_target, f"{topic_name[-8:]}-wrong")
    reported = SimpleNamespace(failed=lambda _: None)
    plan: Any = None
    measuring = _Measuring(plan, cast("Any", reported), own_source, own_target)
    measuring.copy(Wrong(), source, 1, 0)
    assert [(one.equal, one.arm) for one in measuring.runs] == [(False, "loop")]
    assert measuring.unequal
    assert not measuring.failures
    assert ours() == before


class Late:
    """Log ends of a cluster that lists a new topic when it likes."""

    def __init__(self, *answers: dict[tuple[str, int], int]) -> None:
        self._answers = list(answers)

    def of(self, *_: object, **__: object) -> dict[tuple[str, int], int]:
        return self._answers.pop(0)


@pytest.mark.parametrize(("on_disk", "began_at"), [(0, 3), (100, 2)])
def test_a_topic_that_is_not_reported_is_empty_only_where_nothing_is_on_disk(
    on_disk: int, began_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a copy that is over when the brokers list its topic would have taken no time at all."""
    clock = iter(range(100))
    monkeypatch.setattr(watching, "on_disk", lambda *_: on_disk)
    monkeypatch.setattr(watching, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    watch = object.__new__(watching.Watch)
    nothing: Any = SimpleNamespace(sample=lambda **_: None, cpu_s=0.0, kernel_s=0.0, java_cpu_s=0.0, used=0.0)
    watch._trees = watch._source_cpu = watch._target_cpu = nothing
    watch._goal = watching.Goal(topic="a", partitions=1, end=5, stored_bytes=1)
    watch._target, watch._first, watch._seen = nothing, None, 0
    watch._ends = cast("Any", Late({}, {}, {("a", 0): 0}, {}, {("a", 0): 5}))
    for _ in range(5):
        watch._count()
    first: Any = watch._first
    assert first.at == began_at


@pytest.fixture
def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.mark.soak
def test_a_quick_comparison(tmp_path: Path, environment: dict[str, str]) -> None:
    raw = tmp_path / "raw.json"
    command = [sys.executable, "-m", "mirror", "bench", "--quick", "--json", str(raw)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = Result.from_json(raw.read_bytes(), str(raw))
    assert {workload.name for workload in found.workloads} == set(USUAL)
    assert {run.arm for run in found.runs} == set(USUAL_ARMS)
    assert all(run.equal for run in found.runs)
    assert {one.arm for one in found.latencies} == {"mirror", "mm2", "mm2-tuned"}


@pytest.mark.soak
def test_a_rekeyed_copy(tmp_path: Path, environment: dict[str, str]) -> None:
    raw = tmp_path / "raw.json"
    what = ["--workload", "1MB-zstd", "--arm", "mirror-rekey", "--megabytes", "5", "--rounds", "1", "--no-scaling"]
    command = [sys.executable, "-m", "mirror", "bench", *what, "--json", str(raw)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    (run,) = Result.from_json(raw.read_bytes()).runs
    assert run.arm == "mirror-rekey"
    assert "each once" in run.checked


@pytest.mark.soak
def test_an_interrupted_comparison_leaves_nothing_but_its_figures(environment: dict[str, str], tmp_path: Path) -> None:
    raw = tmp_path / "raw.json"
    command = [sys.executable, "-m", "mirror", "bench", "--quick", "--json", str(raw)]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines: Iterator[str] = iter(process.stderr)
        assert any("round 1" in line for line in islice(lines, 60))
        tree = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        _, output = process.communicate(timeout=60)
    assert process.returncode == ExitCode.BUG
    assert "interrupted: what was not measured" in output
    assert Result.from_json(raw.read_text()).runs
    _, alive = psutil.wait_procs(tree, timeout=30)
    assert not alive
