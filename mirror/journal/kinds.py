"""The kinds of records in a journal: each has a prefix of keys, and a codec of values.

What follows the prefix names a topic or a partition of the target. A record without a value is a tombstone: what it
names is gone. A record that is none of a mirror raises one of `NOT_OURS`; whoever reads many passes it over.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Final, Generic, TypeVar

from mirror import clock
from mirror.journal.journal import Change, Entry
from mirror.kafka.cluster import TopicPartition
from mirror.observability.json_record import Codec
from mirror.observability.status import NOT_OURS

N = TypeVar("N")
T = TypeVar("T")


class RecordKind(Generic[N, T]):
    """Records whose keys begin with `prefix`. `is_dated`: their values end with `at_ms`, when they were written."""

    def __init__(self, prefix: bytes, codec: Codec[T], *, is_dated: bool = False) -> None:
        self.prefix: Final = prefix
        self._codec, self._is_dated = codec, is_dated

    def key(self, name: N) -> bytes:
        """Return the key of a record."""
        return self.prefix + str(name).encode()

    def parse(self, text: str) -> N:
        """Return the name in a key. Raises ValueError for one that is none."""
        raise NotImplementedError

    def name(self, key: bytes) -> N | None:
        """Return the name in a key, None for a key of another kind. Raises ValueError for a garbled one."""
        return self.parse(key[len(self.prefix) :].decode()) if key.startswith(self.prefix) else None

    def entry(self, name: N, record: T) -> tuple[bytes, bytes]:
        """Return the key and the value of a record."""
        value = self._codec.write(record)
        return self.key(name), value[:-1] + b',"at_ms":%d}' % clock.now_ms() if self._is_dated else value

    def tombstone(self, name: N) -> tuple[bytes, None]:
        """Return the key of what is gone, without a value."""
        return self.key(name), None

    def change(self, name: N, record: T | None) -> Change:
        """Return the entry of a record; the tombstone where there is none."""
        return self.tombstone(name) if record is None else self.entry(name, record)

    def read(self, entry: Entry) -> tuple[N, T | None] | None:
        """Return what a record names, and its value: None for a tombstone. None for a record of another kind. Raises
        ValueError for a garbled one.
        """
        if (name := self.name(entry.key)) is None:
            return None
        return name, None if entry.value is None else self._codec.read(entry.value)

    def newest(self, journal: Mapping[bytes, bytes]) -> dict[N, T]:
        """Return what the newest records of a journal say, by what they name, without garbled ones."""
        found = dict[N, T]()
        for key, value in journal.items():
            if key.startswith(self.prefix):
                with contextlib.suppress(*NOT_OURS):
                    found[self.parse(key[len(self.prefix) :].decode())] = self._codec.read(value)
        return found


class TopicKind(RecordKind[str, T]):
    """Records of topics."""

    def parse(self, text: str) -> str:
        """Return the name of the topic."""
        return text


class PartitionKind(RecordKind[TopicPartition, T]):
    """Records of target partitions."""

    def key(self, name: TopicPartition) -> bytes:
        """Return the key of a record."""
        return self.prefix + f"{name.topic}/{name.partition}".encode()

    def parse(self, text: str) -> TopicPartition:
        """Return the partition. Raises ValueError where the text ends with no number."""
        topic, _, partition = text.rpartition("/")
        return TopicPartition(topic, int(partition))


class PlaceKind(RecordKind[tuple[TopicPartition, str], T]):
    """Records of places in target partitions: of an offset, mostly."""

    def key(self, name: tuple[TopicPartition, str]) -> bytes:
        """Return the key of a record."""
        (topic, partition), place = name
        return self.prefix + f"{topic}/{partition}/{place}".encode()

    def parse(self, text: str) -> tuple[TopicPartition, str]:
        """Return the partition and the place. Raises ValueError where there is no number of a partition."""
        topic, partition, place = text.rsplit("/", 2)
        return TopicPartition(topic, int(partition)), place
