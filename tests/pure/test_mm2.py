"""`mirror import-mm2`: property files of many shapes, and what becomes of them. Java's rules are shown one by one;
`tests/spark/test_session.py` asks Java itself.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from mirror.cli import app
from mirror.config import Settings, load
from mirror.errors import ConfigError
from mirror.mm2.clients import login
from mirror.mm2.importing import UNKNOWN, Imported, imported, strays
from mirror.mm2.properties import BadProperties, Property, Translator, parse, variable_name
from mirror.policy.selection import selects

#: An active/passive pair, as operators write it.
PASSIVE = """\
# disaster recovery
clusters = primary, secondary
primary.bootstrap.servers = p1:9092, p2:9092
secondary.bootstrap.servers = s1:9092

primary->secondary.enabled = true
secondary->primary.enabled = false
primary->secondary.topics = orders.*, billing,\\
    customers
primary->secondary.topics.exclude = .*-tmp
primary->secondary.groups = billing-.*
replication.policy.class = org.apache.kafka.connect.mirror.IdentityReplicationPolicy
sync.group.offsets.enabled = true
sync.group.offsets.interval.seconds = 30
refresh.topics.interval.seconds = 60
sync.topic.configs.interval.seconds = 30
sync.topic.acls.enabled = false
emit.checkpoints.interval.seconds = 30
offset.lag.max = 100
replication.factor = 3
offset-syncs.topic.replication.factor = 3
tasks.max = 12
primary.consumer.max.poll.records = 5000
secondary.producer.compression.type = zstd
secondary.exactly.once.source.support = enabled
"""
ACTIVE = """\
clusters: eu us
clusters = eu, us
eu.bootstrap.servers=eu:9092
us.bootstrap.servers=us:9092
eu->us.enabled=true
us->eu.enabled=true
topics=shop-.*
topics.blacklist=.*[\\\\-\\\\.]internal
replication.policy.separator=_
eu->us.sync.group.offsets.enabled=true
"""


def only(text: str) -> tuple[Imported, dict[str, Any]]:
    """The one flow of a file, and its YAML as plain data."""
    (flow,) = imported(text.encode("iso-8859-1"), "mm2.properties")
    return flow, yaml.safe_load(flow.text)


def loaded(flow: Imported, folder: Path) -> Settings:
    path = folder / f"{flow.name}.yaml"
    path.write_text(flow.text, encoding="utf-8")
    return load(path)


def reasons(flow: Imported) -> dict[str, str]:
    return {note.key: note.why for note in flow.notes}


def test_an_active_passive_pair(tmp_path: Path) -> None:
    flow, data = only(PASSIVE)
    assert data == {
        "name": "primary-to-secondary",
        "source": {"alias": "primary", "bootstrap.servers": "p1:9092,p2:9092"},
        "target": {"alias": "secondary", "bootstrap.servers": "s1:9092"},
        "topics": {
            "include": ["orders.*", "billing", "customers"],
            "exclude": [
                ".*-tmp",
                "__.*",
                r"\..*",
                r"mirror\..*",
                r"mm2.*\.internal",
                r".*\.checkpoints\.internal",
                ".*heartbeats",
            ],
            "naming": "identity",
            "offsets": "translate",
        },
        "groups": {"include": [r"(?!(?:console-consumer-.*|connect-.*|__.*)\Z)billing-.*"], "interval_s": 30.0},
        "sync": {"configs": True, "acls": False, "interval_s": 30.0},
    }
    settings = loaded(flow, tmp_path)
    assert [group.fullmatch("billing-a") is not None for group in settings.groups.include] == [True]
    assert settings.topics.naming.target_of("orders") == "orders"
    assert not flow.variables


def test_every_key_is_translated_or_explained() -> None:
    flow, _ = only(PASSIVE)
    assert set(reasons(flow)) == {
        "emit.checkpoints.interval.seconds",
        "offset.lag.max",
        "replication.factor",
        "offset-syncs.topic.replication.factor",
        "tasks.max",
        "primary.consumer.max.poll.records",
        "secondary.producer.compression.type",
        "secondary.exactly.once.source.support",
        "replication.policy.class",
    }
    assert "primary.NAME, are left out unless listed" in reasons(flow)["replication.policy.class"]
    assert "exactly once" in reasons(flow)["secondary.exactly.once.source.support"]
    for key in reasons(flow):
        assert f": {key}: " in flow.text
    assert [note.key for note in strays(PASSIVE.encode())] == ["secondary->primary.enabled"]


#: All that MirrorMaker's connectors, its workers and its clients may be set to, as Kafka 3.9 and 4 document it.
DOCUMENTED = """
clusters config.providers dedicated.mode.enable.internal.rest tasks.max replication.policy.class
replication.policy.separator replication.policy.internal.topic.separator.enabled replication.factor admin.timeout.ms
forwarding.admin.class metric.reporters auto.include.jmx.reporter offset-syncs.topic.location topics topics.exclude
topics.blacklist topic.filter.class config.properties.exclude config.properties.blacklist config.property.filter.class
use.defaults.from use.incremental.alter.configs add.source.alias.to.metrics refresh.topics.enabled
refresh.topics.interval.seconds sync.topic.configs.enabled sync.topic.configs.interval.seconds sync.topic.acls.enabled
sync.topic.acls.interval.seconds consumer.poll.timeout.ms offset.lag.max offset-syncs.topic.replication.factor
emit.offset-syncs.enabled groups groups.exclude groups.blacklist group.filter.class refresh.groups.enabled
refresh.groups.interval.seconds emit.checkpoints.enabled emit.checkpoints.interval.seconds
sync.group.offsets.enabled sync.group.offsets.interval.seconds checkpoints.topic.replication.factor
emit.heartbeats.enabled emit.heartbeats.interval.seconds heartbeats.topic.replication.factor
heartbeats.replication.enabled exactly.once.source.support exactly.once.support transaction.boundary
transaction.boundary.interval.ms offset.storage.topic offset.storage.replication.factor offset.storage.partitions
status.storage.topic status.storage.replication.factor config.storage.topic config.storage.replication.factor
offset.flush.interval.ms offset.flush.timeout.ms key.converter value.converter header.converter plugin.path
plugin.discovery connector.client.config.override.policy listeners rest.advertised.host.name rest.extension.classes
admin.listeners group.id session.timeout.ms heartbeat.interval.ms rebalance.timeout.ms
scheduled.rebalance.max.delay.ms worker.sync.timeout.ms task.shutdown.graceful.timeout.ms topic.creation.enable
errors.tolerance errors.log.enable errors.retry.timeout transforms predicates config.action.reload
bootstrap.servers client.id client.dns.lookup client.rack security.protocol security.providers
connections.max.idle.ms metadata.max.age.ms metadata.recovery.strategy reconnect.backoff.ms
reconnect.backoff.max.ms retry.backoff.ms retry.backoff.max.ms request.timeout.ms default.api.timeout.ms
send.buffer.bytes receive.buffer.bytes socket.connection.setup.timeout.ms metrics.num.samples
metrics.recording.level metrics.sample.window.ms interceptor.classes enable.metrics.push acks batch.size linger.ms
buffer.memory compression.type compression.zstd.level max.block.ms max.request.size delivery.timeout.ms retries
enable.idempotence max.in.flight.requests.per.connection partitioner.class transactional.id transaction.timeout.ms
auto.offset.reset enable.auto.commit auto.commit.interval.ms fetch.min.bytes fetch.max.bytes fetch.max.wait.ms
max.partition.fetch.bytes max.poll.records max.poll.interval.ms isolation.level partition.assignment.strategy
group.instance.id group.protocol ssl.truststore.location ssl.truststore.password ssl.truststore.type
ssl.truststore.certificates ssl.keystore.location ssl.keystore.password ssl.keystore.type ssl.keystore.key
ssl.keystore.certificate.chain ssl.key.password ssl.protocol ssl.enabled.protocols ssl.cipher.suites ssl.provider
ssl.endpoint.identification.algorithm ssl.keymanager.algorithm ssl.trustmanager.algorithm
ssl.secure.random.implementation ssl.engine.factory.class sasl.mechanism sasl.jaas.config
sasl.kerberos.service.name sasl.login.class sasl.login.callback.handler.class sasl.client.callback.handler.class
sasl.login.refresh.window.factor sasl.oauthbearer.token.endpoint.url sasl.oauthbearer.jwks.endpoint.url
sasl.oauthbearer.expected.audience
"""
KNOWN = [key for line in DOCUMENTED.splitlines() for key in line.split()]


CLIENTS = KNOWN[KNOWN.index("bootstrap.servers") :]
VALUES = {"bootstrap.servers": "z:1", "clusters": "primary, secondary", "security.protocol": "PLAINTEXT"}
VALUES |= {
    key: f"org.apache.kafka.connect.mirror.{name}"
    for key, name in {
        "replication.policy.class": "DefaultReplicationPolicy",
        "topic.filter.class": "DefaultTopicFilter",
        "config.property.filter.class": "DefaultConfigPropertyFilter",
    }.items()
}


@pytest.mark.parametrize(
    ("prefix", "keys"),
    [
        ("", KNOWN),
        ("primary->secondary.", KNOWN),
        *((prefix, CLIENTS) for prefix in ("primary.", "primary.consumer.", "primary.admin.", "secondary.producer.")),
        ("primary->secondary.source.consumer.", CLIENTS),
        ("primary->secondary.producer.override.", CLIENTS),
    ],
)
def test_no_key_of_mirrormaker_is_unknown(prefix: str, keys: list[str]) -> None:
    lines = [f"{prefix}{key} = {VALUES.get(key, '1')}" for key in keys]
    flow, _ = only(PASSIVE + "\n".join(lines))
    assert [note.key for note in flow.notes if note.why == UNKNOWN] == []
    assert f"{prefix}retries" in reasons(flow)


def test_two_directions_with_names_that_differ(tmp_path: Path) -> None:
    flows = {flow.name: flow for flow in imported(ACTIVE.encode(), "mm2.properties")}
    assert list(flows) == ["eu-to-us", "us-to-eu"]
    there, back = (loaded(flow, tmp_path).topics for flow in flows.values())
    assert there.naming.target_of("shop-a") == "eu_shop-a"
    assert back.naming.target_of("shop-a") == "us_shop-a"
    assert any(pattern.fullmatch("us_shop-a") for pattern in there.exclude), "a topic from there does not go back"
    assert any(pattern.fullmatch("eu_us_shop-a") for pattern in there.exclude), "nor one that came by way of a third"
    assert reasons(flows["eu-to-us"])["clusters"] == "given again on line 2, which holds"
    assert yaml.safe_load(flows["us-to-eu"].text)["groups"] == {"include": []}
    assert "to have them follow" in flows["us-to-eu"].text


#: All topics of A. What follows in the tests was asked of MirrorMaker 4.3 (`MirrorMakerConfig.connectorBaseConfig`,
#: `MirrorSourceConnector.shouldReplicateTopic` and `formatRemoteTopic`); None: it leaves the topic out.
ALL = """\
clusters=A, B
A.bootstrap.servers=a:1
B.bootstrap.servers=b:1
A->B.enabled=true
topics=.*
topics.exclude=nothing
"""
IDENTITY = "replication.policy.class=org.apache.kafka.connect.mirror.IdentityReplicationPolicy\n"
NO_ALIASES = "replication.policy.separator=\nsource.cluster.alias=\ntarget.cluster.alias=\n"
OF_THE_FLOW = "\n".join(f"A->B.{line}" for line in NO_ALIASES.splitlines())


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        (
            "",
            {"orders": "A.orders", "B.x": None, "x.B.y": None, "x.B": "A.x.B", "x.B.": "A.x.B.", "orders.internal": 0},
        ),
        ("", {".hidden": None, "__x": None, "mm2-offset-syncs.B.internal": None, "x.checkpoints.internal": None}),
        (NO_ALIASES, {"orders": 1, "Bob": 1, "ABC": 1, "B.orders": 1, "device.heartbeats": 1, "mm2-xinternal": None}),
        (OF_THE_FLOW, {"orders": 1, "Bob": 1, "ABC": 1}),
        ("! a comment \\\nA->B.replication.policy.\\\n   separator : \nA.alias:\nB.alias =\n", {"Bob": 1, "B.x": 1}),
        ("A->B.replication.policy.separator=.\nreplication.policy.separator=\n", {"Bob": "A.Bob", "B.x": None}),
        ("A.alias=west\nsource.cluster.alias=east\n", {"orders": "west.orders"}),
        ("A.alias=west\nA->B.source.cluster.alias=east\n", {"orders": "east.orders"}),
        ("source.cluster.alias=\n", {"orders": ".orders", "B.x": None}),
        ("target.cluster.alias=A.B\n", {"B.x": "A.B.x", "A.B.x": "A.A.B.x"}),
        ("replication.policy.separator=\n", {"orders": "Aorders", "AB": "AAB", "barB": "AbarB", "Bob": None}),
        (
            "replication.policy.separator=_\n",
            {"B.x": "A_B.x", "B_x": None, "x_B_": "A_x_B_", "x_checkpoints_internal": None},
        ),
        ("replication.policy.separator=__\n", {"a__B__y": None, "a___B__y": "A__a___B__y"}),
        (IDENTITY, {"orders": 1, "B.x": 1, "x.B.y": 1, "orders-internal": 1}),
        (f"{IDENTITY}A->B.topics=a.heartbeats, x\n", {"a.heartbeats": "A.a.heartbeats", "x": 1}),
        (f"{IDENTITY}A->B.topics=B.heartbeats, x\n", {"B.heartbeats": None, "x": 1}),
        (f"{IDENTITY}{OF_THE_FLOW}\nA->B.target.cluster.alias=b\n", {"orders": 1, "Bob": 1}),
        ("topics=abc, (?i)CLICKS-.*, ORDERS\n", {"Abc": None, "clicks-1": 0, "orders": 0}),
        ("topics.exclude=(?i)CLICKS-.*, ORDERS\n", {"Clicks-1": None, "orders": None, "abc": 0}),
    ],
)
def test_names_are_those_that_mirrormaker_makes(keys: str, names: dict[str, str | int | None], tmp_path: Path) -> None:
    (flow,) = imported((ALL + keys).encode(), "mm2.properties")
    topics = loaded(flow, tmp_path).topics
    expected = {topic: f"A.{topic}" if name == 0 else topic if name == 1 else name for topic, name in names.items()}
    assert {name: topics.naming.target_of(name) if selects(name, topics) else None for name in names} == expected
    assert not any(note.why == UNKNOWN for note in flow.notes)


def test_enabled_without_a_flow_holds_for_each_that_says_nothing() -> None:
    names = [flow.name for flow in imported(f"{ALL}enabled=true\n".encode(), "mm2.properties")]
    assert names == ["A-to-B", "B-to-A"]
    assert len(imported(f"{ALL}enabled=true\nB->A.enabled=false".encode(), "mm2.properties")) == 1


@pytest.mark.parametrize(
    ("topic", "is_mirrored"),
    [
        ("eu.device.heartbeats", True),
        ("heartbeats", False),
        ("eu.heartbeats", False),
        ("eu.orders-internal", False),
    ],
)
def test_what_an_application_calls_heartbeats_is_mirrored(topic: str, is_mirrored: bool, tmp_path: Path) -> None:
    """MirrorMaker mirrors it; only the topics of its own are left out, unless they are named one by one."""
    text = ACTIVE.replace("separator=_", "separator=.").replace("us->eu.enabled=true\n", "")
    (every,) = imported(text.replace("shop-.*", ".*").encode(), "mm2.properties")
    assert selects(topic, loaded(every, tmp_path).topics) is is_mirrored
    (named,) = imported(text.replace("shop-.*", topic).encode(), "mm2.properties")
    is_cycle = topic.startswith("us.") or topic.endswith("internal")
    assert selects(topic, loaded(named, tmp_path).topics) is not is_cycle


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("primary.client.id = a", "client.id", "a"),
        ("primary->secondary.source.consumer.client.id = b", "client.id", "b"),
        ("primary.consumer.client.id = c\nprimary.client.id = a", "client.id", "c"),
        ("bootstrap.servers = z:1", "bootstrap.servers", "p1:9092,p2:9092"),
        ("primary->secondary.consumer.bootstrap.servers = ${env:EU_KAFKA}", "bootstrap.servers", "${env:EU_KAFKA}"),
    ],
)
def test_the_most_specific_setting_of_a_client_holds(line: str, key: str, value: str | None) -> None:
    _, data = only(PASSIVE + line + "\n")
    assert data["source"].get(key) == value


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "mm2.properties: names no clusters: is it a configuration of MirrorMaker 2?"),
        (
            PASSIVE + "sasl.mechanism=AWS_MSK_IAM\nsecurity.protocol=SASL_SSL\n",
            "sasl.mechanism: cannot be taken over: must",
        ),
        ("clusters = a, b\n", "mm2.properties: enables no flow between a, b: set A->B.enabled = true"),
        ("a=\\u12", "mm2.properties:1: malformed"),
        (PASSIVE.replace("p1:9092, p2:9092", "p1"), "primary.bootstrap.servers: cannot be taken over: each address"),
        (PASSIVE.replace("primary.bootstrap", "primary.x"), "source.bootstrap.servers: cannot be taken over: required"),
        (PASSIVE.replace("billing,", "(a+)+,"), "primary->secondary.topics: cannot be taken over: a repeated group"),
        (PASSIVE.replace(".*-tmp", "["), "primary->secondary.topics.exclude: cannot be taken over: not a regular"),
        (PASSIVE.replace("billing,", "[ab[cd]],"), "primary->secondary.topics: cannot be taken over: not the same to"),
        # The default is to follow: a copy that keeps its records for longer would lose them.
        (PASSIVE + "config.properties.exclude = (a|b)+\n", "config.properties.exclude: cannot be taken over"),
        (
            PASSIVE.replace("groups = billing-.*", "groups = (app|web)+-.*"),
            "primary->secondary.groups: cannot be taken",
        ),
        (
            PASSIVE + "primary.ssl.keystore.location = /no/such.pem\nsecurity.protocol = SSL\n",
            "such.pem",
        ),
        (ACTIVE.replace("separator=_", "separator=/"), "cannot be taken over: may hold letters"),
        (
            f"{ALL}replication.policy.separator=_ \n",
            "mm2.properties:7: replication.policy.separator: cannot be taken over",
        ),
        (f"{ALL}{IDENTITY}source.cluster.alias=\nB.alias=\n", "mm2.properties:7: replication.policy.class: cannot be"),
        (f"{ALL}replication.policy.class=my.OwnPolicy\n", "a class of your own cannot be run"),
        (f"{ALL}topic.filter.class=my.OwnFilter\n", "mm2.properties:7: topic.filter.class: cannot be taken over"),
        (f"{ALL}config.property.filter.class=my.OwnFilter\n", "set config.properties.exclude"),
        (
            PASSIVE.replace("billing,", "mirror.a,"),
            "primary->secondary.topics: cannot be taken over: mirror.a: no topic",
        ),
    ],
)
def test_what_cannot_be_taken_over_is_an_error(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        imported(text.encode(), "mm2.properties")
    assert complaint in str(caught.value)


SECURE = """\
secondary.security.protocol = sasl_ssl
secondary.sasl.mechanism = SCRAM-SHA-512
secondary.sasl.jaas.config = org.apache.kafka.common.security.scram.ScramLoginModule required \\
    username="mm2" password="CANARY";
secondary.ssl.truststore.location = /etc/tls/trust.p12
secondary.ssl.truststore.password = CANARY
secondary.ssl.endpoint.identification.algorithm =
secondary.consumer.sasl.jaas.config = x required username="other" password="CANARY";
"""


def test_a_user_with_a_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flow, data = only(PASSIVE + SECURE)
    assert data["target"] == {
        "alias": "secondary",
        "bootstrap.servers": "s1:9092",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "mm2",
        "sasl.password": "${env:SECONDARY_SASL_PASSWORD}",
        "ssl.endpoint.identification.algorithm": "none",
    }
    assert [one.name for one in flow.variables] == ["SECONDARY_SASL_PASSWORD"]
    assert "CANARY" not in flow.text + repr(flow)
    reported = reasons(flow)["secondary.ssl.truststore.location"]
    assert "openssl pkcs12 -in /etc/tls/trust.p12 -nokeys -out /etc/tls/trust.pem" in reported
    monkeypatch.setenv("SECONDARY_SASL_PASSWORD", "CANARY")
    assert loaded(flow, tmp_path).target.client["sasl.password"] == "CANARY"


def test_a_login_that_stands_elsewhere_is_to_be_in_variables() -> None:
    """Its line is one entry of a property file, which nothing can refer to."""
    line = SECURE.splitlines()[2:4]
    flow, data = only(PASSIVE + SECURE.replace("\n".join(line), "secondary.sasl.jaas.config = ${file:/x:jaas}"))
    assert data["target"]["sasl.username"] == "${env:SECONDARY_SASL_USERNAME}"
    assert [one.name for one in flow.variables] == ["SECONDARY_SASL_USERNAME", "SECONDARY_SASL_PASSWORD"]
    assert "CANARY" not in flow.text


def test_settings_of_topics_that_do_not_follow() -> None:
    _, data = only(PASSIVE + "config.properties.exclude = follower\\\\..*, min.insync.replicas\n")
    assert data["sync"]["configs_exclude"] == ["follower\\..*", "min.insync.replicas"]
    assert data["topics"]["append_time"] == "target", "their copies get the source's message.timestamp.type"
    for more in ("", "config.properties.exclude = message\\\\.timestamp\\\\..*\n"):
        _, data = only(PASSIVE + more)
        assert "append_time" not in data["topics"]


@pytest.mark.parametrize(
    ("value", "expected", "needed"),
    [
        ("hunter2", "${env:A_KEY}", "A_KEY"),
        ("${env:OWN}", "${env:OWN}", "OWN"),
        ("${file:/etc/x.properties:password}", "${env:A_KEY}", "A_KEY"),
        ("${directory:/mnt/secrets:pw}", "${file:/mnt/secrets/pw}", None),
        ("${mine:/mnt:pw}", "${file:/mnt/pw}", None),
        ("${vault:kv/a:b}", "${env:A_KEY}", "A_KEY"),
    ],
)
def test_secrets_become_references(value: str, expected: str, needed: str | None) -> None:
    provider = "config.providers.mine.class"
    translator = Translator({provider: "org.apache.kafka.common.config.provider.DirectoryConfigProvider"})
    assert translator.secret(value, variable_name("a", "key"), "a.key") == expected
    assert list(translator.variables) == ([needed] if needed else [])


def test_the_command(tmp_path: Path) -> None:
    file, folder = tmp_path / "mm2.properties", tmp_path / "out"
    file.write_text(ACTIVE + "any.password = hunter2\n", encoding="iso-8859-1")
    run = CliRunner().invoke
    written = run(app, ["import-mm2", str(file), "--output", str(folder)])
    assert written.exit_code == 0, written.output
    assert [load(folder / f"{name}.yaml").flow for name in ("eu-to-us", "us-to-eu")] == ["eu-to-us", "us-to-eu"]
    assert f"{file}: line 11: any.password: unknown, so nothing was made of it" in written.stderr
    assert "is there already" in str(run(app, ["import-mm2", str(file), "--output", str(folder)]).exception)
    output = run(app, ["import-mm2", str(file), "--json"]).stdout
    assert [flow["name"] for flow in json.loads(output)["flows"]] == ["eu-to-us", "us-to-eu"]
    assert "hunter2" not in written.output + output


_NAMED = """
topics topics.exclude topics.blacklist groups groups.exclude replication.policy.class replication.policy.separator
sync.group.offsets.enabled sync.group.offsets.interval.seconds sync.topic.acls.enabled refresh.topics.interval.seconds
bootstrap.servers security.protocol sasl.mechanism sasl.jaas.config ssl.truststore.location ssl.truststore.type
ssl.keystore.location ssl.keystore.type ssl.key.password ssl.truststore.password ssl.keystore.key
ssl.truststore.certificates ssl.endpoint.identification.algorithm sasl.oauthbearer.token.endpoint.url client.id
consumer.auto.offset.reset enabled exactly.once.source.support
"""
_GIVEN = """
true false .* [ (a+)+ x:1 x:1,y:2 SSL SASL_SSL sasl_plaintext PLAIN SCRAM-SHA-512 GSSAPI OAUTHBEARER AWS_MSK_IAM PEM
/no/such.jks /no/such.p12 10 -1 1e999 latest ${env:NOT_SET} ${file:/a:b} ${directory:/no:such} https://x/y CANARY _
org.apache.kafka.connect.mirror.IdentityReplicationPolicy
"""
_NAMES = [*_NAMED.split(), "any thing\n"]
_VALUES = [
    *(*_GIVEN.split(), "", "a, b.*", "\u00e9\n\x00#: {"),
    "a.b.ScramLoginModule required username=u password='CANARY';",
    'a.b.OAuthBearerLoginModule required clientId=c clientSecret="CANARY";',
]
_PREFIXES = ["", "A.", "B.", "A->B.", "B->A.", "A.consumer.", "B.producer.", "A.admin.", "A->B.source.consumer.", "C."]


@given(
    st.dictionaries(
        st.tuples(st.sampled_from(_PREFIXES), st.sampled_from(_NAMES)), st.sampled_from(_VALUES) | st.text(max_size=8)
    )
)
def test_whatever_is_imported_loads_or_is_refused_by_name(given_keys: dict[tuple[str, str], str]) -> None:
    base = {"clusters": "A, B", "A.bootstrap.servers": "a:1", "B.bootstrap.servers": "b:1", "A->B.enabled": "true"}
    properties = base | {f"{prefix}{name}": value for (prefix, name), value in given_keys.items()}
    data = "\n".join(f"{_escaped(key)}={_escaped(value)}" for key, value in properties.items()).encode("ascii")
    try:
        flows = imported(data, "mm2.properties")
    except ConfigError as refusal:
        reported = str(refusal)
        assert reported.startswith("mm2.properties")
        assert "CANARY" not in reported
        return
    for flow in flows:
        assert "CANARY" not in flow.text.replace("#", "") or any("CANARY" in v for v in _shown(properties))
        _assert_loads(flow)


def _escaped(text: str) -> str:
    units = text.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))


def _shown(properties: dict[str, str]) -> list[str]:
    """Values of keys that are no secrets: whoever writes one there shows it himself."""
    secret = ("jaas", "password", "keystore.key", "certificates")
    return [value for key, value in properties.items() if not any(part in key for part in secret)]


def _assert_loads(flow: Imported) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        for variable in flow.variables:
            patch.setenv(variable.name, "z:1")
        assert loaded(flow, Path(folder)).flow == flow.name


# --- property files, rule by rule -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", {"a": "b"}),
        ("a:b\nc d\n e\t=\tf ", {"a": "b", "c": "d", "e": "f "}),
        ("alone", {"alone": ""}),
        ("# no\n  ! no\n\n \t\na=1", {"a": "1"}),
        ("# no \\\na=1", {"a": "1"}),
        ("a=1,\\\n    2,\\\r\n\t3", {"a": "1,2,3"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a=1\\\n#b=2", {"a": "1#b=2"}),
        ("\\\n#b=2\na=1", {"a": "1"}),
        ("a\\ b\\:c\\=d=e", {"a b:c=d": "e"}),
        ("a==b", {"a": "=b"}),
        ("a=\\u20ac\\t\\n\\r\\f\\q\\\\", {"a": "€\t\n\r\fq\\"}),
        ("a=1\ra=2\r\na=3", {"a": "3"}),
        ("a=1\\", {"a": "1"}),
        ("A->B.enabled = true", {"A->B.enabled": "true"}),
        ("", {}),
    ],
)
def test_rules(text: str, expected: dict[str, str]) -> None:
    assert {one.key: one.value for one in parse(text.encode("iso-8859-1"))} == expected


def test_lines_are_those_where_a_property_begins() -> None:
    assert parse(b"# c\na=1,\\\n2\n\nb=3") == [Property("a", "1,2", 2), Property("b", "3", 5)]


@pytest.mark.parametrize("text", ["a=\\u12", "a=\\uzzzz", "\\u=1", "x=1\n  b=\\u123"])
def test_what_java_refuses(text: str) -> None:
    with pytest.raises(BadProperties, match="malformed") as caught:
        parse(text.encode())
    assert caught.value.line == len(text.splitlines())


@pytest.mark.parametrize(
    ("text", "module", "options"),
    [
        ('a.b.PlainLoginModule required username="me" password="it\'s; \\"x\\"";', "PlainLoginModule", 2),
        ("ScramLoginModule  REQUIRED\n username='me'\n password=plain ;", "ScramLoginModule", 2),
        ("a.OAuthBearerLoginModule required;", "OAuthBearerLoginModule", 0),
        ("a.b.Krb5LoginModule required useKeyTab=true keyTab=\"/etc/k\" principal='me@X';", "Krb5LoginModule", 3),
    ],
)
def test_a_login_line(text: str, module: str, options: int) -> None:
    found = login(text)
    assert (found.module, len(found.options)) == (module, options)
    assert "me" not in repr(found)


@pytest.mark.parametrize("text", ["", "x", "x maybe;", 'x required a="b', "x required a b;", "x required a=;"])
def test_what_is_no_login_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"login module|No closing quotation|name=value"):
        login(text)


@given(st.text(max_size=60))
def test_any_text_is_a_login_line_or_not_and_is_not_shown(text: str) -> None:
    expected = ("options must be written as name=value", "No closing quotation", "No escaped character")
    try:
        login(f"A required {text}")
    except ValueError as problem:
        assert str(problem) in expected  # noqa: PT017 -- refusing is one of two good ends
