"""`mirror accept`: go on behind records that were lost, or from a copy that nothing can confirm any more.

What is accepted is looked at in both logs now, as a mirror that starts would, and named; nothing is written to the
topics themselves. What keeps a partition stopped all the same is shown, and then nothing is accepted of it.

Decision: nothing of a topic is accepted that the journal does not name as the source's copy: what
nobody compared would count as confirmed, and what is advised there might delete the only records of a stranger.

Decision: a copy that nothing confirms is taken for whole only where a person says so by name. Somebody who goes on
behind a loss has not learned that the copy has records of somebody else by now.

Decision: a stop that stands because the logs are different ones is lifted by what both logs hold. That the copy ends at
the position which the journal keeps says nothing against it: it did when the stop was met. Nor do records that are the
source's but for their times, where the target gave them times that nobody asked for.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

from mirror.config import Settings
from mirror.errors import ClusterUnreachable, ConfigError, ExitCode, MalformedBatch, PartitionStop, PreflightError
from mirror.journal.entries import COPIES, Lost, accept_entry, forgotten_entry, losses_in, starts_in
from mirror.journal.journal import Change, Journal, journal_topic
from mirror.journal.offset_maps import indexes_of
from mirror.journal.positions import POSITIONS, STOPS, Standing, standing_in
from mirror.kafka.admin import Admin
from mirror.kafka.cluster import Cluster, Endpoint, TopicPartition
from mirror.kafka.queries import EARLIEST, LATEST, list_offset, listed
from mirror.policy.rules import Rules
from mirror.policy.selection import is_rekeyed
from mirror.rendering import count, number, print_json
from mirror.replication.assignment import POSSIBLE, KnownStop, LastPosition, Loss
from mirror.replication.damage import damaged_at, unwritable_at
from mirror.replication.decide import Position, Unconfirmed
from mirror.replication.observe import Observer
from mirror.replication.offset_map import OffsetRangeIndex
from mirror.replication.position import corrupt, located
from mirror.replication.topic_identity import other_topic, recreated
from mirror.states import Remedy, State
from mirror.suspension import Clearance, beating, look_again, never
from mirror.topics.adoption import begun, not_named
from mirror.topics.apply import ensure_flow_topic, rules_for
from mirror.topics.history import keeping_to_known

#: Reads of a partition that is being mirrored meanwhile, before that is an error.
_TRIES: Final = 3
#: Stops of copies that are not their sources'.
_UNLIKE: Final = frozenset({State.TRUNCATED, State.DIVERGED})


@dataclass(slots=True)
class AcceptedRange:
    """What is accepted of one partition.

    `loss`: the one that it goes on behind, which `was_accepted` before or not. `confirmed`: its copy is taken for whole
    up to there. `lifted`: a stop that stood, and does not hold any more. `possible`: what may be missing of it, by the
    journal. `stop`: what stops it all the same.
    """

    source: TopicPartition
    target: TopicPartition
    loss: Loss | None = None
    was_accepted: bool = False
    confirmed: LastPosition | None = None
    lifted: KnownStop | None = None
    possible: tuple[Lost, ...] = ()
    stop: PartitionStop | None = None


def accept(
    settings: Settings, topic: str, partitions: tuple[int, ...], *, unconfirmed: bool, as_json: bool
) -> ExitCode:
    """Accept what was lost of a source topic, of some partitions or of all, and say what that is; DATA_AT_RISK where a
    partition stays stopped. `unconfirmed`: take a copy that nothing confirms for whole, too.

    Raises ConfigError for a topic or partition that is not mirrored, PreflightError for a target topic with records
    that is not the flow's copy of it, ClusterError as queries do.
    """

    def accepted() -> list[AcceptedRange]:
        with beating() as detector:  # what was found in both logs may be so no longer behind a suspension (Z1)
            clearance = Clearance(detector, never)
            if is_rekeyed(topic, settings.topics):
                return asyncio.run(_accept_rekeyed(settings, topic, partitions, clearance))
            return asyncio.run(_accept(settings, topic, partitions, clearance, unconfirmed=unconfirmed))

    found = look_again(accepted)
    stays = [one for one in found if one.stop is not None]
    if as_json:
        losses = [_as_dict(one) for one in found if one.loss is not None and one.stop is None]
        more = {"confirmed": [_place(one) | {"offset": one.confirmed.source_next} for one in found if one.confirmed]}
        more["lifted"] = [_place(one) | {"state": str(one.lifted.state)} for one in found if one.lifted]
        more["possible"] = [
            _place(one) | {"reason": lost.reason, "offset": lost.first} for one in found for lost in one.possible
        ]
        more["stopped"] = [
            _place(one) | {"state": str(one.stop.state), "offset": one.stop.offset, "detail": _with_advice(one.stop)}
            for one in found
            if one.stop is not None
        ]
        print_json({"flow": settings.flow, "topic": topic, "losses": losses, **more})
    else:
        for one in found:
            for line in _lines(one):
                print(f"{one.source}: {line}")
        if any(one.stop is None and (one.loss or one.confirmed or one.lifted or one.possible) for one in found):
            print("A running mirror goes on within seconds, one that is started at once.")
        elif not stays:
            print(f"{topic}: nothing was lost before it was mirrored; there is nothing to accept")
    return ExitCode.DATA_AT_RISK if stays else ExitCode.DONE


def _lines(accepted: AcceptedRange) -> list[str]:
    """What is said of a partition."""
    if accepted.stop is not None:
        where = f"{accepted.stop.state} at offset {accepted.stop.offset}"
        return [f"nothing is accepted; it stays stopped: {where}: {_with_advice(accepted.stop)}"]
    lines = []
    if accepted.loss is not None:
        first, next_offset = accepted.loss.first, accepted.loss.next_offset
        what = f"the loss of {count(next_offset - first, 'offset')}, {number(first)} to {number(next_offset - 1)}"
        lines.append(f"{what}, was accepted before" if accepted.was_accepted else f"accepted {what}")
    if accepted.confirmed is not None:
        lines.append(f"accepted the copy as it stands, up to offset {number(accepted.confirmed.source_next)}")
    if accepted.lifted is not None:
        lines.append(f"{accepted.lifted.state} does not stand any more")
    lines += [f"accepted what may be missing (reason {lost.reason})" for lost in accepted.possible]
    return lines


def _with_advice(stop: PartitionStop) -> str:
    return f"{stop.detail}. {stop.advice}"


def _place(accepted: AcceptedRange) -> dict[str, Any]:
    return {"partition": accepted.source.partition, "target": accepted.target.topic}


def _as_dict(accepted: AcceptedRange) -> dict[str, Any]:
    assert accepted.loss is not None, "only losses are shown so"
    return _place(accepted) | {
        "first_offset": accepted.loss.first,
        "last_offset": accepted.loss.next_offset - 1,
        "reason": accepted.loss.reason,
        "was_accepted": accepted.was_accepted,
    }


async def _accept(
    settings: Settings, topic: str, partitions: tuple[int, ...], clearance: Clearance, *, unconfirmed: bool
) -> list[AcceptedRange]:
    settings = await keeping_to_known(settings)
    target_topic = settings.topics.naming.target_of(topic)
    ensure_flow_topic(Admin(settings.target), settings.flow, settings.topics.replication_factor)
    rules, _ = rules_for(settings, topic)
    async with Cluster(Endpoint.of(settings.source)) as source, Cluster(Endpoint.of(settings.target)) as target:
        await asyncio.gather(source.refresh([topic]), target.refresh([target_topic, journal_topic(settings.flow)]))
        ours, theirs = source.topics.get(topic), target.topics.get(target_topic)
        if ours is None or theirs is None:
            where = source if ours is None else target
            raise ConfigError(f"{topic if ours is None else target_topic}: no such topic on {where}")
        known = ours.leaders.keys() & theirs.leaders.keys()
        if unknown := sorted(set(partitions) - known):
            raise ConfigError(f"{topic}: has no partition {', '.join(map(str, unknown))}")
        found = [
            AcceptedRange(TopicPartition(topic, number), TopicPartition(target_topic, number))
            for number in sorted(partitions or known)
        ]
        journal = Journal(target, settings.flow, clearance)
        records = await journal.newest()
        seen = COPIES.newest(records).get(target_topic)
        if (why := not_named(topic, target.topic_id(target_topic), seen, source.cluster_id)) and await _has_records(
            target, target_topic
        ):
            raise PreflightError(
                f"{target_topic}: {why}, so nothing of it is accepted. `mirror adopt CONFIG {topic}` compares it with"
                " its source and takes it over, if it is a copy"
            )
        if seen is not None and (became := other_topic(source, topic, seen.topic_id)):
            for one in found:
                one.stop = located(recreated(one.source, -1, became), source, target, target_topic)
            return found
        standing, since = standing_in(records), starts_in(records, target)
        translates = settings.topics.offsets == "translate"
        indexes = await indexes_of(journal) if translates else {}
        keeps_times = settings.topics.append_time == "source"
        for one in found:
            ids = source.topic_id(topic), target.topic_id(target_topic)
            last = standing.positions.get(one.target)
            observer = Observer(
                *(settings.flow, source, one.source, target, one.target),
                since=since.get(one.target, 0),
                last=last if last is not None and last.is_of(*ids) else None,
                losses=standing.lost_of(one.target, *ids),
            )
            index = indexes.get(one.target, OffsetRangeIndex()) if translates else None
            await _Trial(one, observer, index, standing, rules, keeps_times, unconfirmed).settle()
            if one.stop is None:
                lost = losses_in(records).get(one.target, ())
                one.possible = tuple(each for each in lost if each.reason in POSSIBLE)
        await journal.append_all(entry for accepted in found for entry in _entries(accepted, source))
        return found


async def _has_records(cluster: Cluster, topic: str) -> bool:
    """Whether it holds or held any, or somebody does not say."""
    numbers = cluster.topics[topic].leaders
    ends = await listed(cluster, [TopicPartition(topic, number) for number in numbers], LATEST)
    return len(ends) < len(numbers) or any(ends.values())


async def _accept_rekeyed(
    settings: Settings, topic: str, partitions: tuple[int, ...], clearance: Clearance
) -> list[AcceptedRange]:
    """Of a re-keyed topic, what its copy may lack. Raises ConfigError where nothing of the kind is on record."""
    target_topic = settings.topics.naming.target_of(topic)
    async with Cluster(Endpoint.of(settings.target)) as target:
        await target.refresh([journal_topic(settings.flow)])
        journal = Journal(target, settings.flow, clearance)
        known = losses_in(await journal.newest() if journal.partition.topic in target.topics else {})
        found = [
            AcceptedRange(TopicPartition(topic, partition.partition), partition, possible=possible)
            for partition, losses in sorted(known.items())
            if partition.topic == target_topic
            and (not partitions or partition.partition in partitions)
            and (possible := tuple(loss for loss in losses if loss.reason in POSSIBLE))
        ]
        if not found:
            behind = Remedy.REKEY_BEHIND.text()
            raise ConfigError(
                f"{topic}: is re-keyed, and nothing of it is accepted by this command but deletions that its copy may"
                f" lack. Of records that the source deleted: {behind[0].lower()}{behind[1:]}. Of any other stop,"
                " `mirror status CONFIG` shows what resolves it"
            )
        await journal.append_all(
            forgotten_entry(accepted.target, lost) for accepted in found for lost in accepted.possible
        )
        return found


@dataclass(slots=True)
class _Trial:
    """Finds out what has to be accepted so that a partition goes on."""

    #: What is accepted of it so far.
    found: AcceptedRange
    #: Knows the position that the journal keeps, or a person confirms, and what is accepted.
    observer: Observer
    #: Where offsets moved to; None where they are equal on both sides.
    index: OffsetRangeIndex | None
    standing: Standing
    rules: Rules
    #: The copy is to have the times of the source.
    keeps_times: bool
    #: A copy that nothing confirms is taken for whole.
    unconfirmed: bool

    @property
    def source(self) -> Cluster:
        """Return the source."""
        return self.observer.source

    @property
    def ids(self) -> tuple[UUID | None, UUID | None]:
        """Return the ids of both topics."""
        target = self.observer.target
        return self.source.topic_id(self.found.source.topic), target.topic_id(self.found.target.topic)

    async def settle(self) -> None:
        """Accept what has to be, and find what stops the partition all the same. Raises as queries do."""
        found = self.found
        while True:
            stop = await self.stop_of(self.observer)
            if self.unconfirmed and isinstance(stop, Unconfirmed) and stop.offset >= 0 and found.confirmed is None:
                found.confirmed = self._confirmed(stop)
                self.observer = replace(self.observer, last=found.confirmed)
            elif stop is not None and stop.state in (State.RETENTION_GAP, State.TARGET_LOST) and found.loss is None:
                begin = await list_offset(self.source, found.source, EARLIEST)
                reason = "target" if stop.state is State.TARGET_LOST else "retention"
                found.loss = Loss(found.source, found.target, stop.offset, begin, reason)
                self.observer = replace(self.observer, accepted=(stop.offset, begin))
            else:
                break
        before, stood = self.standing.accepted.get(found.target), self.standing.stops.get(found.target)
        if stop is None and found.confirmed is None and stood is not None and stood.concerns(self.ids[1]):
            stop = await self.still_stands(stood)
            if self.unconfirmed and isinstance(stop, Unconfirmed):
                found.confirmed = self._confirmed(stop)
                stop = None
            elif isinstance(stop, Unconfirmed):
                advice = self._located(stop).advice
                stop = PartitionStop(stood.state, *found.source, stop.offset, stop.detail, advice=advice)
        if stop is None and found.loss is None:
            found.loss = await self._damage()
        found.was_accepted = found.loss is not None and before is not None and before.covers(found.loss, self.ids[0])
        found.stop = self._located(stop) if stop is not None else None
        if stop is None and stood is not None:
            found.lifted = stood

    def _located(self, stop: PartitionStop) -> PartitionStop:
        return located(stop, self.source, self.observer.target, self.found.target.topic)

    async def begin(self, observer: Observer) -> Position:
        """Begin the partition, where what cannot be read of a log stops it."""
        try:
            return await begun(observer, self.index)
        except MalformedBatch as damage:
            raise corrupt(damage, observer.target, self.found.source, self.found.target.topic) from damage

    async def stop_of(self, observer: Observer) -> PartitionStop | None:
        """Return what stops the partition, None where nothing does. Raises as queries do."""
        for tries_left in reversed(range(_TRIES)):
            try:
                await self.begin(observer)
            except PartitionStop as stop:
                return stop
            except ClusterUnreachable:
                if not tries_left:
                    raise
            else:
                return None
        raise AssertionError("unreachable: the last try returns or raises")

    async def still_stands(self, stood: KnownStop) -> PartitionStop | None:
        """Return what stops a partition for which one of `_UNLIKE` stood, and that could go on by the position which
        the journal keeps: Unconfirmed where neither log has anything left by which they could be compared, or the
        copy's last records have times of the target's where it is to have those of the source.
        """
        if stood.state not in _UNLIKE:
            return None
        unknown = replace(self.observer, last=None)
        stop = await self.stop_of(unknown)
        if stop is not None and not isinstance(stop, Unconfirmed):
            return stop
        position = await self.begin(self.observer)
        # what the source deleted since may be just what would show that the copy's records are others
        if stop is None and ((last := (await self.begin(unknown)).last) is None or last.epoch_until >= 0):
            if not (position.stamped and self.keeps_times):
                return None
            return Unconfirmed(self.found.source, position.next_offset, position.end, stood.detail)
        left = f"no record is left by which {self.source} and {self.observer.target} could be compared"
        detail = f"{left}, so that nothing shows that it is over: {stood.detail}"
        return Unconfirmed(self.found.source, position.next_offset, position.end, detail)

    def _confirmed(self, doubt: Unconfirmed) -> LastPosition:
        """Return the position that a person confirms."""
        (source_id, target_id), last = self.ids, self.observer.last
        batch = last.batch if last is not None else None
        return LastPosition(
            source_next=doubt.offset,
            target_end=doubt.target_end,
            source_topic_id=source_id,
            target_topic_id=target_id,
            batch=batch if batch is not None and batch.next_offset <= doubt.target_end else None,
            was_accepted=True,
            begins=last.begins if last is not None else 0,
        )

    async def _damage(self) -> Loss | None:
        """Return the damaged batch that the partition comes to next, or what else cannot be written there; None where
        that can be, and where nothing shows how far the damage reaches.
        """
        partition, offset = self.found.source, (await self.begin(self.observer)).next_offset
        damaged = await damaged_at(self.source, partition, offset)
        if damaged is None:
            damaged = await unwritable_at(self.source, partition, offset, self.rules)
        if damaged is None or damaged.next_offset <= damaged.first:
            return None
        return Loss(partition, self.found.target, damaged.first, damaged.next_offset, damaged.reason, damaged.detail)


def _entries(accepted: AcceptedRange, source: Cluster) -> list[Change]:
    """What the journal is to keep of it: nothing where that would not let it go on."""
    if accepted.stop is not None:
        return []
    entries: list[Change] = []
    if accepted.loss is not None and not accepted.was_accepted:
        entries.append(accept_entry(accepted.loss, source.topic_id(accepted.source.topic)))
    if accepted.confirmed is not None:
        entries.append(POSITIONS.entry(accepted.target, accepted.confirmed))
    if accepted.lifted is not None:
        entries.append(STOPS.tombstone(accepted.target))
    return [*entries, *(forgotten_entry(accepted.target, lost) for lost in accepted.possible)]
