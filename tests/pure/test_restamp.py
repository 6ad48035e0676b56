"""A restamped batch: our producer, the same records section, a CRC as others compute it, sequences as Kafka counts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rawbatches import INT16, INT64, batch, crc32c, raw

from mirror.kafka.cluster import TopicPartition
from mirror.records.header import ERAS, HEADER_BYTES, LAST_EPOCH, ProducerState, parse_header, restamp
from mirror.replication.observe import producer_id as producer_id_of

MAX_SEQUENCE = 2**31 - 1

batches = st.builds(
    batch,
    st.integers(0, 2**62),
    delta=st.integers(0, MAX_SEQUENCE),
    count=st.integers(0, MAX_SEQUENCE),
    attributes=INT16,
    payload=st.binary(max_size=64),
    leader_epoch=st.integers(-1, MAX_SEQUENCE),
    base_timestamp=INT64,
    max_timestamp=INT64,
    producer_id=INT64,
    producer_epoch=INT16,
    base_sequence=st.integers(-1, MAX_SEQUENCE),
)


def stamped(data: bytes, producer_id: int = 7, producer_epoch: int = 0, base_sequence: int = 0) -> bytes:
    """The whole batch as a target gets it."""
    old = raw(data)
    head = restamp(old, ProducerState(producer_id, producer_epoch, base_sequence))
    return head + bytes(old.records)


@given(batches, INT64, INT16, st.integers(0, MAX_SEQUENCE))
def test_what_changes_and_what_stays(data: bytes, producer_id: int, epoch: int, sequence: int) -> None:
    before, result = parse_header(data), stamped(data, producer_id, epoch, sequence)
    after = parse_header(result)
    assert result[HEADER_BYTES:] == data[HEADER_BYTES:]
    assert (after.base_offset, after.magic, after.size) == (0, 2, len(data))
    assert (after.producer_id, after.producer_epoch, after.base_sequence) == (producer_id, epoch, sequence)
    for kept in ("count", "last_offset_delta", "base_timestamp", "max_timestamp", "batch_length"):
        assert getattr(after, kept) == getattr(before, kept), kept
    assert after.crc == crc32c(result[21:])


@given(st.integers(-(2**15), 2**15 - 1))
def test_only_append_time_transactional_and_delete_horizon_are_cleared(attributes: int) -> None:
    after = parse_header(stamped(batch(attributes=attributes)))
    assert after.attributes == attributes & ~0b101_1000


@given(st.integers(-(2**15), 2**15 - 1))
def test_in_a_transaction_the_batch_says_so(attributes: int) -> None:
    data = batch(attributes=attributes)
    head = restamp(raw(data), ProducerState(7, 3, 9), transactional=True)
    after = parse_header(head + data[HEADER_BYTES:])
    assert after.attributes == attributes & ~0b100_1000 | 0b1_0000
    assert (after.producer_id, after.producer_epoch, after.base_sequence) == (7, 3, 9)
    assert after.crc == crc32c((head + data[HEADER_BYTES:])[21:])


def test_behind_markers_a_further_epoch_begins_with_sequence_zero() -> None:
    """After the last epoch, the next id of the same kin."""
    stamp = ProducerState(7 * ERAS, 4, 99)
    assert stamp.then() == ProducerState(7 * ERAS, 5, 0)
    assert stamp.then(4) == ProducerState(7 * ERAS, 8, 0), "behind three markers, in an epoch that none of them has"
    last = ProducerState(7 * ERAS, LAST_EPOCH, 1)
    assert last.then() == ProducerState(7 * ERAS + 1, 0, 0)
    assert last.then(LAST_EPOCH + 2) == ProducerState(7 * ERAS + 2, 0, 0)
    assert [last.is_kin(producer_id) for producer_id in (7 * ERAS + 1, 8 * ERAS, -1)] == [True, False, False]


@given(st.integers(0, MAX_SEQUENCE), st.lists(st.integers(0, MAX_SEQUENCE), max_size=8))
def test_sequences_across_batches_follow_kafka_s_increment(base: int, deltas: list[int]) -> None:
    def increment(sequence: int, by: int) -> int:  # DefaultRecordBatch.incrementSequence
        return by - (MAX_SEQUENCE - sequence) - 1 if sequence > MAX_SEQUENCE - by else sequence + by

    for delta in deltas:
        following = ProducerState(7, 0, base).after(delta).sequence
        assert following == increment(increment(base, delta), 1)
        base = following


def test_the_producer_id_is_a_function_of_flow_and_partition() -> None:
    names = (
        ("eu-to-us", "orders", 3),
        ("eu-to-us", "orders", 4),
        ("eu-to-us", "order", 33),
        ("eu-to-asia", "orders", 3),
    )
    ids = [producer_id_of(flow, TopicPartition(topic, partition)) for flow, topic, partition in names]
    assert len(set(ids)) == 4
    assert ids[0] == producer_id_of("eu-to-us", TopicPartition("orders", 3))
    assert all(1 << 52 <= one < 1 << 53 and one % ERAS == 0 for one in ids)
