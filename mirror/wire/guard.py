"""Counts and lengths that lie, found before kio reads them.

kio 0.6 sets memory aside for an array by the count that the peer wrote, and the process aborts where that is too
much. This walk over the same schema follows the lengths of an answer without building anything, so a count is
believed only once its elements were seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Any, Final, get_args, get_origin

from mirror.errors import MalformedFrame

Skip = Callable[[memoryview, int], int]

_FIXED: Final = {
    "int8": 1, "uint8": 1, "bool": 1, "int16": 2, "uint16": 2, "error_code": 2,
    "int32": 4, "uint32": 4, "timedelta_i32": 4,
    "int64": 8, "uint64": 8, "timedelta_i64": 8, "datetime_i64": 8, "float64": 8, "uuid": 16,
}
_LONGEST_VARINT: Final = 5


def check_lengths(entity: Any, frame: memoryview, position: int = 0) -> int:
    """Walk one entity of the kio schema; the position after it.

    Raises MalformedFrame where a length or count is negative, or leads past the end of the frame.
    """
    try:
        return _walker(entity)(frame, position)
    except IndexError:
        raise MalformedFrame(f"{entity.__name__}: the frame of {len(frame)} bytes ends inside a field") from None


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
    def skip(frame: memoryview, position: int) -> int:
        return _past(frame, position, count)

    return skip


def _legacy_length(width: int) -> Callable[[memoryview, int], tuple[int, int]]:
    def read(frame: memoryview, position: int) -> tuple[int, int]:
        end = _past(frame, position, width)
        return int.from_bytes(frame[position:end], "big", signed=True), end

    return read


def _compact_length(frame: memoryview, position: int) -> tuple[int, int]:
    length, position = _varint(frame, position)
    return length - 1, position


def _sized(length: Callable[[memoryview, int], tuple[int, int]]) -> Skip:
    def skip(frame: memoryview, position: int) -> int:
        count, position = length(frame, position)
        return position if count == -1 else _past(frame, position, count)

    return skip


def _array(length: Callable[[memoryview, int], tuple[int, int]], element: Skip) -> Skip:
    def skip(frame: memoryview, position: int) -> int:
        count, position = length(frame, position)
        if count < -1 or count > len(frame) - position:
            raise MalformedFrame(f"{count} elements announced with {len(frame) - position} bytes left")
        for _ in range(count):
            position = element(frame, position)
        return position

    return skip


def _nullable(entity: Skip) -> Skip:
    def skip(frame: memoryview, position: int) -> int:
        """KIP-893: a nullable struct is preceded by one byte, -1 for null."""
        return entity(frame, position + 1) if frame[position] < 0x80 else position + 1

    return skip


def _field(field: Field[Any], flexible: bool) -> Skip:
    kind: Any = field.type
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
        name = field.metadata["kafka_type"]
        if name in _FIXED:
            element = _fixed(_FIXED[name])
        else:
            element = _sized(_compact_length if flexible else _legacy_length(2 if name == "string" else 4))
    return _array(_compact_length if flexible else _legacy_length(4), element) if is_array else element


@cache
def _walker(entity: Any) -> Skip:
    flexible: bool = entity.__flexible__
    plain = [_field(field, flexible) for field in fields(entity) if "tag" not in field.metadata]
    tagged = {field.metadata["tag"]: _field(field, flexible) for field in fields(entity) if "tag" in field.metadata}

    def walk(frame: memoryview, position: int) -> int:
        for skip in plain:
            position = skip(frame, position)
        if flexible:
            count, position = _varint(frame, position)
            for _ in range(count):
                tag, position = _varint(frame, position)
                size, position = _varint(frame, position)
                end = _past(frame, position, size)
                if tag in tagged:
                    tagged[tag](frame[:end], position)
                position = end
        return position

    return walk
