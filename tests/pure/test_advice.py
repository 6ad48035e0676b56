"""Every remedy of every state is tried by a test with brokers, and rights are given by one command."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from mirror.kafka.cluster import Endpoint
from mirror.policy.remedies import allow
from mirror.states import REKEYED_BY, RESOLVED_BY, Remedy, State

TESTS: Final = Path(__file__).parents[1]
#: What no test on brokers does, and why, or which one does it by its words.
UNTRIED: Final = {
    Remedy.AS_BEGUN: "test_stops.py",
    Remedy.UPGRADE: "there is no broker and no release yet that knows another format",
    Remedy.SEE_BROKER: "no stock broker answers each try with an error when asked to",
}


def test_every_state_says_what_resolves_it() -> None:
    assert RESOLVED_BY.keys() == set(State)
    assert [state for state in State if state.is_stop and not RESOLVED_BY[state]] == []
    assert {one for each in (*RESOLVED_BY.values(), *REKEYED_BY.values()) for one in each} == set(Remedy)


def test_every_remedy_is_tried_by_a_test_with_brokers() -> None:
    files = [path for tier in ("contract", "long") for path in (TESTS / tier).rglob("*.py")]
    tried = {name for path in files for name in re.findall(r"Remedy\.([A-Z_]+)", path.read_text(encoding="utf-8"))}
    advised = {one.name for remedies in RESOLVED_BY.values() for one in remedies}
    assert advised - tried == {one.name for one in UNTRIED}


# --- commands ---------------------------------------------------------------------------------------------------------


def test_rights_are_given_by_one_command() -> None:
    cluster = Endpoint("us", (("us1", 9092), ("us2", 9093)))
    begin = "kafka-acls.sh --bootstrap-server us1:9092,us2:9093 --add --allow-principal User:PRINCIPAL --operation "
    assert allow(cluster, "CREATE", "DESCRIBE_CONFIGS", topic="beats") == (
        begin + "Create --operation DescribeConfigs --topic beats"
    )
    assert allow(cluster, "ALTER") == begin + "Alter --cluster"
