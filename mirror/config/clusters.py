"""`source:` and `target:`: where a cluster is, and how to be known there, under librdkafka's own names."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, AliasChoices, Field, SecretStr

from mirror.config.section import Section
from mirror.config.values import Addresses, TopicPart, Whole, parse_address, token_endpoint

Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"]


class ClusterSettings(Section):
    """An alias, and what a client needs: the admin client takes it as it is, the wire by `Endpoint.of`."""

    alias: TopicPart
    bootstrap_servers: Addresses = Field(alias="bootstrap.servers")
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        default="PLAINTEXT", alias="security.protocol"
    )
    sasl_mechanism: Mechanism | None = Field(
        default=None,
        validation_alias=AliasChoices("sasl.mechanism", "sasl.mechanisms"),
        serialization_alias="sasl.mechanism",
    )
    sasl_username: str | None = Field(default=None, alias="sasl.username")
    sasl_password: SecretStr | None = Field(default=None, alias="sasl.password")
    sasl_kerberos_service_name: str | None = Field(default=None, alias="sasl.kerberos.service.name")
    sasl_oauthbearer_method: Literal["oidc"] | None = Field(default=None, alias="sasl.oauthbearer.method")
    sasl_oauthbearer_client_id: str | None = Field(default=None, alias="sasl.oauthbearer.client.id")
    sasl_oauthbearer_client_secret: SecretStr | None = Field(default=None, alias="sasl.oauthbearer.client.secret")
    sasl_oauthbearer_token_endpoint_url: Annotated[str, AfterValidator(token_endpoint)] | None = Field(
        default=None, alias="sasl.oauthbearer.token.endpoint.url"
    )
    sasl_oauthbearer_scope: str | None = Field(default=None, alias="sasl.oauthbearer.scope")
    ssl_ca_location: str | None = Field(default=None, alias="ssl.ca.location")
    ssl_certificate_location: str | None = Field(default=None, alias="ssl.certificate.location")
    ssl_key_location: str | None = Field(default=None, alias="ssl.key.location")
    ssl_key_password: SecretStr | None = Field(default=None, alias="ssl.key.password")
    ssl_endpoint_identification_algorithm: Literal["none", "https"] | None = Field(
        default=None, alias="ssl.endpoint.identification.algorithm"
    )
    client_id: str | None = Field(default=None, alias="client.id")
    socket_timeout_ms: Whole | None = Field(default=None, alias="socket.timeout.ms", ge=1000, le=300_000)

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
