"""What a target topic is to a flow, by the ids in the flow's journal and in those of others."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from mirror.journal.entries import FirstSeen
from mirror.kafka.admin import TopicInfo
from mirror.policy.selection import TopicPair
from mirror.topics import adoption
from mirror.topics.adoption import CopyStanding, CopyVerdict, Gate, standing_of
from mirror.topics.history import Claim
from mirror.topics.reconcile import TopicPlan

SOURCE, TARGET = (TopicInfo(name=name, topic_id=uuid4(), partitions=()) for name in ("orders", "eu.orders"))
PAIR = TopicPair(source="orders", target="eu.orders", partitions=1)
SEEN = FirstSeen(source_topic="orders", topic_id=SOURCE.topic_id, target_topic_id=TARGET.topic_id, cluster_id="source")


@pytest.mark.parametrize(
    ("seen", "claim", "with_records", "empty"),
    [
        (SEEN, None, CopyStanding.OURS, CopyStanding.OURS),
        (replace(SEEN, topic_id=None), None, CopyStanding.OURS, CopyStanding.OURS),
        (replace(SEEN, target_topic_id=None), None, CopyStanding.OURS, CopyStanding.OURS),
        (None, None, CopyStanding.FOREIGN, CopyStanding.EMPTY),
        (replace(SEEN, target_topic_id=uuid4()), None, CopyStanding.FOREIGN, CopyStanding.EMPTY),
        (replace(SEEN, source_topic="other"), None, CopyStanding.FOREIGN, CopyStanding.EMPTY),
        (replace(SEEN, cluster_id="other"), None, CopyStanding.FOREIGN, CopyStanding.EMPTY),
        (replace(SEEN, topic_id=uuid4()), None, CopyStanding.FROZEN, CopyStanding.FROZEN),
        (SEEN, Claim("beside", TARGET.topic_id), CopyStanding.CLAIMED, CopyStanding.CLAIMED),
        (None, Claim("beside", None), CopyStanding.CLAIMED, CopyStanding.CLAIMED),
        (SEEN, Claim("beside", uuid4()), CopyStanding.OURS, CopyStanding.OURS),
    ],
)
def test_what_a_target_topic_is_to_a_flow(
    seen: FirstSeen | None, claim: Claim | None, with_records: CopyStanding, empty: CopyStanding
) -> None:
    for has_records, expected in ((True, with_records), (False, empty)):
        found = standing_of(PAIR, SOURCE, TARGET, seen, claim, "source", has_records=has_records)
        assert found.standing is expected, found
        assert bool(found.reason) is (expected not in (CopyStanding.OURS, CopyStanding.EMPTY))
    missing = standing_of(PAIR, SOURCE, None, seen, None, "source", has_records=False)
    assert missing.standing is CopyStanding.MISSING


@pytest.mark.parametrize(
    ("anew", "why"),
    [
        ("orders", "the source topic was deleted or recreated a moment ago"),
        ("eu.orders", "the target topic was deleted or recreated a moment ago"),
        ("", ""),
    ],
)
def test_a_topic_made_anew_since_its_settings_were_read_is_not_changed(
    anew: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = {one.name: replace(one, topic_id=uuid4()) if one.name == anew else one for one in (SOURCE, TARGET)}
    asked: Any = SimpleNamespace(describe=lambda names: {name: now[name] for name in names})
    plan = TopicPlan(pairs=(PAIR,), source_topics={"orders": SOURCE}, target_topics={"eu.orders": TARGET})
    nothing: Any = None

    async def none_differs(*_: Any) -> dict[str, Any]:
        return {}

    monkeypatch.setattr(adoption, "tails", none_differs)
    held = Gate(asked, asked).held(["eu.orders"], plan, nothing, {"eu.orders": CopyVerdict(CopyStanding.OURS)})
    assert held == ({"eu.orders": why} if why else {})
