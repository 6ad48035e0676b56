"""Requests and answers of any schema, made up from a generator of random numbers; and ones whose lengths lie.

Hypothesis hands in a generator that it can shrink (`st.randoms`); the fuzzer hands in a seeded one.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime, timedelta
from random import Random
from types import NoneType
from typing import Any, Final, get_args, get_origin

from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from mirror.kafka import protocol
from mirror.kafka.protocol import Api

APIS: Final = tuple(value for value in vars(protocol).values() if isinstance(value, Api))
VERSIONS: Final = tuple((api, version) for api in APIS for version in range(api.oldest, api.newest + 1))
RESPONSES: Final = tuple(api.response(version) for api, version in VERSIONS)
REQUESTS: Final = tuple(api.request(version) for api, version in VERSIONS)
#: The largest count that kio writes into either kind of array.
HUGE: Final = 2**31 - 2


def name_of(entity: Any) -> str:
    """For test ids."""
    return f"{entity.__name__}-v{entity.__version__}"


def _integer(bits: int) -> Callable[[Random], int]:
    return lambda random: random.choice((0, 1, -1, random.randrange(-(2 ** (bits - 1)), 2 ** (bits - 1))))


def _text(random: Random) -> str:
    return "".join(random.choice("ab-é漢") for _ in range(random.randrange(12)))


def _uuid(random: Random) -> uuid.UUID | None:
    return uuid.UUID(int=random.getrandbits(128) | 1) if random.randrange(4) else None


def _bytes(random: Random) -> bytes:
    return bytes(random.randrange(256) for _ in range(random.choice((0, 1, 30, 200))))


_MADE: Final[dict[str, Callable[[Random], Any]]] = {
    "int8": _integer(8),
    "int16": _integer(16),
    "int32": _integer(32),
    "int64": _integer(64),
    "uint16": lambda random: random.randrange(2**16),
    "bool": lambda random: random.random() < 0.5,
    "string": _text,
    "bytes": _bytes,
    "records": _bytes,
    "uuid": _uuid,
    "error_code": lambda random: random.choice(tuple(ErrorCode)),
    "datetime_i64": lambda random: datetime.fromtimestamp(random.randrange(2**32), UTC),
    "timedelta_i32": lambda random: timedelta(milliseconds=random.randrange(2**31)),
    "timedelta_i64": lambda random: timedelta(milliseconds=random.randrange(2**40)),
}


def sample(entity: Any, random: Random) -> Any:
    """One value of a kio class, every field of it made up."""
    return entity(**{field.name: _value(field, random) for field in fields(entity)})


def _value(field: Any, random: Random) -> Any:
    kind = field.type
    optional = NoneType in get_args(kind)
    if optional:
        kind = next(inner for inner in get_args(kind) if inner is not NoneType)
        if field.metadata.get("kafka_type") != "uuid" and not random.randrange(4):
            return None
    is_array = get_origin(kind) is tuple
    if is_array:
        kind = get_args(kind)[0]

    def one() -> Any:
        return sample(kind, random) if is_dataclass(kind) else _MADE[field.metadata["kafka_type"]](random)

    return tuple(one() for _ in range(random.randrange(3))) if is_array else one()


def encoded(value: Any) -> bytes:
    """kio's own encoding of one entity, without a header."""
    buffer = io.BytesIO()
    entity_writer(type(value))(buffer, value)
    return buffer.getvalue()


def answer(value: Any, correlation_id: int = 1) -> bytes:
    """A whole answer as in a frame: the header of its API and version, then the body."""
    return encoded(value.__header_schema__(correlation_id=correlation_id)) + encoded(value)


def lie_sample(response: Any) -> Any:
    """An answer in which every array holds something, so that lies lie deep."""
    return max((sample(response, Random(seed)) for seed in range(40)), key=lambda value: len(encoded(value)))


class _LyingTuple(tuple[Any, ...]):
    __slots__ = ()

    def __len__(self) -> int:
        return HUGE


class _LyingBytes(bytes):
    def __len__(self) -> int:
        return HUGE


class _LyingText(str):
    __slots__ = ()

    def encode(self, *_: Any) -> bytes:
        return _LyingBytes(str(self).encode())


def lies(value: Any) -> Iterator[Any]:
    """`value` again for each array, string and byte field in it, its length as large as the format allows."""
    for field in fields(value):
        held = getattr(value, field.name)
        if "tag" in field.metadata and held == field.default:
            continue  # not written at all
        if isinstance(held, tuple):
            yield replace(value, **{field.name: _LyingTuple(held)})
            for index, inner in enumerate(held):
                if is_dataclass(inner):
                    for lie in lies(inner):
                        yield replace(value, **{field.name: (*held[:index], lie, *held[index + 1 :])})
        elif isinstance(held, bytes):
            yield replace(value, **{field.name: _LyingBytes(held)})
        elif isinstance(held, str) and type(value).__flexible__:
            yield replace(value, **{field.name: _LyingText(held)})
        elif is_dataclass(held):
            for lie in lies(held):
                yield replace(value, **{field.name: lie})


def nulls(value: Any) -> Iterator[Any]:
    """`value` again for each array in it that must not be null, with null there."""
    for field in fields(value):
        held = getattr(value, field.name)
        if not isinstance(held, tuple):
            continue
        if "tag" not in field.metadata and NoneType not in get_args(field.type):
            yield replace(value, **{field.name: None})
        for index, inner in enumerate(held):
            if is_dataclass(inner):
                for lie in nulls(inner):
                    yield replace(value, **{field.name: (*held[:index], lie, *held[index + 1 :])})
