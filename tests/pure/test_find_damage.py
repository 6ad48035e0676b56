"""How far damage in a record set reaches: to the next sound batch, and never further than the answer shows."""

from __future__ import annotations

import pytest
from old_messages import message, wrapper
from rawbatches import batch

from mirror.kafka.cluster import TopicPartition
from mirror.kafka.fetch import Fetched
from mirror.replication.damage import Damaged, find_damage

AT = TopicPartition("orders", 0)


def answer(records: bytes, end: int) -> Fetched:
    return Fetched(
        partition=AT,
        error_code=0,
        high_watermark=end,
        last_stable_offset=end,
        log_start=0,
        diverging=None,
        aborted=(),
        records=memoryview(records),
    )


@pytest.mark.parametrize("at", [8, 11, 16, 17, 22, 26, 60, 61, 70])
def test_the_damage_of_one_bit_reaches_to_the_next_batch(at: int) -> None:
    """In whatever field it is; where the answer ends with it, that answer does not show how far it reaches."""
    records = b"".join(bytes((14, 0, 0, 2 * number, 1, 2, 65, 0)) for number in range(10))
    parts = [bytearray(batch(first, count=10, payload=records)) for first in (0, 10, 20)]
    assert find_damage(answer(b"".join(parts), 30), 10) is None
    parts[1][at] ^= 1
    found = find_damage(answer(b"".join(parts), 30), 10)
    assert found is not None
    assert (found.first, found.next_offset) == (10, 20)
    assert found.is_between((0, 20))
    assert not found.is_between((0, 19))
    assert found.epoch == 0
    last = find_damage(answer(b"".join(parts[:2]), 30), 10)
    assert last is not None
    assert (last.next_offset, last.is_last) == (10, at not in (8, 11)), "another segment may follow"


def old_set(first: int, magic: int) -> bytearray:
    """Ten messages in a compressed set; their offsets are relative in magic 1."""
    return bytearray(wrapper(first + 9, magic, [message(at if magic else first + at, magic) for at in range(10)]))


@pytest.mark.parametrize("magic", [0, 1])
def test_damage_reaches_to_where_a_compressed_set_of_an_old_magic_begins(magic: int) -> None:
    """Its header has its last offset alone. Where its records cannot be read, nothing shows how far the damage goes."""
    parts = [old_set(first, magic) for first in (0, 10, 20)]
    parts[1][-3] ^= 1
    found = find_damage(answer(b"".join(parts), 30), 10)
    assert found is not None
    assert (found.first, found.next_offset) == (10, 20)
    unreadable = wrapper(29, magic, [b"?" * 40])
    found = find_damage(answer(b"".join([*parts[:2], unreadable]), 30), 10)
    assert found == Damaged(10, 10, found.detail if found else "")


def test_a_next_batch_whose_offset_lies_says_nothing() -> None:
    parts = [bytearray(batch(first, count=10)) for first in (0, 10, 20, 30)]
    parts[1][70] ^= 1
    parts[2][5] ^= 1  # offset 20 becomes 65,556
    found = find_damage(answer(b"".join(parts), 40), 10)
    assert found == Damaged(10, 10, found.detail if found else "")


@pytest.mark.parametrize("ahead", [5, 65_536])
def test_a_batch_whose_offset_lies_ahead_is_damaged(ahead: int) -> None:
    """Its CRC holds. The log ends before, or the next one falls back."""
    parts = [bytearray(batch(first, count=10)) for first in (0, 10, 20, 30)]
    parts[1][:8] = (10 + ahead).to_bytes(8, "big")
    found = find_damage(answer(b"".join(parts), 40), 10)
    assert found is not None
    assert (found.first, found.next_offset) == (10, 10), "its leader gives it to whoever asks for what follows"
    hole = b"".join(bytes(parts[at]) for at in (0, 2, 3))
    assert find_damage(answer(hole, 40), 10) is None, "a cleaner leaves one"
