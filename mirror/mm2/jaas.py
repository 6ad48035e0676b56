"""A line of `sasl.jaas.config`: a login module, a control flag, and options.

org.apache.kafka.common.security.plain.PlainLoginModule required username="me" password="secret";
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

_TOKEN: Final = re.compile(r'\s*(?:"((?:\\.|[^"\\])*)"|\'((?:\\.|[^\'\\])*)\'|([=;])|([^\s"\'=;]+))', re.DOTALL)
_FLAGS: Final = ("required", "requisite", "sufficient", "optional")


@dataclass(frozen=True, slots=True)
class Login:
    """`module` is the class without its package; the options hold secrets, so no representation shows them."""

    module: str
    options: Mapping[str, str] = field(repr=False)


def login(text: str) -> Login:
    """The first entry of a line. Raises ValueError where it is none; its message shows nothing of the text."""
    tokens = _tokens(text)
    if len(tokens) < 2 or tokens[1].text.lower() not in _FLAGS:
        raise ValueError("not a login module with a control flag (required) and options")
    options: dict[str, str] = {}
    rest = tokens[2:]
    while rest and rest[0] != _END:
        if len(rest) < 3 or [one.is_mark for one in rest[:3]] != [False, True, False] or rest[1] == _END:
            raise ValueError("options must be written as name=value")
        options[rest[0].text] = rest[2].text
        rest = rest[3:]
    return Login(tokens[0].text.rpartition(".")[2], options)


class _Token(NamedTuple):
    """A word, in quotes or not, or one of the marks `=` and `;`."""

    text: str
    is_mark: bool


_END: Final = _Token(";", is_mark=True)


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    at = 0
    text = text.rstrip()
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise ValueError("a quote is not closed")
        double, single, mark, word = token.groups()
        quoted = double if double is not None else single
        plain = re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL) if quoted is not None else mark or word
        found.append(_Token(plain, is_mark=mark is not None))
        at = token.end()
    return found
