"""The journal's records: what is appended is read back, damage hides nothing else, and what is lost is known."""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from fakebroker import Call, FakeBroker, FakeCluster, FakeTopic, in_loop, scripted
from hypothesis import given
from hypothesis import strategies as st
from rawbatches import batch, legacy

from mirror.errors import MalformedBatch, MirrorError
from mirror.journal import journal
from mirror.journal.journal import OWNER, Entry, Journal, decode, encode, journal_topic
from mirror.kafka.cluster import Cluster, Endpoint, Leader
from mirror.kafka.protocol import PRODUCE
from mirror.kafka.queries import EARLIEST, EpochEnd
from mirror.records.header import CONTROL

ENTRIES = st.lists(st.tuples(st.binary(max_size=200), st.binary(max_size=200)), min_size=1, max_size=20)


def stored(data: bytes, base_offset: int) -> bytes:
    """As the leader stores it."""
    return struct.pack(">q", base_offset) + data[8:]


@given(ENTRIES, st.integers(0, 2**40))
def test_what_is_appended_is_read_back_at_its_offset(entries: list[tuple[bytes, bytes]], base: int) -> None:
    found, following, skipped = decode(memoryview(stored(encode(entries), base)))
    assert not skipped
    assert found == [Entry(base + index, key, value) for index, (key, value) in enumerate(entries)]
    assert following == base + len(entries)


def test_several_batches_and_a_partial_one() -> None:
    first, second, third = (stored(encode([(b"k%d" % n, b"v")] * 2), offset) for n, offset in enumerate((10, 20, 30)))
    for length in range(len(third)):
        entries, following, skipped = decode(memoryview(first + second + third[:length]))
        assert not skipped
        assert [entry.offset for entry in entries] == [10, 11, 20, 21]
        assert following == 22


def test_a_record_without_key_and_one_without_value() -> None:
    """A tombstone of the cleaner's, and a record that is not ours."""
    data = bytes([16, 0, 0, 0, 1, 4]) + b"vv" + bytes([0])  # length 8: no key (-1), value "vv"
    data += bytes([16, 0, 0, 2, 4]) + b"kk" + bytes([1, 0])  # key "kk", no value (-1)
    entries, following, _ = decode(memoryview(batch(5, count=2, payload=data)))
    assert entries == [Entry(5, b"", b"vv"), Entry(6, b"kk", None)]
    assert following == 7


def test_holes_after_cleaning_keep_the_offsets() -> None:
    data = bytes([16, 0, 0, 18, 4]) + b"kk" + bytes([1, 0])  # offset delta 9
    entries, following, _ = decode(memoryview(batch(100, count=1, delta=20, payload=data)))
    assert entries == [Entry(109, b"kk", None)]
    assert following == 121, "the batch's last offset counts, not the record's"


def around(foreign: bytes) -> memoryview:
    """A foreign batch at offset 10 among our own."""
    ours = encode([(b"k", b"v")])
    return memoryview(stored(ours, 9) + stored(foreign, 10) + stored(ours, 1000))


@pytest.mark.parametrize("position", [*range(16, 23), *range(27, 90)])
def test_a_flipped_byte_is_not_read(position: int) -> None:
    data = bytearray(encode([(b"a key of some length", b"a value")]))
    data[position] ^= 0xFF
    entries, following, skipped = decode(around(bytes(data)))
    assert [entry.offset for entry in entries] == [9, 1000]
    assert following == 1001
    assert [one.offset for one in skipped] == [10]


def test_what_cannot_be_cut_into_batches_is_malformed() -> None:
    for foreign in (batch(length=3), batch(count=1, delta=-5), batch(count=2000)):
        with pytest.raises(MalformedBatch):
            decode(around(foreign))


@pytest.mark.parametrize(
    ("foreign", "reason"),
    [
        (batch(attributes=3), "lz4 payload"),
        (batch(attributes=7), "no codec has the id 7"),
        (batch(attributes=3, crc=1), "Checksum mismatch"),
        (batch(attributes=CONTROL, payload=encode([(b"k", b"v")])[61:]), "a transaction's marker"),
        (batch(attributes=4, payload=encode([(b"k", b"v")])[61:]), "zstd payload"),
        (batch(payload=b"no record"), ""),
        (batch(base_timestamp=-1, max_timestamp=-1, payload=encode([(b"k", b"v")])[61:]), "1969"),
        (batch(crc=1, payload=encode([(b"k", b"v")])[61:]), "Checksum mismatch"),
        (legacy(0, 0), "magic"),
        (legacy(0, 1), "magic"),
    ],
)
def test_a_foreign_batch_is_skipped(foreign: bytes, reason: str) -> None:
    entries, following, skipped = decode(around(foreign))
    assert [entry.offset for entry in entries] == [9, 1000]
    assert following == 1001
    ((offset, reported),) = skipped
    assert offset == 10
    assert reported.startswith("not a batch of the journal: ")
    assert reason in reported
    assert decode(memoryview(stored(foreign, 10)))[1] == 11, "reading goes on after it"


@pytest.mark.parametrize("timestamp", [2**62, -(2**62), 2**50])
def test_a_time_beyond_the_calendar_is_skipped(timestamp: int) -> None:
    data = bytes([16, 0, 0, 0, 4]) + b"kk" + bytes([1, 0])
    foreign = batch(0, payload=data, base_timestamp=timestamp, max_timestamp=2**63 - 1)
    assert [one.offset for one in decode(around(foreign))[2]] == [10]


@in_loop
async def test_an_append_that_is_answered_with_nothing() -> None:
    """A broker's fault, to be reported as such."""
    topic = journal_topic("flow")

    def script(call: Call) -> Any:
        return call.schema().ProduceResponse(responses=(), throttle_time=timedelta(0))

    async with FakeBroker({PRODUCE.key: script}) as broker:
        scripted(broker, FakeCluster({1: broker.address}, {topic: FakeTopic()}))
        async with Cluster(Endpoint("test", (broker.address,))) as cluster:
            await cluster.refresh([topic])
            with pytest.raises(MirrorError):
                await Journal(cluster, "flow").append([(OWNER, b"me")])


@dataclass(eq=False)
class Log:
    """A journal's log: the leader's epoch of each record. `described` is the epoch that a broker gives who is asked for
    the leader, which may have heard of it late; `journal` reads it.
    """

    epochs: list[int]
    described: int = 0
    topic_id: uuid.UUID = field(default_factory=uuid.uuid4)

    async def describe(self, _: str) -> Any:
        return SimpleNamespace(topic_id=self.topic_id, leaders={0: Leader(1, self.described)})

    async def refresh(self, _: Any) -> None:
        """Nothing is kept."""

    async def listed(self, _cluster: Any, _partition: Any, when: int) -> int:
        return 0 if when == EARLIEST else len(self.epochs)

    async def epoch_end(self, _cluster: Any, _partition: Any, asked: int) -> EpochEnd:
        known = [epoch for epoch in self.epochs if epoch <= asked]
        return EpochEnd(known[-1], len(known))

    async def fetched(self, _cluster: Any, _partition: Any, at: int, end: int, **_: Any) -> Any:
        data = encode([(b"key", b"value")])
        records = (
            struct.pack(">q", offset) + data[8:12] + struct.pack(">i", self.epochs[offset]) + data[16:]
            for offset in range(at, end)
        )
        return SimpleNamespace(log_start=0, records=memoryview(b"".join(records)))

    def journal(self, monkeypatch: pytest.MonkeyPatch) -> Journal:
        monkeypatch.setattr(journal, "list_offset", self.listed)
        monkeypatch.setattr(journal, "epoch_end", self.epoch_end)
        monkeypatch.setattr(journal, "fetch_below", self.fetched)
        cluster: Any = SimpleNamespace(describe=self.describe, refresh=self.refresh, topics={})
        return Journal(cluster, "flow")


@in_loop
async def test_a_leader_that_a_broker_heard_of_late_has_lost_nothing() -> None:
    """Two of three brokers died and came back: what is read is of the new epoch, who was asked gives the old one."""
    with pytest.MonkeyPatch.context() as patched:
        log = Log([2] * 27, described=2)
        ours = log.journal(patched)
        place = (await ours.follow(None)).place
        log.epochs += [4] * 4
        news = await ours.follow(place)
        assert (len(news.entries), news.lost, news.place.epoch) == (4, None, 4)
        log.described = 4
        log.epochs += [4] * 2
        news = await ours.follow(news.place)
        assert (len(news.entries), news.lost) == (2, None)


@in_loop
@pytest.mark.parametrize("described", [2, 4])
async def test_a_log_that_was_cut_and_grew_again_has_lost_records(described: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        log = Log([2] * 27, described=2)
        ours = log.journal(patched)
        place = (await ours.follow(None)).place
        log.epochs[20:] = [4] * 10
        log.described = described
        news = await ours.follow(place)
        assert news.lost is not None
        assert (news.lost.read_until, news.lost.kept, news.lost.new_from, len(news.entries)) == (27, 20, 20, 30)
        assert (await ours.follow(news.place)).lost is None


@in_loop
async def test_a_leader_that_never_had_what_was_read_has_lost_it() -> None:
    """It wrote as much before, of an older epoch, and came back."""
    with pytest.MonkeyPatch.context() as patched:
        log = Log([2] * 20 + [3] * 7, described=3)
        ours = log.journal(patched)
        place = (await ours.follow(None)).place
        log.epochs[20:] = [2] * 10 + [4] * 3
        log.described = 4
        news = await ours.follow(place)
        assert news.lost is not None
        assert (news.lost.kept, news.lost.new_from, len(news.entries)) == (0, 30, 33)
        log.described = 5  # which wrote nothing
        assert (await ours.follow(news.place)).lost is None
