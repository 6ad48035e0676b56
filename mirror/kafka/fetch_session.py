"""A fetch session: who asks one leader again and again asks for what changed, and is answered with that (KIP-227)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kio.schema.errors import ErrorCode

from mirror.kafka.cluster import TopicPartition
from mirror.kafka.fetch import Ask, FetchAnswer, Fetched, FetchRequest, asked_by_name, read_fetch

_LAST_EPOCH: Final = 2**31 - 1
#: What a leader answers that does not know a session any more, or not like this: it is asked for everything then.
SESSION_ERRORS: Final = (
    ErrorCode.fetch_session_id_not_found,
    ErrorCode.invalid_fetch_session_epoch,
    ErrorCode.fetch_session_topic_id_error,
)


class FetchSession:
    """Has what one leader remembers of what it was asked for (KIP-227): a request names what is asked anew or no more,
    an answer what has something new. A broker that keeps no session, which it may at any time, is asked for everything.
    No call but the first request of a session takes time for partitions that nothing changes for.
    """

    def __init__(self) -> None:
        self.asks: dict[TopicPartition, Ask] = {}  # what the next request asks for, with what was asked for before
        self.asked: dict[TopicPartition, Ask] = {}  # what the leader knows, in the order in which it fills its answers
        self.heard_ms = 0  # when the leader was asked last (Unix ms) that then said what is new in all of it
        self.is_incremental = False  # whether the last request named what changed alone
        self._id = self._epoch = 0  # of the last request; epoch 0 asks for everything, and for a new session
        self._is_over = True  # the next request asks for everything
        self._touched = set[TopicPartition]()  # what the next request may have to name
        self._names: dict[tuple[str | bytes, int], TopicPartition] = {}  # what the leader knows, as answers name it

    def ask(self, ask: Ask) -> None:
        """Ask for a partition from the next request on."""
        self.asks[ask.partition] = ask
        self._touched.add(ask.partition)

    def forget(self, partition: TopicPartition) -> None:
        """Ask for a partition no more."""
        if self.asks.pop(partition, None):
            self._touched.add(partition)

    def request(self, version: int, *, max_wait_ms: int, max_bytes: int) -> FetchRequest:
        """Return the next request."""
        self._epoch = 0 if self._is_over or not self._id else self._epoch % _LAST_EPOCH + 1
        self.is_incremental, self._is_over = self._epoch > 0, False
        if self.is_incremental:
            named, gone = self._changed()
        else:
            turns = dict.fromkeys((*self.asked, *sorted(self.asks)))
            named, gone = (
                [self.asks[partition] for partition in turns if partition in self.asks],
                list(self.asked.values()),
            )
        for ask in gone:
            del self.asked[ask.partition]
        for name in asked_by_name(gone):
            self._names.pop(name, None)
        self._names |= asked_by_name(ask for ask in named if ask.partition not in self.asked)
        self.asked.update((ask.partition, ask) for ask in named)
        self._touched = set()
        session, forgotten = (self._id, self._epoch), gone if self.is_incremental else ()
        return FetchRequest(version, named, max_wait_ms, max_bytes, session=session, forgotten=forgotten)

    def _changed(self) -> tuple[list[Ask], list[Ask]]:
        """Find what the leader does not know, and what it knows and is asked for no more."""
        named, gone = list[Ask](), list[Ask]()
        for partition in sorted(self._touched):
            ask, known = self.asks.get(partition), self.asked.get(partition)
            if known is not None and (ask is None or ask.topic_id != known.topic_id):
                gone.append(known)
            if ask is not None and ask != known:
                named.append(ask)
        return named, gone

    def read(self, answer: FetchAnswer) -> list[Fetched]:
        """Return the partitions of an answer. What an answer of a session leaves out has nothing new."""
        if answer.error_code:
            self.end()
            return []
        self._id = answer.session_id
        return [fetched for fetched in read_fetch(answer, self._names) if fetched.partition in self.asked]

    def take_turns(self, found: Iterable[Fetched]) -> None:
        """Put what an answer had records of behind all others, as the leader does (Kafka `IncrementalFetchContext`)."""
        for fetched in found:
            if fetched.records and (ask := self.asked.pop(fetched.partition, None)):
                self.asked[fetched.partition] = ask

    def end(self) -> None:
        """Ask for everything, in a new session."""
        self._is_over = True

    def renew(self, partition: TopicPartition) -> None:
        """Have the next answer name a partition, whatever was answered before."""
        if partition in self.asked:
            self.end()
