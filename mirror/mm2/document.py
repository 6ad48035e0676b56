"""A draft as YAML, with what was not translated in comments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mirror.mm2.draft import Draft
from mirror.mm2.references import Variable
from mirror.mm2.scope import Note
from mirror.yamltree import key_of, line_of

_WIDTH = 120


def text_of(draft: Draft, origin: str) -> str:
    """The file: what it is from, the variables it needs, sections, and the keys that have no equivalent."""
    flow = f"{draft.scope.source}->{draft.scope.target}"
    lines = [*_comment(f"The flow {flow} of {origin}, translated by `mirror import-mm2`. Check it with `mirror plan`.")]
    lines += _variables(draft.translator.variables.values())
    section: str | int | None = None
    sections = list(dict.fromkeys(where[0] for where in draft.values))
    for where, value in sorted(draft.values.items(), key=lambda item: sections.index(item[0][0])):
        if len(where) == 2 and where[0] != section:
            section = where[0]
            lines += ["", f"{section}:"]
        indent = "  " * (len(where) - 1)
        for remark in draft.remarks.get(where, ()):
            lines += _comment(remark, indent)
        lines.append(f"{indent}{key_of(str(where[-1]))}: {line_of(value)}")
    lines += _notes(draft.scope.notes)
    return "\n".join(lines) + "\n"


def _variables(variables: Iterable[Variable]) -> Iterator[str]:
    for at, one in enumerate(variables):
        if not at:
            yield from _comment("Set these variables before it starts:")
        yield from _comment(f"  {one.name}: {one.holds}")


def _notes(notes: Iterable[Note]) -> Iterator[str]:
    for at, note in enumerate(notes):
        if not at:
            yield from ("", *_comment("Not translated, by line:"))
        yield from _comment(f"  {note}")


def _comment(text: str, indent: str = "") -> Iterator[str]:
    """Lines of a comment, in characters that YAML takes."""
    words = printable(text).split(" ")
    line = f"{indent}#"
    for word in words:
        if len(line) + 1 + len(word) > _WIDTH and line.strip() != "#":
            yield line
            line = f"{indent}#  "
        line += f" {word}"
    yield line.rstrip()


def printable(text: str) -> str:
    """With escapes for all that is not a plain character: a key may hold anything."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
