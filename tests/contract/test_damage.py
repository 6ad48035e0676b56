"""One batch in a live source log that cannot be written: what stops, what goes on behind it, and what is recorded."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from copies import Pair, copied
from helpers import RECENT_MS, config_file, make_topic, produce, settings_between, stored_batches
from pair import Shared
from planted import replace, turn_a_bit
from rawbatches import batch, crc32c
from samerecords import read
from typer.testing import CliRunner

from mirror.cli import app
from mirror.commands.verify import verify_flow
from mirror.records.codecs import ZSTD
from mirror.records.header import RawBatch
from mirror.states import State

HOUR_MS = 3_600_000


def ten_batches(bootstrap: str, topic: str, *, are_alone: bool = False) -> list[tuple[Any, ...]]:
    """A topic of ten batches of ten records, each in a segment of its own where they `are_alone`; its records."""
    make_topic(bootstrap, topic, configs={"segment.ms": str(HOUR_MS)} if are_alone else {})
    for number in range(10):
        values = [b"%03d" % value for value in range(10 * number, 10 * number + 10)]
        produce(bootstrap, topic, values, begin_ms=RECENT_MS + (number - 10) * 2 * HOUR_MS)
    return list(read(bootstrap, topic, 0))


def at_offset(bootstrap: str, topic: str, offset: int) -> RawBatch:
    (found,) = (raw for raw in stored_batches(bootstrap, topic) if raw.header.base_offset == offset)
    return found


def accepted(folder: Path, pair: Pair, topic: str) -> list[tuple[int, int, str]]:
    """What `mirror accept` takes for lost: first and last offset, and why."""
    config = config_file(folder, *pair, [topic], flow=topic)
    done = CliRunner().invoke(app, ["accept", str(config), topic, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    losses = json.loads(done.stdout)["losses"]
    return [(one["first_offset"], one["last_offset"], one["reason"]) for one in losses]


@pytest.mark.proves("never-silent", "CORRUPT")
@pytest.mark.parametrize(
    ("damaged", "byte", "are_alone", "offsets"),
    [
        ((0,), 70, False, "preserve"),
        ((40,), 16, False, "translate"),  # its magic
        ((90,), 70, False, "preserve"),
        ((40, 50), 23, True, "preserve"),  # claims to reach beyond the next segment
        ((90,), 26, True, "preserve"),  # claims to reach less far than it does
    ],
)
def test_damaged_batches_alone_are_left_out_where_that_is_the_policy(
    pair: Pair,
    source_cluster: Shared,
    topic_name: str,
    damaged: tuple[int, ...],
    byte: int,
    are_alone: bool,
    offsets: str,
) -> None:
    """Without it the partition stops."""
    more: dict[str, Any] = {"offsets": offsets}
    written = ten_batches(pair[0], topic_name, are_alone=are_alone)
    turn_a_bit(source_cluster, topic_name, byte, *damaged)
    stopped = copied(pair, topic_name, State.CORRUPT, **more)
    assert stopped.next_offset == damaged[0]
    assert f"mirror accept CONFIG {topic_name}" in stopped.detail
    found = copied(pair, topic_name, on_damage="skip", **more)
    assert (found.next_offset, found.lost) == (100, 10 * len(damaged))
    values = [one[4] for one in read(pair[1], topic_name, 0)]
    assert values == [one[4] for one in written if one[0] // 10 * 10 not in damaged]
    assert copied(pair, topic_name, **more).lost == 0, "a mirror that starts behind it goes on"


@pytest.mark.proves("never-silent", "CORRUPT")
@pytest.mark.parametrize(("kind", "last", "are_alone"), [("base", 0, False), ("last", 199, True)])
def test_a_batch_whose_offsets_lie_stops_its_partition(
    pair: Pair, source_cluster: Shared, topic_name: str, kind: str, last: int, are_alone: bool
) -> None:
    """It is not written, and what it hides is not passed over, whatever the policy; a sound replica resolves it."""
    written = ten_batches(pair[0], topic_name, are_alone=are_alone)
    sound = bytes(at_offset(pair[0], topic_name, 20).data)
    lying = bytearray(sound)
    if kind == "base":  # no CRC covers it
        lying[:8] = (20 + 65_536).to_bytes(8, "big")
    else:
        lying[23:27] = (last - 20).to_bytes(4, "big")
        lying[17:21] = crc32c(bytes(lying[21:])).to_bytes(4, "big")
    replace(source_cluster, topic_name, sound, bytes(lying))
    for policy in ("stop", "skip"):
        stopped = copied(pair, topic_name, State.CORRUPT, on_damage=policy)
        assert stopped.next_offset == 20
        assert "Move the leader" in stopped.detail
        assert "mirror accept" not in stopped.detail
    assert list(read(pair[1], topic_name, 0)) == written[:20]
    replace(source_cluster, topic_name, bytes(lying), sound)
    assert copied(pair, topic_name).lost == 0
    assert list(read(pair[1], topic_name, 0)) == written


@pytest.mark.proves("never-silent", "REFUSED", "REFUSE")
@pytest.mark.parametrize(
    ("codec", "of_the_target"), [(ZSTD, "gzip"), (5, "producer")], ids=["garbage", "unknown codec"]
)
def test_records_that_nobody_can_read_are_left_out_where_that_is_the_policy(
    pair: Pair, source_cluster: Shared, topic_name: str, codec: int, of_the_target: str
) -> None:
    """The target refuses them, or they must be rewritten; the CRC of their batch holds."""
    make_topic(pair[1], topic_name, configs={"compression.type": of_the_target})
    written = ten_batches(pair[0], topic_name)
    sound = at_offset(pair[0], topic_name, 20)
    unreadable = batch(20, count=10, attributes=codec, payload=b"?" * len(sound.records))
    replace(source_cluster, topic_name, bytes(sound.data), unreadable)
    stopped = copied(pair, topic_name, State.REFUSED)
    assert stopped.next_offset == 20
    assert f"mirror accept CONFIG {topic_name}" in stopped.detail
    found = copied(pair, topic_name, on_damage="skip")
    assert (found.next_offset, found.lost) == (100, 10)
    values = [one[4] for one in read(pair[1], topic_name, 0)]
    assert values == [one[4] for one in written if not 20 <= one[0] < 30]


@pytest.mark.parametrize("offsets", ["preserve", "translate"])
def test_what_is_damaged_on_the_source_once_it_was_mirrored_stops_nothing(
    pair: Pair, source_cluster: Shared, topic_name: str, offsets: str
) -> None:
    """The last batch, which a mirror that starts would compare: the copy has it as it was acknowledged."""
    written = ten_batches(pair[0], topic_name)
    copied(pair, topic_name, offsets=offsets)
    turn_a_bit(source_cluster, topic_name, 70, 90)
    assert copied(pair, topic_name, offsets=offsets).records == 0
    produce(pair[0], topic_name, [b"after"])
    assert copied(pair, topic_name, offsets=offsets).records == 1
    assert [one[4] for one in read(pair[1], topic_name, 0)] == [*(one[4] for one in written), b"after"]


@pytest.mark.proves("never-silent", "REFUSED", "mirror accept", "mirror verify")
@pytest.mark.parametrize("resolved_by", ["policy", "person"])
def test_records_that_are_too_large_for_the_target_are_left_out(
    pair: Pair, topic_name: str, tmp_path: Path, resolved_by: str
) -> None:
    """Each by itself, its batch's other records not: two in a row, and the last one of all."""
    random = Random(3)
    values = [random.randbytes(6000 if number in (14, 15, 29) else 100) for number in range(30)]
    make_topic(pair[0], topic_name)
    make_topic(pair[1], topic_name, configs={"max.message.bytes": "5000"})
    produce(pair[0], topic_name, values, codec="zstd")
    stopped = copied(pair, topic_name, State.REFUSED)
    assert stopped.next_offset == 14
    assert "Raise the limit on the source" in stopped.detail
    if resolved_by == "policy":
        found = copied(pair, topic_name, on_too_large="skip")
        assert (found.next_offset, found.lost) == (30, 3)
    else:  # what comes later stops again
        assert accepted(tmp_path, pair, topic_name) == [(14, 15, "too_large")]
        assert copied(pair, topic_name, State.REFUSED).next_offset == 29
        assert accepted(tmp_path, pair, topic_name) == [(29, 29, "too_large")]
    assert copied(pair, topic_name, records_runs=False).next_offset == 30
    kept = [one for one in read(pair[0], topic_name, 0) if len(one[4]) == 100]
    assert list(read(pair[1], topic_name, 0)) == kept
    report = verify_flow(settings_between(*pair, [topic_name], topic_name))
    assert report.differences == ()
    assert report.partitions[0].lost_records == 3
