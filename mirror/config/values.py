"""The kinds of values that a configuration has, each with its own complaint."""

from __future__ import annotations

import re
import warnings
from datetime import UTC, date, datetime, time
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from mirror import names

DEFAULT_EXCLUDE = ("__.*", r"mirror\..*")
#: Room for the longest name of a topic with every character escaped.
MAX_PATTERN = 2 * names.LONGEST
MAX_EXPRESSION = 10_000
MAX_FLOW_NAME = 200
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def _topic_part(text: str) -> str:
    if not names.is_legal(text):
        raise ValueError("may hold letters, digits, '.', '_' and '-' only")
    return text


def parse_address(text: str) -> tuple[str, int]:
    """`host:port` or `[IPv6]:port` as a pair; `ValueError` says what is wrong."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or not host:
        raise ValueError("each address must be host:port")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError("an IPv6 address must stand in brackets, as in [::1]:9092")
    if not host or re.search(r"[\s\[\]/]", host):
        raise ValueError("each address must be host:port, without a scheme or spaces")
    if not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise ValueError("a port must be a number from 1 to 65535")
    return host, int(port)


def _address(text: str) -> str:
    parse_address(text)
    return text


def _listen(value: object) -> object:
    """A port alone is one of the loopback interface: figures are for everybody who can reach them."""
    is_port = isinstance(value, int) and not isinstance(value, bool)
    return f"127.0.0.1:{value}" if is_port or (isinstance(value, str) and value.isdigit()) else value


def _addresses(text: str) -> str:
    for address in text.split(","):
        parse_address(address)
    return text


def token_endpoint(text: str) -> str:
    """A URL that a client secret may be sent to; `ValueError` says what is wrong with another."""
    url = urlsplit(text)
    if not url.hostname or url.scheme not in ("https", "http"):
        raise ValueError("must be a URL such as https://identity.example.org/oauth2/token")
    if url.scheme == "http" and url.hostname not in _LOOPBACK:
        raise ValueError("must begin with https://, since the client secret is sent there")
    if url.username or url.password:
        raise ValueError("must hold no user and no password; use sasl.oauthbearer.client.id and client.secret")
    return text


def _prefix(text: str) -> str:
    return _topic_part(text) if text.strip(".") else text  # "." alone is no topic, but a fair beginning of one


def _compile(value: object) -> re.Pattern[str]:
    value = value.pattern if isinstance(value, re.Pattern) else value
    if not isinstance(value, str) or not 0 < len(value) <= MAX_PATTERN:
        raise ValueError(f"a pattern must be text of 1 to {MAX_PATTERN} characters; put it in quotes")
    try:
        with warnings.catch_warnings(action="error", category=FutureWarning):
            compiled = re.compile(value)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"not a regular expression: {error}") from error
    except FutureWarning as warning:  # sets of sets, as Java has them
        raise ValueError(f"not the same to Java, which Kafka's tools are written in: {warning}") from warning
    if names.has_nested_repeat(value):
        raise ValueError("a repeated group may not hold a repeat or an alternative, write it flat")
    return compiled


def instant(value: object) -> datetime:
    """A time of ISO 8601, or a date for its midnight; UTC where it names no zone. `ValueError` for anything else."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    if isinstance(value, date):
        return datetime.combine(value, time(), UTC)
    raise ValueError(f"{value!r} is not a time")


def _start(value: object) -> Literal["earliest", "latest"] | datetime:
    if value == "earliest":
        return "earliest"
    if value == "latest":
        return "latest"
    try:
        return instant(value)
    except ValueError:
        raise ValueError("must be earliest, latest or an ISO time such as 2026-01-31T12:00:00Z") from None


def _plain_text(value: object) -> object:
    """Spark and YAML disagree about what needs quotes: numbers and booleans become Spark's text for them."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _no_truth(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("must be a number, not a yes or no")
    return value


def _expression(text: str) -> str:
    if not text.strip():
        raise ValueError("must be an expression of Spark SQL, such as get_json_object(string(value), '$.user')")
    return text


Expression = Annotated[str, Field(max_length=MAX_EXPRESSION), AfterValidator(_expression)]
FlowName = Annotated[str, Field(max_length=MAX_FLOW_NAME), AfterValidator(_topic_part)]
TopicPart = Annotated[str, Field(max_length=names.LONGEST), AfterValidator(_topic_part)]
Pattern = Annotated[re.Pattern[str], BeforeValidator(_compile)]
Whole = Annotated[int, BeforeValidator(_no_truth)]
Seconds = Annotated[float, Field(gt=0, le=86_400), BeforeValidator(_no_truth)]
Address = Annotated[str, AfterValidator(_address)]
Listen = Annotated[Address, BeforeValidator(_listen)]
Addresses = Annotated[str, AfterValidator(_addresses)]
Prefix = Annotated[str, Field(max_length=names.LONGEST), AfterValidator(_prefix)]
Start = Annotated[Literal["earliest", "latest"] | datetime, BeforeValidator(_start)]
PlainText = Annotated[str, BeforeValidator(_plain_text)]
