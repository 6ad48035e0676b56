"""The walk over a segment's bytes: sound up to its end, or up to damage that is named; and how transactions ended."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inspecting import transactional
from rawbatches import batch, legacy, raw
from replicas import ABORT, COMMIT, marker

from mirror.records.header import RawBatch
from mirror.records.segment import DamageKind, Found, Walk
from mirror.records.transactions import Outcome, Outcomes, TransactionScan

LOG = [batch(0, count=3), batch(3, count=2, payload=b"another"), batch(5, payload=b"the last one")]
SIZE = sum(map(len, LOG))


def walked(data: bytes) -> tuple[Walk, list[RawBatch]]:
    walk = Walk(memoryview(data), 0)
    return walk, list(walk)


@pytest.mark.parametrize("zeros", [0, 1, 17, 3 << 20])
def test_a_sound_segment_is_walked_to_its_end_or_to_its_reserved_space(zeros: int) -> None:
    walk, found = walked(b"".join(LOG) + bytes(zeros))
    assert [bytes(one.data) for one in found] == LOG
    assert (walk.position, walk.next_offset, walk.zeros, walk.damage) == (SIZE, 6, zeros, None)
    assert walked(legacy(0, 0) + legacy(1, 1) + batch(2))[0].damage is None


DAMAGED: dict[str, tuple[bytes, DamageKind]] = {
    "cut inside its records": (batch(6)[:-1], DamageKind.PARTIAL),
    "cut inside its length": (batch(6)[:10] + b"\x01", DamageKind.PARTIAL),
    "length 0": (batch(6, length=0), DamageKind.LENGTH),
    "negative length": (batch(6, length=-1), DamageKind.LENGTH),
    "length beyond the end": (batch(6, length=2**31 - 1), DamageKind.PARTIAL),
    "magic 3": (batch(6, magic=3), DamageKind.MAGIC),
    "offset that was there": (batch(5), DamageKind.ORDER),
    "negative delta": (batch(6, delta=-1), DamageKind.HEADER),
    "offset with none behind it": (batch(2**63 - 1), DamageKind.HEADER),
    "other CRC": (batch(6, crc=1), DamageKind.CRC),
    "message with another CRC": (legacy(6, 1)[:-1] + b"!", DamageKind.CRC),
    "zeros that something follows": (bytes((2 << 20) + 5) + b"\x01", DamageKind.LENGTH),
}


@pytest.mark.parametrize("following", [b"", batch(9, count=2)], ids=["at the end", "in between"])
@pytest.mark.parametrize("case", DAMAGED)
def test_damage_is_named_where_it_begins(case: str, following: bytes) -> None:
    data, kind = DAMAGED[case]
    walk, found = walked(b"".join([*LOG, data, following]))
    assert [bytes(one.data) for one in found] == LOG
    assert walk.damage is not None
    assert (walk.position, walk.next_offset, walk.rest) == (SIZE, 6, len(data) + len(following))
    assert walk.damage.position == SIZE
    if "cut" not in case or not following:  # what is cut takes its missing bytes from what follows
        assert walk.damage.kind is kind
    assert (walk.damage.batch is not None) == (walk.damage.kind is DamageKind.CRC)
    assert walk.resume() == (Found(SIZE + len(data), 9) if following else None)


# --- how transactions ended -------------------------------------------------------------------------------------------


def outcomes_of(log: Sequence[bytes], outcomes: Outcomes) -> list[str]:
    return [outcomes.of(raw(one)) or "-" for one in log]


HISTORY = [
    transactional(0, 7),  # aborted
    transactional(1, 8),  # committed
    batch(2),
    marker(3, 8, COMMIT),
    transactional(4, 7),  # aborted
    marker(5, 7, ABORT),
    transactional(6, 7),  # committed, by the producer that aborted before
    marker(7, 7, COMMIT),
    marker(8, 9, ABORT),  # of a transaction that is not here
    transactional(9, 8),  # aborted
    transactional(10, 9),  # no marker
    marker(11, 8, ABORT),
    transactional(12, 9),
]
ENDINGS = [
    *("aborted", "committed", "-", "-", "aborted", "-", "committed"),
    *("-", "-", "aborted", "undecided", "-", "undecided"),
]


@given(st.integers(0, len(HISTORY)))
def test_markers_say_how_transactions_ended_across_segments(cut: int) -> None:
    scan = TransactionScan()
    for part in (HISTORY[:cut], HISTORY[cut:]):
        scan.over(memoryview(b"".join(part)))
    assert outcomes_of(HISTORY, scan.outcomes()) == ENDINGS


def test_the_index_of_a_fetch_answer_says_the_same() -> None:
    assert outcomes_of(HISTORY, Outcomes([(8, 9), (7, 0)], {9: 10})) == ENDINGS
    inside = Outcomes([(7, 0)])  # an answer that begins inside the aborted transaction
    assert outcomes_of(HISTORY[4:7], inside) == [Outcome.ABORTED, "-", Outcome.COMMITTED]
