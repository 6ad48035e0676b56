"""What runs a mirror on Spark clusters, as text: manifests by Kubernetes' published schemas, units by systemd, and that
all of them say the same. Spark's own settings are looked up in `tests/spark/test_session.py`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from deployment import CONFIGS, HOME, RELEASES, Manifest, executor, flow_map, manifests, referred_to, submitted
from kubernetes_validate import validate

from mirror.config import Settings, load

#: What a manifest names and a test has elsewhere.
SECRETS = "/etc/mirror/secrets"
EVERY = manifests() | {"Pod/executor": executor()}
DRIVER: Manifest = EVERY["Deployment/mirror-eu-to-us"]["spec"]["template"]

needs_systemd = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")


@pytest.fixture
def flow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The one of the config map, in the driver's environment and beside its secrets."""
    for name in referred_to():
        monkeypatch.setenv(name, "10.1.2.3" if name.endswith("_IP") else name.lower())
    for name in ("eu-password", "us-password", "eu-ca.pem", "us-ca.pem"):
        (tmp_path / name).write_text("hunter2")
        (tmp_path / name).chmod(0o600)
    file = tmp_path / "eu-to-us.yaml"
    file.write_text(flow_map()["eu-to-us.yaml"].replace(SECRETS, str(tmp_path)))
    return load(file)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", EVERY)
def test_a_manifest_is_what_kubernetes_takes(name: str, release: str) -> None:
    validate(EVERY[name], release, strict=True)


def test_tasks_are_the_cores_that_are_asked_for(flow: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    assert flow.spark.master.startswith("k8s://")
    yarn = (CONFIGS / "yarn" / "mirror.conf").read_text(encoding="utf-8")
    (tasks,) = re.findall(r"`spark\.tasks: (\d+)` in the flow", yarn)
    for wanted, conf in ((flow.spark.tasks, flow.spark.conf), (int(tasks), submitted())):
        assert wanted == int(conf["spark.executor.instances"]) * int(conf["spark.executor.cores"])
    monkeypatch.setenv("EU", "eu.example:9092")
    monkeypatch.setenv("US", "us.example:9092")
    standalone = load(CONFIGS / "standalone" / "eu-to-us.yaml")
    assert standalone.spark.master.startswith("spark://")
    assert standalone.spark.tasks == int(standalone.spark.conf["spark.cores.max"])


def test_references_are_to_what_the_driver_has() -> None:
    text = flow_map()["eu-to-us.yaml"]
    (container,) = DRIVER["spec"]["containers"]
    assert referred_to() <= {one["name"] for one in container["env"]}
    mounted = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
    volumes = {one["name"]: one for one in DRIVER["spec"]["volumes"]}
    assert volumes[mounted[SECRETS]]["secret"]["secretName"] == "mirror-eu-to-us"
    assert set(re.findall(r"/etc/mirror/\w+", text)) <= set(mounted)
    assert container["args"][:3] == ["mirror", "run", "/etc/mirror/flow/eu-to-us.yaml"]
    assert volumes[mounted["/etc/mirror/flow"]]["configMap"]["name"] == "mirror-eu-to-us"
    conf = yaml.safe_load(text)["spark"]["conf"]
    assert conf["spark.kubernetes.executor.podTemplateFile"] == "/etc/mirror/flow/executor.yaml"
    (image,) = [one["value"] for one in container["env"] if one["name"] == "MIRROR_IMAGE"]
    assert container["image"] == image


def test_executors_have_the_authorities_where_the_flow_names_them_and_no_password(flow: Settings) -> None:
    (container,) = executor()["spec"]["containers"]
    (path,) = [one["mountPath"] for one in container["volumeMounts"] if one["name"] == "authorities"]
    (volume,) = [one["secret"] for one in executor()["spec"]["volumes"] if one["name"] == "authorities"]
    there = {f"{path}/{item['path']}" for item in volume["items"]}
    assert there == {f"{SECRETS}/{Path(str(end.ssl_ca_location)).name}" for end in (flow.source, flow.target)}
    assert not any("password" in item["key"] for item in volume["items"])


def test_pods_write_to_volumes_alone_and_run_as_the_user_of_the_image() -> None:
    (user,) = re.findall(r"^USER (\d+)$", (HOME / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    for pod in (executor(), DRIVER):
        assert pod["spec"]["securityContext"]["runAsUser"] == int(user)
        (container,) = pod["spec"]["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        kinds = {one["name"]: set(one) - {"name"} for one in pod["spec"]["volumes"]}
        writable = {one["name"] for one in container["volumeMounts"] if not one.get("readOnly")}
        assert all(kinds[name] == {"emptyDir"} for name in writable)


def selects(labels_wanted: dict[str, str], labels: dict[str, str]) -> bool:
    return labels_wanted.items() <= labels.items()


def test_policies_and_the_deployment_select_the_pods_that_there_are(flow: Settings) -> None:
    labels = {"driver": DRIVER["metadata"]["labels"], "executor": executor()["metadata"]["labels"]}
    for role in labels:
        policy = EVERY[f"NetworkPolicy/mirror-eu-to-us-{role}"]["spec"]
        chosen = policy["podSelector"]["matchLabels"]
        assert [other for other, those in labels.items() if selects(chosen, those)] == [role]
        (peers,) = [one["from"] for one in policy["ingress"] if "from" in one]
        (onwards,) = [one["to"] for one in policy["egress"] if "to" in one]
        for peer in (*peers, *onwards):
            assert all(selects(peer["podSelector"]["matchLabels"], those) for those in labels.values())
        open_ports = {port["port"] for one in policy["egress"] for port in one.get("ports", ())}
        assert {port for end in (flow.source, flow.target) for _, port in end.bootstrap} <= open_ports
    deployed = EVERY["Deployment/mirror-eu-to-us"]["spec"]["selector"]["matchLabels"]
    assert selects(deployed, labels["driver"])
    assert not selects(deployed, labels["executor"])
    ((port,),) = [one["ports"] for one in DRIVER["spec"]["containers"]]
    assert f":{port['containerPort']}" in str(flow.metrics.listen)


def test_accounts_are_there(flow: Settings) -> None:
    assert f"ServiceAccount/{DRIVER['spec']['serviceAccountName']}" in EVERY
    name = flow.spark.conf["spark.kubernetes.authenticate.executor.serviceAccountName"]
    assert EVERY[f"ServiceAccount/{name}"]["automountServiceAccountToken"] is False
    binding = EVERY["RoleBinding/mirror-driver"]
    assert f"{binding['roleRef']['kind']}/{binding['roleRef']['name']}" in EVERY
    assert all(f"{one['kind']}/{one['name']}" in EVERY for one in binding["subjects"])


@needs_systemd
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    worker, driver = tmp_path / "spark-worker.service", tmp_path / "mirror@eu-to-us.service"
    text = (CONFIGS / "standalone" / worker.name).read_text(encoding="utf-8")
    worker.write_text(text.replace("/opt/spark/bin/spark-class", "/bin/true"))
    text = (HOME / "ops" / "systemd" / "mirror@.service").read_text(encoding="utf-8")
    driver.write_text(text.replace("/opt/mirror/.venv/bin/mirror", "/bin/true"))
    added = tmp_path / f"{driver.name}.d" / "cluster.conf"
    added.parent.mkdir()
    added.write_bytes((CONFIGS / "standalone" / "mirror@.service.d" / added.name).read_bytes())
    for unit in (worker, driver):
        assert complaints(unit) == []
    worker.write_text(worker.read_text().replace("ProtectSystem=strict", "ProtectSystem=sternly"))
    assert complaints(worker) != []


def complaints(unit: Path) -> list[str]:
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    return [line for line in done.stderr.splitlines() if unit.name in line or str(unit.parent) in line]
