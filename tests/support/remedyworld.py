"""One live mirror between two clusters, and what a person does who reads its advice: the commands that a stop names,
run as they are written, the configuration and SIGHUP.

`Person` runs Kafka's own tools by an admin client with the same options: the text must name the right broker, topic and
setting, but no JVM is started for each.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from adversary.driving import Command
from adversary.world import BROKERS, OneSide
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from crashcut import crash_and_cut_all
from samerecords import read
from typer.testing import CliRunner

from mirror.cli import app
from mirror.errors import ExitCode
from mirror.lab.embedded import Cluster, Spec, start_many
from mirror.lab.embedded.node import GUARDED, Listener, sasl, stop_all

TIMEOUT: Final = 60.0
#: Who mirrors, with the rights that ACLs give; and a person who may do everything.
MIRROR, PERSON = "alice", "bob"
USERS: Final = {MIRROR: "alice-knows-this", PERSON: "bob-knows-that"}
EPOCH_SECONDS: Final = 3
STOP_SECONDS: Final = 30.0
_SIDES: Final = ("source", "target")


def until(holds: Callable[[], Any], otherwise: Callable[[], str], seconds: float = TIMEOUT) -> Any:
    """What `holds` gives, as soon as that is true."""
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline, otherwise()
        time.sleep(0.1)
    return found


def short(value: bytes) -> bytes:
    """A value that is not too long to be shown."""
    return value if len(value) < 100 else b"%d bytes: %s" % (len(value), hashlib.sha256(value).digest())


def acl(kind: ResourceType, name: str, operation: str, *, prefixed: bool = False) -> AclBinding:
    """What lets the mirror do something."""
    pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
    allowed = AclPermissionType.ALLOW
    return AclBinding(kind, name, pattern, f"User:{MIRROR}", "*", AclOperation[operation], allowed)


class Person:
    """Somebody who does what is advised."""

    def __init__(self, config: Path) -> None:
        self._config = config

    def mirror(self, *arguments: str, code: ExitCode = ExitCode.DONE) -> str:
        """What a command of `mirror` prints; it must end so."""
        done = CliRunner().invoke(app, [str(self._config) if one == "CONFIG" else one for one in arguments])
        assert done.exit_code == code, (arguments, done.output, done.exception)
        return done.stdout

    def quoted(self, advice: str, command: str, code: ExitCode = ExitCode.DONE) -> str:
        """Run the command in backquotes that begins with this."""
        found = re.search(rf"`mirror ({command} [^`]+)`", advice)
        assert found, (command, advice)
        return self.mirror(*shlex.split(found[1]), code=code)

    def tool(self, advice: str, name: str) -> None:
        """Run one of Kafka's tools as the advice has it."""
        found = re.search(rf"{name}\.sh ((?:--?[\w-]+(?: (?!-)\S+)?\s?)+)", advice)
        assert found, (name, advice)
        words = shlex.split(found[1].strip().rstrip("."))
        options: dict[str, list[str]] = {}
        for word in words:
            if word.startswith("--"):
                options.setdefault(last := word, [])
            else:
                options[last].append(word)
        (servers,) = options.pop("--bootstrap-server")
        getattr(self, f"_{name.replace('-', '_')}")(_admin(servers), options)

    def _kafka_topics(self, admin: AdminClient, options: Mapping[str, Sequence[str]]) -> None:
        assert options.keys() == {"--delete", "--topic"}, options
        (topic,) = options["--topic"]
        admin.delete_topics([topic])[topic].result(30)

    def _kafka_configs(self, admin: AdminClient, options: Mapping[str, Sequence[str]]) -> None:
        assert options.keys() == {"--alter", "--entity-type", "--entity-name", "--add-config"}, options
        assert options["--entity-type"] == ["topics"]
        (topic,), (added,) = options["--entity-name"], options["--add-config"]
        entries = [
            ConfigEntry(key, value.strip("[]"), incremental_operation=AlterConfigOpType.SET)
            for key, value in re.findall(r"([\w.]+)=(\[[^\]]*\]|[^,]*)", added)
        ]
        asked = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        admin.incremental_alter_configs([asked])[asked].result(30)

    def _kafka_acls(self, admin: AdminClient, options: Mapping[str, Sequence[str]]) -> None:
        assert options["--add"] == []
        assert options["--allow-principal"] == ["User:PRINCIPAL"], options
        kind, name = ResourceType.BROKER, "kafka-cluster"
        if "--topic" in options:
            kind, (name,) = ResourceType.TOPIC, options["--topic"]
        else:
            assert options["--cluster"] == []
        for operation in options["--operation"]:
            given = acl(kind, name, re.sub(r"(?<!^)(?=[A-Z])", "_", operation).upper())
            admin.create_acls([given])[given].result(30)


def _admin(servers: str) -> AdminClient:
    """The person's own."""
    login = {"sasl.username": PERSON, "sasl.password": USERS[PERSON], "sasl.mechanism": "SCRAM-SHA-256"}
    return AdminClient({"bootstrap.servers": servers, "security.protocol": "SASL_PLAINTEXT", "log_level": 0, **login})


class Live:
    """Two clusters, the configuration of one flow, and its mirror while it runs."""

    def __init__(self, clusters: Mapping[str, Cluster], folder: Path, include: str) -> None:
        self.clusters, self.folder = clusters, folder
        self.sides = {side: OneSide(side, clusters[side]) for side in _SIDES}
        self.source, self.target = self.sides["source"], self.sides["target"]
        self.config = folder / "flow.yaml"
        self.settings: dict[str, Any] = self.flow("remedies", include)
        self.settings["spark"] = {"epoch_s": EPOCH_SECONDS}
        self.settings["limits"] = {"memory_mb": 64}
        self.settings["sync"] = {"interval_s": 1, "configs_exclude": []}
        self.person = Person(self.config)
        self._mirror: Command | None = None
        self._read = 0
        self._events: list[dict[str, Any]] = []

    def flow(self, name: str, include: str) -> dict[str, Any]:
        """The configuration of a flow between the two."""
        (secret := self.folder / "password").write_text(USERS[MIRROR])
        secret.chmod(0o600)
        login = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": MIRROR,
            "sasl.password": f"${{file:{secret}}}",
        }
        ends = {
            side: login | {"alias": alias, "bootstrap.servers": self.clusters[side].bootstrap_by("SCRAM")}
            for side, alias in zip(_SIDES, ("eu", "us"), strict=True)
        }
        topics = {"include": [include], "exclude": [], "naming": {"rename": {}}}
        return {"name": name, **ends, "topics": topics, "groups": {"include": []}, "metrics": {"listen": None}}

    def write(self) -> None:
        """The configuration as it is now."""
        self.config.write_text(json.dumps(self.settings), encoding="utf-8")  # JSON is YAML

    def reload(self) -> None:
        """Write it, and have the mirror read it again."""
        names = "configuration_read", "configuration_refused"
        before = len(self.events(*names))
        self.write()
        assert self._mirror is not None
        self._mirror.send(signal.SIGHUP)
        until(lambda: len(self.events(*names)) > before, self.log)
        assert self.events(*names)[-1]["event"] == "configuration_read", self.log()

    @contextmanager
    def running(self) -> Iterator[None]:
        """While the mirror runs."""
        self.write()
        self._mirror = Command(self.folder, "run", str(self.config), "--json")
        try:
            yield
            assert self._mirror.is_alive, self.log()
        finally:
            self._mirror.end()

    def log(self) -> str:
        """The last lines of the mirror's log."""
        return self._mirror.logged[-6000:] if self._mirror else ""

    def events(self, *names: str) -> list[dict[str, Any]]:
        """What the mirror logged by these names, in order."""
        assert self._mirror is not None
        lines = self._mirror.logged.splitlines(keepends=True)
        for line in lines[self._read :]:
            if not line.endswith("\n"):
                break
            self._read += 1
            if line.startswith("{"):
                self._events.append(json.loads(line))
        assert self._mirror.is_alive, self.log()
        return [one for one in self._events if one["event"] in names]

    def now(self) -> int:
        """How many events there were so far."""
        self.events()
        return len(self._events)

    def epochs_until_on(self, topic: str, since: int, is_read: bool) -> int:
        """Whole epochs that began and ended since there were so many events, until the log says that the topic goes
        on; where it `is_read`, since the configuration was read again. One that ends early, since something else is to
        be mirrored, counts for none.
        """

        def went_on() -> int | None:
            self.events()
            of = (at for at, one in enumerate(self._events) if one["event"] == "partition_resumed" and at >= since)
            return next((at for at in of if self._events[at]["topic"] == topic), None)

        at = until(went_on, lambda: f"{topic}\n{self.log()}")
        if is_read:
            after = range(since, at)
            since = next((place for place in after if self._events[place]["event"] == "configuration_read"), at)
        ended = [one for one in self._events[since:at] if one["event"] == "epoch_ended"]
        return sum(one["seconds"] >= EPOCH_SECONDS for one in ended[1:])

    def status(self) -> dict[str, dict[str, Any]]:
        """By source topic, what `mirror status` shows of its one partition."""
        fields = json.loads(self.person.mirror("status", "CONFIG", "--json", "--log-level", "error"))
        return {one["topic"]: one for one in fields["partitions"]}

    def until_caught_up(self, topics: Iterable[str]) -> None:
        """Until `mirror status` shows these so."""
        names = list(topics)

        def lacking() -> dict[str, Any]:
            known = self.status()
            return {name: known.get(name) for name in names if known.get(name, {}).get("state") != "CAUGHT_UP"}

        until(lambda: not lacking(), lambda: f"{lacking()}\n{self.log()}")

    def until_stopped(self, state: str, *topics: str) -> dict[str, str]:
        """Until the log names such a stop of each of these, and as what."""

        def shown() -> dict[str, str]:
            return {
                one["topic"]: one["detail"]
                for one in self.events("partition_stopped")
                if one["topic"] in topics and one["state"] == state
            }

        until(lambda: shown().keys() == {*topics}, lambda: f"{shown()}\n{self.log()}")
        return shown()

    def allow(self, side: str, *acls: AclBinding) -> None:
        """Give the mirror rights."""
        for given in self.sides[side].admin.create_acls(list(acls)).values():
            given.result(30)

    def deny(self, side: str, given: AclBinding) -> None:
        """Take a right from the mirror."""
        asked = AclBindingFilter(
            given.restype,
            given.name,
            given.resource_pattern_type,
            given.principal,
            given.host,
            given.operation,
            given.permission_type,
        )
        (gone,) = self.sides[side].admin.delete_acls([asked]).values()
        assert gone.result(30), given

    def password(self, side: str, text: str) -> None:
        """Give the mirror's user another one."""
        made = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        changed = UserScramCredentialUpsertion(MIRROR, made, text.encode())
        for done in self.sides[side].admin.alter_user_scram_credentials([changed]).values():
            done.result(30)

    def log_folder(self, side: str, topic: str) -> Path:
        """Where a broker keeps partition 0 of a topic."""
        return self.clusters[side].nodes[0].data / f"{topic}-0"

    def segment(self, side: str, topic: str) -> Path:
        """Its only file with batches."""
        (found,) = self.log_folder(side, topic).glob("*.log")
        return found

    def crash(self, side: str, cuts: Mapping[str, int]) -> None:
        """Kill a broker, cut these topics' logs down to an offset, and start it again."""
        below: dict[tuple[str, int], int | None] = {(topic, 0): end for topic, end in cuts.items()}
        crash_and_cut_all(self.clusters[side], below)

    def put_back(self, side: str, folders: Mapping[str, Path]) -> None:
        """Stop a broker, replace these topics' logs by what was saved, and start it again. It is stopped as it should
        be, so that no other log is cut at what is damaged in it.
        """
        node = self.clusters[side].nodes[0]
        assert node.process is not None
        stop_all([node.process], STOP_SECONDS)
        for topic, saved in folders.items():
            shutil.rmtree(self.log_folder(side, topic))
            shutil.copytree(saved, self.log_folder(side, topic), ignore=shutil.ignore_patterns("*index", "*.snapshot"))
        self.clusters[side].restart(0)

    def read_all(self, side: str, topics: Sequence[str]) -> dict[str, list[bytes]]:
        """The values that a reader of committed records gets of each topic; long ones are made `short`."""
        bootstrap = self.clusters[side].bootstrap
        with ThreadPoolExecutor(8) as threads:
            found = threads.map(lambda topic: [short(one[4]) for one in read(bootstrap, topic, 0)], topics)
            return dict(zip(topics, found, strict=True))


@contextmanager
def clusters() -> Iterator[dict[str, Cluster]]:
    """A source and a target with ACLs, where the mirror comes by SCRAM and tests as they like."""
    config = {**BROKERS, **GUARDED, "super.users": f"User:ANONYMOUS;User:{PERSON}"}
    listeners = (Listener(name="SCRAM", protocol="SASL_PLAINTEXT", config=sasl("SCRAM-SHA-256")),)
    specs = [Spec(name=f"remedies-{side}", config=config, listeners=listeners, users=USERS) for side in _SIDES]
    both = start_many(specs)
    try:
        yield dict(zip(_SIDES, both, strict=True))
    finally:
        for cluster in both:
            cluster.stop()
