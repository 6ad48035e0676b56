"""How copies stand, as the journal keeps it: the last acknowledged position of each, and stops that stand.

position/<target topic>/<partition>   `LastPosition`: written by tasks, by change, each second at most
stop/<target topic>/<partition>       `KnownStop`: written by the task that meets it, deleted by what lifts it

A position does not say where to resume: that is the target's log. It says what that log must have, so that a log that
lost its tail, or has expired, is not taken for a whole one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, NewType
from uuid import UUID

from pydantic import AfterValidator

from mirror.journal.entries import ACCEPTED, LOSSES, Accepted, Lost, accepted_for
from mirror.journal.journal import Change, Entry
from mirror.journal.kinds import PartitionKind
from mirror.kafka.cluster import TopicPartition
from mirror.observability.json_record import Codec
from mirror.observability.status import NOT_OURS, Contact, PartitionStatus
from mirror.observability.status import PREFIX as STATE
from mirror.replication.assignment import POSSIBLE, TOMBSTONES, Assignment, KnownStop, LastPosition
from mirror.states import State

#: Losses of one partition that a task gets: those before lie below the copy's last batch.
_MOST_LOSSES: Final = 1000
_LARGEST: Final = 2**63 - 1

#: pydantic gives names to the fields of a type, and not to those of the dataclass itself.
_Position = NewType("_Position", LastPosition)


def _in_range(last: LastPosition) -> LastPosition:
    offsets, batch = [last.source_next, last.target_end, last.begins], last.batch
    numbers = [last.source_epoch, last.epoch_until, last.target_epoch, *(last.stamp or ())]
    if batch is not None:
        offsets += batch.base, batch.next_offset, batch.source_base
        numbers += batch.crc or 0, batch.source_crc or 0, batch.count, batch.base_timestamp, batch.max_timestamp
    if min(offsets) < 0 or any(abs(number) > _LARGEST for number in (*offsets, *numbers)):
        raise ValueError("a position must have offsets, and numbers of 64 bits")
    return last


def _is_stop(stop: KnownStop) -> KnownStop:
    if not (stop.state.is_stop and stop.stands) or abs(stop.offset) > _LARGEST:
        raise ValueError("a stop must have the state of one, and an offset of 64 bits")
    return stop


POSITIONS: Final = PartitionKind(
    b"position/",
    Codec[LastPosition](
        Annotated[_Position, AfterValidator(_in_range)],
        names={"was_accepted": "accepted", "next_offset": "next"},
        omit=lambda last: set() if last.batch is not None else {"batch"},
    ),
    is_dated=True,
)
#: A tombstone lifts the stop.
STOPS: Final = PartitionKind(
    b"stop/",
    Codec[KnownStop](Annotated[KnownStop, AfterValidator(_is_stop)], omit=lambda _: {"stands"}),
    is_dated=True,
)


def _joined(spans: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The last of these offsets, from and to before: in order, and joined where they follow each other."""
    found: list[tuple[int, int]] = []
    for first, following in sorted(spans):
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], following)
        else:
            found.append((first, following))
    return tuple(found[-_MOST_LOSSES:])


@dataclass(slots=True)
class Standing:
    """What a journal says of copies, by target partition.

    `accepted`: the losses that a person accepted last.
    `positions`: the last positions.
    `stops`: those that stand.
    `losses`: what is on record as lost, by the keys of the records.
    `caught_up`: when the copies last had all that their sources had, by their last reports, as Unix time in ms.
    `contacts`: when their tasks last had the sources before them.
    """

    accepted: dict[TopicPartition, Accepted] = field(default_factory=dict)
    positions: dict[TopicPartition, LastPosition] = field(default_factory=dict)
    stops: dict[TopicPartition, KnownStop] = field(default_factory=dict)
    losses: dict[TopicPartition, dict[bytes, Lost]] = field(default_factory=dict)
    caught_up: dict[TopicPartition, int] = field(default_factory=dict)
    contacts: dict[TopicPartition, Contact] = field(default_factory=dict)
    tombstones_ms: dict[TopicPartition, int | None] = field(default_factory=dict)

    def learn(self, record: Entry) -> bool:
        """Return whether a record is about a copy: position, acceptance, stop, loss, state. Raises one of
        `NOT_OURS` for a garbled one.
        """
        kinds: tuple[tuple[PartitionKind[Any], dict[TopicPartition, Any]], ...] = (
            (POSITIONS, self.positions),
            (ACCEPTED, self.accepted),
            (STOPS, self.stops),
        )
        for kind, known in kinds:
            if (found := kind.read(record)) is not None:
                target, value = found
                if value is None:
                    known.pop(target, None)
                else:
                    known[target] = value
                return True
        if (name := LOSSES.name(record.key)) is not None:
            losses = self.losses.setdefault(name[0], {})
            losses.pop(record.key, None)
            if (lost := LOSSES.read(record)) is not None and lost[1] is not None:
                losses[record.key] = lost[1]
            return True
        if record.key.startswith(STATE) and record.value:
            self.learn_report(PartitionStatus.from_json(record.value))
            return True
        return False

    def learn_report(self, reported: PartitionStatus) -> None:
        """What a task's report says of when its copy had all, and when the source was there."""
        since = reported.at_ms if reported.state is State.CAUGHT_UP else 0  # version 0.1.0 wrote no more
        target = reported.target
        self.caught_up[target] = reported.caught_up_ms or since
        self.tombstones_ms[target] = reported.tombstones_ms
        if (contact := reported.contact) is not None:
            self.contacts[target] = contact

    def lost_of(
        self, target: TopicPartition, topic_id: UUID | None, target_topic_id: UUID | None
    ) -> tuple[tuple[int, int], ...]:
        """The last losses of a partition, in offset order and joined where they follow each other: what the copy with
        this id, of the source topic with that one, may lack behind its last batch. One that was begun anew
        has what the former one lacked, or there is another record of it.
        """
        losses = self.losses.get(target, {}).values()
        of_it = (loss for loss in losses if loss.reason not in POSSIBLE and loss.concerns(topic_id, target_topic_id))
        return _joined((lost.first, lost.next_offset) for lost in of_it)

    def updated(self, assignment: Assignment) -> Assignment:
        """An assignment with what is known here of its copy, on top of what it has: what a part of a journal does not
        say, the rest of it may.
        """
        here = self.handed(assignment)
        return replace(
            here,
            accepted=assignment.accepted,
            last=here.last or assignment.last,
            stop=here.stop or assignment.stop,
            losses=tuple(sorted({*assignment.losses, *here.losses})),
            tombstones_ms=self.tombstones_ms.get(assignment.target, assignment.tombstones_ms),
            may_lack=here.may_lack or assignment.may_lack,
        )

    def handed(self, assignment: Assignment) -> Assignment:
        """An assignment with all that the journal says of its copy."""
        return replace(
            assignment,
            accepted=accepted_for(assignment, self.accepted),
            last=self.positions.get(assignment.target),
            stop=self.stops.get(assignment.target),
            losses=self.lost_of(assignment.target, assignment.topic_id, assignment.target_topic_id),
            caught_up_ms=max(assignment.caught_up_ms, self.caught_up.get(assignment.target, 0)),
            contact=self.contacts.get(assignment.target, assignment.contact),
            tombstones_ms=self.tombstones_ms.get(assignment.target),
            may_lack=self.may_lack(assignment.target, assignment.topic_id, assignment.target_topic_id),
        )

    def may_lack(self, target: TopicPartition, topic_id: UUID | None, target_topic_id: UUID | None) -> bool:
        """It is on record that a copy, of the topics with these ids, may lack deletions."""
        losses = self.losses.get(target, {}).values()
        return any(lost.reason == TOMBSTONES and lost.concerns(topic_id, target_topic_id) for lost in losses)


def standing_in(known: Mapping[bytes, bytes]) -> Standing:
    """What the newest records of a journal say; records that are none of ours are passed over."""
    found = Standing()
    for key, value in known.items():
        with contextlib.suppress(*NOT_OURS):
            found.learn(Entry(0, key, value))
    return found


def stops_in(known: Mapping[bytes, bytes], topic_ids: Mapping[str, UUID | None]) -> dict[TopicPartition, KnownStop]:
    """By target partition, the stops that stand now, for whoever shows them or decides by them. `topic_ids` are the
    target topics' ids of now: a stop of another topic by that name concerns nobody; None is an id that is not known.
    """
    return {
        partition: stop
        for partition, stop in standing_in(known).stops.items()
        if stop.concerns(topic_ids.get(partition.topic))
    }


class StandingLog:
    """What a task wrote of its copies last, so that it writes what changed alone."""

    def __init__(self) -> None:
        self._positions: dict[TopicPartition, LastPosition] = {}
        self._stops: dict[TopicPartition, KnownStop | None] = {}

    def changes(
        self, positions: Iterable[tuple[TopicPartition, LastPosition]], stops: Mapping[TopicPartition, KnownStop | None]
    ) -> list[Change]:
        """The records for what is not written yet: positions, stops, and None for a stop that was lifted."""
        moved: list[Change] = [
            POSITIONS.entry(partition, position)
            for partition, position in positions
            if self._positions.get(partition) != position
        ]
        for topic_partition, stop in stops.items():
            if topic_partition not in self._stops or self._stops[topic_partition] != stop:
                moved.append(STOPS.change(topic_partition, stop))
        return moved

    def written(
        self, positions: Iterable[tuple[TopicPartition, LastPosition]], stops: Mapping[TopicPartition, KnownStop | None]
    ) -> None:
        """The journal has these."""
        self._positions.update(positions)
        self._stops.update(stops)
