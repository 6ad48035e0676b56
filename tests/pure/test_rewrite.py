"""Rewritten batches: the same records, dense, at their offsets, as few as fit."""

from __future__ import annotations

import tracemalloc
from itertools import accumulate, pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rawbatches import batch, raw
from recordoracle import Record, encoded

from mirror.errors import BadRecords, RecordTooLarge, TooManyBytes
from mirror.records.codecs import compress
from mirror.records.columns import Records, headers, key, read, value
from mirror.records.header import RawBatch, crc_holds
from mirror.records.recipe import Recipe
from mirror.records.rewrite import MOST, is_padding, padding, portions, rewrite, rewritten, unfit
from mirror.topics.plan import Filling

CLOCK = 1_700_000_000_000
Facts = tuple[int, int, bytes | None, bytes | None, tuple[tuple[bytes, bytes | None], ...]]


def stored(records: list[Record], base: int = 1000, codec: int = 0, **fields: int) -> RawBatch:
    """A batch as a source stores it; `records` may have holes between their offsets."""
    fields = {"delta": records[-1].offset, "max_timestamp": CLOCK + max(r.timestamp for r in records), **fields}
    payload = compress(codec, encoded(records))
    attributes = codec | fields.pop("attributes", 0)
    count = len(records)
    return raw(batch(base, count=count, attributes=attributes, payload=payload, base_timestamp=CLOCK, **fields))


def facts(*batches: RawBatch) -> list[Facts]:
    return [fact for one in batches for fact in listed(read(one))]


def listed(found: Records) -> list[Facts]:
    return [
        (int(found.offsets[i]), int(found.timestamps[i]), key(found, i), value(found, i), tuple(headers(found, i)))
        for i in range(len(found))
    ]


def some(offsets: list[int], size: int = 30, seed: int = 1) -> list[Record]:
    random = Random(seed)
    return [Record(o, random.randrange(99), b"k%d" % o, random.randbytes(size), ((b"h", None),)) for o in offsets]


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=40, unique=True).map(sorted),
    st.integers(0, 4),
    st.integers(1000, 1062),
    st.integers(160, 900),
)
def test_any_batch(offsets: list[int], codec: int, first: int, max_bytes: int) -> None:
    source = stored(some(offsets), codec=codec)
    made = rewrite([source], Recipe(first_offset=first, max_bytes=max_bytes))
    assert facts(*made) == [one for one in facts(source) if one[0] >= first]
    for one in made:
        header = one.header
        assert crc_holds(one)
        assert header.is_dense
        assert header.size == len(one.data) <= max_bytes
        assert header.codec == header.attributes == codec
        assert header.max_timestamp == max(stamp for _, stamp, *_ in facts(one))
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert all(one.header.next_offset <= other.header.base_offset for one, other in pairwise(made))


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=40, unique=True).map(sorted),
    st.lists(st.integers(0, 400), min_size=1, max_size=5),
    st.integers(0, 4),
    st.integers(1, 900),
    st.sampled_from([0, 8]),
)
def test_portions_are_the_records_of_the_whole(
    offsets: list[int], sizes: list[int], codec: int, portion: int, append_time: int
) -> None:
    records = [one for at, offset in enumerate(offsets) for one in some([offset], sizes[at % len(sizes)], offset)]
    source = stored(records, codec=codec, attributes=append_time)
    parts = list(portions(source, portion=portion))
    assert [one for part in parts for one in listed(part)] == facts(source)
    assert all(len(part.data) <= portion or len(part) == 1 for part in parts)


@given(
    st.lists(st.integers(0, 60), min_size=2, max_size=40, unique=True).map(sorted),
    st.integers(0, 4),
    st.integers(200, 900),
    st.integers(100, 900),
    st.booleans(),
)
def test_whoever_begins_behind_a_batch_makes_the_same_ones(
    offsets: list[int], codec: int, max_bytes: int, portion: int, closes_up: bool
) -> None:
    """A batch in portions, its records joined by their offsets, and a successor at each of the places between."""
    source = stored(some(offsets), codec=codec)

    def made(first: int) -> list[bytes]:
        recipe = Recipe(first_offset=first, max_bytes=max_bytes, portion=portion)
        return [bytes(one.data) for one, _ in rewritten([source], recipe, closes_up=closes_up)]

    whole = list(rewritten([source], Recipe(max_bytes=max_bytes, portion=portion), closes_up=closes_up))
    assert [int(offset) for _, found in whole for offset in found] == [1000 + offset for offset in offsets]
    for number, (_, found) in enumerate(whole):
        assert made(int(found[-1]) + 1) == [bytes(one.data) for one, _ in whole[number + 1 :]]


@given(st.integers(0, 4), st.integers(20, 400), st.data())
def test_damage_in_a_stream_is_reported(codec: int, portion: int, draws: st.DataObject) -> None:
    """Whatever the payload is: the records of the whole, or an error that names the batch."""
    section = bytearray(encoded(some(list(range(20)))))
    for _ in range(draws.draw(st.integers(0, 2))):
        section[draws.draw(st.integers(0, len(section) - 1))] = draws.draw(st.integers(0, 255))
    section = section[: draws.draw(st.integers(0, len(section)))] + draws.draw(st.binary(max_size=3))
    count = draws.draw(st.integers(1, 22))
    source = raw(batch(1000, count=count, attributes=codec, payload=compress(codec, section)))
    try:
        wanted: list[Facts] | None = facts(source)
    except BadRecords:
        wanted = None
    if wanted is None:
        with pytest.raises(BadRecords, match="base offset 1000"):
            list(portions(source, portion=portion))
    else:
        assert [one for part in portions(source, portion=portion) for one in listed(part)] == wanted


def test_a_batch_that_decompresses_to_many_times_a_portion() -> None:
    """Some kilobytes become 8 MB: several batches, and never more than a few portions in memory."""
    size, portion = 100_000, 400_000
    records = [Record(o + (o > 40), 0, b"%d" % o, bytes(size)) for o in range(80)]
    source = stored(records, codec=4)
    assert source.header.size < 20_000
    rewrite([source], Recipe(portion=portion))  # compiles
    tracemalloc.start()
    try:
        made = rewrite([source], Recipe(max_bytes=1_048_588, portion=portion))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10 * portion
    assert max(one.header.count for one in made) == portion // size - 1
    found = (fact for one in made for fact in facts(one))
    assert all((o, v) == (1000 + one.offset, one.value) for one, (o, _, _, v, _) in zip(records, found, strict=True))


@pytest.mark.parametrize("fits", [1, 2, 3, 7, 99])
def test_the_fewest_batches_that_fit(fits: int) -> None:
    """Records of one size, not compressed: how many fit is known."""
    records = [Record(o, 0, b"key", b"v" * 500) for o in range(100)]
    limit = stored(records[:fits]).header.size
    counts = [one.header.count for one in rewrite([stored(records)], Recipe(max_bytes=limit))]
    assert counts == [fits] * (100 // fits) + ([100 % fits] if 100 % fits else [])


def test_a_single_record_may_take_more_than_several() -> None:
    sizes = [100, 100, 700, 100, 800, 100]
    records = [Record(o, 0, None, b"v" * size) for o, size in enumerate(sizes)]
    limit, alone = stored(records[:2]).header.size, stored(records[2:3]).header.size
    made = rewritten([stored(records)], Recipe(max_bytes=limit, max_record_bytes=alone))
    assert [next(made)[0].header.count for _ in range(3)] == [2, 1, 1]
    with pytest.raises(RecordTooLarge, match=f"more than the {alone} of a batch") as item:
        next(made)
    assert item.value.offset == 1004


@given(
    st.lists(st.sampled_from([10, 300, 700]), min_size=1, max_size=20),
    st.lists(st.integers(1, 3), min_size=20, max_size=20),
    st.integers(0, 4),
    st.integers(100, 3000),
)
def test_what_is_too_large_is_named_in_runs_and_the_rest_is_written(
    sizes: list[int], steps: list[int], codec: int, portion: int
) -> None:
    """As a writer goes on that leaves out what is named, one run after the other."""
    offsets = list(accumulate(steps[: len(sizes)]))
    records = [one for offset, size in zip(offsets, sizes, strict=True) for one in some([offset], size, offset)]
    source, limit = stored(records, codec=codec), 500
    named: list[int] = []
    written: list[Facts] = []

    def write(first: int) -> None:
        for made, _ in rewritten([source], Recipe(first_offset=first, max_bytes=limit, portion=portion)):
            written.extend(facts(made))

    first = 1000
    while (found := unfit(source, Recipe(first_offset=first, max_bytes=limit, portion=portion))) is not None:
        assert (found.reason, "bytes alone" in found.detail) == ("too_large", True)
        named += range(found.first, found.next_offset)
        with pytest.raises(RecordTooLarge) as item:
            write(first)
        assert item.value.offset == found.first
        first = found.next_offset
    write(first)
    assert named == [1000 + offset for offset, size in zip(offsets, sizes, strict=True) if size > 400]
    assert written == [one for one in facts(source) if one[0] not in named]


def test_batches_in_a_row_become_one_and_holes_part_them() -> None:
    sources = [stored(some([0, 1]), codec=1), stored(some([0, 1, 2]), 1002, attributes=0x50, producer_id=7)]
    (made,) = rewrite(sources, Recipe(codec=3))
    assert facts(made) == facts(*sources)
    assert made.header.attributes == 3
    parts = rewrite([stored(some([0, 1, 5, 6, 7, 9]))], Recipe())
    assert [(one.header.base_offset, one.header.count) for one in parts] == [(1000, 2), (1005, 3), (1009, 1)]


def test_what_tiny_batches_decompress_to_together_is_bounded() -> None:
    """A thousand times smaller for their compression, they would fill the memory of a task, and of whoever reads it."""
    sources = [stored([Record(0, 0, None, bytes(10_000), ())], base=1000 + n, codec=4) for n in range(7)]
    assert max(one.header.size for one in sources) < 120
    made = rewrite(sources, Recipe(portion=30_100))
    assert [one.header.count for one in made] == [3, 3, 1]
    assert facts(*made) == facts(*sources)


def test_a_payload_that_is_not_what_the_header_says() -> None:
    with pytest.raises(BadRecords, match="base offset 1000"):
        rewrite([raw(batch(1000, count=3, payload=encoded(some([0, 1]))))], Recipe())
    with pytest.raises(TooManyBytes, match="base offset 1000"):
        rewrite([stored(some([0, 1], 5000), codec=4)], Recipe(portion=1000, cap=4096))


@given(
    first=st.integers(0, 2**40),
    count=st.integers(1, 3000),
    codec=st.sampled_from([None, 0, 1, 2, 3, 4]),
    max_bytes=st.integers(200, 5000),
)
def test_padding_takes_every_offset_once_and_fits(first: int, count: int, codec: int | None, max_bytes: int) -> None:
    at = first
    while at < first + count:
        made = padding(at, first + count, codec=codec, max_bytes=max_bytes)
        assert (made.header.base_offset, made.header.max_timestamp) == (at, -1)
        assert made.header.size <= max_bytes
        assert list(read(made).offsets) == list(range(at, made.header.next_offset))
        assert is_padding(made)
        at = made.header.next_offset
    assert at == first + count


def test_a_million_padding_records_fit_into_a_batch_of_the_default_size() -> None:
    assert padding(5, 5 + 10 * MOST, codec=None, max_bytes=1_048_588).header.count == MOST


@pytest.mark.parametrize("codec", [None, 0, 1, 2, 3, 4])
def test_a_plan_names_the_bytes_of_padding_as_they_are(codec: int | None) -> None:
    written = padding(0, MOST, codec=codec, max_bytes=1 << 24).header.size
    assert Filling.padding("orders", 0, MOST, codec).bytes == pytest.approx(written, rel=0.05)


def test_records_without_a_time_are_not_padding() -> None:
    records = [Record(0, 0, None, b"x"), Record(1, 0, None, None)]
    assert not is_padding(raw(batch(count=2, payload=encoded(records), base_timestamp=-1, max_timestamp=-1)))
