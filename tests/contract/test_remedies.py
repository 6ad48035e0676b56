"""Every stop says what resolves it: that is done here as it is written, on a mirror that runs all the while, and the
partition goes on.

What needs rights is in test_security.py, what takes long in tests/long/operations/test_large_remedies.py.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

import crc32c
import pytest
from confluent_kafka import Producer
from faults.network import Network
from helpers import RECENT_MS, make_topic, produce, stored_batches
from livemirror import KEPT, LiveMirror, values
from pair import Shared
from syncing import delete_topics
from topicadmin import configure, delete_records
from waiting import MovableClock, until

from mirror.errors import ExitCode
from mirror.journal.journal import journal_topic
from mirror.states import Remedy, State

#: Thirty days ago.
OLD_MS: Final = RECENT_MS - 30 * 86_400_000


@pytest.fixture
def live(source_cluster: Shared, target_cluster: Shared, topic_name: str, tmp_path: Path) -> LiveMirror:
    return LiveMirror(source_cluster, target_cluster, topic_name, tmp_path).begin()


def recreate(live: LiveMirror, first: int, end: int, name: str = "") -> list[bytes]:
    """Delete the source topic, and make another one of its name with these records."""
    live.until_equal(values(0, 100))
    delete_topics(live.source, live.topic)
    live.create()
    return live.fill(first, end, name)


@pytest.mark.proves("RECREATED", "never-silent")
def test_a_copy_of_a_recreated_topic_is_begun_anew(live: LiveMirror) -> None:
    with live.running():
        wanted = recreate(live, 0, 20, "other ")
        advice = live.until_stopped(State.RECREATED, Remedy.BEGIN_ANEW)
        assert live.copied() == values(0, 100), "nothing foreign is added"
        live.tool(advice, "kafka-topics")
        live.until_equal(wanted)


@pytest.mark.proves("RECREATED", "nothing-by-name-alone")
def test_a_recreated_topic_is_mirrored_into_another_one(live: LiveMirror) -> None:
    with live.running():
        wanted = recreate(live, 0, 20, "other ")
        live.until_stopped(State.RECREATED, Remedy.RENAME)
        before, live.copy = live.copy, f"{live.topic}-now"
        live.settings["topics"]["naming"]["rename"][live.topic] = live.copy
        live.reload()
        live.until_equal(wanted)
        live.copy = before
        assert live.copied() == values(0, 100)


@pytest.mark.proves("RECREATED", "mirror adopt")
def test_a_recreated_topic_that_holds_what_the_copy_has_is_adopted(live: LiveMirror) -> None:
    """As where the records came back by a flow in the other direction."""
    with live.running():
        recreate(live, 0, 100)
        live.quoted(live.until_stopped(State.RECREATED, Remedy.ADOPT), "adopt")
        more = live.fill(100, 120)
        live.until_equal(values(0, 100) + more)


@pytest.mark.proves("RECREATED", "mirror status")
def test_a_copy_whose_source_is_gone_is_kept(live: LiveMirror) -> None:
    make_topic(live.source, f"{live.topic}-other")
    with live.running():
        live.until_equal(values(0, 100))
        delete_topics(live.source, live.topic)
        live.until_stopped(State.RECREATED, Remedy.EXCLUDE)
        live.settings["topics"]["exclude"].append(live.topic)
        live.reload()
        until(lambda: live.topic not in live.reported())
        assert live.copied() == values(0, 100)


@pytest.mark.proves("TRUNCATED", "never-silent")
def test_a_copy_of_a_source_that_lost_its_tail_is_begun_anew(live: LiveMirror, source_cluster: Shared) -> None:
    live.copy_once()
    live.flow.lose_tail(source_cluster, 50)
    wanted = values(0, 50) + live.fill(50, 70, "new ")
    with live.running():
        advice = live.until_stopped(State.TRUNCATED, Remedy.EXCLUDE, Remedy.BEGIN_ANEW)
        assert live.copied() == values(0, 100)
        live.tool(advice, "kafka-topics")
        live.until_equal(wanted)


@pytest.mark.proves("TRUNCATED", "TARGET_LOST", "never-silent", "mirror accept")
@pytest.mark.parametrize(("side", "state"), [("source", State.TRUNCATED), ("target", State.TARGET_LOST)])
def test_a_log_that_lost_its_tail_and_was_restored_is_accepted(live: LiveMirror, side: str, state: State) -> None:
    """What the target lost the source does not have any more; what the backup has, everybody has again."""
    live.copy_once()
    cluster = live.clusters[side]
    backup = stored_batches(cluster.bootstrap, live.topic)
    live.flow.lose_tail(cluster, 50)
    wanted = values(0, 100)
    if side == "target":
        delete_records(live.source, live.topic, 80)
    with live.running():
        live.until_stopped(state, Remedy.ACCEPT_RESTORED)
    live.flow.restore(cluster, backup)
    with live.running():
        live.quoted(live.until_stopped(state, Remedy.ACCEPT_RESTORED), "accept")
        more = live.fill(100, 110)
        live.until_equal(wanted + more)


@pytest.mark.proves("RETENTION_GAP", "mirror accept")
def test_records_that_retention_took_first_are_accepted_as_lost(live: LiveMirror) -> None:
    live.copy_once()
    later = live.fill(100, 200)
    delete_records(live.source, live.topic, 150)
    with live.running():
        advice = live.until_stopped(State.RETENTION_GAP, Remedy.ACCEPT_LOSS, Remedy.CONTINUE)
        assert "offsets 100 to 149" in advice
        assert live.copied() == values(0, 100)
        live.quoted(advice, "accept")
        live.until_equal(values(0, 100) + later[50:])


@pytest.mark.proves("RETENTION_GAP")
def test_a_source_that_is_purged_again_and_again_stops_nothing_once_it_may(live: LiveMirror) -> None:
    """What is deleted while no task reads goes on record, each time."""
    live.copy_once()
    wanted = values(0, 100) + live.fill(100, 200)[50:]
    delete_records(live.source, live.topic, 150)
    with live.running():
        live.until_stopped(State.RETENTION_GAP, Remedy.CONTINUE)
        live.settings["topics"]["on_data_loss"] = "continue"
        live.reload()
        live.until_equal(wanted)
    wanted += live.fill(200, 300)[90:]
    delete_records(live.source, live.topic, 290)
    with live.running():
        live.until_equal(wanted)


# --- damage -----------------------------------------------------------------------------------------------------------


def write_three(live: LiveMirror) -> tuple[list[bytes], int]:
    """Write three batches; return their values, and where the second one begins on the source's disk."""
    made = live.fill(100, 110)
    begin = live.segment("source").stat().st_size
    return made + live.fill(110, 130), begin


def add(segment: Path, begin: int, place: int, number: int, *, mends_crc: bool = False) -> None:
    """Add to a byte of the batch that begins there, under a broker that runs."""
    stored = segment.read_bytes()
    (length,) = struct.unpack_from(">i", stored, begin + 8)
    batch = bytearray(stored[begin : begin + 12 + length])
    batch[place] += number
    if mends_crc:
        batch[17:21] = struct.pack(">I", crc32c.crc32c(bytes(batch[21:])))
    with segment.open("r+b") as file:
        file.seek(begin)
        file.write(batch)


@pytest.mark.proves("CORRUPT", "REFUSED", "REFUSE", "mirror accept")
@pytest.mark.parametrize(
    ("state", "place", "number"),
    [(State.CORRUPT, 70, 1), (State.REFUSED, 22, 7)],
    ids=["damaged", "of an unknown codec"],
)
def test_a_batch_that_cannot_be_copied_is_left_out(live: LiveMirror, state: State, place: int, number: int) -> None:
    live.copy_once()
    later, begin = write_three(live)
    add(live.segment("source"), begin, place, number, mends_crc=state is State.REFUSED)
    with live.running():
        advice = live.until_stopped(state, Remedy.ACCEPT_DAMAGE)
        assert live.copied() == values(0, 100) + later[:10], "nothing of it reaches the target"
        live.quoted(advice, "accept")
        live.until_equal(values(0, 100) + later[:10] + later[20:])


@pytest.mark.proves("CORRUPT", "mirror inspect")
def test_a_damaged_batch_is_inspected_and_is_read_where_it_is_sound(live: LiveMirror) -> None:
    """The bytes become sound again, as those of another leader's would be."""
    live.copy_once()
    later, begin = write_three(live)
    add(live.segment("source"), begin, 70, 1)
    with live.running():
        advice = live.until_stopped(State.CORRUPT, Remedy.SOUND_LEADER, Remedy.INSPECT)
        assert "CRC mismatch" in live.quoted(advice, "inspect", ExitCode.DATA_AT_RISK)
        add(live.segment("source"), begin, 70, -1)
        live.until_equal(values(0, 100) + later)


@pytest.mark.proves("CORRUPT")
def test_a_copy_that_is_damaged_is_begun_anew(live: LiveMirror) -> None:
    live.copy_once()
    last = sum(len(one.data) for one in stored_batches(live.target, live.copy)[:-1])
    add(live.segment("target"), last, 16, 1)  # its format
    more = live.fill(100, 110)
    with live.running():
        live.tool(live.until_stopped(State.CORRUPT, Remedy.BEGIN_ANEW), "kafka-topics")
        live.until_equal(values(0, 100) + more)


# --- what the target does not take ------------------------------------------------------------------------------------


@pytest.mark.proves("REFUSED")
def test_a_record_that_is_too_large_is_taken_when_the_limit_is_raised(live: LiveMirror) -> None:
    """The limit was set behind it on the source, from where the copy has it."""
    live.copy_once()
    large = b"x" * 300_000
    produce(live.source, live.topic, [large], begin_ms=RECENT_MS + 100)
    configure(live.source, live.topic, max_message_bytes="100000")
    with live.running():
        advice = live.until_stopped(State.REFUSED, Remedy.RAISE_SIZE)
        live.tool(advice.replace("=BYTES", "=1048588"), "kafka-configs")
        live.until_equal([*values(0, 100), large])


@pytest.mark.proves("REFUSED")
def test_records_that_are_too_old_are_taken_by_a_copy_that_allows_them(live: LiveMirror) -> None:
    with live.running():
        live.until_equal(values(0, 100))
        configure(live.target, live.copy, message_timestamp_before_max_ms="86400000")
        later = live.fill(100, 110, begin_ms=OLD_MS)
        live.until_stopped(State.REFUSED, Remedy.FIT_TARGET)
        configure(live.target, live.copy, message_timestamp_before_max_ms=str(2**63 - 1))
        live.until_equal(values(0, 100) + later)


@pytest.mark.proves("REFUSED")
def test_a_copy_that_stamps_records_gets_their_own_times(live: LiveMirror) -> None:
    make_topic(live.target, live.copy, configs=KEPT | {"message.timestamp.type": "LogAppendTime"})
    live.settings["sync"]["configs_exclude"] += ["message.timestamp.type"]
    with live.running():
        live.tool(live.until_stopped(State.REFUSED, Remedy.KEEP_TIMES), "kafka-configs")
        live.until_equal(values(0, 100))


def allow_deletion(live: LiveMirror, remedy: Remedy) -> None:
    advice = live.until_stopped(State.REFUSED, remedy)
    live.settings["sync"]["configs_exclude"] += ["cleanup.policy", "retention.ms", "retention.bytes"]
    live.reload()
    live.tool(advice, "kafka-configs")


@pytest.mark.proves("REFUSED")
def test_a_compacted_copy_takes_records_without_keys_while_it_is_not_compacted(live: LiveMirror) -> None:
    """They are older than the source's being compacted."""
    configure(live.source, live.topic, retention_ms="-1", cleanup_policy="compact")
    with live.running():
        allow_deletion(live, Remedy.TAKE_KEYLESS)
        live.until_equal(values(0, 100))


@pytest.mark.proves("REFUSED", "PADDING", "same-offsets")
def test_a_compacted_copy_begins_where_its_source_does_while_it_may_delete(
    source_cluster: Shared, target_cluster: Shared, topic_name: str, tmp_path: Path
) -> None:
    live = LiveMirror(source_cluster, target_cluster, topic_name, tmp_path)
    live.create(KEPT | {"cleanup.policy": "compact,delete"})
    producer = Producer({"bootstrap.servers": live.source})
    for number, value in enumerate(values(0, 60)):
        producer.produce(live.topic, value, b"k%d" % number, partition=0)
    assert not producer.flush(30)
    delete_records(live.source, live.topic, 10)
    configure(live.source, live.topic, cleanup_policy="compact", retention_ms="1000", retention_bytes="1000000")
    with live.running():
        allow_deletion(live, Remedy.ALLOW_DELETION)
        live.until_equal(values(10, 60))


# --- the target is not the source's copy ------------------------------------------------------------------------------


@pytest.mark.proves("DIVERGED")
def test_a_copy_that_somebody_else_wrote_to_is_begun_anew(live: LiveMirror) -> None:
    live.copy_once()
    produce(live.target, live.copy, values(0, 10, "foreign "))
    more = live.fill(100, 120)
    with live.running():
        live.tool(live.until_stopped(State.DIVERGED, Remedy.BEGIN_ANEW), "kafka-topics")
        live.until_equal(values(0, 100) + more)


@pytest.mark.proves("DIVERGED", "mirror accept")
def test_a_copy_that_can_be_compared_with_nothing_is_confirmed(live: LiveMirror) -> None:
    """All its records have expired, and the journal lost its position."""
    live.copy_once()
    producer = Producer({"bootstrap.servers": live.target})
    producer.produce(journal_topic(live.topic), None, b"position/%s/0" % live.topic.encode(), partition=0)
    assert not producer.flush(30)
    delete_records(live.target, live.copy, 100)
    more = live.fill(100, 120)
    with live.running():
        live.quoted(live.until_stopped(State.DIVERGED, Remedy.ACCEPT_COPY), "accept")
        live.until_equal(more)


@pytest.mark.proves("FENCED")
def test_a_copy_that_a_producer_wrote_to_under_the_mirror_is_begun_anew(live: LiveMirror) -> None:
    live.settings["spark"]["epoch_s"] = 600
    with live.running():
        live.until_equal(values(0, 100))
        produce(live.target, live.copy, values(0, 1, "foreign "))
        more = live.fill(100, 120)
        live.tool(live.until_stopped(State.FENCED, Remedy.END_WRITER), "kafka-topics")
        live.until_equal(values(0, 100) + more)


@pytest.mark.proves("PAUSED", "mirror pause", "mirror resume")
def test_a_paused_topic_is_resumed(live: LiveMirror) -> None:
    with live.running():
        live.until_equal(values(0, 100))
        live.pause()
        more = live.fill(100, 110)
        advice = live.until_stopped(State.PAUSED, Remedy.RESUME)
        assert live.copied() == values(0, 100)
        live.quoted(advice, "resume")
        live.until_equal(values(0, 100) + more)


@pytest.mark.proves("UNAVAILABLE", "never-silent")
@pytest.mark.parametrize("side", ["source", "target"])
def test_a_cluster_that_is_away_is_reported_at_once_and_waited_for(
    live: LiveMirror, clock: MovableClock, side: str
) -> None:
    """Not only when the epoch ends, which here is after ten minutes; with the target, the journal is away."""
    with Network({"source": live.source, "target": live.target}[side]) as network:
        live.settings[side]["bootstrap.servers"] = network.bootstrap
        live.settings["spark"]["epoch_s"] = 600
        with live.running():
            live.until_equal(values(0, 100))
            network.cut()
            more = live.fill(100, 120)

            def is_reported() -> bool:
                clock.move(0.5)  # ten seconds pass before that is said
                return live.status_is(State.UNAVAILABLE)

            until(is_reported)
            network.heal()
            live.until_equal(values(0, 100) + more)
