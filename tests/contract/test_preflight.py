"""What preflight says about each thing that it refuses is done, and `mirror plan` refuses nothing any more."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import pytest
from configured_flow import ConfiguredFlow, flow
from helpers import make_topic, mirror_once, produce
from syncing import delete_topics
from topicadmin import configure, grow

from mirror.errors import ExitCode
from mirror.journal.entries import COPIES, REKEYED, FirstSeen
from mirror.policy.remedies import Fix
from mirror.policy.rules import NO_LIMIT

#: By topic, what its refusal advises; names of a flow's topics begin with its own.
SETTINGS: Final = {
    "{}-missing": Fix.CREATE_TOPIC,
    "{}-smaller": Fix.ADD_PARTITIONS,
    "{}-larger": Fix.DELETE_OR_RENAME,
    "{}-compacted": Fix.DELETE_POLICY,
    "{}-recent": Fix.TAKE_OLD,
}
NAMES: Final = {
    "{}-misspelled": Fix.NAME_SOURCE,
    "{}-moved": Fix.KEEP_NAME,
    "mirror.{}": Fix.CHOOSE_NAME,
    "__{}": Fix.CHOOSE_NAME,
    "x.{}-one": Fix.NAME_COPY,
    "x.{}-dot.x": Fix.NAME_COPY,
}
RULES: Final = {
    "{}-grouped": Fix.FIT_COMPACTION,
    "{}-first": Fix.OTHER_LETTERS,
    "{}-smaller": Fix.CHANGE_RULE,
}
OWNERS: Final = {"{}-back": Fix.END_LOOP, "x.{}-foreign": Fix.ADOPT, "x.{}-claimed": Fix.END_FLOW}
WHOLE: Final = [Fix.SELECT_TOPICS, Fix.OTHER_ADDRESS, Fix.OTHER_SOURCE, Fix.OTHER_REKEYED]
#: Followed elsewhere: by a table without brokers (`test_rules.py`), where a source hides topics (`test_rights.py`), and
#: where one cluster has two addresses (`test_shared_cluster_id.py`).
ELSEWHERE: Final = {Fix.REMOVE_FORMAT, Fix.GRANT_MARKERS, Fix.GRANT_SOURCE, Fix.OTHER_CLUSTER}


__all__ = ["flow"]

_FOLLOWED: Final = {*SETTINGS.values(), *NAMES.values(), *RULES.values(), *OWNERS.values(), *WHOLE, Fix.SHORTEN_FLOW}
assert _FOLLOWED | ELSEWHERE | {Fix.SELF_EXPLANATORY} == {*Fix}, "each fix is followed in a test"


def assert_refused(flow: ConfiguredFlow, expected: Mapping[str, Fix]) -> None:
    """These topics and nothing else, each with what resolves it."""
    code, plan = flow.plan()
    refused = dict(text.split(": ", 1) for text in plan["refused"])
    assert (code, sorted(refused)) == (ExitCode.PREFLIGHT, sorted(name.format(flow.name) for name in expected))
    for name, fix in expected.items():
        assert advises(refused[name.format(flow.name)], fix)


def advises(text: str, fix: Fix) -> bool:
    """Whether a refusal says that, whatever the values in braces."""
    return re.search(re.sub(r"\\\{\w+\\\}", ".+", re.escape(fix.value)), text) is not None


def assert_clean(flow: ConfiguredFlow) -> None:
    code, plan = flow.plan()
    assert (code in (ExitCode.DONE, ExitCode.CHANGES), plan["refused"]) == (True, [])


@pytest.mark.proves("mirror plan", "never-silent")
def test_target_topics_that_do_not_fit_are_refused_until_they_do(flow: ConfiguredFlow) -> None:
    name = flow.name
    copies: dict[str, Mapping[str, str]] = {"smaller": {}, "larger": {}, "compacted": {"cleanup.policy": "compact"}}
    copies |= {"recent": {"message.timestamp.before.max.ms": "3600000"}}
    flow.sync |= {"topics": False, "configs": False}
    for topic in ("missing", *copies):
        make_topic(flow.source, f"{name}-{topic}", 2 if topic == "smaller" else 1)
    for topic, configs in copies.items():
        make_topic(flow.target, f"{name}-{topic}", 2 if topic == "larger" else 1, configs)
    assert_refused(flow, SETTINGS)
    make_topic(flow.target, f"{name}-missing")
    grow(flow.target, f"{name}-smaller", 2)
    grow(flow.source, f"{name}-larger", 2)
    configure(flow.target, f"{name}-compacted", cleanup_policy="delete", retention_ms="-1", retention_bytes="-1")
    configure(flow.target, f"{name}-recent", message_timestamp_before_max_ms=str(NO_LIMIT))
    assert_clean(flow)


@pytest.mark.proves("mirror plan", "never-silent")
def test_names_that_do_not_fit_are_refused_until_they_do(flow: ConfiguredFlow) -> None:
    name = flow.name
    for ending in ("moved", "reserved", "internal", "one", "two", "dot.x"):
        make_topic(flow.source, f"{name}-{ending}")
    make_topic(flow.target, f"x.{name}-dot_x")
    mirror_once(flow.source, flow.target, [f"{name}-moved"], name)
    flow.topics["include"] += [f"{name}-misspelled"]
    flow.topics["naming"] = naming = {"prefix": "x.", "rename": {}}
    naming["rename"] = {
        f"{name}-reserved": f"mirror.{name}",
        f"{name}-internal": f"__{name}",
        f"{name}-two": f"x.{name}-one",
    }
    assert_refused(flow, NAMES)
    naming["rename"] = {f"{name}-reserved": f"of.{name}", f"{name}-moved": f"x.{name}-moved"}
    flow.topics["include"].pop()
    flow.topics["exclude"] = [f"{name}-dot.x"]
    assert_clean(flow)


@pytest.mark.proves("mirror plan", "never-silent")
def test_rules_that_do_not_fit_are_refused_until_they_do(flow: ConfiguredFlow) -> None:
    name = flow.name
    for bootstrap in (flow.source, flow.target):
        make_topic(bootstrap, f"{name}-grouped", configs={"cleanup.policy": "compact"})
        make_topic(bootstrap, f"{name}-smaller")
    for topic in ("first", "long"):
        make_topic(flow.source, f"{name}-{topic}")
    grouped: dict[str, Any] = {"match": f"{name}-grouped", "rekey": "split(string(key), '-')[0]"}
    smaller = {"match": f"{name}-smaller", "rekey": "key", "partitions": 3}
    first = {"match": f"{name}-first", "rekey": "key", "on_bad_record": "dead-letter", "dead_letter": f"{name}-first"}
    long = {"match": f"{name}-long", "rekey": "key"}
    flow.topics["rules"] = [grouped, smaller, first, long]
    padding = "x" * (209 - len(name))
    flow.topics["naming"] = {"rename": {f"{name}-long": padding + name}}
    assert_refused(flow, RULES | {padding + "{}": Fix.SHORTEN_FLOW})
    grouped["may_compact"] = True
    first["dead_letter"] = f"{name}-letters"
    delete_topics(flow.target, f"{name}-smaller")
    shorter = flow.another("")
    shorter.name = "f"
    assert_clean(shorter)


@pytest.mark.proves("mirror plan", "never-silent")
def test_topics_of_others_are_refused_until_they_are_let_go(flow: ConfiguredFlow) -> None:
    name = flow.name
    for topic in ("back", "foreign", "claimed"):
        make_topic(flow.target if topic == "back" else flow.source, f"{name}-{topic}")
        produce(flow.target if topic == "back" else flow.source, f"{name}-{topic}", [b"record"] * 20)
    back, other = flow.another("back", is_back=True), flow.another("other")
    back.topics["include"], other.topics["include"] = [f"{name}-back"], [f"{name}-claimed"]
    other.topics["naming"] = flow.topics["naming"] = {"prefix": "x."}
    for one in (back, other):
        assert one.once().exit_code == ExitCode.DONE
    make_topic(flow.target, f"x.{name}-foreign")
    produce(flow.target, f"x.{name}-foreign", [b"record"] * 20)
    assert_refused(flow, OWNERS)
    flow.topics["exclude"] = [f"{name}-back"]
    assert other.mirror("failover")[0] == ExitCode.DONE
    for topic in ("foreign", "claimed"):
        assert flow.mirror("adopt", f"{name}-{topic}")[0] == ExitCode.DONE
    assert_clean(flow)


@pytest.mark.proves("mirror plan", "never-silent")
def test_a_flow_between_wrong_clusters_or_without_topics_is_refused_as_a_whole(flow: ConfiguredFlow) -> None:
    for bootstrap in (flow.source, flow.target):
        make_topic(bootstrap, f"{flow.name}-topic")
        produce(bootstrap, f"{flow.name}-topic", [b"record"])

    def assert_whole(changed: ConfiguredFlow, fix: Fix) -> None:
        code, plan = changed.plan()
        assert (code, advises(plan["refused"][0], fix)) == (ExitCode.PREFLIGHT, True)

    nothing, circle, elsewhere = (flow.another(name) for name in ("nothing", "circle", "elsewhere"))
    nothing.topics["exclude"] = [".*"]
    assert_whole(nothing, Fix.SELECT_TOPICS)
    circle.target = circle.source
    assert_whole(circle, Fix.OTHER_ADDRESS)
    seen = FirstSeen(source_topic=f"{flow.name}-topic", topic_id=None, target_topic_id=None, cluster_id="another")
    copied, rekeyed = COPIES.key(seen.source_topic), REKEYED.key(seen.source_topic)
    elsewhere.write_journal((copied, seen.to_json()))
    assert_whole(elsewhere, Fix.OTHER_SOURCE)
    elsewhere.write_journal((copied, None), (rekeyed, seen.to_json()))
    assert_whole(elsewhere, Fix.OTHER_REKEYED)
    elsewhere.topics["naming"] = {"prefix": "x."}
    elsewhere.name += "-2"
    assert_clean(elsewhere)
