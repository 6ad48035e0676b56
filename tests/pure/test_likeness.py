"""Whether a target's last batch is the source's, passed on or rewritten."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rawbatches import batch, crc32c, forged, legacy, raw
from recordoracle import Record, encoded

from mirror.records.compare import batch_difference, marker_difference
from mirror.records.header import CONTROL, RawBatch
from mirror.records.recipe import Recipe
from mirror.records.rewrite import rewrite

RECORDS = [Record(n, n, b"k%d" % n, b"value %d" % n, ((b"h", b"1"),)) for n in range(10)]


def stored(records: list[Record], base: int = 100, **fields: int) -> RawBatch:
    fields = {"delta": records[-1].offset, **fields}
    return raw(batch(base, count=len(records), payload=encoded(records), **fields))


def rewritten(source: RawBatch, **recipe: int) -> tuple[RawBatch, ...]:
    return rewrite([source], Recipe(**recipe))


SOURCE = stored(RECORDS)
HOLES = stored([RECORDS[0], RECORDS[1], RECORDS[7], RECORDS[9]])


@pytest.mark.parametrize(("field", "value"), [("base_timestamp", 1), ("max_timestamp", 1)])
def test_a_foreign_batch_must_be_the_same_but_for_its_producer(field: str, value: int) -> None:
    reported = batch_difference(stored(RECORDS, **{field: value}), SOURCE, may_be_rewritten=False)
    assert reported.startswith(field.replace("_", " "))
    assert batch_difference(stored([*RECORDS[:9], replace(RECORDS[9], value=b"9")]), SOURCE, may_be_rewritten=False)
    ours = stored(RECORDS, producer_id=5, producer_epoch=1, base_sequence=3)
    assert batch_difference(ours, SOURCE, may_be_rewritten=False) == ""


def test_a_foreign_batch_made_to_have_the_same_checksum_or_of_another_codec() -> None:
    false = encoded([*RECORDS[:9], Record(9, 9, b"k9", b"other 9", ((b"h", b"abcd"),))])
    true = encoded([*RECORDS[:9], Record(9, 9, b"k9", b"value 9", ((b"h", b"abcd"),))])
    ours, theirs = (raw(batch(100, count=10, payload=one)) for one in (forged(false, crc32c(true)), true))
    assert batch_difference(ours, theirs, may_be_rewritten=False) == "the records"
    assert batch_difference(ours, theirs, may_be_rewritten=True) == "the value of the record at offset 109"
    assert batch_difference(stored(RECORDS, attributes=3), SOURCE, may_be_rewritten=False) == "codec 3 against 0"


@pytest.mark.parametrize("source", [SOURCE, HOLES, stored(RECORDS, attributes=8, max_timestamp=5)])
def test_every_part_of_a_rewritten_batch_is_like_its_source(source: RawBatch) -> None:
    parts = rewritten(source, max_bytes=200)
    assert len(parts) > 1
    for part in parts:
        assert batch_difference(part, source, may_be_rewritten=True) == ""
        assert batch_difference(part, source, may_be_rewritten=False) != ""


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"key": b"other"}, "the key of the record at offset 103"),
        ({"value": None}, "the value of the record at offset 103"),
        ({"headers": ()}, "the headers of the record at offset 103"),
        ({"timestamp": 4}, "the timestamp of the record at offset 103"),
    ],
)
def test_a_record_that_differs_is_named(changed: dict[str, object], expected: str) -> None:
    ours = stored([replace(one, **changed) if one.offset == 3 else one for one in RECORDS])  # type: ignore[arg-type] # any field
    assert batch_difference(ours, SOURCE, may_be_rewritten=True) == expected


def test_a_record_that_compaction_took_from_the_source_is_no_difference() -> None:
    assert batch_difference(stored(RECORDS[:2]), stored([RECORDS[0], RECORDS[9]]), may_be_rewritten=True) == ""
    assert batch_difference(stored(RECORDS), stored(RECORDS[:5]), may_be_rewritten=True) == ""
    shifted = stored(RECORDS[:3], 99)
    assert batch_difference(shifted, SOURCE, may_be_rewritten=True) == "the key of the record at offset 100"


def compacted(*kept: int) -> RawBatch:
    """SOURCE with only these of its records: compaction keeps base and last offset."""
    return stored([RECORDS[n] for n in kept], delta=9) if kept else raw(batch(100, count=0, delta=9, payload=b""))


@pytest.mark.parametrize(
    "source",
    [
        compacted(*range(1, 10)),
        compacted(*range(9)),
        compacted(3, 4, 5),
        compacted(7),
        compacted(),
        stored(RECORDS, 110),
        raw(batch(110, attributes=CONTROL)),
        raw(legacy(110, 1)),
    ],
    ids=["first", "last", "ends", "all but one", "all", "the batch", "the batch before a marker", "a message"],
)
def test_compaction_may_take_the_ends_of_a_batch_and_all_of_it(source: RawBatch) -> None:
    assert batch_difference(SOURCE, source, may_be_rewritten=True) == ""
    assert batch_difference(SOURCE, source, may_be_rewritten=False) != ""


def test_a_rewritten_batch_and_nothing_a_marker_or_what_cannot_be_read() -> None:
    assert batch_difference(SOURCE, None, may_be_rewritten=True) == "the source has no batch there"
    assert "control" in batch_difference(SOURCE, raw(batch(100, attributes=CONTROL)), may_be_rewritten=True)
    broken = raw(batch(100, count=10, payload=b"\xff" * 50))
    assert "cannot be read" in batch_difference(SOURCE, broken, may_be_rewritten=True)


@pytest.mark.parametrize(
    ("offset", "source", "is_right"),
    [
        (105, None, True),
        (105, raw(batch(105, attributes=CONTROL)), True),
        (105, raw(batch(100, count=0, delta=9)), True),
        (95, SOURCE, True),
        (105, SOURCE, False),
        (105, HOLES, True),
        (107, HOLES, False),
        (105, raw(legacy(105, 1)), False),
        (104, raw(legacy(105, 1)), True),
    ],
)
def test_a_marker_stands_where_the_source_has_no_record(offset: int, source: RawBatch | None, is_right: bool) -> None:
    assert (marker_difference(offset, offset + 1, source) == "") is is_right


def test_markers_in_a_row_stand_where_the_source_has_no_record() -> None:
    assert marker_difference(102, 107, HOLES) == ""
    for first, end in ((101, 107), (102, 108), (90, 101), (109, 120)):
        assert marker_difference(first, end, HOLES) != ""
    assert marker_difference(90, 100, SOURCE) == ""
    assert marker_difference(90, 101, SOURCE) != ""
