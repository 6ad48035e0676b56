"""A mirror as a real Prometheus sees it, and whoever reads the target alone."""

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
from running import running, values
from samerecords import read
from waiting import until

from mirror.journal.heartbeats import Heartbeat, heartbeat_topic
from mirror.lab.embedded import Cluster

RULES = Path(__file__).parents[3] / "ops" / "prometheus" / "mirror.rules.yml"


def got(address: str) -> str:
    try:
        with urllib.request.urlopen(f"http://{address}", timeout=5) as answer:
            return str(answer.read().decode())
    except OSError:  # it is just starting
        return ""


def sample(port: int, name: str, **labels: str) -> float:
    """Return the sum of the samples with these labels, as the endpoint shows it now."""
    families = parsed(got(f"127.0.0.1:{port}/metrics"))
    samples = [one for family in families for one in family.samples if one.name == name]
    return sum(one.value for one in samples if labels.items() <= one.labels.items())


@contextmanager
def prometheus(folder: Path, port: int) -> Iterator[Callable[[], list[Any] | None]]:
    """Run a Prometheus with our rules that scrapes `port` each second. Yield what gives the alerts that fire for a
    stop, None as long as Prometheus knows nothing of the mirror.
    """
    settings = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [{"job_name": "mirror", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}],
    }
    file, log = folder / "prometheus.yml", folder / "prometheus.log"
    file.write_text(json.dumps(settings))  # JSON is YAML
    options = [f"--config.file={file}", f"--storage.tsdb.path={folder / 'tsdb'}", "--web.listen-address=127.0.0.1:0"]
    with log.open("w") as out:
        process = subprocess.Popen(["prometheus", *options], stderr=out)

    def api() -> str:
        found = [line for line in log.read_text().splitlines() if "Listening on" in line]
        return f"{found[0].rpartition('address=')[2]}/api/v1" if found else ""

    def firing() -> list[Any] | None:
        known = got(f"{api()}/query?query=mirror_partition_state")
        if not known or not json.loads(known)["data"]["result"]:
            return None
        alerts = [one for one in json.loads(got(f"{api()}/alerts"))["data"]["alerts"] if one["state"] == "firing"]
        return [one for one in alerts if one["labels"]["alertname"] == "MirrorPartitionStopped"]

    try:
        until(api, log.read_text)
        yield firing
    finally:
        process.terminate()
        process.wait()


@pytest.mark.skipif(not shutil.which("prometheus"), reason="needs Debian's package prometheus")
def test_a_stop_is_seen_by_prometheus_and_its_alert_fires(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path, free_port: int
) -> None:
    """One story, since each start of Spark costs seconds: figures over epochs, heartbeats, a second mirror that finds
    the port taken, and a producer that writes to the target.
    """
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name, 2)
    produce(source, topic_name, values(100), batch=10)
    sections = {"spark": {"epoch_s": 8, "tasks": 1}, "metrics": {"listen": free_port}}
    config = config_file(tmp_path, source, target, [topic_name], flow=topic_name, sections=sections)

    def batches() -> float:
        return sample(free_port, "mirror_batches_total", topic=topic_name, verdict="RESTAMP")

    with running(config, tmp_path / "log") as mirror, prometheus(tmp_path, free_port) as firing:
        until(lambda: batches() == 10, lambda: mirror.log)
        mirror.until("epoch_ended .*epoch=0")
        produce(source, topic_name, values(50), batch=10)
        until(lambda: batches() == 15, lambda: mirror.log)
        mirror.until("epoch_ended .*epoch=1")
        assert batches() == 15
        assert sample(free_port, "mirror_replication_latency_seconds_count", topic=topic_name) == 15
        assert sample(free_port, "mirror_produce_seconds_count") > 0
        until(lambda: sample(free_port, "mirror_partition_state", state="CAUGHT_UP") == 2, lambda: mirror.log)
        assert sample(free_port, "mirror_records_lag", topic=topic_name) == 0
        beats = [Heartbeat.from_json(value) for _, _, _, _, value, _ in read(target, heartbeat_topic(topic_name), 0)]
        assert ({beat.flow for beat in beats}, beats[-1].partitions) == ({topic_name}, 2)
        with running(config, tmp_path / "second.log") as second:
            assert second.ended() == 2
            assert f"metrics.listen: cannot listen on 127.0.0.1:{free_port}: Address already in use" in second.log
        until(lambda: firing() == [], lambda: "Prometheus evaluates no rules")
        produce(target, topic_name, [b"of somebody else"])
        produce(source, topic_name, values(1))
        (alert,) = until(firing, lambda: mirror.log) or []
    assert alert["labels"] | {"topic": topic_name, "partition": "0", "flow": topic_name} == alert["labels"]
    assert alert["labels"]["state"] in ("FENCED", "DIVERGED")
    assert alert["annotations"]["runbook"] == "RUNBOOK.md#mirrorpartitionstopped"
