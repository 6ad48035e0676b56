"""One damaged batch in a live source log: what stops, what goes on behind it, and what is recorded."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from adversary.driving import Command
from crashcut import crash_and_cut_all
from guarded import delete_records
from helpers import RECENT_MS, config_file, make_topic, mirror_once, produce, settings_between, stored_batches
from old_messages import message, wrapper
from rawbatches import batch, crc32c
from samerecords import read
from watchedtask import WatchedTask

from mirror.commands.verify import verify_flow
from mirror.config import load
from mirror.journal.entries import losses_in
from mirror.journal.journal import Journal
from mirror.kafka.cluster import Cluster as KafkaCluster
from mirror.kafka.cluster import Endpoint, TopicPartition
from mirror.kafka.fetch import Fetched
from mirror.lab.embedded import Cluster
from mirror.policy.rules import Rules
from mirror.records.codecs import SNAPPY, ZSTD
from mirror.replication.damage import Damaged, find_damage
from mirror.replication.fetcher import Cursor, Fetcher
from mirror.states import State

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


@pytest.mark.parametrize(("follows", "damaged", "reached"), [(20, 1, 10), (310, 0, 40)], ids=["lies", "is a hole"])
def test_a_bounded_copy_believes_no_hole_that_what_follows_denies(follows: int, damaged: int, reached: int) -> None:
    """A batch claims an offset behind the copy's end, below the log's: no CRC covers it."""
    records = b"".join(bytes((14, 0, 0, 2 * n, 1, 2, 65, 0)) for n in range(10))
    parts = [batch(first, count=10, payload=records) for first in (0, 300, follows)]
    nowhere: Any = None  # nothing is asked
    fetcher = Fetcher(nowhere, nowhere, nowhere, 1 << 20)
    cursor = fetcher._cursors[AT] = Cursor(AT, None, 0, until=40)
    asyncio.run(cut(fetcher, cursor, answer(b"".join(parts), 500)))
    assert (cursor.next_offset, cursor.damaged) == (reached, damaged)


async def cut(fetcher: Fetcher, cursor: Cursor, fetched: Fetched) -> None:
    """In a loop, which has a clock."""
    fetcher._cut(cursor, fetched)


def only_segment(cluster: Cluster, topic: str) -> Path:
    """Of partition 0."""
    (segment,) = (cluster.nodes[0].data / f"{topic}-0").glob("*.log")
    return segment


def turn_a_bit(segment: Path, at: int) -> None:
    """Under a broker that runs."""
    with segment.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def damaged_topic(source: Cluster, topic: str, number: int) -> list[tuple[Any, ...]]:
    """A topic of ten batches of ten records, of which one is damaged; the records of the others."""
    make_topic(source.bootstrap, topic)
    produce(source.bootstrap, topic, [b"%d" % value for value in range(100)])
    records = list(read(source.bootstrap, topic, 0))
    before = sum(raw.header.size for raw in stored_batches(source.bootstrap, topic)[:number])
    turn_a_bit(only_segment(source, topic), before + 70)
    return [one for one in records if one[0] // 10 != number]


@pytest.mark.brokers
@pytest.mark.parametrize("number", [0, 4, 9])
def test_one_damaged_batch_is_left_out_where_that_is_the_policy(
    own_source: Cluster, own_target: Cluster, topic_name: str, number: int
) -> None:
    """The first, one in the midst, and the last of the log; a mirror that starts behind it goes on."""
    source, target = own_source.bootstrap, own_target.bootstrap
    sound = damaged_topic(own_source, topic_name, number)
    stopped = mirror_once(source, target, [topic_name], topic_name)[TopicPartition(topic_name, 0)]
    assert (stopped.state, stopped.next_offset) == (State.CORRUPT, 10 * number)
    assert f"mirror accept CONFIG {topic_name}" in stopped.detail
    found = mirror_once(source, target, [topic_name], topic_name, on_damage="skip")[TopicPartition(topic_name, 0)]
    assert (found.state, found.next_offset, found.lost, found.filled) == (State.CAUGHT_UP, 100, 10, 10)
    assert list(read(target, topic_name, 0)) == sound
    again = mirror_once(source, target, [topic_name], topic_name, on_damage="skip")[TopicPartition(topic_name, 0)]
    assert (again.state, again.lost) == (State.CAUGHT_UP, 0)


def test_a_batch_of_a_later_format_is_not_damaged() -> None:
    """By no known magic its CRC holds, or its records cannot be read."""
    records = b"".join(bytes((14, 0, 0, 2 * number, 1, 2, 65, 0)) for number in range(10))
    sound = batch(20, count=10)
    for later in (batch(10, count=10, magic=3), batch(10, count=10, magic=3, crc=1, payload=records)):
        found = find_damage(answer(later + sound, 30), 10)
        assert found == Damaged(10, 10, found.detail if found else "")


@pytest.mark.brokers
def test_a_batch_whose_magic_is_damaged_goes_the_road_of_damage(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    """What is accepted is left out, and nothing else."""
    ends, place = (own_source.bootstrap, own_target.bootstrap), TopicPartition(topic_name, 0)
    make_topic(ends[0], topic_name)
    produce(ends[0], topic_name, [b"%d" % value for value in range(30)])
    sound = [one for one in read(ends[0], topic_name, 0) if one[0] // 10 != 1]
    begin = stored_batches(ends[0], topic_name)[0].header.size
    turn_a_bit(only_segment(own_source, topic_name), begin + 16)
    stopped = mirror_once(*ends, [topic_name], topic_name)[place]
    assert (stopped.state, stopped.next_offset) == (State.CORRUPT, 10), stopped.detail
    config = config_file(tmp_path, *ends, [topic_name], flow=topic_name)
    (loss,) = json.loads(mirror(tmp_path, "accept", str(config), topic_name, "--json").printed)["losses"]
    assert (loss["first_offset"], loss["last_offset"]) == (10, 19)
    found = mirror_once(*ends, [topic_name], topic_name)[place]
    assert (found.state, found.next_offset, found.lost) == (State.CAUGHT_UP, 30, 10), found.detail
    assert list(read(ends[1], topic_name, 0)) == sound


@pytest.mark.brokers
@pytest.mark.parametrize("at", [70, 23, 26])
@pytest.mark.parametrize("damaged", [(4,), (4, 5), (9,)])
def test_a_damaged_batch_that_ends_a_segment_is_left_out_alone(
    own_source: Cluster, own_target: Cluster, topic_name: str, damaged: tuple[int, ...], at: int
) -> None:
    """A leader answers from one segment; of the batch, its records or how far it claims to reach are others: beyond the
    next segment, or less than it does.
    """
    source, target = own_source.bootstrap, own_target.bootstrap
    hour = 3_600_000
    make_topic(source, topic_name, configs={"segment.ms": str(hour)})
    for number in range(10):
        values = [b"%d" % value for value in range(10 * number, 10 * number + 10)]
        produce(source, topic_name, values, begin_ms=RECENT_MS - 2 * hour * (10 - number))
    segments = sorted((own_source.nodes[0].data / f"{topic_name}-0").glob("*.log"))
    assert len(segments) == 10
    sound = [one for one in read(source, topic_name, 0) if one[0] // 10 not in damaged]
    for number in damaged:
        turn_a_bit(segments[number], at)
    found = mirror_once(source, target, [topic_name], topic_name, on_damage="skip")[TopicPartition(topic_name, 0)]
    lost = 10 * len(damaged)
    assert (found.state, found.next_offset, found.lost, found.filled) == (State.CAUGHT_UP, 100, lost, lost)
    assert list(read(target, topic_name, 0)) == sound


@pytest.mark.brokers
@pytest.mark.parametrize("offsets", ["preserve", "translate"])
@pytest.mark.parametrize("number", [1, 3])
def test_damage_where_a_leader_epoch_begins(
    own_target: Cluster, topic_name: str, tmp_path: Path, offsets: str, number: int
) -> None:
    """What is left out there is nothing that the source lost: in the midst of the log, and at its end."""
    with Cluster.start(name="elected", folder=tmp_path / "elected") as source:
        ends = source.bootstrap, own_target.bootstrap
        for end in ends:
            make_topic(end, topic_name)
        values = [b"%d" % value for value in range(10)]
        produce(source.bootstrap, topic_name, values)
        for _ in range(number):
            crash_and_cut_all(source, {(topic_name, 0): None})
            produce(source.bootstrap, topic_name, values)
        if number == 1:
            produce(source.bootstrap, topic_name, values)
        sizes = [raw.header.size for raw in stored_batches(source.bootstrap, topic_name)]
        turn_a_bit(only_segment(source, topic_name), sum(sizes[:number]) + 70)
        at = TopicPartition(topic_name, 0)
        with WatchedTask(*ends, [at], rules=Rules(offsets=offsets, skips_damage=True)) as task:  # type: ignore[arg-type]
            until = 10 * len(sizes)
            found = task.until(at, lambda one: one.state.is_stop or one.next_offset == until)
            assert (found.state.is_stop, found.lost) == (False, 10), found.detail
            produce(source.bootstrap, topic_name, values)
            found = task.until(at, lambda one: one.state.is_stop or one.next_offset == until + 10)
            assert not found.state.is_stop, found.detail


@pytest.mark.brokers
@pytest.mark.parametrize("ahead", [5, 65_536])
def test_a_batch_whose_offset_lies_ahead_stops_its_partition(
    own_source: Cluster, own_target: Cluster, topic_name: str, ahead: int
) -> None:
    """No CRC covers it: it is not written there, and what follows is not passed over."""
    source, target, at = own_source.bootstrap, own_target.bootstrap, TopicPartition(topic_name, 0)
    make_topic(source, topic_name)
    produce(source, topic_name, [b"%d" % value for value in range(40)])
    before = [one for one in read(source, topic_name, 0) if one[0] < 10]
    begin = stored_batches(source, topic_name)[0].header.size
    segment = next((own_source.nodes[0].data / f"{topic_name}-0").glob("*.log"))
    with segment.open("r+b") as file:
        file.seek(begin)
        file.write((10 + ahead).to_bytes(8, "big"))
    for more in ("stop", "skip"):
        stopped = mirror_once(source, target, [topic_name], topic_name, on_damage=more)[at]
        assert (stopped.state, stopped.next_offset) == (State.CORRUPT, 10)
        assert "Move the leader" in stopped.detail
        assert "mirror accept" not in stopped.detail
    assert list(read(target, topic_name, 0)) == before
    with segment.open("r+b") as file:
        file.seek(begin)
        file.write((10).to_bytes(8, "big"))
    found = mirror_once(source, target, [topic_name], topic_name)[at]
    assert (found.state, found.next_offset, found.lost) == (State.CAUGHT_UP, 40, 0)


@pytest.mark.brokers
def test_one_damaged_batch_is_passed_over_where_offsets_move(
    own_source: Cluster, own_target: Cluster, topic_name: str
) -> None:
    source, target = own_source.bootstrap, own_target.bootstrap
    sound = damaged_topic(own_source, topic_name, 4)
    more: dict[str, Any] = {"offsets": "translate", "on_damage": "skip"}
    found = mirror_once(source, target, [topic_name], topic_name, **more)[TopicPartition(topic_name, 0)]
    assert (found.state, found.records, found.lost) == (State.CAUGHT_UP, 90, 10)
    assert [one[4] for one in read(target, topic_name, 0)] == [one[4] for one in sound]
    produce(source, topic_name, [b"after"])
    again = mirror_once(source, target, [topic_name], topic_name, **more)[TopicPartition(topic_name, 0)]
    assert (again.state, again.records) == (State.CAUGHT_UP, 1)


def large_topic(pair: tuple[str, str], topic: str, **configs: str) -> list[tuple[Any, ...]]:
    """A topic with batches of ten records, two in a row of which, and the last one, are too large for the target; the
    records that are not.
    """
    random = Random(3)
    values = [random.randbytes(6000 if number in (14, 15, 29) else 100) for number in range(30)]
    make_topic(pair[0], topic)
    make_topic(pair[1], topic, configs={"max.message.bytes": "5000", **configs})
    produce(pair[0], topic, values, codec="zstd")
    return [one for one in read(pair[0], topic, 0) if len(one[4]) == 100]


@pytest.mark.brokers
@pytest.mark.parametrize("offsets", ["preserve", "translate"])
def test_records_that_are_too_large_are_left_out_where_that_is_the_policy(
    own_source: Cluster, own_target: Cluster, topic_name: str, offsets: str
) -> None:
    """Each by itself, its batch's other records not; a mirror that starts behind one goes on, whatever is allowed."""
    pair = own_source.bootstrap, own_target.bootstrap
    sound = large_topic(pair, topic_name)
    more: dict[str, Any] = {"offsets": offsets}
    stopped = mirror_once(*pair, [topic_name], topic_name, **more)[TopicPartition(topic_name, 0)]
    assert (stopped.state, stopped.next_offset) == (State.REFUSED, 14)
    assert "Raise the limit on the source" in stopped.detail
    assert f"mirror accept CONFIG {topic_name}" in stopped.detail
    found = mirror_once(*pair, [topic_name], topic_name, on_too_large="skip", **more)[TopicPartition(topic_name, 0)]
    assert (found.state, found.next_offset, found.lost) == (State.CAUGHT_UP, 30, 3)
    assert found.filled == (3 if offsets == "preserve" else 0)
    key = slice(0 if offsets == "preserve" else 1, None)
    assert [one[key] for one in read(pair[1], topic_name, 0)] == [one[key] for one in sound]
    again = mirror_once(*pair, [topic_name], topic_name, records_runs=False, **more)[TopicPartition(topic_name, 0)]
    assert (again.state, again.records) == (State.CAUGHT_UP, 0), again
    report = verify_flow(settings_between(*pair, [topic_name], topic_name, **more))
    assert report.differences == ()
    (partition,) = report.partitions
    assert (partition.lost, partition.lost_records) == (((14, 15), (15, 16), (29, 30)), 3)


@pytest.mark.brokers
@pytest.mark.parametrize("attributes", [ZSTD, 5], ids=["garbage", "codec"])
def test_records_that_cannot_be_read_are_left_out_where_that_is_the_policy(
    own_source: Cluster, own_target: Cluster, topic_name: str, attributes: int
) -> None:
    """A payload that does not decompress, in a batch that must be rewritten, and a codec that nobody knows."""
    pair = own_source.bootstrap, own_target.bootstrap
    make_topic(pair[0], topic_name)
    make_topic(pair[1], topic_name, configs={"compression.type": "gzip"})
    produce(pair[0], topic_name, [b"%d" % value for value in range(30)])
    sound = [one for one in read(pair[0], topic_name, 0) if one[0] // 10 != 1]
    replace_batch(own_source, topic_name, 10, attributes)
    stopped = mirror_once(*pair, [topic_name], topic_name)[TopicPartition(topic_name, 0)]
    assert (stopped.state, stopped.next_offset) == (State.REFUSED, 10)
    assert f"mirror accept CONFIG {topic_name}" in stopped.detail
    found = mirror_once(*pair, [topic_name], topic_name, on_damage="skip")[TopicPartition(topic_name, 0)]
    assert (found.state, found.next_offset, found.lost, found.filled) == (State.CAUGHT_UP, 30, 10, 10)
    assert list(read(pair[1], topic_name, 0)) == sound


def replace_batch(cluster: Cluster, topic: str, offset: int, attributes: int) -> None:
    """By one of the same size and offsets whose CRC holds, and whose payload is garbage."""
    segment = next((cluster.nodes[0].data / f"{topic}-0").glob("*.log"))
    old = next(raw for raw in stored_batches(cluster.bootstrap, topic) if raw.header.base_offset == offset)
    header = old.header
    new = batch(offset, count=header.count, attributes=attributes, payload=b"?" * len(old.records))
    assert len(new) == header.size
    data = segment.read_bytes()
    with segment.open("r+b") as file:
        file.seek(data.index(bytes(old.data)))
        file.write(new)


@pytest.mark.brokers
def test_a_record_that_is_too_large_and_that_a_person_accepts(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    """`mirror accept` names it and those right behind it, and what comes later stops again."""
    pair = own_source.bootstrap, own_target.bootstrap
    sound = large_topic(pair, topic_name)
    config = config_file(tmp_path, *pair, [topic_name], flow=topic_name)
    mirror_once(*pair, [topic_name], topic_name)
    for first, last in ((14, 15), (29, 29)):
        fields = json.loads(mirror(tmp_path, "accept", str(config), topic_name, "--json").printed)
        (loss,) = fields["losses"]
        assert (loss["first_offset"], loss["last_offset"], loss["reason"]) == (first, last, "too_large")
        found = mirror_once(*pair, [topic_name], topic_name)[TopicPartition(topic_name, 0)]
    assert (found.state, found.next_offset) == (State.CAUGHT_UP, 30)
    assert list(read(pair[1], topic_name, 0)) == sound
    assert "nothing to accept" in mirror(tmp_path, "accept", str(config), topic_name).printed


def mirror(folder: Path, *arguments: str) -> Command:
    """A command that has ended; tasks run in threads of it."""
    command = Command(folder, *arguments)
    assert command.wait(240) is not None, command.logged
    return command


@pytest.mark.brokers
def test_a_damaged_batch_that_a_person_accepts(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    """It stops by name, `mirror accept` names the range, the mirror goes on, and the loss is on record."""
    source, target = own_source.bootstrap, own_target.bootstrap
    sound = damaged_topic(own_source, topic_name, 4)
    config = config_file(tmp_path, source, target, [topic_name], flow=topic_name)

    assert mirror(tmp_path, "run", str(config), "--once").wait(0) == 4
    fields = json.loads(mirror(tmp_path, "accept", str(config), topic_name, "--json").printed)
    (loss,) = fields["losses"]
    assert (loss["first_offset"], loss["last_offset"], loss["reason"]) == (40, 49, "damage")
    after = mirror(tmp_path, "run", str(config), "--once")
    assert after.wait(0) == 0, after.logged
    assert "records_lost" in after.logged
    assert list(read(target, topic_name, 0)) == sound

    async def recorded() -> list[tuple[int, int, str]]:
        async with KafkaCluster(Endpoint.of(load(config).target)) as cluster:
            known = losses_in(await Journal(cluster, topic_name).newest())
            return [(one.first, one.next_offset, one.reason) for one in known[TopicPartition(topic_name, 0)]]

    assert asyncio.run(recorded()) == [(40, 50, "damage")]


@pytest.mark.brokers
@pytest.mark.parametrize("offsets", ["preserve", "translate"])
def test_what_is_damaged_on_the_source_once_it_was_mirrored_stops_nothing(
    own_source: Cluster, own_target: Cluster, topic_name: str, offsets: str
) -> None:
    """The last batch, which a mirror that starts would compare: the copy has it as it was acknowledged."""
    source, target, at = own_source.bootstrap, own_target.bootstrap, TopicPartition(topic_name, 0)
    make_topic(source, topic_name)
    produce(source, topic_name, [b"%d" % value for value in range(20)])
    records = [one[4] for one in read(source, topic_name, 0)]
    assert mirror_once(source, target, [topic_name], topic_name, offsets=offsets)[at].state is State.CAUGHT_UP
    turn_a_bit(only_segment(own_source, topic_name), stored_batches(source, topic_name)[0].header.size + 70)
    for more in ([], [b"after"]):
        if more:
            produce(source, topic_name, more)
        figures = mirror_once(source, target, [topic_name], topic_name, offsets=offsets)[at]
        assert figures.state is State.CAUGHT_UP, figures.detail
    assert [one[4] for one in read(target, topic_name, 0)] == [*records, b"after"]


def lying_batch(
    cluster: Cluster, topic: str, kind: str, *, last: int = 0, is_alone: bool = False
) -> list[tuple[Any, ...]]:
    """A topic of five batches of ten records, of which the third one is not what its header says, though its CRC
    holds; what was written. `is_alone`: each is in a segment of its own.
    """
    make_topic(cluster.bootstrap, topic, configs={"segment.ms": "1000"} if is_alone else {})
    for number in range(5):
        values = [b"%d" % value + b"z" * 20 for value in range(10 * number, 10 * number + 10)]
        produce(cluster.bootstrap, topic, values, begin_ms=RECENT_MS + 10_000 * number)
    records = list(read(cluster.bootstrap, topic, 0))
    (old,) = (raw for raw in stored_batches(cluster.bootstrap, topic) if raw.header.base_offset == 20)
    new = bytearray(old.data)
    if kind == "reach":
        new[23:27] = (last - 20).to_bytes(4, "big")
    elif kind == "codec":
        new[21:23] = SNAPPY.to_bytes(2, "big")
    elif kind == "count":
        new[23:27], new[57:61] = (10).to_bytes(4, "big"), (11).to_bytes(4, "big")
    else:
        new[61] += 2
    new[17:21] = crc32c(bytes(new[21:])).to_bytes(4, "big")
    folder = cluster.nodes[0].data / f"{topic}-0"
    segment = folder / f"{20 if is_alone else 0:020d}.log"
    data = segment.read_bytes()
    with segment.open("r+b") as file:
        file.seek(data.index(bytes(old.data)))
        file.write(new)
    return records


@pytest.mark.brokers
@pytest.mark.parametrize("offsets", ["preserve", "translate"])
@pytest.mark.parametrize("kind", ["length", "count", "codec"])
def test_a_batch_whose_records_are_not_what_it_says(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path, kind: str, offsets: str
) -> None:
    """The target refuses it, and no setting lets it through: it is damage of the source, and goes that road."""
    pair, at = (own_source.bootstrap, own_target.bootstrap), TopicPartition(topic_name, 0)
    written = lying_batch(own_source, topic_name, kind)
    until = 31 if kind == "count" else 30  # by what its header says
    sound = [one for one in written if not 20 <= one[0] < until]
    stopped = mirror_once(*pair, [topic_name], topic_name, offsets=offsets)[at]
    assert (stopped.state, stopped.next_offset) == (State.REFUSED, 20), stopped.detail
    assert "the records are not what the batch says" in stopped.detail
    assert f"mirror accept CONFIG {topic_name}" in stopped.detail
    if offsets == "preserve":
        found = mirror_once(*pair, [topic_name], topic_name, offsets=offsets, on_damage="skip")[at]
    else:
        config = config_file(tmp_path, *pair, [topic_name], flow=topic_name, offsets=offsets)
        fields = json.loads(mirror(tmp_path, "accept", str(config), topic_name, "--json").printed)
        (loss,) = fields["losses"]
        assert (loss["first_offset"], loss["last_offset"], loss["reason"]) == (20, until - 1, "damage")
        found = mirror_once(*pair, [topic_name], topic_name, offsets=offsets)[at]
    assert (found.state, found.next_offset, found.lost) == (State.CAUGHT_UP, 50, until - 20), found.detail
    assert [one[4] for one in read(pair[1], topic_name, 0)] == [one[4] for one in sound]


@pytest.mark.brokers
@pytest.mark.parametrize("offsets", ["preserve", "translate"])
@pytest.mark.parametrize(("last", "is_alone"), [(50, False), (35, False), (39, True), (49, True)])
def test_a_batch_that_reaches_over_the_next_ones_stops_its_partition(
    own_source: Cluster, own_target: Cluster, topic_name: str, offsets: str, last: int, is_alone: bool
) -> None:
    """Its last offset lies, though its CRC holds: it is not written, and what it hides is not passed over. Also where
    it is alone in its segment, so that no answer has the next one behind it.
    """
    pair, at = (own_source.bootstrap, own_target.bootstrap), TopicPartition(topic_name, 0)
    written = lying_batch(own_source, topic_name, "reach", last=last, is_alone=is_alone)
    for more in ("stop", "skip"):
        stopped = mirror_once(*pair, [topic_name], topic_name, offsets=offsets, on_damage=more)[at]
        assert (stopped.state, stopped.next_offset) == (State.CORRUPT, 20), stopped.detail
        what = "and the next one begins at offset 30" if last < 50 else "behind the log's end, 50"
        assert f"base offset 20 says that its last offset is {last}, {what}" in stopped.detail
        assert "Move the leader" in stopped.detail
        assert "mirror accept" not in stopped.detail
    assert [one[4] for one in read(pair[1], topic_name, 0)] == [one[4] for one in written[:20]]


@pytest.mark.brokers
def test_holes_that_compaction_left_behind_records_hide_nothing(
    own_source: Cluster, own_target: Cluster, topic_name: str
) -> None:
    """A batch whose last records are gone, alone in its segment, and another at the end of the log."""
    pair, at = (own_source.bootstrap, own_target.bootstrap), TopicPartition(topic_name, 0)
    make_topic(pair[0], topic_name, configs={"segment.ms": "1000"})
    for number in range(5):
        produce(pair[0], topic_name, [b"%d" % value for value in range(10)], begin_ms=RECENT_MS + 10_000 * number)
    last = bytes((30, 0, 16, 16, 1, 18)) + b"nine long" + bytes(1)  # the ninth, as long as the last two
    for offset in (20, 40):
        (old,) = (raw for raw in stored_batches(pair[0], topic_name) if raw.header.base_offset == offset)
        payload = bytes(old.records[: -len(last)]) + last
        new = batch(offset, count=9, delta=9, payload=payload, base_timestamp=old.header.base_timestamp)
        assert len(new) == old.header.size
        segment = own_source.nodes[0].data / f"{topic_name}-0" / f"{offset:020d}.log"
        with segment.open("r+b") as file:
            file.write(new)
    found = mirror_once(*pair, [topic_name], topic_name)[at]
    assert (found.state, found.next_offset, found.lost) == (State.CAUGHT_UP, 50, 0), found.detail
    records = list(read(pair[0], topic_name, 0))
    assert (len(records), list(read(pair[1], topic_name, 0))) == (48, records)


@pytest.mark.brokers
def test_records_behind_what_a_batch_claims_are_mirrored_once_those_before_are_deleted(
    own_source: Cluster, own_target: Cluster, topic_name: str
) -> None:
    pair, at = (own_source.bootstrap, own_target.bootstrap), TopicPartition(topic_name, 0)
    written = lying_batch(own_source, topic_name, "reach", last=35)
    assert mirror_once(*pair, [topic_name], topic_name)[at].state is State.CORRUPT
    delete_records(own_source, at, 36)
    for number in range(2):
        found = mirror_once(*pair, [topic_name], topic_name, on_data_loss="continue")[at]
        lost = 0 if number else 16
        assert (found.state, found.next_offset, found.lost) == (State.CAUGHT_UP, 50, lost), found.detail
    assert list(read(pair[1], topic_name, 0)) == [one for one in written if not 20 <= one[0] < 36]


@pytest.mark.brokers
def test_verify_names_what_is_damaged_where_logs_are_compared(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    """And says that both sides differ, of a partition that a mirror would stop as CORRUPT."""
    source, target = own_source.bootstrap, own_target.bootstrap
    damaged_topic(own_source, topic_name, 0)
    make_topic(target, topic_name)
    produce(target, topic_name, [b"of somebody else"] * 10)
    config = config_file(tmp_path, source, target, [topic_name], flow=topic_name, offsets="translate")
    done = mirror(tmp_path, "verify", str(config), "--no-spark")
    assert done.wait(0) == 5, done.logged
    assert "CRC mismatch" in done.printed
