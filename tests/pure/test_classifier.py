"""The decision table: every combination of what decides, against a table of our own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from hypothesis import given
from hypothesis import strategies as st
from rawbatches import INT16, INT32, INT64

from mirror.policy.rules import Rules
from mirror.records.header import BatchHeader
from mirror.replication.classifier import VERDICTS, Action, Verdict, classify

#: Ten records at offsets 100 to 109, zstd, by a producer without an id.
CLEAN = BatchHeader(
    base_offset=100, batch_length=988, partition_leader_epoch=3, magic=2, attributes=4, last_offset_delta=9, count=10
)
CONTROL = 32


@dataclass(frozen=True, slots=True)
class Case:
    """A batch in its circumstances."""

    header: BatchHeader
    rules: Rules
    next_offset: int
    aborted: bool
    crc_holds: bool

    def verdict(self) -> Verdict:
        return classify(
            self.header, self.rules, next_offset=self.next_offset, aborted=self.aborted, crc_holds=self.crc_holds
        )


Row = tuple[str, Callable[[Case], bool]]

#: Written from what brokers do: refusals and drops, then what must be rebuilt, then what a patched header cures.
TABLE: tuple[Row, ...] = (
    ("REFUSE/unknown_magic", lambda c: c.header.magic not in (0, 1, 2)),
    ("REFUSE/bad_crc", lambda c: not c.crc_holds),
    (
        "DROP/already_mirrored",
        lambda c: c.header.magic < 2 and c.header.base_offset + c.header.last_offset_delta < c.next_offset,
    ),
    ("REWRITE/legacy_magic", lambda c: c.header.magic < 2),
    ("REFUSE/impossible_header", lambda c: c.header.last_offset_delta < 0 or c.header.base_offset < 0),
    ("DROP/already_mirrored", lambda c: c.header.base_offset + c.header.last_offset_delta < c.next_offset),
    ("REFUSE/unknown_codec", lambda c: c.header.attributes % 8 > 4),
    (
        "REFUSE/impossible_header",
        lambda c: c.header.count < 0 or c.header.count > c.header.last_offset_delta + 1,
    ),
    ("DROP/control", lambda c: bit(c, 5)),
    ("DROP/aborted", lambda c: c.aborted),
    ("DROP/empty", lambda c: c.header.count == 0),
    ("REWRITE/starts_inside", lambda c: c.header.base_offset < c.next_offset),
    ("REWRITE/holes", lambda c: c.header.count != c.header.last_offset_delta + 1),
    ("REWRITE/append_time", lambda c: bit(c, 3) and not c.rules.target_append_time),
    ("REWRITE/too_large", lambda c: 12 + c.header.batch_length > c.rules.max_message_bytes),
    ("REWRITE/codec", lambda c: c.rules.codec not in (None, c.header.attributes % 8)),
    ("RESTAMP/transactional", lambda c: bit(c, 4)),
    ("RESTAMP/delete_horizon", lambda c: bit(c, 6)),
    ("RESTAMP/append_time", lambda c: bit(c, 3)),
    ("RESTAMP/own_producer", lambda c: True),
)


def bit(case: Case, number: int) -> bool:
    return bool(case.header.attributes >> number & 1)


def by_table(case: Case) -> str:
    return next(verdict for verdict, holds in TABLE if holds(case))


def test_every_combination() -> None:
    codecs, flags = (0, 4, 5), [sum(bits) for bits in product((0, 8), (0, 16), (0, 32), (0, 64))]
    shapes = [(-1, 0), (0, 0), (0, 1), (0, 2), (9, -1), (9, 0), (9, 1), (9, 10), (9, 11)]
    every_rule = [
        Rules(target_append_time=stamps, codec=codec, max_message_bytes=largest)
        for stamps, codec, largest in product((True, False), (None, 4), (999, 1000))
    ]
    headers = [
        CLEAN._replace(attributes=codec | bits, last_offset_delta=delta, count=count, producer_id=producer)
        for codec, bits, (delta, count), producer in product(codecs, flags, shapes, (-1, 5))
    ]
    odd = [{"magic": magic} for magic in (0, 1, 3)] + [{"base_offset": -1}, {"attributes": 0x7F84}]
    headers += [
        CLEAN._replace(last_offset_delta=delta, count=count, **fields) for fields in odd for delta, count in shapes
    ]
    circumstances = list(product((100, 101, 110), (False, True), (False, True)))
    seen = set()
    for header, rules, (position, aborted, sound) in product(headers, every_rule, circumstances):
        case = Case(header, rules, position, aborted, sound)
        found = str(case.verdict())
        assert found == by_table(case), case
        seen.add(found)
    assert seen == {str(verdict) for verdict in VERDICTS} == {verdict for verdict, _ in TABLE}


headers = st.builds(
    BatchHeader,
    base_offset=INT64,
    batch_length=st.integers(49, 2**31 - 1),
    partition_leader_epoch=INT32,
    magic=st.sampled_from([2, 2, 2, 0, 1, 3, -1]),
    attributes=INT16,
    last_offset_delta=INT32,
    count=st.integers(-1, 20),
    producer_id=st.integers(-1, 2**63 - 1),
)


@given(headers, st.integers(0, 2**63 - 1), st.booleans(), st.sampled_from([Rules(), Rules(target_append_time=True)]))
def test_what_is_appended_as_it_is_would_be_accepted(
    header: BatchHeader, position: int, aborted: bool, rules: Rules
) -> None:
    """Whatever gets by is dense, whole, from the position on, with no bit that a broker refuses from a client."""
    verdict = classify(header, rules, next_offset=position, aborted=aborted)
    if verdict.action is Action.RESTAMP:
        assert header.magic == 2
        assert header.count == header.last_offset_delta + 1 > 0
        assert header.base_offset >= position
        assert not header.attributes & CONTROL
        assert header.size <= rules.max_message_bytes
        assert not aborted
