"""`source:` and `target:`: where a cluster is, and how to be known there, under librdkafka's own names."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, AliasChoices, Field, SecretStr

from mirror.config.section import Section
from mirror.config.values import Addresses, TopicPart, Whole, parse_address, token_endpoint

Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"]


class ClusterSettings(Section):
    """A cluster and how to connect to it, under librdkafka's names."""

    alias: TopicPart
    """Short name of the cluster, for messages; the two clusters need different ones."""
    bootstrap_servers: Addresses = Field(alias="bootstrap.servers")
    """Brokers to connect to first."""
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        default="PLAINTEXT", alias="security.protocol"
    )
    """Protocol to talk to brokers."""
    sasl_mechanism: Mechanism | None = Field(
        default=None,
        validation_alias=AliasChoices("sasl.mechanism", "sasl.mechanisms"),
        serialization_alias="sasl.mechanism",
    )
    """SASL mechanism; required with SASL_PLAINTEXT and SASL_SSL."""
    sasl_username: str | None = Field(default=None, alias="sasl.username")
    """User name for PLAIN and SCRAM."""
    sasl_password: SecretStr | None = Field(default=None, alias="sasl.password")
    """Password for PLAIN and SCRAM."""
    sasl_kerberos_service_name: str | None = Field(default=None, alias="sasl.kerberos.service.name")
    """Kerberos service name of the brokers, for GSSAPI."""
    sasl_oauthbearer_method: Literal["oidc"] | None = Field(default=None, alias="sasl.oauthbearer.method")
    """How to get tokens for OAUTHBEARER: by the client-credentials grant."""
    sasl_oauthbearer_client_id: str | None = Field(default=None, alias="sasl.oauthbearer.client.id")
    """Client id at the identity provider."""
    sasl_oauthbearer_client_secret: SecretStr | None = Field(default=None, alias="sasl.oauthbearer.client.secret")
    """Client secret at the identity provider."""
    sasl_oauthbearer_token_endpoint_url: Annotated[str, AfterValidator(token_endpoint)] | None = Field(
        default=None, alias="sasl.oauthbearer.token.endpoint.url"
    )
    """Token endpoint of the identity provider; https, except on loopback."""
    sasl_oauthbearer_scope: str | None = Field(default=None, alias="sasl.oauthbearer.scope")
    """Scope to ask the identity provider for."""
    ssl_ca_location: str | None = Field(default=None, alias="ssl.ca.location")
    """PEM file or folder of trusted certificate authorities; by default the system's."""
    ssl_certificate_location: str | None = Field(default=None, alias="ssl.certificate.location")
    """PEM file of the client certificate, for mutual TLS."""
    ssl_key_location: str | None = Field(default=None, alias="ssl.key.location")
    """PEM file of the client certificate's private key."""
    ssl_key_password: SecretStr | None = Field(default=None, alias="ssl.key.password")
    """Password of the private key."""
    ssl_endpoint_identification_algorithm: Literal["none", "https"] | None = Field(
        default=None, alias="ssl.endpoint.identification.algorithm"
    )
    """`none` turns off the check of broker host names, and is warned of at each start."""
    client_id: str | None = Field(default=None, alias="client.id")
    """Client id in requests; brokers show it in logs and use it for quotas."""
    socket_timeout_ms: Whole | None = Field(default=None, alias="socket.timeout.ms", ge=1000, le=300_000)
    """Milliseconds to wait for an answer."""

    @property
    def bootstrap(self) -> tuple[tuple[str, int], ...]:
        """The addresses to try first, as (host, port)."""
        return tuple(parse_address(address) for address in self.bootstrap_servers.split(","))

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        """Whether a connection begins with a proof of who we are."""
        return self.security_protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    @property
    def client(self) -> dict[str, str | int]:
        """What was set, under librdkafka's names and with secrets in clear: for a constructor, never for a log."""
        values = self.model_dump(by_alias=True, exclude_none=True, exclude={"alias"})
        return {name: v.get_secret_value() if isinstance(v, SecretStr) else v for name, v in values.items()}
