"""Topics with a rule, re-keyed and proved on Spark: by an expression, by another number of partitions alone, and what
of a rule or a record is refused.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from helpers import config_file, make_topic, produce, stored_batches
from pair import Shared
from pyspark import SparkContext
from pyspark.sql import SparkSession
from rekeychecker import Seen, complaints, read_committed
from sparkcontext import context
from sparkless import run_once
from typer.testing import CliRunner
from waiting import DEADLINE_S

from mirror.cli import app
from mirror.config import load
from mirror.errors import ConfigError, ExitCode
from mirror.policy.selection import Rekeying
from mirror.spark.rekey.expressions import IT, MADE, judged, used_by
from mirror.spark.rekey.queries import session_of
from mirror.states import State

__all__ = ["context"]

BY_USER = "get_json_object(string(value), '$.user')"
RULE = Rekeying(source="orders", target="orders-by-user", partitions=5, progress="mirror.a.rekey.orders-by-user")


def fill(bootstrap: str, topic: str, begin: int, end: int, partitions: int = 2) -> None:
    """JSON records with a user each, spread over the partitions, some with headers."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "compression.type": "zstd"})
    for number in range(begin, end):
        value = {"user": f"user-{number % 50}", "amount": number % 100, "number": number}
        headers: Any = [("trace", str(number).encode())] if number % 7 == 0 else None
        partition = number // 3 % partitions
        producer.produce(topic, json.dumps(value), key=f"k{number % 13}", partition=partition, headers=headers)
    assert producer.flush(DEADLINE_S) == 0


def user_of(one: Seen) -> bytes | None:
    return str(json.loads(one.value or b"")["user"]).encode()


def verified(config: Path) -> tuple[int, dict[str, Any]]:
    """Return the exit code of `mirror verify` and what it says."""
    done = CliRunner().invoke(app, ["verify", str(config), "--json"])
    assert done.stdout, (done.output, done.exception)
    return done.exit_code, json.loads(done.stdout)


def verdicts(config: Path) -> Counter[str]:
    """Return what `mirror status` counts of all partitions together."""
    result = CliRunner().invoke(app, ["status", str(config), "--json"])
    found: Counter[str] = Counter()
    for one in json.loads(result.stdout)["partitions"]:
        found.update(one["verdicts"])
    return found


class Rekeyed:
    """A topic of two partitions that a flow re-keys."""

    def __init__(self, folder: Path, source: Shared, target: Shared, topic: str, context: SparkContext) -> None:
        self.source, self.target, self.topic, self._context = source.bootstrap, target.bootstrap, topic, context
        self._folder = folder
        make_topic(self.source, topic, 2)

    def config(self, **rule: Any) -> Path:
        """Return the flow's file with this rule."""
        rules = [{"match": self.topic, **rule}]
        return config_file(self._folder, self.source, self.target, [self.topic], self.topic, rules=rules)

    def run(self, config: Path) -> Any:
        """Return the outcome of a bounded copy."""
        return run_once(load(config), self._context)

    def records(self, side: str, topic: str = "") -> list[Seen]:
        return read_committed(side, topic or self.topic)


@pytest.fixture
def rekeyed(
    tmp_path: Path, source_cluster: Shared, target_cluster: Shared, topic_name: str, context: SparkContext
) -> Rekeyed:
    return Rekeyed(tmp_path, source_cluster, target_cluster, topic_name, context)


@pytest.mark.proves("exactly-once", "never-silent", "mirror verify", "DIVERGED")
def test_a_topic_by_a_field_of_its_values(rekeyed: Rekeyed) -> None:
    """Each record once, in the partition and the order of its new key; a proof finds what somebody else wrote."""
    config = rekeyed.config(rekey=BY_USER, partitions=12)
    for begin in (0, 400):
        fill(rekeyed.source, rekeyed.topic, begin, begin + 400)
        assert rekeyed.run(config).exit_code == ExitCode.DONE
    before, after = rekeyed.records(rekeyed.source), rekeyed.records(rekeyed.target)
    assert complaints(before, after, 12, user_of) == []
    assert len({one.partition for one in after}) > 6
    code, reported = verified(config)
    assert (code, reported["whole"], reported["spark"]) == (ExitCode.DONE, True, True), reported
    (report,) = reported["rekeyed"]
    assert (report["records"], report["target_records"], report["different"]) == (800, 800, 0)

    fill(rekeyed.source, rekeyed.topic, 800, 900)
    produce(rekeyed.target, rekeyed.topic, [b"foreign"], partition=7)
    code, reported = verified(config)
    assert (code, reported["different"]) == (ExitCode.DIFFERENT, 1), reported
    assert [one["kind"] for one in reported["differences"]] == ["extra"]
    assert {one["kind"] for one in reported["not_whole"]} == {"not there yet"}
    outcome = rekeyed.run(config)
    assert outcome.exit_code == ExitCode.DATA_AT_RISK
    assert {one.state for one in outcome.stops} == {State.DIVERGED}


@pytest.mark.proves("same-bytes", "exactly-once", "RESTAMP", "REWRITE")
def test_another_number_of_partitions_keeps_batches_that_stay_together(rekeyed: Rekeyed) -> None:
    keyless = [json.dumps({"number": number}).encode() for number in range(100)]
    produce(rekeyed.source, rekeyed.topic, keyless, partition=1, codec="gzip")
    fill(rekeyed.source, rekeyed.topic, 100, 400, partitions=1)
    config = rekeyed.config(partitions=5)
    assert rekeyed.run(config).exit_code == ExitCode.DONE
    before, after = rekeyed.records(rekeyed.source), rekeyed.records(rekeyed.target)
    keyed = [one for one in before if one.key is not None]
    assert complaints(keyed, [one for one in after if one.key is not None], 5, lambda one: one.key) == []
    assert Counter(one.value for one in after if one.key is None) == Counter(keyless)
    kept = {bytes(raw.records) for part in range(5) for raw in stored_batches(rekeyed.target, rekeyed.topic, part)}
    assert {bytes(raw.records) for raw in stored_batches(rekeyed.source, rekeyed.topic, 1)} <= kept
    found = verdicts(config)
    assert found["RESTAMP/kept-whole"] >= 10, found
    assert found["REWRITE/re-keyed"] > 0, found


@pytest.mark.proves("REWRITE", "DROP")
def test_a_rule_filters_and_gives_new_values_headers_and_a_codec(rekeyed: Rekeyed) -> None:
    fill(rekeyed.source, rekeyed.topic, 0, 400)
    config = rekeyed.config(
        rekey=BY_USER,
        where="int(get_json_object(string(value), '$.amount')) >= 50",
        value="concat('of ', topic, '-', partition, ' ', string(value))",
        headers="map('offset', string(offset), 'was', string(key))",
        codec="lz4",
        partitions=3,
    )
    assert rekeyed.run(config).exit_code == ExitCode.DONE
    expected = [
        replace(
            one,
            value=f"of {rekeyed.topic}-{one.partition} ".encode() + (one.value or b""),
            headers=(("offset", str(one.offset).encode()), ("was", one.key)),
        )
        for one in rekeyed.records(rekeyed.source)
        if json.loads(one.value or b"")["amount"] >= 50
    ]

    def new_user(one: Seen) -> bytes:
        return str(json.loads((one.value or b"").split(b" ", 2)[2])["user"]).encode()

    assert complaints(expected, rekeyed.records(rekeyed.target), 3, new_user) == []
    batches = [raw for part in range(3) for raw in stored_batches(rekeyed.target, rekeyed.topic, part)]
    assert {raw.header.codec_name for raw in batches if not raw.header.is_control} == {"lz4"}
    assert verdicts(config)["DROP/filtered"] == 400 - len(expected)


@pytest.mark.proves("REFUSED", "DROP", "never-silent")
@pytest.mark.parametrize("policy", ["stop", "dead-letter"])
def test_a_record_that_cannot_be_re_keyed_stops_its_partition_or_becomes_a_dead_letter(
    rekeyed: Rekeyed, policy: str
) -> None:
    good = [json.dumps({"user": f"u{number}", "amount": 1}).encode() for number in range(60)]
    bad = [b'{"user": "cast me", "amount": "many"}', b"no json at all"]
    produce(rekeyed.source, rekeyed.topic, [*good[:25], *bad, *good[25:50]], partition=0)
    produce(rekeyed.source, rekeyed.topic, good[50:], partition=1)
    letters = {"dead_letter": f"{rekeyed.topic}-dead"} if policy == "dead-letter" else {}
    where = "cast(get_json_object(string(value), '$.amount') as int) = 1"
    config = rekeyed.config(rekey=BY_USER, where=where, on_bad_record=policy, partitions=2, **letters)
    outcome = rekeyed.run(config)
    copied = Counter(one.value for one in rekeyed.records(rekeyed.target))
    if policy == "stop":
        assert outcome.exit_code == ExitCode.DATA_AT_RISK
        assert [(one.state, one.partition, one.next_offset) for one in outcome.stops] == [(State.REFUSED, 0, 25)]
        assert "an expression failed" in outcome.stops[0].detail
        assert copied == Counter([*good[:25], *good[50:]])
        return
    assert outcome.exit_code == ExitCode.DONE
    assert copied == Counter(good)
    assert verdicts(config)["DROP/dead-letter"] == 1, "the other is filtered: where of null is not true"
    (letter,) = rekeyed.records(rekeyed.target, letters["dead_letter"])
    named = dict(letter.headers)
    assert (letter.value, named["mirror.topic"]) == (bad[0], rekeyed.topic.encode())
    assert (named["mirror.partition"], named["mirror.offset"]) == (b"0", b"25")


# --- expressions ------------------------------------------------------------------------------------------------------

ALIKE = "must give the same whenever it is asked"
REFUSED = [
    ("rekey", "nosuch + 1", "nosuch"),
    ("rekey", "get_json_object(string(value), ", "PARSE_SYNTAX_ERROR"),
    ("rekey", "uuid()", ALIKE),
    ("rekey", "string(current_timestamp())", ALIKE),
    ("rekey", "string(unix_timestamp())", ALIKE),
    ("rekey", "(select 'a')", ALIKE),
    ("rekey", "current_user()", ALIKE),
    ("rekey", "aes_encrypt(key, key)", ALIKE),
    ("where", "timestamp > timestamp'now'", ALIKE),
    ("where", "timestamp > 'Yesterday'", ALIKE),
    ("where", "timestamp > cast(' now ' as timestamp)", ALIKE),
    ("rekey", "string(count(1))", "must be about one record"),
    ("rekey", "string(row_number() over (order by offset))", "must be about one record"),
    ("rekey", "explode(array('a'))", "generator"),
    ("rekey", "offset", "must give text or bytes"),
    ("value", "headers", "must give text or bytes"),
    ("where", "string(key)", "must say true or false"),
    ("headers", "string(key)", "must give a map"),
]


@pytest.mark.proves("mirror run")
def test_expressions_that_cannot_be_evaluated_twice_alike_are_refused_before_anything_is_made(
    spark: SparkSession, rekeyed: Rekeyed
) -> None:
    for name, expression, complaint in REFUSED:
        with pytest.raises(ConfigError) as refused:
            used_by(spark, replace(RULE, **{name: cast(Any, expression)}))
        assert str(refused.value).startswith(f"topics.rules: orders: {name}: {expression}: ")
        assert complaint in str(refused.value)
    with pytest.raises(ConfigError, match="`nosuch` cannot be resolved"):
        rekeyed.run(rekeyed.config(rekey="nosuch"))
    known = AdminClient({"bootstrap.servers": rekeyed.target}).list_topics(timeout=DEADLINE_S).topics
    assert not [name for name in known if rekeyed.topic in name]
    alike = "aes_encrypt(key, '0123456789abcdef', 'ECB')"  # other modes have an initialization vector of their own
    fine = replace(RULE, rekey=alike, where="string(value) = 'today' and offset > 3", headers="map('a', topic)")
    assert used_by(spark, fine) == {"key", "value", "offset", "topic"}


def test_a_record_on_which_an_expression_fails_leaves_the_others_alone(
    spark: SparkSession, context: SparkContext
) -> None:
    rule = replace(RULE, rekey="string(value)", where="cast(string(value) as int) > 1", headers="map('v', value)")
    frame = spark.createDataFrame([(b"1",), (b"many",), (b"3",), (None,)], "value binary")
    session_of(context)  # which has failures of expressions leave other records alone
    found = [row[MADE] for row in frame.select(judged(frame, rule).alias(MADE)).collect()]
    assert found[1] is None
    assert [one[IT].keep for one in found if one is not None] == [False, True, False]
    assert bytes(found[2][IT].key) == b"3"
    assert [(bytes(one.key), bytes(one.value)) for one in found[2][IT].headers] == [(b"v", b"3")]
