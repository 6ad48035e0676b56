"""The image and docker-compose.yml as text: by the published schema, pinned, on loopback, watched, and true to the rest
of the project. What they do is tried by test_docker.py, which needs an engine.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema
from deployment import HOME, SERVICES, STACK
from jsonschema.validators import validator_for
from webserver import send, serving

from mirror.config import load
from mirror.lab.demo.clients import LostRecord, Progress
from mirror.lab.embedded.jars import KAFKA_VERSION

DOCKERFILE = (HOME / "Dockerfile").read_text(encoding="utf-8")

HEALTHY = HOME / "containers" / "healthy"

VERSION = tomllib.loads((HOME / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]


def complaints(stack: dict[str, Any]) -> list[str]:
    """What the Compose specification's schema has against it."""
    schema = get_builtin_schema("vendor.compose-spec")
    return [error.message for error in validator_for(schema)(schema).iter_errors(stack)]


def test_the_stack_is_what_compose_takes() -> None:
    assert complaints(STACK) == []


def test_every_image_is_pinned() -> None:
    images = {one["image"] for one in SERVICES.values()}
    assert len(images) == 4
    base = re.findall(r"^ARG BASE=(\S+)$", DOCKERFILE, re.MULTILINE)
    assert set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)) == {"${BASE}"}
    for image in (*images, *base):
        assert re.fullmatch(r"[\w/-]+:v?\d+\.\d+\S*", image), image


def test_versions_are_those_of_the_project() -> None:
    assert SERVICES["eu"]["image"] == SERVICES["us"]["image"] == f"apache/kafka:{KAFKA_VERSION}"
    assert SERVICES["mirror"]["image"] == f"mirror:{VERSION}"


def test_ports_are_published_on_loopback_alone_and_once() -> None:
    ports = [port for one in SERVICES.values() for port in one.get("ports", ())]
    assert ports
    assert [port for port in ports if not re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port)] == []
    assert len({port.split(":")[1] for port in ports}) == len(ports)


def test_every_service_is_watched_and_waits_for_what_it_needs() -> None:
    for name, service in SERVICES.items():
        watched = "test" in service.get("healthcheck", {}) or (
            "HEALTHCHECK" in DOCKERFILE and "run" in service.get("command", [])
        )
        assert watched or name == "topics", f"{name}: nobody watches it"
        for needed, how in service.get("depends_on", {}).items():
            ends_itself = needed == "topics"
            assert how["condition"] == ("service_completed_successfully" if ends_itself else "service_healthy")


def test_containers_of_the_image_have_no_rights_and_write_to_volumes_alone() -> None:
    ours = [one for one in SERVICES.values() if one["image"].startswith("mirror:")]
    assert len(ours) == 7
    for service in ours:
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]


def test_an_index_of_ones_own_is_named_alike_wherever_the_image_is_built() -> None:
    """By `docker build`, by Compose, and in the page; and what may hold its password is no part of a commit."""
    wanted = set(re.findall(r"--mount=type=secret,id=([\w.]+)", DOCKERFILE))
    own = yaml.safe_load((HOME / "containers" / "own-index.yaml").read_text(encoding="utf-8"))
    (builder,) = (name for name, service in SERVICES.items() if "build" in service)
    assert set(own["services"][builder]["build"]["secrets"]) == wanted
    assert own["secrets"] == {name: {"file": name} for name in wanted}
    page = (HOME / "docs" / "containers.md").read_text(encoding="utf-8")
    assert {one for one in wanted if f"--secret id={one},src={one}" in page} == wanted
    ignored = (HOME / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert {f"/{one}" for one in wanted} <= {*ignored}


@pytest.mark.parametrize(("service", "flow"), [("mirror", "eu-to-us"), ("mirror-back", "us-to-eu")])
def test_the_flows_are_valid_and_each_others_reverse(service: str, flow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SERVICES[service]["environment"].items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOSTNAME", "a1b2c3d4e5f6")  # as the engine sets it
    found = load(HOME / "containers" / f"{flow}.yaml")
    assert found.flow == flow
    assert f"{found.source.alias}-to-{found.target.alias}" == flow
    assert found.spark.conf["spark.driver.host"] == "a1b2c3d4e5f6"
    assert [*found.source.bootstrap, *found.target.bootstrap] == [
        (one.alias, 9092) for one in (found.source, found.target)
    ]
    assert f"/etc/mirror/{flow}.yaml" in SERVICES[service]["command"]
    scraped = yaml.safe_load((HOME / "containers" / "prometheus.yml").read_text(encoding="utf-8"))
    (job,) = scraped["scrape_configs"]
    assert f"{service}:9404" in job["static_configs"][0]["targets"]


def health(*arguments: str, url: str = "http://127.0.0.1:9/") -> tuple[int, str]:
    """What the image's health check ends with, and says."""
    command = [sys.executable, str(HEALTHY), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "METRICS_URL": url})
    return done.returncode, done.stderr.strip()


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ('mirror_report_age_seconds{flow="eu-to-us"} 1.5\n', 0, ""),
        ('mirror_report_age_seconds{flow="eu-to-us"} 75.2\n', 1, "a partition is silent for 75 s"),
        ("mirror_restarts_total 0\n", 1, "no partition has reported yet"),
    ],
)
def test_a_mirror_is_healthy_while_its_partitions_report(text: str, code: int, said: str) -> None:
    with serving(lambda handler, _: send(handler, text.encode())) as url:
        assert health(url=url) == (code, said)


def test_what_does_not_answer_is_not_healthy() -> None:
    code, said = health()
    assert code == 1
    assert "refused" in said
    with serving(lambda handler, _: send(handler, b"")) as url:
        assert health(url) == (0, "")


def test_what_has_touched_its_file_is_healthy(tmp_path: Path) -> None:
    file = tmp_path / "alive"
    assert health("--touched", str(file)) == (1, f"{file} is not there yet")
    file.touch()
    assert health("--touched", str(file)) == (0, "")
    os.utime(file, (long_ago := time.time() - 100, long_ago))
    assert health("--touched", str(file))[0] == 1


def test_a_reader_knows_what_comes_next() -> None:
    known = Progress({0: 5})
    known.take(0, 5, 5)
    known.take(0, 4, 4)
    known.take(1, 7, 7)  # the first of a partition is where the group stood
    assert (known.next, known.read, known.repeated) == ({0: 6, 1: 8}, 2, 1)
    with pytest.raises(LostRecord, match="offset 8 came where 6 was expected"):
        known.take(0, 8, 8)
    with pytest.raises(LostRecord, match="the record at offset 6 has number 9"):
        known.take(0, 6, 9)
