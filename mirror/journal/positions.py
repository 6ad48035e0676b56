"""How copies stand, as the journal keeps it: the last acknowledged position of each, and stops that stand.

position/<target topic>/<partition>   `LastPosition`: written by tasks, by change, each second at most
stop/<target topic>/<partition>       `KnownStop`: written by the task that meets it, deleted by what lifts it
back/<target topic>/<partition>       `WayBack`: written by `mirror failover --undo`, kept for ever

A position does not say where to resume: that is the target's log. It says what that log must have, so that a log that
lost its tail, or has expired, is not taken for a whole one.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Final, TypeVar
from uuid import UUID

from mirror import clock
from mirror.journal.entries import Accepted, Lost, accepted_for, id_in, loss_target, read_accepted, read_loss, same_id
from mirror.journal.journal import Change, Entry
from mirror.kafka.cluster import TopicPartition
from mirror.observability.status import NOT_OURS, Contact, PartitionStatus, parsed
from mirror.observability.status import PREFIX as STATE
from mirror.replication.assignment import POSSIBLE, TOMBSTONES, Assignment, KnownStop, LastBatch, LastPosition
from mirror.states import State

POSITION: Final = b"position/"
STOP: Final = b"stop/"
BACK: Final = b"back/"
#: Losses of one partition that a task gets: those before lie below the copy's last batch.
_MOST_LOSSES: Final = 1000
_LARGEST: Final = 2**63 - 1
T = TypeVar("T")


def position_entry(target: TopicPartition, last: LastPosition) -> tuple[bytes, bytes]:
    """The record of a copy's position."""
    fields = asdict(last)
    fields["accepted"] = fields.pop("was_accepted")
    if (batch := fields.pop("batch")) is not None:
        fields["batch"] = {"next" if name == "next_offset" else name: value for name, value in batch.items()}
    return _entry(POSITION, target, fields)


def read_position(record: Entry) -> tuple[TopicPartition, LastPosition | None] | None:
    """Which copy a record is about, and its position: None where that was deleted. None for a record about something
    else. Raises one of `NOT_OURS` where it is not one that `position_entry` made.
    """
    if not record.key.startswith(POSITION):
        return None
    target = _target(record.key, POSITION)
    if record.value is None:
        return target, None
    fields = _fields(record.value)
    batch, stamp = fields.get("batch"), fields.get("stamp")
    if stamp is not None and (not isinstance(stamp, list) or len(stamp) != 3):
        raise ValueError("a stamp has three numbers")
    return target, LastPosition(
        source_next=_offset(fields["source_next"]),
        target_end=_offset(fields["target_end"]),
        source_epoch=_number(fields.get("source_epoch", -1)),
        epoch_until=_number(fields.get("epoch_until", -1)),
        target_epoch=_number(fields.get("target_epoch", -1)),
        source_topic_id=id_in(fields.get("source_topic_id")),
        target_topic_id=id_in(fields.get("target_topic_id")),
        stamp=(_number(stamp[0]), _number(stamp[1]), _number(stamp[2])) if stamp is not None else None,
        batch=_batch(batch) if batch is not None else None,
        was_accepted=fields.get("accepted") is True,
        begins=_offset(fields.get("begins", 0)),
    )


def _batch(fields: object) -> LastBatch:
    if not isinstance(fields, dict):
        raise ValueError("a batch must be a JSON object")
    crc, source_crc = fields.get("crc"), fields.get("source_crc")
    return LastBatch(
        base=_offset(fields["base"]),
        next_offset=_offset(fields["next"]),
        source_base=_offset(fields["source_base"]),
        crc=None if crc is None else _number(crc),
        source_crc=None if source_crc is None else _number(source_crc),
        count=_number(fields["count"]),
        base_timestamp=_number(fields["base_timestamp"]),
        max_timestamp=_number(fields["max_timestamp"]),
    )


def stop_entry(target: TopicPartition, stop: KnownStop) -> tuple[bytes, bytes]:
    """The record of a stop that stands."""
    return _entry(STOP, target, {name: value for name, value in asdict(stop).items() if name != "stands"})


def lifted_entry(target: TopicPartition) -> tuple[bytes, None]:
    """The record by which a stop stands no longer."""
    return _key(STOP, target), None


def read_stop(record: Entry) -> tuple[TopicPartition, KnownStop | None] | None:
    """Which copy a record is about, and its stop: None where that was lifted. None for a record about something else.
    Raises one of `NOT_OURS` where it is not one that `stop_entry` made.
    """
    if not record.key.startswith(STOP):
        return None
    target = _target(record.key, STOP)
    if record.value is None:
        return target, None
    fields = _fields(record.value)
    state = State(str(fields["state"]))
    if not state.is_stop:
        raise ValueError(f"{state} is not a stop")
    return target, KnownStop(
        state=state,
        offset=_number(fields.get("offset", -1)),
        detail=str(fields.get("detail", "")),
        advice=str(fields.get("advice", "")),
        source_topic_id=id_in(fields.get("source_topic_id")),
        target_topic_id=id_in(fields.get("target_topic_id")),
    )


@dataclass(frozen=True, slots=True)
class WayBack:
    """What a flow back left out of the source, of the topics with these ids: offsets from and to before, at which the
    copy alone may have records. What a person accepts of it is another record (`loss/`): both sides stay as they are.
    """

    spans: tuple[tuple[int, int], ...]
    topic_id: UUID | None
    target_topic_id: UUID | None


def way_back_entry(target: TopicPartition, back: WayBack) -> tuple[bytes, bytes]:
    """The record of what a flow back left out."""
    return _entry(BACK, target, asdict(back))


def read_way_back(record: Entry) -> tuple[TopicPartition, WayBack | None] | None:
    """Which copy a record is about, and what a flow back left out: None where that was deleted. None for a record about
    something else. Raises one of `NOT_OURS` where it is not one that `way_back_entry` made.
    """
    if not record.key.startswith(BACK):
        return None
    target = _target(record.key, BACK)
    if record.value is None:
        return target, None
    fields = _fields(record.value)
    if not isinstance(listed := fields["spans"], list):
        raise ValueError("what was left out must be a list")
    spans = [(_offset(first), _offset(following)) for first, following in listed]
    if any(first >= following for first, following in spans):
        raise ValueError("what was left out must have offsets that follow each other")
    return target, WayBack(joined(spans), id_in(fields.get("topic_id")), id_in(fields.get("target_topic_id")))


def joined(spans: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
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
    `way_back`: what flows back left out.
    `caught_up`: when the copies last had all that their sources had, by their last reports, as Unix time in ms.
    `contacts`: when their tasks last had the sources before them.
    """

    accepted: dict[TopicPartition, Accepted] = field(default_factory=dict)
    positions: dict[TopicPartition, LastPosition] = field(default_factory=dict)
    stops: dict[TopicPartition, KnownStop] = field(default_factory=dict)
    losses: dict[TopicPartition, dict[bytes, Lost]] = field(default_factory=dict)
    way_back: dict[TopicPartition, WayBack] = field(default_factory=dict)
    caught_up: dict[TopicPartition, int] = field(default_factory=dict)
    contacts: dict[TopicPartition, Contact] = field(default_factory=dict)
    tombstones_ms: dict[TopicPartition, int | None] = field(default_factory=dict)

    def learn(self, record: Entry) -> bool:
        """Return whether a record is about a copy: position, acceptance, stop, way back, loss, state. Raises one of
        `NOT_OURS` for a garbled one.
        """
        if (recorded := read_position(record)) is not None:
            _put(self.positions, *recorded)
            return True
        if (accepted := read_accepted(record)) is not None:
            self.accepted[accepted.target] = accepted
            return True
        if (met := read_stop(record)) is not None:
            _put(self.stops, *met)
            return True
        if (back := read_way_back(record)) is not None:
            _put(self.way_back, *back)
            return True
        if (target := loss_target(record)) is not None:
            self.losses.get(target, {}).pop(record.key, None)
            if (lost := read_loss(record)) is not None:
                self.losses.setdefault(lost[0], {})[record.key] = lost[1]
            return True
        if record.key.startswith(STATE) and record.value:
            self.learn_report(PartitionStatus.from_json(record.value))
            return True
        return False

    def learn_report(self, reported: PartitionStatus) -> None:
        """What a task's report says of when its copy had all, and when the source was there."""
        since = reported.at_ms if reported.state is State.CAUGHT_UP else 0  # version 0.1.0 wrote no more
        target = TopicPartition(reported.target_topic, reported.partition)
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
        of_it = (one for one in losses if one.reason not in POSSIBLE and one.concerns(topic_id, target_topic_id))
        return joined((one.first, one.next_offset) for one in of_it)

    def way_back_of(
        self, target: TopicPartition, topic_id: UUID | None, target_topic_id: UUID | None
    ) -> tuple[tuple[int, int], ...]:
        """What flows back left out of a partition, of the topics with these ids: what the copy alone may have."""
        back = self.way_back.get(target)
        if back is None or not (same_id(back.topic_id, topic_id) and same_id(back.target_topic_id, target_topic_id)):
            return ()
        return back.spans

    def updated(self, one: Assignment) -> Assignment:
        """An assignment with what is known here of its copy, on top of what it has: what a part of a journal does not
        say, the rest of it may.
        """
        here = self.handed(one)
        return replace(
            here,
            accepted=one.accepted,
            last=here.last or one.last,
            stop=here.stop or one.stop,
            losses=tuple(sorted({*one.losses, *here.losses})),
            way_back=here.way_back or one.way_back,
            tombstones_ms=self.tombstones_ms.get(one.target, one.tombstones_ms),
            may_lack=here.may_lack or one.may_lack,
        )

    def handed(self, one: Assignment) -> Assignment:
        """An assignment with all that the journal says of its copy."""
        return replace(
            one,
            accepted=accepted_for(one, self.accepted),
            last=self.positions.get(one.target),
            stop=self.stops.get(one.target),
            losses=self.lost_of(one.target, one.topic_id, one.target_topic_id),
            way_back=self.way_back_of(one.target, one.topic_id, one.target_topic_id),
            caught_up_ms=max(one.caught_up_ms, self.caught_up.get(one.target, 0)),
            contact=self.contacts.get(one.target, one.contact),
            tombstones_ms=self.tombstones_ms.get(one.target),
            may_lack=self.may_lack(one.target, one.topic_id, one.target_topic_id),
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
    return {at: stop for at, stop in standing_in(known).stops.items() if stop.concerns(topic_ids.get(at.topic))}


class StandingLog:
    """What a task wrote of its copies last, so that it writes what changed alone."""

    def __init__(self) -> None:
        self._positions: dict[TopicPartition, LastPosition] = {}
        self._stops: dict[TopicPartition, KnownStop | None] = {}

    def changes(
        self, positions: Iterable[tuple[TopicPartition, LastPosition]], stops: Mapping[TopicPartition, KnownStop | None]
    ) -> list[Change]:
        """The records for what is not written yet: positions, stops, and None for a stop that was lifted."""
        moved: list[Change] = [position_entry(at, one) for at, one in positions if self._positions.get(at) != one]
        for at, stop in stops.items():
            if at not in self._stops or self._stops[at] != stop:
                moved.append(lifted_entry(at) if stop is None else stop_entry(at, stop))
        return moved

    def written(
        self, positions: Iterable[tuple[TopicPartition, LastPosition]], stops: Mapping[TopicPartition, KnownStop | None]
    ) -> None:
        """The journal has these."""
        self._positions.update(positions)
        self._stops.update(stops)


def _put(into: dict[TopicPartition, T], at: TopicPartition, value: T | None) -> None:
    if value is None:
        into.pop(at, None)
    else:
        into[at] = value


def _key(prefix: bytes, target: TopicPartition) -> bytes:
    return prefix + f"{target.topic}/{target.partition}".encode()


def _entry(prefix: bytes, target: TopicPartition, fields: Mapping[str, object]) -> tuple[bytes, bytes]:
    known = {name: str(value) if isinstance(value, UUID) else value for name, value in fields.items()}
    return _key(prefix, target), json.dumps(known | {"at_ms": clock.now_ms()}, separators=(",", ":")).encode()


def _target(key: bytes, prefix: bytes) -> TopicPartition:
    topic, _, partition = key.decode()[len(prefix) :].rpartition("/")
    return TopicPartition(topic, int(partition))


def _fields(value: bytes) -> dict[str, object]:
    fields = parsed(value)
    if not isinstance(fields, dict):
        raise ValueError("how a copy stands must be a JSON object")
    return fields


def _number(value: object) -> int:
    if type(value) is not int or abs(value) > _LARGEST:
        raise ValueError("a number must be one of 64 bits")
    return value


def _offset(value: object) -> int:
    if (number := _number(value)) < 0:
        raise ValueError("an offset must not be negative")
    return number
