"""Every remedy that a stop names is tried as it is written, on one mirror that runs all the while, and the partition
goes on within a few epochs. A new state, or a new remedy of one, fails until it has a trial here.
"""

from __future__ import annotations

import json
import re
import shutil
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

import crc32c
import pytest
from adversary.driving import Command
from confluent_kafka import Producer
from confluent_kafka.admin import ResourceType
from helpers import RECENT_MS, produce, stored_batches
from remedyworld import MIRROR, TIMEOUT, USERS, Live, acl, clusters, short, until
from transactional import transactions

from mirror.errors import ExitCode
from mirror.states import REKEYED_BY, RESOLVED_BY, Remedy, State

#: Thirty days ago.
OLD_MS: Final = RECENT_MS - 30 * 86_400_000
KEPT: Final = {"retention.ms": "-1"}
#: What is copied before anything happens, ten records in a batch.
BEFORE: Final = 100
ODD_CODEC: Final = 7
#: Within which a partition goes on. It takes two where nothing else runs; a machine that has much to do shows only that
#: nobody had to start the mirror again.
EPOCHS: Final = 12
#: The right to write control markers.
MARKERS: Final = acl(ResourceType.BROKER, "kafka-cluster", "ALTER")

Key = tuple[State, Remedy]


def values(first: int, until: int, name: str = "") -> list[bytes]:
    return [f"{name}{number:06d}".encode() for number in range(first, until)]


class Trial:
    """One topic: how its partition comes to stop, and what the stop advises. Its topics begin with `name`.

    `is_paused`: it is paused while that happens. `cuts`: where a crash cuts a side's log, once all that is done.
    `copy`: the target topic in the end, which has the `wanted` values then. `stays`: this flow mirrors the topic then.
    `mended`: how many events there were when it was done; where the configuration says it, it `is_read` after that.
    """

    state: ClassVar[State]
    remedy: ClassVar[Remedy]
    is_paused: ClassVar[bool] = False
    cuts: ClassVar[Mapping[str, int]] = {}
    configs: ClassVar[Mapping[str, str]] = KEPT
    begins_well: ClassVar[bool] = True
    rights: ClassVar[bool] = True
    is_read: ClassVar[bool] = False

    def __init__(self, live: Live) -> None:
        kind = type(self).__name__
        self.live = live
        self.name = ("t-" if self.rights else "d-") + re.sub(r"(?<!^)(?=[A-Z])", "-", kind).lower()
        self.copy = self.name
        self.wanted: list[bytes] = []
        self.stays = True
        self.mended = 0
        self.advice = ""

    def fill(self, first: int, until: int, name: str = "", begin_ms: int = RECENT_MS) -> list[bytes]:
        """Records of the source."""
        produce(self.live.source.bootstrap, self.name, made := values(first, until, name), begin_ms=begin_ms + first)
        return made

    def prepare(self) -> None:
        """Before the mirror starts."""
        self.live.source.create(self.name, 1, self.configs)
        self.wanted = self.fill(0, BEFORE)

    def hurt(self) -> None:
        """While it runs, and has copied all."""

    def cut(self) -> None:
        """After the crash."""

    def mend(self) -> None:
        """Do what `advice` says."""
        raise NotImplementedError

    # --- what several do ----------------------------------------------------------------------------------------------

    def accept(self) -> None:
        """As the advice has it."""
        assert f"mirror accept CONFIG {self.name} --partition 0" in self.advice, self.advice
        self.live.person.quoted(self.advice, "accept")

    def begin_anew(self) -> None:
        """As the advice has it."""
        self.live.person.tool(self.advice, "kafka-topics")

    def exclude(self) -> None:
        """As the advice has it; the mirror reads it when all have done so."""
        self.live.settings["topics"]["exclude"].append(self.name)
        self.stays = False

    def rename(self) -> None:
        """The same."""
        self.copy = f"{self.name}-now"
        self.live.settings["topics"]["naming"]["rename"][self.name] = self.copy


# --- the source's log was cut back ------------------------------------------------------------------------------------


class CutAndBegunAnew(Trial):
    state, remedy, cuts = State.TRUNCATED, Remedy.BEGIN_ANEW, {"source": 50}

    def cut(self) -> None:
        self.wanted = self.wanted[:50] + self.fill(50, 70, "new ")

    mend = Trial.begin_anew


class CutAndExcluded(Trial):
    state, remedy, cuts = State.TRUNCATED, Remedy.EXCLUDE, {"source": 50}
    mend = Trial.exclude


class CutAndRestored(Trial):
    """The folder of its log is put back, as a backup of the disk would have it, with all brokers' restart."""

    state, remedy, cuts = State.TRUNCATED, Remedy.ACCEPT_RESTORED, {"source": 50}
    mend = Trial.accept


# --- the source topic is another one ----------------------------------------------------------------------------------


class AnotherAndRenamed(Trial):
    state, remedy, is_read = State.RECREATED, Remedy.RENAME, True

    def hurt(self) -> None:
        self.live.source.delete(self.name)
        self.live.source.create(self.name, 1, KEPT)
        self.wanted = self.fill(0, 20, "other ")

    mend = Trial.rename


class AnotherAndBegunAnew(AnotherAndRenamed):
    remedy, is_read = Remedy.BEGIN_ANEW, False
    mend = Trial.begin_anew


class AnotherAndAdopted(Trial):
    """It was filled again with what the copy has, as a flow back does."""

    state, remedy = State.RECREATED, Remedy.ADOPT

    def hurt(self) -> None:
        self.live.source.delete(self.name)
        self.live.source.create(self.name, 1, KEPT)
        self.wanted = self.fill(0, 100)

    def mend(self) -> None:
        self.live.person.quoted(self.advice, "adopt")
        self.wanted += self.fill(100, 120, "more ")


class GoneAndExcluded(Trial):
    state, remedy = State.RECREATED, Remedy.EXCLUDE

    def hurt(self) -> None:
        self.live.source.delete(self.name)

    mend = Trial.exclude


# --- the source deleted records ---------------------------------------------------------------------------------------


class ExpiredAndAccepted(Trial):
    state, remedy, is_paused = State.RETENTION_GAP, Remedy.ACCEPT_LOSS, True

    def hurt(self) -> None:
        later = self.fill(100, 200)
        self.live.source.expire(self.name, 0, 150)
        self.wanted += later[50:]

    mend = Trial.accept


# --- damage -----------------------------------------------------------------------------------------------------------


def turn_bit(segment: Path, at: int) -> None:
    """Under a broker that runs."""
    with segment.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


class DamagedAndLeftOut(Trial):
    state, remedy, is_paused = State.CORRUPT, Remedy.ACCEPT_DAMAGE, True
    at = 0

    def cut(self) -> None:  # a broker that crashes cuts a log at what is damaged
        begin = self.live.segment("source", self.name).stat().st_size
        later = self.fill(100, 110)
        self.at = self.live.segment("source", self.name).stat().st_size + 70
        later += self.fill(110, 130)
        assert self.at > begin
        turn_bit(self.live.segment("source", self.name), self.at)
        self.wanted += later[:10] + later[20:]

    mend = Trial.accept


class DamagedAndSoundElsewhere(DamagedAndLeftOut):
    """The bytes are sound again, as another replica's would be."""

    remedy = Remedy.SOUND_LEADER

    def mend(self) -> None:
        self.wanted = values(0, 130)
        turn_bit(self.live.segment("source", self.name), self.at)


class DamagedAndInspected(DamagedAndSoundElsewhere):
    remedy = Remedy.INSPECT

    def mend(self) -> None:
        reported = self.live.person.quoted(self.advice, "inspect", ExitCode.DATA_AT_RISK)
        assert "CRC mismatch behind offset 109" in reported
        super().mend()


class CopyDamagedAndBegunAnew(Trial):
    """The last batch of the target cannot be read."""

    state, remedy, is_paused = State.CORRUPT, Remedy.BEGIN_ANEW, True

    def cut(self) -> None:
        segment = self.live.segment("target", self.name)
        stored, at, last = segment.read_bytes(), 0, 0
        while at + 12 <= len(stored) and (length := struct.unpack_from(">i", stored, at + 8)[0]):
            last, at = at, at + 12 + length
        turn_bit(segment, last + 16)  # the magic byte
        self.wanted += self.fill(100, 110)

    def mend(self) -> None:
        assert f"`mirror inspect {self.name}:0 --config CONFIG --side target" in self.advice, self.advice
        self.begin_anew()


# --- what the target does not take ------------------------------------------------------------------------------------


class TooLarge(Trial):
    state, remedy, is_paused = State.REFUSED, Remedy.RAISE_SIZE, True

    def hurt(self) -> None:
        large = b"x" * 300_000
        produce(self.live.source.bootstrap, self.name, [large], begin_ms=RECENT_MS + 100)
        self.wanted.append(short(large))
        self.live.source.configure(self.name, KEPT | {"max.message.bytes": "100000"})
        until(lambda: self.live.target.configs(self.name)["max.message.bytes"] == "100000", self.live.log)

    def mend(self) -> None:
        self.advice = self.advice.replace("=BYTES", "=1048588")
        self.live.person.tool(self.advice, "kafka-configs")


class TooMuchToOpen(Trial):
    """A record of 70 MB in a few kilobytes, which the target wants by another codec."""

    state, remedy, is_paused, is_read = State.REFUSED, Remedy.RAISE_MEMORY, True, True

    def hurt(self) -> None:
        live = self.live
        live.target.configure(self.name, live.target.configs(self.name) | {"compression.type": "lz4"})
        large = bytes(70 << 20)
        producer = Producer(
            {
                "bootstrap.servers": live.source.bootstrap,
                "compression.type": "zstd",
                "message.max.bytes": 1 << 27,
                "queue.buffering.max.kbytes": 1 << 18,
            }
        )
        producer.produce(self.name, large, partition=0, timestamp=RECENT_MS + 100)
        assert not producer.flush(30)
        self.wanted.append(short(large))

    def mend(self) -> None:
        self.live.settings["limits"] = {"memory_mb": 2048}  # the mirror reads it when all have done so


class TooOld(Trial):
    state, remedy, is_paused = State.REFUSED, Remedy.FIT_TARGET, True

    def hurt(self) -> None:
        self.live.target.configure(
            self.name, self.live.target.configs(self.name) | {"message.timestamp.before.max.ms": "86400000"}
        )
        self.wanted += self.fill(100, 110, begin_ms=OLD_MS)

    def mend(self) -> None:
        assert f"--describe --all --entity-type topics --entity-name {self.name}" in self.advice, self.advice
        self.live.target.configure(
            self.name, self.live.target.configs(self.name) | {"message.timestamp.before.max.ms": str(2**63 - 1)}
        )


class Unreadable(Trial):
    """A codec that nobody has, and a checksum that holds."""

    state, remedy, is_paused = State.REFUSED, Remedy.ACCEPT_DAMAGE, True

    def cut(self) -> None:
        segment = self.live.segment("source", self.name)
        stored, at = segment.read_bytes(), 0
        while at + 12 <= len(stored) and (length := struct.unpack_from(">i", stored, at + 8)[0]):
            at += 12 + length
        self.fill(100, 110)
        batch = bytearray(segment.read_bytes()[at:])
        length = 12 + struct.unpack_from(">i", batch, 8)[0]
        self.alter(batch)
        batch[17:21] = struct.pack(">I", crc32c.crc32c(bytes(batch[21:length])))
        with segment.open("r+b") as file:
            file.seek(at)
            file.write(batch[:length])
        self.wanted += self.fill(110, 120)

    @staticmethod
    def alter(batch: bytearray) -> None:
        batch[22] |= ODD_CODEC

    mend = Trial.accept


class NotWhatItSays(Unreadable):
    """The length of a batch's first record, which the target alone looks at."""

    @staticmethod
    def alter(batch: bytearray) -> None:
        batch[61] += 2


class LongGap(Trial):
    """More than a million offsets without a record."""

    state, remedy, is_paused = State.REFUSED, Remedy.OTHER_FLOW, True
    cuts: ClassVar[Mapping[str, int]] = {"source": 2_000_000}

    def hurt(self) -> None:
        segment = self.live.segment("source", self.name)
        stored, at = segment.read_bytes(), 0
        while at + 12 <= len(stored) and (length := struct.unpack_from(">i", stored, at + 8)[0]):
            at += 12 + length
        self.wanted += self.fill(100, 110)
        with segment.open("r+b") as file:
            file.seek(at)
            file.write(struct.pack(">q", 1_500_000))

    def mend(self) -> None:
        mirror_by_another_flow(self)


def mirror_by_another_flow(trial: Trial) -> None:
    """As `OTHER_FLOW` has it, in its order; the copy is made by a bounded run."""
    live, name = trial.live, trial.name
    trial.exclude()
    live.reload()
    live.target.delete(name)
    other = live.flow(f"{name}-flow", re.escape(name))
    other["topics"]["offsets"] = "translate"
    config = live.folder / f"{name}.yaml"
    config.write_text(json.dumps(other), encoding="utf-8")
    once = Command(live.folder, "run", str(config), "--once")
    assert once.wait(TIMEOUT) == 0, once.logged


class CompactedBehind(Trial):
    """A target that is only compacted is to begin where its source does, whose retention of old means nothing now."""

    state, remedy, begins_well = State.REFUSED, Remedy.ALLOW_DELETION, False

    def prepare(self) -> None:
        live = self.live
        live.source.create(self.name, 1, KEPT | {"cleanup.policy": "compact,delete"})
        keyed = [(b"k%d" % number, b"v%d" % number * 20_000) for number in range(60)]
        segments = {"segment.bytes": "1048576"}
        live.source.configure(self.name, KEPT | segments | {"cleanup.policy": "compact,delete"})
        produce_keyed(live.source.bootstrap, self.name, keyed)
        live.source.expire(self.name, 0, 10)
        live.source.configure(
            self.name, {"cleanup.policy": "compact", "retention.ms": "1000", "retention.bytes": "1000000"} | segments
        )
        self.wanted = [short(value) for _, value in keyed[10:]]

    def mend(self) -> None:
        self.live.settings["sync"]["configs_exclude"] += ["cleanup.policy", "retention.ms", "retention.bytes"]
        self.live.reload()
        self.live.person.tool(self.advice, "kafka-configs")


class Keyless(Trial):
    """Records of a source that is compacted by now, and of which the target takes none without a key."""

    state, remedy, begins_well = State.REFUSED, Remedy.TAKE_KEYLESS, False

    def prepare(self) -> None:
        live = self.live
        live.source.create(self.name, 1, KEPT)
        self.wanted = self.fill(0, 60)
        live.source.configure(self.name, KEPT | {"cleanup.policy": "compact"})

    mend = CompactedBehind.mend


class Stamping(Trial):
    """A copy that gives records times of its own, and whose type does not follow the source's."""

    state, remedy, begins_well = State.REFUSED, Remedy.KEEP_TIMES, False

    def prepare(self) -> None:
        super().prepare()
        self.live.target.create(self.name, 1, KEPT | {"message.timestamp.type": "LogAppendTime"})
        self.live.settings["sync"]["configs_exclude"] += ["message.timestamp.type"]

    def mend(self) -> None:
        self.live.person.tool(self.advice, "kafka-configs")


def produce_keyed(bootstrap: str, topic: str, records: Sequence[tuple[bytes, bytes]]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 100})
    for key, value in records:
        producer.produce(topic, value, key, partition=0)
    assert not producer.flush(30)


# --- the target is not the source's copy ------------------------------------------------------------------------------


class ForeignAndRenamed(Trial):
    state, remedy, is_paused, is_read = State.DIVERGED, Remedy.RENAME, True, True

    def hurt(self) -> None:
        produce(self.live.target.bootstrap, self.name, values(0, 10, "foreign "))
        self.wanted += self.fill(100, 120)

    mend = Trial.rename


class ForeignAndBegunAnew(ForeignAndRenamed):
    remedy, is_read = Remedy.BEGIN_ANEW, False
    mend = Trial.begin_anew


class UnconfirmedAndVouchedFor(Trial):
    """The copy has expired, and the journal lost its position."""

    state, remedy, is_paused = State.DIVERGED, Remedy.ACCEPT_COPY, True

    def hurt(self) -> None:
        forget_position(self.live, self.name)
        self.live.target.expire(self.name, 0, 100)
        self.wanted = self.fill(100, 120)

    mend = Trial.accept


def forget_position(live: Live, topic: str) -> None:
    producer = Producer({"bootstrap.servers": live.target.bootstrap})
    producer.produce("mirror.remedies.offsets", None, b"position/%s/0" % topic.encode(), partition=0)
    assert not producer.flush(30)


class WrittenToAndBegunAnew(Trial):
    """A producer writes to the copy in the midst of an epoch, and ends."""

    state, remedy = State.FENCED, Remedy.END_WRITER

    def hurt(self) -> None:
        ended = len(self.live.events("epoch_ended"))
        until(lambda: len(self.live.events("epoch_ended")) > ended, self.live.log)
        self.wanted += self.fill(100, 110)
        bootstrap = self.live.target.bootstrap
        until(lambda: stored_batches(bootstrap, self.name)[-1].header.base_offset == 100, self.live.log)
        produce(bootstrap, self.name, values(0, 1, "foreign "))
        self.wanted += self.fill(110, 120)

    mend = Trial.begin_anew


# --- the target lost records ------------------------------------------------------------------------------------------


class LostAndAccepted(Trial):
    state, remedy, cuts = State.TARGET_LOST, Remedy.ACCEPT_LOSS, {"target": 60}

    def hurt(self) -> None:
        self.live.source.expire(self.name, 0, 80)
        kept = self.live.log_folder("source", self.name).parent / "log-start-offset-checkpoint"
        until(lambda: f"{self.name} 0 80" in kept.read_text(), kept.read_text)  # else the crash brings the records back
        self.wanted = self.wanted[:60] + self.wanted[80:]

    mend = Trial.accept


class LostAndRestored(LostAndAccepted):
    remedy = Remedy.ACCEPT_RESTORED

    def mend(self) -> None:
        self.wanted = values(0, 100)
        self.accept()


# --- rights -----------------------------------------------------------------------------------------------------------


class MayNotRead(Trial):
    state, remedy, rights = State.UNAUTHORIZED, Remedy.GRANT, False

    def prepare(self) -> None:
        super().prepare()
        for operation in ("READ", "DESCRIBE_CONFIGS"):
            self.live.allow("source", acl(ResourceType.TOPIC, self.name, operation))
        for operation in ("CREATE", "READ", "WRITE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS", "DELETE"):
            self.live.allow("target", acl(ResourceType.TOPIC, self.name, operation))

    def hurt(self) -> None:
        self.live.deny("source", acl(ResourceType.TOPIC, self.name, "READ"))
        self.wanted += self.fill(100, 110)

    def mend(self) -> None:
        self.live.person.tool(self.advice, "kafka-acls")


class MayNotWrite(MayNotRead):
    def hurt(self) -> None:
        self.live.deny("target", acl(ResourceType.TOPIC, self.name, "WRITE"))
        self.wanted += self.fill(100, 110)


class Paused(Trial):
    state, remedy, is_paused = State.PAUSED, Remedy.RESUME, True

    def hurt(self) -> None:
        self.wanted += self.fill(100, 110)

    def mend(self) -> None:
        self.live.person.quoted(self.advice, "resume")


#: Those that go through the story below, and those that come last, since they hurt every partition of the mirror.
TRIALS: Final[tuple[type[Trial], ...]] = (
    WrittenToAndBegunAnew,  # before others end an epoch early
    CutAndBegunAnew,
    CutAndExcluded,
    CutAndRestored,
    AnotherAndRenamed,
    AnotherAndBegunAnew,
    AnotherAndAdopted,
    GoneAndExcluded,
    ExpiredAndAccepted,
    DamagedAndLeftOut,
    DamagedAndSoundElsewhere,
    DamagedAndInspected,
    CopyDamagedAndBegunAnew,
    TooLarge,
    TooMuchToOpen,
    TooOld,
    Unreadable,
    NotWhatItSays,
    LongGap,
    CompactedBehind,
    Keyless,
    Stamping,
    ForeignAndRenamed,
    ForeignAndBegunAnew,
    UnconfirmedAndVouchedFor,
    LostAndAccepted,
    LostAndRestored,
    MayNotRead,
    MayNotWrite,
    Paused,
)
LAST: Final[tuple[Key, ...]] = ((State.UNAUTHORIZED, Remedy.MEND_LOGIN), (State.UNAUTHORIZED, Remedy.OTHER_FLOW))
#: What is not tried, and why.
MISSING: Final[Mapping[Key, str]] = {
    (State.REFUSED, Remedy.UPGRADE): "there is no broker and no release yet that knows another format",
    (State.REFUSED, Remedy.AS_BEGUN): "needs another start: test_stops.py has copies that go on as begun",
    (State.REFUSED, Remedy.SEE_BROKER): "no stock broker answers each try with an error when asked to",
}


#: What is tried of re-keyed topics, and where.
REKEYED: Final[Mapping[Key, str]] = {
    (State.TRUNCATED, Remedy.REKEY_ANEW): "test_rekey.py::test_a_target_that_was_made_anew",
    (State.RECREATED, Remedy.REKEY_ANEW): "test_rekey.py::test_a_target_that_was_made_anew",
    (State.TARGET_LOST, Remedy.REKEY_ANEW): "test_rekey.py::test_a_target_that_was_made_anew",
    (State.DIVERGED, Remedy.REKEY_ANEW): "test_rekey.py::test_a_target_that_was_made_anew",
    (State.RECREATED, Remedy.EXCLUDE_REKEYED): "test_rekey_reports.py::test_a_source_topic_that_was_deleted",
    (
        State.TRUNCATED,
        Remedy.KEEP_REKEYED,
    ): "test_rekey_losses.py::test_a_source_that_was_cut_back_stays_so_whatever_it_deletes_later",
    (State.TARGET_LOST, Remedy.KEEP_REKEYED): "test_rekey_plans.py::test_a_target_that_lost_what_was_committed",
    (State.FENCED, Remedy.KEEP_REKEYED): "test_rekey_plans.py::test_progress_that_was_made_anew",
    (State.RECREATED, Remedy.KEEP_REKEYED): "test_rekey.py::test_a_re_keyed_copy_is_kept_beside_another_one",
    (State.DIVERGED, Remedy.KEEP_REKEYED): "test_rekey.py::test_a_re_keyed_copy_is_kept_beside_another_one",
    (
        State.RETENTION_GAP,
        Remedy.REKEY_BEHIND,
    ): "test_rekey_plans.py::test_records_of_a_plan_that_was_begun_are_deleted",
    (State.CORRUPT, Remedy.SOUND_LEADER): "test_remedies.py::DamagedAndSoundElsewhere",
    (State.CORRUPT, Remedy.INSPECT): "test_remedies.py::DamagedAndInspected",
    (State.REFUSED, Remedy.CHANGE_RULE): "test_rekey.py::test_a_record_that_cannot_be_re_keyed",
    (State.REFUSED, Remedy.RAISE_REKEYED): "test_rekey.py::test_a_record_that_is_too_large_for_the_target",
    (
        State.REFUSED,
        Remedy.RAISE_MEMORY_ANEW,
    ): "test_rekey.py::test_records_of_batches_that_are_too_large_to_be_opened_whole",
    (State.REFUSED, Remedy.KEEP_TIMES): "test_rekey_plans.py::test_a_target_that_stamps_records",
    (State.REFUSED, Remedy.KEEP_LETTER_TIMES): "test_rekey_plans.py::test_a_target_that_stamps_records",
    (State.REFUSED, Remedy.KEEP_REPEATED): "test_rekey_plans.py::test_a_target_that_somebody_compacts",
    (State.FENCED, Remedy.END_REKEYER): "test_rekey_plans.py::test_a_late_task_of_a_plan_that_was_abandoned",
    (State.FENCED, Remedy.REKEY_ANEW): "test_rekey.py::test_a_target_that_was_made_anew",
    (State.UNAUTHORIZED, Remedy.GRANT_REKEYED): "test_rights.py::test_re_keying_without_its_rights_says_which",
    (State.UNAUTHORIZED, Remedy.MEND_LOGIN): "test_rekey_parts.py::test_a_login_that_was_mended_lets_a_query_go_on",
}


def test_every_remedy_of_re_keyed_topics_is_tried_where_it_says() -> None:
    assert {(state, remedy) for state, remedies in REKEYED_BY.items() for remedy in remedies} == REKEYED.keys()
    for place in REKEYED.values():
        module, name = place.split("::")
        (path,) = Path(__file__).parents[2].rglob(module)
        assert re.search(rf"^(?:def|class) {name}\(", path.read_text(), re.MULTILINE), place


def test_every_remedy_of_every_state_has_a_trial() -> None:
    assert RESOLVED_BY.keys() == set(State)
    fields = {(state, remedy) for state, remedies in RESOLVED_BY.items() for remedy in remedies}
    tried = {(one.state, one.remedy) for one in TRIALS} | {*LAST}
    assert fields - tried - MISSING.keys() == set()
    assert tried <= fields
    assert not tried & MISSING.keys()
    assert {remedy for _, remedy in {*fields, *REKEYED}} == set(Remedy)
    assert {state for state in State if state.is_stop} <= {state for state, _ in fields}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with clusters() as both:
        yield Live(both, tmp_path_factory.mktemp("remedies"), "[td]-.*")


@pytest.mark.brokers
def test_what_a_stop_advises_lets_the_partition_go_on(live: Live, tmp_path: Path) -> None:
    """One story, since a mirror, and a crash of a cluster, cost seconds."""
    everything = ("READ", "DESCRIBE_CONFIGS"), ("ALL",)
    for side, operations in zip(("source", "target"), everything, strict=True):
        live.allow(side, *(acl(ResourceType.TOPIC, "t-", one, prefixed=True) for one in operations))
    live.allow("target", acl(ResourceType.TOPIC, "mirror.", "ALL", prefixed=True), MARKERS)
    trials = {one.name: one for one in (kind(live) for kind in TRIALS)}
    for one in trials.values():
        one.prepare()
    with live.running():
        live.until_caught_up(one.name for one in trials.values() if one.begins_well)
        paused = [one.name for one in trials.values() if one.is_paused]
        live.person.mirror("pause", "CONFIG", *paused)
        until(lambda: {live.status()[name]["state"] for name in paused} == {"PAUSED"}, live.log)
        for one in trials.values():
            one.hurt()
        saved: dict[str, tuple[type[Trial], ...]] = {"source": (CutAndRestored,), "target": (LostAndRestored,)}
        names = {side: [one.name for one in trials.values() if type(one) in kinds] for side, kinds in saved.items()}
        for side, own in names.items():
            for name in own:
                shutil.copytree(live.log_folder(side, name), tmp_path / name)
            live.crash(side, {one.name: one.cuts[side] for one in trials.values() if side in one.cuts})
        for one in trials.values():
            one.cut()
        live.person.mirror("resume", "CONFIG", *(name for name in paused if type(trials[name]) is not Paused))
        learn_advice(live, trials)
        for side, own in names.items():
            live.put_back(side, {name: tmp_path / name for name in own})
        for one in trials.values():
            one.mended = live.now()
            one.mend()
        live.reload()
        live.until_caught_up(one.name for one in trials.values() if one.stays)
        until(lambda: not live.status().keys() & {one.name for one in trials.values() if not one.stays}, live.log)
        copies = {one.copy: one.wanted for one in trials.values()}
        assert live.read_all("target", list(copies)) == copies
        stays = [one for one in trials.values() if one.stays]
        epochs = {one.name: live.epochs_until_on(one.name, one.mended, one.is_read) for one in stays}
        print(epochs)
        assert max(epochs.values()) <= EPOCHS, epochs
        reported = Counter((one["topic"], one["state"]) for one in live.events("partition_stopped"))
        assert {one.name: reported[one.name, one.state] for one in trials.values() if one.state.is_stop} == {
            one.name: 1 for one in trials.values() if one.state.is_stop
        }
        take_rights(live)
        refuse_login(live, "t-expired-and-accepted")


def learn_advice(live: Live, trials: Mapping[str, Trial]) -> None:
    """Until each has stopped as it should; what the log and `mirror status` say that is to be done."""

    def lacking() -> list[str]:
        for event in live.events("partition_stopped", "partition_state"):
            one = trials[event["topic"]]
            if event["state"] == one.state:
                one.advice = one.advice or event["detail"]
        return [f"{one.name}: {one.state}" for one in trials.values() if not one.advice]

    until(lambda: not lacking(), lambda: f"{lacking()}\n{live.status()}\n{live.log()}")
    shown = live.status()
    for one in trials.values():
        names = one.remedy.name
        assert re.search(pattern(one.remedy), one.advice), (one.name, names, one.advice)
        if shown[one.name]["state"] == one.state:  # FENCED becomes another one with the next read of both logs
            assert re.search(pattern(one.remedy), shown[one.name]["detail"]), (one.name, names, shown[one.name])


def pattern(remedy: Remedy) -> str:
    """What any text of a remedy matches."""
    return re.sub(r"\\\{\w+\\\}", ".*", re.escape(remedy.value.replace("{{", "{").replace("}}", "}")))


def take_rights(live: Live) -> None:
    """Control markers need a right on the cluster, or a flow that writes none."""
    live.deny("target", MARKERS)
    granted, elsewhere = (Simple(live, f"t-markers-{how}") for how in ("granted", "elsewhere"))
    for one in (granted, elsewhere):
        live.source.create(one.name, 1, KEPT)
        transactions(live.source.bootstrap, one.name, [True, False, True], size=3)
    stopped = live.until_stopped(State.UNAUTHORIZED, granted.name, elsewhere.name)
    assert re.search(pattern(Remedy.OTHER_FLOW), stopped[elsewhere.name])
    mirror_by_another_flow(elsewhere)
    live.person.tool(stopped[granted.name], "kafka-acls")
    live.until_caught_up([granted.name])
    theirs, ours = (live.read_all(side, [granted.name, elsewhere.name]) for side in ("source", "target"))
    assert ours == theirs
    assert {len(found) for found in ours.values()} == {6}


class Simple(Trial):
    """A topic that comes while the mirror runs."""

    def __init__(self, live: Live, name: str) -> None:
        super().__init__(live)
        self.name = name


def refuse_login(live: Live, name: str) -> None:
    """The source does not know the mirror's password any more, when it comes back."""
    live.password("source", "another")
    live.clusters["source"].restart(0)
    (reported,) = live.until_stopped(State.UNAUTHORIZED, name).values()
    assert re.search(pattern(Remedy.MEND_LOGIN), reported), reported
    live.password("source", USERS[MIRROR])
    produce(live.source.bootstrap, name, last := values(200, 210))
    live.until_caught_up([name])
    until(lambda: live.read_all("target", [name])[name][-10:] == last, live.log)
