"""What a topic may be called, and which patterns for names are safe to match."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

LONGEST: Final = 249
#: What the names of the topics begin with that brokers, and that mirrors, keep for themselves.
INTERNAL_PREFIX: Final = "__"
OWN_PREFIX: Final = "mirror."
_CHARACTERS: Final = re.compile(r"[A-Za-z0-9._-]+")
#: A set in brackets up to its end, or to a bracket inside that has no backslash before it.
_SET: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\\\[\]])*([\[\]])", re.DOTALL)


class TopicPartition(NamedTuple):
    """Names a partition, and reads as people write it."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def is_legal(name: str) -> bool:
    """True for what brokers take as a topic's name."""
    return len(name) <= LONGEST and is_plain(name) and name not in (".", "..")


def is_plain(pattern: str) -> bool:
    """True for a pattern without special characters (a dot aside): it is meant as a name."""
    return _CHARACTERS.fullmatch(pattern) is not None


def did_you_mean(name: str, known: Iterable[str], most: int = 3) -> str:
    """How a message about a name that is not known ends: with those `known` that are like it, at most so many; the
    empty string where there is none.
    """
    near = difflib.get_close_matches(name, list(known), n=most)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def first_of(names: Sequence[str], most: int = 5, separator: str = ", ") -> str:
    """The first of many, in their order, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return separator.join(names[:most]) + more


def has_nested_repeat(pattern: str) -> bool:
    """True when a repeated group holds a repeat or an alternative: Python's matcher can take exponential time on it."""
    inner = [False]  # per open group: has it a repeat or an alternative inside?
    bare = re.sub(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", "x", pattern)  # escapes and classes hold no structure
    for found in re.finditer(r"\(|\)(\*|\+|\{(?!0?,?1\}))?|[*+|]|\{[\d,]|(?<!\()\?", bare):
        token = found.group()
        if token.startswith("("):
            inner.append(False)
        elif token.startswith(")"):
            complex_group = inner.pop() if len(inner) > 1 else False
            if complex_group and found.group(1):
                return True
            inner[-1] = inner[-1] or complex_group or bool(found.group(1))
        else:
            inner[-1] = True
    return False


def has_nested_set(pattern: str) -> bool:
    """True when a set of characters holds another one, which Java joins to it, and Python takes for characters."""
    return any(found[1] == "[" for found in _SET.finditer(pattern))
