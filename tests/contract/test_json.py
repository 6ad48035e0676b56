"""The keys of what commands print with `--json`, which scripts of others read: they change on purpose alone.

`UPDATE=1 pytest tests/contract/test_json.py` writes `outward_keys.json` anew; a change is a line in the CHANGELOG.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from commandline import called
from groupoffsets import commit
from helpers import config_file, make_topic, produce, settings_between
from pair import Shared
from sparkless import run_once

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


@pytest.mark.proves(
    "mirror plan",
    "mirror verify",
    "mirror status",
    "mirror accept",
    "mirror adopt",
    "mirror pause",
    "mirror resume",
    "mirror inspect",
    "mirror offsets translate",
    "mirror offsets find",
    "mirror config show",
    "mirror import-mm2",
    "mirror failover",
)
def test_keys_that_scripts_read_are_as_they_were(
    source_cluster: Shared, target_cluster: Shared, topic_name: str, tmp_path: Path
) -> None:
    source, target = source_cluster.bootstrap, target_cluster.bootstrap
    make_topic(source, topic_name)
    produce(source, topic_name, (b"%d" % number for number in range(20)))
    commit(source, f"{topic_name}-group", topic_name, 7)
    settings = settings_between(source, target, [topic_name], topic_name)
    run_once(settings)
    produce(source, topic_name, (b"%d" % number for number in range(20, 30)))
    sections = {"groups": {"include": [f"{topic_name}-group"]}}
    config = config_file(tmp_path, source, target, [topic_name], topic_name, sections=sections)
    mm2 = tmp_path / "mm2.properties"
    mm2.write_text(_MM2, encoding="utf-8")
    commands: dict[str, list[str | Path]] = {
        "plan": [config],
        "verify": [config, "--no-spark", "--wait", "0"],
        "status": [config],
        "accept": [config, topic_name],
        "adopt": [config, topic_name],
        "pause": [config, topic_name],
        "resume": [config, topic_name],
        "inspect": [topic_name, "--bootstrap", source],
        "offsets translate": [config, topic_name, "0", "5"],
        "offsets find": [topic_name, "--time", "2020-01-31", "--bootstrap", source],
        "config show": [config],
        "import-mm2": [mm2],
        "failover": [config],
    }
    found = dict[str, list[str]]()
    for command, arguments in commands.items():
        printed = called(*command.split(), *arguments, "--json").out
        assert printed, command
        lines = printed.splitlines() if command == "inspect" else [printed]
        found[command] = sorted({path for line in lines for path in keys(json.loads(line), topic_name)})
    if os.environ.get("UPDATE"):
        _KEPT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    assert found == json.loads(_KEPT.read_text(encoding="utf-8"))
