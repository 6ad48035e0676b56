"""`mirror bench`, the measuring side: seeded records, what arms are given, and what is made of what was seen."""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from mirror.config import load
from mirror.errors import ConfigError
from mirror.lab.bench import rekeyed
from mirror.lab.bench.arms import ARMS, SETTINGS, Job, chosen, filled, settings
from mirror.lab.bench.content import Content
from mirror.lab.bench.latency import Pace, at_share, summary
from mirror.lab.bench.measuring import Connection, parsed
from mirror.lab.bench.play import Plan, rotated
from mirror.lab.bench.workloads import Shape, values
from mirror.lab.bench.workloads import chosen as chosen_shapes

TINY = Shape(name="tiny", megabytes=1, batch_bytes=50_000, partitions=2)

PLAN = Plan(shapes=[TINY], arms=list(ARMS.values()), rounds=5, pace=Pace(), scaling=True, command="mirror bench")


def test_a_seed_makes_the_same_records_again() -> None:
    assert list(values(TINY)) == list(values(TINY))
    other = list(values(replace(TINY, seed=2)))
    assert [value for _, _, value in other] != [value for _, _, value in values(TINY)]


def test_partitions_get_alike_and_keys_their_share() -> None:
    made = list(values(replace(TINY, keyed=0.25)))
    assert sum(len(key or b"") + len(value) for _, key, value in made) == pytest.approx(1_000_000, rel=0.01)
    per_partition = Counter(partition for partition, _, _ in made)
    assert set(per_partition) == {0, 1}
    assert min(per_partition.values()) > 0.8 * max(per_partition.values())
    assert sum(key is not None for _, key, _ in made) / len(made) == pytest.approx(0.25, abs=0.04)


def test_workloads_and_arms_are_chosen_by_name() -> None:
    assert [shape.megabytes for shape in chosen_shapes(["8KB-lz4", "8KB-lz4"], 3)] == [3]
    assert [arm.facts.name for arm in chosen(["replay", "mirror"])] == ["replay", "mirror"]
    with pytest.raises(ConfigError, match="no workload 9KB: choose from 1MB-zstd"):
        chosen_shapes(["9KB"])
    with pytest.raises(ConfigError, match="no arm mm3: choose from mirror"):
        chosen(["mm3"])


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
