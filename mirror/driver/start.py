"""What a mirror settles before its first epoch: which topics it means, and how far a bounded copy goes.

- A topic of the target belongs to one flow. Two that begin at once both find it free, so whoever named it in its
  journal looks at the others' once more before the first record: at least one of the two sees the other, takes the name
  back and is refused. Both may; neither has written anything. It is so of what is re-keyed as well, but for dead
  letters of several flows, and of what a running mirror begins.
- Every topic of the target that gets records is named in the journal before its first record, what is re-keyed as well:
  by that a flow back knows a loop, and a start with another source that these topics are not of it.
- The same look shows whether a flow towards the source names the source topic by now as one that came through the
  target: that is a loop, and is not begun. A flow names what it creates before it does, as what it is about to make.
- A topic that cannot be begun is left out, and the others begin.
- Both clusters are asked for the ids of topics behind the journal, right before these go on record: whoever waited for
  the flow may have asked long ago, and would put topics that are gone in the place of those of now.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from functools import partial

from mirror import clock
from mirror.background import in_background
from mirror.errors import (
    BadRecords,
    ClusterError,
    ClusterUnreachable,
    MalformedBatch,
    MirrorError,
    PreflightError,
    WireError,
)
from mirror.journal.entries import COPIES, MAKING, REKEYED, STARTS, FirstSeen, PendingStart, same_id, start_offsets
from mirror.journal.journal import Journal
from mirror.kafka.cluster import Cluster, TopicPartition
from mirror.kafka.log_reader import batch_at
from mirror.kafka.queries import EARLIEST, LATEST, READ_COMMITTED, list_offset, listed
from mirror.kafka.retry import Backoff
from mirror.names import first_of
from mirror.observability import logs
from mirror.observability.status import NOT_OURS
from mirror.policy.selection import Rekeying
from mirror.records.compare import is_a_mirrors_padding, padding_detail
from mirror.replication.assignment import Assignment
from mirror.replication.open_transactions import HELD
from mirror.replication.topic_identity import MISSING_TRIES, other_topic
from mirror.topics.adoption import claimed, claimed_of
from mirror.topics.history import Claim, History
from mirror.topics.same_cluster import loop_finding

_log = logs.get("mirror.supervisor")


async def recorded(
    source: Cluster,
    journal: Journal,
    assignments: Sequence[Assignment],
    known: MutableMapping[bytes, bytes],
    failures: dict[str, MirrorError],
    made: Collection[str] = (),
    start: int = EARLIEST,
    origins: Mapping[str, Sequence[str]] = {},
    elsewhere: Callable[[], History] = History,
) -> list[Assignment]:
    """The assignments with what the source topics were first seen as, their ids and where mirroring began, as the
    journal's newest records `known` have it; unseen ones are recorded now, there and in `known`, and which target
    topics the flow `made`. At the flow's first start, and then alone, `start` says where they begin
    (`journal/entries.py`): whoever knows by its reports that the flow has run gives none. `origins`: by
    source topic, the ids of the clusters that its records came through before they were on the source. `elsewhere`:
    asks for what other flows' journals say now.

    A topic that a cluster does not know at this moment has no id to record: what the journal says of it stays.
    `failures` learns by target topic which cannot be begun, and the others are: ClusterUnreachable where the target has
    no such topic and the journal does not name it, PreflightError where another flow names it by now, or its
    source for a loop. Raises as `Cluster.refresh`, `start_offsets`, `elsewhere` and `Journal.append` do.
    """
    await _all_known(source, {assignment.source.topic for assignment in assignments})
    await _all_known(journal.cluster, {assignment.target.topic for assignment in assignments})
    has_begun = any(not seen.compared for seen in COPIES.newest(known).values())
    since = {} if has_begun else await _begun(source, journal, assignments, start)
    changed: dict[bytes, bytes] = {}
    former, rekeyed = set[bytes](), REKEYED.newest(known)
    fresh, found = dict[str, str](), list[Assignment]()
    for assignment in assignments:
        topic, copy = assignment.source.topic, assignment.target.topic
        key = COPIES.key(copy)
        now = _seen_now(source, journal.cluster, topic, copy, origins.get(topic, ()))
        now = replace(now, topic_id=now.topic_id or assignment.topic_id, since=since.get(topic, ()))
        now = replace(now, made=copy in made, adopted=copy not in made)
        before = _seen(journal.flow, known.get(key))
        stands = now if before is None else before.learned(now)
        if stands is now:
            if copy not in journal.cluster.topics:
                failures[copy] = _missing(journal.cluster, copy)
                continue
            fresh[copy] = topic
            if copy in rekeyed and not same_id(rekeyed[copy].target_topic_id, now.target_topic_id):
                former.add(REKEYED.key(copy))  # what that one lost, this one begins behind, or has
        if (now := stands) != before:
            changed[key] = now.to_json()
        named = replace(assignment, topic_id=now.topic_id, target_topic_id=now.target_topic_id)
        begins = now.begins(assignment.source.partition)
        found.append(replace(named, since=begins, caught_up_ms=now.compared_ms))
    if changed:
        over = dict.fromkeys([*former, *map(MAKING.key, fresh)])
        # all topics begin later, or none does
        await _change(journal, known, {**changed, **over}, in_one_batch=bool(since))
        if fresh:
            failures |= await _rivals(journal, known, fresh, elsewhere)
        for topic, offsets in since.items():
            _log.info("topic_begins_later", flow=journal.flow, topic=topic, offsets=offsets)
    return [assignment for assignment in found if assignment.target.topic not in failures]


async def _rivals(
    journal: Journal, known: MutableMapping[bytes, bytes], fresh: Mapping[str, str], elsewhere: Callable[[], History]
) -> dict[str, MirrorError]:
    """Why copies that were just named may not begin, by target topic; the journal names them no more. `fresh`: their
    source topics. Raises as `recorded` does; none of them is named then.
    """
    history = await _asked(journal, map(COPIES.key, fresh), known, elsewhere)
    failed, alias = dict[str, MirrorError](), journal.cluster.endpoint.alias
    for copy, topic in fresh.items():
        claim = history.claims.get(copy)
        if claim is not None and _is_claimed(journal.cluster, copy, claim):
            failed[copy] = PreflightError(str(claimed(topic, copy, claim.flow)))
        elif (loop := loop_finding(topic, alias, history)) is not None:
            failed[copy] = PreflightError(str(loop))
    await _change(journal, known, dict.fromkeys(map(COPIES.key, failed)))
    return failed


async def record_starts(
    source: Cluster,
    journal: Journal,
    rules: Iterable[Rekeying],
    known: Mapping[bytes, bytes],
    start: int,
    follows: Callable[[str, str], bool],
) -> dict[str, PendingStart]:
    """By target topic, where re-keyed topics without a plan begin, as the flow's first start decided it: at
    `start`, which is EARLIEST at any other start. On record before anything is reported, until a plan is; those that
    the flow no longer `follows` are forgotten. Raises as `Journal.append` does.
    """
    before = STARTS.newest(known)
    new = [] if start == EARLIEST else [rule for rule in rules if rule.target not in before]
    asked = await asyncio.gather(*(_pending_start(source, rekeying.source, start) for rekeying in new))
    now = {
        target: pending_start for target, pending_start in before.items() if follows(pending_start.source_topic, target)
    }
    now |= {rekeying.target: begins for rekeying, begins in zip(new, asked, strict=True)}
    changed = [target for target in before | now if before.get(target) != now.get(target)]
    await journal.append_all(STARTS.change(target, now.get(target)) for target in changed)
    return now


async def _pending_start(source: Cluster, topic: str, when: int) -> PendingStart:
    """Where a topic begins to be re-keyed. Its query settles what cannot be asked now."""
    offsets = dict[TopicPartition, int]()
    with contextlib.suppress(ClusterError, WireError):
        await _all_known(source, [topic])
        known = source.topics.get(topic)
        places = [TopicPartition(topic, number) for number in (known.leaders if known is not None else ())]
        starts = await listed(source, places, EARLIEST)
        if not any(
            [await padding_at(source, partition, starts.get(partition, 0), sys.maxsize) for partition in places]
        ):
            offsets = await start_offsets(source, source, [(partition, None) for partition in places], when)
    return PendingStart(topic, source.topic_id(topic), when, tuple(offset for _, offset in sorted(offsets.items())))


async def padding_at(source: Cluster, partition: TopicPartition, begin: int, end: int) -> str:
    """What is waited for where a log has another mirror's padding from offset `begin` on; empty where it has none.
    Raises ClusterError.
    """
    try:
        raw = await batch_at(source, partition, begin) if begin < end else None
    except (MalformedBatch, BadRecords):
        return ""  # whoever re-keys it finds that out
    return padding_detail(raw) if raw is not None and is_a_mirrors_padding(raw) else ""


async def record_rekeyed(
    source: Cluster,
    journal: Journal,
    rule: Rekeying,
    origins: Sequence[str],
    elsewhere: Callable[[], History] = History,
) -> None:
    """Have the journal name a topic that is re-keyed before its first record, as `recorded` does with copies; `origins`
    are those of its source, `elsewhere` as there. A flow of before has it from its next start on.

    Raises ClusterUnreachable where the target does not know the topic, PreflightError where it is another flow's by
    now, or its source for a loop, and as `elsewhere` and `Journal.append` do.
    """
    target = journal.cluster
    await _all_known(source, [rule.source])
    await _all_known(target, rule.record_topics)
    if rule.target not in target.topics:
        raise _missing(target, rule.target)
    named = {rule.target: _seen_now(source, target, rule.source, rule.target, origins)}
    if (letters := rule.dead_letter) in target.topics:  # one that is gone is missed by the first record for it
        letters_id = target.topic_id(letters)
        named[letters] = FirstSeen(source_topic="", topic_id=None, target_topic_id=letters_id, cluster_id=None)
    known, changed, fresh = await journal.newest(), dict[bytes, bytes](), set[bytes]()
    for topic, now in named.items():
        key = REKEYED.key(topic)
        before = _seen(journal.flow, known.get(key))
        if (stands := now if before is None else before.learned(now)) != before:
            changed[key] = stands.to_json()
        if stands is now:
            fresh.add(key)
    if changed:
        await journal.append([*changed.items(), MAKING.tombstone(rule.target)])
    history = await _asked(journal, fresh, known, elsewhere)
    loop = loop_finding(rule.source, target.endpoint.alias, history)
    found = [*claimed_of(rule, history, partial(_is_claimed, target)), *([loop] if loop is not None else [])]
    if found:
        await _change(journal, known, dict.fromkeys(sorted(fresh)))
        raise PreflightError("; ".join(map(str, found)))


def _seen_now(source: Cluster, target: Cluster, topic: str, copy: str, origins: Sequence[str]) -> FirstSeen:
    """Return as what a topic and its copy are seen now."""
    return FirstSeen(
        source_topic=topic,
        topic_id=source.topic_id(topic),
        target_topic_id=target.topic_id(copy),
        cluster_id=source.cluster_id,
        origins=tuple(dict.fromkeys((*filter(None, [source.cluster_id]), *origins))),
    )


def _missing(target: Cluster, topic: str) -> ClusterUnreachable:
    return ClusterUnreachable(f"{target}: no broker knows topic {topic}, which was there a moment ago")


def _is_claimed(target: Cluster, topic: str, claim: Claim) -> bool:
    return topic in target.topics and same_id(claim.topic_id, target.topic_id(topic))


async def _asked(
    journal: Journal, keys: Iterable[bytes], known: MutableMapping[bytes, bytes], elsewhere: Callable[[], History]
) -> History:
    """What `elsewhere` says. Where it raises, the journal names these no more: what was not looked at is not begun."""
    try:
        return await in_background(elsewhere)
    except (ClusterError, MalformedBatch):
        await _change(journal, known, dict.fromkeys(sorted(keys)))
        raise


async def _change(
    journal: Journal,
    known: MutableMapping[bytes, bytes],
    changes: Mapping[bytes, bytes | None],
    *,
    in_one_batch: bool = True,
) -> None:
    """Change the journal, and what is `known` of it; None deletes an entry."""
    if changes:
        await (journal.append if in_one_batch else journal.append_all)([*changes.items()])
    for key, value in changes.items():
        if value is None:
            known.pop(key, None)
        else:
            known[key] = value


async def _all_known(cluster: Cluster, topics: Collection[str]) -> None:
    """Learn what these topics are now, and ask again for those that the metadata lacks: a broker that has not
    heard of one yet denies it for a moment.
    """
    backoff, asked = Backoff(), topics
    await cluster.refresh(topics)
    for _ in range(MISSING_TRIES):
        if not (asked := [topic for topic in asked if topic not in cluster.topics]):
            return
        await asyncio.sleep(backoff.next())
        await cluster.refresh(asked)


async def _begun(
    source: Cluster, journal: Journal, assignments: Sequence[Assignment], start: int
) -> dict[str, tuple[int, ...]]:
    """By source topic, where its partitions begin; without topics that all begin with their first record."""
    copies = [(assignment.source, assignment.target) for assignment in assignments]
    offsets: dict[str, list[int]] = {}
    for partition, offset in sorted((await start_offsets(source, journal.cluster, copies, start)).items()):
        offsets.setdefault(partition.topic, []).append(offset)
    return {topic: tuple(of) for topic, of in offsets.items() if any(of)}


def _seen(flow: str, value: bytes | None) -> FirstSeen | None:
    try:
        return FirstSeen.from_json(value) if value else None
    except NOT_OURS as problem:
        _log.warning("journal_record_unread", flow=flow, reason=repr(problem))
        return None


async def bounded(
    source: Cluster, flow: str, assignments: Sequence[Assignment]
) -> tuple[list[Assignment], dict[TopicPartition, str]]:
    """The assignments with the end of each partition as a committed reader sees it now, and why others have none: they
    are left out of the copy. A topic that is another one by now has no end to copy up to: its task says so. What lies
    behind an open transaction is not copied, and is reported.
    """
    began_ms, written = clock.now_ms(), dict[TopicPartition, int]()
    with contextlib.suppress(ClusterError, WireError):
        written = await listed(source, [assignment.source for assignment in assignments], LATEST)

    async def end_of(assignment: Assignment) -> int:
        if other_topic(source, assignment.source.topic, assignment.topic_id):
            return 0
        return await list_offset(source, assignment.source, LATEST, READ_COMMITTED)

    found: list[Assignment] = []
    left_out: dict[TopicPartition, str] = {}
    asked = map(end_of, assignments)
    for assignment, end in zip(assignments, await asyncio.gather(*asked, return_exceptions=True), strict=True):
        if isinstance(end, ClusterError):
            left_out[assignment.source] = str(end)
            _log.error("partition_left_out", flow=flow, reason=str(end))
        elif isinstance(end, BaseException):
            raise end
        else:
            found.append(replace(assignment, until=end, until_ms=began_ms))
    stable = {
        assignment.source: assignment.until or 0
        for assignment in found
        if not other_topic(source, assignment.source.topic, assignment.topic_id)
    }
    warn_of_open(flow, stable, written)
    return found, left_out


def warn_of_open(flow: str, stable: Mapping[TopicPartition, int], written: Mapping[TopicPartition, int]) -> None:
    """Report partitions that a copy which ends is not to copy whole, if there are any: `stable` and `written` are
    where they end for a reader of committed records, and for everybody. Asked for in the other order: what grows
    between both questions is no transaction.
    """
    held = [f"{partition} from offset {end}" for partition, end in stable.items() if end < written.get(partition, 0)]
    if held:
        why = f"a transaction is open on the source, and {HELD}"
        _log.warning("open_transactions", flow=flow, partitions=first_of(held), reason=why)
