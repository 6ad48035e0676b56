"""Targets: files that people hand over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Final

from mirror.config.yaml_tree import YamlTree
from mirror.errors import ConfigError
from mirror.mm2.importing import imported

_SOUND: Final = b"""\
clusters = a, b
a.bootstrap.servers = a:1
b.bootstrap.servers = b\\:2, \\
    c:3
a->b.enabled = true
a->b.topics = x.*, \\u20ac
sync.group.offsets.enabled: true
b.sasl.jaas.config = p.ScramLoginModule required username="u" password='p';
b.ssl.keystore.location ${file:/x:y}
"""

_NOWHERE: Final = Path("/nonexistent")


def properties(data: bytes) -> None:
    """A configuration of MirrorMaker's: refused by name, or translated into YAML."""
    try:
        flows = imported(data, "mm2.properties")
    except ConfigError as refusal:
        reported = str(refusal)
        assert reported.startswith("mm2.properties")
        return
    for flow in flows:
        assert YamlTree(flow.text, folder=_NOWHERE).data["name"] == flow.name


def property_files(_: Random) -> Iterator[bytes]:
    """Seeds for `properties`."""
    yield _SOUND
    yield _SOUND.replace(b"\n", b"\r\n")
