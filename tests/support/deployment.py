"""The manifests and containers of the project."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

HOME = Path(__file__).parents[2]
STACK: dict[str, Any] = yaml.safe_load((HOME / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = STACK["services"]
CONFIGS = HOME / "configs"
MANIFESTS = sorted((CONFIGS / "kubernetes").glob("*.yaml"))
#: Releases of Kubernetes: one that clusters still run, and the newest that there are schemas of.
RELEASES = ("1.32", "1.37")
Manifest = dict[str, Any]


def manifests() -> dict[str, Manifest]:
    """All, by kind and name."""
    found = [one for file in MANIFESTS for one in yaml.safe_load_all(file.read_text(encoding="utf-8"))]
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in found}


def flow_map() -> dict[str, str]:
    data: dict[str, str] = manifests()["ConfigMap/mirror-eu-to-us"]["data"]
    return data


def executor() -> Manifest:
    """The template of an executor's pod."""
    found: Manifest = yaml.safe_load(flow_map()["executor.yaml"])
    return found


def referred_to() -> set[str]:
    """The variables that the flow asks for."""
    return set(re.findall(r"\$\{env:(\w+)\}", flow_map()["eu-to-us.yaml"]))


def submitted() -> dict[str, str]:
    """Return the settings that `spark-submit` is given on YARN."""
    lines = (CONFIGS / "yarn" / "mirror.conf").read_text(encoding="utf-8").splitlines()
    pairs = (line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))
    return dict(pairs)
