"""Counts and lengths that lie, found before kio reads them.

kio 0.6 sets memory aside for an array by the count that the peer wrote, and the process aborts where that is too
much. This walk over the same schema follows the lengths of an answer without building anything, so a count is
believed only once its elements were seen. kio also stops at a tagged field that its schema lacks, where KIP-482 says
to pass over it (brokers add such fields without a new version); `readable` leaves them out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Any, Final, get_args, get_origin

from mirror.errors import MalformedFrame


@dataclass(slots=True)
class _Walk:
    """A frame under way, and what to replace in it for kio: (start, end, bytes), in order."""

    frame: memoryview
    edits: list[tuple[int, int, bytes]] = field(default_factory=list)

    def edited(self, start: int, end: int) -> memoryview:
        """The bytes from `start` to `end`, edits made; the same view where there are none."""
        if not self.edits:
            return self.frame[start:end]
        made = bytearray()
        for at, following, replacement in self.edits:
            made += self.frame[start:at]
            made += replacement
            start = following
        return memoryview(bytes(made + self.frame[start:end]))


Skip = Callable[[_Walk, int], int]
Length = Callable[[memoryview, int], tuple[int, int]]

_FIXED: Final = {
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "uint32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "uint64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "float64": 8,
    "uuid": 16,
}
_LONGEST_VARINT: Final = 5


def check_lengths(entity: Any, frame: memoryview, position: int = 0) -> int:
    """Walk one entity of the kio schema; the position after it.

    Raises MalformedFrame where a length or count is negative, or leads past the end of the frame.
    """
    return _walked(entity, _Walk(frame), position)


def readable(entity: Any, frame: memoryview, position: int = 0) -> tuple[memoryview, int]:
    """The entity's bytes as kio can read them, without unknown tagged fields, and the position after it in `frame`.

    Raises MalformedFrame as `check_lengths` does.
    """
    walk = _Walk(frame)
    end = _walked(entity, walk, position)
    return walk.edited(position, end), end


def _walked(entity: Any, walk: _Walk, position: int) -> int:
    try:
        return _walker(entity)(walk, position)
    except IndexError:
        detail = f"the frame of {len(walk.frame)} bytes ends inside a field"
    except MalformedFrame as problem:
        detail = str(problem)
    raise MalformedFrame(f"{entity.__name__} v{entity.__version__}: {detail}")


def _varint(frame: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for at in range(_LONGEST_VARINT):
        byte = frame[position + at]
        value |= (byte & 0x7F) << (7 * at)
        if byte < 0x80:
            return value, position + at + 1
    raise MalformedFrame(f"a varint at byte {position} does not end")


def _past(frame: memoryview, position: int, count: int) -> int:
    if count < 0 or position + count > len(frame):
        raise MalformedFrame(f"{count} bytes announced at byte {position} of a frame of {len(frame)}")
    return position + count


def _fixed(count: int) -> Skip:
    def skip(walk: _Walk, position: int) -> int:
        return _past(walk.frame, position, count)

    return skip


def _legacy_length(width: int) -> Length:
    def read(frame: memoryview, position: int) -> tuple[int, int]:
        end = _past(frame, position, width)
        return int.from_bytes(frame[position:end], "big", signed=True), end

    return read


def _compact_length(frame: memoryview, position: int) -> tuple[int, int]:
    length, position = _varint(frame, position)
    return length - 1, position


def _sized(length: Length, optional: bool) -> Skip:
    def skip(walk: _Walk, position: int) -> int:
        count, position = length(walk.frame, position)
        if count != -1:
            return _past(walk.frame, position, count)
        return _at_null(position, optional)

    return skip


def _array(length: Length, element: Skip, optional: bool) -> Skip:
    def skip(walk: _Walk, position: int) -> int:
        count, position = length(walk.frame, position)
        if count == -1:
            return _at_null(position, optional)
        left = len(walk.frame) - position
        if not 0 <= count <= left:
            raise MalformedFrame(f"{count} elements announced with {left} bytes left")
        for _ in range(count):
            position = element(walk, position)
        return position

    return skip


def _at_null(position: int, optional: bool) -> int:
    """kio gives None for an array that must not be null."""
    if not optional:
        raise MalformedFrame(f"null before byte {position}, where the schema has none")
    return position


def _nullable(entity: Skip) -> Skip:
    def skip(walk: _Walk, position: int) -> int:
        """KIP-893: a nullable struct is preceded by one byte, -1 for null."""
        return entity(walk, position + 1) if walk.frame[position] < 0x80 else position + 1

    return skip


def _field(told: Field[Any], flexible: bool) -> Skip:
    kind: Any = told.type
    optional = NoneType in get_args(kind)
    if optional:
        kind = next(inner for inner in get_args(kind) if inner is not NoneType)
    is_array = get_origin(kind) is tuple
    if is_array:
        kind = get_args(kind)[0]
    entity: Any = kind
    if is_dataclass(kind):
        element = _walker(entity)
        if optional and not is_array:
            element = _nullable(element)
    else:
        name = told.metadata["kafka_type"]
        if name in _FIXED:
            element = _fixed(_FIXED[name])
        else:
            length = _compact_length if flexible else _legacy_length(2 if name == "string" else 4)
            element = _sized(length, optional and not is_array)
    return _array(_compact_length if flexible else _legacy_length(4), element, optional) if is_array else element


@cache
def _walker(entity: Any) -> Skip:
    flexible: bool = entity.__flexible__
    plain = [_field(told, flexible) for told in fields(entity) if "tag" not in told.metadata]
    tagged = {told.metadata["tag"]: _field(told, flexible) for told in fields(entity) if "tag" in told.metadata}

    def skip(walk: _Walk, position: int) -> int:
        for skip_field in plain:
            position = skip_field(walk, position)
        return _tags(walk, position, tagged) if flexible else position

    return skip


def _tags(walk: _Walk, start: int, known: Mapping[int, Skip]) -> int:
    """KIP-482: a count, then for each tagged field its tag, its size and its bytes."""
    frame = walk.frame
    count, position = _varint(frame, start)
    kept: list[bytes] = []
    changed = False
    for _ in range(count):
        tag, position = _varint(frame, position)
        size, position = _varint(frame, position)
        end = _past(frame, position, size)
        if tag in known:
            inner = _Walk(frame[:end])
            if known[tag](inner, position) != end:
                raise MalformedFrame(f"a tagged field at byte {position} is not of the {size} bytes announced")
            body = inner.edited(position, end)
            kept.append(_to_varint(tag) + _to_varint(len(body)) + body)
            changed |= bool(inner.edits)
        else:
            changed = True
        position = end
    if changed:
        walk.edits.append((start, position, _to_varint(len(kept)) + b"".join(kept)))
    return position


def _to_varint(value: int) -> bytes:
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)
