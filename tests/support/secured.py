"""A broker with a listener for each way in, good and bad, and what a client is configured with for each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from mirror.config import ClusterSettings
from mirror.lab.embedded import Cluster, Spec
from mirror.lab.embedded.node import GUARDED, Authority, Listener, sasl, self_signed

USERS: Final = {"alice": "alice-knows-this", "bob": "bob-knows-that"}
#: Milliseconds that a session lasts on the listener RENEWED.
SESSION_MS: Final = 2000


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
    return Spec(name=name, config={} if everybody else GUARDED, listeners=listeners, users=USERS)


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


def scram(cluster: Cluster, folder: Path, user: str = "alice", password: str | None = None) -> ClusterSettings:
    """One that comes by SCRAM."""
    return settings(
        cluster.bootstrap_by("SCRAM"),
        security_protocol="SASL_SSL",
        ssl_ca_location=str(folder / "ca.pem"),
        sasl_mechanism="SCRAM-SHA-256",
        sasl_username=user,
        sasl_password=USERS.get(user, "") if password is None else password,
    )
