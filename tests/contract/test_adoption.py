"""`mirror adopt`: a flow takes over a topic that it did not fill, where that is found to be a copy of its source."""

from __future__ import annotations

from typing import Any

import pytest
from configured_flow import ConfiguredFlow, flow, values
from helpers import make_topic, produce
from syncing import delete_topics
from topicadmin import configure, delete_records, held, recreate

from mirror.commands import adopt as command
from mirror.errors import ClusterUnreachable, ExitCode
from mirror.journal.journal import Journal, journal_topic

__all__ = ["flow"]


def fill_both(flow: ConfiguredFlow, topic: str, many: int = 40) -> None:
    """A topic with the same records on both sides, which no flow copied."""
    for bootstrap in (flow.source, flow.target):
        make_topic(bootstrap, topic)
        produce(bootstrap, topic, values(many))


@pytest.mark.proves("mirror adopt", "nothing-by-name-alone", "same-bytes")
@pytest.mark.parametrize("offsets", ["preserve", "translate"])
def test_a_copy_is_taken_over_where_its_records_are_the_sources(flow: ConfiguredFlow, offsets: str) -> None:
    equal, other = f"{flow.name}-equal", f"{flow.name}-other"
    flow.topics["offsets"] = offsets
    fill_both(flow, equal)
    fill_both(flow, other, 20)
    for topic in (equal, other):
        produce(flow.source, topic, values(20))
    produce(flow.target, other, [b"not the source's"])

    code, said = flow.mirror("adopt", other)
    assert (code, "is not taken over" in said, "--delete" in said) == (ExitCode.DIFFERENT, True, False)
    assert f"To keep it, name another copy of {other} in topics.naming.rename" in said
    code, said = flow.mirror("adopt", equal)
    assert (code, "compared were 40 records of 1 partition" in said) == (ExitCode.DONE, True), said
    assert flow.mirror("adopt", equal) == (ExitCode.DONE, f"{equal}: {equal} is this flow's already\n")
    assert flow.mirror("adopt", "--all")[0] == ExitCode.DIFFERENT
    done = flow.once()
    assert (done.exit_code, [one.source for one in done.refused]) == (ExitCode.PREFLIGHT, [other])
    assert (held(flow.target, equal), held(flow.target, other)) == ((0, 60), (0, 21))
    assert not flow.seen()[equal].made


@pytest.mark.proves("mirror adopt", "never-silent")
@pytest.mark.parametrize("is_ours", [False, True], ids=["foreign", "recreated"])
def test_what_a_copy_would_delete_once_it_is_adopted_is_named_before(flow: ConfiguredFlow, is_ours: bool) -> None:
    """It keeps what its source does not keep any more, and would follow that."""
    long_ago, shorter = 1_600_000_000_000, "99999999999"
    make_topic(flow.source, flow.name, configs={"retention.ms": "-1"})
    if is_ours:
        produce(flow.source, flow.name, values(40), begin_ms=long_ago)
        assert flow.once().exit_code == ExitCode.DONE
        recreate(flow.source, flow.name)
    else:
        make_topic(flow.target, flow.name, configs={"retention.ms": "-1"})
        produce(flow.target, flow.name, values(40), begin_ms=long_ago)
    produce(flow.source, flow.name, values(40), begin_ms=long_ago)
    configure(flow.source, flow.name, retention_ms=shorter)
    before = flow.seen()

    code, said = flow.mirror("adopt", flow.name)
    expected = f"gets retention.ms={shorter} as its source has, and deletes what that does not keep"
    assert (code, expected in said, flow.seen()) == (ExitCode.PREFLIGHT, True, before)
    configure(flow.target, flow.name, retention_ms=shorter)
    assert flow.mirror("adopt", flow.name)[0] == ExitCode.DONE
    assert flow.once().exit_code == ExitCode.DONE


@pytest.mark.proves("mirror adopt", "never-silent")
def test_a_copy_that_lacks_records_is_taken_over_by_its_end_alone_where_that_is_asked_for(flow: ConfiguredFlow) -> None:
    """One begins later than its source; the other lacks what is on record as lost of its former source."""
    later, lossy = f"{flow.name}-later", f"{flow.name}-lossy"
    fill_both(flow, later)
    delete_records(flow.target, later, 10)
    flow.topics |= {"on_too_large": "skip", "exclude": [later]}
    flow.sync["configs"] = False
    make_topic(flow.target, lossy, configs={"max.message.bytes": "2000"})
    for is_first in (True, False):
        make_topic(flow.source, lossy)
        produce(flow.source, lossy, [b"a", b"z" * 9000, b"c"], batch=1)
        if is_first:
            assert flow.once().exit_code == ExitCode.DONE
            delete_topics(flow.source, lossy)
    flow.topics["exclude"] = []
    for topic in (later, lossy):
        code, said = flow.mirror("adopt", topic)
        assert (code, f"`mirror adopt CONFIG {topic} --ends-only`" in said) == (ExitCode.DIFFERENT, True), said
        assert "which are on record as lost: offsets 1 to 1 of partition 0" in said or topic == later
        assert flow.mirror("adopt", topic, "--ends-only")[0] == ExitCode.DONE
    assert flow.once().exit_code == ExitCode.DONE


@pytest.mark.proves("mirror adopt", "nothing-by-name-alone")
def test_what_another_flow_writes_to_is_not_taken_over(flow: ConfiguredFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it named the topic since that was compared, or its journal cannot be read, as where a disk is gone."""
    fill_both(flow, flow.name)
    other = flow.another("other")
    compared = command._compared

    def slow(*given: Any, **options: Any) -> Any:
        monkeypatch.undo()
        assert command.adopt(other.settings, [flow.name], every=False, ends_only=False, as_json=True) == ExitCode.DONE
        return compared(*given, **options)

    monkeypatch.setattr(command, "_compared", slow)
    code, said = flow.mirror("adopt", flow.name)
    assert (code, f"flow {other.name} has it since" in said) == (ExitCode.PREFLIGHT, True)
    assert (flow.seen(), [*other.seen()]) == ({}, [flow.name])

    read = Journal.read

    async def away(journal: Journal, *more: Any) -> Any:
        if journal.partition.topic == journal_topic(other.name):
            raise ClusterUnreachable("no leader")
        return await read(journal, *more)

    monkeypatch.setattr(Journal, "read", away)
    code, said = flow.mirror("adopt", flow.name)
    assert (code, "so it is not known which topics that flow writes" in said) == (ExitCode.CLUSTER, True)
    assert flow.seen() == {}


@pytest.mark.proves("mirror adopt", "mirror failover", "nothing-by-name-alone")
def test_the_way_back_takes_a_copys_source_over_only_behind_a_failover(flow: ConfiguredFlow) -> None:
    """Prepared too early, it would stop the flow that still runs, at its next start."""
    make_topic(flow.source, flow.name)
    produce(flow.source, flow.name, values(10))
    assert flow.once().exit_code == ExitCode.DONE
    back = flow.another("back", is_back=True)
    code, said = back.mirror("adopt", "--all")
    assert (code, f"flow {flow.name} mirrors it" in said) == (ExitCode.PREFLIGHT, True)
    produce(flow.source, flow.name, values(5))
    assert flow.once().exit_code == ExitCode.DONE, "the flow goes on"
    assert held(flow.target, flow.name) == (0, 15)
    assert flow.mirror("failover")[0] == ExitCode.DONE
    assert back.mirror("adopt", "--all")[0] == ExitCode.DONE
