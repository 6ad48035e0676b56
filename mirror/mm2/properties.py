r"""Java's property files (`java.util.Properties.load`), read as MirrorMaker does.

- Bytes are ISO-8859-1; other characters are written `\u20ac`.
- A line that ends with an odd number of backslashes goes on in the next one, whose leading blanks do not count.
- A line whose first character is `#` or `!` is a comment; one never goes on in the next line.
- A key ends at the first blank, `=` or `:` that has no backslash before it. One `=` or `:` and blanks around it are
  skipped; the rest, blanks at its end included, is the value. Backslashes with nothing behind them are no property.
- `\t`, `\n`, `\r` and `\f` are what they are in C; a backslash before anything else is left out.
- Of a key that is given twice the last value holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_BLANKS: Final = " \t\f"
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
#: A key, up to the first blank, `=` or `:` without a backslash; a backslash at the very end is left out.
_KEY: Final = re.compile(r"(?:\\.|[^\\ \t\f=:])*", re.DOTALL)
_SEPARATOR: Final = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
_ESCAPE: Final = re.compile(r"\\(u[0-9A-Fa-f]{4}|.|\Z)", re.DOTALL)
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class BadProperties(ValueError):
    """Text that Java would refuse, too; `line` counts from 1."""

    def __init__(self, line: int, what: str) -> None:
        self.line = line
        super().__init__(what)


@dataclass(frozen=True, slots=True)
class Property:
    """A key with its value and the line where it begins, counted from 1."""

    key: str
    value: str
    line: int


def parse(data: bytes) -> list[Property]:
    """All properties of a file in their order, those that a later one overrides included. Raises BadProperties."""
    return [_property(text, line) for line, text in _logical_lines(data.decode("iso-8859-1"))]


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with what continues them, without comments, empty lines and leading blanks; each with its number."""
    begun, whole = 0, ""
    for number, line in enumerate(_LINE_END.split(text), 1):
        bare = line.lstrip(_BLANKS)
        if not whole:
            if not bare or bare[0] in "#!":
                continue
            begun = number
        goes_on = (len(bare) - len(bare.rstrip("\\"))) % 2 == 1
        whole += bare[:-1] if goes_on else bare
        if whole and not goes_on:
            yield begun, whole
            whole = ""
    if whole:
        yield begun, whole


def _property(text: str, line: int) -> Property:
    found = _KEY.match(text)
    assert found is not None, "the pattern matches the empty string"
    separator = _SEPARATOR.match(text, found.end())
    assert separator is not None, "so does this one"
    return Property(_unescaped(found.group(), line), _unescaped(text[separator.end() :], line), line)


def _unescaped(text: str, line: int) -> str:
    def one(found: re.Match[str]) -> str:
        what = found[1]
        if len(what) == 5:
            return chr(int(what[1:], 16))
        if what == "u":
            raise BadProperties(line, r"malformed \uxxxx, which Java refuses")
        return _CONTROLS.get(what, what)

    return _ESCAPE.sub(one, text)
