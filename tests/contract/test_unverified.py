"""What `mirror verify` could not compare is named, and the rest is proved."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from failovers import values
from helpers import make_topic, mirror_once, produce, settings_between
from pair import Shared
from syncing import delete_topics, made_by, write_journal

from mirror.commands.verify import verify
from mirror.errors import ClusterUnreachable, ExitCode
from mirror.journal.entries import COPIES
from mirror.verify import flow


@pytest.mark.proves("mirror verify", "never-silent")
def test_what_cannot_be_compared_is_named_with_its_reason(
    source_cluster: Shared,
    target_cluster: Shared,
    topic_name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A partition that loses its leader on the way, and a copy whose source was deleted, which is kept on purpose."""
    source, target = source_cluster.bootstrap, target_cluster.bootstrap
    stays, goes, unwanted = names = [f"{topic_name}-{what}" for what in ("stays", "goes", "unwanted")]
    for name in names:
        make_topic(source, name, 2)
        for partition in range(2):
            produce(source, name, values(40), partition=partition)
    every = [f"{topic_name}-.*"]
    assert mirror_once(source, target, every, topic_name)
    settings = settings_between(source, target, every, topic_name, exclude=[unwanted])
    write_journal(settings, *itertools.starmap(COPIES.entry, made_by(settings, names).items()))
    delete_topics(source, goes, unwanted)
    compare: Any = flow._compare

    async def broken(one: Any, other: Any, part: Any, *more: Any) -> Any:
        if part.pair.source.partition:
            raise ClusterUnreachable("no leader")
        return await compare(one, other, part, *more)

    def verified() -> tuple[ExitCode, dict[str, Any]]:
        code = verify(settings, (), as_json=True)
        return code, json.loads(capsys.readouterr().out)

    code, found = verified()
    assert (code, found["not_verified"], found["gone"]) == (ExitCode.DONE, [], [{"topic": goes, "target": goes}])
    monkeypatch.setattr(flow, "_compare", broken)
    code, found = verified()
    assert (code, found["equal"], found["whole"]) == (ExitCode.CLUSTER, True, False)
    assert [one["partition"] for one in found["partitions"]] == [0]
    assert found["not_verified"] == [{"topic": stays, "target": stays, "partition": 1, "reason": "no leader"}]
