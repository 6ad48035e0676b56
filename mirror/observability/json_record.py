"""Records of JSON: a dataclass declares each of them once, and pydantic writes and reads them.

Reading ignores keys that it does not know, so that an older mirror can watch a newer one. Anybody may write to a topic:
reading raises ValueError for a value of another type or range, and for text that could not be shown.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Annotated, Any, Final, Generic, Self, TypeVar
from uuid import UUID

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

T = TypeVar("T")

#: Problems that the error of a record names at most.
_MOST_PROBLEMS: Final = 3

#: Kafka's own numbers have 64 bits; larger ones cannot even be shown.
Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]
#: An offset, a count, or a time in ms since 1970.
Offset = Annotated[int, Field(ge=0, lt=2**63)]
#: The id of a topic; None, or an empty text, for a cluster that has none.
TopicId = Annotated[UUID | None, BeforeValidator(lambda value: value or None)]


class Codec(Generic[T]):
    """Writes and reads the values of one type of record. It builds its schema when it is first used."""

    def __init__(
        self,
        shape: Any,
        *,
        names: Mapping[str, str] | None = None,
        omit: Callable[[T], set[str]] | None = None,
    ) -> None:
        """`shape`: the type, as pydantic takes it. `names`: what JSON calls a field, where that is not its own name.
        `omit` returns the fields of a record that are not written.
        """
        self._shape, self._names, self._omit = shape, names, omit

    @cached_property
    def _adapter(self) -> TypeAdapter[T]:
        if (names := self._names) is None:
            return TypeAdapter(self._shape)
        return TypeAdapter(self._shape, config=ConfigDict(alias_generator=lambda field: names.get(field, field)))

    def write(self, record: T) -> bytes:
        """Return the value of a record."""
        omitted = self._omit(record) if self._omit is not None else None
        try:
            return self._adapter.dump_json(record, by_alias=True, exclude=omitted)
        except PydanticSerializationError:  # half a character, as an error of the system may have in a file's name
            return json.dumps(self._adapter.dump_python(record, mode="json", by_alias=True, exclude=omitted)).encode()

    def read(self, value: bytes) -> T:
        """Return the record of a value. Raises ValueError, which names the fields that are at fault."""
        try:
            return self._adapter.validate_json(value, strict=True)
        except ValidationError as problem:
            found = problem.errors(include_url=False, include_context=False, include_input=False)[:_MOST_PROBLEMS]
            reasons = (": ".join(filter(None, [".".join(map(str, one["loc"])), one["msg"]])) for one in found)
            raise ValueError(f"{problem.title}: {'; '.join(reasons)}") from None


_CODECS: Final = dict[type[Any], Codec[Any]]()


def codec_of(record: type[T]) -> Codec[T]:
    """Return the codec of a dataclass; its method `omitted`, if it has one, returns the fields that are not written."""
    if (codec := _CODECS.get(record)) is None:
        codec = _CODECS[record] = Codec(record, omit=getattr(record, "omitted", None))
    return codec


class JsonRecord:
    """A dataclass that is the value of a record."""

    __slots__ = ()

    def to_json(self) -> bytes:
        """Return the value of its record."""
        return codec_of(type(self)).write(self)

    @classmethod
    def from_json(cls, value: bytes) -> Self:
        """Return the record of a value. Raises ValueError for one that is none."""
        return codec_of(cls).read(value)
