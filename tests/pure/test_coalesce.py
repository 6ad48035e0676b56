"""Which batches become one."""

from __future__ import annotations

from rawbatches import batch, legacy, raw

from mirror.policy.rules import Rules
from mirror.records.header import RawBatch
from mirror.replication.classifier import HOLES, LEGACY, OWN_PRODUCER, Verdict
from mirror.replication.coalescer import COALESCED, Coalescer

JOIN = Rules(coalesce_bytes=1000)


def tiny(offset: int, size: int = 100, codec: int = 3) -> RawBatch:
    return raw(batch(offset, count=5, attributes=codec, payload=bytes(size - 61)))


def groups(rules: Rules, *offered: tuple[Verdict, RawBatch]) -> list[tuple[Verdict, list[int]]]:
    coalescer = Coalescer(rules)
    out = [together for verdict, one in offered for together in coalescer.offer(verdict, one)]
    out += coalescer.rest()
    assert coalescer.rest() == ()
    return [(verdict, [one.header.base_offset for one in raws]) for verdict, raws in out]


def own(*batches: RawBatch) -> list[tuple[Verdict, RawBatch]]:
    return [(OWN_PRODUCER, one) for one in batches]


def test_nothing_joins_unless_it_is_wanted() -> None:
    assert groups(Rules(), *own(tiny(0), tiny(5))) == [(OWN_PRODUCER, [0]), (OWN_PRODUCER, [5])]


def test_tiny_batches_join_up_to_a_size() -> None:
    found = groups(JOIN, *own(*(tiny(5 * n) for n in range(25))))
    assert found == [
        (COALESCED, [5 * n for n in range(10)]),
        (COALESCED, [5 * n for n in range(10, 20)]),
        (COALESCED, [5 * n for n in range(20, 25)]),
    ]


def test_groups_do_not_depend_on_where_a_writer_began() -> None:
    """A writer that begins where another's group ended forms the same groups from there on."""
    batches = own(*(tiny(5 * n, size=70 + 37 * n % 250) for n in range(60)))
    whole = groups(JOIN, *batches)
    assert len(whole) > 10
    for number, (_, offsets) in enumerate(whole):
        assert groups(JOIN, *batches[offsets[0] // 5 :]) == whole[number:]


def test_a_batch_that_is_not_tiny_ends_a_group_and_stays_as_it_is() -> None:
    found = groups(JOIN, *own(tiny(0), tiny(5), tiny(10, size=251), tiny(15), tiny(20)))
    assert found == [(COALESCED, [0, 5]), (OWN_PRODUCER, [10]), (COALESCED, [15, 20])]


def test_another_codec_or_a_missing_offset_begins_another_group() -> None:
    found = groups(JOIN, *own(tiny(0), tiny(5), tiny(10, codec=4), tiny(15, codec=4), tiny(21, codec=4)))
    assert found == [(COALESCED, [0, 5]), (COALESCED, [10, 15]), (OWN_PRODUCER, [21])], "one alone stays as it is"


def test_a_group_is_of_one_leader_epoch() -> None:
    """Its first batch's is what a source gets at a resume, to find out whether it lost what was mirrored."""
    batches = [raw(batch(offset, leader_epoch=epoch)) for offset, epoch in enumerate((3, 3, 3, 4, 4))]
    assert groups(JOIN, *own(*batches)) == [(COALESCED, [0, 1, 2]), (COALESCED, [3, 4])]


def test_what_must_be_rewritten_or_dropped_ends_a_group() -> None:
    found = groups(JOIN, *own(tiny(0), tiny(5)), (HOLES, tiny(10)), *own(tiny(15)))
    assert [offsets for _, offsets in found] == [[0, 5], [10], [15]]
    assert found[1][0] is HOLES


def test_messages_of_old_magics_join_in_any_case() -> None:
    messages = [(LEGACY, raw(legacy(offset, 1))) for offset in range(3)]
    wrapper = bytearray(legacy(3, 1))
    wrapper[17] = 1
    found = groups(Rules(), *messages, (LEGACY, raw(bytes(wrapper))), (LEGACY, raw(legacy(4, 1))))
    assert found == [(LEGACY, [0, 1, 2]), (LEGACY, [3]), (LEGACY, [4])]


def test_a_group_fits_into_what_the_target_takes() -> None:
    rules = Rules(coalesce_bytes=1000, max_message_bytes=250)
    assert [offsets for _, offsets in groups(rules, *own(*(tiny(5 * n) for n in range(5))))] == [[0, 5], [10, 15], [20]]
