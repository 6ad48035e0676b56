"""A broker with a listener for each way in, good and bad, and what a client is configured with for each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from acls import every_acl, put_acls
from certificates import GUARDED, Authority, sasl, self_signed
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from waiting import DEADLINE_S

from mirror.config import ClusterSettings
from mirror.lab.embedded import Cluster, Spec
from mirror.lab.embedded.node import Listener

USERS: Final = {"alice": "alice-knows-this", "bob": "bob-knows-that", "carol": "carol-knows-all"}
#: May do everything, as whoever comes by the plain listener.
SUPER_USER: Final = "carol"
#: Milliseconds that a session lasts on the listener RENEWED.
SESSION_MS: Final = 60_000


def spec(name: str, folder: Path, *extra: Listener, everybody: bool = False) -> Spec:
    """A broker that asks for rights, unless `everybody` has them all, with a TLS and a SCRAM listener whose certificate
    `folder / "ca.pem"` vouches for, and more of them.
    """
    served = Authority(folder, "ca").issue("broker").served(folder / "ca.pem")
    listeners = (
        Listener(name="TLS", protocol="SSL", config=served),
        Listener(name="SCRAM", protocol="SASL_SSL", config=served | sasl("SCRAM-SHA-256")),
        *extra,
    )
    config = {} if everybody else {**GUARDED, "super.users": f"User:ANONYMOUS;User:{SUPER_USER}"}
    return Spec(name=name, config=config, listeners=listeners, users=USERS)


def every_way_in(folder: Path) -> Spec:
    """One with all that a client may meet."""
    ours, others = Authority(folder, "second"), Authority(folder, "others")
    trusted = ours.issue("ours").served(ours.pem)
    named = {
        "MUTUAL": ours.issue("mutual").served(ours.pem, asks="required"),
        "ELSEWHERE": ours.issue("elsewhere", ["DNS:elsewhere.example"]).served(),
        "EXPIRED": ours.issue("expired", days=-1).served(),
        "UNKNOWN": others.issue("unknown").served(),
        "SELFMADE": self_signed(folder, "selfmade").served(),
    }
    password = f'user_alice="{USERS["alice"]}"'
    mechanisms: Mapping[str, tuple[str, dict[str, Any]]] = {
        "PLAIN": ("SASL_SSL", sasl("PLAIN", password)),
        "SHA512": ("SASL_SSL", sasl("SCRAM-SHA-512")),
        "RENEWED": ("SASL_SSL", sasl("SCRAM-SHA-256", connections_max_reauth_ms=SESSION_MS)),
        "OPEN": ("SASL_PLAINTEXT", sasl("SCRAM-SHA-256")),
        "OAUTH": ("SASL_SSL", sasl("OAUTHBEARER", 'unsecuredLoginStringClaim_sub="broker"')),
    }
    return spec(
        "every-way",
        folder,
        *(Listener(name=name, protocol="SSL", config=config) for name, config in named.items()),
        *(
            Listener(name=name, protocol=protocol, config=trusted | config)
            for name, (protocol, config) in mechanisms.items()
        ),
    )


def settings(bootstrap: str, **keys: str) -> ClusterSettings:
    """A client's settings; the keys with `_` for `.`."""
    named = {key.replace("_", "."): value for key, value in keys.items()}
    return ClusterSettings.model_validate({"alias": "us", "bootstrap.servers": bootstrap, **named})


def scram(cluster: Cluster, folder: Path, user: str = "alice") -> ClusterSettings:
    """One that comes by SCRAM."""
    return settings(
        cluster.bootstrap_by("SCRAM"),
        security_protocol="SASL_SSL",
        ssl_ca_location=str(folder / "ca.pem"),
        sasl_mechanism="SCRAM-SHA-256",
        sasl_username=user,
        sasl_password=USERS.get(user, ""),
    )


class Right(NamedTuple):
    """What alice may do."""

    operation: str
    kind: ResourceType
    name: str


@dataclass(frozen=True, slots=True)
class Guarded:
    """The broker, and the folder with the authorities `ca` and `second` and what they vouch for."""

    cluster: Cluster
    folder: Path

    def by(self, listener: str, protocol: str = "SSL", **keys: str) -> ClusterSettings:
        """Return settings for a listener, whose authority is trusted unless `keys` say otherwise."""
        ca = {"ssl_ca_location": str(self.folder / ("ca.pem" if listener in {"TLS", "SCRAM"} else "second.pem"))}
        bootstrap = self.cluster.bootstrap if listener == "PLAINTEXT" else self.cluster.bootstrap_by(listener)
        return settings(bootstrap, security_protocol=protocol, **((ca if "SSL" in protocol else {}) | keys))

    def by_files(self, certificate: Path, key: Path) -> ClusterSettings:
        """Return settings by which both sides show a certificate."""
        return self.by("MUTUAL", ssl_certificate_location=str(certificate), ssl_key_location=str(key))

    def login(self, alias: str, user: str = "alice") -> dict[str, Any]:
        """Return the section of a configuration for a user."""
        (secret := self.folder / user).write_text(USERS[user])
        secret.chmod(0o600)
        found = scram(self.cluster, self.folder, user).model_dump(by_alias=True, exclude_none=True, mode="json")
        return found | {"alias": alias, "sasl.password": f"${{file:{secret}}}"}

    def admin(self) -> dict[str, str]:
        """Return client settings of somebody who may do everything."""
        return {key: str(value) for key, value in scram(self.cluster, self.folder, SUPER_USER).client.items()}

    def allow(self, rights: Iterable[Right]) -> None:
        """Give alice these rights, and no others."""
        literal, allowed = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
        bindings = [
            AclBinding(one.kind, one.name, literal, "User:alice", "*", AclOperation[one.operation], allowed)
            for one in rights
        ]
        put_acls(AdminClient({"bootstrap.servers": self.cluster.bootstrap}), every_acl(), bindings)

    def deny(self, right: Right) -> None:
        """Take a right from alice."""
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap})
        literal, allowed = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
        taken = AclBindingFilter(
            right.kind, right.name, literal, "User:alice", "*", AclOperation[right.operation], allowed
        )
        (gone,) = admin.delete_acls([taken]).values()
        assert gone.result(DEADLINE_S), right

    def password(self, user: str, text: str) -> None:
        """Give a user another one."""
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap})
        changed = UserScramCredentialUpsertion(
            user, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), text.encode()
        )
        (done,) = admin.alter_user_scram_credentials([changed]).values()
        done.result(DEADLINE_S)
