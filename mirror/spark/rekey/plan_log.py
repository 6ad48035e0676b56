"""What is on record of a re-keyed topic, and who may add to it: plans, slots' numbers, and the ids that write both."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final
from uuid import UUID

from mirror import clock
from mirror.errors import ClusterUnreachable, ConfigError
from mirror.kafka.cluster import CALL_TIMEOUT, Cluster, TopicPartition
from mirror.kafka.log_reader import last_committed
from mirror.kafka.queries import LATEST, READ_COMMITTED, epoch_end, listed
from mirror.kafka.transactions import Transaction
from mirror.policy.selection import Rekeying
from mirror.spark.rekey.microbatch import (
    NOTHING,
    POLL_SECONDS,
    MicroBatchPlan,
    Reached,
    RekeyStop,
    committed_ends,
    foreign_in,
    last_plan,
    lost_of,
    number_at,
    planned,
    plans_of,
    reached_in,
    slot_of,
    transactional_id,
    undecided_in,
)
from mirror.spark.rekey.source import cut_back, recreated
from mirror.states import State

#: What the marker behind a slot's number may take.
_SETTLED_SECONDS: Final = 1.0


class PlanLog:
    """Of one topic; `slots` is known once it was taken over."""

    def __init__(self, target: Cluster, rule: Rekeying) -> None:
        """Nothing is asked yet."""
        self._target, self._rule = target, rule
        self._plans: Transaction | None = None
        self._target_id: UUID | None = None  # of the topic that the last plan is for
        self._progress_id: UUID | None = None  # of the topic that was taken over
        self._epochs: dict[int, int] = {}  # of the target's leaders, when its logs were looked at
        self._ours: Mapping[TopicPartition, int] = {}  # where the target's logs ended when nothing was foreign
        self.slots = 0

    async def take_over(self) -> tuple[list[int], MicroBatchPlan | None]:
        """Become the one who plans, and fence every slot: their numbers, and the last plan.

        Raises ConfigError where the topic is gone, and ClusterError.
        """
        rule = self._rule
        await self._target.refresh(rule.own_topics)
        self._target_id = None
        self._epochs.clear()
        self._ours = {}
        progress = self._target.topics.get(rule.progress)
        if progress is None:
            raise ConfigError(f"{self._target}: topic {rule.progress} is gone; start the mirror again")
        self._progress_id = progress.topic_id
        self.slots = len(progress.leaders) - 1
        self._plans = await Transaction.begin(self._target, f"{rule.progress}.plans")
        numbers = await self.fenced()
        return numbers, await last_plan(self._target, rule)

    async def fenced(self) -> list[int]:
        """Fence every slot: whoever began with one before cannot commit any more. Their numbers."""
        return await asyncio.gather(*map(self._fenced, range(self.slots)))

    async def close(self) -> None:
        """Have nobody who planned or began before commit anything more, for as long as nobody takes it over: who has
        begun is fenced, and who begins finds another plan, of nothing, behind which the next driver goes on.

        Raises as `take_over` does.
        """
        numbers, plan = await self.take_over()
        if plan is None:
            return
        last, is_done = _last_of(plan, numbers)
        there = last.until if is_done else last.begin
        await self.record(
            replace(
                last,
                number=plan.number + 1,
                after=last.number if is_done else last.after,
                begin=there,
                until=there,
                abandoned=None if is_done else replace(last, abandoned=None),
            )
        )
        await self.fenced()

    async def reached(self) -> Mapping[int, int]:
        """Up to where every slot has committed, by source partition; of what nobody planned there is nothing. It lags
        behind a driver's reports for as long as the coordinator takes for its markers.

        Raises ConfigError, ClusterError.
        """
        await self._target.refresh([self._rule.progress])
        progress = self._target.topics.get(self._rule.progress)
        if progress is None or (plan := await last_plan(self._target, self._rule)) is None:
            return {}
        found = await asyncio.gather(*map(self._reached, range(len(progress.leaders) - 1)))
        last, is_done = _last_of(plan, [reached.number for reached in found])
        return last.until if is_done else last.begin

    async def record(self, plan: MicroBatchPlan) -> None:
        """Make a plan the last one (K1), in the topic that was taken over: one that was made anew since, as for a copy
        that begins anew, is to know nothing of the former copy.

        Raises ClusterError.
        """
        assert self._plans is not None
        await self._target.refresh([self._rule.progress])
        if self._progress_id is not None and self._target.topic_id(self._rule.progress) != self._progress_id:
            raise ClusterUnreachable(f"{self._target}: {self._rule.progress} was deleted; it is taken over anew")
        self._target_id = plan.target_id
        plans = plans_of(self._rule)
        await self._plans.join([plans])
        await self._plans.append({plans: planned(plan)})
        await self._plans.commit()
        self._plans = self._plans.following()
        deadline = clock.monotonic() + CALL_TIMEOUT
        while (seen := await last_plan(self._target, self._rule)) is None or seen.number != plan.number:
            if clock.monotonic() > deadline:  # the coordinator answers before its marker is in the log
                raise ClusterUnreachable(f"{self._target}: a plan is not to be read in {self._rule.progress} yet")
            await asyncio.sleep(POLL_SECONDS)

    async def _fenced(self, slot: int) -> int:
        await Transaction.begin(self._target, transactional_id(self._rule, slot))
        return (await self._reached(slot)).number

    async def _reached(self, slot: int) -> Reached:
        return reached_in(await last_committed(self._target, number_at(self._rule, slot)))

    async def check_kept(self) -> None:
        """Raises RekeyStop where the target lost records that slots had committed (TARGET_LOST)."""
        if lost := await self.lost():
            raise RekeyStop(State.TARGET_LOST, -1, -1, lost)

    async def lost(self) -> str:
        """What the target lost that slots had committed, in words; empty where that is nothing. It costs one request
        where the leaders are those that they were at the last round.
        """
        rule = self._rule
        await self._target.refresh([rule.target, rule.progress])
        if rule.progress not in self._target.topics and not self._target.is_denied(rule.progress):
            return f"the topic {rule.progress}, which says what was re-keyed, is gone"
        if self._target_id is None and (plan := await last_plan(self._target, rule)) is not None:
            self._target_id = plan.target_id
        if self._target_id is not None and self._target.topic_id(rule.target) != self._target_id:
            return f"the target topic {rule.target} was deleted, with what had been re-keyed into it"
        topics = [self._target.topics.get(name) for name in (rule.target, rule.progress)]
        there, slots = (sorted(topic.leaders) if topic is not None else [] for topic in topics)
        every = [TopicPartition(rule.target, number) for number in there]
        epochs = {
            partition.partition: epoch for partition in every if (epoch := self._target.leader(partition).epoch) >= 0
        }
        if epochs.items() <= self._epochs.items():
            return ""
        reached = await asyncio.gather(*map(self._reached, range(len(slots) - 1)))
        ends, writers = committed_ends(rule, every, reached)
        for topic_partition, (epoch, end) in ends.items():
            if lost := await lost_of(self._target, topic_partition, end, epoch):
                return lost
        if lost := await undecided_in(self._target, ends, writers):
            return lost
        self._epochs |= epochs
        return ""

    async def check_only_ours(self, settling: float = 0.0, committed: int | None = None) -> None:
        """Raises RekeyStop where somebody else has written behind what slots had committed (DIVERGED). Where slots may
        commit meanwhile, that is so still after `settling` seconds. `committed` as in `foreign`.
        """
        found = await self.foreign(committed)
        if found and settling:
            await asyncio.sleep(settling)
            found = found if await self.foreign(committed) == found else ""
        if found:
            raise RekeyStop(State.DIVERGED, -1, -1, found)

    async def check_all(self, source: Cluster) -> None:
        """Raises RekeyStop as a driver does that starts now, without taking anything over: another one may run."""
        if (plan := await last_plan(self._target, self._rule)) is None:
            await self.find_nothing(set())
            return
        if (stop := await self.unlike(source)) is not None:
            raise stop
        self.check_target(plan)
        await self.check_kept()
        await self.check_only_ours(_SETTLED_SECONDS)

    async def foreign(self, committed: int | None = None) -> str:
        """A record behind what slots had committed, which is somebody else's, in words; empty where there is none. What
        an open transaction holds is nobody's yet: a slot may be at work or was killed, and looks itself (`foreign_in`)
        before it commits anything behind that of others. One that a slot has committed just now looks so, too, for as
        long as its number's marker takes: whoever knows the number that every slot has `committed` is answered nothing
        until it is there. Where what is committed ends as at the last answer, it costs one request to each leader.
        """
        rule, target = self._rule, self._target
        slots = len(target.topics[rule.progress].leaders) - 1
        there = target.topics.get(rule.target)
        every = [TopicPartition(rule.target, number) for number in sorted(there.leaders if there is not None else ())]
        ends = await listed(target, every, LATEST, READ_COMMITTED)
        if ends.items() <= self._ours.items():
            return ""
        reached = await asyncio.gather(*map(self._reached, range(slots)))
        if committed is not None and {one.number for one in reached} != {committed}:
            return ""
        for partition, last in ends.items():
            gap = reached[slot_of(partition.partition, slots)].gap(partition.partition, last)
            if gap and (found := await foreign_in(target, partition, *gap)):
                return found
        self._ours = ends
        return ""

    async def unlike(self, source: Cluster) -> RekeyStop | None:
        """The stop for a source that is not the one which was re-keyed, or was cut back since; else None."""
        rule = self._rule
        if (plan := await last_plan(self._target, rule)) is None:
            return None
        await source.refresh([rule.source])
        if plan.source_id is not None and source.topic_id(rule.source) != plan.source_id:
            return recreated(rule, "source")
        for number, until in sorted(plan.until.items()):
            at, epoch = TopicPartition(rule.source, number), plan.epochs[number]
            if not 0 <= epoch != source.leader(at).epoch:
                continue
            if 0 <= (kept := (await epoch_end(source, at, epoch)).end) < until:
                return cut_back(number, kept, f"records up to offset {until - 1} were re-keyed")
        return None

    async def find_nothing(self, numbers: set[int]) -> None:
        """Nothing was ever planned, so nothing may be on the target. Raises RekeyStop where there is."""
        topic = self._target.topics.get(self._rule.target)
        every = [TopicPartition(self._rule.target, number) for number in (topic.leaders if topic else ())]
        ends = await listed(self._target, every, LATEST)
        if len(ends) < len(every):
            raise ClusterUnreachable(f"{self._target}: not every partition of {self._rule.target} has a leader")
        if numbers - {NOTHING} or any(ends.values()):
            detail = f"{self._rule.target} holds records and {self._rule.progress} has no plan"
            raise RekeyStop(State.FENCED, -1, -1, detail)

    def check(self, plan: MicroBatchPlan, numbers: set[int]) -> None:
        """Raises RekeyStop as `check_target` does, and where the last plan does not fit what slots have."""
        self.check_target(plan)
        if unlike := numbers - {plan.number, plan.after}:
            detail = f"slots have committed micro-batches {sorted(unlike)}, and the last plan is {plan.number}"
            raise RekeyStop(State.FENCED, -1, -1, detail)
        if plan.slots != self.slots:
            detail = (
                f"{self._rule.progress} has {self.slots + 1} partitions, and had {plan.slots + 1}; its slots never"
                " change"
            )
            raise RekeyStop(State.FENCED, -1, -1, detail)

    def check_target(self, plan: MicroBatchPlan) -> None:
        """Raises RekeyStop where a plan is of another target topic, or for another number of its partitions."""
        rule = self._rule
        if plan.target_id is not None and self._target.topic_id(rule.target) != plan.target_id:
            raise recreated(rule, "target")
        self.check_partitions(plan.rule.partitions, "had")

    def check_partitions(self, expected: int, by: str) -> None:
        """Raises RekeyStop where the target topic is known and has another number of partitions than `expected`, `by`
        what is said before that.
        """
        known = self._target.topics.get(self._rule.target)
        if known is not None and (found := len(known.leaders)) != expected:
            detail = f"{self._rule.target} has {found} partitions, and {by} {expected}: keys would change theirs"
            raise RekeyStop(State.FENCED, -1, -1, detail)


def _last_of(plan: MicroBatchPlan, numbers: Collection[int]) -> tuple[MicroBatchPlan, bool]:
    """The plan that slots with these numbers are at, of which the last one is `plan`, and whether all have done it."""
    last = older if (older := plan.abandoned) is not None and older.number in numbers else plan
    return last, set(numbers) == {last.number}
