"""The administration of a cluster: one that does not answer, settings that the client does not take, and portions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaException
from hypothesis import given
from hypothesis import strategies as st

from mirror.config import ClusterSettings
from mirror.errors import ClusterUnreachable, ConfigError
from mirror.kafka import admin as client
from mirror.kafka.admin import Admin, portions


def admin_of(bootstrap: str, **more: str) -> Admin:
    return Admin(ClusterSettings.model_validate({"alias": "eu", "bootstrap.servers": bootstrap, **more}))


def test_a_cluster_that_does_not_answer_is_named(
    free_port: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(client, "DEADLINE_S", 1.0)
    with pytest.raises(ClusterUnreachable, match=r"Check bootstrap\.servers") as caught:
        admin_of(f"127.0.0.1:{free_port}").topics()
    assert f"cluster eu (127.0.0.1:{free_port}): cannot list topics: no broker answered" in str(caught.value)
    assert str(free_port) not in "".join(capfd.readouterr()), "nothing that librdkafka has to say"


def test_files_that_the_client_cannot_use_now_are_asked_for_again() -> None:
    """As while a key is renewed: a new topic at that moment ended the mirror for good, as by a wrong configuration."""
    with pytest.raises(ClusterUnreachable, match=r"cluster eu: client settings refused: .*ssl.ca.location"):
        admin_of("a:1", **{"security.protocol": "SSL", "ssl.ca.location": "/no/such/file"})


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SASL_SSL"])
def test_settings_that_the_client_refuses(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: Any, **__: Any) -> None:
        raise KafkaException("No provider for SASL mechanism GSSAPI")

    monkeypatch.setattr("mirror.kafka.admin.AdminClient", refuses)
    with pytest.raises(ConfigError, match="cluster eu: client settings refused: No provider"):
        admin_of("a:1", **{"security.protocol": protocol})


@pytest.mark.parametrize(
    ("right", "init_producer_id", "may"),
    [("ALTER", 5, True), ("ALTER", 4, False), ("CLUSTER_ACTION", 4, True), ("DESCRIBE", 5, False)],
)
def test_who_may_write_markers(monkeypatch: pytest.MonkeyPatch, right: str, init_producer_id: int, may: bool) -> None:
    admin = admin_of("a:1")
    monkeypatch.setattr(admin, "rights", lambda: frozenset({right}))
    monkeypatch.setattr(admin, "_wire", SimpleNamespace(ask=lambda *_: init_producer_id))
    assert admin.may_write_markers() is may


# --- portions of what is asked ----------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 9)), st.integers(1, 20))
def test_nothing_is_left_out_and_no_portion_costs_too_much(costs: Sequence[int], limit: int) -> None:
    found = list(portions(costs, lambda cost: cost, limit))
    assert [cost for portion in found for cost in portion] == costs
    assert all(portion and (sum(portion) <= limit or len(portion) == 1) for portion in found)
    assert all(sum(portion) + after[0] > limit for portion, after in pairwise(found))
