"""What runs a mirror on Spark clusters: manifests by Kubernetes' published schemas, units by systemd, settings by what
Spark itself knows, flows by the mirror's own check; and that all of them say the same.
"""

from __future__ import annotations

import copy
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from deployment import CONFIGS, HOME, RELEASES, Manifest, executor, flow_map, manifests, referred_to
from kubernetes_validate import SchemaNotFoundError, ValidationError, validate

from mirror.config import Settings, load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

YARN = CONFIGS / "yarn" / "mirror.conf"
GUIDE = HOME / "docs" / "clusters.md"
#: What a manifest names and a test has elsewhere.
SECRETS = "/etc/mirror/secrets"

needs_systemd = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")


def driver() -> Manifest:
    found: Manifest = manifests()["Deployment/mirror-eu-to-us"]["spec"]["template"]
    return found


EVERY = manifests() | {"Pod/executor": executor()}


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


def flow_env() -> set[str]:
    """What the driver's pod sets."""
    (container,) = driver()["spec"]["containers"]
    return {one["name"] for one in container["env"]}


def properties(text: str) -> dict[str, str]:
    """A file of properties as Spark reads it: key, space, value."""
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return {line.split(maxsplit=1)[0]: line.split(maxsplit=1)[1] for line in lines}


def submitted() -> dict[str, str]:
    return properties(YARN.read_text(encoding="utf-8"))


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", EVERY)
def test_a_manifest_is_what_kubernetes_takes(name: str, release: str) -> None:
    validate(EVERY[name], release, strict=True)


def spoil(name: str, change: Callable[[Any], object]) -> Manifest:
    spoilt = copy.deepcopy(EVERY[name])
    change(spoilt)
    return spoilt


@pytest.mark.parametrize(
    ("name", "change", "complaint"),
    [
        ("Deployment/mirror-eu-to-us", lambda it: it["spec"].update(replicas="one"), "'one' is not of type"),
        ("Deployment/mirror-eu-to-us", lambda it: it["spec"].update(strateggy={}), "strateggy"),
        ("Deployment/mirror-eu-to-us", lambda it: it["spec"].pop("selector"), "'selector' is a required property"),
        ("Role/mirror-driver", lambda it: it["rules"][0].pop("verbs"), "'verbs' is a required property"),
        ("Pod/executor", lambda it: it["spec"]["volumes"][0]["secret"].update(defaultMode="0440"), "not of type"),
        ("Pod/executor", lambda it: it["spec"]["containers"][0].update(volumeMount=[]), "volumeMount"),
        (
            "NetworkPolicy/mirror-eu-to-us-driver",
            lambda it: it["spec"]["egress"][1]["ports"][0].update(prot="TCP"),
            "'prot' was unexpected",
        ),
    ],
)
def test_a_broken_manifest_is_found(name: str, change: Callable[[Any], object], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        validate(spoil(name, change), RELEASES[-1], strict=True)


def test_a_kind_that_there_is_not_is_found() -> None:
    with pytest.raises(SchemaNotFoundError):
        validate(spoil("Role/mirror-driver", lambda it: it.update(kind="Rolle")), RELEASES[-1], strict=True)


def test_the_config_map_holds_a_flow(flow: Settings) -> None:
    assert flow.flow == "eu-to-us"
    assert flow.spark.master.startswith("k8s://")


def test_the_flow_on_standalone_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EU", "eu.example:9092")
    monkeypatch.setenv("US", "us.example:9092")
    found = load(CONFIGS / "standalone" / "eu-to-us.yaml")
    assert found.spark.master.startswith("spark://")
    assert found.spark.tasks == int(found.spark.conf["spark.cores.max"])


def test_tasks_are_the_cores_that_are_asked_for(flow: Settings) -> None:
    (output,) = re.findall(r"`spark\.tasks: (\d+)` in the flow", YARN.read_text(encoding="utf-8"))
    for tasks, conf in ((flow.spark.tasks, flow.spark.conf), (int(output), submitted())):
        assert tasks == int(conf["spark.executor.instances"]) * int(conf["spark.executor.cores"])


def test_references_are_to_what_the_driver_has() -> None:
    text = flow_map()["eu-to-us.yaml"]
    assert referred_to() <= flow_env()
    mounted = {one["mountPath"]: one["name"] for one in driver()["spec"]["containers"][0]["volumeMounts"]}
    volumes = {one["name"]: one for one in driver()["spec"]["volumes"]}
    assert volumes[mounted[SECRETS]]["secret"]["secretName"] == "mirror-eu-to-us"
    assert set(re.findall(r"/etc/mirror/\w+", text)) <= set(mounted)
    args = driver()["spec"]["containers"][0]["args"]
    assert args[:3] == ["mirror", "run", "/etc/mirror/flow/eu-to-us.yaml"]
    assert volumes[mounted["/etc/mirror/flow"]]["configMap"]["name"] == "mirror-eu-to-us"
    assert load_template_path(text) == "/etc/mirror/flow/executor.yaml"


def load_template_path(text: str) -> str:
    conf = yaml.safe_load(text)["spark"]["conf"]
    return str(conf["spark.kubernetes.executor.podTemplateFile"])


def test_executors_have_the_authorities_where_the_flow_names_them_and_no_password(flow: Settings) -> None:
    (container,) = executor()["spec"]["containers"]
    (path,) = [one["mountPath"] for one in container["volumeMounts"] if one["name"] == "authorities"]
    (volume,) = [one["secret"] for one in executor()["spec"]["volumes"] if one["name"] == "authorities"]
    there = {f"{path}/{item['path']}" for item in volume["items"]}
    named = {f"{SECRETS}/{Path(str(end.ssl_ca_location)).name}" for end in (flow.source, flow.target)}
    assert there == named
    assert not any("password" in item["key"] for item in volume["items"])


def test_executors_write_to_volumes_alone() -> None:
    for pod in (executor(), driver()):
        (container,) = pod["spec"]["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        kinds = {one["name"]: set(one) - {"name"} for one in pod["spec"]["volumes"]}
        writable = {one["name"] for one in container["volumeMounts"] if not one.get("readOnly")}
        assert all(kinds[name] == {"emptyDir"} for name in writable)


def selected(policy: Manifest, labels: Mapping[str, str]) -> bool:
    wanted: dict[str, str] = policy["podSelector"]["matchLabels"]
    return wanted.items() <= labels.items()


def test_policies_and_the_deployment_select_the_pods_that_there_are(flow: Settings) -> None:
    labels = {"driver": driver()["metadata"]["labels"], "executor": executor()["metadata"]["labels"]}
    for role, own in labels.items():
        policy = manifests()[f"NetworkPolicy/mirror-eu-to-us-{role}"]["spec"]
        assert [who for who, those in labels.items() if selected(policy, those)] == [role]
        (peers,) = [one["from"] for one in policy["ingress"] if "from" in one]
        (onwards,) = [one["to"] for one in policy["egress"] if "to" in one]
        assert all(selected(peer, those) for those in labels.values() for peer in (*peers, *onwards))
        open_ports = {port["port"] for one in policy["egress"] for port in one.get("ports", ())}
        assert {port for end in (flow.source, flow.target) for _, port in end.bootstrap} <= open_ports
        assert own["app.kubernetes.io/component"] == role
    chosen = manifests()["Deployment/mirror-eu-to-us"]["spec"]["selector"]["matchLabels"]
    assert chosen.items() <= labels["driver"].items()
    assert not chosen.items() <= labels["executor"].items()
    assert f":{metrics_port()}" in str(flow.metrics.listen)


def metrics_port() -> int:
    ((port,),) = [one["ports"] for one in driver()["spec"]["containers"]]
    return int(port["containerPort"])


def test_accounts_are_there(flow: Settings) -> None:
    every = manifests()
    assert f"ServiceAccount/{driver()['spec']['serviceAccountName']}" in every
    name = flow.spark.conf["spark.kubernetes.authenticate.executor.serviceAccountName"]
    assert every[f"ServiceAccount/{name}"]["automountServiceAccountToken"] is False
    binding = every["RoleBinding/mirror-driver"]
    assert f"{binding['roleRef']['kind']}/{binding['roleRef']['name']}" in every
    assert all(f"{one['kind']}/{one['name']}" in every for one in binding["subjects"])


def test_the_image_is_one() -> None:
    (container,) = driver()["spec"]["containers"]
    (named,) = [one["value"] for one in container["env"] if one["name"] == "MIRROR_IMAGE"]
    assert container["image"] == named


def test_pods_run_as_the_user_that_the_image_has() -> None:
    (user,) = re.findall(r"^USER (\d+)$", (HOME / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    for pod in (driver(), executor()):
        assert pod["spec"]["securityContext"]["runAsUser"] == int(user)


#: What Spark takes by a prefix, and what it reads without an entry of its own.
_FAMILIES = ("spark.yarn.appMasterEnv.", "spark.executorEnv.")
_PLAIN = {"spark.master", "spark.app.name", "spark.local.dir"}
_REGISTRIES = (
    "internal.config.package$",
    "internal.config.Python$",
    "internal.config.UI$",
    "internal.config.Network$",
    "internal.config.Deploy$",
    "internal.config.Worker$",
    "deploy.k8s.Config$",
    "deploy.yarn.config.package$",
)


@pytest.fixture(scope="module")
def is_known(spark: SparkSession) -> Callable[[str], bool]:
    """Whether this version of Spark has a setting, by its own registry."""
    jvm: Any = spark.sparkContext._jvm
    for name in _REGISTRIES:
        jvm.java.lang.Class.forName(f"org.apache.spark.{name}")  # which enters what it defines
    entries = jvm.org.apache.spark.internal.config.ConfigEntry

    def known(key: str) -> bool:
        return key in _PLAIN or f"{key}.".startswith(_FAMILIES) or entries.findEntry(key) is not None

    return known


def named_settings(text: str) -> Iterator[str]:
    """Every setting of Spark's that a text names; sections of mirror's own configuration are none."""
    for found in re.finditer(r"(?<![\w./`$-])`?(spark\.[a-zA-Z]+(?:\.[a-zA-Z]+)*)(?![\w/])", text):
        if found[1] not in ("spark.tasks", "spark.conf", "spark.epoch_s") and not re.search(r"\.(md|py)$", found[1]):
            yield found[1]


@pytest.mark.spark
def test_spark_knows_every_setting(is_known: Callable[[str], bool], flow: Settings) -> None:
    standalone = yaml.safe_load((CONFIGS / "standalone" / "eu-to-us.yaml").read_text(encoding="utf-8"))["spark"]["conf"]
    given = {"kubernetes": flow.spark.conf, "yarn": submitted(), "standalone": standalone}
    assert {where: [key for key in conf if not is_known(key)] for where, conf in given.items()} == {
        where: [] for where in given
    }


@pytest.mark.spark
def test_spark_knows_every_setting_that_the_guide_names(is_known: Callable[[str], bool]) -> None:
    named = set(named_settings(GUIDE.read_text(encoding="utf-8")))
    assert len(named) >= 20
    assert sorted(key for key in named if not is_known(key)) == []


@pytest.mark.spark
@pytest.mark.parametrize(
    "key", ["spark.executor.memoryOverhed", "spark.yarn.maxAppAttempt", "spark.kubernetes.podTemplateFile"]
)
def test_a_setting_that_there_is_not_is_found(is_known: Callable[[str], bool], key: str) -> None:
    assert not is_known(key)
    assert list(named_settings(f"with `{key}: 1` or --conf {key}=1")) == [key, key]


@pytest.mark.parametrize("file", re.findall(r"`(configs/[\w./@-]+|ops/[\w./@-]+)`", GUIDE.read_text(encoding="utf-8")))
def test_the_guide_names_files_that_there_are(file: str) -> None:
    assert (HOME / file).exists()


@needs_systemd
def test_systemd_takes_the_worker(tmp_path: Path) -> None:
    unit = tmp_path / "spark-worker.service"
    text = (CONFIGS / "standalone" / unit.name).read_text(encoding="utf-8")
    assert "ExecStart=/opt/spark/bin/spark-class" in text
    unit.write_text(text.replace("/opt/spark/bin/spark-class", "/bin/true"))
    assert complaints(unit) == []
    unit.write_text(unit.read_text().replace("ProtectSystem=strict", "ProtectSystem=sternly"))
    assert complaints(unit) != []


@needs_systemd
def test_systemd_takes_the_driver_with_what_is_added_to_it(tmp_path: Path) -> None:
    unit = tmp_path / "mirror@eu-to-us.service"
    text = (HOME / "ops" / "systemd" / "mirror@.service").read_text(encoding="utf-8")
    unit.write_text(text.replace("/opt/mirror/.venv/bin/mirror", "/bin/true"))
    added = tmp_path / f"{unit.name}.d" / "cluster.conf"
    added.parent.mkdir()
    added.write_bytes((CONFIGS / "standalone" / "mirror@.service.d" / "cluster.conf").read_bytes())
    assert complaints(unit) == []


def complaints(unit: Path) -> list[str]:
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    return [line for line in done.stderr.splitlines() if unit.name in line or str(unit.parent) in line]
