"""`mirror bench`, the measuring side: seeded records, what arms are given, and what is made of what was seen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirror.lab.bench import content
from mirror.lab.bench.arms import chosen
from mirror.lab.bench.content import Content, Topics
from mirror.lab.bench.latency import at_share, summary
from mirror.lab.bench.play import Plan
from mirror.lab.bench.workloads import Shape, values

TINY = Shape(name="tiny", megabytes=1, batch_bytes=50_000, partitions=2)


def test_a_seed_makes_the_same_records_again() -> None:
    assert list(values(TINY)) == list(values(TINY))
    other = list(values(replace(TINY, seed=2)))
    assert [value for _, _, value in other] != [value for _, _, value in values(TINY)]


def test_a_shape_shares_its_records_out_among_its_topics() -> None:
    three = replace(TINY, topics=3)
    assert (TINY.topic_names, three.topic_names) == (["tiny"], ["tiny-0", "tiny-1", "tiny-2"])
    sizes = [sum(len(value) + len(key or b"") for _, key, value in values(shape)) for shape in (TINY, three)]
    assert sizes[0] // 1000 == 3 * (sizes[1] // 1000) + 1


def test_a_plan_has_arms_that_fit_in_turns() -> None:
    plan = Plan(arms=chosen(["mirror", "mirror-rewrite", "loop", "mm2"]), rounds=2)
    names = [[arm.name for arm in plan.turns(round_, TINY)] for round_ in (1, 2)]
    assert names == [["mirror", "loop", "mm2"], ["loop", "mm2", "mirror"]]
    assert [arm.name for arm in plan.turns(1, replace(TINY, compacted=True))] == ["mirror-rewrite"]


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
    source, copy = Topics("here", ["orders"], 2), Topics("there", ["orders"], 12)

    def compared(its: dict[str, object]) -> tuple[bool, str]:
        monkeypatch.setattr(content, "read_in_parts", lambda topics, _: mine if topics is source else [its])
        return content.compare_rekeyed(source, copy, "user")

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
