"""Copies whose offsets moved."""

from __future__ import annotations

import asyncio
import json

from helpers import endpoint, settings_between
from samerecords import read

from mirror.commands.verify import verify_flow
from mirror.journal.journal import Journal, journal_topic
from mirror.journal.offset_maps import Indexes
from mirror.kafka.cluster import Cluster, TopicPartition
from mirror.replication.offset_map import OffsetRangeIndex


def index_of(pair: tuple[str, str], topic: str) -> OffsetRangeIndex:
    """What the journal says of the topic's partition 0."""

    async def learned() -> Indexes:
        async with Cluster(endpoint(pair[1])) as cluster:
            await cluster.refresh([journal_topic(topic)])
            entries, _ = await Journal(cluster, topic).read()
            return Indexes(entries)

    return asyncio.run(learned()).get(TopicPartition(topic, 0), OffsetRangeIndex())


def assert_translated(pair: tuple[str, str], topic: str) -> int:
    """The same records in the same order, and each offset translated to where its record is; how many there are."""
    report = verify_flow(settings_between(*pair, [topic], flow=topic, offsets="translate"))
    assert report.equal, report.differences
    theirs, ours = list(read(pair[0], topic, 0)), list(read(pair[1], topic, 0))
    assert [one[1:] for one in ours] == [one[1:] for one in theirs]
    index = index_of(pair, topic)
    places = {one[0]: mine[0] for one, mine in zip(theirs, ours, strict=True)}
    assert {source: index.to_target(source) for source in places} == places
    assert {target: index.to_source(target) for target in places.values()} == {t: s for s, t in places.items()}
    following = None
    end = theirs[-1][0] + 1 if theirs else 0
    for source in reversed(range(end)):  # an offset without a record stands for the record behind it
        following = places.get(source, following)
        assert index.to_target(source) == following
    return len(theirs)


def assert_runs_tell_the_truth(pair: tuple[str, str], topic: str) -> None:
    """Expect the journal to have no loss on record, and each of its records about offsets to be right by itself,
    whichever counts.
    """
    sources = {mine[0]: one[0] for one, mine in zip(read(pair[0], topic, 0), read(pair[1], topic, 0), strict=True)}
    newest = {record[3].decode(): record[4] for record in read(pair[1], journal_topic(topic), 0)}
    stands = {key: value for key, value in newest.items() if value is not None}
    assert not [key for key in stands if key.startswith("loss/")]
    for key in (key for key in stands if key.startswith("runs/")):
        claim = json.loads(stands[key])
        assert key == f"runs/{topic}/0/{claim['target']}"
        target, source = claim["target"], claim["source"]
        for number, length in enumerate(claim["runs"]):  # records and what was passed over, in turn
            for offset in range(source, source + length) if number % 2 == 0 else ():
                assert sources.get(target, offset) == offset, key
                target += 1
            source += length
        assert sources.get(target, claim["next"]) >= claim["next"], key
