"""Topic selection: what the patterns choose, and what is said about the rest."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror.config import TopicSettings
from mirror.config.models import GroupSettings
from mirror.names import did_you_mean
from mirror.policy.selection import Clash, TopicPair, select, selects

TOPICS = {
    "orders": 3,
    "orders-tmp": 1,
    "clicks-eu": 12,
    "clicks-us": 12,
    "__consumer_offsets": 50,
    "mirror.x.offsets": 1,
}


def settings(include: Sequence[str], **more: object) -> TopicSettings:
    return TopicSettings.model_validate({"include": include, **more})


def pair(source: str, target: str = "") -> TopicPair:
    return TopicPair(source=source, target=target or source, partitions=TOPICS[source])


def test_patterns_match_the_whole_name() -> None:
    selection = select(TOPICS, settings(["orders", "clicks-.*"]))
    assert selection.pairs == (pair("clicks-eu"), pair("clicks-us"), pair("orders"))
    assert (selection.missing, selection.clashes, selection.illegal, selection.internal) == ((), (), (), ())


def test_a_pattern_matches_the_whole_name_whatever_characters_it_has() -> None:
    """Brokers take any text as the name of a group."""
    group = GroupSettings.model_validate({"include": ["a.*", "x"]})
    matched = [
        name for name in ("a", "a\nb", "a\r\n", "b\na", "x\n", "x") if any(of.fullmatch(name) for of in group.include)
    ]
    assert matched == ["a", "a\nb", "a\r\n", "x"]
    assert GroupSettings().include[0].fullmatch("any\nthing")


def test_what_include_matches_and_is_left_out_is_said_with_the_reason() -> None:
    assert select(TOPICS, settings(["orders.*", "__.*", "mirror.*"], exclude=[".*-tmp", "clicks.*"])).left_out == {
        "Kafka keeps topics with such names for itself": ["__consumer_offsets"],
        "mirrors keep topics with such names for themselves": ["mirror.x.offsets"],
        'topics.exclude has ".*-tmp"': ["orders-tmp"],
    }


@pytest.mark.parametrize(
    ("include", "exclude", "missing"),
    [
        (["order", "orders", "nothing-.*"], None, ("order",)),
        (["orders.*"], [".*-tmp"], ()),
        (["orders", "orders-tmp"], [".*-tmp"], ()),
        (["orders", "gone"], ["gone"], ()),  # it was deleted, and taken out of the flow
        # Whatever a user's own list of exclusions says; the copy of a journal would be taken for one.
        (["__.*", "mirror.x.offsets", "orders"], [], ()),
        (["__consumer_offsets", "mirror.*", "orders"], ["clicks"], ()),
    ],
)
def test_exclude_wins_and_internal_topics_are_never_selected(
    include: list[str], exclude: list[str] | None, missing: tuple[str, ...]
) -> None:
    topics = settings(include) if exclude is None else settings(include, exclude=exclude)
    selection = select(TOPICS, topics)
    assert (selection.pairs, selection.missing) == ((pair("orders"),), missing)
    assert ("__consumer_offsets" in selection.internal) is ("__" in include[0])
    assert (selects("orders", topics), selects("order", topics)) == (True, "order" in include)


def test_two_sources_of_one_target_clash() -> None:
    naming = {"rename": {"clicks-eu": "clicks", "clicks-us": "clicks"}}
    selection = select(TOPICS, settings(["clicks-.*", "orders"], naming=naming))
    assert selection.clashes == (Clash(target="clicks", sources=("clicks-eu", "clicks-us")),)


def test_a_target_name_too_long_for_a_broker_is_returned() -> None:
    selection = select(TOPICS, settings(["orders"], naming={"prefix": "x" * 245}))
    assert selection.illegal == (pair("orders", "x" * 245 + "orders"),)
    assert select(TOPICS, settings(["orders"], naming={"prefix": "x" * 243})).illegal == ()


NAMES = st.from_regex(r"[a-c._-]{1,4}", fullmatch=True)


@given(st.dictionaries(NAMES, st.integers(1, 9)), st.lists(NAMES, min_size=1), st.lists(NAMES))
def test_every_topic_is_accounted_for(topics: dict[str, int], include: list[str], exclude: list[str]) -> None:
    patterns = settings([re.escape(name) for name in include], exclude=[re.escape(name) for name in exclude])
    selection = select(topics, patterns)
    wanted = (set(topics) & set(include)) - set(exclude)
    assert {one.source for one in selection.pairs} | set(selection.internal) == wanted
    assert all(one.partitions == topics[one.source] for one in selection.pairs)
    assert not any(one.source.startswith("__") for one in selection.pairs)


def test_names_that_are_like_one_that_is_not_known() -> None:
    assert did_you_mean("clicks", TOPICS) == "; did you mean clicks-us or clicks-eu?"
    assert did_you_mean("order", TOPICS, most=1) == "; did you mean orders?"
    assert did_you_mean("payments", TOPICS) == ""
