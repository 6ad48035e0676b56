"""A mirror as Prometheus, and whoever reads the target alone, see it: real brokers, Spark, and a real Prometheus."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers import config_file, make_topic, produce
from prometheus_client.parser import text_string_to_metric_families as parsed
from running import running, values, wait_for
from samerecords import read

from mirror.journal.heartbeats import Heartbeat, heartbeat_topic
from mirror.lab.embedded import Cluster

pytestmark = [pytest.mark.brokers, pytest.mark.spark]
RULES = Path(__file__).parents[3] / "ops" / "prometheus" / "mirror.rules.yml"
needs_prometheus = pytest.mark.skipif(not shutil.which("prometheus"), reason="needs Debian's package prometheus")


def watched(folder: Path, source: Cluster, target: Cluster, topic: str, port: int) -> Path:
    """A configuration with an endpoint, and epochs short enough to see some."""
    config = config_file(folder, source.bootstrap, target.bootstrap, [topic], flow=topic)
    more = {"spark": {"epoch_s": 8, "tasks": 1}, "metrics": {"listen": port}}
    config.write_text(json.dumps(json.loads(config.read_text()) | more))
    return config


def got(where: str) -> str:
    try:
        with urllib.request.urlopen(f"http://{where}", timeout=5) as answer:
            return str(answer.read().decode())
    except OSError:  # it is just starting
        return ""


def sample(port: int, name: str, **labels: str) -> float | None:
    """The sum of the samples with these labels, as the endpoint shows it now; None where there is none."""
    found = [
        sample.value
        for family in parsed(got(f"127.0.0.1:{port}/metrics"))
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    return sum(found) if found else None


def until(condition: Callable[[], Any], otherwise: Callable[[], str]) -> None:
    wait_for(condition, 120, otherwise)


@needs_prometheus
def test_a_stop_is_seen_by_prometheus_and_its_alert_fires(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path, free_port: int
) -> None:
    """One story, since each start of Spark costs seconds: figures over epochs, heartbeats, a second mirror that finds
    the port taken, and a producer that writes to the target.
    """
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name, 2)
    produce(source, topic_name, values(100), batch=10)
    config = watched(tmp_path, own_source, own_target, topic_name, free_port)

    def batches() -> float | None:
        return sample(free_port, "mirror_batches_total", topic=topic_name, verdict="RESTAMP")

    with running(config, tmp_path / "log") as mirror, prometheus(tmp_path, free_port) as item:
        until(lambda: batches() == 10, lambda: mirror.log)
        mirror.until("epoch_ended .*epoch=0", 120)
        produce(source, topic_name, values(50), batch=10)
        until(lambda: batches() == 15, lambda: mirror.log)
        mirror.until("epoch_ended .*epoch=1", 120)
        assert batches() == 15
        assert sample(free_port, "mirror_replication_latency_seconds_count", topic=topic_name) == 15
        assert (sample(free_port, "mirror_produce_seconds_count") or 0) > 0
        assert (sample(free_port, "mirror_fetch_seconds_count") or 0) > 0
        until(lambda: sample(free_port, "mirror_partition_state", state="CAUGHT_UP") == 2, lambda: mirror.log)
        assert sample(free_port, "mirror_records_lag", topic=topic_name) == 0
        assert (sample(free_port, "mirror_group_sync_age_seconds") or 99) < 60

        beats = [Heartbeat.from_json(value) for _, _, _, _, value, _ in read(target, heartbeat_topic(topic_name), 0)]
        assert {beat.flow for beat in beats} == {topic_name}
        assert beats[-1].partitions == 2

        with running(config, tmp_path / "second.log") as second:
            assert second.ended() == 2
            assert f"metrics.listen: cannot listen on 127.0.0.1:{free_port}: Address already in use" in second.log

        until(lambda: item("MirrorPartitionStopped") == [], lambda: "Prometheus evaluates no rules")
        produce(target, topic_name, [b"of somebody else"])
        produce(source, topic_name, values(1))
        until(lambda: item("MirrorPartitionStopped"), lambda: mirror.log)
        (alert,) = item("MirrorPartitionStopped") or []
        assert alert["labels"] | {"topic": topic_name, "partition": "0", "flow": topic_name} == alert["labels"]
        assert alert["labels"]["state"] in ("FENCED", "DIVERGED")
        assert alert["annotations"]["runbook"] == "RUNBOOK.md#mirrorpartitionstopped"


@contextmanager
def prometheus(folder: Path, port: int) -> Iterator[Callable[[str], list[Any] | None]]:
    """A Prometheus with our rules that scrapes `port` each second; what it gives are the alerts of a name that fire,
    None as long as Prometheus knows nothing of the mirror.
    """
    settings = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [{"job_name": "mirror", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(settings))  # JSON is YAML
    log = folder / "prometheus.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'tsdb'}",
                "--web.listen-address=127.0.0.1:0",
            ],
            stderr=out,
        )

    def api() -> str:
        for line in log.read_text().splitlines():
            if "Listening on" in line:
                return f"{line.rpartition('address=')[2]}/api/v1"
        return ""

    def firing(name: str) -> list[Any] | None:
        known = got(f"{api()}/query?query=mirror_partition_state")
        if not known or not json.loads(known)["data"]["result"]:
            return None
        alerts = json.loads(got(f"{api()}/alerts"))["data"]["alerts"]
        return [alert for alert in alerts if alert["labels"]["alertname"] == name and alert["state"] == "firing"]

    try:
        until(api, log.read_text)
        yield firing
    finally:
        process.terminate()
        process.wait(30)
