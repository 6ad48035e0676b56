"""Rewritten batches: the same records, dense, at their offsets, as few as fit."""

from __future__ import annotations

import tracemalloc
from itertools import accumulate, pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rawbatches import batch, legacy, raw
from recordoracle import Record, encoded

from mirror.errors import BadRecords, RecordTooLarge, TooManyBytes
from mirror.records.codecs import compress
from mirror.records.columns import Records, headers, key, read, value
from mirror.records.header import RawBatch, crc_holds
from mirror.records.recipe import PORTION, Recipe
from mirror.records.rewrite import MOST, build, is_padding, padding, portions, rewrite, rewritten, unfit

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


def test_a_record_that_is_too_large_to_be_opened() -> None:
    source = stored([*some([0, 1]), Record(2, 0, None, bytes(9000)), *some([3])], codec=4)
    parts = portions(source, cap=8000, portion=100)
    assert len(next(parts)) == 2
    with pytest.raises(TooManyBytes, match=r"a record of 90\d\d bytes without .* 8000 \(base offset 1000"):
        next(parts)
    assert facts(*rewrite([source], Recipe(cap=10_000, portion=100))) == facts(source)


def test_a_batch_that_decompresses_to_many_times_a_portion() -> None:
    """80 records of 1 MB in some kilobytes: several batches, and never more than a few portions in memory."""
    size = 1_000_000
    records = [Record(o + (o > 40), 0, b"%d" % o, bytes(size), ()) for o in range(80)]
    source = stored(records, codec=4)
    assert source.header.size < 20_000
    tracemalloc.start()
    try:
        made = rewrite([source], Recipe(max_bytes=1_048_588))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 6 * PORTION
    assert [one.header.base_offset for one in made if one.header.base_offset in (1000, 1042)] == [1000, 1042]
    assert max(one.header.count for one in made) == PORTION // size
    found = (fact for one in made for fact in facts(one))
    assert all((o, v) == (1000 + one.offset, one.value) for one, (o, _, _, v, _) in zip(records, found, strict=True))


def test_one_batch_for_each_run_without_holes() -> None:
    made = rewrite([stored(some([0, 1, 5, 6, 7, 9]))], Recipe())
    assert [(one.header.base_offset, one.header.count) for one in made] == [(1000, 2), (1005, 3), (1009, 1)]


def test_nothing_is_left_of_what_is_mirrored_already() -> None:
    assert rewrite([stored(some([0, 1]), delta=9)], Recipe(first_offset=1002)) == ()


@pytest.mark.parametrize("fits", [1, 2, 3, 7, 99])
def test_the_fewest_batches_that_fit(fits: int) -> None:
    """Records of one size, not compressed: how many fit is known."""
    records = [Record(o, 0, b"key", b"v" * 500) for o in range(100)]
    limit = stored(records[:fits]).header.size
    counts = [one.header.count for one in rewrite([stored(records)], Recipe(max_bytes=limit))]
    assert counts == [fits] * (100 // fits) + ([100 % fits] if 100 % fits else [])


def test_compressed_batches_fill_their_limit() -> None:
    source = stored(some(list(range(2000)), 200), codec=4)
    limit = source.header.size // 3
    made = rewrite([source], Recipe(max_bytes=limit))
    assert facts(*made) == facts(source)
    assert len(made) in (3, 4), "each a third of the size"


def builds(source: RawBatch, monkeypatch: pytest.MonkeyPatch, **recipe: int) -> tuple[tuple[RawBatch, ...], list[int]]:
    """What is made of a batch, and how many records each attempt had."""
    tried: list[int] = []

    def counted(run: Records, codec: int) -> RawBatch:
        tried.append(len(run))
        return build(run, codec)

    monkeypatch.setattr("mirror.records.rewrite.build", counted)
    return rewrite([source], Recipe(**recipe)), tried


def test_records_that_lead_every_guess_astray(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that nearly fills a batch, and many that take next to nothing: each guess is a little less than the last."""
    limit = 20_000
    records = [
        Record(0, 0, None, Random(1).randbytes(limit - 300)),
        *(Record(n, 0, None, b"x") for n in range(1, 9000)),
    ]
    made, tried = builds(stored(records, codec=4), monkeypatch, max_bytes=limit)
    assert len(made) == 2
    assert len(tried) < 25


def test_the_work_for_a_part_does_not_grow_with_what_follows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    source = stored(some(list(range(3000)), 100))
    made, tried = builds(source, monkeypatch, max_bytes=1000)
    assert facts(*made) == facts(source)
    assert max(tried) < 200


def test_a_record_that_fits_into_no_batch() -> None:
    records = [Record(0, 0, None, b"small"), Record(1, 0, None, bytes(5000)), Record(2)]
    with pytest.raises(RecordTooLarge, match=r"takes 50\d\d bytes alone, more than the 4000") as item:
        rewrite([stored(records)], Recipe(max_bytes=4000))
    assert item.value.offset == 1001


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


def test_another_codec() -> None:
    source = stored(some(list(range(50))), codec=1)
    (made,) = rewrite([source], Recipe(codec=3))
    assert made.header.codec == 3
    assert facts(made) == facts(source)


def test_append_times_become_the_records_own() -> None:
    source = stored(some([0, 1, 2]), attributes=8, max_timestamp=CLOCK + 777)
    (made,) = rewrite([source], Recipe())
    assert {stamp for _, stamp, *_ in facts(made)} == {CLOCK + 777}
    assert made.header.attributes == 0
    assert made.header.base_timestamp == made.header.max_timestamp == CLOCK + 777


def test_transactional_and_horizon_bits_do_not_stay() -> None:
    (made,) = rewrite([stored(some([0]), attributes=0x50, producer_id=7)], Recipe())
    assert made.header.attributes == 0


def test_batches_in_a_row_become_one() -> None:
    sources = [stored(some([0, 1], seed=2)), stored(some([0, 1, 2], seed=3), 1002), stored(some([0]), 1005)]
    (made,) = rewrite(sources, Recipe())
    assert facts(made) == facts(*sources)


def test_what_tiny_batches_decompress_to_together_is_bounded() -> None:
    """A thousand times smaller for their compression, they would fill the memory of a task, and of whoever reads it."""
    sources = [stored([Record(0, 0, None, bytes(10_000), ())], base=1000 + n, codec=4) for n in range(7)]
    assert max(one.header.size for one in sources) < 120
    made = rewrite(sources, Recipe(portion=30_100))
    assert [one.header.count for one in made] == [3, 3, 1]
    assert facts(*made) == facts(*sources)


def test_no_group_has_too_many_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirror.records.rewrite.MOST_RECORDS", 10)
    sources = [stored(some([0, 1, 2, 3]), base=1000 + 4 * n) for n in range(5)]
    made = rewrite(sources, Recipe())
    assert [one.header.count for one in made] == [8, 8, 4]
    assert facts(*made) == facts(*sources)


def test_records_without_a_timestamp() -> None:
    made = rewrite([raw(legacy(7, 0, b"one")), raw(legacy(8, 0, b"two"))], Recipe())
    assert [(o, stamp, v) for o, stamp, _, v, _ in facts(*made)] == [(7, -1, b"one"), (8, -1, b"two")]
    assert [(one.header.base_timestamp, one.header.max_timestamp) for one in made] == [(-1, -1)]


def test_the_same_again_gives_the_same_bytes() -> None:
    source = stored(some([0, 1, 2, 5, 6, 9, *range(20, 300)]), codec=4)
    recipe = Recipe(max_bytes=4000)
    assert [bytes(one.data) for one in rewrite([source], recipe)] == [
        bytes(one.data) for one in rewrite([source], recipe)
    ]


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


def test_records_without_a_time_are_not_padding() -> None:
    records = [Record(0, 0, None, b"x"), Record(1, 0, None, None)]
    assert not is_padding(raw(batch(count=2, payload=encoded(records), base_timestamp=-1, max_timestamp=-1)))
