"""The keys of what commands print with `--json`, which scripts of others read: they change on purpose alone.

`UPDATE=1 pytest tests/long/brokers/test_outward_json.py` writes `outward_keys.json` anew; a change is a line in the
CHANGELOG.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Place
from helpers import config_file, make_topic, produce, settings_between
from sparkless import run_once
from typer.testing import CliRunner

from mirror.cli import app
from mirror.lab.embedded import Cluster

_KEPT: Final = Path(__file__).with_name("outward_keys.json")
#: What is counted below these is what there was: verdicts, states, latencies.
_COUNTED: Final = {"latency", "states", "verdict_bytes", "verdicts"}
_MM2: Final = "clusters = a, b\na.bootstrap.servers = a:9092\nb.bootstrap.servers = b:9092\na->b.enabled = true\n"


def keys(value: Any, topic: str, at: str = "") -> Iterator[str]:
    """Each path of keys, `[]` for a place in a list; where a name is a key, a word stands for it."""
    if value in ([], {}):
        yield at
    elif isinstance(value, list):
        for one in value:
            yield from keys(one, topic, f"{at}[]")
    elif isinstance(value, dict):
        for key, one in value.items():
            if key in _COUNTED:
                yield f"{at}.{key}"
            else:
                yield from keys(one, topic, f"{at}.{key.replace(topic, 'TOPIC')}")
    else:
        yield at


def called(source: str, folder: Path, config: Path, topic: str) -> dict[str, list[str]]:
    """Commands with their arguments; the failover comes last."""
    mm2 = folder / "mm2.properties"
    mm2.write_text(_MM2, encoding="utf-8")
    return {
        "plan": [str(config)],
        "verify": [str(config), "--no-spark", "--wait", "0"],
        "status": [str(config)],
        "accept": [str(config), topic],
        "adopt": [str(config), topic],
        "pause": [str(config), topic],
        "resume": [str(config), topic],
        "inspect": [topic, "--bootstrap", source],
        "census": [str(config)],
        "offsets translate": [str(config), topic, "0", "5"],
        "offsets find": [topic, "--time", "2020-01-31", "--bootstrap", source],
        "config show": [str(config)],
        "import-mm2": [str(mm2)],
        "failover": [str(config)],
    }


def printed(arguments: list[str]) -> str:
    """What a command prints; one that needs Spark gets a process of its own, since other tests have a session here."""
    if arguments[0] != "census":
        return CliRunner().invoke(app, arguments).stdout
    command = [sys.executable, "-m", "mirror", *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


@pytest.mark.brokers
def test_keys_that_scripts_read_are_as_they_were(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name)
    produce(source, topic_name, (b"%d" % number for number in range(20)))
    reader = Consumer({"bootstrap.servers": source, "group.id": f"{topic_name}-group"})
    reader.commit(offsets=[Place(topic_name, 0, 7)], asynchronous=False)
    reader.close()
    run_once(settings_between(source, target, [topic_name], topic_name))
    produce(source, topic_name, (b"%d" % number for number in range(20, 30)))
    config = config_file(tmp_path, source, target, [topic_name], topic_name)
    found = dict[str, list[str]]()
    for command, arguments in called(source, tmp_path, config, topic_name).items():
        output = printed([*command.split(), *arguments, "--json"])
        assert output, command
        lines = output.splitlines() if command == "inspect" else [output]
        found[command] = sorted({path for line in lines for path in keys(json.loads(line), topic_name)})
    if os.environ.get("UPDATE"):
        _KEPT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    assert found == json.loads(_KEPT.read_text(encoding="utf-8"))
