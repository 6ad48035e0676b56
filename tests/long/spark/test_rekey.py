"""Topics with a rule, as a user mirrors them: keys, partitions, filters, bad records, kills."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from cleaning import CLEANED_SOON, delete_keys, ten_keys
from confluent_kafka import OFFSET_END, Producer
from confluent_kafka import TopicPartition as Confluent
from confluent_kafka.admin import AdminClient
from helpers import config_file, make_topic, produce, remove_topics, stored_batches
from rawbatches import batch, raw
from recordoracle import Record, encoded
from rekeychecker import Seen, complaints, read_committed
from running import TIMEOUT, running, wait_for
from sparkless import run_once
from syncing import delete_topics
from typer.testing import CliRunner

from mirror.cli import app
from mirror.config import ClusterSettings, Settings, load
from mirror.driver.flow import Flow, prepare
from mirror.errors import ConfigError, ExitCode, MirrorError
from mirror.kafka.admin import Admin
from mirror.kafka.cluster import Cluster as Wire
from mirror.kafka.cluster import Endpoint, TopicPartition
from mirror.kafka.produce import append
from mirror.kafka.topic_configs import ConfigChange
from mirror.lab.embedded import Cluster, Spec, start_many
from mirror.observability import logs
from mirror.records.codecs import compress
from mirror.spark.rekey.driver import Rekeyer
from mirror.spark.rekey.microbatch import Stopped

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.brokers, pytest.mark.spark]

BY_USER = "get_json_object(string(value), '$.user')"


def fill(bootstrap: str, topic: str, count: int, seed: int, partitions: int = 4, **options: Any) -> None:
    """JSON records with a user each, spread over the partitions, some with headers."""
    dice = random.Random(seed)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "compression.type": "zstd", **options})
    for number in range(count):
        value = {"user": f"user-{dice.randrange(50)}", "amount": dice.randrange(100), "number": number, "seed": seed}
        headers: Any = [("trace", str(number).encode())] if number % 7 == 0 else None
        producer.produce(
            topic, json.dumps(value), key=f"k{number % 13}", partition=dice.randrange(partitions), headers=headers
        )
        producer.poll(0)
    assert producer.flush(TIMEOUT) == 0


def user_of(one: Seen) -> bytes | None:
    return str(json.loads(one.value or b"")["user"]).encode()


def rekeyed(folder: Path, config: Path) -> tuple[int, str]:
    """One bounded run; its exit code and its log."""
    with running(config, folder / "log", "--once") as mirror:
        return mirror.ended(), mirror.log


class Here:
    """The same in this process, in the session's Spark: each start of Spark costs seconds, and what a query does there
    does not hang on who started it.
    """

    def __init__(self, spark: SparkSession, stderr: pytest.CaptureFixture[str]) -> None:
        self._context, self._stderr = spark.sparkContext, stderr

    def rekeyed(self, config: Path) -> tuple[int, str]:
        """As `rekeyed`."""
        logs.configure()  # a command that another test ran may have left them silent
        self._stderr.readouterr()
        try:
            outcome = run_once(load(config), self._context)
        except MirrorError as problem:
            return problem.exit_code, str(problem)
        return outcome.exit_code, f"{self._stderr.readouterr().err}\n{outcome.incomplete}"

    def proved(self, config: Path) -> tuple[int, dict[str, Any]]:
        """As `proved`."""
        done = CliRunner().invoke(app, ["verify", str(config), "--json"])
        assert done.stdout, (done.output, done.exception)
        return done.exit_code, json.loads(done.stdout)


@pytest.fixture
def here(spark: SparkSession, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Here:
    monkeypatch.setattr("mirror.spark.rekey.verify.open_context", lambda *_, **__: spark.sparkContext)
    monkeypatch.setattr("mirror.spark.rekey.verify.close_context", lambda _: None)
    return Here(spark, capsys)


def proved(config: Path) -> tuple[int, dict[str, Any]]:
    """What `mirror verify` says."""
    command = [sys.executable, "-m", "mirror", "verify", str(config), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_a_topic_by_a_field_of_its_values(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path, here: Here
) -> None:
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name, 4)
    fill(source, topic_name, 2000, 1)
    rules = [{"match": topic_name, "rekey": BY_USER, "partitions": 12}]
    config = config_file(tmp_path, source, target, [topic_name], topic_name, rules=rules)
    code, log = here.rekeyed(config)
    assert code == ExitCode.DONE, log
    before, after = read_committed(source, topic_name), read_committed(target, topic_name)
    assert complaints(before, after, 12, user_of) == []
    assert len({one.partition for one in after}) > 6
    code, reported = proved(config)
    assert (code, reported["whole"], reported["spark"]) == (ExitCode.DONE, True, True), reported
    (report,) = reported["rekeyed"]
    assert (report["records"], report["target_records"], report["different"]) == (2000, 2000, 0)

    fill(source, topic_name, 500, 2)  # and what comes later, by another mirror
    code, log = here.rekeyed(config)
    assert code == ExitCode.DONE, log
    assert complaints(read_committed(source, topic_name), read_committed(target, topic_name), 12, user_of) == []

    fill(source, topic_name, 100, 3)
    produce(target, topic_name, [b"of nobody"], partition=7)
    code, reported = here.proved(config)
    assert (code, reported["different"]) == (ExitCode.DIFFERENT, 1), reported
    assert [one["kind"] for one in reported["differences"]] == ["extra"]
    assert f"1 in {topic_name}-7 at offset" in reported["differences"][0]["text"]
    assert {one["kind"] for one in reported["not_whole"]} == {"not there yet"}
    assert sum(one["offsets"] for one in reported["not_whole"]) == 100
    code, log = here.rekeyed(config)
    assert (code, "is not the mirror's" in log) == (ExitCode.DATA_AT_RISK, True), log
    admin = AdminClient({"bootstrap.servers": target})
    for future in admin.delete_records([Confluent(topic_name, 7, OFFSET_END)]).values():
        future.result(TIMEOUT)
    settings = load(config)
    asyncio.run(made_anew_under_a_query(settings, prepare(settings)))


def make_anew(settings: Settings, topic: str) -> None:
    admin = Admin(settings.target)
    remove_topics(admin, topic)
    wait_for(lambda: not admin.describe([topic]), TIMEOUT, lambda: "still there")
    make_topic(",".join(f"{host}:{port}" for host, port in settings.target.bootstrap), topic, 12)


async def made_anew_under_a_query(settings: Settings, flow: Flow) -> None:
    """The query has taken over when its target topic comes back under another id; without Spark: nothing is planned."""
    session: Any = None
    (rule,) = flow.rekeyed
    topic = rule.target
    query = Rekeyer(session, flow, rule, frozenset())
    async with query._source, query._target:
        assert await query._take_over() is None
        await asyncio.to_thread(make_anew, settings, topic)
        await query._target.refresh([topic])
        with pytest.raises(Stopped, match=f"target topic {topic} was deleted and made anew"):
            await query._planned()


def test_a_record_that_exhausts_the_engine_stops_its_partition_alone(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name, 2)
    fine = [json.dumps({"user": f"u{number}", "times": 2}).encode() for number in range(300)]
    produce(source, topic_name, fine)
    hostile = [*fine[:20], json.dumps({"user": "x", "times": 2_000_000_000}).encode(), *fine[:10]]
    produce(source, topic_name, hostile, partition=1)
    value = "repeat('x', cast(get_json_object(string(value), '$.times') as int))"
    rules = [{"match": topic_name, "rekey": BY_USER, "value": value, "on_bad_record": "drop", "partitions": 3}]
    config = config_file(tmp_path, source, target, [topic_name], topic_name, rules=rules)
    code, log = rekeyed(tmp_path, config)
    assert code == ExitCode.DATA_AT_RISK, log
    stops = [one for one in log.splitlines() if "partition_stopped" in one]
    assert stops, log
    assert all("offset=20" in one and "partition=1" in one and "more memory" in one for one in stops), stops
    assert "epoch_failed" not in log
    assert len(read_committed(target, topic_name)) == 300 + 20


def test_a_copy_that_stamps_records(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path, here: Here
) -> None:
    """Nothing is written to it unless somebody asks for that; a proof compares times where nobody does."""
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name, 2)
    make_topic(target, topic_name, 3, {"message.timestamp.type": "LogAppendTime"})
    fill(source, topic_name, 100, 11, partitions=2, **{"linger.ms": 5})

    def config(append_time: str) -> Path:
        rules = [{"match": topic_name, "rekey": BY_USER, "partitions": 3}]
        more: dict[str, Any] = {"rules": rules, "append_time": append_time}
        return config_file(tmp_path, source, target, [topic_name], topic_name, **more)

    code, log = here.rekeyed(config("source"))
    assert (code, read_committed(target, topic_name)) == (ExitCode.DATA_AT_RISK, []), log
    assert f"--entity-name {topic_name} --add-config message.timestamp.type=CreateTime" in log
    assert here.rekeyed(config("target"))[0] == ExitCode.DONE
    assert len(read_committed(target, topic_name)) == 100
    code, reported = here.proved(config("target"))
    assert (code, reported["rekeyed"][0]["own_timestamps"]) == (ExitCode.DONE, 100), reported
    admin = Admin(load(config("source")).target)
    for kind in ("LogAppendTime", "CreateTime"):
        admin.alter_configs([ConfigChange(topic=topic_name, name="message.timestamp.type", before="", after=kind)])
        code, reported = here.proved(config("source"))
        assert (code, reported["different"]) == (ExitCode.DIFFERENT, 200), reported
    for side in (Admin(load(config("source")).source), admin):  # and what a broker of the source has stamped
        change = ConfigChange(topic=topic_name, name="message.timestamp.type", before="", after="LogAppendTime")
        side.alter_configs([change])
    code, reported = here.proved(config("source"))
    assert (code, reported["different"]) == (ExitCode.DIFFERENT, 200), "these were not stamped there"
    fill(source, topic_name, 50, 12, partitions=2)
    assert here.rekeyed(config("source"))[0] == ExitCode.DONE
    code, reported = here.proved(config("source"))
    assert (reported["different"], reported["rekeyed"][0]["own_timestamps"]) == (200, 50), reported


def test_a_copy_whose_cleaner_took_records(own_source: Cluster, topic_name: str, tmp_path: Path, here: Here) -> None:
    """They may be gone where the rule asks for that, and their keys have what is newest."""
    source = own_source.bootstrap
    (cluster,) = start_many([Spec(name="cleaned", config={"log.cleaner.backoff.ms": 300})])
    with cluster:
        target = cluster.bootstrap
        make_topic(source, topic_name, 1, {"cleanup.policy": "compact"})
        rule = {"match": topic_name, "rekey": "string(key)", "partitions": 1}
        (tmp_path / "unasked").mkdir()
        unasked = config_file(tmp_path / "unasked", source, target, [topic_name], topic_name, rules=[rule])
        rules = [{**rule, "may_compact": True}]
        config = config_file(tmp_path, source, target, [topic_name], topic_name, rules=rules)
        for _ in range(3):
            ten_keys(source, topic_name)
        assert here.rekeyed(config)[0] == ExitCode.DONE
        admin = Admin(load(config).target)
        admin.alter_configs(
            [ConfigChange(topic=topic_name, name=name, before="", after=to) for name, to in CLEANED_SOON.items()]
        )

        rolls = Producer({"bootstrap.servers": source})

        def rolled() -> bool:
            rolls.produce(topic_name, b"roll", key=b"roll")
            assert rolls.flush(TIMEOUT) == 0
            assert here.rekeyed(config)[0] == ExitCode.DONE
            return len([one for one in read_committed(target, topic_name) if one.value == b"value"]) == 10

        wait_for(rolled, TIMEOUT, lambda: "the cleaner did not run")
        code, reported = here.proved(config)
        assert (code, reported["whole"]) == (ExitCode.DONE, True), reported
        code, reported = here.proved(unasked)
        assert code == ExitCode.DIFFERENT, reported
        assert {one["kind"] for one in reported["differences"]} == {"missing"}
        assert reported["different"] >= 20

        # another topic by the name, whose keys have what is oldest
        remove_topics(admin, topic_name)
        make_topic(target, topic_name, 1, {"cleanup.policy": "compact"})
        oldest = Producer({"bootstrap.servers": target})
        first = {one.key: one for one in reversed(read_committed(source, topic_name))}
        for one in first.values():
            oldest.produce(topic_name, one.value, key=one.key, timestamp=one.timestamp)
        assert oldest.flush(TIMEOUT) == 0
        code, reported = here.proved(config)
        assert code == ExitCode.DIFFERENT, reported
        assert {one["kind"] for one in reported["differences"]} == {"missing"}
        assert f"the target topic {topic_name} was deleted" in json.dumps(reported["not_whole"])


def test_another_number_of_partitions_keeps_batches_that_stay_together(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path, here: Here
) -> None:
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name, 2)
    keyless = [json.dumps({"number": number}).encode() for number in range(100)]
    produce(source, topic_name, keyless, partition=1, codec="gzip")
    fill(source, topic_name, 300, 3, partitions=1)
    config = config_file(tmp_path, source, target, [topic_name], topic_name, rules=[{"match": ".*", "partitions": 5}])
    code, log = here.rekeyed(config)
    assert code == ExitCode.DONE, log
    before, after = read_committed(source, topic_name), read_committed(target, topic_name)
    keyed = [one for one in before if one.key is not None]
    assert complaints(keyed, [one for one in after if one.key is not None], 5, lambda one: one.key) == []
    assert Counter(one.value for one in after if one.key is None) == Counter(keyless)
    kept = {bytes(raw.records) for part in range(5) for raw in stored_batches(target, topic_name, part)}
    assert {bytes(raw.records) for raw in stored_batches(source, topic_name, 1)} <= kept
    figures = verdicts(tmp_path, config)
    assert figures["RESTAMP/kept-whole"] >= 10, figures
    assert figures["REWRITE/re-keyed"] > 0, figures


def test_filter_value_headers_and_codec(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path, here: Here
) -> None:
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name, 2)
    fill(source, topic_name, 400, 4, partitions=2)
    rule = {
        "match": topic_name,
        "rekey": BY_USER,
        "where": "int(get_json_object(string(value), '$.amount')) >= 50",
        "value": "concat('of ', topic, '-', partition, ' ', string(value))",
        "headers": "map('offset', string(offset), 'was', string(key))",
        "codec": "lz4",
        "partitions": 3,
    }
    config = config_file(tmp_path, source, target, [topic_name], topic_name, rules=[rule])
    code, log = here.rekeyed(config)
    assert code == ExitCode.DONE, log
    wanted = [one for one in read_committed(source, topic_name) if json.loads(one.value or b"")["amount"] >= 50]
    expected = [
        replace(
            one,
            value=f"of {topic_name}-{one.partition} ".encode() + (one.value or b""),
            headers=(("offset", str(one.offset).encode()), ("was", one.key)),
        )
        for one in wanted
    ]
    assert complaints(expected, read_committed(target, topic_name), 3, user_in) == []
    batches = [raw for part in range(3) for raw in stored_batches(target, topic_name, part)]
    assert {raw.header.codec_name for raw in batches if not raw.header.is_control} == {"lz4"}
    assert verdicts(tmp_path, config)["DROP/filtered"] == 400 - len(wanted)


@pytest.mark.timeout(3600)
@pytest.mark.soak  # a kill inside Spark is in test_kills.py and test_faults_spark.py
@pytest.mark.parametrize("kills", [2, 20])
def test_kills_at_any_moment(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path, kills: int
) -> None:
    """The driver with all its tasks, or one of Spark's workers, while records come."""
    seed = int(os.environ.get("SEED", random.randrange(1 << 32)))
    print(f"seed {seed}")
    dice = random.Random(seed)
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name, 4)
    ended = threading.Event()
    filling = threading.Thread(target=keep_filling, args=(source, topic_name, dice.random(), ended))
    filling.start()
    rules = [{"match": topic_name, "rekey": BY_USER, "partitions": 12}]
    config = config_file(tmp_path, source, target, [topic_name], topic_name, rules=rules)
    try:
        for number in range(kills):
            with running(config, tmp_path / f"log-{number}") as mirror:
                mirror.until("event=spark_started")
                moment = time.monotonic() + dice.uniform(0, 8)
                only_a_worker = dice.random() < 0.4
                while time.monotonic() < moment:
                    assert mirror.process.poll() is None, mirror.log
                    time.sleep(0.01)
                kill(mirror.process.pid, dice, only_a_worker)
                if only_a_worker:
                    seen = len(read_committed(target, topic_name))
                    wait_for(
                        lambda: len(read_committed(target, topic_name)) > seen,  # noqa: B023 -- called at once
                        TIMEOUT,
                        lambda: mirror.log,
                    )
                    kill(mirror.process.pid, dice, only_a_worker=False)
    finally:
        ended.set()
        filling.join()
    code, log = rekeyed(tmp_path, config)
    assert code == ExitCode.DONE, log
    before, after = read_committed(source, topic_name), read_committed(target, topic_name)
    assert complaints(before, after, 12, user_of) == []
    print(f"{len(after)} records, {kills} kills")


def keep_filling(bootstrap: str, topic: str, seed: float, ended: threading.Event) -> None:
    """About a thousand records a second."""
    for number in range(10_000):
        if ended.wait(0.1):
            return
        fill(bootstrap, topic, 100, hash((seed, number)), **{"linger.ms": 5})


def kill(pid: int, dice: random.Random, only_a_worker: bool) -> None:
    """All processes of a mirror at once, or one of the Python workers that Spark runs."""
    everybody = psutil.Process(pid).children(recursive=True)
    if only_a_worker:
        workers = [one for one in everybody if is_worker(one)]
        everybody = dice.sample(workers, 1) if workers else []
    else:
        everybody.append(psutil.Process(pid))
    for one in everybody:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()


def is_worker(one: psutil.Process) -> bool:
    try:
        return "mirror.spark.rekey.daemon" in one.cmdline()
    except psutil.Error:  # it ended just now
        return False


def user_in(one: Seen) -> bytes:
    return str(json.loads((one.value or b"").split(b" ", 2)[2])["user"]).encode()


def verdicts(folder: Path, config: Path) -> Counter[str]:
    """What `mirror status` shows of all partitions together."""
    result = CliRunner().invoke(app, ["status", str(config), "--json"])
    found: Counter[str] = Counter()
    for one in json.loads(result.stdout)["partitions"]:
        found.update(one["verdicts"])
    return found


@pytest.mark.parametrize("policy", ["stop", "dead-letter"])
def test_a_record_that_cannot_be_re_keyed(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path, here: Here, policy: str
) -> None:
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name, 2)
    good = [json.dumps({"user": f"u{number}", "amount": 1}).encode() for number in range(60)]
    bad = [b'{"user": "cast me", "amount": "many"}', b"no json at all"]
    produce(source, topic_name, [*good[:25], *bad, *good[25:50]], partition=0)
    produce(source, topic_name, good[50:], partition=1)
    dead = f"{topic_name}-dead"
    rule: dict[str, Any] = {
        "match": topic_name,
        "rekey": BY_USER,
        "where": "cast(get_json_object(string(value), '$.amount') as int) = 1",
    }
    rule |= {"on_bad_record": policy, "partitions": 2} | ({"dead_letter": dead} if policy == "dead-letter" else {})
    config = config_file(tmp_path, source, target, [topic_name], topic_name, rules=[rule])
    code, log = here.rekeyed(config)
    copied = Counter(one.value for one in read_committed(target, topic_name))
    if policy == "stop":
        assert code == ExitCode.DATA_AT_RISK, log
        assert copied == Counter([*good[:25], *good[50:]])
        assert "REFUSED at offset 25, an expression failed" in log
        return
    assert code == ExitCode.DONE, log
    assert copied == Counter(good)
    assert verdicts(tmp_path, config)["DROP/dead-letter"] == 1, "the other is filtered: where of null is not true"
    (one,) = read_committed(target, dead)
    reported = dict(one.headers)
    assert (one.value, reported["mirror.topic"]) == (bad[0], topic_name.encode())
    assert (reported["mirror.partition"], reported["mirror.offset"]) == (b"0", b"25")


def test_an_expression_that_cannot_be_is_refused_before_anything_is_made(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path, here: Here
) -> None:
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name)
    rules = [{"match": topic_name, "rekey": "nosuch"}]
    config = config_file(tmp_path, source, target, [topic_name], topic_name, rules=rules)
    code, log = here.rekeyed(config)
    assert code == ExitCode.USAGE, log
    assert "`nosuch` cannot be resolved" in log
    known = AdminClient({"bootstrap.servers": target}).list_topics(timeout=20).topics
    assert not [name for name in known if topic_name in name]


def test_beside_tasks_and_topics_that_come_later(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    source, target = own_source.bootstrap, own_target.bootstrap
    plain, first, later = topic_name, f"{topic_name}-by-a", f"{topic_name}-by-b"
    for topic in (plain, first):
        make_topic(source, topic, 2)
        fill(source, topic, 200, 5, partitions=2)
    rules = [{"match": ".*-by-.*", "rekey": BY_USER, "partitions": 3}]
    config = config_file(tmp_path, source, target, [f"{topic_name}.*"], topic_name, rules=rules)

    def is_there(topic: str, records: int) -> bool:
        known = AdminClient({"bootstrap.servers": target}).list_topics(timeout=20).topics
        return topic in known and len(read_committed(target, topic)) == records

    with running(config, tmp_path / "log") as mirror:
        wait_for(lambda: is_there(plain, 200) and is_there(first, 200), TIMEOUT, lambda: mirror.log)
        make_topic(source, later, 2)
        fill(source, later, 100, 6, partitions=2)
        fill(source, first, 100, 7, partitions=2)
        wait_for(lambda: is_there(later, 100) and is_there(first, 300), TIMEOUT, lambda: mirror.log)
        mirror.process.terminate()
        assert mirror.ended() == ExitCode.DONE, mirror.log
    for topic in (first, later):
        assert complaints(read_committed(source, topic), read_committed(target, topic), 3, user_of) == []
    rehearsed = CliRunner().invoke(app, ["failover", str(config), "--rehearse", "--json"])
    assert rehearsed.exit_code == ExitCode.DONE, rehearsed.output
    result = CliRunner().invoke(app, ["status", str(config), "--json"])
    states = {(one["topic"], one["state"]) for one in json.loads(result.stdout)["partitions"]}
    assert states == {(topic, "CAUGHT_UP") for topic in (plain, first, later)}
    done = CliRunner().invoke(app, ["failover", str(config)])
    assert done.exit_code == ExitCode.DONE, done.output


@pytest.mark.soak
def test_a_record_that_is_too_large_for_the_target(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name)
    make_topic(target, topic_name, 1, {"max.message.bytes": "100000"})
    small = [b'{"user": "a", "number": %d}' % number for number in range(20)]
    large = json.dumps({"user": "b", "noise": random.Random(9).randbytes(150_000).hex()}).encode()
    produce(source, topic_name, [*small, large], codec="zstd")
    rules = [{"match": topic_name, "rekey": BY_USER}]
    more: dict[str, Any] = {"rules": rules}
    config = config_file(tmp_path, source, target, [topic_name], topic_name, **more)
    content = json.loads(config.read_text()) | {"sync": {"configs": False}, "spark": {"epoch_s": 5}}
    config.write_text(json.dumps(content))
    with running(config, tmp_path / "log") as mirror:
        mirror.until("Raise max.message.bytes of")
        since = reported_ms(config)
        wait_for(lambda: reported_ms(config) > since + 2 * 5_000, TIMEOUT, lambda: mirror.log)  # and meets it again
        mirror.process.terminate()
        assert mirror.ended() == ExitCode.DATA_AT_RISK, mirror.log
        assert mirror.log.count("partition_stopped") == 1, mirror.log
    result = CliRunner().invoke(app, ["status", str(config), "--json"])
    (one,) = json.loads(result.stdout)["partitions"]
    assert one["state"] == "REFUSED", one
    admin = Admin(ClusterSettings.model_validate({"alias": "us", "bootstrap.servers": target}))
    admin.alter_configs([ConfigChange(topic=topic_name, name="max.message.bytes", before="", after="1000000")])
    code, log = rekeyed(tmp_path, config)
    assert code == ExitCode.DONE, log
    assert Counter(one.value for one in read_committed(target, topic_name)) == Counter([*small, large])


def reported_ms(config: Path) -> int:
    """When a flow's one partition was reported last."""
    shown = json.loads(CliRunner().invoke(app, ["status", str(config), "--json"]).stdout)
    (one,) = shown["partitions"]
    reported: int = shown["at_ms"] - one["age_ms"]
    return reported


@pytest.mark.parametrize("is_foreign", [False, True], ids=["recreated", "diverged"])
def test_a_re_keyed_copy_is_kept_beside_another_one(
    here: Here, own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path, is_foreign: bool
) -> None:
    source, target, other = own_source.bootstrap, own_target.bootstrap, f"{topic_name}-now"
    make_topic(source, topic_name)
    produce(source, topic_name, [b"%d" % number for number in range(20)])
    more: dict[str, Any] = {"rules": [{"match": topic_name, "partitions": 2}]}
    config = config_file(tmp_path, source, target, [topic_name], topic_name, **more)
    assert here.rekeyed(config)[0] == ExitCode.DONE
    if is_foreign:
        produce(target, topic_name, [b"foreign"] * 5)
        produce(source, topic_name, [b"more"] * 5)
    else:
        delete_topics(source, topic_name)
        make_topic(source, topic_name)
        produce(source, topic_name, [b"new"] * 15)
    code, log = here.rekeyed(config)
    assert (code, "name that in topics.naming.rename" in log) == (ExitCode.DATA_AT_RISK, True), log
    kept = len(read_committed(target, topic_name))
    config = config_file(
        tmp_path, source, target, [topic_name], topic_name, naming={"rename": {topic_name: other}}, **more
    )
    code, log = here.rekeyed(config)
    assert code == ExitCode.DONE, log
    assert (len(read_committed(target, topic_name)), len(read_committed(target, other))) == (
        kept,
        25 if is_foreign else 15,
    )


@pytest.mark.soak
@pytest.mark.parametrize("rule", [{}, {"rekey": "value"}], ids=["whole", "by an expression"])
def test_records_of_batches_that_are_too_large_to_be_opened_whole(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path, rule: dict[str, str]
) -> None:
    """A hundred megabytes in some thousand bytes; and one record that a task opens with more memory."""
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name, configs={"max.message.bytes": "2000000", "retention.ms": "-1"})
    many, one = [bytes(1 << 20)] * 100, [bytes(70 << 20)]
    append_zeros(source, topic_name, many)
    more: dict[str, Any] = {"rules": [{"match": topic_name, "partitions": 2, **rule}]}
    config = config_file(tmp_path, source, target, [topic_name], topic_name, **more)
    little = json.loads(config.read_text()) | {"limits": {"memory_mb": 64}}
    config.write_text(json.dumps(little))
    code, log = rekeyed(tmp_path, config)
    assert code == ExitCode.DONE, log
    if not rule:
        append_zeros(source, topic_name, one)
        code, log = rekeyed(tmp_path, config)
        assert (code, "Raise limits.memory_mb" in log) == (ExitCode.DATA_AT_RISK, True), log
        config.write_text(json.dumps(little | {"limits": {"memory_mb": 300}}))
        code, log = rekeyed(tmp_path, config)
        assert code == ExitCode.DONE, log
    sizes = Counter(len(found.value or b"") for found in read_committed(target, topic_name))
    assert sizes == Counter(map(len, many if rule else [*many, *one]))


def append_zeros(bootstrap: str, topic: str, values: Sequence[bytes]) -> None:
    """One batch of them, each with the same key, which no client would make so large."""
    records = [Record(at, at, b"k", value, ()) for at, value in enumerate(values)]
    made = raw(batch(payload=compress(4, encoded(records)), count=len(records), attributes=4))
    host, port = bootstrap.split(":")

    async def appended() -> None:
        async with Wire(Endpoint("any", ((host, int(port)),))) as cluster:
            await cluster.refresh([topic])
            await append(cluster, TopicPartition(topic, 0), (made.data,), doing="zeros")

    asyncio.run(appended())


@pytest.mark.soak
def test_a_target_that_was_made_anew(own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path) -> None:
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name)
    fill(source, topic_name, 50, 8, partitions=1)
    rules = [{"match": topic_name, "rekey": BY_USER}]
    config = config_file(tmp_path, source, target, [topic_name], topic_name, rules=rules)
    assert rekeyed(tmp_path, config)[0] == ExitCode.DONE
    admin = AdminClient({"bootstrap.servers": target})
    for future in admin.delete_topics([topic_name]).values():
        future.result(TIMEOUT)
    wait_for(lambda: topic_name not in admin.list_topics(timeout=20).topics, TIMEOUT, lambda: "still there")
    code, log = rekeyed(tmp_path, config)
    assert code == ExitCode.DATA_AT_RISK, log
    assert (
        f"the target topic {topic_name} was deleted and made anew. To begin anew with what the source has now, delete"
        in log
    )


def test_a_topic_that_appears_while_no_mirror_runs_of_a_flow_that_re_keys(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path, here: Here
) -> None:
    """`topics.start` is of the first start alone, also where that left nothing but reports of re-keyed topics: what
    appears later, re-keyed or not, comes from its first record.
    """
    names = [topic_name, f"{topic_name}-rekeyed", f"{topic_name}-plain"]
    rules = [{"match": f"{topic_name}(-rekeyed)?", "partitions": 2}]
    sides = own_source.bootstrap, own_target.bootstrap

    def run(topics: list[str]) -> None:
        config = config_file(tmp_path, *sides, topics, flow=topic_name, start="latest", rules=rules)
        code, log = here.rekeyed(config)
        assert code == ExitCode.DONE, log

    make_topic(sides[0], names[0])
    produce(sides[0], names[0], [b"before"] * 30)
    run(names[:1])
    produce(sides[0], names[0], [b"since"] * 10)
    run(names[:1])
    for name in names[1:]:
        make_topic(sides[0], name)
        produce(sides[0], name, [b"later"] * 50)
    run(names)

    assert [len(read_committed(sides[1], name)) for name in names] == [10, 50, 50]


def test_deletions_that_a_compacted_source_has_forgotten_are_on_record(
    own_target: Cluster, topic_name: str, tmp_path: Path, here: Here
) -> None:
    """Keys may live on in a copy that was behind for longer than the source keeps tombstones: until a person takes it
    as it is, or it is begun anew. One that was not behind lacks nothing, whatever the cleaner took.
    """
    target = own_target.bootstrap
    (source,) = start_many([Spec(name="cleaning", config={"log.cleaner.backoff.ms": 300})])

    def on_record() -> int:
        code = CliRunner().invoke(app, ["failover", str(config), "--rehearse"]).exit_code
        assert code in (ExitCode.DONE, ExitCode.NOT_WHOLE)
        return code

    with source:
        make_topic(source.bootstrap, topic_name, configs=CLEANED_SOON | {"delete.retention.ms": "300"})
        rules = [{"match": topic_name, "rekey": "concat('k', string(key))"}]
        config = config_file(tmp_path, source.bootstrap, target, [topic_name], topic_name, rules=rules)
        ten_keys(source.bootstrap, topic_name)
        delete_keys(source.bootstrap, topic_name, forgets=True)
        assert here.rekeyed(config)[0] == ExitCode.DONE
        assert on_record() == ExitCode.DONE, "nothing was copied that could live on"
        for forget in (True, False):
            ten_keys(source.bootstrap, topic_name)
            assert here.rekeyed(config)[0] == ExitCode.DONE
            delete_keys(source.bootstrap, topic_name, forgets=True)
            code, log = here.rekeyed(config)
            assert code == ExitCode.DONE
            assert "event=records_lost" in log
            assert here.rekeyed(config)[0] == ExitCode.DONE
            assert on_record() == ExitCode.NOT_WHOLE
            if forget:
                done = CliRunner().invoke(app, ["accept", str(config), topic_name])
                assert done.exit_code == ExitCode.DONE, done.output
                assert "accepted what may be missing (reason tombstones)" in done.output
                again = CliRunner().invoke(app, ["accept", str(config), topic_name])
                assert isinstance(again.exception, ConfigError), again.output
            else:
                remove_topics(Admin(load(config).target), topic_name, f"mirror.{topic_name}.rekey.{topic_name}")
                assert here.rekeyed(config)[0] == ExitCode.DONE
            assert on_record() == ExitCode.DONE
