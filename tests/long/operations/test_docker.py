"""The image and docker-compose.yml, run: `make docker-test`. Skipped by name where no engine answers.

An image that the stack names is pulled where it is not there. Where it cannot be, `scripts/stand-in-images` makes one;
of Grafana there is no stand-in, so without its image it is left out of the stack, and its test is skipped.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from alerts import shown
from deployment import HOME, SERVICES
from testcontainers.compose import DockerCompose
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer
from waiting import until

MIRROR = str(SERVICES["mirror"]["image"])
GRAFANA = str(SERVICES["grafana"]["image"])
#: All that the dashboard shows while all is well.
FIGURES = [expression for panel, expression in shown().items() if not panel.startswith("Partitions that are not well")]
#: The helper that removes what a killed test leaves is one more image to pull; fixtures here remove their own.
testcontainers_config.ryuk_disabled = True


def docker(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What the engine's client answers."""
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False)


def is_there(image: str) -> bool:
    """Whether the engine has it, or can get it."""
    return docker("image", "inspect", image).returncode == 0 or docker("pull", "--quiet", image).returncode == 0


pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module", autouse=True)
def image() -> None:
    """Nothing here without an engine and what it is about; looked for no sooner than a test is run."""
    if not shutil.which("docker") or docker("version").returncode != 0:
        pytest.skip("needs a container engine that answers")
    if docker("image", "inspect", MIRROR).returncode != 0:
        pytest.fail(f"{MIRROR} is not there: make image")


@pytest.fixture(scope="module")
def stack() -> Iterator[DockerCompose]:
    """All of docker-compose.yml, as far as there are images, until the end."""
    every = DockerCompose(HOME, profiles=["back"])
    if every.get_containers(include_all=True):
        pytest.fail("the stack is up already: docker compose --profile back down --volumes")
    wanted = [name for name, one in SERVICES.items() if "profiles" not in one and is_there(one["image"])]
    assert set(SERVICES) - set(wanted) <= {"mirror-back", "grafana"}
    try:
        with DockerCompose(HOME, services=wanted, keep_volumes=True) as running:
            yield running
    finally:
        every.stop()


def mirror(*arguments: str) -> Any:
    """What a command of the mirror's prints as JSON in the stack."""
    run = ("compose", "--project-directory", str(HOME), "run", "--rm", "--no-deps", "--no-TTY", "mirror")
    done = docker(*run, "mirror", *arguments, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def fetched(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 # this machine's own
        return json.load(answer)


def figures_of(expression: str) -> Any:
    """What Prometheus has for it."""
    return fetched(f"http://127.0.0.1:9090/api/v1/query?{urlencode({'query': expression})}")["data"]["result"]


def output(container: DockerContainer) -> tuple[int, str]:
    """What a container ended with and said."""
    with container as running:
        code = int(running.get_wrapped_container().wait()["StatusCode"])
        out, err = running.get_logs()
        return code, (out + err).decode()


def in_image(*command: str, **environment: str) -> DockerContainer:
    """The image as the stack and the manifests run it: no rights, nothing to write to but /tmp."""
    bare = DockerContainer(MIRROR, read_only=True, cap_drop=["ALL"]).with_tmpfs_mount("/tmp", "exec,mode=1777")
    for name, value in environment.items():
        bare = bare.with_env(name, value)
    return bare.with_command(list(command))


def test_the_image_runs_as_nobody_in_particular_and_says_what_it_can() -> None:
    code, said = output(in_image("sh", "-c", "id -u; touch /opt/mirror/x; mirror --help"))
    assert (code, said.splitlines()[0]) == (0, "10001")
    assert "Read-only file system" in said
    assert "failover" in said


def test_the_image_has_its_own_java_and_the_locked_packages() -> None:
    check = (
        "import importlib.metadata as m; print(*sorted(f'{d.name.lower()}=={d.version}' for d in m.distributions()))"
    )
    code, said = output(in_image("sh", "-c", f'java -version 2>&1 | head -n 1; python -c "{check}"'))
    java, packages = said.splitlines()
    assert code == 0
    assert 'version "17.' in java
    locked = {line.split()[0] for line in (HOME / "requirements.lock").read_text().splitlines() if line[0].isalpha()}
    there = {one.replace("_", "-") for one in packages.split()}
    assert {one for one in there if not one.startswith("mirror==")} <= locked
    assert len(there) > 20


def test_the_image_is_an_executor() -> None:
    """Spark's word for it starts the right class, which then looks for the driver that it was given."""
    fields = {
        "SPARK_EXECUTOR_MEMORY": "256m",
        "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@127.0.0.1:9",
        "SPARK_EXECUTOR_ID": "1",
        "SPARK_EXECUTOR_CORES": "1",
        "SPARK_APPLICATION_ID": "app",
        "SPARK_EXECUTOR_POD_IP": "127.0.0.1",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_POD_NAME": "pod",
    }
    code, said = output(in_image("executor", **fields))
    assert code != 0
    assert "Connection refused" in said, said
    assert "127.0.0.1:9" in said


def test_the_story_is_played_to_its_end(stack: DockerCompose, tmp_path: Path) -> None:
    """And before it, while all is well: the dashboard's figures, a census, and a proof, by tasks of Spark."""
    until(lambda: all(figures_of(one) for one in FIGURES), lambda: str([*map(figures_of, FIGURES)]))
    census = mirror("census", "/etc/mirror/eu-to-us.yaml")
    assert "orders" in json.dumps(census)
    proof = mirror("verify", "/etc/mirror/eu-to-us.yaml", "--spark")
    assert proof["equal"]
    assert proof["spark"]
    done = subprocess.run([HOME / "scripts" / "story"], capture_output=True, text=True, check=False)
    (tmp_path / "story.txt").write_text(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "none twice, none lost" in done.stdout
    again = subprocess.run([HOME / "scripts" / "story"], capture_output=True, text=True, check=False)
    assert again.returncode == 1, "it is logged once"


def test_grafana_has_the_dashboard_and_the_figures(stack: DockerCompose) -> None:
    if not is_there(GRAFANA):
        pytest.skip(f"needs the image {GRAFANA}")
    board = fetched("http://127.0.0.1:3000/api/dashboards/uid/mirror-flow")["dashboard"]
    assert board["title"] == json.loads((HOME / "ops" / "grafana" / "mirror.json").read_text())["title"]
    query = "http://127.0.0.1:3000/api/datasources/proxy/uid/{}/api/v1/query?query=mirror_records_lag"
    (source,) = fetched("http://127.0.0.1:3000/api/datasources")
    until(lambda: fetched(query.format(source["uid"]))["data"]["result"], lambda: "no figures")
