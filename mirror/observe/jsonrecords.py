"""JSON as it comes back from a topic: anybody may write there, so nothing is believed before it was looked at."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

#: What reading a record may raise that is of another version, or of somebody else's: OverflowError is an infinity's,
#: where a whole number should be.
NOT_OURS: Final = (ValueError, KeyError, TypeError, OverflowError)
#: Kafka's own numbers have 64 bits; larger ones cannot even be shown.
_LARGEST: Final = 1 << 63


def parsed(value: bytes) -> Any:
    """A record's JSON. Raises ValueError for what is none, however deep it is nested, and for text that could not be
    shown: JSON can name halves of a character, which UTF-8 cannot encode.
    """
    try:
        text = value.decode()  # JSONDecodeError, UnicodeDecodeError and UnicodeEncodeError are ValueErrors
        found = json.loads(text)
        if "\\u" in text:
            json.dumps(found, ensure_ascii=False).encode()
        return found
    except RecursionError as error:
        raise ValueError("JSON that is nested too deeply") from error


def is_of(value: object, kinds: tuple[type, ...]) -> bool:
    """Whether a value is of one of these types; to Python, but not to JSON, true is a number."""
    return isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))


def read_fields(
    value: bytes, kinds: Mapping[str, tuple[type, ...]], required: Iterable[str], what: str
) -> dict[str, Any]:
    """The fields of a JSON object that `kinds` names, each with its types; others are ignored.

    Raises ValueError, which begins with `what`, where the record is no object, a field is of another type or beyond 64
    bits, or one of `required` is missing.
    """
    found = parsed(value)
    if not isinstance(found, dict):
        raise ValueError(f"{what} must be a JSON object")
    fields = {name: found[name] for name in kinds if name in found}
    for name, field in fields.items():
        if not is_of(field, kinds[name]):
            raise ValueError(f"{what}: {name} is {field!r}")
        if isinstance(field, int) and not -_LARGEST <= field < _LARGEST:
            raise ValueError(f"{what}: {name} is a number of more than 64 bits")
    if absent := set(required) - fields.keys():
        raise ValueError(f"{what} lack {', '.join(sorted(absent))}")
    return fields
